//! Command descriptor blocks. `bytes` is an allocation length.

use crate::bytes::put;

/// A command descriptor block, zero-filled to 16 bytes.
pub type Cdb = [u8; 16];

/// A run of logical blocks of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    first: u64,
    count: u32,
}

impl BlockRange {
    /// Block 0 with count 0: the whole unit, whatever its size, for a command that defines it so.
    pub const ALL: BlockRange = BlockRange::new(0, 0);

    /// Creates the range of `count` blocks from the logical block address `first` on.
    pub const fn new(first: u64, count: u32) -> BlockRange {
        BlockRange { first, count }
    }

    /// Converts a range of bytes, which consists of whole blocks of `block_bytes`.
    #[inline]
    pub fn of_bytes(offset: u64, len: u64, block_bytes: u32) -> BlockRange {
        let block = u64::from(block_bytes);
        BlockRange {
            first: offset / block,
            count: u32::try_from(len / block).unwrap_or(u32::MAX),
        }
    }
}

fn cdb(opcode: u8, fields: &[(usize, &[u8])]) -> Cdb {
    let mut out = [0; 16];
    out[0] = opcode;
    for (at, value) in fields {
        put(&mut out, *at, value);
    }
    out
}

fn wide(opcode: u8, flags: u8, range: BlockRange) -> Cdb {
    let (first, count) = (range.first.to_be_bytes(), range.count.to_be_bytes());
    cdb(opcode, &[(1, &[flags]), (2, &first), (10, &count)])
}

/// Builds a ten-byte command. A unit that accepts no others has no block past its 32 bits, and the
/// caller sends no more blocks than its 16 bits can count.
fn narrow(opcode: u8, flags: u8, range: BlockRange) -> Cdb {
    let first = u32::try_from(range.first).unwrap_or(u32::MAX).to_be_bytes();
    let count = u16::try_from(range.count).unwrap_or(u16::MAX).to_be_bytes();
    cdb(opcode, &[(1, &[flags]), (2, &first), (7, &count)])
}

const FUA: u8 = 0x08;

/// Builds a READ(16) command: SBC-3, section 5.16.
pub fn read16(range: BlockRange) -> Cdb {
    wide(0x88, 0, range)
}

/// Builds a READ(10) command: SBC-3, section 5.14.
pub fn read10(range: BlockRange) -> Cdb {
    narrow(0x28, 0, range)
}

/// Builds a WRITE(16) command: SBC-3, section 5.36.
pub fn write16(range: BlockRange, fua: bool) -> Cdb {
    wide(0x8a, if fua { FUA } else { 0 }, range)
}

/// Builds a WRITE(10) command: SBC-3, section 5.34.
pub fn write10(range: BlockRange, fua: bool) -> Cdb {
    narrow(0x2a, if fua { FUA } else { 0 }, range)
}

/// Builds a SYNCHRONIZE CACHE(10) command: SBC-3, section 5.26. [`BlockRange::ALL`] covers the whole
/// unit.
pub fn synchronize_cache10(range: BlockRange) -> Cdb {
    narrow(0x35, 0, range)
}

/// Builds a SYNCHRONIZE CACHE(16) command: SBC-3, section 5.27.
pub fn synchronize_cache16(range: BlockRange) -> Cdb {
    wide(0x91, 0, range)
}

/// Builds a WRITE SAME(16) command: SBC-3, section 5.46. Its data is one logical block.
pub fn write_same16(range: BlockRange, unmap: bool) -> Cdb {
    wide(0x93, if unmap { FUA } else { 0 }, range)
}

/// Builds an UNMAP command: SBC-3, section 5.28. `bytes` is the length of [`unmap_list`].
pub fn unmap(bytes: u16) -> Cdb {
    cdb(0x42, &[(7, &bytes.to_be_bytes())])
}

/// Builds the parameter list of UNMAP for one range.
pub fn unmap_list(range: BlockRange) -> [u8; 24] {
    let mut out = [0; 24];
    put(&mut out, 0, &22u16.to_be_bytes());
    put(&mut out, 2, &16u16.to_be_bytes());
    put(&mut out, 8, &range.first.to_be_bytes());
    put(&mut out, 16, &range.count.to_be_bytes());
    out
}

/// Builds a READ CAPACITY(16) command: SBC-3, section 5.16.
pub fn read_capacity16(bytes: u32) -> Cdb {
    cdb(0x9e, &[(1, &[0x10]), (10, &bytes.to_be_bytes())])
}

/// Builds a READ CAPACITY(10) command: SBC-3, section 5.15. Its response has 8 bytes.
pub fn read_capacity10() -> Cdb {
    cdb(0x25, &[])
}

/// Builds an INQUIRY command: SPC-4, section 6.6. `page` selects a vital product data page.
pub fn inquiry(page: Option<u8>, bytes: u16) -> Cdb {
    let flags = u8::from(page.is_some());
    let page = page.unwrap_or(0);
    cdb(0x12, &[(1, &[flags, page]), (3, &bytes.to_be_bytes())])
}

/// Builds a MODE SENSE(6) command for the current values of a page, without block descriptors:
/// SPC-4, section 6.14.
pub fn mode_sense6(page: u8, bytes: u8) -> Cdb {
    cdb(0x1a, &[(1, &[0x08, page & 0x3f, 0, bytes])])
}

/// Builds a TEST UNIT READY command: SPC-4, section 6.47.
pub fn test_unit_ready() -> Cdb {
    cdb(0x00, &[])
}

/// Builds a REPORT LUNS command: SPC-4, section 6.33.
pub fn report_luns(bytes: u32) -> Cdb {
    cdb(0xa0, &[(6, &bytes.to_be_bytes())])
}

/// Builds a REPORT TARGET PORT GROUPS command: SPC-4, section 6.37.
pub fn report_target_port_groups(bytes: u32) -> Cdb {
    cdb(0xa3, &[(1, &[0x0a]), (6, &bytes.to_be_bytes())])
}

/// Service actions of PERSISTENT RESERVE OUT: SPC-4, section 6.16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveOut {
    /// Register a key; a new key of zero removes the registration.
    Register,
    /// Acquire the reservation.
    Reserve,
    /// Remove another nexus's registration by its key and take over its reservation.
    Preempt,
    /// Same as `Preempt`, and abort the commands of that nexus.
    PreemptAndAbort,
    /// Register a key, ignoring any existing registration.
    RegisterAndIgnore,
}

/// Reservation type Write Exclusive, Registrants Only.
pub const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 5;

/// Builds a PERSISTENT RESERVE OUT command: SPC-4, section 6.16. [`super::reserve_out`] builds its
/// 24 bytes of data.
pub fn persistent_reserve_out(action: ReserveOut) -> Cdb {
    let (action, kind) = match action {
        ReserveOut::Register => (0, 0),
        ReserveOut::Reserve => (1, WRITE_EXCLUSIVE_REGISTRANTS_ONLY),
        ReserveOut::Preempt => (4, WRITE_EXCLUSIVE_REGISTRANTS_ONLY),
        ReserveOut::PreemptAndAbort => (5, WRITE_EXCLUSIVE_REGISTRANTS_ONLY),
        ReserveOut::RegisterAndIgnore => (6, 0),
    };
    cdb(0x5f, &[(1, &[action, kind]), (5, &24u32.to_be_bytes())])
}

/// Service actions of PERSISTENT RESERVE IN: SPC-4, section 6.15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveIn {
    /// Read the registered keys.
    ReadKeys,
    /// Read the current reservation.
    ReadReservation,
}

/// Builds a PERSISTENT RESERVE IN command: SPC-4, section 6.15.
pub fn persistent_reserve_in(action: ReserveIn, bytes: u16) -> Cdb {
    let action = match action {
        ReserveIn::ReadKeys => 0,
        ReserveIn::ReadReservation => 1,
    };
    cdb(0x5e, &[(1, &[action]), (7, &bytes.to_be_bytes())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;

    #[test]
    fn a_range_of_bytes_becomes_blocks() {
        let range = BlockRange::of_bytes(3 * 4096, 2 * 4096, 4096);
        assert_eq!(range, BlockRange::new(3, 2));
    }

    #[test]
    fn command_blocks_are_those_of_the_standards() {
        let range = BlockRange::new(1, 2);
        for (cdb, expected) in [
            (
                read16(BlockRange::new(0x0102_0304_0506_0708, 9)),
                "88000102030405060708000000090000",
            ),
            (
                read10(BlockRange::new(0x0102_0304, 0x0506)),
                "28000102030400050600000000000000",
            ),
            (write16(range, true), "8a080000000000000001000000020000"),
            (write10(range, false), "2a000000000100000200000000000000"),
            (
                synchronize_cache10(BlockRange::ALL),
                "35000000000000000000000000000000",
            ),
            (
                synchronize_cache16(range),
                "91000000000000000001000000020000",
            ),
            (
                write_same16(range, true),
                "93080000000000000001000000020000",
            ),
            (unmap(24), "42000000000000001800000000000000"),
            (read_capacity16(32), "9e100000000000000000000000200000"),
            (read_capacity10(), "25000000000000000000000000000000"),
            (inquiry(None, 96), "12000000600000000000000000000000"),
            (
                inquiry(Some(0x83), 0x0100),
                "12018301000000000000000000000000",
            ),
            (mode_sense6(8, 255), "1a080800ff0000000000000000000000"),
            (report_luns(16), "a0000000000000000010000000000000"),
            (
                report_target_port_groups(16),
                "a30a0000000000000010000000000000",
            ),
            (
                persistent_reserve_out(ReserveOut::Preempt),
                "5f040500000000001800000000000000",
            ),
            (
                persistent_reserve_in(ReserveIn::ReadReservation, 24),
                "5e010000000000001800000000000000",
            ),
        ] {
            assert_eq!(hex(&cdb), expected);
        }
        assert_eq!(
            hex(&unmap_list(BlockRange::new(3, 4))),
            "001600100000000000000000000000030000000400000000"
        );
    }
}
