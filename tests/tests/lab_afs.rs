//! `evfs bench` with AFS and Rx: a cell in the measuring process, and OpenAFS's Rx as the peer.

use serde_json::Value;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tests::{Sandbox, peer, wait_until};

/// Returns the phases of all runs of a study's side.
fn phases(result: &Value, study: usize, side: usize) -> Vec<Value> {
    let runs = result["studies"][study]["runs"][side].as_array().unwrap();
    let of = |run: &Value| run["sample"]["phases"].as_array().unwrap().clone();
    runs.iter().flat_map(of).collect()
}

/// Returns the amount and the cost of a figure.
fn figure(phase: &Value, name: &str) -> (f64, f64) {
    let cells = phase["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["name"] == name);
    let cell = cell.unwrap_or_else(|| panic!("no {name} in {phase}"));
    let number = |key: &str| cell[key].as_f64().unwrap();
    (number("amount"), number("spent"))
}

fn result(s: &Sandbox) -> Value {
    serde_json::from_slice(&fs::read(s.path("out/result.json")).unwrap()).unwrap()
}

#[test]
fn a_cell_is_measured_with_its_servers_cpu_and_its_layers_and_leaves_nothing() {
    let s = Sandbox::new();
    fs::create_dir(s.path("below")).unwrap();
    let sides = ["bench", "compare", "afs-clear", "afs-encrypted-256"];
    let works = ["--workload", "clientload", "--workload", "nfsbasic"];
    let how = [
        "--device", "below", "--size", "1G", "--quick", "--runs", "2",
    ];
    let more = ["--layers", "--out", "out"];
    let ran = s
        .run(&[&sides[..], &works[..], &how[..], &more[..]].concat())
        .ok();
    assert!(ran.stdout.contains("CPU by layer"), "{}", ran.stdout);
    let result = result(&s);
    for side in [0, 1] {
        for phase in phases(&result, 0, side) {
            assert_eq!(phase["name"], "15 clients after flushing");
            assert_eq!(phase["asked"], 15 << 20);
            let (_, last) = figure(&phase, "last client");
            assert!(figure(&phase, "client 15").1 <= last);
        }
        let basic = phases(&result, 1, side);
        for phase in &basic {
            let (wall, percent) = figure(phase, "server CPU");
            let all = phase["cpu"]["total_ns"].as_f64().unwrap() / 1e9;
            assert!(
                wall > 0.0 && percent > 0.0 && percent / 100.0 < all,
                "{phase}"
            );
        }
        let took = |name: &str| -> u64 {
            let of = |phase: &Value| phase["layers"][name].as_u64().unwrap();
            basic.iter().map(of).sum()
        };
        for name in ["protocol", "fs", "cache", "path"] {
            assert!(took(name) > 0, "{name} of side {side}");
        }
    }
    assert_eq!(fs::read_dir(s.path("below")).unwrap().count(), 0);
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a port that is free together with the next one.
fn free_ports() -> u16 {
    let two = || {
        let first = UdpSocket::bind("127.0.0.1:0").ok()?;
        let port = first.local_addr().ok()?.port();
        UdpSocket::bind(("127.0.0.1", port.checked_add(1)?)).ok()?;
        Some(port)
    };
    (0..100).find_map(|_| two()).expect("two free ports")
}

fn wait_for_port(server: &mut Running, port: u16) {
    let entry = format!(":{port:04X} ");
    wait_until("the server listens", || {
        let ended = server.0.try_wait().unwrap();
        assert!(ended.is_none(), "port {port} may be taken: {ended:?}");
        let all = fs::read_to_string("/proc/net/udp").unwrap();
        all.lines().any(|line| line.contains(&entry))
    });
}

/// Builds a program with the commands of `rxperf` over OpenAFS's Rx; Debian does not package
/// `rxperf`.
fn openafs(s: &Sandbox) -> PathBuf {
    let header = Path::new("/usr/include/rx/rx.h");
    assert!(
        header.exists(),
        "no {}; `cargo xtask setup` installs it",
        header.display()
    );
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/rx-openafs.c");
    let program = s.path("rx-openafs");
    let args = ["-O1", "-w", "-pthread", "-DAFS_PTHREAD_ENV", "-o"];
    let libraries = ["/usr/lib/libafsrpc.a", "/usr/lib/libopr.a", "-lresolv"];
    let ran = Command::new("cc")
        .args(args)
        .arg(&program)
        .arg(source)
        .args(libraries)
        .output();
    let ran = ran.expect("cc is missing; `cargo xtask setup` installs it");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    program
}

mod needs_peer {
    use super::*;

    #[test]
    fn calls_over_rx_are_exchanged_with_openafs_both_ways() {
        let s = Sandbox::new();
        let openafs = openafs(&s);

        let port = free_ports();
        let server = Command::new(&openafs)
            .args(["server", &port.to_string(), "0", "65536"])
            .stdout(Stdio::null())
            .spawn();
        let mut server = Running(server.unwrap());
        wait_for_port(&mut server, port);
        let given = format!("rx_peer=127.0.0.1:{port}");
        let run = [
            "bench", "run", "packets", "--quick", "--runs", "2", "--out", "out",
        ];
        let sets = [
            "--set",
            &given,
            "--set",
            "sizes=",
            "--set",
            "rx_sizes=4,1500,100000",
        ];
        let once = ["--seconds", "0.001", "--set", "rx_exchanges=50"];
        s.run(&[&run[..], &sets[..], &once[..]].concat()).ok();
        drop(server);
        let all = phases(&result(&s), 0, 0);
        let calls: Vec<f64> = all.iter().map(|p| figure(p, "exchange").0).collect();
        assert!(
            calls.len() >= 6 && calls.iter().all(|n| n % 50.0 == 0.0),
            "{calls:?}"
        );

        let port = free_ports();
        let echo = s
            .evfs()
            .args(["bench", "echo", &format!("127.0.0.1:{port}")])
            .stdout(Stdio::null())
            .spawn();
        let mut echo = Running(echo.unwrap());
        wait_for_port(&mut echo, port + 1);
        let to = (port + 1).to_string();
        for (command, bytes) in [("rpc", "1500"), ("send", "1000000"), ("recv", "1000000")] {
            let said = peer(
                openafs.to_str().unwrap(),
                &[command, "127.0.0.1", &to, bytes, "20", "1", "0"],
            );
            assert!(said.contains("\"calls_s\""), "{said}");
        }
        drop(echo);
    }
}
