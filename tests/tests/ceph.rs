//! Volumes on a real Ceph cluster, from outside: kills of its programs under a verifying load, a
//! full pool, gateways beside the image, and a machine without Ceph's library.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use test_support::ceph::{Ceph, Daemon, settles};
use tests::{Killed, Ran, Sandbox, wait_until};

/// Size in bytes of the images.
const BYTES: u64 = 256 << 20;

fn start(monitors: usize) -> Ceph {
    let ceph = Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), monitors);
    ceph.create_image("disk", BYTES);
    ceph
}

/// A volume that is attached and exported over NBD, without a cache.
struct Volume<'a> {
    sandbox: &'a Sandbox,
    socket: PathBuf,
}

impl Volume<'_> {
    /// Creates a volume on a DEVICE, and attaches it.
    fn create<'a>(sandbox: &'a Sandbox, device: &str) -> Volume<'a> {
        sandbox.key("owner");
        let create = ["volume", "create", device, "--owner", "owner"];
        sandbox.run(&create).ok();
        let volume = Volume {
            socket: sandbox.path("export.sock"),
            sandbox,
        };
        volume.attach();
        volume
    }

    fn attach(&self) {
        let socket = self.socket.to_str().unwrap();
        let attach = ["disk1", "--nbd-unix", socket, "--direct"];
        self.sandbox.attach(&attach);
    }

    /// Returns a command that overwrites 32 MiB in an order that `seed` determines, and then reads
    /// every block back and verifies its checksum.
    fn fio(&self, seed: u64) -> Command {
        let mut fio = Command::new("fio");
        fio.args(["--name=load", "--rw=randwrite", "--bs=4k", "--size=32M"])
            .args(["--iodepth=16", "--ioengine=nbd", "--aux-path=/tmp"])
            .args(["--verify=crc32c", "--verify_fatal=1"])
            .arg(format!(
                "--uri=nbd+unix:///?socket={}",
                self.socket.display()
            ))
            .arg(format!("--randseed={seed}"));
        fio
    }

    /// Overwrites and verifies again and again while `faults` runs. Then verifies once more on a
    /// new attachment.
    fn under(&self, faults: impl FnOnce()) {
        let over = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut seed = 1;
                loop {
                    let until = Duration::from_secs(600);
                    Ran::patiently(&mut self.fio(seed), until).ok();
                    if over.load(Relaxed) {
                        return seed;
                    }
                    seed += 1;
                }
            });
            let faults = std::panic::catch_unwind(std::panic::AssertUnwindSafe(faults));
            over.store(true, Relaxed);
            let last = load.join().expect("no error under the faults");
            faults.expect("the faults happened");
            last
        });
        self.sandbox.detach("disk1");
        self.attach();
        let verify = self.fio(last).arg("--verify_only").output().unwrap();
        let text = String::from_utf8_lossy(&verify.stderr).into_owned();
        assert!(verify.status.success(), "{text}");
        println!("{last} passes of 8192 blocks, each read back: 0 errors");
    }
}

fn state(s: &Sandbox) -> Value {
    let status = s.json(&["status"]);
    status["volumes"][0]["health"].clone()
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_volume_survives_kills_of_osds_monitors_and_nodes() {
        let mut ceph = start(3);
        let s = Sandbox::new();
        let volume = Volume::create(&s, &ceph.address("disk"));
        volume.under(|| {
            for round in 0..2 {
                let osd = Daemon::Osd(round);
                ceph.kill(osd);
                ceph.wait_until_up(2);
                ceph.start_daemon(osd);
                ceph.wait_until_up(3);
                ceph.wait_until_clean();
                let monitor = Daemon::Monitor(round);
                ceph.kill(monitor);
                ceph.wait_for_quorum(2);
                ceph.start_daemon(monitor);
                ceph.wait_for_quorum(3);
                // A node: its monitor and its OSD at once.
                let node = [Daemon::Monitor(2 - round), Daemon::Osd(2 - round)];
                for daemon in node {
                    ceph.kill(daemon);
                }
                ceph.wait_until_up(2);
                for daemon in node {
                    ceph.start_daemon(daemon);
                }
                ceph.wait_until_up(3);
                ceph.wait_until_clean();
            }
        });
        // The cluster has the volume, and nothing of it in the clear.
        let export = s.path("exported");
        ceph.rbd(&["export", "rbd/disk", export.to_str().unwrap()]);
        let bytes = std::fs::read(&export).unwrap();
        assert_eq!((bytes.len() as u64, &bytes[..4]), (BYTES, &b"LUKS"[..]));
        let lun = s.json(&["lun", "show", "disk1"]);
        assert_eq!(lun["paths"][0]["transport"], "rbd");
        assert!(lun["wwid"].as_str().unwrap().starts_with("rbd."), "{lun}");
        assert_eq!(state(&s)["state"], "ok");
        s.detach("disk1");
    }

    #[test]
    fn a_full_pool_pauses_writes_and_status_says_so() {
        let ceph = start(1);
        let s = Sandbox::new();
        let volume = Volume::create(&s, &ceph.address("disk"));
        volume.under(|| {
            let quota = |bytes| ceph.ceph(&["osd", "pool", "set-quota", "rbd", "max_bytes", bytes]);
            quota("1048576");
            settles("the status names the pool", || {
                let state = state(&s);
                let reasons = state["reasons"].as_array().unwrap().iter();
                let mut reasons = reasons.filter_map(Value::as_str);
                state["state"] == "degraded" && reasons.any(|r| r.contains("pool rbd is full"))
            });
            let checked = s.run(&["status", "--check"]);
            assert_eq!(checked.status.code(), Some(26), "{}", checked.stdout);
            assert!(checked.stdout.contains("is full"), "{}", checked.stdout);
            let doctor = s.run(&["doctor"]);
            assert!(doctor.stdout.contains("is full"), "{}", doctor.stdout);
            quota("0");
            settles("the writes go on", || state(&s)["state"] == "ok");
        });
        s.detach("disk1");
    }

    #[test]
    fn a_gateway_takes_over_from_a_fenced_client() {
        let ceph = start(1);
        let s = Sandbox::new();
        let rbd = ceph.address("disk");
        // The identity that the gateway has to report.
        let found = s.json(&["lun", "scan", &rbd]);
        let wwid = found["found"][0]["wwid"].as_str().expect("an identity");
        let socket = s.path("gateway.sock");
        let child = Command::new("qemu-nbd")
            .args(["-x", "e", "--shared=0", "-t", "-f", "raw", "-D"])
            .arg(format!("wwid={wwid}"))
            .arg("-k")
            .arg(&socket)
            .arg(format!("rbd:rbd/disk:conf={}", ceph.conf().display()))
            .stderr(Stdio::null())
            .spawn();
        let _gateway = Killed(child.expect("needs qemu-nbd: `cargo xtask setup` installs it"));
        wait_until("the gateway listens", || socket.exists());
        let gateway = format!("nbd+unix:///e?socket={}", socket.display());
        s.run(&["path", "add", "disk1", &gateway]).ok();
        for value in [
            "load_bal_policy=preferred_path".to_owned(),
            format!("preferred_path={rbd}"),
        ] {
            s.run(&["lun", "save", "disk1", &value]).ok();
        }
        let volume = Volume::create(&s, "disk1");
        let path = |index: usize| s.json(&["lun", "show", "disk1"])["paths"][index].clone();
        volume.under(|| {
            wait_until("I/O uses the image", || {
                path(0)["writes"].as_u64().unwrap() > 100
            });
            for client in watchers(&ceph) {
                ceph.ceph(&["osd", "blocklist", "add", &client]);
            }
            settles("the client was lost", || {
                path(0)["offline_events"].as_u64().unwrap() > 0
            });
        });
        let lost = path(0)["offline_events"].as_u64().unwrap();
        assert!(lost <= 3, "{lost} connections were lost");
        s.detach("disk1");
    }

    #[test]
    fn a_second_machine_is_refused_while_the_first_has_the_lock() {
        let ceph = start(1);
        let (s, other) = (Sandbox::new(), Sandbox::new());
        let rbd = ceph.address("disk");
        let volume = Volume::create(&s, &rbd);
        let create = ["volume", "create", &rbd, "--passphrase-fd", "0"];
        let refused = other.run_with_input(&create, b"secret\n").code(11);
        assert!(
            refused.stderr.contains("exclusive lock"),
            "{}",
            refused.stderr
        );
        // Reading needs no lock.
        other.run(&["volume", "info", &rbd]).ok();
        let doctor = s.run(&["doctor", "disk1"]);
        assert!(
            doctor.stdout.contains("several monitors"),
            "{}",
            doctor.stdout
        );
        drop(volume);
        s.detach("disk1");
        // The lock is free at once.
        other.key("owner");
        let create = ["volume", "create", &rbd, "--owner", "owner", "--force"];
        other.run(&create).ok();
    }

    #[test]
    fn a_snapshot_is_read_only() {
        let ceph = start(1);
        let s = Sandbox::new();
        let rbd = ceph.address("disk");
        let volume = Volume::create(&s, &rbd);
        s.detach("disk1");
        ceph.rbd(&["snap", "create", "rbd/disk@monday"]);
        let snapshot = rbd.replace("/disk?", "/disk@monday?");
        let socket = volume.socket.to_str().unwrap();
        // With and without the option: the image itself takes no writes.
        for option in [&["--read-only"][..], &[]] {
            let name = ["--name", "monday"];
            let attach = [
                &[snapshot.as_str(), "--nbd-unix", socket],
                &name[..],
                option,
            ]
            .concat();
            s.attach(&attach);
            let uri = format!("nbd+unix:///?socket={socket}");
            let info = Command::new("nbdinfo")
                .args(["--json", &uri])
                .output()
                .unwrap();
            let info: Value = serde_json::from_slice(&info.stdout).unwrap();
            assert_eq!(info["exports"][0]["is_read_only"], true, "{info}");
            s.detach("monday");
        }
    }
}

/// Lists the addresses of the clients that have the image open for writing, and its lock.
fn watchers(ceph: &Ceph) -> Vec<String> {
    let lock = ceph.rbd(&["lock", "ls", "--format", "json", "rbd/disk"]);
    let lock: Value = serde_json::from_str(&lock).unwrap();
    let owners = lock.as_array().unwrap().iter();
    let owners = owners.map(|owner| owner["address"].as_str().unwrap().to_owned());
    owners.collect()
}

#[test]
fn without_the_library_the_message_names_its_package() {
    let s = Sandbox::new();
    // The loader finds these first, and they are no libraries.
    for library in ["librados.so.2", "librbd.so.1"] {
        std::fs::write(s.path(library), "no library").unwrap();
    }
    let mut evfs = s.evfs();
    evfs.env("LD_LIBRARY_PATH", s.path(""));
    let ran = Ran::of(evfs.args(["attach", "rbd:vms/disk", "--background"]));
    let ran = ran.code(10);
    assert!(
        ran.stderr.contains("install the package librbd1"),
        "{}",
        ran.stderr
    );
}
