//! The files of the packages, laid out as they are installed.

use super::{Outcome, Release, compress, copy, create, failed, list, output, run_command, write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names under which mount(8) and umount(8) start the program.
const HELPERS: [&str; 6] = [
    "mount.evfs",
    "mount.fuse.evfs",
    "mount.fuseblk.evfs",
    "umount.evfs",
    "umount.fuse.evfs",
    "umount.fuseblk.evfs",
];

/// Files that are copied, and their places in the package.
const COPIED: [(&str, &str); 10] = [
    ("dist/ocf/evfs", "usr/lib/ocf/resource.d/evfs/evfs"),
    (
        "dist/systemd/evfs-cluster.service",
        "usr/lib/systemd/system/evfs-cluster.service",
    ),
    (
        "dist/systemd/evfs.service",
        "usr/lib/systemd/system/evfs.service",
    ),
    (
        "dist/systemd/evfs@.service",
        "usr/lib/systemd/system/evfs@.service",
    ),
    ("dist/grafana/evfs.json", "usr/share/evfs/grafana/evfs.json"),
    (
        "dist/prometheus/evfs.rules.yml",
        "usr/share/evfs/prometheus/evfs.rules.yml",
    ),
    ("README.md", "usr/share/doc/evfs/README.md"),
    ("CHANGELOG.md", "usr/share/doc/evfs/changelog"),
    ("LICENSE-APACHE", "usr/share/doc/evfs/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/evfs/LICENSE-MIT"),
];

/// Directories of documentation; links between their pages stay valid.
const PAGES: [&str; 4] = ["docs/guide", "docs/errors", "docs/format", "docs/protocol"];

/// Shells, and the places of their completion scripts.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/evfs"),
    ("zsh", "usr/share/zsh/vendor-completions/_evfs"),
    ("fish", "usr/share/fish/vendor_completions.d/evfs.fish"),
];

/// Directory of documentation in the package.
const DOC: &str = "usr/share/doc/evfs";

/// Writes all files to the tree of `release`.
pub fn stage(release: &Release, program: &Path, licenses: &str, bill: &str) -> Outcome {
    let tree = release.tree();
    copy(program, &tree.join("usr/bin/evfs"))?;
    create(&tree.join("usr/sbin"))?;
    for name in HELPERS {
        let link = tree.join("usr/sbin").join(name);
        std::os::unix::fs::symlink("../bin/evfs", &link)
            .map_err(|e| failed("cannot create", &link, &e))?;
    }
    for (from, to) in COPIED {
        copy(&release.root.join(from), &tree.join(to))?;
    }
    let doc = tree.join(DOC);
    for pages in PAGES {
        for page in list(&release.root.join(pages))? {
            let name = page.file_name().unwrap_or_default();
            if page.extension().is_some_and(|extension| extension == "md") {
                copy(&page, &doc.join(pages).join(name))?;
            }
        }
    }
    for (shell, file) in COMPLETIONS {
        let script = output(own(program).args(["completions", shell]))?;
        write(&tree.join(file), script.as_bytes())?;
    }
    write(&doc.join("evfs.cdx.json"), bill.as_bytes())?;
    write(&doc.join("THIRD-PARTY-LICENSES"), licenses.as_bytes())?;
    let mut compressed = manual(program, &tree.join("usr/share/man"))?;
    compressed.extend(["changelog", "THIRD-PARTY-LICENSES"].map(|name| doc.join(name)));
    compress(&compressed)?;
    release.normalize(&tree)
}

/// Writes the manual pages, and returns their paths.
fn manual(program: &Path, dir: &Path) -> Result<Vec<PathBuf>, String> {
    run_command(
        own(program)
            .arg("man")
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null()),
    )?;
    let mut pages = Vec::new();
    for section in list(dir)? {
        pages.extend(list(&section)?);
    }
    Ok(pages)
}

/// Returns a command for the program that is packed, without settings of the user.
fn own(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C.UTF-8");
    command
}
