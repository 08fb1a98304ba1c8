//! Calls of the file service, one function each. Their results are cached; the change that the
//! server made to a directory is applied to its cached copy, if the version shows that there was no
//! other change.

use crate::client::Client;
use crate::error::{Error, Result};
use afs_proto::dir::{Entry, Image};
use afs_proto::fs::{
    AfsFetchStatus, AfsFetchVolumeStatus, AfsStoreStatus, DataLength, LockType, Reply, Request,
};
use afs_proto::{AfsCallBack, AfsFid, Fid, List, Name, Opaque, Path, Reader, gather, to_bytes};
use std::sync::Arc;

/// No attributes requested.
pub const ANY: AfsStoreStatus = AfsStoreStatus {
    client_mod_time: None,
    owner: None,
    group: None,
    unix_mode_bits: None,
    segment_size: None,
    sync: false,
};

/// Makes a call and extracts fields of its reply.
macro_rules! ask {
    ($client:expr, $name:ident { $($arguments:tt)* } => $($field:ident),*) => {{
        let bytes = $client.call_bytes(&Request::$name { $($arguments)* })?;
        match reply(&Request::$name { $($arguments)* }, &bytes)? {
            Reply::$name { $($field,)* .. } => Ok(($($field),*)),
            _ => Err(Error::Nonsense("a reply of the wrong type")),
        }
    }};
}

fn reply<'b>(request: &Request<'_>, bytes: &'b [u8]) -> Result<Reply<'b>> {
    let mut from = Reader::new(bytes);
    let reply = afs_proto::fs::read_reply(request.opcode(), &mut from)?;
    if from.rest().is_empty() {
        Ok(reply)
    } else {
        Err(Error::Nonsense("data after the reply"))
    }
}

fn name(name: &str) -> Result<Name<'_>> {
    Ok(Name::new(name.as_bytes())?)
}

/// A changed directory, its new status, and the change.
type Change<'c> = (AfsFid, AfsFetchStatus, &'c dyn Fn(&mut Image) -> bool);

impl Client {
    /// Makes a call without file data; returns the bytes of the reply.
    ///
    /// # Errors
    /// The server's code; [`Error::Broken`].
    pub fn call_bytes(&self, request: &Request<'_>) -> Result<Vec<u8>> {
        self.call(request, &[], gather::REPLY_BYTES_MAX)
    }

    /// Updates the cached copy of a directory that a call of ours has changed.
    fn changed(&self, turn: crate::cache::CallStamp, (fid, status, how): Change<'_>) {
        let cache = &self.callback_state.cache;
        let before = status.data_version.checked_sub(1);
        let pages = before.and_then(|version| cache.pages(fid, version));
        cache.learn(turn, fid, status, None);
        let image = pages.and_then(|pages| Image::from_pages(pages.to_vec()).ok());
        if let Some(mut image) = image
            && how(&mut image)
            && image.bytes().len() as u64 == status.length
        {
            cache.insert_chunk(fid, &status, 0, &Arc::new(image.bytes().to_vec()));
        }
    }

    /// Fetches the status of a file, with its promise.
    ///
    /// # Errors
    /// As for [`call_bytes`](Client::call_bytes), like all methods that follow.
    pub fn fetch_status(&self, fid: AfsFid) -> Result<(AfsFetchStatus, AfsCallBack)> {
        let turn = self.stamp();
        let (status, callback) = ask!(self, FetchStatus { fid } => status, callback)?;
        self.callback_state
            .cache
            .learn(turn, fid, status, Some(callback));
        Ok((status, callback))
    }

    /// Fetches the statuses of up to 50 files; the status of a file that has none contains the
    /// error.
    pub fn bulk(&self, fids: &[AfsFid]) -> Result<(Vec<AfsFetchStatus>, Vec<AfsCallBack>)> {
        let turn = self.stamp();
        let list = || List::new(fids.to_vec());
        let bytes = self.call_bytes(&Request::InlineBulkStatus { fids: list()? })?;
        let request = Request::InlineBulkStatus { fids: list()? };
        let Reply::InlineBulkStatus {
            statuses,
            callbacks,
            ..
        } = reply(&request, &bytes)?
        else {
            return Err(Error::Nonsense("a reply of the wrong type"));
        };
        for ((fid, status), callback) in fids.iter().zip(&*statuses).zip(&*callbacks) {
            if status.error_code.0 == 0 {
                self.callback_state
                    .cache
                    .learn(turn, *fid, *status, Some(*callback));
            }
        }
        Ok((statuses.into_vec(), callbacks.into_vec()))
    }

    /// Fetches up to `length` bytes from `position` on, the status that follows them, and the
    /// promise.
    pub fn fetch_data(
        &self,
        fid: AfsFid,
        position: u64,
        length: u64,
    ) -> Result<(Vec<u8>, AfsFetchStatus, AfsCallBack)> {
        let turn = self.stamp();
        let request = Request::FetchData64 {
            fid,
            position,
            length,
        };
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        let most = most.saturating_add(gather::REPLY_BYTES_MAX);
        let mut bytes = self.call(&request, &[], most)?;
        let mut from = Reader::new(&bytes);
        let head = DataLength::read(&request, &mut from)?;
        let head_bytes = bytes.len() - from.rest().len();
        let count = usize::try_from(head.bytes()).unwrap_or(usize::MAX);
        if from.rest().len() < count {
            return Err(Error::Nonsense("less data than announced"));
        }
        let end = head_bytes + count;
        let (status, callback) = match reply(&request, &bytes[end..])? {
            Reply::FetchData64 {
                status, callback, ..
            } => (status, callback),
            _ => return Err(Error::Nonsense("a reply of the wrong type")),
        };
        bytes.truncate(end);
        bytes.drain(..head_bytes);
        self.callback_state
            .cache
            .learn(turn, fid, status, Some(callback));
        Ok((bytes, status, callback))
    }

    /// Fetches bytes and discards them, for benchmarks; returns their number.
    pub fn skip_data(&self, fid: AfsFid, position: u64, length: u64) -> Result<usize> {
        let request = Request::FetchData64 {
            fid,
            position,
            length,
        };
        let mut call = self.connection().call()?;
        call.write(to_bytes(&request))?;
        call.finish()?;
        let mut head = [0; 8];
        call.read_exact(&mut head)?;
        let mut left = DataLength::read(&request, &mut Reader::new(&head))?.bytes();
        let count = usize::try_from(left).unwrap_or(usize::MAX);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let piece = call.read_up_to(most)?;
            let piece = piece.ok_or(Error::Nonsense("less data than announced"))?;
            left -= piece.len() as u64;
        }
        let rest = call.read_to_end(gather::REPLY_BYTES_MAX)?;
        reply(&request, &rest)?;
        Ok(count)
    }

    /// Writes bytes at `position`; the server sets the length of the file to `file_length` before.
    pub fn store_data(
        &self,
        fid: AfsFid,
        position: u64,
        data: &[u8],
        file_length: u64,
    ) -> Result<AfsFetchStatus> {
        let turn = self.stamp();
        let request = Request::StoreData64 {
            fid,
            wanted: ANY,
            position,
            length: data.len() as u64,
            file_length,
        };
        let bytes = self.call(&request, data, gather::REPLY_BYTES_MAX)?;
        let Reply::StoreData64 { status, .. } = reply(&request, &bytes)? else {
            return Err(Error::Nonsense("a reply of the wrong type"));
        };
        self.callback_state.cache.learn(turn, fid, status, None);
        Ok(status)
    }

    /// Changes mode, owner, group or time.
    pub fn store_status(&self, fid: AfsFid, wanted: AfsStoreStatus) -> Result<AfsFetchStatus> {
        let turn = self.stamp();
        let status = ask!(self, StoreStatus { fid, wanted } => status)?;
        self.callback_state.cache.learn(turn, fid, status, None);
        Ok(status)
    }

    /// Creates an empty file; returns it and the status of the directory.
    pub fn create(&self, directory: AfsFid, of: &str) -> Result<(AfsFid, AfsFetchStatus)> {
        let (turn, name, wanted) = (self.stamp(), name(of)?, ANY);
        let (fid, status, directory_status, callback) = ask!(
            self,
            CreateFile { directory, name, wanted } => fid, status, directory_status, callback
        )?;
        self.came(turn, (directory, directory_status), of, fid);
        self.callback_state
            .cache
            .learn(turn, fid, status, Some(callback));
        Ok((fid, directory_status))
    }

    /// Creates a directory; returns it and the status of its parent.
    pub fn make_dir(&self, directory: AfsFid, of: &str) -> Result<(AfsFid, AfsFetchStatus)> {
        let (turn, name, wanted) = (self.stamp(), name(of)?, ANY);
        let (fid, directory_status) =
            ask!(self, MakeDir { directory, name, wanted } => fid, directory_status)?;
        self.came(turn, (directory, directory_status), of, fid);
        Ok((fid, directory_status))
    }

    /// Creates a symbolic link; returns it and the status of the directory.
    pub fn symlink(
        &self,
        directory: AfsFid,
        of: &str,
        contents: &str,
        mode: u32,
    ) -> Result<(AfsFid, AfsFetchStatus)> {
        let (turn, name) = (self.stamp(), name(of)?);
        let contents = Path::new(contents.as_bytes())?;
        let wanted = AfsStoreStatus {
            unix_mode_bits: Some(mode),
            ..ANY
        };
        let (fid, directory_status) =
            ask!(self, Symlink { directory, name, contents, wanted } => fid, directory_status)?;
        self.came(turn, (directory, directory_status), of, fid);
        Ok((fid, directory_status))
    }

    /// Adds a name to a file; returns the status of the directory.
    pub fn link(&self, directory: AfsFid, of: &str, existing: AfsFid) -> Result<AfsFetchStatus> {
        let (turn, name) = (self.stamp(), name(of)?);
        let (status, directory_status) =
            ask!(self, Link { directory, name, existing } => status, directory_status)?;
        self.came(turn, (directory, directory_status), of, existing);
        self.callback_state
            .cache
            .learn(turn, existing, status, None);
        Ok(directory_status)
    }

    /// Removes a name of a file; returns the status of the directory.
    pub fn remove(&self, directory: AfsFid, of: &str) -> Result<AfsFetchStatus> {
        let (turn, name) = (self.stamp(), name(of)?);
        let status = ask!(self, RemoveFile { directory, name } => directory_status)?;
        self.went(turn, (directory, status), of);
        Ok(status)
    }

    /// Removes an empty directory; returns the status of its former parent.
    pub fn remove_dir(&self, directory: AfsFid, of: &str) -> Result<AfsFetchStatus> {
        let (turn, name) = (self.stamp(), name(of)?);
        let status = ask!(self, RemoveDir { directory, name } => directory_status)?;
        self.went(turn, (directory, status), of);
        Ok(status)
    }

    fn came(
        &self,
        turn: crate::cache::CallStamp,
        (directory, status): (AfsFid, AfsFetchStatus),
        name: &str,
        fid: AfsFid,
    ) {
        let entry = Entry {
            name: name.as_bytes(),
            fid: Fid::from(&fid),
        };
        self.changed(
            turn,
            (directory, status, &|image| image.insert(entry).is_ok()),
        );
    }

    /// Applies the removal of a name to the cache: drops its file, because the name may have been
    /// the last one, or everything if the file is unknown.
    fn went(
        &self,
        turn: crate::cache::CallStamp,
        (directory, status): (AfsFid, AfsFetchStatus),
        name: &str,
    ) {
        let cache = &self.callback_state.cache;
        let before = status.data_version.checked_sub(1);
        let pages = before.and_then(|version| cache.pages(directory, version));
        let image = pages.and_then(|pages| Image::from_pages(pages.to_vec()).ok());
        match image.and_then(|image| image.find(name.as_bytes())) {
            Some(fid) => cache.forget(fid.within(directory.volume)),
            None => cache.flush(),
        }
        self.changed(
            turn,
            (directory, status, &|image| image.remove(name.as_bytes())),
        );
    }

    /// Renames a file or directory; returns the statuses of both directories, which are dropped
    /// from the cache.
    pub fn rename(
        &self,
        (old_directory, old): (AfsFid, &str),
        (new_directory, new): (AfsFid, &str),
    ) -> Result<(AfsFetchStatus, AfsFetchStatus)> {
        let (old_name, new_name) = (name(old)?, name(new)?);
        let done = ask!(
            self,
            Rename { old_directory, old_name, new_directory, new_name }
                => old_directory_status, new_directory_status
        );
        // The replaced file, and a directory with a new parent, have changed as well.
        self.flush();
        done
    }

    /// Asks the server for the file that a name refers to.
    pub fn lookup(&self, directory: AfsFid, of: &str) -> Result<AfsFid> {
        let name = name(of)?;
        ask!(self, Lookup { directory, name } => fid)
    }

    /// Fetches the access list of a directory.
    pub fn access_list(&self, fid: AfsFid) -> Result<String> {
        let bytes = self.call_bytes(&Request::FetchACL { fid })?;
        match reply(&Request::FetchACL { fid }, &bytes)? {
            Reply::FetchACL { access_list, .. } => {
                Ok(String::from_utf8_lossy(access_list.as_bytes()).into_owned())
            }
            _ => Err(Error::Nonsense("a reply of the wrong type")),
        }
    }

    /// Replaces the access list of a directory.
    pub fn set_access_list(&self, fid: AfsFid, text: &str) -> Result<AfsFetchStatus> {
        let access_list = Opaque::new(text.as_bytes())?;
        // The rights on everything in the directory have changed.
        self.flush();
        ask!(self, StoreACL { fid, access_list } => status)
    }

    /// Locks a file, for [`afs_proto::fs::LOCK_SECONDS`].
    pub fn lock(&self, fid: AfsFid, lock: LockType) -> Result<()> {
        ask!(self, SetLock { fid, lock } => sync).map(drop)
    }

    /// Releases a lock.
    pub fn unlock(&self, fid: AfsFid) -> Result<()> {
        ask!(self, ReleaseLock { fid } => sync).map(drop)
    }

    /// Fetches quota and usage of a volume.
    pub fn volume_status(&self, volume: u32) -> Result<AfsFetchVolumeStatus> {
        let bytes = self.call_bytes(&Request::GetVolumeStatus { volume })?;
        match reply(&Request::GetVolumeStatus { volume }, &bytes)? {
            Reply::GetVolumeStatus { status, .. } => Ok(status),
            _ => Err(Error::Nonsense("a reply of the wrong type")),
        }
    }

    /// Reads the server's clock in seconds since 1970; serves as a liveness check.
    pub fn time(&self) -> Result<u32> {
        ask!(self, GetTime {} => seconds)
    }

    /// Releases all callback promises at the server, and drops the cache.
    pub fn give_up_all(&self) -> Result<()> {
        self.flush();
        self.exchange(
            to_bytes(&Request::GiveUpAllCallBacks {}),
            &[],
            gather::REPLY_BYTES_MAX,
        )
        .map(drop)
    }
}
