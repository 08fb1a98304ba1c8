//! OpenAFS programs as peers: `rxdebug` queries us, and we call a volume location server.

mod common;

use common::{check_echo, client, connect, echo, serve};
use rx::Port;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use test_support::installed;

fn rxdebug(port: &Port, options: &[&str]) -> String {
    let SocketAddr::V4(address) = port.address() else {
        panic!("rxdebug knows IPv4");
    };
    let output = Command::new(installed("rxdebug"))
        .args([address.ip().to_string(), address.port().to_string()])
        .args(options)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn rxdebug_shows_a_port_its_connections_and_its_peers() {
    let (server, client) = (serve(1, echo), client());
    let connection = connect(&client, &server);
    for round in 0..3 {
        check_echo(&connection, round, 10_000).unwrap();
    }
    assert!(rxdebug(&server, &["-version"]).contains("AFS version: EVFS Rx"));
    let peer = format!("127.0.0.1, port {}", client.address().port());
    let shown = rxdebug(&server, &["-allconnections"]);
    assert!(
        shown.contains(&format!("Connection from host {peer}")),
        "{shown}"
    );
    assert!(shown.contains("# 3, state"), "{shown}");
    assert!(shown.contains("security index 0, server conn"), "{shown}");
    let shown = rxdebug(&server, &["-peers", "-noconns"]);
    assert!(shown.contains(&format!("Peer at host {peer}")), "{shown}");
    let shown = rxdebug(&server, &["-rxstats", "-noconns"]);
    assert!(
        shown.contains("1 server connections, 0 client connections"),
        "{shown}"
    );
}

#[test]
fn a_volume_location_server_answers() {
    test_support::needs_root("a volume location server in namespaces");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openafs/vlserver.sh");
    let name = format!("rx-vlserver-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).unwrap();
    let output = Command::new(script)
        .arg(&dir)
        .arg(test_support::example("call_vlserver"))
        .arg("10.77.0.1")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
}
