//! Requests and replies: byte dumps, refusals, payload accounting, every truncation, any chunking.

use nbd_proto::constants as c;
use nbd_proto::{Command, Errno, Event, ExportInfo, RequestHeader, Server, TlsPolicy};
use proptest::prelude::*;
use std::sync::Arc;

const SIZE: u64 = 1 << 20;

fn exports(flags: u16) -> Arc<[ExportInfo]> {
    [ExportInfo {
        name: "disk".into(),
        description: String::new(),
        size: SIZE,
        flags: flags | c::FLAG_HAS_FLAGS | c::FLAG_SEND_DF,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 16,
    }]
    .into()
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    [
        &c::IHAVEOPT.to_be_bytes()[..],
        &kind.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
        data,
    ]
    .concat()
}

/// A negotiation up to `NBD_OPT_GO`.
fn negotiation(structured: bool) -> Vec<u8> {
    let mut stream = 3u32.to_be_bytes().to_vec();
    if structured {
        stream.extend(option(c::OPT_STRUCTURED_REPLY, &[]));
    }
    stream.extend(option(c::OPT_GO, b"\0\0\0\x04disk\0\0"));
    stream
}

fn server(flags: u16, structured: bool) -> Server {
    let mut server = Server::new(exports(flags), TlsPolicy::Never);
    let stream = negotiation(structured);
    assert_eq!(server.handle_input(&stream), Ok(stream.len()));
    while server.poll_transmit().is_some() {}
    assert_eq!(server.poll_event(), Some(Event::Ready { export: 0 }));
    server
}

fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    [
        &c::REQUEST_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn a_write_is_these_bytes() {
    let mut server = server(c::FLAG_SEND_FUA, false);
    let bytes = [
        &b"\x25\x60\x95\x13"[..], // magic
        b"\0\x01",                // flags: FUA
        b"\0\x01",                // WRITE
        b"\0\0\0\0\0\0\0\x07",    // cookie
        b"\0\0\0\0\0\0\x10\0",    // offset 4096
        b"\0\0\x02\0",            // 512 bytes
        b"payload",
    ]
    .concat();
    assert_eq!(server.handle_input(&bytes), Ok(28));
    let expected = RequestHeader {
        command: Command::Write,
        flags: c::CMD_FLAG_FUA,
        cookie: 7,
        offset: 4096,
        len: 512,
    };
    assert!(expected.fua() && !expected.no_hole());
    assert_eq!(
        server.poll_event(),
        Some(Event::Request {
            request: expected,
            refused: None
        })
    );
    // Nothing is read as a request before the payload is gone.
    assert_eq!(server.payload_left(), 512);
    let next = request(c::CMD_READ, 0, 8, 0, 512);
    assert_eq!(server.handle_input(&next), Ok(0));
    server.payload_moved(500);
    assert_eq!(server.handle_input(&next), Ok(0));
    server.payload_moved(12);
    assert_eq!(server.handle_input(&next), Ok(28));
}

#[test]
fn replies_are_these_bytes() {
    let read = RequestHeader {
        command: Command::Read,
        flags: 0,
        cookie: 7,
        offset: 512,
        len: 4096,
    };
    let write = RequestHeader {
        command: Command::Write,
        ..read
    };
    let simple = server(0, false);
    let structured = server(0, true);
    let cases: [(&Server, &RequestHeader, Option<Errno>, &[u8]); 7] = [
        (
            &simple,
            &read,
            None,
            b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07",
        ),
        (
            &simple,
            &write,
            Some(Errno::Io),
            b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07",
        ),
        (
            &structured,
            &read,
            None,
            b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x10\x08\0\0\0\0\0\0\x02\0",
        ),
        (
            &structured,
            &write,
            None,
            b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0",
        ),
        (
            &structured,
            &RequestHeader { len: 0, ..read },
            None,
            b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0",
        ),
        (
            &structured,
            &write,
            Some(Errno::Shutdown),
            b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x21\0\0\0\x6c\0\x1bthe server is shutting down",
        ),
        (
            &structured,
            &read,
            Some(Errno::Overflow),
            b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x0e\0\0\0\x4b\0\x08too long",
        ),
    ];
    for (server, request, error, expected) in cases {
        let reply = server.reply(request, error);
        assert_eq!(reply.as_bytes(), expected, "{request:?} {error:?}");
    }
}

#[test]
fn every_error_fits_a_structured_reply() {
    let server = server(0, true);
    let read = RequestHeader {
        command: Command::Read,
        flags: 0,
        cookie: 1,
        offset: 0,
        len: 512,
    };
    for error in [
        Errno::Permission,
        Errno::Io,
        Errno::NoMemory,
        Errno::Invalid,
        Errno::NoSpace,
        Errno::Overflow,
        Errno::NotSupported,
        Errno::Shutdown,
    ] {
        let reply = server.reply(&read, Some(error));
        let bytes = reply.as_bytes();
        let len = u32::from_be_bytes(bytes[16..20].try_into().unwrap()) as usize;
        let text = u16::from_be_bytes(bytes[24..26].try_into().unwrap()) as usize;
        assert_eq!((bytes.len(), text), (20 + len, len - 6), "{error:?}");
        assert_eq!(bytes[20..24], (error as u32).to_be_bytes());
        assert!(std::str::from_utf8(&bytes[26..]).is_ok());
    }
}

/// Feeds one request; says how it is refused.
fn refusal(flags: u16, structured: bool, bytes: &[u8]) -> Option<Errno> {
    let mut server = server(flags, structured);
    assert_eq!(server.handle_input(bytes), Ok(28));
    match server.poll_event() {
        Some(Event::Request { refused, .. }) => refused,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_outside_the_announced_sizes_are_refused() {
    let all = c::FLAG_SEND_FUA | c::FLAG_SEND_TRIM | c::FLAG_SEND_WRITE_ZEROES;
    let writes = [c::CMD_WRITE, c::CMD_TRIM, c::CMD_WRITE_ZEROES];
    for kind in [c::CMD_READ, c::CMD_WRITE, c::CMD_TRIM, c::CMD_WRITE_ZEROES] {
        let is_write = writes.contains(&kind);
        let beyond = if is_write {
            Errno::NoSpace
        } else {
            Errno::Invalid
        };
        let moves_data = matches!(kind, c::CMD_READ | c::CMD_WRITE);
        for (offset, len, expected) in [
            (0, 512, None),
            (SIZE - 512, 512, None),
            (SIZE, 0, None),
            (1, 512, Some(Errno::Invalid)),
            (0, 511, Some(Errno::Invalid)),
            (SIZE, 512, Some(beyond)),
            (SIZE - 512, 1024, Some(beyond)),
            (u64::MAX - 511, 512, Some(beyond)),
            (0, 1 << 16, None),
            (0, (1 << 16) + 512, moves_data.then_some(Errno::Invalid)),
        ] {
            let got = refusal(all, true, &request(kind, 0, 1, offset, len));
            assert_eq!(got, expected, "{kind} of {len} at {offset}");
        }
    }
}

#[test]
fn a_read_only_export_takes_no_changes() {
    for kind in [c::CMD_WRITE, c::CMD_TRIM, c::CMD_WRITE_ZEROES] {
        let bytes = request(kind, 0, 1, 0, 512);
        assert_eq!(
            refusal(c::FLAG_READ_ONLY, true, &bytes),
            Some(Errno::Permission)
        );
    }
    for kind in [c::CMD_READ, c::CMD_FLUSH] {
        let len = if kind == c::CMD_READ { 512 } else { 0 };
        let bytes = request(kind, 0, 1, 0, len);
        assert_eq!(refusal(c::FLAG_READ_ONLY, true, &bytes), None);
    }
}

#[test]
fn unknown_commands_and_flags_that_do_not_apply_are_invalid() {
    for kind in [c::CMD_CACHE, c::CMD_BLOCK_STATUS, 8, u16::MAX] {
        let bytes = request(kind, 0, 1, 0, 512);
        assert_eq!(refusal(0, true, &bytes), Some(Errno::Invalid), "{kind}");
    }
    let invalid = Some(Errno::Invalid);
    for (kind, flags, structured, expected) in [
        (c::CMD_READ, c::CMD_FLAG_FUA, false, None),
        (c::CMD_READ, c::CMD_FLAG_DF, true, None),
        (c::CMD_READ, c::CMD_FLAG_DF, false, invalid),
        (c::CMD_READ, c::CMD_FLAG_NO_HOLE, true, invalid),
        (c::CMD_WRITE, c::CMD_FLAG_DF, true, invalid),
        (c::CMD_WRITE, 1 << 15, true, invalid),
        (c::CMD_WRITE_ZEROES, c::CMD_FLAG_NO_HOLE, true, None),
        (c::CMD_WRITE_ZEROES, c::CMD_FLAG_FAST_ZERO, true, invalid),
        (c::CMD_FLUSH, c::CMD_FLAG_FUA, true, None),
    ] {
        let bytes = request(kind, flags, 1, 0, 512);
        assert_eq!(refusal(0, structured, &bytes), expected, "{kind} {flags}");
    }
    let trim = request(c::CMD_TRIM, 0, 1, 0, 512);
    assert_eq!(refusal(0, true, &trim), Some(Errno::NotSupported));
}

#[test]
fn rejects_a_wrong_magic_and_a_payload_too_long_to_skip() {
    let mut wrong = request(c::CMD_READ, 0, 1, 0, 512);
    wrong[0] ^= 1;
    assert!(server(0, false).handle_input(&wrong).is_err());
    let long = request(c::CMD_WRITE, 0, 1, 0, u32::MAX);
    assert!(server(0, false).handle_input(&long).is_err());
    let skipped = request(c::CMD_WRITE, 0, 1, 0, 64 << 20);
    assert!(server(0, false).handle_input(&skipped).is_ok());
}

#[test]
fn nothing_is_read_behind_a_disconnect() {
    let mut server = server(0, true);
    let stream = [
        request(c::CMD_DISC, 0, 0, 0, 0),
        request(c::CMD_READ, 0, 1, 0, 512),
    ]
    .concat();
    assert_eq!(server.handle_input(&stream), Ok(28));
    assert_eq!(server.handle_input(&stream[28..]), Ok(0));
    assert_eq!(server.poll_event(), Some(Event::Disconnect));
    assert_eq!(server.handle_input(&stream[28..]), Ok(0));
    assert_eq!(server.poll_event(), None);
    // What is in flight is still answered as it was agreed.
    let read = RequestHeader {
        command: Command::Flush,
        flags: 0,
        cookie: 1,
        offset: 0,
        len: 0,
    };
    assert!(
        server
            .reply(&read, None)
            .as_bytes()
            .starts_with(&c::STRUCTURED_REPLY_MAGIC.to_be_bytes())
    );
}

/// Everything a driver sees of a stream that comes in pieces.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    sent: Vec<u8>,
    events: Vec<Event>,
    payload: Vec<u8>,
    failed: bool,
}

fn drive(stream: &[u8], pieces: impl Iterator<Item = usize>) -> Seen {
    let mut server = Server::new(exports(0), TlsPolicy::Never);
    let mut seen = Seen::default();
    let (mut held, mut rest): (Vec<u8>, &[u8]) = (Vec::new(), stream);
    for len in pieces {
        let (piece, left) = rest.split_at(len.min(rest.len()));
        held.extend(piece);
        rest = left;
        loop {
            let payload = held.len().min(server.payload_left() as usize);
            seen.payload.extend(held.drain(..payload));
            server.payload_moved(payload as u32);
            let Ok(consumed) = server.handle_input(&held) else {
                seen.failed = true;
                return seen;
            };
            held.drain(..consumed);
            while let Some(bytes) = server.poll_transmit() {
                seen.sent.extend(bytes);
            }
            let event = server.poll_event();
            seen.events.extend(event);
            if consumed == 0 && payload == 0 && event.is_none() {
                break;
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    seen
}

fn session() -> Vec<u8> {
    [
        negotiation(true),
        request(c::CMD_WRITE, 0, 1, 0, 512),
        (0..512u32).map(|i| i as u8).collect(),
        request(c::CMD_READ, c::CMD_FLAG_DF, 2, 512, 1024),
        request(c::CMD_WRITE, 0, 3, 3, 5), // refused, and skipped
        b"skip!".to_vec(),
        request(c::CMD_FLUSH, 0, 4, 0, 0),
        request(c::CMD_DISC, 0, 0, 0, 0),
    ]
    .concat()
}

#[test]
fn any_chunking_gives_the_same_events() {
    let stream = session();
    let whole = drive(&stream, std::iter::once(stream.len()));
    assert_eq!((whole.events.len(), whole.payload.len()), (6, 517));
    for step in 1..stream.len() {
        let seen = drive(&stream, std::iter::repeat(step));
        assert_eq!(seen, whole, "pieces of {step}");
    }
}

#[test]
fn every_truncation_gives_the_events_up_to_there() {
    let stream = session();
    let whole = drive(&stream, std::iter::once(stream.len()));
    for len in 0..stream.len() {
        let seen = drive(&stream[..len], std::iter::once(len));
        assert!(
            !seen.failed && whole.events.starts_with(&seen.events),
            "{len}"
        );
        assert!(whole.payload.starts_with(&seen.payload), "{len}");
    }
}

proptest! {
    #[test]
    fn garbage_neither_panics_nor_depends_on_the_pieces(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        at in 0usize..1000,
        replace in any::<bool>(),
        step in 1usize..64,
    ) {
        let mut stream = session();
        let at = at % stream.len();
        let end = if replace { (at + garbage.len()).min(stream.len()) } else { at };
        stream.splice(at..end, garbage);
        let whole = drive(&stream, std::iter::once(stream.len()));
        prop_assert_eq!(drive(&stream, std::iter::repeat(step)), whole);
    }

    #[test]
    fn a_request_that_is_not_refused_fits_the_export(
        kind in 0u16..9, flags in 0u16..32, offset in any::<u64>(), len in any::<u32>(), small in any::<bool>(),
    ) {
        let (offset, len) = if small { (offset % (2 * SIZE), len % (1 << 17)) } else { (offset, len) };
        let request = RequestHeader::parse(&request(kind, flags, 1, offset, len).try_into().unwrap()).unwrap();
        let moves = !matches!(request.command, Command::Flush | Command::Disconnect);
        if moves && request.refusal(&exports(c::FLAG_SEND_TRIM)[0], true).is_none() {
            prop_assert!(offset % 512 == 0 && len % 512 == 0 && offset + u64::from(len) <= SIZE);
        }
    }
}
