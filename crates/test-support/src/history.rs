//! Histories of the clients of a disk, and the search for one disk with one owner that explains them.
//!
//! Threads write and read the same blocks and flush, and each operation is recorded with the times
//! at which it was invoked and completed. [`History::check`] searches an explanation of each block:
//! an order of its operations in which
//!
//! - each operation is executed at one moment between its invocation and its completion;
//! - a read returns what the last write before it wrote, or [`Value::INITIAL`];
//! - a write without an answer is executed at one moment after its invocation, or never;
//! - a [`Crash`] happens at one or several moments of its interval. Then the block may go back to an
//!   earlier write, but not behind the latest one that a flush has made durable. What it goes back
//!   to is durable: no later crash loses it.
//!
//! A flush makes a write durable if the write was acknowledged before the flush was invoked, and the
//! flush was acknowledged, whatever connection each of them used (`NBD_FLAG_CAN_MULTI_CONN`). A
//! write that was merely read, or that was under way during the flush, may still be lost.
//!
//! A crash separates two owners, so a write or flush that was invoked before the interval of a crash
//! is executed before the first moment of the crash or never: its connection led to the old owner.
//! This finds writes of an old owner that reach the disk late, even those that it never acknowledged.
//!
//! Two requests for one block at the same time may mix. Therefore a read can return a value for each
//! piece of its block, and each piece is a register of its own.
//!
//! # Limits
//!
//! Blocks are checked one by one. A crash may happen at another moment for each block, and no order
//! among the writes that it keeps is required: disks promise none.
//!
//! An answer that the old owner sent can arrive after the take-over. Then a later flush does not
//! cover it, and the write may be lost without a violation.
//!
//! # Method
//!
//! The search goes through invocations and completions in order of time. It keeps all states that
//! the block can have together with the operations under way that these states contain, and lets an
//! operation happen only when a completion requires it (Lowe: Testing for linearizability, 2017).
//! These facts keep the number of states small:
//!
//! - An unanswered write that no read returned need not have happened. Any other has happened when
//!   the first such read completes.
//! - A flush matters only at a crash, and is best for the disk at the last moment possible. So it
//!   is no operation of the search: at a crash, those flushes count that were invoked before its
//!   interval, or were completed before an operation was invoked that precedes the crash.
//! - Of the values that a crash can go back to, only those matter that are read later, and of their
//!   order only which flush takes them away.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// Nanoseconds on the clock of a history.
pub type Time = u64;

/// Content of a block or a piece of it. Each write has another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u64);

impl Value {
    /// Content before the first write.
    pub const INITIAL: Value = Value(0);
    /// Content that no write of this block has: that of another block, or noise.
    pub const FOREIGN: Value = Value(u64::MAX);
    const COUNTER_BITS: u32 = 40;

    /// Returns the value of a write: the `counter`-th of a thread, from 1.
    pub fn new(thread: u16, counter: u64) -> Value {
        assert!(counter > 0 && counter >> Value::COUNTER_BITS == 0);
        Value(u64::from(thread) << Value::COUNTER_BITS | counter)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Value::INITIAL => write!(f, "the initial content"),
            Value::FOREIGN => write!(f, "foreign content"),
            Value(number) => {
                let counter = number & ((1 << Value::COUNTER_BITS) - 1);
                write!(f, "{}.{counter}", number >> Value::COUNTER_BITS)
            }
        }
    }
}

/// An operation of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write a whole block.
    Write {
        /// Number of the block.
        block: u32,
        /// Written content.
        value: Value,
    },
    /// Read a whole block.
    Read {
        /// Number of the block.
        block: u32,
        /// Content that was read: one value if all pieces have the same, otherwise that of each piece.
        values: Vec<Value>,
    },
    /// Make acknowledged writes durable.
    Flush,
}

/// An operation, and when it was under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Number of the thread.
    pub thread: u16,
    /// The operation.
    pub action: Action,
    /// Time before the first byte was sent.
    pub invoked: Time,
    /// Time after a positive answer; none if there was another answer, or none.
    pub completed: Option<Time>,
}

/// A loss of the owner's memory at an unknown moment of an interval: its process was killed, or
/// another owner took over. If that one is lost before it was seen to serve, it is the same crash.
///
/// A fault that does not cost the owner its memory is no crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Time before the cause. All connections before this time led to the old owner.
    pub from: Time,
    /// Time at which the new owner was seen to serve, so that the old one must not any more.
    pub until: Time,
}

/// All that happened to a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Operations in any order.
    pub operations: Vec<Operation>,
    /// Crashes, which do not overlap, in order.
    pub crashes: Vec<Crash>,
}

/// A read that nothing explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Number of the block.
    pub block: u32,
    /// The value that was read.
    pub read: Value,
    /// The last operations of the block, flushes and crashes up to the read, with times in
    /// milliseconds.
    pub before: Vec<String>,
}

/// Operations and crashes that a violation shows.
const SHOWN: usize = 24;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            f,
            "block {}: nothing explains a read of {}",
            self.block, self.read
        )?;
        self.before
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Violation {}

impl History {
    /// Searches an explanation of all reads.
    ///
    /// # Errors
    /// No disk with one owner at a time explains a read; this is the first such read of its block.
    ///
    /// # Panics
    /// Two writes have the same value, an interval ends before it begins, or crashes overlap.
    pub fn check(&self) -> Result<(), Violation> {
        let in_order = |pair: &[Crash]| pair[0].until < pair[1].from;
        assert!(self.crashes.windows(2).all(in_order), "crashes overlap");
        let flushes = Flushes::of(self);
        let mut blocks: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.operations {
            if let Some(block) = operation.block() {
                blocks.entry(block).or_default().push(operation);
            }
        }
        for (block, operations) in blocks {
            for steps in registers(&operations) {
                let search = Search::new(steps, &self.crashes, &flushes);
                search.run().map_err(|(read, at)| Violation {
                    block,
                    read,
                    before: self.shown(&operations, at),
                })?;
            }
        }
        Ok(())
    }

    /// Describes what was invoked before a time: the operations of a block, crashes, and of
    /// acknowledged flushes that follow each other the last.
    fn shown(&self, operations: &[&Operation], until: Time) -> Vec<String> {
        let is_flush = |o: &&Operation| o.action == Action::Flush && o.completed.is_some();
        let flushes = self.operations.iter().filter(is_flush);
        let operation = |o: &Operation| (o.invoked, is_flush(&o), o.to_string());
        let crash = |crash: &Crash| {
            let times = times(crash.from, Some(crash.until));
            (crash.from, false, format!("{times} crash"))
        };
        let operations = operations.iter().copied().chain(flushes).map(operation);
        let crashes = self.crashes.iter().map(crash);
        let mut lines: Vec<(Time, bool, String)> = operations.chain(crashes).collect();
        lines.retain(|(at, ..)| *at <= until);
        lines.sort();
        lines.dedup_by(|line, before| {
            let both = line.1 && before.1;
            if both {
                std::mem::swap(line, before);
            }
            both
        });
        let skipped = lines.len().saturating_sub(SHOWN);
        let shown = lines.into_iter().skip(skipped);
        shown.map(|(.., line)| line).collect()
    }
}

fn times(from: Time, until: Option<Time>) -> String {
    let ms = |time: Time| format!("{:.3}", time as f64 / 1e6);
    let until = until.map_or("no answer".into(), ms);
    format!("[{} .. {until}]", ms(from))
}

impl Operation {
    fn block(&self) -> Option<u32> {
        match self.action {
            Action::Write { block, .. } | Action::Read { block, .. } => Some(block),
            Action::Flush => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let times = times(self.invoked, self.completed);
        write!(f, "{times} thread {}: ", self.thread)?;
        match &self.action {
            Action::Flush => write!(f, "flush"),
            Action::Write { value, .. } => write!(f, "write {value}"),
            Action::Read { values, .. } => {
                let mut distinct: Vec<String> = values.iter().map(Value::to_string).collect();
                distinct.dedup();
                write!(f, "read {}", distinct.join(" | "))
            }
        }
    }
}

/// Acknowledged flushes of a history.
struct Flushes {
    /// Times of invocation, in order.
    invoked: Vec<Time>,
    /// For each completion, in order of time: the latest invocation of a flush that was complete.
    completed: Vec<(Time, Time)>,
}

impl Flushes {
    fn of(history: &History) -> Flushes {
        let flushes = history
            .operations
            .iter()
            .filter(|o| o.action == Action::Flush);
        let both = flushes.filter_map(|flush| Some((flush.completed?, flush.invoked)));
        let mut completed: Vec<(Time, Time)> = both.collect();
        completed.sort_unstable();
        let mut invoked: Vec<Time> = completed.iter().map(|(_, invoked)| *invoked).collect();
        invoked.sort_unstable();
        let mut latest = 0;
        for (_, invoked) in &mut completed {
            latest = latest.max(*invoked);
            *invoked = latest;
        }
        Flushes { invoked, completed }
    }

    /// Returns the time before which a write must have been acknowledged to survive a crash of the
    /// interval from `crash` on, at a moment not before `floor`.
    fn horizon(&self, crash: Time, floor: Time) -> Time {
        let before = self.invoked.partition_point(|invoked| *invoked < crash);
        let complete = self
            .completed
            .partition_point(|(completed, _)| *completed < floor);
        let before = before.checked_sub(1).map_or(0, |at| self.invoked[at]);
        let complete = complete.checked_sub(1).map_or(0, |at| self.completed[at].1);
        before.max(complete)
    }

    /// Returns when a flush is invoked that makes a write durable, the largest time if none is.
    fn after(&self, acknowledged: Option<Time>) -> Time {
        let at = |time| self.invoked.partition_point(|invoked| *invoked <= time);
        let flush = acknowledged.and_then(|time| self.invoked.get(at(time)));
        flush.copied().unwrap_or(Time::MAX)
    }
}

/// A step of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write(Value),
    Read(Value),
    Crash,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    kind: Kind,
    invoked: Time,
    /// Time at which it has happened for certain.
    due: Time,
    /// Time of the answer of a write.
    acknowledged: Option<Time>,
}

/// Returns the steps of each register of a block, without repetitions: pieces of which all reads
/// returned the same are alike.
fn registers(operations: &[&Operation]) -> Vec<Vec<Step>> {
    let answered = |operation: &Operation| match &operation.action {
        Action::Read { values, .. } => operation.completed.map(|_| values.clone()),
        _ => None,
    };
    let reads: Vec<Vec<Value>> = operations.iter().filter_map(|o| answered(o)).collect();
    let pieces = reads.iter().map(Vec::len).max().unwrap_or(0);
    let of = |piece: usize| {
        reads
            .iter()
            .map(move |values| *values.get(piece).unwrap_or(&values[0]))
    };
    let distinct: BTreeSet<Vec<Value>> = (0..pieces).map(|piece| of(piece).collect()).collect();
    distinct
        .iter()
        .map(|values| steps(operations, values))
        .collect()
}

/// Returns the steps of a register, whose answered reads returned `values`.
fn steps(operations: &[&Operation], values: &[Value]) -> Vec<Step> {
    let mut values = values.iter();
    let mut first_read: HashMap<Value, Time> = HashMap::new();
    let mut steps = Vec::new();
    for operation in operations {
        if let (Action::Read { .. }, Some(due)) = (&operation.action, operation.completed) {
            let value = *values.next().expect("one for each answered read");
            let first = first_read.entry(value).or_insert(due);
            *first = due.min(*first);
            steps.push(Step {
                kind: Kind::Read(value),
                invoked: operation.invoked,
                due,
                acknowledged: None,
            });
        }
    }
    let mut written = HashSet::new();
    for operation in operations {
        if let Action::Write { value, .. } = operation.action {
            assert!(written.insert(value), "{value} is written twice");
            let due = operation.completed.or(first_read.get(&value).copied());
            steps.extend(due.map(|due| Step {
                kind: Kind::Write(value),
                invoked: operation.invoked,
                due: due.max(operation.invoked),
                acknowledged: operation.completed,
            }));
        }
    }
    steps
}

/// A state that the register can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Steps under way that have happened, as bits.
    happened: u64,
    /// The value that a read returns, unless it is a value that no read returns from here on.
    value: Option<Value>,
    /// Earlier values that a crash can go back to, in order. Each has a time: a flush that is invoked
    /// then or later makes a later value durable.
    earlier: Vec<(Value, Time)>,
}

struct Search<'a> {
    steps: Vec<Step>,
    /// Time at which the last read of a value is due.
    last_read: HashMap<Value, Time>,
    /// Intervals of crashes that are not due yet.
    crashes: &'a [Crash],
    flushes: &'a Flushes,
    /// Steps under way. The place of a step is its bit in states.
    under_way: [Option<usize>; 64],
    /// Latest invocation of a step that is not under way any more.
    floor: Time,
    states: HashSet<State>,
}

impl<'a> Search<'a> {
    fn new(mut steps: Vec<Step>, crashes: &'a [Crash], flushes: &'a Flushes) -> Search<'a> {
        let mut last_read = HashMap::new();
        for step in &steps {
            if let Kind::Read(value) = step.kind {
                let last = last_read.entry(value).or_insert(step.due);
                *last = step.due.max(*last);
            }
        }
        steps.extend(crashes.iter().map(|crash| Step {
            kind: Kind::Crash,
            invoked: crash.from,
            due: crash.until,
            acknowledged: None,
        }));
        let initial = State {
            happened: 0,
            value: Some(Value::INITIAL),
            earlier: Vec::new(),
        };
        Search {
            steps,
            last_read,
            crashes,
            flushes,
            under_way: [None; 64],
            floor: 0,
            states: [initial].into(),
        }
    }

    /// Returns the first read that is not explained, and when it completed.
    fn run(mut self) -> Result<(), (Value, Time)> {
        let mut events: Vec<(Time, bool, usize)> = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            assert!(step.invoked <= step.due, "{step:?} ends before it begins");
            // Invocations come first among events of one time: such steps overlap.
            events.push((step.invoked, false, number));
            events.push((step.due, true, number));
        }
        events.sort_unstable();
        for (at, is_due, number) in events {
            if !is_due {
                let free = self.under_way.iter().position(Option::is_none);
                self.under_way[free.expect("at most 64 operations at once")] = Some(number);
                continue;
            }
            self.complete(number);
            if self.states.is_empty() {
                let Kind::Read(value) = self.steps[number].kind else {
                    unreachable!("only a read can fail");
                };
                return Err((value, at));
            }
        }
        Ok(())
    }

    /// Lets a step that is due happen in all states.
    fn complete(&mut self, number: usize) {
        let here = |step: &Option<usize>| *step == Some(number);
        let place = self.under_way.iter().position(here);
        let place = place.expect("it is under way");
        let completed = self.steps[number];
        let mut open: Vec<State> = self.states.drain().collect();
        let mut seen: HashSet<State> = open.iter().cloned().collect();
        let mut done = Vec::new();
        while let Some(state) = open.pop() {
            if state.happened & 1 << place != 0 {
                done.push(state.clone());
                // A crash can happen again, but not after it is due.
                if completed.kind != Kind::Crash {
                    continue;
                }
            }
            for (bit, step) in self.under_way.iter().enumerate() {
                let Some(step) = step.map(|step| &self.steps[step]) else {
                    continue;
                };
                if state.happened & 1 << bit != 0 && step.kind != Kind::Crash {
                    continue;
                }
                for mut next in self.happen(&state, step) {
                    next.happened |= 1 << bit;
                    self.reduce(&mut next, completed.due);
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
        self.floor = self.floor.max(completed.invoked);
        self.under_way[place] = None;
        if completed.kind == Kind::Crash {
            self.crashes = &self.crashes[1..];
        }
        for mut state in done {
            state.happened &= !(1 << place);
            self.reduce(&mut state, completed.due);
            self.states.insert(state);
        }
    }

    /// Returns the states after a step, none if it cannot happen in this state.
    fn happen(&self, state: &State, step: &Step) -> Vec<State> {
        match step.kind {
            Kind::Read(value) if state.value == Some(value) => vec![state.clone()],
            Kind::Read(_) => Vec::new(),
            Kind::Write(value) => {
                let mut next = state.clone();
                let durable = self.flushes.after(step.acknowledged);
                for (_, lost) in &mut next.earlier {
                    *lost = durable.min(*lost);
                }
                next.earlier
                    .extend(state.value.map(|value| (value, durable)));
                next.earlier.sort_unstable();
                next.value = Some(value);
                vec![next]
            }
            Kind::Crash => {
                let of_old = |other: &Step| {
                    matches!(other.kind, Kind::Write(_)) && other.invoked < step.invoked
                };
                if self.waiting(state).any(of_old) {
                    return Vec::new();
                }
                let floor = self.floor_of(state).max(step.invoked);
                let horizon = self.flushes.horizon(step.invoked, floor);
                let earlier = state.earlier.iter().filter(|(_, lost)| *lost > horizon);
                let values = earlier.map(|(value, _)| Some(*value)).chain([state.value]);
                let back_to = |value| State {
                    happened: state.happened,
                    value,
                    earlier: Vec::new(),
                };
                values.map(back_to).collect()
            }
        }
    }

    /// Returns the steps under way that have not happened.
    fn waiting(&self, state: &State) -> impl Iterator<Item = &Step> {
        let happened = state.happened;
        let steps = self.under_way.iter().enumerate();
        let waiting = steps.filter(move |(bit, _)| happened & 1 << bit == 0);
        waiting.filter_map(|(_, step)| Some(&self.steps[(*step)?]))
    }

    /// Returns the latest invocation of a step that has happened: what follows happens later.
    fn floor_of(&self, state: &State) -> Time {
        let steps = self.under_way.iter().enumerate();
        let happened = steps.filter(|(bit, _)| state.happened & 1 << bit != 0);
        let invoked = happened.filter_map(|(_, step)| Some(self.steps[(*step)?].invoked));
        invoked.fold(self.floor, Time::max)
    }

    /// Reduces a state to what matters from a time on: removes values that cannot be read any more,
    /// and lets reads happen that agree. These could happen later only if the value is still there, or
    /// a crash goes back to it. No flush before such a read makes a write durable that follows it.
    fn reduce(&self, state: &mut State, now: Time) {
        let horizon = self.crashes.first().map_or(Time::MAX, |crash| {
            self.flushes.horizon(crash.from, self.floor_of(state))
        });
        // A crash that goes back to a value that is not read is no better than one that loses nothing.
        let is_read = |value: &Value| self.last_read.get(value).is_some_and(|last| *last >= now);
        state
            .earlier
            .retain(|(value, lost)| *lost > horizon && is_read(value));
        state.value = state.value.filter(is_read);
        if let Some(value) = state.value {
            for (bit, step) in self.under_way.iter().enumerate() {
                if step.is_some_and(|step| self.steps[step].kind == Kind::Read(value)) {
                    state.happened |= 1 << bit;
                }
            }
        }
    }
}
