//! Counters of an endpoint.

/// Number of packet types, plus one for unknown types.
pub const PACKET_TYPES: usize = 13;

/// Counters of an endpoint since its creation. They only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Datagrams received.
    pub datagrams_in: u64,
    /// Datagrams passed to the driver.
    pub datagrams_out: u64,
    /// Packets received, indexed by type minus one.
    pub packets_in: [u64; PACKET_TYPES],
    /// Packets sent, indexed by type minus one; each packet of a jumbogram counts.
    pub packets_out: [u64; PACKET_TYPES],
    /// Data bytes received, without duplicates.
    pub bytes_in: u64,
    /// Bytes in datagrams passed to the driver.
    pub bytes_out: u64,
    /// Datagrams that were too short, malformed or of an unknown type.
    pub malformed: u64,
    /// Packets that belong to no connection or call, or to a finished one.
    pub stray: u64,
    /// Jumbograms (datagrams of several packets) received.
    pub jumbograms_in: u64,
    /// Jumbograms sent.
    pub jumbograms_out: u64,
    /// DATA packets received more than once.
    pub duplicates: u64,
    /// DATA packets dropped because a limit was reached.
    pub refused: u64,
    /// DATA packets retransmitted.
    pub resent: u64,
    /// DATA packets declared lost.
    pub lost: u64,
    /// DATA packets declared lost that arrived after all.
    pub late: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Pings sent, of all kinds.
    pub pings: u64,
    /// Round-trip times measured.
    pub rtt_samples: u64,
    /// Sum of the round-trip times in nanoseconds.
    pub rtt_sum: u64,
    /// Shortest round-trip time in nanoseconds.
    pub rtt_min: u64,
    /// Longest round-trip time in nanoseconds.
    pub rtt_max: u64,
    /// Incoming calls.
    pub calls_in: u64,
    /// Outgoing calls.
    pub calls_out: u64,
    /// BUSY packets sent.
    pub busy: u64,
    /// Incoming connections refused because a limit was reached.
    pub connections_refused: u64,
    /// Control packets dropped because the queue was full.
    pub control_dropped: u64,
    /// Stray packets that were not answered because of the rate limit or the policy.
    pub strays_unanswered: u64,
    /// Packets that a security class or a proof of address rejected.
    pub not_genuine: u64,
}

impl Stats {
    /// Records a round-trip time.
    pub(crate) fn rtt(&mut self, nanos: u64) {
        self.rtt_min = if self.rtt_samples == 0 {
            nanos
        } else {
            self.rtt_min.min(nanos)
        };
        self.rtt_max = self.rtt_max.max(nanos);
        self.rtt_samples += 1;
        self.rtt_sum = self.rtt_sum.saturating_add(nanos);
    }

    /// Adds `packets` to the counter of the type number `kind`.
    pub(crate) fn packets(counters: &mut [u64; PACKET_TYPES], kind: u8, packets: u64) {
        if let Some(counter) = counters.get_mut(usize::from(kind).saturating_sub(1)) {
            *counter += packets;
        }
    }
}
