//! Finds the processes that use a mounted directory, for the message when unmounting fails.
//!
//! **Invariant:** only links in `/proc` are read, never the directory itself, because its server is
//! the calling process. Out of scope: users inside the kernel (loop devices, mounts on top), which
//! no link shows, and processes of other users that this one may not inspect.

use std::cell::Cell;
use std::fs::{read_dir, read_link, read_to_string};
use std::path::Path;

thread_local! {
    static ASKER: Cell<i32> = const { Cell::new(0) };
}

/// Sets the process on whose behalf this thread works; it is not reported as a user.
pub fn asked_by(pid: i32) {
    ASKER.set(pid);
}

/// Maximum number of processes in a message.
const NAMED_MAX: usize = 5;

/// Lists the processes that have a file open in `folder`, or their working directory or program:
/// `dd (311), bash (312)`.
pub(crate) fn of(folder: &Path) -> Option<String> {
    let mut users = Vec::new();
    let asker = ASKER.get().to_string();
    for process in read_dir("/proc").ok()?.flatten() {
        let number = process.file_name().to_string_lossy().into_owned();
        let counts = number != asker && number.bytes().all(|c| c.is_ascii_digit());
        if counts && uses(&process.path(), folder) {
            let name = read_to_string(process.path().join("comm")).unwrap_or_default();
            users.push(format!("{} ({number})", name.trim_end()));
        }
    }
    let more = users.len().saturating_sub(NAMED_MAX);
    users.truncate(NAMED_MAX);
    let named = users.join(", ");
    match (users.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(named),
        (false, more) => Some(format!("{named} and {more} more")),
    }
}

fn uses(process: &Path, folder: &Path) -> bool {
    let leads_there = |link: &Path| read_link(link).is_ok_and(|to| to.starts_with(folder));
    ["cwd", "root", "exe"]
        .iter()
        .any(|link| leads_there(&process.join(link)))
        || read_dir(process.join("fd"))
            .is_ok_and(|fds| fds.flatten().any(|fd| leads_there(&fd.path())))
        || read_to_string(process.join("maps")).is_ok_and(|maps| {
            // The path is the sixth column, after blanks that depend on its neighbors.
            maps.lines().any(|line| {
                line.find('/')
                    .is_some_and(|at| Path::new(&line[at..]).starts_with(folder))
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_an_open_file_are_named_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap();
        assert_eq!(of(&folder), None);
        let file = std::fs::File::create(folder.join("file")).unwrap();
        let users = of(&folder).unwrap();
        let this = format!("({})", std::process::id());
        assert!(users.ends_with(&this) && !users.contains(','), "{users}");
        drop(file);
        assert_eq!(of(&folder), None);
        let child = std::process::Command::new("sleep")
            .arg("1000")
            .current_dir(&folder)
            .spawn();
        let mut child = child.unwrap();
        let users = of(&folder);
        asked_by(child.id() as i32);
        assert_eq!(of(&folder), None, "who asks is in nobody's way");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users, Some(format!("sleep ({})", child.id())));
    }
}
