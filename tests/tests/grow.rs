//! `evfs grow`: image files, volumes and file systems, offline and in use.

use block::BlockDevice;
use block_testing::{Mem, Resizable};
use export_nbd::{Config, Export, Listen, Server};
use nbd_client::Client;
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use tests::{Random, Sandbox, forge, needs_root, peer, wait_until};

const MIB: u64 = 1 << 20;

/// Length of the header of a volume.
const HEADER: u64 = 16 * MIB;

fn sizes(before: u64, after: u64) -> Value {
    json!({ "before": before, "after": after })
}

/// Creates a volume of 32 MiB with a file system.
fn formatted() -> Sandbox {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    s.run(&["format", "disk.img"]).ok();
    s
}

#[test]
fn a_file_its_volume_and_its_file_system_grow_in_one_command() {
    let s = formatted();
    s.run(&["fileset", "create", "disk.img", "home", "--quota", "1M"])
        .ok();
    s.run(&["fileset", "snapshot", "disk.img", "main", "then"])
        .ok();
    let filesets = || s.json(&["df", "disk.img"])["filesets"].clone();
    let before = filesets();
    let grow = ["grow", "disk.img", "--size", "64M"];
    let planned = s.json(&[&grow[..], &["--dry-run"]].concat());
    let length = || fs::metadata(s.path("disk.img")).unwrap().len();
    assert_eq!(length(), 32 * MIB);
    let grown = s.json(&grow);
    assert_eq!(grown["device"], sizes(32 * MIB, 64 * MIB));
    let data = sizes(32 * MIB - HEADER, 64 * MIB - HEADER);
    assert_eq!([&grown["volume"], &grown["file_system"]], [&data, &data]);
    for layer in ["device", "volume", "file_system"] {
        assert_eq!(grown[layer], planned[layer]);
    }
    assert_eq!(length(), 64 * MIB);
    assert_eq!(filesets(), before);
    s.run(&["fsck", "disk.img", "--data"]).ok();
    // The file that was enlarged by other means.
    let file = fs::File::options().write(true).open(s.path("disk.img"));
    file.unwrap().set_len(80 * MIB).unwrap();
    let text = s.run(&["grow", "disk.img"]).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "device: 80 MiB",
            "volume: 64 MiB",
            "file system: 48 MiB -> 64 MiB"
        ]
    );
    // Nothing is left to do, and nothing is changed.
    let content = fs::read(s.path("disk.img")).unwrap();
    let again = s.json(&["grow", "disk.img", "--dry-run"]);
    assert_eq!(again["file_system"], sizes(64 * MIB, 64 * MIB));
    assert!(fs::read(s.path("disk.img")).unwrap() == content);
    // Like a disk that was exchanged for a smaller one.
    let file = fs::File::options().write(true).open(s.path("disk.img"));
    file.unwrap().set_len(72 * MIB).unwrap();
    let ran = s.run(&["grow", "disk.img"]);
    assert!(!ran.status.success());
    assert!(ran.stderr.contains("the device has"), "{}", ran.stderr);
}

#[test]
fn a_volume_without_a_file_system_of_evfs_grows_alone() {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    let grown = s.json(&["grow", "disk.img", "--size", "40M"]);
    assert_eq!(grown["volume"], sizes(32 * MIB - HEADER, 40 * MIB - HEADER));
    assert_eq!(grown["file_system"], Value::Null);
    let note = grown["notes"][0].as_str().unwrap();
    assert!(note.contains("no file system"), "{note}");
    // A file that is neither is no business of this command.
    fs::write(s.path("text"), [b'x'; 1 << 20]).unwrap();
    let ran = s.run(&["grow", "text", "--size", "2M"]).code(10);
    assert!(ran.stderr.contains("evfs format"), "{}", ran.stderr);
    assert_eq!(fs::metadata(s.path("text")).unwrap().len(), MIB);
}

#[test]
fn an_attached_volume_grows_and_clients_that_connect_again_see_it() {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    for how in ["--cached", "--direct"] {
        let socket = s.path("disk.sock");
        let at = socket.to_str().unwrap();
        s.attach(&["disk.img", "--nbd-unix", at, how]);
        let connect = || Client::connect(&socket, "disk").unwrap();
        let mut early = connect();
        let old = early.size();
        early.write_at(old - 4096, &[1; 4096]).unwrap();
        let file = old + HEADER;
        let size = (file + 8 * MIB).to_string();
        s.run(&["grow", "disk", "--size", &size, "--dry-run"]).ok();
        assert_eq!(connect().size(), old);
        let grown = s.json(&["grow", "disk", "--size", &size]);
        assert_eq!(grown["device"], sizes(file, file + 8 * MIB), "{how}");
        assert_eq!(grown["volume"], sizes(old, old + 8 * MIB), "{how}");
        let notes = grown["notes"].to_string();
        assert!(notes.contains("connect again"), "{notes}");
        let mut late = connect();
        assert_eq!((early.size(), late.size()), (old, old + 8 * MIB), "{how}");
        late.write_at(old + 8 * MIB - 4096, &[2; 4096]).unwrap();
        early.write_at(0, &[3; 4096]).unwrap();
        late.flush().unwrap();
        let status = s.json(&["status"]);
        assert_eq!(status["volumes"][0]["size"], old + 8 * MIB);
        s.detach("disk");
        s.attach(&["disk.img", "--nbd-unix", at]);
        let mut again = connect();
        for (offset, byte) in [(old - 4096, 1), (old + 8 * MIB - 4096, 2), (0, 3)] {
            let mut block = [0; 4096];
            again.read_at(offset, &mut block).unwrap();
            assert_eq!(block, [byte; 4096], "{how}");
        }
        drop(again);
        s.detach("disk");
    }
}

#[test]
fn a_lun_that_has_grown_is_used_once_it_is_detached() {
    let s = Sandbox::new();
    let disk = Resizable::new(Arc::new(Mem::new(64 * MIB, 512)), 32 * MIB);
    let export = Export {
        name: "e".into(),
        description: String::new(),
        device: Arc::new(disk.clone()),
        read_only: false,
    };
    let socket = s.path("array.sock");
    let config = Config {
        listen: vec![Listen::Unix(socket.clone())],
        ..Config::default()
    };
    let _array = Server::start(config, vec![export]).unwrap();
    let uri = format!("nbd+unix:///e?socket={}", socket.display());
    s.key("owner");
    s.run(&["volume", "create", &uri, "--owner", "owner"]).ok();
    s.run(&["format", &uri]).ok();
    let refused = s.run(&["grow", &uri, "--size", "64M"]).code(2);
    assert!(refused.stderr.contains("image files"), "{}", refused.stderr);
    s.attach(&[&uri, "--name", "lun"]);
    s.run(&["grow", "lun"]).ok();
    disk.resize(64 * MIB);
    disk.update_size().unwrap();
    for dry in [&["--dry-run"][..], &[]] {
        let busy = s.run(&[&["grow", "lun"][..], dry].concat()).code(11);
        assert!(busy.stderr.contains("detach"), "{}", busy.stderr);
    }
    s.detach("lun");
    let grown = s.json(&["grow", &uri]);
    assert_eq!(grown["device"], sizes(64 * MIB, 64 * MIB));
    let (before, after) = (32 * MIB - HEADER, 64 * MIB - HEADER);
    assert_eq!(grown["file_system"], sizes(before, after));
    s.run(&["fsck", &uri]).ok();
}

#[test]
fn a_volume_that_is_read_only_or_of_a_fixed_size_is_not_grown() {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    s.attach(&["disk.img", "--read-only"]);
    let ran = s.run(&["grow", "disk", "--size", "64M"]).code(2);
    assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
    s.detach("disk");
    // As of a header that fixes the size of the data, with the seal of its owner.
    forge(&s.path("disk.img"), |json| {
        json["segments"]["0"]["size"] = (8 * MIB).to_string().into();
    });
    s.run(&["volume", "repair", "disk.img", "--reseal", "--yes"])
        .ok();
    let ran = s.run(&["grow", "disk.img", "--size", "64M"]);
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    assert!(ran.stderr.contains("fixes the size"), "{}", ran.stderr);
    assert_eq!(fs::metadata(s.path("disk.img")).unwrap().len(), 32 * MIB);
}

/// A grow that is killed at any moment leaves the old or the new size of each layer, and can be
/// repeated.
#[test]
fn a_killed_grow_leaves_a_file_system_that_is_clean_and_grows_on() {
    let s = Sandbox::new();
    s.run(&["format", "disk.img", "--size", "16M"]).ok();
    let mut random = Random::from_environment();
    let mut size = 16 * MIB;
    let mut unfinished = 0;
    for _ in 0..20 {
        let before = s.json(&["df", "disk.img"])["size_bytes"].as_u64().unwrap();
        size += MIB;
        let mut command = s.evfs();
        command.args(["grow", "disk.img", "--size", &size.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let killed_after = std::time::Duration::from_micros(random.below(40_000));
        std::thread::sleep(killed_after);
        let _ = child.kill();
        child.wait().unwrap();
        // Its lock is released shortly after its end.
        let mut after = None;
        wait_until("the device is free", || {
            let ran = s.run(&["fsck", "disk.img", "--data"]);
            if ran.status.code() != Some(11) {
                ran.ok();
                after = s.json(&["df", "disk.img"])["size_bytes"].as_u64();
            }
            after.is_some()
        });
        assert!(after == Some(before) || after == Some(size), "{after:?}");
        unfinished += u32::from(after == Some(before));
        let length = fs::metadata(s.path("disk.img")).unwrap().len();
        assert!(length == size || after == Some(before));
    }
    eprintln!("{unfinished} of 20 did not reach the file system");
    s.run(&["grow", "disk.img", "--size", &size.to_string()])
        .ok();
    let df = s.json(&["df", "disk.img"]);
    assert_eq!(df["size_bytes"], size);
    s.run(&["fsck", "disk.img", "--data"]).ok();
}

mod needs_root {
    use super::*;
    use std::io::ErrorKind;
    use tests::mounts::{Disk, On};

    /// Writes to a file until the file system is full, and returns its length.
    fn fill(path: &std::path::Path) -> u64 {
        use std::io::Write;
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        loop {
            match file.write_all(&[7; 256 << 10]) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::StorageFull => break,
                Err(e) => panic!("{e}"),
            }
        }
        file.sync_all().unwrap();
        file.metadata().unwrap().len()
    }

    #[test]
    fn a_full_mounted_file_system_grows_and_takes_writes_again() {
        needs_root("mount");
        for on in [On::Clear, On::Encrypted] {
            let s = Sandbox::new();
            let disk = Disk::new(&s, on, "32M");
            let mounted = disk.mount(&[]);
            let file = mounted.path("file");
            let mut length = fill(&file);
            let device = s.path(disk.device());
            for size in [48, 96_u64] {
                let image = fs::metadata(&device).unwrap().len();
                let before = s.json(&["df", "mnt"])["size_bytes"].as_u64().unwrap();
                let text = format!("{size}M");
                let dry = s.json(&["grow", "mnt", "--size", &text, "--dry-run"]);
                assert_eq!(fs::metadata(&device).unwrap().len(), image);
                let grown = s.json(&["grow", "mnt", "--size", &text]);
                assert_eq!(grown["file_system"], dry["file_system"]);
                assert_eq!(grown["device"], sizes(image, size * MIB));
                let after = before + size * MIB - image;
                assert_eq!(grown["file_system"], sizes(before, after));
                let room = rustix::fs::statvfs(mounted.dir()).unwrap();
                assert_eq!(room.f_blocks * room.f_frsize, after);
                let status = s.json(&["status"]);
                assert_eq!(status["volumes"][0]["space"]["size_bytes"], after);
                assert_eq!(status["volumes"][0]["size"], after);
                let longer = fill(&file);
                assert!(longer > length + (after - before) / 2, "{longer}");
                length = longer;
            }
            let smaller = s.run(&["grow", "mnt", "--size", "32M"]).code(2);
            assert!(smaller.stderr.contains("shrink"), "{}", smaller.stderr);
            mounted.unmount(&s);
            disk.check();
            let mounted = disk.mount(&[]);
            let data = fs::read(mounted.path("file")).unwrap();
            assert!(data.len() as u64 == length && data.iter().all(|byte| *byte == 7));
            mounted.unmount(&s);
        }
    }

    #[test]
    fn a_loop_device_grows_with_its_volume() {
        needs_root("loop device");
        let s = Sandbox::new();
        s.volume("disk.img", "32M", &[]);
        let status = s.attach(&["disk.img", "--loop"]);
        let exports = status["exports"].as_array().unwrap();
        let at = |kind: &str| {
            let export = exports.iter().find(|e| e["kind"] == kind).unwrap();
            export["at"].as_str().unwrap().to_owned()
        };
        let bytes = || peer("blockdev", &["--getsize64", &at("loop")]);
        assert_eq!(bytes().trim(), (32 * MIB - HEADER).to_string());
        s.run(&["grow", "disk", "--size", "48M"]).ok();
        assert_eq!(bytes().trim(), (48 * MIB - HEADER).to_string());
        let file = fs::metadata(at("fuse")).unwrap();
        assert_eq!(file.len(), 48 * MIB - HEADER);
        s.detach("disk");
    }

    #[test]
    fn a_disk_that_has_grown_is_used_by_its_mount() {
        needs_root("loop device, mount");
        let s = Sandbox::new();
        let image = fs::File::create(s.path("backing")).unwrap();
        image.set_len(32 * MIB).unwrap();
        let backing = s.path("backing").display().to_string();
        let device = peer("losetup", &["--find", "--show", &backing]);
        let device = device.trim().to_owned();
        s.run(&["format", &device]).ok();
        let disk = Disk::existing(&s, &device);
        let mounted = disk.mount(&[]);
        let refused = s.run(&["grow", "mnt", "--size", "64M"]).code(2);
        assert!(refused.stderr.contains("image files"), "{}", refused.stderr);
        image.set_len(64 * MIB).unwrap();
        peer("losetup", &["--set-capacity", &device]);
        let grown = s.json(&["grow", "mnt"]);
        assert_eq!(grown["device"], sizes(32 * MIB, 64 * MIB));
        assert_eq!(grown["file_system"], sizes(32 * MIB, 64 * MIB));
        fs::write(mounted.path("file"), vec![1; 40 << 20]).unwrap();
        mounted.unmount(&s);
        disk.check();
        peer("losetup", &["--detach", &device]);
    }
}
