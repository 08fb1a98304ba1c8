//! Trace of the most recent I/Os of a LUN: an in-memory ring that is cheap to write, and its file
//! format.
//!
//! The file is little-endian: a header of 48 bytes and one record of 32 bytes per I/O.
//!
//! | offset | bytes | header |
//! |---|---|---|
//! | 0 | 8 | magic `EVFSTRC\n` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | number of paths |
//! | 12 | 4 | feature flags; a reader rejects unknown ones |
//! | 16 | 8 | number of records |
//! | 24 | 8 | number of I/Os no longer in the ring |
//! | 32 | 8 | zero |
//! | 40 | 4 | CRC32C of the records |
//! | 44 | 4 | CRC32C of the header up to here |
//!
//! | offset | bytes | record |
//! |---|---|---|
//! | 0 | 8 | start in nanoseconds, arbitrary origin, ascending |
//! | 8 | 8 | offset in bytes |
//! | 16 | 8 | latency in nanoseconds |
//! | 24 | 4 | length in bytes |
//! | 28 | 2 | path |
//! | 30 | 1 | 1: write, 2: failed |
//! | 31 | 1 | zero |

use crate::policy::{Io, Nanos};
use std::fmt;
use std::io::{Read, Write};

/// Default number of entries of a ring.
pub const DEFAULT_ENTRIES: usize = 65_536;

const MAGIC: [u8; 8] = *b"EVFSTRC\n";
const VERSION: u16 = 1;
const HEADER: usize = 48;
const RECORD: usize = 32;
/// Maximum number of records that a reader accepts: 512 MiB.
const RECORDS_MAX: u64 = 1 << 24;
const WRITE: u8 = 1;
const FAILED: u8 = 2;

/// A completed I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Time of submission.
    pub at: Nanos,
    /// Offset on the LUN in bytes.
    pub offset: u64,
    /// Time from submission to completion.
    pub latency: Nanos,
    /// Direction and length.
    pub io: Io,
    /// Index of the path.
    pub path: u16,
    /// The I/O succeeded.
    pub ok: bool,
}

/// A ring of the most recent I/Os of one queue. Recording does not allocate.
#[derive(Debug)]
pub struct Recorder {
    ring: Vec<Record>,
    entries: usize,
    recorded: u64,
}

impl Recorder {
    /// Creates a ring of `entries` I/Os; 0 counts as 1.
    pub fn new(entries: usize) -> Recorder {
        let entries = entries.max(1);
        Recorder {
            ring: Vec::with_capacity(entries),
            entries,
            recorded: 0,
        }
    }

    /// Adds `record`, replacing the oldest one if the ring is full.
    pub fn record(&mut self, record: Record) {
        if self.ring.len() < self.entries {
            self.ring.push(record);
        } else {
            let oldest = (self.recorded % self.entries as u64) as usize;
            self.ring[oldest] = record;
        }
        self.recorded += 1;
    }
}

/// I/Os of a LUN in order of submission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    paths: u16,
    records: Vec<Record>,
    lost: u64,
}

/// Reason why a file cannot be read as a trace.
#[derive(Debug)]
pub enum ReadError {
    /// The file cannot be read, or ends early.
    Io(std::io::Error),
    /// Not a trace, or inconsistent: the failed check.
    Malformed(&'static str),
    /// A trace of a later version, or with unknown features.
    Unsupported {
        /// Version of the file.
        version: u16,
        /// Feature flags of the file.
        features: u32,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(e) => write!(f, "trace: {e}"),
            ReadError::Malformed(what) => write!(f, "invalid trace: {what}"),
            ReadError::Unsupported { version, features } => {
                write!(
                    f,
                    "unsupported trace: version {version}, features {features:#x}"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl From<std::io::Error> for ReadError {
    fn from(e: std::io::Error) -> ReadError {
        ReadError::Io(e)
    }
}

impl Trace {
    /// Collects the rings of all queues of a LUN with `paths` paths. Records of other paths are
    /// omitted.
    pub fn collect<'a>(paths: u16, rings: impl IntoIterator<Item = &'a Recorder>) -> Trace {
        let mut trace = Trace {
            paths,
            ..Trace::default()
        };
        for ring in rings {
            let of_lun = ring.ring.iter().filter(|r| r.path < paths);
            trace.records.extend(of_lun);
            trace.lost += ring.recorded - ring.ring.len() as u64;
        }
        trace.records.sort_by_key(|record| record.at);
        trace
    }

    /// Returns the number of paths of the LUN.
    pub fn paths(&self) -> usize {
        usize::from(self.paths)
    }

    /// Returns the I/Os in order of submission.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the number of I/Os that had been overwritten in the rings.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes the trace in the file format.
    ///
    /// # Errors
    /// Errors of `to`.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let body: Vec<u8> = self.records.iter().flat_map(encode).collect();
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(self.paths.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend((self.records.len() as u64).to_le_bytes());
        header.extend(self.lost.to_le_bytes());
        header.extend([0; 8]);
        header.extend(crc32c::crc32c(&body).to_le_bytes());
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        to.write_all(&header)?;
        to.write_all(&body)
    }

    /// Reads an untrusted file. Memory use grows with the actual data, not with the announced size.
    ///
    /// # Errors
    /// The file is not a trace, is damaged, or has another version.
    pub fn read(from: &mut impl Read) -> Result<Trace, ReadError> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        let malformed = |what| Err(ReadError::Malformed(what));
        if header[..8] != MAGIC {
            return malformed("wrong magic number");
        }
        if u32_at(&header, 44) != crc32c::crc32c(&header[..44]) {
            return malformed("header checksum mismatch");
        }
        let version = u16_at(&header, 8);
        let features = u32_at(&header, 12);
        if version != VERSION || features != 0 {
            return Err(ReadError::Unsupported { version, features });
        }
        let paths = u16_at(&header, 10);
        let count = u64_at(&header, 16);
        if count > RECORDS_MAX {
            return malformed("too many records");
        }
        let mut body = Vec::new();
        let length = count * RECORD as u64;
        from.take(length + 1).read_to_end(&mut body)?;
        if body.len() as u64 != length {
            return malformed("wrong length");
        }
        if u32_at(&header, 40) != crc32c::crc32c(&body) {
            return malformed("record checksum mismatch");
        }
        let records: Vec<Record> = body.chunks_exact(RECORD).map(decode).collect();
        if records.iter().any(|r| r.path >= paths) {
            return malformed("a record refers to an unknown path");
        }
        if !records.is_sorted_by_key(|r| r.at) {
            return malformed("records are out of order");
        }
        Ok(Trace {
            paths,
            records,
            lost: u64_at(&header, 24),
        })
    }
}

fn encode(record: &Record) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(&record.at.to_le_bytes());
    out[8..16].copy_from_slice(&record.offset.to_le_bytes());
    out[16..24].copy_from_slice(&record.latency.to_le_bytes());
    out[24..28].copy_from_slice(&record.io.bytes.to_le_bytes());
    out[28..30].copy_from_slice(&record.path.to_le_bytes());
    out[30] = if record.io.write { WRITE } else { 0 } | if record.ok { 0 } else { FAILED };
    out
}

fn decode(from: &[u8]) -> Record {
    Record {
        at: u64_at(from, 0),
        offset: u64_at(from, 8),
        latency: u64_at(from, 16),
        io: Io {
            write: from[30] & WRITE != 0,
            bytes: u32_at(from, 24),
        },
        path: u16_at(from, 28),
        ok: from[30] & FAILED == 0,
    }
}

fn array<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| from[at + i])
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(from, at))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(from, at))
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(from, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: Nanos) -> Record {
        Record {
            at,
            offset: at * 4096,
            latency: 200 + at,
            io: Io {
                write: at % 2 == 1,
                bytes: 4096,
            },
            path: (at % 3) as u16,
            ok: !at.is_multiple_of(5),
        }
    }

    fn file() -> (Trace, Vec<u8>) {
        let mut rings = [Recorder::new(4), Recorder::new(100)];
        for at in 0..20 {
            rings[(at % 2) as usize].record(record(at));
        }
        let trace = Trace::collect(3, &rings);
        let mut file = Vec::new();
        trace.write(&mut file).unwrap();
        (trace, file)
    }

    /// Recomputes the checksums of a modified file.
    fn seal(file: &mut [u8]) {
        let body = crc32c::crc32c(&file[HEADER..]);
        file[40..44].copy_from_slice(&body.to_le_bytes());
        let header = crc32c::crc32c(&file[..44]);
        file[44..48].copy_from_slice(&header.to_le_bytes());
    }

    #[test]
    fn a_ring_keeps_the_last_and_counts_the_lost() {
        let (trace, _) = file();
        let at: Vec<Nanos> = trace.records().iter().map(|r| r.at).collect();
        assert_eq!(at, [1, 3, 5, 7, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(trace.lost(), 6);
    }

    #[test]
    fn what_was_written_is_read() {
        let (trace, file) = file();
        assert_eq!(file.len(), HEADER + 14 * RECORD);
        assert_eq!(Trace::read(&mut &file[..]).unwrap(), trace);
    }

    #[test]
    fn every_changed_bit_and_every_missing_byte_is_noticed() {
        let (_, file) = file();
        for bit in 0..file.len() * 8 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Trace::read(&mut &bad[..]).is_err(), "bit {bit}");
        }
        for length in 0..file.len() {
            assert!(Trace::read(&mut &file[..length]).is_err(), "{length} bytes");
        }
        let longer = [&file[..], &[0]].concat();
        assert!(Trace::read(&mut &longer[..]).is_err());
    }

    #[test]
    fn lies_with_right_checksums_are_refused() {
        let (_, file) = file();
        let changed = |at: usize, bytes: &[u8]| {
            let mut bad = file.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            seal(&mut bad);
            Trace::read(&mut &bad[..]).unwrap_err().to_string()
        };
        assert!(changed(8, &[2, 0]).contains("version 2"));
        assert!(changed(12, &[4, 0, 0, 0]).contains("features 0x4"));
        assert!(changed(16, &[0xff; 8]).contains("too many records"));
        assert!(changed(16, &[15, 0]).contains("wrong length"));
        assert!(changed(10, &[1, 0]).contains("path"));
        assert!(changed(HEADER, &[0xff; 8]).contains("order"));
    }
}
