//! Options of a mount, and ending a mount that is in use.

mod common;

use block::BlockDevice;
use cache::{Cache, Config};
use common::{check, configured, device, device_of, mounted, wait_until};
use export_fuse::{Mount, MountConfig, WhenBusy};
use fs::{FIRST_FILESET, Files, Fs, Options};
use std::fs::{self as sys, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use test_support::needs_root;

/// Type of a mount as statfs(2) reports it, from <linux/magic.h>.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// Values to keep alive while a file system is mounted by hand.
struct Served {
    fs: Fs,
    _cache: Arc<Cache>,
    files: Arc<Files>,
}

fn serve(device: &Arc<dyn BlockDevice>) -> Served {
    let fs = Fs::open(Arc::clone(device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    Served {
        fs,
        _cache: cache,
        files,
    }
}

#[test]
fn a_mount_in_use_says_by_whom_and_goes_on_for_them_when_it_is_taken_away() {
    let device = device();
    let served = serve(&device);
    let folder = tempfile::tempdir().expect("a folder");
    let config = MountConfig::new(folder.path().to_owned());
    let mount = Mount::start(config, Arc::clone(&served.files)).expect("it mounts");
    let path = folder.path().join("file");
    sys::write(&path, "before").expect("written");
    let mut cat = Command::new("cat");
    let mut cat = cat
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .current_dir(folder.path())
        .spawn()
        .expect("cat");
    let failed = mount.unmount(WhenBusy::Refuse).expect_err("it is in use");
    let (mount, error) = *failed;
    let said = error.to_string();
    assert!(error.is_busy(), "{said}");
    assert!(said.contains(&format!("cat ({})", cat.id())), "{said}");
    assert_eq!(sys::read(&path).expect("readable"), b"before");

    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(&path).expect("open");
    let ended = mount.ended().try_clone_to_owned().expect("a copy");
    let over = mount.unmount(WhenBusy::Detach).map_err(|failed| failed.1);
    assert!(!over.expect("it is taken away"), "somebody still uses it");
    assert!(!path.exists());
    file.write_all_at(b"after!", 0).expect("written");
    file.sync_all().expect("synced");
    let mut read = [0; 6];
    file.read_exact_at(&mut read, 0).expect("readable");
    assert_eq!(&read, b"after!");
    drop((file, cat.stdin.take()));
    cat.wait().expect("it ends");
    // The kernel releases the last of the mount asynchronously.
    has_ended(ended.as_raw_fd());
    served.files.close().expect("everything is written");
    drop(served.files);
    let report = served.fs.check().expect("it can be checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn a_copy_of_a_mount_in_another_namespace_does_not_hold_up_who_unmounts() {
    needs_root("a mount namespace");
    let device = device();
    let served = serve(&device);
    let folder = tempfile::tempdir().expect("a folder");
    let config = MountConfig::new(folder.path().to_owned());
    let mount = Mount::start(config, Arc::clone(&served.files)).expect("it mounts");
    let mut other = Command::new("unshare");
    other.args(["--mount", "--propagation", "private"]);
    let mut other = other
        .args(["sh", "-c", "echo ready; cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another namespace");
    let said = other.stdout.as_mut().expect("piped");
    said.read_exact(&mut [0; 6]).expect("it is ready");
    let ended = mount.ended().try_clone_to_owned().expect("a copy");
    let over = mount.unmount(WhenBusy::Refuse).map_err(|failed| failed.1);
    assert!(!over.expect("it is unmounted here"), "it is not there");
    drop(other.stdin.take());
    other.wait().expect("it ends");
    has_ended(ended.as_raw_fd());
    served.files.close().expect("everything is written");
}

/// A mount of root begins with a syncfs(2) of its own, which shows whether the kernel forwards it.
/// An administrator may unmount at that moment.
#[test]
fn a_mount_that_is_unmounted_while_the_server_tests_it_is_not_mounted_again() {
    const ROUNDS: usize = 30;
    needs_root("mounts from a block device");
    let device = device();
    let served = serve(&device);
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let answers = || rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == FUSE_SUPER_MAGIC);
    let unmount = || rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty()).is_ok();
    let mut during = 0;
    for _ in 0..ROUNDS {
        let started = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let unmounts = scope.spawn(|| {
                let end = Instant::now() + Duration::from_secs(30);
                while !(answers() && unmount()) {
                    assert!(Instant::now() < end, "it could not be unmounted");
                    std::hint::spin_loop();
                }
                !started.load(Ordering::SeqCst)
            });
            let config = MountConfig::new(dir.to_owned());
            let mount = Mount::start(config, Arc::clone(&served.files)).expect("it was mounted");
            started.store(true, Ordering::SeqCst);
            during += usize::from(unmounts.join().expect("it is unmounted"));
            mount.wait();
        });
        assert!(!answers(), "it is mounted again");
    }
    println!("{during} of {ROUNDS} were unmounted before the server was ready");
    served.files.close().expect("everything is written");
}

/// Waits until the last request is done.
fn has_ended(fd: i32) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, which lives through the call.
    wait_until(
        "the last request is done",
        || unsafe { libc::poll(&mut poll, 1, 0) } == 1,
    );
}

#[test]
fn a_mount_under_load_is_busy_and_loses_nothing() {
    let device = device();
    let served = serve(&device);
    let folder = tempfile::tempdir().expect("a folder");
    let config = MountConfig::new(folder.path().to_owned());
    let mount = Mount::start(config, Arc::clone(&served.files)).expect("it mounts");
    let (dir, mut mount) = (folder.path(), Some(mount));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|i| {
                scope.spawn(move || {
                    let mut file = File::create(dir.join(format!("{i}"))).expect("made");
                    for _ in 0..500 {
                        file.write_all(&[i; 10_000]).expect("written");
                    }
                })
            })
            .collect();
        wait_until("all write", || {
            (0..3).all(|i| {
                dir.join(format!("{i}"))
                    .metadata()
                    .is_ok_and(|m| m.len() > 0)
            })
        });
        while !writers.iter().all(|writer| writer.is_finished()) {
            if let Ok(file) = File::open(dir.join("0")) {
                let unmounted = mount.take().map(|mount| mount.unmount(WhenBusy::Refuse));
                let failed = unmounted.map(|result| result.expect_err("it is in use"));
                let (back, error) = *failed.expect("a mount");
                assert!(error.is_busy(), "{error}");
                mount = Some(back);
                drop(file);
            }
        }
    });
    for i in 0..3u8 {
        let all = sys::read(dir.join(format!("{i}"))).expect("readable");
        assert!(all == vec![i; 5_000_000]);
    }
    common::unmount(mount.expect("a mount"));
    served.files.close().expect("everything is written");
}

#[test]
fn a_read_only_mount_refuses_changes_and_one_thread_is_enough() {
    let device = device();
    configured(
        &device,
        |config| config.threads = 1,
        |dir, files| {
            sys::create_dir(dir.join("sub")).expect("made");
            for i in 0..100 {
                sys::write(dir.join(format!("sub/{i}")), vec![i; 10_000]).expect("written");
            }
            assert_eq!(sys::read_dir(dir.join("sub")).expect("listed").count(), 100);
            // The kernel is notified of changes by other clients even with a single thread.
            let attr = files.lookup(fs::ROOT, b"sub").expect("there");
            files.unlink(attr.ino, b"7").expect("removed");
            wait_until("the name has gone", || !dir.join("sub/7").exists());
        },
    );
    configured(
        &device,
        |config| config.read_only = true,
        |dir, _| {
            assert_eq!(sys::read(dir.join("sub/9")).expect("readable"), [9; 10_000]);
            let refused = [
                sys::write(dir.join("sub/9"), "x"),
                sys::write(dir.join("new"), "x"),
                sys::remove_file(dir.join("sub/9")),
                sys::rename(dir.join("sub"), dir.join("bus")),
                sys::create_dir(dir.join("new")),
            ];
            for refused in refused {
                let error = refused.expect_err("it is read-only");
                assert_eq!(error.raw_os_error(), Some(libc::EROFS));
            }
        },
    );
}

#[test]
fn an_exclusive_mount_writes_behind_and_keeps_times_sizes_and_errors() {
    let device = device_of(32);
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123);
    let exclusive = |config: &mut MountConfig| config.exclusive = true;
    configured(&device, exclusive, |dir, files| {
        let path = dir.join("file");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let below = || files.lookup(fs::ROOT, b"file").expect("there").inode.size;
        wait_until("the kernel keeps what is written", || {
            let mut file = options.clone().truncate(true).open(&path).expect("open");
            for i in 0..1000u32 {
                file.write_all(&i.to_le_bytes()).expect("written");
            }
            file.metadata().expect("there").len() == 4000 && below() == 0
        });
        assert_eq!(below(), 4000, "it gives it to us when the file is closed");
        let file = options.open(&path).expect("open");
        file.write_all_at(&0u32.to_le_bytes(), 0).expect("written");
        file.sync_all().expect("synced");
        file.set_len(1 << 20).expect("longer");
        file.write_all_at(&[7; 4096], 1 << 19).expect("written");
        let fd = file.as_raw_fd();
        // SAFETY: a call on an open descriptor.
        let data = check(unsafe { libc::lseek(fd, 1 << 19, libc::SEEK_DATA) });
        assert_eq!(data, Ok(1 << 19), "what the kernel has is data");
        let mut append = OpenOptions::new().append(true).open(&path).expect("open");
        append.write_all(b"end").expect("written");
        let modified = sys::FileTimes::new().set_modified(time);
        file.set_times(modified).expect("set");
        drop((file, append));

        let mut large = File::create(dir.join("large")).expect("made");
        let chunk = vec![1; 1 << 20];
        let written = (0..64).try_for_each(|_| large.write_all(&chunk));
        let synced = written.and_then(|()| large.sync_all());
        let error = synced.expect_err("there is no room");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        drop(large);
        sys::remove_file(dir.join("large")).expect("removed");
    });
    mounted(&device, |dir| {
        let meta = dir.join("file").metadata().expect("there");
        assert_eq!(meta.modified().expect("known"), time);
        let mut all = Vec::new();
        let mut file = File::open(dir.join("file")).expect("open");
        file.read_to_end(&mut all).expect("readable");
        let mut expected: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        expected.resize(1 << 20, 0);
        expected[1 << 19..(1 << 19) + 4096].fill(7);
        expected.extend(b"end");
        assert!(all == expected);
    });
}

/// A kernel that holds back writes sets the times of a file once more after its removal.
#[test]
fn a_sync_of_all_succeeds_after_the_removal_of_files() {
    for exclusive in [false, true] {
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device(), set, |dir, _| {
            let sync = |after: &str| {
                let opened = File::open(dir).expect("opened");
                let synced = rustix::fs::syncfs(opened);
                assert_eq!(synced, Ok(()), "exclusive: {exclusive}, after {after}");
            };
            for name in ["removed", "replaced", "new", "open"] {
                sys::write(dir.join(name), name).expect("written");
            }
            sync("writes");
            sys::remove_file(dir.join("removed")).expect("removed");
            sync("a removal");
            sys::rename(dir.join("new"), dir.join("replaced")).expect("renamed");
            sync("a replacement");
            let open = OpenOptions::new().append(true).open(dir.join("open"));
            let mut open = open.expect("opened");
            sys::remove_file(dir.join("open")).expect("removed");
            open.write_all(b"more").expect("written");
            sync("a removal of an open file");
            drop(open);
            sync("its last close");
        });
    }
}

#[test]
fn a_kernel_without_any_of_the_optional_features_will_do() {
    let device = device();
    let set = |config: &mut MountConfig| {
        config.without = u64::MAX;
        config.exclusive = true;
    };
    configured(&device, set, |dir, files| {
        let sub = dir.join("sub");
        sys::create_dir(&sub).expect("made");
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        sys::write(sub.join("file"), &data).expect("written");
        assert!(sys::read(sub.join("file")).expect("readable") == data);
        std::os::unix::fs::symlink("file", sub.join("link")).expect("made");
        sys::hard_link(sub.join("file"), sub.join("second")).expect("linked");
        sys::rename(sub.join("second"), sub.join("third")).expect("renamed");
        let names = || {
            let listed = sys::read_dir(&sub).expect("listed");
            let mut names: Vec<_> = listed.map(|e| e.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["file", "link", "third"]);
        let ino = files.lookup(fs::ROOT, b"sub").expect("there").ino;
        files.unlink(ino, b"third").expect("removed");
        wait_until("the name has gone", || names() == ["file", "link"]);
        let file = File::open(sub.join("file")).expect("opened");
        sys::remove_file(sub.join("file")).expect("removed");
        let mut read = vec![0; 100];
        file.read_exact_at(&mut read, 2_000_000).expect("readable");
        assert!(read == data[2_000_000..2_000_100]);
        file.sync_all().expect("synced");
    });
    mounted(&device, |dir| {
        assert_eq!(sys::read_dir(dir.join("sub")).expect("listed").count(), 1);
    });
}
