//! A test in a process of its own: one that counts what the process has, or that changes what it is
//! given.

use std::process::Command;

/// Set, in that process, to the name of the test.
const ALONE: &str = "EVFS_TEST_ALONE";

/// Whether this is the process for `test` (its full name). If not, starts that one, as `prepare` wants
/// it, and waits until it has passed.
pub fn alone(test: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, test);
    prepare(&mut command);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("{said}");
    assert!(output.status.success(), "`{test}` fails alone");
    assert!(said.contains("1 passed"), "there is a test `{test}`");
    false
}
