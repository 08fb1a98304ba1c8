//! Limits and times of an endpoint, each with its unit and reason.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What an endpoint allows itself and strangers. The defaults suit a file server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Packets of a call that may be received and not yet read, 1 to 255. Large, so that Linux stores
    /// with all of the 128 packets that it sends at most; OpenAFS sends 32.
    pub receive_window: u32,
    /// Packets of a call that may be on their way, 1 to 255: what acknowledgements can speak of.
    pub send_window: u32,
    /// Bytes of a call that the application may write beyond those that arrived. Two windows: one on
    /// its way, one ready to follow.
    pub send_buffer_bytes: usize,
    /// The same in all calls together. Beyond, a call may have 16 packets: enough to go on, so that
    /// clients who ask for much and acknowledge nothing do not stop the others.
    pub send_bytes_max: usize,
    /// The same in all calls of one host, a quarter of that: beyond, its calls alone have as few.
    pub send_bytes_per_host: usize,
    /// References to payloads of a call that are held at once, so that a call of single bytes does
    /// not cost more memory than it sends.
    pub send_buffer_pieces: usize,
    /// Packets after which one is acknowledged, in the long run. Each acknowledgement costs a peer
    /// about 10 microseconds; more than a few packets apart they no longer pace the sender.
    pub ack_stride: u32,
    /// The same for the first packets of a call, as in OpenAFS: windows grow by acknowledgements.
    pub ack_stride_start: u32,
    /// How many packets count as the first.
    pub ack_start_packets: u32,
    /// Longest time before a packet is acknowledged: below what peers wait for it (loss detection
    /// by time some 15 ms, OpenAFS 350 ms), above what a server takes to begin a reply.
    pub ack_delay: Duration,
    /// Packets in a datagram that we send and receive at most, 1 to 46; 1 turns jumbograms off. Four
    /// are what Linux and the OpenAFS server take.
    pub jumbo_packets: u8,

    /// Silence after which a peer with a call is given up (OpenAFS clients: 50 s). It is pinged after
    /// a sixth of it.
    pub dead_time: Duration,
    /// Time without progress of a call that waits for its peer, at a server: for data, or for the word
    /// that it has what was written, also where it said that it takes nothing.
    pub idle_time: Option<Duration>,
    /// Longest time of a call, at a server.
    pub hard_time: Option<Duration>,
    /// Time after which a connection without calls is forgotten (OpenAFS: 700 s).
    pub connection_idle: Duration,
    /// The same where the table is full. Longer than a packet may live in a network, so that a late
    /// duplicate of a call still meets the memory of it.
    pub connection_idle_min: Duration,
    /// Time a stranger has to answer the ping that proves its address: several of its
    /// retransmissions, each of which is answered by a ping.
    pub reach_time: Duration,

    /// Connections that others made, at once. Each costs about 700 bytes.
    pub connections_max: usize,
    /// The same from one host: an IPv4 address, or an IPv6 network of 64 bits. A cell's clients
    /// behind one translated address share it.
    pub connections_per_host: usize,
    /// Connections at once whose peer has not answered yet; beyond, the oldest makes room, whose peer may
    /// answer all the same, and has to send its call again.
    pub unproven_max: usize,
    /// Packets of a call that are held before its peer has answered: the first window of those known.
    pub unproven_packets: u32,
    /// Calls of others at once. Each costs about 700 bytes beside its data.
    pub calls_max: usize,
    /// The same of one host whose address is proven, an eighth of that: many times the threads of a
    /// server. Those beyond are told that the server is busy.
    pub calls_per_host: usize,
    /// Bytes that were received and not read, in all calls, and 256 more for each packet and each gap
    /// before one. Beyond, a call still gets its next packet if it has read all others, so that none
    /// starves.
    pub receive_bytes_max: usize,
    /// Small packets (aborts, answers) that wait to be sent; beyond, they are dropped.
    pub control_packets_max: usize,
    /// Answers a second to packets that belong to no connection: DEBUG, VERSION, aborts.
    pub stray_answers_per_second: u32,

    /// Who is answered DEBUG and VERSION questions, and how fully.
    pub questions: Questions,
    /// What VERSION packets are answered, 64 bytes at most.
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
            questions: Questions::default(),
            version: String::from("EVFS Rx"),
        }
    }
}

impl Config {
    /// The configuration with every number within its limits.
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

/// How fully an address is answered what `rxdebug` asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Not at all, and packets of it that belong to no connection are not answered either.
    None,
    /// DEBUG is not answered, and VERSION with no more bytes than were asked with, so that a forged
    /// question brings its supposed sender nothing larger.
    Short,
    /// Both are. The answers to DEBUG show the addresses of clients, and no numbers that only the two ends
    /// of a connection may know; they are up to nine times as long as the question.
    Full,
}

/// Decides by address how fully questions are answered.
#[derive(Clone)]
pub struct Questions(Arc<dyn Fn(IpAddr) -> Answers + Send + Sync>);

impl Questions {
    /// Decides as `decide` says.
    pub fn new(decide: impl Fn(IpAddr) -> Answers + Send + Sync + 'static) -> Questions {
        Questions(Arc::new(decide))
    }

    /// How fully this address is answered.
    pub fn of(&self, address: IpAddr) -> Answers {
        (self.0)(address)
    }
}

impl Default for Questions {
    /// In full over the loopback, whose addresses nobody else can use; short to others.
    fn default() -> Questions {
        Questions::new(|address| match address.to_canonical().is_loopback() {
            true => Answers::Full,
            false => Answers::Short,
        })
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions")
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence of the peer.
    pub dead: Duration,
    /// Time without data while the peer is waited for.
    pub idle: Option<Duration>,
    /// From start to end.
    pub hard: Option<Duration>,
    /// Silence of a peer of which nothing was heard in the call, once the network has said that nothing
    /// listens at its port; without it, that is not heeded. It shortens `dead` and is never the only
    /// evidence: what the network says can be forged, so the call is also sent again and stays
    /// unanswered for so long.
    pub refused: Option<Duration>,
}

impl Timeouts {
    /// Those of calls that others make.
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
    /// Those of a patient client: the server may work as long as it answers pings.
    fn default() -> Timeouts {
        Timeouts {
            dead: Config::default().dead_time,
            idle: None,
            hard: None,
            refused: None,
        }
    }
}
