//! The target's side of an iSCSI connection: login, then a session with commands in flight.
//!
//! The first byte selects the start of the stream (at the login, or after it) and the negotiated
//! parameters; the second the size of the pieces; the rest is the stream.
//!
//! Claims: reading never panics; the same stream in other pieces yields the same output, data and
//! events; data stays within the range that its command requested; the output is bounded by the
//! size of the input.
#![no_main]

use iscsi_proto::{
    Credentials, Event, Kind, Login, LoginConfig, Mutual, LoginResult, Payload, Session, TaskId,
    Transfer, OfferedParams, parse_targets,
};
use libfuzzer_sys::fuzz_target;

/// Bytes that the commands in flight read and write.
const READ: u32 = 4096;
const WRITE: u32 = 70_000;

/// Builds a login response of the target: flags, then text.
fn response(flags: u8, text: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 48];
    (out[0], out[1], out[7]) = (0x23, flags, text.len() as u8);
    (out[27], out[31], out[35]) = (1, 1, 64);
    out.extend(text);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn config(wanted: &OfferedParams, chap: bool) -> LoginConfig<'_> {
    let mutual = Mutual {
        secret: b"theirs",
        id: 7,
        challenge: [9; 16],
    };
    LoginConfig {
        initiator: "iqn.i",
        kind: Kind::Normal {
            target: "iqn.t",
            lun: [0; 8],
        },
        isid: [0x80, 0, 0, 0, 0, 1],
        credentials: chap.then_some(Credentials {
            user: "joe",
            secret: b"ours",
            md5_only: false,
            mutual: Some(mutual),
        }),
        offered: wanted,
    }
}

/// All output and events, by kind.
#[derive(Debug, Default, PartialEq)]
struct Told {
    output: Vec<u8>,
    data: Vec<(TaskId, u32, u8)>,
    events: Vec<Event>,
    wrong: bool,
}

fn log_in(stream: &[u8], chap: bool, step: usize) -> (Told, Option<Box<Session>>) {
    let wanted = OfferedParams::default();
    let mut login = Login::new(config(&wanted, chap));
    let mut told = Told::default();
    for piece in stream.chunks(step) {
        let result = login.handle_input(piece);
        told.output.extend(login.take_output());
        match result {
            Ok(taken) => assert!(taken <= piece.len()),
            Err(_) => {
                told.wrong = true;
                return (told, None);
            }
        }
        match login.take_outcome() {
            Some(LoginResult::LoggedIn(session)) => return (told, Some(session)),
            Some(LoginResult::Redirect { .. }) => return (told, None),
            None => {}
        }
    }
    (told, None)
}

/// Creates a session with a read, a write, an abandoned read, a ping and a text request in flight.
fn session(agreed: u8) -> Box<Session> {
    let mut stream = response(0x81, b"AuthMethod=None\0");
    let text: &[u8] = match agreed & 1 {
        0 => b"InitialR2T=Yes\0MaxOutstandingR2T=1\0",
        _ => b"InitialR2T=No\0MaxOutstandingR2T=8\0FirstBurstLength=65536\0",
    };
    stream.extend(response(0x87, text));
    let mut session = log_in(&stream, false, stream.len()).1.expect("a good login");
    session.command(&[0; 16], Transfer::In(READ));
    session.command(&[0; 16], Transfer::Out(WRITE));
    if let Some(task) = session.command(&[0; 16], Transfer::In(READ)) {
        session.abandon(task);
    }
    session.ping();
    session.send_targets();
    session
}

fn send(session: &mut Session, told: &mut Told) {
    while let Some(mut pdu) = session.next_pdu() {
        pdu.seal(|_| {});
        if let Payload::Task { offset, len, .. } = pdu.payload {
            assert!(offset.checked_add(len).is_some_and(|end| end <= WRITE));
        }
        told.output.extend(pdu.header());
    }
}

fn run(agreed: u8, stream: &[u8], step: usize) -> Told {
    let (mut told, mut session) = (Told::default(), session(agreed));
    send(&mut session, &mut told);
    for piece in stream.chunks(step) {
        let mut at = 0;
        loop {
            let Ok(taken) = session.handle_input(&piece[at..]) else {
                told.wrong = true;
                return told;
            };
            at += taken.bytes;
            match taken.event {
                None => break,
                Some(Event::Data { task, offset, bytes }) => {
                    assert!(offset as usize + bytes <= READ as usize);
                    let data = &piece[at - bytes..at];
                    told.data.extend((offset..).zip(data).map(|(o, b)| (task, o, *b)));
                }
                Some(event) => told.events.push(event),
            }
        }
        assert_eq!(at, piece.len());
    }
    // All output is sent at the end, so that it does not depend on the pieces.
    send(&mut session, &mut told);
    told
}

fuzz_target!(|data: &[u8]| {
    let [mode, cut, stream @ ..] = data else { return };
    let step = usize::from(*cut) + 1;
    if mode & 0x80 != 0 {
        let chap = mode & 1 != 0;
        let (whole, _) = log_in(stream, chap, stream.len().max(1));
        assert!(whole.output.len() <= 4096 + 64 * stream.len());
        let _ = log_in(stream, chap, step);
        let _ = parse_targets(stream);
        return;
    }
    let whole = run(*mode, stream, stream.len().max(1));
    let pieces = run(*mode, stream, step);
    assert_eq!(whole, pieces, "the same stream in other pieces");
    // A burst is split into PDUs of 8 KiB, each with a header.
    assert!(whole.output.len() <= 4096 + 64 * (stream.len() + 32));
});
