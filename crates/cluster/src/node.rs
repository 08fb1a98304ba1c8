//! The process that runs the protocol for one machine, and starts a process for each claim.
//!
//! ```text
//!   workers ── etcd              units ── a process each, see `unit`
//!      │  answers, changes          │  reports, ends
//!      └────────────► events ◄──────┘
//!                        │
//!                      Node ── Machine (`cluster_proto`)
//! ```
//!
//! **Invariant:** one thread owns the state and never waits for etcd, the storage or a unit.

use crate::address::Address;
use crate::deadline::now;
use crate::store::{Host, Loaded, Own, Seen, Store};
use crate::unit::{Command, Report, line, nanos};
use cluster_proto::{Action, Answer, Ask, AskId, At, Config, Done, Machine, Name, Notice, Phase};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, setrlimit,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Threads that renew the lease. Renewals do not wait for each other.
const RENEWERS: usize = 5;
/// Threads for all other requests.
const WORKERS: usize = 8;
/// Longest time between two calls of [`Options::alive`] by a node that is not stuck.
const ALIVE: Duration = Duration::from_secs(5);
/// Time without an answer of etcd after which this is logged.
const SILENCE: Duration = Duration::from_secs(5);

/// Settings of a node.
pub struct Options {
    /// Those of the protocol.
    pub config: Config,
    /// Differs between hosts, and after a restart of a host.
    pub host: Host,
    /// The units that this machine has a configuration for.
    pub units: Units,
    /// Returns the command that serves a unit, for [`crate::Link`].
    pub command: Box<dyn Fn(&str) -> std::process::Command>,
    /// Called once the machine is part of the cluster.
    pub ready: Box<dyn FnMut()>,
    /// Called at least every 5 seconds. Must not wait.
    pub alive: Box<dyn Fn()>,
}

/// An event of a node.
#[derive(Debug)]
enum Event {
    Answer(AskId, Answer, Option<Loaded>),
    /// A change, seen by the watch of this number.
    Seen(u64, Seen),
    Report(Name, u64, Report),
    Exited(Name, u64, io::Result<ExitStatus>),
    Reload(Units),
    Stop,
}

/// The units that a machine has a configuration for.
#[derive(Debug, Clone, Default)]
pub struct Units {
    /// Their names.
    pub names: BTreeSet<Name>,
    /// Addresses that move with units.
    pub addresses: BTreeMap<Name, Address>,
}

/// Changes and stops a node.
#[derive(Clone)]
pub struct Handle(Sender<Event>);

impl Handle {
    /// Asks for the end, in order.
    pub fn stop(&self) {
        // The node may have ended.
        let _ = self.0.send(Event::Stop);
    }

    /// Lets the node serve these units, and no others. Those that it owns and that are not among
    /// them are closed in order. The processes of the others get SIGHUP, and stay.
    pub fn reload(&self, units: Units) {
        let _ = self.0.send(Event::Reload(units));
    }
}

/// The process of a claim.
struct Process {
    stream: UnixStream,
    pidfd: OwnedFd,
    /// It was ended because the claim is over.
    is_killed: bool,
    /// Address that this machine has for it.
    address: Option<Address>,
    /// It is to get SIGHUP once it serves: before that, the signal would end it.
    must_reload: bool,
}

impl Process {
    fn tell(&self, command: &Command) {
        // A process that is gone, or does not read, ends by its deadline.
        let text = line(command) + "\n";
        let _ = (&self.stream).write_all(text.as_bytes());
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

type Jobs = Sender<(AskId, Ask, Arc<Own>)>;

/// The protocol of one machine, with everything that it moves.
pub struct Node {
    store: Arc<Store>,
    options: Options,
    /// This machine, with the units that it has, or had, a configuration for.
    own: Arc<Own>,
    machine: Machine,
    events: Receiver<Event>,
    sender: Sender<Event>,
    renewals: Jobs,
    requests: Jobs,
    /// The last request for the state of the cluster. Answers to earlier ones come too late.
    load: Option<AskId>,
    /// Number of the watch whose changes count. Others end.
    watch: Arc<AtomicU64>,
    drained: BTreeSet<Name>,
    is_stopping: bool,
    is_ready: bool,
    until: At,
    lease: Option<u64>,
    /// When etcd answered last, and whether its silence was logged.
    heard: (At, bool),
    processes: BTreeMap<(Name, u64), Process>,
    /// Commands to claims whose unit has another process that has not ended yet.
    delayed: Vec<(Name, u64, Command)>,
}

impl Node {
    /// Creates a node, and its handle.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(store: Arc<Store>, options: Options) -> io::Result<(Node, Handle)> {
        let (sender, events) = channel();
        let patience = options.config.patience;
        let workers = |count: usize| -> io::Result<Jobs> {
            let (jobs, taken) = channel::<(AskId, Ask, Arc<Own>)>();
            let taken = Arc::new(Mutex::new(taken));
            for _ in 0..count {
                let (taken, sender) = (Arc::clone(&taken), sender.clone());
                let store = Arc::clone(&store);
                let work = move || {
                    let next = || taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    while let Ok((id, ask, own)) = next() {
                        let (answer, from) = store.carry_out(&own, &ask, patience);
                        if sender.send(Event::Answer(id, answer, from)).is_err() {
                            return;
                        }
                    }
                };
                let thread = std::thread::Builder::new().name("cluster-etcd".into());
                thread.spawn(work)?;
            }
            Ok(jobs)
        };
        let (renewals, requests) = (workers(RENEWERS)?, workers(WORKERS)?);
        let machine = Machine::new(options.config.clone(), now());
        let handle = Handle(sender.clone());
        let own = Arc::new(Own {
            name: Name::clone(&options.config.name),
            host: options.host.clone(),
            units: options.units.names.clone(),
        });
        let node = Node {
            store,
            options,
            own,
            machine,
            events,
            sender,
            renewals,
            requests,
            load: None,
            watch: Arc::default(),
            drained: BTreeSet::new(),
            is_stopping: false,
            is_ready: false,
            until: At::default(),
            lease: None,
            heard: (now(), false),
            processes: BTreeMap::new(),
            delayed: Vec::new(),
        };
        Ok((node, handle))
    }

    /// Runs until it is stopped, and its last unit is closed.
    pub fn run(mut self) {
        raise_limit();
        for address in self.options.units.addresses.values() {
            // Of an earlier process.
            if let Err(error) = address.remove() {
                tracing::warn!(name: "EVFS-1004", "cannot manage the address {address}: {error}");
            }
        }
        loop {
            (self.options.alive)();
            while let Some(action) = self.machine.next_action() {
                self.act(action);
            }
            if self.is_stopping && self.is_idle() {
                if let Some(lease) = self.lease {
                    let _ = self
                        .store
                        .etcd()
                        .revoke(lease, self.options.config.patience);
                }
                return;
            }
            let wait = self.machine.wakes().0.saturating_sub(now().0);
            match self.events.recv_timeout(wait.min(ALIVE)) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.machine.tick(now());
                }
            }
            self.note_silence();
        }
    }

    /// Reports whether no unit is being served or about to be.
    fn is_idle(&self) -> bool {
        let mut units = self.machine.units();
        self.processes.is_empty() && units.all(|(_, _, phase)| phase == Phase::Idle)
    }

    fn note_silence(&mut self) {
        let (heard, was_logged) = self.heard;
        let silence = now().0.saturating_sub(heard.0);
        if silence > SILENCE && !was_logged {
            self.heard.1 = true;
            tracing::error!(
                name: "EVFS-1003",
                "etcd has not answered for {} s: this machine serves no unit of the cluster until \
                 it does; check that its members run and can be reached",
                silence.as_secs()
            );
        }
    }

    fn take(&mut self, event: Event) {
        let now = now();
        match event {
            Event::Answer(id, answer, loaded) => {
                if !matches!(answer, Answer::Unknown) {
                    if self.heard.1 {
                        tracing::warn!(name: "EVFS-1003", "etcd answers again");
                    }
                    self.heard = (now, false);
                }
                match answer {
                    Answer::Granted { lease, .. } => self.lease = Some(lease),
                    Answer::Loaded(_) if !self.is_ready => {
                        self.is_ready = true;
                        (self.options.ready)();
                    }
                    _ => {}
                }
                self.machine.answer(now, id, answer);
                if let Some((revision, drained)) = loaded.filter(|_| self.load == Some(id)) {
                    self.drained = drained;
                    self.note_drain();
                    self.start_watch(revision);
                }
            }
            Event::Seen(watch, seen) if watch == self.watch.load(Relaxed) => match seen {
                Seen::Notice(notice) => {
                    if matches!(notice, Notice::Missed) {
                        self.watch.fetch_add(1, Relaxed);
                    }
                    self.machine.notice(now, notice);
                }
                Seen::Drain(drain) => {
                    if drain.is_drained {
                        self.drained.insert(drain.machine);
                    } else {
                        self.drained.remove(&drain.machine);
                    }
                    self.note_drain();
                }
                Seen::Nothing => {}
            },
            Event::Seen(..) => {}
            Event::Report(unit, epoch, report) => self.reported(&unit, epoch, report),
            Event::Exited(unit, epoch, status) => self.exited(&unit, epoch, &status),
            Event::Reload(units) => self.reload(units),
            Event::Stop => {
                self.is_stopping = true;
                self.note_drain();
            }
        }
    }

    fn note_drain(&mut self) {
        let drain = self.is_stopping || self.drained.contains(&self.own.name);
        self.machine.drain(now(), drain);
    }

    /// Takes the units of a configuration that has changed.
    fn reload(&mut self, units: Units) {
        let known = &self.own.units;
        let retired: BTreeSet<Name> = known.difference(&units.names).cloned().collect();
        let added: BTreeSet<Name> = units.names.difference(known).cloned().collect();
        let serves = |name: &Name| self.machine.phase(name) == Phase::Serving;
        let processes = self.processes.iter_mut();
        for ((name, _), process) in processes.filter(|(key, _)| units.names.contains(&key.0)) {
            if serves(name) {
                process.signal(Signal::HUP);
            } else {
                process.must_reload = true;
            }
        }
        for unit in retired.iter().filter(|unit| serves(unit)) {
            tracing::info!("{unit} has no table any more: it is closed");
        }
        self.options.units = units;
        self.machine.retire(now(), retired);
        if !added.is_empty() {
            let mut own = Own::clone(&self.own);
            own.units.extend(added);
            self.own = Arc::new(own);
            // The next watch begins with the answer, and also sees changes of these units.
            self.watch.fetch_add(1, Relaxed);
            self.machine.reload(now());
        }
    }

    fn start_watch(&mut self, revision: u64) {
        let number = self.watch.fetch_add(1, Relaxed) + 1;
        let (store, own) = (Arc::clone(&self.store), Arc::clone(&self.own));
        let (sender, current) = (self.sender.clone(), Arc::clone(&self.watch));
        let watch = move || {
            store.watch(&own, revision, &mut |seen| {
                let is_wanted = current.load(Relaxed) == number;
                is_wanted && sender.send(Event::Seen(number, seen)).is_ok()
            });
        };
        let thread = std::thread::Builder::new().name("cluster-watch".into());
        if let Err(error) = thread.spawn(watch) {
            tracing::error!(name: "EVFS-1005", "cannot start a thread: {error}");
            self.machine.notice(now(), Notice::Missed);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ask(id, ask) => {
                if ask == Ask::Load {
                    self.load = Some(id);
                }
                let to = match ask {
                    Ask::Renew { .. } => &self.renewals,
                    _ => &self.requests,
                };
                // The workers live as long as this value.
                let _ = to.send((id, ask, Arc::clone(&self.own)));
            }
            Action::Until(at) => {
                self.until = at;
                let command = Command::Until(nanos(at));
                self.processes.values().for_each(|p| p.tell(&command));
                self.renew_addresses();
            }
            Action::Fence {
                unit,
                epoch,
                claims,
            } => {
                for claim in &claims {
                    tracing::warn!(
                        name: "EVFS-1006",
                        "taking {unit} over from {}: fencing its claim {}",
                        claim.machine,
                        claim.epoch
                    );
                }
                self.command(&unit, epoch, Command::Fence);
            }
            Action::Bump { unit, epoch } => self.command(&unit, epoch, Command::Store(epoch)),
            Action::Open { unit, epoch } => {
                // Before the unit listens there.
                if self.enter_address(&unit, epoch) {
                    self.command(&unit, epoch, Command::Open);
                } else {
                    if let Some(process) = self.processes.get_mut(&(Name::clone(&unit), epoch)) {
                        process.is_killed = true;
                        process.signal(Signal::KILL);
                    }
                    self.failed(&unit, epoch, false);
                }
            }
            Action::Stop { unit, epoch } => {
                self.leave_address(&unit, epoch);
                if let Some(process) = self.processes.get(&(unit, epoch)) {
                    process.signal(Signal::TERM);
                }
            }
            Action::Kill { unit, epoch } => {
                self.delayed
                    .retain(|(name, of, _)| (name, *of) != (&unit, epoch));
                self.leave_address(&unit, epoch);
                let is_late = self.until <= now();
                if let Some(process) = self.processes.get_mut(&(Name::clone(&unit), epoch)) {
                    process.is_killed = true;
                    process.signal(Signal::KILL);
                    let why = if is_late {
                        "the lease of this machine was not renewed in time"
                    } else {
                        "this machine does not own it any more"
                    };
                    tracing::error!(name: "EVFS-1007", "{unit} was ended at once: {why}");
                }
            }
        }
    }

    /// Sends a command to the process of a claim, which is started if there is none.
    fn command(&mut self, unit: &Name, epoch: u64, command: Command) {
        let key = (Name::clone(unit), epoch);
        let is_other = |(name, of): &(Name, u64)| name == unit && *of != epoch;
        if self.processes.keys().any(is_other) {
            self.delayed.push((key.0, epoch, command));
            return;
        }
        if !self.processes.contains_key(&key) {
            match self.spawn(unit, epoch) {
                Ok(process) => {
                    self.processes.insert(key.clone(), process);
                }
                Err(error) => {
                    tracing::error!(name: "EVFS-1005", "cannot start a process for {unit}: {error}");
                    self.failed(unit, epoch, true);
                    return;
                }
            }
        }
        if let Some(process) = self.processes.get(&key) {
            process.tell(&command);
        }
    }

    fn spawn(&self, unit: &Name, epoch: u64) -> io::Result<Process> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut child = (self.options.command)(unit)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Signals of a terminal are for this process, which stops its units in order.
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.ok_or_else(|| io::Error::other("no process ID"))?;
        let pidfd = pidfd_open(pidfd, PidfdFlags::empty());
        let started = pidfd.map_err(io::Error::from).and_then(|pidfd| {
            let reader = stream.try_clone()?;
            Ok((pidfd, reader))
        });
        let (pidfd, reader) = match started {
            Ok(parts) => parts,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        stream.set_write_timeout(Some(Duration::from_millis(1)))?;
        let process = Process {
            stream,
            pidfd,
            is_killed: false,
            address: None,
            must_reload: false,
        };
        process.tell(&Command::Until(nanos(self.until)));
        let (sender, unit) = (self.sender.clone(), Name::clone(unit));
        let wait = move || wait_for(child, reader, &sender, &unit, epoch);
        std::thread::Builder::new()
            .name("cluster-unit".into())
            .spawn(wait)?;
        Ok(process)
    }

    fn done(&mut self, unit: &Name, epoch: u64, done: Done) {
        self.machine.done(now(), unit, epoch, done);
    }

    fn failed(&mut self, unit: &Name, epoch: u64, clean: bool) {
        match self.machine.phase(unit) {
            Phase::Fencing => self.done(unit, epoch, Done::NotFenced),
            Phase::Bumping | Phase::Opening => self.done(unit, epoch, Done::Failed { clean }),
            Phase::Serving | Phase::Stopping => self.done(unit, epoch, Done::Stopped { clean }),
            _ => {}
        }
    }

    fn reported(&mut self, unit: &Name, epoch: u64, report: Report) {
        match report {
            Report::Fenced => self.done(unit, epoch, Done::Fenced),
            Report::NotFenced(why) => {
                tracing::error!(
                    name: "EVFS-1008",
                    "{unit} is not taken over, because an earlier owner may still write to it: {why}"
                );
                self.done(unit, epoch, Done::NotFenced);
            }
            Report::Stored => self.done(unit, epoch, Done::Bumped),
            Report::Newer(stored) => self.done(unit, epoch, Done::Newer(stored)),
            Report::Opened => {
                tracing::info!("{unit} is served with epoch {epoch}");
                if let Some(process) = self.processes.get_mut(&(Name::clone(unit), epoch))
                    && std::mem::take(&mut process.must_reload)
                {
                    process.signal(Signal::HUP);
                }
                self.done(unit, epoch, Done::Opened);
            }
            Report::Failed(why) => {
                tracing::error!(name: "EVFS-1010", "{unit} cannot be served: {why}");
                // One that was served has not closed everything in order; its end follows.
                if matches!(self.machine.phase(unit), Phase::Bumping | Phase::Opening) {
                    self.failed(unit, epoch, true);
                }
            }
        }
    }

    fn exited(&mut self, unit: &Name, epoch: u64, status: &io::Result<ExitStatus>) {
        self.leave_address(unit, epoch);
        let process = self.processes.remove(&(Name::clone(unit), epoch));
        if process.is_some_and(|process| !process.is_killed) {
            let code = status.as_ref().ok().and_then(ExitStatus::code);
            // The codes of an orderly stop, and of one by HUP, INT, QUIT and TERM.
            let clean = matches!(code, Some(0 | 129 | 130 | 131 | 143));
            if matches!(self.machine.phase(unit), Phase::Serving | Phase::Stopping) && !clean {
                let why = match status {
                    Ok(status) => status.to_string(),
                    Err(error) => error.to_string(),
                };
                tracing::error!(
                    name: "EVFS-1009",
                    "the process of {unit} ended unexpectedly ({why}); the next owner fences its \
                     claim {epoch}"
                );
            }
            self.failed(unit, epoch, clean);
        }
        let delayed = std::mem::take(&mut self.delayed);
        for (name, epoch, command) in delayed {
            self.command(&name, epoch, command);
        }
    }

    fn lifetime(&self) -> Duration {
        // The kernel counts whole seconds. The margin of the lease is at least one.
        let left = self.until.0.saturating_sub(now().0);
        Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    fn renew_addresses(&self) {
        let addresses = self.processes.values().filter_map(|p| p.address.as_ref());
        for address in addresses {
            if let Err(error) = address.add(self.lifetime()) {
                tracing::warn!(name: "EVFS-1004", "cannot renew the address {address}: {error}");
            }
        }
    }

    /// Adds the address of a unit, if it has one. Returns whether the unit can be reached.
    fn enter_address(&mut self, unit: &Name, epoch: u64) -> bool {
        let Some(address) = self.options.units.addresses.get(unit).cloned() else {
            return true;
        };
        let added = address.add(self.lifetime());
        if let Err(error) = added.and_then(|()| address.announce()) {
            tracing::error!(name: "EVFS-1004", "cannot move the address {address} here: {error}");
            return false;
        }
        if let Some(process) = self.processes.get_mut(&(Name::clone(unit), epoch)) {
            process.address = Some(address);
        }
        true
    }

    fn leave_address(&mut self, unit: &Name, epoch: u64) {
        let process = self.processes.get_mut(&(Name::clone(unit), epoch));
        let address = process.and_then(|process| process.address.take());
        if let Some(address) = address
            && let Err(error) = address.remove()
        {
            tracing::warn!(name: "EVFS-1004", "cannot remove the address {address}: {error}");
        }
    }
}

/// Lets this process have as many descriptors as it may: each unit needs several.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
}

/// Passes the reports of a process on, and its end.
fn wait_for(mut child: Child, reader: UnixStream, sender: &Sender<Event>, unit: &Name, epoch: u64) {
    for text in BufReader::new(reader).lines().map_while(Result::ok) {
        if let Ok(report) = serde_json::from_str(&text) {
            let _ = sender.send(Event::Report(Name::clone(unit), epoch, report));
        }
    }
    let status = child.wait();
    let _ = sender.send(Event::Exited(Name::clone(unit), epoch, status));
}
