//! Networks with an MTU below or above that of an Ethernet: a loopback device with that MTU, in a
//! network namespace of its own.

mod common;

use common::{bytes, check_echo, client, connect, echo, serve};
use std::process::Command;

/// Environment variable that tells the test in this program that it runs in the namespace.
const INSIDE: &str = "RX_MTU";

#[test]
fn calls_go_over_networks_of_any_packet_size() {
    if std::env::var_os(INSIDE).is_some() {
        return call();
    }
    let root = rustix::process::geteuid().is_root();
    assert!(root, "needs root: a network with small packets");
    for mtu in ["576", "1400", "1500", "4500", "65536"] {
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up mtu $RX_MTU && exec \"$0\" --exact \"$1\" --nocapture")
            .arg(std::env::current_exe().unwrap())
            .arg("calls_go_over_networks_of_any_packet_size")
            .env(INSIDE, mtu)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "MTU {mtu}: {said}\n{complained}");
    }
}

/// Makes calls large enough for jumbograms to be probed, in both directions.
fn call() {
    let (server, client) = (serve(1, echo), client());
    let connection = connect(&client, &server);
    for round in 0..3 {
        check_echo(&connection, round, 1_000_000).unwrap();
    }
    // Several at once, with mixed batches.
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let connection = connection.clone();
            scope.spawn(move || check_echo(&connection, 10 + caller, 200_000).unwrap());
        }
    });
    assert!(connection.request(bytes(9, 100), 100).unwrap() == bytes(9, 100));
    // All refused datagrams were sent again with a smaller size.
    assert_eq!(
        (server.stats().send_errors, client.stats().send_errors),
        (0, 0)
    );
}
