//! Requests that the kernel repeats because the predecessor of this server died before it answered
//! them.
//!
//! Most may be carried out twice: the second time changes nothing. The others are those that make or
//! remove a name. If the predecessor has carried one out, the second attempt fails, and the reply is
//! the one that the predecessor would have sent. The kernel locks the directory until the reply, so
//! no other request has changed the name in between.

use super::handles::{How, syncs};
use super::{Tree, errno};
use crate::survival::Survival;
use fs::{Kind, SetXattr};
use fuse_mount::fuse_proto::{Header, Operation, Request, Write, abi};
use fuse_mount::{Errno, Reply};
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Number of this thread among those that serve mounts.
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Number of threads that have served a mount.
static SLOTS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of this thread.
fn slot() -> usize {
    SLOT.get().unwrap_or_else(|| {
        let slot = SLOTS.fetch_add(1, Ordering::Relaxed);
        SLOT.set(Some(slot));
        slot
    })
}

/// State that a mount has from its predecessor and leaves to its successor.
pub(super) struct Succession {
    pub survival: Arc<Survival>,
    /// Requests that the predecessor carried out.
    pub done: HashSet<u64>,
}

/// Number of a request, which is the same when the kernel repeats it.
fn number(header: &Header) -> u64 {
    header.unique & !abi::FUSE_UNIQUE_RESEND
}

impl Tree {
    /// Serves a request of a mount whose server may have a successor.
    pub(super) fn serve_noted(
        &self,
        succession: &Succession,
        request: &Request<'_>,
        reply: Reply<'_>,
    ) {
        let requests = &succession.survival.requests;
        if is_one_step(&request.operation) {
            requests.begin(slot(), number(&request.header));
        }
        let done = succession.done.contains(&number(&request.header));
        if request.header.is_resent() {
            self.serve_repeated(request, done, reply);
        } else {
            self.serve_once(request, reply);
        }
        requests.end();
    }

    fn serve_repeated(&self, request: &Request<'_>, done: bool, reply: Reply<'_>) {
        let (header, node) = (&request.header, request.header.node);
        // The kernel has chosen the place of an append, which may have been made.
        if let Operation::Write(write) = &request.operation {
            let flags = write.flags & !(libc::O_APPEND as u32);
            let write = Write { flags, ..*write };
            return self.write(&write, reply);
        }
        if !done {
            return self.serve_once(request, reply);
        }
        match &request.operation {
            Operation::MkNod { name, .. }
            | Operation::MkDir { name, .. }
            | Operation::Symlink { name, .. } => match self.files.lookup(node, name) {
                Ok(attr) => reply.entry(&self.entry_of(&attr)),
                Err(_) => self.serve_once(request, reply),
            },
            Operation::Link { new_name, .. } => match self.files.lookup(node, new_name) {
                Ok(attr) => reply.entry(&self.entry_of(&attr)),
                Err(_) => self.serve_once(request, reply),
            },
            Operation::Create(create) => {
                let found = self.files.lookup(node, create.name);
                let opened = found.and_then(|attr| Ok((self.files.open(attr.ino)?, attr)));
                match opened {
                    Ok((handle, attr)) => {
                        let how = How {
                            writes: true,
                            syncs: syncs(create.flags),
                            had_capabilities: true,
                            uncached: self.uncached,
                        };
                        match self.opened(handle, how) {
                            Ok(opened) => reply.created(&self.entry_of(&attr), &opened),
                            Err(error) => reply.error(error),
                        }
                    }
                    Err(_) => self.serve_once(request, reply),
                }
            }
            Operation::Unlink { name } => {
                let result = self.files.unlink(node, name).map(drop);
                reply.result(if_found(result));
            }
            Operation::RmDir { name } => {
                let removed = self.removing((node, name), || self.files.rmdir(node, name));
                reply.result(removed.map(drop).or_else(|error| match error {
                    Errno::NOENT => Ok(()),
                    error => Err(error),
                }));
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let names = [(node, *name), (*new_parent, *new_name)];
                // An exchange would be undone, and a name that is there again is a whiteout.
                if *flags & (libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
                    return reply.empty();
                }
                let renamed = self.rename(header, names, *flags);
                reply.result(renamed.or_else(|error| match error {
                    Errno::NOENT => Ok(()),
                    error => Err(error),
                }));
            }
            // One that had to be new is the one that the predecessor has set.
            Operation::SetXattr { name, value, .. } => {
                reply.result(self.set_xattr(header, name, (value, SetXattr::Any)));
            }
            Operation::RemoveXattr { name } => {
                let result = self.files.remove_xattr(node, name);
                reply.result(result.or_else(|error| match error.kind() {
                    Kind::NoAttribute => Ok(()),
                    _ => Err(errno(error)),
                }));
            }
            _ => self.serve_once(request, reply),
        }
    }
}

/// Reports whether one operation of the file system carries out a request that must not be repeated.
fn is_one_step(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
    )
}

/// Treats a name that is gone as removed.
fn if_found(result: fs::Result<()>) -> Result<(), Errno> {
    result.or_else(|error| match error.kind() {
        Kind::NotFound => Ok(()),
        _ => Err(errno(error)),
    })
}
