//! The checker of histories: planted violations, correct histories, a second implementation that
//! tries all orders, and its speed.

use block_testing::Random;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};
use test_support::history::{Action, Crash, History, Operation, Time, Value};

const A: Value = Value(1);
const B: Value = Value(2);
const C: Value = Value(3);
const BLOCK: u32 = 7;

/// Builds histories of one block.
#[derive(Default)]
struct Story(History);

impl Story {
    fn with(mut self, action: Action, invoked: Time, completed: Option<Time>) -> Story {
        self.0.operations.push(Operation {
            thread: self.0.operations.len() as u16,
            action,
            invoked,
            completed,
        });
        self
    }

    fn write(self, value: Value, invoked: Time, completed: Time) -> Story {
        let block = BLOCK;
        self.with(Action::Write { block, value }, invoked, Some(completed))
    }

    /// A write without an answer.
    fn lost_write(self, value: Value, invoked: Time) -> Story {
        let block = BLOCK;
        self.with(Action::Write { block, value }, invoked, None)
    }

    fn read(self, value: Value, invoked: Time, completed: Time) -> Story {
        self.read_pieces(&[value], invoked, completed)
    }

    fn read_pieces(self, values: &[Value], invoked: Time, completed: Time) -> Story {
        let (block, values) = (BLOCK, values.to_vec());
        self.with(Action::Read { block, values }, invoked, Some(completed))
    }

    fn flush(self, invoked: Time, completed: Time) -> Story {
        self.with(Action::Flush, invoked, Some(completed))
    }

    fn crash(mut self, from: Time, until: Time) -> Story {
        self.0.crashes.push(Crash { from, until });
        self
    }

    #[track_caller]
    fn is_accepted(&self) {
        if let Err(violation) = self.0.check() {
            panic!("{violation}");
        }
    }

    /// Checks that `read` is the one that nothing explains.
    #[track_caller]
    fn is_refused_at(&self, read: Value) {
        let violation = self.0.check().expect_err("a violation was planted");
        assert_eq!(
            (violation.block, violation.read),
            (BLOCK, read),
            "{violation}"
        );
    }
}

#[test]
fn a_stale_read_after_a_take_over_is_found() {
    let story = || {
        Story::default()
            .write(A, 1, 2)
            .flush(3, 4)
            .crash(10, 20)
            .write(B, 30, 31)
    };
    story().read(B, 40, 41).is_accepted();
    story().read(A, 40, 41).is_refused_at(A);
    // While the write is under way, both may be read, but not the new value before the old one.
    story().read(A, 29, 31).is_accepted();
    story()
        .write(C, 50, 60)
        .read(C, 51, 52)
        .read(B, 53, 54)
        .is_refused_at(B);
}

#[test]
fn a_lost_flushed_write_is_found() {
    let story = || {
        Story::default()
            .write(A, 1, 2)
            .crash(10, 20)
            .read(Value::INITIAL, 30, 31)
    };
    story().is_accepted();
    story().flush(3, 4).is_refused_at(Value::INITIAL);
    // A flush that began before the write was acknowledged promises nothing.
    story().flush(2, 4).is_accepted();
    // Nor does one without an answer.
    story().with(Action::Flush, 3, None).is_accepted();
    // A flush that the old owner received, and that was acknowledged, came before the crash.
    story().flush(9, 25).is_refused_at(Value::INITIAL);
    // One of the new owner may come after it.
    story().flush(11, 25).is_accepted();
    // This one came before it, as a read of the lost value followed it.
    story()
        .flush(11, 12)
        .read(A, 13, 15)
        .is_refused_at(Value::INITIAL);
    // Without a crash, no acknowledged write may be lost.
    Story::default()
        .write(A, 1, 2)
        .read(Value::INITIAL, 3, 4)
        .is_refused_at(Value::INITIAL);
}

#[test]
fn a_crash_goes_back_no_further_than_the_flush() {
    let story = |read| {
        Story::default()
            .write(A, 1, 2)
            .write(B, 3, 4)
            .flush(5, 6)
            .write(C, 7, 8)
            .crash(10, 20)
            .read(read, 30, 31)
    };
    story(C).is_accepted();
    story(B).is_accepted();
    story(A).is_refused_at(A);
    story(Value::INITIAL).is_refused_at(Value::INITIAL);
}

#[test]
fn owners_that_are_lost_one_after_the_other_may_each_lose_what_they_had() {
    let story = || {
        Story::default()
            .crash(10, 40)
            .write(A, 12, 13)
            .read(A, 14, 15)
            .read(Value::INITIAL, 20, 21)
            .write(B, 22, 23)
    };
    story().read(Value::INITIAL, 50, 51).is_accepted();
    story().write(C, 39, 41).read(B, 50, 51).is_accepted();
    // The crash is over.
    let over = || story().write(C, 41, 42);
    over().read(B, 50, 51).is_refused_at(B);
    story()
        .flush(24, 25)
        .read(Value::INITIAL, 50, 51)
        .is_accepted();
    story()
        .flush(24, 25)
        .read(B, 26, 27)
        .read(Value::INITIAL, 50, 51)
        .is_refused_at(Value::INITIAL);
}

#[test]
fn two_owners_that_both_acknowledge_writes_which_then_alternate_are_found() {
    let story = || {
        Story::default()
            .crash(10, 20)
            .write(A, 30, 33)
            .write(B, 31, 34)
            .read(A, 40, 41)
    };
    story().is_accepted();
    story().read(B, 42, 43).is_refused_at(B);
    story().read(B, 42, 43).read(A, 44, 45).is_refused_at(B);
}

#[test]
fn a_write_of_the_old_owner_that_reaches_the_disk_late_is_found() {
    // It was never acknowledged. Without a take-over it may be executed at any time.
    let story = || {
        Story::default()
            .lost_write(A, 1)
            .write(B, 30, 31)
            .read(B, 40, 41)
    };
    story().read(A, 50, 51).is_accepted();
    story().crash(10, 20).read(A, 50, 51).is_refused_at(A);
    // The new owner may have received this one.
    let story = || {
        Story::default()
            .lost_write(A, 11)
            .write(B, 30, 31)
            .read(B, 40, 41)
    };
    story().crash(10, 20).read(A, 50, 51).is_accepted();
}

#[test]
fn a_lost_write_that_comes_back_is_found() {
    let story = || {
        Story::default()
            .write(A, 1, 2)
            .crash(10, 20)
            .read(Value::INITIAL, 30, 31)
    };
    story().is_accepted();
    story().read(A, 40, 41).is_refused_at(A);
    story().crash(50, 60).read(A, 70, 71).is_refused_at(A);
    // What a crash went back to is durable: the next crash does not lose it.
    let kept = || {
        Story::default()
            .write(A, 1, 2)
            .write(B, 3, 4)
            .crash(10, 20)
            .read(A, 30, 31)
    };
    kept().crash(50, 60).read(A, 70, 71).is_accepted();
    kept()
        .crash(50, 60)
        .read(Value::INITIAL, 70, 71)
        .is_refused_at(Value::INITIAL);
}

#[test]
fn a_correct_history_with_unanswered_writes_is_accepted() {
    Story::default()
        .lost_write(A, 1)
        .read(Value::INITIAL, 2, 3)
        .lost_write(B, 4)
        .read(B, 5, 6)
        .read(A, 7, 8)
        .write(C, 9, 10)
        .read(C, 11, 12)
        .is_accepted();
    // Such a write is executed once.
    Story::default()
        .lost_write(A, 1)
        .read(A, 2, 3)
        .write(B, 4, 5)
        .read(B, 6, 7)
        .read(A, 8, 9)
        .is_refused_at(A);
    // It is not executed before it was invoked.
    Story::default()
        .read(A, 1, 2)
        .lost_write(A, 3)
        .is_refused_at(A);
}

#[test]
fn a_read_may_mix_writes_under_way_and_no_others() {
    let story = || Story::default().write(A, 1, 2).write(B, 10, 20);
    story().read_pieces(&[A, B], 11, 12).is_accepted();
    story()
        .read_pieces(&[A, B], 11, 12)
        .read_pieces(&[B, A], 13, 14)
        .is_refused_at(A);
    story().read_pieces(&[A, B], 21, 22).is_refused_at(A);
    story()
        .read_pieces(&[B, Value::FOREIGN], 11, 12)
        .is_refused_at(Value::FOREIGN);
}

#[test]
fn a_violation_shows_what_led_to_it() {
    let story = Story::default()
        .write(A, 1_000_000, 2_000_000)
        .crash(3_000_000, 4_000_000);
    let story = story.flush(2_100_000, 2_200_000).lost_write(B, 5_000_000);
    let violation = story
        .read(Value::INITIAL, 6_000_000, 7_000_000)
        .0
        .check()
        .unwrap_err();
    let text = "block 7: nothing explains a read of the initial content
  [1.000 .. 2.000] thread 0: write 0.1
  [2.100 .. 2.200] thread 1: flush
  [3.000 .. 4.000] crash
  [5.000 .. no answer] thread 2: write 0.2
  [6.000 .. 7.000] thread 3: read the initial content
";
    assert_eq!(violation.to_string(), text);
}

/// Tries all orders of the operations of one block, with flushes as operations of their own.
struct AllOrders<'a> {
    history: &'a History,
    /// Operations that have not happened.
    left: Vec<&'a Operation>,
    /// Crashes that have happened.
    crashes: usize,
    /// Latest invocation of what has happened.
    floor: Time,
    /// Writes that a crash can go back to, with the times of their answers.
    writes: Vec<(Value, Option<Time>)>,
}

impl AllOrders<'_> {
    fn explain(&mut self) -> bool {
        let crash = self.history.crashes.get(self.crashes).copied();
        let required = |o: &&Operation| o.completed.is_some();
        if crash.is_none() && !self.left.iter().any(required) {
            return true;
        }
        // What comes next was invoked before everything left is due.
        let due = self.left.iter().filter_map(|o| o.completed);
        let due = due
            .chain(crash.map(|crash| crash.until))
            .min()
            .unwrap_or(Time::MAX);
        for next in 0..self.left.len() {
            let operation = self.left[next];
            let unanswered_read =
                operation.completed.is_none() && !matches!(operation.action, Action::Write { .. });
            if operation.invoked > due || unanswered_read {
                continue;
            }
            let writes = self.writes.clone();
            let fits = match &operation.action {
                Action::Write { value, .. } => {
                    self.writes.push((*value, operation.completed));
                    true
                }
                Action::Read { values, .. } => self.writes.last().unwrap().0 == values[0],
                Action::Flush => {
                    let durable =
                        |w: &(Value, Option<Time>)| w.1.is_some_and(|at| at < operation.invoked);
                    let first = self.writes.iter().rposition(durable).unwrap_or(0);
                    self.writes.drain(..first);
                    true
                }
            };
            let floor = self.floor;
            self.floor = floor.max(operation.invoked);
            self.left.remove(next);
            let explained = fits && self.explain();
            self.left.insert(next, operation);
            (self.writes, self.floor) = (writes, floor);
            if explained {
                return true;
            }
        }
        let again = self
            .crashes
            .checked_sub(1)
            .map(|last| self.history.crashes[last]);
        if again.is_some_and(|crash| self.floor <= crash.until)
            && self.writes.len() > 1
            && self.goes_back()
        {
            return true;
        }
        let Some(crash) = crash.filter(|crash| crash.from <= due) else {
            return false;
        };
        let is_write = |o: &&Operation| matches!(o.action, Action::Write { .. });
        let of_old = |o: &Operation| o.invoked < crash.from;
        let waits =
            |o: &&Operation| of_old(o) && required(o) && (is_write(o) || o.action == Action::Flush);
        if self.left.iter().any(waits) {
            return false;
        }
        let (left, floor) = (self.left.clone(), self.floor);
        self.left.retain(|o| required(o) || !of_old(o));
        self.crashes += 1;
        self.floor = floor.max(crash.from);
        let explained = self.goes_back();
        self.crashes -= 1;
        (self.left, self.floor) = (left, floor);
        explained
    }

    /// Tries all values that a crash can go back to.
    fn goes_back(&mut self) -> bool {
        let writes = std::mem::take(&mut self.writes);
        let explained = writes.iter().any(|(value, _)| {
            self.writes = vec![(*value, Some(0))];
            self.explain()
        });
        self.writes = writes;
        explained
    }
}

/// Returns a random history of one block with some operations.
fn random_history(random: &mut Random) -> History {
    let mut story = Story::default();
    let (mut at, mut writes) = (0, 0);
    let (pause, length, outage) = (
        2 + random.below(5),
        4 + random.below(8),
        6 + random.below(30),
    );
    for _ in 0..4 + random.below(5) {
        at += random.below(pause);
        let until = at + random.below(length);
        story = match random.below(8) {
            0..=1 => {
                writes += 1;
                story.write(Value(writes), at, until)
            }
            2 => {
                writes += 1;
                story.lost_write(Value(writes), at)
            }
            3 => story.flush(at, until),
            _ => {
                let value = Value(random.below(writes + 1));
                story.read(value, at, until)
            }
        };
    }
    let mut from = random.below(15);
    for _ in 0..random.below(3) {
        let until = from + random.below(outage);
        story = story.crash(from, until);
        from = until + 1 + random.below(8);
    }
    story.0
}

#[test]
fn the_checker_agrees_with_a_search_of_all_orders() {
    let mut random = Random::new(20);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..50_000 {
        let history = random_history(&mut random);
        let mut all = AllOrders {
            history: &history,
            left: history.operations.iter().collect(),
            crashes: 0,
            floor: 0,
            writes: vec![(Value::INITIAL, Some(0))],
        };
        let explained = all.explain();
        let checked = history.check();
        assert_eq!(checked.is_ok(), explained, "{history:#?} {checked:?}");
        if explained {
            accepted += 1;
        } else {
            refused += 1;
        }
    }
    assert!(accepted > 10_000 && refused > 5000, "{accepted} {refused}");
}

const THREADS: u64 = 8;
const BLOCKS: u64 = 64;

/// A disk with a volatile cache, its threads, and crashes.
struct Disk {
    random: Random,
    /// For each block: what is durable, then what a crash can lose.
    blocks: Vec<Vec<Value>>,
    history: History,
}

impl Disk {
    /// Returns a history of a correct disk that crashes after each `lifetime` nanoseconds.
    fn run(seed: u64, operations: usize, lifetime: Time) -> History {
        let mut disk = Disk {
            random: Random::new(seed),
            blocks: vec![vec![Value::INITIAL]; BLOCKS as usize],
            history: History::default(),
        };
        let mut counters = [0; THREADS as usize];
        let mut crash_at = lifetime;
        // The next execution of each thread: its time, and that of the invocation.
        let mut next = BinaryHeap::new();
        for thread in 0..THREADS {
            next.push(std::cmp::Reverse((disk.random.below(1000), 0, thread)));
        }
        while disk.history.operations.len() < operations {
            let std::cmp::Reverse((executed, invoked, thread)) = next.pop().unwrap();
            while executed > crash_at {
                disk.crash(crash_at);
                crash_at += lifetime;
            }
            let last_crash = crash_at - lifetime;
            let is_lost = last_crash > 0 && invoked < last_crash;
            let answered = executed + disk.random.below(1000);
            let is_answered = !is_lost && answered < crash_at;
            let counter = &mut counters[thread as usize];
            *counter += 1;
            let value = Value::new(thread as u16, *counter);
            let action = disk.execute(value, is_lost);
            disk.history.operations.push(Operation {
                thread: thread as u16,
                action,
                invoked,
                completed: is_answered.then_some(answered),
            });
            // A thread that lost its connection needs time for another one.
            let again = if is_answered {
                answered
            } else {
                answered + 2000
            };
            let again = again.max(if is_answered {
                0
            } else {
                crash_at.min(answered) + 1
            });
            let execute = again + 1 + disk.random.below(1000);
            next.push(std::cmp::Reverse((execute, again, thread)));
        }
        disk.history
    }

    fn execute(&mut self, value: Value, is_lost: bool) -> Action {
        let block = self.random.below(BLOCKS) as u32;
        let content = &mut self.blocks[block as usize];
        match self.random.below(20) {
            0 => {
                if !is_lost {
                    for content in &mut self.blocks {
                        content.drain(..content.len() - 1);
                    }
                }
                Action::Flush
            }
            1..10 => {
                if !is_lost {
                    content.push(value);
                }
                Action::Write { block, value }
            }
            _ => Action::Read {
                block,
                values: vec![*content.last().unwrap()],
            },
        }
    }

    fn crash(&mut self, at: Time) {
        for content in &mut self.blocks {
            let kept = content[self.random.below(content.len() as u64) as usize];
            *content = vec![kept];
        }
        self.history.crashes.push(Crash {
            from: at - 500,
            until: at + 3000,
        });
    }
}

#[test]
fn the_history_of_a_correct_disk_is_accepted_within_seconds() {
    let history = Disk::run(1, 20_000, 100_000);
    let unanswered = history
        .operations
        .iter()
        .filter(|o| o.completed.is_none())
        .count();
    assert!(
        history.crashes.len() > 10 && unanswered > 50,
        "{unanswered}"
    );
    let started = Instant::now();
    if let Err(violation) = history.check() {
        panic!("{violation}");
    }
    let took = started.elapsed();
    println!(
        "{took:?}, {} crashes, {unanswered} unanswered",
        history.crashes.len()
    );
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn an_outdated_read_in_a_long_history_is_found() {
    let history = Disk::run(2, 20_000, 100_000);
    history.check().expect("a correct history");
    let mut random = Random::new(3);
    for _ in 0..5 {
        let mut wrong = history.clone();
        let reads = wrong.operations.iter_mut().filter(|o| {
            matches!(o.action, Action::Read { .. })
                && o.completed.is_some()
                && o.invoked > 1_000_000
        });
        let mut reads: Vec<&mut Operation> = reads.collect();
        let at = random.below(reads.len() as u64) as usize;
        let Action::Read { values, .. } = &mut reads[at].action else {
            unreachable!("they were selected");
        };
        *values = vec![Value::INITIAL];
        let violation = wrong.check().expect_err("the initial content is long gone");
        assert_eq!(violation.read, Value::INITIAL);
    }
}
