//! Marks between the steps that a successor can see: tests let the process die there.

/// Marks the end of a step.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    deaths::step();
}

#[cfg(test)]
pub(crate) mod deaths {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    /// Steps that this process has left, and the file that it creates when it dies.
    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
    static DIED: OnceLock<PathBuf> = OnceLock::new();

    /// Lets this process create the file `died` and die after a number of steps.
    pub(crate) fn die_after(steps: u64, died: PathBuf) {
        LEFT.store(steps, SeqCst);
        DIED.set(died).expect("only once");
    }

    /// Counts a step; the process may die here.
    pub(super) fn step() {
        if let Some(died) = DIED.get()
            && LEFT.fetch_sub(1, SeqCst) == 1
        {
            let _ = std::fs::File::create(died);
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}
