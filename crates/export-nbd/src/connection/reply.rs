//! Replies of a connection.

use super::{Connection, Taken};
use block::Bufs;
use nbd_proto::{
    Command, Errno, RequestHeader, simple_reply, structured_data, structured_done, structured_error,
};

/// A reply that a predecessor has sent in part, whose rest is not known yet.
pub(super) struct FirstReply {
    pub(super) slot: u16,
    /// Number of bytes that were sent.
    pub(super) sent: usize,
    /// Replies that have to wait for it.
    pub(super) others: Vec<Waiting>,
}

/// A reply that waits for another one: its request, the error, and the data of a read.
pub(super) type Waiting = (Taken, Option<Errno>, Vec<(u64, Bufs)>);

// Lengths of the heads of replies.
const SIMPLE_BYTES: u64 = 16;
const DATA_BYTES: u64 = 28;
const DONE_BYTES: u64 = 20;
const ERROR_BYTES: u64 = 26;

impl Connection {
    /// Queues the reply to a request that [`Connection::next`] has returned.
    pub(crate) fn complete(
        &mut self,
        request: Taken,
        error: Option<Errno>,
        data: Vec<(u64, Bufs)>,
    ) {
        self.in_flight -= 1;
        self.reply(request, error, data);
    }

    pub(super) fn reply(&mut self, request: Taken, error: Option<Errno>, data: Vec<(u64, Bufs)>) {
        if let Some(first) = &mut self.first {
            if request.slot != Some(first.slot) {
                if let (Some(place), Some(slot)) = (&self.place, request.slot)
                    && !matches!(request.header.command, Command::Read)
                {
                    place.ended(slot, error);
                }
                first.others.push((request, error, data));
                return;
            }
            return self.reply_first(request, error, data);
        }
        if let (Some(place), Some(slot)) = (&mut self.place, request.slot) {
            let bytes = reply_bytes(self.structured, &request.header, error);
            place.queued(slot, error, bytes);
        }
        self.push_reply(&request.header, error, data);
    }

    /// Queues the rest of the reply that a predecessor has sent in part, and those that wait for it.
    fn reply_first(&mut self, request: Taken, error: Option<Errno>, data: Vec<(u64, Bufs)>) {
        let Some(first) = self.first.take() else {
            return;
        };
        if error.is_some() {
            // Its beginning says that data follows.
            return self.break_off("data of a reply that was begun cannot be read again");
        }
        self.output.skip(first.sent);
        self.push_reply(&request.header, error, data);
        for (request, error, data) in first.others {
            self.reply(request, error, data);
        }
    }

    fn push_reply(&mut self, header: &RequestHeader, error: Option<Errno>, data: Vec<(u64, Bufs)>) {
        if !self.structured {
            self.output.push_head(&simple_reply(header.cookie, error));
            if error.is_none() {
                self.output.push_data(data);
            }
            return;
        }
        match (error, header.command) {
            (Some(error), _) => self
                .output
                .push_head(&structured_error(header.cookie, error)),
            (None, Command::Read) if header.len > 0 => {
                self.output
                    .push_head(&structured_data(header.cookie, header.offset, header.len));
                self.output.push_data(data);
            }
            (None, _) => self.output.push_head(&structured_done(header.cookie)),
        }
    }
}

/// Computes the length of a reply in bytes.
pub(super) fn reply_bytes(structured: bool, header: &RequestHeader, error: Option<Errno>) -> u64 {
    let data = match (error, header.command) {
        (None, Command::Read) => header.len,
        _ => 0,
    };
    let head = match error {
        _ if !structured => SIMPLE_BYTES,
        Some(_) => ERROR_BYTES,
        None if data > 0 => DATA_BYTES,
        None => DONE_BYTES,
    };
    head + u64::from(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_have_their_lengths() {
        assert_eq!(simple_reply(1, None).len() as u64, SIMPLE_BYTES);
        assert_eq!(structured_data(1, 2, 3).len() as u64, DATA_BYTES);
        assert_eq!(structured_done(1).len() as u64, DONE_BYTES);
        assert_eq!(structured_error(1, Errno::Io).len() as u64, ERROR_BYTES);
    }
}
