//! Changes of files by a thread.

use super::{Files, Lane};
use crate::changes::{Changes, New, SetAttr};
use crate::disk::Disk;
use crate::error::{Kind, Result};
use crate::guard::guarded;
use crate::tree::Node;
use cache::{FileId, PAGE_BYTES};
use layer_cpu::{Layer, within};
use std::sync::Arc;

/// Bytes of zeros that are written at once.
const ZEROS: usize = 1 << 20;

/// Length of a write that is not divided if space is short.
const LEAST: usize = 4096;

impl Files {
    fn changes(&self) -> Result<&dyn Changes> {
        self.changes.as_deref().ok_or_else(|| Kind::ReadOnly.into())
    }

    /// Writes all changes to stable storage.
    ///
    /// # Errors
    /// A write of the device has failed; the changes stay in memory.
    pub fn sync(self: &Arc<Files>) -> Result<()> {
        if self.is_writable() {
            self.lane()?.sync_all()?;
        }
        Ok(())
    }

    /// As [`Changes::remember`].
    pub fn remember(&self, node: Node) {
        if let Ok(changes) = self.changes() {
            changes.remember(node);
        }
    }
}

impl Lane {
    /// Calls the interface for changes.
    fn alter<T>(&mut self, work: impl FnOnce(&dyn Changes, &mut Disk) -> Result<T>) -> Result<T> {
        let _here = within(Layer::Fs);
        let (changes, disk) = (self.files.changes()?, &mut self.disk);
        guarded(|| work(changes, disk))
    }

    /// As [`Lane::alter`]; then saves all changes if there are many.
    fn alter_names<T>(
        &mut self,
        work: impl FnOnce(&dyn Changes, &mut Disk) -> Result<T>,
    ) -> Result<T> {
        let done = self.alter(work)?;
        if self.alter(|changes, disk| Ok(changes.is_full(disk)))? {
            self.sync_all()?;
        }
        Ok(done)
    }

    /// As [`Changes::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(&mut self, dir: Node, name: &[u8], kind: New) -> Result<Node> {
        self.alter_names(|changes, disk| changes.create(disk, dir, name, kind))
    }

    /// Removes a name; the file stays as long as it is used.
    ///
    /// # Errors
    /// As [`Changes::remove`].
    pub fn remove(&mut self, dir: Node, name: &[u8], kind: New) -> Result<()> {
        let unused = self.alter_names(|changes, disk| changes.remove(disk, dir, name, kind))?;
        unused.map_or(Ok(()), |node| self.release(node))
    }

    /// Renames a file, and replaces another if `replace` allows it.
    ///
    /// # Errors
    /// As [`Changes::rename`].
    pub fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8]), replace: bool) -> Result<()> {
        let unused = self.alter_names(|changes, disk| changes.rename(disk, from, to, replace))?;
        unused.map_or(Ok(()), |node| self.release(node))
    }

    /// As [`Changes::stored_name`].
    ///
    /// # Errors
    /// As there.
    pub fn stored_name(&mut self, dir: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.alter(|changes, disk| changes.stored_name(disk, dir, name))
    }

    /// As [`Changes::set_attr`].
    ///
    /// # Errors
    /// As there.
    pub fn set_attr(&mut self, node: Node, set: &SetAttr) -> Result<()> {
        self.alter(|changes, disk| changes.set_attr(disk, node, set))
    }

    /// Ends uses of a file ([`Files::remember`]), whose space becomes free if it was removed.
    ///
    /// # Errors
    /// The device fails.
    pub fn forget(&mut self, node: Node, count: u64) -> Result<()> {
        if self.files.changes()?.forget(node, count) {
            self.release(node)?;
        }
        Ok(())
    }

    /// Drops the pages of a removed file, also those on their way to the device, and then frees its
    /// space.
    fn release(&mut self, node: Node) -> Result<()> {
        if self.open(node).is_ok() {
            let (_, mut open) = self.recent.remove(0);
            self.session.truncate(&mut open, 0)?;
            self.files.volume.forget(FileId(node));
        }
        self.alter(|changes, disk| changes.release(disk, node))
    }

    /// Writes to the cache, and makes the file longer if necessary. Returns the number of bytes that
    /// were written: fewer than all if space is free only for these.
    ///
    /// # Errors
    /// No space is free, or the device fails.
    pub fn write(&mut self, node: Node, offset: u64, data: &[u8]) -> Result<usize> {
        let mut len = data.len();
        let end = loop {
            let end = offset.checked_add(len as u64).ok_or(Kind::TooLarge)?;
            match self.alter(|changes, disk| changes.grow(disk, node, end)) {
                Err(error) if error.kind() == Kind::NoSpace && len > LEAST => len /= 2,
                grown => break grown.map(|()| end)?,
            }
        };
        self.fill(node, offset)?;
        let (_, open) = &mut self.recent[0];
        let _here = within(Layer::Fs);
        self.session.write(open, offset, &data[..len])?;
        self.alter_names(|changes, _| changes.written(node, end))?;
        Ok(len)
    }

    /// Opens a file, and writes zeros to it from its end to `offset`.
    fn fill(&mut self, node: Node, offset: u64) -> Result<()> {
        self.open(node)?;
        let (_, open) = &mut self.recent[0];
        let mut at = open.vnode().size();
        if at >= offset {
            return Ok(());
        }
        let zeros = vec![0; ZEROS.min((offset - at) as usize)];
        while at < offset {
            let part = zeros.len().min((offset - at) as usize);
            self.session.write(open, at, &zeros[..part])?;
            at += part as u64;
        }
        Ok(())
    }

    /// Sets the size of a file.
    ///
    /// # Errors
    /// No space is free, or the device fails.
    pub fn set_size(&mut self, node: Node, size: u64) -> Result<()> {
        self.alter(|changes, disk| changes.grow(disk, node, size))?;
        self.fill(node, size)?;
        let (_, open) = &mut self.recent[0];
        if size >= open.vnode().size() {
            return self.alter(|changes, _| changes.written(node, size));
        }
        self.session.truncate(open, size)?;
        self.alter_names(|changes, disk| changes.cut(disk, node, size))
    }

    /// Writes the pages of a file to the device. Returns its size and its number of writes before.
    fn write_out(&mut self, node: Node) -> Result<(Node, u64, u64)> {
        self.open(node)?;
        let writes = self.alter(|changes, _| changes.writes(node))?;
        let size = self.attr(node)?.size;
        let (_, open) = &mut self.recent[0];
        let pages = size.next_multiple_of(PAGE_BYTES as u64);
        self.session.write_out(open, 0..pages)?;
        Ok((node, size, writes))
    }

    /// Makes a file durable, with its name.
    ///
    /// # Errors
    /// The device fails; the changes stay in memory.
    pub fn sync(&mut self, node: Node) -> Result<()> {
        let file = self.write_out(node)?;
        self.alter(|changes, disk| changes.save(disk, &[file]))
    }

    /// Makes all files durable, with their names.
    ///
    /// # Errors
    /// As [`Lane::sync`]; the other files are durable.
    pub fn sync_all(&mut self) -> Result<()> {
        let (mut files, mut failed) = (Vec::new(), None);
        for node in self.files.changes()?.unsaved()? {
            match self.write_out(node) {
                Ok(file) => files.push(file),
                // It was removed in the meantime.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        self.alter(|changes, disk| changes.save(disk, &files))?;
        failed.map_or(Ok(()), Err)
    }

    /// Makes all files durable and marks the file system as unmounted.
    pub(super) fn finish(&mut self) -> Result<()> {
        for node in self.files.changes()?.removed()? {
            self.release(node)?;
        }
        self.sync_all()?;
        self.alter(|changes, disk| changes.close(disk))
    }
}
