//! The file system commands, from outside: format, mount, unmount, fsck, fileset, df, up.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::mounts::is_mounted;
use tests::{Ran, Sandbox, needs_root, wait_until};

/// A sandbox with an unencrypted file system and a mount point.
struct Place {
    s: Sandbox,
    at: PathBuf,
}

impl Place {
    fn new() -> Place {
        let s = Sandbox::new();
        s.run(&["format", "disk.img", "--size", "64M", "--label", "first"])
            .ok();
        let at = s.path("mnt");
        fs::create_dir(&at).unwrap();
        Place { s, at }
    }

    fn mount(&self, more: &[&str]) -> serde_json::Value {
        let mut args = vec!["mount", "disk.img", "mnt", "--background"];
        args.extend(more);
        self.s.json(&args)
    }

    fn unmount(&self) {
        self.s.run(&["unmount", "mnt"]).ok();
    }

    fn filesets(&self) -> Vec<String> {
        let listed = self.s.json(&["fileset", "list", "disk.img"]);
        let all = listed["filesets"].as_array().unwrap().iter();
        all.map(|f| f["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn is_clean(&self) {
        let checked = self.s.json(&["fsck", "disk.img"]);
        assert_eq!(checked["clean"], true, "{checked}");
    }
}

/// Flags of a mount without set-user-ID programs and without device nodes.
const NO_PRIVILEGES: u64 = libc::ST_NOSUID | libc::ST_NODEV;

/// Returns the flags of the mount at a directory.
fn mount_flags(at: &Path) -> u64 {
    rustix::fs::statvfs(at).unwrap().f_flag.bits()
}

/// A function that damages an image.
type Change = fn(&mut Vec<u8>);

#[test]
fn rubbish_is_refused_with_a_sentence() {
    let p = Place::new();
    let image = p.s.path("disk.img");
    let whole = fs::read(&image).unwrap();
    // Both superblocks are lost; everything except the first one is; the end of the image is cut
    // off.
    let damage: [(&str, Change); 3] = [
        ("no superblock", |bytes| {
            bytes[..4096].fill(0x5a);
            bytes[1_044_480..1_048_576].fill(0x5a);
        }),
        ("rubbish", |bytes| {
            for (at, byte) in bytes.iter_mut().enumerate().skip(4096) {
                *byte = (at * 31 % 251) as u8;
            }
        }),
        ("cut short", |bytes| bytes.truncate(100_000)),
    ];
    for (what, change) in damage {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&image, &bytes).unwrap();
        for verb in [&["df", "disk.img"][..], &["mount", "disk.img", "mnt"]] {
            let ran = p.s.run(verb);
            assert!(!ran.status.success(), "{what}: {ran:?}");
            assert!(ran.stderr.starts_with("evfs: "), "{what}: {ran:?}");
            assert!(!ran.stderr.contains("panicked"), "{what}: {ran:?}");
        }
    }
    // If one copy of the superblock is lost, the other is used, and the check reports it.
    for copy in [0..4096, 1_044_480..1_048_576] {
        let mut bytes = whole.clone();
        bytes[copy].fill(0);
        fs::write(&image, &bytes).unwrap();
        p.s.run(&["df", "disk.img"]).ok();
        p.s.run(&["fsck", "disk.img"]).code(26);
        assert_eq!(
            fs::read(&image).unwrap(),
            bytes,
            "a check changed something"
        );
        let repaired = p.s.json(&["fsck", "disk.img", "--repair"]);
        assert_eq!(repaired["clean"], true, "{repaired}");
        p.is_clean();
    }
}

mod needs_root {
    use super::*;

    #[test]
    fn privileges_count_only_where_root_asks_for_them() {
        needs_root("mounting with set-user-ID");
        let p = Place::new();
        for (options, left) in [
            (&[][..], NO_PRIVILEGES),
            (&["--suid"][..], libc::ST_NODEV),
            (&["--suid", "--dev"][..], 0),
        ] {
            p.mount(options);
            assert_eq!(mount_flags(&p.at) & NO_PRIVILEGES, left, "{options:?}");
            p.unmount();
        }
        let config = "[mount.data]\ndevice = \"disk.img\"\nat = \"mnt\"\nsuid = true\ndev = true\n";
        fs::write(p.s.path("evfs.toml"), config).unwrap();
        p.s.run(&["up", "evfs.toml", "--background"]).ok();
        assert_eq!(mount_flags(&p.at) & NO_PRIVILEGES, 0);
        p.s.run(&["down"]).ok();
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn format_refuses_what_is_there_and_force_overwrites_it() {
        let p = Place::new();
        let ran = p.s.run(&["format", "disk.img"]).code(2);
        assert!(ran.stderr.contains("EVFS file system"), "{}", ran.stderr);
        p.s.run(&["format", "disk.img", "--force", "--label", "second"])
            .ok();
        assert_eq!(p.s.json(&["df", "disk.img"])["label"], "second");
        p.s.run(&["format", "missing.img"]).code(10);
        p.s.run(&["format", "small.img", "--size", "1M"]).code(2);
        assert!(!p.s.path("small.img").exists(), "what failed was left");
        // A key for an unencrypted device indicates a mistake.
        p.s.key("alice");
        for verb in ["df", "fsck", "format"] {
            p.s.run(&[verb, "disk.img", "--key", "alice"]).code(2);
        }
        // No traces of an old kernel file system remain that other programs would detect.
        let image = p.s.path("ext4.img");
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let mut mkfs = Command::new("/sbin/mkfs.ext4");
        Ran::of(mkfs.arg("-qF").arg(&image)).ok();
        let ran = p.s.run(&["format", "ext4.img"]).code(2);
        assert!(ran.stderr.contains("ext4"), "{}", ran.stderr);
        p.s.run(&["format", "ext4.img", "--force"]).ok();
        let found = Ran::of(Command::new("/sbin/blkid").arg("-p").arg(&image));
        assert!(!found.stdout.contains("ext4"), "{}", found.stdout);
        p.s.run(&["fsck", "ext4.img"]).ok();
    }

    #[test]
    fn a_volume_takes_a_file_system_and_its_key_opens_it() {
        let s = Sandbox::new();
        s.volume("disk.img", "96M", &[]);
        s.run(&["mount", "disk.img", "mnt"]).code(10);
        fs::create_dir(s.path("mnt")).unwrap();
        let ran = s.run(&["mount", "disk.img", "mnt"]).code(10);
        assert!(ran.stderr.contains("evfs format"), "{}", ran.stderr);
        let made = s.json(&["format", "disk.img", "--key", "owner"]);
        assert_eq!(made["encrypted"], true);
        let status = s.json(&["mount", "disk.img", "mnt", "--background"]);
        assert_eq!(status["key_bits"], 128);
        assert_eq!(status["uuid"], made["uuid"]);
        let secret = vec![b'Q'; 1 << 20];
        fs::write(s.path("mnt/file"), &secret).unwrap();
        s.run(&["unmount", "mnt"]).ok();
        let disk = fs::read(s.path("disk.img")).unwrap();
        let clear = disk.windows(64).step_by(64).filter(|w| w == &&secret[..64]);
        assert_eq!(clear.count(), 0, "clear data on the disk");
        s.key("stranger");
        s.run(&["fsck", "disk.img", "--key", "stranger"]).code(12);
        s.run(&["fsck", "disk.img", "--key", "owner"]).ok();
        s.json(&["mount", "disk.img", "mnt", "--background", "--read-only"]);
        assert_eq!(fs::read(s.path("mnt/file")).unwrap(), secret);
        assert!(fs::write(s.path("mnt/other"), b"x").is_err());
        s.run(&["unmount", "mnt"]).ok();
    }

    #[test]
    fn filesets_are_made_limited_kept_and_removed_mounted_or_not() {
        let p = Place::new();
        assert_eq!(p.filesets(), ["main"]);
        for mounted in [false, true] {
            if mounted {
                p.mount(&[]);
                fs::write(p.at.join("file"), b"as it was").unwrap();
            }
            let made =
                p.s.json(&["fileset", "create", "disk.img", "home", "--quota", "1M"]);
            assert_eq!(made["quota_bytes"], 1 << 20);
            p.s.run(&["fileset", "create", "disk.img", "home"]).code(2);
            p.s.run(&["fileset", "rename", "disk.img", "home", "people"])
                .ok();
            p.s.run(&["fileset", "rename", "disk.img", "home", "x"])
                .code(10);
            let limited =
                p.s.json(&["fileset", "quota", "disk.img", "people", "--files", "7"]);
            assert_eq!(limited["quota_inodes"], 7);
            assert_eq!(limited["quota_bytes"], 1 << 20);
            let name = if mounted { "late" } else { "early" };
            let kept = p.s.json(&["fileset", "snapshot", "disk.img", "main", name]);
            assert_eq!(kept["snapshot_of"], "main");
            p.s.run(&["fileset", "remove", "disk.img", "people"]).ok();
            if mounted {
                // The snapshot includes data that the mount had not written back.
                fs::write(p.at.join("file"), b"changed").unwrap();
                let ran =
                    p.s.run(&["fileset", "remove", "disk.img", "main", "--force"]);
                ran.code(11);
                p.unmount();
            }
        }
        assert_eq!(p.filesets(), ["main", "early", "late"]);
        p.s.run(&["fileset", "remove", "disk.img", "late"]).code(2);
        for (name, content) in [("late", "as it was"), ("main", "changed")] {
            p.mount(&["--fileset", name]);
            assert_eq!(fs::read_to_string(p.at.join("file")).unwrap(), content);
            p.unmount();
        }
        p.s.run(&["fileset", "remove", "disk.img", "late", "--force"])
            .ok();
        p.s.run(&["fileset", "remove", "disk.img", "early", "--force"])
            .ok();
        p.s.run(&["mount", "disk.img", "mnt", "--fileset", "late"])
            .code(10);
        assert_eq!(p.filesets(), ["main"]);
        p.is_clean();
    }

    #[test]
    fn a_compressed_fileset_takes_less_space_and_reads_the_same_elsewhere() {
        let p = Place::new();
        p.mount(&[]);
        let set = p.s.json(&["fileset", "compression", "mnt", "main", "zstd"]);
        assert_eq!(set["compression"], "zstd");
        let lines = (0..60_000).map(|n| format!("{n}: a line of a text\n"));
        let text: String = lines.collect();
        fs::write(p.at.join("text"), &text).unwrap();
        p.s.run(&["sync", "mnt"]).ok();
        let space = fs::metadata(p.at.join("text")).unwrap().blocks() * 512;
        assert!(space < text.len() as u64 / 2, "{space} of {}", text.len());
        p.s.run(&["fileset", "snapshot", "mnt", "main", "then"])
            .ok();
        p.unmount();
        p.is_clean();
        let listed = p.s.run(&["fileset", "list", "disk.img"]).ok().stdout;
        assert!(listed.contains("compression zstd"), "{listed}");
        p.mount(&[]);
        assert_eq!(fs::read_to_string(p.at.join("text")).unwrap(), text);
        p.unmount();

        p.s.run(&["fileset", "send", "disk.img", "then", "--output", "stream"])
            .ok();
        p.s.run(&["format", "other.img", "--size", "64M"]).ok();
        let receive = ["fileset", "receive", "other.img", "copy"];
        let into = ["--as", "then", "--input", "stream"];
        p.s.run(&[&receive[..], &into].concat()).ok();
        let mount = ["mount", "other.img", "mnt", "--background"];
        p.s.run(&[&mount[..], &["--fileset", "copy"]].concat()).ok();
        assert_eq!(fs::read_to_string(p.at.join("text")).unwrap(), text);
        p.unmount();
        let off =
            p.s.json(&["fileset", "compression", "disk.img", "main", "off"]);
        assert!(off["compression"].is_null(), "{off}");
        p.is_clean();
    }

    #[test]
    fn defrag_compresses_and_decompresses_what_was_written_before() {
        let p = Place::new();
        p.mount(&[]);
        let lines = (0..60_000).map(|n| format!("{n}: a line of a text\n"));
        let text: String = lines.collect();
        fs::write(p.at.join("text"), &text).unwrap();
        p.s.run(&["sync", "mnt"]).ok();
        let space = || fs::metadata(p.at.join("text")).unwrap().blocks() * 512;
        let plain = space();
        p.s.run(&["fileset", "compression", "mnt", "main", "lz4"])
            .ok();
        p.s.run(&["defrag", "mnt"]).ok();
        assert_eq!(space(), plain);
        let planned = p.s.json(&["defrag", "mnt", "--recompress", "--dry-run"]);
        assert_eq!(space(), plain);
        let done = p.s.json(&["defrag", "mnt", "--recompress"]);
        assert_eq!(done["recompressed"], 1, "{done}");
        assert_eq!(done["blocks_after"], planned["blocks_after"], "{planned}");
        p.unmount();
        p.is_clean();
        p.mount(&[]);
        assert!(space() < plain / 2, "{} of {plain}", space());
        assert_eq!(fs::read_to_string(p.at.join("text")).unwrap(), text);
        p.unmount();
        p.s.run(&["fileset", "compression", "disk.img", "main", "off"])
            .ok();
        let said = p.s.run(&["defrag", "disk.img", "--recompress"]).ok().stdout;
        assert!(said.contains("1 files recompressed"), "{said}");
        p.is_clean();
        p.mount(&[]);
        assert_eq!(space(), plain);
        assert_eq!(fs::read_to_string(p.at.join("text")).unwrap(), text);
        p.unmount();
    }

    #[test]
    fn the_name_of_a_mount_answers() {
        let p = Place::new();
        let status = p.mount(&["--name", "there"]);
        assert_eq!(status["name"], "there");
        assert_eq!(status["fileset"], "main");
        assert_eq!(status["label"], "first");
        fs::write(p.at.join("file"), vec![1; 100_000]).unwrap();
        let stats = p.s.json(&["stats", "there"]);
        assert!(stats["write"].is_object(), "{stats}");
        let advised = p.s.json(&[
            "cache",
            "advise",
            "there",
            "--file",
            "/file",
            "read_ahead=no",
        ]);
        assert_eq!(advised["read_ahead"], "no");
        p.s.run(&["cache", "advise", "there", "read_ahead=no"])
            .code(2);
        p.s.json(&["cache", "flush", "there"]);
        let df = p.s.json(&["df", "disk.img"]);
        let used = df["filesets"][0]["used_bytes"].as_u64().unwrap();
        assert_eq!(used, 100_000u64.next_multiple_of(4096), "{df}");
        // The mount is in use.
        let held = fs::File::open(p.at.join("file")).unwrap();
        p.s.run(&["detach", "there"]).code(11);
        assert!(is_mounted(&p.at));
        p.s.run(&["unmount", "mnt", "--force"]).ok();
        assert!(!is_mounted(&p.at));
        drop(held);
        p.is_clean();
    }

    #[test]
    fn what_a_killed_process_left_mounted_is_cleared_away() {
        let p = Place::new();
        for clear in ["mount", "unmount"] {
            let status = p.mount(&[]);
            let file = fs::File::create(p.at.join(clear)).unwrap();
            file.sync_all().unwrap();
            let pid = status["pid"].as_i64().unwrap() as i32;
            tests::signal(pid, libc::SIGKILL);
            wait_until("the process is gone", || {
                !Path::new(&format!("/proc/{pid}")).exists()
            });
            drop(file);
            assert!(is_mounted(&p.at), "the kernel keeps a mount without server");
            if clear == "unmount" {
                p.unmount();
                assert!(!is_mounted(&p.at));
            }
        }
        p.is_clean();
        p.mount(&[]);
        assert!(p.at.join("mount").exists() && p.at.join("unmount").exists());
        p.unmount();
    }

    #[test]
    fn up_mounts_and_down_unmounts() {
        let p = Place::new();
        let config =
            "[mount.data]\ndevice = \"disk.img\"\nat = \"mnt\"\nthreads = 2\natime = \"none\"\n";
        fs::write(p.s.path("evfs.toml"), config).unwrap();
        p.s.run(&["up", "evfs.toml", "--background"]).ok();
        fs::write(p.at.join("file"), b"kept").unwrap();
        assert_eq!(mount_flags(&p.at) & NO_PRIVILEGES, NO_PRIVILEGES);
        assert_eq!(
            p.s.json(&["status"])["volumes"][0]["exports"][0]["kind"],
            "mount"
        );
        p.s.run(&["down"]).ok();
        assert!(!is_mounted(&p.at));
        p.is_clean();
        fs::write(
            p.s.path("bad.toml"),
            "[mount.x]\ndevice = \"d\"\nta = \"mnt\"\n",
        )
        .unwrap();
        let ran = p.s.run(&["up", "bad.toml"]).code(2);
        assert!(ran.stderr.contains("did you mean `at`?"), "{}", ran.stderr);
    }

    #[test]
    fn defrag_brings_pieces_together() {
        use std::os::unix::fs::FileExt;
        let p = Place::new();
        p.mount(&[]);
        let files: Vec<fs::File> = ["a", "b"]
            .map(|name| fs::File::create(p.at.join(name)).unwrap())
            .into();
        // Pieces of two files alternate, each allocated before the next is written.
        for n in 0..40u64 {
            for (file, byte) in files.iter().zip(1..) {
                file.write_all_at(&[byte + n as u8; 4096], n * 4096)
                    .unwrap();
                file.sync_data().unwrap();
            }
        }
        drop(files);
        p.s.run(&["defrag", "disk.img", "--dry-run"]).ok();
        p.unmount();
        p.s.run(&["defrag", "disk.img", "/c"]).code(10);
        let one = p.s.json(&["defrag", "disk.img", "/a"]);
        assert_eq!(one["files"], 1);
        let all = p.s.json(&["defrag", "disk.img"]);
        assert_eq!(
            (&all["files"], &all["extents_after"]),
            (&2.into(), &2.into()),
            "{one} {all}"
        );
        p.is_clean();
        p.mount(&["--read-only"]);
        for (name, byte) in [("a", 1u8), ("b", 2)] {
            let content = fs::read(p.at.join(name)).unwrap();
            let wanted: Vec<u8> = (0..40).flat_map(|n| [byte + n; 4096]).collect();
            assert!(content == wanted, "{name} changed");
        }
        p.unmount();
    }
}
