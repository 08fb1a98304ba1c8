//! Keyed checksums against an attacker who can write to the disk.
//!
//! Goal: whatever the attacker does to single blocks, each thing that a reader sees is as the owner
//! left it, or an error, or the file system is refused. The attacker flips bits, zeroes blocks, swaps
//! them, puts back older ones, of data, metadata, superblock and journal, and recomputes the unkeyed
//! checksums. Method: images are attacked at random, and read as a whole. The same attacks on a file
//! system without keys return wrong content, which shows that they could.
//!
//! `EVFS_DAMAGES` is the number of attacked images.

mod common;

use block::BlockDevice;
use block_testing::{Keyed, Mem, PowerCut, Random, Tear};
use common::client::Client;
use common::pair::Pair;
use common::{amount, assert_clean, format_with, keyed, open, options, seed};
use fs::{DataChecksums, FileType, Fs, Ino, Kind, ROOT};
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = 4096;
const SUPERBLOCKS: [u64; 2] = [0, 255];

/// Everything a reader sees, by fileset and inode: attributes, entries of a directory, content.
/// `None` is an error.
type Seen = BTreeMap<(String, Ino), Thing>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thing {
    attributes: Option<String>,
    entries: Option<Vec<(Vec<u8>, Ino)>>,
    pages: Vec<Option<u32>>,
    /// Errors that do not say that something is damaged.
    misleading: Vec<String>,
}

/// Looks at one inode.
fn look(client: &mut Client, ino: Ino, kind: FileType, pages: u64) -> Thing {
    let fileset = client.fileset.clone();
    let mut misleading = Vec::new();
    let mut note = |error: fs::Error| {
        if !matches!(error.kind(), Kind::Corrupt | Kind::Io) {
            misleading.push(error.to_string());
        }
    };
    let attr = fileset.attr(ino).map_err(&mut note).ok();
    let mut entries = Vec::new();
    let listed = match kind {
        FileType::Directory => fileset.read_dir(ino, 2, |entry| {
            entries.push((entry.name.to_vec(), entry.ino));
            Ok(true)
        }),
        _ => Ok(()),
    };
    let listed = listed.map_err(&mut note).is_ok();
    let page = |page: u64| match client.read(ino, page * BLOCK as u64, BLOCK as u64) {
        Ok(data) => Some(crc32c::crc32c(&data)),
        Err(libc::EIO | libc::EUCLEAN) => None,
        Err(errno) => {
            misleading.push(format!("page {page}: errno {errno}"));
            None
        }
    };
    let pages = (0..pages).map(page).collect();
    Thing {
        attributes: attr.map(|attr| format!("{:?}", attr.inode)),
        entries: listed.then_some(entries),
        pages,
        misleading,
    }
}

/// Reads everything of an undamaged file system.
fn see(fs: &Fs) -> Seen {
    let mut seen = Seen::new();
    for (id, record) in fs.filesets() {
        let mut client = Client::new(fs.fileset(id).expect("listed"));
        let mut left = vec![(ROOT, FileType::Directory)];
        while let Some((ino, kind)) = left.pop() {
            let attr = client.fileset.attr(ino).expect("there");
            let pages = match kind {
                FileType::File => attr.inode.size.div_ceil(BLOCK as u64).min(500),
                _ => 0,
            };
            let thing = look(&mut client, ino, kind, pages);
            if kind == FileType::Directory {
                let take = |entry: fs::DirEntry| {
                    left.push((entry.ino, entry.kind));
                    Ok(true)
                };
                client.fileset.read_dir(ino, 2, take).expect("it lists");
            }
            seen.insert((record.name.clone(), ino), thing);
        }
    }
    seen
}

/// Reports whether everything that can be read is as in this state.
fn is_of(seen: &Seen, state: &Seen) -> bool {
    let same = |(one, two): (&Thing, &Thing)| {
        let mut pages = one.pages.iter().zip(&two.pages);
        let pages = pages.all(|(one, two)| one.is_none() || one == two);
        pages
            && one.misleading.is_empty()
            && one.attributes == two.attributes
            && one.entries == two.entries
    };
    seen.keys().eq(state.keys()) && seen.values().zip(state.values()).all(same)
}

/// Differences between what is expected and what is seen.
#[derive(Debug, Default)]
struct Outcome {
    refused: bool,
    errors: usize,
    wrong: Vec<String>,
}

/// Looks at everything that is expected.
fn compare(fs: &Fs, expected: &Seen) -> Outcome {
    let mut outcome = Outcome::default();
    let names: Vec<String> = fs.filesets().into_iter().map(|(_, r)| r.name).collect();
    let mut clients: BTreeMap<&String, Client> = BTreeMap::new();
    for ((fileset, ino), expected) in expected {
        if !names.contains(fileset) {
            outcome.wrong.push(format!("no {fileset}"));
            continue;
        }
        let client = clients
            .entry(fileset)
            .or_insert_with(|| Client::new(fs.fileset_named(fileset).expect("listed")));
        let is_dir = expected.entries.as_ref().is_some_and(|e| !e.is_empty());
        let kind = if is_dir {
            FileType::Directory
        } else {
            FileType::File
        };
        let found = look(client, *ino, kind, expected.pages.len() as u64);
        outcome.wrong.extend(found.misleading);
        let mut add = |what: &str, same: Option<bool>| match same {
            None => outcome.errors += 1,
            Some(true) => {}
            Some(false) => outcome.wrong.push(format!("{fileset}: {ino}: {what}")),
        };
        let attributes = found.attributes;
        add(
            "attributes",
            attributes.map(|a| Some(a) == expected.attributes),
        );
        add(
            "entries",
            found.entries.map(|e| Some(e) == expected.entries),
        );
        for (found, expected) in found.pages.iter().zip(&expected.pages) {
            add("content", found.map(|sum| Some(sum) == *expected));
        }
        for (name, of) in expected.entries.iter().flatten() {
            match client.fileset.lookup(*ino, name) {
                Ok(attr) => add("lookup", Some(attr.ino == *of)),
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Io) => add("", None),
                Err(_) => add("lookup", Some(false)),
            }
        }
    }
    outcome
}

fn block_of(mem: &Mem, block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    mem.peek(block * BLOCK as u64, &mut data);
    data
}

/// Recomputes the unkeyed checksum of a superblock, or of the record of the journal that begins here.
fn recompute(mem: &Mem, block: u64) {
    let mut data = block_of(mem, block);
    if SUPERBLOCKS.contains(&block) {
        let sum = crc32c::crc32c(&data[..BLOCK - 4]);
        data[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
    } else if data.starts_with(b"EVFSjrnl") {
        let len = u32::from_le_bytes(data[12..16].try_into().expect("four")) as usize;
        let mut all = vec![0; len.clamp(64, 1 << 20).next_multiple_of(BLOCK)];
        mem.peek(block * BLOCK as u64, &mut all);
        let sum = crc32c::crc32c(&all[12..len.clamp(64, all.len())]);
        data[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    mem.poke(block * BLOCK as u64, &data);
}

/// Attacks one of the blocks. Returns which, and the kind of attack.
fn attack(mem: &Mem, old: &[Mem], blocks: &[u64], random: &mut Random) -> (u64, u64) {
    let any = |random: &mut Random| blocks[random.below(blocks.len() as u64) as usize];
    let block = any(random);
    let mut data = block_of(mem, block);
    let kind = random.below(5);
    match kind {
        0 => {
            let bit = random.below(8 * BLOCK as u64) as usize;
            data[bit / 8] ^= 1 << (bit % 8);
        }
        1 => data = vec![0; BLOCK],
        2 => {
            let other = any(random);
            let theirs = block_of(mem, other);
            mem.poke(other * BLOCK as u64, &data);
            data = theirs;
        }
        3 => {
            let at = random.below(BLOCK as u64 - 16) as usize;
            random.fill(&mut data[at..at + 16]);
        }
        _ => data = block_of(&old[random.below(old.len() as u64) as usize], block),
    }
    mem.poke(block * BLOCK as u64, &data);
    recompute(mem, block);
    (block, kind)
}

/// The blocks of the superblocks, the journal, and the metadata.
fn metadata_blocks(fs: &Fs) -> Vec<u64> {
    let superblock = fs.superblock();
    let journal = superblock.journal_start..superblock.journal_start + superblock.journal_blocks;
    let segments = superblock.segments.iter();
    let segments = segments.flat_map(|s| s.start..s.start + u64::from(s.blocks));
    SUPERBLOCKS
        .into_iter()
        .chain(journal)
        .chain(segments)
        .collect()
}

/// A file system with a history.
struct Victim {
    now: Mem,
    /// Earlier states of the device.
    old: Vec<Mem>,
    expected: Seen,
    /// Blocks of metadata; all blocks in use.
    metadata: Vec<u64>,
    all: Vec<u64>,
}

impl Victim {
    fn new(seed: u64, checksums: DataChecksums) -> Victim {
        let mem = Arc::new(Mem::new(12 << 20, 512));
        let device: Arc<dyn BlockDevice> = mem.clone();
        format_with(&device, checksums);
        let mut pair = Pair::new(open(&device), seed);
        let mut old = Vec::new();
        for part in 0..6 {
            for _ in 0..120 {
                pair.step();
            }
            pair.client.sync(&mut pair.random).expect("synced");
            if part == 2 {
                let id = pair.client.fileset.id();
                pair.fs.snapshot(id, "then").expect("a snapshot");
            }
            pair.fs.commit().expect("committed");
            old.push(mem.fork());
        }
        pair.step();
        pair.release_all();
        pair.client.sync(&mut pair.random).expect("synced");
        let Pair { fs, client, .. } = pair;
        drop(client);
        fs.close().expect("closed");
        let now = mem.fork();
        let fs = open(&device);
        assert_clean(&fs, "before");
        let expected = see(&fs);
        let things = expected.values();
        assert!(things.clone().all(|t| t.pages.iter().all(Option::is_some)));
        assert!(expected.len() > 20);
        let metadata = metadata_blocks(&fs);
        let rest = 256..fs.superblock().device_blocks;
        let all = SUPERBLOCKS.into_iter().chain(rest);
        let in_use = |block: &u64| block_of(&now, *block).iter().any(|byte| *byte != 0);
        let all = all.filter(in_use).collect();
        let metadata = metadata.into_iter().filter(in_use).collect();
        Victim {
            now,
            old,
            expected,
            metadata,
            all,
        }
    }

    /// Opens an attacked image and reads everything.
    fn read(&self, mem: &Mem, context: &str) -> Outcome {
        let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
        let fs = match Fs::open(keyed(&device), options()) {
            Ok(fs) => fs,
            Err(error) => {
                let expected = [Kind::Corrupt, Kind::Invalid, Kind::Unsupported];
                assert!(expected.contains(&error.kind()), "{context}: {error}");
                return Outcome {
                    refused: true,
                    ..Outcome::default()
                };
            }
        };
        let outcome = compare(&fs, &self.expected);
        if outcome.errors > 0 {
            let mut report = fs.check().expect("checked");
            fs.check_data(&mut report, &mut |_, _| {}).expect("checked");
            assert!(!report.is_clean(), "{context}: nothing found");
        }
        outcome
    }

    /// Attacks images at random. Returns the outcomes of each.
    fn attack(&self, blocks: &[u64], images: usize, seed: u64) -> Vec<Outcome> {
        let mut random = Random::new(seed);
        let attacked = |image| {
            let mem = self.now.fork();
            let count = 1 + random.below(6).pow(2);
            let attacks: Vec<_> = (0..count)
                .map(|_| attack(&mem, &self.old, blocks, &mut random))
                .collect();
            // Both superblocks of an older state are an older state of the whole.
            for block in SUPERBLOCKS {
                if SUPERBLOCKS.iter().all(|b| attacks.contains(&(*b, 4))) {
                    mem.poke(block * BLOCK as u64, &block_of(&self.now, block));
                }
            }
            let context = format!("EVFS_SEED={seed}, image {image}, {attacks:?}");
            let outcome = self.read(&mem, &context);
            (context, outcome)
        };
        (0..images)
            .map(attacked)
            .map(|(context, outcome)| Outcome {
                wrong: outcome
                    .wrong
                    .into_iter()
                    .map(|w| format!("{context}: {w}"))
                    .collect(),
                ..outcome
            })
            .collect()
    }
}

#[test]
fn an_attacker_who_writes_to_the_disk_makes_no_reader_see_anything_else() {
    let seed = seed(1);
    let images = amount("EVFS_DAMAGES", 120);
    let victim = Victim::new(seed, DataChecksums::Keyed);
    let blocks = [&victim.metadata, &victim.all];
    let outcomes = blocks.map(|blocks| victim.attack(blocks, images.div_ceil(2), seed));
    for outcome in outcomes.iter().flatten() {
        assert!(outcome.wrong.is_empty(), "{:#?}", outcome.wrong);
    }
    let count = |which: &dyn Fn(&Outcome) -> bool| {
        outcomes
            .iter()
            .flatten()
            .filter(|outcome| which(outcome))
            .count()
    };
    let (refused, errors) = (count(&|o| o.refused), count(&|o| o.errors > 0));
    println!("{refused} refused, {errors} with errors, of {images}");
    assert!(refused + errors > images / 3);

    // Without keys, the same attacks succeed.
    let victim = Victim::new(seed, DataChecksums::Yes);
    let outcomes = victim.attack(&victim.metadata, 120, seed);
    assert!(outcomes.iter().any(|outcome| !outcome.wrong.is_empty()));
}

#[test]
fn each_block_of_metadata_and_each_older_state_of_it_is_noticed() {
    let victim = Victim::new(seed(2), DataChecksums::Keyed);
    let (mut noticed, mut noticed_old) = (0, 0);
    for block in &victim.metadata {
        let mem = victim.now.fork();
        let content = block_of(&mem, *block);
        let mut flipped = content.clone();
        flipped[(block * 37) as usize % BLOCK] ^= 4;
        mem.poke(block * BLOCK as u64, &flipped);
        recompute(&mem, *block);
        let outcome = victim.read(&mem, "flipped");
        assert!(outcome.wrong.is_empty(), "{block}: {:?}", outcome.wrong);
        noticed += usize::from(outcome.refused || outcome.errors > 0);
        let older = victim.old.iter().rev().map(|old| block_of(old, *block));
        if let Some(older) = older.into_iter().find(|older| *older != content) {
            mem.poke(block * BLOCK as u64, &older);
            let outcome = victim.read(&mem, "stale");
            assert!(outcome.wrong.is_empty(), "{block}: {:?}", outcome.wrong);
            noticed_old += usize::from(outcome.refused || outcome.errors > 0);
        }
    }
    let blocks = victim.metadata.len();
    println!("{noticed} flipped and {noticed_old} older blocks noticed, of {blocks}");
    // The others are free: pages, places and journal that nothing refers to.
    assert!(noticed > 10 && noticed_old > 3);
}

#[test]
fn a_superblock_that_was_changed_is_replaced_by_its_copy() {
    let victim = Victim::new(seed(3), DataChecksums::Keyed);
    for block in SUPERBLOCKS {
        let mem = victim.now.fork();
        let mut data = block_of(&mem, block);
        // The label.
        data[60] ^= 1;
        mem.poke(block * BLOCK as u64, &data);
        recompute(&mem, block);
        let device: Arc<dyn BlockDevice> = Arc::new(mem);
        let fs = open(&device);
        assert_eq!(fs.superblock().label, "test");
        assert!(compare(&fs, &victim.expected).errors == 0);
        assert_clean(&fs, "the next open repairs it");
    }
}

#[test]
fn without_its_key_or_its_feature_bit_it_is_refused() {
    let victim = Victim::new(seed(4), DataChecksums::Keyed);
    let plain: Arc<dyn BlockDevice> = Arc::new(victim.now.fork());
    let other: Arc<dyn BlockDevice> = Arc::new(Keyed::new(Arc::clone(&plain), 2));
    let refused = |device, kind| {
        let error = Fs::open(device, options()).err().expect("refused");
        assert_eq!(error.kind(), kind, "{error}");
        error.to_string()
    };
    let says = refused(Arc::clone(&plain), Kind::Unsupported);
    assert!(says.contains("encrypted volume"), "{says}");
    refused(other, Kind::Corrupt);
    let unkeyed: Arc<dyn BlockDevice> = Arc::new(Mem::new(12 << 20, 512));
    let error = Fs::format_with(Arc::clone(&unkeyed), "", DataChecksums::Keyed);
    assert_eq!(error.expect_err("refused").kind(), Kind::Unsupported);
    // The bit cleared, and everything that belongs to it.
    let mem = victim.now.fork();
    for block in SUPERBLOCKS {
        let mut data = block_of(&mem, block);
        data[33] &= !4;
        mem.poke(block * BLOCK as u64, &data);
        recompute(&mem, block);
        let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
        assert!(block == 0 || Fs::open(keyed(&device), options()).is_err());
    }
    for block in SUPERBLOCKS {
        let mut data = block_of(&mem, block);
        data[3968..4092].fill(0);
        mem.poke(block * BLOCK as u64, &data);
        recompute(&mem, block);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(mem);
    assert!(Fs::open(keyed(&device), options()).is_err());
}

/// After a crash there is a journal. Each of its records is authentic or refused, and the state is
/// one of those after an fsync.
#[test]
fn records_of_the_journal_cannot_be_changed_repeated_or_exchanged() {
    let seed = seed(5);
    let mem = Arc::new(Mem::new(12 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, DataChecksums::Keyed);
    let disk = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let mut pair = Pair::new(open(&device), seed);
    let (mut states, mut old) = (Vec::new(), Vec::new());
    for round in 0..24 {
        for _ in 0..8 {
            let before = disk.events();
            pair.step();
            if disk.events() > before {
                // It may have been an fsync.
                let device: Arc<dyn BlockDevice> = Arc::new(disk.crash(disk.events(), Tear::Drop));
                states.push(see(&open(&device)));
            }
        }
        pair.client.sync(&mut pair.random).expect("synced");
        if round == 11 || round == 17 {
            pair.fs.commit().expect("committed");
        }
        let image = disk.crash(disk.events(), Tear::Drop);
        let device: Arc<dyn BlockDevice> = Arc::new(image.fork());
        states.push(see(&open(&device)));
        old.push(image);
    }
    let now = old.pop().expect("the last");
    let device: Arc<dyn BlockDevice> = Arc::new(now.fork());
    let fs = open(&device);
    let superblock = fs.superblock();
    let journal = superblock.journal_start..superblock.journal_start + superblock.journal_blocks;
    let records: Vec<u64> = journal
        .filter(|block| block_of(&now, *block).starts_with(b"EVFSjrnl"))
        .collect();
    assert!(records.len() > 5);
    let mut random = Random::new(seed);
    let (mut refused, mut earlier) = (0, 0);
    let images = amount("EVFS_DAMAGES", 120);
    for image in 0..images {
        let mem = now.fork();
        let attacks: Vec<_> = (0..1 + random.below(3))
            .map(|_| attack(&mem, &old, &records, &mut random))
            .collect();
        let device: Arc<dyn BlockDevice> = Arc::new(mem);
        match Fs::open(keyed(&device), options()) {
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                refused += 1;
            }
            Ok(fs) => {
                let seen = see(&fs);
                let state = states.iter().rposition(|state| is_of(&seen, state));
                let context = format!("EVFS_SEED={seed}, image {image}, {attacks:?}");
                earlier += usize::from(state.expect(&context) < states.len() - 1);
            }
        }
    }
    println!("{refused} refused, {earlier} at an earlier fsync, of {images}");
    assert!(refused > images / 4);
}

#[test]
fn a_repair_saves_what_is_authentic() {
    let victim = Victim::new(seed(6), DataChecksums::Keyed);
    let mut random = Random::new(6);
    let mut saved = 0;
    for _ in 0..amount("EVFS_DAMAGES", 120).div_ceil(6) {
        let mem = victim.now.fork();
        let blocks = &victim.metadata[2..];
        for _ in 0..1 + random.below(3) {
            attack(&mem, &victim.old, blocks, &mut random);
        }
        let device: Arc<dyn BlockDevice> = Arc::new(mem);
        let rescue = fs::Options {
            rescue: true,
            ..options()
        };
        let Ok(fs) = Fs::open(keyed(&device), rescue) else {
            continue;
        };
        let Ok(repair) = fs.repair() else {
            continue;
        };
        // Snapshots stay as they are, even if records of them are lost.
        let elsewhere = |report: &fs::Report| {
            let problems = report.problems.iter();
            problems
                .filter(|p| p.fileset.as_deref() != Some("then"))
                .count()
        };
        assert_eq!(elsewhere(&repair.left), 0, "{:#?}", repair.left);
        fs.close().expect("closed");
        let fs = open(&device);
        let mut report = fs.check().expect("checked");
        fs.check_data(&mut report, &mut |_, _| {}).expect("checked");
        assert_eq!(elsewhere(&report), 0, "{report:#?}");
        assert!(fs.superblock().has_integrity());
        saved += 1;
    }
    assert!(saved > 3, "{saved}");
}
