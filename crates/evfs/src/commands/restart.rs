//! `evfs restart`: another server for services in use.

use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::progress::Bar;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::control::{self, ControlRequest};
use stack::{Error, Result, exit};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs restart
  evfs restart data

The program that then serves is the one at the path of the running program, as an update has installed it. \
It takes over open files, mounts and connections; programs that use them wait, and see no error. Everything is \
made durable before.

Possible for services that were started with --survive or `survive = true`. If the new program does not serve \
within a minute, or cannot read what the running one leaves, the running one goes on, and this command fails. NBD \
connections with TLS are closed; their clients connect again. The process that watches over the server remains the \
old program until the service is detached.")]
pub struct Args {
    /// Attached volume, mounted file system or served cell: its name, its device, or the place of an export, such as
    /// the directory of a mount [default: all that were started with --survive]
    #[arg(add = names::services())]
    name: Option<PathBuf>,
}

/// Services with a new server.
#[derive(Serialize, JsonSchema)]
pub struct Restarted {
    /// The services.
    restarted: Vec<Server>,
}

/// A new server of a service.
#[derive(Serialize, JsonSchema)]
pub struct Server {
    /// Name of the service.
    name: String,
    /// Version of the program that serves now.
    version: String,
    /// Version of the program that served before.
    version_before: String,
    /// ID of the process that serves now.
    pid: u64,
}

pub const RESTARTED: Document<Restarted> = Document::new("evfs/restart/1");

/// Time for the new server to answer; a program that does not serve is replaced before.
const LIMIT: Duration = Duration::from_secs(100);
/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(50);

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let services = match &args.name {
        Some(word) => {
            let service = handle::service(context, word)?;
            vec![(service.name, service.status?)]
        }
        None => {
            let all = control::statuses(&context.settings.run_dir())?;
            let known = all
                .into_iter()
                .filter_map(|(name, status)| Some((name, status.ok()?)));
            known
                .filter(|(_, status)| predecessors(status).is_some())
                .collect()
        }
    };
    if services.is_empty() {
        let why = "no service was started with --survive; only such a service can be restarted while it \
                   is in use";
        return Err(Error::NotFound(why.into()));
    }
    let bar = Bar::new(context.json, "restarted");
    let mut content = Restarted {
        restarted: Vec::new(),
    };
    let of = services.len() as u64;
    for (done, (name, before)) in (0..).zip(services) {
        bar.at(done, of);
        content.restarted.push(restart(context, name, &before)?);
    }
    bar.end();
    output::done(context.json, &RESTARTED, &content, || {
        let lines: Vec<_> = content.restarted.iter().map(describe).collect();
        lines.join("\n")
    });
    Ok(exit::OK)
}

fn describe(server: &Server) -> String {
    let Server {
        name,
        version,
        version_before,
        pid,
    } = server;
    let before = if version == version_before {
        String::new()
    } else {
        format!("; before: {version_before}")
    };
    format!("{name}: process {pid} serves, version {version}{before}")
}

fn predecessors(status: &Value) -> Option<u64> {
    status["survival"]["predecessors"].as_u64()
}

fn restart(context: &Context, name: String, before: &Value) -> Result<Server> {
    let run_dir = context.settings.run_dir();
    control::send_request(&run_dir, &name, &ControlRequest::Restart)?;
    let began = Instant::now();
    loop {
        // No server answers while one takes over.
        let status = control::send_request(&run_dir, &name, &ControlRequest::Status);
        let status = status.unwrap_or_default();
        let text = |status: &Value, key: &str| status[key].as_str().unwrap_or_default().to_owned();
        if predecessors(&status) > predecessors(before) {
            if status["survival"]["restart_refused"] == true {
                return Err(Error::Failed(format!(
                    "{name}: the new program did not serve, so the one before it goes on; EVFS-0819 in \
                     the log of the service says why"
                )));
            }
            return Ok(Server {
                version: text(&status, "version"),
                version_before: text(before, "version"),
                pid: status["pid"].as_u64().unwrap_or_default(),
                name,
            });
        }
        if began.elapsed() > LIMIT {
            return Err(Error::Failed(format!(
                "{name}: no new server has answered for {} seconds; see the log of the service",
                LIMIT.as_secs()
            )));
        }
        std::thread::sleep(PAUSE);
    }
}
