//! Which members of etcd answer.

use retry::{Backoff, Breaker, Jitter, State, random_seed};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a member that did not answer is left out.
const LEFT_OUT: Backoff = Backoff::new(
    Duration::from_millis(500),
    Duration::from_secs(10),
    Jitter::Equal,
);
/// Time after which another request may probe a member, if the one that does has no result.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Chooses the members for requests.
///
/// A member that does not answer a request is left out for a while. Then one request probes it, and
/// a success is needed before others go to it. If all members are left out, requests go to them all
/// the same.
pub(crate) struct Members {
    members: Vec<Breaker>,
    /// Fixed point of their times.
    began: Instant,
    seed: u64,
    /// The member that answered last.
    preferred: AtomicUsize,
    /// Count the renewals and the watches, which go to the members in turn.
    renewals: AtomicUsize,
    watches: AtomicUsize,
}

impl Members {
    /// Creates the members, at least one, of which nothing is known.
    pub fn new(count: usize) -> Members {
        Members {
            members: std::iter::repeat_with(Breaker::default)
                .take(count)
                .collect(),
            began: Instant::now(),
            seed: random_seed(),
            preferred: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
        }
    }

    /// Reads the time since the creation.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns all members: the one that answered last is first, and those that are left out are
    /// last.
    pub fn in_order(&self) -> Vec<usize> {
        let now = self.now();
        let mut order: Vec<usize> = self.ring(self.preferred.load(Relaxed)).collect();
        order.sort_by_key(|member| self.members[*member].state(now));
        order
    }

    /// Returns the next member that is not left out, or one whose time to be probed has come.
    pub fn next_to_renew(&self) -> usize {
        self.in_turn(&self.renewals, true)
    }

    /// Returns the next member that is not left out.
    pub fn next_to_watch(&self) -> usize {
        self.in_turn(&self.watches, false)
    }

    fn in_turn(&self, turns: &AtomicUsize, probes: bool) -> usize {
        let (now, turn) = (self.now(), turns.fetch_add(1, Relaxed));
        let may = |member: &usize| match self.members[*member].state(now) {
            State::Closed => true,
            State::HalfOpen => probes && self.members[*member].admit(now, PROBE_WITHIN),
            State::Open => false,
        };
        self.ring(turn)
            .find(may)
            .unwrap_or(turn % self.members.len())
    }

    fn ring(&self, first: usize) -> impl Iterator<Item = usize> {
        let count = self.members.len();
        (0..count).map(move |step| (first % count + step) % count)
    }

    /// Notes the member that answered last.
    pub fn prefer(&self, member: usize) {
        self.preferred.store(member, Relaxed);
    }

    /// Notes that a member carried out a request, or refused it.
    pub fn answered(&self, member: usize) {
        self.members[member].succeeded();
    }

    /// Notes that a member did not answer, or has no leader.
    pub fn is_silent(&self, member: usize) {
        self.members[member].failed(self.now(), &LEFT_OUT, self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_answer_come_first_and_in_turn() {
        let members = Members::new(4);
        members.prefer(2);
        assert_eq!(members.in_order(), [2, 3, 0, 1]);
        members.is_silent(3);
        members.is_silent(1);
        assert_eq!(members.in_order(), [2, 0, 3, 1]);
        let turns: Vec<usize> = (0..4).map(|_| members.next_to_renew()).collect();
        assert_eq!(turns, [0, 2, 2, 0]);
        members.answered(3);
        assert_eq!(members.in_order(), [2, 3, 0, 1]);
    }

    #[test]
    fn without_any_member_that_answers_all_have_their_turn() {
        let members = Members::new(3);
        (0..3).for_each(|member| members.is_silent(member));
        let turns: Vec<usize> = (0..3).map(|_| members.next_to_renew()).collect();
        assert_eq!(turns, [0, 1, 2]);
    }
}
