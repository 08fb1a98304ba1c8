//! The threads that serve faults.
//!
//! Each waits for the userfaultfd with its own epoll and EPOLLEXCLUSIVE, so that a fault wakes one
//! of them and not all.

use super::view::View;
use super::{Access, FaultOutcome, Keep, Shared};
use crate::window::uffd::{Fault, PAGE};
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

const STOP: u64 = 1;

/// Starts a thread that ends when `shared.stop` becomes readable.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let wait = waiting(&shared)?;
    let name = "evfs-window".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        // An unserved fault blocks a thread indefinitely, so a panic aborts the process.
        let _abort = Abort;
        no_signals();
        run(&shared, &wait);
        std::mem::forget(_abort);
    })
}

fn waiting(shared: &Shared) -> io::Result<OwnedFd> {
    use epoll::{CreateFlags, EventData, EventFlags};
    let wait = epoll::create(CreateFlags::CLOEXEC)?;
    let faults = EventFlags::IN | EventFlags::EXCLUSIVE;
    epoll::add(&wait, &shared.uffd, EventData::new_u64(0), faults)?;
    epoll::add(
        &wait,
        &shared.stop,
        EventData::new_u64(STOP),
        EventFlags::IN,
    )?;
    Ok(wait)
}

/// Blocks all signals in this thread: a signal handler of the program that accessed a mapping here
/// would wait for its own thread.
fn no_signals() {
    // SAFETY: a signal set is filled before it is used, and the call affects this thread only.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

fn run(shared: &Shared, wait: &OwnedFd) {
    let mut events = Vec::with_capacity(2);
    let mut keep = Keep::default();
    loop {
        while let Some(fault) = shared.uffd.next().expect("our own userfaultfd can be read") {
            serve(shared, &mut keep, fault);
        }
        events.clear();
        let into = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(wait, into, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("epoll: {e}"),
        }
        if events.iter().any(|event| event.data.u64() == STOP) {
            return;
        }
    }
}

fn serve(shared: &Shared, keep: &mut Keep, fault: Fault) {
    let Some(view) = view_at(shared, fault.address) else {
        // The mapping was removed during an access: the access is repeated and finds no mapping.
        let _gone = shared.uffd.wake(fault.address..fault.address + PAGE);
        return;
    };
    shared.faults.fetch_add(1, Relaxed);
    let access = if fault.store {
        shared.stores.fetch_add(1, Relaxed);
        Access::Store
    } else {
        Access::Read
    };
    let page = view.page_at(fault.address);
    let (mut answered, mut failed) = (false, false);
    let result = view.home.fault(keep, page, access, &mut |pages, outcome| {
        let mine = pages.contains(&page);
        answered |= mine;
        failed |= mine && outcome == FaultOutcome::Failed;
        let Err(e) = view.answer(pages, outcome) else {
            return;
        };
        // No memory for page tables, or a lease holder punched a hole. A neighbor simply faults
        // when it is accessed.
        tracing::error!(name: "EVFS-0106", "page {page} of a mapping cannot be mapped: {e}");
        if mine {
            failed = true;
            let poisoned = view.answer(page..page + 1, FaultOutcome::Failed);
            poisoned.expect("a page that cannot be mapped can be poisoned");
        }
    });
    assert!(answered, "a home left page {page} without an answer");
    if let Err(e) = result {
        tracing::debug!("page {page} of a mapping: {e}");
    }
    if failed {
        shared.failed.fetch_add(1, Relaxed);
    }
}

fn view_at(shared: &Shared, address: usize) -> Option<Arc<View>> {
    let views = shared.views.read().expect("no panic under this lock");
    let (_, view) = views.range(..=address).next_back()?;
    view.addresses()
        .contains(&address)
        .then(|| Arc::clone(view))
}

/// Aborts the process when dropped, which happens only during a panic.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}
