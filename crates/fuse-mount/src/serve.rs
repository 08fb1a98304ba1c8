//! The interface of a served file system.

use crate::device::Device;
use crate::turn;
use fuse_proto::reply::{self, Directory, DirectoryPlus};
use fuse_proto::{Attr, Entry, IoctlReply, Opened, Request, Session, StatFs, Statx, Wanted};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A file system that a mount serves. Several threads call it at the same time.
///
/// A request that waits for a device announces it by [`block::about_to_sleep`], so that another
/// thread receives requests in the meantime.
pub trait Serve: Send + Sync + 'static {
    /// Returns the wishes for the session. The kernel's page size is filled in.
    fn wanted(&self) -> Wanted;

    /// Notes the agreement with the kernel, before the first request.
    fn agreed(&mut self, _session: &Session) {}

    /// Serves a request, whose operation is none of the session's own (INIT, DESTROY, INTERRUPT).
    /// If the kernel expects an answer, and `reply` is dropped without one, it is `EIO`.
    fn serve(&self, request: &Request<'_>, reply: Reply<'_>);

    /// Notes that no thread serves a request any longer, and none will come.
    fn ended(&self) {}
}

/// The place for the answer to a request.
pub struct Reply<'a> {
    device: Origin<'a>,
    /// `None` once it is answered, or if the kernel expects no answer.
    unique: Option<u64>,
}

/// Descriptor from which a request was read.
enum Origin<'a> {
    Thread(&'a Arc<Device>),
    Kept(Arc<Device>),
}

impl<'a> Reply<'a> {
    pub(crate) fn new(device: &'a Arc<Device>, unique: Option<u64>) -> Reply<'a> {
        Reply {
            device: Origin::Thread(device),
            unique,
        }
    }

    /// Creates the reply to a request that was not read from a mount, for tests of a file system:
    /// the message is written to `descriptor`.
    pub fn over(descriptor: OwnedFd, unique: u64) -> Reply<'static> {
        Reply {
            device: Origin::Kept(Arc::new(Device::from(descriptor))),
            unique: Some(unique),
        }
    }

    /// Makes the reply independent of this thread, to be sent later by any other one.
    pub fn detach(mut self) -> Reply<'static> {
        let device = Arc::clone(self.device());
        Reply {
            device: Origin::Kept(device),
            unique: self.unique.take(),
        }
    }

    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.send(|unique| reply::error(unique, errno.raw_os_error()), &[]);
    }

    /// Answers that the request is done.
    pub fn empty(self) {
        self.send(reply::empty, &[]);
    }

    /// Answers with success or an error.
    pub fn result(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.empty(),
            Err(errno) => self.error(errno),
        }
    }

    /// Answers with a name and its file.
    pub fn entry(self, entry: &Entry) {
        self.send(|unique| reply::entry(unique, entry), &[]);
    }

    /// Answers that a name does not exist, which the kernel may cache.
    pub fn negative_entry(self, ttl: Duration) {
        self.send(|unique| reply::negative_entry(unique, ttl), &[]);
    }

    /// Answers with attributes.
    pub fn attr(self, attr: &Attr, ttl: Duration) {
        self.send(|unique| reply::attr(unique, attr, ttl), &[]);
    }

    /// Answers with attributes for statx(2).
    pub fn statx(self, statx: &Statx, ttl: Duration) {
        self.send(|unique| reply::statx(unique, statx, ttl), &[]);
    }

    /// Answers with an open file.
    pub fn opened(self, opened: &Opened) {
        self.send(|unique| reply::open(unique, opened), &[]);
    }

    /// Answers with a new file that is open.
    pub fn created(self, entry: &Entry, opened: &Opened) {
        self.send(|unique| reply::create(unique, entry, opened), &[]);
    }

    /// Answers with the number of bytes written.
    pub fn written(self, size: u32) {
        self.send(|unique| reply::write(unique, size), &[]);
    }

    /// Answers with the number of bytes copied; `is_64` is that of the request.
    pub fn copied(self, bytes: u64, is_64: bool) {
        self.send(|unique| reply::copied(unique, bytes, is_64), &[]);
    }

    /// Answers with data: of a file, of a directory, a link or an attribute.
    pub fn data(self, data: &[u8]) {
        self.send(|unique| reply::data_header(unique, data.len()), data);
    }

    /// Answers with the entries of a directory. Returns the memory.
    pub fn directory(mut self, entries: Directory) -> Vec<u8> {
        let unique = self.unique.take();
        let message = entries.finish(unique.unwrap_or_default());
        if let Some(unique) = unique {
            send(self.device(), unique, &message, &[]);
        }
        message
    }

    /// Answers with the entries of a directory and their files. Returns the memory.
    pub fn directory_plus(mut self, entries: DirectoryPlus) -> Vec<u8> {
        let unique = self.unique.take();
        let message = entries.finish(unique.unwrap_or_default());
        if let Some(unique) = unique {
            send(self.device(), unique, &message, &[]);
        }
        message
    }

    /// Answers with the size of the file system.
    pub fn statfs(self, statfs: &StatFs) {
        self.send(|unique| reply::statfs(unique, statfs), &[]);
    }

    /// Answers with the length of an attribute, or of the list of their names.
    pub fn xattr_size(self, size: u32) {
        self.send(|unique| reply::xattr_size(unique, size), &[]);
    }

    /// Answers with an offset in a file.
    pub fn offset(self, offset: u64) {
        self.send(|unique| reply::lseek(unique, offset), &[]);
    }

    /// Answers with the output of an ioctl, whose result is 0.
    pub fn ioctl(self, output: &[u8]) {
        let result = IoctlReply::default();
        self.send(|unique| reply::ioctl(unique, &result, output.len()), output);
    }

    /// Sends the answer by one system call.
    fn send<B: AsRef<[u8]>>(mut self, make: impl FnOnce(u64) -> B, data: &[u8]) {
        if let Some(unique) = self.unique.take() {
            send(self.device(), unique, make(unique).as_ref(), data);
        }
    }

    fn device(&self) -> &Arc<Device> {
        match &self.device {
            Origin::Thread(device) => device,
            Origin::Kept(device) => device,
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if let Some(unique) = self.unique.take() {
            send(self.device(), unique, &reply::error(unique, libc::EIO), &[]);
        }
    }
}

fn send(device: &Device, unique: u64, head: &[u8], data: &[u8]) {
    let parts = [IoSlice::new(head), IoSlice::new(data)];
    let parts = if data.is_empty() { &parts[..1] } else { &parts };
    turn::about_to_reply();
    match device.send(parts) {
        Ok(()) => {}
        // The kernel has abandoned the request, or the mount has ended.
        Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => {}
        Err(error) => {
            tracing::error!(
                name: "EVFS-0605",
                "the kernel did not accept the reply to a request: {error}; the request fails"
            );
            // The caller must not wait for it indefinitely.
            let failed = reply::error(unique, libc::EIO);
            let _ = device.send(&[IoSlice::new(failed.as_ref())]);
        }
    }
}
