//! `packets`: raw UDP echo requests, modeled on the packet pumping of the 1990 report: 4 bytes (a
//! call), 1500 and 1526 (two IP fragments on an Ethernet); and Rx calls of 1500 bytes each way.
//!
//! ```text
//!   near ── UdpSocket ──┐                        ┌── echo ── far
//!        └─ Rx caller ──┴── veth or loopback ────┴── Rx server
//! ```
//!
//! One request is in flight at a time; the time covers all exchanges. Without a peer both ends are
//! in this process: over a veth pair with Ethernet-sized packets, if the user may create one, or
//! over the loopback, whose 64 KiB packets hide fragmentation. The outcome states the link, and
//! whether a size was fragmented. A UDP request without an answer within a second is retransmitted
//! and counted; Rx retransmits by itself.

#[allow(unsafe_code)] // Entering a new network namespace is an unsafe system call.
mod link;
mod rx;

use ::rx::Port;
use bench_core::{Error, Result};
use link::{FAR, NEAR, Pair, Sent};
pub use rx::serve;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Largest payload of UDP over IPv4.
const SIZE_MAX: usize = 65_507;
/// Maximum bytes of a call each way.
const RX_SIZE_MAX: usize = 1 << 30;
/// Headers of IPv4 and UDP, in bytes.
const HEADERS: usize = 28;
/// Time after which a request is retransmitted.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of consecutive retransmissions after which the peer is considered dead.
const TRIES: u32 = 10;

/// Sizes, counts and peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// UDP payload sizes in bytes, at least 4 each.
    pub sizes: Vec<usize>,
    /// Requests per size.
    pub exchanges: u64,
    /// Bytes of an Rx call in each direction.
    pub rx_sizes: Vec<usize>,
    /// Calls per size.
    pub rx_exchanges: u64,
    /// Address of the echo server; `None`: a thread of this process.
    pub peer: Option<SocketAddr>,
    /// Address of the Rx server; `None`: the port after that of `peer`, or this process.
    pub rx_peer: Option<SocketAddr>,
    /// Link between two ends in this process.
    pub link: Link,
}

/// Link between two ends in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// A veth pair if this user may create one, else the loopback.
    Auto,
    /// A veth pair with Ethernet-sized packets between separate network namespaces. Requires root.
    Veth,
    /// The loopback of this machine.
    Loopback,
}

impl Default for Config {
    /// Creates the report's configuration: 10,000 exchanges, 1,000 over Rx.
    fn default() -> Config {
        Config {
            sizes: vec![4, 1500, 1526],
            exchanges: 10_000,
            rx_sizes: vec![1500],
            rx_exchanges: 1000,
            peer: None,
            rx_peer: None,
            link: Link::Auto,
        }
    }
}

/// Route of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketRoute {
    /// Over a veth pair.
    Veth,
    /// Over the loopback.
    Loopback,
    /// To the configured peer.
    Peer,
}

/// Result for one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacketResult {
    /// Bytes of a request and of its echo.
    pub size: usize,
    /// Whether the exchanges were Rx calls.
    pub rx: bool,
    /// Route of the packets.
    pub way: PacketRoute,
    /// Number of exchanges.
    pub exchanges: u64,
    /// Retransmitted requests; for Rx, retransmitted packets.
    pub again: u64,
    /// Seconds of all exchanges together.
    pub secs: f64,
    /// Whether a request was sent in more than one IP fragment; `None`: unknown.
    pub fragments: Option<bool>,
    /// Packets of all requests: IP packets counted by the kernel on a veth pair, or DATA packets of
    /// Rx.
    pub packets: Option<u64>,
}

impl PacketResult {
    /// Returns the name for reports: `1526 bytes over veth, in fragments`.
    pub fn name(&self) -> String {
        let what = if self.rx { "Rx " } else { "" };
        let way = match self.way {
            PacketRoute::Veth => " over veth",
            PacketRoute::Loopback => " over loopback",
            PacketRoute::Peer => "",
        };
        let whole = match self.fragments {
            Some(true) => ", in fragments",
            Some(false) => ", not in fragments",
            None => "",
        };
        format!("{what}{} bytes{way}{whole}", self.size)
    }
}

/// Measures all sizes.
///
/// # Errors
/// [`Error::Spec`] for an invalid configuration; [`Error::Program`] for a peer that does not
/// answer.
pub fn run(config: &Config) -> Result<Vec<PacketResult>> {
    check(config)?;
    with_ends(config, |near| {
        near.works(config)
            .into_iter()
            .map(|work| near.exchange(work))
            .collect()
    })
}

/// Checks whether the configuration is within its limits.
///
/// # Errors
/// [`Error::Spec`] if it is not.
pub fn check(config: &Config) -> Result<()> {
    let wrong = |text: String| Err(Error::Spec(text));
    let fits = |size: &usize| (4..=SIZE_MAX).contains(size);
    let rx_fits = |size: &usize| (1..=RX_SIZE_MAX).contains(size);
    let counts = [
        (config.sizes.is_empty(), config.exchanges),
        (config.rx_sizes.is_empty(), config.rx_exchanges),
    ];
    let is_nothing = counts.iter().all(|(empty, _)| *empty);
    if is_nothing || counts.iter().any(|(empty, count)| !empty && *count == 0) {
        return wrong("at least one size with at least one exchange is required".into());
    }
    if !config.sizes.iter().all(fits) || !config.rx_sizes.iter().all(rx_fits) {
        return wrong(format!(
            "UDP payloads must be 4 to {SIZE_MAX} bytes, and Rx payloads 1 byte to 1 GiB"
        ));
    }
    if config.link == Link::Veth && !config.is_here() {
        return wrong("link=veth needs both ends in this process; omit peer and rx_peer".into());
    }
    Ok(())
}

impl Config {
    /// Checks whether both ends are in this process.
    fn is_here(&self) -> bool {
        self.peer.is_none() && self.rx_peer.is_none()
    }
}

/// The servers in this process.
struct Far {
    echo: UdpSocket,
    server: Port,
}

impl Far {
    fn at(address: Ipv4Addr) -> Result<Far> {
        Ok(Far {
            echo: UdpSocket::bind((address, 0)).map_err(failed)?,
            server: serve((address, 0).into()).map_err(failed)?,
        })
    }
}

/// The client side.
pub struct Near {
    socket: UdpSocket,
    way: PacketRoute,
    caller: rx::Caller,
    rx_way: PacketRoute,
}

/// Exchanges of one size.
#[derive(Clone, Copy)]
pub struct Work {
    size: usize,
    count: u64,
    rx: bool,
}

/// Opens both ends and runs `work`, on a thread in the link's own network namespace.
pub fn with_ends<T: Send>(
    config: &Config,
    work: impl FnOnce(&Near) -> Result<T> + Send,
) -> Result<T> {
    let pair = match config.link {
        Link::Veth => Some(Pair::new().map_err(no_link)?),
        Link::Auto if config.is_here() => Pair::new().ok(),
        Link::Auto | Link::Loopback => None,
    };
    match &pair {
        Some(pair) => {
            let far = pair.far.within(|| Far::at(FAR)).map_err(no_link)??;
            let run = || between(config, &far, (NEAR.into(), PacketRoute::Veth), work);
            pair.near.within(run).map_err(no_link)?
        }
        None => {
            let far = Far::at(Ipv4Addr::LOCALHOST)?;
            let any = Ipv4Addr::UNSPECIFIED.into();
            between(config, &far, (any, PacketRoute::Loopback), work)
        }
    }
}

fn between<T>(
    config: &Config,
    far: &Far,
    (own, here): (IpAddr, PacketRoute),
    work: impl FnOnce(&Near) -> Result<T>,
) -> Result<T> {
    let way = |given: Option<SocketAddr>| given.map_or(here, |_| PacketRoute::Peer);
    let peer = match config.peer {
        Some(peer) => peer,
        None => far.echo.local_addr().map_err(failed)?,
    };
    let after = |peer: SocketAddr| SocketAddr::new(peer.ip(), peer.port().saturating_add(1));
    let rx_given = config.rx_peer.or(config.peer.map(after));
    let own: IpAddr = match peer {
        SocketAddr::V4(_) => own,
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((own, 0)).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    let near = Near {
        socket,
        way: way(config.peer),
        caller: rx::Caller::new(rx_given.unwrap_or(far.server.address()))?,
        rx_way: way(rx_given),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&far.echo, &stop));
        let done = work(&near);
        stop.store(true, Relaxed);
        done
    })
}

/// Echoes all datagrams until `stop` is set.
///
/// # Errors
/// Any error of the socket.
pub fn echo(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; SIZE_MAX];
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    while !stop.load(Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => {
                // The error of a peer that has gone away, reported by ICMP, must not stop the
                // others.
                let _ = socket.send_to(&buffer[..n], from);
            }
            Err(e) if passing(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn passing(e: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(
        e.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused
    )
}

impl Near {
    /// Returns the measurements to make, in order.
    pub fn works(&self, config: &Config) -> Vec<Work> {
        let udp = (&config.sizes, config.exchanges, false);
        let calls = (&config.rx_sizes, config.rx_exchanges, true);
        let all = [udp, calls].into_iter().flat_map(|(sizes, count, rx)| {
            let of = move |&size: &usize| Work { size, count, rx };
            sizes.iter().map(of)
        });
        all.collect()
    }

    /// Performs one measurement.
    pub fn exchange(&self, work: Work) -> Result<PacketResult> {
        if work.rx {
            self.calls(work)
        } else {
            self.echoes(work)
        }
    }

    fn calls(&self, work: Work) -> Result<PacketResult> {
        let before = self.caller.sent();
        let began = Instant::now();
        for _ in 0..work.count {
            self.caller.call(work.size)?;
        }
        let secs = began.elapsed().as_secs_f64();
        let (sent, again) = self.caller.sent();
        Ok(PacketResult {
            size: work.size,
            rx: true,
            way: self.rx_way,
            exchanges: work.count,
            again: again - before.1,
            secs,
            fragments: None,
            packets: Some(sent - before.0),
        })
    }

    fn echoes(&self, Work { size, count, .. }: Work) -> Result<PacketResult> {
        let counted = || (self.way == PacketRoute::Veth).then(Sent::now).flatten();
        let before = counted();
        let (secs, again) = exchange(&self.socket, size, count)?;
        let packets = counted()
            .zip(before)
            .map(|(end, start)| end.packets_since(start));
        let by_length = || Some(size + HEADERS > loopback_mtu()?);
        let fragments = match self.way {
            PacketRoute::Veth => packets.map(|packets| packets > count + again),
            PacketRoute::Loopback => by_length(),
            PacketRoute::Peer => None,
        };
        Ok(PacketResult {
            size,
            rx: false,
            way: self.way,
            exchanges: count,
            again,
            secs,
            fragments,
            packets,
        })
    }
}

/// Sends `exchanges` requests of one size; returns the seconds and the number of retransmissions.
fn exchange(socket: &UdpSocket, size: usize, exchanges: u64) -> Result<(f64, u64)> {
    let mut request = vec![0; size];
    bench_core::rng::Rng::new(size as u64).fill(&mut request);
    let mut reply = vec![0; SIZE_MAX];
    let mut again = 0;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let began = Instant::now();
    for number in 0..exchanges {
        request[..4].copy_from_slice(&(number as u32).to_le_bytes());
        let mut tries = 0;
        socket.send(&request).map_err(failed)?;
        loop {
            match socket.recv(&mut reply) {
                // A late echo of a retransmitted request has another number.
                Ok(n) if reply[..n] == request[..] => break,
                Ok(_) => {}
                Err(e) if passing(&e) && tries < TRIES => {
                    (tries, again) = (tries + 1, again + 1);
                    socket.send(&request).map_err(failed)?;
                }
                Err(e) => return Err(failed(e)),
            }
        }
    }
    Ok((began.elapsed().as_secs_f64(), again))
}

fn loopback_mtu() -> Option<usize> {
    let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").ok()?;
    mtu.trim().parse().ok()
}

fn failed(source: io::Error) -> Error {
    Error::Program {
        what: "packets".into(),
        detail: format!("no answer from the peer: {source}"),
    }
}

fn no_link(source: io::Error) -> Error {
    Error::Program {
        what: "packets".into(),
        detail: format!("cannot create a veth pair: {source}; link=loopback needs none"),
    }
}

#[cfg(test)]
mod tests;
