//! Every procedure of the three services, with one request and one reply each: round trip, every
//! truncation, every split of the stream, surplus bytes, unknown opcodes, limits.

mod common;

use afs_proto::gather::{Gather, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use afs_proto::{Abort, Reader, WireError, Xdr, cb, from_bytes, fs, prefix, to_bytes, vl};
use common::*;

/// Checks the properties of a value with encoding `$bytes`, decoded by `$read`. A macro, because a
/// value borrows from the bytes it was read from, which differ each time.
macro_rules! holds {
    ($value:expr, $bytes:expr, $max:expr, $read:expr) => {{
        let (value, bytes): (_, Vec<u8>) = (&$value, $bytes);
        assert_eq!(bytes.len() % 4, 0, "{value:?}");
        assert!(bytes.len() <= $max, "{value:?}");

        let mut from = Reader::new(&bytes);
        assert_eq!($read(&mut from).as_ref(), Ok(value), "round trip");
        assert!(from.rest().is_empty());

        for len in 0..bytes.len() {
            let cut = $read(&mut Reader::new(&bytes[..len]));
            assert_eq!(cut, Err(WireError::Incomplete), "{len} bytes of {value:?}");
        }

        // Trailing file data must not be consumed.
        let stream = [&bytes[..], b"file data"].concat();
        for step in [1, 2, 3, 5, 7, 64, 1412, stream.len()] {
            let mut gather = Gather::new($max);
            let mut used = 0;
            let mut pieces = stream.chunks(step);
            loop {
                let piece = pieces.next().expect("the value is in the stream");
                match gather.offer(piece, $read).expect("a good beginning") {
                    None => used += piece.len(),
                    Some((read, taken)) => {
                        assert_eq!((&read, used + taken), (value, bytes.len()), "step {step}");
                        break;
                    }
                }
            }
        }
    }};
}

/// Checks that each procedure of the table has a value here, in table order.
fn covers(table: &[(u32, &str)], values: impl Iterator<Item = u32>) {
    let opcodes: Vec<u32> = table.iter().map(|(opcode, _)| *opcode).collect();
    assert_eq!(opcodes, values.collect::<Vec<_>>());
}

#[test]
fn the_file_service_holds() {
    covers(fs::PROCEDURES, fs_requests().iter().map(|r| r.opcode()));
    covers(fs::PROCEDURES, fs_replies().iter().map(|r| r.opcode()));
    for request in fs_requests() {
        holds!(
            request,
            to_bytes(&request),
            REQUEST_BYTES_MAX,
            fs::Request::read
        );
    }
    for reply in fs_replies() {
        let (opcode, mut bytes) = (reply.opcode(), Vec::new());
        reply.write(&mut bytes);
        // A reply without results is complete before its first byte.
        holds!(reply, bytes, REPLY_BYTES_MAX, |from| fs::read_reply(
            opcode, from
        ));
    }
}

#[test]
fn the_volume_location_service_holds() {
    covers(vl::PROCEDURES, vl_requests().iter().map(|r| r.opcode()));
    covers(vl::PROCEDURES, vl_replies().iter().map(|r| r.opcode()));
    for request in vl_requests() {
        holds!(
            request,
            to_bytes(&request),
            REQUEST_BYTES_MAX,
            vl::Request::read
        );
    }
    for reply in vl_replies() {
        let (opcode, mut bytes) = (reply.opcode(), Vec::new());
        reply.write(&mut bytes);
        holds!(reply, bytes, REPLY_BYTES_MAX, |from| vl::read_reply(
            opcode, from
        ));
    }
}

#[test]
fn the_callback_service_holds() {
    covers(cb::PROCEDURES, cb_requests().iter().map(|r| r.opcode()));
    covers(cb::PROCEDURES, cb_replies().iter().map(|r| r.opcode()));
    for request in cb_requests() {
        holds!(
            request,
            to_bytes(&request),
            REQUEST_BYTES_MAX,
            cb::Request::read
        );
    }
    for reply in cb_replies() {
        let (opcode, mut bytes) = (reply.opcode(), Vec::new());
        reply.write(&mut bytes);
        holds!(reply, bytes, REPLY_BYTES_MAX, |from| cb::read_reply(
            opcode, from
        ));
    }
}

#[test]
fn an_opcode_outside_the_table_is_unknown_whatever_follows() {
    let known = |table: &[(u32, &str)], opcode| table.iter().any(|(known, _)| *known == opcode);
    for opcode in (0..1000).chain(65_000..66_000).chain([u32::MAX]) {
        let bytes = [&opcode.to_be_bytes()[..], &[0; 400]].concat();
        let unknown = WireError::Opcode(opcode);
        if !known(fs::PROCEDURES, opcode) {
            assert_eq!(prefix::<fs::Request>(&bytes), Err(unknown));
            assert_eq!(
                fs::read_reply(opcode, &mut Reader::new(&bytes)),
                Err(unknown)
            );
        }
        if !known(vl::PROCEDURES, opcode) {
            assert_eq!(prefix::<vl::Request>(&bytes), Err(unknown));
        }
        if !known(cb::PROCEDURES, opcode) {
            assert_eq!(prefix::<cb::Request>(&bytes), Err(unknown));
        }
    }
    assert_eq!(WireError::Opcode(7).server_abort(), Abort::RXGEN_OPCODE);
    assert_eq!(
        WireError::Incomplete.server_abort(),
        Abort::RXGEN_SS_UNMARSHAL
    );
}

#[test]
fn bytes_behind_a_value_are_a_surplus_where_it_should_fill_all() {
    let request = fs::Request::FetchStatus { fid: fid(1) };
    let mut bytes = to_bytes(&request);
    assert_eq!(from_bytes::<fs::Request>(&bytes), Ok(request));
    bytes.extend([0; 8]);
    assert_eq!(
        from_bytes::<fs::Request>(&bytes),
        Err(WireError::Surplus(8))
    );
}

#[test]
fn only_the_stores_have_data_behind_them() {
    for request in fs_requests() {
        let expected = match request.opcode() {
            133 => 6,
            65538 => 7,
            _ => 0,
        };
        assert_eq!(request.data_bytes(), expected, "{request:?}");
    }
}

#[test]
fn the_head_of_fetched_data_is_as_wide_as_its_procedure_and_never_more_than_was_asked_for() {
    use fs::DataLength;
    let narrow = fs::Request::FetchData {
        fid: fid(1),
        position: 0,
        length: 100,
    };
    let wide = fs::Request::FetchData64 {
        fid: fid(1),
        position: 0,
        length: 1 << 33,
    };
    for (request, bytes, head) in [
        (&narrow, 100, &[0, 0, 0, 100][..]),
        (&wide, (1 << 32) + 5, &[0, 0, 0, 1, 0, 0, 0, 5]),
    ] {
        let length = DataLength::answer(request, bytes).expect("no more than asked for");
        let mut written = Vec::new();
        length.write(&mut written);
        assert_eq!(written, head);
        assert_eq!(
            DataLength::read(request, &mut Reader::new(head)),
            Ok(length)
        );
        for len in 0..head.len() {
            let cut = DataLength::read(request, &mut Reader::new(&head[..len]));
            assert_eq!(cut, Err(WireError::Incomplete));
        }
    }
    assert_eq!(DataLength::answer(&narrow, 101), None);
    assert_eq!(DataLength::answer(&wide, (1 << 33) + 1), None);
    let status = fs::Request::FetchStatus { fid: fid(1) };
    assert_eq!(DataLength::answer(&status, 0), None);
    let more = DataLength::read(&narrow, &mut Reader::new(&[0, 0, 0, 101]));
    assert!(
        matches!(
            more,
            Err(WireError::TooLong {
                length: 101,
                max: 100,
                ..
            })
        ),
        "{more:?}"
    );
}

/// A message that never completes is refused at the limit and not buffered further.
#[test]
fn gathering_stops_at_the_limit() {
    for step in [1, 100, 5000] {
        let mut gather = Gather::new(REQUEST_BYTES_MAX);
        let never = |_: &mut Reader<'_>| Err::<(), _>(WireError::Incomplete);
        let fitting = REQUEST_BYTES_MAX / step;
        for _ in 0..fitting {
            assert_eq!(gather.offer(&vec![0; step], never), Ok(None));
        }
        let refused = gather.offer(&vec![0; step], never);
        assert!(
            matches!(refused, Err(WireError::TooLong { .. })),
            "{refused:?}"
        );
        gather.clear();
        let next = gather.offer(&[0, 0, 0, 153], fs::Request::read);
        assert_eq!(next, Ok(Some((fs::Request::GetTime {}, 4))));
    }
}

#[test]
fn the_largest_messages_have_the_sizes_that_the_limits_say() {
    let name = [b'n'; 256];
    let words = [b'w'; 1024];
    let largest = fs::Request::SetVolumeStatus {
        volume: 1,
        wanted: Default::default(),
        name: text(&name),
        offline_message: text(&words),
        motd: text(&words),
    };
    assert_eq!(to_bytes(&largest).len(), REQUEST_BYTES_MAX);
    let size = |reply: fs::Reply<'_>| {
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        bytes.len()
    };
    assert_eq!(
        fs_replies().into_iter().map(size).max(),
        Some(REPLY_BYTES_MAX)
    );
}
