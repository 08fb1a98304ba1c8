//! The commands: one file each, with its options and its help.

mod attach;
mod benchmark;
mod cache;
mod cell;
mod cell_shown;
mod config;
mod confirm;
mod detach;
mod files;
mod fileset;
mod key;
mod lab;
mod lun;
mod path;
mod plan;
mod quickstart;
mod serve;
mod stats;
mod status;
mod unlock;
mod up;
mod volume;
mod volume_key;
mod volume_trust;

use clap::Subcommand;
use keyring::Keyring;
use stack::{Result, Settings};

/// Context of every command.
#[derive(Clone)]
pub struct Context {
    /// Print one JSON document instead of text.
    pub json: bool,
    /// Settings in effect.
    pub settings: Settings,
}

impl Context {
    /// Opens the user's key pairs.
    pub fn keyring(&self) -> Keyring {
        Keyring::open(self.settings.keys_dir())
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Show all of it at work: key pair, volume, attach, a real tree in and out, and the cost
    Quickstart(quickstart::Args),
    /// Manage user key pairs
    #[command(subcommand)]
    Key(key::Command),
    /// Make and manage encrypted volumes
    #[command(subcommand)]
    Volume(volume::Command),
    /// Open a volume and give it out as a block device
    Attach(attach::Args),
    /// Flush and close an attached volume, a mounted file system or a served cell
    Detach(detach::Args),
    /// Make a file system on a volume or a disk
    Format(files::FormatArgs),
    /// Mount a file system on a folder
    Mount(files::MountArgs),
    /// Unmount a file system, with everything durable
    Unmount(files::UnmountArgs),
    /// Serve a file system to AFS clients, as a cell
    ///
    /// Each fileset of DEVICE is a volume, which the clients of OpenAFS and of Linux (kafs) read, write
    /// and cache. `evfs cell init` makes DEVICE a cell first, and says what clients have to be told.
    /// After a crash or a kill this command is all that is needed: what a client was told is stored is
    /// there.
    Serve(serve::Args),
    /// Make a cell, look at it, say who may do what, and manage its volumes
    ///
    /// A cell is a file system that `evfs serve` gives to AFS clients. Its name is what clients know it
    /// by; each of its filesets is a volume; mount points join the volumes to one tree. It goes on being
    /// served while it is managed, and clients are told of what changes.
    #[command(subcommand)]
    Cell(cell::Command),
    /// Check a file system, and repair it
    Fsck(files::FsckArgs),
    /// Rewrite files of many extents into few
    Defrag(files::DefragArgs),
    /// Make, limit, snapshot and remove the filesets of a file system
    #[command(subcommand)]
    Fileset(fileset::Command),
    /// Show how full a file system is
    Df(files::DfArgs),
    /// List attached volumes, mounted file systems and served cells
    Status,
    /// Show the counters of the device below an attached volume, a mounted file system or a served cell
    Stats(stats::Args),
    /// Look at the file cache, change its settings, empty it
    #[command(subcommand)]
    Cache(cache::Command),
    /// Find LUNs, show them, and set their attributes
    #[command(subcommand)]
    Lun(lun::Command),
    /// Add, remove, enable and disable the paths of a LUN
    #[command(subcommand)]
    Path(path::Command),
    /// Attach, mount and serve all that a configuration file names
    Up(up::UpArgs),
    /// Detach everything that `up` attached
    Down(up::DownArgs),
    /// Show the settings in force
    #[command(subcommand)]
    Config(config::Command),
    /// Measure ciphers, key derivation and memory on this machine
    Benchmark(benchmark::Args),
    /// Measure what a layer, a setting or a rival costs, in pairs of runs
    #[command(subcommand)]
    Lab(lab::Command),
    /// Say what encrypting a device would cost, without touching what is on it
    Plan(plan::Args),
}

impl Command {
    /// Runs the command and returns the exit code of the program.
    pub fn run(self, context: &Context) -> Result<u8> {
        match self {
            Command::Quickstart(args) => quickstart::run(context, args),
            Command::Key(command) => key::run(context, command),
            Command::Volume(command) => volume::run(context, command),
            Command::Attach(args) => attach::run(context, args),
            Command::Detach(args) => detach::run(context, args),
            Command::Format(args) => files::format(context, &args),
            Command::Mount(args) => files::mount(context, args),
            Command::Unmount(args) => files::unmount(context, &args),
            Command::Serve(args) => serve::run(context, args),
            Command::Cell(command) => cell::run(context, command),
            Command::Fsck(args) => files::fsck(context, &args),
            Command::Defrag(args) => files::defrag(context, &args),
            Command::Fileset(command) => fileset::run(context, command),
            Command::Df(args) => files::df(context, &args),
            Command::Status => status::run(context),
            Command::Stats(args) => stats::run(context, args),
            Command::Cache(command) => cache::run(context, command),
            Command::Lun(command) => lun::run(context, command),
            Command::Path(command) => path::run(context, command),
            Command::Up(args) => up::up(context, args),
            Command::Down(args) => up::down(context, &args),
            Command::Config(command) => config::run(context, command),
            Command::Benchmark(args) => benchmark::run(context, args),
            Command::Lab(command) => lab::run(context, command),
            Command::Plan(args) => plan::run(context, &args),
        }
    }
}
