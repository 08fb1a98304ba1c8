//! The client's side of an NBD connection: negotiation, then requests.
//!
//! The first byte selects the TLS policy and the size of the pieces; the rest is the stream.
//!
//! Claims: reading never panics; the same stream in other pieces yields the same replies and the
//! same outcome, and consumes the same bytes; the size of the replies is bounded by the size of the
//! input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd_proto::{
    ExportInfo, FenceResult, Handshake, REQUEST_BYTES, RequestHeader, ServerStep, TlsPolicy,
};
use std::sync::Arc;

fn exports() -> Arc<[ExportInfo]> {
    let export = |name: &str| ExportInfo {
        name: name.into(),
        description: "words".into(),
        size: 1 << 30,
        flags: 0x1ff,
        block_min: 512,
        block_preferred: 4096,
        block_max: 32 << 20,
    };
    [export("a"), export("second")].into()
}

/// Returns the state that a driver sees: the replies, the outcome, the bytes consumed, and whether
/// the peer violated the protocol. Fences of even keys succeed.
fn run(policy: TlsPolicy, stream: &[u8], step: usize) -> (Vec<u8>, Option<ServerStep>, usize, bool) {
    let mut handshake = Handshake::new(exports(), policy);
    let (mut output, mut held, mut taken) = (handshake.take_output(), Vec::new(), 0);
    for piece in stream.chunks(step) {
        held.extend_from_slice(piece);
        loop {
            match handshake.handle_input(&held) {
                Ok(n) => {
                    assert!(n <= held.len());
                    held.drain(..n);
                    taken += n;
                }
                Err(_) => {
                    output.extend(handshake.take_output());
                    return (output, handshake.outcome(), 0, true);
                }
            }
            let Some(ServerStep::Fence { key }) = handshake.outcome() else { break };
            let ended = key % 2 == 0;
            handshake.fenced(if ended { FenceResult::Ended } else { FenceResult::Unconfirmed });
        }
        output.extend(handshake.take_output());
        if handshake.outcome().is_some() {
            break;
        }
    }
    (output, handshake.outcome(), taken, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else { return };
    let policy = match first % 3 {
        0 => TlsPolicy::Never,
        1 => TlsPolicy::Required,
        _ => TlsPolicy::Active,
    };
    let whole = run(policy, stream, stream.len().max(1));
    let pieces = run(policy, stream, usize::from(first / 3) + 1);
    assert_eq!(whole, pieces, "the same stream in other pieces");
    // Each option has at least 16 bytes, and is answered by at most a few hundred bytes.
    assert!(whole.0.len() <= 64 + stream.len() * 40, "{} bytes of answer", whole.0.len());
    if let (Some(ServerStep::Transmission { export, .. }), taken) = (whole.1, whole.2) {
        assert!(export < 2);
        for request in stream[taken..].chunks_exact(REQUEST_BYTES) {
            if let Ok(bytes) = request.try_into() {
                let _ = RequestHeader::parse(bytes);
            }
        }
    }
});
