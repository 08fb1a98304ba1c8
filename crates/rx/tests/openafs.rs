//! OpenAFS programs as peers: `rxdebug` queries us, and we call a volume location server.

mod common;

use common::{PATIENCE, check_echo, client, connect, echo, serve};
use rx::{End, Error, Port, Settings, Timeouts};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable that tells a test in this program that it runs beside a volume location
/// server.
const INSIDE: &str = "RX_VLSERVER";

fn rxdebug(port: &Port, options: &[&str]) -> String {
    let SocketAddr::V4(address) = port.address() else {
        panic!("rxdebug knows IPv4");
    };
    let output = Command::new("rxdebug")
        .args([address.ip().to_string(), address.port().to_string()])
        .args(options)
        .output()
        .expect("rxdebug is missing; `cargo xtask setup` installs it");
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
    if let Ok(address) = std::env::var(INSIDE) {
        return call(address.parse().unwrap());
    }
    let root = rustix::process::geteuid().is_root();
    assert!(root, "needs root: a volume location server in namespaces");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openafs/vlserver.sh");
    let name = format!("rx-vlserver-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).unwrap();
    let output = Command::new(script)
        .arg(&dir)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_volume_location_server_answers", "--nocapture"])
        .env(INSIDE, "10.77.0.1")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
}

/// Calls the server for a volume that it does not have.
fn call(server: IpAddr) {
    /// `VL_NOENT` of `src/vlserver/vl_errors.et`, and ubik's `UNOQUORUM`, while the server is
    /// alone.
    const NO_ENTRY: i32 = 363_524;
    const NO_QUORUM: i32 = 5376;
    let settings = Settings {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Settings::default()
    };
    let port = Port::open(&settings, Vec::new()).unwrap();
    let connection = port.connect((server, 7003).into(), 52, Timeouts::default());
    let opcode = |number: u32| number.to_be_bytes().to_vec();
    // ProbeServer: the port answers before the service is there.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = connection.request(opcode(514), 100);
        if answer == Ok(Vec::new()) {
            break;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A procedure that OpenAFS does not know.
    let unknown = connection.request(opcode(65_537), 100);
    assert_eq!(unknown, Err(Error::Ended(End::Aborted(-455))));
    // GetEntryByNameO of "no.volume": a string is encoded as its length, then its bytes padded to a
    // multiple of four.
    let mut request = opcode(504);
    request.extend(9_u32.to_be_bytes());
    request.extend(b"no.volume\0\0\0");
    let start = Instant::now();
    loop {
        match connection.request(request.clone(), 1000) {
            Err(Error::Ended(End::Aborted(NO_ENTRY))) => break,
            Err(Error::Ended(End::Aborted(NO_QUORUM))) if start.elapsed() < PATIENCE => {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            other => panic!("{other:?}"),
        }
    }
}
