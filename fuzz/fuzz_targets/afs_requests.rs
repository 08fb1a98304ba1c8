//! Calls and replies of the three AFS services.
//!
//! The first byte chooses the service and the side, the second how the stream is cut; the rest is the
//! stream. A reply begins with the opcode that it answers.
//!
//! Claims: reading never panics; the same stream in other pieces gives the same value, which takes the
//! same bytes; what is accepted is written to as many bytes, and these read back equal; a text of an
//! access list that is accepted reads back equal, if a call can carry it.
#![no_main]

use afs_proto::acl::AccessList;
use afs_proto::fs::DataLength;
use afs_proto::gather::{Gather, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use afs_proto::{Reader, Result, WireError, Xdr, cb, fs, to_bytes, vl};
use libfuzzer_sys::fuzz_target;

/// The claims for one kind of value. A macro, because what is read borrows from other bytes each time.
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
        // A reply without results is there before its first piece.
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

/// The bytes that a reply is written to.
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
