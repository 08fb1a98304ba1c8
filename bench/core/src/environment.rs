//! Description of the machine on which a result was measured, as far as it affects the numbers. It
//! has no user, host or path names, because results are meant to be published.

use serde::{Deserialize, Serialize};
use std::fs;

/// CPU flags that decide which cipher implementation runs.
const FLAGS: [&str; 8] = [
    "aes",
    "pclmulqdq",
    "avx2",
    "avx512f",
    "vaes",
    "vpclmulqdq",
    "pmull",
    "hypervisor",
];

/// The machine. A field is absent if the system does not report it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Environment {
    /// Version of this crate.
    pub version: String,
    /// Whether this is an optimized build; figures of other builds are useless.
    pub optimised: bool,
    /// Start time in seconds since 1970.
    pub unix_time: u64,
    /// Kernel release.
    pub kernel: String,
    /// Machine type, for example x86_64.
    pub architecture: String,
    /// Model of the first CPU.
    pub cpu_model: Option<String>,
    /// Flags of the first CPU that affect cipher performance.
    pub cpu_flags: Vec<String>,
    /// Number of CPUs that are online.
    pub cpus_online: Option<u32>,
    /// Number of CPUs that this process may use.
    pub cpus_allowed: Option<u32>,
    /// Frequency governor of the first CPU.
    pub cpu_governor: Option<String>,
    /// Current clock source of the kernel.
    pub clock_source: Option<String>,
    pub memory_mib: Option<u64>,
    /// Selected setting for transparent huge pages.
    pub huge_pages: Option<String>,
    /// One-minute load average at the start.
    pub load_average: Option<f64>,
}

impl Environment {
    /// Reads the environment from the system.
    pub fn capture() -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = colon_field(&cpuinfo, "flags").or_else(|| colon_field(&cpuinfo, "Features"));
        Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            unix_time: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            kernel: one_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: colon_field(&cpuinfo, "model name"),
            cpu_flags: FLAGS
                .into_iter()
                .filter(|&flag| {
                    flags
                        .as_ref()
                        .is_some_and(|f| f.split(' ').any(|x| x == flag))
                })
                .map(str::to_owned)
                .collect(),
            cpus_online: one_line("/sys/devices/system/cpu/online").and_then(|l| count_cpus(&l)),
            cpus_allowed: std::thread::available_parallelism()
                .ok()
                .map(|n| n.get() as u32),
            cpu_governor: one_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: one_line(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            memory_mib: fs::read_to_string("/proc/meminfo")
                .ok()
                .and_then(|m| colon_field(&m, "MemTotal"))
                .and_then(|f| f.split(' ').next()?.parse::<u64>().ok())
                .map(|kib| kib / 1024),
            huge_pages: one_line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|l| Some(l.split_once('[')?.1.split_once(']')?.0.to_owned())),
            load_average: one_line("/proc/loadavg").and_then(|l| l.split(' ').next()?.parse().ok()),
        }
    }

    /// Formats one line for the foot of a table. It omits the load, which changes with every run.
    pub fn line(&self) -> String {
        let unknown = || "unknown CPU".to_owned();
        let mut parts = vec![
            self.cpu_model.clone().unwrap_or_else(unknown),
            format!("Linux {} {}", self.kernel, self.architecture),
        ];
        if let Some(cpus) = self.cpus_allowed {
            parts.push(format!("{cpus} CPUs"));
        }
        if let Some(memory) = self.memory() {
            parts.push(format!("{memory} memory"));
        }
        if let Some(setting) = &self.huge_pages {
            parts.push(format!("huge pages {setting}"));
        }
        parts.push(format!("evfs {}", self.version));
        parts.join(", ")
    }

    /// Formats the start time: `2026-11-22 14:03 UTC`.
    pub fn started(&self) -> String {
        utc(self.unix_time)
    }

    /// Formats the size of the memory: `7.8 GiB`.
    pub fn memory(&self) -> Option<String> {
        let mib = self.memory_mib?;
        Some(match mib {
            0..1024 => format!("{mib} MiB"),
            _ => format!("{:.1} GiB", mib as f64 / 1024.0),
        })
    }
}

/// Formats seconds since 1970 as a date and a time of day in the Gregorian calendar.
fn utc(unix_time: u64) -> String {
    let (days, second) = (unix_time / 86_400, unix_time % 86_400);
    // Years begin in March here, so that a leap day is the last of its year; day 0 is 0000-03-01.
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

fn one_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Finds the value of the first line `NAME : VALUE`.
fn colon_field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Counts the CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<u32> {
    list.split(',')
        .map(|range| match range.split_once('-') {
            Some((first, last)) => {
                let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                last.checked_sub(first)?.checked_add(1)
            }
            None => range.parse::<u32>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3,8"), Some(5));
        assert_eq!(count_cpus("3-1"), None);
        assert_eq!(count_cpus(""), None);
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_709_208_060, "2024-02-29 12:01 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn memory_has_a_unit_that_fits() {
        let of = |memory_mib| {
            let some = Environment {
                memory_mib,
                ..Environment::default()
            };
            some.memory()
        };
        assert_eq!(of(Some(512)).as_deref(), Some("512 MiB"));
        assert_eq!(of(Some(7_951)).as_deref(), Some("7.8 GiB"));
        assert_eq!(of(None), None);
    }

    #[test]
    fn the_kernel_is_always_named() {
        let environment = Environment::capture();
        assert!(!environment.kernel.is_empty());
        assert!(environment.line().contains(&environment.kernel));
    }
}
