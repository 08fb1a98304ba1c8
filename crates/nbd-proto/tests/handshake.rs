//! Negotiation and requests: exact bytes, every truncation, every chunking, refusals.

use nbd_proto::constants as c;
use nbd_proto::{Command, Errno, ExportInfo, Handshake, RequestHeader, ServerStep, TlsPolicy};
use std::sync::Arc;

fn exports() -> Arc<[ExportInfo]> {
    let export = |name: &str, size| ExportInfo {
        name: name.into(),
        description: "words".into(),
        size,
        flags: c::FLAG_HAS_FLAGS | c::FLAG_SEND_FLUSH,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 20,
    };
    [export("first", 1 << 20), export("second", 2 << 20)].into()
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

fn go(kind: u32, name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|w| w.to_be_bytes()));
    option(kind, &data)
}

/// Feeds the stream in pieces of `step` bytes, as a driver does, and returns output, outcome,
/// consumed bytes and whether the handshake failed.
fn run(tls: TlsPolicy, stream: &[u8], step: usize) -> (Vec<u8>, Option<ServerStep>, usize, bool) {
    let mut handshake = Handshake::new(exports(), tls);
    let (mut output, mut held, mut consumed) = (handshake.take_output(), Vec::new(), 0);
    for piece in stream.chunks(step) {
        held.extend_from_slice(piece);
        match handshake.handle_input(&held) {
            Ok(n) => {
                held.drain(..n);
                consumed += n;
            }
            Err(_) => return (output, handshake.outcome(), consumed, true),
        }
        output.extend(handshake.take_output());
        if handshake.outcome().is_some() {
            break;
        }
    }
    (output, handshake.outcome(), consumed, false)
}

fn session() -> Vec<u8> {
    let flags = u32::from(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES);
    [
        flags.to_be_bytes().to_vec(),
        option(c::OPT_STRUCTURED_REPLY, &[]),
        option(c::OPT_LIST, &[]),
        option(99, b"unknown"),
        go(c::OPT_INFO, "nothing", &[]),
        go(
            c::OPT_GO,
            "second",
            &[c::INFO_NAME, c::INFO_DESCRIPTION, c::INFO_BLOCK_SIZE],
        ),
    ]
    .concat()
}

#[test]
fn greeting_and_go_are_these_bytes() {
    let flags = 3u32.to_be_bytes();
    let stream = [&flags[..], &go(c::OPT_GO, "", &[])].concat();
    let (output, outcome, consumed, _) = run(TlsPolicy::Never, &stream, stream.len());
    assert_eq!(
        outcome,
        Some(ServerStep::Transmission {
            export: 0,
            structured: false,
            session: None
        })
    );
    assert_eq!(consumed, stream.len());
    let expected = [
        b"NBDMAGICIHAVEOPT\x00\x03".to_vec(), // greeting, handshake flags
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c".to_vec(), // reply: GO, INFO, 12 bytes
        b"\0\0\0\0\0\0\0\x10\0\0\0\x05".to_vec(), // EXPORT, 1 MiB, flags
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0e".to_vec(), // INFO, 14 bytes
        b"\0\x03\0\0\x02\0\0\0\x10\0\0\x10\0\0".to_vec(), // BLOCK_SIZE 512, 4096, 1 MiB
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0".to_vec(), // ACK
    ]
    .concat();
    assert_eq!(output, expected);
}

#[test]
fn any_chunking_gives_the_same_answers() {
    let stream = session();
    let whole = run(TlsPolicy::Never, &stream, stream.len());
    assert_eq!(
        whole.1,
        Some(ServerStep::Transmission {
            export: 1,
            structured: true,
            session: None
        })
    );
    for step in 1..stream.len() {
        assert_eq!(
            run(TlsPolicy::Never, &stream, step),
            whole,
            "pieces of {step}"
        );
    }
}

#[test]
fn every_truncation_waits_for_more_and_nothing_else() {
    let stream = session();
    for len in 0..stream.len() {
        let (_, outcome, consumed, failed) = run(TlsPolicy::Never, &stream[..len], len.max(1));
        assert!(outcome.is_none() && !failed && consumed <= len, "{len}");
    }
}

#[test]
fn rejects_wrong_flags_magic_and_lengths() {
    for flags in [0u32, 2, 4, 7, u32::MAX] {
        assert!(
            run(TlsPolicy::Never, &flags.to_be_bytes(), 4).3,
            "flags {flags}"
        );
    }
    let mut wrong = [&3u32.to_be_bytes()[..], &option(c::OPT_LIST, &[])].concat();
    wrong[4] ^= 1;
    assert!(run(TlsPolicy::Never, &wrong, 99).3, "magic");
    let mut long = [&3u32.to_be_bytes()[..], &option(c::OPT_LIST, &[])].concat();
    long[16..20].copy_from_slice(&(1u32 << 20).to_be_bytes());
    assert!(run(TlsPolicy::Never, &long, 99).3, "length");
    let many = [
        &3u32.to_be_bytes()[..],
        &option(c::OPT_LIST, &[]).repeat(300),
    ]
    .concat();
    assert!(run(TlsPolicy::Never, &many, many.len()).3, "count");
}

#[test]
fn malformed_go_is_refused_and_the_negotiation_goes_on() {
    for data in [
        &b""[..],
        b"\0\0\0",
        b"\0\0\0\x09abc\0\0",
        b"\0\0\0\0\0\x02\0\0",
        b"\xff\xff\xff\xff\0\0",
    ] {
        let stream = [
            &3u32.to_be_bytes()[..],
            &option(c::OPT_GO, data),
            &option(c::OPT_ABORT, &[]),
        ]
        .concat();
        let (output, outcome, ..) = run(TlsPolicy::Never, &stream, stream.len());
        assert_eq!(outcome, Some(ServerStep::Close), "{data:?}");
        assert!(
            output
                .windows(4)
                .any(|w| w == c::REP_ERR_INVALID.to_be_bytes()),
            "{data:?}"
        );
    }
}

#[test]
fn where_tls_is_required_nothing_is_told_before_it() {
    let flags = 3u32.to_be_bytes();
    let stream = [
        &flags[..],
        &option(c::OPT_LIST, &[]),
        &go(c::OPT_GO, "first", &[]),
        &option(c::OPT_STARTTLS, &[]),
    ]
    .concat();
    let (output, outcome, ..) = run(TlsPolicy::Required, &stream, stream.len());
    assert_eq!(outcome, Some(ServerStep::StartTls));
    assert!(
        !output.windows(5).any(|w| w == b"first"),
        "an export was named in the clear"
    );
    let old = [&flags[..], &option(c::OPT_EXPORT_NAME, b"first")].concat();
    assert_eq!(
        run(TlsPolicy::Required, &old, old.len()).1,
        Some(ServerStep::Close)
    );
    let again = option(c::OPT_STARTTLS, &[]);
    assert_eq!(
        run(TlsPolicy::Active, &again, again.len()).1,
        None,
        "TLS inside TLS is refused"
    );
}

#[test]
fn what_follows_starttls_in_the_clear_is_left_alone() {
    let flags = 3u32.to_be_bytes();
    let stream = [
        &flags[..],
        &option(c::OPT_STARTTLS, &[]),
        &go(c::OPT_GO, "first", &[]),
    ]
    .concat();
    let (_, outcome, consumed, _) = run(TlsPolicy::Required, &stream, stream.len());
    assert_eq!((outcome, consumed), (Some(ServerStep::StartTls), 20));
}

#[test]
fn a_request_is_these_bytes() {
    let mut bytes = [0u8; 28];
    bytes[..8].copy_from_slice(b"\x25\x60\x95\x13\0\x01\0\x01");
    bytes[8..16].copy_from_slice(&7u64.to_be_bytes());
    bytes[16..24].copy_from_slice(&4096u64.to_be_bytes());
    bytes[24..].copy_from_slice(&512u32.to_be_bytes());
    let request = RequestHeader::parse(&bytes).unwrap();
    let expected = RequestHeader {
        command: Command::Write,
        fua: true,
        no_hole: false,
        unknown_flags: false,
        cookie: 7,
        offset: 4096,
        len: 512,
    };
    assert_eq!(request, expected);
    bytes[0] = 0;
    assert!(RequestHeader::parse(&bytes).is_err());
}

#[test]
fn replies_are_these_bytes() {
    assert_eq!(
        nbd_proto::simple_reply(7, Some(Errno::Io)),
        *b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07"
    );
    assert_eq!(
        nbd_proto::structured_data(7, 512, 4096),
        *b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x10\x08\0\0\0\0\0\0\x02\0"
    );
    assert_eq!(
        nbd_proto::structured_done(7),
        *b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0"
    );
    assert_eq!(
        nbd_proto::structured_error(7, Errno::NoSpace),
        *b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x1c\0\0"
    );
}
