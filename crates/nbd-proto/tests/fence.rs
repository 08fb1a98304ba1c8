//! Sessions and fences in the negotiation: client against server with messages split at random, and
//! malformed input.

use block_testing::Random;
use nbd_proto::client::{ClientHandshake, ClientOptions, ClientStep};
use nbd_proto::constants as c;
use nbd_proto::{ExportInfo, FenceResult, Handshake, ServerStep, TlsPolicy};

const SESSION: &str = "evfs:session:0123456789abcdef";
const FENCE: &str = "evfs:fence:fedcba9876543210";
const SESSION_KEY: u64 = 0x0123_4567_89ab_cdef;
const FENCE_KEY: u64 = 0xfedc_ba98_7654_3210;

fn server(tls: TlsPolicy) -> Handshake {
    let export = ExportInfo {
        name: "e".into(),
        description: String::new(),
        size: 1 << 20,
        flags: c::FLAG_HAS_FLAGS,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 20,
    };
    Handshake::new([export].into(), tls)
}

/// Runs a client against a server and splits the bytes of both at random. Returns the outcome of
/// each side and the keys that were fenced.
fn meet(wish: ClientOptions, ended: bool, seed: u64) -> (ClientStep, Option<ServerStep>, Vec<u64>) {
    let mut random = Random::new(seed);
    let mut up_to = |most: usize| random.below(most as u64 + 1) as usize;
    let (mut server, mut client) = (server(TlsPolicy::Never), ClientHandshake::new(wish));
    let (mut up, mut down, mut fenced) = (Vec::new(), Vec::new(), Vec::new());
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    loop {
        down.extend(server.take_output());
        up.extend(client.take_output());
        if client.outcome().is_some() && up.is_empty() {
            break;
        }
        assert!(!(up.is_empty() && down.is_empty()), "both wait");
        to_server.extend(up.drain(..up_to(up.len())));
        to_client.extend(down.drain(..up_to(down.len())));
        let used = server.handle_input(&to_server).unwrap();
        to_server.drain(..used);
        if let Some(ServerStep::Fence { key }) = server.outcome() {
            assert_eq!(server.handle_input(&to_server), Ok(0), "it waits");
            fenced.push(key);
            server.fenced(if ended {
                FenceResult::Ended
            } else {
                FenceResult::Unconfirmed
            });
            assert_eq!(server.outcome(), None);
        }
        let used = client.handle_input(&to_client).unwrap();
        to_client.drain(..used);
    }
    (client.outcome().unwrap().clone(), server.outcome(), fenced)
}

fn wish(contexts: &[&str], info_only: bool) -> ClientOptions {
    ClientOptions {
        export: "e".into(),
        contexts: contexts.iter().map(|c| (*c).to_owned()).collect(),
        info_only,
        ..ClientOptions::default()
    }
}

#[test]
fn a_session_is_agreed_on_in_any_pieces() {
    for seed in 0..200 {
        let (client, server, fenced) = meet(wish(&[SESSION], false), true, seed);
        let ClientStep::Transmission(export) = client else {
            panic!("{client:?}");
        };
        assert_eq!(export.contexts, [SESSION]);
        let expected = ServerStep::Transmission {
            export: 0,
            structured: true,
            session: Some(SESSION_KEY),
        };
        assert_eq!((server, fenced), (Some(expected), vec![]));
    }
}

#[test]
fn a_fence_is_answered_as_it_went_in_any_pieces() {
    for seed in 0..200 {
        for ended in [true, false] {
            let (client, server, fenced) = meet(wish(&[FENCE], true), ended, seed);
            let ClientStep::Told(export) = client else {
                panic!("{client:?}");
            };
            let expected: &[&str] = if ended { &[FENCE] } else { &[] };
            assert_eq!(export.contexts, expected);
            assert_eq!((server, fenced), (Some(ServerStep::Close), vec![FENCE_KEY]));
        }
    }
}

#[test]
fn one_option_may_name_a_session_and_end_another() {
    for ended in [true, false] {
        let (client, server, fenced) = meet(wish(&[FENCE, SESSION], false), ended, 1);
        let ClientStep::Transmission(export) = client else {
            panic!("{client:?}");
        };
        let expected: &[&str] = if ended { &[SESSION, FENCE] } else { &[SESSION] };
        assert_eq!(export.contexts, expected);
        assert_eq!(fenced, [FENCE_KEY]);
        assert!(matches!(
            server,
            Some(ServerStep::Transmission {
                session: Some(SESSION_KEY),
                ..
            })
        ));
    }
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

fn contexts(export: &str, names: &[&str]) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend((names.len() as u32).to_be_bytes());
    for name in names {
        data.extend((name.len() as u32).to_be_bytes());
        data.extend(name.as_bytes());
    }
    data
}

fn structured(handshake: &mut Handshake) {
    let hello = [
        3u32.to_be_bytes().to_vec(),
        option(c::OPT_STRUCTURED_REPLY, &[]),
    ]
    .concat();
    assert_eq!(handshake.handle_input(&hello), Ok(hello.len()));
    handshake.take_output();
}

/// Returns the kinds of the replies to an option sent after structured replies were negotiated.
fn replies(kind: u32, data: &[u8]) -> (Vec<u32>, Option<ServerStep>) {
    let mut handshake = server(TlsPolicy::Never);
    structured(&mut handshake);
    let sent = option(kind, data);
    assert_eq!(handshake.handle_input(&sent), Ok(sent.len()));
    let outcome = handshake.outcome();
    (kinds(&handshake.take_output()), outcome)
}

fn kinds(mut output: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !output.is_empty() {
        let word = |at: usize| u32::from_be_bytes(output[at..at + 4].try_into().unwrap());
        kinds.push(word(12));
        output = &output[20 + word(16) as usize..];
    }
    kinds
}

#[test]
fn the_answer_is_these_bytes() {
    let mut handshake = server(TlsPolicy::Never);
    structured(&mut handshake);
    let sent = option(c::OPT_SET_META_CONTEXT, &contexts("", &[FENCE]));
    handshake.handle_input(&sent).unwrap();
    assert_eq!(handshake.take_output(), Vec::<u8>::new());
    handshake.fenced(FenceResult::Ended);
    let expected = [
        &b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0a\0\0\0\x04\0\0\0\x1f"[..], // 31 bytes
        b"\0\0\0\x02evfs:fence:fedcba9876543210",
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x0a\0\0\0\x01\0\0\0\0", // ACK
    ]
    .concat();
    assert_eq!(handshake.take_output(), expected);
    handshake.fenced(FenceResult::Ended);
    assert_eq!(
        handshake.take_output(),
        Vec::<u8>::new(),
        "there is nothing to answer"
    );
}

#[test]
fn what_is_unknown_asks_for_nothing() {
    let unknown: [&[&str]; 10] = [
        &[],
        &["base:allocation"],
        &["evfs:"],
        &["evfs:session:"],
        &["evfs:other:0123456789abcdef"],
        &["evfs:session:0123456789ABCDEF"],
        &["evfs:session:0123456789abcdef0"],
        &["evfs:fence:+123456789abcdef"],
        &["evfs:fence:0123456789abcd\u{e9}"],
        &["qemu:dirty-bitmap:x", "no colon"],
    ];
    for names in unknown {
        let answer = replies(c::OPT_SET_META_CONTEXT, &contexts("e", names));
        assert_eq!(answer, (vec![c::REP_ACK], None), "{names:?}");
    }
    for names in [&[][..], &["evfs:", SESSION, FENCE]] {
        let answer = replies(c::OPT_LIST_META_CONTEXT, &contexts("e", names));
        assert_eq!(answer, (vec![c::REP_ACK], None), "{names:?}");
    }
}

#[test]
fn what_is_malformed_or_too_much_is_refused() {
    let whole = contexts("e", &[SESSION, "base:allocation"]);
    let mut wrong: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    wrong.push([&whole[..], &[0]].concat());
    wrong.push(contexts("e", &[&"x".repeat(4097)]));
    wrong.push(contexts(&"x".repeat(4097), &[]));
    wrong.push(contexts("e", &[SESSION, SESSION]));
    wrong.push(contexts("e", &[FENCE, "evfs:fence:0000000000000000"]));
    wrong.push(b"\0\0\0\x01e\xff\xff\xff\xff".to_vec());
    wrong.push(b"\xff\xff\xff\xff".to_vec());
    for data in &wrong {
        for kind in [c::OPT_SET_META_CONTEXT, c::OPT_LIST_META_CONTEXT] {
            assert_eq!(replies(kind, data), (vec![c::REP_ERR_INVALID], None));
        }
    }
    let strange = contexts("other", &[FENCE]);
    let answer = replies(c::OPT_SET_META_CONTEXT, &strange);
    assert_eq!(answer, (vec![c::REP_ERR_UNKNOWN], None));
}

#[test]
fn nothing_is_fenced_before_structured_replies_or_before_tls() {
    let asked = option(c::OPT_SET_META_CONTEXT, &contexts("e", &[FENCE]));
    let early = [&3u32.to_be_bytes()[..], &asked].concat();
    for (tls, kind) in [
        (TlsPolicy::Never, c::REP_ERR_INVALID),
        (TlsPolicy::Required, c::REP_ERR_TLS_REQD),
    ] {
        let mut handshake = server(tls);
        handshake.take_output();
        assert_eq!(handshake.handle_input(&early), Ok(early.len()));
        assert_eq!(handshake.outcome(), None);
        assert_eq!(kinds(&handshake.take_output()), [kind]);
    }
    let mut handshake = server(TlsPolicy::Active);
    let sent = [option(c::OPT_STRUCTURED_REPLY, &[]), asked].concat();
    handshake.handle_input(&sent).unwrap();
    assert_eq!(
        handshake.outcome(),
        Some(ServerStep::Fence { key: FENCE_KEY })
    );
}

#[test]
fn a_selection_takes_the_place_of_the_one_before() {
    let mut handshake = server(TlsPolicy::Never);
    structured(&mut handshake);
    let go = option(c::OPT_GO, b"\0\0\0\x01e\0\0");
    let sent = [
        option(c::OPT_SET_META_CONTEXT, &contexts("e", &[SESSION])),
        option(c::OPT_SET_META_CONTEXT, &contexts("e", &[])),
        go,
    ]
    .concat();
    assert_eq!(handshake.handle_input(&sent), Ok(sent.len()));
    let expected = ServerStep::Transmission {
        export: 0,
        structured: true,
        session: None,
    };
    assert_eq!(handshake.outcome(), Some(expected));
}
