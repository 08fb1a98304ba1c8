//! A network of two directions in virtual time: it delays, loses, duplicates, reorders, queues and
//! drops oversized datagrams, all from a seed.

pub use block_testing::Random;
use rx_proto::{Ack, HEADER_BYTES, Header, PacketType, Timestamp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Properties of one direction.
#[derive(Debug, Clone)]
pub struct Link {
    /// One-way delay.
    pub delay: Duration,
    /// Upper bound of the additional random delay.
    pub jitter: Duration,
    pub loss: f64,
    pub duplicate: f64,
    /// Share of datagrams that take up to three delays longer.
    pub reorder: f64,
    /// Longest datagram, by default that of an Ethernet. Longer ones with "don't fragment" are
    /// refused, others arrive.
    pub mtu: usize,
    /// Bytes per second, and the largest number of queued bytes; further datagrams are dropped.
    pub rate: Option<(u64, u64)>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            mtu: 1472,
            rate: None,
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OnItsWay {
    at: Timestamp,
    order: u64,
    to: usize,
    bytes: Vec<u8>,
}

/// Both directions; `links[n]` leads to host `n`.
pub struct Net {
    pub links: [Link; 2],
    pub random: Random,
    on_the_way: BinaryHeap<Reverse<OnItsWay>>,
    order: u64,
    busy_until: [Timestamp; 2],
    /// Datagrams passed in, and datagrams dropped for whatever reason.
    pub sent: u64,
    pub dropped: u64,
    /// Datagrams longer than this are silently dropped.
    pub swallow: Option<usize>,
    /// Share of datagrams that arrive with a changed byte of data.
    pub corrupt: f64,
    /// Callback for each datagram sent, with its destination.
    pub tap: Option<Tap>,
    /// Whether each datagram is printed, because `EVFS_TRACE` is set.
    trace: bool,
}

pub type Tap = Box<dyn FnMut(usize, &[u8])>;

/// Returns a one-line description of a datagram.
fn describe(now: Timestamp, to: usize, bytes: &[u8]) -> String {
    let Some(h) = Header::parse(bytes) else {
        return format!("{} bytes of something else", bytes.len());
    };
    let at = now.as_nanos() / 1000;
    let mut line = format!(
        "{at:>10} us to {to}: {:?} cid {:x} call {} seq {} serial {} flags {:02x} {} bytes",
        h.kind,
        h.cid.0,
        h.call_number.0,
        h.seq.0,
        h.serial.0 & 0xffff,
        h.flags,
        bytes.len()
    );
    if h.kind == PacketType::Ack
        && let Some(ack) = Ack::parse(&bytes[HEADER_BYTES..])
    {
        let there: String = ack
            .packets
            .iter()
            .map(|b| if b & 1 != 0 { '+' } else { '-' })
            .collect();
        line += &format!(
            " {:?} first {} previous {} serial {} {there}",
            ack.reason,
            ack.first.0,
            ack.previous.0,
            ack.serial.0 & 0xffff
        );
    }
    line
}

impl Net {
    pub fn new(link: Link, seed: u64) -> Net {
        Net {
            links: [link.clone(), link],
            random: Random::new(seed),
            on_the_way: BinaryHeap::new(),
            order: 0,
            busy_until: [Timestamp::from_nanos(0); 2],
            sent: 0,
            dropped: 0,
            swallow: None,
            corrupt: 0.0,
            tap: None,
            trace: std::env::var_os("EVFS_TRACE").is_some(),
        }
    }

    /// Sends a datagram to host `to`; returns false if it is refused as too long.
    pub fn send(&mut self, now: Timestamp, to: usize, bytes: Vec<u8>, whole: bool) -> bool {
        let link = self.links[to].clone();
        self.sent += 1;
        if let Some(tap) = &mut self.tap {
            tap(to, &bytes);
        }
        if self.trace {
            println!("{}", describe(now, to, &bytes));
        }
        if whole && bytes.len() > link.mtu {
            self.dropped += 1;
            return false;
        }
        if self.swallow.is_some_and(|limit| bytes.len() > limit) {
            self.dropped += 1;
            return true;
        }
        let mut bytes = bytes;
        if bytes.len() > HEADER_BYTES
            && bytes[20] == PacketType::Data as u8
            && self.random.chance(self.corrupt)
        {
            let data = bytes.len() - HEADER_BYTES;
            let at = HEADER_BYTES + self.random.below(data as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        let mut depart = now;
        if let Some((rate, queue)) = link.rate {
            let start = self.busy_until[to].max(now);
            let waiting = start.since(now).as_nanos() as u64 * rate / 1_000_000_000;
            if waiting > queue {
                self.dropped += 1;
                return true;
            }
            let takes = Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rate);
            depart = start + takes;
            self.busy_until[to] = depart;
        }
        if self.random.chance(link.loss) {
            self.dropped += 1;
            return true;
        }
        let copies = 1 + u64::from(self.random.chance(link.duplicate));
        for _ in 0..copies {
            let mut at = depart + link.delay;
            at = at + Duration::from_nanos(self.random.below(link.jitter.as_nanos() as u64 + 1));
            if self.random.chance(link.reorder) {
                let late = 3 * link.delay.as_nanos() as u64;
                at = at + Duration::from_nanos(self.random.below(late.max(1)));
            }
            self.order += 1;
            let (order, bytes) = (self.order, bytes.clone());
            self.on_the_way.push(Reverse(OnItsWay {
                at,
                order,
                to,
                bytes,
            }));
        }
        true
    }

    /// Returns the arrival time of the next datagram.
    pub fn next(&self) -> Option<Timestamp> {
        self.on_the_way.peek().map(|Reverse(datagram)| datagram.at)
    }

    /// Returns the next datagram that has arrived.
    pub fn arrive(&mut self, now: Timestamp) -> Option<(usize, Vec<u8>)> {
        self.next().filter(|at| *at <= now)?;
        self.on_the_way.pop().map(|Reverse(d)| (d.to, d.bytes))
    }
}
