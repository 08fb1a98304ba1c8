//! Connection and login, discovery, and the list of logical units.

use crate::address::Portal;
use crate::errors::of_protocol;
use crate::link::{Data, Link};
use crate::nexus::random_isid;
use crate::options::Options;
use crate::wire::Wire;
use block::{Error, ErrorKind, Result};
use iscsi_proto::scsi::{cdb, lun_field, lun_number, parse_luns};
use iscsi_proto::{
    Credentials, Kind, Login, LoginConfig, LoginResult, Mutual, ProtocolError, Session,
    parse_targets,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay, set_tcp_user_timeout};
use secret::SecretBytes;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum number of redirections followed.
const REDIRECTS_MAX: u32 = 4;
/// Maximum length of a CHAP secret in bytes.
const SECRET_BYTES_MAX: usize = 512;
/// Allocation length for REPORT LUNS: 2,047 units.
const LUNS_BYTES: u32 = 8 + 2047 * 8;

/// A target and its portals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// iSCSI qualified name of the target.
    pub iqn: String,
    /// `HOST:PORT` of each portal.
    pub portals: Vec<String>,
}

/// Queries a portal, `HOST[:PORT]`, for its targets (RFC 7143, appendix C). Blocks for at most
/// `within`, not counting the resolution of the host name.
///
/// # Errors
/// The portal does not answer in time, rejects the login, or violates the protocol.
pub fn discover(portal: &str, options: &Options, within: Duration) -> Result<Vec<Target>> {
    let deadline = Instant::now() + within;
    let access = Access::of(options, options.chap_user.clone())?;
    let mut link = log_in(
        portal,
        &Portal::parse(portal)?,
        &access,
        Kind::Discovery,
        random_isid(),
        deadline,
    )?;
    let text = link.send_targets(deadline)?;
    let targets = parse_targets(&text).map_err(|e| link.protocol(&e))?;
    let plain = |target: iscsi_proto::Target| Target {
        iqn: target.iqn,
        portals: target
            .portals
            .into_iter()
            .map(|(address, _)| address)
            .collect(),
    };
    Ok(targets.into_iter().map(plain).collect())
}

/// Lists the logical units of a target (REPORT LUNS), as numbers below 16,384; larger numbers are
/// not addressable and are left out. Blocks for at most `within`, not counting the resolution of
/// the host name.
///
/// # Errors
/// Same as [`discover`], and errors reported by the target.
pub fn luns(portal: &str, iqn: &str, options: &Options, within: Duration) -> Result<Vec<u16>> {
    let deadline = Instant::now() + within;
    let access = Access::of(options, options.chap_user.clone())?;
    let kind = Kind::Normal {
        target: iqn,
        lun: [0; 8],
    };
    let mut link = log_in(
        portal,
        &Portal::parse(portal)?,
        &access,
        kind,
        random_isid(),
        deadline,
    )?;
    let cdb = cdb::report_luns(LUNS_BYTES);
    let data = link.command(&cdb, &Data::In(LUNS_BYTES), deadline)?;
    Ok(parse_luns(&data)
        .into_iter()
        .filter_map(lun_number)
        .collect())
}

/// Identity of the initiator, with its CHAP secrets loaded.
pub(crate) struct Access<'o> {
    options: &'o Options,
    user: Option<String>,
    secret: Option<SecretBytes>,
    target_secret: Option<SecretBytes>,
}

impl<'o> Access<'o> {
    pub(crate) fn of(options: &'o Options, user: Option<String>) -> Result<Access<'o>> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, &options.initiator_name, why));
        let read = |file: &Option<_>| file.as_deref().map(read_secret).transpose();
        let secret = read(&options.chap_secret_file)?;
        let target_secret = read(&options.chap_target_secret_file)?;
        match (&user, &secret, &target_secret) {
            (Some(_), None, _) => return invalid("a CHAP user needs a file with the secret"),
            (None, ..) if target_secret.is_some() => {
                return invalid("mutual CHAP needs a CHAP user for the initiator");
            }
            (_, Some(a), Some(b)) if a == b => {
                return invalid("both sides of mutual CHAP have the same secret; use two");
            }
            _ => {}
        }
        Ok(Access {
            options,
            user,
            secret,
            target_secret,
        })
    }

    fn credentials(&self, md5_only: bool) -> Option<Credentials<'_>> {
        let mut random = [0; 17];
        getrandom::fill(&mut random).expect("the kernel gives random bytes");
        let [id, challenge @ ..] = random;
        let mutual = self.target_secret.as_deref().map(|secret| Mutual {
            secret,
            id,
            challenge,
        });
        Some(Credentials {
            user: self.user.as_deref()?,
            secret: self.secret.as_deref()?,
            md5_only,
            mutual,
        })
    }
}

fn read_secret(path: &Path) -> Result<SecretBytes> {
    let failed =
        |e| Error::from_io(path.display().to_string(), e).detail("cannot read the CHAP secret");
    let mut file = File::open(path).map_err(failed)?;
    let mut held = SecretBytes::zeroed(SECRET_BYTES_MAX + 1);
    let mut len = 0;
    while len < held.len() {
        match file.read(&mut held[len..]).map_err(failed)? {
            0 => break,
            n => len += n,
        }
    }
    let text = &held[..len];
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.is_empty() || text.len() > SECRET_BYTES_MAX {
        let why = format!("a CHAP secret must have 1 to {SECRET_BYTES_MAX} bytes");
        let name = path.display().to_string();
        return Err(Error::new(ErrorKind::Invalid, name, why));
    }
    Ok(SecretBytes::from_slice(text))
}

/// Connects to a portal and logs in, following redirections.
pub(crate) fn log_in(
    name: &str,
    portal: &Portal,
    access: &Access<'_>,
    kind: Kind<'_>,
    isid: [u8; 6],
    deadline: Instant,
) -> Result<Link> {
    let (mut portal, mut md5_only) = (portal.clone(), false);
    for _ in 0..=REDIRECTS_MAX {
        let mut stream = connect(name, &portal, access.options, deadline)?;
        let wanted = access.options.wanted();
        let mut login = Login::new(LoginConfig {
            initiator: &access.options.initiator_name,
            kind,
            isid,
            credentials: access.credentials(md5_only),
            offered: &wanted,
        });
        match negotiate(name, &mut stream, &mut login, deadline) {
            Ok(Step::Session(session, early)) => {
                return Ok(Link::new(Wire::new(stream, *session, &early), name, isid));
            }
            Ok(Step::Elsewhere(address)) => portal = Portal::parse(&address)?,
            // Some targets take the number of SHA-256 for SHA-1 and reject the response as
            // malformed.
            Err(Failed::Protocol(ProtocolError::Refused {
                class: 2,
                detail: 0 | 1,
                ..
            })) if login.used_sha256() && !md5_only => md5_only = true,
            Err(Failed::Protocol(error)) => return Err(of_protocol(name, &error)),
            Err(Failed::Io(error)) => return Err(error),
        }
    }
    let why = "the target redirects the login too often";
    Err(Error::new(ErrorKind::PathLost, name, why))
}

enum Step {
    Session(Box<Session>, Vec<u8>),
    Elsewhere(String),
}

enum Failed {
    Protocol(ProtocolError),
    Io(Error),
}

fn negotiate(
    name: &str,
    stream: &mut TcpStream,
    login: &mut Login<'_>,
    deadline: Instant,
) -> std::result::Result<Step, Failed> {
    let failed = |e: std::io::Error| {
        let why = format!("the connection was lost during the login: {e}");
        Failed::Io(Error::new(ErrorKind::PathLost, name, why))
    };
    let mut held = [0; 16 * 1024];
    loop {
        let output = login.take_output();
        let mut rest = &output[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    wait(name, stream, PollFlags::OUT, deadline).map_err(Failed::Io)?;
                }
                Err(e) => return Err(failed(e)),
            }
        }
        wait(name, stream, PollFlags::IN, deadline).map_err(Failed::Io)?;
        let n = match stream.read(&mut held) {
            Ok(0) => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(failed(e)),
        };
        let taken = login.handle_input(&held[..n]).map_err(Failed::Protocol)?;
        match login.take_outcome() {
            None => {}
            Some(LoginResult::LoggedIn(session)) => {
                return Ok(Step::Session(session, held[taken..n].to_vec()));
            }
            Some(LoginResult::Redirect { address, .. }) => return Ok(Step::Elsewhere(address)),
        }
    }
}

fn connect(name: &str, portal: &Portal, options: &Options, deadline: Instant) -> Result<TcpStream> {
    let addresses = (portal.host.as_str(), portal.port)
        .to_socket_addrs()
        .map_err(|e| {
            let why = format!("cannot resolve the host of portal {portal}: {e}");
            Error::new(ErrorKind::NotFound, name, why)
        })?;
    let mut last = format!("portal {portal} has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                prepare(&stream, options.user_timeout)
                    .map_err(|e| Error::from_io(name, e).detail("cannot configure the socket"))?;
                return Ok(stream);
            }
            Err(e) => last = format!("portal {portal} does not answer at {address}: {e}"),
        }
    }
    Err(Error::new(ErrorKind::PathLost, name, last))
}

fn prepare(stream: &TcpStream, user_timeout: Duration) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    set_tcp_nodelay(stream, true)?;
    // A close discards unsent data and resets the connection immediately.
    set_socket_linger(stream, Some(Duration::ZERO))?;
    let ms = u32::try_from(user_timeout.as_millis()).unwrap_or(u32::MAX);
    set_tcp_user_timeout(stream, ms)?;
    Ok(())
}

fn wait(name: &str, stream: &TcpStream, flags: PollFlags, deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let time = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::new(stream, flags)], time.as_ref()) {
        Ok(0) => {
            let why = "the target did not answer the login in time; check whether it is overloaded";
            Err(Error::new(ErrorKind::TimedOut, name, why))
        }
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::from_io(name, e.into())),
    }
}

/// Builds the eight-byte field of a LUN that [`crate::address::Address`] has validated.
pub(crate) fn field(lun: u16) -> [u8; 8] {
    lun_field(lun).expect("an address holds a LUN below 16384")
}
