//! Data for clients: from the cache to the network.
//!
//! Cache pages are passed to Rx by reference until the client has acknowledged them; beyond a
//! limit, data is copied. The status after the data is the one from before the transfer: if the
//! file changed during it, the client has been notified, and finds a newer version when it asks,
//! even after a crash, because that version is made durable before the status leaves.

use super::status_calls::rights_to_look;
use super::{ANONYMOUS, RequestContext};
use crate::error::{CallResult, DENIED};
use crate::lanes;
use crate::shared::Shared;
use crate::stats::add;
use crate::volume::Volume;
use afs_proto::AfsFid;
use afs_proto::fs::{DataLength, Reply, Request};
use fs::{Attr, FileType, Handle, Lane, Loan};
use rx::{Bytes, Call};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes taken from the cache at a time: two Rx windows.
const CHUNK: u64 = 512 << 10;

/// Size in bytes of a piece of copied data, released on its own: bounds the memory that a client
/// holds when all but its last packets are acknowledged.
const PIECE: usize = 64 << 10;

/// Size of a cache page in bytes.
const PAGE: usize = fs::BLOCK_BYTES as usize;

/// Owner mode bits; a file with neither of them is not readable.
const MAY_READ: u32 = 0o500;

impl RequestContext<'_> {
    pub(super) fn fetch_data(
        &self,
        call: &mut Call,
        request: &Request<'_>,
        fid: &AfsFid,
        (position, length): (u64, u64),
    ) -> CallResult<()> {
        let volume = self.volume(fid)?;
        let ino = volume.ino(fid)?;
        let attr = volume.files.attr(ino)?;
        self.check(&volume, &attr, rights_to_look(&attr))?;
        let callback = self.promise(&volume, ino);
        let (attr, content) = self.content(&volume, &attr)?;
        let size = match &content {
            Content::File(_) => attr.inode.size,
            Content::Bytes(bytes) => bytes.len() as u64,
        };
        let end = size.min(position.saturating_add(length));
        let range = position.min(end)..end;
        let sent = range.end - range.start;
        let mut head = Vec::new();
        let length = DataLength::answer(request, sent);
        length.expect("no more than was asked for").write(&mut head);
        call.write(head)?;
        match content {
            Content::Bytes(bytes) => {
                call.write(bytes.slice(range.start as usize..range.end as usize))?;
            }
            Content::File(handle) => {
                lanes::with(&volume, |lane| self.send(call, lane, &handle, range))??;
                volume.stores.make_durable(&volume.files, ino)?;
            }
        }
        let counters = &self.shared.counters;
        add(&counters.fetches, 1);
        add(&counters.fetched_data, 1);
        add(&counters.fetched_bytes, sent);
        let status = self.status_of(&volume, &attr, size)?;
        super::write(
            call,
            &Reply::FetchData {
                status,
                callback: self.told(&callback),
                sync: volume.sync(),
            },
        )
    }

    /// Opens the fetchable content of an inode, and the inode as of that moment.
    fn content(&self, volume: &Arc<Volume>, attr: &Attr) -> CallResult<(Attr, Content)> {
        let ino = attr.ino;
        match attr.inode.kind {
            FileType::Directory => {
                let directory = volume.directories.of(ino);
                let mut pages = directory.lock();
                let (attr, bytes) = pages.read(&volume.files)?;
                let bytes = Bytes::from(bytes.to_vec());
                let change = pages.change_seen();
                drop(pages);
                volume.directories.make_durable(&volume.files, change)?;
                Ok((attr, Content::Bytes(bytes)))
            }
            FileType::Symlink => {
                let target = volume.files.read_link(ino)?;
                Ok((attr.clone(), Content::Bytes(target.into())))
            }
            _ => {
                let handle = volume.files.open(ino)?;
                let attr = volume.attr(ino)?;
                if attr.inode.uid != ANONYMOUS && attr.inode.permissions & MAY_READ == 0 {
                    return Err(DENIED);
                }
                Ok((attr, Content::File(Box::new(handle))))
            }
        }
    }

    fn send(
        &self,
        call: &mut Call,
        lane: &mut Lane,
        file: &Handle,
        range: Range<u64>,
    ) -> CallResult<()> {
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + CHUNK);
            at = part.end;
            let pages = match lend(self.shared, lane, file, part.clone()) {
                Some(pages) => pages,
                None => read(lane, file, part.clone())?,
            };
            let there: usize = pages.iter().map(Bytes::len).sum();
            call.write_all(pages)?;
            // The file was truncated concurrently. The announced length must be sent, so the rest
            // is filled with zeros.
            let missing = (part.end - part.start) as usize - there;
            if missing > 0 {
                call.write(vec![0; missing])?;
            }
        }
        Ok(())
    }
}

/// Content that a client fetches.
enum Content {
    File(Box<Handle>),
    /// Pages of a directory, or the target of a symbolic link.
    Bytes(Bytes),
}

/// Cache page in transmission, counted until it is released.
struct Lent {
    page: Loan,
    all: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.page
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.all.fetch_sub(PAGE, Relaxed);
    }
}

/// Takes references to the cache pages of a range; `None` if the limit is exceeded or the cache
/// cannot provide them.
fn lend(shared: &Shared, lane: &mut Lane, file: &Handle, range: Range<u64>) -> Option<Vec<Bytes>> {
    let wanted = (range.end - range.start) as usize;
    if shared.lent.load(Relaxed) + wanted > shared.config.lent_bytes_max {
        return None;
    }
    let mut pages = Vec::with_capacity(wanted / PAGE + 2);
    let lent = lane.lend(file, range, |page, part| {
        shared.lent.fetch_add(PAGE, Relaxed);
        let all = Arc::clone(&shared.lent);
        pages.push(Bytes::from_owner(Arc::new(Lent { page, all })).slice(part));
    });
    lent.is_ok().then_some(pages)
}

/// Copies a range, in pieces that are released one by one as they are acknowledged.
fn read(lane: &mut Lane, file: &Handle, range: Range<u64>) -> CallResult<Vec<Bytes>> {
    let mut pieces = Vec::new();
    for at in range.clone().step_by(PIECE) {
        let mut bytes = vec![0; PIECE.min((range.end - at) as usize)];
        let there = lane.read(file, at, &mut bytes)?;
        let all = there == bytes.len();
        bytes.truncate(there);
        pieces.push(bytes.into());
        if !all {
            break;
        }
    }
    Ok(pieces)
}
