//! The package for Debian and its derivatives, by dpkg-deb(1).

use super::elf::Program;
use super::{
    Outcome, Release, compress, copy, create, failed, fill, list, output, run_command, write,
};
use std::path::Path;
use std::process::Command;

/// Maintainer scripts in `dist/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Builds the package and returns the name of its file.
pub fn build(release: &Release, program: &Program) -> Result<String, String> {
    let root = release.work.join("deb");
    create(&root)?;
    copy_tree(&release.tree(), &root)?;
    let sources = release.root.join("dist/debian");
    let mit = release.root.join("LICENSE-MIT");
    let mit = std::fs::read_to_string(&mit).map_err(|e| failed("cannot read", &mit, &e))?;
    let copyright = fill(&sources.join("copyright"), &[("MIT", &paragraph(&mit))])?;
    write(
        &root.join("usr/share/doc/evfs/copyright"),
        copyright.as_bytes(),
    )?;
    let (version, arch) = (version(release), architecture());
    let changelog = fill(
        &sources.join("changelog"),
        &[("VERSION", &version), ("DATE", &release.date_as("-R")?)],
    )?;
    let changelog_file = root.join("usr/share/doc/evfs/changelog.Debian");
    write(&changelog_file, changelog.as_bytes())?;
    compress(&[changelog_file])?;
    copy(
        &sources.join("lintian-overrides"),
        &root.join("usr/share/lintian/overrides/evfs"),
    )?;
    let control = fill(
        &sources.join("control"),
        &[
            ("VERSION", &version),
            ("ARCHITECTURE", arch),
            ("DEPENDS", &depends(program)?),
            ("SIZE", &size(&root)?.to_string()),
        ],
    )?;
    let sums = sums(&root)?;
    let debian = root.join("DEBIAN");
    write(&debian.join("control"), control.as_bytes())?;
    write(&debian.join("md5sums"), sums.as_bytes())?;
    for script in SCRIPTS {
        copy(&sources.join(script), &debian.join(script))?;
    }
    release.normalize(&root)?;
    let file = format!("evfs_{version}_{arch}.deb");
    run_command(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz"])
            .arg(format!("-z{}", release.level))
            .arg("--build")
            .arg(&root)
            .arg(release.out.join(&file))
            .stdout(std::process::Stdio::null())
            .env("SOURCE_DATE_EPOCH", release.date.to_string())
            // The number of threads changes the result.
            .env("DPKG_DEB_THREADS_MAX", "1"),
    )?;
    Ok(file)
}

/// Copies the contents of a directory, with links and modes.
pub fn copy_tree(from: &Path, to: &Path) -> Outcome {
    let mut cp = Command::new("cp");
    run_command(cp.arg("--archive").arg(from.join(".")).arg(to))
}

/// Returns the version of the package: that of the program, and the revision of its packaging.
fn version(release: &Release) -> String {
    format!("{}-1", release.package_version())
}

/// Returns Debian's name for this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Lists the packages that the program needs.
fn depends(program: &Program) -> Result<String, String> {
    let mut depends = vec![format!("libc6 (>= {})", program.glibc())];
    for library in &program.libraries {
        match library.as_str() {
            "libc.so.6" | "libm.so.6" => {}
            loader if loader.starts_with("ld-linux") => {}
            "libgcc_s.so.1" => depends.push("libgcc-s1".into()),
            other => {
                return Err(format!(
                    "the program needs `{other}`; add its package to xtask/src/dist/deb.rs"
                ));
            }
        }
    }
    depends.push("fuse3".into());
    Ok(depends.join(", "))
}

/// Returns the size of the installed files in KiB. Each file begins a new KiB, and directories and
/// links count as one, on every file system.
fn size(path: &Path) -> Result<u64, String> {
    let what = path.symlink_metadata();
    let what = what.map_err(|e| failed("cannot read", path, &e))?;
    if what.is_file() {
        return Ok(what.len().div_ceil(1024));
    }
    let mut all = 1;
    if what.is_dir() {
        for entry in list(path)? {
            all += size(&entry)?;
        }
    }
    Ok(all)
}

/// Returns the checksums of all files, for `dpkg --verify`.
fn sums(root: &Path) -> Result<String, String> {
    let script = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum --";
    output(Command::new("sh").args(["-c", script]).current_dir(root))
}

/// Formats a text as a field of several lines.
fn paragraph(text: &str) -> String {
    let line = |line: &str| match line.trim() {
        "" => String::from(" ."),
        text => format!(" {text}"),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(libraries: &[&str]) -> Program {
        Program {
            libraries: libraries.iter().map(|name| (*name).to_owned()).collect(),
            glibc: (2, 34),
            build_id: "12".into(),
        }
    }

    #[test]
    fn libraries_become_packages_and_an_unknown_one_is_named() {
        let usual = program(&["libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"]);
        assert_eq!(
            depends(&usual).unwrap(),
            "libc6 (>= 2.34), libgcc-s1, fuse3"
        );
        let error = depends(&program(&["libssl.so.3"])).unwrap_err();
        assert!(error.contains("`libssl.so.3`"), "{error}");
    }

    #[test]
    fn a_pre_release_precedes_its_release() {
        let release = |version: &str| Release {
            root: "/".into(),
            version: version.into(),
            date: 0,
            level: 0,
            out: "/".into(),
            work: "/".into(),
        };
        assert_eq!(version(&release("1.2.3")), "1.2.3-1");
        assert_eq!(version(&release("1.2.3-rc.1")), "1.2.3~rc.1-1");
    }

    #[test]
    fn the_size_does_not_depend_on_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), [0; 1025]).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(size(dir.path()), Ok(4));
    }

    #[test]
    fn empty_lines_of_a_field_have_a_period() {
        assert_eq!(paragraph("a\n\nb\n"), " a\n .\n b");
    }
}
