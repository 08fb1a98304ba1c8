//! Signal handling. INT, TERM and QUIT request an orderly stop. The second of them ends the process
//! at once, except that a service does not count TERM: systemd sends it again to the remaining
//! processes of a unit when the main process has ended. The first ends a service at once while it
//! has not yet started anything that needs an orderly stop, for example while it waits for a key or
//! derives one. HUP requests an orderly stop if the terminal was closed, and otherwise asks a
//! service to reload. Every other signal that a process can catch is ignored.

use crate::{Error, Result};
use rustix::process::{Pid, getsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// Request an orderly stop; the second one ends the process at once, except for TERM to a service.
const STOP: [i32; 3] = [SIGINT, SIGTERM, SIGQUIT];
/// Request an orderly stop, however often they arrive: power failure, CPU time limit reached.
const STOP_PATIENTLY: [i32; 2] = [libc::SIGPWR, libc::SIGXCPU];
/// Would end a process that does not catch them; this process has no use for them.
const IGNORED: [i32; 9] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGSTKFLT,
    libc::SIGXFSZ,
];

/// Whether the next stop signal ends the process at once.
static AT_ONCE: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The same for TERM to a service: whether nothing needs an orderly stop yet.
static EARLY: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Requires an orderly stop from here on.
pub(crate) fn stop_in_order() {
    // Only the first time: later the flag records that the first signal has arrived.
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        for at_once in [AT_ONCE.get(), EARLY.get()].into_iter().flatten() {
            at_once.store(false, Ordering::SeqCst);
        }
    });
}

fn not_installed(error: std::io::Error) -> Error {
    Error::Failed(format!("cannot install signal handlers: {error}"))
}

/// Signals that request a stop or a reload, as a descriptor to poll.
pub struct StopSignals {
    wake: UnixStream,
    which: Arc<AtomicUsize>,
    hangup: Arc<AtomicBool>,
    /// Session of the controlling terminal at the start of the process.
    session: Option<Pid>,
    hup: Hup,
}

/// Request of HUP while the terminal is open, or to a process that never had one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hup {
    Stop,
    Reload,
}

impl StopSignals {
    /// Installs handlers for the whole process, before any state exists that an early signal would
    /// leave behind; HUP stops it, too.
    pub fn install() -> Result<StopSignals> {
        StopSignals::take_over(Hup::Stop).map_err(not_installed)
    }

    /// Requires an orderly stop from here on: the first TERM does not end the process by itself.
    pub fn stop_in_order(&self) {
        stop_in_order();
    }

    /// Same as [`StopSignals::install`], for a service, which HUP reloads.
    pub fn for_service() -> Result<StopSignals> {
        StopSignals::take_over(Hup::Reload).map_err(not_installed)
    }

    fn take_over(hup: Hup) -> std::io::Result<StopSignals> {
        let which = Arc::new(AtomicUsize::new(0));
        let hangup = Arc::new(AtomicBool::new(false));
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let seen = Arc::clone(AT_ONCE.get_or_init(Arc::default));
        seen.store(hup == Hup::Reload, Ordering::SeqCst);
        let early = Arc::clone(EARLY.get_or_init(Arc::default));
        early.store(hup == Hup::Reload, Ordering::SeqCst);
        for signal in STOP {
            let at_once = match (signal, hup) {
                (SIGTERM, Hup::Reload) => &early,
                _ => &seen,
            };
            // Order matters: the handler that ends the process runs before the one that notes the
            // first signal, so it acts from the second signal on.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(at_once))?;
            flag::register(signal, Arc::clone(&seen))?;
        }
        for signal in STOP.into_iter().chain(STOP_PATIENTLY) {
            flag::register_usize(signal, Arc::clone(&which), signal as usize)?;
            low_level::pipe::register(signal, write.try_clone()?)?;
        }
        // A process started by nohup(1) must outlive its terminal.
        if !is_ignored(SIGHUP) {
            flag::register(SIGHUP, Arc::clone(&hangup))?;
            low_level::pipe::register(SIGHUP, write.try_clone()?)?;
        }
        let nothing = Arc::new(AtomicBool::new(false));
        for signal in IGNORED
            .into_iter()
            .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
        {
            flag::register(signal, Arc::clone(&nothing))?;
        }
        Ok(StopSignals {
            wake,
            which,
            hangup,
            session: has_terminal().then(|| getsid(None).ok()).flatten(),
            hup,
        })
    }

    /// Returns the signal that requested a stop, if one did.
    pub fn stop_asked(&self) -> Option<i32> {
        match self.which.load(Ordering::SeqCst) {
            0 if self.hangup.load(Ordering::SeqCst) && self.hangup_stops() => Some(SIGHUP),
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Reports whether a reload was requested since the last call.
    pub fn reload_asked(&self) -> bool {
        !self.hangup_stops() && self.hangup.swap(false, Ordering::SeqCst)
    }

    fn hangup_stops(&self) -> bool {
        // A process that moved to a new session, in the background, has lost no terminal.
        let left = || self.session.is_none() || self.session != getsid(None).ok();
        self.hup == Hup::Stop || !left() && !has_terminal()
    }

    /// Empties the descriptor, so that it waits for the next signal.
    pub fn drain(&self) {
        while (&self.wake).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    }
}

impl AsFd for StopSignals {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Reports whether this process has a controlling terminal that is still connected.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Reports whether the parent process started this one with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & 1 << (signal - 1) != 0)
}
