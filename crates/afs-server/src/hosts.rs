//! The clients: their identity, their capabilities, and whether they can be notified of changes.
//!
//! ```text
//!   New ──first call──► Greeting ──identity query; all promises end──► Known
//!    ▲                     └──no answer──► Silent, for a while           │
//!    └───────────────did not answer a callback break─────────────────────┘
//! ```
//!
//! A client is an address and a port. On its first call the server queries its identity and tells
//! it that all promises of this server have ended: it may hold some from an earlier run of the
//! server, or some whose end could not be reported. Only then does it get promises.
//!
//! A client that does not answer is served without promises, but not while it may still trust older
//! ones: its cached state of other files may be stale, and must not be mixed with new state. Until
//! it answers, or those promises expire, its calls fail with [`Abort::VBUSY`], on which it retries.
//!
//! **Invariant:** only known clients get promises, and a client that did not answer has none. A
//! client that may trust an ended promise is served only after it was told of the end. The number
//! of threads that wait for clients is bounded ([`AdmissionControl`]).

mod told;

use crate::admission::{AdmissionControl, QUICK};
use crate::config::Config;
use crate::error::{CallResult, ErrnoForm, Fault};
use crate::outbox::Outbox;
use crate::resets::Resets;
use crate::survival::{Clients, Gate, KeptClient, machine_seconds};
use afs_proto::{Abort, Reader, Uuid, capability, cb, gather, to_bytes};
use rx::{Call, Connection, End, Timeouts};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time before a client that did not identify itself is queried again: doubled each time, up to the
/// second constant.
const SILENCE: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Time for which a client that missed breaks, or answered them late, gets no promises. Applies
/// from the second miss on, doubled each time up to the second constant. A single miss may be a
/// suspended machine.
const DISTRUST: Duration = Duration::from_secs(60);
const DISTRUST_MAX: Duration = Duration::from_secs(3600);

/// Time without another miss after which misses are forgotten.
const FORGIVEN: Duration = Duration::from_secs(2 * 3600);

/// Upper limit of the seconds by which the server keeps a promise longer than the client: more than
/// the drift of two clocks over hours plus the truncated fractions of seconds.
const SLACK_SECONDS: u32 = 60;

/// Computes the seconds for which the server keeps a promise of `seconds`.
pub(crate) const fn with_slack(seconds: u32) -> u32 {
    let slack = if seconds < SLACK_SECONDS {
        seconds
    } else {
        SLACK_SECONDS
    };
    seconds.saturating_add(slack)
}

/// All clients of a server.
pub(crate) struct Hosts {
    identity: Uuid,
    by_address: Mutex<HashMap<SocketAddr, Arc<Host>>>,
    hosts_max: usize,
    answer_time: Duration,
    promise_seconds: u32,
    pub(crate) admission: AdmissionControl,
    resets: Resets<Host>,
    started: Instant,
    /// Time, in seconds since the server's start, until which an unknown client may trust promises:
    /// of an earlier run, or from before it was forgotten.
    unknown_trust: AtomicU32,
    /// Table of the clients for another server; `None` if there will be none.
    clients: Option<Arc<Clients>>,
    /// The server's start, in seconds of the machine's clock.
    machine_started: u64,
    /// Closed until those that trust promises of a killed server know that these have ended.
    told: Gate,
    /// Closed until the server stops.
    stopping: Gate,
}

/// Client.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    /// Time of its last call, in seconds since the server's start.
    heard: AtomicU32,
    /// Counter that increases when all its promises end.
    era: AtomicU32,
    /// Time, in seconds since the server's start, until which it may trust promises, including
    /// ended ones.
    trusts: AtomicU32,
    /// Its entry in the table for another server, from its first promise on.
    kept: Mutex<Option<KeptClient>>,
    /// Number of its promises, including expired ones not removed yet.
    pub(crate) promises: AtomicUsize,
    /// Pending notifications.
    pub(crate) outbox: Outbox,
}

/// Client as shown to an administrator.
#[derive(Debug, Clone)]
pub struct Client {
    /// Source address of its calls.
    pub address: SocketAddr,
    /// Identity that it reported.
    pub uuid: Option<Uuid>,
    /// Reachability for notifications.
    pub state: ClientState,
    /// Seconds since its last call.
    pub silent_seconds: u32,
    /// Number of valid promises.
    pub promises: usize,
}

/// Reachability of a client for notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// It answers callbacks.
    Up,
    /// It was not queried since its first call, or since it missed a break.
    New,
    /// It did not answer the identity query, and is queried again on a later call.
    Silent,
}

struct State {
    stage: Stage,
    /// Local address that it calls.
    local: Option<IpAddr>,
    uuid: Option<Uuid>,
    errno_form: ErrnoForm,
    connection: Option<Connection>,
    /// Consecutive identity queries without an answer.
    unanswered: u32,
    /// Number of breaks missed or answered late, the time of the last, and the time until which the
    /// client therefore gets no promises.
    misses: u32,
    missed: Option<Instant>,
    distrusted: Option<Instant>,
}

enum Stage {
    New,
    Greeting {
        /// It did not answer at once: threads that wait for it need a place.
        slow: bool,
    },
    Known,
    Silent(Instant),
}

impl Hosts {
    pub(crate) fn new(identity: Uuid, config: &Config) -> Hosts {
        Hosts {
            identity,
            by_address: Mutex::default(),
            hosts_max: config.hosts_max,
            answer_time: config.answer_time,
            promise_seconds: config.promise_seconds,
            admission: AdmissionControl::new(config.workers, config.answer_time),
            resets: Resets::default(),
            started: Instant::now(),
            unknown_trust: AtomicU32::new(with_slack(config.promise_seconds)),
            clients: None,
            machine_started: machine_seconds(),
            told: Gate::default(),
            stopping: Gate::default(),
        }
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Host>>> {
        self.by_address.lock().expect("no panic under this lock")
    }

    /// Identifies the calling client, after an identity query if it is unknown.
    ///
    /// # Errors
    /// `VBUSY`: the client may trust ended promises and could not be told of their end.
    pub(crate) fn of(&self, call: &Call) -> CallResult<Arc<Host>> {
        let host = self.at(call.peer());
        self.greet(&host, call)?;
        Ok(host)
    }

    fn at(&self, address: SocketAddr) -> Arc<Host> {
        let now = self.seconds();
        let mut by_address = self.by_address();
        if !by_address.contains_key(&address) && by_address.len() >= self.hosts_max {
            self.make_room(&mut by_address);
        }
        let host = by_address
            .entry(address)
            .or_insert_with(|| Arc::new(Host::new(address, self.unknown_trust.load(Relaxed))));
        host.heard.store(now, Relaxed);
        Arc::clone(host)
    }

    /// Forgets the least recently active clients, about a sixteenth. They are notified of changes
    /// as long as they have promises; on their next call all promises end.
    fn make_room(&self, by_address: &mut HashMap<SocketAddr, Arc<Host>>) {
        let heard = |host: &Arc<Host>| host.heard.load(Relaxed);
        let mut all: Vec<u32> = by_address.values().map(heard).collect();
        let some = all.len() / 16;
        let (_, limit, _) = all.select_nth_unstable(some);
        let limit = *limit;
        by_address.retain(|_, host| heard(host) > limit);
        let until = self
            .seconds()
            .saturating_add(with_slack(self.promise_seconds));
        self.unknown_trust.fetch_max(until, Relaxed);
        if let Some(clients) = &self.clients {
            clients.set_strangers(self.machine_time(until));
        }
    }

    /// Returns the time that a client may take to answer.
    pub(crate) fn answer_time(&self) -> Duration {
        self.answer_time
    }

    /// Returns the seconds since the server's start.
    pub(crate) fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// Counts the clients, and those active within the last `seconds`.
    pub(crate) fn count(&self, seconds: u32) -> (usize, usize) {
        let since = self.seconds().saturating_sub(seconds);
        let by_address = self.by_address();
        let active = |host: &&Arc<Host>| host.heard.load(Relaxed) >= since;
        (by_address.len(), by_address.values().filter(active).count())
    }

    /// Lists all clients, the most recently active first.
    pub(crate) fn all(&self) -> Vec<Client> {
        let now = self.seconds();
        let all: Vec<_> = self.by_address().values().cloned().collect();
        let mut clients: Vec<_> = all.iter().map(|host| host.shown(now)).collect();
        clients.sort_by_key(|client| (client.silent_seconds, client.address));
        clients
    }

    /// Lists at most `count` clients, the most recently active first. Their promises include expired
    /// ones that are not removed yet.
    pub(crate) fn recent(&self, count: usize) -> Vec<Client> {
        let now = self.seconds();
        let mut all: Vec<_> = self.by_address().values().cloned().collect();
        all.sort_by_cached_key(|host| (Reverse(host.heard.load(Relaxed)), host.address));
        all.truncate(count);
        let shown = |host: &Arc<Host>| Client {
            promises: host.promises.load(Relaxed),
            ..host.shown(now)
        };
        all.iter().map(shown).collect()
    }

    /// Queries the identity of a client, unless it is known or did not answer lately. Other threads
    /// that serve the client wait for the result.
    fn greet(&self, host: &Arc<Host>, call: &Call) -> CallResult<()> {
        let address = host.address.ip();
        let mut place = None;
        let mut state = host.lock();
        loop {
            match state.stage {
                Stage::Known => return Ok(()),
                Stage::Silent(until) if Instant::now() < until => return self.unknown(host),
                Stage::Greeting { slow } => {
                    if slow && place.is_none() {
                        place = self.admission.place(address);
                        if place.is_none() {
                            return Err(LATER);
                        }
                    }
                    let woken = host.changed.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                Stage::New | Stage::Silent(_) => break,
            }
        }
        drop(place);
        let slow = self.admission.is_short(address);
        state.stage = Stage::Greeting { slow };
        drop(state);
        host.era.fetch_add(1, Relaxed);
        let greeting = IdentityQuery { hosts: self, host };
        let mut said = if slow {
            IdentityReply::Nothing
        } else {
            self.ask(call, QUICK.min(self.answer_time))
        };
        if matches!(said, IdentityReply::Nothing)
            && let Some(_place) = self.admission.place(address)
        {
            host.stage(Stage::Greeting { slow: true });
            said = self.ask(call, self.answer_time);
        }
        match said {
            IdentityReply::Who(who) => {
                let connection = call.connect_back(cb::SERVICE, timeouts(self.answer_time));
                if let Some(clients) = &self.clients {
                    host.lock().local = call.local();
                    let mut kept = host.kept();
                    if kept.is_none() {
                        *kept = clients.enter(host.address, call.local());
                    }
                }
                host.answered(who, connection, self.admission.distrusted_until(address));
            }
            IdentityReply::NoCallbacks => {
                // Such a client never got a promise.
                host.trusts_nothing();
                host.stage(Stage::Silent(Instant::now() + SILENCE));
            }
            IdentityReply::Nothing => {
                drop(greeting);
                return self.unknown(host);
            }
        }
        Ok(())
    }

    /// Checks whether an unidentified client may be served.
    fn unknown(&self, host: &Host) -> CallResult<()> {
        if host.trusts.load(Relaxed) > self.seconds() {
            Err(LATER)
        } else {
            Ok(())
        }
    }

    /// Queries identity and capabilities of a client, and tells it that all promises have ended.
    /// Each answer may take `time`.
    fn ask(&self, call: &Call, time: Duration) -> IdentityReply {
        let connection = &call.connect_back(cb::SERVICE, timeouts(time));
        let mut who = call_client(connection, &cb::Request::TellMeAboutYourself {});
        if is_unknown(&who) {
            who = call_client(connection, &cb::Request::WhoAreYou {});
        }
        if is_unknown(&who) {
            return IdentityReply::NoCallbacks;
        }
        let who = match who {
            Ok(cb::Reply::TellMeAboutYourself {
                address,
                capabilities,
            }) => {
                let first = capabilities.first().copied().unwrap_or_default();
                let errno_form = match first & capability::ERRORTRANS {
                    0 => ErrnoForm::Linux,
                    _ => ErrnoForm::Table,
                };
                (address.uuid, errno_form)
            }
            Ok(cb::Reply::WhoAreYou { address }) => (address.uuid, ErrnoForm::Linux),
            _ => return IdentityReply::Nothing,
        };
        match self.end_promises(connection) {
            Ok(_) => IdentityReply::Who(who),
            unknown if is_unknown(&unknown) => IdentityReply::NoCallbacks,
            Err(_) => IdentityReply::Nothing,
        }
    }

    /// Tells a client that all its promises have ended, and returns its answer.
    fn end_promises(&self, connection: &Connection) -> Result<cb::Reply, rx::Error> {
        let server = self.identity;
        call_client(connection, &cb::Request::InitCallBackState3 { server })
    }

    /// Handles a client that did not answer a break: its promises of that era end, and so do those
    /// of the same client's other addresses, which may be affected too.
    pub(crate) fn handle_unanswered(&self, host: &Arc<Host>, era: u32) {
        let connection = host.connection();
        let Some(uuid) = host.lose(era) else {
            return;
        };
        if let Some(connection) = connection {
            self.resets.add(Arc::clone(host), connection);
        }
        self.admission.record_lost(host.address.ip());
        tracing::info!(
            client = %host.address,
            "the client did not acknowledge that a file has changed"
        );
        let others: Vec<_> = self.by_address().values().cloned().collect();
        for other in others {
            let connection = other.connection();
            if !Arc::ptr_eq(&other, host)
                && other.reset_if(|state| state.uuid == Some(uuid))
                && let Some(connection) = connection
            {
                self.resets.add(other, connection);
            }
        }
    }

    /// Tells clients that their promises have ended, until [`Hosts::close_resets`].
    pub(crate) fn run_resets(&self) {
        let is_done = |host: &Host, connection: &Connection| {
            !self.must_reset(host) || self.reset(host, connection)
        };
        self.resets.run(is_done);
    }

    /// Ends [`Hosts::run_resets`].
    pub(crate) fn close_resets(&self) {
        self.stopping.set_closed(false);
        self.resets.close();
    }

    /// Checks whether a client may still trust promises that have ended.
    fn must_reset(&self, host: &Host) -> bool {
        let is_known = matches!(host.lock().stage, Stage::Known);
        !is_known && host.trusts.load(Relaxed) > self.seconds()
    }

    /// Tells a client that all its promises have ended; reports whether it knows.
    fn reset(&self, host: &Host, connection: &Connection) -> bool {
        let told = self.end_promises(connection);
        self.was_reset(host, &told)
    }

    /// Takes the answer of a client to the end of its promises; reports whether it knows.
    fn was_reset(&self, host: &Host, told: &Result<cb::Reply, rx::Error>) -> bool {
        let knows = told.is_ok() || is_unknown(told);
        let mut state = host.lock();
        if knows && !matches!(state.stage, Stage::Known) {
            host.trusts_nothing();
        }
        if knows && matches!(state.stage, Stage::Silent(_)) {
            // It answers, so its next call may query its identity.
            state.stage = Stage::New;
        }
        knows
    }
}

/// Result of an identity query.
enum IdentityReply {
    /// Identity, and the form of errno values that the client understands. It knows that all
    /// promises have ended.
    Who((Uuid, ErrnoForm)),
    /// The client responds, but has no callback service.
    NoCallbacks,
    Nothing,
}

/// Checks whether a client does not implement a procedure, or the callback service as a whole.
fn is_unknown(answer: &Result<cb::Reply, rx::Error>) -> bool {
    let unknown = [Abort::RXGEN_OPCODE, Abort::RX_INVALID_OPERATION];
    matches!(answer, Err(rx::Error::Ended(End::Aborted(code))) if unknown.contains(&Abort(*code)))
}

/// Identity query in progress. Dropping it, whatever the outcome, wakes all waiting threads.
struct IdentityQuery<'g> {
    hosts: &'g Hosts,
    host: &'g Host,
}

impl Drop for IdentityQuery<'_> {
    fn drop(&mut self) {
        let mut state = self.host.lock();
        if matches!(state.stage, Stage::Greeting { .. }) {
            self.hosts.admission.unanswered(self.host.address.ip());
            let silence = doubled(SILENCE, state.unanswered, SILENCE_MAX);
            state.unanswered = state.unanswered.saturating_add(1);
            state.stage = Stage::Silent(Instant::now() + silence);
        }
        drop(state);
        self.host.changed.notify_all();
    }
}

impl Host {
    /// Creates an unknown client, which gets no promises. It may trust old ones until `trusts`, in
    /// seconds since the server's start.
    pub(crate) fn new(address: SocketAddr, trusts: u32) -> Host {
        Host {
            address,
            state: Mutex::new(State {
                stage: Stage::New,
                local: None,
                uuid: None,
                errno_form: ErrnoForm::Linux,
                connection: None,
                unanswered: 0,
                misses: 0,
                missed: None,
                distrusted: None,
            }),
            changed: Condvar::new(),
            heard: AtomicU32::new(0),
            era: AtomicU32::new(0),
            trusts: AtomicU32::new(trusts),
            kept: Mutex::default(),
            promises: AtomicUsize::new(0),
            outbox: Outbox::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<KeptClient>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the client trusts no promise.
    fn trusts_nothing(&self) {
        self.trusts.store(0, Relaxed);
        if let Some(kept) = &*self.kept() {
            kept.distrust();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self, stage: Stage) {
        self.lock().stage = stage;
        self.changed.notify_all();
    }

    /// Records a successful identity query, after which all earlier promises have ended.
    fn answered(
        &self,
        (uuid, errno_form): (Uuid, ErrnoForm),
        connection: Connection,
        distrusted: Option<Instant>,
    ) {
        let mut state = self.lock();
        state.uuid = Some(uuid);
        state.errno_form = errno_form;
        state.connection = Some(connection);
        state.unanswered = 0;
        state.distrusted = state.distrusted.max(distrusted);
        state.stage = Stage::Known;
        self.trusts_nothing();
        drop(state);
        self.changed.notify_all();
    }

    fn shown(&self, now: u32) -> Client {
        let state = self.lock();
        Client {
            address: self.address,
            uuid: state.uuid,
            state: match state.stage {
                Stage::Known => ClientState::Up,
                Stage::New | Stage::Greeting { .. } => ClientState::New,
                Stage::Silent(_) => ClientState::Silent,
            },
            silent_seconds: now.saturating_sub(self.heard.load(Relaxed)),
            promises: 0,
        }
    }

    /// Returns the era for a new promise, which the client will trust until `until` in seconds
    /// since the server's start, and until `machine` in those of the machine's clock, if there may be
    /// another server; `None` if the client gets no promises.
    pub(crate) fn era(&self, until: u32, machine: Option<u64>) -> Option<u32> {
        let state = self.lock();
        let known = matches!(state.stage, Stage::Known);
        if !known || state.distrusted.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        if let Some(machine) = machine {
            self.kept().as_ref()?.trust(machine);
        }
        self.trusts.fetch_max(until, Relaxed);
        Some(self.era.load(Relaxed))
    }

    /// Checks whether promises of `era` are still valid.
    pub(crate) fn is_of(&self, era: u32) -> bool {
        self.era.load(Relaxed) == era
    }

    /// Ends all promises at the client's request.
    pub(crate) fn give_up_all(&self) {
        self.era.fetch_add(1, Relaxed);
    }

    /// Returns the form of errno values that the client understands.
    pub(crate) fn errno_form(&self) -> ErrnoForm {
        self.lock().errno_form
    }

    /// Returns the connection for calls to the client.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.lock().connection.clone()
    }

    /// Records an unanswered break of `era`; returns the client's identity if this was the first.
    fn lose(&self, era: u32) -> Option<Uuid> {
        let uuid = self.lock().uuid;
        let reset = self.reset_if(|state| {
            let is_now = self.is_of(era);
            if is_now {
                state.miss();
            }
            is_now
        });
        uuid.filter(|_| reset)
    }

    /// Records a late answer to a break.
    pub(crate) fn record_late(&self) {
        self.lock().miss();
    }

    /// Ends all promises of a known client for which `is_so` holds; it is queried again on its next
    /// call.
    fn reset_if(&self, is_so: impl FnOnce(&mut State) -> bool) -> bool {
        let mut state = self.lock();
        let reset = matches!(state.stage, Stage::Known) && is_so(&mut state);
        if reset {
            self.era.fetch_add(1, Relaxed);
            state.stage = Stage::New;
            state.connection = None;
        }
        reset
    }
}

impl State {
    /// Records a break that was not answered in time.
    fn miss(&mut self) {
        let now = Instant::now();
        if self.missed.is_some_and(|at| now - at > FORGIVEN) {
            self.misses = 0;
        }
        if let Some(before) = self.misses.checked_sub(1) {
            self.distrusted = Some(now + doubled(DISTRUST, before, DISTRUST_MAX));
        }
        self.misses = self.misses.saturating_add(1);
        self.missed = Some(now);
    }
}

/// Doubles `first` `before` times, up to `most`.
fn doubled(first: Duration, before: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << before.min(16)).min(most)
}

/// Tells the client to retry.
const LATER: Fault = Fault::Code(Abort::VBUSY);

/// Time without an answer after which a client whose port is reported as closed counts as
/// unreachable: long enough for several retransmissions, because such reports can be forged.
const REFUSED: Duration = Duration::from_secs(1);

/// Builds the timeouts of a call to a client.
fn timeouts(time: Duration) -> Timeouts {
    Timeouts {
        dead: time,
        idle: Some(time),
        hard: Some(time),
        refused: Some(REFUSED.min(time)),
    }
}

/// Makes one call to a client.
fn call_client(connection: &Connection, request: &cb::Request) -> Result<cb::Reply, rx::Error> {
    let bytes = connection.request(to_bytes(request), gather::REPLY_BYTES_MAX)?;
    let mut from = Reader::new(&bytes);
    cb::read_reply(request.opcode(), &mut from).map_err(|_| rx::Error::Short)
}

#[cfg(test)]
impl Host {
    /// Creates a client that can get promises.
    pub(crate) fn known() -> Arc<Host> {
        let host = Host::new(([127, 0, 0, 1], 1).into(), 0);
        host.stage(Stage::Known);
        Arc::new(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_that_breaks_off_leaves_no_caller_waiting() {
        let hosts = Hosts::new(Uuid([0; 16]), &Config::default());
        let host = Host::new(([127, 0, 0, 1], 1).into(), 0);
        host.stage(Stage::Greeting { slow: false });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let greeting = IdentityQuery {
                    hosts: &hosts,
                    host: &host,
                };
                let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _greeting = greeting;
                    panic!("on purpose");
                }));
                assert!(broken.is_err());
            });
            let mut state = host.lock();
            while matches!(state.stage, Stage::Greeting { .. }) {
                state = host.changed.wait(state).expect("no panic under it");
            }
            assert!(matches!(state.stage, Stage::Silent(_)));
        });
    }

    #[test]
    fn who_does_not_hear_of_changes_again_and_again_is_promised_less_and_less() {
        let host = Host::known();
        let distrusted = || {
            let until = host.lock().distrusted;
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        assert!(host.era(1, None).is_some());
        host.record_late();
        assert_eq!(distrusted(), None);
        for times in [1, 2, 4] {
            host.record_late();
            let left = distrusted().expect("distrusted");
            assert!(left > DISTRUST * times / 2 && left <= DISTRUST * times);
            assert_eq!(host.era(1, None), None);
        }
        (0..50).for_each(|_| host.record_late());
        assert!(distrusted().expect("distrusted") <= DISTRUST_MAX);
    }
}
