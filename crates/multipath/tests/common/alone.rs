//! Runs a test in its own process, because it counts resources of the process or needs a modified
//! environment.

use std::process::Command;

/// Environment variable that holds the name of the test in its process.
const ALONE: &str = "EVFS_TEST_ALONE";

/// Returns whether this is the process for `test` (its full name). If not, starts that process, set
/// up by `prepare`, and waits until the test has passed there.
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
