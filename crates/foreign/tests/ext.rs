//! ext2, ext3 and ext4, made by the real mkfs.

mod common;

use common::{
    Facts, add_attributes, cache, counted, damage, device_of, grow, of_directory, of_files,
};
use common::{run, same};
use foreign::{Files, Kind};
use std::path::Path;

/// Creates an image of `mib` MiB with the files of a directory.
fn make(image: &Path, source: Option<&Path>, format: &str, options: &[&str], mib: u64) {
    let file = std::fs::File::create(image).expect("created");
    file.set_len(mib << 20).expect("longer");
    let mut args: Vec<std::ffi::OsString> = ["-q", "-F", "-t", format].map(Into::into).into();
    if let Some(source) = source {
        args.extend(["-d".into(), source.into()]);
    }
    args.extend(options.iter().map(Into::into));
    args.push(image.into());
    run("mkfs.ext4", &args);
}

/// Formats and options of mkfs: the default feature sets of its versions, and rare ones.
const KINDS: &[(&str, &[&str])] = &[
    ("ext2", &["-b", "1024"]),
    ("ext2", &["-b", "4096", "-O", "^filetype", "-I", "128"]),
    ("ext3", &["-b", "2048"]),
    // 1.42, 1.43, and 1.47.
    (
        "ext4",
        &[
            "-O",
            "^64bit,^metadata_csum,^metadata_csum_seed,^orphan_file",
        ],
    ),
    (
        "ext4",
        &["-O", "64bit,metadata_csum,^metadata_csum_seed,^orphan_file"],
    ),
    ("ext4", &[]),
    (
        "ext4",
        &["-b", "1024", "-O", "metadata_csum_seed,orphan_file"],
    ),
    ("ext4", &["-O", "inline_data", "-I", "512"]),
    ("ext4", &["-O", "meta_bg,^resize_inode", "-g", "2048"]),
    ("ext4", &["-O", "bigalloc", "-C", "16384"]),
    (
        "ext4",
        &["-O", "mmp,ea_inode,large_dir,encrypt,sparse_super2"],
    ),
];

mod needs_peer {
    use super::*;

    #[test]
    fn files_made_by_mkfs_are_those_of_its_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        grow(&source);
        let wanted = of_directory(&source);
        for (format, options) in KINDS {
            let image = dir.path().join("image");
            make(&image, Some(&source), format, options, 24);
            let bytes = std::fs::read(&image).expect("read");
            for block in [512, 4096] {
                let files = Files::open(device_of(&bytes, block), &cache());
                let files = files.unwrap_or_else(|e| panic!("{format} {options:?}: {e}"));
                assert_eq!(files.tree().format(), *format, "{options:?}");
                let mut found = of_files(&files).unwrap_or_else(|e| panic!("{options:?}: {e}"));
                found.remove(Path::new("lost+found"));
                same(&wanted, &found, |path, mut facts| {
                    let is_dir = facts.mode & libc::S_IFMT == libc::S_IFDIR;
                    (facts.ino, facts.blocks) = (0, 0);
                    (facts.accessed, facts.changed) = ((0, 0), (0, 0));
                    // mke2fs sets whole seconds, the root's own time, and its own owner of the root.
                    facts.modified.1 = 0;
                    if is_dir {
                        (facts.size, facts.links) = (0, 0);
                    }
                    if path == Path::new("") {
                        facts.modified = (0, 0);
                        facts.owner = (0, 0);
                        facts.mode = libc::S_IFDIR;
                    }
                    facts.attributes.clear();
                    // An inode of 128 bytes has 32 bits for a time.
                    if !(0..=i64::from(i32::MAX)).contains(&facts.modified.0) {
                        facts.modified.0 = 0;
                    }
                    facts
                });
                files.close().expect("closed");
            }
        }
    }

    #[test]
    fn a_second_read_touches_no_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        grow(&source);
        let image = dir.path().join("image");
        make(&image, Some(&source), "ext4", &[], 24);
        let bytes = std::fs::read(&image).expect("read");
        let (device, stats) = counted(device_of(&bytes, 512));
        let files = Files::open(device, &cache()).expect("it opens");
        let first = of_files(&files).expect("all is read");
        let reads = stats.snapshot().read.requests;
        assert!(reads > 0);
        let second = of_files(&files).expect("all is read");
        assert_eq!(first, second);
        assert_eq!(stats.snapshot().read.requests, reads);
        assert_eq!(stats.snapshot().write.requests, 0);
    }

    #[test]
    fn what_cannot_be_read_safely_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        let refused = |bytes: &[u8], reason: &str| {
            let error = Files::open(device_of(bytes, 512), &cache())
                .err()
                .expect("refused");
            assert!(error.to_string().contains(reason), "{error}");
            error.kind()
        };
        make(&image, None, "ext4", &["-O", "^metadata_csum"], 8);
        let good = std::fs::read(&image).expect("read");
        let with = |at: usize, bits: u8| {
            let mut bytes = good.clone();
            bytes[1024 + at] |= bits;
            bytes
        };
        assert_eq!(refused(&with(0x60, 0x4), "journal"), Kind::Unsupported);
        assert_eq!(refused(&with(0x60, 0x8), "journal_dev"), Kind::Unsupported);
        assert_eq!(refused(&with(0x62, 0x2), "casefold"), Kind::Unsupported);
        assert_eq!(refused(&with(0x63, 0x80), "0x80000000"), Kind::Unsupported);
        assert_eq!(refused(&good[..4 << 20], "too short"), Kind::Corrupt);

        make(&image, None, "ext2", &[], 8);
        let mut dirty = std::fs::read(&image).expect("read");
        dirty[1024 + 0x3a] &= !1;
        assert_eq!(refused(&dirty, "not unmounted"), Kind::Unsupported);

        make(&image, None, "ext4", &["-O", "metadata_csum"], 8);
        let mut damaged = std::fs::read(&image).expect("read");
        damaged[1024 + 0x60] |= 4;
        assert_eq!(refused(&damaged, "checksum"), Kind::Corrupt);

        make(&image, None, "ext4", &["-O", "mmp"], 8);
        let mut used = std::fs::read(&image).expect("read");
        let at = used
            .windows(8)
            .position(|w| w == [0x50, 0x4d, 0x4d, 0, 0x50, 0x4d, 0x4d, 0xff]);
        used[at.expect("the block of the protection") + 4] = 7;
        assert_eq!(refused(&used, "another machine"), Kind::Unsupported);
    }

    #[test]
    fn damaged_metadata_with_checksums_is_an_error_and_never_other_data() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        std::fs::write(source.join("file"), "content").expect("written");
        let image = dir.path().join("image");
        make(&image, Some(&source), "ext4", &["-O", "metadata_csum"], 8);
        let mut bytes = std::fs::read(&image).expect("read");
        let at = bytes
            .windows(4)
            .rposition(|w| w == b"file")
            .expect("the name");
        bytes[at] = b'F';
        let files = Files::open(device_of(&bytes, 512), &cache()).expect("it opens");
        let error = files.lane().expect("a lane").lookup(foreign::ROOT, b"File");
        let error = error.expect_err("the checksum is wrong");
        assert_eq!((error.kind(), error.errno()), (Kind::Corrupt, libc::EIO));
    }

    #[test]
    fn damaged_images_cause_errors_but_neither_panics_nor_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        std::fs::create_dir(source.join("dir")).expect("created");
        for n in 0..40 {
            std::fs::write(source.join(format!("dir/file{n}")), [n; 3000]).expect("written");
        }
        std::os::unix::fs::symlink("t".repeat(100), source.join("link")).expect("linked");
        let image = dir.path().join("image");
        for (format, options) in [
            (
                "ext4",
                &["-b", "1024", "-O", "^metadata_csum,inline_data", "-N", "64"][..],
            ),
            ("ext2", &["-b", "1024", "-N", "64"]),
        ] {
            make(&image, Some(&source), format, options, 1);
            let bytes = std::fs::read(&image).expect("read");
            // Superblock, descriptors and inodes; then everything.
            damage(&bytes, &[1024..1500, 2048..40_000, 2048..300_000]);
        }
    }
}

mod needs_root {
    use super::*;

    /// Unmounts on drop.
    struct Loop<'a>(&'a Path);

    impl<'a> Loop<'a> {
        fn mount(image: &Path, dir: &'a Path, options: &str) -> Loop<'a> {
            let options = format!("loop,{options}");
            run(
                "mount",
                &[
                    "-o".as_ref(),
                    options.as_ref(),
                    image.as_os_str(),
                    dir.as_os_str(),
                ],
            );
            Loop(dir)
        }
    }

    impl Drop for Loop<'_> {
        fn drop(&mut self) {
            run("umount", &[self.0]);
        }
    }

    #[test]
    fn everything_is_as_the_kernel_sees_it() {
        test_support::needs_root("mount(8)");
        let dir = tempfile::tempdir().expect("a directory");
        let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::create_dir(&at).expect("created");
        for (format, options) in KINDS {
            make(&image, None, format, options, 32);
            {
                let _mounted = Loop::mount(&image, &at, "rw,acl,user_xattr");
                grow(&at);
                add_attributes(&at);
                run(
                    "setfacl",
                    &[
                        "-m".as_ref(),
                        "u:12:rw,g:34:r".as_ref(),
                        at.join("odd").as_os_str(),
                    ],
                );
                run(
                    "setfacl",
                    &[
                        "-d".as_ref(),
                        "-m".as_ref(),
                        "u:12:rw".as_ref(),
                        at.join("a").as_os_str(),
                    ],
                );
                run(
                    "mknod",
                    &[
                        at.join("tty").as_os_str(),
                        "c".as_ref(),
                        "4".as_ref(),
                        "64".as_ref(),
                    ],
                );
                run(
                    "mknod",
                    &[
                        at.join("disk").as_os_str(),
                        "b".as_ref(),
                        "259".as_ref(),
                        "70000".as_ref(),
                    ],
                );
                run(
                    "chown",
                    &["70000:80000".as_ref(), at.join("large").as_os_str()],
                );
                if *format == "ext4" {
                    let reserved = at.join("reserved");
                    run(
                        "fallocate",
                        &["-l".as_ref(), "300000".as_ref(), reserved.as_os_str()],
                    );
                }
            }
            let wanted = {
                let _mounted = Loop::mount(&image, &at, "ro");
                of_directory(&at)
            };
            let bytes = std::fs::read(&image).expect("read");
            let files = Files::open(device_of(&bytes, 512), &cache());
            let files = files.unwrap_or_else(|e| panic!("{format} {options:?}: {e}"));
            let found = of_files(&files).unwrap_or_else(|e| panic!("{options:?}: {e}"));
            same(&wanted, &found, |_, facts: Facts| facts);
        }
    }
}
