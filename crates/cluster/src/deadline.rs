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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SOON: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(20);

    /// A process that does something with a deadline.
    struct Child(i32);

    /// How a process ended, or that it is stopped.
    #[derive(Debug, PartialEq, Eq)]
    enum State {
        Exited(i32),
        Killed(i32),
        Stopped,
    }

    impl Child {
        /// Starts a process. `live` may only make system calls, because it has one thread of many.
        fn start(live: fn(&Deadline)) -> Child {
            // SAFETY: the child makes system calls only, and leaves by `_exit`.
            match unsafe { libc::fork() } {
                0 => {
                    let code = match Deadline::new() {
                        Ok(deadline) => {
                            live(&deadline);
                            7
                        }
                        Err(_) => 1,
                    };
                    // SAFETY: it takes a number.
                    unsafe { libc::_exit(code) }
                }
                pid => {
                    assert!(pid > 0, "{}", io::Error::last_os_error());
                    Child(pid)
                }
            }
        }

        fn wait(&self) -> State {
            let mut status = 0;
            // SAFETY: the pointer is valid.
            let pid = unsafe { libc::waitpid(self.0, &mut status, libc::WUNTRACED) };
            assert_eq!(pid, self.0, "{}", io::Error::last_os_error());
            match () {
                () if libc::WIFEXITED(status) => State::Exited(libc::WEXITSTATUS(status)),
                () if libc::WIFSIGNALED(status) => State::Killed(libc::WTERMSIG(status)),
                () => State::Stopped,
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            if std::thread::panicking() {
                // SAFETY: both take numbers, and none but this value waits for the process.
                unsafe {
                    libc::kill(self.0, libc::SIGKILL);
                    libc::waitpid(self.0, std::ptr::null_mut(), 0);
                }
            }
        }
    }

    fn arm(deadline: &Deadline, at: At) {
        if deadline.set(at).is_err() {
            // SAFETY: it takes a number.
            unsafe { libc::_exit(1) };
        }
    }

    #[test]
    fn the_kernel_ends_a_process_at_its_deadline_and_at_once_after_it() {
        let began = Instant::now();
        let child = Child::start(|deadline| {
            arm(deadline, now() + SOON);
            std::thread::sleep(LONG);
        });
        assert_eq!(child.wait(), State::Killed(libc::SIGKILL));
        assert!(began.elapsed() >= SOON, "{:?}", began.elapsed());
        let child = Child::start(|deadline| {
            arm(deadline, At::default());
            std::thread::sleep(LONG);
        });
        assert_eq!(child.wait(), State::Killed(libc::SIGKILL));
    }

    #[test]
    fn a_process_that_is_stopped_is_ended_as_well() {
        let child = Child::start(|deadline| {
            arm(deadline, now() + SOON);
            // SAFETY: it takes a number.
            unsafe { libc::raise(libc::SIGSTOP) };
            std::thread::sleep(LONG);
        });
        assert_eq!(child.wait(), State::Stopped);
        assert_eq!(child.wait(), State::Killed(libc::SIGKILL));
    }

    #[test]
    fn a_process_that_extends_its_deadline_lives() {
        let child = Child::start(|deadline| {
            arm(deadline, now() + SOON);
            arm(deadline, now() + LONG);
            std::thread::sleep(3 * SOON);
        });
        assert_eq!(child.wait(), State::Exited(7));
    }
}
