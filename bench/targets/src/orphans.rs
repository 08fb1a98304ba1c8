//! Cleanup after benchmarks that were killed.
//!
//! Every object that may be left has a name that begins with `evfs-bench-`, followed by its kind,
//! the process that created it and a random part. Only the existence of that process is checked; a
//! mount is never accessed, because a mount whose server was killed may never respond.
//!
//! A killed process that has mounted its own file system cannot even exit if some of its threads
//! wait for replies of others that have ended: the kernel keeps the connection open for the waiting
//! threads. A guard process therefore ends its mounts when it dies. If the guard was killed too,
//! the next benchmark does this.

use stack::{Error, Result, StopSignals};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Prefix of the process ID in the name of a directory on which we mount a file system.
const MOUNT: &str = "evfs-bench-";

/// Builds the prefix of names of this process.
pub fn own(kind: &str) -> String {
    of(kind, std::process::id())
}

fn of(kind: &str, pid: u32) -> String {
    format!("{kind}{pid}-")
}

/// Creates a directory for a mount of ours, which the guard watches from now on.
pub fn guarded_folder() -> Result<PathBuf> {
    static GUARD: OnceLock<()> = OnceLock::new();
    for path in find_stale(MOUNT, &[&std::env::temp_dir()]) {
        end(&path);
    }
    if GUARD.get().is_none() {
        let me = std::env::current_exe()
            .map_err(|e| Error::Failed(format!("cannot find the path of this program: {e}")))?;
        Command::new(me)
            .args(["bench", "guard", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals that a terminal sends to the benchmark must not reach the guard.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::Failed(format!("cannot start the guard for mounts: {e}")))?;
        let _ = GUARD.set(());
    }
    tempfile::Builder::new()
        .prefix(&own(MOUNT))
        .tempdir()
        // Removed with the mount; its content is never deleted by name.
        .map(tempfile::TempDir::keep)
        .map_err(|e| Error::Failed(format!("cannot create a temporary directory: {e}")))
}

/// `evfs bench guard PID`: waits for the end of that process and ends the mounts that it leaves. It
/// polls once per second: the kernel sends no notification for a process that was killed and cannot
/// exit.
pub fn guard(pid: u32) -> Result<u8> {
    let signals = StopSignals::install()?;
    while !is_gone(pid) {
        // A signal to the guard ends only the guard.
        if signals.stop_asked().is_some() {
            return Ok(stack::exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    named(&of(MOUNT, pid), &[])
        .iter()
        .for_each(|path| end(path));
    Ok(stack::exit::OK)
}

fn end(path: &Path) {
    let _ = stack::filesystem::abort(path);
    // Succeeds only if the directory is empty and not a mount point.
    let _ = std::fs::remove_dir(path);
}

/// Finds the leftovers of dead processes under names of this kind: in these directories, and
/// mount points anywhere, since the next benchmark may use another directory for temporary files.
pub fn find_stale(kind: &str, folders: &[&Path]) -> Vec<PathBuf> {
    let owner = |path: &PathBuf| -> Option<u32> {
        let name = path.file_name()?.to_str()?.strip_prefix(kind)?;
        name.split_once('-')?.0.parse().ok()
    };
    let mut all = named(kind, folders);
    all.retain(|path| owner(path).is_some_and(is_gone));
    all
}

/// Reports whether a process is gone: it does not exist; its first thread, which never ends first
/// by itself, is dead; or it was killed (proc_pid_status(5), `SigPnd`) and waits for something that
/// keeps it from exiting.
fn is_gone(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return true;
    };
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("", str::trim)
    };
    let killed = |set: &str| u64::from_str_radix(set, 16).is_ok_and(|set| set & 1 << 8 != 0);
    value("State:").starts_with(['Z', 'X']) || killed(value("SigPnd:")) || killed(value("ShdPnd:"))
}

fn named(prefix: &str, folders: &[&Path]) -> Vec<PathBuf> {
    let entries = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let mounts = fuse_mount::mounts().into_iter().map(|mount| mount.point);
    let ours = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    mounts.chain(entries).filter(ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_by_its_name_of_a_process_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        let dead = format!("ours-{}-x", ended.id());
        // A zombie counts as gone as well.
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while !is_gone(ended.id()) {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        let alive = format!("{}x", of("ours-", std::process::id()));
        for name in [&dead, &alive, "ours-x", "ours-1", &format!("theirs-{dead}")] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = [folder.path().join(&dead)];
        assert_eq!(find_stale("ours-", &[folder.path()]), found);
        ended.wait().unwrap();
        assert_eq!(find_stale("ours-", &[folder.path()]), found);
    }
}
