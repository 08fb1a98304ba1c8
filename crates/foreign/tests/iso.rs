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
const ROCK: &[&[&str]] = &[&["-R"], &["-R", "-J", "-joliet-long"], &["-R", "-iso-level", "3", "-V", "LABEL"]];

/// Options without it: names are changed.
const PLAIN: &[&[&str]] = &[&["-J", "-joliet-long"], &["-iso-level", "3"], &[]];

fn source_in(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("source");
    std::fs::create_dir(&source).expect("created");
    grow(&source);
    // The format of times ends in 2155, but the kernel's and xorriso's with the signed number.
    std::fs::remove_file(source.join("small")).expect("removed");
    // xorriso limits names to 255 bytes with its own continuation.
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
        std::os::unix::fs::symlink("a/target/../of some/length", source.join("link")).expect("linked");
        for options in [&["-R"][..], &["-J"], &[]] {
            let bytes = make(&dir.path().join("image"), &source, options);
            let structures = 32_768..bytes.len().min(80_000);
            damage(&bytes, &[32_768..38_000, structures.clone(), structures]);
        }
    }
}

mod needs_root {
    use super::*;

    #[test]
    fn everything_is_as_the_kernel_sees_it() {
        test_support::needs_root("mount(8)");
        let dir = tempfile::tempdir().expect("a directory");
        let source = source_in(dir.path());
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).expect("created");
        run("mknod", &[source.join("tty").as_os_str(), "c".as_ref(), "4".as_ref(), "64".as_ref()]);
        run("chown", &["70000:80000".as_ref(), source.join("large").as_os_str()]);
        for options in ROCK.iter().chain(PLAIN) {
            let image = dir.path().join("image");
            let bytes = make(&image, &source, options);
            let how = "loop,ro,iocharset=utf8".as_ref();
            run("mount", &["-o".as_ref(), how, image.as_os_str(), at.as_os_str()]);
            let wanted = of_directory(&at);
            run("umount", &[&at]);
            let files = Files::open(device_of(&bytes, 512), &cache()).expect("it opens");
            let found = of_files(&files).unwrap_or_else(|e| panic!("{options:?}: {e}"));
            // The kernel's inode numbers have another meaning.
            same(&wanted, &found, |_, mut facts| {
                facts.ino = 0;
                facts
            });
        }
    }
}
