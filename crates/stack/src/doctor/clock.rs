//! The clock: whether its time is plausible, and whether the kernel considers it synchronized.

use super::{Finding, ids};
use crate::Settings;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time before every version of EVFS: the begin of 2025, in seconds since 1970.
const EARLIEST_SECONDS: u64 = 1_735_689_600;

/// Time by which a file may be newer than the clock: another machine may have written it.
const TOLERANCE: Duration = Duration::from_secs(24 * 3600);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let files = [
        std::env::current_exe().ok(),
        Some(settings.trust_store()),
        Some(settings.backup_dir()),
        Some(settings.lun_registry()),
    ];
    let written = |file: PathBuf| {
        let modified = std::fs::metadata(&file).and_then(|meta| meta.modified());
        Some((file, modified.ok()?))
    };
    let files: Vec<_> = files.into_iter().flatten().filter_map(written).collect();
    vec![
        plausible(SystemTime::now(), &files),
        synchronized(is_synchronized()),
    ]
}

/// Judges the time `now` by files and the time of their last change.
fn plausible(now: SystemTime, files: &[(PathBuf, SystemTime)]) -> Finding {
    let newer = files.iter().find(|(_, written)| *written > now + TOLERANCE);
    let why = if now < UNIX_EPOCH + Duration::from_secs(EARLIEST_SECONDS) {
        "it shows a time before the first version of this program".to_owned()
    } else if let Some((file, _)) = newer {
        format!("{} was changed later than now", file.display())
    } else {
        return Finding::ok(ids::CLOCK, "the time is plausible");
    };
    Finding::warning(ids::CLOCK, "the clock is wrong")
        .why(format!(
            "{why}; certificates are checked, and times of files and records set, by this clock"
        ))
        .remedy("set the clock, and let a service keep it synchronized")
        .command("timedatectl set-ntp true")
}

/// Reads the state of the kernel's clock (adjtimex(2)), without changing it.
fn is_synchronized() -> io::Result<bool> {
    // SAFETY: an all-zero timex is a valid value.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` lives through the call, which only reads the clock because `modes` is 0.
    let answer = unsafe { libc::adjtimex(&mut state) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}

fn synchronized(state: io::Result<bool>) -> Finding {
    match state {
        Ok(true) => Finding::ok(ids::CLOCK_SYNC, "the clock is synchronized"),
        Ok(false) => Finding::note(ids::CLOCK_SYNC, "the clock is not synchronized")
            .why("it drifts; times of files differ between this machine and others")
            .remedy("enable a service that synchronizes it")
            .command("timedatectl set-ntp true"),
        Err(e) => {
            let why = crate::without_number(&e.to_string());
            Finding::unchecked(ids::CLOCK_SYNC, "the synchronization of the clock", why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn a_clock_behind_its_own_files_is_wrong() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let now = EARLIEST_SECONDS + 1_000_000;
        let file = |written| [(PathBuf::from("/state/trust.json"), at(written))];
        let judged = |now, written| plausible(at(now), &file(written)).severity;
        assert_eq!(judged(now, now - 5), Severity::Ok);
        assert_eq!(judged(now, now + 3600), Severity::Ok);
        assert_eq!(judged(now, now + 3 * 24 * 3600), Severity::Warning);
        assert_eq!(judged(EARLIEST_SECONDS - 1, 0), Severity::Warning);
    }

    #[test]
    fn the_state_of_the_clock_is_read_or_the_check_is_not_done() {
        assert_eq!(synchronized(Ok(false)).severity, Severity::Note);
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        assert!(!synchronized(Err(denied)).checked);
    }
}
