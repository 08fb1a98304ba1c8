//! `mounts`: how long a mount and an unmount take, the latter after metadata operations, over many
//! cycles.
//!
//! ```text
//!   mount command ──► mounted, statfs answers │ file work │ unmount command ──► as before
//!   ├────────────── mount ────────────────────┤  untimed  ├────────── unmount ──────────┤
//! ```
//!
//! The user provides the commands, so any file system can be measured: EVFS, a competitor, the
//! kernel's own. A target mounted by this process needs none. A mount is complete when the mount
//! point has become another directory (device and inode number) and `statfs` succeeds; an unmount
//! is complete when its command has ended and the mount point is the original directory again.

use super::programs::shell;
use bench_core::files::{Files, HostDirectory, Open};
use bench_core::{Error, Remount, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum wait for the mount point to change after the command has ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between checks of the mount point.
const LOOK: Duration = Duration::from_micros(200);

/// Commands and number of cycles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Command that mounts on `$MOUNTPOINT`; empty for a target mounted by this process.
    pub mount: String,
    /// Command that unmounts it.
    pub unmount: String,
    /// Number of cycles; 20 or more for a meaningful 95th percentile.
    pub times: u32,
    /// Files to create, read and remove between mount and unmount.
    pub files: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mount: String::new(),
            unmount: "umount \"$MOUNTPOINT\"".into(),
            times: 20,
            files: 200,
        }
    }
}

/// Seconds per cycle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MountTimes {
    /// Durations of mounts.
    pub mount_secs: Vec<f64>,
    /// Durations of unmounts.
    pub unmount_secs: Vec<f64>,
}

/// Mounts and unmounts repeatedly. Without commands, `own` does both.
///
/// # Errors
/// [`Error::Spec`] for missing commands; [`Error::Program`] for a command that fails or has no
/// effect; [`Error::Files`] for errors of the mounted file system.
pub fn run(point: &Path, config: &Config, own: Option<&dyn Remount>) -> Result<MountTimes> {
    match own.filter(|_| config.mount.is_empty()) {
        Some(own) => {
            let by = |what: &'static str, done: std::result::Result<(), String>| {
                done.map_err(|detail| Error::Program {
                    what: what.into(),
                    detail,
                })
            };
            by("unmount", own.unmount())?;
            let outcome = turns(point, config, &|| by("mount", own.mount()), &|| {
                by("unmount", own.unmount())
            });
            // Restore the original state, even after a failure.
            own.mount()
                .map_err(|detail| Error::Program {
                    what: "mount".into(),
                    detail,
                })
                .and(outcome)
        }
        None if config.mount.is_empty() || config.unmount.is_empty() => Err(Error::Spec(
            "mounts needs commands for this target: --set mount='...' --set unmount='...'".into(),
        )),
        None => {
            let by = |command: &str| {
                let point = point.display().to_string();
                shell(Path::new("/"), command, &[("MOUNTPOINT", &point)])
            };
            turns(
                point,
                config,
                &|| by(&config.mount),
                &|| by(&config.unmount),
            )
        }
    }
}

fn turns(
    point: &Path,
    config: &Config,
    mount: &dyn Fn() -> Result<()>,
    unmount: &dyn Fn() -> Result<()>,
) -> Result<MountTimes> {
    if config.times == 0 {
        return Err(Error::Spec("times must be at least 1".into()));
    }
    let bare = identity(point)?;
    let mut outcome = MountTimes::default();
    for turn in 0..config.times {
        let took = timed(point, mount, &|now| now != bare)?;
        outcome.mount_secs.push(took);
        let loaded = load(point, config.files, turn);
        // Unmount even after a failure, so that no mount is left behind.
        let took = timed(point, unmount, &|now| now == bare);
        loaded?;
        outcome.unmount_secs.push(took?);
    }
    Ok(outcome)
}

/// Runs `work` and waits until the mount point satisfies `there`.
fn timed(
    point: &Path,
    work: &dyn Fn() -> Result<()>,
    there: &dyn Fn((u64, u64)) -> bool,
) -> Result<f64> {
    let began = Instant::now();
    work()?;
    loop {
        // A mount that is not ready yet may return errors.
        if identity(point).is_ok_and(there)
            && HostDirectory::open(point).is_ok_and(|f| f.statfs().is_ok())
        {
            return Ok(began.elapsed().as_secs_f64());
        }
        if began.elapsed() > PATIENCE {
            return Err(Error::Program {
                what: "mount or unmount".into(),
                detail: format!("{} did not change within a minute", point.display()),
            });
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads device and inode number of the mount point.
fn identity(point: &Path) -> Result<(u64, u64)> {
    let found = fs::metadata(point).map_err(|e| failed(point, "stat", "", e))?;
    Ok((found.dev(), found.ino()))
}

/// Performs metadata operations: creates, lists, stats and removes files.
fn load(point: &Path, files: u64, turn: u32) -> Result<()> {
    let folder = HostDirectory::open(point).map_err(|e| failed(point, "open", "", e))?;
    let name = |n: u64| format!("mounts.{turn}.{n}");
    for n in 0..files {
        let file = folder
            .open(&name(n), Open::CREATE)
            .map_err(|e| failed(point, "creat", &name(n), e))?;
        file.write_at(0, b"metadata\n")
            .map_err(|e| failed(point, "write", &name(n), e))?;
    }
    folder
        .readdir(".")
        .map_err(|e| failed(point, "readdir", ".", e))?;
    for n in 0..files {
        folder
            .stat(&name(n))
            .map_err(|e| failed(point, "stat", &name(n), e))?;
        folder
            .unlink(&name(n))
            .map_err(|e| failed(point, "unlink", &name(n), e))?;
    }
    Ok(())
}

fn failed(point: &Path, call: &'static str, path: &str, source: io::Error) -> Error {
    Error::on_files(point.display().to_string(), call, path, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Creates a mount point that needs no privileges: a symbolic link that a command switches from
    /// one directory to another.
    fn switch() -> (tempfile::TempDir, PathBuf, Config) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bare", "mounted"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let point = dir.path().join("point");
        std::os::unix::fs::symlink("bare", &point).unwrap();
        let config = Config {
            mount: "ln -sfn mounted \"$MOUNTPOINT\"".into(),
            unmount: "ln -sfn bare \"$MOUNTPOINT\"".into(),
            times: 3,
            files: 5,
        };
        (dir, point, config)
    }

    #[test]
    fn every_turn_is_timed_and_the_point_is_bare_again() {
        let (dir, point, config) = switch();
        let outcome = run(&point, &config, None).unwrap();
        assert_eq!(
            (outcome.mount_secs.len(), outcome.unmount_secs.len()),
            (3, 3)
        );
        assert!(outcome.mount_secs.iter().all(|secs| *secs > 0.0));
        assert_eq!(fs::read_link(&point).unwrap(), PathBuf::from("bare"));
        assert_eq!(fs::read_dir(dir.path().join("mounted")).unwrap().count(), 0);
    }

    #[test]
    fn a_command_that_fails_says_why_and_none_is_refused() {
        let (_dir, point, config) = switch();
        let wrong = Config {
            mount: "echo no device >&2; exit 32".into(),
            ..config
        };
        let error = run(&point, &wrong, None).unwrap_err().to_string();
        assert!(error.contains("no device"), "{error}");
        assert!(matches!(
            run(&point, &Config::default(), None),
            Err(Error::Spec(_))
        ));
    }

    /// Switches the link without a command.
    struct Own(PathBuf);

    impl Own {
        fn turn(&self, to: &str) -> std::result::Result<(), String> {
            let beside = self.0.with_extension("new");
            let turned =
                std::os::unix::fs::symlink(to, &beside).and_then(|()| fs::rename(&beside, &self.0));
            turned.map_err(|e| e.to_string())
        }
    }

    impl Remount for Own {
        fn mount(&self) -> std::result::Result<(), String> {
            self.turn("mounted")
        }

        fn unmount(&self) -> std::result::Result<(), String> {
            self.turn("bare")
        }

        fn sync(&self) -> std::result::Result<(), String> {
            Ok(())
        }

        fn drop_caches(&self) -> std::result::Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_target_that_mounts_itself_needs_no_commands_and_stays_mounted() {
        let (_dir, point, config) = switch();
        let own = Own(point.clone());
        own.mount().unwrap();
        let config = Config {
            mount: String::new(),
            ..config
        };
        let outcome = run(&point, &config, Some(&own)).unwrap();
        assert_eq!(outcome.mount_secs.len(), 3);
        assert_eq!(fs::read_link(&point).unwrap(), PathBuf::from("mounted"));
    }
}
