//! First contact: queries all paths of a LUN concurrently.

use block::{Error, ErrorKind, Result};
use lunpath::{Identity, Lunpath};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that slower paths have once one path has answered.
pub(crate) const STRAGGLERS: Duration = Duration::from_millis(1500);
/// Error text for paths that took longer.
pub(crate) const NO_ANSWER: &str = "no answer yet";

/// Result of contacting one path.
pub(crate) struct Contact<T> {
    pub(crate) path: usize,
    pub(crate) answer: Result<T>,
}

/// Returns the identity found on each of these paths. Queries all paths concurrently and waits for
/// all of them, but after the first answer only for a limited time.
pub fn identify(paths: &[Arc<dyn Lunpath>], within: Duration) -> Vec<Result<Identity>> {
    let all: Vec<_> = paths.iter().cloned().enumerate().collect();
    let contacts = contact(&all, within, move |path| path.identify(within));
    contacts.into_iter().map(|c| c.answer).collect()
}

/// Queries the paths in `all`, given with their indexes, concurrently. Waits for all of them, but
/// after the first answer only for a limited time. The result includes every path, even those that
/// have not answered.
pub(crate) fn contact<T: Send + 'static>(
    all: &[(usize, Arc<dyn Lunpath>)],
    within: Duration,
    ask: impl Fn(&dyn Lunpath) -> Result<T> + Copy + Send + 'static,
) -> Vec<Contact<T>> {
    let (tell, told) = std::sync::mpsc::channel();
    for (path, lunpath) in all {
        let (tell, path, lunpath) = (tell.clone(), *path, Arc::clone(lunpath));
        std::thread::spawn(move || {
            let answer = ask(&*lunpath);
            // The receiver no longer exists once the LUN is open.
            let _ = tell.send(Contact { path, answer });
        });
    }
    drop(tell);
    let mut contacts: Vec<Contact<T>> = Vec::new();
    let mut until = Instant::now() + within + STRAGGLERS;
    while contacts.len() < all.len() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(contact) = told.recv_timeout(left) else {
            break;
        };
        if contact.answer.is_ok() {
            until = until.min(Instant::now() + STRAGGLERS);
        }
        contacts.push(contact);
    }
    let mut silent = all.to_vec();
    silent.retain(|(path, _)| contacts.iter().all(|c| c.path != *path));
    contacts.extend(silent.into_iter().map(|(path, lunpath)| {
        let answer = Err(Error::new(ErrorKind::TimedOut, lunpath.name(), NO_ANSWER));
        Contact { path, answer }
    }));
    // The configured order decides, not the order of arrival.
    contacts.sort_by_key(|c| c.path);
    contacts
}
