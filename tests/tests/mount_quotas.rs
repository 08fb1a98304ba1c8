//! Limits of users and groups in a mount, set and reported while it is mounted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use tests::mounts::{Disk, On};
use tests::{Sandbox, as_user, needs_root};

const ALICE: u32 = 4_100_001;
const BOB: u32 = 4_100_002;
const LIMIT: u64 = 1 << 20;

/// A shared mapping of a file.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn of(file: &File, len: usize) -> Mapped {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap(none, len, access, MapFlags::SHARED, file, 0) };
        Mapped(at.expect("a mapping").cast(), len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and is accessed only through this value.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is that of the mapping.
        let done =
            unsafe { rustix::mm::msync(self.0.cast(), self.1, rustix::mm::MsyncFlags::SYNC) };
        Ok(done?)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        unsafe { rustix::mm::munmap(self.0.cast(), self.1) }.expect("it was mapped");
    }
}

#[track_caller]
fn refused<T>(result: io::Result<T>) {
    let error = result.err().expect("there is no room");
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT), "{error}");
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::setxattr(path, name, value, flags)?)
}

/// Writes blocks until there is no room. Returns the bytes that were accepted, and the error.
fn fill(path: &Path) -> (u64, io::Error) {
    let mut file = File::create(path).expect("there is room for a file");
    let mut len = 0;
    loop {
        match file.write(&[7; 4096]) {
            Ok(written) => len += written as u64,
            Err(error) => return (len, error),
        }
    }
}

/// Prepares a directory for each user.
fn homes(dir: &Path) -> [PathBuf; 2] {
    [("alice", ALICE), ("bob", BOB)].map(|(name, id)| {
        let home = dir.join(name);
        fs::DirBuilder::new().mode(0o755).create(&home).unwrap();
        chown(&home, Some(id), Some(id)).unwrap();
        home
    })
}

#[test]
fn two_users_have_limits_of_their_own() {
    needs_root("becoming other users");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "128M");
    let mounted = disk.mount(&["--allow-other"]);
    let [alice, bob] = homes(mounted.dir());
    let device = disk.device();
    let (a, b) = (ALICE.to_string(), BOB.to_string());
    let limit = |options: &[&str]| {
        let command = ["fileset", "quota", device, "main"];
        s.json(&[&command[..], options].concat())
    };
    let set = limit(&["--user", &a, "1M", "--files", "20"]);
    assert_eq!(set["users"][0]["quota_bytes"], LIMIT);
    assert_eq!(set["users"][0]["quota_files"], 20);
    let used = |user: &str| {
        let shown = limit(&["--user", user]);
        let number = |key: &str| shown["users"][0][key].as_u64().expect("a number");
        (number("used_bytes"), number("used_files"))
    };
    let start = used(&a);

    // Write, and nothing that was accepted is lost.
    let big = alice.join("big");
    let (len, error) = as_user(ALICE, {
        let big = big.clone();
        move || fill(&big)
    });
    refused(Err::<(), _>(error));
    assert!(len < LIMIT && len > LIMIT - (64 << 10), "{len}");
    File::open(&big).unwrap().sync_all().unwrap();
    assert!(used(&a).0 <= LIMIT);
    // The other user does not notice.
    as_user(BOB, {
        let file = bob.join("file");
        move || fs::write(file, vec![1; 4 << 20]).unwrap()
    });

    // A store to a mapping that has no room fails when it is synced.
    as_user(ALICE, {
        let path = alice.join("mapped");
        move || {
            let file = File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            file.set_len(256 << 10).unwrap();
            let mut mapped = Mapped::of(&file, 256 << 10);
            mapped.bytes().fill(5);
            refused(mapped.sync());
            drop(mapped);
            drop(file);
            fs::remove_file(path).unwrap();
        }
    });
    assert!(used(&a).0 <= LIMIT);

    // Names and attributes, down to the last byte.
    as_user(ALICE, {
        let (big, alice) = (big.clone(), alice.clone());
        move || {
            refused(set_xattr(&big, "user.more", &[1; 4000]));
            let name = |n: usize| alice.join(format!("{n}{}", "n".repeat(200)));
            let mut made = 0;
            let error = loop {
                match File::create(name(made)) {
                    Ok(_) => made += 1,
                    Err(error) => break error,
                }
            };
            refused(Err::<(), _>(error));
            // The rest of the room, in small attributes.
            let attribute = |n: &u32| set_xattr(&alice, &format!("user.{n}"), b"").is_ok();
            assert!((0..100).take_while(attribute).count() < 100);
            refused(fs::create_dir(name(made)));
            refused(fs::hard_link(&big, name(made)));
            refused(fs::rename(&big, name(made)));
            refused(std::os::unix::fs::symlink("to", name(made)));
        }
    });
    // Who is at the limit gets no file of another.
    refused(chown(bob.join("file"), Some(ALICE), None));
    as_user(ALICE, {
        let alice = alice.clone();
        move || {
            for entry in fs::read_dir(&alice).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
    });
    let within = used(&a);
    assert!(
        within.1 == start.1 && within.0 < start.0 + 16_384,
        "{within:?}"
    );

    // The number of files.
    as_user(ALICE, {
        let alice = alice.clone();
        move || {
            let mut made = 0;
            let error = loop {
                match File::create(alice.join(format!("f{made}"))) {
                    Ok(_) => made += 1,
                    Err(error) => break error,
                }
            };
            refused(Err::<(), _>(error));
            assert_eq!(made, 19, "one is the directory");
            refused(fs::hard_link(alice.join("f0"), alice.join("link")));
            fs::remove_file(alice.join("f1")).unwrap();
            fs::hard_link(alice.join("f0"), alice.join("link")).unwrap();
        }
    });

    // Groups, and the report.
    let bobs = used(&b);
    limit(&["--group", &b, "5M"]);
    chown(bob.join("file"), None, Some(BOB)).unwrap();
    let error = as_user(BOB, {
        let bob = bob.clone();
        move || fs::write(bob.join("file"), vec![1; 6 << 20]).unwrap_err()
    });
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT), "{error}");
    let report = limit(&["--report"]);
    let users = report["users"].as_array().unwrap();
    let of = |id: u32| users.iter().find(|user| user["id"] == id).expect("listed");
    assert_eq!(of(ALICE)["quota_bytes"], LIMIT);
    assert_eq!(of(ALICE)["used_files"], 20);
    assert_eq!(of(0)["name"], "root");
    assert!(of(BOB)["used_bytes"].as_u64().unwrap() >= bobs.0);
    let text = s
        .run(&["fileset", "quota", device, "main", "--report"])
        .ok()
        .stdout;
    assert!(
        text.contains("of 1 MiB") && text.contains("20 of 20 files"),
        "{text}"
    );

    // The numbers are the same after a kill, and fsck counts the same.
    mounted.kill();
    disk.check();
    let mounted = disk.mount(&["--allow-other"]);
    assert!(used(&a).1 <= 20);
    limit(&["--user", &a, "0", "--files", "0"]);
    as_user(ALICE, {
        let alice = alice.clone();
        move || fs::write(alice.join("f0"), vec![1; 2 << 20]).unwrap()
    });
    mounted.unmount(&s);
    disk.check();
}
