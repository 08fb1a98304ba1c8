//! Calls and replies of the three AFS services.
//!
//! The first byte selects the service and the side, the second the size of the pieces; the rest is
//! the stream. A reply begins with the opcode of its call.
//!
//! Claims: reading never panics; the same stream in other pieces yields the same value and consumes
//! the same bytes; an accepted value is written to the same number of bytes, which read back equal;
//! an accepted text of an access list reads back equal, if a call can carry it.
#![no_main]

use afs_proto::acl::AccessList;
use afs_proto::fs::DataLength;
use afs_proto::gather::{Gather, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use afs_proto::{Reader, Result, WireError, Xdr, cb, fs, to_bytes, vl};
use libfuzzer_sys::fuzz_target;

/// Checks the claims for one kind of value. A macro, because each read borrows from other bytes.
macro_rules! check {
    ($stream:expr, $step:expr, $max:expr, $read:expr, $write:expr) => {{
        let mut from = Reader::new($stream);
        let whole = $read(&mut from);
        let taken = $stream.len() - from.rest().len();

        let (mut gather, mut used) = (Gather::new($max), 0);
        let mut pieces = $stream.chunks($step);
        let in_pieces = loop {
            let Some(piece) = pieces.next() else {
                break Err(WireError::Incomplete);
            };
            match gather.offer(piece, $read) {
                Ok(None) => used += piece.len(),
                Ok(Some((value, last))) => {
                    used += last;
                    break Ok(value);
                }
                Err(error) => break Err(error),
            }
        };
        // A reply without results is complete before its first piece.
        if !$stream.is_empty() {
            assert_eq!(whole, in_pieces, "the same stream in other pieces");
        }
        if let Ok(value) = whole {
            assert!($stream.is_empty() || used == taken);
            let bytes: Vec<u8> = $write(&value);
            assert_eq!(bytes.len(), taken);
            assert_eq!($read(&mut Reader::new(&bytes)), Ok(value));
        }
    }};
}

/// Returns a function that encodes a reply.
macro_rules! bytes_of {
    ($type:ty) => {
        |reply: &$type| {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            bytes
        }
    };
}

fn data_and_access_lists(stream: &[u8]) -> Result<()> {
    let mut from = Reader::new(stream);
    let request = fs::Request::read(&mut from)?;
    if let fs::Request::StoreACL { access_list, .. } = &request
        && let Ok(list) = AccessList::parse(access_list.as_bytes())
        && let Ok(text) = list.to_text()
    {
        assert_eq!(AccessList::parse(&text), Ok(list));
    }
    if let Ok(length) = DataLength::read(&request, &mut from) {
        assert_eq!(DataLength::answer(&request, length.bytes()), Some(length));
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let [mode, cut, stream @ ..] = data else { return };
    let step = usize::from(*cut) + 1;
    let Some((opcode, results)) = stream.split_first_chunk() else { return };
    let opcode = u32::from_be_bytes(*opcode);
    match mode % 6 {
        0 => {
            check!(stream, step, REQUEST_BYTES_MAX, fs::Request::read, to_bytes);
            let _ = data_and_access_lists(stream);
        }
        1 => check!(stream, step, REQUEST_BYTES_MAX, vl::Request::read, to_bytes),
        2 => check!(stream, step, REQUEST_BYTES_MAX, cb::Request::read, to_bytes),
        3 => check!(
            results,
            step,
            REPLY_BYTES_MAX,
            |from| fs::read_reply(opcode, from),
            bytes_of!(fs::Reply<'_>)
        ),
        4 => check!(
            results,
            step,
            REPLY_BYTES_MAX,
            |from| vl::read_reply(opcode, from),
            bytes_of!(vl::Reply)
        ),
        _ => check!(
            results,
            step,
            REPLY_BYTES_MAX,
            |from| cb::read_reply(opcode, from),
            bytes_of!(cb::Reply)
        ),
    }
});
