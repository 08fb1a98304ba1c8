//! Compressed files in a mount: what programs see of them, with every way to read and write.

mod common;

use common::{device, mounted};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self as sys, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use test_support::installed;

const LEN: usize = 1 << 20;

fn chattr(change: &str, path: &Path) {
    let mut chattr = Command::new(installed("chattr"));
    let done = chattr.arg(change).arg(path).output().expect("it starts");
    assert!(done.status.success(), "{change}: {done:?}");
}

/// Returns the space of a file or a tree as du(1) counts it, in bytes.
fn du(path: &Path) -> u64 {
    let mut du = Command::new(installed("du"));
    let done = du
        .args(["-s", "-B1"])
        .arg(path)
        .output()
        .expect("it starts");
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).expect("text");
    let number = text.split_whitespace().next().expect("a column");
    number.parse().expect("a number")
}

fn text() -> Vec<u8> {
    let lines = (0..).flat_map(|n: u32| format!("{n}: a line that compresses\n").into_bytes());
    lines.take(LEN).collect()
}

fn open(path: &Path, flags: i32) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.custom_flags(flags).open(path).expect("opened")
}

/// Memory with the alignment that O_DIRECT asks for.
fn aligned(work: impl FnOnce(&mut [u8])) {
    let layout = Layout::from_size_align(LEN, 4096).expect("a layout");
    // SAFETY: the layout has a size, and the memory is used by nothing else until it is freed.
    unsafe {
        let at = alloc_zeroed(layout);
        assert!(!at.is_null());
        work(std::slice::from_raw_parts_mut(at, LEN));
        dealloc(at, layout);
    }
}

/// Copies a file through a mapping of the source into one of the target.
fn copy_mapped(from: &Path, to: &Path) {
    let mut copy = Command::new(installed("python3"));
    let script = "import mmap, sys\n\
                  a = open(sys.argv[1], 'rb'); b = open(sys.argv[2], 'w+b')\n\
                  s = mmap.mmap(a.fileno(), 0, prot=mmap.PROT_READ); b.truncate(len(s))\n\
                  t = mmap.mmap(b.fileno(), 0); t[:] = s[:]; t.flush()\n";
    let done = copy.arg("-c").arg(script).arg(from).arg(to).output();
    let done = done.expect("it starts");
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_flagged_tree_takes_less_space_and_reads_the_same_in_every_way() {
    let (device, text) = (device(), text());
    mounted(&device, |dir| {
        let tree = dir.join("tree");
        sys::create_dir(&tree).expect("made");
        chattr("+c", &tree);
        let cached = open(&tree.join("cached"), 0);
        cached.write_all_at(&text, 0).expect("written");
        let direct = open(&tree.join("direct"), libc::O_DIRECT);
        aligned(|memory| {
            memory.copy_from_slice(&text);
            direct.write_all_at(memory, 0).expect("written");
        });
        copy_mapped(&tree.join("cached"), &tree.join("mapped"));
        for name in ["cached", "direct", "mapped"] {
            let file = File::open(tree.join(name)).expect("opened");
            file.sync_all().expect("synced");
            assert_eq!(file.metadata().expect("its size").size(), LEN as u64);
            let space = du(&tree.join(name));
            assert!(space < LEN as u64 / 2, "{name}: {space}");
        }
        let plain = dir.join("plain");
        sys::write(&plain, &text).expect("written");
        File::open(&plain)
            .expect("opened")
            .sync_all()
            .expect("synced");
        assert_eq!(du(&plain), LEN as u64);
        assert!(du(&tree) < 3 * LEN as u64 / 2);
        // A part of a chunk, next to parts that are read directly.
        cached.write_all_at(b"changed", 100_000).expect("written");
        cached.sync_all().expect("synced");
    });
    mounted(&device, |dir| {
        let tree = dir.join("tree");
        let mut changed = text.clone();
        changed[100_000..100_007].copy_from_slice(b"changed");
        assert!(sys::read(tree.join("cached")).expect("read") == changed);
        assert!(sys::read(tree.join("mapped")).expect("read") == text);
        let direct = open(&tree.join("direct"), libc::O_DIRECT);
        aligned(|memory| {
            direct.read_exact_at(memory, 0).expect("read");
            assert!(memory == text);
        });
        copy_mapped(&tree.join("cached"), &dir.join("copy"));
        assert!(sys::read(dir.join("copy")).expect("read") == changed);
        // Removing the flag leaves content that exists as it is.
        let before = du(&tree.join("cached"));
        chattr("-c", &tree.join("cached"));
        assert_eq!(du(&tree.join("cached")), before);
        // lseek(2) finds data in all of it.
        // SAFETY: a call on an open descriptor.
        let hole = unsafe { libc::lseek(direct.as_raw_fd(), 0, libc::SEEK_HOLE) };
        assert_eq!(hole, LEN as i64);
        sys::remove_dir_all(&tree).expect("removed");
    });
}
