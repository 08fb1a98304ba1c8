//! Real clients and real file systems on attached volumes.

use std::fs;
use std::path::Path;
use std::process::Command;
use tests::{Ran, Random, Sandbox, is_root, peer};

fn uri(s: &Sandbox) -> String {
    format!("nbd+unix:///a?socket={}", s.path("run/a.nbd").display())
}

#[test]
fn qemu_nbdcopy_nbdinfo_and_fio_work_against_the_nbd_export() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    for (bits, sector) in [("128", "4096"), ("256", "512")] {
        s.volume(
            "a.img",
            "80M",
            &["--key-bits", bits, "--sector-size", sector],
        );
        s.attach(&["a.img", "--threads", "2"]);
        let uri = uri(&s);
        let size = 64 << 20;
        assert_eq!(peer("nbdinfo", &["--size", &uri]).trim(), size.to_string());
        let info: serde_json::Value =
            serde_json::from_str(&peer("nbdinfo", &["--json", &uri])).unwrap();
        let export = &info["exports"][0];
        for flag in ["can_multi_conn", "can_fua", "can_flush", "can_zero"] {
            assert_eq!(export[flag], true, "{flag}: {export}");
        }
        assert_eq!(export["block_minimum"].to_string(), sector);

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
                "--rw=randrw",
                "--bs=4k-64k",
                "--blockalign=4k",
                "--size=32M",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
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
    let refused = Command::new("qemu-img")
        .args(["info", image.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(
        !refused.status.success(),
        "qemu opened an image that is being written"
    );
    s.run(&["attach", "a.img", "--name", "b"]).code(11);
    s.detach("a");
    peer("qemu-img", &["info", image.to_str().unwrap()]);
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
    // In use: it must not go away under the file system.
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

/// Unmounts when a test fails half way.
struct Unmounted(String);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn ext4_on_a_loop_device_keeps_usr_share() {
    if is_root("loop device, mkfs.ext4, mount") {
        file_system_round_trip(&["mkfs.ext4", "-q"], &["--key-bits", "128"]);
    }
}

#[test]
fn xfs_on_a_loop_device_keeps_usr_share() {
    if is_root("loop device, mkfs.xfs, mount") {
        file_system_round_trip(
            &["mkfs.xfs", "-q"],
            &["--key-bits", "256", "--sector-size", "512"],
        );
    }
}
