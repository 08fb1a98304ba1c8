//! A minimal cache over the pager: dirty pages in a map, written back when a test requests it.

use block::{Buf, Completion, Op, Request, Wait};
use block_testing::Random;
use fs::{
    Allocate, FIRST_FILESET, FileId, FileRequest, FileType, Fileset, Fs, FsPager, Ino, New, Pager,
    PagerQueue, ROOT, Stamp,
};
use std::collections::{BTreeMap, HashMap};

pub const PAGE: u64 = 4096;

/// Portion of the dirty pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion {
    /// Some of them, chosen at random.
    Some,
    All,
}

/// Front end with a cache.
pub struct Client {
    pub fileset: Fileset,
    pub pager: FsPager,
    queue: Box<PagerQueue>,
    dirty: HashMap<Ino, BTreeMap<u64, Vec<u8>>>,
}

fn request_on(ino: Ino, tag: u64, op: Op) -> FileRequest {
    FileRequest {
        file: FileId(ino),
        request: Request { tag, op },
    }
}

impl Client {
    /// Returns a client of the first fileset.
    pub fn of_first(fs: &Fs) -> Client {
        Client::new(fs.fileset_named(FIRST_FILESET).expect("the first fileset"))
    }

    /// Creates an empty file in the root.
    pub fn create(&self, name: &[u8]) -> Ino {
        let new = New::of_root(FileType::File, 0o644);
        self.fileset.create(ROOT, name, &new).expect("made").ino
    }

    pub fn new(fileset: Fileset) -> Client {
        let pager = FsPager::new(&fileset).expect("a pager");
        let queue = pager.queue().expect("a queue");
        Client {
            fileset,
            pager,
            queue,
            dirty: HashMap::new(),
        }
    }

    /// Continues with the file system of a successor, which gets all dirty pages.
    pub fn succeed(&mut self, fileset: Fileset) {
        let dirty = std::mem::take(&mut self.dirty);
        *self = Client::new(fileset);
        for (ino, pages) in &dirty {
            for page in pages.keys() {
                let bytes = page * PAGE..(page + 1) * PAGE;
                let promised = self.pager.will_write(FileId(*ino), bytes);
                promised.expect("space for a page that had space");
            }
        }
        self.dirty = dirty;
    }

    /// Executes one request and returns its operation.
    pub fn run(&mut self, ino: Ino, op: Op) -> block::Result<Op> {
        self.queue
            .submit(request_on(ino, 7, op))
            .expect("room for one request");
        let mut done: Vec<Completion> = Vec::new();
        while done.is_empty() {
            self.queue.reap(Wait::Block, &mut done)?;
        }
        let done = done.remove(0);
        done.result.map(|()| done.op)
    }

    fn load(&mut self, ino: Ino, first: u64, pages: u64) -> block::Result<Vec<u8>> {
        // Uses buffers of one, two and three pages, so that borders of extents fall everywhere.
        let mut bufs = Vec::new();
        let mut left = pages;
        while left > 0 {
            let take = left.min(1 + (first + left) % 3);
            bufs.push(Buf::copy_of(&vec![0xee; (take * PAGE) as usize]));
            left -= take;
        }
        let offset = first * PAGE;
        let bufs = bufs.into();
        match self.run(ino, Op::Read { offset, bufs })? {
            Op::Read { bufs, .. } => {
                let mut all = Vec::with_capacity((pages * PAGE) as usize);
                bufs.iter().for_each(|buf| all.extend_from_slice(buf));
                Ok(all)
            }
            _ => unreachable!("a read comes back as a read"),
        }
    }

    /// Reads bytes of a file, up to its end.
    pub fn read(&mut self, ino: Ino, offset: u64, len: u64) -> Result<Vec<u8>, i32> {
        let size = self.fileset.attr(ino).map_err(|e| e.errno())?.inode.size;
        let end = (offset + len).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let (first, last) = (offset / PAGE, end.div_ceil(PAGE));
        let mut all = self.load(ino, first, last - first).map_err(|e| e.errno())?;
        if let Some(dirty) = self.dirty.get(&ino) {
            for (page, content) in dirty.range(first..last) {
                let at = ((page - first) * PAGE) as usize;
                all[at..at + PAGE as usize].copy_from_slice(content);
            }
        }
        Ok(all[(offset - first * PAGE) as usize..(end - first * PAGE) as usize].to_vec())
    }

    /// Writes into the cache.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), i32> {
        let end = offset + data.len() as u64;
        let old_end = self.fileset.attr(ino).map_err(|e| e.errno())?.inode.size;
        self.fileset
            .prepare_write(ino, offset..end, Stamp::Change)
            .map_err(|e| e.errno())?;
        let pages = offset / PAGE..end.div_ceil(PAGE);
        let bytes = pages.start * PAGE..pages.end * PAGE;
        self.pager
            .will_write(FileId(ino), bytes)
            .map_err(|e| e.errno())?;
        for page in pages {
            let from = offset.max(page * PAGE);
            let to = end.min((page + 1) * PAGE);
            let is_dirty = self.dirty.get(&ino).is_some_and(|d| d.contains_key(&page));
            if !is_dirty {
                let whole = to - from == PAGE || page * PAGE >= old_end;
                let content = if whole {
                    vec![0; PAGE as usize]
                } else {
                    self.load(ino, page, 1).map_err(|e| e.errno())?
                };
                self.dirty.entry(ino).or_default().insert(page, content);
            }
            let content = self
                .dirty
                .get_mut(&ino)
                .and_then(|d| d.get_mut(&page))
                .unwrap();
            content[(from - page * PAGE) as usize..(to - page * PAGE) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        Ok(())
    }

    /// Writes back dirty pages of a file, with several requests at a time.
    pub fn write_out(
        &mut self,
        ino: Ino,
        random: &mut Random,
        portion: Portion,
    ) -> Result<(), i32> {
        let Some(dirty) = self.dirty.remove(&ino) else {
            return Ok(());
        };
        let mut keep = BTreeMap::new();
        let run_pages = [8, 64][random.below(2) as usize];
        let mut runs: Vec<(u64, Vec<Vec<u8>>)> = Vec::new();
        for (page, content) in dirty {
            if portion == Portion::Some && random.below(3) == 0 {
                keep.insert(page, content);
                continue;
            }
            match runs.last_mut() {
                Some((first, run))
                    if *first + run.len() as u64 == page && random.below(run_pages) > 0 =>
                {
                    run.push(content);
                }
                _ => runs.push((page, vec![content])),
            }
        }
        let mut sent = HashMap::new();
        let mut error = None;
        let mut done = Vec::new();
        for (tag, (first, run)) in runs.into_iter().enumerate() {
            let bufs: Vec<Buf> = run.iter().map(|page| Buf::copy_of(page)).collect();
            let op = Op::Write {
                offset: first * PAGE,
                bufs: bufs.into(),
                fua: false,
            };
            sent.insert(tag as u64, (first, run));
            let tag = tag as u64;
            let mut request = Some(request_on(ino, tag, op));
            while let Some(next) = request.take() {
                if let Err(full) = self.queue.submit(next) {
                    request = Some(full);
                    self.queue
                        .reap(Wait::Block, &mut done)
                        .map_err(|e| e.errno())?;
                }
            }
        }
        while self.queue.in_flight() > 0 {
            self.queue
                .reap(Wait::Block, &mut done)
                .map_err(|e| e.errno())?;
        }
        for done in done {
            let (first, run) = sent.remove(&done.tag).unwrap();
            if let Err(e) = done.result {
                error = Some(e.errno());
                keep.extend((first..).zip(run));
            }
        }
        if !keep.is_empty() {
            self.dirty.insert(ino, keep);
        }
        error.map_or(Ok(()), Err)
    }

    /// Writes back all dirty pages of all files.
    pub fn write_all_out(&mut self, random: &mut Random) -> Result<(), i32> {
        let mut files: Vec<Ino> = self.dirty.keys().copied().collect();
        files.sort_unstable();
        files
            .into_iter()
            .try_for_each(|ino| self.write_out(ino, random, Portion::All))
    }

    /// Syncs a file as fsync(2): its pages, then the journal.
    pub fn fsync(&mut self, ino: Ino, random: &mut Random) -> Result<(), i32> {
        self.write_out(ino, random, Portion::All)?;
        self.run(ino, Op::Flush).map(drop).map_err(|e| e.errno())
    }

    /// Writes back all files, and syncs the file system.
    pub fn sync(&mut self, random: &mut Random) -> Result<(), i32> {
        self.write_all_out(random)?;
        self.fileset.sync().map_err(|e| e.errno())
    }

    /// Drops the pages of a removed file.
    pub fn forget(&mut self, ino: Ino) {
        self.dirty.remove(&ino);
    }

    fn zero_cached(&mut self, ino: Ino, from: u64, to: u64) {
        let Some(dirty) = self.dirty.get_mut(&ino) else {
            return;
        };
        dirty.retain(|page, _| page * PAGE < from || (page + 1) * PAGE > to);
        for (page, content) in dirty.iter_mut() {
            let start = page * PAGE;
            let (from, to) = (
                from.clamp(start, start + PAGE),
                to.clamp(start, start + PAGE),
            );
            if from < to {
                content[(from - start) as usize..(to - start) as usize].fill(0);
            }
        }
    }

    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<(), i32> {
        let attr = self.fileset.attr(ino).map_err(|e| e.errno())?;
        if attr.inode.kind != fs::FileType::File {
            return self
                .fileset
                .truncate(ino, size)
                .map(drop)
                .map_err(|e| e.errno());
        }
        let cut = self.fileset.truncate(ino, size);
        cut.map_err(|e| e.errno())?;
        self.zero_cached(ino, size, u64::MAX - PAGE);
        Ok(())
    }

    /// Allocates, punches or zeroes as fallocate(2).
    pub fn allocate(&mut self, ino: Ino, from: u64, to: u64, how: Allocate) -> Result<(), i32> {
        let clears = !matches!(how, Allocate::Grow | Allocate::KeepSize);
        let inner = from.div_ceil(PAGE) * PAGE..to / PAGE * PAGE;
        if clears {
            // The edges are written through the cache; whole pages are dropped once the operation
            // has succeeded.
            let size = self.fileset.attr(ino).map_err(|e| e.errno())?.inode.size;
            let edges = if inner.is_empty() {
                [from..to, to..to]
            } else {
                [from..inner.start, inner.end..to]
            };
            for edge in edges {
                let end = edge.end.min(size);
                if edge.start < end {
                    self.write(ino, edge.start, &vec![0; (end - edge.start) as usize])?;
                }
            }
        }
        let done = self.fileset.allocate(ino, from..to, how);
        done.map_err(|e| e.errno())?;
        if clears && !inner.is_empty() {
            self.zero_cached(ino, inner.start, inner.end);
        }
        Ok(())
    }

    /// Copies a range as copy_file_range(2): shares the blocks that can be, and copies the rest.
    pub fn copy(
        &mut self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
        random: &mut Random,
    ) -> Result<(), i32> {
        let size = self.fileset.attr(from.0).map_err(|e| e.errno())?.inode.size;
        let len = len.min(size.saturating_sub(from.1));
        let mut done = 0;
        while done < len {
            let (at, to_at, left) = (from.1 + done, to.1 + done, len - done);
            let mut shared = 0;
            if at % PAGE == 0 && to_at % PAGE == 0 {
                let portion = [Portion::Some, Portion::All][random.below(2) as usize];
                self.write_out(from.0, random, portion)?;
                let whole = left / PAGE * PAGE;
                let answer = self
                    .fileset
                    .share(&self.fileset, (from.0, at), (to.0, to_at), whole);
                shared = answer.map_err(|e| e.errno())?;
            }
            if shared > 0 {
                if let Some(dirty) = self.dirty.get_mut(&to.0) {
                    dirty.retain(|page, _| page * PAGE < to_at || page * PAGE >= to_at + shared);
                }
            } else {
                let piece = left.min(PAGE - at % PAGE);
                let data = self.read(from.0, at, piece)?;
                self.write(to.0, to_at, &data)?;
                shared = piece;
            }
            done += shared;
        }
        Ok(())
    }
}
