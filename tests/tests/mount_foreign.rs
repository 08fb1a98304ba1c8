//! File systems of other programs, in the clear and in volumes of `cryptsetup`, mounted by the
//! program.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::installed;
use tests::mounts::{Disk, is_mounted, take_away};
use tests::{NOBODY, Ran, Sandbox, needs_root, peer, program};

const PASSPHRASE: &str = "correct horse battery staple";

/// Creates files that each of the formats can hold; FAT has neither links nor owners.
fn grow(dir: &Path) {
    fs::create_dir_all(dir.join("dir/deeper")).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    let large: Vec<u8> = (0..1_000_000u32).map(|n| (n ^ n >> 7) as u8).collect();
    fs::write(dir.join("dir/large"), large).unwrap();
    fs::write(dir.join("dir/deeper/a longer name.text"), "deep").unwrap();
}

/// Names, types and content of a tree.
fn tree(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let (mut found, mut todo) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(dir.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let at = path.join(entry.file_name());
            if entry.file_name() == "lost+found" {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                todo.push(at.clone());
                found.push((at, None));
            } else {
                found.push((at, Some(fs::read(entry.path()).unwrap())));
            }
        }
    }
    found.sort();
    found
}

fn run(name: &str, args: &[&str]) {
    Ran::of(Command::new(installed(name)).args(args)).ok();
}

/// Makes an image of each format with the files of `source`; returns the format and the image.
fn images(s: &Sandbox, source: &Path) -> Vec<(&'static str, String)> {
    let path = |name: &str| s.path(name).to_str().unwrap().to_owned();
    let source = source.to_str().unwrap();
    let new = |name: &str| {
        let file = fs::File::create(s.path(name)).unwrap();
        file.set_len(16 << 20).unwrap();
        path(name)
    };
    let ext4 = new("ext4.img");
    run("mkfs.ext4", &["-q", "-d", source, &ext4]);
    let fat = new("fat.img");
    run("mkfs.vfat", &[&fat]);
    run(
        "mcopy",
        &[
            "-s",
            "-i",
            &fat,
            &format!("{source}/file"),
            &format!("{source}/dir"),
            "::",
        ],
    );
    let (squash, iso) = (path("squash.img"), path("iso.img"));
    run("mksquashfs", &[source, &squash, "-quiet", "-no-progress"]);
    run(
        "xorriso",
        &["-as", "mkisofs", "-quiet", "-R", "-o", &iso, source],
    );
    vec![
        ("ext4", ext4),
        ("FAT", fat),
        ("SquashFS", squash),
        ("ISO 9660", iso),
    ]
}

/// Encrypts an image in place, with room for the header behind it.
fn encrypt(s: &Sandbox, image: &str) {
    let file = fs::File::options().write(true).open(image).unwrap();
    let size = file.metadata().unwrap().size().next_multiple_of(1 << 20);
    file.set_len(size + (32 << 20)).unwrap();
    fs::write(s.path("phrase"), PASSPHRASE).unwrap();
    let phrase = s.path("phrase");
    let phrase = phrase.to_str().unwrap();
    let reencrypt = [
        "reencrypt",
        "--encrypt",
        "--type",
        "luks2",
        "--reduce-device-size",
        "32M",
    ];
    let cheap = [
        "--pbkdf",
        "pbkdf2",
        "--pbkdf-force-iterations",
        "1000",
        "--batch-mode",
    ];
    let on = ["--key-file", phrase, image];
    peer("cryptsetup", &[&reencrypt[..], &cheap, &on].concat());
}

#[test]
fn every_format_is_recognized_in_the_clear_and_in_volumes_of_cryptsetup() {
    let s = Sandbox::new();
    let source = s.path("source");
    grow(&source);
    let wanted = tree(&source);
    for (format, image) in images(&s, &source) {
        for options in [&[][..], &["--key-file", "phrase"]] {
            if !options.is_empty() {
                encrypt(&s, &image);
            }
            let disk = Disk::existing(&s, &image);
            let mounted = disk.mount(&[options, &["--name", "one"]].concat());
            assert_eq!(tree(mounted.dir()), wanted, "{format}");
            let status = s.json(&["status", "one"]);
            assert_eq!(status["volumes"][0]["format"], format);
            let writable = format == "FAT";
            assert_eq!(status["volumes"][0]["read_only"], !writable);
            if !writable {
                let refused = fs::write(mounted.path("new"), "x").unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            }
            let said = s.run(&["df", "one"]).code(2);
            assert!(said.stderr.contains(format), "{}", said.stderr);
            mounted.unmount(&s);
        }
    }
}

#[test]
fn a_stick_with_fat_is_written_and_what_was_synced_survives_a_kill() {
    let s = Sandbox::new();
    let source = s.path("source");
    grow(&source);
    let (_, image) = images(&s, &source).swap_remove(1);
    let clear = s.path("clear.img");
    fs::copy(&image, &clear).unwrap();
    encrypt(&s, &image);
    let clear = clear.to_str().unwrap();
    for (image, options) in [(clear, &[][..]), (&image, &["--key-file", "phrase"])] {
        let options = [options, &["--name", "one"]].concat();
        let disk = Disk::existing(&s, image);
        let mounted = disk.mount(&options);
        fs::write(mounted.path("new.tmp"), "new").unwrap();
        fs::rename(mounted.path("new.tmp"), mounted.path("file")).unwrap();
        fs::remove_file(mounted.path("dir/large")).unwrap();
        fs::create_dir(mounted.path("Another directory")).unwrap();
        s.run(&["sync", "one"]).ok();
        mounted.unmount(&s);
        let read_only = [&options[..], &["--read-only"]].concat();
        let mounted = disk.mount(&read_only);
        assert_eq!(fs::read(mounted.path("FILE")).unwrap(), b"new");
        assert!(!mounted.path("dir/large").exists());
        assert!(mounted.path("another directory").is_dir());
        let refused = fs::write(mounted.path("new"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        mounted.unmount(&s);
    }
    run("fsck.vfat", &["-n", clear]);
    let disk = Disk::existing(&s, clear);
    let mounted = disk.mount(&[]);
    fs::write(mounted.path("kept"), "durable").unwrap();
    fs::File::open(mounted.path("kept"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::write(mounted.path("dir/perhaps"), "not synced").unwrap();
    mounted.kill();
    take_away(&s.path("mnt"));
    let said = s.run(&["mount", clear, "mnt"]);
    assert!(said.stderr.contains("fsck.vfat"), "{}", said.stderr);
    // It ends with 1 after a repair.
    Ran::of(Command::new(installed("fsck.vfat")).args(["-a", clear]));
    let mounted = disk.mount(&[]);
    assert_eq!(fs::read(mounted.path("kept")).unwrap(), b"durable");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"new");
    mounted.unmount(&s);
}

#[test]
fn what_cannot_be_mounted_is_named_with_the_reason() {
    let s = Sandbox::new();
    fs::create_dir(s.path("mnt")).unwrap();
    let image = |name: &str, mib: u64| {
        fs::File::create(s.path(name))
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
        s.path(name).to_str().unwrap().to_owned()
    };
    let refused = |image: &str, reason: &str| {
        let said = s.run(&["mount", image, "mnt"]);
        assert!(!said.status.success());
        assert!(said.stderr.contains(reason), "{reason}: {}", said.stderr);
        assert!(!is_mounted(&s.path("mnt")));
    };
    let xfs = image("xfs.img", 320);
    run("mkfs.xfs", &["-q", &xfs]);
    refused(
        &xfs,
        "it contains XFS, which EVFS cannot mount; use mount(8)",
    );
    let journal = image("journal.img", 16);
    run("mkfs.ext4", &["-q", "-O", "^metadata_csum", &journal]);
    let good = fs::read(&journal).unwrap();
    let mut bytes = good.clone();
    bytes[1024 + 0x60] |= 4;
    fs::write(&journal, &bytes).unwrap();
    refused(&journal, "its journal holds changes");
    fs::write(&journal, &good).unwrap();
    let said = s
        .run(&["mount", &journal, "mnt", "--fileset", "monday"])
        .code(2);
    assert!(said.stderr.contains("no filesets"), "{}", said.stderr);
    let table = "[mount.data]\ndevice = \"journal.img\"\nat = \"mnt\"\nkeep-snapshots.daily = 2\n";
    fs::write(s.path("up.toml"), table).unwrap();
    let said = s.run(&["up", "up.toml"]).code(2);
    assert!(
        said.stderr.contains("omit keep-snapshots"),
        "{}",
        said.stderr
    );
    let mut table = vec![0; 8 << 20];
    table[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(s.path("table.img"), table).unwrap();
    refused("table.img", "it contains DOS partition table");
    refused("table.img", "name one of its partitions");
    for magic in ["NTFS    ", "-FVE-FS-"] {
        let mut bytes = vec![0; 8 << 20];
        bytes[3..11].copy_from_slice(magic.as_bytes());
        fs::write(s.path("other.img"), bytes).unwrap();
        refused(
            "other.img",
            if magic.starts_with('N') {
                "NTFS"
            } else {
                "BitLocker"
            },
        );
    }
}

#[test]
fn an_ordinary_user_opens_an_encrypted_stick() {
    needs_root("becoming another user");
    let s = Sandbox::new();
    let source = s.path("source");
    grow(&source);
    symlink("file", source.join("link")).unwrap();
    let (_, image) = images(&s, &source).swap_remove(0);
    encrypt(&s, &image);
    let home = tempfile::tempdir().unwrap();
    fs::copy(program(), home.path().join("evfs")).unwrap();
    fs::copy(&image, home.path().join("stick.img")).unwrap();
    fs::copy(s.path("phrase"), home.path().join("phrase")).unwrap();
    for dir in ["mnt", "run"] {
        fs::create_dir(home.path().join(dir)).unwrap();
    }
    for name in ["mnt", "run", "stick.img", "phrase", ""] {
        chown(home.path().join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(home.path().join("run"), private).unwrap();
    let mnt = home.path().join("mnt");
    let evfs = |args: &[&str]| {
        let mut command = Command::new(home.path().join("evfs"));
        s.environment(&mut command);
        command
            .env("EVFS_RUN_DIR", home.path().join("run"))
            .env("EVFS_TRUST_STORE", home.path().join("trust.json"))
            .env("EVFS_KEYS_DIR", home.path().join("keys"))
            .env("HOME", home.path())
            .current_dir(home.path());
        Ran::of(command.args(args).uid(NOBODY).gid(NOBODY))
    };
    struct Away<'a>(&'a Path);
    impl Drop for Away<'_> {
        fn drop(&mut self) {
            take_away(self.0);
        }
    }
    let _away = Away(&mnt);
    evfs(&[
        "mount",
        "stick.img",
        "mnt",
        "--key-file",
        "phrase",
        "--background",
    ])
    .ok();
    let line = "cat mnt/link mnt/file && ls mnt/dir/deeper";
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(home.path());
    let shown = Ran::of(shell.uid(NOBODY).gid(NOBODY)).ok().stdout;
    assert_eq!(shown, "contentcontenta longer name.text\n");
    evfs(&["unmount", "mnt"]).ok();
    assert!(!is_mounted(&mnt));
}
