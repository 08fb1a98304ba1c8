//! Adoption of the dirty pages that a killed process left behind.

use super::Files;
use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, FileType};
use cache::{FileId, LostPage, Predecessor, Session};
use layer_cpu::{Layer, within};

/// Most pages that are written together: 1 MiB.
const PAGES_AT_ONCE: usize = 256;

/// Numbers of pages that a predecessor left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adopted {
    /// Pages that are in the cache now, dirty.
    pub pages: u64,
    /// Pages that no file needs: it does not exist any more, or has become shorter.
    pub unneeded: u64,
}

impl Files {
    /// Takes over the dirty pages of this fileset that a killed process left behind, before the first
    /// request is served. Afterwards they are dirty in this cache. Sizes and times stay as they are,
    /// and so does the predecessor: if this process is killed as well, its successor repeats the
    /// adoption.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the pages belong to another file system. [`Kind::ReadOnly`]: there are some,
    /// and they cannot be written. Otherwise the file system has no room for a page, or the page could not be written to
    /// the cache. The others were adopted all the same, and the predecessor must be kept, because it
    /// has the only copy.
    pub fn adopt(&self, predecessor: &Predecessor) -> Result<Adopted> {
        let _here = within(Layer::Fs);
        let tree = self.shared.fileset.tree();
        if predecessor.file_system() != tree.file_system {
            let text = "the pages of the process before this one belong to another file system";
            return Err(Error::new(Kind::Invalid, text));
        }
        let pages: Vec<LostPage> = predecessor.pages(tree).collect();
        let mut adopted = Adopted::default();
        if pages.is_empty() {
            return Ok(adopted);
        }
        if self.shared.volume.info().read_only {
            return Err(Kind::ReadOnly.into());
        }
        let mut session = self.shared.volume.session()?;
        let mut result = Ok(());
        for own in pages.chunk_by(|one, next| one.file == next.file) {
            let one = self.adopt_file(predecessor, own, &mut session, &mut adopted);
            result = result.and(one);
        }
        result.map(|()| adopted)
    }

    fn adopt_file(
        &self,
        predecessor: &Predecessor,
        pages: &[LostPage],
        session: &mut Session,
        adopted: &mut Adopted,
    ) -> Result<()> {
        let FileId(ino) = pages[0].file;
        let attr = match self.shared.fileset.attr(ino) {
            Err(error) if error.kind() == Kind::Stale => {
                adopted.unneeded += pages.len() as u64;
                return Ok(());
            }
            attr => attr?,
        };
        if attr.inode.kind != FileType::File {
            return Err(Error::corrupt(format!(
                "inode {ino} has pages, but is not a file"
            )));
        }
        let node = self.node(&attr);
        let mut open = self.shared.volume.open(&node.vnode);
        let mut data = Vec::with_capacity(PAGES_AT_ONCE * BLOCK_BYTES as usize);
        let follows = |one: &LostPage, next: &LostPage| one.page + 1 == next.page;
        let mut result = Ok(());
        for run in pages.chunk_by(follows) {
            for run in run.chunks(PAGES_AT_ONCE) {
                data.clear();
                let offset = run[0].page * BLOCK_BYTES;
                for page in run {
                    let end = attr.inode.size.saturating_sub(page.page * BLOCK_BYTES);
                    let len = end.min(BLOCK_BYTES) as usize;
                    if len == 0 {
                        adopted.unneeded += 1;
                        continue;
                    }
                    let from = data.len();
                    data.resize(from + len, 0);
                    predecessor.read(page, &mut data[from..])?;
                }
                let written = session.write(&mut open, offset, &data);
                if written.is_ok() {
                    adopted.pages += (data.len() as u64).div_ceil(BLOCK_BYTES);
                }
                result = result.and(written.map_err(Error::from));
            }
        }
        result
    }
}
