//! A disk behind two ports with asymmetric access (ALUA), for a scripted target.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

/// Size of a logical block in bytes.
const BLOCK: usize = 512;

/// Access states (SPC-4, section 6.37).
pub const OPTIMIZED: u8 = 0;
pub const NON_OPTIMIZED: u8 = 1;
pub const STANDBY: u8 = 2;
pub const UNAVAILABLE: u8 = 3;
pub const TRANSITIONING: u8 = 15;

/// Contents of the disk and the access states of its ports.
pub struct Disk {
    bytes: Mutex<Vec<u8>>,
    access: [AtomicU8; 2],
    /// Number of access changes; each session reports a new one with its next command.
    pub changes: AtomicU64,
    /// Number of queries for the states of all ports.
    pub asked: AtomicU64,
}

/// Completion of a command.
pub enum End {
    Data(Vec<u8>),
    Good,
    /// CHECK CONDITION, with sense key, additional sense code and qualifier.
    Check(u8, u8, u8),
}

impl Disk {
    /// Creates a zero-filled disk.
    pub fn new(bytes: usize, access: [u8; 2]) -> Disk {
        Disk {
            bytes: Mutex::new(vec![0; bytes]),
            access: access.map(AtomicU8::new),
            changes: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Changes the access states; each session reports a unit attention.
    pub fn set_access(&self, access: [u8; 2]) {
        for (port, state) in self.access.iter().zip(access) {
            port.store(state, SeqCst);
        }
        self.changes.fetch_add(1, SeqCst);
    }

    /// Changes the access states without a unit attention.
    pub fn set_access_quietly(&self, access: [u8; 2]) {
        for (port, state) in self.access.iter().zip(access) {
            port.store(state, SeqCst);
        }
    }

    /// Returns `len` bytes from `offset` on, bypassing the ports.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes.lock().expect("no panic under this lock")[offset..offset + len].to_vec()
    }

    /// Returns whether a command is answered in every access state and before a pending unit
    /// attention: INQUIRY.
    pub fn always(cdb: &[u8; 16]) -> bool {
        cdb[0] == 0x12
    }

    /// Returns whether the script decides about a command: reads, writes and flushes.
    pub fn is_io(cdb: &[u8; 16]) -> bool {
        matches!(cdb[0], 0x88 | 0x8a | 0x35 | 0x93)
    }

    /// Returns the error if the port's access state forbids the command.
    pub fn refusal(&self, port: usize, cdb: &[u8; 16]) -> Option<End> {
        if Disk::always(cdb) || matches!(cdb[0], 0x1a | 0xa3) {
            return None;
        }
        match self.access[port].load(SeqCst) {
            STANDBY => Some(End::Check(2, 0x04, 0x0b)),
            UNAVAILABLE => Some(End::Check(2, 0x04, 0x0c)),
            TRANSITIONING => Some(End::Check(2, 0x04, 0x0a)),
            _ => None,
        }
    }

    /// Executes a command. `data` is its outgoing data.
    pub fn run(&self, port: usize, cdb: &[u8; 16], data: &[u8]) -> End {
        let blocks = self.bytes.lock().expect("no panic under this lock").len() / BLOCK;
        match cdb[0] {
            0x00 | 0x35 => End::Good,
            0x12 => self.inquiry(port, cdb),
            0x1a => End::Data(vec![7, 0, 0x10, 0, 0x08, 2, 0x04, 0]),
            0x9e => {
                let mut capacity = vec![0; 32];
                capacity[..8].copy_from_slice(&(blocks as u64 - 1).to_be_bytes());
                capacity[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
                End::Data(capacity)
            }
            0xa3 => {
                self.asked.fetch_add(1, SeqCst);
                let mut list = vec![0, 0, 0, 24];
                for (port, state) in self.access.iter().enumerate() {
                    let group = port as u8 + 1;
                    let state = state.load(SeqCst);
                    list.extend([state, 0xcf, 0, group, 0, 0, 0, 1, 0, 0, 0, group]);
                }
                End::Data(list)
            }
            0x88 | 0x8a => self.transfer(cdb, data),
            _ => End::Check(5, 0x20, 0),
        }
    }

    fn transfer(&self, cdb: &[u8; 16], data: &[u8]) -> End {
        let number = |at: usize, len: usize| {
            let bytes = cdb[at..at + len].iter();
            bytes.fold(0, |n, b| n << 8 | usize::from(*b))
        };
        let (from, len) = (number(2, 8) * BLOCK, number(10, 4) * BLOCK);
        let mut bytes = self.bytes.lock().expect("no panic under this lock");
        let Some(place) = bytes.get_mut(from..from + len) else {
            return End::Check(5, 0x21, 0);
        };
        if cdb[0] == 0x88 {
            return End::Data(place.to_vec());
        }
        place.copy_from_slice(&data[..len]);
        End::Good
    }

    fn inquiry(&self, port: usize, cdb: &[u8; 16]) -> End {
        let page = |code, body: &[u8]| {
            let mut page = vec![0, code, 0, body.len() as u8];
            page.extend(body);
            End::Data(page)
        };
        match (cdb[1] & 1, cdb[2]) {
            (0, _) => {
                let mut inquiry = *b"\0\0\x05\x02\x1f\x10\0\0TEST    ARRAY           1   ";
                inquiry[4] = 31;
                End::Data(inquiry.to_vec())
            }
            (_, 0x00) => page(0x00, &[0x00, 0x80, 0x83]),
            (_, 0x80) => page(0x80, b"A1"),
            (_, 0x83) => {
                let unit = [1, 3, 0, 8, 0x50, 0x00, 0xc5, 0x00, 0xa1, 0xb2, 0xc3, 0xd4];
                let group = [1, 0x15, 0, 4, 0, 0, 0, port as u8 + 1];
                page(0x83, &[&unit[..], &group[..]].concat())
            }
            _ => End::Check(5, 0x24, 0),
        }
    }
}
