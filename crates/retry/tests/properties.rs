//! Properties of pauses, breakers and deadlines.

use proptest::prelude::*;
use retry::{Backoff, Breaker, Deadline, Jitter, State, random_seed};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn policies() -> impl Strategy<Value = Backoff> {
    let jitter = prop_oneof![Just(Jitter::Full), Just(Jitter::Equal)];
    (1..1_000_u64, 1..100_000_u64, jitter)
        .prop_map(|(first, last, jitter)| Backoff::new(ms(first), ms(last), jitter))
}

#[test]
fn pauses_double_up_to_the_limit() {
    let policy = Backoff::new(ms(20), SEC, Jitter::Equal);
    let longest: Vec<_> = (0..8).map(|n| policy.longest(n).as_millis()).collect();
    assert_eq!(longest, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    assert_eq!(policy.longest(u32::MAX), SEC);
    let endless = Backoff::new(SEC, Duration::MAX, Jitter::Full);
    assert!(endless.longest(40) >= endless.longest(31));
}

#[test]
fn clients_that_fail_together_come_back_evenly() {
    // Each of ten parts of the possible time gets its share of the clients, within five percent.
    for (jitter, from) in [(Jitter::Full, 0), (Jitter::Equal, 500)] {
        let policy = Backoff::new(SEC, SEC, jitter);
        let width = (1000 - from) / 10;
        let mut parts = [0_u32; 10];
        for seed in 0..100_000 {
            let pause = policy.pause(3, seed).as_millis() as usize;
            parts[(pause - from) / width] += 1;
        }
        assert!(
            parts.iter().all(|n| (9_500..10_500).contains(n)),
            "{jitter:?}: {parts:?}"
        );
    }
}

#[test]
fn clients_that_lose_a_server_together_never_return_together() {
    const CLIENTS: usize = 1000;
    let policy = Backoff::new(ms(20), SEC, Jitter::Equal);
    // The server is away for ten seconds. Each client tries when its breaker permits it.
    let mut attempts = Vec::new();
    for _ in 0..CLIENTS {
        let (server, seed) = (Breaker::default(), random_seed());
        server.failed(Duration::ZERO, &policy, seed);
        while server.until() < 10 * SEC {
            let now = server.until();
            assert!(server.admit(now, SEC));
            server.failed(now, &policy, seed);
        }
        attempts.push(server.until());
    }
    let back = attempts.iter().filter(|at| **at >= 10 * SEC);
    assert_eq!(back.clone().count(), CLIENTS);
    // Without jitter, all of them would come within one millisecond.
    let most = (0..1100).map(|n| 10 * SEC + n * MS);
    let most = most.map(|at| back.clone().filter(|t| (at..at + MS).contains(t)).count());
    assert!(most.max() <= Some(20), "of {CLIENTS} clients");
}

#[test]
fn seeds_differ() {
    let seeds: BTreeSet<u64> = (0..1000).map(|_| random_seed()).collect();
    assert_eq!(seeds.len(), 1000);
}

#[test]
fn one_of_many_threads_probes() {
    const THREADS: usize = 8;
    let policy = Backoff::new(MS, MS, Jitter::Equal);
    for _ in 0..200 {
        let (breaker, admitted) = (Breaker::default(), AtomicUsize::new(0));
        breaker.failed(Duration::ZERO, &policy, 1);
        let together = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    together.wait();
                    admitted.fetch_add(usize::from(breaker.admit(SEC, SEC)), Relaxed);
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1);
    }
}

#[test]
fn a_probe_without_a_result_is_followed_by_another() {
    let policy = Backoff::new(SEC, SEC, Jitter::Equal);
    let breaker = Breaker::default();
    breaker.failed(Duration::ZERO, &policy, 1);
    assert!(breaker.admit(SEC, 2 * SEC));
    assert!(!breaker.admit(3 * SEC - MS, 2 * SEC));
    assert!(breaker.admit(3 * SEC, 2 * SEC));
}

#[test]
fn attempts_that_fail_for_one_reason_count_once() {
    let policy = Backoff::new(SEC, 60 * SEC, Jitter::Equal);
    let breaker = Breaker::default();
    assert!(breaker.failed(Duration::ZERO, &policy, 1));
    let until = breaker.until();
    assert!(!breaker.failed(MS, &policy, 1), "it is open already");
    assert_eq!(breaker.until(), until);
    // The probe fails: the next pause is longer.
    assert!(breaker.admit(SEC, SEC));
    assert!(!breaker.failed(SEC + MS, &policy, 1));
    assert!(breaker.until() >= 2 * SEC + MS);
    assert!(breaker.succeeded());
    assert!(!breaker.succeeded(), "it is closed already");
    assert_eq!(breaker.until(), Duration::ZERO);
}

#[test]
fn attempts_share_the_time_of_their_operation() {
    let deadline = Deadline::after(SEC, ms(800));
    assert_eq!(deadline.share(SEC, false), ms(400));
    assert_eq!(deadline.share(SEC + ms(400), false), ms(200));
    assert_eq!(deadline.share(SEC + ms(600), true), ms(200));
    assert_eq!(deadline.left(2 * SEC), Duration::ZERO);
    assert_eq!(
        Deadline::after(SEC, Duration::MAX).left(SEC),
        Duration::MAX - SEC
    );
}

/// What happens to a breaker.
#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(u64),
    Admit,
    Fail,
    Succeed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..5_000_u64).prop_map(Step::Wait),
        Just(Step::Admit),
        Just(Step::Fail),
        Just(Step::Succeed),
    ];
    prop::collection::vec(step, 0..100)
}

/// The same as a [`Breaker`], in three fields.
#[derive(Debug, Default)]
struct Model {
    failures: u32,
    until: Duration,
    is_probed: bool,
}

impl Model {
    fn state(&self, now: Duration) -> State {
        if self.failures == 0 {
            State::Closed
        } else if now < self.until {
            State::Open
        } else {
            State::HalfOpen
        }
    }
}

proptest! {
    #[test]
    fn a_pause_is_between_its_limits_and_follows_from_its_arguments(
        policy in policies(), failures in 0..200_u32, seed: u64,
    ) {
        let (pause, longest) = (policy.pause(failures, seed), policy.longest(failures));
        prop_assert!(pause <= longest);
        prop_assert!(longest <= policy.longest(failures + 1));
        prop_assert_eq!(pause, policy.pause(failures, seed));
        let equal = Backoff::new(longest, longest, Jitter::Equal);
        prop_assert!(equal.pause(failures, seed) >= longest / 2);
    }

    #[test]
    fn a_breaker_is_closed_open_or_half_open_as_its_model(
        policy in policies(), seed: u64, steps in steps(),
    ) {
        const WITHIN: Duration = SEC;
        let (breaker, mut model) = (Breaker::default(), Model::default());
        let mut now = Duration::ZERO;
        for step in steps {
            let state = model.state(now);
            prop_assert_eq!(breaker.state(now), state);
            match step {
                Step::Wait(time) => now += ms(time),
                Step::Admit => {
                    prop_assert_eq!(breaker.admit(now, WITHIN), state != State::Open);
                    if state == State::HalfOpen {
                        (model.until, model.is_probed) = (now + WITHIN, true);
                    }
                }
                Step::Fail => {
                    prop_assert_eq!(breaker.failed(now, &policy, seed), state == State::Closed);
                    if state != State::Open || model.is_probed {
                        let pause = breaker.until() - now;
                        // Rounded up to a microsecond.
                        prop_assert!(pause <= policy.longest(model.failures) + MS / 1000);
                        model.failures += 1;
                        (model.until, model.is_probed) = (breaker.until(), false);
                    }
                }
                Step::Succeed => {
                    prop_assert_eq!(breaker.succeeded(), state != State::Closed);
                    model = Model::default();
                }
            }
            prop_assert_eq!(breaker.until(), model.until);
        }
    }

    #[test]
    fn the_attempts_of_an_operation_end_with_it(
        within in 0..10_000_u64, used in prop::collection::vec(0..100_u64, 1..6),
    ) {
        // Each attempt uses a part of the time that it gets, in percent.
        let deadline = Deadline::after(SEC, ms(within));
        let (mut now, last) = (SEC, used.len() - 1);
        for (number, percent) in used.into_iter().enumerate() {
            let share = deadline.share(now, number == last);
            prop_assert!(now + share <= SEC + ms(within));
            now += share * percent as u32 / 100;
        }
    }
}
