//! The process that serves a mounted file system is killed, its disk fills up, its device fails: no
//! synced data is lost, and every caller gets the right error.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=200` | number of kills (default: 20), over clear, encrypted and `--exclusive` |
//! | `EVFS_SEED=N` | repeats the same changes, as far as timing permits |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;
use tests::mounts::{Disk, Mounted, On};
use tests::targets::{free_port, image, nbdkit, nbdkit_that_fails};
use tests::writer::Writer;
use tests::{Random, Sandbox, needs_root, peer, wait_until};

/// Errors of calls on a mount whose process has died.
const GONE: [i32; 2] = [libc::ENOTCONN, libc::ECONNABORTED];

fn kill_again_and_again(on: On, options: &'static [&'static str]) {
    let kills = std::env::var("EVFS_TEST_KILLS").map_or(20, |n| n.parse().expect("a number"));
    let kills = u64::div_ceil(kills, 3);
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let mut disk = Disk::new(&s, on, "192M").with(options);
    let mut writers: Vec<_> = (0..3)
        .map(|n| Writer::new(&format!("writer{n}"), random.below(1 << 16)))
        .collect();
    let mounted = disk.mount(&[]);
    for writer in &mut writers {
        writer.begin(mounted.dir()).unwrap();
    }
    mounted.unmount(&s);
    for kill in 0..kills {
        // Commits may or may not occur between two kills.
        let interval = ["100", "300", "5000"][random.below(3) as usize];
        disk.set("EVFS_FS_COMMIT_INTERVAL_MS", interval);
        let mounted = disk.mount(&[]);
        let dir = mounted.dir().to_owned();
        let verified = Barrier::new(writers.len() + 1);
        let pause = Duration::from_millis(random.below(700));
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let (dir, verified) = (&dir, &verified);
                scope.spawn(move || {
                    // A writer that finds an error must still reach the barrier.
                    let look = std::panic::AssertUnwindSafe(|| writer.verify(dir));
                    let looked = std::panic::catch_unwind(look);
                    verified.wait();
                    looked.unwrap_or_else(|fault| std::panic::resume_unwind(fault));
                    let error = writer.work(dir);
                    let known = error.raw_os_error().is_some_and(|e| GONE.contains(&e));
                    assert!(known, "kill {kill}: {error}");
                });
            }
            verified.wait();
            std::thread::sleep(pause);
            mounted.kill();
        });
        if random.below(4) == 0 {
            // A kill while it is mounted.
            let mounted = disk.mount_soon(&[]);
            std::thread::sleep(Duration::from_millis(random.below(150)));
            mounted.kill();
        }
        disk.check();
    }
    let mounted = disk.mount(&[]);
    writers.iter_mut().for_each(|w| w.verify(mounted.dir()));
    let promises: u64 = writers.iter().map(|w| w.promises).sum();
    eprintln!("{promises} promises, {kills} kills");
    assert!(
        promises > kills,
        "only {promises} syncs in {kills} lives: nothing was tested"
    );
    // Space of unnamed files that killed processes had open is released, too.
    for entry in fs::read_dir(mounted.dir()).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    mounted.unmount(&s);
    let empty = s.json(&["df", disk.device()]);
    let main = &empty["filesets"][0];
    assert_eq!(
        [&main["used_bytes"], &main["used_inodes"]],
        [0, 1],
        "{empty}"
    );
    disk.check();
}

#[test]
fn kill_9_loses_nothing_that_was_synced_on_a_clear_file() {
    kill_again_and_again(On::Clear, &[]);
}

#[test]
fn kill_9_loses_nothing_that_was_synced_on_an_encrypted_volume() {
    kill_again_and_again(On::Encrypted, &[]);
}

#[test]
fn kill_9_loses_nothing_that_was_synced_through_the_cache_of_the_kernel() {
    kill_again_and_again(On::Clear, &["--exclusive"]);
}

/// Files with known content, each made durable.
struct Kept(BTreeMap<String, Vec<u8>>);

impl Kept {
    fn make(dir: &Path, count: u64) -> Kept {
        let mut kept = BTreeMap::new();
        let mut random = Random::new(count);
        for n in 0..count {
            let name = format!("kept{n}");
            let len = random.below(60_000) as usize;
            let bytes = random.bytes(len);
            let mut file = File::create(dir.join(&name)).unwrap();
            file.write_all(&bytes).unwrap();
            file.sync_all().unwrap();
            kept.insert(name, bytes);
        }
        Kept(kept)
    }

    #[track_caller]
    fn are_whole(&self, dir: &Path) {
        for (name, bytes) in &self.0 {
            let found = fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(found == *bytes, "{name} has changed");
        }
    }
}

/// Writes to a file until a write fails; returns the bytes written, and the error.
fn fill(path: &Path) -> (u64, io::Error) {
    let mut file = File::create(path).unwrap();
    let piece = vec![7; 64 << 10];
    let mut len = 0;
    loop {
        match file.write(&piece) {
            Ok(n) => len += n as u64,
            Err(error) => return (len, error),
        }
    }
}

/// Creates small files until one fails; returns their number, and the error.
fn fill_with_files(dir: &Path) -> (u64, io::Error) {
    fs::create_dir(dir).unwrap();
    let mut count = 0;
    loop {
        let path = dir.join(count.to_string());
        let made = File::create(&path).and_then(|mut file| file.write_all(&[7; 3000]));
        match made {
            Ok(()) => count += 1,
            Err(error) => {
                let _ = fs::remove_file(path);
                return (count, error);
            }
        }
    }
}

#[test]
fn a_full_disk_says_so_and_goes_on() {
    let s = Sandbox::new();
    for on in [On::Clear, On::Encrypted] {
        let disk = Disk::new(&s, on, "48M");
        let mounted = disk.mount(&[]);
        let kept = Kept::make(mounted.dir(), 20);
        let full = |error: &io::Error| {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        };
        let (len, error) = fill(&mounted.path("big"));
        full(&error);
        assert!(
            len > 20 << 20,
            "only {len} bytes in a disk of 48 MiB, less a header"
        );
        // Space is allocated for all accepted data.
        File::open(mounted.path("big")).unwrap().sync_all().unwrap();
        assert_eq!(fs::metadata(mounted.path("big")).unwrap().len(), len);
        kept.are_whole(mounted.dir());
        // A truncation and a removal free space, which is available at once.
        let big = File::options()
            .write(true)
            .open(mounted.path("big"))
            .unwrap();
        big.set_len(1 << 20).unwrap();
        big.sync_all().unwrap();
        let (count, error) = fill_with_files(&mounted.path("small"));
        full(&error);
        assert!(count > 2000, "only {count} files of 3000 bytes");
        File::open(mounted.path("small"))
            .unwrap()
            .sync_all()
            .unwrap();
        fs::remove_file(mounted.path("big")).unwrap();
        for n in 0..count / 4 {
            fs::remove_file(mounted.path("small").join(n.to_string())).unwrap();
        }
        fs::write(mounted.path("after"), vec![8; 2 << 20]).unwrap();
        fs::remove_dir_all(mounted.path("small")).unwrap();
        let (again, error) = fill(&mounted.path("big"));
        full(&error);
        let after = fs::metadata(mounted.path("after")).unwrap().len();
        assert!(
            again + after > len / 10 * 8,
            "{again} bytes now beside {after}, {len} before"
        );
        // The worst moment for a kill.
        mounted.kill();
        disk.check();
        let mounted = disk.mount(&[]);
        kept.are_whole(mounted.dir());
        let _ = fs::remove_file(mounted.path("big"));
        let more = Kept::make(mounted.dir(), 30);
        mounted.unmount(&s);
        disk.check();
        let mounted = disk.mount(&["--read-only"]);
        more.are_whole(mounted.dir());
        let refused = File::create(mounted.path("no")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        mounted.unmount(&s);
    }
}

#[test]
fn a_full_fileset_says_so_and_its_neighbour_does_not_notice() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "128M");
    let device = disk.device();
    let create = ["fileset", "create", device, "home"];
    s.run(&[&create[..], &["--quota", "8M", "--files", "50"]].concat())
        .ok();
    let mounted = disk.mount(&["--fileset", "home"]);
    let quota = |error: &io::Error| {
        assert_eq!(error.raw_os_error(), Some(libc::EDQUOT), "{error}");
    };
    let kept = Kept::make(mounted.dir(), 10);
    let (len, error) = fill(&mounted.path("big"));
    quota(&error);
    assert!(len <= 8 << 20, "{len} bytes in 8 MiB");
    assert!(len > 6 << 20, "only {len} bytes in 8 MiB");
    File::open(mounted.path("big")).unwrap().sync_all().unwrap();
    fs::remove_file(mounted.path("big")).unwrap();
    let (count, error) = fill_with_files(&mounted.path("small"));
    quota(&error);
    assert!(count < 50, "{count} files of at most 50");
    // The limit is raised while it is mounted.
    let allow = ["fileset", "quota", device, "home", "20M", "--files", "0"];
    s.run(&allow).ok();
    fs::write(mounted.path("small/more"), vec![1; 100]).unwrap();
    let (len, error) = fill(&mounted.path("big"));
    quota(&error);
    assert!(len > 12 << 20, "only {len} bytes in 20 MiB");
    mounted.unmount(&s);
    let mounted = disk.mount(&[]);
    fs::write(mounted.path("neighbour"), vec![1; 30 << 20]).unwrap();
    File::open(mounted.path("neighbour"))
        .unwrap()
        .sync_all()
        .unwrap();
    mounted.unmount(&s);
    let mounted = disk.mount(&["--fileset", "home"]);
    kept.are_whole(mounted.dir());
    mounted.kill();
    disk.check();
}

/// Writes and syncs one file after the other until a sync fails. Returns the synced files, and the
/// error.
fn sync_until_it_fails(dir: &Path) -> (BTreeMap<String, Vec<u8>>, io::Error) {
    let mut kept = BTreeMap::new();
    let mut random = Random::new(5);
    for n in 0u64.. {
        let name = format!("until{n}");
        let bytes = random.bytes(200_000);
        let made = File::create(dir.join(&name))
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
        if let Err(error) = made {
            return (kept, error);
        }
        kept.insert(name, bytes);
        assert!(n < 2000, "nothing has failed");
    }
    unreachable!("numbers do not end")
}

/// Checks after a device failure that synced data is readable, also after another mount.
fn after_the_failure(s: &Sandbox, disk: &Disk, mounted: Mounted, kept: &[Kept]) {
    kept.iter().for_each(|kept| kept.are_whole(mounted.dir()));
    // It may have become read-only, with the reason in its log, or continue to work.
    match fs::write(mounted.path("later"), "later") {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
            assert!(mounted.said().contains("EVFS-0201"), "{}", mounted.said());
        }
    }
    mounted.kill();
    disk.check();
    let mounted = disk.mount(&[]);
    kept.iter().for_each(|kept| kept.are_whole(mounted.dir()));
    fs::write(mounted.path("much later"), "much later").unwrap();
    mounted.unmount(s);
    disk.check();
}

#[test]
fn a_device_that_fails_is_an_io_error_and_loses_nothing_that_was_synced() {
    let s = Sandbox::new();
    let port = free_port();
    let (disk, broken) = (image(&s, "disk", 192 << 20), s.path("broken"));
    let _server = nbdkit_that_fails(&disk, port, &broken);
    let uri = format!("nbd://127.0.0.1:{port}/e");
    s.run(&["lun", "scan", &uri]).ok();
    s.run(&["format", "disk1"]).ok();
    let disk = Disk::existing(&s, "disk1");
    let mounted = disk.mount(&[]);
    let kept = Kept::make(mounted.dir(), 20);
    File::create(&broken).unwrap();
    let (none, error) = sync_until_it_fails(mounted.dir());
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(
        none.is_empty(),
        "a device that takes nothing promised something"
    );
    kept.are_whole(mounted.dir());
    fs::remove_file(&broken).unwrap();
    after_the_failure(&s, &disk, mounted, &[kept]);
}

/// Changes of names need the journal; when it fails, no more of them are accepted.
#[test]
fn a_journal_that_cannot_be_written_ends_changes_with_an_error_for_each() {
    let s = Sandbox::new();
    let port = free_port();
    let (disk, broken) = (image(&s, "disk", 192 << 20), s.path("broken"));
    let _server = nbdkit_that_fails(&disk, port, &broken);
    s.run(&["lun", "scan", &format!("nbd://127.0.0.1:{port}/e")])
        .ok();
    s.run(&["format", "disk1"]).ok();
    let mut disk = Disk::existing(&s, "disk1");
    disk.set("EVFS_FS_COMMIT_INTERVAL_MS", "100");
    let mounted = disk.mount(&[]);
    let kept = Kept::make(mounted.dir(), 20);
    let told = |result: io::Result<()>| result.map_err(|e| e.raw_os_error());
    File::create(&broken).unwrap();
    fs::create_dir(mounted.path("lost")).unwrap();
    let synced = File::open(mounted.dir()).and_then(|dir| dir.sync_all());
    assert!(
        [Err(Some(libc::EIO)), Err(Some(libc::EROFS))].contains(&told(synced)),
        "a journal that takes nothing promised something"
    );
    wait_until("no more changes are taken", || {
        told(fs::create_dir(mounted.path("later"))) == Err(Some(libc::EROFS))
            || fs::remove_dir(mounted.path("later")).is_err()
    });
    // Existing files can be read and listed, even once the device would accept writes again.
    fs::remove_file(&broken).unwrap();
    kept.are_whole(mounted.dir());
    assert!(fs::read_dir(mounted.dir()).unwrap().count() > 20);
    assert_eq!(
        told(fs::write(mounted.path("no"), "no")),
        Err(Some(libc::EROFS))
    );
    let shown = s.run(&["status"]).ok().stdout;
    assert!(shown.contains("read-only after an error"), "{shown}");
    let checked = s.run(&["--json", "status", "--check"]).code(26).stdout;
    let status: serde_json::Value = serde_json::from_str(&checked).unwrap();
    let health = &status["volumes"][0]["health"];
    assert!(
        ["read-only", "failing"]
            .map(Some)
            .contains(&health["state"].as_str()),
        "{health}"
    );
    // A plain unmount would lose data that is only in memory.
    let dir = mounted.dir().to_owned();
    let refused = s.run(&[Path::new("unmount"), &dir]).code(1);
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    let unmount = [Path::new("unmount"), Path::new("--force"), &dir];
    let given_up = s.run(&unmount).code(30);
    assert!(
        given_up.stderr.contains("read-only after an error"),
        "{}",
        given_up.stderr
    );
    assert!(mounted.ended().code().is_some(), "it was killed");
    disk.check();
    let mounted = disk.mount(&[]);
    kept.are_whole(mounted.dir());
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn a_full_disk_below_that_keeps_a_mount_away_says_what_works() {
    needs_root("a small file system of the kernel below");
    let s = Sandbox::new();
    let _unmounted = format_on_small(&s);
    let disk = Disk::existing(&s, "small/disk.img");
    let mounted = disk.mount(&[]);
    let kept = Kept::make(mounted.dir(), 20);
    let (more, _) = sync_until_it_fails(mounted.dir());
    mounted.kill();
    // No space is left for the journal, either.
    fill(&s.path("small/rest"));
    let dir = s.path("mnt").display().to_string();
    let mount = ["mount", "small/disk.img", &dir, "--background"];
    let refused = s.run(&mount).code(1);
    for word in ["no space left", "remove files", "--read-only"] {
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
    let mounted = disk.mount(&["--read-only"]);
    kept.are_whole(mounted.dir());
    Kept(more).are_whole(mounted.dir());
    mounted.unmount(&s);
    fs::remove_file(s.path("small/rest")).unwrap();
    grow_small(&s);
    disk.mount(&[]).unmount(&s);
}

/// Formats `small/disk.img`, 192 MiB, on a tmpfs of 40 MiB at `small`.
fn format_on_small(s: &Sandbox) -> Unmounted {
    fs::create_dir(s.path("small")).unwrap();
    let small = s.path("small").display().to_string();
    peer("mount", &["-t", "tmpfs", "-o", "size=40M", "tmpfs", &small]);
    let mounted = Unmounted(s.path("small"));
    s.run(&["format", "small/disk.img", "--size", "192M"]).ok();
    mounted
}

/// Enlarges that tmpfs for the whole file system.
fn grow_small(s: &Sandbox) {
    let small = s.path("small").display().to_string();
    peer("mount", &["-o", "remount,size=300M", &small]);
}

/// A mount of the kernel, removed on drop.
struct Unmounted(std::path::PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        tests::mounts::take_away(&self.0);
    }
}

#[test]
fn a_backing_file_that_finds_no_room_loses_nothing_that_was_synced() {
    needs_root("a small file system of the kernel below");
    let s = Sandbox::new();
    let _unmounted = format_on_small(&s);
    let disk = Disk::existing(&s, "small/disk.img");
    let mounted = disk.mount(&[]);
    let kept = Kept::make(mounted.dir(), 20);
    let (more, error) = sync_until_it_fails(mounted.dir());
    let told = error.raw_os_error();
    assert!(
        told == Some(libc::EIO) || told == Some(libc::ENOSPC),
        "{error}"
    );
    kept.are_whole(mounted.dir());
    grow_small(&s);
    after_the_failure(&s, &disk, mounted, &[kept, Kept(more)]);
}

#[test]
fn a_server_that_goes_and_comes_back_is_only_a_pause() {
    let s = Sandbox::new();
    let disk = image(&s, "disk", 192 << 20);
    let port = free_port();
    let mut server = Some(nbdkit(&disk, port));
    let uri = format!("nbd://127.0.0.1:{port}/e");
    s.run(&["lun", "scan", &uri]).ok();
    s.run(&["format", "disk1"]).ok();
    let lun = Disk::existing(&s, "disk1");
    let mounted = lun.mount(&[]);
    let mut writer = Writer::new("writer", 11);
    writer.begin(mounted.dir()).unwrap();
    for _ in 0..3 {
        server = None;
        std::thread::scope(|scope| {
            let (writer, dir) = (&mut writer, mounted.dir());
            let steps = scope.spawn(move || (0..60).try_for_each(|_| writer.step(dir)));
            wait_until("the path is gone", || {
                let shown = s.json(&["lun", "show", "disk1"]);
                shown["paths"][0]["state"] != "active"
            });
            server = Some(nbdkit(&disk, port));
            steps.join().unwrap().unwrap();
        });
    }
    mounted.kill();
    lun.check();
    let mounted = lun.mount(&[]);
    writer.verify(mounted.dir());
    mounted.unmount(&s);
    lun.check();
    drop(server);
}

#[test]
fn what_a_flush_of_the_cache_covered_survives_kill_9() {
    needs_root("a mount that is killed");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Encrypted, "64M");
    let mounted = disk.mount(&[]);
    fs::write(mounted.dir().join("precious"), "content").unwrap();
    s.run(&["cache", "flush", "encrypted"]).ok();
    mounted.kill();
    let mounted = disk.mount(&[]);
    let kept = fs::read(mounted.dir().join("precious")).unwrap();
    assert_eq!(kept, b"content");
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn unsynced_changes_survive_kill_9_soon_after_the_last_one() {
    needs_root("a mount that is killed");
    for options in [&[][..], &["--sync-timeout", "0"]] {
        kill_later_and_later(options);
    }
}

fn kill_later_and_later(options: &'static [&'static str]) {
    let s = Sandbox::new();
    let mut disk = Disk::new(&s, On::Clear, "64M").with(options);
    // Neither names nor content are written back by age during this test.
    disk.set("EVFS_FS_COMMIT_INTERVAL_MS", "300000");
    disk.set("EVFS_CACHE_TUNABLES", "sync_interval_ms=3600000");
    let mut pause = Duration::from_millis(125);
    wait_until("what has not changed for a while is written out", || {
        let mounted = disk.mount(&[]);
        let file = mounted.dir().join(format!("after {pause:?}"));
        fs::write(&file, "content").unwrap();
        // Each kill comes later than the one before.
        std::thread::sleep(pause);
        pause *= 2;
        mounted.kill();
        let mounted = disk.mount(&[]);
        let kept = fs::read(&file).is_ok_and(|content| content == b"content");
        mounted.unmount(&s);
        kept
    });
    disk.check();
}

#[test]
fn a_directory_can_be_mounted_while_the_process_that_served_it_dies() {
    let s = Sandbox::new();
    let first = Disk::new(&s, On::Clear, "64M");
    s.run(&["format", "other.img", "--size", "64M"]).ok();
    let other = Disk::existing(&s, "other.img");
    let dying = first.mount(&[]);
    let pid = dying.pid().to_string();
    peer("kill", &["-s", "STOP", &pid]);
    let mounted = other.mount_soon(&[]);
    let tasks = format!("/proc/{}/task", mounted.pid());
    let asks = |task: io::Result<fs::DirEntry>| {
        let call = task.and_then(|task| fs::read_to_string(task.path().join("syscall")));
        let number = call.ok()?.split(' ').next()?.parse().ok()?;
        Some([libc::SYS_statfs, libc::SYS_statx].contains(&number))
    };
    wait_until("it asks what is mounted there", || {
        fs::read_dir(&tasks).is_ok_and(|mut tasks| tasks.any(|task| asks(task) == Some(true)))
    });
    // A pending request fails with another error than a later one.
    dying.kill();
    mounted.wait_for(&[]);
    mounted.unmount(&s);
}
