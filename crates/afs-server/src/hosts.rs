//! The clients: who is there, what they are able to do, and whether they can be told of changes.
//!
//! ```text
//!   New ──first call──► Greeting ──who are you; all promises are over──► Known
//!    ▲                     └──no answer──► Silent, for a while            │
//!    └───────────────did not answer that a file has changed───────────────┘
//! ```
//!
//! A client is an address and a port. When it is first heard of it is asked who it is, and told that
//! all promises of this server are over: it may have some of an earlier run, or some that it could
//! not be told the end of. Only then is it promised anything.
//!
//! A client that does not answer is served without promises, but not as long as it may trust older
//! ones: what it has of other files may be old, and is not to be mixed with what is new. Until it
//! answers, or those are over by themselves, it is told to try again ([`Abort::VBUSY`]).
//!
//! **Invariant:** promises are made to clients that are known, and are over for one that did not
//! answer. Who may trust a promise that is over is served only after it was told. Threads that wait for
//! clients are limited ([`Patience`]).

use crate::breaks::Outbox;
use crate::config::Config;
use crate::error::{Fault, Outcome};
use crate::patience::{Patience, QUICK};
use afs_proto::{Abort, Reader, Uuid, capability, cb, gather, to_bytes};
use rx::{Call, Connection, End, Timeouts};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a client that did not say who it is is not asked again: doubled with each time, up to the
/// second.
const SILENCE: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// How long a client is promised nothing that did not answer that files have changed, or late, for the
/// second time: doubled with each time, up to the second. One time may be a machine that slept.
const DISTRUST: Duration = Duration::from_secs(60);
const DISTRUST_MAX: Duration = Duration::from_secs(3600);

/// Time without another, after which it is forgotten that a client did not answer.
const FORGIVEN: Duration = Duration::from_secs(2 * 3600);

/// Seconds for which a promise holds longer here than its client was told, at most: more than two clocks
/// differ after hours, and than was cut off with the fractions.
const SLACK_SECONDS: u32 = 60;

/// Seconds for which a promise of so many holds here.
pub(crate) const fn with_slack(seconds: u32) -> u32 {
    let slack = if seconds < SLACK_SECONDS {
        seconds
    } else {
        SLACK_SECONDS
    };
    seconds.saturating_add(slack)
}

/// The clients of a server.
pub(crate) struct Hosts {
    identity: Uuid,
    by_address: Mutex<HashMap<SocketAddr, Arc<Host>>>,
    hosts_max: usize,
    answer_time: Duration,
    promise_seconds: u32,
    pub(crate) patience: Patience,
    started: Instant,
    /// Seconds of the server's run until which a client that it does not know may trust promises: of an
    /// earlier run, or from before it was forgotten.
    unknown_trust: AtomicU32,
}

/// A client.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    /// Seconds of the server's run at which it was last heard of.
    heard: AtomicU32,
    /// Rises when all its promises are over.
    era: AtomicU32,
    /// Seconds of the server's run until which it may trust promises, whether or not they are over.
    trusts: AtomicU32,
    /// Promises that it has, those that are over and were not met since among them.
    pub(crate) promises: AtomicUsize,
    /// What it is to be told.
    pub(crate) outbox: Outbox,
}

/// A client, as an administrator sees it.
#[derive(Debug, Clone)]
pub struct Client {
    /// Where it calls from.
    pub address: SocketAddr,
    /// Who it says it is.
    pub uuid: Option<Uuid>,
    /// Whether it can be told of changes.
    pub state: ClientState,
    /// Seconds since it was heard of.
    pub silent_seconds: u32,
    /// Promises to tell it of changes.
    pub promises: usize,
}

/// Whether a client can be told of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    /// It answers.
    Up,
    /// It has not been asked since it was first heard of, or since it did not answer.
    New,
    /// It did not answer who it is, and is asked again when it calls later.
    Silent,
}

struct State {
    stage: Stage,
    uuid: Option<Uuid>,
    knows_table: bool,
    connection: Option<Connection>,
    /// Times in a row that it did not say who it is.
    unanswered: u32,
    /// Times that it did not answer that a file has changed, or late; when that was, and until when it is
    /// promised nothing for it.
    misses: u32,
    missed: Option<Instant>,
    distrusted: Option<Instant>,
}

enum Stage {
    New,
    Greeting {
        /// It has not answered at once: who waits for it needs a place.
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
            patience: Patience::new(config.workers, config.answer_time),
            started: Instant::now(),
            unknown_trust: AtomicU32::new(with_slack(config.promise_seconds)),
        }
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Host>>> {
        self.by_address.lock().expect("no panic under this lock")
    }

    /// Who calls, after it was asked who it is if that is not known.
    ///
    /// # Errors
    /// It is to try again later: it may trust promises that are over, and was not told.
    pub(crate) fn of(&self, call: &Call) -> Outcome<Arc<Host>> {
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

    /// Forgets a part of the clients: those not heard of for longest. They are told of changes as long as
    /// they have promises, and when they call again, that all are over.
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
    }

    /// How long a client may take to answer.
    pub(crate) fn answer_time(&self) -> Duration {
        self.answer_time
    }

    /// Seconds of the server's run.
    pub(crate) fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// How many there are, and how many of them were heard of within so many seconds.
    pub(crate) fn count(&self, seconds: u32) -> (usize, usize) {
        let since = self.seconds().saturating_sub(seconds);
        let by_address = self.by_address();
        let active = |host: &&Arc<Host>| host.heard.load(Relaxed) >= since;
        (by_address.len(), by_address.values().filter(active).count())
    }

    /// All of them, those that were heard of last first.
    pub(crate) fn all(&self) -> Vec<Client> {
        let now = self.seconds();
        let all: Vec<_> = self.by_address().values().cloned().collect();
        let mut clients: Vec<_> = all.iter().map(|host| host.shown(now)).collect();
        clients.sort_by_key(|client| (client.silent_seconds, client.address));
        clients
    }

    /// Asks a client who it is, unless it is known or did not answer lately. Others who call for it
    /// meanwhile wait.
    fn greet(&self, host: &Arc<Host>, call: &Call) -> Outcome<()> {
        let address = host.address.ip();
        let mut place = None;
        let mut state = host.lock();
        loop {
            match state.stage {
                Stage::Known => return Ok(()),
                Stage::Silent(until) if Instant::now() < until => return self.unknown(host),
                Stage::Greeting { slow } => {
                    if slow && place.is_none() {
                        place = self.patience.place(address);
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
        let slow = self.patience.is_short(address);
        state.stage = Stage::Greeting { slow };
        drop(state);
        host.era.fetch_add(1, Relaxed);
        let greeting = Greeting { hosts: self, host };
        let mut said = match slow {
            true => Said::Nothing,
            false => self.ask(call, QUICK.min(self.answer_time)),
        };
        if matches!(said, Said::Nothing)
            && let Some(_place) = self.patience.place(address)
        {
            host.stage(Stage::Greeting { slow: true });
            said = self.ask(call, self.answer_time);
        }
        match said {
            Said::Who(who) => {
                let connection = call.connect_back(cb::SERVICE, timeouts(self.answer_time));
                host.answered(who, connection, self.patience.distrusted_until(address));
            }
            Said::NoCallbacks => {
                // Such a one was never promised anything.
                host.trusts.store(0, Relaxed);
                host.stage(Stage::Silent(Instant::now() + SILENCE));
            }
            Said::Nothing => {
                drop(greeting);
                return self.unknown(host);
            }
        }
        Ok(())
    }

    /// Whether a client that did not say who it is may be served.
    fn unknown(&self, host: &Host) -> Outcome<()> {
        match host.trusts.load(Relaxed) > self.seconds() {
            true => Err(LATER),
            false => Ok(()),
        }
    }

    /// Who a client is, and whether it knows the error table. It is told that all promises are over.
    /// It has that time for each answer.
    fn ask(&self, call: &Call, time: Duration) -> Said {
        let connection = &call.connect_back(cb::SERVICE, timeouts(time));
        let mut who = tell(connection, &cb::Request::TellMeAboutYourself {});
        if is_unknown(&who) {
            who = tell(connection, &cb::Request::WhoAreYou {});
        }
        if is_unknown(&who) {
            return Said::NoCallbacks;
        }
        let who = match who {
            Ok(cb::Reply::TellMeAboutYourself {
                address,
                capabilities,
            }) => {
                let first = capabilities.first().copied().unwrap_or_default();
                (address.uuid, first & capability::ERRORTRANS != 0)
            }
            Ok(cb::Reply::WhoAreYou { address }) => (address.uuid, false),
            _ => return Said::Nothing,
        };
        let server = self.identity;
        let told = tell(connection, &cb::Request::InitCallBackState3 { server });
        match told {
            Ok(_) => Said::Who(who),
            unknown if is_unknown(&unknown) => Said::NoCallbacks,
            Err(_) => Said::Nothing,
        }
    }

    /// A client did not answer that a file has changed: its promises of that era are over, and so are those
    /// of the same client's other addresses, which may have been meant.
    pub(crate) fn lost(&self, host: &Arc<Host>, era: u32) {
        let Some(uuid) = host.lose(era) else {
            return;
        };
        self.patience.lost(host.address.ip());
        tracing::info!(client = %host.address, "does not answer that a file has changed");
        let others: Vec<_> = self.by_address().values().cloned().collect();
        for other in others {
            if !Arc::ptr_eq(&other, host) {
                other.reset_if(|state| state.uuid == Some(uuid));
            }
        }
    }
}

/// What a client says to who it is, and to that all promises are over.
enum Said {
    /// Its identity, and whether it knows the error table. It has heard of the promises.
    Who((Uuid, bool)),
    /// It is there, and does not know what callbacks are.
    NoCallbacks,
    Nothing,
}

/// Whether a client refuses a procedure of the callback service, or all of it.
fn is_unknown(answer: &Result<cb::Reply, rx::Error>) -> bool {
    let unknown = [Abort::RXGEN_OPCODE, Abort::RX_INVALID_OPERATION];
    matches!(answer, Err(rx::Error::Ended(End::Aborted(code))) if unknown.contains(&Abort(*code)))
}

/// Asking a client who it is. Whatever becomes of it, nobody waits for the answer after that.
struct Greeting<'g> {
    hosts: &'g Hosts,
    host: &'g Host,
}

impl Drop for Greeting<'_> {
    fn drop(&mut self) {
        let mut state = self.host.lock();
        if matches!(state.stage, Stage::Greeting { .. }) {
            self.hosts.patience.unanswered(self.host.address.ip());
            let silence = doubled(SILENCE, state.unanswered, SILENCE_MAX);
            state.unanswered = state.unanswered.saturating_add(1);
            state.stage = Stage::Silent(Instant::now() + silence);
        }
        drop(state);
        self.host.changed.notify_all();
    }
}

impl Host {
    /// A client that nothing is known of, and that is promised nothing. `trusts`: seconds of the server's run
    /// until which it may trust promises nevertheless.
    pub(crate) fn new(address: SocketAddr, trusts: u32) -> Host {
        Host {
            address,
            state: Mutex::new(State {
                stage: Stage::New,
                uuid: None,
                knows_table: false,
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
            promises: AtomicUsize::new(0),
            outbox: Outbox::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self, stage: Stage) {
        self.lock().stage = stage;
        self.changed.notify_all();
    }

    /// It has said who it is, and heard that all promises are over.
    fn answered(
        &self,
        (uuid, knows_table): (Uuid, bool),
        connection: Connection,
        distrusted: Option<Instant>,
    ) {
        let mut state = self.lock();
        state.uuid = Some(uuid);
        state.knows_table = knows_table;
        state.connection = Some(connection);
        state.unanswered = 0;
        state.distrusted = state.distrusted.max(distrusted);
        state.stage = Stage::Known;
        self.trusts.store(0, Relaxed);
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

    /// The era of its promises, if it can be promised anything; it will trust one until that second of the
    /// server's run.
    pub(crate) fn era(&self, until: u32) -> Option<u32> {
        let state = self.lock();
        let known = matches!(state.stage, Stage::Known);
        if !known || state.distrusted.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.trusts.fetch_max(until, Relaxed);
        Some(self.era.load(Relaxed))
    }

    /// Whether promises of that era still hold.
    pub(crate) fn is_of(&self, era: u32) -> bool {
        self.era.load(Relaxed) == era
    }

    /// It wants to hear of nothing any more.
    pub(crate) fn give_up_all(&self) {
        self.era.fetch_add(1, Relaxed);
    }

    /// Whether it takes codes of the error table.
    pub(crate) fn knows_table(&self) -> bool {
        self.lock().knows_table
    }

    /// The way to it, to tell it something.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.lock().connection.clone()
    }

    /// It did not answer, in an era; gives who it is if that was not noted yet.
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

    /// It answered that a file has changed, and late.
    pub(crate) fn late(&self) {
        self.lock().miss();
    }

    /// Ends all promises and asks again who it is, if it is known and that is so.
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
    /// It did not answer in time that a file has changed.
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

/// A time that doubles with each one before, up to a limit.
fn doubled(first: Duration, before: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << before.min(16)).min(most)
}

/// It is to try again.
const LATER: Fault = Fault::Code(Abort::VBUSY);

/// Time without an answer after which a client counts as gone if the network says that nothing listens at its
/// port: long enough to be asked again several times, because what the network says can be forged.
const REFUSED: Duration = Duration::from_secs(1);

/// How long a client may take to answer.
fn timeouts(time: Duration) -> Timeouts {
    Timeouts {
        dead: time,
        idle: Some(time),
        hard: Some(time),
        refused: Some(REFUSED.min(time)),
    }
}

/// Makes one call to a client.
fn tell(connection: &Connection, request: &cb::Request) -> Result<cb::Reply, rx::Error> {
    let bytes = connection.ask(to_bytes(request), gather::REPLY_BYTES_MAX)?;
    let mut from = Reader::new(&bytes);
    cb::read_reply(request.opcode(), &mut from).map_err(|_| rx::Error::Short)
}

#[cfg(test)]
impl Host {
    /// A client that can be promised something.
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
    fn a_greeting_that_breaks_off_leaves_nobody_waiting() {
        let hosts = Hosts::new(Uuid([0; 16]), &Config::default());
        let host = Host::new(([127, 0, 0, 1], 1).into(), 0);
        host.stage(Stage::Greeting { slow: false });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let greeting = Greeting {
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
        assert!(host.era(1).is_some());
        host.late();
        assert_eq!(distrusted(), None);
        for times in [1, 2, 4] {
            host.late();
            let left = distrusted().expect("distrusted");
            assert!(left > DISTRUST * times / 2 && left <= DISTRUST * times);
            assert_eq!(host.era(1), None);
        }
        (0..50).for_each(|_| host.late());
        assert!(distrusted().expect("distrusted") <= DISTRUST_MAX);
    }
}
