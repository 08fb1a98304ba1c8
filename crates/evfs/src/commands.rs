//! The commands: one file each, with its options and its help.

mod attach;
mod cache;
mod cell;
mod cell_shown;
mod cluster;
mod cluster_units;
mod completions;
mod config;
mod confirm;
mod detach;
mod device;
mod doctor;
mod doctor_cluster;
mod dry_run;
mod explain;
mod files;
mod fileset;
mod fileset_diff;
mod fileset_quota;
mod fileset_transfer;
mod grow;
mod handle;
mod key;
mod lun;
mod man;
mod mount_helper;
mod names;
mod path;
mod restart;
mod schema;
mod scrub;
mod serve;
mod service;
mod shrink;
mod stats;
mod status;
mod sync;
mod top;
mod unlock;
mod up;
mod upgrade;
mod volume;
mod volume_backups;
mod volume_key;
mod volume_trust;
mod web;

#[cfg(feature = "bench")]
use bench_commands::{bench, machine, plan, quickstart};
use clap::Subcommand;
use cli::Context;
pub use mount_helper::Helper;
use stack::Result;

#[derive(Subcommand)]
pub enum Command {
    /// Run a guided end-to-end demo in a temporary directory
    #[cfg(feature = "bench")]
    Quickstart(quickstart::Args),
    /// Manage user key pairs
    #[command(subcommand)]
    Key(key::Command),
    /// Create and manage encrypted volumes
    #[command(subcommand)]
    Volume(volume::Command),
    /// Open a volume and export it as a block device
    Attach(attach::Args),
    /// Flush and close an attached volume, mounted file system or served cell
    Detach(detach::Args),
    /// Create a file system on a volume or a disk
    Format(files::FormatArgs),
    /// Mount a file system at a directory
    Mount(files::MountArgs),
    /// Unmount a file system after writing all data to stable storage
    Unmount(files::UnmountArgs),
    /// Serve a file system to AFS clients as a cell
    ///
    /// Each fileset of DEVICE is a volume that OpenAFS and Linux (kafs) clients read, write and
    /// cache. Run `evfs cell init` first: it makes DEVICE a cell and prints the configuration for
    /// clients. After a crash or a kill, run this command again. No repair is needed, and all data
    /// that was acknowledged to clients as stored is preserved.
    Serve(serve::Args),
    /// Create a cell, show its status, set its access lists and manage its volumes
    ///
    /// A cell is a file system that `evfs serve` exports to AFS clients. Clients identify the cell
    /// by its name; each of its filesets is a volume, and mount points join the volumes to one
    /// tree. The cell stays in service while it is managed, and clients are notified of changes.
    #[command(subcommand)]
    Cell(cell::Command),
    /// Check a file system, and optionally repair it
    Fsck(files::FsckArgs),
    /// Read all file data and compare it with its checksums, also while it is in use
    Scrub(scrub::Args),
    /// Use the new size of a device, for its volume and its file system, also while in use
    Grow(grow::Args),
    /// Make a file system that is not in use smaller, with its volume and its image file
    Shrink(shrink::Args),
    /// Give an existing file system checksums of file data
    Upgrade(upgrade::Args),
    /// Defragment files by rewriting them into fewer extents
    Defrag(files::DefragArgs),
    /// Create, limit, snapshot and remove the filesets of a file system
    #[command(subcommand)]
    Fileset(fileset::Command),
    /// Show the space usage of a file system
    Df(files::DfArgs),
    /// Show attached volumes, mounted file systems and served cells, and their health
    Status(status::Args),
    /// Make everything durable that mounts, volumes and cells have acknowledged
    Sync(sync::Args),
    /// Let an updated program take over services that are in use
    Restart(restart::Args),
    /// Show the I/O counters of the device under an attached volume, file system or cell
    Stats(stats::Args),
    /// Watch volumes, mounts, paths, caches, files and clients: rates, latencies, hit ratios
    Top(top::Args),
    /// Print the address of the web page that shows all services
    Web(web::Args),
    /// Explain a code of the log: what happened, why, and what to do
    Explain(explain::Args),
    /// Show, configure, flush and empty the file cache
    #[command(subcommand)]
    Cache(cache::Command),
    /// Discover LUNs, show them and set their attributes
    #[command(subcommand)]
    Lun(lun::Command),
    /// Add, remove, enable and disable the paths of a LUN
    #[command(subcommand)]
    Path(path::Command),
    /// Attach, mount and serve everything in a configuration file
    Up(up::UpArgs),
    /// Detach everything that `up` attached
    Down(up::DownArgs),
    /// Show and move the units of a cluster, of which one machine at a time owns each
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Show the settings in effect
    #[command(subcommand)]
    Config(config::Command),
    /// Print the script that completes commands, options and names in a shell
    Completions(completions::Args),
    /// List the JSON documents that commands print with --json, and print their schemas
    Schema(schema::Args),
    /// Print a manual page, or write all of them
    #[command(hide = true)]
    Man(man::Args),
    /// Print the candidates for the last word of a command line
    #[command(name = "__complete", hide = true)]
    Complete(completions::WordsArgs),
    /// Check this machine, the configuration and volumes, with a remedy for each problem
    ///
    /// Checks the machine (kernel, FUSE, limits, cipher, random numbers, clock, swap, memory), the
    /// configuration (settings, modes of directories and secrets, tables of `evfs up`), and for each
    /// volume its header, keys, header backups, paths, free space and running service. It changes
    /// nothing and needs no key. A check that this user cannot do is listed as not done.
    Doctor(doctor::Args),
    /// Measure the cost of a layer, a setting or a competing system, in pairs of runs
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(bench::Command),
    /// The former name of `bench machine`
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Benchmark(machine::Args),
    /// Estimate the cost of encrypting a device, without writing to it
    #[cfg(feature = "bench")]
    Plan(plan::Args),
}

impl Command {
    /// Reports whether the command itself reports problems of the settings.
    pub fn examines_settings(&self) -> bool {
        matches!(self, Command::Doctor(_))
    }

    /// Runs the command and returns the exit code of the program.
    pub fn run(self, context: &Context) -> Result<u8> {
        match self {
            #[cfg(feature = "bench")]
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
            Command::Scrub(args) => scrub::run(context, &args),
            Command::Grow(args) => grow::run(context, &args),
            Command::Shrink(args) => shrink::run(context, &args),
            Command::Upgrade(args) => upgrade::run(context, &args),
            Command::Defrag(args) => files::defrag(context, &args),
            Command::Fileset(command) => fileset::run(context, command),
            Command::Df(args) => files::df(context, &args),
            Command::Status(args) => status::run(context, &args),
            Command::Sync(args) => sync::run(context, &args),
            Command::Restart(args) => restart::run(context, &args),
            Command::Stats(args) => stats::run(context, args),
            Command::Top(args) => top::run(context, &args),
            Command::Web(args) => web::run(context, &args),
            Command::Explain(args) => explain::run(context, &args),
            Command::Cache(command) => cache::run(context, command),
            Command::Lun(command) => lun::run(context, command),
            Command::Path(command) => path::run(context, command),
            Command::Up(args) => up::up(context, args),
            Command::Down(args) => up::down(context, &args),
            Command::Cluster(command) => cluster::run(context, command),
            Command::Config(command) => config::run(context, command),
            Command::Completions(args) => completions::run(context, &args),
            Command::Schema(args) => schema::run(context, &args),
            Command::Man(args) => man::run(context, &args),
            Command::Complete(args) => completions::complete(args),
            Command::Doctor(args) => doctor::run(context, &args),
            #[cfg(feature = "bench")]
            Command::Bench(command) => bench::run(context, command),
            #[cfg(feature = "bench")]
            Command::Benchmark(args) => machine::run(context, args),
            #[cfg(feature = "bench")]
            Command::Plan(args) => plan::run(context, &args),
        }
    }
}
