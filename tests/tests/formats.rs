//! Formats on devices: their versions are shown, newer ones are refused by name and left as they
//! are, and a change of a header is rolled back.

use std::fs;
use std::path::Path;
use tests::{Sandbox, forge};

/// Places of the superblock's copies, their length, and that of the checksum at their end
/// (`docs/format/fs.md`).
const COPIES: [usize; 2] = [0, (1 << 20) - 4096];
const COPY_BYTES: usize = 4096;
const CHECKSUM_BYTES: usize = 4;

/// Offsets of fields of the superblock.
const VERSION: usize = 8;
const FEATURES_READ_COMPATIBLE: usize = 24;
const FEATURES_INCOMPATIBLE: usize = 32;

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let polynomial = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc = (crc >> 1) ^ polynomial;
        }
    }
    !crc
}

/// Sets a byte of both copies of the superblock, as a later program would have written it.
fn set(image: &Path, field: usize, value: u8) {
    let mut bytes = fs::read(image).unwrap();
    for at in COPIES {
        let copy = &mut bytes[at..at + COPY_BYTES];
        let (content, checksum) = copy.split_at_mut(COPY_BYTES - CHECKSUM_BYTES);
        assert_eq!(crc32c(content).to_le_bytes(), *checksum, "the checksum");
        content[field] = value;
        checksum.copy_from_slice(&crc32c(content).to_le_bytes());
    }
    fs::write(image, bytes).unwrap();
}

#[test]
fn the_versions_of_both_formats_are_shown() {
    let s = Sandbox::new();
    s.volume("a.img", "64M", &[]);
    s.run(&["format", "a.img"]).ok();
    assert_eq!(s.json(&["volume", "info", "a.img"])["luks_version"], 2);
    let shown = s.run(&["volume", "info", "a.img"]).ok().stdout;
    assert!(shown.contains("LUKS2"), "{shown}");
    let usage = s.json(&["df", "a.img"]);
    assert_eq!(usage["format_version"], 1);
    for (class, flags) in [
        ("compatible", 1),
        ("read_compatible", 1),
        ("incompatible", 0),
    ] {
        assert_eq!(usage[format!("features_{class}")], flags, "{class}");
    }
    s.run(&["format", "plain.img", "--size", "64M", "--no-checksums"])
        .ok();
    assert_eq!(s.json(&["df", "plain.img"])["features_read_compatible"], 0);
    let shown = s.run(&["df", "a.img"]).ok().stdout;
    assert!(shown.contains("format 1"), "{shown}");
}

/// Changes of the disk that only a key detects: `fsck` reports them, and the file system is not
/// used.
#[test]
fn keyed_checksums_need_an_encrypted_volume_and_notice_older_metadata() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "64M", &[]);
    let before = fs::read(&image).unwrap();
    let format = ["format", "a.img", "--integrity"];
    let dry = s.json(&[&format[..], &["--dry-run"]].concat());
    assert_eq!(dry["integrity"], true);
    assert!(fs::read(&image).unwrap() == before, "a dry run changed it");
    let made = s.run(&format).ok().stdout;
    assert!(made.contains("with keyed checksums"), "{made}");
    let usage = s.json(&["df", "a.img"]);
    assert_eq!(usage["features_incompatible"], 1 << 10);
    let before = fs::read(&image).unwrap();
    s.run(&["fileset", "create", "a.img", "home"]).ok();
    s.run(&["fsck", "a.img", "--data"]).ok();
    let now = fs::read(&image).unwrap();

    // The superblocks stay, the metadata returns to an older state.
    let offset = s.json(&["volume", "info", "a.img"])["data_offset"]
        .as_u64()
        .unwrap() as usize;
    let mut attacked = now.clone();
    let behind = offset + (1 << 20);
    attacked[behind..].copy_from_slice(&before[behind..]);
    assert!(attacked != now);
    fs::write(&image, &attacked).unwrap();
    let found = s.run(&["fsck", "a.img"]).code(21);
    assert!(found.stderr.contains("tampered"), "{found:?}");

    // In the clear, there is no key. Nothing is created or overwritten.
    let clear = ["format", "clear.img", "--integrity"];
    let refused = s.run(&[&clear[..], &["--size", "64M"]].concat()).code(2);
    assert!(refused.stderr.contains("not encrypted"), "{refused:?}");
    assert!(!s.path("clear.img").exists());
    s.run(&["format", "clear.img", "--size", "64M"]).ok();
    let before = fs::read(s.path("clear.img")).unwrap();
    s.run(&[&clear[..], &["--force"]].concat()).code(2);
    assert!(fs::read(s.path("clear.img")).unwrap() == before);
}

#[test]
fn a_newer_file_system_is_refused_by_name_and_stays_as_it_is() {
    for (field, word) in [
        (VERSION, "version 2"),
        (FEATURES_INCOMPATIBLE, "features 0x2"),
    ] {
        let s = Sandbox::new();
        s.run(&["format", "a.img", "--size", "64M"]).ok();
        let image = s.path("a.img");
        set(&image, field, 2);
        let before = fs::read(&image).unwrap();
        for args in [
            &["df", "a.img"][..],
            &["fsck", "a.img"],
            &["fsck", "a.img", "--repair"],
            &["defrag", "a.img"],
        ] {
            let ran = s.run(args).code(1);
            assert!(ran.stderr.contains(word), "{ran:?}");
            assert!(ran.stderr.contains("use a newer version"), "{ran:?}");
        }
        s.run(&["format", "a.img"]).code(2);
        assert!(
            fs::read(&image).unwrap() == before,
            "{word}: it was changed"
        );
    }
}

#[test]
fn a_volume_that_requires_more_is_refused_by_name() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let image = s.path("a.img");
    forge(&image, |json| {
        json["config"]["requirements"] = serde_json::json!({ "mandatory": ["from-the-future"] });
    });
    let before = fs::read(&image).unwrap();
    for args in [
        &["volume", "info", "a.img"][..],
        &["attach", "a.img", "--key", "owner"],
    ] {
        let refused = s.run(args).code(1);
        assert!(refused.stderr.contains("from-the-future"), "{refused:?}");
    }
    assert!(fs::read(&image).unwrap() == before, "it was changed");
}

#[test]
fn a_change_of_the_header_is_rolled_back_and_the_rollback_as_well() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    fs::write(s.path("new.key"), "another way in").unwrap();
    let keys = || {
        let info = s.json(&["volume", "info", "a.img"]);
        info["keys"].as_array().unwrap().len()
    };
    let restore = |file: &str, more: &[&str]| {
        let restore = ["volume", "header", "restore", "a.img", file, "--yes"];
        s.json(&[&restore[..], more].concat())
    };
    let backup = ["volume", "header", "backup", "a.img", "before.header"];
    s.run(&backup).ok();
    let add = ["volume", "key", "add", "a.img", "--new-key-file", "new.key"];
    s.run(&[&add[..], &["--key", "owner"]].concat()).ok();
    assert_eq!(keys(), 2);
    let restored = restore("before.header", &["--older"]);
    assert_eq!(keys(), 1);
    s.run(&["attach", "a.img", "--key-file", "new.key"])
        .code(12);
    restore(restored["undo"].as_str().unwrap(), &[]);
    assert_eq!(keys(), 2);
    s.attach(&["a.img", "--key-file", "new.key"]);
    s.detach("a");
}

mod needs_peer {
    use super::*;
    use tests::installed;

    #[test]
    fn a_file_system_with_newer_features_for_changes_is_only_read() {
        installed("fusermount3");
        let s = Sandbox::new();
        s.run(&["format", "a.img", "--size", "64M"]).ok();
        fs::create_dir(s.path("mnt")).unwrap();
        set(&s.path("a.img"), FEATURES_READ_COMPATIBLE, 0x81);
        let refused = s.run(&["mount", "a.img", "mnt", "--background"]).code(1);
        assert!(
            refused.stderr.contains("does not know (0x80)"),
            "{refused:?}"
        );
        assert!(refused.stderr.contains("--read-only"), "{refused:?}");
        let usage = s.json(&["df", "a.img"]);
        assert_eq!(usage["features_read_compatible"], 0x81);
        s.run(&["mount", "a.img", "mnt", "--background", "--read-only"])
            .ok();
        fs::write(s.path("mnt/new"), "").expect_err("it is read-only");
        s.run(&["unmount", "mnt"]).ok();
    }
}
