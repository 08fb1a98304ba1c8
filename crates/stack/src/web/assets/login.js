// Exchanges the token in the fragment of the address for a cookie.

"use strict";

const message = document.getElementById("message");

async function logIn(token) {
  message.textContent = "Logging in.";
  try {
    const answer = await fetch("/login", { method: "POST", body: token });
    if (answer.ok) {
      location.replace("/");
    } else {
      message.textContent = `Not logged in: ${(await answer.text()).trim()}.`;
    }
  } catch {
    message.textContent = "Not logged in: the server does not answer.";
  }
}

function useToken() {
  const token = location.hash.slice(1);
  if (token === "") return;
  // The token must not stay in the history of the browser.
  history.replaceState(null, "", "/login");
  logIn(token);
}

// A link that is opened here while the page is shown only changes the fragment.
window.addEventListener("hashchange", useToken);
useToken();
