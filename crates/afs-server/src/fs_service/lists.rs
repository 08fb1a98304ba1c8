//! Access lists of directories.

use super::{Change, RequestContext};
use crate::acl::ACL_ATTRIBUTE;
use crate::error::{CallResult, Fault};
use crate::stats::add;
use afs_proto::acl::AccessList;
use afs_proto::fs::Reply;
use afs_proto::{AfsFid, Fid, Opaque, Rights};
use fs::SetXattr;
use rx::Call;

impl RequestContext<'_> {
    pub(super) fn fetch_list(&self, call: &mut Call, fid: &AfsFid) -> CallResult<()> {
        let volume = self.volume(fid)?;
        let ino = volume.ino(fid)?;
        let mut attr = volume.files.attr(ino)?;
        if !attr.inode.is_dir() {
            attr = volume.files.attr(attr.inode.parent)?;
        }
        self.check(&volume, &attr, Rights::LOOKUP)?;
        let list = volume.lists.of(&volume.files, &attr)?;
        let text = list.to_text().map_err(|_| Fault::Errno(libc::E2BIG))?;
        add(&self.shared.counters.fetches, 1);
        super::write(
            call,
            &Reply::FetchACL {
                access_list: Opaque::new(&text)?,
                status: self.status(&volume, ino)?,
                sync: volume.sync(),
            },
        )
    }

    pub(crate) fn store_list(&self, fid: &AfsFid, text: &[u8]) -> CallResult<Reply<'static>> {
        let (volume, dir, _) = self.directory(fid, Rights::ADMINISTER)?;
        let invalid = |_| Fault::Errno(libc::EINVAL);
        let list = AccessList::parse(text).map_err(invalid)?;
        let text = list.to_text().map_err(invalid)?;
        if !self.turn.is_done() {
            let files = &volume.files;
            files.set_xattr(dir.ino, ACL_ATTRIBUTE, &text, SetXattr::Any)?;
        }
        self.durable(&volume, &[Change::answered(dir.ino, Fid::from(fid))])?;
        add(&self.shared.counters.stores, 1);
        Ok(Reply::StoreACL {
            status: self.status(&volume, dir.ino)?,
            sync: volume.sync(),
        })
    }
}
