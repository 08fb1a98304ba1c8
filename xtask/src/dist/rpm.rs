//! The package for Fedora, openSUSE and others, by rpmbuild(8) from `dist/rpm/evfs.spec`.

use super::{Release, create, run_command};
use std::process::Command;

/// Builds the package and returns the name of its file.
pub fn build(release: &Release) -> Result<String, String> {
    let top = release.work.join("rpm");
    create(&top)?;
    let version = release.package_version();
    let file = format!("evfs-{version}-1.{}.rpm", std::env::consts::ARCH);
    let (tree, out) = (release.tree(), &release.out);
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet"]);
    for (name, value) in [
        ("evfs_version", version.as_str()),
        ("evfs_tree", &tree.display().to_string()),
        ("_topdir", &top.display().to_string()),
        ("_tmppath", &top.display().to_string()),
        ("_rpmdir", &out.display().to_string()),
        ("_rpmfilename", &file),
        ("_binary_payload", &format!("w{}.xzdio", release.level)),
        // Nothing of this machine, and no time of day.
        ("_buildhost", "localhost"),
        ("use_source_date_epoch_as_buildtime", "1"),
        ("clamp_mtime_to_source_date_epoch", "1"),
    ] {
        rpmbuild.arg("--define").arg(format!("{name} {value}"));
    }
    run_command(
        rpmbuild
            .arg(release.root.join("dist/rpm/evfs.spec"))
            .env("SOURCE_DATE_EPOCH", release.date.to_string())
            // Not the macros of the user.
            .env("HOME", &top)
            .env("LC_ALL", "C.UTF-8"),
    )?;
    Ok(file)
}
