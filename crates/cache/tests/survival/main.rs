//! A process with a cache is killed; its successor has the memory of the frames and their table.
//!
//! Goal: whatever the cache was doing, each byte of a completed write is in the pager or in the newest
//! listed frame of its page, and no listed frame has a byte that another file, another page or an
//! earlier state put there.

mod disk;

use block::ErrorKind;
use block_testing::Random;
use cache::{Access, Cache, Config, FileId, Predecessor, Tree, Volume};
use disk::{BEGUN, DONE, Disk, FILE_PAGES, FILES, Known, Late, PAGE, WRITES};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use survival::{Memory, Pages};

const FILE_BYTES: u64 = (FILE_PAGES * PAGE) as u64;
const IDENTITY: [u8; 16] = *b"a file system id";
const TREE: Tree = Tree {
    file_system: IDENTITY,
    number: 7,
};

/// One operation of a writer.
enum Change {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Truncate(u64),
    Remove,
    /// Writes dirty pages out, or also drops them.
    Clean {
        drops: bool,
    },
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Change::Write { offset, data } => write!(f, "a write of {} at {offset}", data.len()),
            Change::Truncate(size) => write!(f, "a cut to {size}"),
            Change::Remove => write!(f, "a removal"),
            Change::Clean { drops } => write!(f, "a write-back, drops: {drops}"),
        }
    }
}

/// Returns the operation with this number of the writer of a file.
fn change(seed: u64, place: usize, number: u64) -> Change {
    let mut random = Random::new(seed << 40 ^ (place as u64) << 32 ^ number);
    // Often the same pages, so that writers meet pages under write-back.
    let pages = [4, FILE_PAGES as u64][random.below(2) as usize];
    let page = random.below(pages) * PAGE as u64;
    match random.below(90) {
        0..70 => {
            let within = random.below(PAGE as u64);
            let (offset, len) = match random.below(3) {
                0 => (page, PAGE as u64),
                1 => (page + within, random.below(200) + 1),
                _ => (page + within, random.below(30_000) + 1),
            };
            let mut data = vec![0; len.min(FILE_BYTES - offset) as usize];
            random.fill(&mut data);
            Change::Write { offset, data }
        }
        70..76 => Change::Truncate(page + random.below(PAGE as u64)),
        76..78 => Change::Remove,
        turn => Change::Clean { drops: turn < 82 },
    }
}

/// Content of a file after the first operations of its writer.
#[derive(Clone, Default)]
struct Model {
    removed: u64,
    bytes: Vec<u8>,
}

impl Model {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, data } => {
                let end = *offset as usize + data.len();
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[*offset as usize..end].copy_from_slice(data);
            }
            Change::Truncate(size) => self.bytes.resize(*size as usize, 0),
            Change::Remove => {
                self.removed += 1;
                self.bytes.clear();
            }
            Change::Clean { .. } => {}
        }
    }
}

/// Changes one file until the process is killed.
fn write(seed: u64, place: usize, disk: &Disk, volume: &Volume) {
    let mut session = volume.session().unwrap();
    let open_now = || {
        let known = disk.known(place);
        volume.open(&volume.vnode(known.file(place), known.size))
    };
    let mut open = open_now();
    for number in 0.. {
        let known = disk.known(place);
        match change(seed, place, number) {
            Change::Write { offset, data } => {
                let size = known.size.max(offset + data.len() as u64);
                disk.set_known(place, Known { size, ..known });
                session.write(&mut open, offset, &data).unwrap();
            }
            Change::Truncate(size) if size < known.size => {
                disk.cut(place, Known { size, ..known });
                session.truncate(&mut open, size).unwrap();
            }
            Change::Truncate(size) => {
                disk.set_known(place, Known { size, ..known });
                open.vnode().extend(size);
            }
            Change::Remove => {
                let removed = known.removed + 1;
                disk.cut(place, Known { removed, size: 0 });
                volume.forget(known.file(place));
                open = open_now();
            }
            // Fails with the pager.
            Change::Clean { drops: false } => drop(session.write_out(&mut open, 0..FILE_BYTES)),
            Change::Clean { drops: true } => drop(session.invalidate(&mut open, 0..FILE_BYTES)),
        }
        disk.word(DONE + place).store(number + 1, SeqCst);
    }
}

/// Holds pages in place, so that writers move them to other frames.
fn hold(seed: u64, disk: &Disk, volume: &Volume) {
    let mut session = volume.session().unwrap();
    let mut random = Random::new(seed);
    loop {
        let place = random.below(FILES as u64) as usize;
        let known = disk.known(place);
        let mut open = volume.open(&volume.vnode(known.file(place), known.size));
        let span = [4 * PAGE as u64, FILE_BYTES][random.below(2) as usize];
        let first = random.below(span);
        let range = first..(first + random.below(60_000)).min(known.size);
        if let Ok(pages) = session.pages(&mut open, range) {
            let loans: Vec<_> = pages.iter().step_by(2).map(|page| page.lend()).collect();
            std::thread::sleep(Duration::from_micros(random.below(400)));
            drop(pages);
            std::thread::sleep(Duration::from_micros(random.below(400)));
            drop(loans);
        }
    }
}

/// Makes the cache larger and smaller.
fn shake(seed: u64, cache: &Cache) {
    let mut random = Random::new(!seed);
    loop {
        cache.set_max_bytes((random.below(16) + 4) << 18);
        cache.shrink(1 << 20);
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

fn config() -> Config {
    let mut config = Config {
        tick: Duration::from_millis(1),
        retry: Duration::from_millis(1),
        sync_interval: Duration::from_millis(1),
        min_bytes: 256 << 10,
        reserve_bytes: 8 << 20,
        dirty_throttle_percent: 60,
        ..Config::new(1 << 20)
    };
    config.surviving = Some(Pages::create(config.frames(), IDENTITY).unwrap());
    config
}

/// Returns the files of the frames and of their table.
fn descriptors(cache: &Cache) -> (OwnedFd, OwnedFd) {
    let files = [cache.memory_fd(), cache.surviving().map(Pages::file)];
    let [memory, table] = files.map(|file| file.unwrap().try_clone_to_owned().unwrap());
    (memory, table)
}

/// Makes a child end with its parent, and at the first panic.
fn end_with_parent() {
    // SAFETY: asks for a signal when the parent has ended.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    std::panic::set_hook(Box::new(|info| {
        eprintln!("in the process that is to be killed: {info}");
        // SAFETY: ends the process, without the destructors of the parent's values.
        unsafe { libc::_exit(3) };
    }));
}

/// Uses a cache until the process is killed.
fn live(seed: u64, disk: Arc<Disk>, cache: &Cache) -> ! {
    end_with_parent();
    let volume = cache
        .volume(Arc::new(Late::new(&disk, Some(TREE))))
        .unwrap();
    std::thread::scope(|scope| {
        for place in 0..FILES {
            let (disk, volume) = (&disk, &volume);
            scope.spawn(move || write(seed, place, disk, volume));
        }
        scope.spawn(|| hold(seed, &disk, &volume));
        scope.spawn(|| hold(seed + 1, &disk, &volume));
        scope.spawn(|| shake(seed, cache));
        disk.word(BEGUN).store(1, SeqCst);
    });
    unreachable!("the writers never end")
}

/// What a successor found, over all killed processes.
#[derive(Debug, Default)]
struct Found {
    changes: u64,
    /// Listed frames, and those of them whose page the disk had in another state.
    listed: usize,
    needed: usize,
    /// Listed frames of pages with a newer one.
    older: usize,
}

/// Starts a process, kills it after `time`, and compares what it left behind with a model.
fn kill_and_compare(seed: u64, time: Duration, found: &mut Found) {
    let disk = Arc::new(Disk::create());
    let cache = Cache::new(config()).unwrap();
    let (memory, table) = descriptors(&cache);
    // SAFETY: the child continues with the values of this thread, and no other thread of this program
    // holds a lock that they need.
    let child = unsafe { libc::fork() };
    if child == 0 {
        live(seed, disk, &cache);
    }
    assert!(child > 0);
    let mut end = None;
    let mut ended = |flags| {
        let mut status = 0;
        // SAFETY: waits for the child made above.
        if end.is_none() && unsafe { libc::waitpid(child, &mut status, flags) } == child {
            end = Some(status);
        }
        end
    };
    let began = Instant::now();
    while disk.word(BEGUN).load(SeqCst) == 0 && ended(libc::WNOHANG).is_none() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(time);
    assert_eq!(
        ended(libc::WNOHANG),
        None,
        "seed {seed}: it ended by itself"
    );
    // SAFETY: signals the child made above, which has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let signal = ended(0).map(|status| libc::WTERMSIG(status));
    assert_eq!(signal, Some(libc::SIGKILL));

    let table = Memory::adopt(table).unwrap();
    let entries = table.words()[8..].chunks_exact(4);
    let listed = entries.filter(|entry| entry[3].load(SeqCst) != 0).count();
    let predecessor = Predecessor::new(memory, &Pages::adopt(table).unwrap()).unwrap();
    found.listed += listed;
    found.older += listed - predecessor.pages(TREE).count();
    for place in 0..FILES {
        compare(seed, place, &disk, &predecessor, found);
    }
}

/// Compares a file, as a successor sees it, with the model.
fn compare(seed: u64, place: usize, disk: &Disk, predecessor: &Predecessor, found: &mut Found) {
    let done = disk.word(DONE + place).load(SeqCst);
    found.changes += done;
    let mut model = Model::default();
    (0..done).for_each(|number| model.apply(&change(seed, place, number)));
    let known = disk.known(place);
    let size = known.size as usize;
    let mut seen: Vec<u8> = (0..FILE_PAGES)
        .flat_map(|page| disk.page(place, page))
        .collect();
    seen.truncate(size);
    let own = predecessor
        .pages(TREE)
        .filter(|page| page.file == known.file(place));
    for page in own {
        let first = page.page as usize * PAGE;
        let len = size.saturating_sub(first).min(PAGE);
        let mut bytes = vec![0; len];
        predecessor.read(&page, &mut bytes).unwrap();
        if len > 0 {
            found.needed += usize::from(seen[first..first + len] != bytes);
            seen[first..first + len].copy_from_slice(&bytes);
        }
    }
    // The operation in progress has changed all, a part, or nothing.
    let next = change(seed, place, done);
    let mut after = model.clone();
    after.apply(&next);
    let context = format!("seed {seed}, file {place}, {done} operations, then {next:?}");
    let begun = (known.removed, size) != (model.removed, model.bytes.len());
    if begun {
        assert_eq!(
            (known.removed, size),
            (after.removed, after.bytes.len()),
            "{context}"
        );
    }
    let mut old = if known.removed == model.removed {
        model.bytes
    } else {
        Vec::new()
    };
    old.resize(size, 0);
    let mut new = after.bytes;
    // A truncation clears what is behind the new end before it reports success.
    new.resize(size, 0);
    let allowed = |at: usize| seen[at] == old[at] || seen[at] == new[at];
    let wrong = (0..size).find(|at| !allowed(*at));
    assert_eq!(wrong, None, "{context}: of {size} bytes");
}

#[test]
fn a_successor_finds_each_byte_of_a_completed_write() {
    let kills = std::env::var("EVFS_KILLS")
        .ok()
        .and_then(|n| n.parse().ok());
    let seed = std::env::var("EVFS_SEED").ok().and_then(|n| n.parse().ok());
    let (kills, seed) = (kills.unwrap_or(60), seed.unwrap_or(1));
    let mut random = Random::new(seed);
    let mut found = Found::default();
    for round in 0..kills {
        let time = Duration::from_micros(random.below(40_000));
        kill_and_compare(seed * 1000 + round, time, &mut found);
    }
    println!("{kills} processes killed: {found:?}");
    assert!(found.changes > 0 && found.needed > 0 && found.older > 0);
}

/// State of a page when a process dies while it overwrites the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Clean,
    Dirty,
    /// Dirty, and held by a reader.
    Held,
    /// Under write-back.
    UnderWay,
    /// Under write-back and dirty again.
    UnderWayAndDirty,
    /// Under write-back, dirty again, and held by a reader.
    UnderWayAndHeld,
}

/// Writes a page of ones, puts it in a state, and dies while twos are copied over it.
fn die_in_copy(before: Before, disk: &Arc<Disk>, cache: &Cache) -> ! {
    use Before::{Clean, Held, UnderWay, UnderWayAndDirty, UnderWayAndHeld};
    let no_core = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: sets a limit of the child.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    let mut pager = Late::new(disk, Some(TREE));
    if before != Clean {
        pager.latest = Duration::from_secs(1 << 30);
    }
    let volume = cache.volume(Arc::new(pager)).unwrap();
    let mut session = volume.session().unwrap();
    let vnode = volume.vnode(FileId(0), 0);
    let mut open = volume.open(&vnode);
    disk.set_known(
        0,
        Known {
            removed: 0,
            size: PAGE as u64,
        },
    );
    session.write(&mut open, 0, &[1; PAGE]).unwrap();
    if before == Clean {
        while session.write_out(&mut open, 0..FILE_BYTES).is_err() {}
    }
    if matches!(before, UnderWay | UnderWayAndDirty | UnderWayAndHeld) {
        let (volume, vnode) = (Arc::clone(&volume), Arc::clone(&vnode));
        std::thread::spawn(move || {
            let mut open = volume.open(&vnode);
            volume.session()?.write_out(&mut open, 0..FILE_BYTES)
        });
        while disk.word(WRITES).load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    if matches!(before, UnderWayAndDirty | UnderWayAndHeld) {
        session.write(&mut open, 0, &[1; PAGE]).unwrap();
    }
    let mut reader = volume.open(&vnode);
    let held = matches!(before, Held | UnderWayAndHeld);
    let held = held.then(|| session.page(&mut reader, 0).unwrap().lend());
    // SAFETY: the mapping is new. The second half of what is written cannot be read, and the process
    // ends when the cache tries to.
    let source = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let whole = libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, -1, 0);
        let first = whole.cast::<u8>();
        first.write_bytes(2, PAGE);
        libc::mprotect(first.add(PAGE).cast(), PAGE, libc::PROT_NONE);
        std::slice::from_raw_parts(first.add(PAGE / 2), PAGE)
    };
    let written = session.write(&mut open, 0, source);
    drop(held);
    panic!("it has survived: {written:?}");
}

#[test]
fn a_process_that_dies_while_it_overwrites_a_page_leaves_the_rest_of_the_page() {
    use Before::{Clean, Dirty, Held, UnderWay, UnderWayAndDirty, UnderWayAndHeld};
    for before in [
        Clean,
        Dirty,
        Held,
        UnderWay,
        UnderWayAndDirty,
        UnderWayAndHeld,
    ] {
        let disk = Arc::new(Disk::create());
        let mut config = config();
        let long = Duration::from_secs(3600);
        (config.tick, config.sync_interval) = (long, long);
        let cache = Cache::new(config).unwrap();
        let (memory, table) = descriptors(&cache);
        // SAFETY: as in `kill_and_compare`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_with_parent();
            die_in_copy(before, &disk, &cache);
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "{before:?}: {status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "{before:?}");

        let table = Pages::adopt(Memory::adopt(table).unwrap()).unwrap();
        let predecessor = Predecessor::new(memory, &table).unwrap();
        let listed: Vec<_> = predecessor.pages(TREE).collect();
        let mut seen = disk.page(0, 0);
        if let [page] = &listed[..] {
            assert_eq!((page.file, page.page), (FileId(0), 0));
            predecessor.read(page, &mut seen).unwrap();
        }
        assert_eq!(listed.len(), usize::from(before != Clean), "{before:?}");
        let (first, second) = seen.split_at(PAGE / 2);
        assert!(first.iter().all(|byte| [1, 2].contains(byte)), "{before:?}");
        assert!(second.iter().all(|byte| *byte == 1), "{before:?}");
    }
}

/// A cache that lists its pages, and its pager's disk.
fn listing() -> (Arc<Cache>, Arc<Disk>) {
    (Cache::new(config()).unwrap(), Arc::new(Disk::create()))
}

fn table_of(cache: &Cache) -> Memory {
    Memory::adopt(descriptors(cache).1).unwrap()
}

#[test]
fn what_could_not_survive_is_refused() {
    let (cache, disk) = listing();
    let refusal = |tree| {
        let volume = cache.volume(Arc::new(Late::new(&disk, tree)));
        volume.map(drop).unwrap_err().kind()
    };
    assert_eq!(refusal(None), ErrorKind::Invalid, "its files have no names");
    let other = Tree {
        file_system: [1; 16],
        ..TREE
    };
    assert_eq!(
        refusal(Some(other)),
        ErrorKind::Invalid,
        "of another file system"
    );
    let mut read_only = Late::new(&disk, None);
    read_only.info.read_only = true;
    assert!(
        cache.volume(Arc::new(read_only)).is_ok(),
        "it has no dirty pages"
    );

    let volume = cache
        .volume(Arc::new(Late::new(&disk, Some(TREE))))
        .unwrap();
    let open = volume.open(&volume.vnode(FileId(0), 4096));
    let mapped = open.map(0..4096, Access::Store).map(drop);
    assert_eq!(mapped.unwrap_err().kind(), ErrorKind::Invalid);

    let mut config = config();
    config.reserve_bytes *= 2;
    assert_eq!(
        Cache::new(config).map(drop).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn without_a_file_for_the_frames_a_cache_that_is_to_survive_is_refused() {
    let config = config();
    // SAFETY: the child makes a cache of values of this thread, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: sets a limit of the child.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) } == 0;
        let refused = Cache::new(config).err().map(|error| error.kind());
        let good = limited && refused == Some(ErrorKind::Invalid);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_damaged_table_and_other_memory_are_refused() {
    let (cache, disk) = listing();
    let volume = cache
        .volume(Arc::new(Late::new(&disk, Some(TREE))))
        .unwrap();
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&volume.vnode(FileId(0), 0));
    disk.set_known(
        0,
        Known {
            removed: 0,
            size: 4096,
        },
    );
    session.write(&mut open, 0, &[1; 100]).unwrap();
    let table = table_of(&cache);
    let memory = || descriptors(&cache).0;
    let pages = Pages::adopt(table_of(&cache)).unwrap();
    assert!(Predecessor::new(memory(), &pages).is_ok());
    let short = Memory::create("evfs-test", 512).unwrap();
    let refused = Predecessor::new(short.file().try_clone_to_owned().unwrap(), &pages).map(drop);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    // The last frame, which the small cache does not use.
    table.words()[table.words().len() - 1].store(1, SeqCst);
    let refused = Predecessor::new(memory(), &pages).map(drop);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    table.words()[table.words().len() - 1].store(0, SeqCst);
    session.flush(&mut open).ok();
}
