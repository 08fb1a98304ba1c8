//! Snapshots that a mount takes and removes by the clock.
//!
//! A class of snapshots has one for each hour, day, week or month, in UTC, and keeps the latest ones.
//! Its snapshots are named after the fileset, the class and the start of the period, like
//! `main-daily-20260131T0000Z`; each snapshot of the fileset with such a name counts as one. No
//! other snapshot is removed, and none that is held. A period in which the file system was not
//! mounted has no snapshot.

use super::recurring::Recurring;
use crate::text::date_of;
use crate::unix_time;
use ::fs::{Fs, Kind, TreeId, TreeRecord};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Number of snapshots to keep of each class; 0 for none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct KeepSnapshots {
    /// One for each hour.
    pub hourly: u32,
    /// One for each day.
    pub daily: u32,
    /// One for each week, from Monday on.
    pub weekly: u32,
    /// One for each month.
    pub monthly: u32,
}

/// Time between two checks of the clock.
pub(super) const CHECKED: Duration = Duration::from_secs(60);

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// Start of the first Monday after 1970 began.
const MONDAY: i64 = 4 * DAY;

/// Period of the clock, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Period {
    Hour,
    Day,
    /// From Monday on.
    Week,
    Month,
}

impl Period {
    /// Returns the start of the period of a time; both are seconds since 1970.
    pub fn start(self, now: i64) -> i64 {
        match self {
            Period::Hour => now - now.rem_euclid(HOUR),
            Period::Day => now - now.rem_euclid(DAY),
            Period::Week => now - (now - MONDAY).rem_euclid(WEEK),
            Period::Month => start_of_month(now),
        }
    }
}

/// The changes of a class that are due.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    take: Option<String>,
    remove: Vec<TreeId>,
}

impl KeepSnapshots {
    /// Computes the changes that are due for a fileset, by class.
    fn due(&self, now: i64, fileset: TreeId, all: &[(TreeId, TreeRecord)]) -> Vec<Due> {
        let mut due = Vec::new();
        let Some((_, own)) = all.iter().find(|(id, _)| *id == fileset) else {
            return due;
        };
        for (class, keep, period) in [
            ("hourly", self.hourly, Period::Hour),
            ("daily", self.daily, Period::Day),
            ("weekly", self.weekly, Period::Week),
            ("monthly", self.monthly, Period::Month),
        ] {
            if keep == 0 {
                continue;
            }
            let prefix = format!("{}-{class}-", own.name);
            let name = format!("{prefix}{}", stamp(period.start(now)));
            let of_class = |record: &TreeRecord| {
                let stamp = record.name.strip_prefix(&prefix);
                record.origin == fileset && stamp.is_some_and(is_stamp)
            };
            // In the order in which they were taken, which is not that of their names if the clock
            // was set back: ids increase and are not reused.
            let mut known: Vec<(TreeId, &TreeRecord)> = all
                .iter()
                .filter(|(_, record)| of_class(record))
                .map(|(id, record)| (*id, record))
                .collect();
            known.sort_unstable_by_key(|(id, _)| *id);
            // One that was named after a later time is no reason to take none.
            let is_new = known.iter().all(|(_, known)| known.name != name);
            let count = known.len() + usize::from(is_new);
            let excess = count.saturating_sub(keep as usize);
            let old = known.iter().take(excess).filter(|(_, known)| !known.held);
            let changes = Due {
                remove: old.map(|(id, _)| *id).collect(),
                take: is_new.then_some(name),
            };
            if changes != Due::default() {
                due.push(changes);
            }
        }
        due
    }
}

/// Computes the start of the month.
fn start_of_month(now: i64) -> i64 {
    let day = now.div_euclid(DAY);
    let (_, _, date) = date_of(day);
    (day + 1 - i64::from(date)) * DAY
}

/// Formats the start of a period.
fn stamp(seconds: i64) -> String {
    let (year, month, date) = date_of(seconds.div_euclid(DAY));
    let hour = seconds.rem_euclid(DAY) / HOUR;
    format!("{year:04}{month:02}{date:02}T{hour:02}00Z")
}

/// Reports whether a text has the form of [`stamp`].
fn is_stamp(text: &str) -> bool {
    let form = "00000000T0000Z";
    let fits = |(one, form): (char, char)| one == form || form == '0' && one.is_ascii_digit();
    text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
}

/// Function that writes cached pages to the file system.
pub(super) type WriteOut = Box<dyn Fn() -> ::fs::Result<()> + Send>;

/// Starts the thread that takes and removes snapshots.
///
/// # Errors
/// The system cannot start a thread.
pub(super) fn start(
    keep: KeepSnapshots,
    fs: Arc<Fs>,
    fileset: TreeId,
    write_out: WriteOut,
) -> std::io::Result<Recurring> {
    Recurring::start("evfs-snapshots", move || {
        let now = unix_time::now().as_secs() as i64;
        execute(keep, now, &fs, fileset, &write_out);
        CHECKED
    })
}

/// Makes the changes that are due. One that fails is tried again at the next check.
fn execute(keep: KeepSnapshots, now: i64, fs: &Fs, fileset: TreeId, write_out: &WriteOut) {
    let mut remove = Vec::new();
    for due in keep.due(now, fileset, &fs.filesets()) {
        let take = |name: &String| {
            let taken = write_out().and_then(|()| fs.snapshot(fileset, name));
            let warn = |error: &::fs::Error| {
                tracing::warn!(name: "EVFS-0813", "cannot take the snapshot `{name}`: {error}");
            };
            taken.inspect_err(warn).err()
        };
        match due.take.as_ref().and_then(take) {
            Some(_) if fs.read_only_because().is_some() => return,
            // Removing an old one makes room.
            Some(error) if error.kind() == Kind::NoSpace => remove.extend(due.remove),
            // The old ones of this class have no successor yet; other classes may have.
            Some(_) => {}
            None => remove.extend(due.remove),
        }
    }
    for id in remove {
        match fs.remove_fileset(id) {
            // A file of it is open.
            Err(error) if error.kind() == Kind::Busy => {}
            Err(error) => {
                tracing::warn!(name: "EVFS-0813", "cannot remove an old snapshot: {error}");
            }
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::fs::{FIRST_FILESET, Options};
    use block_testing::Mem;

    const KEEP: KeepSnapshots = KeepSnapshots {
        hourly: 3,
        daily: 2,
        weekly: 2,
        monthly: 2,
    };

    fn apply(fs: &Fs, now: i64) {
        let main = fs.fileset_named(FIRST_FILESET).unwrap().id();
        for due in KEEP.due(now, main, &fs.filesets()) {
            if let Some(name) = due.take {
                fs.snapshot(main, &name).unwrap();
            }
            due.remove
                .into_iter()
                .for_each(|id| fs.remove_fileset(id).unwrap());
        }
        assert_eq!(KEEP.due(now, main, &fs.filesets()), []);
    }

    fn names(fs: &Fs) -> Vec<String> {
        let all = fs.filesets().into_iter().map(|(_, record)| record.name);
        let mut all: Vec<String> = all.filter(|name| name != FIRST_FILESET).collect();
        all.sort();
        all
    }

    fn new() -> Fs {
        let device = Arc::new(Mem::new(32 << 20, 4096));
        Fs::format(device.clone(), "").unwrap();
        Fs::open(device, Options::default()).unwrap()
    }

    /// Friday, 27 February 2026, 22:00.
    const START: i64 = 1_772_229_600;

    #[test]
    fn snapshots_from_a_clock_that_was_ahead_do_not_replace_new_ones() {
        let fs = new();
        apply(&fs, START);
        // For ten hours, the clock is a year ahead.
        (0..10).for_each(|hour| apply(&fs, START + 365 * DAY + hour * HOUR));
        let classes = ["daily-20260228T0000Z", "weekly-20260223T0000Z"];
        for hour in 2..6 {
            apply(&fs, START + hour * HOUR);
            apply(&fs, START + hour * HOUR + HOUR / 2);
            let left = names(&fs);
            let hourly = format!("hourly-{}", stamp(START + hour * HOUR));
            for class in classes.iter().copied().chain([&hourly[..]]) {
                assert!(left.contains(&format!("main-{class}")), "{class}: {left:?}");
            }
        }
        let hourly: Vec<String> = names(&fs)
            .into_iter()
            .filter(|name| name.contains("hourly"))
            .collect();
        let kept = [3, 4, 5].map(|hour| format!("main-hourly-{}", stamp(START + hour * HOUR)));
        assert_eq!(hourly, kept);
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_new_snapshot() {
        let fs = new();
        (0..5).for_each(|hour| apply(&fs, START + hour * HOUR));
        let name = |hour: i64| format!("main-hourly-{}", stamp(START + hour * HOUR));
        apply(&fs, START - 3 * HOUR);
        for hour in -2..=4 {
            apply(&fs, START + hour * HOUR);
            for name in [name(hour - 1), name(hour)] {
                assert!(names(&fs).contains(&name), "{name}: {:?}", names(&fs));
            }
        }
    }

    #[test]
    fn a_name_that_is_in_use_stops_no_other_class_and_removes_no_snapshot_without_successor() {
        let fs = new();
        let main = fs.fileset_named(FIRST_FILESET).unwrap().id();
        (0..3).for_each(|hour| apply(&fs, START + hour * HOUR));
        let now = START + 20 * DAY;
        fs.create_fileset(&format!("main-hourly-{}", stamp(now)))
            .unwrap();
        let write_out: WriteOut = Box::new(|| Ok(()));
        execute(KEEP, now, &fs, main, &write_out);
        let left = names(&fs);
        for hour in 0..3 {
            let hourly = format!("main-hourly-{}", stamp(START + hour * HOUR));
            assert!(left.contains(&hourly), "{left:?}");
        }
        let daily = |now: i64| format!("main-daily-{}", stamp(now - now.rem_euclid(DAY)));
        assert!(left.contains(&daily(now)), "{left:?}");
        assert!(!left.contains(&daily(START)), "{left:?}");
    }

    #[test]
    fn the_latest_of_each_class_are_kept_and_no_other_is_touched() {
        let fs = new();
        let main = fs.fileset_named(FIRST_FILESET).unwrap().id();
        fs.snapshot(main, "main-daily-of-mine").unwrap();
        // Every half an hour until Tuesday, 3 March, 10:30.
        for half_hours in 0..=169 {
            apply(&fs, START + half_hours * HOUR / 2);
        }
        let kept = [
            "main-daily-20260302T0000Z",
            "main-daily-20260303T0000Z",
            "main-daily-of-mine",
            "main-hourly-20260303T0800Z",
            "main-hourly-20260303T0900Z",
            "main-hourly-20260303T1000Z",
            "main-monthly-20260201T0000Z",
            "main-monthly-20260301T0000Z",
            "main-weekly-20260223T0000Z",
            "main-weekly-20260302T0000Z",
        ];
        assert_eq!(names(&fs), kept);
        let held = fs.fileset_named("main-weekly-20260223T0000Z").unwrap();
        fs.hold(held.id(), true).unwrap();
        apply(&fs, START + 20 * DAY);
        let left = names(&fs);
        assert!(left.contains(&kept[8].to_owned()), "{left:?}");
        assert!(!left.contains(&kept[0].to_owned()), "{left:?}");
    }
}
