//! Counters of an endpoint.

/// Types of packets, and one more for numbers that are no type.
pub const PACKET_TYPES: usize = 13;

/// What passed through an endpoint since it was made. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Datagrams received.
    pub datagrams_in: u64,
    /// Datagrams given to the driver.
    pub datagrams_out: u64,
    /// Packets received, by type less one.
    pub packets_in: [u64; PACKET_TYPES],
    /// Packets sent, by type less one; each packet of a jumbogram counts.
    pub packets_out: [u64; PACKET_TYPES],
    /// Bytes of data received that were new.
    pub bytes_in: u64,
    /// Bytes in datagrams given to the driver.
    pub bytes_out: u64,
    /// Datagrams too short, malformed or of an unknown type.
    pub malformed: u64,
    /// Packets that belong to nothing, or to what is over.
    pub stray: u64,
    /// Datagrams of several packets received.
    pub jumbograms_in: u64,
    /// Datagrams of several packets sent.
    pub jumbograms_out: u64,
    /// DATA packets that came twice.
    pub duplicates: u64,
    /// DATA packets dropped because a limit was reached.
    pub refused: u64,
    /// DATA packets sent again.
    pub resent: u64,
    /// DATA packets taken for lost.
    pub lost: u64,
    /// Of those, the ones that arrived after all.
    pub late: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Probes for a lost tail.
    pub probes: u64,
    /// Pings sent, of all kinds.
    pub pings: u64,
    /// Round-trip times measured, their sum, the shortest and the longest, in nanoseconds.
    pub rtt_samples: u64,
    /// Their sum.
    pub rtt_sum: u64,
    /// The shortest.
    pub rtt_min: u64,
    /// The longest.
    pub rtt_max: u64,
    /// Calls that clients began.
    pub calls_in: u64,
    /// Calls that we began.
    pub calls_out: u64,
    /// BUSY packets sent.
    pub busy: u64,
    /// Connections turned away because a limit was reached.
    pub connections_refused: u64,
    /// Small packets dropped because too many waited.
    pub control_dropped: u64,
    /// Strays that were not answered because too many were.
    pub strays_unanswered: u64,
    /// Packets that a security class refused.
    pub not_genuine: u64,
}

impl Stats {
    /// Counts a round-trip time.
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

    /// Counts packets of the type with this number.
    pub(crate) fn packets(counters: &mut [u64; PACKET_TYPES], kind: u8, packets: u64) {
        if let Some(counter) = counters.get_mut(usize::from(kind).saturating_sub(1)) {
            *counter += packets;
        }
    }
}
