//! The threads of a mount: the effect of a blocked, failed or forgotten request on the others.

use fuse_mount::fuse_proto::{Attr, Entry, Operation, Request, StatFs, Wanted, abi};
use fuse_mount::{Errno, Mount, Reply, Serve, Settings, WhenBusy};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A directory in which each name says what its lookup does.
#[derive(Default)]
struct Names {
    closed: Mutex<bool>,
    changed: Condvar,
    /// Lookups that wait at the gate.
    waiting: AtomicUsize,
    /// Waiting lookups announce that they will sleep.
    announces: AtomicBool,
    ended: AtomicUsize,
    syncs: AtomicUsize,
}

impl Names {
    fn set_gate(&self, closed: bool) {
        *self.closed.lock().expect("no panic") = closed;
        self.changed.notify_all();
    }

    fn pass_gate(&self) {
        if self.announces.load(SeqCst) {
            block::about_to_sleep();
        }
        self.waiting.fetch_add(1, SeqCst);
        let closed = self.closed.lock().expect("no panic");
        let passed = self.changed.wait_while(closed, |closed| *closed);
        drop(passed.expect("no panic"));
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Nodes are numbers at the end of names, plus 100.
    fn entry(name: &str) -> Entry {
        let number = name.rsplit('-').next().and_then(|n| n.parse::<u64>().ok());
        let node = number.unwrap_or_default() + 100;
        Entry {
            node,
            attr: Names::attr(node),
            ..Entry::default()
        }
    }

    fn attr(node: u64) -> Attr {
        let mode = match node {
            abi::FUSE_ROOT_ID => libc::S_IFDIR | 0o755,
            _ => libc::S_IFREG | 0o644,
        };
        Attr {
            ino: node,
            size: node,
            mode,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            ..Attr::default()
        }
    }
}

struct Served(Arc<Names>);

impl Serve for Served {
    fn wanted(&self) -> Wanted {
        Wanted {
            flags: abi::FUSE_PARALLEL_DIROPS,
            ..Wanted::default()
        }
    }

    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        match &request.operation {
            Operation::Lookup { name } => {
                let name = str::from_utf8(name).expect("a name of a test");
                let entry = Names::entry(name);
                match name.split('-').next() {
                    Some("gate") => self.0.pass_gate(),
                    Some("panic") => panic!("as the test wants it"),
                    Some("forgotten") => return,
                    Some("stuck") => std::thread::sleep(Duration::from_millis(3)),
                    Some("announced") => {
                        block::about_to_sleep();
                        std::thread::yield_now();
                    }
                    Some("later") => {
                        let reply = reply.detach();
                        std::thread::spawn(move || reply.entry(&entry));
                        return;
                    }
                    Some("none") => return reply.error(Errno::NOENT),
                    _ => {}
                }
                reply.entry(&entry);
            }
            Operation::GetAttr { .. } => {
                reply.attr(&Names::attr(request.header.node), Duration::ZERO);
            }
            Operation::StatFs => reply.statfs(&StatFs::default()),
            Operation::SyncFs => {
                self.0.syncs.fetch_add(1, SeqCst);
                reply.empty();
            }
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn ended(&self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn settings(mountpoint: &Path, threads: usize) -> Settings {
    Settings {
        mountpoint: mountpoint.to_owned(),
        source: "evfs".into(),
        threads,
        read_only: false,
        allow_other: false,
        suid: false,
        dev: false,
        exec: true,
        on_block_device: false,
    }
}

/// Mounts with a number of threads, runs `work`, and unmounts.
fn mounted(threads: usize, work: impl FnOnce(&Path, &Names)) {
    let dir = tempfile::tempdir().expect("a directory");
    let names = Arc::new(Names::default());
    let served = Served(Arc::clone(&names));
    let mount = Mount::start(&settings(dir.path(), threads), served).expect("it mounts");
    work(dir.path(), &names);
    assert_eq!(names.ended.load(SeqCst), 0);
    let mut mount = Some(mount);
    // A process that another test starts has a copy of every descriptor for a moment.
    wait_until("it is unmounted", || {
        match mount.take().map(|m| m.unmount(WhenBusy::Refuse, || true)) {
            Some(Err(failed)) => {
                assert!(failed.1.is_busy(), "{}", failed.1);
                mount = Some(failed.0);
                false
            }
            _ => true,
        }
    });
    assert_eq!(names.ended.load(SeqCst), 1, "the end is reported once");
    assert_eq!(Arc::strong_count(&names), 1, "no thread is left");
}

fn size(dir: &Path, name: &str) -> Result<u64, i32> {
    let found = dir.join(name).symlink_metadata().map(|meta| meta.len());
    found.map_err(|e| e.raw_os_error().unwrap_or_default())
}

/// Opens the gate even if an assertion fails, so that no thread of the test waits indefinitely.
struct Opens<'a>(&'a Names);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.set_gate(false);
    }
}

#[test]
fn blocked_requests_hold_up_no_other_while_a_thread_is_left() {
    const THREADS: usize = 4;
    for announces in [true, false] {
        mounted(THREADS, |dir, names| {
            names.announces.store(announces, SeqCst);
            names.set_gate(true);
            std::thread::scope(|scope| {
                let opens = Opens(names);
                for i in 0..THREADS {
                    let quick = scope.spawn(move || {
                        let sizes = (0..50).map(|n| size(dir, &format!("q-{n}")));
                        sizes.collect::<Vec<_>>()
                    });
                    wait_until("quick requests are answered", || quick.is_finished());
                    let all: Vec<_> = (100..150).map(Ok).collect();
                    assert_eq!(quick.join().expect("no panic"), all);
                    scope.spawn(move || {
                        assert_eq!(size(dir, &format!("gate-{i}")), Ok(100 + i as u64));
                    });
                    wait_until("it waits", || names.waiting.load(SeqCst) == i + 1);
                }
                // Now no thread is left. A request waits for one, and for nothing else.
                let last = scope.spawn(move || size(dir, "q-7"));
                drop(opens);
                assert_eq!(last.join().expect("no panic"), Ok(107));
            });
        });
    }
}

#[test]
fn one_thread_serves_one_request_after_the_other() {
    mounted(1, |dir, _| {
        for name in ["q-1", "announced-2", "stuck-3", "later-4", "none-5", "q-6"] {
            let number: u64 = name[name.len() - 1..].parse().expect("a number");
            let expected = match number {
                5 => Err(libc::ENOENT),
                n => Ok(100 + n),
            };
            assert_eq!(size(dir, name), expected, "{name}");
        }
        std::thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    for i in 0..200 {
                        let number = client * 1000 + i;
                        let name = format!("announced-{number}");
                        assert_eq!(size(dir, &name), Ok(100 + number));
                    }
                });
            }
        });
    });
}

#[test]
fn a_handler_that_panics_or_forgets_its_reply_fails_that_request_alone() {
    for threads in [1, 3] {
        mounted(threads, |dir, _| {
            for round in 0..5 {
                assert_eq!(size(dir, &format!("panic-{round}")), Err(libc::EIO));
                assert_eq!(size(dir, &format!("forgotten-{round}")), Err(libc::EIO));
                assert_eq!(size(dir, &format!("q-{round}")), Ok(100 + round));
            }
        });
    }
}

#[test]
fn no_wake_up_is_lost_among_many_clients() {
    for threads in [2, 3, 8] {
        mounted(threads, |dir, _| {
            std::thread::scope(|scope| {
                let client = |client: u64| {
                    move || {
                        for i in 0..500 {
                            let number = client * 10_000 + i;
                            let kind = match (client + i) % 100 {
                                0 => "stuck",
                                n if n % 7 == 0 => "announced",
                                n if n % 11 == 0 => "later",
                                _ => "q",
                            };
                            let found = size(dir, &format!("{kind}-{number}"));
                            assert_eq!(found, Ok(100 + number));
                        }
                    }
                };
                let clients: Vec<_> = (0..10).map(|i| scope.spawn(client(i))).collect();
                wait_until("all clients are done", || {
                    clients.iter().all(|client| client.is_finished())
                });
            });
        });
    }
}

#[test]
fn a_mount_point_in_use_and_a_missing_one_are_refused() {
    mounted(1, |dir, _| {
        let again = Mount::start(&settings(dir, 1), Served(Arc::default()));
        let error = again.map(drop).expect_err("it is mounted already");
        assert!(error.is_busy(), "{error}");
    });
    let missing = settings(Path::new("/nonexistent/directory"), 1);
    let error = Mount::start(&missing, Served(Arc::default())).map(drop);
    let error = error.expect_err("there is no directory");
    let fuse_mount::Error::Io { what, source } = error else {
        panic!("{error}");
    };
    assert!(what.contains("/nonexistent/directory"), "{what}");
    assert_eq!(source.kind(), io::ErrorKind::NotFound);
}

/// Counts the times that the threads with these numbers have fallen asleep.
fn sleeps(threads: &[String]) -> u64 {
    let of_one = |thread: &String| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
        let status = status.expect("it still runs");
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count = count.and_then(|count| count.trim().parse::<u64>().ok());
        count.expect("a number")
    };
    threads.iter().map(of_one).sum()
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a directory");
    let number = |task: io::Result<std::fs::DirEntry>| {
        let name = task.expect("a thread").file_name();
        name.into_string().expect("a number")
    };
    tasks.map(number).collect()
}

#[test]
fn a_mount_without_requests_does_not_run() {
    // Other tests are mounts as well, so this one has a process of its own.
    const ALONE: &str = "EVFS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "a_mount_without_requests_does_not_run";
        let test = std::env::current_exe().expect("this test");
        let child = std::process::Command::new(test)
            .args([name, "--exact"])
            .env(ALONE, "1")
            .output()
            .expect("it starts");
        assert!(child.status.success(), "{child:?}");
        return;
    }
    let before = threads();
    mounted(4, |dir, _| {
        assert_eq!(size(dir, "q-1"), Ok(101));
        let new: Vec<_> = threads()
            .into_iter()
            .filter(|t| !before.contains(t))
            .collect();
        assert_eq!(new.len(), 4);
        let mut last = u64::MAX;
        wait_until("the threads sleep", || {
            let now = sleeps(&new);
            std::thread::sleep(Duration::from_millis(50));
            std::mem::replace(&mut last, now) == now
        });
    });
}

mod needs_root {
    use super::*;
    use std::path::PathBuf;
    use test_support::needs_root;

    /// Backing file of the block device of a mount, in sysfs.
    fn backing(device: &str) -> PathBuf {
        Path::new("/sys/dev/block")
            .join(device)
            .join("loop/backing_file")
    }

    #[test]
    fn a_mount_from_a_block_device_has_its_source_and_its_own_device() {
        needs_root("loop devices and mounts");
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let mount = |dir: &tempfile::TempDir, source: &str| {
            let settings = Settings {
                source: source.into(),
                on_block_device: true,
                ..settings(dir.path(), 2)
            };
            Mount::start(&settings, Served(Arc::default())).expect("it mounts")
        };
        for source in ["evfs", "/srv/a directory/disk.img", "/dev/loop0"] {
            let mounts = dirs.each_ref().map(|dir| mount(dir, source));
            let entries = mounts.each_ref().map(|mount| {
                let all = fuse_mount::mounts();
                let entry = all.into_iter().rfind(|e| e.point == mount.mountpoint());
                entry.expect("it is listed")
            });
            for (mount, entry) in mounts.iter().zip(&entries) {
                assert_eq!(entry.kind, "fuseblk.evfs");
                assert_eq!(entry.source, source);
                for option in ["user_id=0", "default_permissions"] {
                    assert!(entry.options.split(',').any(|o| o == option), "{entry:?}");
                }
                assert!(fuse_mount::is_mounted(mount.mountpoint()));
                let file = std::fs::read_to_string(backing(&entry.device));
                assert_eq!(
                    file.expect("a loop device").trim_end(),
                    "/memfd:evfs (deleted)"
                );
            }
            assert_ne!(entries[0].device, entries[1].device);
            let left = std::fs::read_dir("/dev").expect("readable").flatten();
            let names = entries.each_ref().map(|e| {
                let number = e.device.split_once(':').expect("two numbers").1;
                format!(".evfs-loop{number}")
            });
            let left = left.filter(|entry| names.iter().any(|n| **n == *entry.file_name()));
            assert_eq!(left.count(), 0, "a directory of names is left");
            for (mount, entry) in mounts.into_iter().zip(entries) {
                let unmounted = mount.unmount(WhenBusy::Refuse, || true);
                assert!(unmounted.map_err(|failed| failed.1).expect("unused"));
                wait_until("the device is removed", || !backing(&entry.device).exists());
            }
        }
    }

    #[test]
    fn a_source_that_cannot_be_a_name_is_refused_and_leaves_no_device() {
        needs_root("loop devices and mounts");
        let dir = tempfile::tempdir().expect("a directory");
        let settings = Settings {
            source: "../disk.img".into(),
            on_block_device: true,
            ..settings(dir.path(), 2)
        };
        let refused = Mount::start(&settings, Served(Arc::default())).map(drop);
        assert!(refused.is_err());
        assert!(!fuse_mount::is_mounted(dir.path()));
    }

    #[test]
    fn a_mount_knows_whether_the_kernel_syncs_it() {
        needs_root("loop devices and mounts");
        let dir = tempfile::tempdir().expect("a directory");
        let within = Duration::from_secs(60);
        let plain = settings(dir.path(), 2);
        let mount = Mount::start(&plain, Served(Arc::default())).expect("it mounts");
        assert!(!mount.receives_sync(within));
        drop(mount);
        let names = Arc::new(Names::default());
        let on_block_device = Settings {
            on_block_device: true,
            ..plain
        };
        let mount = Mount::start(&on_block_device, Served(Arc::clone(&names))).expect("it mounts");
        let receives = mount.receives_sync(within);
        // The served file system counts them, too.
        assert_eq!(receives, names.syncs.load(SeqCst) > 0);
        let opened = std::fs::File::open(dir.path()).expect("it opens");
        rustix::fs::syncfs(&opened).expect("answered");
        assert_eq!(receives, names.syncs.load(SeqCst) > 1);
    }
}
