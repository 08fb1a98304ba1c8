//! Files of an AFS cell served by this process, as seen by clients in the same process.
//!
//! ```text
//!   workload ── AfsFiles ── afs_client::Client ── Rx over the loopback ── OwnCell ── stack
//!                 │             └ cache, invalidated by callbacks
//!                 └ one for each client, with an address of its own
//! ```
//!
//! **Invariant:** as with a client in the kernel, reads are served from the cache while a callback
//! promise holds, names are looked up in the pages of their directories, and written data is sent
//! when a file is closed or synced, or when a megabyte has accumulated. The client's next call
//! reports an error of a close.
//!
//! Deliberately absent: mappings, which require a kernel; following symbolic links; links across
//! directories, which AFS does not have.

use crate::own_cell::OwnCell;
use afs_client::{ANY, Client, Options, PortSet};
use afs_proto::dir::Directory;
use afs_proto::fs::{AfsFetchStatus, AfsStoreStatus, FileType};
use afs_proto::{Abort, AfsFid};
use bench_core::Server;
use bench_core::files::{Files, Open, OpenFile, Stat};
use std::io::{Error, ErrorKind, Result};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of unsent written bytes: a chunk of the cache.
const WAITING_MAX: usize = 1 << 20;

/// Bytes of file data that a client caches.
const CACHE_BYTES: usize = 64 << 20;

/// Number of ports of all clients. Up to this number of clients have one each; further ones share.
const PORTS: usize = 32;

/// A cell and its clients.
pub struct AfsCell {
    name: String,
    // Dropped before the server, which would otherwise wait for the clients.
    clients: Mutex<Vec<Arc<AfsFiles>>>,
    nets: Vec<Arc<PortSet>>,
    own: Arc<OwnCell>,
}

impl AfsCell {
    pub fn new(name: &str, own: OwnCell) -> AfsCell {
        AfsCell {
            name: name.to_owned(),
            clients: Mutex::default(),
            nets: (0..PORTS).map(|_| PortSet::new()).collect(),
            own: Arc::new(own),
        }
    }

    /// Returns the files as seen by client `number`, counted from 0.
    ///
    /// # Errors
    /// Errors of opening its port.
    pub fn client(&self, number: usize) -> Result<Arc<AfsFiles>> {
        let mut clients = lock(&self.clients);
        while clients.len() <= number {
            let n = clients.len();
            // 127.1.0.1 and so on: all of 127/8 is this machine.
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + n as u32);
            let options = Options {
                cache_bytes_max: CACHE_BYTES,
                ..Options::default()
            };
            let client = self.nets[n % PORTS].client(address, self.own.address(), options)?;
            // Introduces the client to the server now, so that no measured call waits for it.
            client.time().map_err(system)?;
            clients.push(Arc::new(AfsFiles {
                name: self.name.clone(),
                root: AfsFid {
                    volume: self.own.volume(),
                    vnode: 1,
                    unique: 1,
                },
                own: Arc::clone(&self.own),
                at: Arc::new(ClientShared {
                    client,
                    failed: Mutex::default(),
                }),
            }));
        }
        Ok(Arc::clone(&clients[number]))
    }
}

impl Server for AfsCell {
    fn threads(&self) -> &'static [&'static str] {
        OwnCell::threads()
    }

    fn clients(&self, count: usize) -> Result<Vec<Arc<dyn Files>>> {
        let one = |n| Ok(self.client(n)? as Arc<dyn Files>);
        (0..count).map(one).collect()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State shared by a client and its files.
struct ClientShared {
    client: Client,
    /// Error of a close.
    failed: Mutex<Option<Error>>,
}

/// The files as seen by one client.
pub struct AfsFiles {
    name: String,
    root: AfsFid,
    own: Arc<OwnCell>,
    at: Arc<ClientShared>,
}

impl AfsFiles {
    /// Returns the client, or an unreported error of a close.
    fn client(&self) -> Result<&Client> {
        match lock(&self.at.failed).take() {
            Some(error) => Err(error),
            None => Ok(&self.at.client),
        }
    }

    fn find(&self, path: &str) -> Result<AfsFid> {
        let client = self.client()?;
        let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
        parts.try_fold(self.root, |at, part| client.find(at, part).map_err(system))
    }

    fn status(&self, path: &str) -> Result<(AfsFid, AfsFetchStatus)> {
        let fid = self.find(path)?;
        Ok((fid, self.client()?.status(fid).map_err(system)?))
    }

    /// Finds the directory of a path, and the name in it.
    fn place<'a>(&self, path: &'a str) -> Result<(AfsFid, &'a str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(dir)?, name))
    }
}

/// Converts an error to the system error that a client would report to its program.
fn system(error: afs_client::Error) -> Error {
    let by_code = |code: Abort| code.errno().map(Error::from_raw_os_error);
    match &error {
        afs_client::Error::NoEntry(_) => Error::from_raw_os_error(libc::ENOENT),
        afs_client::Error::Abort(code) => {
            by_code(*code).unwrap_or_else(|| Error::other(error.to_string()))
        }
        _ => Error::other(error.to_string()),
    }
}

/// Written data that is not sent yet.
#[derive(Default)]
struct Waiting {
    position: u64,
    data: Vec<u8>,
}

struct AfsFile {
    at: Arc<ClientShared>,
    fid: AfsFid,
    how: Open,
    waiting: Mutex<Waiting>,
}

impl AfsFile {
    fn flush(&self, waiting: &mut Waiting) -> Result<()> {
        if waiting.data.is_empty() {
            return Ok(());
        }
        let data = std::mem::take(&mut waiting.data);
        let stored = self.at.client.write(self.fid, waiting.position, &data);
        stored.map(drop).map_err(system)
    }

    fn add(&self, waiting: &mut Waiting, position: u64, data: &[u8]) -> Result<()> {
        let end = waiting.position + waiting.data.len() as u64;
        if position != end || waiting.data.len() + data.len() > WAITING_MAX {
            self.flush(waiting)?;
        }
        if waiting.data.is_empty() {
            waiting.position = position;
        }
        waiting.data.extend_from_slice(data);
        if self.how.sync || self.how.data_sync || self.how.direct {
            self.flush(waiting)
        } else {
            Ok(())
        }
    }

    fn length(&self) -> Result<u64> {
        Ok(self.at.client.status(self.fid).map_err(system)?.length)
    }
}

impl OpenFile for AfsFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.flush(&mut lock(&self.waiting))?;
        if self.how.direct {
            self.drop_cache()?;
        }
        let read = self.at.client.read(self.fid, offset, out.len() as u64);
        let data = read.map_err(system)?;
        out[..data.len()].copy_from_slice(&data);
        Ok(data.len())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        let position = match self.how.append {
            true if waiting.data.is_empty() => self.length()?,
            true => waiting.position + waiting.data.len() as u64,
            false => offset,
        };
        self.add(&mut waiting, position, data)
    }

    fn size(&self) -> Result<u64> {
        let waiting = lock(&self.waiting);
        let end = match waiting.data.len() as u64 {
            0 => 0,
            bytes => waiting.position + bytes,
        };
        Ok(self.length()?.max(end))
    }

    fn sync(&self) -> Result<()> {
        // Data on the server is durable.
        self.flush(&mut lock(&self.waiting))
    }

    fn drop_cache(&self) -> Result<()> {
        self.sync()?;
        self.at.client.forget(self.fid);
        Ok(())
    }
}

impl Drop for AfsFile {
    fn drop(&mut self) {
        if let Err(error) = self.sync() {
            lock(&self.at.failed).get_or_insert(error);
        }
    }
}

impl Files for AfsFiles {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>> {
        let client = self.client()?;
        let (fid, length) = match self.status(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && how.create => {
                let (dir, name) = self.place(path)?;
                (client.create(dir, name).map_err(system)?.0, 0)
            }
            found => match found? {
                (fid, status) if status.file_type == FileType::File => (fid, status.length),
                (_, status) if status.file_type == FileType::Directory => {
                    return Err(Error::from_raw_os_error(libc::EISDIR));
                }
                _ => return Err(ErrorKind::Unsupported.into()),
            },
        };
        if how.truncate && length > 0 {
            client.store_data(fid, 0, &[], 0).map_err(system)?;
        }
        Ok(Box::new(AfsFile {
            at: Arc::clone(&self.at),
            fid,
            how,
            waiting: Mutex::default(),
        }))
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let removed = self.client()?.remove(dir, name);
        removed.map(drop).map_err(system)
    }

    fn mkdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let made = self.client()?.make_dir(dir, name);
        made.map(drop).map_err(system)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let removed = self.client()?.remove_dir(dir, name);
        removed.map(drop).map_err(system)
    }

    fn stat(&self, path: &str) -> Result<Stat> {
        let (_, status) = self.status(path)?;
        match status.file_type {
            FileType::File | FileType::Directory => Ok(Stat {
                size: status.length,
                links: status.link_count.into(),
                mode: status.unix_mode_bits & 0o7777,
            }),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let fid = self.find(path)?;
        let wanted = AfsStoreStatus {
            unix_mode_bits: Some(mode),
            ..ANY
        };
        let stored = self.client()?.store_status(fid, wanted);
        stored.map(drop).map_err(system)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let renamed = self.client()?.rename(from, to);
        renamed.map(drop).map_err(system)
    }

    fn link(&self, old: &str, new: &str) -> Result<()> {
        let existing = self.find(old)?;
        let (dir, name) = self.place(new)?;
        let made = self.client()?.link(dir, name, existing);
        made.map(drop).map_err(system)
    }

    fn symlink(&self, text: &str, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        // Other mode bits would make it a mount point.
        let made = self.client()?.symlink(dir, name, text, 0o755);
        made.map(drop).map_err(system)
    }

    fn readlink(&self, path: &str) -> Result<String> {
        let (fid, status) = self.status(path)?;
        if status.file_type != FileType::SymbolicLink {
            return Err(ErrorKind::InvalidInput.into());
        }
        let text = self.client()?.read(fid, 0, status.length).map_err(system)?;
        String::from_utf8(text).map_err(|_| ErrorKind::InvalidData.into())
    }

    fn is_symlink(&self, path: &str) -> Result<bool> {
        Ok(self.status(path)?.1.file_type == FileType::SymbolicLink)
    }

    fn readdir(&self, path: &str) -> Result<Vec<String>> {
        let fid = self.find(path)?;
        let pages = self.client()?.directory(fid).map_err(system)?;
        let bad = |_| Error::from(ErrorKind::InvalidData);
        let directory = Directory::verify(&pages).map_err(bad)?;
        let name = |name: &[u8]| std::str::from_utf8(name).map(str::to_owned);
        let names = directory.entries().map(|entry| name(entry.name));
        names
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| ErrorKind::InvalidData.into())
    }

    fn getcwd(&self) -> Result<String> {
        Ok("/".into())
    }

    fn statfs(&self) -> Result<u64> {
        let status = self.client()?.volume_status(self.root.volume);
        let kib = status.map_err(system)?.partition_blocks_available;
        Ok(u64::try_from(kib).unwrap_or(0) << 10)
    }

    fn sync(&self) -> Result<()> {
        self.client()?;
        let synced = self.own.sync();
        synced.map_err(|e| Error::other(e.chain()))
    }
}

#[cfg(test)]
mod tests;
