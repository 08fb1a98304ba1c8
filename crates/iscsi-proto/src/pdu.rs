//! Basic header segment of a PDU (section 11.2.1) and its fields.

use crate::bytes::{array, put, u16_at, u32_at};

/// Length of the basic header segment in bytes.
pub const BHS_BYTES: usize = 48;

/// Reserved tag that refers to no task.
pub(crate) const NO_TAG: u32 = 0xffff_ffff;
/// Immediate-delivery bit in byte 0.
const IMMEDIATE: u8 = 0x40;
/// Final bit (last PDU of a sequence) in byte 1 of most PDUs.
pub(crate) const FINAL: u8 = 0x80;

/// Opcodes (section 11.2.1.2).
pub(crate) mod opcode {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const COMMAND: u8 = 0x01;
    pub(crate) const TASK_MANAGEMENT: u8 = 0x02;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const DATA_OUT: u8 = 0x05;
    pub(crate) const LOGOUT: u8 = 0x06;
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const RESPONSE: u8 = 0x21;
    pub(crate) const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// Basic header segment in wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_BYTES]);

impl Bhs {
    /// Creates a header with opcode and flags; all other bytes are zero.
    pub(crate) fn new(opcode: u8, flags: u8) -> Bhs {
        let mut bhs = Bhs([0; BHS_BYTES]);
        bhs.0[0] = opcode;
        bhs.0[1] = flags;
        bhs
    }

    /// Marks the PDU for immediate delivery.
    pub(crate) fn immediate(mut self) -> Bhs {
        self.0[0] |= IMMEDIATE;
        self
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    pub(crate) fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Reads the byte at `at`; 0 past the end of the header.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Reads the big-endian integer at `at`; 0 past the end of the header.
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16_at(&self.0, at).unwrap_or(0)
    }

    /// Reads the big-endian integer at `at`; 0 past the end of the header.
    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.0, at).unwrap_or(0)
    }

    pub(crate) fn set(&mut self, at: usize, value: &[u8]) {
        put(&mut self.0, at, value);
    }

    pub(crate) fn set_u32(&mut self, at: usize, value: u32) {
        self.set(at, &value.to_be_bytes());
    }

    /// Returns the length of the additional header segments in bytes, at most 1020.
    pub(crate) fn ahs_bytes(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Returns the length of the data segment in bytes, without padding; less than 16 MiB.
    pub(crate) fn data_bytes(&self) -> u32 {
        self.u32(4) & 0x00ff_ffff
    }

    /// Sets the length of the data segment, which must be less than 16 MiB.
    pub(crate) fn set_data_bytes(&mut self, bytes: u32) {
        let [_, a, b, c] = bytes.to_be_bytes();
        self.set(5, &[a, b, c]);
    }

    pub(crate) fn lun(&self) -> [u8; 8] {
        array(&self.0, 8).unwrap_or_default()
    }

    /// Returns the initiator task tag.
    pub(crate) fn itt(&self) -> u32 {
        self.u32(16)
    }

    /// Returns the target transfer tag; meaningful only in PDUs that carry one.
    pub(crate) fn ttt(&self) -> u32 {
        self.u32(20)
    }
}

/// Computes the number of bytes that pad `bytes` to a multiple of 4.
pub(crate) fn padding(bytes: u32) -> usize {
    match bytes % 4 {
        0 => 0,
        1 => 3,
        2 => 2,
        _ => 1,
    }
}
