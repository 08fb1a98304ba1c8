//! Buffers of a request, passed on to the device requests that carry parts of it.
//!
//! A buffer that lies entirely in one part is passed to the device directly. A buffer that spans a
//! border of extents stays here, and copies of its pieces are passed. **Invariant:** when all
//! device requests have completed, the buffers are complete and in order.

use crate::data::plan::Part;
use crate::format::record::{BLOCK_BYTES, DeviceOffset};
use crate::format::sums::{NO_SUM, Sum, Summer};
use block::{Buf, Bufs, SumGroup};
use std::ops::Range;
use std::sync::Arc;

/// Direction of a transfer between the buffers and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    Read,
    Write,
}

/// Buffers of a request; `None` while one is in a device request.
pub(super) struct Gather {
    slots: Vec<Option<Buf>>,
    /// Offset of each buffer in the request, and the end of the last.
    starts: Vec<u64>,
    /// Checksum of each block of the request that the device has computed, else [`NO_SUM`]. Empty
    /// if there are none.
    known: Vec<Sum>,
}

/// Payload of a device request, to put it back when the request completes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// Buffers from this slot on.
    Slots(usize),
    /// Copy of these bytes of a slot.
    Copy(usize, Range<usize>),
}

impl Gather {
    pub fn new(bufs: Bufs) -> Gather {
        let slots: Vec<Option<Buf>> = bufs.into_vec().into_iter().map(Some).collect();
        let mut starts = vec![0];
        for buf in slots.iter().flatten() {
            starts.push(starts[starts.len() - 1] + buf.len() as u64);
        }
        Gather {
            slots,
            starts,
            known: Vec::new(),
        }
    }

    /// Asks the device for the checksums of a piece, if it consists of whole blocks.
    fn ask(at: u64, bufs: &mut Bufs, summer: &Arc<dyn block::Summer>) {
        let fits = |len: u64| len.is_multiple_of(BLOCK_BYTES);
        if fits(at) && bufs.iter().all(|buf| fits(buf.len() as u64)) {
            bufs.ask_sums(summer);
        }
    }

    /// Splits a part at buffer borders where necessary. Returns the device offset, the payload and
    /// the buffers of each piece. With `asks`, asks for these checksums of those that are whole
    /// blocks.
    pub fn lend(
        &mut self,
        part: &Part,
        transfer: Transfer,
        asks: Option<&Arc<dyn block::Summer>>,
    ) -> Vec<(DeviceOffset, Carried, Bufs)> {
        let Some(device) = part.device else {
            return Vec::new();
        };
        let mut lent = Vec::new();
        let mut at = part.bytes.start;
        while at < part.bytes.end {
            let slot = self.starts.partition_point(|start| *start <= at) - 1;
            let place = device.plus(at - part.bytes.start);
            let whole = self.starts[slot] == at && self.starts[slot + 1] <= part.bytes.end;
            if whole {
                let end = self
                    .starts
                    .partition_point(|start| *start <= part.bytes.end)
                    - 1;
                let bufs = self.slots[slot..end].iter_mut().filter_map(Option::take);
                let mut bufs = Bufs::from(bufs.collect::<Vec<_>>());
                if let Some(summer) = asks {
                    Gather::ask(at, &mut bufs, summer);
                }
                lent.push((place, Carried::Slots(slot), bufs));
                at = self.starts[end];
            } else {
                let end = self.starts[slot + 1].min(part.bytes.end);
                let range = (at - self.starts[slot]) as usize..(end - self.starts[slot]) as usize;
                let mut copy = Buf::zeroed(range.len());
                if transfer == Transfer::Write
                    && let Some(buf) = &self.slots[slot]
                {
                    copy.copy_from_slice(&buf[range.clone()]);
                }
                let mut copy = Bufs::from(copy);
                if let Some(summer) = asks {
                    Gather::ask(at, &mut copy, summer);
                }
                lent.push((place, Carried::Copy(slot, range), copy));
                at = end;
            }
        }
        lent
    }

    /// Takes back the buffers of a piece returned by [`Gather::lend`], and the checksums of their
    /// blocks if the device has computed them.
    pub fn put_back(&mut self, carried: Carried, mut bufs: Bufs, transfer: Transfer) {
        if let Some(sums) = bufs.take_sums() {
            let at = match &carried {
                Carried::Slots(slot) => self.starts[*slot],
                Carried::Copy(slot, range) => self.starts[*slot] + range.start as u64,
            };
            let blocks = self.starts[self.slots.len()].div_ceil(BLOCK_BYTES) as usize;
            if sums.len() == blocks {
                self.known = sums;
            } else {
                self.known.resize(blocks, NO_SUM);
                let places = self.known[(at / BLOCK_BYTES) as usize..].iter_mut();
                places.zip(sums).for_each(|(place, sum)| *place = sum);
            }
        }
        match carried {
            Carried::Slots(first) => {
                for (slot, buf) in self.slots[first..].iter_mut().zip(bufs.into_vec()) {
                    *slot = Some(buf);
                }
            }
            Carried::Copy(slot, range) if transfer == Transfer::Read => {
                if let (Some(buf), Some(copy)) = (&mut self.slots[slot], bufs.into_first()) {
                    buf[range].copy_from_slice(&copy);
                }
            }
            Carried::Copy(..) => {}
        }
    }

    /// Returns the checksums of the blocks of the request, at least of those that `needs` names: those
    /// that the device has computed, or else all. All buffers must have been returned.
    pub fn take_sums(&mut self, summer: &Summer, needs: impl Fn(usize) -> bool) -> Vec<Sum> {
        let mut known = self.known.iter().enumerate();
        if !self.known.is_empty() && known.all(|(i, sum)| *sum != NO_SUM || !needs(i)) {
            return std::mem::take(&mut self.known);
        }
        self.sums(summer)
    }

    /// Computes the checksum of each block of the request. All buffers must have been returned.
    pub fn sums(&self, summer: &Summer) -> Vec<Sum> {
        const BLOCK: usize = block::SUM_BLOCK_BYTES;
        let blocks = self.starts[self.slots.len()] as usize / BLOCK;
        let mut sums = SumGroup::new(summer, blocks);
        // The bytes so far of a block that spans buffers.
        let mut begun = Vec::new();
        for buf in self.slots.iter().flatten() {
            let (head, rest) = buf.split_at(((BLOCK - begun.len()) % BLOCK).min(buf.len()));
            begun.extend_from_slice(head);
            if let Some(block) = begun.as_array() {
                sums.add_now(block);
                begun.clear();
            }
            let (blocks, rest) = rest.as_chunks::<BLOCK>();
            begun.extend_from_slice(rest);
            blocks.iter().for_each(|block| sums.add(block));
        }
        sums.finish()
    }

    /// Zeroes bytes of the request. All buffers must have been returned.
    pub fn zero(&mut self, bytes: Range<u64>) {
        for (slot, start) in self.slots.iter_mut().zip(&self.starts) {
            let Some(buf) = slot else { continue };
            let from = bytes.start.clamp(*start, start + buf.len() as u64) - start;
            let to = bytes.end.clamp(*start, start + buf.len() as u64) - start;
            buf[from as usize..to as usize].fill(0);
        }
    }

    /// Copies bytes of the request. All buffers must have been returned.
    pub fn copy_out(&self, bytes: Range<u64>) -> Vec<u8> {
        let mut copy = Vec::with_capacity((bytes.end - bytes.start) as usize);
        for (buf, part) in self.overlaps(bytes) {
            copy.extend_from_slice(&self.slots[buf].as_ref().expect("returned")[part]);
        }
        copy
    }

    /// Replaces the bytes of the request from an offset on. All buffers must have been returned.
    pub fn fill(&mut self, at: u64, content: &[u8]) {
        let mut rest = content;
        for (buf, part) in self.overlaps(at..at + content.len() as u64) {
            let (now, later) = rest.split_at(part.len());
            self.slots[buf].as_mut().expect("returned")[part].copy_from_slice(now);
            rest = later;
        }
    }

    /// Finds the parts of buffers that lie in a range of the request.
    fn overlaps(&self, bytes: Range<u64>) -> Vec<(usize, Range<usize>)> {
        let bounds = self.starts.windows(2).enumerate();
        let cut = bounds.map(|(i, two)| {
            let from = bytes.start.clamp(two[0], two[1]) - two[0];
            let to = bytes.end.clamp(two[0], two[1]) - two[0];
            (i, from as usize..to as usize)
        });
        cut.filter(|(_, part)| !part.is_empty()).collect()
    }

    /// Returns the buffers of the request in their original order.
    pub fn finish(self) -> Bufs {
        let mut bufs: Vec<Buf> = self.slots.into_iter().flatten().collect();
        match bufs.len() {
            1 => bufs.remove(0).into(),
            _ => bufs.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrity::IntegrityKey;
    use block_testing::Random;

    #[test]
    fn checksums_do_not_depend_on_the_borders_of_buffers() {
        let mut random = Random::new(9);
        for _ in 0..300 {
            let mut content = vec![0; 4096 * (1 + random.below(40) as usize)];
            random.fill(&mut content);
            let expected: Vec<Sum> = content
                .chunks(4096)
                .map(|block| Summer::Crc.sum_of(block))
                .collect();
            let (mut bufs, mut at) = (Vec::new(), 0);
            while at < content.len() {
                let most = [1, 100, 4096, 9000][random.below(4) as usize];
                let len = (1 + random.below(most) as usize).min(content.len() - at);
                bufs.push(Buf::copy_of(&content[at..at + len]));
                at += len;
            }
            let bufs = Gather::new(bufs.into());
            assert_eq!(bufs.sums(&Summer::Crc), expected);
            let keyed = Summer::Keyed(IntegrityKey::for_tests(1));
            let blocks = content.chunks(4096);
            let expected: Vec<Sum> = blocks.map(|block| keyed.sum_of(block)).collect();
            assert_eq!(bufs.sums(&keyed), expected);
        }
    }

    /// Computes checksums where they were asked for, as a device may, or not.
    fn compute(random: &mut Random, bufs: &mut Bufs) {
        if bufs.is_asking() && random.below(8) > 0 {
            let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
            let sums = bytes.chunks(4096).map(|block| Summer::Crc.sum_of(block));
            bufs.set_sums(sums.collect());
        }
    }

    #[test]
    fn any_split_of_any_buffers_writes_and_reads_the_same_bytes() {
        let mut random = Random::new(3);
        let asked = Summer::Crc.shared();
        for _ in 0..300 {
            let pages = 1 + random.below(20);
            let mut left = pages;
            let mut bufs = Vec::new();
            while left > 0 {
                let take = 1 + random.below(left.min(5));
                let mut buf = Buf::zeroed(take as usize * 4096);
                random.fill(&mut buf);
                bufs.push(buf);
                left -= take;
            }
            let content: Vec<u8> = bufs.iter().flat_map(|b| b.to_vec()).collect();
            let lens: Vec<usize> = bufs.iter().map(|b| b.len()).collect();
            let mut disk = vec![0; 64 * 4096];
            let mut parts = Vec::new();
            let (mut at, mut place) = (0, 0);
            while at < pages {
                let take = 1 + random.below(pages - at);
                place += random.below(2);
                parts.push(Part {
                    bytes: at * 4096..(at + take) * 4096,
                    device: Some(DeviceOffset::of_block(place)),
                });
                (at, place) = (at + take, place + take);
            }
            let mut gather = Gather::new(bufs.into());
            for part in &parts {
                for (place, carried, mut bufs) in gather.lend(part, Transfer::Write, Some(&asked)) {
                    let mut at = place.bytes() as usize;
                    for buf in bufs.iter() {
                        disk[at..at + buf.len()].copy_from_slice(buf);
                        at += buf.len();
                    }
                    compute(&mut random, &mut bufs);
                    gather.put_back(carried, bufs, Transfer::Write);
                }
            }
            let sums: Vec<Sum> = content
                .chunks(4096)
                .map(|block| Summer::Crc.sum_of(block))
                .collect();
            assert_eq!(gather.take_sums(&Summer::Crc, |_| true), sums);
            let bufs = gather.finish();
            assert!(bufs.iter().map(|b| b.len()).eq(lens.iter().copied()));
            let empty: Vec<Buf> = lens.iter().map(|len| Buf::zeroed(*len)).collect();
            let mut gather = Gather::new(empty.into());
            for part in &parts {
                for (place, carried, mut bufs) in gather.lend(part, Transfer::Read, Some(&asked)) {
                    let mut at = place.bytes() as usize;
                    for buf in bufs.iter_mut() {
                        let len = buf.len();
                        buf.copy_from_slice(&disk[at..at + len]);
                        at += len;
                    }
                    compute(&mut random, &mut bufs);
                    gather.put_back(carried, bufs, Transfer::Read);
                }
            }
            assert_eq!(gather.take_sums(&Summer::Crc, |_| true), sums);
            gather.zero(5..4000);
            let mut expected = content;
            expected[5..4000].fill(0);
            let back: Vec<u8> = gather.finish().iter().flat_map(|b| b.to_vec()).collect();
            assert!(back == expected);
        }
    }
}
