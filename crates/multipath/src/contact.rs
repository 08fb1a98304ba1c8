//! First contact: all paths of a LUN are asked at once who answers there.

use block::{DeviceInfo, Identity, Lunpath, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the others may take once one path has answered.
pub(crate) const STRAGGLERS: Duration = Duration::from_millis(1500);

/// Who answered at a path's other end, or why nobody did.
pub(crate) struct Contact {
    pub(crate) path: usize,
    pub(crate) answer: Result<(Identity, DeviceInfo)>,
}

/// Asks all paths at once. Waits for all of them, but not for long once one has answered.
pub(crate) fn contact(specs: &[(Arc<dyn Lunpath>, bool)], within: Duration) -> Vec<Contact> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut asked = 0;
    for (path, (lunpath, enabled)) in specs.iter().enumerate() {
        if !enabled {
            continue;
        }
        asked += 1;
        let (tell, lunpath) = (tell.clone(), Arc::clone(lunpath));
        std::thread::spawn(move || {
            let answer = lunpath
                .connect(within)
                .map(|c| (c.identity().clone(), c.info().clone()));
            // Nobody listens any more once the LUN is open.
            let _ = tell.send(Contact { path, answer });
        });
    }
    drop(tell);
    let mut contacts = Vec::new();
    let mut until = Instant::now() + within + STRAGGLERS;
    while contacts.len() < asked {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(contact) = told.recv_timeout(left) else {
            break;
        };
        if contact.answer.is_ok() {
            until = until.min(Instant::now() + STRAGGLERS);
        }
        contacts.push(contact);
    }
    // The order in which they were given decides, not who was faster.
    contacts.sort_by_key(|c| c.path);
    contacts
}
