//! A proxy between a client and a server that makes the path between them misbehave: slow, late,
//! silent, broken, corrupt. For testers; a test may also run it inside its own process.
//!
//! ```text
//!   client ──up──►  Pathsim  ──up──►  server        one thread for each direction of a connection
//!          ◄─down─           ◄─down─
//! ```
//!
//! **Invariant:** what was read is delivered in order, or never; nothing is made up except by
//! `corrupt` and `replay`, whose purpose it is.
//!
//! Absent on purpose: knowledge of any protocol.

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

/// How often a thread that waits looks whether something changed.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// Where to listen, or to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`; port 0 takes one that is free.
    Tcp(String),
    /// A socket's path; written with a `/`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text {
            _ if text.contains('/') => Ok(Address::Unix(text.into())),
            _ if text.contains(':') => Ok(Address::Tcp(text.into())),
            _ => Err(format!(
                "`{text}` is neither HOST:PORT nor the path of a socket"
            )),
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
    /// Connections taken.
    pub connections: u64,
    /// Bytes delivered to the server.
    pub up: u64,
    /// Bytes delivered to the client.
    pub down: u64,
    /// Bytes that are here.
    pub held: u64,
}

/// A running proxy; ends when it is dropped.
pub struct Pathsim {
    shared: Arc<Shared>,
    address: Address,
}

impl Pathsim {
    /// Starts a proxy.
    ///
    /// # Errors
    /// The address cannot be listened on.
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

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Does what a command says.
    ///
    /// # Errors
    /// It cannot be done; the text says why.
    pub fn command(&self, command: Command) -> Result<(), String> {
        self.shared.command(command)
    }

    /// Does what a command line says.
    ///
    /// # Errors
    /// It is none, or cannot be done.
    pub fn run(&self, line: &str) -> Result<(), String> {
        self.command(line.parse()?)
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Answers command lines on a Unix socket, one answer for each: `ok`, `error: WHY`, or the
    /// counters as JSON for `stats`. Never returns.
    ///
    /// # Errors
    /// The socket cannot be made.
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
            // Whoever asked may be gone.
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

/// Takes connections, and has no listener while they are refused.
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
