//! Mounted file systems of other programs, as a user sees them.

mod common;

use block::{BlockDevice, Blocking, Stats};
use block_testing::Mem;
use cache::{Cache, Config};
use common::unmount;
use export_fuse::{Mount, MountConfig};
use foreign::Files;
use rustix::fs::XattrFlags;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use test_support::{installed, needs_root};

#[track_caller]
fn run(name: &str, args: &[OsString]) {
    let ran = Command::new(installed(name))
        .args(args)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{name}: {said}");
}

/// Mounts an image by the kernel, runs `work` on the directory, and unmounts.
fn by_the_kernel<T>(image: &Path, options: &str, work: impl FnOnce(&Path) -> T) -> T {
    needs_root("mount(8)");
    let dir = tempfile::tempdir().expect("a directory");
    let options = format!("loop,{options}");
    run(
        "mount",
        &["-o".into(), options.into(), image.into(), dir.path().into()],
    );
    let done = work(dir.path());
    run("umount", &[dir.path().into()]);
    done
}

/// Mounts an image by EVFS, runs `work` on the directory, and unmounts. Also passes a function that
/// returns the number of reads of the device.
fn by_evfs<T>(image: &Path, work: impl FnOnce(&Path, &dyn Fn() -> u64) -> T) -> T {
    let bytes = std::fs::read(image).expect("read");
    let device = Mem::new(bytes.len() as u64, 512);
    Blocking::open(&device)
        .expect("a queue")
        .write_at(0, &bytes)
        .expect("written");
    let (device, stats) = Stats::new(Arc::new(device));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let cache = Cache::new(Config::new(64 << 20)).expect("a cache");
    let files = Files::open(device, &cache).expect("it opens");
    let dir = tempfile::tempdir().expect("a directory");
    let config = MountConfig::new(dir.path().to_owned());
    let mount = Mount::start_foreign(config, Arc::clone(&files)).expect("it mounts");
    let done = work(dir.path(), &|| stats.snapshot().read.requests);
    unmount(mount);
    files.close().expect("it closes");
    assert_eq!(stats.snapshot().write.requests, 0);
    done
}

/// What stat(2), readlink(2), getxattr(2) and read(2) return for each file.
fn all_of(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let full = dir.join(&path);
        let m = std::fs::symlink_metadata(&full).expect("attributes");
        let mut text = format!(
            "{} {:o} {} {} {} {:x} {} {} {}.{} {}.{} {}.{}",
            m.ino(),
            m.mode(),
            m.nlink(),
            m.uid(),
            m.gid(),
            m.rdev(),
            m.size(),
            m.blocks(),
            m.atime(),
            m.atime_nsec(),
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec()
        );
        let mut names = vec![0; 65_536];
        let len = rustix::fs::llistxattr(&full, &mut names[..]).expect("names");
        let mut names: Vec<_> = names[..len]
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
            .collect();
        names.sort_unstable();
        for name in names {
            let mut value = vec![0; 65_536];
            let len = rustix::fs::lgetxattr(&full, name, &mut value[..]).expect("a value");
            text += &format!(" {}={:?}", String::from_utf8_lossy(name), &value[..len]);
        }
        if m.is_symlink() {
            text += &format!(" -> {:?}", std::fs::read_link(&full).expect("a target"));
        }
        if m.is_file() {
            let content = std::fs::read(&full).expect("content");
            let sum = content
                .iter()
                .fold(0u64, |sum, b| sum.wrapping_mul(31) + u64::from(*b));
            text += &format!(" {} bytes, {sum:x}", content.len());
        }
        if m.is_dir() {
            for entry in std::fs::read_dir(&full).expect("entries") {
                let entry = entry.expect("an entry");
                let at = path.join(entry.file_name());
                let kind = entry.file_type().expect("a type");
                let same = std::fs::symlink_metadata(dir.join(&at))
                    .expect("attributes")
                    .file_type();
                assert_eq!(kind, same);
                todo.push(at);
            }
        }
        all.insert(path, text);
    }
    all
}

fn fill(dir: &Path) {
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).expect("written");
    write("empty", b"");
    write("small", b"small");
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n ^ n >> 9) as u8).collect();
    write("large", &large);
    write("unreadable", b"secret");
    let private = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(dir.join("unreadable"), private).expect("changed");
    let sparse = std::fs::File::create(dir.join("sparse")).expect("created");
    sparse.write_all_at(b"the end", 3 << 20).expect("written");
    std::fs::create_dir_all(dir.join("a/b")).expect("created");
    for n in 0..500 {
        write(&format!("a/b/file {n}"), format!("{n}").as_bytes());
    }
    symlink("../small", dir.join("a/link")).expect("linked");
    symlink("x".repeat(300), dir.join("long")).expect("linked");
    std::fs::hard_link(dir.join("large"), dir.join("a/large")).expect("linked");
    run("mkfifo", &[dir.join("fifo").into()]);
    let set = |name: &str, attribute: &str| {
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(dir.join(name), attribute, b"value", flags).expect("an attribute");
    };
    set("small", "user.a");
    set("small", "trusted.b");
    set("a", "user.c");
    run(
        "setfacl",
        &["-m".into(), "u:12:rw".into(), dir.join("small").into()],
    );
}

#[test]
fn a_mount_is_as_that_of_the_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    std::fs::File::create(&image)
        .expect("created")
        .set_len(32 << 20)
        .expect("longer");
    run(
        "mkfs.ext4",
        &["-q".into(), "-F".into(), image.clone().into()],
    );
    by_the_kernel(&image, "rw", fill);
    let wanted = by_the_kernel(&image, "ro", all_of);
    by_evfs(&image, |dir, reads| {
        assert_eq!(all_of(dir), wanted);
        // The kernel drops its own pages, so that the second read arrives here.
        let file = std::fs::File::open(dir.join("large")).expect("it opens");
        let before = reads();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
        let mut bytes = vec![0; 3_000_000];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(reads(), before);
        assert!(before > 0);
    });
}

#[test]
fn nothing_can_be_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    std::fs::File::create(&image)
        .expect("created")
        .set_len(8 << 20)
        .expect("longer");
    run(
        "mkfs.ext4",
        &["-q".into(), "-F".into(), image.clone().into()],
    );
    let refused = |done: std::io::Result<()>| {
        let error = done.expect_err("it is read-only");
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    };
    by_evfs(&image, |dir, _| {
        refused(std::fs::write(dir.join("new"), "x"));
        refused(std::fs::create_dir(dir.join("new")));
        refused(std::fs::remove_dir(dir.join("lost+found")));
        refused(std::fs::rename(dir.join("lost+found"), dir.join("new")));
        refused(symlink("x", dir.join("new")));
        let open = std::fs::Permissions::from_mode(0o777);
        refused(std::fs::set_permissions(dir.join("lost+found"), open));
    });
}
