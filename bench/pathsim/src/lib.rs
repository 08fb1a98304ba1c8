//! A proxy between a client and a server that simulates faults of the path between them: slow,
//! delayed, silent, broken, corrupt. For testers; a test may also run it in its own process.
//!
//! ```text
//!   client ──up──►  Pathsim  ──up──►  server        one thread per direction of a connection
//!          ◄─down─           ◄─down─
//! ```
//!
//! **Invariant:** data is delivered in the order in which it was read, or never. The proxy
//! generates no data except by `corrupt` and `replay`, whose purpose it is.
//!
//! Deliberately absent: knowledge of any protocol.

mod command;
mod pump;

pub use command::{Command, Direction};

use pump::{Shared, serve};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Polling interval of waiting threads.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// Address to listen on or to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`; port 0 selects a free one.
    Tcp(String),
    /// Path of a Unix socket; contains a `/`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text {
            _ if text.contains('/') => Ok(Address::Unix(text.into())),
            _ if text.contains(':') => Ok(Address::Tcp(text.into())),
            _ => Err(format!("`{text}` is neither HOST:PORT nor a socket path")),
        }
    }
}

impl Address {
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Address::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Address::Unix(path) => UnixStream::connect(path)?.into(),
        })
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(at: &Address) -> io::Result<Listener> {
        let listener = match at {
            Address::Tcp(at) => Listener::Tcp(TcpListener::bind(at)?),
            Address::Unix(path) => {
                let _ = std::fs::remove_file(path);
                Listener::Unix(UnixListener::bind(path)?)
            }
        };
        match &listener {
            Listener::Tcp(l) => l.set_nonblocking(true)?,
            Listener::Unix(l) => l.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Listener::Tcp(l) => {
                let stream = l.accept()?.0;
                stream.set_nodelay(true)?;
                stream.into()
            }
            Listener::Unix(l) => l.accept()?.0.into(),
        })
    }
}

/// Counters of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    /// Bytes delivered to the server.
    pub up: u64,
    /// Bytes delivered to the client.
    pub down: u64,
    /// Bytes read and not yet delivered.
    pub held: u64,
}

/// A running proxy; stops on drop.
pub struct Pathsim {
    shared: Arc<Shared>,
    address: Address,
}

impl Pathsim {
    /// Starts a proxy.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start(listen: &Address, upstream: Address) -> io::Result<Pathsim> {
        let listener = Listener::bind(listen)?;
        let address = match &listener {
            Listener::Tcp(l) => Address::Tcp(l.local_addr()?.to_string()),
            Listener::Unix(_) => listen.clone(),
        };
        let shared = Arc::new(Shared::new(upstream));
        let (theirs, at) = (Arc::clone(&shared), address.clone());
        std::thread::Builder::new()
            .name("pathsim".into())
            .spawn(move || accept(&theirs, listener, &at))?;
        Ok(Pathsim { shared, address })
    }

    /// Returns the address for clients.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Executes a command.
    ///
    /// # Errors
    /// The reason as text.
    pub fn command(&self, command: Command) -> Result<(), String> {
        self.shared.command(command)
    }

    /// Parses and executes a command line.
    ///
    /// # Errors
    /// The line is not a command, or it failed.
    pub fn run(&self, line: &str) -> Result<(), String> {
        self.command(line.parse()?)
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Answers command lines on a Unix socket: `ok`, `error: WHY`, or the counters as JSON for
    /// `stats`. Does not return unless the socket fails.
    ///
    /// # Errors
    /// The socket cannot be created, or accepting a connection failed.
    pub fn control(&self, path: &Path) -> io::Result<()> {
        let _ = std::fs::remove_file(path);
        for stream in UnixListener::bind(path)?.incoming() {
            let mut stream = stream?;
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_err() {
                continue;
            }
            let line = line.trim();
            let answer = match line {
                "stats" => {
                    let s = self.stats();
                    format!(
                        "{{\"connections\":{},\"up\":{},\"down\":{},\"held\":{}}}",
                        s.connections, s.up, s.down, s.held
                    )
                }
                _ => match self.run(line) {
                    Ok(()) => "ok".into(),
                    Err(why) => format!("error: {why}"),
                },
            };
            // The sender may have disconnected.
            let _ = writeln!(stream, "{answer}");
        }
        Ok(())
    }
}

impl Drop for Pathsim {
    fn drop(&mut self) {
        self.shared.end.store(true, Relaxed);
        self.shared.resets.fetch_add(1, Relaxed);
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Accepts connections; closes the listener while they are to be refused.
fn accept(shared: &Arc<Shared>, listener: Listener, at: &Address) {
    let mut listener = Some(listener);
    while !shared.end.load(Relaxed) {
        let refused = shared.faults().refuse;
        if refused {
            listener = None;
        } else if listener.is_none() {
            listener = Listener::bind(at).ok();
        }
        match listener.as_ref().map(Listener::accept) {
            Some(Ok(client)) => {
                let shared = Arc::clone(shared);
                let _ = std::thread::Builder::new().spawn(move || serve(&shared, client));
            }
            _ => std::thread::sleep(TICK),
        }
    }
}
