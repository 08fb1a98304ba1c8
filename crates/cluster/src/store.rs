//! The cluster's keys in etcd, and the requests of the protocol as transactions.
//!
//! ```text
//!   PREFIX/machine/NAME   {"host": ...}   kept by the lease of the machine
//!   PREFIX/unit/NAME      a record        see `cluster_proto::Record`
//!   PREFIX/drain/NAME     {}              the machine gives up its units, and takes none
//! ```

use crate::etcd::{Change, Compare, Endpoints, Error, Etcd, Event, Keys, Outcome, Pair};
use cluster_proto::{Answer, Ask, Name, Notice, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most units whose records are read one by one. Above it, all records are.
const UNITS_ONE_BY_ONE: usize = 1000;
/// Time for which one member is asked for changes.
const WATCH_WITHIN: Duration = Duration::from_secs(2);
/// Shortest time between two watches.
const WATCH_AGAIN: Duration = Duration::from_millis(100);
/// Limit for reading the state of the cluster.
const LOAD_WITHIN: Duration = Duration::from_secs(8);
/// Shortest time between two messages about one reason.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The record that a machine stores under its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Differs between hosts, and after a restart of a host.
    pub host: String,
}

/// A record, or the reason why it cannot be read, and its revision.
pub type Stored = (Result<Record, cluster_proto::Error>, u64);

/// Values loaded besides the answer: the revision from which on changes have to be watched, and the
/// machines that are drained.
pub type Loaded = (u64, BTreeSet<Name>);

/// The cluster as the store has it.
#[derive(Debug, Default)]
pub struct State {
    /// Machines that live, with their leases.
    pub machines: Vec<(Name, u64)>,
    /// All units.
    pub units: Vec<(Name, Stored)>,
    /// Machines that are drained.
    pub drained: BTreeSet<Name>,
}

/// Whether a machine is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub machine: Name,
    pub is_drained: bool,
}

/// A report of a watch.
#[derive(Debug)]
pub enum Seen {
    /// A change that the protocol is told.
    Notice(Notice),
    /// A change of the drained machines, which the protocol does not know.
    Drain(Drain),
    /// Nothing for some time.
    Nothing,
}

/// Which machine uses the store, and which units it has a configuration for.
#[derive(Debug, Clone)]
pub struct Own {
    pub name: Name,
    pub host: Host,
    pub units: BTreeSet<Name>,
}

/// The keys of a cluster.
pub struct Store {
    etcd: Etcd,
    /// Ends in a slash.
    prefix: String,
    /// When another host was last said to use the name of this machine.
    said: Mutex<Option<Instant>>,
}

impl Store {
    /// Creates a store. Does not connect. `prefix`: the beginning of all keys of this cluster.
    ///
    /// # Errors
    /// Those of [`Etcd::new`].
    pub fn new(endpoints: &Endpoints, prefix: &str) -> Result<Store, Error> {
        Ok(Store {
            etcd: Etcd::new(endpoints)?,
            prefix: format!("{}/", prefix.trim_end_matches('/')),
            said: Mutex::default(),
        })
    }

    /// Returns the client.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    fn key(&self, kind: &str, name: &str) -> String {
        format!("{}{kind}/{name}", self.prefix)
    }

    /// Splits a key into its kind and its name.
    fn parse<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        key.strip_prefix(&self.prefix)?.split_once('/')
    }

    /// Reads everything, and the revision that it has.
    ///
    /// # Errors
    /// No member answers.
    pub fn state(&self, within: Duration) -> Result<(State, u64), Error> {
        let (pairs, revision) = self.etcd.list(&self.prefix, within)?;
        Ok((self.state_of(pairs), revision))
    }

    /// Reads what concerns a machine.
    fn own_state(&self, own: &Own) -> Result<(State, u64), Error> {
        if own.units.len() > UNITS_ONE_BY_ONE {
            return self.state(LOAD_WITHIN);
        }
        let kinds = ["machine", "drain"].map(|kind| Keys::Prefix(self.key(kind, "")));
        let units = own.units.iter();
        let units = units.map(|unit| Keys::One(self.key("unit", unit)));
        let keys: Vec<Keys> = kinds.into_iter().chain(units).collect();
        let (pairs, revision) = self.etcd.read(&keys, LOAD_WITHIN)?;
        Ok((self.state_of(pairs), revision))
    }

    fn state_of(&self, pairs: Vec<Pair>) -> State {
        let mut state = State::default();
        for pair in pairs {
            let Some((kind, name)) = self.parse(&pair.key) else {
                continue;
            };
            let name = Name::from(name);
            match kind {
                "machine" if pair.lease != 0 => state.machines.push((name, pair.lease)),
                "unit" => {
                    let record = Record::decode(&pair.value);
                    state.units.push((name, (record, pair.revision)));
                }
                "drain" => {
                    state.drained.insert(name);
                }
                _ => {}
            }
        }
        state
    }

    /// Returns the host that has the name of a machine at present, if one does.
    ///
    /// # Errors
    /// No member answers.
    pub fn host(&self, machine: &str, within: Duration) -> Result<Option<Host>, Error> {
        let pair = self.etcd.get(&self.key("machine", machine), within)?;
        let read = |pair: Pair| {
            let host = serde_json::from_slice(&pair.value);
            host.map_err(|e| Error::Answer(format!("machine {machine}: {e}")))
        };
        pair.map(read).transpose()
    }

    /// Creates the record of a unit, if there is none. Returns whether it did.
    ///
    /// # Errors
    /// It is unknown whether the record was created.
    pub fn create(&self, unit: &str, record: &Record, within: Duration) -> Result<bool, Error> {
        let key = self.key("unit", unit);
        let absent = [Compare::Revision(key.clone(), 0)];
        let put = [Change::Put(key.clone(), record.encode(), 0)];
        Ok(self.etcd.transact(&absent, &put, &key, within)?.succeeded)
    }

    /// Replaces a record that has this revision, if the machine `gone` does not live. Returns
    /// whether it did.
    ///
    /// # Errors
    /// It is unknown whether the record was replaced.
    pub fn replace(
        &self,
        unit: &str,
        revision: u64,
        record: &Record,
        gone: Option<&str>,
        within: Duration,
    ) -> Result<bool, Error> {
        let key = self.key("unit", unit);
        let mut conditions = vec![Compare::Revision(key.clone(), revision)];
        conditions.extend(gone.map(|name| Compare::Revision(self.key("machine", name), 0)));
        let put = [Change::Put(key.clone(), record.encode(), 0)];
        let outcome = self.etcd.transact(&conditions, &put, &key, within)?;
        Ok(outcome.succeeded)
    }

    /// Removes the record of a unit that has this revision. Returns whether it did.
    ///
    /// # Errors
    /// It is unknown whether the record was removed.
    pub fn remove(&self, unit: &str, revision: u64, within: Duration) -> Result<bool, Error> {
        let key = self.key("unit", unit);
        let same = [Compare::Revision(key.clone(), revision)];
        let delete = [Change::Delete(key.clone())];
        Ok(self.etcd.transact(&same, &delete, &key, within)?.succeeded)
    }

    /// Marks a machine as drained, or no longer.
    ///
    /// # Errors
    /// It is unknown whether it was marked.
    pub fn set_drain(&self, drain: &Drain, within: Duration) -> Result<(), Error> {
        let key = self.key("drain", &drain.machine);
        let change = [if drain.is_drained {
            Change::Put(key.clone(), b"{}".to_vec(), 0)
        } else {
            Change::Delete(key.clone())
        }];
        self.etcd.transact(&[], &change, &key, within).map(drop)
    }

    /// Carries out a request of the protocol. The second value is that of an [`Ask::Load`].
    pub fn carry_out(&self, own: &Own, ask: &Ask, within: Duration) -> (Answer, Option<Loaded>) {
        let done = self.try_to(own, ask, within);
        done.unwrap_or_else(|error| {
            tracing::debug!(?ask, %error, "a request to etcd has no answer");
            (Answer::Unknown, None)
        })
    }

    fn try_to(
        &self,
        own: &Own,
        ask: &Ask,
        within: Duration,
    ) -> Result<(Answer, Option<Loaded>), Error> {
        let answer = match ask {
            Ask::Grant { ttl } => {
                let (lease, ttl) = self.etcd.grant(*ttl, within)?;
                Answer::Granted { lease, ttl }
            }
            Ask::Announce { lease } => self.announce(own, *lease, within)?,
            Ask::Renew { lease } => {
                if self.etcd.renew(*lease, within)? {
                    Answer::Done
                } else {
                    Answer::Denied
                }
            }
            Ask::Load => {
                let (state, revision) = self.own_state(own)?;
                let from = Some((revision + 1, state.drained.clone()));
                return Ok((Answer::Loaded(notices(own, state)), from));
            }
            Ask::Read { unit } => {
                let pair = self.etcd.get(&self.key("unit", unit), within)?;
                Answer::Is(current(pair)?)
            }
            Ask::Change {
                unit,
                revision,
                lease,
                gone,
                record,
            } => {
                let key = self.key("unit", unit);
                let mut conditions = vec![
                    Compare::Revision(key.clone(), *revision),
                    Compare::Lease(self.key("machine", &own.name), *lease),
                ];
                conditions.extend(
                    gone.as_ref()
                        .map(|(name, lease)| Compare::NotLease(self.key("machine", name), *lease)),
                );
                let put = [Change::Put(key.clone(), record.encode(), 0)];
                let outcome = self.etcd.transact(&conditions, &put, &key, within)?;
                if outcome.succeeded {
                    let revision = outcome.revision;
                    Answer::Changed { revision }
                } else {
                    Answer::Refused(current(outcome.found)?)
                }
            }
        };
        Ok((answer, None))
    }

    /// Stores the key of this machine. The key of an earlier process of this host is replaced.
    fn announce(&self, own: &Own, lease: u64, within: Duration) -> Result<Answer, Error> {
        let key = self.key("machine", &own.name);
        let value = serde_json::to_vec(&own.host).unwrap_or_default();
        let put = [Change::Put(key.clone(), value, lease)];
        let store = |revision| {
            let same = [Compare::Revision(key.clone(), revision)];
            self.etcd.transact(&same, &put, &key, within)
        };
        let Outcome {
            succeeded, found, ..
        } = store(0)?;
        if succeeded {
            return Ok(Answer::Done);
        }
        let Some(found) = found else {
            return Ok(Answer::Unknown);
        };
        if serde_json::from_slice::<Host>(&found.value).ok().as_ref() != Some(&own.host) {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.is_none_or(|at| at.elapsed() > SAID_AGAIN) {
                *said = Some(Instant::now());
                tracing::warn!(
                    name: "EVFS-1001",
                    machine = &*own.name,
                    "another host uses the name of this machine in the cluster, or did until a \
                     moment ago"
                );
            }
            return Ok(Answer::Denied);
        }
        Ok(if store(found.revision)?.succeeded {
            Answer::Done
        } else {
            Answer::Denied
        })
    }

    /// Watches changes from a revision on until `each` returns false. [`Notice::Missed`] is the
    /// last one if changes were missed.
    pub fn watch(&self, own: &Own, revision: u64, each: &mut dyn FnMut(Seen) -> bool) {
        let mut from = revision;
        let mut goes_on = true;
        while goes_on {
            let began = Instant::now();
            let mut take = |event: Event| {
                goes_on = self.change(own, event).is_none_or(&mut *each);
                goes_on
            };
            let watched = self
                .etcd
                .watch(&self.prefix, &mut from, WATCH_WITHIN, &mut take);
            match watched {
                Ok(()) => {}
                Err(Error::Refused(why)) => {
                    tracing::info!(why, "changes of the cluster were missed");
                    each(Seen::Notice(Notice::Missed));
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "changes of the cluster cannot be watched");
                }
            }
            std::thread::sleep(WATCH_AGAIN.saturating_sub(began.elapsed()));
            // So that a watch ends which is not wanted any more, although nothing changes.
            goes_on &= each(Seen::Nothing);
        }
    }

    fn change(&self, own: &Own, event: Event) -> Option<Seen> {
        let (key, pair) = match event {
            Event::Put(pair) => (pair.key.clone(), Some(pair)),
            Event::Deleted { key, .. } => (key, None),
        };
        let (kind, name) = self.parse(&key)?;
        let name = Name::from(name);
        Some(match (kind, pair) {
            ("machine", Some(pair)) => Seen::Notice(Notice::Machine {
                name,
                lease: pair.lease,
            }),
            ("machine", None) => Seen::Notice(Notice::MachineGone { name }),
            ("drain", pair) => Seen::Drain(Drain {
                machine: name,
                is_drained: pair.is_some(),
            }),
            ("unit", Some(pair)) if own.units.contains(&name) => {
                match Record::decode(&pair.value) {
                    Ok(record) => Seen::Notice(Notice::Unit {
                        unit: name,
                        record,
                        revision: pair.revision,
                    }),
                    Err(error) => {
                        unreadable(&name, &error);
                        Seen::Notice(Notice::UnitGone { unit: name })
                    }
                }
            }
            ("unit", None) => Seen::Notice(Notice::UnitGone { unit: name }),
            _ => return None,
        })
    }
}

fn unreadable(unit: &str, error: &cluster_proto::Error) {
    tracing::error!(
        name: "EVFS-1002",
        unit,
        "this machine does not serve a unit whose record it cannot read: {error}"
    );
}

fn current(pair: Option<Pair>) -> Result<Option<(Record, u64)>, Error> {
    let read = |pair: Pair| {
        let record = Record::decode(&pair.value).map_err(|e| Error::Answer(e.to_string()))?;
        Ok((record, pair.revision))
    };
    pair.map(read).transpose()
}

fn notices(own: &Own, state: State) -> Vec<Notice> {
    let machines = state.machines.into_iter();
    let machines = machines.map(|(name, lease)| Notice::Machine { name, lease });
    let units = state.units.into_iter();
    let units = units.filter(|(name, _)| own.units.contains(name));
    let units = units.filter_map(|(unit, (record, revision))| match record {
        Ok(record) => Some(Notice::Unit {
            unit,
            record,
            revision,
        }),
        Err(error) => {
            unreadable(&unit, &error);
            None
        }
    });
    machines.chain(units).collect()
}
