//! The main loop of a process that serves attached volumes: signals and questions.

use crate::attach::Attachment;
use crate::control::Ask;
use crate::signals::StopSignals;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

/// How a service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every volume was detached.
    Detached,
    /// A signal asked for it; everything was flushed and closed.
    Signal(i32),
}

/// Serves until every volume is detached or a signal comes.
///
/// # Errors
/// When waiting fails; the volumes are closed by then.
pub fn serve(mut attachments: Vec<Attachment>, signals: &StopSignals) -> Result<Ended> {
    while !attachments.is_empty() {
        if let Some(signal) = signals.stop_asked() {
            tracing::info!(signal, "stopping");
            for attachment in attachments {
                stop_now(attachment);
            }
            return Ok(Ended::Signal(signal));
        }
        let asked = wait(&attachments, signals)?;
        for index in asked.into_iter().rev() {
            let attachment = attachments.swap_remove(index);
            attachments.extend(answer_one(attachment));
        }
    }
    Ok(Ended::Detached)
}

/// Waits for a signal or questions, and says which attachments were asked.
fn wait(attachments: &[Attachment], signals: &StopSignals) -> Result<Vec<usize>> {
    let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    fds.extend(
        attachments
            .iter()
            .map(|a| PollFd::from_borrowed_fd(a.listener().as_fd(), PollFlags::IN)),
    );
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Error::Failed(format!("waiting for questions failed: {e}"))),
    }
    let asked = |(index, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(index);
    Ok(fds[1..].iter().enumerate().filter_map(asked).collect())
}

/// Answers the question that waits; gives the attachment back unless it was detached.
fn answer_one(attachment: Attachment) -> Option<Attachment> {
    match attachment.listener().accept() {
        Ok(Some((Ask::Detach, asker))) => {
            let before = attachment.status().clone();
            match attachment.stop(false) {
                Ok(()) => {
                    asker.value(&before);
                    None
                }
                Err((attachment, error)) => {
                    asker.error(&error);
                    Some(*attachment)
                }
            }
        }
        Ok(Some((ask, asker))) => {
            match attachment.answer(&ask) {
                Ok(value) => asker.value(&value),
                Err(error) => asker.error(&error),
            }
            Some(attachment)
        }
        Ok(None) => Some(attachment),
        Err(error) => {
            tracing::warn!("a question could not be read: {error}");
            Some(attachment)
        }
    }
}

fn stop_now(attachment: Attachment) {
    let name = attachment.name().to_owned();
    match attachment.stop(true) {
        Ok(()) => tracing::info!(volume = name, "flushed and closed"),
        Err((_, error)) => tracing::error!(volume = name, "closed with an error: {error}"),
    }
}
