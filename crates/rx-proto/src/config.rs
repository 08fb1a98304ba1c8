//! Limits and timeouts of an endpoint, each with its unit and reason.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Limits for an endpoint and its peers. The defaults suit a file server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Packets of a call that may be received and not yet read, 1 to 255. Large enough for Linux
    /// clients to store with their maximum of 128 packets in flight; OpenAFS sends 32.
    pub receive_window: u32,
    /// Packets of a call that may be in flight, 1 to 255: the most an acknowledgement can describe.
    pub send_window: u32,
    /// Unacknowledged bytes that the application may write to a call. Two windows: one in flight,
    /// one ready to follow.
    pub send_buffer_bytes: usize,
    /// Unacknowledged bytes over all calls. Above the limit a call may still have 16 packets:
    /// enough to make progress, so that clients that request much and acknowledge nothing do not
    /// stop the others.
    pub send_bytes_max: usize,
    /// Unacknowledged bytes over all calls of one host, a quarter of [`Config::send_bytes_max`].
    /// Above the limit only the calls of that host are reduced to 16 packets.
    pub send_bytes_per_host: usize,
    /// References to payloads that a call holds at once, so that a call of single-byte writes does
    /// not use more memory than the data it sends.
    pub send_buffer_pieces: usize,
    /// Packets per acknowledgement in steady state. Each acknowledgement costs a peer about 10
    /// microseconds; more than a few packets apart, acknowledgements no longer pace the sender.
    pub ack_stride: u32,
    /// Packets per acknowledgement at the start of a call, as in OpenAFS: windows grow by
    /// acknowledgements.
    pub ack_stride_start: u32,
    /// Number of packets for which [`Config::ack_stride_start`] applies.
    pub ack_start_packets: u32,
    /// Longest delay of an acknowledgement: shorter than the time after which peers retransmit
    /// (time-based loss detection about 15 ms, OpenAFS 350 ms), longer than a server needs to begin
    /// a reply.
    pub ack_delay: Duration,
    /// Largest number of packets in a datagram, sent or received, 1 to 46; 1 disables jumbograms.
    /// Linux and the OpenAFS server accept four.
    pub jumbo_packets: u8,

    /// Silence after which a peer with an active call is declared dead (OpenAFS clients: 50 s). The
    /// peer is pinged after a sixth of this time.
    pub dead_time: Duration,
    /// Longest time that a server's call may wait for its peer without progress: for data, or for
    /// the acknowledgement of written data, including while the peer advertises an empty window.
    pub idle_time: Option<Duration>,
    /// Longest duration of a server's call.
    pub hard_time: Option<Duration>,
    /// Time after which a connection without calls is dropped (OpenAFS: 700 s).
    pub connection_idle: Duration,
    /// Idle time after which a connection may be dropped while the table is full. Longer than the
    /// lifetime of a packet in the network, so that a late duplicate of a call still finds its
    /// state.
    pub connection_idle_min: Duration,
    /// Time that an unproven peer has to answer the ping that proves its address. Covers several of
    /// its retransmissions, each of which is answered by a ping.
    pub reach_time: Duration,

    /// Largest number of incoming connections. Each costs about 700 bytes.
    pub connections_max: usize,
    /// Incoming connections per host: an IPv4 address or an IPv6 /64 network. Clients of a cell
    /// behind one NAT address share this limit.
    pub connections_per_host: usize,
    /// Largest number of connections whose peer has not answered yet. Above the limit the oldest is
    /// evicted; its peer may still answer, but has to send its call again.
    pub unproven_max: usize,
    /// Packets of a call that are held before its peer has answered: the initial window of known
    /// clients.
    pub unproven_packets: u32,
    /// Largest number of incoming calls. Each costs about 700 bytes plus its data.
    pub calls_max: usize,
    /// Incoming calls of one host with a proven address, an eighth of [`Config::calls_max`]: many
    /// times the threads of a server. Further calls are answered with BUSY.
    pub calls_per_host: usize,
    /// Bytes received and not read over all calls, plus 256 for each packet and each gap before
    /// one. Above the limit a call that has read all of its data still receives its next packet, so
    /// that no call starves.
    pub receive_bytes_max: usize,
    /// Largest number of queued control packets (aborts, answers); further ones are dropped.
    pub control_packets_max: usize,
    /// Answers per second to packets that belong to no connection: DEBUG, VERSION, aborts.
    pub stray_answers_per_second: u32,

    /// Acknowledge packets of a request for good only once [`crate::Endpoint::keep`] names them, so
    /// that clients still have what a server loses that is killed. Reports
    /// [`crate::Event::Received`] and [`crate::Event::Over`].
    pub keeps_requests: bool,
    /// Policy for DEBUG and VERSION requests, by address.
    pub questions: DebugPolicy,
    /// Reply to VERSION packets, at most 64 bytes.
    pub version: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            receive_window: 255,
            send_window: 255,
            send_buffer_bytes: 2 * 255 * 1412,
            send_bytes_max: 256 << 20,
            send_bytes_per_host: 64 << 20,
            send_buffer_pieces: 4096,
            ack_stride: 8,
            ack_stride_start: 2,
            ack_start_packets: 64,
            ack_delay: Duration::from_millis(10),
            jumbo_packets: 4,
            dead_time: Duration::from_secs(50),
            idle_time: Some(Duration::from_secs(60)),
            hard_time: None,
            connection_idle: Duration::from_secs(600),
            connection_idle_min: Duration::from_secs(120),
            reach_time: Duration::from_secs(30),
            connections_max: 16_384,
            connections_per_host: 4096,
            unproven_max: 1024,
            unproven_packets: 16,
            calls_max: 8192,
            calls_per_host: 1024,
            receive_bytes_max: 256 << 20,
            control_packets_max: 1024,
            stray_answers_per_second: 200,
            keeps_requests: false,
            questions: DebugPolicy::default(),
            version: String::from("EVFS Rx"),
        }
    }
}

impl Config {
    /// Clamps every number of the configuration to its limits.
    pub(crate) fn checked(mut self) -> Config {
        self.receive_window = self.receive_window.clamp(1, 255);
        self.send_window = self.send_window.clamp(1, 255);
        self.jumbo_packets = self.jumbo_packets.clamp(1, 46);
        self.ack_stride = self.ack_stride.max(1);
        self.ack_stride_start = self.ack_stride_start.max(1);
        self.send_buffer_bytes = self.send_buffer_bytes.max(2 * 1412);
        self.send_buffer_pieces = self.send_buffer_pieces.max(1);
        self.unproven_packets = self.unproven_packets.max(1);
        self.unproven_max = self.unproven_max.max(1);
        self
    }
}

/// Extent to which an address is answered when it sends `rxdebug` requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugAccess {
    /// No answers, including to other packets from this address that belong to no connection.
    None,
    /// DEBUG is not answered. The answer to VERSION is not longer than the request, so that a
    /// forged request does not amplify traffic to the spoofed sender.
    Short,
    /// Both are answered. Answers to DEBUG contain the addresses of clients but no numbers that
    /// only the two ends of a connection may know; they are up to nine times as long as the
    /// request.
    Full,
}

/// Policy that decides by address which [`DebugAccess`] a peer receives.
#[derive(Clone)]
pub struct DebugPolicy(Arc<dyn Fn(IpAddr) -> DebugAccess + Send + Sync>);

impl DebugPolicy {
    /// Creates a policy that calls `decide`.
    pub fn new(decide: impl Fn(IpAddr) -> DebugAccess + Send + Sync + 'static) -> DebugPolicy {
        DebugPolicy(Arc::new(decide))
    }

    /// Returns the extent to which `address` is answered.
    pub fn of(&self, address: IpAddr) -> DebugAccess {
        (self.0)(address)
    }
}

impl Default for DebugPolicy {
    /// Creates a policy of [`DebugAccess::Full`] for loopback addresses, which remote hosts cannot
    /// use, and [`DebugAccess::Short`] for all others.
    fn default() -> DebugPolicy {
        DebugPolicy::new(|address| {
            if address.to_canonical().is_loopback() {
                DebugAccess::Full
            } else {
                DebugAccess::Short
            }
        })
    }
}

impl fmt::Debug for DebugPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions")
    }
}

/// Time limits of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest silence of the peer.
    pub dead: Duration,
    /// Longest time without data while the call waits for the peer.
    pub idle: Option<Duration>,
    /// Longest time from start to end.
    pub hard: Option<Duration>,
    /// Replaces `dead` for a peer from which nothing was received in the call, once an ICMP error
    /// reported that its port is closed; `None` ignores such reports. The report is never the only
    /// evidence, because it can be forged: the call is also sent again and has to stay unanswered
    /// for this time.
    pub refused: Option<Duration>,
}

impl Timeouts {
    /// Returns the time limits of incoming calls.
    pub(crate) const fn of_server(config: &Config) -> Timeouts {
        Timeouts {
            dead: config.dead_time,
            idle: config.idle_time,
            hard: config.hard_time,
            refused: None,
        }
    }
}

impl Default for Timeouts {
    /// Creates the limits of a patient client: the server may work as long as it answers pings.
    fn default() -> Timeouts {
        Timeouts {
            dead: Config::default().dead_time,
            idle: None,
            hard: None,
            refused: None,
        }
    }
}
