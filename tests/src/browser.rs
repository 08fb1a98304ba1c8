//! A headless Chromium that a test controls, over its DevTools protocol on two pipes.
//!
//! <https://chromedevtools.github.io/devtools-protocol/>

use crate::{Sandbox, installed};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longer than the browser takes for anything on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at a page.
const PAUSE: Duration = Duration::from_millis(50);
/// The protocol's descriptors are 3 and 4, which become the input and output of this process.
const START: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
/// Height of the page, in pixels.
const HEIGHT: u32 = 900;

/// A browser with one page.
pub struct Browser {
    child: Child,
    /// Closing it ends the browser.
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    session: String,
    calls: u64,
    events: Vec<Value>,
}

/// Properties of a screenshot.
#[derive(Debug)]
pub struct Shot {
    /// Mean brightness, from 0 to 255.
    pub brightness: f64,
    /// Number of different colors.
    pub colors: u64,
    /// Number of pixels that have about the wanted color.
    pub wanted: u64,
    /// Width in pixels.
    pub width: u64,
}

impl Browser {
    /// Starts the browser, with a profile in the sandbox and without a network beyond this machine.
    pub fn start(s: &Sandbox) -> Browser {
        let program = installed("chromium-headless-shell");
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(program);
        // The browser has no sandbox as root; it opens only our own pages.
        command.args([
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--remote-debugging-pipe",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]);
        command.arg(format!("--user-data-dir={}", s.path("browser").display()));
        command.arg("about:blank").current_dir(s.path("."));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|n| n > 0) {
                let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
                let message = serde_json::from_slice(text);
                if message.is_ok_and(|message: Value| sender.send(message).is_err()) {
                    break;
                }
                bytes.clear();
            }
        });
        let mut browser = Browser {
            child,
            to,
            from,
            session: String::new(),
            calls: 0,
            events: Vec::new(),
        };
        browser.session = browser.new_page();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        // As if its window were the active one.
        let focused = json!({ "enabled": true });
        browser.call("Emulation.setFocusEmulationEnabled", focused);
        browser
    }

    /// Opens another page, and returns its session.
    fn new_page(&mut self) -> String {
        let session = std::mem::take(&mut self.session);
        let made = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", attach);
        self.session = session;
        attached["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned()
    }

    /// Sends a command to the page, or to the browser before there is one; returns its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let to = self.to.as_mut().expect("it is open until the end");
        to.write_all(format!("{message}\0").as_bytes())
            .expect("the browser runs");
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut answer = self
                .from
                .recv_timeout(left)
                .unwrap_or_else(|why| panic!("no answer to {method}: {why}"));
            if answer["id"] != json!(id) {
                self.events.push(answer);
            } else if answer["error"].is_null() {
                return Ok(answer["result"].take());
            } else {
                return Err(answer["error"].take());
            }
        }
    }

    /// Evaluates an expression in the page, and waits for it if it is a promise.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression)
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    fn try_eval(&mut self, expression: &str) -> Result<Value, Value> {
        let parameters = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let mut result = self.try_call("Runtime.evaluate", parameters)?;
        match &result["exceptionDetails"] {
            Value::Null => Ok(result["result"]["value"].take()),
            exception => Err(exception.clone()),
        }
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            // While a page is being replaced, nothing can be evaluated.
            let last = self.try_eval(expression);
            if last == Ok(Value::Bool(true)) {
                return;
            }
            if Instant::now() > end {
                let page = self.try_eval("location.href + '\\n' + document.body.innerText");
                panic!("waited in vain for {expression}: {last:?}\n{page:?}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Opens an address and waits for its document.
    #[track_caller]
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.wait("document.readyState === 'complete'");
    }

    /// Sets the width of the page, and the color scheme that the reader prefers.
    pub fn look(&mut self, width: u32, scheme: &str) {
        let size = json!({
            "width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "name": "prefers-color-scheme", "value": scheme });
        let features = json!({ "features": [scheme] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Presses a key: `Tab` or `Enter`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            other => panic!("no such key: {other}"),
        };
        let mut event = json!({
            "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code,
        });
        if let Some(text) = text {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Takes a picture of the page, and examines its pixels. `wanted` is a color, as CSS writes it:
    /// `rgb(1, 2, 3)`.
    pub fn shot(&mut self, wanted: &str) -> Shot {
        let taken = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let png = taken["data"].as_str().expect("a picture").to_owned();
        // The page itself may not decode data that its server did not send.
        let blank = self.new_page();
        let page = std::mem::replace(&mut self.session, blank);
        let seen = self.eval(&format!("({EXAMINE})('{png}', '{wanted}')"));
        self.call("Page.close", json!({}));
        self.session = page;
        let number = |key: &str| seen[key].as_u64().expect("a count");
        Shot {
            brightness: seen["brightness"].as_f64().expect("a mean"),
            colors: number("colors"),
            wanted: number("wanted"),
            width: number("width"),
        }
    }

    /// Keeps a picture of the page for a person, if an environment variable names a directory.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("EVFS_TEST_PICTURES") else {
            return;
        };
        let taken = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let file = Path::new(&folder).join(format!("{name}.png"));
        let file = File::create(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut decoder = Command::new("base64")
            .arg("--decode")
            .stdin(Stdio::piped())
            .stdout(file)
            .spawn()
            .expect("base64 of coreutils");
        let text = taken["data"].as_str().expect("a picture");
        let mut to = decoder.stdin.take().expect("piped");
        to.write_all(text.as_bytes()).expect("the program reads");
        drop(to);
        assert!(decoder.wait().is_ok_and(|status| status.success()));
    }

    /// Returns the errors that scripts and the browser have reported since the last call.
    pub fn errors(&mut self) -> Vec<String> {
        // Every event before the answer to this call has arrived.
        self.eval("1");
        let is_error = |event: &&Value| {
            let of = &event["params"];
            event["method"] == "Runtime.exceptionThrown"
                || event["method"] == "Runtime.consoleAPICalled" && of["type"] == "error"
                || event["method"] == "Log.entryAdded" && of["entry"]["level"] == "error"
        };
        let errors = self.events.iter().filter(is_error).map(Value::to_string);
        let errors = errors.collect();
        self.events.clear();
        errors
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends when its pipe is closed.
        self.to = None;
        let end = Instant::now() + PATIENCE / 6;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Function of the picture in base64 and of a color, that returns what [`Shot`] has.
const EXAMINE: &str = "async (png, color) => {
  const bytes = Uint8Array.from(atob(png), c => c.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
  const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const [r, g, b] = color.match(/\\d+/g).map(Number);
  const colors = new Set();
  let [sum, wanted] = [0, 0];
  for (let at = 0; at < data.length; at += 4) {
    const [x, y, z] = [data[at], data[at + 1], data[at + 2]];
    sum += 0.2126 * x + 0.7152 * y + 0.0722 * z;
    colors.add(x << 16 | y << 8 | z);
    if (Math.abs(x - r) + Math.abs(y - g) + Math.abs(z - b) < 12) wanted += 1;
  }
  const brightness = sum / (data.length / 4);
  return { brightness, colors: colors.size, wanted, width: image.width };
}";
