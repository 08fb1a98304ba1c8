//! The store of records: keys with revisions, leases, transactions, watches.

use cluster_proto::{Answer, Ask, Name, Notice, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the store has done.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub renewals: u64,
    /// Other requests.
    pub others: u64,
    /// Notices that it has sent. As etcd, it sends each change to all machines.
    pub notices: u64,
    /// Records and keys of machines that it has sent to machines which read all that concerns them.
    pub loaded: u64,
}

/// Times of a lease, in nanoseconds.
#[derive(Debug)]
struct Lease {
    end: u64,
    ttl: u64,
}

/// The store. It is linearizable; what is late or lost is lost on the way to it.
#[derive(Debug)]
pub struct Store {
    records: BTreeMap<Name, (Record, u64)>,
    machines: BTreeMap<Name, (usize, u64)>,
    leases: BTreeMap<u64, Lease>,
    /// No lease ends earlier.
    first_end: u64,
    revision: u64,
    last_lease: u64,
    stalled: u64,
    watching: BTreeSet<usize>,
    /// When the last notice to a host about a unit, or about machines, arrives. Only these keep their
    /// order: less than etcd promises.
    delivered: BTreeMap<(usize, Option<Name>), u64>,
    /// Hosts that are candidates of a unit; all if it is absent.
    candidates: BTreeMap<Name, BTreeSet<usize>>,
    /// Units of which a host is a candidate.
    units_of: BTreeMap<usize, BTreeSet<Name>>,
    /// Units of which all hosts are candidates.
    units_of_all: BTreeSet<Name>,
    is_blind: bool,
    renewals: u64,
    others: u64,
    notified: u64,
    loaded: u64,
}

fn host(name: &Name) -> usize {
    name[1..].parse().expect("a number")
}

impl Store {
    pub fn new(is_blind: bool) -> Store {
        Store {
            records: BTreeMap::new(),
            machines: BTreeMap::new(),
            leases: BTreeMap::new(),
            first_end: 0,
            revision: 1,
            last_lease: 0,
            stalled: 0,
            watching: BTreeSet::new(),
            delivered: BTreeMap::new(),
            candidates: BTreeMap::new(),
            units_of: BTreeMap::new(),
            units_of_all: BTreeSet::new(),
            is_blind,
            renewals: 0,
            others: 0,
            notified: 0,
            loaded: 0,
        }
    }

    pub fn add(&mut self, unit: Name, machines: Vec<Name>) {
        if machines.is_empty() {
            self.units_of_all.insert(unit.clone());
        } else {
            let hosts: BTreeSet<usize> = machines.iter().map(host).collect();
            for host in &hosts {
                self.units_of.entry(*host).or_default().insert(unit.clone());
            }
            self.candidates.insert(unit.clone(), hosts);
        }
        self.revision += 1;
        self.records
            .insert(unit, (Record::new(machines), self.revision));
    }

    pub fn record(&self, unit: &Name) -> Option<&Record> {
        self.records.get(unit).map(|(record, _)| record)
    }

    pub fn load(&self) -> Load {
        Load {
            renewals: self.renewals,
            others: self.others,
            notices: self.notified,
            loaded: self.loaded,
        }
    }

    /// Lets nothing be executed for a time. After it, all leases live as long as at first.
    pub fn stall(&mut self, now: u64, time: u64) {
        self.stalled = self.stalled.max(now + time);
        for lease in self.leases.values_mut() {
            lease.end = lease.end.max(self.stalled + lease.ttl);
        }
    }

    pub fn stalls(&self, now: u64) -> Option<u64> {
        (self.stalled > now).then_some(self.stalled)
    }

    pub fn watch(&mut self, host: usize) {
        self.watching.insert(host);
    }

    pub fn forget(&mut self, host: usize) {
        self.watching.remove(&host);
    }

    pub fn reconnects(&mut self, host: usize) -> Notice {
        self.watching.remove(&host);
        Notice::Missed
    }

    /// Returns the hosts whom a notice concerns. Others ignore it.
    pub fn watchers(&mut self, notice: &Notice) -> Vec<usize> {
        let candidates = match notice {
            Notice::Unit { unit, .. } => self.candidates.get(unit),
            _ => None,
        };
        let concerns = |host: &&usize| candidates.is_none_or(|hosts| hosts.contains(host));
        self.notified += self.watching.len() as u64;
        self.watching.iter().filter(concerns).copied().collect()
    }

    /// Returns the delay of a notice, which overtakes no other about the same unit.
    pub fn in_order(&mut self, now: u64, host: usize, notice: &Notice, delay: u64) -> u64 {
        let unit = match notice {
            Notice::Unit { unit, .. } => Some(unit.clone()),
            _ => None,
        };
        let last = self.delivered.entry((host, unit)).or_default();
        *last = (*last + 1).max(now + delay);
        *last - now
    }

    pub fn wish(&mut self, unit: &Name, to: Name) -> Vec<Notice> {
        let Some((record, _)) = self.records.get(unit) else {
            return Vec::new();
        };
        let mut record = record.clone();
        record.wish = Some(to);
        vec![self.put(unit, record)]
    }

    fn put(&mut self, unit: &Name, record: Record) -> Notice {
        self.revision += 1;
        // As the bytes of the store.
        let record = Record::decode(&record.encode()).expect("a record");
        self.records
            .insert(unit.clone(), (record.clone(), self.revision));
        Notice::Unit {
            unit: unit.clone(),
            record,
            revision: self.revision,
        }
    }

    pub fn expire(&mut self, now: u64) -> Vec<Notice> {
        if self.first_end > now {
            return Vec::new();
        }
        let ends = |leases: &BTreeMap<u64, Lease>| leases.values().map(|lease| lease.end).min();
        self.first_end = ends(&self.leases).unwrap_or(0);
        if self.first_end > now {
            return Vec::new();
        }
        self.leases.retain(|_, lease| lease.end > now);
        let leases = &self.leases;
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.machines)
            .into_iter()
            .partition(|(_, (_, lease))| leases.contains_key(lease));
        self.machines = kept;
        self.revision += gone.len() as u64;
        let gone = gone.into_keys();
        gone.map(|name| Notice::MachineGone { name }).collect()
    }

    pub fn execute(
        &mut self,
        now: u64,
        from: usize,
        machine: &Name,
        ask: Ask,
    ) -> (Answer, Vec<Notice>) {
        match ask {
            Ask::Renew { .. } => self.renewals += 1,
            _ => self.others += 1,
        }
        let nanos = |ttl: Duration| u64::try_from(ttl.as_nanos()).expect("a time");
        match ask {
            Ask::Grant { ttl } => {
                self.last_lease += 1;
                let (lease, ttl_nanos) = (self.last_lease, nanos(ttl));
                let end = now + ttl_nanos;
                let ttl_nanos = Lease {
                    end,
                    ttl: ttl_nanos,
                };
                self.leases.insert(lease, ttl_nanos);
                self.first_end = self.first_end.min(end);
                (Answer::Granted { lease, ttl }, Vec::new())
            }
            Ask::Announce { lease } => {
                let known = self.machines.get(machine);
                // The key is replaced at the revision that was read. So a request of an earlier
                // process that comes late is refused.
                let is_other = known.is_some_and(|(host, at)| *host != from || *at > lease);
                if is_other || !self.leases.contains_key(&lease) {
                    return (Answer::Denied, Vec::new());
                }
                self.revision += 1;
                self.machines.insert(machine.clone(), (from, lease));
                let name = machine.clone();
                (Answer::Done, vec![Notice::Machine { name, lease }])
            }
            Ask::Renew { lease } => match self.leases.get_mut(&lease) {
                Some(known) => {
                    known.end = now + known.ttl;
                    (Answer::Done, Vec::new())
                }
                None => (Answer::Denied, Vec::new()),
            },
            Ask::Load => {
                let machines = self.machines.iter().map(|(name, (_, lease))| {
                    let (name, lease) = (name.clone(), *lease);
                    Notice::Machine { name, lease }
                });
                let own = self.units_of.get(&from).into_iter().flatten();
                let units = own.chain(&self.units_of_all).filter_map(|unit| {
                    let (record, revision) = self.records.get(unit)?;
                    Some(Notice::Unit {
                        unit: unit.clone(),
                        record: record.clone(),
                        revision: *revision,
                    })
                });
                let all: Vec<Notice> = machines.chain(units).collect();
                self.loaded += all.len() as u64;
                (Answer::Loaded(all), Vec::new())
            }
            Ask::Read { unit } => {
                let current = self.records.get(&unit).cloned();
                (Answer::Is(current), Vec::new())
            }
            Ask::Change {
                unit,
                revision,
                lease,
                gone,
                record,
            } => {
                let current = self.records.get(&unit).cloned();
                let known = current.as_ref().map(|(_, revision)| *revision);
                let lives = |name: &Name| self.machines.get(name).map(|(_, lease)| *lease);
                let is_same = known == Some(revision) || self.is_blind;
                let is_gone = gone.is_none_or(|(name, lease)| lives(&name) != Some(lease));
                if !is_same || !is_gone || lives(machine) != Some(lease) {
                    return (Answer::Refused(current), Vec::new());
                }
                let notice = self.put(&unit, record);
                let revision = self.revision;
                (Answer::Changed { revision }, vec![notice])
            }
        }
    }
}
