//! Claims: exclusion of other users of a volume on this machine, whatever name they reach it by.
//!
//! The lock of a file, or of a LUN's name, does not cover a loop device, another address or another
//! user's registry that leads to the same bytes. The UUID in those bytes does: a process that opens
//! a volume binds an abstract Unix socket named after it. The kernel shares such names among all
//! users of a network namespace, and removes a name when its process dies for any reason.
//!
//! **Invariant:** one UUID has either one [`Claim`] for writing or any number for reading. A writer
//! binds its name and then checks for readers; a reader binds a name and then checks for a writer.
//! The second of two processes therefore always sees the first.

use crate::peer::peer;
use crate::{Error, Result};
use block::Access;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::Path;
use std::time::{Duration, Instant};

/// Names of all sockets in the network namespace; an `@` marks an abstract one.
const SOCKETS: &str = "/proc/net/unix";
/// Limit for the wait for another claim to end: a killed process may take a moment to exit.
const PATIENCE: Duration = Duration::from_secs(1);
/// Backlog of a claim's socket: number of queries for its owner that it can answer.
const ASKERS: i32 = 128;

/// The right to use a volume. It ends with this value, or with the process.
pub(crate) struct Claim {
    _name: OwnedFd,
}

impl Claim {
    /// Claims the volume with this UUID, for writing or reading. `device` names it in errors.
    ///
    /// # Errors
    /// [`Error::Busy`], naming the process that has a claim.
    pub(crate) fn take(uuid: &str, device: &str, access: Access) -> Result<Claim> {
        let until = Instant::now() + PATIENCE;
        let claim = match access {
            Access::ReadWrite => Claim::write(uuid, until),
            Access::ReadOnly => Claim::read(uuid, until),
        };
        claim
            .map_err(|e| Error::Failed(format!("cannot claim {device} for this process: {e}")))?
            .map_err(|holder| {
                holder.refuses(
                    uuid,
                    device,
                    access,
                    "; a device and a copy of it have the same UUID and count as one volume",
                )
            })
    }

    /// Names the process that has a device locked, if it has a claim on its content.
    pub(crate) fn refusal(uuid: &str, device: &str, access: Access) -> Option<Error> {
        let (writer, readers) = (writer(uuid), readers(uuid));
        let mut names = bound().ok()?;
        names.sort();
        let mut names = names.into_iter();
        // The name of the writer sorts before those of readers.
        let name = names.find(|name| *name == writer || name.starts_with(&readers))?;
        Some(Holder { name }.refuses(uuid, device, access, ""))
    }

    fn write(uuid: &str, until: Instant) -> Tried {
        let name = writer(uuid);
        let own = loop {
            match bind(&name)? {
                Some(own) => break own,
                None if Instant::now() < until => pause(),
                None => return Ok(Err(Holder { name })),
            }
        };
        // Readers that bind a name from now on see this writer.
        let prefix = readers(uuid);
        loop {
            match bound()?.into_iter().find(|n| n.starts_with(&prefix)) {
                None => return Ok(Ok(Claim { _name: own })),
                Some(_) if Instant::now() < until => pause(),
                Some(name) => return Ok(Err(Holder { name })),
            }
        }
    }

    fn read(uuid: &str, until: Instant) -> Tried {
        let theirs = writer(uuid);
        loop {
            let mut number = [0; 8];
            getrandom::fill(&mut number).map_err(|e| std::io::Error::other(e.to_string()))?;
            let name = format!("{}{:016x}", readers(uuid), u64::from_le_bytes(number));
            let own = bind(&name)?;
            let written = bound()?.contains(&theirs);
            match own {
                Some(own) if !written => return Ok(Ok(Claim { _name: own })),
                _ if Instant::now() < until => drop(own),
                _ => return Ok(Err(Holder { name: theirs })),
            }
            pause();
        }
    }
}

/// A claim, or the holder of a conflicting one.
type Tried = std::io::Result<std::result::Result<Claim, Holder>>;

fn writer(uuid: &str) -> String {
    format!("evfs/volume/{uuid}")
}

fn readers(uuid: &str) -> String {
    format!("evfs/volume/{uuid}/reader/")
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// The holder of a claim.
struct Holder {
    /// Name of its socket.
    name: String,
}

impl Holder {
    /// Builds the error that `device` cannot be opened; `remark` explains a less obvious conflict.
    fn refuses(&self, uuid: &str, device: &str, access: Access, remark: &str) -> Error {
        let (how, writes) = match access {
            Access::ReadWrite => ("for writing", self.name == writer(uuid)),
            Access::ReadOnly => ("for reading", true),
        };
        let theirs = if writes { "writing" } else { "reading" };
        Error::Busy(format!(
            "cannot open {device} {how}: volume {uuid} is open for {theirs} by {}{remark}; detach \
             it first with `evfs detach NAME` (`evfs status` lists what this user has attached)",
            self.who()
        ))
    }

    /// Describes the holding process, as far as the kernel reports it.
    fn who(&self) -> String {
        let asked = || -> std::io::Result<_> {
            let socket = socket()?;
            let address = SocketAddrUnix::new_abstract_name(self.name.as_bytes())?;
            rustix::net::connect(&socket, &address)?;
            peer(&socket)
        };
        let Ok(cred) = asked() else {
            return "another process".into();
        };
        let (pid, user) = (cred.pid, cred.uid);
        if pid == 0 {
            return format!("a process of user {user} in another PID namespace");
        }
        if i64::from(pid) == i64::from(std::process::id()) {
            return "this very process".into();
        }
        format!("{} of user {user}", program(pid))
    }
}

/// Describes a process by its ID and program name.
pub(crate) fn program(pid: i32) -> String {
    match std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm")) {
        Ok(program) => format!("process {pid} ({})", program.trim()),
        Err(_) => format!("process {pid}"),
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Binds a name; returns `None` if it is taken.
fn bind(name: &str) -> std::io::Result<Option<OwnedFd>> {
    let socket = socket()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    // No connection is ever accepted; connecting suffices to learn the credentials of the owner.
    rustix::net::listen(&socket, ASKERS)?;
    Ok(Some(socket))
}

/// Lists all bound abstract names.
fn bound() -> std::io::Result<Vec<String>> {
    let text = std::fs::read(SOCKETS)?;
    let text = String::from_utf8_lossy(&text);
    let name = |line: &str| Some(line.rsplit_once(' ')?.1.strip_prefix('@')?.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(test: &str) -> String {
        format!("{test}-{}", std::process::id())
    }

    #[test]
    fn one_writes_or_many_read() {
        let (one, other) = (uuid("one"), uuid("other"));
        let writer = Claim::take(&one, "a", Access::ReadWrite).unwrap();
        let _other = Claim::take(&other, "b", Access::ReadWrite).unwrap();
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let refused = Claim::take(&one, "a", access).err().unwrap();
            assert!(matches!(&refused, Error::Busy(why) if why.contains("this very process")));
        }
        drop(writer);
        let readers = [(); 3].map(|()| Claim::take(&one, "a", Access::ReadOnly).unwrap());
        let refused = Claim::take(&one, "a", Access::ReadWrite).err().unwrap();
        assert!(matches!(&refused, Error::Busy(why) if why.contains("open for reading")));
        drop(readers);
        Claim::take(&one, "a", Access::ReadWrite).unwrap();
    }

    #[test]
    fn of_many_that_come_at_once_no_writer_overlaps_another() {
        use std::sync::atomic::{AtomicI32, Ordering};
        let uuid = uuid("crowd");
        // Number of readers inside, or -1 for a writer.
        let inside = AtomicI32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (uuid, inside) = (&uuid, &inside);
                scope.spawn(move || {
                    for round in 0..5 {
                        let write = (thread + round) % 3 == 0;
                        let access = Access::read_only_if(!write);
                        let Ok(claim) = Claim::take(uuid, "a", access) else {
                            continue;
                        };
                        let before = if write {
                            inside.compare_exchange(0, -1, Ordering::SeqCst, Ordering::SeqCst)
                        } else {
                            Ok(inside.fetch_add(1, Ordering::SeqCst))
                        };
                        assert!(before.is_ok_and(|n| n >= 0), "{before:?}");
                        std::thread::yield_now();
                        if write {
                            inside.store(0, Ordering::SeqCst)
                        } else {
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                        drop(claim);
                    }
                });
            }
        });
    }
}
