//! Data and attributes from clients.
//!
//! Data is received before it is written, one part at a time, so that no other client waits for a
//! slow one. Other clients see a store as a single change: the version advances by one when all
//! data is written.

use super::{ANONYMOUS, Change, RequestContext, SET_ID};
use crate::admission::RequestReader;
use crate::error::{CallResult, DENIED, Fault};
use crate::lanes;
use crate::stats::add;
use crate::stores::Store;
use crate::volume::Volume;
use afs_proto::fs::{AfsStoreStatus, Reply};
use afs_proto::{Abort, AfsFid, Fid, Rights};
use fs::{Attr, FileType, Handle, Ino, Lane, SetAttr, SetTime, Time, WritePosition};
use rx::{Bytes, Call};
use std::sync::Arc;

/// Bytes received before they are written.
const CHUNK: u64 = 1 << 20;

/// As [`CHUNK`], if the client keeps them until they are written: less than the smallest window of
/// known clients, 16 packets.
const KEPT_CHUNK: u64 = 12 << 10;

/// Owner mode bit without which a file is not writable.
const MAY_WRITE: u32 = 0o200;

/// Target range of a store, in bytes.
pub(super) struct StoreRange {
    pub(super) position: u64,
    /// Length of the data.
    pub(super) length: u64,
    /// Minimum length of the file; a longer file is truncated to it first.
    pub(super) file_length: u64,
}

impl RequestContext<'_> {
    pub(super) fn store_data(
        &self,
        call: &mut Call,
        first: Bytes,
        fid: &AfsFid,
        wanted: &AfsStoreStatus,
        place: &StoreRange,
    ) -> CallResult<()> {
        let volume = self.volume_to_change(fid)?;
        let ino = volume.ino(fid)?;
        let attr = volume.files.attr(ino)?;
        match attr.inode.kind {
            FileType::File => {}
            FileType::Directory => return Err(Fault::Errno(libc::EISDIR)),
            _ => return Err(Fault::Errno(libc::EINVAL)),
        }
        self.check(&volume, &attr, Rights::WRITE)?;
        if attr.inode.uid != ANONYMOUS && attr.inode.permissions & MAY_WRITE == 0 {
            return Err(DENIED);
        }
        let end = place.position.checked_add(place.length);
        if end.is_none_or(|end| end.max(place.file_length) > fs::FILE_SIZE_MAX) {
            return Err(Fault::Errno(libc::EFBIG));
        }
        if self.turn.is_done() {
            return self.stored(call, &volume, (ino, fid));
        }
        let handle = volume.files.open(ino)?;
        let mut data = Data {
            call,
            sender: self.shared.hosts.admission.sender(),
            piece: first,
            left: place.length.saturating_sub(self.stored),
            is_kept: self.turn.is_kept(),
        };
        let part = data.next()?;
        let mut store = volume.stores.begin(&volume.files, ino)?;
        let stored = lanes::with(&volume, |lane| {
            let mode = handle.attr()?.inode.permissions;
            if mode & SET_ID != 0 {
                // Before the first byte; made durable together with the version.
                let set = SetAttr {
                    permissions: Some(mode & !SET_ID),
                    ..SetAttr::default()
                };
                lane.set_attr(ino, &set)?;
            }
            let begun = (part, self.stored);
            let written = write_all(lane, &handle, place, begun, &mut data, &mut store);
            let set = written.and_then(|()| {
                lane.set_attr(ino, &attributes(wanted, MODTIME))?;
                Ok(())
            });
            // The data written by a failed store has a version too.
            let synced = lane.sync(&handle);
            store.durable = synced.is_ok();
            set.and(synced.map_err(Fault::from))
        });
        drop((store, data));
        let stored = stored.map_err(Fault::from).flatten();
        // A failed store may have changed the file.
        self.notify_holders(&volume, &[Change::answered(ino, Fid::from(fid))]);
        stored?;
        let counters = &self.shared.counters;
        add(&counters.stores, 1);
        add(&counters.stored_data, 1);
        add(&counters.stored_bytes, place.length);
        self.stored(call, &volume, (ino, fid))
    }

    /// Answers a store that was carried out, here or by a killed server.
    fn stored(
        &self,
        call: &mut Call,
        volume: &Arc<Volume>,
        (ino, fid): (Ino, &AfsFid),
    ) -> CallResult<()> {
        if self.turn.is_done() {
            self.notify_holders(volume, &[Change::answered(ino, Fid::from(fid))]);
        }
        let status = self.status(volume, ino)?;
        self.turn.finished();
        super::write(
            call,
            &Reply::StoreData {
                status,
                sync: volume.sync(),
            },
        )
    }

    pub(super) fn store_status(
        &self,
        fid: &AfsFid,
        wanted: &AfsStoreStatus,
    ) -> CallResult<Reply<'static>> {
        let volume = self.volume_to_change(fid)?;
        let ino = volume.ino(fid)?;
        let attr = volume.files.attr(ino)?;
        if gives_away(&attr, wanted) || sets_id(wanted) {
            // As with the system calls, the file's access list does not suffice.
            self.check(&volume, &attr, Rights::ADMINISTER)
                .map_err(|_| Fault::Errno(libc::EPERM))?
        } else {
            self.check(&volume, &attr, rights_to_set(&attr))?
        };
        if !self.turn.is_done() {
            self.set_attributes(&volume, ino, wanted)?;
        }
        let durable = volume.files.sync_names();
        self.notify_holders(&volume, &[Change::answered(ino, Fid::from(fid))]);
        durable?;
        add(&self.shared.counters.stores, 1);
        Ok(Reply::StoreStatus {
            status: self.status(&volume, ino)?,
            sync: volume.sync(),
        })
    }

    fn set_attributes(
        &self,
        volume: &Arc<Volume>,
        ino: Ino,
        wanted: &AfsStoreStatus,
    ) -> CallResult<()> {
        let set = attributes(wanted, ALL);
        lanes::with(volume, |lane| lane.set_attr(ino, &set).map(drop))?.map_err(Fault::from)
    }
}

/// Checks whether the owner or group changes. Only callers that may change access lists can do
/// that.
fn gives_away(attr: &Attr, wanted: &AfsStoreStatus) -> bool {
    wanted.owner.is_some_and(|owner| owner != attr.inode.uid)
        || wanted.group.is_some_and(|group| group != attr.inode.gid)
}

/// Checks whether a set-ID bit is requested. This too requires the right to change access lists: a
/// caller that may write a file need not be its owner, on whose behalf it would then execute.
fn sets_id(wanted: &AfsStoreStatus) -> bool {
    wanted.unix_mode_bits.is_some_and(|mode| mode & SET_ID != 0)
}

/// Returns the rights required to change other attributes.
fn rights_to_set(attr: &Attr) -> Rights {
    match attr.inode.kind {
        FileType::Directory => Rights::INSERT.or(Rights::DELETE),
        _ => Rights::WRITE,
    }
}

/// Attributes to apply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Modified,
}
const ALL: Which = Which::All;
const MODTIME: Which = Which::Modified;

fn attributes(wanted: &AfsStoreStatus, which: Which) -> SetAttr {
    let time = |seconds: u32| {
        SetTime::To(Time {
            seconds: seconds.into(),
            nanos: 0,
        })
    };
    let modified = wanted.client_mod_time.map(time);
    if which == Which::Modified {
        return SetAttr {
            modified,
            ..SetAttr::default()
        };
    }
    SetAttr {
        permissions: wanted.unix_mode_bits.map(|mode| mode & 0o7777),
        uid: wanted.owner,
        gid: wanted.group,
        modified,
        ..SetAttr::default()
    }
}

/// Writes all data as one version of the file. Overwritten bytes are replaced in place, and
/// truncated bytes disappear at once, even from data in transmission to clients. The new version is
/// therefore made durable first, so that a crash leaves no old version with other bytes. Of the data a
/// killed server has stored some bytes, with a version that clients may have seen.
fn write_all(
    lane: &mut Lane,
    file: &Handle,
    place: &StoreRange,
    (first, stored): (Vec<u8>, u64),
    data: &mut Data<'_>,
    store: &mut Store<'_>,
) -> CallResult<()> {
    let size = file.attr()?.inode.size;
    let end = place.position + place.length;
    let cuts = place.file_length < size && stored == 0;
    let grows = place.file_length > size.max(end);
    if cuts || stored > 0 || place.length > 0 && place.position < size {
        lane.files().raise_version(file.ino())?;
        store.raised = true;
        lane.files().sync_names()?;
    }
    if cuts || grows || place.length == 0 {
        let set = SetAttr {
            size: Some(place.file_length),
            has_version: store.raised,
            ..SetAttr::default()
        };
        lane.set_attr(file.ino(), &set)?;
        store.raised = true;
    }
    let (mut at, mut part) = (place.position + stored, first);
    while !part.is_empty() {
        if store.raised {
            lane.write_more(file, at, &part)?
        } else {
            lane.write(file, WritePosition::Offset(at), &part)
                .map(drop)?
        }
        store.raised = true;
        at += part.len() as u64;
        data.keep();
        part = data.next()?;
    }
    Ok(())
}

/// Data of a call as it arrives.
struct Data<'c> {
    call: &'c mut Call,
    sender: RequestReader<'c>,
    /// Received bytes not consumed yet.
    piece: Bytes,
    /// Remaining bytes, including `piece`.
    left: u64,
    /// Whether the client keeps what is not written yet, in case another server has to write it.
    is_kept: bool,
}

impl Data<'_> {
    /// Records that all that was received is written.
    fn keep(&self) {
        if self.is_kept && self.piece.is_empty() {
            self.call.keep();
        }
    }

    /// Receives the next part, which ends with a packet if the client keeps it; empty at the end.
    fn next(&mut self) -> CallResult<Vec<u8>> {
        let chunk = if self.is_kept { KEPT_CHUNK } else { CHUNK };
        let mut wanted = usize::try_from(self.left.min(chunk)).unwrap_or(0);
        let mut part = Vec::with_capacity(wanted);
        while part.len() < wanted {
            if self.piece.is_empty() {
                self.sender.await_bytes(self.call, wanted - part.len())?;
                let piece = self.call.read()?;
                self.piece = piece.ok_or(Fault::Code(Abort::RXGEN_SS_UNMARSHAL))?;
            }
            if self.is_kept {
                let all = (part.len() + self.piece.len()) as u64;
                wanted = wanted.max(usize::try_from(all.min(self.left)).unwrap_or(0));
            }
            let taken = self.piece.len().min(wanted - part.len());
            part.extend_from_slice(self.piece.slice(0..taken).as_ref());
            self.piece = self.piece.slice(taken..self.piece.len());
        }
        self.left -= wanted as u64;
        Ok(part)
    }
}
