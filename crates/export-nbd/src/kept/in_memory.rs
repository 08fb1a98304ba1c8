//! Keeps descriptors in the process of a test.

use super::Keep;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[derive(Default)]
pub(crate) struct InMemory {
    kept: Mutex<HashMap<String, Vec<OwnedFd>>>,
    is_successor: AtomicBool,
}

impl InMemory {
    /// Lets the next server be a successor.
    pub(crate) fn succeed(&self) {
        self.is_successor.store(true, SeqCst);
    }

    /// Loses what was left under a name.
    pub(crate) fn lose(&self, name: &str) -> Vec<OwnedFd> {
        self.kept.lock().unwrap().remove(name).unwrap_or_default()
    }
}

impl Keep for InMemory {
    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let own = descriptors.iter().map(BorrowedFd::try_clone_to_owned);
        let own = own.collect::<io::Result<_>>()?;
        self.kept.lock().unwrap().insert(name.into(), own);
        Ok(())
    }

    fn close(&self, name: &str) -> io::Result<()> {
        self.lose(name);
        Ok(())
    }

    fn take(&self, name: &str) -> Vec<OwnedFd> {
        let kept = self.kept.lock().unwrap();
        let all = kept.get(name).into_iter().flatten();
        all.map(|one| one.try_clone().unwrap()).collect()
    }

    fn is_successor(&self) -> bool {
        self.is_successor.load(SeqCst)
    }
}
