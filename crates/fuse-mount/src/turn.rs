//! The request that a thread serves as a leader, as the parts of its service see it: the handler that
//! is about to sleep, and the reply.

use crate::leadership::{Leadership, Turn};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

thread_local! {
    static LEADERSHIP: OnceCell<Arc<Leadership>> = const { OnceCell::new() };
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
    /// The request was about to sleep.
    static BLOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread one of a session.
pub(crate) fn join(leadership: &Arc<Leadership>) {
    LEADERSHIP.with(|own| drop(own.set(Arc::clone(leadership))));
    block::before_sleep(about_to_sleep);
}

/// Begins the service of a request.
pub(crate) fn begin(turn: Turn) {
    TURN.set(Some(turn));
    BLOCKS.set(false);
}

/// Ends the service. Returns the turn, unless this thread leads no longer, and whether the request
/// was about to sleep.
pub(crate) fn end() -> (Option<Turn>, bool) {
    (TURN.take(), BLOCKS.get())
}

/// Lets another thread lead, because this one is about to sleep.
pub(crate) fn about_to_sleep() {
    let Some(turn) = TURN.get() else { return };
    BLOCKS.set(true);
    let leads_no_longer = LEADERSHIP.with(|own| own.get().is_some_and(|it| it.hand_over(turn)));
    if leads_no_longer {
        TURN.set(None);
    }
}

/// Notes that the reply is sent next: its client may send another request before this thread has
/// ended the service of this one.
pub(crate) fn about_to_reply() {
    let Some(turn) = TURN.get() else { return };
    LEADERSHIP.with(|own| {
        if let Some(leadership) = own.get() {
            TURN.set(Some(leadership.answer(turn)));
        }
    });
}
