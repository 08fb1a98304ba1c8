//! The NBD export from its clients' point of view: the effect of a failed flush on each of them,
//! and the access of unauthenticated clients.

use block::{ErrorKind, OpKind};
use block_testing::{ErrorDevice, Failure, Mem};
use export_nbd::{Config, Export, Listen, Server};
use nbd_client::Client;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tests::{NOBODY, Ran, Sandbox, as_user, needs_root};

#[test]
fn a_flush_that_the_disk_failed_fails_for_every_client_and_for_good() {
    for (how, threads) in [("--cached", "1"), ("--cached", "2"), ("--direct", "2")] {
        let s = Sandbox::new();
        let (disk, errors) = ErrorDevice::new(Arc::new(Mem::new(64 << 20, 512)));
        let socket = s.path("disk.sock");
        let disk = Export {
            name: "e".into(),
            description: String::new(),
            device: Arc::new(disk),
            read_only: false,
        };
        let config = Config {
            listen: vec![Listen::Unix(socket.clone())],
            ..Config::default()
        };
        let _disk = Server::start(config, vec![disk]).unwrap();
        let uri = format!("nbd+unix:///e?socket={}", socket.display());
        s.key("owner");
        s.run(&["volume", "create", &uri, "--owner", "owner"]).ok();
        let front = s.path("f.sock");
        let front_name = front.to_str().unwrap();
        s.attach(&[
            &uri,
            "--name",
            "f",
            "--nbd-unix",
            front_name,
            how,
            "--threads",
            threads,
        ]);
        let connect = || Client::connect(&front, "f").unwrap();
        let (mut one, mut two) = (connect(), connect());
        one.write_at(0, &[b'A'; 4096]).unwrap();
        two.write_at(8192, &[b'B'; 4096]).unwrap();
        let once = Failure::nth(1, ErrorKind::Media).of(OpKind::Flush);
        errors.set(Some(once));
        assert!(one.flush().is_err(), "{how}: the client whose flush failed");
        assert!(two.flush().is_err(), "{how}: its data was in that flush");
        assert!(one.flush().is_err(), "{how}: nothing was written again");
        assert!(
            connect().flush().is_err(),
            "{how}: a client that came later"
        );
        let status = s.run(&["status"]).ok().stdout;
        assert!(status.contains("a flush failed"), "{status}");
        s.run(&["detach", "f"]).code(1);
        // The data of the failed flush may be lost, and the exit code reports that.
        s.run(&["detach", "f", "--force"]).code(30);
    }
}

/// Creates a self-signed certificate, `cert.pem` and `key.pem`.
fn certificate(s: &Sandbox) {
    let mut openssl = Command::new("openssl");
    openssl
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
        ])
        .current_dir(s.path(""));
    Ran::of(&mut openssl).ok();
}

/// Reports whether a client with this user ID gets a greeting.
fn is_greeted(port: u16, uid: u32) -> bool {
    as_user(uid, move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.read_exact(&mut [0; 18]).is_ok()
    })
}

fn port_of(status: &serde_json::Value) -> u16 {
    let at = status["exports"][0]["at"].as_str().unwrap();
    let port = at.trim_end_matches("/a").rsplit(':').next().unwrap();
    port.parse().unwrap()
}

mod needs_root {
    use super::*;

    #[test]
    fn on_loopback_only_root_and_the_own_user_are_served_unless_all_are() {
        needs_root("to connect as another user");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let port = port_of(&s.attach(&["a.img", "--nbd", "127.0.0.1:0"]));
        assert!(is_greeted(port, 0), "the own user");
        assert!(!is_greeted(port, NOBODY), "another user was served");
        s.detach("a");
        let status = s.attach(&["a.img", "--nbd", "127.0.0.1:0", "--anonymous"]);
        assert!(is_greeted(port_of(&status), NOBODY));
        let shown = s.run(&["status"]).ok().stdout;
        assert!(
            shown.contains("--anonymous: any user of this machine"),
            "{shown}"
        );
        s.detach("a");
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn beyond_loopback_clients_have_to_prove_who_they_are_unless_all_are_served() {
        let s = Sandbox::new();
        certificate(&s);
        s.volume("a.img", "32M", &[]);
        let tls = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
        let with = |more: &[&str]| {
            let all = [
                &["attach", "a.img", "--nbd", "0.0.0.0:0"],
                more,
                &["--background"],
            ]
            .concat();
            s.run(&all)
        };
        let refused = with(&tls).code(2).stderr;
        assert!(
            refused.contains("--tls-ca") && refused.contains("--anonymous"),
            "{refused}"
        );
        with(&["--anonymous"]).code(2);
        let warned = with(&[&tls[..], &["--anonymous"]].concat()).ok();
        assert!(
            warned.stderr.contains("any client that can reach"),
            "{}",
            warned.stderr
        );
        s.detach("a");
        with(&[&tls[..], &["--tls-ca", "cert.pem"]].concat()).ok();
        s.detach("a");
        // The same from a configuration file.
        let table = "[volume.a]\ndevice = \"a.img\"\nkey = \"owner\"\nnbd = \"0.0.0.0:0\"\ntls-cert = \"cert.pem\"\ntls-key = \"key.pem\"\n";
        std::fs::write(s.path("up.toml"), table).unwrap();
        let refused = s.run(&["up", "up.toml", "--background"]).code(2).stderr;
        assert!(refused.contains("--tls-ca"), "{refused}");
        std::fs::write(s.path("up.toml"), format!("{table}anonymous = true\n")).unwrap();
        s.run(&["up", "up.toml", "--background"]).ok();
        let status = s.json(&["status"]);
        let warning = status["volumes"][0]["warning"].as_str().unwrap();
        assert!(warning.contains("any client that can reach"), "{warning}");
        s.run(&["down"]).ok();
        let readable = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(s.path("key.pem"), readable).unwrap();
        let refused = with(&[&tls[..], &["--tls-ca", "cert.pem"]].concat())
            .code(1)
            .stderr;
        assert!(refused.contains("chmod 600"), "{refused}");
    }
}
