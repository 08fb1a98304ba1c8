//! The `evfs` program: one file per command, without logic of its own.

mod background;
mod command_line;
mod commands;
mod descriptor;
mod log;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use cli::{Context, output, progress, usage};
use commands::{Command, Helper};
use stack::{Settings, exit};
use std::ffi::OsString;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: secret::ZeroingAlloc = secret::ZeroingAlloc;

/// Encrypted storage in user space: LUKS2 volumes as block devices, file systems as mounts.
#[derive(Parser)]
#[command(name = "evfs", version, propagate_version = true, after_help = examples())]
struct Cli {
    /// Print a JSON document instead of text
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    /// Omit progress and notes; warnings, questions and errors remain
    #[arg(short, long, global = true, help_heading = GLOBAL, conflicts_with = "verbose")]
    quiet: bool,
    /// Show progress: at a terminal only, always (as lines on standard error), or never
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "WHEN", value_parser = progress::WHEN, default_value = "auto")]
    progress: String,
    /// Log more to standard error: -v is --log info, -vv is --log debug
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count, conflicts_with = "log")]
    verbose: u8,
    /// Log to standard error at this level [default: the `log.level` setting]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

/// Heading of the options that every command has.
const GLOBAL: &str = "Global options";

impl Cli {
    /// The level of the log, if the command line sets one.
    fn log_level(&self) -> Option<&str> {
        match self.verbose {
            0 => self.log.as_deref(),
            1 => Some("info"),
            2 => Some("debug"),
            _ => Some("trace"),
        }
    }
}

/// The definitions of all commands.
fn definitions() -> clap::Command {
    Cli::command()
}

/// The whole command line: all commands, with aliases and groups.
fn command() -> clap::Command {
    command_line::completed(definitions())
}

/// Parses the command line; returns it with notices for the user.
fn parse(arguments: &[OsString]) -> Result<(Cli, Vec<String>), clap::Error> {
    let mut command = command();
    let mut matches = command.clone().try_get_matches_from(arguments)?;
    let notices = command_line::notices(&command, &matches, arguments);
    let cli = Cli::from_arg_matches_mut(&mut matches);
    let cli = cli.map_err(|error| error.format(&mut command))?;
    Ok((cli, notices))
}

const QUICKSTART: &str = "
  evfs quickstart                               run a guided demo on a file";

const EXAMPLES: &str = "
  evfs key generate alice                       create a key pair, protected by a passphrase
  evfs volume create disk.img --size 10G --owner alice
  evfs attach disk.img --loop --background      create a block device and print its path
  evfs status
  evfs detach disk
  evfs format disk.img && evfs mount disk.img /mnt --background      create and mount a file system
  evfs doctor                                   check the machine, the configuration and volumes

Exit codes: 0 ok, 1 failure, 2 usage, 10 no such object, 11 busy or locked, 12 wrong key,
13 key valid but role not permitted, 14 volume or header not trusted by this machine,
20 header damaged but repairable, 21 not repairable, 26 check found errors, 27 check found
warnings, 30 data lost, 129/130/131/143 stopped by HUP/INT/QUIT/TERM.";

/// Builds the examples of the commands in this build.
fn examples() -> String {
    let quickstart = if cfg!(feature = "bench") {
        QUICKSTART
    } else {
        ""
    };
    format!("Examples:{quickstart}{EXAMPLES}")
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let program = arguments.first();
    if let Some(helper) = program.and_then(|program| Helper::named(program)) {
        return helper.run(arguments, || prepare(false, None, false));
    }
    let (cli, notices) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => return usage::report(&command(), error),
    };
    if cli.quiet {
        output::be_quiet();
    }
    progress::choose(&cli.progress);
    for notice in notices {
        output::say(cli.json, &notice);
    }
    let context = match prepare(cli.json, cli.log_level(), cli.command.examines_settings()) {
        Ok(context) => context,
        Err(error) => return output::fail(cli.json, &error),
    };
    match cli.command.run(&context) {
        Ok(code) => output::end(code),
        Err(error) => output::fail(cli.json, &error),
    }
}

/// Prepares the process, and builds the context of its command. `log` is the level of the log, if
/// the command line sets one. A command that `examines` the settings reports their problems itself,
/// and needs what is usable of them.
fn prepare(json: bool, log: Option<&str>, examines: bool) -> stack::Result<Context> {
    secret::harden_process();
    #[cfg(feature = "bench")]
    stack::lun::set_advisor(bench_commands::lun_advice);
    let settings = match Settings::load() {
        Err(_) if examines => Settings::examine().settings,
        loaded => loaded?,
    };
    log::start(log, &settings);
    Ok(Context { json, settings })
}

const _: () = assert!(exit::OK == 0, "the shell takes zero for success");
