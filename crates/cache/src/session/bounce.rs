//! Reads into, and writes from, memory that is itself a mapping of a file.
//!
//! Access to such memory may fault and need a page, while the copying session holds one: the two
//! could deadlock. So the data passes through a bounce buffer.

use super::Session;
use crate::open::OpenFile;
use block::Result;

/// Size of the bounce buffer in bytes.
const STEP: usize = 256 << 10;

impl Session {
    /// Reads like [`Session::read`], through a bounce buffer.
    pub(super) fn read_into_mapping(
        &mut self,
        open: &mut OpenFile,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize> {
        let mut between = vec![0; out.len().min(STEP)];
        let mut done = 0;
        for part in out.chunks_mut(STEP) {
            let between = &mut between[..part.len()];
            let count = self.read(open, offset + done as u64, between)?;
            part[..count].copy_from_slice(&between[..count]);
            done += count;
            if count < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes like [`Session::write`], through a bounce buffer.
    pub(super) fn write_from_mapping(
        &mut self,
        open: &mut OpenFile,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let mut between = Vec::with_capacity(data.len().min(STEP));
        for (step, part) in data.chunks(STEP).enumerate() {
            between.clear();
            between.extend_from_slice(part);
            self.write(open, offset + (step * STEP) as u64, &between)?;
        }
        Ok(())
    }
}
