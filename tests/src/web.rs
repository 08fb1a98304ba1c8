//! Services that serve the web page, and requests to their servers.

use crate::{Ran, Sandbox, program, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::PathBuf;

/// Starts a service in the background, with an address for the page; returns its status.
pub fn with_web(s: &Sandbox, listen: &str, args: &[&str]) -> Value {
    let mut command = s.evfs();
    command.arg("--json").args(args).arg("--background");
    let ran = Ran::of(command.env("EVFS_WEB_LISTEN", listen)).ok();
    serde_json::from_str(&ran.stdout).expect("the status as JSON")
}

/// Sends a request and returns the answer, or what came before the connection was closed.
pub fn exchange(mut stream: impl Read + Write, request: &[u8]) -> String {
    let mut answer = Vec::new();
    // The server may answer before it has read all.
    let _ = stream.write_all(request);
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until the page is served; returns its address with the next token.
pub fn invitation(s: &Sandbox) -> Value {
    let mut page = Value::Null;
    wait_until("the page is served", || {
        let ran = s.run(&["--json", "web"]);
        page = serde_json::from_str(&ran.stdout).unwrap_or_default();
        ran.status.success()
    });
    page
}

/// Returns the path of the accessibility checker that `cargo xtask setup` has downloaded.
pub fn axe() -> PathBuf {
    let built = program();
    let target = built.ancestors().nth(2).expect("target/PROFILE/evfs");
    let axe = target.join("tools/axe.min.js");
    test_support::needs_file(&axe);
    axe
}
