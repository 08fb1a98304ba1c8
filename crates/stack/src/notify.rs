//! Reports of a process to its service manager, by the protocol of sd_notify(3): ready, reloading,
//! stopping, and the keep-alive of a watchdog.
//!
//! A report is one datagram to the socket that `NOTIFY_SOCKET` names. It needs no privilege, and
//! no system call that confinement denies.
//!
//! **Invariant:** a report never fails a service, and delays it by [`PATIENCE`] at most.
//!
//! Deliberately absent: the descriptor store, and `vsock` addresses, which are for a virtual
//! machine as a whole.

use rustix::time::{ClockId, clock_gettime};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Variable with the address of the manager's socket: a path, or `@` and an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Variable with the time after which the manager ends a process that sends no keep-alive.
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// Variable with the process that the watchdog is for; its children inherit the variables.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Longest wait for a manager whose queue is full.
const PATIENCE: Duration = Duration::from_secs(1);
/// Shortest interval between keep-alives.
const ALIVE_MIN: Duration = Duration::from_millis(1);

/// Service manager of this process. Without one, every report does nothing.
pub struct Manager {
    socket: Option<Socket>,
    watchdog: Option<Watchdog>,
    /// Last status text of a process that serves; `None` before the first, and during a reload.
    serving: Option<String>,
}

/// Socket to report with, and the address of the manager.
struct Socket {
    from: UnixDatagram,
    to: SocketAddr,
}

/// Schedule of the keep-alives.
struct Watchdog {
    interval: Duration,
    next: Instant,
}

impl Manager {
    /// Finds the manager that the environment names. `is_kept`: the main process is the parent of this
    /// one, its keeper.
    pub fn of_environment(is_kept: bool) -> Manager {
        let main = if is_kept {
            std::os::unix::process::parent_id()
        } else {
            std::process::id()
        };
        Manager::of(&|name| std::env::var_os(name), main)
    }

    fn of(env: &dyn Fn(&str) -> Option<OsString>, main: u32) -> Manager {
        let address = env(SOCKET).filter(|at| !at.is_empty());
        let socket = address.and_then(|at| {
            let socket = Socket::to(&at);
            if let Err(error) = &socket {
                let at = at.to_string_lossy();
                tracing::warn!(
                    name: "EVFS-0812",
                    "cannot report to the service manager at {at}: {error}"
                );
            }
            socket.ok()
        });
        Manager {
            watchdog: socket.as_ref().and_then(|_| Watchdog::of(env, main)),
            socket,
            serving: None,
        }
    }

    /// Reports that the process is ready, if it was not, and the services that it serves.
    pub fn serving<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        if self.socket.is_none() {
            return;
        }
        let names: Vec<&str> = names.collect();
        let status = format!("STATUS=serving {}", names.join(", "));
        match &self.serving {
            Some(last) if *last == status => return,
            Some(_) => self.send(&status),
            None => self.send(&format!("READY=1\n{status}")),
        }
        self.serving = Some(status);
    }

    /// Reports the beginning of a reload. It ends with the next [`Manager::serving`].
    pub fn reloading(&mut self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading the configuration"
        ));
        self.serving = None;
    }

    /// Reports that the process ends as soon as all data is written. The manager then no longer
    /// expects keep-alives.
    pub fn stopping(&mut self) {
        self.send("STOPPING=1\nSTATUS=writing all data to stable storage");
        self.watchdog = None;
    }

    /// Sends a keep-alive if one is due. Returns the time until the next one.
    pub fn keep_alive(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let watchdog = self.watchdog.as_mut()?;
        let is_due = now >= watchdog.next;
        if is_due {
            watchdog.next = now + watchdog.interval;
        }
        let left = watchdog.next - now;
        if is_due {
            self.send("WATCHDOG=1");
        }
        Some(left)
    }

    fn send(&self, report: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        if let Err(error) = socket.from.send_to_addr(report.as_bytes(), &socket.to) {
            tracing::warn!(
                name: "EVFS-0812",
                "cannot report to the service manager: {error}"
            );
        }
    }
}

impl Socket {
    fn to(address: &OsStr) -> io::Result<Socket> {
        let to = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => {
                let what = "neither an absolute path nor an abstract name";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        };
        let from = UnixDatagram::unbound()?;
        from.set_write_timeout(Some(PATIENCE))?;
        Ok(Socket { from, to })
    }
}

impl Watchdog {
    /// The schedule that the manager has set for this process: twice in its time.
    fn of(env: &dyn Fn(&str) -> Option<OsString>, main: u32) -> Option<Watchdog> {
        let number = |name| env(name)?.to_str()?.parse::<u64>().ok();
        let is_for_us =
            env(WATCHDOG_PID).is_none() || number(WATCHDOG_PID) == Some(u64::from(main));
        let limit = number(WATCHDOG_USEC).filter(|usec| *usec > 0 && is_for_us)?;
        Some(Watchdog {
            interval: Duration::from_micros(limit / 2).max(ALIVE_MIN),
            next: Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manager in an environment with these variables.
    fn manager(variables: &[(&str, &str)]) -> Manager {
        Manager::of(
            &|name| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            },
            std::process::id(),
        )
    }

    fn received(at: &UnixDatagram) -> String {
        let mut room = [0; 4096];
        let len = at.recv(&mut room).expect("a report");
        String::from_utf8(room[..len].to_vec()).unwrap()
    }

    #[test]
    fn each_state_is_reported_once_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("evfs-notify-{}", std::process::id());
        let listed = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&address).unwrap();
        for (at, address) in [
            (listed, path.to_str().unwrap().to_owned()),
            (hidden, format!("@{name}")),
        ] {
            let mut manager = manager(&[(SOCKET, &address)]);
            manager.serving(["a"].into_iter());
            assert_eq!(received(&at), "READY=1\nSTATUS=serving a");
            manager.serving(["a"].into_iter());
            manager.serving(["a", "b"].into_iter());
            assert_eq!(received(&at), "STATUS=serving a, b");
            let before = clock_gettime(ClockId::Monotonic);
            manager.reloading();
            let after = clock_gettime(ClockId::Monotonic);
            let reloading = received(&at);
            assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="));
            let usec = reloading.split(['=', '\n']).nth(3).unwrap();
            let seconds = usec.parse::<i64>().unwrap() / 1_000_000;
            assert!((before.tv_sec..=after.tv_sec).contains(&seconds), "{usec}");
            manager.serving(["a", "b"].into_iter());
            assert_eq!(received(&at), "READY=1\nSTATUS=serving a, b");
            manager.stopping();
            assert!(received(&at).starts_with("STOPPING=1\n"));
            // No keep-alive was requested.
            assert_eq!(manager.keep_alive(), None);
        }
    }

    #[test]
    fn keep_alives_are_sent_twice_in_the_time_of_the_watchdog() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let at = UnixDatagram::bind(&path).unwrap();
        at.set_nonblocking(true).unwrap();
        let path = path.to_str().unwrap();
        let own = std::process::id().to_string();
        let mut manager = manager(&[
            (SOCKET, path),
            (WATCHDOG_USEC, "60000000"),
            (WATCHDOG_PID, &own),
        ]);
        assert_eq!(manager.keep_alive(), Some(Duration::from_secs(30)));
        assert_eq!(received(&at), "WATCHDOG=1");
        let left = manager.keep_alive().unwrap();
        assert!(left <= Duration::from_secs(30), "{left:?}");
        assert!(
            at.recv(&mut [0; 16]).is_err(),
            "a keep-alive before its time"
        );
        manager.watchdog.as_mut().unwrap().next = Instant::now();
        manager.keep_alive().unwrap();
        assert_eq!(received(&at), "WATCHDOG=1");
        manager.stopping();
        assert_eq!(manager.keep_alive(), None);
    }

    #[test]
    fn a_watchdog_of_another_process_and_a_wrong_time_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let path = path.to_str().unwrap();
        for watchdog in [
            [(WATCHDOG_USEC, "1000000"), (WATCHDOG_PID, "1")],
            [(WATCHDOG_USEC, "1000000"), (WATCHDOG_PID, "x")],
            [(WATCHDOG_USEC, "0"), ("", "")],
            [(WATCHDOG_USEC, "soon"), ("", "")],
        ] {
            let variables = [&[(SOCKET, path)][..], &watchdog].concat();
            assert_eq!(manager(&variables).keep_alive(), None, "{watchdog:?}");
        }
    }

    #[test]
    fn without_a_manager_that_answers_nothing_fails() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("notify");
        for address in ["", "relative", "vsock:2:1234", absent.to_str().unwrap()] {
            let mut manager = manager(&[(SOCKET, address)]);
            manager.serving(["a"].into_iter());
            manager.reloading();
            manager.stopping();
        }
        let mut none = manager(&[(WATCHDOG_USEC, "1000000")]);
        none.serving(["a"].into_iter());
        assert_eq!(none.keep_alive(), None);
    }
}
