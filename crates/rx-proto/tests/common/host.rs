//! One side of a pair: an endpoint, and an application that serves and makes calls with verifiable
//! data.
//!
//! A request consists of a tag, the length of the wanted reply, and padding; the reply has the
//! wanted length, and its bytes are determined by the tag. The number of runs of each tag is
//! counted.

use super::net::{Net, Random};
use rx_proto::{
    CallError, CallId, ConnectionId, End, Endpoint, Event, Payload, Read, Route, Shared, Timestamp,
    Transmit, WriteError,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

/// Result of a call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The whole reply arrived and was right.
    Done,
    Ended(End),
}

#[derive(Debug, Default)]
struct Work {
    /// Bytes to write, and the offset of the next one.
    output: Vec<u8>,
    written: usize,
    finished: bool,
    input: Vec<u8>,
    /// Tag of a call that we made, and the expected length of the reply.
    wanted: Option<(u32, usize)>,
    ended: bool,
}

pub struct Host {
    pub endpoint: Endpoint<Shared, Shared>,
    pub address: SocketAddr,
    peer: SocketAddr,
    index: usize,
    batch: Transmit<Shared>,
    work: HashMap<CallId, Work>,
    random: Random,
    /// Number of runs of each tag here.
    pub runs: BTreeMap<u32, u32>,
    /// Results of the calls made from here, by tag.
    pub outcomes: BTreeMap<u32, Outcome>,
    pub events: Vec<Event>,
    /// Whether the server does not answer: its calls stay open.
    pub stuck: bool,
    /// Largest number of bytes to read per pass.
    pub appetite: usize,
    /// Largest number of datagrams seen in a batch.
    pub segments_seen: usize,
    pub largest_seen: usize,
}

/// Returns the bytes of the reply to a tag.
pub fn reply_bytes(tag: u32, len: usize) -> Vec<u8> {
    let mut random = Random::new(u64::from(tag) << 20);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next_u64().to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns a request for `reply` bytes with `filling` bytes of padding.
pub fn request_bytes(tag: u32, reply: u32, filling: usize) -> Vec<u8> {
    let mut bytes = tag.to_be_bytes().to_vec();
    bytes.extend(reply.to_be_bytes());
    bytes.extend(reply_bytes(tag ^ 0x5555, filling));
    bytes
}

impl Host {
    pub fn new(
        endpoint: Endpoint<Shared, Shared>,
        index: usize,
        address: SocketAddr,
        peer: SocketAddr,
    ) -> Host {
        Host {
            endpoint,
            address,
            peer,
            index,
            batch: Transmit::new(40),
            work: HashMap::new(),
            random: Random::new(index as u64),
            runs: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            events: Vec::new(),
            stuck: false,
            appetite: usize::MAX,
            segments_seen: 0,
            largest_seen: 0,
        }
    }

    pub fn route(&self) -> Route {
        Route {
            peer: self.peer,
            local: Some(self.address.ip()),
        }
    }

    /// Makes a call; returns `None` if no channel is free.
    pub fn call(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        tag: u32,
        reply: u32,
        filling: usize,
    ) -> Option<CallId> {
        let call = self.endpoint.start(now, connection).ok()?;
        let work = Work {
            output: request_bytes(tag, reply, filling),
            wanted: Some((tag, reply as usize)),
            ..Work::default()
        };
        self.work.insert(call, work);
        self.go_on(now, call);
        Some(call)
    }

    /// Takes over a call that a test writes to by itself.
    pub fn adopt(&mut self, call: CallId, tag: u32) {
        let work = Work {
            finished: true,
            wanted: Some((tag, 0)),
            ..Work::default()
        };
        self.work.insert(call, work);
    }

    /// Returns the number of unfinished calls made from here.
    pub fn own_calls(&self) -> usize {
        self.work
            .values()
            .filter(|work| work.wanted.is_some())
            .count()
    }

    /// Returns the number of calls owned by the application.
    pub fn open_calls(&self) -> usize {
        self.work.len()
    }

    pub fn take(&mut self, now: Timestamp, bytes: Vec<u8>) {
        let route = self.route();
        self.endpoint.handle_input(now, route, Shared::from(bytes));
    }

    /// Sends all datagrams and handles all events, until nothing is left to do.
    pub fn pump(&mut self, now: Timestamp, net: &mut Net) {
        loop {
            let mut idle = true;
            while let Some(event) = self.endpoint.poll_event() {
                idle = false;
                self.events.push(event);
                self.hear(now, event);
            }
            while self.endpoint.poll_transmit(now, &mut self.batch) {
                idle = false;
                self.segments_seen = self.segments_seen.max(self.batch.segments());
                self.largest_seen = self.largest_seen.max(self.batch.segment_bytes());
                let (route, whole) = (self.batch.route(), self.batch.dont_fragment());
                for datagram in self.batch.datagrams() {
                    if !net.send(now, 1 - self.index, datagram, whole) {
                        let limit = net.links[1 - self.index].mtu;
                        self.endpoint.too_long(route, limit);
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    fn hear(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Call(incoming) => {
                self.work.insert(incoming.call, Work::default());
                self.go_on(now, incoming.call);
            }
            Event::Readable(call) | Event::Writable(call) => self.go_on(now, call),
            Event::Ended { call, reason } => {
                self.endpoint.release(now, call);
                let work = self.work.remove(&call).expect("a call that is ours");
                if let Some((tag, _)) = work.wanted {
                    self.outcomes.insert(tag, Outcome::Ended(reason));
                }
            }
            Event::ChannelFree(_) | Event::Closed(_) | Event::Received(_) | Event::Over(_) => {}
        }
    }

    /// Lets slow readers continue to read.
    pub fn look(&mut self, now: Timestamp) {
        let calls: Vec<CallId> = self.work.keys().copied().collect();
        for call in calls {
            self.go_on(now, call);
        }
    }

    fn go_on(&mut self, now: Timestamp, call: CallId) {
        let Some(mut work) = self.work.remove(&call) else {
            return;
        };
        let client = work.wanted.is_some();
        if client {
            self.write_on(now, call, &mut work);
        }
        if !self.read_on(now, call, &mut work) {
            if !work.ended {
                self.work.insert(call, work);
            }
            return;
        }
        if let Some((tag, len)) = work.wanted {
            assert_eq!(work.input.len(), len, "the reply to {tag} has its length");
            assert!(
                work.input == reply_bytes(tag, len),
                "the reply to {tag} is right"
            );
            self.outcomes.insert(tag, Outcome::Done);
            return;
        }
        if self.stuck {
            self.work.insert(call, work);
            return;
        }
        if work.output.is_empty() && !work.finished {
            self.serve(&mut work);
        }
        self.write_on(now, call, &mut work);
        if !work.finished {
            self.work.insert(call, work);
        }
    }

    /// Runs a request that was read completely.
    fn serve(&mut self, work: &mut Work) {
        let word = |at: usize| u32::from_be_bytes(work.input[at..at + 4].try_into().unwrap());
        let (tag, len) = (word(0), word(4));
        let expected = request_bytes(tag, len, work.input.len() - 8);
        assert!(work.input == expected, "the request {tag} is right");
        *self.runs.entry(tag).or_default() += 1;
        work.output = reply_bytes(tag, len as usize);
        if len == 0 {
            work.written = 0;
        }
    }

    /// Reads the available data; returns true at the end.
    fn read_on(&mut self, now: Timestamp, call: CallId, work: &mut Work) -> bool {
        let mut left = self.appetite;
        while left > 0 {
            match self.endpoint.read(now, call) {
                Ok(Read::Data(data)) => {
                    left = left.saturating_sub(data.len());
                    work.input.extend(data.as_ref());
                }
                Ok(Read::Pending) => return false,
                Ok(Read::End) => return true,
                Err(CallError::Ended(_)) => return false,
                Err(CallError::Unknown) => panic!("a call that is ours is not known"),
            }
        }
        false
    }

    /// Writes as much as there is room for, in pieces of random length.
    fn write_on(&mut self, now: Timestamp, call: CallId, work: &mut Work) {
        if work.finished {
            return;
        }
        while work.written < work.output.len() {
            let most = 1 << self.random.below(14);
            let end = work
                .output
                .len()
                .min(work.written + 1 + self.random.below(most) as usize);
            let piece = Shared::from(&work.output[work.written..end]);
            match self.endpoint.write(now, call, piece) {
                Ok(_) => work.written = end,
                Err(WriteError::Blocked(_)) | Err(WriteError::Call(..)) => return,
                Err(WriteError::Finished(_)) => panic!("nothing is written after the end"),
            }
        }
        work.finished = self.endpoint.finish(now, call).is_ok();
    }
}
