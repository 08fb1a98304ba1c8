//! `evfs up` and `evfs down`: all volumes, mounts and cells of a configuration file.

use super::cluster_units::{self, Claim};
use super::confirm::Yes;
use super::detach::{asks_before_force, confirm_force};
use super::device::DeviceArgs;
use super::service::{Kept, announce, end, in_background, kept, reload_settings, start};
use super::unlock::UnlockArgs;
use crate::{background, log};
use cli::document::Document;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::config::{ConfigFile, ServiceTable};
use stack::control::{self, ControlRequest};
use stack::{
    Error, Hub, Needs, ProcessCache, Reload, Result, RetainedPrivileges, Service, Settings,
    StopSignals, confine, exit,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(clap::Args)]
#[command(after_help = "\
Example configuration:
  [volume.data]
  device = \"/srv/data.img\"
  key-file = \"/etc/evfs/data.key\"
  loop = true

  [mount.home]
  device = \"/srv/home.img\"
  key = \"alice\"
  at = \"/home\"

  [serve.cell]
  device = \"/srv/cell.img\"
  listen = [\"10.0.0.1\"]
  allow = [\"10.0.0.0/24\"]

All volumes, mounts and cells share one file cache, except volumes with `direct = true`.

A mount table accepts device, key, key-file, at, fileset, threads, read-only, allow-other, exclusive, survive, \
suid, dev, noexec, atime, sync-timeout (in seconds) and allow-discards. A serve table accepts device, key, \
key-file, listen, announce, allow, rxdebug, anonymous-write, threads, allow-discards and survive. A volume table accepts \
device, key, key-file, nbd, nbd-unix, tls-cert, tls-key, tls-ca, anonymous, fuse, loop, threads, read-only, \
allow-discards, direct and survive. A table with `survive = true` needs a process of its own: see --only.

On HUP, `evfs up` writes all data to stable storage and reloads the configuration: it starts new tables and \
detaches removed ones. A changed table takes effect after `evfs detach NAME` and another HUP; if it was the \
only table, `evfs detach NAME` ends the process, and `evfs up` starts it again. `evfs status` reports a HUP \
that failed. HUP also applies the settings log.level and cache.tunables. With --cluster, a new table may be \
served from then on, a removed one is closed and moves to another machine, and a changed one takes effect when \
the unit is opened the next time, for example after `evfs detach NAME`.

A service manager that sets NOTIFY_SOCKET, such as systemd, is notified when everything is ready, of a \
reload and of the end; with WATCHDOG_USEC, also that the process answers.

Examples:
  evfs up                                   all tables in the file of the settings
  evfs up /srv/evfs.toml --background
  evfs up --only data                       one table, as the unit evfs@data.service does
  evfs up --cluster                         the units of a cluster; see `evfs cluster --help`")]
pub struct UpArgs {
    /// Configuration file [default: the file of the settings, which may hold these tables, too]
    config: Option<PathBuf>,
    /// Serve only the table with this name; may be repeated [default: all tables]
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Detach from the terminal once everything is ready
    #[arg(long)]
    background: bool,
    /// Serve the tables that are units of a cluster, each on one of its machines at a time
    #[arg(long)]
    cluster: bool,
    /// Serve one claim on a unit, for the process that runs the cluster's protocol
    #[arg(long, hide = true, requires = "only", conflicts_with_all = ["background", "cluster"])]
    claim: bool,
}

pub fn up(context: &Context, args: UpArgs) -> Result<u8> {
    if args.claim {
        let claim = Arc::new(Claim::of_stdin()?);
        let settings = context.settings.for_owner(Arc::clone(&claim) as _);
        let context = Context {
            settings,
            ..context.clone()
        };
        stack::set_log_place(log::place(false));
        let mut opened = || claim.opened();
        let ended = attach_all(&context, &args, None, &mut opened);
        return ended.inspect_err(|error| claim.failed(error));
    }
    in_background(args.background, |ready| {
        if args.cluster {
            let config = ConfigFile::or_settings(args.config.as_deref());
            let file = config.clone();
            let read = move |settings: &Settings| read(&file, &args.only, settings.threads());
            return cluster_units::serve(context, &config, read, ready);
        }
        attach_all(context, &args, ready, &mut || Ok(()))
    })
}

/// Starts all services and runs them to their end. Calls `opened` when they are ready.
fn attach_all(
    context: &Context,
    args: &UpArgs,
    mut ready: Option<background::Ready>,
    opened: &mut dyn FnMut() -> Result<()>,
) -> Result<u8> {
    let signals = StopSignals::for_service()?;
    let config = ConfigFile::or_settings(args.config.as_deref());
    let entries = read(&config, &args.only, context.settings.threads())?;
    let context = &match outlived(args, &entries)?.then(|| kept(context, &mut ready)) {
        None => context.clone(),
        Some(side) => match side? {
            Kept::Keeper(code) => return Ok(code),
            Kept::Server(context) => context,
        },
    };
    if !args.claim
        && let Some(moves) = entries.iter().find(|entry| entry.address.is_some())
    {
        let table = moves.table();
        let why = format!("warning: the address of {table} is not used without --cluster");
        output::warn(context.json, &why);
    }
    let needs = entries.iter().map(|entry| Needs::of(&entry.spec));
    let cache = ProcessCache::new(&context.settings)?;
    let kept = confine(
        &context.settings,
        needs.fold(Needs::default(), Needs::and),
        &cache,
    )?;
    let up = Up {
        context: context.clone(),
        config,
        only: args.only.clone(),
        is_claim: args.claim,
        run_dir: stack::run_dir(&context.settings.run_dir())?,
        cache,
        kept,
        running: Mutex::default(),
    };
    let mut attached: Vec<Service> = Vec::new();
    for entry in entries {
        // If one fails, dropping the others closes everything they have opened.
        let within = |error| Error::Within {
            place: format!("{}: {}", up.config.path().display(), entry.table()),
            source: Box::new(error),
        };
        attached.push(up.start(&entry).map_err(within)?);
        lock(&up.running).push(entry);
    }
    if !args.claim && !context.settings.is_successor() {
        announce(context.json, &attached, ready);
    }
    opened()?;
    let reload: Reload = Arc::new(move |hub: &Hub| up.reload(hub));
    end(stack::serve(
        attached,
        &signals,
        &reload,
        &context.settings,
    )?)
}

/// Reports whether the only table is to outlive its server.
///
/// # Errors
/// A table is to, and is not alone.
fn outlived(args: &UpArgs, entries: &[ServiceTable]) -> Result<bool> {
    let Some(entry) = entries.iter().find(|entry| entry.spec.survives()) else {
        return Ok(false);
    };
    let (table, name) = (entry.table(), entry.spec.name());
    if args.claim {
        return Err(Error::Usage(format!(
            "{table}: `survive` is not possible for a unit of a cluster; remove it"
        )));
    }
    if entries.len() > 1 {
        return Err(Error::Usage(format!(
            "{table}: `survive` needs a process with no other table; run `evfs up --only {name}` \
             beside another one for the others, or start evfs@{name}.service for each table"
        )));
    }
    Ok(true)
}

/// Reads the tables to serve: those named `only`, or all.
fn read(config: &ConfigFile, only: &[String], threads: usize) -> Result<Vec<ServiceTable>> {
    let mut all = config.read(threads)?;
    let has = |name: &String| all.iter().any(|entry| entry.spec.name() == name);
    if let Some(absent) = only.iter().find(|name| !has(name)) {
        return Err(Error::NotFound(format!(
            "{} has no table for `{absent}`; add a [volume.{absent}], [mount.{absent}] or \
             [serve.{absent}] table",
            config.path().display()
        )));
    }
    if !only.is_empty() {
        all.retain(|entry| only.iter().any(|name| name == entry.spec.name()));
    }
    Ok(all)
}

/// State of `evfs up`: the configuration and the tables in service.
struct Up {
    context: Context,
    config: ConfigFile,
    /// Names of the only tables to serve; empty for all.
    only: Vec<String>,
    /// This process serves one unit of a cluster.
    is_claim: bool,
    run_dir: PathBuf,
    cache: Arc<ProcessCache>,
    /// Privileges kept for tables that are added later.
    kept: RetainedPrivileges,
    /// The running tables, as of their start.
    running: Mutex<Vec<ServiceTable>>,
}

impl Up {
    fn start(&self, entry: &ServiceTable) -> Result<Service> {
        let spec = &entry.spec;
        self.kept.allows(Needs::of(spec))?;
        let unlock = UnlockArgs {
            key: entry.key.clone(),
            key_file: entry.key_file.clone(),
            ..UnlockArgs::default()
        };
        let on = DeviceArgs::of_service(spec.device(), unlock, spec.name());
        start(&self.context, &on, spec.clone(), &self.run_dir, &self.cache)
    }

    /// Starts a table that was added.
    fn add(&self, entry: &ServiceTable, hub: &Hub) -> Result<()> {
        if entry.spec.survives() || self.context.settings.succession().is_some() {
            return Err(Error::Usage(String::from(
                "a table with `survive` needs a process with no other table; start this one with \
                 `evfs up --only`",
            )));
        }
        hub.add(self.start(entry)?)
    }

    /// Reloads the settings and the configuration, and applies the changes.
    fn reload(&self, hub: &Hub) -> Vec<String> {
        let settings = reload_settings(&self.cache);
        let threads = settings
            .as_ref()
            .unwrap_or(&self.context.settings)
            .threads();
        let mut failed: Vec<String> = settings.err().into_iter().collect();
        match read(&self.config, &self.only, threads) {
            Ok(wanted) => failed.extend(self.become_like(wanted, hub)),
            Err(error) => failed.push(format!("configuration not reloaded: {}", error.chain())),
        }
        failed
    }

    /// Stops and starts tables to match `wanted`; returns the failures.
    fn become_like(&self, wanted: Vec<ServiceTable>, hub: &Hub) -> Vec<String> {
        let mut failed = Vec::new();
        let mut running = lock(&self.running);
        // Some tables may have been detached since.
        let served = hub.names();
        running.retain(|entry| served.iter().any(|name| name == entry.spec.name()));
        running.retain(|entry| {
            let name = entry.spec.name();
            if wanted.iter().any(|other| other.spec.name() == name) {
                return true;
            }
            let stopped = hub.stop(name);
            if let Err(error) = &stopped {
                let why = error.chain();
                failed.push(format!(
                    "{name} was removed from the configuration but cannot be detached: {why}"
                ));
            }
            stopped.is_err()
        });
        let file = self.config.path();
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let file = file.display();
        let only = self.only.iter().map(|name| format!(" --only {name}"));
        let again = format!("evfs up {file}{}", only.collect::<String>());
        // A process that serves nothing any more exits.
        let alone = wanted.len() == 1 && hub.names().len() == 1;
        for entry in wanted {
            let name = entry.spec.name();
            if let Some(before) = running.iter().find(|other| other.spec.name() == name) {
                let how = if self.is_claim {
                    format!("`evfs detach {name}`; a machine of the cluster then serves it again")
                } else if alone {
                    format!("`evfs detach {name}; {again}`")
                } else {
                    format!(
                        "`evfs detach {name}`, then send HUP (or run `{again}` once all is detached)"
                    )
                };
                let note = (*before != entry).then(|| {
                    format!("its table in {file} has changed; to apply the change, run {how}")
                });
                if let Some(note) = &note {
                    tracing::warn!(name: "EVFS-0808", "{name}: {note}");
                }
                hub.note(name, note);
                continue;
            }
            match self.add(&entry, hub) {
                Ok(()) => {
                    tracing::info!("{name} is served");
                    running.push(entry);
                }
                Err(error) => {
                    failed.push(format!(
                        "{} cannot be served: {}",
                        entry.table(),
                        error.chain()
                    ));
                }
            }
        }
        failed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(clap::Args)]
#[command(after_help = "\
If a volume, mount or cell is in use, none is detached. With --force, all are detached in any case; exit \
code 30 means that acknowledged data could not be written and is lost. At a terminal, --force asks for each \
that would lose data or disturb a user, before any is detached; without a terminal it does not ask, but \
scripts should add --yes, which a later release will require.")]
pub struct DownArgs {
    /// Detach even what is in use, and even if some data cannot be written
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    yes: Yes,
}

/// Services that were detached.
#[derive(Serialize, JsonSchema)]
pub struct AllDetached {
    /// Names of the services.
    detached: Vec<String>,
}

pub const DETACHED: Document<AllDetached> = Document::new("evfs/down/1");

/// Detaches everything that an `up` attached; volumes attached individually stay.
pub fn down(context: &Context, args: &DownArgs) -> Result<u8> {
    let dir = context.settings.run_dir();
    let is_of_up = |status: &Result<Value>| match status {
        Ok(status) => status["config"] != Value::Null,
        // It may belong to an `up`, but this cannot be determined.
        Err(_) => true,
    };
    let mut all = control::statuses(&dir)?;
    all.retain(|(_, status)| is_of_up(status));
    let each = |ask: &ControlRequest| {
        let mut done = Vec::new();
        let mut failed: Option<Error> = None;
        for (name, _) in &all {
            match control::send_request(&dir, name, ask) {
                Ok(_) => done.push(name.clone()),
                Err(error) => {
                    output::warn(context.json, &format!("{name}: {}", error.chain()));
                    failed = failed.take().or(Some(error));
                }
            }
        }
        failed.map_or(Ok(done), Err)
    };
    if args.force {
        let asks = asks_before_force(context, args.yes);
        for (name, status) in all.iter().filter(|_| asks) {
            match status {
                Ok(status) => confirm_force(context, name, status)?,
                Err(error) => confirm_force(context, name, &control::silent_status(name, error))?,
            }
        }
    } else {
        if let Some(silent) = all
            .iter()
            .find_map(|(_, s)| s.as_ref().err().map(Error::chain))
        {
            return Err(Error::Busy(format!("nothing was detached: {silent}")));
        }
        let ready = each(&ControlRequest::MayDetach);
        ready.map_err(|error| Error::Busy(format!("nothing was detached: {}", error.chain())))?;
    }
    let detached = each(&ControlRequest::Detach { force: args.force })?;
    let content = AllDetached { detached };
    output::done(context.json, &DETACHED, &content, || {
        match content.detached.as_slice() {
            [] => "nothing attached by `evfs up`".into(),
            names => format!("detached {}", names.join(", ")),
        }
    });
    Ok(exit::OK)
}
