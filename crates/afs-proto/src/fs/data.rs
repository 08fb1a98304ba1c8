//! Length prefix of the data in a reply to `FetchData` and `FetchData64`.

use super::Request;
use crate::xdr::{Reader, Xdr};
use crate::{Result, WireError};

/// Number of data bytes that follow. At the end of a file it may be less than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataLength {
    /// Four bytes on the wire, for `FetchData`.
    Narrow(u32),
    /// Eight bytes on the wire, high word first, for `FetchData64`.
    Wide(u64),
}

impl DataLength {
    /// Builds the prefix of a reply to `request` with `bytes` of data. `None` if the procedure
    /// returns no data, or if `bytes` exceeds the requested length.
    pub fn answer(request: &Request<'_>, bytes: u64) -> Option<DataLength> {
        match request {
            Request::FetchData { length, .. } => u32::try_from(bytes)
                .ok()
                .filter(|bytes| bytes <= length)
                .map(DataLength::Narrow),
            Request::FetchData64 { length, .. } => {
                (bytes <= *length).then_some(DataLength::Wide(bytes))
            }
            _ => None,
        }
    }

    /// Reads the prefix of the reply to `request`, which must be one of the two procedures. Fails
    /// if the server announces more than was requested.
    pub fn read(request: &Request<'_>, from: &mut Reader<'_>) -> Result<DataLength> {
        let (head, asked) = match request {
            Request::FetchData { length, .. } => {
                (u32::read(from).map(DataLength::Narrow), u64::from(*length))
            }
            Request::FetchData64 { length, .. } => (u64::read(from).map(DataLength::Wide), *length),
            other => (Err(WireError::Opcode(other.opcode())), 0),
        };
        let head = head?;
        if head.bytes() > asked {
            let saturated = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(WireError::TooLong {
                what: "fetched data",
                length: saturated(head.bytes()),
                max: saturated(asked),
            });
        }
        Ok(head)
    }

    /// Returns the number of data bytes.
    pub fn bytes(self) -> u64 {
        match self {
            DataLength::Narrow(bytes) => u64::from(bytes),
            DataLength::Wide(bytes) => bytes,
        }
    }

    /// Appends the prefix to `to`.
    pub fn write(self, to: &mut Vec<u8>) {
        match self {
            DataLength::Narrow(bytes) => bytes.write(to),
            DataLength::Wide(bytes) => bytes.write(to),
        }
    }
}
