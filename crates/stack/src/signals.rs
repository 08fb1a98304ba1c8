//! INT and TERM: the first asks for an orderly stop, the second ends the process at once.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Signals that ask a service to stop, as a descriptor to wait on.
pub struct StopSignals {
    wake: UnixStream,
    which: Arc<AtomicUsize>,
}

impl StopSignals {
    /// Takes INT and TERM over for the whole process.
    pub fn install() -> std::io::Result<StopSignals> {
        let which = Arc::new(AtomicUsize::new(0));
        let (wake, write) = UnixStream::pair()?;
        let seen = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Order matters: the handler that ends the process runs before the one that notes the
            // first signal, so it acts from the second signal on.
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&seen))?;
            signal_hook::flag::register(signal, Arc::clone(&seen))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&which), signal as usize)?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(StopSignals { wake, which })
    }

    /// The signal that came, if one did.
    pub fn stop_asked(&self) -> Option<i32> {
        match self.which.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal as i32),
        }
    }
}

impl AsFd for StopSignals {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
