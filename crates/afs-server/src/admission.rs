//! Limits on the cost of unknown clients: how many calls may wait for clients that do not answer at
//! once, and a short history of misbehavior for each network.
//!
//! A working client answers an identity query within a round trip, so every call may wait that
//! long. A longer wait needs a place. There are places for half of the threads, and for a quarter
//! of them per network; the other threads serve known clients.
//!
//! The same holds for data from a client: it may take [`PROMPT`] for a request, and for each part
//! of its data; a slower client needs a place until its call ends, and then still has to make
//! progress.
//!
//! **Invariant:** at most half of all threads wait for clients to answer beyond [`QUICK`], or to
//! send beyond [`PROMPT`].

use crate::error::{CallResult, Fault};
use afs_proto::Abort;
use rx::{Bytes, Call};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that a client may take to identify itself before its call needs a place: several round
/// trips of a slow network.
pub(crate) const QUICK: Duration = Duration::from_millis(250);

/// Time that a client may take to send a request or a part of its data before its call needs a
/// place: lost packets are retransmitted within it.
const PROMPT: Duration = Duration::from_secs(1);

/// Minimum progress of a client with a place: one packet in this time. A modem sends ten times as
/// much, and one of the retransmissions of a packet arrives in that time even if most are lost.
const LEAST_BYTES: usize = 1024;
const LEAST_TIME: Duration = Duration::from_secs(10);

/// Window in which unanswered queries and breaks count against a network.
const WINDOW: Duration = Duration::from_secs(60);

/// Unanswered identity queries of a network within the window before all its unknown clients need a
/// place from the start. Programs without a callback service count too.
const UNANSWERED_MAX: u32 = 16;

/// Unanswered breaks of a network within the window before its unknown clients get no promises:
/// each has delayed another client by the answer time. Clients that are lost together, as when
/// their network fails, count once.
const LOST_MAX: u32 = 4;

/// Maximum number of remembered networks; when it is reached, those without a waiting thread are
/// forgotten.
const NETWORKS_MAX: usize = 4096;

/// The places, and the history of each network.
pub(crate) struct AdmissionControl {
    all_max: usize,
    network_max: usize,
    answer_time: Duration,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    waiting: usize,
    networks: HashMap<IpAddr, Network>,
}

struct Network {
    waiting: usize,
    /// Start of the window.
    since: Instant,
    unanswered: u32,
    lost: u32,
    /// Time of the last unanswered break that counted.
    lost_at: Option<Instant>,
}

/// Place of a waiting thread, released on drop.
pub(crate) struct WaitPermit<'p> {
    of: &'p AdmissionControl,
    network: IpAddr,
}

/// Time limits for the client of one call while it sends.
pub(crate) struct RequestReader<'p> {
    admission: &'p AdmissionControl,
    permit: Option<WaitPermit<'p>>,
}

impl RequestReader<'_> {
    /// Waits for `wanted` bytes; for a slow client, for a minimum within [`LEAST_TIME`].
    pub(crate) fn await_bytes(&mut self, call: &mut Call, wanted: usize) -> CallResult<()> {
        if self.permit.is_none() {
            match call.await_bytes_within(wanted, PROMPT) {
                Err(rx::Error::Late) => self.takes_long(call)?,
                waited => return Ok(waited?),
            }
        }
        let least = wanted.min(LEAST_BYTES);
        Ok(call.await_bytes_within(least, LEAST_TIME)?)
    }

    /// Receives the next bytes of a request that began to arrive at `begun`.
    pub(crate) fn request(&mut self, call: &mut Call, begun: Instant) -> CallResult<Option<Bytes>> {
        if self.permit.is_none() {
            match call.read_by(Some(begun + PROMPT)) {
                Err(rx::Error::Late) => self.takes_long(call)?,
                read => return Ok(read?),
            }
        }
        Ok(call.read_by(Some(begun + LEAST_TIME))?)
    }

    fn takes_long(&mut self, call: &Call) -> CallResult<()> {
        let place = self.admission.place(call.peer().ip());
        self.permit = Some(place.ok_or(Fault::Code(Abort::VBUSY))?);
        Ok(())
    }
}

impl AdmissionControl {
    /// Creates the time limits for a call whose client is to send data.
    pub(crate) fn sender(&self) -> RequestReader<'_> {
        RequestReader {
            admission: self,
            permit: None,
        }
    }

    /// Creates places for a pool of `workers` threads. Clients may take `answer_time` to answer.
    pub(crate) fn new(workers: usize, answer_time: Duration) -> AdmissionControl {
        AdmissionControl {
            all_max: (workers / 2).max(1),
            network_max: (workers / 4).max(1),
            answer_time,
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place to wait for a client, if one is free.
    pub(crate) fn place(&self, client: IpAddr) -> Option<WaitPermit<'_>> {
        let mut table = self.table();
        if table.waiting >= self.all_max {
            return None;
        }
        let network = table.network(client);
        if network.waiting >= self.network_max {
            return None;
        }
        network.waiting += 1;
        table.waiting += 1;
        let network = network_of(client);
        Some(WaitPermit { of: self, network })
    }

    /// Records an unanswered identity query.
    pub(crate) fn unanswered(&self, client: IpAddr) {
        self.table().network(client).unanswered += 1;
    }

    /// Records an unanswered break.
    pub(crate) fn record_lost(&self, client: IpAddr) {
        let mut table = self.table();
        let network = table.network(client);
        let now = Instant::now();
        if network
            .lost_at
            .is_none_or(|at| now - at >= self.answer_time)
        {
            network.lost += 1;
            network.lost_at = Some(now);
        }
    }

    /// Checks whether too many identity queries of the client's network went unanswered.
    pub(crate) fn is_short(&self, client: IpAddr) -> bool {
        let table = self.table();
        let network = table.networks.get(&network_of(client));
        network.is_some_and(|n| n.is_recent() && n.unanswered >= UNANSWERED_MAX)
    }

    /// Looks up the time until which unknown clients of this client's network get no promises.
    pub(crate) fn distrusted_until(&self, client: IpAddr) -> Option<Instant> {
        let table = self.table();
        let network = table.networks.get(&network_of(client))?;
        (network.is_recent() && network.lost >= LOST_MAX).then(|| network.since + WINDOW)
    }
}

impl Table {
    fn network(&mut self, client: IpAddr) -> &mut Network {
        let network = network_of(client);
        if self.networks.len() >= NETWORKS_MAX && !self.networks.contains_key(&network) {
            self.networks.retain(|_, n| n.waiting > 0);
        }
        let network = self.networks.entry(network).or_insert_with(Network::new);
        if !network.is_recent() {
            let waiting = network.waiting;
            *network = Network::new();
            network.waiting = waiting;
        }
        network
    }
}

impl Network {
    fn new() -> Network {
        Network {
            waiting: 0,
            since: Instant::now(),
            unanswered: 0,
            lost: 0,
            lost_at: None,
        }
    }

    fn is_recent(&self) -> bool {
        self.since.elapsed() < WINDOW
    }
}

impl Drop for WaitPermit<'_> {
    fn drop(&mut self) {
        let mut table = self.of.table();
        table.waiting -= 1;
        if let Some(network) = table.networks.get_mut(&self.network) {
            network.waiting -= 1;
        }
    }
}

/// Maps an address to the range that one host can own: an IPv4 address, or an IPv6 /64 network.
fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_a_quarter_of_the_threads_and_all_have_half() {
        let patience = AdmissionControl::new(16, Duration::ZERO);
        let places = |address: &str| {
            let client = address.parse().expect("an address");
            std::iter::from_fn(|| patience.place(client)).collect::<Vec<_>>()
        };
        let one = places("10.0.0.1");
        assert_eq!(one.len(), 4);
        let two = places("2001:db8::1");
        assert_eq!(two.len(), 4);
        assert!(places("10.0.0.2").is_empty());
        drop(one);
        assert!(places("2001:db8::2").is_empty(), "the same network");
        assert_eq!(places("::ffff:10.0.0.1").len(), 4);
        drop(two);
        assert_eq!(places("10.0.0.2").len(), 4);
    }

    #[test]
    fn what_the_clients_of_a_network_did_not_do_is_remembered() {
        let patience = AdmissionControl::new(16, Duration::ZERO);
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for _ in 0..UNANSWERED_MAX {
            assert!(!patience.is_short(one));
            patience.unanswered(one);
        }
        assert!(patience.is_short(one) && !patience.is_short(other));
        for _ in 0..LOST_MAX {
            assert_eq!(patience.distrusted_until(one), None);
            patience.record_lost(one);
        }
        assert!(patience.distrusted_until(one).is_some());
        // Losses at the same time count once.
        let together = AdmissionControl::new(16, 2 * WINDOW);
        (0..100).for_each(|_| together.record_lost(one));
        assert_eq!(together.distrusted_until(one), None);
        assert_eq!(patience.distrusted_until(other), None);
    }
}
