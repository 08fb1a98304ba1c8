//! Sessions against a scripted target.

use crate::bytes::hex;
use crate::params::{OfferedParams, Params};
use crate::pdu::{Bhs, FINAL, NO_TAG, opcode, padding};
use crate::session::{Event, OutPdu, Payload, Session};
use crate::task::{Function, TaskId, Transfer, slot_of};
use crate::{ProtocolError, Result};
use block_testing::Random;

const LUN: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];
const CDB: [u8; 16] = [0xab; 16];
/// Tag of a PDU that belongs to no task.
const NO_TASK: TaskId = TaskId::new(NO_TAG);

fn params() -> Params {
    Params {
        max_send_data_segment: 1024,
        max_burst: 4096,
        first_burst: 2048,
        initial_r2t: false,
        max_outstanding_r2t: 2,
        ..Params::start(&OfferedParams::default())
    }
}

/// Returns a session whose window allows CmdSN 1 to 8 and whose next StatSN is 101.
fn session(params: Params) -> Session {
    let mut login = Bhs::new(opcode::LOGIN_RESPONSE, 0);
    login.set_u32(24, 100);
    login.set_u32(28, 1);
    login.set_u32(32, 8);
    Session::new(params, LUN, 1, &login)
}

/// Builds a PDU of the target, without digests.
fn pdu(op: u8, flags: u8, task: TaskId, fields: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut bhs = Bhs::new(op, flags);
    bhs.set_u32(16, task.tag());
    for (at, value) in fields {
        bhs.set_u32(*at, *value);
    }
    bhs.set_data_bytes(data.len() as u32);
    let mut out = bhs.0.to_vec();
    out.extend(data);
    out.resize(out.len() + padding(data.len() as u32), 0);
    out
}

fn data_in(task: TaskId, sn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    data_in_with(0, task, sn, offset, data)
}

/// Builds the data of a read with its status, good.
fn data_in_and_status(task: TaskId, sn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    data_in_with(FINAL | 1, task, sn, offset, data)
}

fn data_in_with(flags: u8, task: TaskId, sn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    pdu(
        opcode::DATA_IN,
        flags,
        task,
        &[(24, 101), (36, sn), (40, offset)],
        data,
    )
}

fn done(task: TaskId, status: u8, sense: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    if !sense.is_empty() {
        data.extend((sense.len() as u16).to_be_bytes());
        data.extend(sense);
    }
    let mut out = pdu(opcode::RESPONSE, FINAL, task, &[(24, 101)], &data);
    out[3] = status;
    out
}

fn r2t(task: TaskId, ttt: u32, sn: u32, offset: u32, len: u32) -> Vec<u8> {
    let fields = [(20, ttt), (24, 101), (36, sn), (40, offset), (44, len)];
    pdu(opcode::R2T, FINAL, task, &fields, &[])
}

/// Input as seen by a driver: data by task, and all other events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    data: Vec<(TaskId, u32, u8)>,
    events: Vec<Event>,
}

fn feed(session: &mut Session, stream: &[u8], step: usize) -> Result<Seen> {
    let mut seen = Seen::default();
    for piece in stream.chunks(step) {
        let mut at = 0;
        loop {
            let taken = session.handle_input(&piece[at..])?;
            at += taken.bytes;
            match taken.event {
                None => break,
                Some(Event::Data {
                    task,
                    offset,
                    bytes,
                }) => {
                    for (index, byte) in piece[at - bytes..at].iter().enumerate() {
                        seen.data.push((task, offset + index as u32, *byte));
                    }
                }
                Some(event) => seen.events.push(event),
            }
        }
        assert_eq!(at, piece.len(), "everything is taken");
    }
    Ok(seen)
}

fn out(session: &mut Session) -> Vec<OutPdu> {
    std::iter::from_fn(|| session.next_pdu()).collect()
}

fn bhs(pdu: &OutPdu) -> Bhs {
    Bhs(pdu.header()[..48].try_into().unwrap())
}

fn good(task: TaskId, received: u32) -> Event {
    Event::Done {
        task,
        status: 0,
        received,
        underflow: 0,
        qualifier: 0,
        sense: Vec::new(),
    }
}

#[test]
fn a_read_command_is_that_of_the_standard() {
    let mut session = session(params());
    let task = session.command(&CDB, Transfer::In(4096)).unwrap();
    let pdus = out(&mut session);
    // Opcode 1; final, read, simple; no data; LUN 1; tag; 4096 bytes; CmdSN 1; ExpStatSN 101; CDB.
    let tag = task.tag();
    let expected = format!(
        "01c10000000000000001000000000000{tag:08x}0000100000000001{:08x}{}",
        101,
        "ab".repeat(16)
    );
    assert_eq!(hex(pdus[0].header()), expected);
    assert_eq!((pdus.len(), &pdus[0].payload), (1, &Payload::None));
}

#[test]
fn data_and_status_come_together_or_apart_and_between_tasks_in_any_cut() {
    let make = || {
        let mut session = session(params());
        let tasks = [0; 3].map(|_| session.command(&CDB, Transfer::In(8)).unwrap());
        out(&mut session);
        (session, tasks)
    };
    let (_, [a, b, c]) = make();
    let stream = [
        data_in(b, 0, 0, b"abc"),
        data_in_and_status(a, 0, 0, b"12345678"),
        data_in(b, 1, 3, b"defgh"),
        done(c, 2, &[0x70, 0, 5]),
        done(b, 0, &[]),
    ]
    .concat();
    let (mut session, _) = make();
    let whole = feed(&mut session, &stream, stream.len()).unwrap();
    assert_eq!(session.in_flight(), 0);
    let failed = Event::Done {
        task: c,
        status: 2,
        received: 0,
        underflow: 0,
        qualifier: 0,
        sense: vec![0x70, 0, 5],
    };
    assert_eq!(whole.events, [good(a, 8), failed, good(b, 8)]);
    let of = |task| {
        let bytes = whole.data.iter().filter(|(t, ..)| *t == task);
        bytes.map(|(_, at, byte)| (*at, *byte)).collect::<Vec<_>>()
    };
    let expected = |text: &[u8]| (0..).zip(text.iter().copied()).collect::<Vec<_>>();
    assert_eq!(of(a), expected(b"12345678"));
    assert_eq!(of(b), expected(b"abcdefgh"));
    for step in 1..stream.len() {
        let (mut session, _) = make();
        assert_eq!(
            feed(&mut session, &stream, step).unwrap(),
            whole,
            "step {step}"
        );
    }
}

#[test]
fn data_out_of_order_beyond_the_end_or_for_no_task_is_refused() {
    let refused = |stream: &dyn Fn(TaskId) -> Vec<u8>| {
        let mut session = session(params());
        let task = session.command(&CDB, Transfer::In(8)).unwrap();
        out(&mut session);
        let stream = stream(task);
        let result = feed(&mut session, &stream, stream.len());
        assert!(
            matches!(result, Err(ProtocolError::Broken(_))),
            "{result:?}"
        );
    };
    refused(&|t| data_in(t, 0, 4, b"1234"));
    refused(&|t| data_in(t, 1, 0, b"1234"));
    refused(&|t| data_in(t, 0, 0, b"123456789"));
    refused(&|t| [data_in(t, 0, 0, b"12"), data_in(t, 1, 0, b"12")].concat());
    refused(&|t| data_in(TaskId::new(t.tag() ^ 1 << 16), 0, 0, b"1234"));
    refused(&|_| data_in(TaskId::new(77), 0, 0, b"1234"));
    refused(&|t| r2t(t, 1, 0, 0, 8));
    refused(&|t| [done(t, 0, &[]), done(t, 0, &[])].concat());
    refused(&|t| pdu(opcode::NOP_IN, FINAL, t, &[], &[]));
    refused(&|t| pdu(0x3e, FINAL, t, &[], &[]));
}

/// Returns (offset, bytes, transfer tag, DataSN, final) of each PDU with data.
fn pieces(pdus: &[OutPdu]) -> Vec<(u32, u32, u32, u32, bool)> {
    pdus.iter()
        .map(|pdu| {
            let bhs = bhs(pdu);
            let Payload::Task { offset, len, .. } = pdu.payload else {
                panic!("{pdu:?}")
            };
            assert_eq!(bhs.data_bytes(), len);
            let is_data = bhs.opcode() == opcode::DATA_OUT;
            assert!(!is_data || bhs.u32(40) == offset);
            let (ttt, sn) = if is_data {
                (bhs.ttt(), bhs.u32(36))
            } else {
                (0, 0)
            };
            (offset, len, ttt, sn, bhs.flags() & FINAL != 0)
        })
        .collect()
}

#[test]
fn a_write_sends_what_it_may_unasked_and_the_rest_when_it_is_asked() {
    let mut session = session(params());
    let task = session.command(&CDB, Transfer::Out(9000)).unwrap();
    assert!(session.wants_data(task));
    // 1,024 bytes with the command, then unsolicited data up to the first burst of 2,048.
    let sent = pieces(&out(&mut session));
    assert_eq!(
        sent,
        [(0, 1024, 0, 0, false), (1024, 1024, NO_TAG, 0, true)]
    );
    let stream = [r2t(task, 5, 0, 2048, 4096), r2t(task, 6, 1, 6144, 2856)].concat();
    assert_eq!(feed(&mut session, &stream, 11).unwrap(), Seen::default());
    assert!(session.wants_data(task));
    let sent = pieces(&out(&mut session));
    let expected = [
        (2048, 1024, 5, 0, false),
        (3072, 1024, 5, 1, false),
        (4096, 1024, 5, 2, false),
        (5120, 1024, 5, 3, true),
        (6144, 1024, 6, 0, false),
        (7168, 1024, 6, 1, false),
        (8192, 808, 6, 2, true),
    ];
    assert_eq!(sent, expected);
    assert!(!session.wants_data(task));
    let seen = feed(&mut session, &done(task, 0, &[]), 48).unwrap();
    assert_eq!(seen.events, [good(task, 0)]);
}

#[test]
fn agreed_parameters_decide_what_goes_unasked() {
    let first = |immediate_data, initial_r2t, bytes| {
        let mut session = session(Params {
            immediate_data,
            initial_r2t,
            ..params()
        });
        session.command(&CDB, Transfer::Out(bytes)).unwrap();
        let pdus = out(&mut session);
        let is_final = bhs(&pdus[0]).flags() & FINAL != 0;
        let lens = pdus.iter().map(|p| p.payload.len()).collect::<Vec<_>>();
        (is_final, lens)
    };
    assert_eq!(first(true, true, 9000), (true, vec![1024]));
    assert_eq!(first(true, false, 9000), (false, vec![1024, 1024]));
    assert_eq!(first(false, true, 9000), (true, vec![0]));
    assert_eq!(first(false, false, 9000), (false, vec![0, 1024, 1024]));
    assert_eq!(first(true, false, 700), (true, vec![700]));
    assert_eq!(first(false, false, 700), (false, vec![0, 700]));
}

#[test]
fn requests_for_data_have_limits() {
    let refused = |r2ts: &[(u32, u32, u32)]| {
        let mut session = session(params());
        let task = session.command(&CDB, Transfer::Out(9000)).unwrap();
        out(&mut session);
        let one = |(sn, offset, len): &(u32, u32, u32)| r2t(task, 5, *sn, *offset, *len);
        let stream: Vec<u8> = r2ts.iter().flat_map(one).collect();
        let result = feed(&mut session, &stream, stream.len());
        assert!(
            matches!(result, Err(ProtocolError::Broken(_))),
            "{r2ts:?}: {result:?}"
        );
    };
    refused(&[(0, 2048, 0)]);
    refused(&[(0, 2048, 4097)]);
    refused(&[(0, 4096, 1024)]);
    refused(&[(1, 2048, 1024)]);
    refused(&[(0, 2048, 4096), (1, 6144, 2857)]);
    refused(&[(0, 2048, 8), (1, 2056, 8), (2, 2064, 8)]);
}

#[test]
fn an_early_end_stops_data_that_has_not_left() {
    let mut session = session(params());
    let task = session.command(&CDB, Transfer::Out(9000)).unwrap();
    session.next_pdu().unwrap();
    feed(&mut session, &done(task, 2, &[]), 4096).unwrap();
    assert_eq!(session.next_pdu(), None);
    // A response to a command that was not sent is a protocol violation.
    let task = session.command(&CDB, Transfer::None).unwrap();
    assert!(feed(&mut session, &done(task, 0, &[]), 4096).is_err());
}

#[test]
fn the_window_opens_with_what_the_target_says() {
    let mut session = session(params());
    let tasks: Vec<_> = (0..8)
        .map(|_| session.command(&CDB, Transfer::None))
        .collect();
    assert!(tasks.iter().all(Option::is_some) && !session.has_room());
    assert_eq!(session.command(&CDB, Transfer::None), None);
    let sns: Vec<u32> = out(&mut session).iter().map(|p| bhs(p).u32(24)).collect();
    assert!(sns.iter().copied().eq(1..=8));
    let mut answer = done(tasks[0].unwrap(), 0, &[]);
    answer[28..36].copy_from_slice(&[0, 0, 0, 9, 0, 0, 0, 9]);
    feed(&mut session, &answer, 4096).unwrap();
    let ninth = session.command(&CDB, Transfer::None).unwrap();
    assert_eq!(
        slot_of(ninth),
        slot_of(tasks[0].unwrap()),
        "slots are used again"
    );
    assert_ne!(Some(ninth), tasks[0], "tags are not");
    assert_eq!(
        bhs(&out(&mut session)[0]).u32(28),
        102,
        "the answer is acknowledged"
    );
    assert!(!session.has_room());
}

#[test]
fn what_was_abandoned_is_thrown_away_and_told_when_it_ends() {
    let mut session = session(params());
    let read = session.command(&CDB, Transfer::In(8)).unwrap();
    let write = session.command(&CDB, Transfer::Out(4096)).unwrap();
    out(&mut session);
    let first = data_in(read, 0, 0, b"1234");
    let seen = feed(&mut session, &first[..50], 50).unwrap();
    assert_eq!(seen.data.len(), 2, "in the middle of its data");
    assert!(
        session
            .direct()
            .is_some_and(|d| (d.offset, d.left) == (2, 2))
    );
    session.abandon(read);
    session.abandon(write);
    assert_eq!(session.direct(), None);
    assert_eq!(
        feed(&mut session, &first[50..], 50).unwrap(),
        Seen::default()
    );
    feed(&mut session, &r2t(write, 1, 0, 2048, 2048), 50).unwrap();
    assert_eq!(out(&mut session).len(), 2, "its data is still owed");
    let stream = [data_in_and_status(read, 1, 4, b"5678"), done(write, 0, &[])].concat();
    let seen = feed(&mut session, &stream, 5).unwrap();
    let late = [read, write].map(|task| Event::Late { task });
    assert_eq!((seen.data.len(), &seen.events[..]), (0, &late[..]));
}

#[test]
fn data_may_be_read_past_the_session() {
    for data_digest in [false, true] {
        let mut session = session(Params {
            data_digest,
            ..params()
        });
        let task = session.command(&CDB, Transfer::In(6)).unwrap();
        out(&mut session);
        let mut stream = data_in_and_status(task, 0, 0, b"abcdef");
        if data_digest {
            stream.extend(crc32c::crc32c(b"abcdef\0\0").to_le_bytes());
        }
        feed(&mut session, &stream[..49], 49).unwrap();
        let direct = session.direct().unwrap();
        assert_eq!((direct.task, direct.offset, direct.left), (task, 1, 5));
        session.took(b"bcdef");
        assert_eq!(session.direct(), None);
        let seen = feed(&mut session, &stream[54..], 3).unwrap();
        assert_eq!(seen.events, [good(task, 6)]);
    }
}

#[test]
fn digests_go_out_with_headers_and_data() {
    let mut session = session(Params {
        header_digest: true,
        data_digest: true,
        ..params()
    });
    session.command(&CDB, Transfer::Out(6)).unwrap();
    let mut pdu = session.next_pdu().unwrap();
    pdu.seal(|each| {
        each(b"abc");
        each(b"def");
    });
    let (header, digest) = pdu.header().split_at(48);
    assert_eq!(digest, crc32c::crc32c(header).to_le_bytes());
    let expected = crc32c::crc32c(b"abcdef\0\0").to_le_bytes();
    assert_eq!(pdu.trailer(), [&[0, 0], &expected[..]].concat());
    // A corrupted byte is detected on input and ends the session.
    let mut header = Bhs::new(opcode::NOP_IN, FINAL);
    header.set_u32(16, NO_TAG);
    header.set_u32(20, NO_TAG);
    let mut stream = header.0.to_vec();
    stream.extend(crc32c::crc32c(&header.0).to_le_bytes());
    assert!(feed(&mut session, &stream, 52).is_ok());
    stream[30] ^= 4;
    let result = feed(&mut session, &stream, 52);
    assert_eq!(result, Err(ProtocolError::Digest("header")));
}

#[test]
fn pings_are_answered_in_both_directions() {
    let mut session = session(params());
    let ping = pdu(
        opcode::NOP_IN,
        FINAL,
        NO_TASK,
        &[(8, 0x0001_0000), (20, 55)],
        &[],
    );
    assert_eq!(feed(&mut session, &ping, 48).unwrap(), Seen::default());
    let pong = out(&mut session);
    let header = bhs(&pong[0]);
    assert_eq!((pong.len(), header.0[0], header.flags()), (1, 0x40, FINAL));
    assert_eq!(
        (header.itt(), header.ttt(), header.lun()),
        (NO_TAG, 55, LUN)
    );
    let asked = session.ping().unwrap();
    assert_eq!(bhs(&out(&mut session)[0]).itt(), asked.tag());
    let answer = pdu(
        opcode::NOP_IN,
        FINAL,
        asked,
        &[(20, NO_TAG), (24, 101)],
        b"echo",
    );
    let seen = feed(&mut session, &answer, 48).unwrap();
    assert_eq!(seen.events, [Event::Pong { task: asked }]);
    let flood = ping.repeat(1000);
    assert!(
        feed(&mut session, &flood, 4096).is_err(),
        "pings have a limit"
    );
}

#[test]
fn management_text_and_logout_have_their_answers() {
    let mut session = session(params());
    let read = session.command(&CDB, Transfer::In(8)).unwrap();
    let abort = session.manage(Function::AbortTask(read)).unwrap();
    let reset = session.manage(Function::LogicalUnitReset).unwrap();
    let text = session.send_targets().unwrap();
    let pdus = out(&mut session);
    let abort_header = bhs(&pdus[1]);
    assert_eq!((abort_header.0[0], abort_header.flags()), (0x42, FINAL | 1));
    assert_eq!((abort_header.ttt(), abort_header.u32(32)), (read.tag(), 1));
    assert_eq!(bhs(&pdus[2]).flags(), FINAL | 5);
    assert_eq!(pdus[3].payload, Payload::Own(b"SendTargets=All\0".into()));
    let answer = |task, sn| {
        pdu(
            opcode::TASK_MANAGEMENT_RESPONSE,
            FINAL,
            task,
            &[(24, sn)],
            &[],
        )
    };
    let mut stream = answer(abort, 101);
    let rejected = bhs(&pdus[2]).0;
    stream.extend(pdu(opcode::REJECT, FINAL, NO_TASK, &[(24, 102)], &rejected));
    let part = pdu(
        opcode::TEXT_RESPONSE,
        0x40,
        text,
        &[(20, 9), (24, 103)],
        b"TargetName=",
    );
    stream.extend(part);
    let seen = feed(&mut session, &stream, 13).unwrap();
    let managed = |task, response| Event::Managed { task, response };
    assert_eq!(seen.events, [managed(abort, 0), managed(reset, 255)]);
    let more = bhs(&out(&mut session)[0]);
    assert_eq!(
        (more.opcode(), more.itt(), more.ttt()),
        (opcode::TEXT, text.tag(), 9)
    );
    let rest = pdu(
        opcode::TEXT_RESPONSE,
        FINAL,
        text,
        &[(20, NO_TAG), (24, 104)],
        b"iqn.x\0",
    );
    let seen = feed(&mut session, &rest, 48).unwrap();
    let whole = b"TargetName=iqn.x\0".to_vec();
    assert_eq!(
        seen.events,
        [Event::Text {
            task: text,
            text: whole
        }]
    );
    let logout = session.logout().unwrap();
    assert_eq!(bhs(&out(&mut session)[0]).0[..2], [0x46, FINAL]);
    let gone = pdu(opcode::LOGOUT_RESPONSE, FINAL, logout, &[(24, 105)], &[]);
    assert_eq!(
        feed(&mut session, &gone, 48).unwrap().events,
        [Event::LoggedOut]
    );
    let leaving = |code: u32| pdu(opcode::ASYNC, FINAL, NO_TASK, &[(36, code << 24)], &[]);
    assert_eq!(
        feed(&mut session, &leaving(1), 48).unwrap().events,
        [Event::Leaving { code: 1 }]
    );
    assert!(
        feed(&mut session, &leaving(0), 48)
            .unwrap()
            .events
            .is_empty()
    );
    assert_eq!(session.in_flight(), 1, "the read");
}

#[test]
fn garbage_ends_in_an_error_or_in_events_but_never_in_a_panic() {
    let mut random = Random::new(2);
    for round in 0..30_000u32 {
        let mut session = session(Params {
            data_digest: round % 8 == 0,
            ..params()
        });
        let read = session.command(&CDB, Transfer::In(64)).unwrap();
        let write = session.command(&CDB, Transfer::Out(9000)).unwrap();
        session.abandon(if round % 2 == 0 { read } else { TaskId::new(0) });
        out(&mut session);
        let mut stream = [
            data_in(read, 0, 0, &[1; 32]),
            r2t(write, 1, 0, 2048, 4096),
            data_in_and_status(read, 1, 32, &[2; 32]),
            done(write, 2, &[0x70; 18]),
        ]
        .concat();
        for _ in 0..1 + round % 5 {
            let at = random.below(stream.len() as u64) as usize;
            stream[at] = random.next_u64() as u8;
        }
        let step = 1 + random.below(200) as usize;
        let _ = feed(&mut session, &stream, step);
        assert!(out(&mut session).len() < 100);
    }
}
