//! Who uses a mount: processes with a file of it open or mapped, or that are in one of its folders.
//!
//! It looks into `/proc`, which says only of the user's own processes unless root asks, and never at the
//! mount itself, whose server may be the one who asks.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Processes that a message names.
const NAMED_MAX: usize = 4;

/// Names the users of what is mounted at `mountpoint`, as far as can be seen.
pub(super) fn of(mountpoint: &Path) -> String {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut names = Vec::new();
    for process in processes {
        let name = process.file_name();
        let is_pid = name.to_str().is_some_and(|n| n.parse::<u32>().is_ok());
        if is_pid && uses(&process.path(), mountpoint) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            names.push(format!("{} ({})", command.trim(), name.to_string_lossy()));
        }
    }
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    match (names.is_empty(), more) {
        (true, _) => "somebody has a file in it open, or is in one of its folders".into(),
        (false, 0) => format!("by {}", names.join(", ")),
        (false, more) => format!("by {} and {more} more", names.join(", ")),
    }
}

fn uses(process: &Path, mountpoint: &Path) -> bool {
    let inside = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(mountpoint));
    if ["cwd", "root", "exe"]
        .iter()
        .any(|l| inside(&process.join(l)))
    {
        return true;
    }
    let open = fs::read_dir(process.join("fd")).into_iter().flatten();
    if open.flatten().any(|fd| inside(&fd.path())) {
        return true;
    }
    // A line of a mapping ends with the path; a line break in it is written as an escape.
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let folder = [mountpoint.as_os_str().as_bytes(), b"/"].concat();
    maps.split(|byte| *byte == b'\n').any(|line| {
        let path = line.iter().position(|byte| *byte == b'/');
        path.is_some_and(|at| line[at..].starts_with(&folder))
    })
}
