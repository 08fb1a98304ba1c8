//! The tables that the server of a mount with `--survive` leaves are damaged, and it is killed. The
//! mount goes on with every byte, or it ends, and the disk has what was synced.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_FLIPS=1000` | number of damaged tables (default: 5) |
//! | `EVFS_SEED=N` | repeats the same damage, as far as timing permits |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tests::kept::{memory_of, server_of};
use tests::mounts::{Disk, Mounted, On};
use tests::{Random, Sandbox, needs_root, signal};

const TABLES: [&str; 5] = [
    "evfs-log",
    "evfs-pages",
    "evfs-requests",
    "evfs-open-files",
    "evfs-mount",
];

/// Bytes of a table that are damaged at most; entries are at the beginning of each.
const DAMAGED: usize = 1 << 20;

type Files = BTreeMap<String, Vec<u8>>;

/// Reads all files; `None` if the mount has ended.
fn read_all(mounted: &Mounted) -> Option<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(mounted.dir()).ok()? {
        let entry = entry.ok()?;
        let name = entry
            .file_name()
            .into_string()
            .expect("a name of this test");
        files.insert(name, fs::read(entry.path()).ok()?);
    }
    // A directory without the mount could be read as well.
    (!files.is_empty()).then_some(files)
}

/// Flips one to three bits in words of a table that are in use.
fn damage(keeper: u32, table: &str, random: &mut Random) -> bool {
    let memory = memory_of(keeper, table);
    let len = memory.metadata().unwrap().len().min(DAMAGED as u64);
    let mut bytes = vec![0; len as usize];
    memory.read_exact_at(&mut bytes, 0).unwrap();
    let used = bytes.chunks(8).enumerate();
    let used = used.filter(|(_, word)| word.iter().any(|byte| *byte != 0));
    let used: Vec<usize> = used.map(|(word, _)| word).collect();
    if used.is_empty() {
        return false;
    }
    for _ in 0..=random.below(3) {
        let word = used[random.below(used.len() as u64) as usize];
        let at = (word * 8 + random.below(8) as usize).min(bytes.len() - 1);
        bytes[at] ^= 1 << random.below(8);
        memory.write_all_at(&bytes[at..=at], at as u64).unwrap();
    }
    true
}

fn write(path: &Path, bytes: &[u8], synced: bool) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    if synced {
        file.sync_all().unwrap();
    }
}

/// Compares what a disk has after the mount has ended: all that was synced, and of the rest nothing
/// that was not written.
fn check_rest(found: &Files, synced: &Files, all: &Files) {
    for (name, bytes) in synced {
        assert!(found.get(name) == Some(bytes), "{name} was synced");
    }
    for (name, bytes) in found {
        let written = all
            .get(name)
            .unwrap_or_else(|| panic!("{name} was never written"));
        assert!(bytes.len() <= written.len(), "length of {name}");
        let differs = bytes
            .iter()
            .zip(written)
            .position(|(found, written)| *found != 0 && found != written);
        assert!(differs.is_none(), "{name} at {differs:?}");
    }
}

#[test]
fn damaged_tables_never_lead_to_a_wrong_byte() {
    needs_root("the memory of another process");
    let count = std::env::var("EVFS_FLIPS").map_or(5, |n| n.parse().expect("a number"));
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "256M");
    let mut random = Random::from_environment();
    let (mut synced, mut ends) = (Files::new(), 0);
    for number in 0..count {
        let mounted = disk.mount(&["--survive"]);
        let mut all = synced.clone();
        let mut open = File::create(mounted.path("open")).unwrap();
        for n in 0..12 {
            let name = format!("file{}", random.below(30));
            let len = random.below(40_000) as usize + 1;
            let bytes: Vec<u8> = random.bytes(len).iter().map(|byte| byte | 1).collect();
            // One that was synced stays as it is.
            if synced.contains_key(&name) {
                continue;
            }
            write(&mounted.path(&name), &bytes, n < 2);
            if n < 2 {
                synced.insert(name.clone(), bytes.clone());
            }
            all.insert(name, bytes);
        }
        open.write_all(b"open").unwrap();
        all.insert("open".into(), b"open".to_vec());
        let server = server_of(mounted.pid()).unwrap();
        signal(server, libc::SIGSTOP);
        let table = TABLES[number % TABLES.len()];
        let is_damaged = damage(mounted.pid(), table, &mut random);
        signal(server, libc::SIGKILL);
        let context = format!("{number}: {table}, damaged: {is_damaged}");
        match read_all(&mounted) {
            Some(found) => {
                let differs = found
                    .iter()
                    .zip(&all)
                    .find(|(found, written)| found != written);
                let differs = differs.map(|((name, _), _)| name);
                let right = differs.is_none() && found.len() == all.len();
                assert!(right, "{context}: {differs:?}: {}", mounted.said());
                open.write_all(b" still").unwrap();
                drop(open);
                mounted.unmount(&s);
            }
            None => {
                assert!(is_damaged, "{context}: {}", mounted.said());
                ends += 1;
                drop(open);
                mounted.ended();
            }
        }
        disk.check();
        let mounted = disk.mount(&[]);
        let found = read_all(&mounted).expect("it is mounted");
        all.insert("open".into(), b"open still".to_vec());
        check_rest(&found, &synced, &all);
        for name in found.keys().filter(|name| !synced.contains_key(*name)) {
            fs::remove_file(mounted.path(name)).unwrap();
        }
        if synced.len() > 20 {
            for name in std::mem::take(&mut synced).keys() {
                fs::remove_file(mounted.path(name)).unwrap();
            }
            File::create(mounted.path("file")).unwrap();
            synced.insert("file".into(), Vec::new());
        }
        mounted.unmount(&s);
    }
    eprintln!("{count} damaged tables; {ends} mounts ended");
}
