//! Harness of the end-to-end and interoperability tests of the `evfs` program.
//!
//! The tests start the program as a user would and observe it from outside, together with real
//! peers. A missing peer fails the test, and so does missing root for a test that needs it.

pub mod afs;
pub mod browser;
pub mod cell;
pub mod cluster;
pub mod files;
pub mod guest;
pub mod kept;
pub mod lua;
pub mod mounts;
pub mod packages;
pub mod recorder;
pub mod schemas;
pub mod sparse;
pub mod targets;
pub mod terminal;
pub mod web;
pub mod writer;

use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
pub use test_support::{installed, needs_root};

/// The program that [`Sandbox::install_program`] has installed.
const OWN_PROGRAM: &str = "own-evfs";

/// The private directory of one test: key pairs, sockets, backups, images. On drop everything still
/// attached is detached by force.
pub struct Sandbox {
    dir: tempfile::TempDir,
}

impl Default for Sandbox {
    fn default() -> Sandbox {
        Sandbox::new()
    }
}

impl Sandbox {
    /// Creates a sandbox in the directory for temporary files.
    pub fn new() -> Sandbox {
        let sandbox = Sandbox {
            dir: tempfile::Builder::new()
                .prefix("evfs-")
                .tempdir()
                .expect("a temporary folder"),
        };
        std::fs::create_dir(sandbox.path("run")).expect("a folder for sockets");
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(sandbox.path("run"), private).expect("own folder");
        sandbox
    }

    /// Returns a path in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a command for the program with this sandbox's directories and a cheap key
    /// derivation.
    pub fn evfs(&self) -> Command {
        let own = self.path(OWN_PROGRAM);
        let mut command = Command::new(if own.exists() { own } else { program() });
        self.environment(&mut command);
        command
    }

    /// Installs another build of the program, which this sandbox uses from now on: a copy that differs
    /// in its last bytes. Returns its path, which is the same each time.
    pub fn install_program(&self) -> PathBuf {
        let (place, new) = (self.path(OWN_PROGRAM), self.path("new-program"));
        std::fs::copy(program(), &new).expect("a copy of the program");
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&new)
            .expect("the copy");
        let begun = std::time::SystemTime::now();
        writeln!(file, "{begun:?}").expect("more bytes");
        drop(file);
        std::fs::rename(&new, &place).expect("installed");
        place
    }

    /// Sets this sandbox's directories in the environment of `command`.
    pub fn environment(&self, command: &mut Command) {
        command
            .env("EVFS_KEYS_DIR", self.path("keys"))
            .env("EVFS_RUN_DIR", self.path("run"))
            .env("EVFS_BACKUP_DIR", self.path("backup"))
            .env("EVFS_LUN_REGISTRY", self.path("state/luns.json"))
            .env("EVFS_TRUST_STORE", self.path("state/trust.json"))
            .env("EVFS_KDF_MEMORY_KIB", "1024")
            .env("EVFS_KDF_TIME_MS", "1")
            .env_remove("EVFS_CONFIG")
            .current_dir(self.dir.path());
    }

    /// Runs the program and returns the result.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        Ran::of(self.evfs().args(args))
    }

    /// Runs the program with `input` on standard input.
    pub fn run_with_input<S: AsRef<OsStr>>(&self, args: &[S], input: &[u8]) -> Ran {
        Ran::with_input(self.evfs().args(args), input)
    }

    /// Runs the program, which must succeed, and returns its JSON. Like every document that a test
    /// obtains, it must have its published form.
    pub fn json<S: AsRef<OsStr>>(&self, args: &[S]) -> Value {
        let mut command = self.evfs();
        command.arg("--json").args(args);
        let ran = Ran::of(&mut command).ok();
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stdout))
    }

    /// Creates a key pair without a passphrase.
    pub fn key(&self, name: &str) {
        self.run(&["key", "generate", name, "--no-passphrase"]).ok();
    }

    /// Creates the volume `image` of 32 MiB whose owner is a passphrase with the label `laptop`.
    /// Returns the JSON document of the command, which has the options `more`.
    #[track_caller]
    pub fn passphrase_volume(&self, image: &str, passphrase: &str, more: &[&str]) -> Value {
        let create = ["--json", "volume", "create", image, "--size", "32M"];
        let owner = ["--passphrase-fd", "0", "--key-label", "laptop"];
        let create = [&create[..], &owner, more].concat();
        let typed = format!("{passphrase}\n");
        let made = self.run_with_input(&create, typed.as_bytes()).ok().stdout;
        serde_json::from_str(&made).expect("a JSON document")
    }

    /// Creates the key pair `owner` and a volume of `size` that belongs to it.
    pub fn volume(&self, image: &str, size: &str, more: &[&str]) -> PathBuf {
        if !self.path("keys/owner.key").exists() {
            self.key("owner");
        }
        let mut args = vec![
            "volume", "create", image, "--owner", "owner", "--size", size,
        ];
        args.extend(more);
        self.run(&args).ok();
        self.path(image)
    }

    /// Attaches in the background and returns the JSON of the status.
    pub fn attach(&self, args: &[&str]) -> Value {
        let mut all = vec!["attach"];
        all.extend(args);
        all.push("--background");
        self.json(&all)
    }

    /// Detaches a volume, which must succeed.
    pub fn detach(&self, name: &str) {
        self.run(&["detach", name]).ok();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let Ok(entries) = std::fs::read_dir(self.path("run")) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".control")) else {
                continue;
            };
            let status = Ran::of(self.evfs().args(["--json", "status"]));
            let _ = Ran::of(self.evfs().args(["detach", name]));
            if entry.path().exists() {
                // It cannot be detached: end the process that serves it.
                let pids = serde_json::from_str::<Value>(&status.stdout).ok();
                let volumes = pids.as_ref().and_then(|v| v["volumes"].as_array());
                for volume in volumes.into_iter().flatten().filter(|v| v["name"] == name) {
                    if let Some(pid) = volume["pid"].as_i64() {
                        signal(pid as i32, libc::SIGTERM);
                        wait_until("the process ends", || {
                            !Path::new(&format!("/proc/{pid}")).exists()
                        });
                    }
                }
            }
        }
    }
}

/// Returns the path of the program under test, which is built in the target directory of the tests.
pub fn program() -> PathBuf {
    let here = std::env::current_exe().expect("the path of this program");
    // Tests are in target/PROFILE/deps, programs in target/PROFILE.
    let mut directories = here.ancestors().skip(1).take(2);
    directories
        .find_map(|directory| Some(directory.join("evfs")).filter(|program| program.is_file()))
        .expect("needs evfs: cargo build, with the profile of the tests")
}

/// Longer than any program of the tests takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Result of a program.
#[derive(Debug)]
pub struct Ran {
    /// Command line, for messages.
    pub command: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Ran {
        Ran::patiently(command, PATIENCE)
    }

    /// Runs a command with a longer time limit.
    pub fn patiently(command: &mut Command, patience: Duration) -> Ran {
        Ran::started(command.stdin(Stdio::null()), patience, |_| ())
    }

    /// Runs a command with `input` on its standard input.
    pub fn with_input(command: &mut Command, input: &[u8]) -> Ran {
        Ran::started(command.stdin(Stdio::piped()), PATIENCE, |child| {
            // A program that fails early does not read its input; the caller checks that.
            let _ = child.stdin.take().expect("piped").write_all(input);
        })
    }

    /// Runs a command to its end, and kills it after `patience`: a program that hangs must fail its
    /// test, not delay all others.
    fn started(command: &mut Command, patience: Duration, feed: impl FnOnce(&mut Child)) -> Ran {
        let shown = format!("{command:?}");
        let prints_documents = schemas::prints_documents(command);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                let program = command.get_program().display();
                panic!("needs {program}: {e}; `cargo xtask setup` installs what is missing")
            });
        let pid = child.id() as i32;
        let (ended, end) = channel::<()>();
        let watch = std::thread::spawn(move || {
            let hangs = end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if hangs {
                // The child has not been waited for.
                signal(pid, libc::SIGKILL);
            }
            hangs
        });
        feed(&mut child);
        let output = child.wait_with_output().expect("a child ends");
        drop(ended);
        let ran = Ran::from_output(shown, output);
        let hung = watch.join().expect("a watch does not panic");
        assert!(!hung, "hung for {patience:?} and was killed: {ran:?}");
        // A second panic would end the tests without the message of the first.
        let is_whole = ran.status.code().is_some() && !std::thread::panicking();
        if prints_documents && is_whole {
            schemas::check_output(&ran.command, &ran.stdout);
        }
        ran
    }

    fn from_output(command: String, output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran {
            command,
            status: output.status,
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Fails the test unless the program succeeded.
    #[track_caller]
    pub fn ok(self) -> Ran {
        self.code(0)
    }

    /// Fails the test unless the program ended with this exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Ran {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}\n--- printed\n{}\n--- said\n{}",
            self.command,
            self.stdout,
            self.stderr
        );
        self
    }
}

/// Runs a peer, which must succeed, and returns its output.
#[track_caller]
pub fn peer<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    Ran::of(Command::new(program).args(args).env("PATH", path))
        .ok()
        .stdout
}

/// Waits until `done`, and fails after a minute: long enough for the slowest machine, and never a
/// property that a test checks.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited a minute until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process that a test has started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: the system call touches no memory of this process.
    unsafe { libc::kill(pid, signal) };
}

/// User and group ID of a user who owns nothing.
pub const NOBODY: u32 = 65_534;

/// Calls a function on a thread of another user: each thread can have its own user ID. Requires
/// root.
pub fn as_user<T: Send + 'static>(uid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let changed = move || {
        // SAFETY: the system call changes the user of the calling thread and touches no memory.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(changed, 0, "root may be any user");
        work()
    };
    let thread = std::thread::spawn(changed);
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the root directory of the sources.
pub fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("a directory of the workspace")
}

/// A child process that is killed on drop.
pub struct Killed(pub Child);

impl Killed {
    /// Sends a signal to the process, which has not been waited for.
    pub fn signal(&self, signal: i32) {
        crate::signal(self.0.id() as i32, signal);
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Data and choices from a seed, so that a failing test can be reproduced.
pub struct Random(block_testing::Random);

impl Random {
    /// Creates a generator with the seed in `EVFS_SEED`, or a fresh one, and prints it.
    pub fn from_environment() -> Random {
        let seed = std::env::var("EVFS_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.map_or(1, |d| d.as_nanos() as u64)
            });
        eprintln!("seed: EVFS_SEED={seed}");
        Random::new(seed)
    }

    /// Creates a generator with a given seed.
    pub fn new(seed: u64) -> Random {
        Random(block_testing::Random::new(seed))
    }

    /// Returns a number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Bytes of a header copy with `cryptsetup`'s defaults; the JSON begins after the first 4096 bytes.
pub const HEADER_COPY: usize = 16 * 1024;
const HEADER_JSON: usize = 4096;

/// Changes the header like an attacker without a key: the JSON of both copies, and their checksums.
pub fn forge(image: &Path, change: impl Fn(&mut Value)) {
    let mut bytes = std::fs::read(image).unwrap();
    for copy in bytes[..2 * HEADER_COPY].chunks_mut(HEADER_COPY) {
        let end = copy[HEADER_JSON..].iter().position(|b| *b == 0).unwrap();
        let mut json: Value =
            serde_json::from_slice(&copy[HEADER_JSON..HEADER_JSON + end]).unwrap();
        change(&mut json);
        let text = json.to_string();
        copy[HEADER_JSON..].fill(0);
        copy[HEADER_JSON..HEADER_JSON + text.len()].copy_from_slice(text.as_bytes());
        luks2::fix_checksum(copy);
    }
    std::fs::write(image, bytes).unwrap();
}
