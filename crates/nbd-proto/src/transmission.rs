//! Requests and replies after the negotiation: their layout, and which requests are refused.

use crate::constants as c;
use crate::{ExportInfo, ProtocolError, Result};

/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Longest head of a reply, in bytes: that of a structured error with its words.
pub const REPLY_HEAD_BYTES_MAX: usize = 64;

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

/// A request as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// What is asked for.
    pub command: Command,
    /// Command flags.
    pub flags: u16,
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
        let (magic, rest) = take::<4>(bytes);
        let (flags, rest) = take::<2>(rest);
        let (kind, rest) = take::<2>(rest);
        let (cookie, rest) = take::<8>(rest);
        let (offset, rest) = take::<8>(rest);
        let (len, _) = take::<4>(rest);
        if u32::from_be_bytes(magic) != c::REQUEST_MAGIC {
            return Err(ProtocolError("a request without its magic".into()));
        }
        let command = match u16::from_be_bytes(kind) {
            c::CMD_READ => Command::Read,
            c::CMD_WRITE => Command::Write,
            c::CMD_DISC => Command::Disconnect,
            c::CMD_FLUSH => Command::Flush,
            c::CMD_TRIM => Command::Trim,
            c::CMD_WRITE_ZEROES => Command::WriteZeroes,
            other => Command::Unknown(other),
        };
        Ok(RequestHeader {
            command,
            flags: u16::from_be_bytes(flags),
            cookie: u64::from_be_bytes(cookie),
            offset: u64::from_be_bytes(offset),
            len: u32::from_be_bytes(len),
        })
    }

    /// Complete only when what was written is on stable storage.
    pub fn fua(&self) -> bool {
        self.flags & c::CMD_FLAG_FUA != 0
    }

    /// Zeros that are written must not become a hole.
    pub fn no_hole(&self) -> bool {
        self.flags & c::CMD_FLAG_NO_HOLE != 0
    }

    /// The error that this request ends with whatever the device would say, if it does.
    ///
    /// What the export did not offer and what does not fit the announced block sizes is refused
    /// here, so a device sees only requests that it can carry out.
    pub fn refusal(&self, export: &ExportInfo, structured: bool) -> Option<Errno> {
        let changes = match self.command {
            Command::Unknown(_) => return Some(Errno::Invalid),
            Command::Read | Command::Flush | Command::Disconnect => false,
            Command::Write | Command::Trim | Command::WriteZeroes => true,
        };
        if changes && export.flags & c::FLAG_READ_ONLY != 0 {
            return Some(Errno::Permission);
        }
        // "Error values": EINVAL for a flag that is unknown or does not apply to the request. FUA
        // is allowed on every command.
        let fitting = c::CMD_FLAG_FUA
            | match self.command {
                Command::Read if structured => c::CMD_FLAG_DF,
                Command::WriteZeroes => c::CMD_FLAG_NO_HOLE,
                _ => 0,
            };
        if self.flags & !fitting != 0 {
            return Some(Errno::Invalid);
        }
        if !changes && self.command != Command::Read {
            return None;
        }
        if self.command == Command::Trim && export.flags & c::FLAG_SEND_TRIM == 0 {
            return Some(Errno::NotSupported);
        }
        let moves_data = matches!(self.command, Command::Read | Command::Write);
        let aligned = |value: u64| value.is_multiple_of(u64::from(export.block_min.max(1)));
        if moves_data && self.len > export.block_max
            || !aligned(self.offset)
            || !aligned(u64::from(self.len))
        {
            return Some(Errno::Invalid);
        }
        match self.offset.checked_add(u64::from(self.len)) {
            Some(end) if end <= export.size => None,
            // "The server SHOULD return ENOSPC if it receives a write request including one or
            // more sectors beyond the size of the device."
            _ if changes => Some(Errno::NoSpace),
            _ => Some(Errno::Invalid),
        }
    }
}

/// Errors that the protocol has ("Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// EPERM
    Permission = c::EPERM,
    /// EIO
    Io = c::EIO,
    /// ENOMEM
    NoMemory = c::ENOMEM,
    /// EINVAL
    Invalid = c::EINVAL,
    /// ENOSPC
    NoSpace = c::ENOSPC,
    /// EOVERFLOW
    Overflow = c::EOVERFLOW,
    /// ENOTSUP
    NotSupported = c::ENOTSUP,
    /// ESHUTDOWN
    Shutdown = c::ESHUTDOWN,
}

impl Errno {
    /// Words for a person, in a structured reply.
    fn text(self) -> &'static str {
        match self {
            Errno::Permission => "not permitted: the export is read-only",
            Errno::Io => "the device reports an error",
            Errno::NoMemory => "no memory",
            Errno::Invalid => "invalid: see the block sizes",
            Errno::NoSpace => "no space, or beyond the end",
            Errno::Overflow => "too long",
            Errno::NotSupported => "not supported by the device",
            Errno::Shutdown => "the server is shutting down",
        }
    }
}

/// The bytes of a reply before its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    bytes: [u8; REPLY_HEAD_BYTES_MAX],
    len: usize,
}

impl ReplyHead {
    fn of(parts: &[&[u8]]) -> ReplyHead {
        let mut bytes = [0; REPLY_HEAD_BYTES_MAX];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(parts.iter().copied().flatten()) {
            *to = *from;
            len += 1;
        }
        ReplyHead { bytes, len }
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The head of the only reply to `request`. After that of a read that went well, its `len` bytes of
/// data follow.
pub(crate) fn reply_head(
    structured: bool,
    request: &RequestHeader,
    error: Option<Errno>,
) -> ReplyHead {
    let cookie = request.cookie.to_be_bytes();
    if !structured {
        return ReplyHead::of(&[
            &c::SIMPLE_REPLY_MAGIC.to_be_bytes(),
            &error.map_or(0, |e| e as u32).to_be_bytes(),
            &cookie,
        ]);
    }
    let chunk = |kind: u16, len: u32, rest: [&[u8]; 3]| {
        ReplyHead::of(&[
            &c::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
            &c::REPLY_FLAG_DONE.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie,
            &len.to_be_bytes(),
            rest[0],
            rest[1],
            rest[2],
        ])
    };
    match error {
        Some(error) => {
            let text = error.text().as_bytes();
            let text_len = u16::try_from(text.len()).unwrap_or(0);
            let errno = (error as u32).to_be_bytes();
            let len = 6 + u32::from(text_len);
            chunk(c::REPLY_ERROR, len, [&errno, &text_len.to_be_bytes(), text])
        }
        // "NBD_REPLY_TYPE_OFFSET_DATA: length MUST be at least 9", so an empty read has none. All
        // data is there before the head is sent, so this chunk may be the last.
        None if request.command == Command::Read && request.len > 0 => {
            let len = request.len.saturating_add(8);
            let offset = request.offset.to_be_bytes();
            chunk(c::REPLY_OFFSET_DATA, len, [&offset, &[], &[]])
        }
        None => chunk(c::REPLY_NONE, 0, [&[], &[], &[]]),
    }
}

fn take<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    match bytes.split_first_chunk::<N>() {
        Some((value, rest)) => (*value, rest),
        None => ([0; N], &[]),
    }
}
