//! FAT, made by the real mkfs.vfat and filled by mtools.

mod common;

use common::{
    Tree, cache, counted, damage_fewer, device_of, noise, of_directory, of_files, run, same,
};
use foreign::{Files, Kind, ROOT};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Widths of the table, options of mkfs, and sizes in KiB.
const KINDS: &[(&[&str], u64)] = &[
    (&["-F", "12", "-s", "1"], 1440),
    (&["-F", "12", "-s", "4", "-n", "A LABEL"], 4096),
    (&["-F", "16", "-s", "2"], 16 << 10),
    (&["-F", "32", "-s", "1"], 40 << 10),
    (&["-F", "32", "-S", "4096", "-s", "1"], 300 << 10),
];

fn make(image: &Path, source: Option<&Path>, options: &[&str], kib: u64) -> Vec<u8> {
    let file = std::fs::File::create(image).expect("created");
    file.set_len(kib << 10).expect("longer");
    let mut args: Vec<OsString> = options.iter().map(Into::into).collect();
    args.push(image.into());
    run("mkfs.vfat", &args);
    if let Some(source) = source {
        let mut args: Vec<OsString> = ["-s", "-m", "-i"].map(Into::into).into();
        args.push(image.into());
        let entries = std::fs::read_dir(source).expect("entries");
        args.extend(entries.map(|entry| entry.expect("an entry").path().into()));
        args.push("::".into());
        run("mcopy", &args);
        run("fsck.vfat", &["-n".as_ref(), image.as_os_str()]);
    }
    std::fs::read(image).expect("read")
}

/// Creates files whose names a FAT file system can have.
fn grow_fat(dir: &Path) {
    let file = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).expect("written");
    file("EMPTY", b"");
    file("SHORT.TXT", b"short");
    file("lower.txt", b"lower");
    file(
        "A long name with spaces, and (signs)+.text",
        &noise(1, 5000),
    );
    file(&"n".repeat(200), b"long");
    file("odd.bin", &noise(2, 100_001));
    file("large.bin", &noise(3, 400_000));
    std::fs::create_dir_all(dir.join("dir/a deeper directory/b")).expect("created");
    file("dir/a deeper directory/b/file", b"deep");
    for n in 0..100 {
        file(&format!("dir/file number {n}"), &noise(n, 17));
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    let times = std::fs::FileTimes::new().set_modified(time);
    std::fs::File::open(dir.join("odd.bin"))
        .expect("opened")
        .set_times(times)
        .expect("changed");
}

fn source_in(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("source");
    std::fs::create_dir(&source).expect("created");
    grow_fat(&source);
    source
}

fn open(bytes: &[u8], block: u32) -> std::sync::Arc<Files> {
    Files::open(device_of(bytes, block), &cache()).expect("it opens")
}

mod needs_peer {
    use super::*;

    #[test]
    fn files_copied_by_mtools_are_those_of_their_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let wanted = of_directory(&source);
        for (options, kib) in KINDS {
            let bytes = make(&dir.path().join("image"), Some(&source), options, *kib);
            for block in [512, 4096] {
                let files = open(&bytes, block);
                let found: Tree = of_files(&files).unwrap_or_else(|e| panic!("{options:?}: {e}"));
                same(&wanted, &found, |path, mut facts| {
                    let is_dir = facts.mode & libc::S_IFMT == libc::S_IFDIR;
                    (facts.ino, facts.blocks, facts.links) = (0, 0, 0);
                    (facts.accessed, facts.changed) = ((0, 0), (0, 0));
                    facts.mode &= libc::S_IFMT;
                    // Every other second has a number.
                    facts.modified = (facts.modified.0 & !1, 0);
                    if is_dir {
                        facts.size = 0;
                        facts.modified = (0, 0);
                    }
                    assert!(!path.starts_with(".."));
                    facts.attributes.clear();
                    facts
                });
                if options.contains(&"-n") {
                    assert_eq!(files.tree().label(), "A LABEL");
                }
            }
        }
    }

    #[test]
    fn names_are_found_in_any_case_and_by_their_short_form() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let bytes = make(
            &dir.path().join("image"),
            Some(&source),
            &["-F", "16"],
            16 << 10,
        );
        let mut lane = open(&bytes, 512).lane().expect("a lane");
        let (node, attr) = lane.lookup(ROOT, b"short.txt").expect("it is found");
        assert_eq!(attr.size, 5);
        assert_eq!(
            lane.lookup(ROOT, b"SHORT.TXT").expect("it is found").0,
            node
        );
        let by_short = lane.lookup(ROOT, b"ALONGN~1.TEX").expect("it is found");
        assert_eq!(by_short.1.size, 5000);
        assert_eq!(
            lane.lookup(ROOT, b"none").expect_err("no such name").kind(),
            Kind::NotFound
        );
    }

    #[test]
    fn a_second_read_touches_no_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let bytes = make(
            &dir.path().join("image"),
            Some(&source),
            &["-F", "32"],
            40 << 10,
        );
        let (device, stats) = counted(device_of(&bytes, 512));
        let files = Files::open(device, &cache()).expect("it opens");
        let first = of_files(&files).expect("all is read");
        let reads = stats.snapshot().read.requests;
        assert!(reads > 0);
        assert_eq!(of_files(&files).expect("all is read"), first);
        assert_eq!(stats.snapshot().read.requests, reads);
    }

    #[test]
    fn what_is_in_use_is_refused_and_partition_tables_are_not_taken_for_it() {
        let dir = tempfile::tempdir().expect("a directory");
        for (options, kib, at) in [
            (["-F", "16"], 16 << 10, 0x25),
            (["-F", "32"], 40 << 10, 0x41),
        ] {
            let mut bytes = make(&dir.path().join("image"), None, &options, kib);
            bytes[at] |= 1;
            let error = Files::open(device_of(&bytes, 512), &cache())
                .err()
                .expect("refused");
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains("not unmounted"), "{error}");
        }
        let mut table = vec![0; 1 << 20];
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
        let error = Files::open(device_of(&table, 512), &cache())
            .err()
            .expect("refused");
        assert_eq!(error.kind(), Kind::NotFound);
    }

    #[test]
    fn damaged_images_cause_errors_but_neither_panics_nor_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        for (width, kib, divisor) in [("12", 1440, 1), ("16", 3 << 10, 1), ("32", 34 << 10, 10)] {
            let options = ["-F", width, "-s", "1"];
            let bytes = make(&dir.path().join("image"), Some(&source), &options, kib);
            let end = bytes.len().min(1 << 20);
            damage_fewer(&bytes, &[0..512, 512..end, 512..40_000], divisor);
        }
    }
}
