//! Rx calls in the protocol of OpenAFS's `rxperf` (`src/tools/rxperf/rxperf.c`, version 3); either
//! side may be that program.
//!
//! ```text
//!   request: version, command, read size, write size, bytes sent, (rpc: bytes wanted), data
//!   reply:   data, a cookie that marks its end
//! ```
//!
//! Words are big-endian. A call requests as many bytes as it sends (`rpc`), one call at a time.

use super::failed;
use bench_core::Result;
use rx::{Abort, Bytes, Call, Connection, Port, Service, Settings, Timeouts};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

const SERVICE: u16 = 147;
const VERSION: u32 = 3;
const SEND: u32 = 0;
const RECEIVE: u32 = 1;
const RPC: u32 = 3;
const COOKIE: u32 = 0x4711;
/// Bytes per write.
const PIECE: usize = 65_536;
/// Maximum bytes of a call each way, which limits the traffic that an unauthenticated peer can
/// cause.
const BYTES_MAX: u32 = 1 << 30;
/// Index of DATA among the packet types, counted from 0 (`rx-proto`).
const DATA: usize = 0;

/// Answers calls until the returned port is dropped.
///
/// # Errors
/// The port cannot be opened.
pub fn serve(listen: SocketAddr) -> io::Result<Port> {
    let filling = Bytes::from(vec![7; PIECE]);
    let service = Service {
        id: SERVICE,
        handler: Arc::new(move |call: &mut Call| answer(call, &filling)),
    };
    let settings = Settings {
        listen,
        ..Settings::default()
    };
    Port::open(&settings, vec![service])
}

fn word(call: &mut Call) -> std::result::Result<u32, rx::Error> {
    let mut bytes = [0; 4];
    call.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn answer(call: &mut Call, filling: &Bytes) -> std::result::Result<(), Abort> {
    let mut head = [0; 5];
    for of_head in &mut head {
        *of_head = word(call)?;
    }
    let [version, command, _, _, bytes] = head;
    let (takes, gives) = match (version, command) {
        (VERSION, SEND) => (bytes, 0),
        (VERSION, RECEIVE) => (0, bytes),
        (VERSION, RPC) => (bytes, word(call)?),
        _ => return Err(Abort(rx::code::INVALID_OPERATION)),
    };
    if takes.max(gives) > BYTES_MAX {
        return Err(Abort(rx::code::INVALID_OPERATION));
    }
    take(call, takes as usize)?;
    let mut left = gives as usize;
    while left > 0 {
        let piece = left.min(filling.len());
        call.write(filling.slice(0..piece))?;
        left -= piece;
    }
    call.write(COOKIE.to_be_bytes().to_vec())?;
    Ok(())
}

fn take(call: &mut Call, mut bytes: usize) -> std::result::Result<(), rx::Error> {
    while bytes > 0 {
        bytes -= call.read_up_to(bytes)?.ok_or(rx::Error::Short)?.len();
    }
    Ok(())
}

/// A client of one server.
pub(super) struct Caller {
    connection: Connection,
    // Dropped after the connection, which belongs to it.
    port: Port,
}

impl Caller {
    pub(super) fn new(server: SocketAddr) -> Result<Caller> {
        let listen = match server {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let settings = Settings {
            listen,
            ..Settings::default()
        };
        let port = Port::open(&settings, Vec::new()).map_err(failed)?;
        let connection = port.connect(server, SERVICE, Timeouts::default());
        Ok(Caller { connection, port })
    }

    /// Performs one exchange of `size` bytes each way.
    pub(super) fn call(&self, size: usize) -> Result<()> {
        self.exchange(size)
            .map_err(|e| failed(io::Error::other(e.to_string())))
    }

    fn exchange(&self, size: usize) -> std::result::Result<(), rx::Error> {
        let mut call = self.connection.call()?;
        let size_word = size as u32;
        let head = [
            VERSION,
            RPC,
            PIECE as u32,
            PIECE as u32,
            size_word,
            size_word,
        ];
        let mut request: Vec<u8> = head.into_iter().flat_map(u32::to_be_bytes).collect();
        request.resize(request.len() + size, 7);
        call.write(request)?;
        call.finish()?;
        take(&mut call, size)?;
        if word(&mut call)? == COOKIE && call.read()?.is_none() {
            Ok(())
        } else {
            Err(rx::Error::Short)
        }
    }

    /// Counts the DATA packets sent so far and those retransmitted.
    pub(super) fn sent(&self) -> (u64, u64) {
        let sockets = self.port.stats().sockets;
        let sent = sockets.iter().map(|s| s.packets_out[DATA]).sum();
        (sent, sockets.iter().map(|s| s.resent).sum())
    }
}
