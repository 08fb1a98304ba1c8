//! Names and directories through a mount: the three kinds of renaming, listing while entries
//! change, files and directories without a name, and locks.

mod common;

use common::{c, check, device, in_another_process, mounted};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{self as sys, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

fn rename(from: &Path, to: &Path, flags: u32) -> Result<(), i32> {
    let (from, to, here) = (c(from), c(to), libc::AT_FDCWD);
    // SAFETY: both strings end with a zero.
    check(unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) }).map(drop)
}

#[test]
fn renaming_replaces_refuses_or_exchanges() {
    mounted(&device(), |dir| {
        let (a, b, sub) = (dir.join("a"), dir.join("b"), dir.join("sub"));
        sys::write(&a, "a").expect("written");
        sys::write(&b, "b").expect("written");
        sys::create_dir(&sub).expect("made");
        sys::write(sub.join("inside"), "i").expect("written");
        let noreplace = libc::RENAME_NOREPLACE;
        assert_eq!(rename(&a, &b, noreplace), Err(libc::EEXIST));
        rename(&a, &dir.join("new"), noreplace).expect("renamed");
        rename(&dir.join("new"), &a, 0).expect("renamed");
        let exchange = libc::RENAME_EXCHANGE;
        rename(&a, &b, exchange).expect("exchanged");
        assert_eq!(sys::read(&a).expect("readable"), b"b");
        assert_eq!(sys::read(&b).expect("readable"), b"a");
        rename(&a, &sub, exchange).expect("a file and a directory");
        assert_eq!(sys::read(a.join("inside")).expect("readable"), b"i");
        assert_eq!(sys::read(&sub).expect("readable"), b"b");
        assert_eq!(rename(&a, &dir.join("no"), exchange), Err(libc::ENOENT));
        rename(&sub, &b, 0).expect("replaced");
        assert_eq!(sys::read(&b).expect("readable"), b"b");
    });
}

#[test]
fn names_have_up_to_255_bytes_of_any_kind() {
    mounted(&device(), |dir| {
        let long = "ü".repeat(127) + "x";
        assert_eq!(long.len(), 255);
        sys::write(dir.join(&long), "1").expect("written");
        assert_eq!(sys::read(dir.join(&long)).expect("readable"), b"1");
        let error = sys::write(dir.join(long.clone() + "y"), "2").expect_err("too long");
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        let listed = sys::read_dir(dir).expect("listed").next();
        let listed = listed.expect("an entry").expect("an entry").file_name();
        assert_eq!(listed.to_str(), Some(&long[..]));
        let target = "t".repeat(4095);
        std::os::unix::fs::symlink(&target, dir.join("link")).expect("linked");
        let read = sys::read_link(dir.join("link")).expect("readable");
        assert_eq!(read.to_str(), Some(&target[..]));
    });
}

/// An open directory stream.
struct Listing(*mut libc::DIR);

impl Listing {
    fn new(dir: &Path) -> Listing {
        // SAFETY: the string ends with a zero.
        let stream = unsafe { libc::opendir(c(dir).as_ptr()) };
        assert!(!stream.is_null());
        Listing(stream)
    }

    fn next(&mut self) -> Option<String> {
        // SAFETY: the stream is open, and the entry is used only before the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            if entry.is_null() {
                return None;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            Some(name.to_str().expect("text").to_owned())
        }
    }

    fn tell(&mut self) -> libc::c_long {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&mut self, to: libc::c_long) {
        // SAFETY: the stream is open.
        unsafe { libc::seekdir(self.0, to) }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and is not used again.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_listing_gives_every_entry_that_stays_once_while_others_come_and_go() {
    mounted(&device(), |dir| {
        for i in 0..2000 {
            File::create(dir.join(format!("stays {i}"))).expect("made");
            File::create(dir.join(format!("goes {i}"))).expect("made");
        }
        let mut listing = Listing::new(dir);
        let (mut seen, mut step) = (Vec::new(), 0);
        while let Some(name) = listing.next() {
            seen.push(name);
            if step < 2000 && seen.len() % 2 == 0 {
                sys::remove_file(dir.join(format!("goes {step}"))).expect("removed");
                File::create(dir.join(format!("comes {step}"))).expect("made");
                step += 1;
            }
        }
        let stays = seen.iter().filter(|name| name.starts_with("stays"));
        let (count, stays) = (stays.clone().count(), stays.collect::<BTreeSet<_>>());
        assert_eq!((count, stays.len()), (2000, 2000));
        let all: BTreeSet<_> = seen.iter().collect();
        assert_eq!(all.len(), seen.len(), "nothing comes twice");
    });
}

#[test]
fn a_place_in_a_listing_is_found_again() {
    mounted(&device(), |dir| {
        for i in 0..3000 {
            File::create(dir.join(format!("entry {i}"))).expect("made");
        }
        let mut listing = Listing::new(dir);
        let mut places = Vec::new();
        loop {
            let place = listing.tell();
            match listing.next() {
                Some(name) => places.push((place, name)),
                None => break,
            }
        }
        assert_eq!(places.len(), 3002);
        for (place, name) in places.iter().step_by(97).rev() {
            listing.seek(*place);
            assert_eq!(listing.next().as_ref(), Some(name));
        }
    });
}

#[test]
fn what_has_no_name_any_more_can_be_used_until_it_is_closed() {
    mounted(&device(), |dir| {
        let path = dir.join("file");
        sys::write(&path, vec![1; 10_000]).expect("written");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&path).expect("open");
        let replacing = dir.join("other");
        sys::write(&replacing, "other").expect("written");
        sys::rename(&replacing, &path).expect("renamed");
        assert_eq!(file.metadata().expect("there").nlink(), 0);
        file.write_all_at(&[2; 100], 9_950).expect("written");
        file.sync_all().expect("synced");
        let mut end = [0; 100];
        file.read_exact_at(&mut end, 9_950).expect("readable");
        assert_eq!(end, [2; 100]);
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(sys::read(again).expect("readable").len(), 10_050);

        let sub = dir.join("a/b");
        sys::create_dir_all(&sub).expect("made");
        let script = "cd \"$1\" && rmdir ../b && rmdir ../../a && ls -a && ! mkdir c 2>&1 \
                      && ! touch c 2>&1 && readlink /proc/self/cwd";
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&sub)
            .output();
        let shell = shell.expect("a shell");
        let said = String::from_utf8_lossy(&shell.stdout);
        assert!(shell.status.success(), "{said} {shell:?}");
        assert!(said.ends_with("(deleted)\n"), "{said}");
    });
}

#[test]
fn a_file_that_never_had_a_name_can_be_used_and_gets_one() {
    mounted(&device(), |dir| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o640);
        options.custom_flags(libc::O_TMPFILE);
        if let Err(error) = options.open(dir) {
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
            assert!(common::kernel_before(6, 2), "{error}");
            return;
        }
        let open = || options.open(dir).expect("made");
        let (kept, dropped) = (open(), open());
        for file in [&kept, &dropped] {
            file.write_all_at(&[7; 10_000], 0).expect("written");
            file.sync_all().expect("synced");
            assert_eq!(file.metadata().expect("there").nlink(), 0);
        }
        assert_eq!(sys::read_dir(dir).expect("listed").count(), 0);
        let (from, to) = (
            format!("/proc/self/fd/{}", kept.as_raw_fd()),
            dir.join("named"),
        );
        let (from, to) = (c(Path::new(&from)), c(&to));
        let cwd = libc::AT_FDCWD;
        // SAFETY: both paths end with zero.
        let linked = unsafe {
            libc::linkat(
                cwd,
                from.as_ptr(),
                cwd,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        check(linked).expect("linked");
        drop((kept, dropped));
        let meta = dir.join("named").metadata().expect("there");
        assert_eq!((meta.nlink(), meta.mode() & 0o777), (1, 0o640));
        assert_eq!(sys::read(dir.join("named")).expect("readable"), [7; 10_000]);
        assert_eq!(sys::read_dir(dir).expect("listed").count(), 1);
        tempfile::tempfile_in(dir).expect("a file without a name");
    });
}

#[test]
fn processes_append_whole_records() {
    mounted(&device(), |dir| {
        let script = "i=0; while [ $i -lt 200 ]; do echo \"record of $1\" >> log; i=$((i+1)); done";
        let shells: Vec<_> = (0..5)
            .map(|i| {
                let mut shell = Command::new("sh");
                shell.args(["-c", script, "sh", &i.to_string()]);
                shell.current_dir(dir).spawn().expect("a shell")
            })
            .collect();
        for mut shell in shells {
            assert!(shell.wait().expect("it ends").success());
        }
        let log = sys::read_to_string(dir.join("log")).expect("readable");
        for i in 0..5 {
            let record = format!("record of {i}");
            assert_eq!(log.lines().filter(|line| *line == record).count(), 200);
        }
        assert_eq!(log.lines().count(), 1000);
    });
}

#[test]
fn locks_hold_between_processes() {
    mounted(&device(), |dir| {
        let path = dir.join("file");
        sys::write(&path, [0; 100]).expect("written");
        let (file, text) = (OpenOptions::new().write(true).open(&path), c(&path));
        let fd = file.as_ref().expect("open").as_raw_fd();
        // SAFETY: a call on an open descriptor.
        check(unsafe { libc::flock(fd, libc::LOCK_EX) }).expect("locked");
        let range = |kind: i32, start: i64| libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: 10,
            l_pid: 0,
        };
        let (mine, theirs) = (range(libc::F_WRLCK, 10), range(libc::F_WRLCK, 20));
        // SAFETY: an open descriptor, and a lock that lives through the call.
        check(unsafe { libc::fcntl(fd, libc::F_SETLK, &mine) }).expect("locked");
        in_another_process(|| {
            // SAFETY: descriptors of this process, a zero-terminated string, and live locks.
            unsafe {
                let fd = libc::open(text.as_ptr(), libc::O_RDWR);
                libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == -1
                    && libc::fcntl(fd, libc::F_SETLK, &mine) == -1
                    && libc::fcntl(fd, libc::F_SETLK, &theirs) == 0
            }
        });
        drop(file);
        in_another_process(|| {
            // SAFETY: as above.
            unsafe {
                let fd = libc::open(text.as_ptr(), libc::O_RDWR);
                libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) == 0
                    && libc::fcntl(fd, libc::F_SETLK, &mine) == 0
            }
        });
    });
}
