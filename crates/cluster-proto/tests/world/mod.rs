//! A cluster in virtual time: machines, a store of records with leases, and disks with several
//! paths, between which messages are late or lost. All of it follows from one seed.
//!
//! What is checked at every event: a disk never obeys a claim older than the newest that it knows;
//! no machine serves a unit while another one answers clients for it.

mod disk;
mod fault;
mod store;

use block_testing::Random;
use cluster_proto::{Action, Answer, Ask, AskId, At, Config, Done, Machine, Name, Notice, Phase};
use disk::{Disk, Operation, Reply};
pub use fault::Fault;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;
use store::{Load, Store};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// Paths to each disk.
pub const PATHS: usize = 2;

/// How long a machine waits for all paths of a disk.
const DISK_PATIENCE: u64 = 2 * SECOND;

/// Defects that a check has to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// A fence is reported as proven without having been requested on the last path.
    PathNotFenced,
    /// A machine takes its lease for one of four seconds, and serves until its end.
    LateStop,
    /// The store replaces a record of another revision.
    BlindStore,
}

/// A world.
#[derive(Debug, Clone)]
pub struct Rules {
    pub seed: u64,
    pub machines: usize,
    pub units: usize,
    /// Candidates of each unit; 0: all machines.
    pub candidates: usize,
    /// Share of messages that are lost, of 10,000.
    pub lost: u64,
    /// Largest deviation of a clock's speed, in millionths.
    pub drift: u64,
    /// Pause between two writes of a machine, in nanoseconds.
    pub write_every: u64,
    pub planted: Planted,
}

#[derive(Debug)]
enum Event {
    Wake,
    ToStore(AskId, Ask),
    FromStore(AskId, Answer),
    Noticed(Notice),
    ToDisk(usize, usize, Operation),
    FromDisk(Operation, Reply),
    TooLate(Task),
    /// Opening or stopping a unit ends.
    Ends(Name, u64, Done),
    Write,
    Restart,
    Continue,
    Reach(Link),
    Drained,
    /// The configuration has a table for a unit again.
    Restored(Name),
    /// A machine reads its configuration again.
    Hangup,
}

/// A connection that a fault interrupts.
#[derive(Debug, Clone, Copy)]
enum Link {
    Store,
    Disks(Option<usize>),
}

/// What waits for paths of a disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    unit: Name,
    epoch: u64,
    /// Claims to fence; none: a new epoch for the disk.
    fences: Vec<u64>,
}

struct Queued {
    at: u64,
    number: u64,
    host: usize,
    process: u64,
    /// On the heap, because the queue moves its elements.
    event: Box<Event>,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        self.number == other.number
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A computer with the process that runs on it, if one does.
struct Host {
    machine: Option<Machine>,
    process: u64,
    /// Clock: nanoseconds at `since`, and its speed in millionths.
    clock: (u64, u64, u64),
    /// Until when its process, or all of it, stands still.
    stopped: u64,
    until: u64,
    /// The time on its clock when it last stood still as a whole, until it has a lease from later.
    frozen_at: Option<u64>,
    store: bool,
    disks: [bool; PATHS],
    /// Units that are served, with their epochs, and writes without an answer.
    serving: BTreeMap<Name, (u64, u32)>,
    tasks: BTreeMap<Task, usize>,
    /// Units without a table in the configuration, and those of its process.
    absent: BTreeSet<Name>,
    retired: BTreeSet<Name>,
    /// Events that wait until it goes on.
    held: Vec<Event>,
    wakes: u64,
}

pub struct World {
    pub now: u64,
    rules: Rules,
    random: Random,
    queue: BinaryHeap<Reverse<Queued>>,
    count: u64,
    hosts: Vec<Host>,
    store: Store,
    disks: Vec<Disk>,
    numbers: BTreeMap<Name, usize>,
    /// Hosts that serve each unit.
    servers: Vec<BTreeSet<usize>>,
    /// Since when each unit is not served.
    down: BTreeMap<Name, u64>,
    /// How long units were not served, in nanoseconds.
    pub outages: Vec<u64>,
    /// Take-overs at all.
    pub opened: u64,
    pub writes: u64,
    pub refused: u64,
    /// What happened, if `EVFS_EVENTS` is set.
    last: Option<Vec<String>>,
    /// Whether no message is late or lost any more.
    is_calm: bool,
}

pub fn name(host: usize) -> Name {
    format!("m{host}").into()
}

pub fn unit(number: usize) -> Name {
    format!("u{number}").into()
}

impl World {
    pub fn new(rules: Rules) -> World {
        let mut random = Random::new(rules.seed);
        let mut store = Store::new(rules.planted == Planted::BlindStore);
        let mut numbers = BTreeMap::new();
        for number in 0..rules.units {
            let mut all: Vec<usize> = Vec::new();
            while all.len() < rules.candidates.min(rules.machines) {
                let host = random.below(rules.machines as u64) as usize;
                if !all.contains(&host) {
                    all.push(host);
                }
            }
            numbers.insert(unit(number), number);
            store.add(unit(number), all.into_iter().map(name).collect());
        }
        let mut world = World {
            now: SECOND,
            hosts: Vec::new(),
            disks: (0..rules.units).map(|_| Disk::default()).collect(),
            servers: vec![BTreeSet::new(); rules.units],
            down: numbers.keys().map(|unit| (unit.clone(), 0)).collect(),
            numbers,
            store,
            queue: BinaryHeap::new(),
            count: 0,
            outages: Vec::new(),
            opened: 0,
            writes: 0,
            refused: 0,
            last: std::env::var_os("EVFS_EVENTS").map(|_| Vec::new()),
            is_calm: false,
            random,
            rules,
        };
        for host in 0..world.rules.machines {
            let drift = world.rules.drift;
            let speed = 1_000_000 - drift + world.random.below(2 * drift + 1);
            let start = world.random.below(1000 * SECOND);
            world.hosts.push(Host {
                machine: None,
                process: 0,
                clock: (start, world.now, speed),
                stopped: 0,
                frozen_at: None,
                until: 0,
                store: true,
                disks: [true; PATHS],
                serving: BTreeMap::new(),
                tasks: BTreeMap::new(),
                absent: BTreeSet::new(),
                retired: BTreeSet::new(),
                held: Vec::new(),
                wakes: u64::MAX,
            });
            let pause = world.random.below(200 * MS);
            world.push(pause, host, Event::Restart);
        }
        world
    }

    fn push(&mut self, after: u64, host: usize, event: Event) {
        self.count += 1;
        let process = self.hosts[host].process;
        self.queue.push(Reverse(Queued {
            at: self.now + after,
            number: self.count,
            host,
            process,
            event: Box::new(event),
        }));
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(last) = self.last.as_mut().filter(|last| last.len() < 100_000) {
            let line = format!("{:.3} {}", self.now as f64 / SECOND as f64, what());
            last.push(line);
        }
    }

    #[track_caller]
    fn violated(&self, why: &str) -> ! {
        for line in self.last.iter().flatten() {
            println!("{line}");
        }
        panic!(
            "EVFS_SEED={}: at {} ms: {why}",
            self.rules.seed,
            self.now / MS
        );
    }

    /// Returns the time that the clock of a host shows.
    fn clock(&self, host: usize) -> u64 {
        let (start, since, speed) = self.hosts[host].clock;
        start + self.now.saturating_sub(since) / 1000 * speed / 1000
    }

    /// Returns when the clock of a host will show a time.
    fn when(&self, host: usize, shown: u64) -> u64 {
        let speed = self.hosts[host].clock.2;
        let left = shown.saturating_sub(self.clock(host));
        left / 1000 * 1_000_000 / speed * 1000 + 2000
    }

    /// Returns the time of a message, none if it is lost.
    fn travel(&mut self) -> Option<u64> {
        if self.is_calm {
            return Some(MS / 2);
        }
        if self.random.below(10_000) < self.rules.lost {
            return None;
        }
        let slow = self.random.below(200) == 0;
        let most = if slow { 1500 * MS } else { 2 * MS };
        Some(MS / 10 + self.random.below(most))
    }

    /// Runs until a time.
    pub fn run_until(&mut self, end: u64) {
        while self
            .queue
            .peek()
            .is_some_and(|Reverse(next)| next.at <= end)
        {
            let Some(Reverse(next)) = self.queue.pop() else {
                break;
            };
            self.now = next.at;
            let is_own = self.hosts[next.host].process == next.process;
            let survives = matches!(
                *next.event,
                Event::ToStore(..)
                    | Event::ToDisk(..)
                    | Event::Reach(_)
                    | Event::Continue
                    | Event::Restored(_)
            );
            if is_own || survives {
                self.happen(next.host, next.process, *next.event);
            }
        }
        self.now = end;
    }

    fn happen(&mut self, host: usize, process: u64, event: Event) {
        let waits = self.hosts[host].stopped > self.now;
        match event {
            Event::ToStore(id, ask) => self.ask_store(host, process, id, ask),
            Event::ToDisk(number, path, operation) => self.ask_disk(host, number, path, operation),
            Event::Reach(link) => self.reach(host, link),
            Event::Continue => self.go_on(host),
            Event::Restored(unit) => {
                self.hosts[host].absent.remove(&unit);
                self.push(0, host, Event::Hangup);
            }
            Event::Wake if waits => {}
            Event::Wake => {
                self.hosts[host].wakes = u64::MAX;
                let now = At(Duration::from_nanos(self.clock(host)));
                self.with(host, |machine| machine.tick(now));
            }
            event if waits => self.hosts[host].held.push(event),
            Event::FromStore(id, answer) => {
                let now = At(Duration::from_nanos(self.clock(host)));
                self.with(host, |machine| machine.answer(now, id, answer));
            }
            Event::Noticed(notice) => {
                let now = At(Duration::from_nanos(self.clock(host)));
                self.with(host, |machine| machine.notice(now, notice));
            }
            Event::FromDisk(operation, reply) => self.disk_answered(host, operation, reply),
            Event::TooLate(task) => self.task_ended(host, &task, None),
            Event::Ends(unit, epoch, done) => self.ended(host, &unit, epoch, done),
            Event::Write => self.write(host),
            Event::Restart => {
                self.hosts[host].process += 1;
                let mut config = Config::new(name(host));
                if self.rules.planted == Planted::LateStop {
                    (config.margin, config.ttl) = (Duration::ZERO, Duration::from_secs(4));
                }
                if self.rules.planted == Planted::BlindStore {
                    // All candidates claim at once.
                    config.stagger = Duration::from_millis(1);
                }
                let now = At(Duration::from_nanos(self.clock(host)));
                self.hosts[host].machine = Some(Machine::new(config, now));
                self.push(self.rules.write_every, host, Event::Write);
                self.hang_up(host);
            }
            Event::Hangup => self.hang_up(host),
            Event::Drained => {
                let now = At(Duration::from_nanos(self.clock(host)));
                self.with(host, |machine| machine.drain(now, false));
            }
        }
    }

    /// Lets a machine read its configuration.
    fn hang_up(&mut self, host: usize) {
        let now = At(Duration::from_nanos(self.clock(host)));
        let absent = self.hosts[host].absent.clone();
        self.hosts[host].retired.clone_from(&absent);
        self.with(host, |machine| {
            machine.retire(now, absent);
            machine.reload(now);
        });
    }

    /// Calls a machine and does what it wants.
    fn with(&mut self, host: usize, call: impl FnOnce(&mut Machine)) {
        let Some(machine) = &mut self.hosts[host].machine else {
            return;
        };
        call(machine);
        while let Some(action) = self.hosts[host]
            .machine
            .as_mut()
            .and_then(Machine::next_action)
        {
            self.act(host, action);
        }
        let Some(machine) = &self.hosts[host].machine else {
            return;
        };
        let wakes = u64::try_from(machine.wakes().0.as_nanos()).expect("a time");
        let after = self.when(host, wakes);
        if self.now + after < self.hosts[host].wakes {
            self.hosts[host].wakes = self.now + after;
            self.push(after, host, Event::Wake);
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        self.note(|| format!("m{host} {action:?}"));
        match action {
            Action::Ask(id, ask) => {
                if let Some(after) = self.travel().filter(|_| self.hosts[host].store) {
                    self.push(after, host, Event::ToStore(id, ask));
                }
            }
            Action::Until(until) => {
                let until = u64::try_from(until.0.as_nanos()).expect("a time");
                let own = &mut self.hosts[host];
                own.until = until;
                // Its clock does not know how long it stood still, so this can end late before.
                own.frozen_at = own.frozen_at.filter(|at| until < at + 2 * SECOND);
            }
            Action::Fence {
                unit,
                epoch,
                claims,
            } => {
                let fences: Vec<u64> = claims.iter().map(|claim| claim.epoch).collect();
                let task = Task {
                    unit,
                    epoch,
                    fences,
                };
                let skips = self.rules.planted == Planted::PathNotFenced;
                let paths = PATHS - usize::from(skips);
                self.hosts[host].tasks.insert(task.clone(), paths);
                for path in 0..paths {
                    let operation = Operation::Fence(task.clone());
                    self.send(host, &task.unit.clone(), path, operation);
                }
                self.push(DISK_PATIENCE, host, Event::TooLate(task));
            }
            Action::Bump { unit, epoch } => {
                let task = Task {
                    unit: unit.clone(),
                    epoch,
                    fences: Vec::new(),
                };
                self.hosts[host].tasks.insert(task.clone(), 1);
                let path = self.random.below(PATHS as u64) as usize;
                self.send(host, &unit, path, Operation::Bump(task.clone(), host));
                self.push(DISK_PATIENCE, host, Event::TooLate(task));
            }
            Action::Open { unit, epoch } => {
                if self.hosts[host].retired.contains(&unit) {
                    self.violated(&format!("m{host} opens {unit}, which it has no table for"));
                }
                let after = 5 * MS + self.random.below(100 * MS);
                self.push(after, host, Event::Ends(unit, epoch, Done::Opened));
            }
            Action::Stop { unit, epoch } => {
                let clean = Done::Stopped { clean: true };
                self.push(50 * MS, host, Event::Ends(unit, epoch, clean));
            }
            Action::Kill { unit, .. } => self.ends_service(host, &unit),
        }
    }

    fn ends_service(&mut self, host: usize, unit: &Name) {
        if self.hosts[host].serving.remove(unit).is_some() {
            self.servers[self.numbers[unit]].remove(&host);
            self.down.entry(unit.clone()).or_insert(self.now);
        }
    }

    /// Sends an operation to a disk.
    fn send(&mut self, host: usize, unit: &Name, path: usize, operation: Operation) {
        let number = self.numbers[unit];
        if let Some(mut after) = self.travel().filter(|_| self.hosts[host].disks[path]) {
            if !self.is_calm && self.random.below(100) == 0 {
                after += self.random.below(8 * SECOND);
            }
            self.push(after, host, Event::ToDisk(number, path, operation));
        }
    }

    fn ask_disk(&mut self, host: usize, number: usize, path: usize, operation: Operation) {
        let reply = self.disks[number].execute(path, &operation);
        if let Reply::Violation(newest) = reply {
            let why = format!("m{host}: the disk knows epoch {newest} and executed {operation:?}");
            self.violated(&why);
        }
        if matches!(operation, Operation::Write { .. }) {
            self.writes += 1;
            self.refused += u64::from(reply == Reply::Refused);
        }
        if let Some(after) = self.travel().filter(|_| self.hosts[host].disks[path]) {
            self.push(after, host, Event::FromDisk(operation, reply));
        }
    }

    fn disk_answered(&mut self, host: usize, operation: Operation, reply: Reply) {
        match operation {
            Operation::Fence(task) => {
                let left = self.hosts[host].tasks.get_mut(&task);
                let Some(left) = left else { return };
                *left -= 1;
                if *left == 0 {
                    self.task_ended(host, &task, Some(reply));
                }
            }
            Operation::Bump(task, _) => self.task_ended(host, &task, Some(reply)),
            Operation::Write { unit, epoch } => {
                if let Some((served, waiting)) = self.hosts[host].serving.get_mut(&unit)
                    && *served == epoch
                {
                    *waiting = waiting.saturating_sub(1);
                }
            }
        }
    }

    fn task_ended(&mut self, host: usize, task: &Task, reply: Option<Reply>) {
        if self.hosts[host].tasks.remove(task).is_none() {
            return;
        }
        let done = match (task.fences.is_empty(), reply) {
            (false, Some(_)) => Done::Fenced,
            (false, None) => Done::NotFenced,
            (true, Some(Reply::Done)) => Done::Bumped,
            (true, Some(Reply::Newer(epoch))) => Done::Newer(epoch),
            (true, Some(_)) => Done::Failed { clean: true },
            (true, None) => Done::Failed { clean: false },
        };
        self.tell(host, &task.unit, task.epoch, done);
    }

    fn tell(&mut self, host: usize, unit: &Name, epoch: u64, done: Done) {
        let now = At(Duration::from_nanos(self.clock(host)));
        self.note(|| format!("m{host} {unit} {epoch}: {done:?}"));
        self.with(host, |machine| machine.done(now, unit, epoch, done));
    }

    /// Opening or stopping a unit has ended, unless it was killed.
    fn ended(&mut self, host: usize, unit: &Name, epoch: u64, done: Done) {
        let phase = self.hosts[host].machine.as_ref().map(|m| m.phase(unit));
        match (phase, done) {
            (Some(Phase::Opening), Done::Opened) => {
                self.hosts[host].serving.insert(unit.clone(), (epoch, 0));
                self.servers[self.numbers[unit]].insert(host);
                self.opened += 1;
                if let Some(since) = self.down.remove(unit).filter(|since| *since > 0) {
                    self.outages.push(self.now - since);
                }
                self.alone(host, unit);
                self.tell(host, unit, epoch, Done::Opened);
            }
            (Some(Phase::Stopping), Done::Stopped { .. }) => {
                let waiting = self.hosts[host].serving.get(unit);
                let clean = waiting.is_none_or(|(_, waiting)| *waiting == 0);
                self.ends_service(host, unit);
                self.tell(host, unit, epoch, Done::Stopped { clean });
            }
            _ => {}
        }
    }

    /// Checks that no other machine answers clients of a unit.
    fn alone(&self, host: usize, unit: &Name) {
        if self.hosts[host].frozen_at.is_some() {
            return;
        }
        for &other in &self.servers[self.numbers[unit]] {
            let them = &self.hosts[other];
            if other == host || them.frozen_at.is_some() {
                continue;
            }
            if self.clock(other) < them.until {
                self.violated(&format!(
                    "m{host} opened {unit}, and m{other} still serves it"
                ));
            }
        }
    }

    fn write(&mut self, host: usize) {
        self.push(self.rules.write_every, host, Event::Write);
        if self.hosts[host].until <= self.clock(host) {
            return;
        }
        let count = self.hosts[host].serving.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.random.below(count) as usize;
        let Some((unit, (epoch, waiting))) = self.hosts[host].serving.iter_mut().nth(at) else {
            return;
        };
        *waiting += 1;
        let (unit, epoch) = (unit.clone(), *epoch);
        let path = self.random.below(PATHS as u64) as usize;
        let operation = Operation::Write {
            unit: unit.clone(),
            epoch,
        };
        self.send(host, &unit, path, operation);
    }
}

/// The store.
impl World {
    fn ask_store(&mut self, host: usize, process: u64, id: AskId, ask: Ask) {
        if let Some(until) = self.store.stalls(self.now) {
            self.push(until - self.now, host, Event::ToStore(id, ask));
            return;
        }
        self.expire();
        let is_loading = matches!(ask, Ask::Load);
        let ask = match ask {
            Ask::Grant { ttl } => Ask::Grant {
                ttl: ttl.min(Duration::from_secs(3)),
            },
            ask => ask,
        };
        let (answer, told) = self.store.execute(self.now, host, &name(host), ask);
        if is_loading && self.hosts[host].process == process && self.hosts[host].store {
            self.store.watch(host);
        }
        self.pass_on(told);
        let is_there = self.hosts[host].process == process && self.hosts[host].store;
        if let Some(after) = self.travel().filter(|_| is_there) {
            self.push(after, host, Event::FromStore(id, answer));
        }
    }

    fn expire(&mut self) {
        let told = self.store.expire(self.now);
        self.pass_on(told);
    }

    /// Passes changes on to those who watch, in their order.
    fn pass_on(&mut self, told: Vec<Notice>) {
        for notice in told {
            for host in self.store.watchers(&notice) {
                if !self.hosts[host].store {
                    continue;
                }
                let slow = !self.is_calm && self.random.below(50) == 0;
                let most = if slow { 2 * SECOND } else { 3 * MS };
                let delay = MS / 10 + self.random.below(most);
                let after = self.store.in_order(self.now, host, &notice, delay);
                self.push(after, host, Event::Noticed(notice.clone()));
            }
        }
    }

    /// Lets leases end also without requests.
    pub fn step(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.run_until((self.now + 20 * MS).min(end));
            if self.store.stalls(self.now).is_none() {
                self.expire();
            }
        }
    }

    /// Ends all faults, and checks that every unit is served by exactly one machine within a time.
    pub fn settle(&mut self, within: u64) {
        self.is_calm = true;
        for host in 0..self.hosts.len() {
            self.push(0, host, Event::Reach(Link::Store));
            self.push(0, host, Event::Reach(Link::Disks(None)));
        }
        let end = self.now + within;
        let stands_still = |world: &World| world.hosts.iter().any(|one| one.stopped > world.now);
        while self.now < end && (!self.down.is_empty() || stands_still(self)) {
            self.step(200 * MS);
        }
        // A claim that was confirmed late may still move a unit once.
        self.step(5 * SECOND);
        let mut counts: BTreeMap<&Name, usize> = BTreeMap::new();
        for unit in self.hosts.iter().flat_map(|host| host.serving.keys()) {
            *counts.entry(unit).or_default() += 1;
        }
        for unit in self.numbers.keys() {
            let count = counts.get(unit).copied().unwrap_or(0);
            if count != 1 {
                let record = self.store.record(unit);
                let why = format!("{count} machines serve {unit} in the end: {record:?}");
                self.violated(&why);
            }
        }
    }

    pub fn load(&self) -> Load {
        self.store.load()
    }

    /// Returns the only host that serves a unit.
    pub fn owner(&self, number: usize) -> usize {
        let serves = |host: &usize| self.hosts[*host].serving.contains_key(&unit(number));
        let all: Vec<usize> = (0..self.hosts.len()).filter(serves).collect();
        assert_eq!(all.len(), 1, "EVFS_SEED={}: {all:?}", self.rules.seed);
        all[0]
    }

    /// Returns how many units a host serves.
    pub fn serving(&self, host: usize) -> usize {
        self.hosts[host].serving.len()
    }
}
