//! `evfs-pathsim`: the proxy as a command-line program.

use clap::{Parser, Subcommand};
use pathsim::{Address, Pathsim};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate faults on the path between a client and a server.
///
/// Commands: pass, rate=BYTES, delay=MS, jitter=MS, hole, hold, rst, refuse, half-close=up|down,
/// corrupt=once|BYTES, accept-delay=MS, record, replay, stats. Faults accumulate until `pass`.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Forward connections until SIGTERM.
    Run {
        /// Address to listen on: HOST:PORT (port 0 selects a free one), or the path of a Unix
        /// socket.
        #[arg(long)]
        listen: Address,
        /// Address of the server.
        #[arg(long)]
        upstream: Address,
        /// Accept commands on this Unix socket.
        #[arg(long)]
        control: Option<PathBuf>,
        /// Commands to execute at startup.
        commands: Vec<String>,
    },
    /// Send a command to a running proxy.
    Ctl {
        /// Control socket of the proxy.
        control: PathBuf,
        /// Command to send.
        command: String,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::Run {
            listen,
            upstream,
            control,
            commands,
        } => run(&listen, upstream, control.as_deref(), &commands),
        What::Ctl { control, command } => ctl(&control, &command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("evfs-pathsim: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    listen: &Address,
    upstream: Address,
    control: Option<&Path>,
    commands: &[String],
) -> Result<(), String> {
    let sim = Pathsim::start(listen, upstream).map_err(|e| format!("cannot listen: {e}"))?;
    for command in commands {
        sim.run(command)?;
    }
    match sim.address() {
        Address::Tcp(at) => println!("{at}"),
        Address::Unix(path) => println!("{}", path.display()),
    }
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])
    .map_err(|e| e.to_string())?;
    let sim = std::sync::Arc::new(sim);
    if let Some(path) = control {
        let (sim, path) = (std::sync::Arc::clone(&sim), path.to_owned());
        std::thread::spawn(move || {
            if let Err(e) = sim.control(&path) {
                eprintln!(
                    "evfs-pathsim: cannot create the control socket {}: {e}",
                    path.display()
                );
            }
        });
    }
    signals.forever().next();
    if let Some(path) = control {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn ctl(control: &Path, command: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", control.display());
    let mut stream = UnixStream::connect(control).map_err(failed)?;
    writeln!(stream, "{command}").map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .map_err(failed)?;
    let answer = answer.trim();
    match answer.strip_prefix("error: ") {
        Some(why) => Err(why.to_owned()),
        None => {
            println!("{answer}");
            Ok(())
        }
    }
}
