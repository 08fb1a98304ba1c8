//! A timer that ends this process with SIGKILL at a time of the clock that counts while the machine
//! is suspended.
//!
//! The kernel ends the process, also one that is stopped or whose threads all hang.

use cluster_proto::At;
use std::io;
use std::time::Duration;

/// Returns the time now (`CLOCK_BOOTTIME`).
pub fn now() -> At {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (secs, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    At(Duration::from_secs(secs) + Duration::from_nanos(nanos))
}

/// The timer. It does not end with this value: a process that has it ends by it.
#[derive(Debug)]
pub struct Deadline(libc::timer_t);

// SAFETY: a timer belongs to the process; all threads may set it.
unsafe impl Send for Deadline {}

impl Deadline {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn new() -> io::Result<Deadline> {
        // SAFETY: the structure consists of numbers and pointers, for which zero is a value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        match unsafe { libc::timer_create(libc::CLOCK_BOOTTIME, &mut event, &mut timer) } {
            0 => Ok(Deadline(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets the process end at this time, and no longer at the time set before. A time that is over
    /// ends it at once.
    ///
    /// # Errors
    /// The kernel refuses the time.
    pub fn set(&self, at: At) -> io::Result<()> {
        // A time of zero would switch the timer off.
        let at = at.0.max(Duration::from_nanos(1));
        let value = libc::timespec {
            tv_sec: at.as_secs() as libc::time_t,
            tv_nsec: at.subsec_nanos().into(),
        };
        let spec = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        // SAFETY: `new` created the timer, which is never deleted; the pointer is valid.
        let set = unsafe {
            libc::timer_settime(self.0, libc::TIMER_ABSTIME, &spec, std::ptr::null_mut())
        };
        match set {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
