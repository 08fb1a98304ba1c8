//! Requests and replies of the transmission phase, server side.

use crate::constants as c;
use crate::{ProtocolError, Result};

/// Length of a request header, in bytes.
pub const REQUEST_BYTES: usize = 28;

/// Operation that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read,
    /// `NBD_CMD_WRITE`; `len` bytes of payload follow the header.
    Write,
    /// `NBD_CMD_DISC`: the client disconnects and expects no reply.
    Disconnect,
    /// `NBD_CMD_FLUSH`: commit completed writes to stable storage.
    Flush,
    /// `NBD_CMD_TRIM`: discard the range.
    Trim,
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes,
    /// Command that was not offered. Has no payload and is answered with an error.
    Unknown(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Requested operation.
    pub command: Command,
    /// Force unit access: the write reaches stable storage before the reply.
    pub fua: bool,
    /// Write zeros without punching a hole.
    pub no_hole: bool,
    /// A flag is set that the command does not define; the request is refused with `EINVAL`.
    pub unknown_flags: bool,
    /// Client-chosen identifier, echoed in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Parses a request header ("Request message").
    ///
    /// # Errors
    /// Wrong magic: the stream is out of sync and the connection must be closed.
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
            return Err(ProtocolError("a request has a wrong magic number".into()));
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

/// Errors defined by the protocol ("Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// `EPERM`
    Permission = 1,
    /// `EIO`
    Io = 5,
    /// `ENOMEM`
    NoMemory = 12,
    /// `EINVAL`
    Invalid = 22,
    /// `ENOSPC`
    NoSpace = 28,
    /// `EOVERFLOW`
    Overflow = 75,
    /// `ENOTSUP`
    NotSupported = 95,
    /// `ESHUTDOWN`
    Shutdown = 108,
}

/// Builds a simple reply. The data of a successful read follows it.
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

/// Builds the header of a final chunk that carries `len` bytes of data from `offset`.
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

/// Builds a final chunk without data: the request succeeded.
pub fn structured_done(cookie: u64) -> [u8; 20] {
    chunk(c::REPLY_FLAG_DONE, c::REPLY_NONE, cookie, 0)
}

/// Builds a final error chunk with an empty message.
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
