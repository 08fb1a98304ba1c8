//! Waking sessions that wait for one another.
//!
//! **Invariant:** a waiter registers first and then checks the condition again; a thread that
//! changes the condition changes it first and then checks for waiters. One of the two sees the
//! other, so no wake-up is lost. Wake-ups may be spurious.

use block::Waker;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex};

/// Sessions that wait for one condition.
#[derive(Default)]
pub struct WaitList {
    any: AtomicBool,
    list: Mutex<Vec<Arc<Waker>>>,
}

impl WaitList {
    /// Adds a session; the caller checks again afterwards whether it still has to wait.
    pub fn register(&self, waker: &Arc<Waker>) {
        let mut list = self.list.lock().expect("no panic under this lock");
        if !list.iter().any(|other| Arc::ptr_eq(other, waker)) {
            list.push(Arc::clone(waker));
        }
        self.any.store(true, SeqCst);
        drop(list);
        fence(SeqCst);
    }

    /// Checks whether sessions may be waiting.
    pub fn any(&self) -> bool {
        self.any.load(SeqCst)
    }

    /// Wakes all sessions; the caller has changed the condition.
    pub fn wake_all(&self) {
        fence(SeqCst);
        if !self.any.load(SeqCst) {
            return;
        }
        let woken = {
            let mut list = self.list.lock().expect("no panic under this lock");
            self.any.store(false, SeqCst);
            std::mem::take(&mut *list)
        };
        woken.iter().for_each(|waker| waker.wake());
    }
}

/// Wait lists for objects too numerous to have one each. A waiter may be woken for another object.
pub struct WaitTable {
    lists: [WaitList; WaitTable::LISTS],
}

impl WaitTable {
    const LISTS: usize = 64;

    /// Finds the list for the object at this address.
    pub fn of(&self, address: usize) -> &WaitList {
        let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.lists[(hash >> 58) as usize]
    }
}

impl Default for WaitTable {
    fn default() -> WaitTable {
        WaitTable {
            lists: std::array::from_fn(|_| WaitList::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_is_taken_once_and_reaches_every_registered_waiter() {
        let waker = || Arc::new(Waker::new().unwrap());
        let (one, two) = (waker(), waker());
        let table = WaitTable::default();
        let list = table.of(0x40);
        list.wake_all();
        list.register(&one);
        list.register(&one);
        list.register(&two);
        assert!(!one.take());
        list.wake_all();
        assert!(one.take() && two.take());
        assert!(!one.take());
        list.wake_all();
        assert!(!one.take(), "who was woken has to register again");
    }
}
