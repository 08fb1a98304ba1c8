//! Choice of the path for a job.

use crate::policy::{Io, Nanos, Outcome, PathView, Policy, Selector};

/// The policy of a queue, with its views of the paths.
///
/// **Invariant:** selector and views cover the same paths in the same order, that of the queue's
/// links.
pub(super) struct Selection {
    /// NUMA node of the queue's thread.
    own_cell: Option<u32>,
    selector: Selector,
    views: Vec<PathView>,
}

impl Selection {
    /// Creates a selection without paths.
    pub(super) fn new(policy: Policy, own_cell: Option<u32>) -> Selection {
        Selection {
            own_cell,
            selector: Selector::new(policy, 0, own_cell),
            views: Vec::new(),
        }
    }

    /// Returns the NUMA node from which distances in the views are measured.
    pub(super) fn own_cell(&self) -> Option<u32> {
        self.own_cell
    }

    /// Replaces the views after a change of paths or attributes. New paths are at the end.
    pub(super) fn apply(&mut self, policy: Policy, views: Vec<PathView>) {
        if policy != self.selector.policy() {
            self.selector = Selector::new(policy, 0, self.own_cell);
        }
        self.selector.resize(views.len());
        self.views = views;
    }

    /// Iterates over the views of all paths.
    pub(super) fn views_mut(&mut self) -> impl Iterator<Item = &mut PathView> {
        self.views.iter_mut()
    }

    /// Checks whether a path other than `path` is usable.
    pub(super) fn has_other(&self, path: usize) -> bool {
        let mut views = self.views.iter().enumerate();
        views.any(|(i, view)| view.usable && i != path)
    }

    /// Excludes a path from the next choice.
    pub(super) fn exclude(&mut self, path: usize) {
        self.views[path].usable = false;
    }

    /// Chooses the path for `io`; `None` if no path may carry it.
    pub(super) fn select(&mut self, io: Io, now: Nanos) -> Option<usize> {
        self.selector.select(&self.views, io, now)
    }

    /// Records that `io` was sent on `path`.
    pub(super) fn started(&mut self, path: usize, io: Io, now: Nanos) {
        self.selector.started(path, io, now);
    }

    /// Records that `io`, sent on `path` at `started`, has completed.
    pub(super) fn completed(
        &mut self,
        path: usize,
        io: Io,
        started: Nanos,
        now: Nanos,
        outcome: Outcome,
    ) {
        self.selector.completed(path, io, started, now, outcome);
    }
}
