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
    let specs: Vec<_> = paths.iter().map(|p| (Arc::clone(p), true)).collect();
    let contacts = contact(&specs, within, move |path| path.identify(within));
    contacts.into_iter().map(|c| c.answer).collect()
}

/// Queries all enabled paths concurrently. Waits for all of them, but after the first answer only
/// for a limited time. The result includes every path that was queried, even those that have not
/// answered.
pub(crate) fn contact<T: Send + 'static>(
    specs: &[(Arc<dyn Lunpath>, bool)],
    within: Duration,
    ask: impl Fn(&dyn Lunpath) -> Result<T> + Copy + Send + 'static,
) -> Vec<Contact<T>> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut asked = Vec::new();
    for (path, (lunpath, enabled)) in specs.iter().enumerate() {
        if !enabled {
            continue;
        }
        asked.push(path);
        let (tell, lunpath) = (tell.clone(), Arc::clone(lunpath));
        std::thread::spawn(move || {
            let answer = ask(&*lunpath);
            // The receiver no longer exists once the LUN is open.
            let _ = tell.send(Contact { path, answer });
        });
    }
    drop(tell);
    let mut contacts: Vec<Contact<T>> = Vec::new();
    let mut until = Instant::now() + within + STRAGGLERS;
    while contacts.len() < asked.len() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(contact) = told.recv_timeout(left) else {
            break;
        };
        if contact.answer.is_ok() {
            until = until.min(Instant::now() + STRAGGLERS);
        }
        contacts.push(contact);
    }
    asked.retain(|path| contacts.iter().all(|c| c.path != *path));
    contacts.extend(asked.into_iter().map(|path| {
        let error = Error::new(ErrorKind::TimedOut, specs[path].0.name(), NO_ANSWER);
        let answer = Err(error);
        Contact { path, answer }
    }));
    // The configured order decides, not the order of arrival.
    contacts.sort_by_key(|c| c.path);
    contacts
}
