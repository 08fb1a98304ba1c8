//! Signals. INT, TERM and QUIT ask for an orderly stop, and the second of them ends the process at once; so does
//! the first, as long as a service has started nothing that has to be stopped: it may wait for a key, or compute one. HUP
//! stops in order where the terminal is gone, and asks a service for a reload otherwise. No other signal that
//! a process can catch ends it: what nobody has a meaning for is ignored.

use rustix::process::{Pid, getsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// Stop in order; the second ends the process at once.
const STOP: [i32; 3] = [SIGINT, SIGTERM, SIGQUIT];
/// Stop in order, however often they come: the power fails, the time for the processor is over.
const STOP_PATIENTLY: [i32; 2] = [libc::SIGPWR, libc::SIGXCPU];
/// End a process that does not catch them, and mean nothing to this one.
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

/// Whether the next signal to stop ends the process at once.
static AT_ONCE: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From here on there is something to stop in order.
pub(crate) fn stop_in_order() {
    // Once: later it says that the first signal has come.
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if let Some(at_once) = AT_ONCE.get() {
            at_once.store(false, Ordering::SeqCst);
        }
    });
}

/// Signals that ask for something, as a descriptor to wait on.
pub struct StopSignals {
    wake: UnixStream,
    which: Arc<AtomicUsize>,
    hangup: Arc<AtomicBool>,
    /// The session whose terminal this process had when it began.
    session: Option<Pid>,
    /// HUP is a question for a reload while the terminal is there, or where there never was one.
    reloads: bool,
}

impl StopSignals {
    /// Takes the signals over for the whole process, which HUP stops, too.
    pub fn install() -> std::io::Result<StopSignals> {
        StopSignals::take_over(false)
    }

    /// The same for a service.
    pub fn for_service() -> std::io::Result<StopSignals> {
        StopSignals::take_over(true)
    }

    fn take_over(reloads: bool) -> std::io::Result<StopSignals> {
        let which = Arc::new(AtomicUsize::new(0));
        let hangup = Arc::new(AtomicBool::new(false));
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let seen = Arc::clone(AT_ONCE.get_or_init(Arc::default));
        seen.store(reloads, Ordering::SeqCst);
        for signal in STOP {
            // Order matters: the handler that ends the process runs before the one that notes the
            // first signal, so it acts from the second signal on.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&seen))?;
            flag::register(signal, Arc::clone(&seen))?;
        }
        for signal in STOP.into_iter().chain(STOP_PATIENTLY) {
            flag::register_usize(signal, Arc::clone(&which), signal as usize)?;
            low_level::pipe::register(signal, write.try_clone()?)?;
        }
        // What was started by nohup(1) is to outlive its terminal.
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
            reloads,
        })
    }

    /// The signal that asked for a stop, if one did.
    pub fn stop_asked(&self) -> Option<i32> {
        match self.which.load(Ordering::SeqCst) {
            0 if self.hangup.load(Ordering::SeqCst) && self.hangup_stops() => Some(SIGHUP),
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Whether a reload was asked for since the last call.
    pub(crate) fn reload_asked(&self) -> bool {
        !self.hangup_stops() && self.hangup.swap(false, Ordering::SeqCst)
    }

    fn hangup_stops(&self) -> bool {
        // A process that has left its session, for the background, has lost nothing.
        let left = || self.session.is_none() || self.session != getsid(None).ok();
        !self.reloads || !left() && !has_terminal()
    }

    /// Makes the descriptor wait for the next signal.
    pub(crate) fn drain(&self) {
        while (&self.wake).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    }
}

impl AsFd for StopSignals {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Whether there is a terminal that controls this process, and it is connected.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether whoever started this process wants it to ignore a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & 1 << (signal - 1) != 0)
}
