//! The file service: dispatches each call to its procedure.
//!
//! A procedure resolves volume and inode, checks the caller's rights, performs the operation, makes
//! it durable, notifies other callback holders, and only then replies.

mod fetch;
mod lists;
mod locks;
mod names;
mod rename;
mod status_calls;
mod store;
mod volumes;

use crate::acl::{Allowed, Caller};
use crate::breaks::CallbackBreaks;
use crate::callback::GrantedPromise;
use crate::error::{CallResult, DENIED, ErrnoForm, Fault};
use crate::fid;
use crate::hosts::Host;
use crate::shared::{Shared, receive};
use crate::stats::add;
use crate::survival::Turn;
use crate::volume::{Kind, Volume};
use afs_proto::fs::{Reply, Request};
use afs_proto::{Abort, AfsCallBack, AfsFid, Fid, List, Rights, capability, prefix};
use fs::{Attr, Ino};
use layer_cpu::{Layer, home};
use rx::{Call, Handler};
use std::sync::Arc;
use std::time::Instant;

/// Owner of files created by unauthenticated callers (`AnonymousID` of OpenAFS).
pub(crate) const ANONYMOUS: u32 = 32_766;

/// Set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;

/// Handler of the file service.
pub(crate) struct FileService {
    pub(crate) shared: Arc<Shared>,
}

impl Handler for FileService {
    fn serve(&self, call: &mut Call) -> Result<(), rx::Abort> {
        home(Layer::Protocol);
        let counters = &self.shared.counters;
        add(&counters.calls, 1);
        self.answer(call)
            .inspect_err(|_| add(&counters.aborts, 1))
            .map_err(|code| rx::Abort(code.0))
    }
}

impl FileService {
    fn answer(&self, call: &mut Call) -> Result<(), Abort> {
        let plain = |fault: Fault| fault.code(ErrnoForm::Linux);
        self.shared.check_allowed(call).map_err(plain)?;
        let parse = |bytes: &[u8]| prefix::<Request<'_>>(bytes).map(drop);
        let head = receive(call, &self.shared.hosts.admission, parse).map_err(plain)?;
        let (request, taken) =
            prefix::<Request<'_>>(head.as_ref()).map_err(|error| error.server_abort())?;
        let data = head.slice(taken..head.len());
        // A killed server has stored this much of the data, which is not in the packets any more.
        let stored = call.kept_bytes().saturating_sub(taken as u64);
        let data = if stored > 0 { data.slice(0..0) } else { data };
        let answered = self.carry_out(call, &request, data, stored);
        if let Some(procedure) = self.shared.counters.procedure(request.opcode()) {
            add(&procedure.calls, 1);
            add(&procedure.aborts, u64::from(answered.is_err()));
        }
        answered
    }

    fn carry_out(
        &self,
        call: &mut Call,
        request: &Request<'_>,
        data: rx::Bytes,
        stored: u64,
    ) -> Result<(), Abort> {
        let plain = |fault: Fault| fault.code(ErrnoForm::Linux);
        if let Some(reply) = self.about_server(call, request).map_err(plain)? {
            return write(call, &reply).map_err(plain);
        }
        let visit = RequestContext {
            shared: &self.shared,
            host: self.shared.hosts.of(call).map_err(plain)?,
            caller: Caller::At(call.peer().ip()),
            turn: Turn::new(self.shared.surviving.as_ref(), call.entry()),
            stored,
        };
        visit
            .answer(call, request, data)
            .map_err(|fault| fault.code(visit.host.errno_form()))
    }

    /// Handles RPCs that concern no file and need no known client. Clients use `GetTime` and
    /// `GetCapabilities` as liveness probes: for these the client is greeted first, and answered
    /// even if that fails.
    fn about_server(
        &self,
        call: &Call,
        request: &Request<'_>,
    ) -> CallResult<Option<Reply<'static>>> {
        if matches!(request, Request::GetTime {} | Request::GetCapabilities {}) {
            let _ = self.shared.hosts.of(call);
        }
        let now = self.shared.clock();
        Ok(Some(match request {
            Request::GetCapabilities {} => Reply::GetCapabilities {
                capabilities: List::new(vec![capability::ERRORTRANS | capability::FILES64])?,
            },
            Request::GetTime {} => Reply::GetTime {
                seconds: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
                microseconds: now.subsec_micros(),
            },
            Request::GetStatistics {} => volumes::statistics(&self.shared),
            Request::GetStatistics64 { version } => volumes::statistics64(&self.shared, *version)?,
            _ => return Ok(None),
        }))
    }
}

fn write(call: &mut Call, reply: &Reply<'_>) -> CallResult<()> {
    let mut bytes = Vec::new();
    reply.write(&mut bytes);
    Ok(call.write(bytes)?)
}

/// Context of one client call.
pub(crate) struct RequestContext<'s> {
    pub(crate) shared: &'s Shared,
    pub(crate) host: Arc<Host>,
    pub(crate) caller: Caller,
    pub(crate) turn: Turn<'s>,
    /// Bytes of data that a killed server has stored for the call.
    pub(crate) stored: u64,
}

/// File changed by a call.
#[derive(Debug, Clone, Copy)]
struct Change {
    ino: Ino,
    fid: Fid,
    /// The reply contains the new status. Otherwise the caller must be notified too: Linux
    /// miscounts the links of a file from the second removal of one of two names on
    /// (`fs/afs/inode.c`, `afs_apply_status` compares with the last status received, not with its
    /// own count).
    is_answered: bool,
}

impl Change {
    fn answered(ino: Ino, fid: Fid) -> Change {
        let is_answered = true;
        Change {
            ino,
            fid,
            is_answered,
        }
    }
}

impl RequestContext<'_> {
    fn answer(&self, call: &mut Call, request: &Request<'_>, data: rx::Bytes) -> CallResult<()> {
        match request {
            Request::FetchData {
                fid,
                position,
                length,
            } => {
                let range = (u64::from(*position), u64::from(*length));
                self.fetch_data(call, request, fid, range)
            }
            Request::FetchData64 {
                fid,
                position,
                length,
            } => self.fetch_data(call, request, fid, (*position, *length)),
            Request::StoreData {
                fid,
                wanted,
                position,
                length,
                file_length,
            } => {
                let place = store::StoreRange {
                    position: (*position).into(),
                    length: (*length).into(),
                    file_length: (*file_length).into(),
                };
                self.store_data(call, data, fid, wanted, &place)
            }
            Request::StoreData64 {
                fid,
                wanted,
                position,
                length,
                file_length,
            } => {
                let place = store::StoreRange {
                    position: *position,
                    length: *length,
                    file_length: *file_length,
                };
                self.store_data(call, data, fid, wanted, &place)
            }
            Request::FetchACL { fid } => self.fetch_list(call, fid),
            Request::GetVolumeStatus { volume } => self.volume_status(call, *volume),
            other => {
                let reply = self.reply(other)?;
                self.turn.finished();
                write(call, &reply)
            }
        }
    }

    #[rustfmt::skip]
    fn reply(&self, request: &Request<'_>) -> CallResult<Reply<'static>> {
        match request {
            Request::FetchStatus { fid } => self.fetch_status(fid),
            Request::InlineBulkStatus { fids } => self.inline_bulk_status(fids),
            Request::BulkStatus { fids } => self.bulk_status(fids),
            Request::Lookup { directory, name } => self.lookup(directory, name.as_bytes()),
            Request::StoreStatus { fid, wanted } => self.store_status(fid, wanted),
            Request::StoreACL { fid, access_list } => self.store_list(fid, access_list.as_bytes()),
            Request::CreateFile { directory, name, wanted } => self.create_file(directory, name.as_bytes(), wanted),
            Request::MakeDir { directory, name, wanted } => self.make_dir(directory, name.as_bytes(), wanted),
            Request::Symlink { directory, name, contents, wanted } =>
                self.symlink(directory, name.as_bytes(), contents.as_bytes(), wanted),
            Request::Link { directory, name, existing } => self.link(directory, name.as_bytes(), existing),
            Request::RemoveFile { directory, name } => self.remove_file(directory, name.as_bytes()),
            Request::RemoveDir { directory, name } => self.remove_dir(directory, name.as_bytes()),
            Request::Rename { old_directory, old_name, new_directory, new_name } =>
                self.rename((old_directory, old_name.as_bytes()), (new_directory, new_name.as_bytes())),
            Request::SetLock { fid, lock } => self.set_lock(fid, *lock),
            Request::ExtendLock { fid } => self.extend_lock(fid),
            Request::ReleaseLock { fid } => self.release_lock(fid),
            Request::GiveUpCallBacks { fids, .. } => self.give_up(fids),
            Request::GiveUpAllCallBacks {} => {
                self.host.give_up_all();
                Ok(Reply::GiveUpAllCallBacks {})
            }
            Request::SetVolumeStatus { volume, wanted, .. } => self.set_volume_status(*volume, wanted),
            other => Err(afs_proto::WireError::Opcode(other.opcode()).into()),
        }
    }

    /// Looks up the volume of a file.
    fn volume(&self, fid: &AfsFid) -> CallResult<Arc<Volume>> {
        let volume = self.shared.volumes.get(fid.volume);
        volume.ok_or(Abort::VNOVOL.into())
    }

    /// Looks up the volume of a file, which must be writable.
    fn volume_to_change(&self, fid: &AfsFid) -> CallResult<Arc<Volume>> {
        let volume = self.volume(fid)?;
        volume.check_writable()?;
        Ok(volume)
    }

    /// Determines the caller's rights on an inode; fails unless they include all of `wanted`.
    fn check(&self, volume: &Volume, attr: &Attr, wanted: Rights) -> CallResult<Allowed> {
        let allowed = volume.allowed(attr, &self.caller)?;
        if allowed.caller.has(wanted) {
            Ok(allowed)
        } else {
            Err(DENIED)
        }
    }

    /// Looks up volume and inode of a directory to change, and the rights of the caller, which must
    /// include `wanted`.
    fn directory(&self, fid: &AfsFid, wanted: Rights) -> CallResult<(Arc<Volume>, Attr, Allowed)> {
        let volume = self.volume_to_change(fid)?;
        let ino = volume.ino(fid)?;
        let attr = volume.files.attr(ino)?;
        if !attr.inode.is_dir() {
            return Err(Fault::Errno(libc::ENOTDIR));
        }
        let allowed = self.check(&volume, &attr, wanted)?;
        Ok((volume, attr, allowed))
    }

    /// Makes a promise to the caller; must precede the read of the file. A read-only volume changes
    /// only as a whole and has one promise for all its files.
    fn promise(&self, volume: &Volume, ino: Ino) -> GrantedPromise {
        let file = match volume.kind {
            Kind::ReadWrite => (volume.id, ino),
            Kind::ReadOnly | Kind::Backup => (volume.id, 0),
        };
        self.shared.promises.grant(&self.host, file)
    }

    /// Builds the callback to include in the reply for a promise.
    fn told(&self, given: &GrantedPromise) -> AfsCallBack {
        self.shared.promises.reply_callback(given)
    }

    /// Notifies the other callback holders of changed files.
    fn notify_holders(&self, volume: &Volume, changed: &[Change]) {
        let mut breaks = CallbackBreaks::default();
        for change in changed {
            let file = (volume.id, change.ino);
            let knows = change.is_answered.then_some(&self.host);
            self.shared
                .promises
                .take(file, change.fid, knows, &mut breaks);
        }
        self.shared.hosts.pass_told();
        let again = breaks.take_again();
        let told = breaks.notify_all(&self.shared.hosts);
        self.shared.callback_retries.add(again);
        add(&self.shared.counters.breaks, told);
    }

    fn lock_count(&self, volume: &Volume, ino: Ino) -> i32 {
        self.shared.locks.count(Instant::now(), (volume.id, ino))
    }

    fn give_up(&self, fids: &[AfsFid]) -> CallResult<Reply<'static>> {
        for fid in fids {
            if let Some(ino) = fid::ino_of(Fid::from(fid)) {
                let file = (fid.volume, ino);
                self.shared.promises.release(&self.host, file);
            }
        }
        Ok(Reply::GiveUpCallBacks {})
    }
}

fn fid_of(attr: &Attr) -> CallResult<Fid> {
    fid::of(attr).ok_or(Fault::Errno(libc::EOVERFLOW))
}
