//! Announcements that a thread is about to sleep.
//!
//! A thread that receives requests for a whole process, and serves some of them itself, registers a
//! function here. Layers call [`about_to_sleep`] before they wait for a device, and the function
//! lets another thread receive in the meantime. A missing call costs time, never correctness.

use std::cell::Cell;

thread_local! {
    static LISTENER: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Registers a function to be called in this thread whenever it is about to sleep.
pub fn before_sleep(listener: fn()) {
    LISTENER.set(Some(listener));
}

/// Announces that this thread is about to sleep until a device or another thread has done
/// something.
#[inline]
pub fn about_to_sleep() {
    if let Some(listener) = LISTENER.get() {
        listener();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static HEARD: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn only_the_thread_that_registered_is_notified() {
        about_to_sleep();
        before_sleep(|| HEARD.set(HEARD.get() + 1));
        about_to_sleep();
        about_to_sleep();
        assert_eq!(HEARD.get(), 2);
        let other = std::thread::spawn(|| {
            about_to_sleep();
            HEARD.get()
        });
        assert_eq!(other.join().unwrap(), 0);
    }
}
