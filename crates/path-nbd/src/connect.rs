//! Connection setup: name resolution, socket, TLS, negotiation. Blocking, with a deadline; never
//! called on an I/O thread.

use crate::options::Options;
use crate::uri::{NbdUri, Server};
use crate::wire::{Socket, Wire};
use block::{Error, ErrorKind, Result};
use nbd_proto::client::{ClientHandshake, ClientOptions, ClientStep, ServerExport};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kernel closes a TCP connection whose data stays unacknowledged for this long. The upper
/// layer switches paths long before.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between connection attempts while the backlog of a Unix socket is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// A connection after the negotiation, with the bytes (`rest`) received after its end.
pub(crate) struct Negotiated {
    pub(crate) wire: Wire,
    pub(crate) export: ServerExport,
    pub(crate) rest: Vec<u8>,
}

/// Connects and negotiates within the given time.
pub(crate) fn connect(
    uri: &NbdUri,
    options: &Options,
    wish: ClientOptions,
    within: Duration,
) -> Result<Negotiated> {
    let until = Instant::now() + within;
    let socket = socket(uri, until)?;
    negotiate(uri, options, wish, socket, until)
}

fn connection_error(uri: &NbdUri, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        _ => ErrorKind::PathLost,
    };
    let detail = format!("cannot connect to the NBD server: {e}");
    Error::new(kind, uri.to_string(), detail)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server did not answer in time; it may serve one client only \
             (qemu-nbd: --shared=N)",
        ))
    } else {
        Ok(left)
    }
}

fn socket(uri: &NbdUri, until: Instant) -> Result<Socket> {
    let made = match &uri.server {
        Server::Tcp(host, port) => tcp(host, *port, until),
        Server::Unix(path) => unix(path, until),
    };
    made.map_err(|e| connection_error(uri, e))
}

fn tcp(host: &str, port: u16, until: Instant) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let timeout = u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
                sockopt::set_tcp_user_timeout(&stream, timeout)?;
                // Unsent data must not reach the server after a close, not even after SIGKILL.
                sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                return Ok(Socket(stream.into()));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn unix(path: &Path, until: Instant) -> io::Result<Socket> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&fd, &address) {
            Ok(()) => return Ok(Socket(fd)),
            // The listener's backlog is full; no event signals that it has room again.
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(BACKLOG_PAUSE.min(left(until)?)),
            Err(e) => return Err(e.into()),
        }
    }
}

fn negotiate(
    uri: &NbdUri,
    options: &Options,
    wish: ClientOptions,
    socket: Socket,
    until: Instant,
) -> Result<Negotiated> {
    let wish = ClientOptions {
        export: uri.export.clone(),
        tls: uri.tls,
        ..wish
    };
    let mut wire = Wire::new(socket, None);
    let mut handshake = ClientHandshake::new(wish.clone());
    let mut input = Vec::new();
    loop {
        send(&mut wire, &handshake.take_output(), until).map_err(|e| connection_error(uri, e))?;
        match handshake.outcome() {
            None => {
                receive(&mut wire, &mut input, until).map_err(|e| connection_error(uri, e))?;
                let used = handshake
                    .handle_input(&input)
                    .map_err(|e| Error::new(ErrorKind::PathLost, uri.to_string(), e.to_string()))?;
                input.drain(..used);
            }
            Some(ClientStep::StartTls) if !input.is_empty() => {
                // Plaintext after the response may have been injected by an attacker.
                let why = "the server sent data before the TLS handshake";
                return Err(Error::new(ErrorKind::PathLost, uri.to_string(), why));
            }
            Some(ClientStep::StartTls) => {
                wire = start_tls(uri, options, wire)?;
                handshake = ClientHandshake::under_tls(wish.clone());
            }
            Some(ClientStep::Transmission(export) | ClientStep::Told(export)) => {
                return Ok(Negotiated {
                    wire,
                    export: export.clone(),
                    rest: input,
                });
            }
        }
    }
}

fn send(wire: &mut Wire, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() || wire.holds_output() {
        let sent = if bytes.is_empty() {
            wire.push().map(|()| 0)
        } else {
            wire.send(&[IoSlice::new(bytes)])
        };
        match sent {
            Ok(sent) => bytes = &bytes[sent..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait(wire, PollFlags::OUT, until)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive(wire: &mut Wire, input: &mut Vec<u8>, until: Instant) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match wire.recv(&mut [IoSliceMut::new(&mut bytes)]) {
            Ok(0) => {
                let why = "the server closed the connection during the negotiation";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Ok(read) => {
                input.extend(&bytes[..read]);
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                // A TLS handshake may have to send before it receives more.
                match wire.push() {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    _ => wait(wire, PollFlags::IN, until)?,
                }
            }
            Err(e) => return Err(e),
        }
    }
}

fn wait(wire: &Wire, mut flags: PollFlags, until: Instant) -> io::Result<()> {
    if wire.holds_output() {
        flags |= PollFlags::OUT;
    }
    let left = Timespec::try_from(left(until)?).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let fd = wire.fd();
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn start_tls(uri: &NbdUri, options: &Options, wire: Wire) -> Result<Wire> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, uri.to_string(), why);
    let folder = uri.certificates.as_ref().or(options.certificates.as_ref());
    let folder = folder.ok_or_else(|| {
        invalid(
            "TLS needs a CA certificate; add ?tls-certificates=DIR, a directory with ca-cert.pem"
                .into(),
        )
    })?;
    let config = tls_config(folder).map_err(invalid)?;
    let host = match &uri.server {
        Server::Tcp(host, _) => host.clone(),
        Server::Unix(_) => "localhost".into(),
    };
    let name = host
        .clone()
        .try_into()
        .map_err(|e| invalid(format!("`{host}` is not a valid server name for TLS: {e}")))?;
    let tls = ClientConnection::new(Arc::new(config), name)
        .map_err(|e| invalid(format!("cannot start TLS: {e}")))?;
    Ok(wire.with_tls(Box::new(tls)))
}

fn tls_config(folder: &Path) -> std::result::Result<ClientConfig, String> {
    let certificates = |name: &str| {
        let path = folder.join(name);
        let pem = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        CertificateDer::pem_slice_iter(&pem)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|e| format!("{}: {e}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca-cert.pem")? {
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    if !folder.join("client-cert.pem").exists() {
        return Ok(builder.with_no_client_auth());
    }
    let path = folder.join("client-key.pem");
    let pem = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| match e {
        pem::Error::NoItemsFound => format!("{}: no private key (PEM) found", path.display()),
        e => format!("{}: {e}", path.display()),
    })?;
    builder
        .with_client_auth_cert(certificates("client-cert.pem")?, key)
        .map_err(|e| e.to_string())
}
