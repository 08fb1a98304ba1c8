//! Notifications: messages to the kernel that answer no request.
//!
//! The kernel's `write` fails with `ENOENT` if it does not know the node or name, which is no error
//! of the server. It may wait for a request on the same file: the caller must hold no lock that the
//! server of that request needs.

use crate::abi::*;
use crate::reply::{HEADER_BYTES, message};
use zerocopy::{Immutable, IntoBytes};

const fn with<T>() -> usize {
    HEADER_BYTES + size_of::<T>()
}

fn notification<T: IntoBytes + Immutable, const N: usize>(
    code: i32,
    body: &T,
    more: usize,
) -> [u8; N] {
    message((0, code), body, more)
}

/// Makes the kernel drop its attributes of a file, and its data from `offset` on: `length` bytes, or
/// all if it is 0. A negative `offset` keeps the data.
pub fn inval_inode(
    node: u64,
    offset: i64,
    length: i64,
) -> [u8; with::<fuse_notify_inval_inode_out>()] {
    let out = fuse_notify_inval_inode_out {
        ino: node,
        off: offset,
        len: length,
    };
    notification(FUSE_NOTIFY_INVAL_INODE, &out, 0)
}

/// Makes the kernel drop a name.
pub fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    entry(parent, name, 0)
}

/// Makes the kernel ask again for a name that it has cached, without unmounting what is mounted on
/// it. Needs `FUSE_HAS_EXPIRE_ONLY`.
pub fn expire(parent: u64, name: &[u8]) -> Vec<u8> {
    entry(parent, name, FUSE_EXPIRE_ONLY)
}

fn entry(parent: u64, name: &[u8], flags: u32) -> Vec<u8> {
    let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let out = fuse_notify_inval_entry_out {
        parent,
        namelen,
        flags,
    };
    let head: [u8; with::<fuse_notify_inval_entry_out>()] =
        notification(FUSE_NOTIFY_INVAL_ENTRY, &out, name.len() + 1);
    [&head, name, &[0]].concat()
}

/// Reports that a name was removed: the kernel drops it, also if it is in use, and programs that
/// watch the directory are notified.
pub fn delete(parent: u64, child: u64, name: &[u8]) -> Vec<u8> {
    let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let out = fuse_notify_delete_out {
        parent,
        child,
        namelen,
        padding: 0,
    };
    let head: [u8; with::<fuse_notify_delete_out>()] =
        notification(FUSE_NOTIFY_DELETE, &out, name.len() + 1);
    [&head, name, &[0]].concat()
}

/// Header of data for the kernel's cache, `size` bytes that follow it.
pub fn store(node: u64, offset: u64, size: u32) -> [u8; with::<fuse_notify_store_out>()] {
    let out = fuse_notify_store_out {
        nodeid: node,
        offset,
        size,
        padding: 0,
    };
    let more = usize::try_from(size).unwrap_or(usize::MAX);
    notification(FUSE_NOTIFY_STORE, &out, more)
}

/// Requests data from the kernel's cache. It arrives as
/// [`Operation::NotifyReply`](crate::Operation::NotifyReply) with the number `unique`.
pub fn retrieve(
    unique: u64,
    node: u64,
    offset: u64,
    size: u32,
) -> [u8; with::<fuse_notify_retrieve_out>()] {
    let out = fuse_notify_retrieve_out {
        notify_unique: unique,
        nodeid: node,
        offset,
        size,
        padding: 0,
    };
    notification(FUSE_NOTIFY_RETRIEVE, &out, 0)
}

/// Wakes up callers of `poll`.
pub fn poll(wakeup: u64) -> [u8; with::<fuse_notify_poll_wakeup_out>()] {
    notification(
        FUSE_NOTIFY_POLL,
        &fuse_notify_poll_wakeup_out { kh: wakeup },
        0,
    )
}

/// Makes the kernel send all requests again that have no answer. Needs `FUSE_HAS_RESEND`.
pub fn resend() -> [u8; HEADER_BYTES] {
    notification(FUSE_NOTIFY_RESEND, &[0; 0], 0)
}

/// Makes the kernel ask again for every name that it has cached. Since 7.44.
pub fn inc_epoch() -> [u8; HEADER_BYTES] {
    notification(FUSE_NOTIFY_INC_EPOCH, &[0; 0], 0)
}

/// Makes the kernel drop nodes that are not in use, which leads to FORGET requests. Since 7.45.
pub fn prune(nodes: &[u64]) -> Vec<u8> {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let out = fuse_notify_prune_out {
        count,
        padding: 0,
        spare: 0,
    };
    let head: [u8; with::<fuse_notify_prune_out>()] =
        notification(FUSE_NOTIFY_PRUNE, &out, size_of_val(nodes));
    [&head, nodes.as_bytes()].concat()
}
