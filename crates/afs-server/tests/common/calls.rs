//! Client calls that bypass the client's cache and panic unless the server answers.

use super::{Client, plain};
use afs_proto::fs::{AfsFetchStatus, AfsStoreStatus, LockType};
use afs_proto::{Abort, AfsCallBack, AfsFid};

type Outcome<T> = Result<T, Abort>;

impl Client {
    pub fn status(&self, fid: AfsFid) -> Outcome<AfsFetchStatus> {
        self.status_and_promise(fid).map(|(status, _)| status)
    }

    pub fn status_and_promise(&self, fid: AfsFid) -> Outcome<(AfsFetchStatus, AfsCallBack)> {
        plain(self.own.fetch_status(fid))
    }

    pub fn bulk(&self, fids: &[AfsFid]) -> Outcome<(Vec<AfsFetchStatus>, Vec<AfsCallBack>)> {
        plain(self.own.bulk(fids))
    }

    pub fn create(&self, directory: AfsFid, of: &str) -> Outcome<(AfsFid, AfsFetchStatus)> {
        plain(self.own.create(directory, of))
    }

    pub fn make_dir(&self, directory: AfsFid, of: &str) -> Outcome<(AfsFid, AfsFetchStatus)> {
        plain(self.own.make_dir(directory, of))
    }

    pub fn symlink(
        &self,
        directory: AfsFid,
        of: &str,
        contents: &str,
        mode: u32,
    ) -> Outcome<(AfsFid, AfsFetchStatus)> {
        plain(self.own.symlink(directory, of, contents, mode))
    }

    pub fn link(&self, directory: AfsFid, of: &str, existing: AfsFid) -> Outcome<AfsFetchStatus> {
        plain(self.own.link(directory, of, existing))
    }

    pub fn remove(&self, directory: AfsFid, of: &str) -> Outcome<AfsFetchStatus> {
        plain(self.own.remove(directory, of))
    }

    pub fn remove_dir(&self, directory: AfsFid, of: &str) -> Outcome<AfsFetchStatus> {
        plain(self.own.remove_dir(directory, of))
    }

    pub fn rename(
        &self,
        old: (AfsFid, &str),
        new: (AfsFid, &str),
    ) -> Outcome<(AfsFetchStatus, AfsFetchStatus)> {
        plain(self.own.rename(old, new))
    }

    pub fn lookup(&self, directory: AfsFid, of: &str) -> Outcome<AfsFid> {
        plain(self.own.lookup(directory, of))
    }

    pub fn set(&self, fid: AfsFid, wanted: AfsStoreStatus) -> Outcome<AfsFetchStatus> {
        plain(self.own.store_status(fid, wanted))
    }

    pub fn list(&self, fid: AfsFid) -> Outcome<String> {
        plain(self.own.access_list(fid))
    }

    pub fn set_list(&self, fid: AfsFid, text: &str) -> Outcome<AfsFetchStatus> {
        plain(self.own.set_access_list(fid, text))
    }

    pub fn lock(&self, fid: AfsFid, lock: LockType) -> Outcome<()> {
        plain(self.own.lock(fid, lock))
    }

    pub fn unlock(&self, fid: AfsFid) -> Outcome<()> {
        plain(self.own.unlock(fid))
    }

    /// Returns the data, the status after it, and the promise.
    pub fn fetch(
        &self,
        fid: AfsFid,
        position: u64,
        length: u64,
    ) -> Outcome<(Vec<u8>, AfsFetchStatus, AfsCallBack)> {
        plain(self.own.fetch_data(fid, position, length))
    }

    pub fn store(
        &self,
        fid: AfsFid,
        position: u64,
        data: &[u8],
        file_length: u64,
    ) -> Outcome<AfsFetchStatus> {
        plain(self.own.store_data(fid, position, data, file_length))
    }
}
