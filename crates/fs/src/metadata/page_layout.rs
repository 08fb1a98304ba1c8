//! The parts of `redb`'s file format, version 3, that locate pages: the geometry in the header, and the
//! pages that a branch names.
//!
//! **Invariant:** any bytes are read; a page that lies outside the file is none.

/// First byte of a page with entries.
pub(crate) const LEAF: u8 = 1;
/// First byte of a page that names other pages.
pub(crate) const BRANCH: u8 = 2;
/// Limit for the length of a page, which is far above that of a valid one.
pub(crate) const PAGE_BYTES_MAX: u64 = 16 << 20;

/// Geometry of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageLayout {
    page_bytes: u64,
    /// Bytes of a region, and those of its header.
    region_bytes: u64,
    region_header: u64,
}

impl PageLayout {
    /// Reads the geometry from the first bytes of the file.
    pub fn of_header(header: &[u8]) -> Option<PageLayout> {
        let number = |at| u32_at(header, at).map(u64::from);
        let (page_bytes, header, pages) = (number(12)?, number(16)?, number(20)?);
        let is_valid = page_bytes.is_power_of_two() && (512..=PAGE_BYTES_MAX).contains(&page_bytes);
        is_valid.then(|| PageLayout {
            page_bytes,
            region_bytes: (header + pages) * page_bytes,
            region_header: header * page_bytes,
        })
    }

    /// Finds the offset and the length of a page in a file of `file_bytes` bytes.
    pub fn place(&self, number: u64, file_bytes: u64) -> Option<(u64, u64)> {
        let order = number >> 59;
        let index = number & (0xf_ffff >> order);
        let region = (number >> 20) & 0xf_ffff;
        let len = self.page_bytes << order;
        let start = u128::from(self.page_bytes + self.region_header)
            + u128::from(region) * u128::from(self.region_bytes)
            + u128::from(index) * u128::from(len);
        let fits = start + u128::from(len) <= u128::from(file_bytes);
        (fits && len <= PAGE_BYTES_MAX).then_some((start as u64, len))
    }
}

/// Returns the numbers and checksums of the pages that a branch names, in the order of their keys.
pub(crate) fn children(branch: &[u8]) -> impl Iterator<Item = (u64, u128)> {
    let count = usize::from(u16_at(branch, 2)) + 1;
    (0..count).filter_map(move |i| {
        let sum = array(branch, 8 + 16 * i).map(u128::from_le_bytes)?;
        let number = array(branch, 8 + 16 * count + 8 * i).map(u64::from_le_bytes)?;
        Some((number, sum))
    })
}

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array(bytes, at).map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    #[test]
    fn pages_lie_within_the_file_whatever_the_bytes_are() {
        let mut random = Random::new(5);
        let mut found = 0;
        for _ in 0..20_000 {
            let mut bytes = vec![0; random.below(300) as usize];
            random.fill(&mut bytes);
            if bytes.len() > 24 && random.below(4) > 0 {
                let (header, pages) = (random.below(16) as u32, random.below(1 << 20) as u32);
                bytes[2..4].copy_from_slice(&(random.below(12) as u16).to_le_bytes());
                bytes[12..16].copy_from_slice(&4096u32.to_le_bytes());
                bytes[16..20].copy_from_slice(&header.to_le_bytes());
                bytes[20..24].copy_from_slice(&pages.to_le_bytes());
            }
            let file_bytes = random.below(1 << 40);
            let Some(layout) = PageLayout::of_header(&bytes) else {
                continue;
            };
            for (number, _) in children(&bytes) {
                let number = number >> random.below(64);
                if let Some((offset, len)) = layout.place(number, file_bytes) {
                    assert!(offset + len <= file_bytes && len <= PAGE_BYTES_MAX);
                    found += 1;
                }
            }
        }
        assert!(found > 100, "{found}");
    }
}
