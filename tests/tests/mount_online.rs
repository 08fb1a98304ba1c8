//! Checks and defragmentation of a mounted file system, while others write to it; and shrinking what
//! was written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tests::mounts::{Disk, On};
use tests::{Random, Sandbox};

/// Ends the work of others, also if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Writes pieces of files in turn until `over`, removes and renames some, and returns what they
/// contain then. Continues at least until each has a few pieces.
fn write(dir: &Path, seed: u64, over: &AtomicBool) -> Vec<Vec<u8>> {
    const FILES: usize = 12;
    fs::create_dir(dir).unwrap();
    let mut random = Random::new(seed);
    let mut contents = vec![Vec::new(); FILES];
    let mut rounds = 0;
    while rounds < 20 || !over.load(Relaxed) {
        rounds += 1;
        for (i, content) in contents.iter_mut().enumerate() {
            let path = dir.join(format!("file {i}"));
            let file = fs::File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .unwrap();
            let at = if content.len() < 400_000 {
                content.len()
            } else {
                random.below(400_000) as usize
            };
            let data = random.bytes(4096);
            file.write_all_at(&data, at as u64).unwrap();
            content.resize(content.len().max(at + data.len()), 0);
            content[at..at + data.len()].copy_from_slice(&data);
            if random.below(3) == 0 {
                file.sync_data().unwrap();
            }
        }
        let one = random.below(FILES as u64) as usize;
        let path = dir.join(format!("file {one}"));
        match random.below(12) {
            0 => {
                fs::remove_file(&path).unwrap();
                contents[one].clear();
            }
            1 => {
                let other = dir.join("other");
                fs::rename(&path, &other).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            _ => {}
        }
    }
    contents
}

fn compare(dir: &Path, contents: &[Vec<u8>]) {
    for (i, content) in contents.iter().enumerate() {
        let found = fs::read(dir.join(format!("file {i}"))).unwrap_or_default();
        assert!(found == *content, "file {i} of {}", dir.display());
    }
}

#[test]
fn a_mounted_file_system_is_checked_and_defragmented_while_files_change() {
    for on in [On::Clear, On::Encrypted] {
        let s = Sandbox::new();
        let disk = Disk::new(&s, on, "256M");
        let mounted = disk.mount(&[]);
        let at = mounted.dir().to_str().unwrap().to_owned();
        let over = AtomicBool::new(false);
        let dirs = [mounted.path("one"), mounted.path("two")];
        let contents: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
            let over = &over;
            let writers: Vec<_> = (1..)
                .zip(&dirs)
                .map(|(seed, dir)| scope.spawn(move || write(dir, seed, over)))
                .collect();
            let ends = Over(over);
            let mut moved = 0;
            for _ in 0..6 {
                let checked = s.json(&["fsck", "--online", &at]);
                assert_eq!(checked["clean"], true, "{checked}");
                let done = s.json(&["defrag", &at, "--rate", "500M"]);
                moved += done["moved_blocks"].as_u64().unwrap();
            }
            assert!(moved > 0);
            drop(ends);
            writers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        let all = || dirs.iter().zip(&contents);
        all().for_each(|(dir, contents)| compare(dir, contents));
        let done = s.json(&["defrag", &at, "one"]);
        assert_eq!(done["files"], 12, "{done}");
        s.run(&["defrag", &at, "none"]).code(10);
        let shown = s
            .run(&["fsck", "--online", &at, "--rate", "1G"])
            .ok()
            .stdout;
        assert!(shown.trim_end().ends_with("clean"), "{shown}");
        mounted.unmount(&s);
        disk.check();
        let mounted = disk.mount(&["--read-only"]);
        all().for_each(|(dir, contents)| compare(dir, contents));
        s.run(&["fsck", "--online", disk.device()]).ok();
        s.run(&["defrag", &at]).code(1);
        mounted.unmount(&s);
        s.run(&["fsck", "--online", disk.device()]).ok();
    }
}

#[test]
fn damage_of_the_metadata_of_a_mounted_file_system_is_found_logged_and_shown() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    for i in 0..200 {
        fs::write(mounted.path(&format!("a name {i:03}")), "text").unwrap();
    }
    mounted.unmount(&s);
    let mounted = disk.mount(&[]);
    let at = mounted.dir().to_str().unwrap().to_owned();
    let image = s.path(disk.device());
    let bytes = fs::read(&image).unwrap();
    let name = b"a name 123";
    let places = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name));
    let file = fs::File::options().write(true).open(&image).unwrap();
    let places: Vec<usize> = places.collect();
    assert!(!places.is_empty());
    for place in &places {
        file.write_all_at(b"b", *place as u64).unwrap();
    }
    file.sync_all().unwrap();
    let ran = s.run(&["--json", "fsck", "--online", &at]).code(26);
    let checked: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let problems = checked["found"]["problems"].to_string();
    assert!(problems.contains("checksum"), "{checked}");
    assert!(mounted.said().contains("EVFS-0815"), "{}", mounted.said());
    let status = s.json(&["status", &at])["volumes"][0].clone();
    assert_eq!(status["health"]["state"], "degraded", "{status}");
    let told = s
        .run(&["fsck", "--online", &at, "--repair"])
        .code(26)
        .stdout;
    assert!(told.contains("detach"), "{told}");
    for place in &places {
        file.write_all_at(b"a", *place as u64).unwrap();
    }
    file.sync_all().unwrap();
    // The process may have the damaged page in memory.
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn files_are_whole_after_a_shrink_that_was_killed_again_and_again() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    for on in [On::Clear, On::Encrypted] {
        let disk = Disk::new(&s, on, "160M");
        let mounted = disk.mount(&[]);
        let write = |i: u64, random: &mut Random| {
            let data = random.bytes(4 << 20);
            let mut file = fs::File::create(mounted.path(&format!("file {i}"))).unwrap();
            file.write_all(&data).unwrap();
            // A file that is removed before it is written out takes no place.
            file.sync_all().unwrap();
            data
        };
        // The first ones make room, so that the others are far from the start.
        (0..22).for_each(|i| drop(write(i, &mut random)));
        let kept: Vec<Vec<u8>> = (22..28).map(|i| write(i, &mut random)).collect();
        for i in 0..22 {
            fs::remove_file(mounted.path(&format!("file {i}"))).unwrap();
        }
        mounted.unmount(&s);
        let minimum = s.json(&["shrink", disk.device(), "--minimum"]);
        let minimum = minimum["minimum_bytes"].as_u64().unwrap();
        assert!(minimum < 80 << 20, "{minimum}");
        let size = (minimum + (2 << 20)).to_string();
        let shrink = ["shrink", disk.device(), "--size", &size, "--yes"];
        let planned = s.json(&[&shrink[..], &["--dry-run"]].concat());
        assert!(planned["moved_bytes"].as_u64() > Some(8 << 20), "{planned}");
        for _ in 0..8 {
            let mut command = s.evfs();
            command.args(shrink);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::sleep(Duration::from_micros(random.below(150_000)));
            let _ = child.kill();
            child.wait().unwrap();
            disk.check();
        }
        let length = || fs::metadata(s.path(disk.device())).unwrap().len();
        if length() != size.parse::<u64>().unwrap() {
            s.run(&shrink).ok();
        }
        assert_eq!(length().to_string(), size);
        disk.check();
        let mounted = disk.mount(&[]);
        for (i, data) in (22..).zip(&kept) {
            let found = fs::read(mounted.path(&format!("file {i}"))).unwrap();
            assert!(found == *data, "file {i}");
        }
        fs::write(mounted.path("more"), "text").unwrap();
        s.run(&["shrink", disk.device(), "--minimum"]).code(11);
        mounted.unmount(&s);
        disk.check();
    }
}
