//! `evfs cluster`: the units of a cluster, and the machines that own them.

use super::cluster_units::{may_be_unit, store};
use super::confirm::{Yes, confirm};
use cli::document::Document;
use cli::progress::Bar;
use cli::table::{self, Column::Left, Column::Right};
use cli::{Context, output};
use cluster::{Drain, Error as EtcdError, State, Store, Stored};
use cluster_proto::{Claim, Name, Record};
use schemars::JsonSchema;
use serde::Serialize;
use stack::config::ConfigFile;
use stack::{Error, Result, exit};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Limit for a request to etcd.
const WITHIN: Duration = Duration::from_secs(5);
/// Limit for a unit to move.
const MOVES_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two looks at the records.
const LOOK: Duration = Duration::from_millis(200);
/// Tries to change a record that others change at the same time.
const TRIES: u32 = 20;

#[derive(clap::Subcommand)]
#[command(after_help = "\
A unit is a table of the configuration of `evfs up` that one machine of the cluster serves at a time. All \
machines have the same table, and run `evfs up --cluster`. etcd keeps who owns a unit; the setting cluster.etcd \
names its members. The storage refuses requests of an earlier owner before another machine opens the unit.

Examples:
  evfs cluster init                         make all tables units that any machine may serve
  evfs up --cluster --background            on each machine
  evfs cluster status")]
pub enum Command {
    /// Make tables of the configuration units of the cluster, or change the machines of units
    Init {
        /// Tables that become units [default: all]
        units: Vec<String>,
        /// Configuration file [default: the file of the settings]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Machines that may serve the units, the preferred one first [default: all]
        #[arg(long, value_delimiter = ',', value_name = "MACHINE")]
        machines: Vec<String>,
    },
    /// Show the units and their owners, the machines, and the members of etcd
    Status {
        /// Exit with code 26 if a unit is not served, or a member of etcd does not answer
        #[arg(long)]
        check: bool,
    },
    /// Move a unit to another machine, and wait until it is served there
    Move { unit: String, machine: String },
    /// Let a machine give up its units and take none, and wait until it has none
    Drain {
        /// Machine [default: this one]
        machine: Option<String>,
        /// Let the machine take units again
        #[arg(long)]
        cancel: bool,
    },
    /// Let the units of a machine be taken over although no fence is proven
    #[command(after_help = "\
Use this only if `evfs cluster status` shows a unit as down with a claim of the machine that is not fenced, and \
you know that the machine is off: a machine that still runs would write to the units at the same time as their new owner, and destroy them.

Examples:
  evfs cluster unfence web2 --i-know-the-machine-is-dead --yes")]
    Unfence {
        machine: String,
        /// State that the machine does not run, and cannot write to the storage
        #[arg(long, required = true)]
        i_know_the_machine_is_dead: bool,
        #[command(flatten)]
        yes: Yes,
    },
    /// Remove a unit that no machine serves from the cluster; its data stays
    Remove {
        unit: String,
        #[command(flatten)]
        yes: Yes,
    },
}

/// Units that were made.
#[derive(Serialize, JsonSchema)]
pub struct Made {
    /// Units that are new.
    created: Vec<String>,
    /// Units that existed, and have other machines now.
    changed: Vec<String>,
    /// Units that existed, and were not changed.
    existing: Vec<String>,
}

/// A unit after a change.
#[derive(Serialize, JsonSchema)]
pub struct Changed {
    /// Names of the units.
    units: Vec<String>,
    /// The machine, if one was named.
    machine: Option<String>,
}

/// State of a cluster.
#[derive(Serialize, JsonSchema)]
pub struct Shown {
    /// Members of etcd.
    etcd: Vec<Member>,
    /// Machines that live, or are drained.
    machines: Vec<ShownMachine>,
    /// All units, sorted by name.
    units: Vec<ShownUnit>,
}

/// Whether a member of etcd answers.
#[derive(Serialize, JsonSchema)]
struct Member {
    /// Its address, as in the setting cluster.etcd.
    url: String,
    /// Its version, if it answers.
    version: Option<String>,
    /// Why it does not.
    error: Option<String>,
}

/// A machine that lives, or that an administrator has drained.
#[derive(Serialize, JsonSchema)]
struct ShownMachine {
    /// Name of the machine.
    name: String,
    /// Its lease, if it lives.
    lease: Option<u64>,
    /// It gives up its units, and takes none.
    drained: bool,
    /// Number of units that it owns.
    units: usize,
}

/// Availability of a unit to its users at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum UnitState {
    /// Its owner serves it.
    Served,
    /// A machine is taking it over.
    Starting,
    /// It has no owner that lives.
    Down,
    /// The record cannot be read.
    Unreadable,
}

/// The record of one of the units, and what follows from it.
#[derive(Serialize, JsonSchema)]
struct ShownUnit {
    /// Name of the unit.
    name: String,
    /// Whether it is served.
    state: UnitState,
    /// The last owner.
    owner: Option<String>,
    /// Number of the last claim.
    epoch: u64,
    /// Machines that may serve it, the preferred one first; empty for all.
    machines: Vec<String>,
    /// Machine to which it moves.
    moves_to: Option<String>,
    /// Earlier claims that the storage may still obey.
    unfenced: Vec<ShownClaim>,
    /// Why the record cannot be read.
    error: Option<String>,
}

/// A claim of an earlier owner.
#[derive(Serialize, JsonSchema)]
struct ShownClaim {
    /// Machine that made it.
    machine: String,
    /// Number of the claim.
    epoch: u64,
    /// Lease of the machine at that time.
    lease: u64,
    /// An administrator has stated that the machine is dead.
    dead: bool,
}

pub const MADE: Document<Made> = Document::new("evfs/cluster-init/1");
pub const SHOWN: Document<Shown> = Document::new("evfs/cluster-status/1");
pub const CHANGED: Document<Changed> = Document::new("evfs/cluster-change/1");

/// Runs a command.
pub fn run(context: &Context, command: Command) -> Result<u8> {
    let store = store(&context.settings)?;
    match command {
        Command::Init {
            units,
            config,
            machines,
        } => init(context, &store, units, config, machines),
        Command::Status { check } => status(context, &store, check),
        Command::Move { unit, machine } => move_to(context, &store, &unit, &machine),
        Command::Drain { machine, cancel } => {
            let machine = machine.unwrap_or_else(|| context.settings.cluster_name());
            drain(context, &store, &machine, cancel)
        }
        Command::Unfence { machine, yes, .. } => unfence(context, &store, &machine, yes),
        Command::Remove { unit, yes } => remove(context, &store, &unit, yes),
    }
}

fn failed(error: EtcdError) -> Error {
    match error {
        EtcdError::Config(detail) => Error::Config {
            place: "cluster".into(),
            detail,
        },
        other => Error::Failed(format!(
            "{other}; check the members that cluster.etcd names"
        )),
    }
}

fn state(store: &Store) -> Result<State> {
    Ok(store.state(WITHIN).map_err(failed)?.0)
}

fn init(
    context: &Context,
    store: &Store,
    units: Vec<String>,
    config: Option<PathBuf>,
    machines: Vec<String>,
) -> Result<u8> {
    let config = ConfigFile::or_settings(config.as_deref());
    let all = config.read(context.settings.threads())?;
    let names: Vec<&str> = all.iter().map(|entry| entry.spec.name()).collect();
    if let Some(absent) = units.iter().find(|unit| !names.contains(&unit.as_str())) {
        let file = config.path().display();
        return Err(Error::NotFound(format!(
            "{file} has no table for `{absent}`"
        )));
    }
    let is_plain = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && name.chars().all(is_plain)
    };
    let unusable = |what: &str, name: &str| {
        Err(Error::Usage(format!(
            "`{name}` cannot be {what}: its name may have letters, digits, -, _ and . only"
        )))
    };
    if let Some(name) = machines.iter().find(|name| !is_plain(name)) {
        return unusable("a machine", name);
    }
    let machines: Vec<Name> = machines
        .iter()
        .map(|name| Name::from(name.as_str()))
        .collect();
    let mut made = Made {
        created: Vec::new(),
        changed: Vec::new(),
        existing: Vec::new(),
    };
    for entry in &all {
        let name = entry.spec.name();
        if !units.is_empty() && !units.iter().any(|unit| unit == name) {
            continue;
        }
        if !is_plain(name) {
            return unusable("a unit", name);
        }
        may_be_unit(entry)?;
        let record = Record::new(machines.clone());
        let list = if store.create(name, &record, WITHIN).map_err(failed)? {
            &mut made.created
        } else if !machines.is_empty()
            && change(store, name, None, |_, record| {
                let has_others = record.machines != machines;
                record.machines.clone_from(&machines);
                Ok(has_others)
            })?
        {
            &mut made.changed
        } else {
            &mut made.existing
        };
        list.push(name.to_owned());
    }
    output::done(context.json, &MADE, &made, || {
        let mut text = match made.created.as_slice() {
            [] => "no new unit".to_owned(),
            names => format!("units created: {}", names.join(", ")),
        };
        if !made.changed.is_empty() {
            let _ = write!(text, "; other machines: {}", made.changed.join(", "));
        }
        if !made.existing.is_empty() {
            let _ = write!(text, "; not changed: {}", made.existing.join(", "));
        }
        text
    });
    Ok(exit::OK)
}

fn shown(store: &Store) -> Result<Shown> {
    let (members, state) = std::thread::scope(|scope| {
        let members = scope.spawn(|| store.etcd().versions(WITHIN));
        let state = state(store);
        (members.join().unwrap_or_default(), state)
    });
    let etcd = members.into_iter().map(|(url, answer)| {
        let (version, error) = match answer {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Member {
            url,
            version,
            error,
        }
    });
    let etcd: Vec<Member> = etcd.collect();
    let state = state?;
    let alive: BTreeMap<&Name, u64> = state
        .machines
        .iter()
        .map(|(name, id)| (name, *id))
        .collect();
    let lives = |claim: &Claim| alive.get(&claim.machine) == Some(&claim.lease);
    let mut owned: BTreeMap<&Name, usize> = BTreeMap::new();
    let mut units = Vec::new();
    for (name, stored) in &state.units {
        let mut unit = ShownUnit {
            name: name.to_string(),
            state: UnitState::Unreadable,
            owner: None,
            epoch: 0,
            machines: Vec::new(),
            moves_to: None,
            unfenced: Vec::new(),
            error: None,
        };
        match &stored.0 {
            Err(error) => unit.error = Some(error.to_string()),
            Ok(record) => {
                unit.state = match &record.holder {
                    Some(holder) if lives(&holder.claim) && holder.serving => UnitState::Served,
                    Some(holder) if lives(&holder.claim) => UnitState::Starting,
                    _ => UnitState::Down,
                };
                if let Some(holder) = &record.holder {
                    unit.owner = Some(holder.claim.machine.to_string());
                    *owned.entry(&holder.claim.machine).or_default() += 1;
                }
                unit.epoch = record.epoch;
                unit.machines = record.machines.iter().map(ToString::to_string).collect();
                unit.moves_to = record.wish.as_ref().map(ToString::to_string);
                let claims = record.unfenced.iter();
                let claims = claims.map(|claim| ShownClaim {
                    machine: claim.machine.to_string(),
                    epoch: claim.epoch,
                    lease: claim.lease,
                    dead: record.dead.contains(&claim.lease),
                });
                unit.unfenced = claims.collect();
            }
        }
        units.push(unit);
    }
    let names = alive.keys().copied().chain(&state.drained);
    let names: std::collections::BTreeSet<&Name> = names.collect();
    let machines = names.into_iter().map(|name| ShownMachine {
        name: name.to_string(),
        lease: alive.get(name).copied(),
        drained: state.drained.contains(name),
        units: owned.get(name).copied().unwrap_or(0),
    });
    Ok(Shown {
        etcd,
        machines: machines.collect(),
        units,
    })
}

fn status(context: &Context, store: &Store, check: bool) -> Result<u8> {
    let shown = shown(store)?;
    let units_ok = shown
        .units
        .iter()
        .all(|unit| unit.state == UnitState::Served);
    let is_ok = units_ok && shown.etcd.iter().all(|member| member.error.is_none());
    output::show(context.json, &SHOWN, &shown, || describe(&shown));
    Ok(if check && !is_ok {
        exit::CHECK_FOUND_ERRORS
    } else {
        exit::OK
    })
}

fn describe(shown: &Shown) -> String {
    let mut text = String::new();
    let mut rows = vec![["UNIT", "STATE", "OWNER", "EPOCH", "NOTE"].map(str::to_owned)];
    for unit in &shown.units {
        let state = match unit.state {
            UnitState::Served => "served",
            UnitState::Starting => "starting",
            UnitState::Down => "down",
            UnitState::Unreadable => "unreadable",
        };
        let mut notes = Vec::new();
        notes.extend(unit.moves_to.as_ref().map(|to| format!("moves to {to}")));
        notes.extend(unit.error.clone());
        let open = unit.unfenced.iter().filter(|claim| !claim.dead);
        let open: Vec<String> = open
            .map(|claim| format!("{} (claim {})", claim.machine, claim.epoch))
            .collect();
        if !open.is_empty() {
            notes.push(format!("not fenced yet: {}", open.join(", ")));
        }
        rows.push([
            unit.name.clone(),
            state.to_owned(),
            unit.owner.clone().unwrap_or_else(|| "-".into()),
            unit.epoch.to_string(),
            notes.join("; "),
        ]);
    }
    text += &table::text(&[Left(0), Left(0), Left(0), Right(0), Left(0)], &rows);
    text.push('\n');
    let mut rows = vec![["MACHINE", "STATE", "UNITS"].map(str::to_owned)];
    for machine in &shown.machines {
        let state = match (machine.lease, machine.drained) {
            (Some(_), false) => "lives",
            (Some(_), true) => "lives, drained",
            (None, _) => "gone, drained",
        };
        rows.push([
            machine.name.clone(),
            state.to_owned(),
            machine.units.to_string(),
        ]);
    }
    text += &table::text(&[Left(0), Left(0), Right(0)], &rows);
    text.push('\n');
    let mut rows = vec![["ETCD", "STATE"].map(str::to_owned)];
    for member in &shown.etcd {
        let state = match (&member.version, &member.error) {
            (Some(version), _) => format!("answers, version {version}"),
            (None, error) => error.clone().unwrap_or_default(),
        };
        rows.push([member.url.clone(), state]);
    }
    text += &table::text(&[Left(0), Left(0)], &rows);
    text.trim_end().to_owned()
}

/// Finds a unit.
fn find(state: State, unit: &str) -> Result<Stored> {
    let mut units = state.units.into_iter();
    let found = units.find(|(name, _)| &**name == unit);
    found.map(|(_, stored)| stored).ok_or_else(|| {
        Error::NotFound(format!(
            "the cluster has no unit `{unit}`; `evfs cluster status` lists them"
        ))
    })
}

/// Changes the record of a unit, if the machine `gone` does not live. `change` returns false if
/// there is nothing to change.
fn change(
    store: &Store,
    unit: &str,
    gone: Option<&str>,
    mut change: impl FnMut(&State, &mut Record) -> Result<bool>,
) -> Result<bool> {
    for _ in 0..TRIES {
        let now = state(store)?;
        if let Some(gone) = gone.filter(|gone| lives(&now, gone)) {
            return Err(Error::Busy(format!("machine {gone} lives again")));
        }
        let stored = now.units.iter().find(|(name, _)| &**name == unit);
        let Some((_, (Ok(record), revision))) = stored else {
            let (record, _) = find(now, unit)?;
            let why = record
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            return Err(Error::Failed(format!("{unit}: {why}")));
        };
        let mut record = record.clone();
        if !change(&now, &mut record)? {
            return Ok(false);
        }
        if store
            .replace(unit, *revision, &record, gone, WITHIN)
            .map_err(failed)?
        {
            return Ok(true);
        }
        std::thread::sleep(LOOK / 4);
    }
    Err(Error::Busy(format!(
        "the record of {unit} changes all the time; see `evfs cluster status`"
    )))
}

/// Reports whether a machine has a lease.
fn lives(state: &State, machine: &str) -> bool {
    state.machines.iter().any(|(name, _)| &**name == machine)
}

fn wait_until(
    context: &Context,
    what: &'static str,
    store: &Store,
    is_done: impl Fn(&State) -> bool,
) -> Result<()> {
    let bar = Bar::new(context.json, what);
    let until = Instant::now() + MOVES_WITHIN;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        bar.at((MOVES_WITHIN - left).as_secs(), MOVES_WITHIN.as_secs());
        if is_done(&state(store)?) {
            bar.end();
            return Ok(());
        }
        if left.is_zero() {
            bar.end();
            let secs = MOVES_WITHIN.as_secs();
            return Err(Error::Busy(format!(
                "it is not done after {secs} s, and goes on; see `evfs cluster status` and the log \
                 of `evfs up --cluster`"
            )));
        }
        std::thread::sleep(LOOK);
    }
}

fn move_to(context: &Context, store: &Store, unit: &str, machine: &str) -> Result<u8> {
    let target = Name::from(machine);
    change(store, unit, None, |state, record| {
        if !lives(state, machine) {
            return Err(Error::NotFound(format!(
                "machine {machine} does not live; start `evfs up --cluster` there first"
            )));
        }
        if state.drained.contains(&target) {
            return Err(Error::Busy(format!(
                "machine {machine} is drained; `evfs cluster drain {machine} --cancel` ends that"
            )));
        }
        if !record.machines.is_empty() && !record.machines.contains(&target) {
            return Err(Error::Usage(format!(
                "machine {machine} may not serve {unit}"
            )));
        }
        let holder = record.holder.as_ref();
        if holder.is_some_and(|holder| holder.claim.machine == target) {
            // It stays, whatever was wished for before.
            return Ok(record.wish.take().is_some());
        }
        record.wish = Some(Name::clone(&target));
        Ok(true)
    })?;
    wait_until(context, "moved", store, |state| {
        let mut units = state.units.iter();
        units.any(|(name, stored)| {
            let Ok(record) = &stored.0 else {
                return false;
            };
            let holder = record.holder.as_ref();
            &**name == unit
                && holder.is_some_and(|holder| holder.serving && holder.claim.machine == target)
        })
    })?;
    let content = Changed {
        units: vec![unit.to_owned()],
        machine: Some(machine.to_owned()),
    };
    output::done(context.json, &CHANGED, &content, || {
        format!("{machine} serves {unit}")
    });
    Ok(exit::OK)
}

fn drain(context: &Context, store: &Store, machine: &str, cancel: bool) -> Result<u8> {
    let name = Name::from(machine);
    let now = state(store)?;
    let is_named = |stored: &Stored| {
        let record = stored.0.as_ref().ok();
        record.is_some_and(|record| {
            let holder = record.holder.as_ref();
            record.machines.contains(&name)
                || holder.is_some_and(|holder| holder.claim.machine == name)
        })
    };
    let is_known = lives(&now, machine)
        || now.drained.contains(&name)
        || *machine == context.settings.cluster_name()
        || now.units.iter().any(|(_, stored)| is_named(stored));
    if !is_known {
        return Err(Error::NotFound(format!(
            "the cluster has no machine `{machine}`; `evfs cluster status` lists them"
        )));
    }
    let drain = Drain {
        machine: Name::clone(&name),
        is_drained: !cancel,
    };
    store.set_drain(&drain, WITHIN).map_err(failed)?;
    if !cancel {
        wait_until(context, "drained", store, |state| {
            let owner = |stored: &Stored| {
                let record = stored.0.as_ref().ok();
                let holder = record.and_then(|record| record.holder.as_ref());
                holder.is_some_and(|holder| {
                    let claim = &holder.claim;
                    let lives = |(of, lease): &(Name, u64)| *of == name && *lease == claim.lease;
                    claim.machine == name && state.machines.iter().any(lives)
                })
            };
            !state.units.iter().any(|(_, stored)| owner(stored))
        })?;
    }
    let content = Changed {
        units: Vec::new(),
        machine: Some(machine.to_owned()),
    };
    output::done(context.json, &CHANGED, &content, || {
        if cancel {
            format!("{machine} takes units again")
        } else {
            format!("{machine} has no unit, and takes none")
        }
    });
    Ok(exit::OK)
}

fn unfence(context: &Context, store: &Store, machine: &str, yes: Yes) -> Result<u8> {
    let name = Name::from(machine);
    let now = state(store)?;
    if lives(&now, machine) {
        return Err(Error::Busy(format!(
            "machine {machine} lives: its lease is renewed; stop `evfs up --cluster` there first"
        )));
    }
    let claims = |record: &Record| {
        let holder = record.holder.iter().map(|holder| &holder.claim);
        let all = holder.chain(&record.unfenced);
        let of = all.filter(|claim| claim.machine == name);
        let leases = of.map(|claim| claim.lease);
        leases
            .filter(|lease| !record.dead.contains(lease))
            .collect::<Vec<u64>>()
    };
    let concerned = now.units.iter().filter_map(|(unit, stored)| {
        let record = stored.0.as_ref().ok()?;
        (!claims(record).is_empty()).then(|| unit.to_string())
    });
    let concerned: Vec<String> = concerned.collect();
    if concerned.is_empty() {
        return Err(Error::NotFound(format!(
            "machine {machine} has no claim that could need a fence"
        )));
    }
    let units = concerned.join(", ");
    let what = format!(
        "This lets other machines open {units} without a fence. If {machine} still runs, it destroys \
         them"
    );
    confirm(yes.yes, &what, machine)?;
    for unit in &concerned {
        change(store, unit, Some(machine), |_, record| {
            let dead = claims(record);
            record.dead.extend(&dead);
            Ok(!dead.is_empty())
        })?;
    }
    let content = Changed {
        units: concerned,
        machine: Some(machine.to_owned()),
    };
    output::done(context.json, &CHANGED, &content, || {
        format!("claims of {machine} need no fence any more: {units}")
    });
    Ok(exit::OK)
}

fn remove(context: &Context, store: &Store, unit: &str, yes: Yes) -> Result<u8> {
    let now = state(store)?;
    let alive = now.machines.clone();
    let (record, revision) = find(now, unit)?;
    // One that cannot be read is removed, too.
    let holder = record.ok().and_then(|record| record.holder);
    if let Some(holder) = holder
        && alive.contains(&(Name::clone(&holder.claim.machine), holder.claim.lease))
    {
        return Err(Error::Busy(format!(
            "machine {} serves {unit}; first remove its table on all machines, and send HUP to \
             `evfs up --cluster` there",
            holder.claim.machine
        )));
    }
    let what = format!(
        "This removes {unit} from the cluster: nothing keeps its earlier owners from writing to it \
         any more"
    );
    confirm(yes.yes, &what, unit)?;
    if !store.remove(unit, revision, WITHIN).map_err(failed)? {
        return Err(Error::Busy(format!(
            "the record of {unit} has just changed; try again"
        )));
    }
    let content = Changed {
        units: vec![unit.to_owned()],
        machine: None,
    };
    output::done(context.json, &CHANGED, &content, || {
        format!("{unit} is no unit of the cluster any more")
    });
    Ok(exit::OK)
}
