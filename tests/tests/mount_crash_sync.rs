//! The calls that make data durable in a mount: the server is killed right after each, and the data
//! is there.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_STRESS_KILLS=300` | number of kills under load (default: 30) |
//! | `EVFS_SEED=N` | repeats the same changes, as far as timing permits |

use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests::mounts::{Disk, Mounted, On, forwards_sync};
use tests::targets::{free_port, image, nbdkit};
use tests::writer::Writer;
use tests::{Ran, Random, Sandbox, needs_root, program, wait_until};

/// Content that each call makes durable.
const CONTENT: &[u8] = &[b'c'; 9000];

/// A way to make a file durable: writes the content to a path.
type Durable = fn(&Sandbox, &Path) -> io::Result<()>;

/// The calls that promise the same in each mount.
const EVERYWHERE: &[(&str, Durable)] = &[
    ("fsync", |_, path| created(path)?.sync_all()),
    ("fdatasync", |_, path| created(path)?.sync_data()),
    ("O_SYNC", |_, path| with_flags(path, libc::O_SYNC)),
    ("O_DSYNC", |_, path| with_flags(path, libc::O_DSYNC)),
    ("msync", |_, path| {
        let file = File::create_new(path)?;
        file.set_len(CONTENT.len() as u64)?;
        // Only the store remains to be made durable.
        file.sync_all()?;
        drop(file);
        store(path)
    }),
    ("evfs sync DIR", |s, path| {
        created(path)?;
        s.run(&[Path::new("sync"), path.parent().unwrap()]).ok();
        Ok(())
    }),
    ("evfs sync NAME", |s, path| {
        created(path)?;
        s.run(&["sync", "clear"]).ok();
        Ok(())
    }),
];

/// The calls that a mount must receive.
const RECEIVED: &[(&str, Durable)] = &[
    ("syncfs", |_, path| {
        created(path)?;
        sync_all(path)
    }),
    ("sync", |_, path| {
        created(path)?;
        rustix::fs::sync();
        Ok(())
    }),
    ("syncfs and a mapping", |_, path| {
        let file = created(path)?;
        file.sync_all()?;
        let options = OpenOptions::new().read(true).write(true).open(path)?;
        let mut mapped = Mapped::of(&options, CONTENT.len())?;
        mapped.bytes()[..3].copy_from_slice(b"new");
        sync_all(path)?;
        mapped.bytes()[..3].copy_from_slice(b"ccc");
        sync_all(path)
    }),
];

/// Syncs the file system of a path.
fn sync_all(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

fn created(path: &Path) -> io::Result<File> {
    let mut file = File::create_new(path)?;
    file.write_all(CONTENT)?;
    Ok(file)
}

fn with_flags(path: &Path, flags: i32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).custom_flags(flags);
    file.open(path)?.write_all(CONTENT)
}

/// A shared mapping of a file.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn of(file: &File, len: usize) -> io::Result<Mapped> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap(none, len, access, MapFlags::SHARED, file, 0)? };
        Ok(Mapped(at.cast(), len))
    }

    /// Maps memory that is aligned to a page.
    fn anonymous(len: usize) -> io::Result<Mapped> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(none, len, access, MapFlags::PRIVATE)? };
        Ok(Mapped(at.cast(), len))
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and is accessed only through this value.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
    }
}

/// Stores the content into a file through a mapping, and syncs it.
fn store(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut mapped = Mapped::of(&file, CONTENT.len())?;
    mapped.bytes().copy_from_slice(CONTENT);
    // SAFETY: the range is that of the mapping.
    unsafe { rustix::mm::msync(mapped.0.cast(), mapped.1, MsyncFlags::SYNC) }?;
    Ok(())
}

/// Changes a file all the time until it is dropped or the server ends, so that the server never
/// writes everything out because nothing changes.
struct Busy {
    over: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn at(dir: &Path) -> Busy {
        let over = std::sync::Arc::new(AtomicBool::new(false));
        let (ends, path) = (std::sync::Arc::clone(&over), dir.join("busy"));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) && fs::write(&path, "change").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Busy {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Creates a disk whose changes are written neither by age nor, beside [`Busy`], for lack of others.
fn patient_disk<'a>(s: &'a Sandbox, options: &'static [&'static str]) -> Disk<'a> {
    let mut disk = Disk::new(s, On::Clear, "64M").with(options);
    disk.set("EVFS_FS_COMMIT_INTERVAL_MS", "300000");
    disk.set("EVFS_CACHE_TUNABLES", "sync_interval_ms=3600000");
    disk
}

/// Returns the effect of sync(2) that `evfs status` shows.
fn effect(s: &Sandbox) -> Value {
    s.json(&["status"])["volumes"][0]["exports"][0]["sync"].clone()
}

fn kill_after_each(options: &'static [&'static str], calls: &[(&str, Durable)], expected: &str) {
    needs_root("a mount that is killed");
    let s = Sandbox::new();
    let disk = patient_disk(&s, options);
    let mut mounted = disk.mount(&[]);
    assert_eq!(effect(&s), expected);
    let kill = |mounted: Mounted, busy: Busy| {
        mounted.kill();
        drop(busy);
        disk.mount(&[])
    };
    // Otherwise the rest would test nothing.
    let mut current = Some(mounted);
    wait_until("a change that no call covers is lost", || {
        let before = current.take().unwrap();
        let busy = Busy::at(before.dir());
        fs::write(before.path("unsynced"), CONTENT).unwrap();
        let after = current.insert(kill(before, busy));
        fs::remove_file(after.path("unsynced")).is_err()
    });
    mounted = current.unwrap();
    for (name, make_durable) in calls {
        let busy = Busy::at(mounted.dir());
        let path = mounted.path(name);
        make_durable(&s, &path).unwrap_or_else(|e| panic!("{name}: {e}"));
        mounted = kill(mounted, busy);
        let kept = fs::read(mounted.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            kept == CONTENT,
            "{name}: of {} bytes, some changed",
            kept.len()
        );
    }
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn each_call_is_durable_on_a_mount_that_receives_sync() {
    let (received, expected) = if forwards_sync() {
        (RECEIVED, "durable")
    } else {
        (&[][..], "ignored")
    };
    kill_after_each(&[], &[EVERYWHERE, received].concat(), expected);
}

#[test]
fn each_call_but_sync_is_durable_on_any_mount() {
    kill_after_each(&["--sync-timeout", "0"], EVERYWHERE, "ignored");
}

#[test]
fn each_call_is_durable_though_the_kernel_holds_back_data() {
    let (calls, expected) = if forwards_sync() {
        ([EVERYWHERE, RECEIVED].concat(), "durable")
    } else {
        // `evfs sync` does not cover what the kernel holds back.
        (EVERYWHERE[..5].to_vec(), "ignored")
    };
    kill_after_each(&["--exclusive"], &calls, expected);
}

#[test]
fn a_mount_without_a_loop_device_works_and_reports_that_sync_does_nothing() {
    needs_root("a user namespace");
    let s = Sandbox::new();
    s.run(&["format", "a.img", "--size", "64M"]).ok();
    fs::create_dir(s.path("mnt")).unwrap();
    let script = format!(
        "set -e; evfs={}; $evfs mount a.img mnt --background > mounted 2> said\n\
         findmnt -n -o FSTYPE mnt; $evfs --json status > status\n\
         echo kept > mnt/file; $evfs sync mnt > synced; $evfs unmount mnt > unmounted",
        program().display()
    );
    // Its root is not that of the system.
    let mut apart = Command::new("unshare");
    s.environment(&mut apart);
    let ran = Ran::of(apart.args(["-U", "-r", "-m", "sh", "-c", &script])).ok();
    assert_eq!(ran.stdout.trim(), "fuse.evfs");
    let said = fs::read_to_string(s.path("said")).unwrap();
    assert!(said.contains("do nothing; use fsync(2)"), "{said}");
    let status = fs::read_to_string(s.path("status")).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["volumes"][0]["exports"][0]["sync"], "ignored");
}

/// A device that does not answer must not block the sync(2) of every program.
#[test]
fn a_sync_of_a_device_that_is_stuck_fails_in_time_and_succeeds_later() {
    needs_root("a mount that is killed");
    let s = Sandbox::new();
    let (disk, port) = (image(&s, "disk", 192 << 20), free_port());
    let server = nbdkit(&disk, port);
    let scan = ["lun", "scan", &format!("nbd://127.0.0.1:{port}/e")];
    s.run(&scan).ok();
    s.run(&["format", "disk1"]).ok();
    let lun = Disk::existing(&s, "disk1");
    let mounted = lun.mount(&["--sync-timeout", "1"]);
    if !forwards_sync() {
        assert_eq!(effect(&s), "ignored");
        return;
    }
    fs::write(mounted.path("file"), CONTENT).unwrap();
    let dir = File::open(mounted.dir()).unwrap();
    drop(server);
    wait_until("the path is lost", || {
        s.json(&["lun", "show", "disk1"])["paths"][0]["state"] != "active"
    });
    fs::write(mounted.path("other"), CONTENT).unwrap();
    assert_eq!(rustix::fs::syncfs(&dir), Err(rustix::io::Errno::TIMEDOUT));
    assert!(mounted.said().contains("EVFS-0606"), "{}", mounted.said());
    // It ends, whatever its success: sync(2) reports none.
    rustix::fs::sync();
    // The rest of the mount works.
    assert_eq!(fs::read(mounted.path("other")).unwrap(), CONTENT);
    let _server = nbdkit(&disk, port);
    wait_until("it is durable", || rustix::fs::syncfs(&dir).is_ok());
    drop(dir);
    mounted.kill();
    let mounted = lun.mount(&[]);
    for name in ["file", "other"] {
        assert_eq!(fs::read(mounted.path(name)).unwrap(), CONTENT);
    }
    mounted.unmount(&s);
    lun.check();
}

#[test]
fn evfs_sync_covers_all_services_and_says_what_it_cannot_find() {
    let s = Sandbox::new();
    s.run(&["sync"]).code(10);
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    s.volume("volume.img", "32M", &[]);
    s.attach(&["volume.img"]);
    let all = s.json(&["sync"]);
    assert_eq!(all["synced"], serde_json::json!(["clear", "volume"]));
    let one = s.json(&["sync", "volume"]);
    assert_eq!(one["synced"], serde_json::json!(["volume"]));
    let refused = s.run(&["sync", "nothing"]).code(10);
    assert!(refused.stderr.contains("nothing"), "{}", refused.stderr);
    mounted.unmount(&s);
    s.detach("volume");
}

/// Paths of a thread that makes random changes, without a record of them.
struct Stress {
    root: PathBuf,
    random: Random,
}

impl Stress {
    fn path(&mut self) -> PathBuf {
        let (dir, name) = (self.random.below(4), self.random.below(25));
        self.root.join(format!("dir{dir}/{name}"))
    }

    fn file(&mut self, flags: OFlags) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags(flags.bits() as i32).open(self.path())
    }

    /// Makes one change, which may fail.
    fn step(&mut self) -> io::Result<()> {
        let path = self.path();
        let at = self.random.below(1 << 20);
        let len = 1 + self.random.below(100_000) as usize;
        match self.random.below(20) {
            0..5 => {
                let bytes = self.random.bytes(len);
                self.file(OFlags::empty())?.write_all_at(&bytes, at)
            }
            5 => self.file(OFlags::empty())?.set_len(at),
            6 => {
                let file = self.file(OFlags::DIRECT)?;
                let mut memory = Mapped::anonymous(1 << 16)?;
                file.write_all_at(memory.bytes(), at & !4095)
            }
            7 => {
                let (from, to) = (self.file(OFlags::empty())?, self.file(OFlags::empty())?);
                let to_offset = self.random.below(1 << 20);
                rustix::fs::copy_file_range(
                    from,
                    Some(&mut { at }),
                    to,
                    Some(&mut { to_offset }),
                    len,
                )?;
                Ok(())
            }
            8 => {
                let how = [
                    FallocateFlags::empty(),
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ][self.random.below(3) as usize];
                Ok(rustix::fs::fallocate(
                    self.file(OFlags::empty())?,
                    how,
                    at,
                    len as u64,
                )?)
            }
            9 => fs::rename(path, self.path()),
            10 => fs::hard_link(path, self.path()),
            11 => symlink("target", path),
            12 | 13 => fs::remove_file(path),
            14 => fs::create_dir(path),
            15 => fs::remove_dir(path),
            16 => {
                let value = self.random.bytes(len % 3000);
                Ok(rustix::fs::setxattr(
                    path,
                    "user.a",
                    &value,
                    XattrFlags::empty(),
                )?)
            }
            17 => fs::set_permissions(path, fs::Permissions::from_mode(0o600)),
            18 => self.file(OFlags::empty())?.sync_data(),
            _ => {
                let entries = fs::read_dir(path.parent().unwrap())?;
                let entries = entries.collect::<io::Result<Vec<_>>>()?;
                // The names, and the target of all symbolic links.
                assert!(
                    entries.len() <= 25 + 1,
                    "more entries than names: {entries:?}"
                );
                Ok(())
            }
        }
    }

    /// Makes changes until the server has died.
    fn run(mut self) {
        for dir in 0..4 {
            let _ = fs::create_dir_all(self.root.join(format!("dir{dir}")));
        }
        loop {
            let died = |error: io::Error| {
                let code = error.raw_os_error();
                [libc::ENOTCONN, libc::ECONNABORTED]
                    .map(Some)
                    .contains(&code)
            };
            if self.step().is_err_and(died) {
                return;
            }
        }
    }
}

fn kill_under_stress(options: &'static [&'static str]) {
    needs_root("a mount that is killed");
    let kills =
        std::env::var("EVFS_TEST_STRESS_KILLS").map_or(30, |n| n.parse().expect("a number"));
    let kills = u64::div_ceil(kills, 2);
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let disk = Disk::new(&s, On::Clear, "256M").with(options);
    let mounted = disk.mount(&[]);
    let mut writers: Vec<_> = (0..2)
        .map(|n| Writer::new(&format!("writer{n}"), random.below(1 << 16)))
        .collect();
    for writer in &mut writers {
        writer.sync_all = (effect(&s) == "durable").then_some(sync_all);
        writer.begin(mounted.dir()).unwrap();
    }
    mounted.unmount(&s);
    for kill in 0..kills {
        let mounted = disk.mount(&[]);
        let dir = mounted.dir().to_owned();
        let verified = Barrier::new(writers.len() + 1);
        let pause = Duration::from_millis(random.below(600));
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let (dir, verified) = (&dir, &verified);
                scope.spawn(move || {
                    // A writer that finds an error must still reach the barrier.
                    let look = std::panic::AssertUnwindSafe(|| writer.verify(dir));
                    let looked = std::panic::catch_unwind(look);
                    verified.wait();
                    looked.unwrap_or_else(|fault| std::panic::resume_unwind(fault));
                    writer.work(dir)
                });
            }
            for n in 0..3 {
                let (root, random) = (
                    dir.join(format!("stress{n}")),
                    Random::new(random.below(1 << 32)),
                );
                scope.spawn(move || Stress { root, random }.run());
            }
            verified.wait();
            std::thread::sleep(pause);
            mounted.kill();
        });
        disk.check();
        eprintln!("kill {kill} after {pause:?}");
    }
    let mounted = disk.mount(&[]);
    writers.iter_mut().for_each(|w| w.verify(mounted.dir()));
    let promises: u64 = writers.iter().map(|w| w.promises).sum();
    assert!(promises > kills, "only {promises} syncs in {kills} lives");
    mounted.unmount(&s);
    disk.check();
}

/// The kernel waits for the server when such a mount ends: of a killed server, nothing must wait.
#[test]
fn a_kill_during_an_unmount_ends_the_process() {
    needs_root("a mount that is killed");
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let disk = Disk::new(&s, On::Clear, "64M");
    for _ in 0..12 {
        let mounted = disk.mount(&[]);
        for n in 0..20 {
            fs::write(mounted.path(&n.to_string()), CONTENT).unwrap();
        }
        let mut unmount = s.evfs();
        unmount.arg("unmount").arg(mounted.dir());
        let unmount = unmount.stdout(Stdio::null()).stderr(Stdio::null());
        let mut unmount = unmount.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        // It waits for the end of the process.
        mounted.kill();
        unmount.wait().unwrap();
        disk.check();
    }
}

#[test]
fn kills_under_stress_lose_nothing_that_was_synced() {
    kill_under_stress(&[]);
}

#[test]
fn kills_under_stress_lose_nothing_that_was_synced_through_the_cache_of_the_kernel() {
    kill_under_stress(&["--exclusive"]);
}
