//! The server's side of an NBD connection, as read by our client: negotiation, then replies.
//!
//! The first byte selects the wish and the size of the pieces; the rest is the stream.
//!
//! Claims: reading never panics; the same stream in other pieces yields the same requests and the
//! same outcome, and consumes the same bytes; a negotiated export has plausible block sizes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd_proto::client::{ClientHandshake, ClientStep, Reply, ClientOptions, chunk_error, chunk_hole};

type Seen = (Vec<u8>, Option<ClientStep>, usize, bool);

/// Returns the state that a driver sees: the output, the outcome, the bytes consumed, and whether
/// the server violated the protocol.
fn run(first: u8, stream: &[u8], step: usize) -> Seen {
    let wish = ClientOptions {
        export: "a".into(),
        tls: first & 1 != 0,
        info_only: first & 2 != 0,
        contexts: match first & 4 {
            0 => Vec::new(),
            _ => vec!["evfs:session:0123456789abcdef".into()],
        },
    };
    let mut handshake = match first & 8 {
        0 => ClientHandshake::new(wish),
        _ => ClientHandshake::under_tls(wish),
    };
    let (mut output, mut held, mut taken) = (handshake.take_output(), Vec::new(), 0);
    for piece in stream.chunks(step) {
        held.extend_from_slice(piece);
        match handshake.handle_input(&held) {
            Ok(n) => {
                assert!(n <= held.len());
                held.drain(..n);
                taken += n;
            }
            Err(_) => {
                output.extend(handshake.take_output());
                return (output, handshake.outcome().cloned(), 0, true);
            }
        }
        output.extend(handshake.take_output());
        if handshake.outcome().is_some() {
            break;
        }
    }
    (output, handshake.outcome().cloned(), taken, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else { return };
    let whole = run(*first, stream, stream.len().max(1));
    let pieces = run(*first, stream, usize::from(first >> 4) + 1);
    assert_eq!(whole, pieces, "the same stream in other pieces");
    let (Some(ClientStep::Transmission(export) | ClientStep::Told(export)), taken) =
        (whole.1, whole.2)
    else {
        return;
    };
    assert!(export.block_min.is_power_of_two() && export.block_max >= export.block_min);
    let mut rest = &stream[taken..];
    while let Ok(Some((reply, len))) = Reply::parse(rest) {
        rest = &rest[len..];
        if let Reply::Chunk { len, .. } = reply {
            let payload = &rest[..rest.len().min(len as usize)];
            let (_, words) = chunk_error(payload);
            assert!(words.len() <= 200 * 10, "words are cut and escaped");
            let _ = chunk_hole(payload);
            rest = &rest[payload.len()..];
        }
    }
});
