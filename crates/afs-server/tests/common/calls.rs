//! The calls of a client, one function each.

use super::Client;
use afs_proto::fs::{AfsFetchStatus, AfsStoreStatus, DataLength, LockType, Reply, Request};
use afs_proto::{Abort, AfsCallBack, AfsFid, List, Name, Opaque, Path, Reader, to_bytes};

type Outcome<T> = Result<T, Abort>;

/// Makes a call and takes fields of its reply.
macro_rules! ask {
    ($client:expr, $name:ident { $($arguments:tt)* } => $($field:ident),*) => {{
        let answer = $client.ask(&Request::$name { $($arguments)* })?;
        match answer.reply() {
            Reply::$name { $($field,)* .. } => Ok(($($field),*)),
            other => panic!("{other:?}"),
        }
    }};
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).expect("a name")
}

/// Nothing in particular is wanted.
pub const ANY: AfsStoreStatus = AfsStoreStatus {
    client_mod_time: None,
    owner: None,
    group: None,
    unix_mode_bits: None,
    segment_size: None,
    sync: false,
};

impl Client {
    pub fn status(&self, fid: AfsFid) -> Outcome<AfsFetchStatus> {
        self.status_and_promise(fid).map(|(status, _)| status)
    }

    pub fn status_and_promise(&self, fid: AfsFid) -> Outcome<(AfsFetchStatus, AfsCallBack)> {
        ask!(self, FetchStatus { fid } => status, callback)
    }

    pub fn bulk(&self, fids: &[AfsFid]) -> Outcome<(Vec<AfsFetchStatus>, Vec<AfsCallBack>)> {
        let fids = List::new(fids.to_vec()).expect("few");
        let (statuses, callbacks) = ask!(self, InlineBulkStatus { fids } => statuses, callbacks)?;
        Ok((statuses.into_vec(), callbacks.into_vec()))
    }

    pub fn create(&self, directory: AfsFid, of: &str) -> Outcome<(AfsFid, AfsFetchStatus)> {
        let (name, wanted) = (name(of), ANY);
        ask!(self, CreateFile { directory, name, wanted } => fid, directory_status)
    }

    pub fn make_dir(&self, directory: AfsFid, of: &str) -> Outcome<(AfsFid, AfsFetchStatus)> {
        let (name, wanted) = (name(of), ANY);
        ask!(self, MakeDir { directory, name, wanted } => fid, directory_status)
    }

    pub fn symlink(
        &self,
        directory: AfsFid,
        of: &str,
        contents: &str,
        mode: u32,
    ) -> Outcome<(AfsFid, AfsFetchStatus)> {
        let name = name(of);
        let contents = Path::new(contents.as_bytes()).expect("a path");
        let wanted = AfsStoreStatus {
            unix_mode_bits: Some(mode),
            ..ANY
        };
        ask!(self, Symlink { directory, name, contents, wanted } => fid, directory_status)
    }

    /// Gives the status of the directory.
    pub fn link(&self, directory: AfsFid, of: &str, existing: AfsFid) -> Outcome<AfsFetchStatus> {
        let name = name(of);
        ask!(self, Link { directory, name, existing } => directory_status)
    }

    /// Gives the status of the directory.
    pub fn remove(&self, directory: AfsFid, of: &str) -> Outcome<AfsFetchStatus> {
        let name = name(of);
        ask!(self, RemoveFile { directory, name } => directory_status)
    }

    /// Gives the status of the directory.
    pub fn remove_dir(&self, directory: AfsFid, of: &str) -> Outcome<AfsFetchStatus> {
        let name = name(of);
        ask!(self, RemoveDir { directory, name } => directory_status)
    }

    /// Gives the statuses of both directories.
    pub fn rename(
        &self,
        (old_directory, old): (AfsFid, &str),
        (new_directory, new): (AfsFid, &str),
    ) -> Outcome<(AfsFetchStatus, AfsFetchStatus)> {
        let (old_name, new_name) = (name(old), name(new));
        ask!(
            self,
            Rename { old_directory, old_name, new_directory, new_name }
                => old_directory_status, new_directory_status
        )
    }

    pub fn lookup(&self, directory: AfsFid, of: &str) -> Outcome<AfsFid> {
        let name = name(of);
        ask!(self, Lookup { directory, name } => fid)
    }

    pub fn set(&self, fid: AfsFid, wanted: AfsStoreStatus) -> Outcome<AfsFetchStatus> {
        ask!(self, StoreStatus { fid, wanted } => status)
    }

    pub fn list(&self, fid: AfsFid) -> Outcome<String> {
        let answer = self.ask(&Request::FetchACL { fid })?;
        match answer.reply() {
            Reply::FetchACL { access_list, .. } => {
                Ok(String::from_utf8_lossy(access_list.as_bytes()).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn set_list(&self, fid: AfsFid, text: &str) -> Outcome<AfsFetchStatus> {
        let access_list = Opaque::new(text.as_bytes()).expect("short");
        ask!(self, StoreACL { fid, access_list } => status)
    }

    pub fn lock(&self, fid: AfsFid, lock: LockType) -> Outcome<()> {
        ask!(self, SetLock { fid, lock } => sync).map(drop)
    }

    pub fn unlock(&self, fid: AfsFid) -> Outcome<()> {
        ask!(self, ReleaseLock { fid } => sync).map(drop)
    }

    /// The data, the status behind it, and the promise.
    pub fn fetch(
        &self,
        fid: AfsFid,
        position: u64,
        length: u64,
    ) -> Outcome<(Vec<u8>, AfsFetchStatus, AfsCallBack)> {
        let request = Request::FetchData64 {
            fid,
            position,
            length,
        };
        let bytes = self.exchange(to_bytes(&request), &[], 64 << 20)?;
        let mut from = Reader::new(&bytes);
        let head = DataLength::read(&request, &mut from).expect("a length");
        let count = usize::try_from(head.bytes()).expect("it came");
        let (data, rest) = from.rest().split_at(count);
        let mut from = Reader::new(rest);
        match afs_proto::fs::read_reply(request.opcode(), &mut from).expect("a reply") {
            Reply::FetchData64 {
                status, callback, ..
            } => Ok((data.to_vec(), status, callback)),
            other => panic!("{other:?}"),
        }
    }

    pub fn store(
        &self,
        fid: AfsFid,
        position: u64,
        data: &[u8],
        file_length: u64,
    ) -> Outcome<AfsFetchStatus> {
        let request = Request::StoreData64 {
            fid,
            wanted: ANY,
            position,
            length: data.len() as u64,
            file_length,
        };
        let bytes = self.exchange(to_bytes(&request), data, 4096)?;
        Ok(stored(&request, &bytes))
    }

    /// Makes a file these bytes, where the server may go.
    pub fn try_store(&self, fid: AfsFid, data: &[u8]) -> Result<AfsFetchStatus, rx::Error> {
        let request = Request::StoreData64 {
            fid,
            wanted: ANY,
            position: 0,
            length: data.len() as u64,
            file_length: data.len() as u64,
        };
        let bytes = self.try_exchange(to_bytes(&request), data, 4096)?;
        Ok(stored(&request, &bytes))
    }
}

fn stored(request: &Request<'_>, bytes: &[u8]) -> AfsFetchStatus {
    let mut from = Reader::new(bytes);
    match afs_proto::fs::read_reply(request.opcode(), &mut from).expect("a reply") {
        Reply::StoreData64 { status, .. } => status,
        other => panic!("{other:?}"),
    }
}
