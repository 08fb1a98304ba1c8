//! Support for the tests of all crates: programs that tests start, servers that they share, and
//! requirements on the machine.
//!
//! A test that cannot run fails and names what is missing; it never returns early. Tests that need
//! root are in modules named `needs_root`, and tests that need a program other than Rust and a C
//! compiler in modules named `needs_peer`, unless their whole binary needs it. The check selects
//! tests by these names.

pub mod ceph;
pub mod tgtd;

use std::path::{Path, PathBuf};

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
