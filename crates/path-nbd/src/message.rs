//! The sequence of messages for one request. Most requests take one message. A long range is split
//! into pieces, zeros are sent as data if the server does not support WRITE_ZEROES, and a FUA write
//! is followed by a flush if the server does not support FUA.

use block::{Completion, Error, ErrorKind, Op, Request};
use nbd_proto::client::{ServerExport, request};
use nbd_proto::constants as c;
use std::io::IoSlice;

/// Maximum length in bytes of a message without payload (discard, write zeroes): well below the 4
/// GiB of the field and the 2 GiB limit of some servers.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Zeros to send if the server does not support WRITE_ZEROES.
static ZEROS: [u8; 65536] = [0; 65536];

/// Server features that affect messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    flush: bool,
    fua: bool,
    write_zeroes: bool,
    /// Reads can be requested in a single chunk (NBD_CMD_FLAG_DF).
    whole_reads: bool,
    payload_max: u64,
}

impl Abilities {
    pub(crate) fn of(export: &ServerExport, payload_max: u32) -> Abilities {
        Abilities {
            flush: export.has(c::FLAG_SEND_FLUSH),
            fua: export.has(c::FLAG_SEND_FUA),
            write_zeroes: export.has(c::FLAG_SEND_WRITE_ZEROES),
            whole_reads: export.structured && export.has(c::FLAG_SEND_DF),
            payload_max: u64::from(payload_max),
        }
    }
}

/// Next step of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next message is ready to be sent.
    Send,
    /// The job is finished, successfully or not.
    End,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tag: u64,
    /// `None` after the request was taken back; its reply is still expected.
    pub(crate) op: Option<Op>,
    /// Header of the message; the payload follows.
    header: [u8; 28],
    /// Number of zero bytes sent after the header; a write sends its buffers instead.
    zeros: usize,
    /// Bytes completed, of a request that is split into pieces.
    done: u64,
    /// Length in bytes of the piece in progress.
    piece: u64,
    flushing: bool,
    /// Received parts of a read as (start, end), if it arrives in several parts.
    covered: Vec<(usize, usize)>,
    got: usize,
    /// Bytes of data that the reply to a request taken back may still carry.
    forgotten: usize,
    error: Option<(u32, String)>,
}

impl Job {
    pub(crate) fn new(request: Request) -> Job {
        Job {
            tag: request.tag,
            op: Some(request.op),
            header: [0; 28],
            zeros: 0,
            done: 0,
            piece: 0,
            flushing: false,
            covered: Vec::new(),
            got: 0,
            forgotten: 0,
            error: None,
        }
    }

    /// Builds the first message.
    pub(crate) fn begin(&mut self, can: Abilities, cookie: u64) -> Next {
        let Some(op) = &self.op else {
            return Next::End;
        };
        let fua = |on: bool| if on && can.fua { c::CMD_FLAG_FUA } else { 0 };
        let (kind, flags) = match op {
            Op::Flush if can.flush => (c::CMD_FLUSH, 0),
            Op::Flush => return Next::End,
            Op::Read { .. } if can.whole_reads => (c::CMD_READ, c::CMD_FLAG_DF),
            Op::Read { .. } => (c::CMD_READ, 0),
            Op::Write { fua: f, .. } => (c::CMD_WRITE, fua(*f)),
            Op::Discard { .. } => (c::CMD_TRIM, 0),
            Op::WriteZeroes { fua: f, unmap, .. } if can.write_zeroes => {
                let no_hole = if *unmap { 0 } else { c::CMD_FLAG_NO_HOLE };
                (c::CMD_WRITE_ZEROES, fua(*f) | no_hole)
            }
            Op::WriteZeroes { fua: f, .. } => (c::CMD_WRITE, fua(*f)),
        };
        let (offset, len) = op.range().unwrap_or((0, 0));
        if len == 0 && !matches!(op, Op::Flush) {
            return Next::End;
        }
        let zeros = matches!(op, Op::WriteZeroes { .. }) && kind == c::CMD_WRITE;
        let longest = match op {
            Op::WriteZeroes { .. } if zeros => can.payload_max,
            Op::Discard { .. } | Op::WriteZeroes { .. } => RANGE_BYTES_MAX,
            _ => len,
        };
        self.piece = (len - self.done).min(longest);
        self.zeros = if zeros { self.piece as usize } else { 0 };
        self.header = request(kind, flags, cookie, offset + self.done, self.piece as u32);
        Next::Send
    }

    /// Handles the reply to a message: builds the next message or ends the job.
    pub(crate) fn answered(&mut self, can: Abilities, cookie: u64) -> Next {
        if self.error.is_some() || self.flushing {
            return Next::End;
        }
        self.done += self.piece;
        let Some(op) = &self.op else {
            return Next::End;
        };
        let len = op.range().map_or(0, |(_, len)| len);
        if self.done < len {
            return self.begin(can, cookie);
        }
        let fua = matches!(
            op,
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }
        );
        if fua && !can.fua && can.flush {
            self.flushing = true;
            self.zeros = 0;
            self.header = request(c::CMD_FLUSH, 0, cookie, 0, 0);
            return Next::Send;
        }
        Next::End
    }

    /// Hands the operation back to the caller; the reply to its message is still expected.
    ///
    /// # Panics
    /// If the operation was already returned.
    pub(crate) fn withdraw(&mut self) -> Op {
        self.forgotten = self.data_len();
        self.op.take().expect("a request is taken back once")
    }

    /// Returns how many bytes of data the pending reply may carry, wanted or not.
    pub(crate) fn awaited(&self) -> usize {
        self.data_len().max(self.forgotten)
    }

    /// Computes the length of the message in bytes.
    pub(crate) fn message_len(&self) -> usize {
        let payload = match &self.op {
            Some(Op::Write { bufs, .. }) if !self.flushing => bufs.total_len(),
            _ => self.zeros,
        };
        self.header.len() + payload
    }

    /// Appends the message, without its first `skip` bytes, to `slices`.
    pub(crate) fn gather<'a>(&'a self, skip: usize, slices: &mut Vec<IoSlice<'a>>) {
        let mut at = 0;
        let mut add = |bytes: &'a [u8]| {
            let from = skip.saturating_sub(at).min(bytes.len());
            if from < bytes.len() {
                slices.push(IoSlice::new(&bytes[from..]));
            }
            at += bytes.len();
        };
        add(&self.header);
        if let Some(Op::Write { bufs, .. }) = &self.op
            && !self.flushing
        {
            bufs.iter().for_each(|b| add(b));
        }
        let mut zeros = self.zeros;
        while zeros > 0 {
            let piece = zeros.min(ZEROS.len());
            add(&ZEROS[..piece]);
            zeros -= piece;
        }
    }

    /// Returns how many bytes of data the reply to the current message carries.
    fn data_len(&self) -> usize {
        match &self.op {
            Some(Op::Read { .. }) => self.piece as usize,
            _ => 0,
        }
    }

    /// Returns the device offset of the first byte of the operation.
    pub(crate) fn offset(&self) -> u64 {
        match &self.op {
            Some(op) => op.range().map_or(0, |(offset, _)| offset),
            None => 0,
        }
    }

    /// Records a received part of a read. Returns `false` if it is out of range or overlaps an
    /// earlier part.
    pub(crate) fn cover(&mut self, start: usize, end: usize) -> bool {
        let fits = start < end && end <= self.data_len();
        let again = self.covered.iter().any(|&(s, e)| start < e && s < end);
        if fits && !again {
            // Usually the data arrives in one part; parts are recorded only if there are several.
            if end - start < self.data_len() {
                self.covered.push((start, end));
            }
            self.got += end - start;
        }
        fits && !again && self.got <= self.data_len()
    }

    /// Calls `each` with the pieces of the read's buffers from byte `at` on, in order, until it
    /// returns `false`.
    pub(crate) fn targets<'a>(&'a mut self, at: usize, mut each: impl FnMut(&'a mut [u8]) -> bool) {
        let Some(Op::Read { bufs, .. }) = &mut self.op else {
            return;
        };
        let mut start = 0;
        for buf in bufs.iter_mut() {
            let len = buf.len();
            if start + len > at && !each(&mut buf[at.saturating_sub(start)..]) {
                return;
            }
            start += len;
        }
    }

    /// Records an error; the first one is kept.
    pub(crate) fn fail(&mut self, errno: u32, words: String) {
        self.error.get_or_insert((errno, words));
    }

    /// Converts a finished job to its completion; `None` if its request was taken back.
    pub(crate) fn complete(self, device: &str) -> Option<Completion> {
        let short = self.error.is_none() && self.got < self.data_len();
        let op = self.op?;
        let result = match self.error {
            Some((errno, words)) => {
                let text = if words.is_empty() {
                    format!("the NBD server returned error {errno}")
                } else {
                    format!("the NBD server returned error {errno}: {words}")
                };
                Err(Error::new(kind_of(errno), device, text).in_op(&op))
            }
            None if short => {
                let why = "the NBD server sent less data than requested";
                Err(Error::new(ErrorKind::PathLost, device, why).in_op(&op))
            }
            None => Ok(()),
        };
        Some(Completion {
            tag: self.tag,
            op,
            result,
        })
    }
}

/// Maps an error number ("Error values" in the protocol specification).
fn kind_of(errno: u32) -> ErrorKind {
    match errno {
        1 => ErrorKind::ReadOnly,
        // ENOMEM: the server lacked memory for this request.
        12 => ErrorKind::NotNow,
        22 => ErrorKind::Invalid,
        28 => ErrorKind::NoSpace,
        75 => ErrorKind::TooLarge,
        95 => ErrorKind::Unsupported,
        108 => ErrorKind::PathLost,
        _ => ErrorKind::Io,
    }
}
