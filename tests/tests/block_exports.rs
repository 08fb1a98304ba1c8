//! Real clients and real file systems on attached volumes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use tests::{Ran, Random, Sandbox, needs_root, peer, wait_until};

fn uri(s: &Sandbox) -> String {
    format!("nbd+unix:///a?socket={}", s.path("run/a.nbd").display())
}

/// Creates a certificate authority and a server certificate.
fn certificates(s: &Sandbox) {
    let dir = s.path("");
    test_support::tls::create_authority(&dir);
    test_support::tls::create_certificate(&dir, "server", "DNS:localhost,IP:127.0.0.1");
}

#[test]
fn rubbish_and_broken_connections_harm_no_other_client() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    let socket = s.path("run/a.nbd");
    let mut random = Random::from_environment();
    let mut good = nbd_client::Client::connect(&socket, "a").unwrap();
    good.write_at(0, &[7; 4096]).unwrap();
    for round in 0..200 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let len = random.below(5000) as usize;
        let mut bytes = random.bytes(len);
        if round % 2 == 0 {
            // Enough of the protocol for a write whose payload never arrives.
            bytes = [
                &3u32.to_be_bytes()[..],
                b"IHAVEOPT",
                &1u32.to_be_bytes(),
                &1u32.to_be_bytes(),
                b"a",
            ]
            .concat();
            bytes.extend([0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]);
            bytes.extend([0; 16]);
            bytes.extend(65536u32.to_be_bytes());
            bytes.extend(vec![9; len]);
        }
        let _ = stream.write_all(&bytes);
    }
    let mut back = [0; 4096];
    good.read_at(0, &mut back).unwrap();
    assert!(
        back == [7; 4096],
        "a write whose payload never came was carried out"
    );
    good.disconnect().unwrap();
    s.detach("a");
}

/// Copies `/usr/share` onto a file system on the loop device, detaches, attaches, and compares.
fn file_system_round_trip(mkfs: &[&str], volume: &[&str]) {
    let s = Sandbox::new();
    s.volume("a.img", "1500M", volume);
    let device = |s: &Sandbox| -> String {
        let status = s.attach(&["a.img", "--loop"]);
        let exports = status["exports"].as_array().unwrap();
        exports.iter().find(|e| e["kind"] == "loop").unwrap()["at"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let mnt = s.path("mnt");
    fs::create_dir(&mnt).unwrap();
    let mnt = mnt.to_str().unwrap();
    let mounted = Unmounted(mnt.to_owned());
    let loop_device = device(&s);
    let mut make = mkfs[1..].to_vec();
    make.push(&loop_device);
    peer(mkfs[0], &make);
    peer("mount", &[loop_device.as_str(), mnt]);
    peer("cp", &["-a", "/usr/share", mnt]);
    // It is in use: the device must not vanish under the file system.
    s.run(&["detach", "a"]).code(11);
    assert!(Path::new(mnt).join("share").exists());
    peer("umount", &[mnt]);
    s.detach("a");

    let loop_device = device(&s);
    peer("mount", &["-o", "ro", &loop_device, mnt]);
    let diff = Ran::of(
        Command::new("diff")
            .args(["-r", "--no-dereference", "/usr/share"])
            .arg(format!("{mnt}/share")),
    );
    assert!(diff.status.success(), "{}{}", diff.stdout, diff.stderr);
    peer("umount", &[mnt]);
    s.detach("a");
    drop(mounted);
}

/// Unmounts even if the test fails halfway.
struct Unmounted(String);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Aborts the connection of a mount to its server, so that a failing test leaves no process waiting
/// indefinitely.
struct Aborted(std::path::PathBuf, u32);

impl Drop for Aborted {
    fn drop(&mut self) {
        let at = self.0.to_str().expect("a path");
        peer("mount", &["-t", "fusectl", "none", at]);
        let _ = fs::write(self.0.join(self.1.to_string()).join("abort"), "1");
        peer("umount", &["-l", at]);
    }
}

mod needs_root {
    use super::*;

    #[test]
    fn ext4_on_a_loop_device_keeps_usr_share() {
        needs_root("loop device, mkfs.ext4, mount");
        file_system_round_trip(&["mkfs.ext4", "-q"], &["--key-bits", "128"]);
    }

    #[test]
    fn xfs_on_a_loop_device_keeps_usr_share() {
        needs_root("loop device, mkfs.xfs, mount");
        file_system_round_trip(
            &["mkfs.xfs", "-q"],
            &["--key-bits", "256", "--sector-size", "512"],
        );
    }

    #[test]
    fn a_server_that_is_killed_while_its_loop_device_is_written_back_ends() {
        needs_root("loop device, sync");
        let s = Sandbox::new();
        s.volume("a.img", "64M", &[]);
        let status = s.attach(&["a.img", "--loop"]);
        let exports = status["exports"].as_array().unwrap();
        let at = |kind| {
            let export = exports.iter().find(|e| e["kind"] == kind).unwrap();
            export["at"].as_str().unwrap().to_owned()
        };
        let (device, pid) = (at("loop"), status["pid"].to_string());
        let backing = device.replace("/dev/", "/sys/block/") + "/loop/backing_file";
        let backing = fs::read_to_string(backing).unwrap();
        let number = fs::metadata(backing.trim()).unwrap().dev();
        let control = s.path("connections");
        fs::create_dir(&control).unwrap();
        let aborted = Aborted(control, rustix::fs::minor(number));
        peer("kill", &["-s", "STOP", &pid]);
        // Writes to the kernel's memory; the last close of the device waits for the server.
        let output = format!("of={device}");
        let mut writer = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "count=1", "conv=notrunc", &output])
            .spawn()
            .unwrap();
        let waits = format!("/proc/{}/syscall", writer.id());
        let close = format!("{} ", libc::SYS_close);
        wait_until("it is written", || {
            let closes = fs::read_to_string(&waits).is_ok_and(|call| call.starts_with(&close));
            closes || writer.try_wait().unwrap().is_some()
        });
        peer("kill", &["-s", "KILL", &pid]);
        wait_until("the server is gone", || {
            !Path::new(&format!("/proc/{pid}")).exists()
        });
        writer.wait().unwrap();
        drop(aborted);
        s.attach(&["a.img", "--loop"]);
        s.detach("a");
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn qemu_nbdcopy_nbdinfo_and_fio_work_against_the_nbd_export() {
        let s = Sandbox::new();
        let mut random = Random::from_environment();
        let cases = [
            ("128", "4096", "--cached"),
            ("256", "512", "--direct"),
            ("128", "512", "--cached"),
        ];
        for (bits, sector, how) in cases {
            s.volume(
                "a.img",
                "80M",
                &["--key-bits", bits, "--sector-size", sector],
            );
            s.attach(&["a.img", "--threads", "2", how]);
            let uri = uri(&s);
            let size = 64 << 20;
            assert_eq!(peer("nbdinfo", &["--size", &uri]).trim(), size.to_string());
            let info: serde_json::Value =
                serde_json::from_str(&peer("nbdinfo", &["--json", &uri])).unwrap();
            let export = &info["exports"][0];
            for flag in ["can_multi_conn", "can_fua", "can_flush", "can_zero"] {
                assert_eq!(export[flag], true, "{flag}: {export}");
            }
            assert_eq!(export["block_size_minimum"].to_string(), sector);

            let data = random.bytes(size);
            fs::write(s.path("data"), &data).unwrap();
            let file = |name: &str| s.path(name).to_str().unwrap().to_owned();
            peer("nbdcopy", &["--flush", &file("data"), &uri]);
            peer("nbdcopy", &[uri.as_str(), &file("back")]);
            assert!(fs::read(s.path("back")).unwrap() == data, "nbdcopy");
            peer(
                "qemu-img",
                &["compare", "-f", "raw", "-F", "raw", &file("data"), &uri],
            );
            peer(
                "qemu-img",
                &["convert", "-f", "raw", "-O", "raw", &uri, &file("qemu")],
            );
            assert!(
                fs::read(s.path("qemu")).unwrap() == data,
                "qemu-img convert"
            );
            let io = peer(
                "qemu-io",
                &[
                    "-f",
                    "raw",
                    "-t",
                    "none",
                    "-c",
                    "write -P 0x5a 1M 128k",
                    "-c",
                    "flush",
                    "-c",
                    "write -f -P 0x5b 2M 64k",
                    "-c",
                    "write -z 3M 1M",
                    "-c",
                    "read -P 0x5a 1M 128k",
                    "-c",
                    "read -P 0x5b 2M 64k",
                    "-c",
                    "read -P 0 3M 1M",
                    &uri,
                ],
            );
            assert!(!io.contains("failed") && !io.contains("error"), "{io}");
            let fio = peer(
                "fio",
                &[
                    "--name=j",
                    "--ioengine=nbd",
                    &format!("--uri={uri}"),
                    "--rw=randwrite",
                    "--bs=16k",
                    "--size=32M",
                    "--iodepth=16",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--verify_state_save=0",
                ],
            );
            assert!(fio.contains("err= 0"), "{fio}");
            s.detach("a");
            fs::remove_file(s.path("a.img")).unwrap();
        }
    }

    #[test]
    fn qemu_nbd_and_a_second_attach_cannot_take_a_volume_that_is_attached() {
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        s.attach(&["a.img"]);
        let write = ["-f", "raw", "-c", "write 20M 4k", image.to_str().unwrap()];
        let refused = Command::new("qemu-io").args(write).output().unwrap();
        assert!(
            !refused.status.success(),
            "qemu opened an image that is being written"
        );
        s.run(&["attach", "a.img", "--name", "b"]).code(11);
        s.detach("a");
        peer("qemu-io", &write);
    }

    #[test]
    fn tls_serves_clients_that_trust_the_authority_and_none_in_the_clear() {
        let s = Sandbox::new();
        certificates(&s);
        s.volume("a.img", "32M", &[]);
        s.run(&["attach", "a.img", "--nbd", "0.0.0.0:0"]).code(2);
        let tls = [
            "a.img",
            "--nbd",
            "127.0.0.1:0",
            "--tls-cert",
            "server-cert.pem",
            "--tls-key",
            "server-key.pem",
        ];
        let status = s.attach(&tls);
        let uri = status["exports"][0]["at"].as_str().unwrap().to_owned();
        assert!(uri.starts_with("nbds://127.0.0.1:"), "{uri}");
        let trusted = format!("{uri}?tls-certificates={}", s.path("").display());
        assert_eq!(
            peer("nbdinfo", &["--size", &trusted]).trim(),
            (16 << 20).to_string()
        );
        let data = Random::from_environment().bytes(8 << 20);
        fs::write(s.path("data"), &data).unwrap();
        fs::write(s.path("back"), []).unwrap();
        peer("nbdcopy", &[s.path("data").to_str().unwrap(), &trusted]);
        peer(
            "nbdcopy",
            &[trusted.as_str(), s.path("back").to_str().unwrap()],
        );
        assert!(fs::read(s.path("back")).unwrap()[..data.len()] == data[..]);
        let clear = uri.replace("nbds://", "nbd://");
        let refused = Command::new("nbdinfo")
            .args(["--size", &clear])
            .output()
            .unwrap();
        assert!(
            !refused.status.success(),
            "a client in the clear was served"
        );
        s.detach("a");
    }
}
