//! The server of a mount with `--survive` is killed again and again, or another build takes over, while
//! programs use the mount: they see no error, and every byte that the mount acknowledged is there,
//! synced or not.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=200` | number of kills (default: 20), over clear, encrypted and `--exclusive` |
//! | `EVFS_SEED=N` | repeats the same changes, as far as timing permits |

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tests::kept::{kill_the_server, memory_of, server_of};
use tests::mounts::{Disk, Mounted, On};
use tests::{Random, Sandbox, needs_root, wait_until};

/// Most bytes of a file.
const LEN_MAX: u64 = 300_000;
/// Most files of a program at a time.
const FILES_MAX: usize = 40;

/// Content of the file in the tests with one file.
static CONTENT: [u8; 100_000] = [7; 100_000];

/// Time that no step takes unless the server is killed.
const PAUSE: Duration = Duration::from_millis(40);

/// A program that uses a directory of its own, and knows what must be there.
struct Program {
    dir: PathBuf,
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    /// Files that stay open, with their content; a name may have been removed.
    open: Vec<(File, Option<String>, Vec<u8>)>,
    next: u64,
    changes: u64,
    /// Times of the steps that took longer than without a kill.
    pauses: Vec<Duration>,
}

impl Program {
    fn new(dir: PathBuf, seed: u64) -> Program {
        fs::create_dir(&dir).unwrap();
        Program {
            dir,
            random: Random::new(seed),
            files: BTreeMap::new(),
            open: Vec::new(),
            next: 0,
            changes: 0,
            pauses: Vec::new(),
        }
    }

    fn run_until(&mut self, is_over: &AtomicBool) {
        while !is_over.load(Relaxed) {
            let began = Instant::now();
            self.step();
            let took = began.elapsed();
            if took >= PAUSE {
                self.pauses.push(took);
            }
            self.changes += 1;
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("file{}", self.next)
    }

    fn any(&mut self) -> Option<String> {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(at).cloned()
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = self.random.below(most) as usize + 1;
        self.random.bytes(len)
    }

    /// Name of a file that is not open.
    fn closed(&mut self) -> Option<String> {
        let name = self.any()?;
        let is_open = self
            .open
            .iter()
            .any(|(_, own, _)| own.as_deref() == Some(&name));
        (!is_open).then_some(name)
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=3 if self.files.len() < FILES_MAX => self.create(),
            4 | 5 => self.overwrite(),
            6 | 7 => self.append(),
            8 => self.cut(),
            9 => self.rename(),
            10 => self.remove(),
            11 => self.directories(),
            12 => self.open_one(),
            13 | 14 => self.use_open(),
            _ => self.read_one(),
        }
    }

    fn create(&mut self) {
        let (name, bytes) = (self.new_name(), self.bytes(40_000));
        let mut file = File::create_new(self.path(&name)).unwrap();
        for piece in bytes.chunks(10_007) {
            file.write_all(piece).unwrap();
        }
        self.files.insert(name, bytes);
    }

    fn overwrite(&mut self) {
        let Some(name) = self.closed() else { return };
        let (at, bytes) = (self.random.below(LEN_MAX), self.bytes(9_000));
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(&name))
            .unwrap();
        file.write_all_at(&bytes, at).unwrap();
        put(self.files.get_mut(&name).unwrap(), at, &bytes);
    }

    fn append(&mut self) {
        let Some(name) = self.closed() else { return };
        let bytes = self.bytes(6_000);
        let mut file = OpenOptions::new()
            .append(true)
            .open(self.path(&name))
            .unwrap();
        file.write_all(&bytes).unwrap();
        self.files.get_mut(&name).unwrap().extend(bytes);
    }

    fn cut(&mut self) {
        let Some(name) = self.closed() else { return };
        let len = self.random.below(LEN_MAX);
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(&name))
            .unwrap();
        file.set_len(len).unwrap();
        self.files.get_mut(&name).unwrap().resize(len as usize, 0);
    }

    fn rename(&mut self) {
        let (Some(from), Some(over)) = (self.closed(), self.closed()) else {
            return;
        };
        let to = if self.random.below(2) == 0 {
            self.new_name()
        } else {
            over
        };
        fs::rename(self.path(&from), self.path(&to)).unwrap();
        let bytes = self.files.remove(&from).unwrap();
        self.files.insert(to, bytes);
    }

    fn remove(&mut self) {
        let Some(name) = self.any() else { return };
        fs::remove_file(self.path(&name)).unwrap();
        self.files.remove(&name);
        for (_, own, _) in &mut self.open {
            if own.as_ref() == Some(&name) {
                *own = None;
            }
        }
    }

    fn directories(&mut self) {
        let (one, two) = (self.path("dir"), self.path("other"));
        fs::create_dir(&one).unwrap();
        fs::rename(&one, &two).unwrap();
        std::os::unix::fs::symlink("target", two.join("link")).unwrap();
        assert_eq!(
            fs::read_link(two.join("link")).unwrap(),
            Path::new("target")
        );
        fs::hard_link(two.join("link"), two.join("again")).unwrap();
        fs::remove_file(two.join("link")).unwrap();
        fs::remove_file(two.join("again")).unwrap();
        fs::remove_dir(&two).unwrap();
    }

    fn open_one(&mut self) {
        if self.open.len() > 5 {
            let at = self.random.below(self.open.len() as u64) as usize;
            let (file, name, bytes) = self.open.remove(at);
            assert_eq!(file.metadata().unwrap().nlink(), u64::from(name.is_some()));
            if let Some(name) = name {
                self.files.insert(name, bytes);
            }
            return;
        }
        let Some(name) = self.closed() else { return };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path(&name));
        let bytes = self.files[&name].clone();
        self.open.push((file.unwrap(), Some(name), bytes));
    }

    fn use_open(&mut self) {
        let (at, bytes) = (self.random.below(LEN_MAX), self.bytes(9_000));
        let which = self.random.below(self.open.len().max(1) as u64) as usize;
        let Some((file, name, content)) = self.open.get_mut(which) else {
            return;
        };
        if at.is_multiple_of(2) {
            let mut found = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut found).unwrap();
            same(&found, content, name.as_deref().unwrap_or("a removed file"));
        } else {
            file.write_all_at(&bytes, at).unwrap();
            put(content, at, &bytes);
            if let Some(name) = name {
                self.files.insert(name.clone(), content.clone());
            }
        }
    }

    fn read_one(&mut self) {
        if let Some(name) = self.any() {
            let found = fs::read(self.path(&name)).unwrap();
            same(&found, &self.files[&name], &name);
        }
    }

    /// Compares everything, at `dir` of another mount.
    fn verify(&self, dir: &Path) {
        let listed = fs::read_dir(dir).unwrap();
        let listed: Vec<_> = listed
            .map(|entry| entry.unwrap().file_name().into_string())
            .collect();
        let mut listed: Vec<_> = listed.into_iter().map(Result::unwrap).collect();
        listed.sort();
        let expected: Vec<_> = self.files.keys().cloned().collect();
        assert_eq!(listed, expected);
        for (name, bytes) in &self.files {
            same(&fs::read(dir.join(name)).unwrap(), bytes, name);
        }
    }
}

/// Writes bytes into the content of a file.
fn put(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    content.resize(content.len().max(end), 0);
    content[at..end].copy_from_slice(bytes);
}

#[track_caller]
fn same(found: &[u8], expected: &[u8], name: &str) {
    assert_eq!(found.len(), expected.len(), "length of {name}");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(differs.is_none(), "{name} differs at byte {differs:?}");
}

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    /// Another build of the program takes over.
    Restart,
}

impl End {
    fn end(self, s: &Sandbox, mounted: &Mounted, after: Duration) {
        match self {
            End::Kill => kill_the_server(mounted.pid(), after),
            End::Restart => {
                std::thread::sleep(after);
                let program = s.install_program();
                s.run(&["restart", mounted.dir().to_str().unwrap()]).ok();
                let server = server_of(mounted.pid()).expect("it serves");
                let serves = fs::metadata(format!("/proc/{server}/exe")).unwrap();
                assert_eq!(serves.ino(), fs::metadata(program).unwrap().ino());
            }
        }
    }
}

fn survives(on: On, options: &'static [&'static str], ends: &[End]) {
    needs_root("kills of the server of a mount");
    let kills = std::env::var("EVFS_TEST_KILLS").map_or(20, |n| n.parse().expect("a number"));
    let kills = u64::div_ceil(kills, 3);
    let s = Sandbox::new();
    if ends.contains(&End::Restart) {
        s.install_program();
    }
    let mut random = Random::from_environment();
    let disk = Disk::new(&s, on, "512M").with(options);
    let mounted = disk.mount(&["--survive"]);
    let is_over = AtomicBool::new(false);
    let mut programs: Vec<_> = (0..3)
        .map(|n| Program::new(mounted.path(&format!("program{n}")), random.below(1 << 32)))
        .collect();
    let work = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = programs
                .iter_mut()
                .map(|program| scope.spawn(|| program.run_until(&is_over)))
                .collect();
            for end in ends.iter().cycle().take(kills as usize) {
                end.end(&s, &mounted, Duration::from_millis(random.below(800)));
                // One that has failed says why, once the others have ended.
                if threads.iter().any(|thread| thread.is_finished()) {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(500));
            is_over.store(true, Relaxed);
        });
    };
    let worked = std::panic::catch_unwind(AssertUnwindSafe(work));
    assert!(worked.is_ok(), "{}", mounted.said());
    let pauses = programs.iter().flat_map(|program| program.pauses.clone());
    let mut pauses: Vec<_> = pauses.collect();
    pauses.sort();
    let part = |percent: usize| {
        pauses.get((pauses.len() * percent / 100).min(pauses.len().saturating_sub(1)))
    };
    let changes: u64 = programs.iter().map(|program| program.changes).sum();
    eprintln!(
        "{kills} kills, {changes} steps; pauses: median {:?}, 99 % {:?}, longest {:?}",
        part(50),
        part(99),
        pauses.last()
    );
    programs
        .iter()
        .for_each(|program| program.verify(&program.dir));
    for program in &mut programs {
        program.open.clear();
    }
    mounted.unmount(&s);
    disk.check();
    let mounted = disk.mount(&[]);
    programs
        .iter()
        .for_each(|program| program.verify(&program.dir));
    mounted.unmount(&s);
}

#[test]
fn programs_on_a_clear_file_do_not_notice_that_the_server_is_killed() {
    survives(On::Clear, &[], &[End::Kill]);
}

#[test]
fn programs_on_an_encrypted_volume_do_not_notice_that_the_server_is_killed() {
    survives(On::Encrypted, &[], &[End::Kill]);
}

#[test]
fn programs_do_not_notice_that_other_builds_take_over_and_are_killed() {
    survives(On::Encrypted, &[], &[End::Restart, End::Kill, End::Restart]);
}

/// A group of processes with little memory (cgroups(7)).
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Group {
        let first = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = if first.is_dir() {
            (first, "memory.limit_in_bytes")
        } else {
            let root = Path::new("/sys/fs/cgroup");
            fs::write(root.join("cgroup.subtree_control"), "+memory").unwrap();
            (root, "memory.max")
        };
        let group = Group(root.join(format!("evfs-test-{}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        fs::write(group.0.join(limit), bytes.to_string()).unwrap();
        group
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Runs a program in it that takes all memory, until the kernel kills it.
    fn exhaust(&self) {
        let mut hog = Command::new("tail");
        let hog = hog.arg("/dev/zero").stdin(std::process::Stdio::piped());
        let mut hog = tests::Killed(hog.spawn().unwrap());
        self.add(hog.0.id());
        let ended = hog.0.wait().unwrap();
        assert!(!ended.success(), "{ended}");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets go of the last process some time after its end.
        wait_until("the group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn programs_do_not_notice_that_the_kernel_kills_the_server_for_lack_of_memory() {
    needs_root("a group of processes with little memory");
    let s = Sandbox::new();
    let group = Group::new(200 << 20);
    let mut disk = Disk::new(&s, On::Encrypted, "512M");
    disk.set("EVFS_FILECACHE_MAX", "64M");
    let mounted = disk.mount(&["--survive"]);
    group.add(mounted.pid());
    group.add(server_of(mounted.pid()).unwrap() as u32);
    let is_over = AtomicBool::new(false);
    let mut program = Program::new(
        mounted.path("program"),
        Random::from_environment().below(99),
    );
    std::thread::scope(|scope| {
        let program = &mut program;
        let work = scope.spawn(|| program.run_until(&is_over));
        wait_until("the kernel has killed three servers", || {
            if let Some(server) = server_of(mounted.pid()) {
                // The kernel shall choose it first, and not the hog.
                let _ = fs::write(format!("/proc/{server}/oom_score_adj"), "900");
            }
            group.exhaust();
            mounted.said().matches("EVFS-0816").count() >= 3 || work.is_finished()
        });
        std::thread::sleep(Duration::from_millis(500));
        is_over.store(true, Relaxed);
    });
    program.verify(&program.dir);
    program.open.clear();
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn a_build_that_cannot_serve_leaves_the_mount_to_the_one_before_it() {
    needs_root("a mount");
    let s = Sandbox::new();
    let place = s.install_program();
    let disk = Disk::new(&s, On::Encrypted, "64M");
    let mounted = disk.mount(&["--survive"]);
    let mut open = File::create(mounted.path("file")).unwrap();
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", mounted.pid()))
            .unwrap()
            .count()
    };
    kill_the_server(mounted.pid(), Duration::ZERO);
    let before = descriptors();
    let fails = fs::read("/bin/false").unwrap();
    let programs = [&b"#!/bin/false\n"[..], b"no program", &fails];
    for (number, program) in programs.into_iter().enumerate() {
        open.write_all(b"some bytes").unwrap();
        // The command itself needs a program.
        let (kept, bad) = (s.path("kept"), s.path("bad"));
        fs::rename(&place, &kept).unwrap();
        fs::write(&bad, program).unwrap();
        fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::rename(&bad, &place).unwrap();
        let mut command = std::process::Command::new(tests::program());
        s.environment(&mut command);
        let failed = tests::Ran::of(command.arg("restart").arg(mounted.dir()))
            .code(1)
            .stderr;
        assert!(failed.contains("the one before it goes on"), "{failed}");
        fs::rename(&kept, &place).unwrap();
        let status = s.json(&["status"]);
        let survival = &status["volumes"][0]["survival"];
        assert_eq!(survival["restart_refused"], true, "{status}");
        assert_eq!(survival["predecessors"], 2 * (number + 1) + 1, "{status}");
        assert_eq!(descriptors(), before, "of the keeper");
        let said = mounted.said();
        assert!(said.matches("EVFS-0819").count() > number, "{said}");
    }
    s.run(&["restart", mounted.dir().to_str().unwrap()]).ok();
    let status = s.json(&["status"]);
    assert_eq!(status["volumes"][0]["survival"]["restart_refused"], false);
    open.write_all(b" and more").unwrap();
    drop(open);
    let expected = b"some bytessome bytessome bytes and more";
    same(&fs::read(mounted.path("file")).unwrap(), expected, "file");
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn a_mount_without_a_keeper_is_not_restarted() {
    needs_root("a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    let refused = s
        .run(&["restart", mounted.dir().to_str().unwrap()])
        .code(2)
        .stderr;
    assert!(refused.contains("without --survive"), "{refused}");
    let none = s.run(&["restart"]).code(10).stderr;
    assert!(
        none.contains("no service was started with --survive"),
        "{none}"
    );
    mounted.unmount(&s);
}

#[test]
fn programs_do_not_notice_a_kill_while_the_kernel_holds_back_their_writes() {
    survives(On::Clear, &["--exclusive"], &[End::Kill, End::Restart]);
}

#[test]
fn without_its_keeper_a_server_stops_in_order() {
    needs_root("a kill of the keeper of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    let server = server_of(mounted.pid()).unwrap();
    fs::write(mounted.path("file"), CONTENT).unwrap();
    tests::signal(mounted.pid() as i32, libc::SIGKILL);
    wait_until("the server has ended", || {
        !Path::new(&format!("/proc/{server}")).exists()
    });
    assert!(
        !tests::mounts::is_mounted(mounted.dir()),
        "{}",
        mounted.said()
    );
    drop(mounted);
    disk.check_file("file", &CONTENT);
}

/// As when the machine loses its power: what was synced is there.
#[test]
fn when_both_are_killed_the_disk_has_what_was_synced() {
    needs_root("a kill of the keeper of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    fs::write(mounted.path("synced"), CONTENT).unwrap();
    File::open(mounted.path("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::write(mounted.path("not"), CONTENT).unwrap();
    let server = server_of(mounted.pid()).unwrap();
    // So that it does not see the end of the keeper.
    tests::signal(server, libc::SIGSTOP);
    tests::signal(mounted.pid() as i32, libc::SIGKILL);
    tests::signal(server, libc::SIGKILL);
    wait_until("it is gone", || {
        !Path::new(&format!("/proc/{server}")).exists()
    });
    drop(mounted);
    disk.check();
    let mounted = disk.mount(&[]);
    same(
        &fs::read(mounted.path("synced")).unwrap(),
        &CONTENT,
        "synced",
    );
    mounted.unmount(&s);
}

/// A signal to the keeper ends both, as one to the server of any mount.
#[test]
fn a_signal_to_the_keeper_ends_the_mount_in_order() {
    needs_root("a signal to the keeper of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Encrypted, "64M");
    let mounted = disk.mount(&["--survive"]);
    fs::write(mounted.path("file"), CONTENT).unwrap();
    kill_the_server(mounted.pid(), Duration::ZERO);
    tests::signal(mounted.pid() as i32, libc::SIGTERM);
    assert_eq!(mounted.ended().code(), Some(128 + libc::SIGTERM));
    disk.check_file("file", &CONTENT);
}

/// Has a request wait, kills the server, and returns the result of the successor.
fn across_a_kill<T: Send>(mounted: &Mounted, request: impl FnOnce() -> T + Send) -> T {
    let server = server_of(mounted.pid()).unwrap();
    tests::signal(server, libc::SIGSTOP);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(request);
        std::thread::sleep(Duration::from_millis(300));
        tests::signal(server, libc::SIGKILL);
        waiting.join().unwrap()
    })
}

/// A request that the predecessor has not carried out is carried out as it was made.
#[test]
fn an_attribute_that_must_be_new_is_not_replaced_by_a_repeated_request() {
    needs_root("a kill of the server of a mount");
    use rustix::fs::{XattrFlags, setxattr};
    use rustix::io::Errno;
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    let path = mounted.path("file");
    fs::write(&path, "").unwrap();
    setxattr(&path, "user.lock", b"first", XattrFlags::CREATE).unwrap();
    let set =
        |name: &str, flags| across_a_kill(&mounted, || setxattr(&path, name, b"other", flags));
    assert_eq!(set("user.lock", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.none", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("user.new", XattrFlags::CREATE), Ok(()));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&path, "user.lock", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"first");
    mounted.unmount(&s);
    disk.check();
}

/// The device may get another name, and another file its name.
#[test]
fn a_device_that_was_renamed_is_found_again() {
    needs_root("a kill of the server of a mount");
    for on in [On::Clear, On::Encrypted] {
        let s = Sandbox::new();
        let disk = Disk::new(&s, on, "64M");
        let mounted = disk.mount(&["--survive"]);
        let device = s.path(disk.device());
        fs::write(mounted.path("file"), CONTENT).unwrap();
        fs::rename(&device, s.path("renamed")).unwrap();
        fs::write(&device, [0; 4096]).unwrap();
        kill_the_server(mounted.pid(), Duration::ZERO);
        let found = fs::read(mounted.path("file")).unwrap();
        same(&found, &CONTENT, "file");
        mounted.unmount(&s);
        fs::rename(s.path("renamed"), &device).unwrap();
        disk.check();
    }
}

#[test]
fn a_read_only_mount_survives_and_its_device_is_free_after_the_unmount() {
    needs_root("kills of the server of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    fs::write(mounted.path("file"), CONTENT).unwrap();
    mounted.unmount(&s);
    // This opens the device.
    disk.check();
    let mounted = disk.mount(&["--survive", "--read-only"]);
    let mut open = File::open(mounted.path("file")).unwrap();
    for _ in 0..2 {
        kill_the_server(mounted.pid(), Duration::ZERO);
        let mut found = Vec::new();
        open.rewind().unwrap();
        open.read_to_end(&mut found).unwrap();
        same(&found, &CONTENT, "file");
    }
    drop(open);
    mounted.unmount(&s);
}

/// Waits for the end of a mount that cannot be continued: one server has tried, and no other one does.
#[track_caller]
fn ends_after_one_attempt(mounted: Mounted) -> ExitStatus {
    let log = mounted.log().to_owned();
    let status = mounted.ended();
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(said.matches("EVFS-0817").count(), 1, "{said}");
    assert!(!said.contains("EVFS-0818"), "{said}");
    status
}

/// All changes are durable then, although no program has synced them.
#[test]
fn a_mount_that_was_unmounted_while_its_server_was_dead_ends_in_order() {
    needs_root("a kill of the server of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    fs::write(mounted.path("file"), CONTENT).unwrap();
    let server = server_of(mounted.pid()).unwrap();
    tests::signal(server, libc::SIGSTOP);
    let mut umount = Command::new("umount");
    let mut umount = umount.arg("-l").arg(mounted.dir()).spawn().unwrap();
    wait_until("it is unmounted", || {
        !tests::mounts::is_mounted(mounted.dir())
    });
    tests::signal(server, libc::SIGKILL);
    ends_after_one_attempt(mounted);
    let _ = umount.wait();
    disk.check_file("file", &CONTENT);
}

/// A damaged log ends the mount at once; what was synced is there.
#[test]
fn a_damaged_log_ends_the_mount_with_what_was_synced() {
    needs_root("a kill of the server of a mount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&["--survive"]);
    fs::write(mounted.path("synced"), CONTENT).unwrap();
    let synced = File::open(mounted.path("synced")).unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    for number in 0..50 {
        fs::write(mounted.path(&format!("lost{number}")), [8; 5000]).unwrap();
    }
    let server = server_of(mounted.pid()).unwrap();
    tests::signal(server, libc::SIGSTOP);
    let log = memory_of(mounted.pid(), "evfs-log");
    let mut words = vec![0; 1 << 20];
    log.read_exact_at(&mut words, 0).unwrap();
    // Behind its head; which entries are in use is not important.
    for word in words[128..].chunks_exact_mut(8) {
        if word.iter().any(|byte| *byte != 0) {
            word[3] ^= 0x10;
        }
    }
    log.write_all_at(&words, 0).unwrap();
    tests::signal(server, libc::SIGKILL);
    let code = ends_after_one_attempt(mounted).code();
    assert!(matches!(code, Some(1..)), "{code:?}");
    disk.check_file("synced", &CONTENT);
}

#[test]
fn what_cannot_be_continued_is_refused() {
    needs_root("mounts");
    let s = Sandbox::new();
    tests::peer(
        "mkfs.vfat",
        &["-C", s.path("fat.img").to_str().unwrap(), "20000"],
    );
    fs::create_dir(s.path("mnt")).unwrap();
    let refused = s.run(&["mount", "fat.img", "mnt", "--survive", "--background"]);
    let said = refused.code(2).stderr;
    assert!(said.contains("--survive"), "{said}");
}
