//! The stream of a snapshot, as a receiver reads it.
//!
//! The first byte selects the size of the pieces; the rest is the stream. Then the same bytes become
//! a stream whose checksums and digests are right, so that the records are reached.
//!
//! Claims: reading never panics; the same stream in other pieces has the same events; memory is
//! bounded by the size of the input; a record that is accepted is written back to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use send_proto::{Decoder, Error, Event, Header, Id, Position, Record, Segment, SegmentBuilder};

fn run(stream: &[u8], step: usize) -> (Vec<Event>, Option<Error>) {
    let (mut decoder, mut events) = (Decoder::default(), Vec::new());
    for piece in stream.chunks(step) {
        decoder.feed(piece);
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}

/// Puts bytes into a segment as its payload, with the right checksum and digest.
fn framed(payload: &[u8]) -> (Header, Vec<u8>) {
    let header = Header {
        snapshot: Id([1; 16]),
        ..Header::default()
    };
    let (empty, _) = SegmentBuilder::new(0, header.stream_id()).finish(Position::END);
    let position = &empty[20..empty.len() - 64];
    let body = [payload, position].concat();
    let mut segment = empty[..16].to_vec();
    segment[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c(&segment);
    segment.extend(sum.to_le_bytes());
    segment.extend(&body);
    let digest = send_proto::digest_of(header.stream_id(), &segment);
    segment.extend(digest.0);
    segment.extend([0; 32]);
    (header, segment)
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, stream)) = data.split_first() else {
        return;
    };
    let whole = run(stream, usize::MAX);
    assert_eq!(run(stream, 1 + usize::from(step)), whole);

    let (header, bytes) = framed(stream);
    let Ok(segment) = Segment::parse(&bytes) else {
        return;
    };
    segment
        .verify(0, header.stream_id())
        .expect("the digest was made right");
    let mut records: Vec<Record<'_>> = Vec::new();
    for record in segment.records() {
        match record {
            Ok(record) => records.push(record),
            Err(_) => return,
        }
    }
    let Some((Record::Position(last), records)) = records.split_last() else {
        return;
    };
    let mut again = SegmentBuilder::new(0, header.stream_id());
    assert!(records.iter().all(|record| again.push(record)));
    assert_eq!(again.finish(*last).0, bytes);
});
