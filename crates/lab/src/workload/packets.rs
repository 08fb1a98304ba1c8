//! `packets`: requests and echoes by raw UDP, after the packet pumping of the 1990 report: 4 bytes (a
//! call), 1500 and 1526 (two IP fragments on an Ethernet).
//!
//! One request is on its way at a time; the time is that of all exchanges. Without a peer the echo is a
//! thread of this process over the loopback, whose packets of 64 KiB hide fragments: the outcome says
//! whether a size was in fragments. A request that is not answered within a second is sent
//! again and counted.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Largest payload of UDP over IPv4.
const SIZE_MAX: usize = 65_507;
/// Headers of IPv4 and UDP.
const HEADERS: usize = 28;
/// A request is sent again after this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// So often in a row, and then the peer is taken for gone.
const TRIES: u32 = 10;

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Payloads in bytes, at least 4 each.
    pub sizes: Vec<usize>,
    /// Requests of each size.
    pub exchanges: u64,
    /// Who echoes; `None`: a thread of this process.
    pub peer: Option<SocketAddr>,
}

impl Default for Config {
    /// The report's own: 10,000 exchanges.
    fn default() -> Config {
        Config {
            sizes: vec![4, 1500, 1526],
            exchanges: 10_000,
            peer: None,
        }
    }
}

/// A size that was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Bytes of a request and of its echo.
    pub size: usize,
    /// Exchanges.
    pub exchanges: u64,
    /// Requests that were sent again.
    pub again: u64,
    /// Seconds of all.
    pub secs: f64,
    /// Whether a packet went in more than one IP fragment; `None`: the peer is elsewhere.
    pub fragments: Option<bool>,
}

/// Sends everything.
///
/// # Errors
/// [`Error::Spec`]; [`Error::Program`] for a peer that does not answer.
pub fn run(config: &Config) -> Result<Vec<Outcome>> {
    check(config)?;
    with_peer(config, |socket, local| {
        config
            .sizes
            .iter()
            .map(|size| exchange(socket, *size, config.exchanges, local))
            .collect()
    })
}

/// Whether it can be carried out.
///
/// # Errors
/// [`Error::Spec`].
pub fn check(config: &Config) -> Result<()> {
    let fits = |size: &usize| (4..=SIZE_MAX).contains(size);
    if config.sizes.is_empty() || !config.sizes.iter().all(fits) || config.exchanges == 0 {
        return Err(Error::Spec(format!(
            "payloads are 4 to {SIZE_MAX} bytes, and there is at least one exchange"
        )));
    }
    Ok(())
}

/// Opens a socket to the peer, or to a thread that echoes, for as long as `work` takes.
pub(crate) fn with_peer<T>(
    config: &Config,
    work: impl FnOnce(&UdpSocket, bool) -> Result<T>,
) -> Result<T> {
    let stop = AtomicBool::new(false);
    let local = match config.peer {
        Some(_) => None,
        None => Some(UdpSocket::bind("127.0.0.1:0").map_err(failed)?),
    };
    let peer = match (&local, config.peer) {
        (Some(socket), _) => socket.local_addr().map_err(failed)?,
        (None, peer) => peer.expect("there is a peer where there is no echo of our own"),
    };
    let any: &str = if peer.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    std::thread::scope(|scope| {
        if let Some(local) = &local {
            let stop = &stop;
            scope.spawn(move || echo(local, stop));
        }
        let done = work(&socket, local.is_some());
        stop.store(true, Relaxed);
        done
    })
}

/// Sends back whatever comes, until `stop`.
///
/// # Errors
/// What the socket says.
pub fn echo(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; SIZE_MAX];
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    while !stop.load(Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => {
                // A peer that went away is told so by ICMP; the next one is served all the same.
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

/// Sends `exchanges` requests of one size.
pub(crate) fn exchange(
    socket: &UdpSocket,
    size: usize,
    exchanges: u64,
    local: bool,
) -> Result<Outcome> {
    let mut request = vec![0; size];
    crate::rng::Rng::new(size as u64).fill(&mut request);
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
                // An echo of a request that was sent again may come late: it has another number.
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
    let secs = began.elapsed().as_secs_f64();
    let fragments = local.then(loopback_mtu).flatten();
    Ok(Outcome {
        size,
        exchanges,
        again,
        secs,
        fragments: fragments.map(|mtu| size + HEADERS > mtu),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_answered() {
        let config = Config {
            exchanges: 200,
            ..Config::default()
        };
        let outcomes = run(&config).unwrap();
        let sizes: Vec<usize> = outcomes.iter().map(|o| o.size).collect();
        assert_eq!(sizes, [4, 1500, 1526]);
        assert!(outcomes.iter().all(|o| o.exchanges == 200 && o.secs > 0.0));
    }

    #[test]
    fn requests_that_are_lost_are_sent_again() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let config = Config {
            sizes: vec![4],
            exchanges: 3,
            peer: Some(peer.local_addr().unwrap()),
        };
        let forgetful = std::thread::spawn(move || {
            let mut buffer = [0; 16];
            for turn in 0..4 {
                let (n, from) = peer.recv_from(&mut buffer).unwrap();
                if turn != 1 {
                    peer.send_to(&buffer[..n], from).unwrap();
                }
            }
        });
        let outcome = run(&config).unwrap().remove(0);
        forgetful.join().unwrap();
        // A machine under load may lose a second to something else, and ask once more for it.
        assert!(outcome.again >= 1 && outcome.exchanges == 3, "{outcome:?}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for sizes in [vec![], vec![3], vec![65_508]] {
            let config = Config {
                sizes,
                ..Config::default()
            };
            assert!(matches!(run(&config), Err(Error::Spec(_))));
        }
    }
}
