//! One machine of the cluster.

use crate::At;
use crate::events::{Action, Answer, Ask, AskId, Config, Current, Done, Notice, Phase};
use crate::lease::{self, Lease};
use crate::record::{Claim, Name, Record};
use crate::unit::{self, Due, Release, Unit};
use retry::Breaker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How much longer than another request the state of the cluster may take.
const LOAD_PATIENCE: u32 = 12;

/// A request without an answer.
#[derive(Debug)]
struct Pending {
    ask: Ask,
    /// When it was sent or is to be sent.
    sent: At,
    is_sent: bool,
    /// How often the same request failed before.
    failures: u32,
}

/// The part of one machine. See [the crate](crate).
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: At,
    lease: Lease,
    /// Attempts to get a lease.
    grants: Breaker,
    /// Whether the state of the cluster is known.
    is_loaded: bool,
    is_draining: bool,
    /// Units that this machine gives up, and does not take.
    retired: BTreeSet<Name>,
    /// Leases of the machines that live.
    alive: BTreeMap<Name, u64>,
    units: BTreeMap<Name, Unit>,
    /// Units whose next attempt is planned.
    planned: BTreeSet<(At, Name)>,
    /// Number of units that are being taken over.
    taking: usize,
    pending: BTreeMap<AskId, Pending>,
    last_ask: u64,
    actions: VecDeque<Action>,
}

impl Machine {
    /// Starts a machine.
    pub fn new(config: Config, now: At) -> Machine {
        let mut machine = Machine {
            config,
            now,
            lease: Lease::None { next: now },
            grants: Breaker::default(),
            is_loaded: false,
            is_draining: false,
            retired: BTreeSet::new(),
            alive: BTreeMap::new(),
            units: BTreeMap::new(),
            planned: BTreeSet::new(),
            taking: 0,
            pending: BTreeMap::new(),
            last_ask: 0,
            actions: VecDeque::new(),
        };
        machine.tick(now);
        machine
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time at which [`Machine::tick`] has to be called at the latest.
    pub fn wakes(&self) -> At {
        let lease = match self.lease {
            Lease::None { next } => Some(next),
            Lease::Requested { .. } => None,
            Lease::Granted { until, .. } => Some(until),
            Lease::Held { until, renew, .. } => Some(until.min(renew)),
        };
        let answer = self.pending.values();
        let due = |p: &Pending| {
            if p.is_sent {
                p.sent + self.patience(&p.ask)
            } else {
                p.sent
            }
        };
        let answer = answer.map(due).min();
        let planned = self.planned.first().map(|(at, _)| *at);
        let times = [lease, answer, planned];
        let far = self.now + self.config.ttl;
        times.into_iter().flatten().min().unwrap_or(far)
    }

    /// Returns what this machine does with a unit.
    pub fn phase(&self, unit: &str) -> Phase {
        self.units.get(unit).map_or(Phase::Idle, |unit| unit.phase)
    }

    /// Returns all units with their records.
    pub fn units(&self) -> impl Iterator<Item = (&Name, &Record, Phase)> {
        let all = self.units.iter();
        all.map(|(name, unit)| (name, &unit.record, unit.phase))
    }

    /// Returns the machines that live, with their leases.
    pub fn machines(&self) -> &BTreeMap<Name, u64> {
        &self.alive
    }

    /// Gives up all units one after another, and takes none, until this is called with `false`.
    pub fn drain(&mut self, now: At, drain: bool) {
        self.tick(now);
        if self.is_draining != drain {
            self.is_draining = drain;
            self.review_all();
        }
    }

    /// Gives up these units, each in order once it is served, and takes none of them, until this is
    /// called without them. One that is not being opened yet is given up at once. Other units stay
    /// as they are.
    pub fn retire(&mut self, now: At, units: BTreeSet<Name>) {
        self.tick(now);
        self.retired = units;
        self.review_all();
    }

    /// Loads the state of the cluster again, after the store was told of other units for [`Ask::Load`].
    pub fn reload(&mut self, now: At) {
        self.tick(now);
        if self.lease.held().is_some() {
            // An answer that is on its way does not have them.
            self.pending.retain(|_, pending| pending.ask != Ask::Load);
            self.is_loaded = false;
            self.ask(Ask::Load);
        }
    }

    /// Reports whether this machine is to give up a unit.
    fn leaves(&self, unit: &Name) -> bool {
        self.is_draining || self.retired.contains(unit)
    }

    /// Notes the time.
    pub fn tick(&mut self, now: At) {
        self.now = self.now.max(now);
        if self.lease.until().is_some_and(|until| until <= self.now) {
            self.lose_lease();
        }
        self.send_repeats();
        let late = |p: &Pending| p.sent + self.patience(&p.ask) <= self.now;
        let late = self.pending.iter().filter(|(_, pending)| late(pending));
        let late: Vec<AskId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.take_answer(id, Answer::Unknown);
        }
        match self.lease {
            Lease::None { next } if next <= self.now => {
                self.lease = Lease::Requested { sent: self.now };
                let ttl = self.config.ttl;
                self.ask(Ask::Grant { ttl });
            }
            Lease::Held { id, until, renew } if renew <= self.now => {
                let renew = self.now + self.config.renew;
                self.lease = Lease::Held { id, until, renew };
                self.ask(Ask::Renew { lease: id });
            }
            _ => {}
        }
        while let Some((_, name)) = self.planned.pop_first_if_due(self.now) {
            self.attempt(&name);
        }
    }

    /// Takes the answer to a request. Answers that come too late are ignored.
    pub fn answer(&mut self, now: At, id: AskId, answer: Answer) {
        self.tick(now);
        self.take_answer(id, answer);
    }

    /// Takes a change in the store.
    pub fn notice(&mut self, now: At, notice: Notice) {
        self.tick(now);
        if self.is_loaded {
            self.take_notice(notice);
        }
    }

    /// Takes the result of an action at the storage, for the claim of this epoch.
    pub fn done(&mut self, now: At, unit: &Name, epoch: u64, done: Done) {
        self.tick(now);
        let known = self.units.get(unit);
        let Some(known) = known.filter(|known| known.epoch == epoch) else {
            return;
        };
        match (known.phase, done) {
            (Phase::Fencing, Done::Fenced) => {
                if let Some(known) = self.units.get_mut(unit) {
                    known.is_fenced = true;
                }
                self.bump(unit, epoch);
            }
            (Phase::Fencing, Done::NotFenced) => self.give_up(unit, Release::CLEAN),
            (Phase::Bumping, Done::Bumped) => {
                self.enter(unit, Phase::Opening);
                let unit = Name::clone(unit);
                self.actions.push_back(Action::Open { unit, epoch });
            }
            (Phase::Bumping, Done::Newer(stored)) => {
                let release = Release {
                    stored: Some(stored),
                    ..Release::CLEAN
                };
                self.give_up(unit, release);
            }
            (Phase::Bumping | Phase::Opening, Done::Failed { clean })
            | (Phase::Serving, Done::Stopped { clean }) => {
                let release = Release::of(clean);
                self.give_up(unit, release);
            }
            (Phase::Opening, Done::Opened) => {
                self.enter(unit, Phase::Serving);
                self.review(unit);
            }
            (Phase::Stopping, Done::Stopped { clean }) => {
                let release = Release::of(clean);
                self.release(unit, release);
            }
            _ => {}
        }
    }
}

/// Requests and answers.
impl Machine {
    fn ask(&mut self, ask: Ask) -> AskId {
        self.ask_at(self.now, ask, 0)
    }

    /// Asks again after a pause, because the answer is unknown. `failures`: how often that was so
    /// before.
    fn repeat(&mut self, ask: Ask, failures: u32) -> AskId {
        let seed = unit::hash(&(&self.config.name, self.last_ask));
        let at = self.now + self.config.repeats().pause(failures, seed);
        self.ask_at(at, ask, failures + 1)
    }

    fn ask_at(&mut self, at: At, ask: Ask, failures: u32) -> AskId {
        self.last_ask += 1;
        let id = AskId(self.last_ask);
        let is_sent = at <= self.now;
        if is_sent {
            self.actions.push_back(Action::Ask(id, ask.clone()));
        }
        let pending = Pending {
            ask,
            sent: at,
            is_sent,
            failures,
        };
        self.pending.insert(id, pending);
        id
    }

    /// Sends the requests whose time has come.
    fn send_repeats(&mut self) {
        for (id, pending) in &mut self.pending {
            if !pending.is_sent && pending.sent <= self.now {
                (pending.sent, pending.is_sent) = (self.now, true);
                self.actions
                    .push_back(Action::Ask(*id, pending.ask.clone()));
            }
        }
    }

    /// Returns how long the answer to a request may take. The state of the cluster can be long.
    fn patience(&self, ask: &Ask) -> Duration {
        match ask {
            Ask::Load => self.config.patience.saturating_mul(LOAD_PATIENCE),
            _ => self.config.patience,
        }
    }

    fn take_answer(&mut self, id: AskId, answer: Answer) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        let (sent, failures) = (pending.sent, pending.failures);
        match pending.ask {
            Ask::Grant { .. } => self.granted(sent, &answer),
            Ask::Announce { lease } => self.announced(lease, &answer),
            Ask::Renew { lease } => self.renewed(lease, sent, &answer),
            Ask::Load => self.loaded(answer, failures),
            Ask::Read { unit } => {
                if self.answers(&unit, id) {
                    match answer {
                        Answer::Is(current) => self.settled(&unit, current, None),
                        _ => self.read(&unit, failures),
                    }
                }
            }
            Ask::Change {
                unit,
                record,
                revision: sent,
                ..
            } => {
                if self.answers(&unit, id) {
                    match answer {
                        Answer::Changed { revision } => {
                            self.settled(&unit, Some((record, revision)), None);
                        }
                        Answer::Refused(current) => self.settled(&unit, current, Some(sent)),
                        _ => self.read(&unit, 0),
                    }
                }
            }
        }
    }

    /// Reports whether a unit waits for this answer, and lets it wait no more.
    fn answers(&mut self, unit: &Name, id: AskId) -> bool {
        let known = self.units.get_mut(unit);
        let known = known.filter(|known| known.ask == Some(id));
        known.is_some_and(|known| known.ask.take().is_some())
    }

    fn granted(&mut self, sent: At, answer: &Answer) {
        if self.lease != (Lease::Requested { sent }) {
            return;
        }
        match *answer {
            Answer::Granted { lease: id, ttl } => {
                let until = lease::end(sent, ttl, self.config.margin);
                self.lease = Lease::Granted { id, until };
                self.ask(Ask::Announce { lease: id });
            }
            _ => self.retry_lease(),
        }
    }

    fn announced(&mut self, lease: u64, answer: &Answer) {
        match (self.lease, answer) {
            (Lease::Granted { id, until }, Answer::Done) if id == lease => {
                let renew = self.now + self.config.renew;
                self.lease = Lease::Held { id, until, renew };
                self.grants.succeeded();
                self.actions.push_back(Action::Until(until));
                self.ask(Ask::Load);
            }
            (Lease::Granted { id, .. }, _) if id == lease => self.retry_lease(),
            _ => {}
        }
    }

    fn renewed(&mut self, lease: u64, sent: At, answer: &Answer) {
        let Lease::Held { id, until, renew } = self.lease else {
            return;
        };
        if id != lease {
            return;
        }
        match answer {
            Answer::Done => {
                let until = until.max(lease::end(sent, self.config.ttl, self.config.margin));
                self.lease = Lease::Held { id, until, renew };
                self.actions.push_back(Action::Until(until));
            }
            Answer::Denied => self.lose_lease(),
            // The next renewal is on its way or follows soon.
            _ => {}
        }
    }

    fn retry_lease(&mut self) {
        let seed = unit::hash(&self.config.name);
        self.grants.failed(self.now.0, &self.config.repeats(), seed);
        let next = At(self.grants.until());
        self.lease = Lease::None { next };
    }

    /// Ends everything, because another machine may own the units now.
    fn lose_lease(&mut self) {
        self.retry_lease();
        self.is_loaded = false;
        self.pending.clear();
        self.alive.clear();
        let names: Vec<Name> = self.units.keys().cloned().collect();
        for name in names {
            self.kill(&name);
        }
        self.units.clear();
        self.planned.clear();
    }

    fn loaded(&mut self, answer: Answer, failures: u32) {
        if self.lease.held().is_none() {
            return;
        }
        let Answer::Loaded(notices) = answer else {
            self.repeat(Ask::Load, failures);
            return;
        };
        self.is_loaded = true;
        self.alive.clear();
        let mut gone: BTreeSet<Name> = self.units.keys().cloned().collect();
        // The machines first: whether an owner lives decides about its units.
        for notice in &notices {
            match notice {
                Notice::Machine { name, lease } => {
                    self.alive.insert(Name::clone(name), *lease);
                }
                Notice::Unit { unit, .. } => {
                    gone.remove(unit);
                }
                _ => {}
            }
        }
        if self.alive.get(&self.config.name).copied() != self.lease.held() {
            self.lose_lease();
            return;
        }
        for unit in gone {
            self.take_notice(Notice::UnitGone { unit });
        }
        for notice in notices {
            if matches!(notice, Notice::Unit { .. }) {
                self.take_notice(notice);
            }
        }
        self.review_all();
    }

    fn take_notice(&mut self, notice: Notice) {
        match notice {
            // The key of this machine has gone, or another process uses its name.
            Notice::Machine { name, lease }
                if name == self.config.name && self.lease.held() != Some(lease) =>
            {
                self.lose_lease();
            }
            Notice::MachineGone { name } if name == self.config.name => self.lose_lease(),
            Notice::Machine { name, lease } => {
                if self.alive.insert(Name::clone(&name), lease) != Some(lease) {
                    self.review_units_of(&name);
                }
            }
            Notice::MachineGone { name } => {
                if self.alive.remove(&name).is_some() {
                    self.review_units_of(&name);
                }
            }
            Notice::Unit {
                unit,
                record,
                revision,
            } => self.learn(&unit, record, revision),
            Notice::UnitGone { unit } => {
                self.kill(&unit);
                self.unplan(&unit);
                self.units.remove(&unit);
            }
            // Known records stay of use: the store refuses what is wrong in them. All machines
            // may have missed changes at the same time.
            Notice::Missed => {
                let seed = unit::hash(&(&self.config.name, self.last_ask));
                let at = self.now + self.config.reloads().pause(0, seed);
                self.ask_at(at, Ask::Load, 0);
            }
        }
    }
}

/// Units.
impl Machine {
    /// Takes a record, unless a newer one is known.
    fn learn(&mut self, unit: &Name, record: Record, revision: u64) {
        match self.units.get_mut(unit) {
            Some(known) if known.revision >= revision => return,
            Some(known) => (known.record, known.revision) = (record, revision),
            None => {
                let new = Unit::new(record, revision);
                self.units.insert(Name::clone(unit), new);
            }
        }
        self.review(unit);
    }

    /// Takes the state of a record after a request to change it. `refused`: the revision in the
    /// request, if it was refused.
    fn settled(&mut self, unit: &Name, current: Current, refused: Option<u64>) {
        let Some((record, revision)) = current else {
            self.take_notice(Notice::UnitGone {
                unit: Name::clone(unit),
            });
            return;
        };
        let Some(known) = self.units.get_mut(unit) else {
            return;
        };
        if known.revision < revision {
            (known.record, known.revision) = (record, revision);
        } else if known.phase == Phase::Claiming {
            // Not the record was the reason, but a machine that lives or a lease that ended.
            known.failed(self.now, unit, &self.config);
        } else if refused == Some(revision) {
            // The record was as expected, so this machine does not have its lease any more.
            self.lose_lease();
            return;
        }
        let lease = self.lease.held();
        let is_own = lease.is_some_and(|lease| known.is_held_by(&self.config.name, lease));
        if known.phase == Phase::Claiming && !is_own {
            self.enter(unit, Phase::Idle);
        }
        self.review(unit);
    }

    /// Reads a record after a pause, because the answer to a request about it is unknown.
    fn read(&mut self, unit: &Name, failures: u32) {
        let read = Ask::Read {
            unit: Name::clone(unit),
        };
        let id = self.repeat(read, failures);
        if let Some(known) = self.units.get_mut(unit) {
            known.ask = Some(id);
        }
    }

    /// Asks for another record of a unit.
    fn change(&mut self, unit: &Name, record: Record, gone: Option<(Name, u64)>) {
        let (Some(lease), Some(known)) = (self.lease.held(), self.units.get(unit)) else {
            return;
        };
        let revision = known.revision;
        let id = self.ask(Ask::Change {
            unit: Name::clone(unit),
            revision,
            lease,
            gone,
            record,
        });
        if let Some(known) = self.units.get_mut(unit) {
            known.ask = Some(id);
        }
    }

    fn enter(&mut self, unit: &Name, phase: Phase) {
        let Some(known) = self.units.get_mut(unit) else {
            return;
        };
        let is_taking = |phase| (Phase::Claiming..=Phase::Opening).contains(&phase);
        self.taking += usize::from(is_taking(phase));
        self.taking -= usize::from(is_taking(known.phase));
        known.phase = phase;
        if phase == Phase::Idle {
            known.published = false;
            known.release = None;
        }
    }

    fn unplan(&mut self, unit: &Name) {
        if let Some(known) = self.units.get_mut(unit)
            && let Some(at) = known.next.take()
        {
            self.planned.remove(&(at, Name::clone(unit)));
        }
    }

    fn review_all(&mut self) {
        let names: Vec<Name> = self.units.keys().cloned().collect();
        for name in names {
            self.review(&name);
        }
    }

    /// Looks at the units that a machine owns or is to get. For others the attempt is planned already.
    fn review_units_of(&mut self, machine: &Name) {
        let concerns = |unit: &Unit| {
            let is_owner = unit.claim().is_some_and(|claim| claim.machine == *machine);
            is_owner || unit.record.wish.as_ref() == Some(machine)
        };
        let units = self.units.iter().filter(|(_, unit)| concerns(unit));
        let units: Vec<Name> = units.map(|(name, _)| Name::clone(name)).collect();
        for name in units {
            self.review(&name);
        }
    }

    /// Does what the record, the phase and the lease of this machine ask for.
    fn review(&mut self, unit: &Name) {
        let Some(lease) = self.lease.held().filter(|_| self.is_loaded) else {
            return;
        };
        let Some(known) = self.units.get(unit) else {
            return;
        };
        let is_own = known.is_held_by(&self.config.name, lease);
        match known.phase {
            Phase::Idle if is_own => self.begin(unit),
            Phase::Idle => self.plan(unit),
            Phase::Claiming if is_own && known.ask.is_none() => self.begin(unit),
            // The answer is on its way.
            Phase::Claiming => {}
            _ if !is_own => {
                let was_released = known.phase == Phase::Releasing;
                if was_released {
                    self.enter(unit, Phase::Idle);
                } else {
                    self.kill(unit);
                }
                self.plan(unit);
            }
            Phase::Fencing | Phase::Bumping if self.leaves(unit) => {
                let release = Release::of(known.phase == Phase::Fencing);
                self.abandon(unit, release);
            }
            // Without a table, it is stopped in order once it is open.
            Phase::Opening if self.is_draining => self.abandon(unit, Release::UNCLEAN),
            Phase::Serving => {
                if known.record.holder.as_ref().is_some_and(|h| h.serving) {
                    self.published(unit);
                } else if known.ask.is_none() {
                    let record = known.record.served();
                    self.change(unit, record, None);
                }
                self.leave_if_asked(unit);
            }
            Phase::Releasing if known.ask.is_none() => {
                let release = known.release.unwrap_or(Release::UNCLEAN);
                let record = if known.is_fenced {
                    release.apply(&known.record.fenced())
                } else {
                    release.apply(&known.record)
                };
                self.change(unit, record, None);
            }
            _ => {}
        }
    }

    fn published(&mut self, unit: &Name) {
        if let Some(known) = self.units.get_mut(unit) {
            known.published = true;
            known.succeeded();
        }
    }

    /// Stops a unit that another machine is to have.
    fn leave_if_asked(&mut self, unit: &Name) {
        let Some(known) = self.units.get(unit).filter(|known| known.published) else {
            return;
        };
        let moves = known.record.wish.as_ref().is_some_and(|to| {
            let listed = &known.record.machines;
            let may = listed.is_empty() || listed.contains(to);
            *to != self.config.name && may && self.alive.contains_key(to)
        });
        if moves || self.leaves(unit) {
            let epoch = known.epoch;
            self.enter(unit, Phase::Stopping);
            let unit = Name::clone(unit);
            self.actions.push_back(Action::Stop { unit, epoch });
        }
    }

    /// Plans an attempt to take a unit over, if its owner does not live.
    fn plan(&mut self, unit: &Name) {
        self.unplan(unit);
        let leaves = self.leaves(unit);
        let Some(known) = self.units.get_mut(unit) else {
            return;
        };
        let lives = |claim: &Claim| self.alive.get(&claim.machine) == Some(&claim.lease);
        if known.ask.is_some() || leaves || known.claim().is_some_and(lives) {
            return;
        }
        let Some(rank) = known.rank(unit, &self.config.name, &self.alive) else {
            return;
        };
        known.plan(self.now, rank, &self.config);
        self.planned
            .extend(known.next.map(|at| (at, Name::clone(unit))));
    }

    /// Claims a unit.
    fn attempt(&mut self, unit: &Name) {
        let is_ready = self.is_loaded && self.lease.held().is_some() && !self.leaves(unit);
        let Some(known) = self.units.get_mut(unit) else {
            return;
        };
        known.next = None;
        let lives = |claim: &Claim| self.alive.get(&claim.machine) == Some(&claim.lease);
        let is_free = known.phase == Phase::Idle && known.ask.is_none();
        if !is_ready || !is_free || known.claim().is_some_and(lives) {
            return;
        }
        if self.taking >= self.config.at_once {
            let at = self.now + self.config.stagger / 4;
            known.next = Some(at);
            self.planned.insert((at, Name::clone(unit)));
            return;
        }
        let gone = known.claim();
        let gone = gone.map(|claim| (Name::clone(&claim.machine), claim.lease));
        let lease = self.lease.held().unwrap_or_default();
        let Some(record) = known.record.claimed(&self.config.name, lease) else {
            return;
        };
        self.enter(unit, Phase::Claiming);
        self.change(unit, record, gone);
    }

    /// Fences the earlier claims on a unit that this machine owns now.
    fn begin(&mut self, unit: &Name) {
        self.unplan(unit);
        let Some(known) = self.units.get_mut(unit) else {
            return;
        };
        let (epoch, claims) = (known.record.epoch, known.record.to_fence());
        known.epoch = epoch;
        known.is_fenced = false;
        // It was claimed before this machine was told to leave it.
        let is_clean = known.phase == Phase::Claiming;
        if self.leaves(unit) {
            self.release(unit, Release::of(is_clean));
            return;
        }
        if claims.is_empty() {
            self.bump(unit, epoch);
        } else {
            self.enter(unit, Phase::Fencing);
            let unit = Name::clone(unit);
            self.actions.push_back(Action::Fence {
                unit,
                epoch,
                claims,
            });
        }
    }

    fn bump(&mut self, unit: &Name, epoch: u64) {
        self.enter(unit, Phase::Bumping);
        let unit = Name::clone(unit);
        self.actions.push_back(Action::Bump { unit, epoch });
    }

    /// Gives a unit up after an attempt that failed.
    fn give_up(&mut self, unit: &Name, release: Release) {
        if let Some(known) = self.units.get_mut(unit) {
            known.failed(self.now, unit, &self.config);
        }
        self.release(unit, release);
    }

    /// Kills the process of a unit that is not open yet.
    fn abandon(&mut self, unit: &Name, release: Release) {
        if let Some(known) = self.units.get(unit) {
            let epoch = known.epoch;
            let name = Name::clone(unit);
            self.actions.push_back(Action::Kill { unit: name, epoch });
        }
        self.release(unit, release);
    }

    fn release(&mut self, unit: &Name, release: Release) {
        self.enter(unit, Phase::Releasing);
        if let Some(known) = self.units.get_mut(unit) {
            known.release = Some(release);
        }
        self.review(unit);
    }

    fn kill(&mut self, unit: &Name) {
        let Some(known) = self.units.get(unit) else {
            return;
        };
        let epoch = known.epoch;
        let is_active = known.phase > Phase::Claiming && known.phase != Phase::Releasing;
        self.enter(unit, Phase::Idle);
        if is_active {
            let unit = Name::clone(unit);
            self.actions.push_back(Action::Kill { unit, epoch });
        }
    }
}
