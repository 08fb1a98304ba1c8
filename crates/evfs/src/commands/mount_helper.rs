//! `mount.evfs` and `umount.evfs`: the program as a helper of mount(8) and umount(8), which start
//! it under these names or, for the type `fuse.evfs`, as `mount.fuse.evfs` and `umount.fuse.evfs`;
//! mounts that the kernel syncs have the type `fuseblk.evfs`.
//!
//! The helpers follow the rules of mount(8): options in one list after `-o`, and its exit codes.

use super::confirm::Yes;
use super::device::DeviceArgs;
use super::unlock::UnlockArgs;
use super::{detach, service};
use crate::background;
use clap::{CommandFactory, Parser};
use cli::{Context, output, usage};
use stack::handle::mounted_at;
use stack::{Atime, Error, MountSpec, Result, ServiceSpec, exit, filesystem};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit codes of mount(8), section EXIT STATUS.
mod mount_exit {
    pub const OK: u8 = 0;
    /// Incorrect invocation.
    pub const USAGE: u8 = 1;
    /// The system has no resources for it.
    pub const SYSTEM: u8 = 2;
    /// Interrupted by the user.
    pub const INTERRUPTED: u8 = 8;
    /// The file system was not mounted, or not unmounted.
    pub const FAILURE: u8 = 32;
}

/// Types of file systems for which mount(8) starts this program.
const TYPES: [&str; 3] = ["evfs", "fuse.evfs", "fuseblk.evfs"];

/// Option of mount(8) that the helpers do not support.
const NO_NAMESPACE: &str =
    "-N is not supported; run the command in the other namespace with nsenter(1)";

/// A helper, by the name under which the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    Mount,
    Umount,
}

impl Helper {
    /// Returns the helper that a path of the program names.
    pub fn named(program: &OsStr) -> Option<Helper> {
        match Path::new(program).file_name()?.to_str()? {
            "mount.evfs" | "mount.fuse.evfs" | "mount.fuseblk.evfs" => Some(Helper::Mount),
            "umount.evfs" | "umount.fuse.evfs" | "umount.fuseblk.evfs" => Some(Helper::Umount),
            _ => None,
        }
    }

    /// Runs the helper with the arguments of the process, of which the first is its name.
    /// `context` prepares the process.
    pub fn run(
        self,
        arguments: Vec<OsString>,
        context: impl FnOnce() -> Result<Context>,
    ) -> ExitCode {
        let (name, definition) = match self {
            Helper::Mount => ("mount.evfs", MountArgs::command()),
            Helper::Umount => ("umount.evfs", UmountArgs::command()),
        };
        output::name_program(name);
        let wrong = |error| translated(usage::print(&definition, error));
        let code = match self {
            Helper::Mount => MountArgs::try_parse_from(arguments)
                .map_or_else(wrong, |args| mount(&args, context)),
            Helper::Umount => UmountArgs::try_parse_from(arguments).map_or_else(wrong, |args| {
                umount(&args, context).unwrap_or_else(|error| failed(&error))
            }),
        };
        ExitCode::from(code)
    }
}

/// Mount a file system of EVFS, as a helper of mount(8)
#[derive(Parser)]
#[command(
    name = "mount.evfs",
    version,
    after_help = "\
Options of -o:
  ro, rw                   refuse or permit changes
  suid, dev                honor set-user-ID bits and device nodes; nosuid and nodev are the default
  noexec                   refuse to run programs
  relatime, noatime, strictatime
                           when reads update the access time (default: relatime)
  nosnapshots              do not show the snapshots in .snapshots; snapshots is the default
  allow_other              admit other users (the default for root)
  key=NAME                 open with this key pair
  keyfile=PATH             open with the content of this file
  fileset=F                fileset or snapshot to mount
  name=N                   name for `evfs status`, and of the credential evfs.N
  threads=N                maximum number of concurrent requests
  exclusive                let the kernel hold back written data
  survive                  continue the mount if its process is killed or crashes
  sync_timeout=SECONDS     longest time that one sync(2) waits for the disk; 0: it does nothing
  discard                  pass discards to the disk
Options for fstab(5), systemd and mount(8) itself, such as nofail, _netdev and x-*, are ignored.

Examples:
  mount -t evfs /srv/data.img /srv/data -o keyfile=/etc/evfs/data.key
  /srv/data.img  /srv/data  evfs  nofail,keyfile=/etc/evfs/data.key  0  0      a line of fstab"
)]
struct MountArgs {
    /// File, disk or LUN, as for `evfs mount`
    device: PathBuf,
    /// Directory to mount at
    dir: PathBuf,
    /// Options, separated by commas; may be repeated
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Check the arguments, and mount nothing
    #[arg(short)]
    fake: bool,
    /// Ignored: the kernel keeps the list of mounts
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Print the mount point
    #[arg(short)]
    verbose: bool,
    /// Type of the file system: evfs, fuse.evfs or fuseblk.evfs
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Not supported
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// Unmount a file system of EVFS once all data is on stable storage, as a helper of umount(8)
#[derive(Parser)]
#[command(name = "umount.evfs", version)]
struct UmountArgs {
    /// Directory at which the file system is mounted
    dir: PathBuf,
    /// Abort the mount, as umount(8) does
    #[arg(short)]
    force: bool,
    /// Detach the mount, as umount(8) does: its users continue until they close their files
    #[arg(short)]
    lazy: bool,
    /// Ignored: the kernel keeps the list of mounts
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Ignored: a mount that is in use stays as it is
    #[arg(short = 'r')]
    _read_only: bool,
    /// Print the mount point
    #[arg(short)]
    verbose: bool,
    /// Type of the file system: evfs, fuse.evfs or fuseblk.evfs
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Not supported
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// Prints an error, and returns the exit code for it.
fn failed(error: &Error) -> u8 {
    let _ = output::fail(false, error);
    translated(error.exit_code())
}

/// Translates an exit code of `evfs`.
fn translated(code: u8) -> u8 {
    match code {
        exit::OK => mount_exit::OK,
        exit::USAGE => mount_exit::USAGE,
        exit::INTERRUPTED => mount_exit::INTERRUPTED,
        _ => mount_exit::FAILURE,
    }
}

/// Mounts in the background, and returns once the file system is mounted.
fn mount(args: &MountArgs, context: impl FnOnce() -> Result<Context>) -> u8 {
    let mounted = start(args, context);
    match (background::is_child(), mounted) {
        (false, Ok(code)) => translated(code),
        // Only the step to the background has errors of this kind here.
        (false, Err(error @ Error::Failed(_))) => {
            let _ = output::fail(false, &error);
            mount_exit::SYSTEM
        }
        (false, Err(error)) => failed(&error),
        // The process in the background: its caller translates the code.
        (true, Ok(code)) => code,
        (true, Err(error)) => {
            let _ = output::fail(false, &error);
            error.exit_code()
        }
    }
}

/// The exit code of `evfs mount`, in both processes.
fn start(args: &MountArgs, context: impl FnOnce() -> Result<Context>) -> Result<u8> {
    check_common(args.kind.as_deref(), args.namespace.as_deref())?;
    let options = Options::parse(&args.options, args.sloppy)?;
    let spec = options.spec(&args.device, &args.dir);
    if args.fake {
        spec.check()?;
        return Ok(exit::OK);
    }
    let context = context()?;
    let unlock = UnlockArgs {
        key: options.key,
        key_file: options.key_file,
        ..UnlockArgs::default()
    };
    let on = DeviceArgs::of_service(&args.device, unlock, &spec.name);
    let spec = ServiceSpec::Mount(spec);
    if args.verbose {
        service::run(&context, &on, spec, true)
    } else {
        service::run_quietly(&context, &on, spec)
    }
}

fn umount(args: &UmountArgs, context: impl FnOnce() -> Result<Context>) -> Result<u8> {
    check_common(args.kind.as_deref(), args.namespace.as_deref())?;
    let context = context()?;
    let run_dir = context.settings.run_dir();
    if args.force || args.lazy {
        return umount_by_kernel(args);
    }
    if let Some(name) = mounted_at(&args.dir, &run_dir) {
        detach::detach(&context, &name, false, Yes { yes: false })?;
    } else if !filesystem::clear_dead(&args.dir)? {
        // Of another user, or of a service with another `run.dir`.
        return umount_by_kernel(args);
    }
    if args.verbose {
        output::line(&format!("{} unmounted", args.dir.display()));
    }
    Ok(mount_exit::OK)
}

/// Unmounts without the server, which then writes out all data and ends. Returns the exit code of
/// umount(8), which would also unmount another file system, such as the trigger of an automount.
fn umount_by_kernel(args: &UmountArgs) -> Result<u8> {
    if !filesystem::is_mounted(&args.dir) {
        return Err(Error::NotFound(format!(
            "cannot unmount {}: no file system of EVFS is mounted there",
            args.dir.display()
        )));
    }
    let mut umount = Command::new("umount");
    umount.arg("--internal-only");
    umount.args(args.force.then_some("--force"));
    umount.args(args.lazy.then_some("--lazy"));
    umount.args(args.verbose.then_some("--verbose"));
    let status = umount.arg("--").arg(&args.dir).status();
    let status = status.map_err(|e| Error::io("cannot run", Path::new("umount"), e))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(mount_exit::SYSTEM))
}

fn check_common(kind: Option<&str>, namespace: Option<&str>) -> Result<()> {
    if namespace.is_some() {
        return Err(Error::Usage(NO_NAMESPACE.into()));
    }
    match kind {
        Some(kind) if !TYPES.contains(&kind) => Err(Error::Usage(format!(
            "type `{kind}` is not one of {}",
            TYPES.join(", ")
        ))),
        _ => Ok(()),
    }
}

/// Options of a mount, from the list after `-o`. Of options that contradict each other, the last
/// one counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    read_only: bool,
    suid: bool,
    dev: bool,
    noexec: bool,
    atime: Atime,
    no_snapshots: bool,
    allow_other: bool,
    exclusive: bool,
    survive: bool,
    discard: bool,
    key: Option<String>,
    key_file: Option<PathBuf>,
    fileset: Option<String>,
    name: Option<String>,
    threads: Option<u16>,
    sync_timeout: Option<u16>,
}

/// Options without a value, and their effects.
const FLAGS: &[(&str, SetFlag)] = &[
    ("ro", |o| o.read_only = true),
    ("rw", |o| o.read_only = false),
    ("suid", |o| o.suid = true),
    ("nosuid", |o| o.suid = false),
    ("dev", |o| o.dev = true),
    ("nodev", |o| o.dev = false),
    ("exec", |o| o.noexec = false),
    ("noexec", |o| o.noexec = true),
    ("noatime", |o| o.atime = Atime::None),
    ("relatime", |o| o.atime = Atime::Relatime),
    ("strictatime", |o| o.atime = Atime::Strict),
    ("snapshots", |o| o.no_snapshots = false),
    ("nosnapshots", |o| o.no_snapshots = true),
    ("allow_other", |o| o.allow_other = true),
    ("exclusive", |o| o.exclusive = true),
    ("survive", |o| o.survive = true),
    ("discard", |o| o.discard = true),
    ("nodiscard", |o| o.discard = false),
];

/// Options with a value, and their effects.
const VALUES: &[(&str, SetValue)] = &[
    ("key", |o, value| set(&mut o.key, value.to_owned())),
    ("keyfile", |o, value| match value {
        // It would mean standard input.
        "-" => Err(Error::Usage(
            "option `keyfile` needs the path of a file".into(),
        )),
        path => set(&mut o.key_file, path.into()),
    }),
    ("fileset", |o, value| set(&mut o.fileset, value.to_owned())),
    ("name", |o, value| set(&mut o.name, value.to_owned())),
    ("threads", |o, value| {
        let number = value.parse::<u16>().ok().filter(|n| (1..=256).contains(n));
        let wrong = || format!("option `threads`: `{value}` is not from 1 to 256");
        set(&mut o.threads, number.ok_or_else(|| Error::Usage(wrong()))?)
    }),
    ("sync_timeout", |o, value| {
        let seconds = value.parse::<u16>().ok().filter(|n| *n <= 3600);
        let wrong = || format!("option `sync_timeout`: `{value}` is not from 0 to 3600 seconds");
        set(
            &mut o.sync_timeout,
            seconds.ok_or_else(|| Error::Usage(wrong()))?,
        )
    }),
];

type SetFlag = fn(&mut Options);
type SetValue = fn(&mut Options, &str) -> Result<()>;

fn set<T>(option: &mut Option<T>, value: T) -> Result<()> {
    *option = Some(value);
    Ok(())
}

/// Options for fstab(5) and mount(8) itself.
const IGNORED: [&str; 13] = [
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "owner", "group",
    "comment", "helper", "uhelper",
];
/// Prefixes of options for other programs, such as systemd.
const IGNORED_PREFIXES: [&str; 2] = ["x-", "X-"];

impl Options {
    fn parse(lists: &[String], sloppy: bool) -> Result<Options> {
        let mut options = Options::default();
        let all = lists.iter().flat_map(|list| list.split(','));
        for option in all.filter(|option| !option.is_empty()) {
            options.add(option, sloppy)?;
        }
        if options.key.is_some() && options.key_file.is_some() {
            let why = "options `key` and `keyfile` are mutually exclusive; omit one";
            return Err(Error::Usage(why.into()));
        }
        Ok(options)
    }

    fn add(&mut self, option: &str, sloppy: bool) -> Result<()> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let flag = FLAGS.iter().find(|(known, _)| *known == name);
        let valued = VALUES.iter().find(|(known, _)| *known == name);
        let is_ignored = sloppy
            || IGNORED.contains(&name)
            || IGNORED_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(*prefix));
        let wrong = match (flag, valued, value) {
            (Some((_, set)), _, None) => {
                set(self);
                return Ok(());
            }
            (_, Some((_, set)), Some(value)) if !value.is_empty() => return set(self, value),
            (Some(_), ..) => format!("option `{name}` takes no value; write `{name}` alone"),
            (_, Some(_), _) => format!("option `{name}` needs a value: {name}=..."),
            _ if is_ignored => return Ok(()),
            _ => format!("unknown option `{name}`; `mount.evfs --help` lists the options"),
        };
        Err(Error::Usage(wrong))
    }

    /// Builds the mount of `device` at `dir`.
    fn spec(&self, device: &Path, dir: &Path) -> MountSpec {
        let mut spec = MountSpec::new(device, dir);
        // mount(8) recognizes its mounts by the source.
        spec.source = device.to_str().map(str::to_owned);
        if let Some(name) = &self.name {
            spec.name = name.clone();
        }
        if let Some(fileset) = &self.fileset {
            spec.fileset = fileset.clone();
        }
        spec.read_only = self.read_only;
        spec.threads = self.threads.map(usize::from);
        spec.allow_other = self.allow_other.then_some(true);
        spec.exclusive = self.exclusive;
        spec.survives = self.survive;
        (spec.suid, spec.dev, spec.exec) = (self.suid, self.dev, !self.noexec);
        spec.atime = self.atime;
        if let Some(seconds) = self.sync_timeout {
            spec.sync_timeout = stack::sync_timeout(seconds);
        }
        spec.snapshots = !self.no_snapshots;
        spec.allow_discards = self.discard;
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn parse(list: &str) -> std::result::Result<Options, String> {
        Options::parse(&[list.to_owned()], false).map_err(|error| error.to_string())
    }

    #[test]
    fn each_option_has_its_effect() {
        let table: &[(&str, SetFlag)] = &[
            ("", |_| ()),
            ("rw", |_| ()),
            ("ro", |o| o.read_only = true),
            ("ro,rw", |_| ()),
            ("suid", |o| o.suid = true),
            ("suid,nosuid", |_| ()),
            ("dev", |o| o.dev = true),
            ("dev,nodev", |_| ()),
            ("noexec", |o| o.noexec = true),
            ("noexec,exec", |_| ()),
            ("noatime", |o| o.atime = Atime::None),
            ("noatime,relatime", |_| ()),
            ("noatime,strictatime", |o| o.atime = Atime::Strict),
            ("nosnapshots", |o| o.no_snapshots = true),
            ("nosnapshots,snapshots", |_| ()),
            ("allow_other", |o| o.allow_other = true),
            ("exclusive", |o| o.exclusive = true),
            ("survive", |o| o.survive = true),
            ("discard", |o| o.discard = true),
            ("discard,nodiscard", |_| ()),
            ("key=alice", |o| o.key = Some("alice".into())),
            ("keyfile=/k=1", |o| o.key_file = Some("/k=1".into())),
            ("fileset=monday", |o| o.fileset = Some("monday".into())),
            ("name=home", |o| o.name = Some("home".into())),
            ("threads=16", |o| o.threads = Some(16)),
        ];
        for (list, effect) in table {
            let mut options = Options::default();
            effect(&mut options);
            assert_eq!(parse(list), Ok(options), "{list}");
        }
    }

    /// As mount(8) and systemd pass a line of fstab(5).
    #[test]
    fn options_of_other_programs_are_ignored() {
        let list = "rw,noexec,nosuid,nodev,nofail,_netdev,user,users,nouser,noauto,auto,defaults,\
                    user=alice,x-systemd.automount,x-systemd.mount-timeout=5min,X-any,comment=a,\
                    uhelper=evfs,,";
        let noexec = Options {
            noexec: true,
            ..Options::default()
        };
        assert_eq!(parse(list), Ok(noexec));
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (list, name) in [
            ("ro,remount", "`remount`"),
            ("xattr", "`xattr`"),
            ("lazytime", "`lazytime`"),
            ("password=secret", "`password`"),
            ("ro=1", "`ro`"),
            ("key", "`key`"),
            ("key=", "`key`"),
            ("keyfile=-", "`keyfile`"),
            ("threads=0", "`threads`"),
            ("threads=257", "`threads`"),
            ("sync_timeout=-1", "`sync_timeout`"),
            ("sync_timeout=3601", "`sync_timeout`"),
            ("key=a,keyfile=/b", "`keyfile`"),
        ] {
            let error = parse(list).expect_err(list);
            assert!(error.contains(name), "{list}: {error}");
        }
        let sloppy = Options::parse(&["ro".into(), "strange=1".into()], true);
        let read_only = Options {
            read_only: true,
            ..Options::default()
        };
        assert_eq!(sloppy.ok(), Some(read_only));
    }

    #[test]
    fn the_name_of_the_program_selects_the_helper() {
        for (program, helper) in [
            ("/sbin/mount.evfs", Some(Helper::Mount)),
            ("mount.fuse.evfs", Some(Helper::Mount)),
            ("mount.fuseblk.evfs", Some(Helper::Mount)),
            ("/usr/sbin/umount.evfs", Some(Helper::Umount)),
            ("/sbin/umount.fuse.evfs", Some(Helper::Umount)),
            ("umount.fuseblk.evfs", Some(Helper::Umount)),
            ("/usr/bin/evfs", None),
            ("mount.evfs.bak", None),
            ("", None),
        ] {
            assert_eq!(Helper::named(OsStr::new(program)), helper, "{program}");
        }
    }

    #[test]
    fn the_arguments_are_those_of_mount() {
        let parsed = |line: &str| MountArgs::try_parse_from(line.split(' '));
        let args = parsed("mount.evfs /d /m -s -f -n -v -o ro,nofail -o name=x -t fuse.evfs");
        let args = args.unwrap_or_else(|error| panic!("{error}"));
        assert!(args.sloppy && args.fake && args.verbose);
        let options = Options::parse(&args.options, false).unwrap();
        let spec = options.spec(&args.device, &args.dir);
        assert_eq!((spec.name.as_str(), spec.read_only), ("x", true));
        assert_eq!(spec.source.as_deref(), Some("/d"));
        assert!(parsed("mount.evfs /d /m -sfnv").is_ok());
        for wrong in [
            "mount.evfs",
            "mount.evfs /d",
            "mount.evfs /d /m /n",
            "mount.evfs /d /m -x",
        ] {
            let error = parsed(wrong).err().expect(wrong);
            assert_ne!(error.kind(), ErrorKind::DisplayHelp, "{wrong}");
        }
        let args = UmountArgs::try_parse_from(["umount.fuse.evfs", "/m", "-n", "-l", "-r"]);
        assert!(args.is_ok_and(|args| args.lazy && !args.force));
    }

    #[test]
    fn codes_are_those_of_mount() {
        for (code, translation) in [
            (exit::OK, 0),
            (exit::USAGE, 1),
            (exit::INTERRUPTED, 8),
            (exit::WRONG_KEY, 32),
            (exit::BUSY, 32),
            (exit::FAILURE, 32),
            (exit::TERMINATED, 32),
        ] {
            assert_eq!(translated(code), translation, "{code}");
        }
    }
}
