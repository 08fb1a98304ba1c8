//! Requests and replies after the negotiation.

use crate::constants as c;
use crate::{ProtocolError, Result};

/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write; `len` bytes of payload follow the request.
    Write,
    /// The client goes; no reply.
    Disconnect,
    /// Make durable.
    Flush,
    /// Discard.
    Trim,
    /// Write zeros.
    WriteZeroes,
    /// Something that was not offered; it gets an error, and has no payload.
    Unknown(u16),
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// What is asked for.
    pub command: Command,
    /// Force unit access.
    pub fua: bool,
    /// Write-zeroes must not punch a hole.
    pub no_hole: bool,
    /// It has a flag that the command does not know, and is to be refused (`EINVAL`).
    pub unknown_flags: bool,
    /// The client's name for it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Reads a request ("Request message").
    ///
    /// # Errors
    /// The magic is wrong: the stream is out of step and cannot go on.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<RequestHeader> {
        fn take<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
            match bytes.split_first_chunk::<N>() {
                Some((value, rest)) => (*value, rest),
                None => ([0; N], &[]),
            }
        }
        let (magic, rest) = take::<4>(bytes);
        let (flags, rest) = take::<2>(rest);
        let (kind, rest) = take::<2>(rest);
        let (cookie, rest) = take::<8>(rest);
        let (offset, rest) = take::<8>(rest);
        let (len, _) = take::<4>(rest);
        if u32::from_be_bytes(magic) != c::REQUEST_MAGIC {
            return Err(ProtocolError("a request without its magic".into()));
        }
        let flags = u16::from_be_bytes(flags);
        let command = match u16::from_be_bytes(kind) {
            c::CMD_READ => Command::Read,
            c::CMD_WRITE => Command::Write,
            c::CMD_DISC => Command::Disconnect,
            c::CMD_FLUSH => Command::Flush,
            c::CMD_TRIM => Command::Trim,
            c::CMD_WRITE_ZEROES => Command::WriteZeroes,
            other => Command::Unknown(other),
        };
        let known = c::CMD_FLAG_FUA
            | match command {
                Command::Read => c::CMD_FLAG_DF,
                Command::WriteZeroes => c::CMD_FLAG_NO_HOLE,
                _ => 0,
            };
        Ok(RequestHeader {
            command,
            unknown_flags: flags & !known != 0,
            fua: flags & c::CMD_FLAG_FUA != 0,
            no_hole: flags & c::CMD_FLAG_NO_HOLE != 0,
            cookie: u64::from_be_bytes(cookie),
            offset: u64::from_be_bytes(offset),
            len: u32::from_be_bytes(len),
        })
    }
}

/// Errors that the protocol has ("Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// EPERM
    Permission = 1,
    /// EIO
    Io = 5,
    /// ENOMEM
    NoMemory = 12,
    /// EINVAL
    Invalid = 22,
    /// ENOSPC
    NoSpace = 28,
    /// EOVERFLOW
    Overflow = 75,
    /// ENOTSUP
    NotSupported = 95,
    /// ESHUTDOWN
    Shutdown = 108,
}

/// A simple reply; after one without an error to a read the data follows.
pub fn simple_reply(cookie: u64, error: Option<Errno>) -> [u8; 16] {
    let mut out = [0; 16];
    let parts: [&[u8]; 3] = [
        &c::SIMPLE_REPLY_MAGIC.to_be_bytes(),
        &error.map_or(0, |e| e as u32).to_be_bytes(),
        &cookie.to_be_bytes(),
    ];
    fill(&mut out, &parts);
    out
}

/// The chunk before `len` bytes of data from `offset` on; the last one of its reply.
pub fn structured_data(cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut out = [0; 28];
    let head = chunk(
        c::REPLY_FLAG_DONE,
        c::REPLY_OFFSET_DATA,
        cookie,
        len.saturating_add(8),
    );
    fill(&mut out, &[&head, &offset.to_be_bytes()]);
    out
}

/// A reply without data.
pub fn structured_done(cookie: u64) -> [u8; 20] {
    chunk(c::REPLY_FLAG_DONE, c::REPLY_NONE, cookie, 0)
}

/// An error without words.
pub fn structured_error(cookie: u64, error: Errno) -> [u8; 26] {
    let mut out = [0; 26];
    let head = chunk(c::REPLY_FLAG_DONE, c::REPLY_ERROR, cookie, 6);
    fill(&mut out, &[&head, &(error as u32).to_be_bytes(), &[0, 0]]);
    out
}

fn chunk(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; 20] {
    let mut out = [0; 20];
    let parts: [&[u8]; 5] = [
        &c::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &len.to_be_bytes(),
    ];
    fill(&mut out, &parts);
    out
}

fn fill(out: &mut [u8], parts: &[&[u8]]) {
    for (to, from) in out.iter_mut().zip(parts.iter().flat_map(|p| p.iter())) {
        *to = *from;
    }
}
