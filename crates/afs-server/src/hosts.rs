//! The clients: who is there, what they are able to do, and whether they can be told of changes.
//!
//! ```text
//!   New ──first call──► Greeting ──who are you; all promises are over──► Known
//!    ▲                     └──no answer──► Silent, for a while           │
//!    └───────────────did not answer that a file has changed──────────────┘
//! ```
//!
//! A client is an address and a port. When it is first heard of it is asked who it is, and told that
//! all promises of this server are over: it may have some of an earlier run, or some that it could
//! not be told the end of. Only then is it promised anything.
//!
//! **Invariant:** promises are made to clients that are known, and are over for one that did not
//! answer. What it costs to find out that a client does not answer is paid by one call at a time.

use afs_proto::{Abort, Reader, Uuid, capability, cb, gather, to_bytes};
use rx::{Call, Connection, End, Timeouts};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a client that did not say who it is goes without promises before it is asked again.
const SILENCE: Duration = Duration::from_secs(60);

/// The clients of a server.
pub(crate) struct Hosts {
    identity: Uuid,
    by_address: Mutex<HashMap<SocketAddr, Arc<Host>>>,
    hosts_max: usize,
    answer_time: Duration,
    /// Calls that wait for a client's answer to who it is, and how many may.
    greetings: AtomicUsize,
    greetings_max: usize,
    started: Instant,
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
}

struct State {
    stage: Stage,
    uuid: Option<Uuid>,
    knows_table: bool,
    connection: Option<Connection>,
}

enum Stage {
    New,
    Greeting,
    Known,
    Silent(Instant),
}

impl Hosts {
    pub(crate) fn new(identity: Uuid, config: &crate::Config) -> Hosts {
        Hosts {
            identity,
            by_address: Mutex::default(),
            hosts_max: config.hosts_max,
            answer_time: config.answer_time,
            greetings: AtomicUsize::new(0),
            // The others go on with those who are known.
            greetings_max: (config.workers / 2).max(1),
            started: Instant::now(),
        }
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Host>>> {
        self.by_address.lock().expect("no panic under this lock")
    }

    /// Who calls, after it was asked who it is if that is not known.
    pub(crate) fn of(&self, call: &Call) -> Arc<Host> {
        let host = self.at(call.peer());
        self.greet(&host, call);
        host
    }

    fn at(&self, address: SocketAddr) -> Arc<Host> {
        let now = self.seconds();
        let mut by_address = self.by_address();
        if !by_address.contains_key(&address) && by_address.len() >= self.hosts_max {
            self.make_room(&mut by_address);
        }
        let host = by_address
            .entry(address)
            .or_insert_with(|| Arc::new(Host::new(address)));
        host.heard.store(now, Relaxed);
        Arc::clone(host)
    }

    /// Forgets a part of the clients: those not heard of for longest. What they were promised is over,
    /// and they are told so when they call again.
    fn make_room(&self, by_address: &mut HashMap<SocketAddr, Arc<Host>>) {
        let heard = |host: &Arc<Host>| host.heard.load(Relaxed);
        let mut all: Vec<u32> = by_address.values().map(heard).collect();
        let some = all.len() / 16;
        let (_, limit, _) = all.select_nth_unstable(some);
        let limit = *limit;
        by_address.retain(|_, host| heard(host) > limit);
    }

    fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// How many there are, and how many of them were heard of within so many seconds.
    pub(crate) fn count(&self, seconds: u32) -> (usize, usize) {
        let since = self.seconds().saturating_sub(seconds);
        let by_address = self.by_address();
        let active = |host: &&Arc<Host>| host.heard.load(Relaxed) >= since;
        (by_address.len(), by_address.values().filter(active).count())
    }

    /// Asks a client who it is, unless it is known or did not answer lately. Others who call for it
    /// meanwhile wait.
    fn greet(&self, host: &Arc<Host>, call: &Call) {
        let mut state = host.lock();
        loop {
            match state.stage {
                Stage::Known => return,
                Stage::Silent(until) if Instant::now() < until => return,
                Stage::Greeting if self.may_wait() => {
                    state = host.changed.wait(state).expect("no panic under this lock");
                    self.greetings.fetch_sub(1, Relaxed);
                }
                Stage::Greeting => return,
                Stage::New | Stage::Silent(_) => break,
            }
        }
        if !self.may_wait() {
            return;
        }
        state.stage = Stage::Greeting;
        drop(state);
        host.era.fetch_add(1, Relaxed);
        let connection = call.connect_back(cb::SERVICE, timeouts(self.answer_time));
        let answer = self.ask(&connection);
        self.greetings.fetch_sub(1, Relaxed);
        let mut state = host.lock();
        match answer {
            Some((uuid, knows_table)) => {
                state.uuid = Some(uuid);
                state.knows_table = knows_table;
                state.stage = Stage::Known;
                state.connection = Some(connection);
            }
            None => state.stage = Stage::Silent(Instant::now() + SILENCE),
        }
        drop(state);
        host.changed.notify_all();
    }

    /// Counts a call that waits for the answer of a client that is not known, unless there are so many that the
    /// rest is needed for those who are: then it goes on without promises.
    fn may_wait(&self) -> bool {
        let may = self.greetings.fetch_add(1, Relaxed) < self.greetings_max;
        if !may {
            self.greetings.fetch_sub(1, Relaxed);
        }
        may
    }

    /// Who a client is, and whether it knows the error table. It is told that all promises are over.
    fn ask(&self, connection: &Connection) -> Option<(Uuid, bool)> {
        let about = tell(connection, &cb::Request::TellMeAboutYourself {});
        let who = match about {
            Err(rx::Error::Ended(End::Aborted(code))) if Abort(code) == Abort::RXGEN_OPCODE => {
                tell(connection, &cb::Request::WhoAreYou {})
            }
            about => about,
        };
        let who = match who.ok()? {
            cb::Reply::TellMeAboutYourself {
                address,
                capabilities,
            } => {
                let first = capabilities.first().copied().unwrap_or_default();
                (address.uuid, first & capability::ERRORTRANS != 0)
            }
            cb::Reply::WhoAreYou { address } => (address.uuid, false),
            _ => return None,
        };
        let server = self.identity;
        tell(connection, &cb::Request::InitCallBackState3 { server }).ok()?;
        Some(who)
    }

    /// A client did not answer that a file has changed: its promises are over, and so are those of the
    /// same client's other addresses, which may have been meant.
    pub(crate) fn lost(&self, host: &Arc<Host>) {
        let uuid = host.lock().uuid;
        host.reset();
        tracing::info!(client = %host.address, "does not answer that a file has changed");
        let Some(uuid) = uuid else {
            return;
        };
        let others: Vec<_> = self.by_address().values().cloned().collect();
        for other in others {
            if !Arc::ptr_eq(&other, host) && other.lock().uuid == Some(uuid) {
                other.reset();
            }
        }
    }
}

impl Host {
    fn new(address: SocketAddr) -> Host {
        Host {
            address,
            state: Mutex::new(State {
                stage: Stage::New,
                uuid: None,
                knows_table: false,
                connection: None,
            }),
            changed: Condvar::new(),
            heard: AtomicU32::new(0),
            era: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// The era of its promises, if it can be promised anything.
    pub(crate) fn era(&self) -> Option<u32> {
        let state = self.lock();
        matches!(state.stage, Stage::Known).then(|| self.era.load(Relaxed))
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

    fn reset(&self) {
        let mut state = self.lock();
        if matches!(state.stage, Stage::Known) {
            self.era.fetch_add(1, Relaxed);
            state.stage = Stage::New;
            state.connection = None;
        }
    }
}

/// How long a client may take to answer.
fn timeouts(time: Duration) -> Timeouts {
    Timeouts {
        dead: time,
        idle: Some(time),
        hard: Some(time),
    }
}

/// Makes one call to a client.
fn tell(connection: &Connection, request: &cb::Request) -> Result<cb::Reply, rx::Error> {
    let bytes = connection.ask(to_bytes(request), gather::REPLY_BYTES_MAX)?;
    let mut from = Reader::new(&bytes);
    cb::read_reply(request.opcode(), &mut from).map_err(|_| rx::Error::Short)
}
