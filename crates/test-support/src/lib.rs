//! Support for the tests of all crates: programs that tests start, servers that they share, and
//! requirements on the machine.
//!
//! A test that cannot run fails and names what is missing; it never returns early. Tests that need
//! root are in modules named `needs_root`, and tests that need a program other than Rust and a C
//! compiler in modules named `needs_peer`, unless their whole binary needs it. The check selects
//! tests by these names.

pub mod ceph;
pub mod etcd;
pub mod history;
pub mod network;
pub mod tgtd;
pub mod tls;

use rustix::process::{Signal, set_parent_process_death_signal};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns the path of an example program of the package under test.
///
/// `cargo xtask check` builds the examples that `xtask/src/suite.rs` lists.
///
/// # Panics
/// The program has not been built.
#[track_caller]
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let example = profile.join("examples").join(name);
    assert!(
        example.exists(),
        "needs {}: `cargo build --examples`, and its name in xtask/src/suite.rs",
        example.display()
    );
    example
}

/// Fails unless the test runs as root, with the reason in the message.
#[track_caller]
pub fn needs_root(reason: &str) {
    assert!(
        rustix::process::geteuid().is_root(),
        "needs root: {reason}; run `cargo xtask check --full` as root"
    );
}

/// Returns the path of an installed program.
///
/// # Panics
/// The program is not installed.
#[track_caller]
pub fn installed(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|file| file.exists())
        .unwrap_or_else(|| panic!("needs {name}: `cargo xtask setup` installs it"))
}

/// Fails unless a file that a package of the distribution contains is installed.
#[track_caller]
pub fn needs_file(path: &Path) {
    assert!(
        path.exists(),
        "needs {}: `cargo xtask setup` installs it",
        path.display()
    );
}

/// Lets the kernel kill a program when the thread that starts it ends.
pub fn dies_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call (prctl(2), PR_SET_PDEATHSIG);
    // it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// Waits for a change.
///
/// # Panics
/// It takes longer than `within`.
#[track_caller]
pub fn wait_until(what: &str, within: Duration, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns ports of the loopback interface that are free at the moment.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    let ports = held
        .iter()
        .map(|l| l.local_addr().expect("its address").port());
    ports.collect()
}
