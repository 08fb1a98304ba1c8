//! SquashFS, made by the real mksquashfs.

mod common;

use common::{
    add_attributes, cache, counted, damage, device_of, grow, of_directory, of_files, run, same,
};
use foreign::{Files, Kind};
use std::ffi::OsString;
use std::path::Path;

fn make(image: &Path, source: &Path, options: &[&str]) -> Vec<u8> {
    let _ = std::fs::remove_file(image);
    let mut args: Vec<OsString> = vec![source.into(), image.into()];
    args.extend(["-quiet", "-no-progress", "-processors", "1"].map(Into::into));
    args.extend(options.iter().map(Into::into));
    run("mksquashfs", &args);
    std::fs::read(image).expect("read")
}

/// Options of mksquashfs: every method of compression that EVFS knows, and layouts.
const KINDS: &[&[&str]] = &[
    &["-comp", "gzip"],
    &["-comp", "xz", "-b", "64K"],
    &["-comp", "lz4"],
    &["-comp", "zstd", "-b", "1M"],
    &["-noD", "-noF"],
    &["-noI", "-noD", "-noF", "-noX", "-b", "4K"],
    &["-no-fragments"],
    &["-always-use-fragments", "-no-duplicates", "-no-exports"],
];

mod needs_peer {
    use super::*;

    #[test]
    fn files_made_by_mksquashfs_are_those_of_its_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        grow(&source);
        let wanted = of_directory(&source);
        for options in KINDS {
            let bytes = make(&dir.path().join("image"), &source, options);
            for block in [512, 4096] {
                let files = Files::open(device_of(&bytes, block), &cache());
                let files = files.unwrap_or_else(|e| panic!("{options:?}: {e}"));
                let found = of_files(&files).unwrap_or_else(|e| panic!("{options:?}: {e}"));
                same(&wanted, &found, |_, mut facts| {
                    (facts.ino, facts.blocks) = (0, 0);
                    (facts.accessed, facts.changed) = ((0, 0), (0, 0));
                    facts.modified.1 = 0;
                    if facts.mode & libc::S_IFMT == libc::S_IFDIR {
                        (facts.size, facts.links) = (0, 0);
                    }
                    facts.attributes.clear();
                    facts
                });
            }
        }
    }

    #[test]
    fn a_second_read_touches_no_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        grow(&source);
        let bytes = make(&dir.path().join("image"), &source, &[]);
        let (device, stats) = counted(device_of(&bytes, 512));
        let files = Files::open(device, &cache()).expect("it opens");
        let first = of_files(&files).expect("all is read");
        let reads = stats.snapshot().read.requests;
        assert!(reads > 0);
        assert_eq!(of_files(&files).expect("all is read"), first);
        assert_eq!(stats.snapshot().read.requests, reads);
    }

    #[test]
    fn unknown_compression_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir(&source).expect("created");
        let bytes = make(&dir.path().join("image"), &source, &["-comp", "lzo"]);
        let error = Files::open(device_of(&bytes, 512), &cache())
            .err()
            .expect("refused");
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("lzo"), "{error}");
    }

    #[test]
    fn damaged_images_cause_errors_but_neither_panics_nor_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir_all(source.join("dir")).expect("created");
        for n in 0..60 {
            std::fs::write(source.join(format!("dir/file{n}")), [n; 3000]).expect("written");
        }
        std::fs::write(source.join("large"), "text and more text\n".repeat(20_000))
            .expect("written");
        std::os::unix::fs::symlink("target", source.join("link")).expect("linked");
        for options in KINDS {
            let bytes = make(&dir.path().join("image"), &source, options);
            let end = bytes.len();
            damage(&bytes, &[0..96, 0..end, end.saturating_sub(6000)..end]);
        }
    }
}

mod needs_root {
    use super::*;

    #[test]
    fn everything_is_as_the_kernel_sees_it() {
        test_support::needs_root("mount(8)");
        let dir = tempfile::tempdir().expect("a directory");
        let (source, at) = (dir.path().join("source"), dir.path().join("mnt"));
        std::fs::create_dir(&source).expect("created");
        std::fs::create_dir(&at).expect("created");
        grow(&source);
        add_attributes(&source);
        run(
            "mknod",
            &[
                source.join("tty").as_os_str(),
                "c".as_ref(),
                "4".as_ref(),
                "64".as_ref(),
            ],
        );
        run(
            "chown",
            &["70000:80000".as_ref(), source.join("large").as_os_str()],
        );
        for options in KINDS {
            let image = dir.path().join("image");
            let bytes = make(&image, &source, options);
            let options = "loop,ro".as_ref();
            run(
                "mount",
                &["-o".as_ref(), options, image.as_os_str(), at.as_os_str()],
            );
            let wanted = of_directory(&at);
            run("umount", &[&at]);
            let files = Files::open(device_of(&bytes, 512), &cache()).expect("it opens");
            let found = of_files(&files).expect("all is read");
            same(&wanted, &found, |_, facts| facts);
        }
    }
}
