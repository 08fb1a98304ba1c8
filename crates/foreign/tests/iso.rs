//! ISO 9660, made by the real xorriso.

mod common;

use common::{cache, counted, damage, device_of, grow, of_directory, of_files, run, same};
use foreign::Files;
use std::ffi::OsString;
use std::path::Path;

fn make(image: &Path, source: &Path, options: &[&str]) -> Vec<u8> {
    let mut args: Vec<OsString> = ["-as", "mkisofs", "-quiet", "-o"].map(Into::into).into();
    args.push(image.into());
    args.extend(options.iter().map(Into::into));
    args.push(source.into());
    run("xorriso", &args);
    std::fs::read(image).expect("read")
}

/// Options of mkisofs with Rock Ridge.
const ROCK: &[&[&str]] = &[
    &["-R"],
    &["-R", "-J", "-joliet-long"],
    &["-R", "-iso-level", "3", "-V", "LABEL"],
];

fn source_in(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("source");
    std::fs::create_dir(&source).expect("created");
    grow(&source);
    // xorriso 1.5.4 fails for a component of a link that is longer than a name.
    std::fs::remove_file(source.join("link900")).expect("removed");
    let target = format!("/{}end", "a/./../some name/".repeat(50));
    std::os::unix::fs::symlink(target, source.join("link900")).expect("linked");
    source
}

mod needs_peer {
    use super::*;

    #[test]
    fn files_made_by_xorriso_are_those_of_its_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let wanted = of_directory(&source);
        for options in ROCK {
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
                    // Each name of a file is a file of its own.
                    facts.links = 0;
                    facts
                });
                if options.contains(&"LABEL") {
                    assert_eq!(files.tree().label(), "LABEL");
                }
            }
        }
    }

    #[test]
    fn without_rock_ridge_names_and_content_are_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir_all(source.join("dir")).expect("created");
        std::fs::write(source.join("README.TXT"), "short").expect("written");
        std::fs::write(source.join("dir/A long name äöü 字.text"), "long").expect("written");
        let names = |options: &[&str]| {
            let bytes = make(&dir.path().join("image"), &source, options);
            let files = Files::open(device_of(&bytes, 512), &cache()).expect("it opens");
            let tree = of_files(&files).expect("all is read");
            let of = |(path, facts): (std::path::PathBuf, common::Facts)| {
                (
                    path.to_str().expect("text").to_owned(),
                    facts.mode,
                    facts.size,
                )
            };
            tree.into_iter().map(of).collect::<Vec<_>>()
        };
        let joliet = names(&["--norock", "-J", "-joliet-long"]);
        let found: Vec<&str> = joliet.iter().map(|(name, ..)| &**name).collect();
        assert_eq!(
            found,
            ["", "README.TXT", "dir", "dir/A long name äöü 字.text"]
        );
        let (dir_mode, text_mode) = (libc::S_IFDIR | 0o555, libc::S_IFREG | 0o444);
        let plain = names(&["--norock", "-iso-level", "1"]);
        assert_eq!(plain[1], ("dir".to_owned(), dir_mode, 2048));
        assert_eq!(plain[3], ("readme.txt".to_owned(), text_mode, 5));
        assert_eq!(plain.len(), 4);
    }

    #[test]
    fn a_second_read_touches_no_device() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let bytes = make(&dir.path().join("image"), &source, &["-R"]);
        let (device, stats) = counted(device_of(&bytes, 512));
        let files = Files::open(device, &cache()).expect("it opens");
        let first = of_files(&files).expect("all is read");
        let reads = stats.snapshot().read.requests;
        assert!(reads > 0);
        assert_eq!(of_files(&files).expect("all is read"), first);
        assert_eq!(stats.snapshot().read.requests, reads);
    }

    #[test]
    fn damaged_images_cause_errors_but_neither_panics_nor_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = dir.path().join("source");
        std::fs::create_dir_all(source.join("dir")).expect("created");
        for n in 0..60 {
            let name = format!("dir/file with a name of some length {n}");
            std::fs::write(source.join(name), [n; 300]).expect("written");
        }
        std::os::unix::fs::symlink("a/target/../of some/length", source.join("link"))
            .expect("linked");
        for options in [&["-R"][..], &["--norock", "-J"], &["--norock"]] {
            let bytes = make(&dir.path().join("image"), &source, options);
            let structures = 32_768..bytes.len().min(80_000);
            damage(&bytes, &[32_768..38_000, structures.clone(), structures]);
        }
    }
}
