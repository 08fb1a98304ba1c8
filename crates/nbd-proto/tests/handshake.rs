//! The negotiation: byte dumps, every truncation, every chunking, refusals.

use nbd_proto::constants as c;
use nbd_proto::{ExportInfo, Handshake, Outcome, TlsPolicy};
use std::sync::Arc;

fn exports() -> Arc<[ExportInfo]> {
    let export = |name: &str, size| ExportInfo {
        name: name.into(),
        description: "words".into(),
        size,
        flags: c::FLAG_HAS_FLAGS | c::FLAG_SEND_FLUSH | c::FLAG_SEND_DF,
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

/// Feeds the stream in pieces of `step` bytes, as a driver does.
fn run(tls: TlsPolicy, stream: &[u8], step: usize) -> (Vec<u8>, Option<Outcome>, usize, bool) {
    let mut handshake = Handshake::new(exports(), tls);
    let (mut output, mut held, mut consumed) = (handshake.take_output(), Vec::new(), 0);
    for piece in stream.chunks(step) {
        held.extend_from_slice(piece);
        loop {
            let Ok(n) = handshake.handle_input(&held) else {
                return (output, handshake.outcome(), consumed, true);
            };
            output.extend(handshake.take_output());
            held.drain(..n);
            consumed += n;
            if n == 0 || handshake.outcome().is_some() {
                break;
            }
        }
        if handshake.outcome().is_some() {
            break;
        }
    }
    (output, handshake.outcome(), consumed, false)
}

/// Option and type of each option reply, as far as they are whole.
fn replies(mut output: &[u8]) -> Vec<(u32, u32)> {
    let u32_at =
        |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut found = Vec::new();
    while output.len() >= 20 && output.starts_with(&c::REP_MAGIC.to_be_bytes()) {
        found.push((u32_at(output, 8), u32_at(output, 12)));
        output = &output[20 + u32_at(output, 16) as usize..];
    }
    found
}

/// The replies to these options, after a greeting.
fn answers(options: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let stream = [3u32.to_be_bytes().to_vec(), options.concat()].concat();
    let (output, _, _, failed) = run(TlsPolicy::Never, &stream, stream.len());
    assert!(!failed);
    replies(&output[18..])
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
        Some(Outcome::Transmission {
            export: 0,
            structured: false
        })
    );
    assert_eq!(consumed, stream.len());
    let expected = [
        b"NBDMAGICIHAVEOPT\x00\x03".to_vec(), // greeting, handshake flags
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c".to_vec(), // reply: GO, INFO, 12 bytes
        b"\0\0\0\0\0\0\0\x10\0\0\0\x05".to_vec(), // EXPORT, 1 MiB, flags (no DF)
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
        Some(Outcome::Transmission {
            export: 1,
            structured: true
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
        assert_eq!(outcome, Some(Outcome::Close), "{data:?}");
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
    assert_eq!(outcome, Some(Outcome::StartTls));
    assert!(
        !output.windows(5).any(|w| w == b"first"),
        "an export was named in the clear"
    );
    let old = [&flags[..], &option(c::OPT_EXPORT_NAME, b"first")].concat();
    assert_eq!(
        run(TlsPolicy::Required, &old, old.len()).1,
        Some(Outcome::Close)
    );
}

#[test]
fn under_tls_the_negotiation_starts_anew_but_for_the_flags() {
    let mut handshake = Handshake::new(exports(), TlsPolicy::Required);
    let clear = [&1u32.to_be_bytes()[..], &option(c::OPT_STARTTLS, &[])].concat();
    assert_eq!(handshake.handle_input(&clear), Ok(clear.len()));
    assert_eq!(handshake.outcome(), Some(Outcome::StartTls));
    handshake.take_output();
    handshake.tls_started();
    let inside = [
        option(c::OPT_STARTTLS, &[]),
        option(c::OPT_EXPORT_NAME, b"first"),
    ]
    .concat();
    assert_eq!(handshake.handle_input(&inside), Ok(inside.len()));
    let output = handshake.take_output();
    assert_eq!(replies(&output)[0], (c::OPT_STARTTLS, c::REP_ERR_INVALID));
    // The client asked for zeroes in the clear, and gets them: size, flags, 124 bytes.
    assert!(output.ends_with(&[0; 124]));
    assert_eq!(
        handshake.outcome(),
        Some(Outcome::Transmission {
            export: 0,
            structured: false
        })
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
    assert_eq!((outcome, consumed), (Some(Outcome::StartTls), 20));
}

#[test]
fn options_of_extensions_are_unsupported() {
    for kind in [
        0,
        4,
        c::OPT_LIST_META_CONTEXT,
        c::OPT_SET_META_CONTEXT,
        c::OPT_EXTENDED_HEADERS,
        12,
        u32::MAX,
    ] {
        for data in [&b""[..], b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"] {
            assert_eq!(answers(&[option(kind, data)]), [(kind, c::REP_ERR_UNSUP)]);
        }
    }
}

#[test]
fn rejects_data_where_an_option_has_none() {
    for kind in [c::OPT_LIST, c::OPT_STRUCTURED_REPLY] {
        let stream = [option(kind, b"x"), option(kind, b"")];
        let answers = answers(&stream);
        assert_eq!(answers[0], (kind, c::REP_ERR_INVALID));
        assert_eq!(answers.last(), Some(&(kind, c::REP_ACK)));
    }
    assert_eq!(
        answers(&[option(c::OPT_STARTTLS, b"")]),
        [(c::OPT_STARTTLS, c::REP_ERR_UNSUP)]
    );
}

#[test]
fn list_names_every_export_with_its_description() {
    let (output, ..) = run(
        TlsPolicy::Never,
        &[&3u32.to_be_bytes()[..], &option(c::OPT_LIST, &[])].concat(),
        99,
    );
    let expected = [
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x02\0\0\0\x0e".to_vec(), // LIST, SERVER
        b"\0\0\0\x05firstwords".to_vec(),
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x02\0\0\0\x0f".to_vec(),
        b"\0\0\0\x06secondwords".to_vec(),
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x03\0\0\0\x01\0\0\0\0".to_vec(), // ACK
    ]
    .concat();
    assert_eq!(output[18..], expected);
}

#[test]
fn df_is_offered_only_with_structured_replies() {
    let flags = |options: &[Vec<u8>]| {
        let stream = [3u32.to_be_bytes().to_vec(), options.concat()].concat();
        let (output, ..) = run(TlsPolicy::Never, &stream, stream.len());
        let size = (1u64 << 20).to_be_bytes();
        let at = output.windows(8).position(|w| w == size).unwrap();
        u16::from_be_bytes([output[at + 8], output[at + 9]])
    };
    let info = go(c::OPT_INFO, "first", &[]);
    assert_eq!(flags(std::slice::from_ref(&info)) & c::FLAG_SEND_DF, 0);
    let structured = option(c::OPT_STRUCTURED_REPLY, &[]);
    assert_ne!(flags(&[structured, info]) & c::FLAG_SEND_DF, 0);
}

#[test]
fn export_name_answers_an_unknown_name_by_closing() {
    for (name, wanted) in [
        (&b"first"[..], None),
        (b"", None),
        (b"other", Some(Outcome::Close)),
        (&[b'x'; 5000], Some(Outcome::Close)),
    ] {
        let stream = [&3u32.to_be_bytes()[..], &option(c::OPT_EXPORT_NAME, name)].concat();
        let (output, outcome, ..) = run(TlsPolicy::Never, &stream, stream.len());
        match wanted {
            Some(_) => assert_eq!((outcome, output.len()), (wanted, 18)),
            None => assert_eq!(output.len(), 18 + 10, "no zeroes were asked for"),
        }
    }
}

#[test]
fn who_asks_without_listening_gets_no_further() {
    let mut handshake = Handshake::new(
        [ExportInfo {
            description: "x".repeat(4000),
            ..exports()[0].clone()
        }]
        .into(),
        TlsPolicy::Never,
    );
    let stream = [
        &3u32.to_be_bytes()[..],
        &option(c::OPT_LIST, &[]).repeat(200),
    ]
    .concat();
    let consumed = handshake.handle_input(&stream).unwrap();
    assert!(consumed < stream.len() / 4, "{consumed}");
    let output = handshake.take_output().len();
    assert!(output < 80 * 1024, "{output}");
    assert!(handshake.handle_input(&stream[consumed..]).unwrap() > 0);
}
