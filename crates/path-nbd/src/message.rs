//! The messages that one request takes, one after the other: most take one; a long range goes in
//! pieces, zeros that the server cannot make by itself are sent, and a write with FUA is followed by
//! a flush where the server knows no FUA.

use block::{Completion, Error, ErrorKind, Op, Request};
use nbd_proto::client::{ServerExport, request};
use nbd_proto::constants as c;
use std::io::IoSlice;

/// Longest piece of a range without payload, in bytes: well below the 4 GiB of the field and the
/// 2 GiB of some servers.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Zeros that are sent where the server cannot make them.
static ZEROS: [u8; 65536] = [0; 65536];

/// What the server can do, of what matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    flush: bool,
    fua: bool,
    write_zeroes: bool,
    /// Reads in one piece can be asked for.
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

/// What a job does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its message is ready to be sent.
    Send,
    /// It has ended, well or not.
    End,
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tag: u64,
    /// `None` once it was taken back: the answer is awaited all the same.
    pub(crate) op: Option<Op>,
    /// The message: 28 bytes, then the payload.
    header: [u8; 28],
    /// Zeros behind the header, in bytes; a write has its buffers there.
    zeros: usize,
    /// Bytes of a range that are done, of a request that goes in pieces.
    done: u64,
    /// Bytes of the piece under way.
    piece: u64,
    flushing: bool,
    /// Parts of a read that have come, where they come in several: start and end.
    covered: Vec<(usize, usize)>,
    got: usize,
    /// Bytes of data that the answer to a request taken back may still bring.
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

    /// Makes the first message.
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

    /// After an answer: the next message, or the end.
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

    /// Gives the operation up; the answer to its message is awaited all the same.
    ///
    /// # Panics
    /// When that was done before.
    pub(crate) fn give_up(&mut self) -> Op {
        self.forgotten = self.data_len();
        self.op.take().expect("a request is taken back once")
    }

    /// Bytes of data that an answer to the message under way brings, wanted or not.
    pub(crate) fn awaited(&self) -> usize {
        self.data_len().max(self.forgotten)
    }

    /// Bytes of the message.
    pub(crate) fn message_len(&self) -> usize {
        let payload = match &self.op {
            Some(Op::Write { bufs, .. }) if !self.flushing => bufs.total_len(),
            _ => self.zeros,
        };
        self.header.len() + payload
    }

    /// Adds the message without its first `skip` bytes to `slices`.
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

    /// Bytes of data that an answer to the message under way brings.
    fn data_len(&self) -> usize {
        match &self.op {
            Some(Op::Read { .. }) => self.piece as usize,
            _ => 0,
        }
    }

    /// First byte of a read on the device.
    pub(crate) fn offset(&self) -> u64 {
        match &self.op {
            Some(op) => op.range().map_or(0, |(offset, _)| offset),
            None => 0,
        }
    }

    /// Notes that a part of a read comes; `false` when it lies outside or came before.
    pub(crate) fn cover(&mut self, start: usize, end: usize) -> bool {
        let fits = start < end && end <= self.data_len();
        let again = self.covered.iter().any(|&(s, e)| start < e && s < end);
        if fits && !again {
            // One part is the rule; only of several does anything need to be remembered.
            if end - start < self.data_len() {
                self.covered.push((start, end));
            }
            self.got += end - start;
        }
        fits && !again && self.got <= self.data_len()
    }

    /// Calls `each` with the pieces of the read's buffers from byte `at` on, in order, until it
    /// says `false`.
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

    /// The first error counts.
    pub(crate) fn fail(&mut self, errno: u32, words: String) {
        self.error.get_or_insert((errno, words));
    }

    /// The completion of a job that ended.
    pub(crate) fn complete(self, device: &str) -> Option<Completion> {
        let short = self.error.is_none() && self.got < self.data_len();
        let op = self.op?;
        let result = match self.error {
            Some((errno, words)) => {
                let text = match words.is_empty() {
                    true => format!("the NBD server answers with error {errno}"),
                    false => format!("the NBD server answers with error {errno}: {words}"),
                };
                Err(Error::new(kind_of(errno), device, text).in_op(&op))
            }
            None if short => {
                let why = "the NBD server sent less than was asked for";
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

/// "Error values" of the protocol.
fn kind_of(errno: u32) -> ErrorKind {
    match errno {
        1 => ErrorKind::ReadOnly,
        // ENOMEM: it lacked memory for this one.
        12 => ErrorKind::NotNow,
        22 => ErrorKind::Invalid,
        28 => ErrorKind::NoSpace,
        75 => ErrorKind::TooLarge,
        95 => ErrorKind::Unsupported,
        108 => ErrorKind::PathLost,
        _ => ErrorKind::Io,
    }
}
