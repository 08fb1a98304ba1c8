//! The number of leaders that the requests call for, as one leader sees it.
//!
//! One leader is best while it polls: another one that sleeps in a read would be woken for nothing.
//! One leader is also best on a single CPU while requests are frequent: two that sleep take turns,
//! which costs 8 %. Otherwise there are two, so that a request that blocks delays no other, without
//! a deputy that watches. If clients send at the same time, too few leaders leave CPUs idle that
//! the replies then have to wake, so requests of another client that wait already when a request
//! has been served call for one more. A leader that was never busy together with another one for a
//! long time is one too many.

/// Score that calls for another leader: a request of another client that waits already counts
/// [`BACKLOG_STEP`], and one that the leader has to wait for, -1.
const BACKLOG: u32 = 16;
const BACKLOG_STEP: u32 = 3;

/// Score that calls for a second leader: a request that blocks counts [`BLOCKED_STEP`], any other
/// one -1.
const BLOCKED: u32 = 64;
const BLOCKED_STEP: u32 = 8;
/// Limit of this score.
const BLOCKED_MAX: u32 = 2 * BLOCKED;

/// Number of requests in a row that a superfluous leader serves alone.
const ALONE: u32 = 512;

/// Number of requests in a row for which one leader is not enough, after which two serve.
const PATIENCE: u32 = 32;

/// Scores of a leader.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    backlog: u32,
    blocked: u32,
    alone: u32,
    too_few: u32,
    /// Thread that sent the last request.
    client: u32,
}

/// A request that a leader has served.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    /// A client waits for the reply, and is named.
    pub awaited: bool,
    /// Whether it was there when the leader asked first; `None` if it did not ask.
    pub was_there: Option<bool>,
    /// Thread that sent it; 0 if it is in another PID namespace.
    pub client: u32,
    /// It was about to sleep.
    pub blocked: bool,
    /// Another leader served a request when it began.
    pub with_others: bool,
    /// Whether one leader is enough.
    pub enough: Enough,
}

/// Reasons why one leader is enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Enough {
    /// It is not.
    #[default]
    No,
    /// It polls before it sleeps.
    Polls,
    /// Frequent requests meet a single CPU.
    OneCpu,
}

/// Change to the number of leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advice {
    Stay,
    OneMore,
    OneLess,
}

impl Demand {
    /// Notes a request that was served while there were `leaders`.
    pub fn note(&mut self, served: Served, leaders: usize) -> Advice {
        self.blocked = if served.blocked {
            (self.blocked + BLOCKED_STEP).min(BLOCKED_MAX)
        } else {
            self.blocked.saturating_sub(1)
        };
        let blocks_often = self.blocked >= BLOCKED;
        let least = if served.enough != Enough::No && !blocks_often {
            1
        } else {
            2
        };
        self.too_few = if leaders < least { self.too_few + 1 } else { 0 };
        if self.too_few >= PATIENCE || self.too_few > 0 && blocks_often {
            self.too_few = 0;
            return Advice::OneMore;
        }
        if !served.awaited {
            return Advice::Stay;
        }
        let is_other = served.client != self.client || served.client == 0;
        // On a single CPU, another leader serves at the same time only because the client has
        // preempted it after its reply, and one more would not serve sooner.
        let can_share = served.enough != Enough::OneCpu;
        let is_behind = served.was_there == Some(true) && is_other && can_share;
        let with_others = served.with_others && can_share;
        self.client = served.client;
        if is_behind {
            self.backlog += BACKLOG_STEP;
        } else if served.was_there == Some(false) {
            self.backlog = self.backlog.saturating_sub(1);
        }
        self.alone = if is_behind || with_others || leaders <= least {
            0
        } else {
            self.alone + 1
        };
        if self.backlog >= BACKLOG {
            self.backlog = 0;
            Advice::OneMore
        } else if self.alone >= ALONE {
            self.alone = 0;
            Advice::OneLess
        } else {
            Advice::Stay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes requests with the same properties until the advice is another.
    fn until_advice(leaders: usize, mut make: impl FnMut(u32) -> Served) -> (u32, Advice) {
        let mut demand = Demand::default();
        for i in 1..=10 * ALONE {
            let advice = demand.note(make(i), leaders);
            if advice != Advice::Stay {
                return (i, advice);
            }
        }
        (0, Advice::Stay)
    }

    const REQUEST: Served = Served {
        awaited: true,
        was_there: Some(false),
        client: 7,
        blocked: false,
        with_others: false,
        enough: Enough::Polls,
    };

    #[test]
    fn one_client_has_one_leader_that_polls_or_two_that_do_not() {
        let polls = |_| REQUEST;
        assert_eq!(until_advice(1, polls), (0, Advice::Stay));
        assert_eq!(until_advice(2, polls), (ALONE, Advice::OneLess));
        // The requests of one client may overtake the reply; others arrive while it does not wait.
        let soon = |_| Served {
            was_there: Some(true),
            ..REQUEST
        };
        assert_eq!(until_advice(1, soon), (0, Advice::Stay));
        let background = |i| Served {
            awaited: false,
            client: i,
            ..soon(i)
        };
        assert_eq!(until_advice(1, background), (0, Advice::Stay));
        let sleeps = |_| Served {
            enough: Enough::No,
            ..REQUEST
        };
        assert_eq!(until_advice(1, sleeps), (PATIENCE, Advice::OneMore));
        assert_eq!(until_advice(2, sleeps), (0, Advice::Stay));
        assert_eq!(until_advice(3, sleeps), (ALONE, Advice::OneLess));
    }

    #[test]
    fn clients_that_queue_up_get_another_leader_and_keep_it_while_leaders_are_busy_together() {
        let behind = |i: u32| Served {
            was_there: (i.is_multiple_of(4)).then_some(true),
            client: i % 3,
            ..REQUEST
        };
        assert_eq!(until_advice(1, behind), (24, Advice::OneMore));
        assert_eq!(until_advice(2, behind), (24, Advice::OneMore));
        let together = |i: u32| Served {
            with_others: i.is_multiple_of(100),
            ..REQUEST
        };
        assert_eq!(until_advice(2, together), (0, Advice::Stay));
        // Requests that wait now and then do not count.
        let rarely = |i: u32| Served {
            was_there: Some(i.is_multiple_of(8)),
            client: i,
            ..REQUEST
        };
        assert_eq!(until_advice(1, rarely), (0, Advice::Stay));
    }

    #[test]
    fn on_a_single_cpu_one_leader_is_enough_for_several_clients_too() {
        let preempted = |i: u32| Served {
            was_there: Some(true),
            client: i,
            with_others: true,
            enough: Enough::OneCpu,
            ..REQUEST
        };
        assert_eq!(until_advice(1, preempted), (0, Advice::Stay));
        assert_eq!(until_advice(2, preempted), (ALONE, Advice::OneLess));
        let blocks = |i: u32| Served {
            blocked: true,
            ..preempted(i)
        };
        assert_eq!(until_advice(1, blocks).1, Advice::OneMore);
        assert_eq!(until_advice(2, blocks), (0, Advice::Stay));
    }

    #[test]
    fn requests_that_often_block_get_a_second_leader_and_no_third() {
        let often = |i: u32| Served {
            blocked: i.is_multiple_of(4),
            ..REQUEST
        };
        assert_eq!(until_advice(1, often).1, Advice::OneMore);
        assert_eq!(until_advice(2, often), (0, Advice::Stay));
        let rarely = |i: u32| Served {
            blocked: i.is_multiple_of(20),
            ..REQUEST
        };
        assert_eq!(until_advice(1, rarely), (0, Advice::Stay));
    }
}
