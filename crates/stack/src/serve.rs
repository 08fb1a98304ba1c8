//! The main loop of a process that serves attached volumes and mounted file systems: signals,
//! questions, and exports that end by themselves.

use crate::control::{Ask, Listener};
use crate::signals::StopSignals;
use crate::status::Status;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd};

/// Something that a process serves. Dropping it without [`Serving::stop`] closes its exports all the
/// same.
pub trait Serving: Send {
    /// What `evfs status` shows.
    fn status(&self) -> &Status;

    /// Where questions come in.
    fn listener(&self) -> &Listener;

    /// Readable when its export has ended by itself, so that it is to be stopped: unmounted by hand,
    /// for example. Nothing for exports that do not.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Answers a question.
    ///
    /// # Errors
    /// What was asked for cannot be done.
    fn answer(&self, ask: &Ask) -> Result<Value>;

    /// Closes the exports, makes everything durable and lets the device go.
    ///
    /// With `force` an export that is in use is taken away from its users; without it everything
    /// stays as it is and the error says who holds it.
    ///
    /// # Errors
    /// It comes back with the error when it is still in use, or not everything could be written out.
    /// With `force` it does not come back for the latter: what could not be written is lost.
    fn stop(self: Box<Self>, force: bool) -> std::result::Result<(), Kept>;
}

/// What could not be stopped.
pub struct Kept {
    /// As it was; nothing if it has ended all the same.
    pub serving: Option<Box<dyn Serving>>,
    /// Why.
    pub error: Error,
}

impl Kept {
    /// Nobody reaches it any more, and not everything could be written: that is tried again with the next
    /// attempt, or, with `force`, given up.
    pub(crate) fn unwritten(serving: Box<dyn Serving>, force: bool, error: Error) -> Kept {
        let serving = match force {
            true => None,
            false => Some(serving),
        };
        Kept { serving, error }
    }
}

/// How a service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every volume was detached.
    Detached,
    /// A signal asked for it; everything was flushed and closed.
    Signal(i32),
}

/// Serves until everything is detached or a signal comes.
///
/// # Errors
/// When waiting fails; when what ended by itself could not be made durable, once all else has ended.
pub fn serve(mut all: Vec<Box<dyn Serving>>, signals: &StopSignals) -> Result<Ended> {
    let mut lost = None;
    while !all.is_empty() {
        if let Some(signal) = signals.stop_asked() {
            tracing::info!(signal, "stopping");
            for serving in all {
                stop_now(serving);
            }
            return Ok(Ended::Signal(signal));
        }
        let (asked, ended) = wait(&all, signals)?;
        for index in (0..all.len()).rev() {
            if ended.contains(&index) {
                // Nobody uses it any more, so nothing can be in the way but the device.
                if let Err(kept) = all.swap_remove(index).stop(true) {
                    tracing::error!("closed with an error: {}", kept.error);
                    lost = lost.or(Some(kept.error));
                }
            } else if asked.contains(&index) {
                let serving = all.swap_remove(index);
                all.extend(answer_one(serving));
            }
        }
    }
    lost.map_or(Ok(Ended::Detached), Err)
}

/// Waits for something to happen; says who was asked, and which ended.
fn wait(all: &[Box<dyn Serving>], signals: &StopSignals) -> Result<(Vec<usize>, Vec<usize>)> {
    let ends: Vec<(usize, BorrowedFd<'_>)> = all
        .iter()
        .enumerate()
        .filter_map(|(index, serving)| Some((index, serving.ended()?)))
        .collect();
    let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    let listeners = all.iter().map(|serving| serving.listener().as_fd());
    let watched = listeners.chain(ends.iter().map(|(_, fd)| *fd));
    fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Error::Failed(format!("waiting for questions failed: {e}"))),
    }
    let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let (listeners, ended) = fds[1..].split_at(all.len());
    let asked = (0..all.len())
        .filter(|index| happened(&listeners[*index]))
        .collect();
    let over = ends.iter().zip(ended).filter(|(_, fd)| happened(fd));
    Ok((asked, over.map(|((index, _), _)| *index).collect()))
}

/// Answers the question that waits; gives back what was asked unless it was detached.
fn answer_one(serving: Box<dyn Serving>) -> Option<Box<dyn Serving>> {
    match serving.listener().accept() {
        Ok(Some((Ask::Detach { force }, asker))) => {
            let before = serving.status().to_value();
            match serving.stop(force) {
                Ok(()) => {
                    asker.value(&before);
                    None
                }
                Err(kept) => {
                    asker.error(&kept.error);
                    kept.serving
                }
            }
        }
        Ok(Some((ask, asker))) => {
            match serving.answer(&ask) {
                Ok(value) => asker.value(&value),
                Err(error) => asker.error(&error),
            }
            Some(serving)
        }
        Ok(None) => Some(serving),
        Err(error) => {
            tracing::warn!("a question could not be read: {error}");
            Some(serving)
        }
    }
}

fn stop_now(serving: Box<dyn Serving>) {
    let name = serving.status().name.clone();
    match serving.stop(true) {
        Ok(()) => tracing::info!(volume = name, "flushed and closed"),
        Err(kept) => tracing::error!(volume = name, "closed with an error: {}", kept.error),
    }
}
