//! Networks with an MTU below or above that of an Ethernet: a loopback device with that MTU, in a
//! network namespace of its own.

use std::process::Command;

#[test]
fn calls_go_over_networks_of_any_packet_size() {
    test_support::needs_root("a network with small packets");
    for mtu in ["576", "1400", "1500", "4500", "65536"] {
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up mtu $1 && exec \"$0\"")
            .arg(test_support::example("large_calls"))
            .arg(mtu)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "MTU {mtu}: {errors}");
    }
}
