//! Small Debian systems: one in a directory, whose copies the tests of packages change, and one in
//! a disk image, which guests boot.

use super::{is_root, target};
use crate::{Outcome, run};
use std::path::Path;
use std::process::{Command, Stdio};

/// Packages of the system in which packages are tested, beside the smallest set: the dependency
/// that every mount needs, and programs that check manual pages and units.
const PACKAGES: &[&str] = &["fuse3", "man-db", "systemd"];

/// The same for the system that guests boot. Its kernel and modules are from elsewhere.
const BOOTED: &[&str] = &["fuse3", "systemd", "systemd-sysv", "udev"];

/// Packages that a guest installs itself. The system has what they depend on.
const INSTALLED_LATER: &[&str] = &["cryptsetup-bin", "gocryptfs"];

/// Size of the disk that guests boot from. The file has holes.
const DISK: &str = "2G";

/// Release and archive of both systems if this machine is not configured for one.
const ARCHIVE: (&str, &str) = ("stable", "http://deb.debian.org/debian/");

/// Creates both systems where the tests expect them, unless they exist.
pub fn require() -> Outcome {
    directory()?;
    disk()
}

/// Creates the system in a directory.
fn directory() -> Outcome {
    let roots = target()?.join("roots");
    let (done, new) = (roots.join("debian"), roots.join("debian.new"));
    if done.is_dir() {
        return Ok(());
    }
    debootstrap(&new, &PACKAGES.join(","))?;
    forget_downloads(&new)?;
    std::fs::rename(&new, &done).map_err(|e| failed(&done, &e))
}

/// Creates the system in a disk image, and beside it the packages that guests install later. A file
/// with the names of all packages is the last one written: another list makes another image.
fn disk() -> Outcome {
    let dir = target()?.join("guest/debian");
    let list = format!("{}\n{}\n", BOOTED.join(","), INSTALLED_LATER.join(","));
    let listed = dir.join("packages");
    if std::fs::read_to_string(&listed).is_ok_and(|old| old == list) {
        return Ok(());
    }
    remove(&dir)?;
    let tree = dir.join("tree");
    debootstrap(&tree, &[BOOTED, INSTALLED_LATER].concat().join(","))?;
    let later = dir.join("later");
    std::fs::create_dir_all(&later).map_err(|e| failed(&later, &e))?;
    for package in INSTALLED_LATER {
        let script = "mv \"$0\"/var/cache/apt/archives/\"$1\"_*.deb \"$2\"";
        let mut keep = Command::new("sh");
        run(keep
            .args(["-c", script])
            .args([tree.as_path(), Path::new(package), later.as_path()]))?;
    }
    run(Command::new("chroot")
        .arg(&tree)
        .args(["dpkg", "--purge"])
        .args(INSTALLED_LATER)
        .stdout(Stdio::null()))?;
    forget_downloads(&tree)?;
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .args([&tree, &dir.join("root.img")])
        .arg(DISK))?;
    remove(&tree)?;
    std::fs::write(&listed, list).map_err(|e| failed(&listed, &e))
}

/// Creates a system with the smallest set of packages and `include` in the directory `new`.
fn debootstrap(new: &Path, include: &str) -> Outcome {
    if !is_root() {
        return Err(
            "the tests need small Debian systems, which root creates: run `cargo xtask setup` as \
             root"
                .into(),
        );
    }
    remove(new)?;
    let parent = new.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).map_err(|e| failed(parent, &e))?;
    let (suite, archive) = archive();
    println!("creating a small Debian system, once, from {archive}");
    // In a mount namespace, so that an interrupted run leaves no mount in the directory.
    run(Command::new("unshare")
        .args(["--mount", "--", "debootstrap", "--variant=minbase"])
        .arg(format!("--include={include}"))
        .arg(suite)
        .arg(new)
        .arg(archive)
        .stdout(Stdio::null()))
}

/// Removes what a system does not need: what was downloaded to create it.
fn forget_downloads(system: &Path) -> Outcome {
    for downloads in ["var/cache/apt/archives", "var/lib/apt/lists"] {
        let downloads = system.join(downloads);
        remove(&downloads)?;
        let partial = downloads.join("partial");
        std::fs::create_dir_all(&partial).map_err(|e| failed(&partial, &e))?;
    }
    Ok(())
}

/// Returns the release and the archive of Debian or Ubuntu that this machine is configured for.
fn archive() -> (String, String) {
    let format = "$(CODENAME) $(COMPONENT) $(REPO_URI)";
    let listed = Command::new("apt-get")
        .args(["indextargets", "--format", format, "Created-By: Packages"])
        .output();
    let listed = listed.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned());
    let own = listed.ok().and_then(|listed| own_archive(&listed));
    own.unwrap_or_else(|| (ARCHIVE.0.to_owned(), ARCHIVE.1.to_owned()))
}

/// Finds the archive of the release itself, not that of its updates or of other vendors, among
/// lines with a release, a component and an address.
fn own_archive(listed: &str) -> Option<(String, String)> {
    listed.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (suite, component, uri) = (words.next()?, words.next()?, words.next()?);
        let directory = uri.trim_end_matches('/').rsplit('/').next();
        let is_own = component == "main"
            && !suite.contains('-')
            && uri.starts_with("http")
            && matches!(directory, Some("debian" | "ubuntu"));
        is_own.then(|| (suite.to_owned(), uri.to_owned()))
    })
}

/// Removes a directory, if it exists.
fn remove(dir: &Path) -> Outcome {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(dir, &e)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clean_system_is_of_the_release_of_this_machine() {
        let listed = "nodistro main https://deb.nodesource.com/node_20.x/\n\
                      bookworm-updates main http://deb.debian.org/debian/\n\
                      bookworm contrib http://deb.debian.org/debian/\n\
                      bookworm main http://deb.debian.org/debian/\n";
        let own = ("bookworm".into(), "http://deb.debian.org/debian/".into());
        assert_eq!(own_archive(listed), Some(own));
        assert_eq!(own_archive(""), None);
    }
}
