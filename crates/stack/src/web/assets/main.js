// Collects the data, and shows the page that the address names.

import { cell, lun, ofCell, ofPath, service } from "./details.js";
import { el, setText } from "./elements.js";
import { clock, state } from "./format.js";
import { History, ioRates, ioTotals } from "./history.js";
import { ALL, cache, cacheRates, cacheTotals, ofCache, ofService, overview } from "./views.js";

/** Time between two updates, in milliseconds. */
const INTERVAL = 2000;
/** Time limit of a request, in milliseconds. */
const PATIENCE = 15_000;

const VIEWS = { overview, cache, service, lun, cell };

const main = document.getElementById("main");
const pause = document.getElementById("pause");
const updated = document.getElementById("updated");
const announcement = document.getElementById("announcement");

const model = { overview: undefined, details: undefined, history: new History() };
/** States that were shown before, by service. */
let states;
let view;
let timer;
let isPaused = false;
let isFailing = false;
/** Number of the update in progress; an older one shows nothing. */
let updates = 0;

class LoggedOut extends Error {}

/** Reads data; null if the server has none at this path. */
async function get(path) {
  const signal = AbortSignal.timeout(PATIENCE);
  const answer = await fetch(path, { cache: "no-store", signal });
  if (answer.status === 403) throw new LoggedOut();
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the server answers with ${answer.status}`);
  return answer.json();
}

/** Finds the page in the address: its kind, and the name of its object. */
function place() {
  const [, kind, name] = /^#\/([a-z]+)\/?(.*)$/.exec(location.hash) ?? [];
  const isKnown = kind !== undefined && Object.hasOwn(VIEWS, kind);
  const needsName = isKnown && kind !== "overview" && kind !== "cache";
  try {
    const decoded = decodeURIComponent(name ?? "");
    if (isKnown && needsName === (decoded !== "")) return [kind, decoded];
  } catch {
    // Not an address of this page.
  }
  return ["overview", ""];
}

/** Shows the page that the address names. */
function navigate(isByUser) {
  const [kind, name] = place();
  view = VIEWS[kind](name);
  model.details = undefined;
  const heading = el("h1", { tabindex: -1 }, view.title);
  main.replaceChildren(heading, view.node);
  view.node.hidden = true;
  document.title = `${view.title} - EVFS`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === kind) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
  if (isByUser) heading.focus();
  update();
}

/** Adds the new totals to the history. */
function remember({ time_ms: time, volumes, caches }) {
  const { history } = model;
  const sums = {};
  let isKnown = false;
  for (const volume of volumes.filter(({ stats }) => stats)) {
    const [key, run] = [ofService(volume.name), `${volume.pid} ${volume.since}`];
    history.totals(key, time, run, ioTotals(volume.stats), ioRates);
    const values = history.last(key);
    for (const [name, value] of Object.entries(values ?? {})) {
      sums[name] = (sums[name] ?? 0) + (value ?? 0);
    }
    if (values !== null) {
      isKnown = true;
      sums.time = (sums.time ?? 0) + (values.latency ?? 0) * values.requests;
    }
  }
  sums.latency = sums.requests > 0 ? sums.time / sums.requests : null;
  history.values(ALL, time, isKnown ? sums : null);
  for (const one of caches) {
    history.totals(ofCache(one.pid), time, "", cacheTotals(one), cacheRates);
  }
}

/** Adds the totals of a service's paths and of its cell to the history. */
function rememberDetails({ time_ms: time, volume, lun, cell }) {
  const run = `${volume.pid} ${volume.since}`;
  for (const path of lun?.paths ?? []) {
    const totals = { readBytes: path.bytes_read, writeBytes: path.bytes_written };
    model.history.totals(ofPath(lun.name, path.name), time, run, totals, perSecond);
  }
  if (cell?.stats) {
    const { calls, fetched_bytes: fetched, stored_bytes: stored } = cell.stats;
    model.history.totals(ofCell(volume.name), time, run, { calls, fetched, stored }, perSecond);
  }
}

function perSecond(differences, seconds) {
  const rates = Object.entries(differences).map(([name, value]) => [name, value / seconds]);
  return Object.fromEntries(rates);
}

/** Announces services that came, ended, or changed their state. */
function announceChanges(volumes) {
  const now = new Map(volumes.map((volume) => [volume.name, state(volume)]));
  if (states !== undefined) {
    const news = [];
    for (const [name, word] of now) {
      const before = states.get(name);
      if (before === undefined) news.push(`${name} is new: ${word}.`);
      else if (before !== word) news.push(`${name} is ${word} now; it was ${before}.`);
    }
    for (const name of states.keys()) {
      if (!now.has(name)) news.push(`${name} has ended.`);
    }
    if (news.length > 0) setText(announcement, news.join(" "));
  }
  states = now;
}

/** Collects the data and shows it, again and again. */
async function update() {
  clearTimeout(timer);
  updates += 1;
  const [own, shown] = [updates, view];
  try {
    const answer = await get("/api/overview");
    if (own !== updates) return;
    model.overview = answer;
    remember(answer);
    if (isFailing) setText(announcement, "Data is available again.");
    isFailing = false;
    announceChanges(answer.volumes);
    const name = shown.service?.(model);
    if (name !== undefined) {
      const details = await get(`/api/service/${encodeURIComponent(name)}`);
      if (own !== updates) return;
      model.details = details ?? { volume: absent(name) };
      if (details !== null) rememberDetails(details);
    } else {
      model.details = undefined;
    }
    shown.update(model);
    shown.node.hidden = false;
    setText(updated, `EVFS ${answer.version}. Updated at ${clock(answer.time_ms)}.`);
  } catch (error) {
    if (own !== updates) return;
    if (error instanceof LoggedOut) {
      setText(announcement, "Logged out. Run evfs web, and open the address that it prints.");
      return;
    }
    console.error(error);
    setText(announcement, "The server does not answer. Trying again.");
    isFailing = true;
  }
  schedule();
}

/** The status of a service that does not exist. */
function absent(name) {
  const reasons = ["No service has this name."];
  return { name, error: reasons[0], state: "not running", health: { reasons } };
}

function schedule() {
  clearTimeout(timer);
  if (!isPaused && !document.hidden) timer = setTimeout(update, INTERVAL);
}

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  if (isPaused) clearTimeout(timer);
  else update();
});

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused) update();
});

window.addEventListener("hashchange", () => navigate(true));

navigate(false);
