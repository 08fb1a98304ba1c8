//! The life cycle of services, shared by `evfs attach`, `mount`, `serve` and `up`: confine the
//! process, start the services, announce them, and run them to their end.

use super::device::DeviceArgs;
use super::status;
use crate::descriptor::outlives_caller;
use crate::{background, log};
use cli::document::Document;
use cli::{Context, output};
use keeper::Side;
use schemars::JsonSchema;
use serde::Serialize;
use stack::{
    Ended, Error, Hub, Needs, ProcessCache, Reload, Result, Service, ServiceSpec, Settings, Status,
    StopSignals, Succession, confine, exit,
};
use std::path::Path;
use std::sync::Arc;

/// The services of one process.
#[derive(Serialize, JsonSchema)]
pub struct Services<'a> {
    /// The services, in the order of the configuration file.
    volumes: Vec<&'a Status>,
}

pub const SERVICE: Document<Status> = Document::new("evfs/service/1");
pub const SERVICES: Document<Services<'static>> = Document::new("evfs/services/1");

/// Runs a service to its end. `on` is the DEVICE of `spec`, with the key to it.
pub fn run(context: &Context, on: &DeviceArgs, spec: ServiceSpec, background: bool) -> Result<u8> {
    run_and(context, on, spec, background, |all, ready| {
        announce(context.json, all, ready);
    })
}

/// Runs a service in the background, and prints warnings only.
pub fn run_quietly(context: &Context, on: &DeviceArgs, spec: ServiceSpec) -> Result<u8> {
    run_and(context, on, spec, true, |all, ready| {
        warn(context.json, all);
        if let Some(ready) = ready {
            ready.report_ready("");
        }
    })
}

/// Runs a service to its end; calls `started` once it is ready.
fn run_and(
    context: &Context,
    on: &DeviceArgs,
    spec: ServiceSpec,
    background: bool,
    started: impl FnOnce(&[Service], Option<background::Ready>),
) -> Result<u8> {
    in_background(background, |mut ready| {
        let signals = StopSignals::for_service()?;
        let context = &match spec.survives().then(|| kept(context, &mut ready)) {
            None => context.clone(),
            Some(side) => match side? {
                Kept::Keeper(code) => return Ok(code),
                Kept::Server(context) => context,
            },
        };
        let cache = ProcessCache::new(&context.settings)?;
        confine(&context.settings, Needs::of(&spec), &cache)?;
        let run_dir = stack::run_dir(&context.settings.run_dir())?;
        let all = vec![start(context, on, spec, &run_dir, &cache)?];
        if !context.settings.is_successor() {
            started(&all, ready);
        }
        let reload: Reload =
            Arc::new(move |_: &Hub| reload_settings(&cache).err().into_iter().collect());
        end(stack::serve(all, &signals, &reload, &context.settings)?)
    })
}

/// What a process is after [`kept`].
pub enum Kept {
    /// The keeper, with its exit code.
    Keeper(u8),
    /// A server, with its context.
    Server(Context),
}

/// Becomes the keeper of the service, which returns in the servers. The process has a single thread.
pub fn kept(context: &Context, ready: &mut Option<background::Ready>) -> Result<Kept> {
    let leave = || {
        ready
            .take()
            .into_iter()
            .for_each(background::Ready::leave_to_another)
    };
    let side = keeper::keep(leave);
    let side = side.map_err(|e| Error::Failed(format!("cannot start a server: {e}")))?;
    Ok(match side {
        Side::Keeper(code) => Kept::Keeper(code),
        Side::Server(begin) => {
            let succession = Succession::new(begin)?;
            Kept::Server(context.with(context.settings.for_successor(succession)))
        }
    })
}

/// Runs `serve` here, or in a child that detaches from the terminal once it is ready.
pub fn in_background(
    background: bool,
    serve: impl FnOnce(Option<background::Ready>) -> Result<u8>,
) -> Result<u8> {
    if !background {
        stack::set_log_place(log::place(false));
        return serve(None);
    }
    if keeper::is_executed() {
        // The first server has left the terminal.
        if !outlives_caller(2) {
            log::detach_from_stderr();
        }
        stack::set_log_place(log::place(true));
        return serve(None);
    }
    match background::split() {
        Ok(background::Side::Parent(code)) => Ok(code),
        Ok(background::Side::Child(ready)) => {
            stack::set_log_place(log::place(true));
            serve(Some(ready))
        }
        Err(e) => Err(Error::Failed(format!(
            "cannot detach from the terminal: {e}"
        ))),
    }
}

/// Opens the DEVICE of a service and starts its exports.
pub fn start(
    context: &Context,
    on: &DeviceArgs,
    spec: ServiceSpec,
    run_dir: &Path,
    cache: &Arc<ProcessCache>,
) -> Result<Service> {
    let spec = if context.settings.is_successor() {
        spec.continued(run_dir)
    } else {
        spec.complete(run_dir)?
    };
    on.with(context, |target| {
        Service::start(&spec, target, run_dir, cache)
    })
}

/// Applies the settings that can change while a service runs: the log level, and the cache. Returns
/// the settings, or the reason why they are invalid.
pub fn reload_settings(cache: &ProcessCache) -> std::result::Result<Settings, String> {
    let settings = Settings::load().and_then(|settings| {
        log::reload(settings.log_level());
        cache.reload(&settings).map(|()| settings)
    });
    settings.map_err(|error| format!("settings not reloaded: {}", error.chain()))
}

/// Prints the services and their exports. If this process runs in the background, also prints where
/// it logs, and detaches from the terminal.
pub fn announce(json: bool, all: &[Service], ready: Option<background::Ready>) {
    warn(json, all);
    let services: Vec<&Status> = all.iter().map(Service::status).collect();
    let exports = services.iter().flat_map(|service| &service.exports);
    for export in exports {
        let export = serde_json::to_value(export).unwrap_or_default();
        if let Some(effect) = status::effect_of_sync(&export) {
            let at = export["at"].as_str().unwrap_or_default();
            output::say(json, &format!("{at}: {effect}"));
        }
    }
    if ready.is_some() {
        output::say(json, &format!("log: {}", log::place(true)));
    }
    let text = if json {
        output::pretty(&match services.as_slice() {
            [one] => SERVICE.of(one),
            many => SERVICES.of(&Services {
                volumes: many.to_vec(),
            }),
        })
    } else {
        services
            .iter()
            .map(|s| {
                let places: Vec<_> = s.exports.iter().map(|e| e.at.as_str()).collect();
                format!("{}: {}", s.name, places.join("  "))
            })
            .collect::<Vec<_>>()
            .join("\n")
    };
    match ready {
        Some(ready) => ready.report_ready(&text),
        None => output::line(&text),
    }
}

/// Prints the warnings about services.
fn warn(json: bool, all: &[Service]) {
    let warnings = all.iter().filter_map(|s| s.status().warning.as_deref());
    for warning in warnings {
        output::warn(json, &format!("warning: {warning}"));
    }
}

/// Returns the exit code for the end of a service.
pub fn end(ended: Ended) -> Result<u8> {
    Ok(match ended {
        Ended::Detached => exit::OK,
        Ended::Signal(signal) => 128 + signal as u8,
    })
}
