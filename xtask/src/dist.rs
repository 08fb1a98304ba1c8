//! Packages of the program: `cargo xtask dist` makes a Debian package, an RPM package, a tarball,
//! debug symbols, a bill of materials and checksums.
//!
//! The same sources, toolchain and date yield the same bytes. The program contains no directory of
//! the machine that built it (`build`), and all archives have fixed owners, modes, dates and order.
//! `--verify` builds everything again elsewhere and compares.

mod build;
mod deb;
mod elf;
mod licenses;
mod materials;
mod rpm;
mod sbom;
mod tarball;
mod tree;

use crate::{Outcome, run as run_command};
use materials::Materials;
use std::path::{Path, PathBuf};
use std::process::Command;

const USAGE: &str = "usage: cargo xtask dist [--binary PATH] [--out DIR] [--level N] [--verify]";

/// Default level of compression.
const LEVEL: u32 = 6;

/// File with the checksums of all others.
const SUMS: &str = "SHA256SUMS";

/// Command line of the task.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Program to pack instead of a new build.
    binary: Option<PathBuf>,
    out: Option<PathBuf>,
    /// Level of compression, from 0 to 9.
    level: u32,
    verify: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let mut options = Options {
            binary: None,
            out: None,
            level: LEVEL,
            verify: false,
        };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut value = || {
                let value = rest.next();
                value.ok_or_else(|| format!("`{arg}` needs a value; {USAGE}"))
            };
            match arg.as_str() {
                "--binary" => options.binary = Some(PathBuf::from(value()?)),
                "--out" => options.out = Some(PathBuf::from(value()?)),
                "--level" => {
                    let level = value()?.parse::<u32>().ok().filter(|level| *level <= 9);
                    options.level = level.ok_or("`--level` is a number from 0 to 9")?;
                }
                "--verify" => options.verify = true,
                _ => return Err(format!("unknown argument `{arg}`; {USAGE}")),
            }
        }
        if options.verify && options.binary.is_some() {
            return Err("`--verify` builds the program itself; omit `--binary`".into());
        }
        Ok(options)
    }
}

/// One set of packages.
struct Release {
    /// Root of the sources.
    root: PathBuf,
    version: String,
    /// Date of all files in the packages, in seconds since 1970.
    date: u64,
    level: u32,
    /// Directory of the packages.
    out: PathBuf,
    /// Directory of intermediate files.
    work: PathBuf,
}

/// Makes the packages that `args` ask for, and prints their names.
///
/// # Errors
/// The program cannot be built, a tool of the packages is missing or fails, or with `--verify`, the
/// second build differs from the first one.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let options = Options::parse(args)?;
    let date = date(root)?;
    let out = absolute(&options.out.unwrap_or_else(|| root.join("target/packages")))?;
    let binary = match &options.binary {
        Some(binary) => absolute(binary)?,
        None => build::program(root, &build::cargo_home()?, date)?,
    };
    make(root, &binary, &out, date, options.level)?;
    if options.verify {
        let again = build::Elsewhere::prepare(root)?;
        let binary = build::program(&again.root, &again.cargo_home, date)?;
        let second = again.dir.join("dist");
        make(&again.root, &binary, &second, date, options.level)?;
        compare(&out, &second)?;
        again.remove()?;
        println!("a second build in another directory has the same bytes");
    }
    Ok(())
}

/// Packs `binary` and the other files of the sources in `root`.
fn make(root: &Path, binary: &Path, out: &Path, date: u64, level: u32) -> Outcome {
    let materials = Materials::of(root)?;
    let work = out.with_extension("work");
    let release = Release {
        root: root.to_owned(),
        version: materials.version().to_owned(),
        date,
        level,
        out: out.to_owned(),
        work,
    };
    release.prepare()?;
    let program = elf::examine(binary)?;
    let (stripped, symbols) = (release.work.join("evfs"), release.work.join("evfs.debug"));
    elf::split(binary, &stripped, &symbols)?;
    let bill = sbom::document(
        &materials,
        &release.date_as("+%Y-%m-%dT%H:%M:%SZ")?,
        &build::compiler()?,
    );
    tree::stage(&release, &stripped, &licenses::texts(&materials)?, &bill)?;
    let bill_file = format!("evfs-{}.cdx.json", release.version);
    write(&release.out.join(&bill_file), bill.as_bytes())?;
    let mut files = vec![
        bill_file,
        deb::build(&release, &program)?,
        rpm::build(&release)?,
        tarball::build(&release, &program)?,
        tarball::build_symbols(&release, &program, &symbols)?,
    ];
    files.sort();
    let sums = output(
        Command::new("sha256sum")
            .arg("--")
            .args(&files)
            .current_dir(out),
    )?;
    write(&out.join(SUMS), sums.as_bytes())?;
    remove(&release.work)?;
    for file in files.iter().map(String::as_str).chain([SUMS]) {
        println!("{}", out.join(file).display());
    }
    Ok(())
}

impl Release {
    /// Creates the directories, and removes the files of an earlier run.
    fn prepare(&self) -> Outcome {
        remove(&self.work)?;
        create(&self.work)?;
        create(&self.out)?;
        let sums = std::fs::read_to_string(self.out.join(SUMS)).unwrap_or_default();
        let listed = sums.lines().filter_map(|line| line.split_once("  "));
        let listed = listed
            .map(|(_, name)| name)
            .filter(|name| !name.contains('/'));
        for name in listed.chain([SUMS]) {
            let file = self.out.join(name);
            if file.is_file() {
                std::fs::remove_file(&file).map_err(|e| failed("cannot remove", &file, &e))?;
            }
        }
        Ok(())
    }

    /// Directory with the files of the packages, as they are installed.
    fn tree(&self) -> PathBuf {
        self.work.join("tree")
    }

    /// Returns the version in the form of packages, in which a pre-release precedes its release.
    fn package_version(&self) -> String {
        self.version.replace('-', "~")
    }

    /// Returns the date in the form that an option of date(1) names.
    fn date_as(&self, format: &str) -> Result<String, String> {
        let mut date = Command::new("date");
        date.args(["-u", "-d", &format!("@{}", self.date), format]);
        let text = output(date.env("LC_ALL", "C"))?;
        Ok(text.trim().to_owned())
    }

    /// Sets the modes and dates in a directory, whose files depend on the user's umask and the time.
    fn normalize(&self, dir: &Path) -> Outcome {
        set_modes(dir)?;
        let date = format!("@{}", self.date);
        let mut touch = Command::new("find");
        touch.arg(dir);
        touch.args(["-exec", "touch", "--no-dereference", "--date", &date]);
        run_command(touch.args(["{}", "+"]))
    }

    /// Packs a directory in `work` into `archive`, with fixed owners, dates and order.
    fn archive(&self, dir: &str, archive: &str, compressor: &str) -> Outcome {
        run_command(
            Command::new("tar")
                .args(["--create", "--format=gnu", "--sort=name", "--numeric-owner"])
                .args(["--owner=0", "--group=0"])
                .arg(format!("--mtime=@{}", self.date))
                .arg(format!("--use-compress-program={compressor}"))
                .arg("--file")
                .arg(self.out.join(archive))
                .arg("--directory")
                .arg(&self.work)
                .arg(dir),
        )
    }
}

/// Returns the date of the packages: `SOURCE_DATE_EPOCH`, or else that of the last commit.
fn date(root: &Path) -> Result<u64, String> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut log = Command::new("git");
            log.arg("-C").arg(root).args(["log", "-1", "--format=%ct"]);
            output(&mut log).map_err(|why| {
                format!("no date for the packages: {why}; set SOURCE_DATE_EPOCH to seconds")
            })?
        }
    };
    let text = text.trim();
    let date = text.parse();
    date.map_err(|_| format!("SOURCE_DATE_EPOCH: `{text}` is not a number of seconds since 1970"))
}

/// Fails with the names of the packages that differ between two directories.
fn compare(first: &Path, second: &Path) -> Outcome {
    let read = |dir: &Path| {
        let file = dir.join(SUMS);
        std::fs::read_to_string(&file).map_err(|e| failed("cannot read", &file, &e))
    };
    let different = different(&read(first)?, &read(second)?);
    if different.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the build is not reproducible: {} of {} and {} differ; `diffoscope` shows the difference",
        different.join(", "),
        first.display(),
        second.display()
    ))
}

/// Returns the names of files that only one of two lists has, or that differ.
fn different(first: &str, second: &str) -> Vec<String> {
    let only = |one: &str, other: &str| -> Vec<String> {
        let lines = one
            .lines()
            .filter(|line| !other.lines().any(|l| l == *line));
        let names = lines.filter_map(|line| line.split_once("  "));
        names.map(|(_, name)| name.to_owned()).collect()
    };
    let mut names = only(first, second);
    names.extend(only(second, first));
    names.sort();
    names.dedup();
    names
}

/// Replaces `@NAME@` in a template; a name without a value is an error.
fn fill(template: &Path, values: &[(&str, &str)]) -> Result<String, String> {
    let text = std::fs::read_to_string(template);
    let mut text = text.map_err(|e| failed("cannot read", template, &e))?;
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    let is_name =
        |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    match text.split('@').skip(1).find(is_name) {
        Some(name) => Err(format!("{}: no value for @{name}@", template.display())),
        None => Ok(text),
    }
}

/// Sets the mode of directories and programs to 755, and that of other files to 644.
fn set_modes(path: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let what = path.symlink_metadata();
    let what = what.map_err(|e| failed("cannot read", path, &e))?;
    if what.is_symlink() {
        return Ok(());
    }
    let is_program = what.is_file() && what.permissions().mode() & 0o111 != 0;
    let mode = if what.is_dir() || is_program {
        0o755
    } else {
        0o644
    };
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(|e| failed("cannot set the mode of", path, &e))?;
    if what.is_dir() {
        for entry in list(path)? {
            set_modes(&entry)?;
        }
    }
    Ok(())
}

/// Lists the paths in a directory, sorted.
fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<std::io::Result<Vec<_>>>()
    });
    let mut paths = entries.map_err(|e| failed("cannot list", dir, &e))?;
    paths.sort();
    Ok(paths)
}

/// Runs a command to its end and returns its standard output; the error contains its command line
/// and what it wrote to standard error.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().display().to_string();
    let done = command.output().map_err(|e| format!("{program}: {e}"))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{command:?}: {}: {}", done.status, why.trim()));
    }
    String::from_utf8(done.stdout).map_err(|e| format!("{program}: {e}"))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| failed("cannot find", path, &e))
}

fn create(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).map_err(|e| failed("cannot create", dir, &e))
}

/// Compresses files, whose names then end in `.gz`.
fn compress(files: &[PathBuf]) -> Outcome {
    let mut gzip = Command::new("gzip");
    run_command(gzip.args(["-9", "--no-name", "--"]).args(files))
}

/// Removes a directory, if it exists.
fn remove(dir: &Path) -> Outcome {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("cannot remove", dir, &e)),
        _ => Ok(()),
    }
}

/// Writes a file, and creates its directory.
fn write(file: &Path, bytes: &[u8]) -> Outcome {
    create(file.parent().unwrap_or(Path::new("/")))?;
    std::fs::write(file, bytes).map_err(|e| failed("cannot write", file, &e))
}

/// Copies a file with its mode, and creates the directory of the copy.
fn copy(from: &Path, to: &Path) -> Outcome {
    create(to.parent().unwrap_or(Path::new("/")))?;
    let copied = std::fs::copy(from, to).map(|_| ());
    copied.map_err(|e| failed("cannot copy", from, &e))
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args)
    }

    #[test]
    fn options_are_parsed_and_mistakes_are_named() {
        let plain = parse("").unwrap();
        assert_eq!((plain.level, plain.verify), (LEVEL, false));
        let all = parse("--binary a --out b --level 0").unwrap();
        assert_eq!(all.binary, Some("a".into()));
        assert_eq!((all.out, all.level), (Some("b".into()), 0));
        for (line, word) in [
            ("--level 10", "--level"),
            ("--out", "`--out`"),
            ("--fast", "`--fast`"),
            ("--verify --binary a", "--binary"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn files_that_differ_are_named() {
        let first = "1  a\n2  b\n3  c\n";
        assert!(different(first, first).is_empty());
        assert_eq!(different(first, "1  a\n4  b\n"), ["b", "c"]);
        assert_eq!(different("", "1  a\n"), ["a"]);
    }

    #[test]
    fn a_template_needs_every_value() {
        let dir = tempfile::tempdir().unwrap();
        let template = dir.path().join("t");
        std::fs::write(&template, "Version: @VERSION@ evfs@data a@b@c\n").unwrap();
        let text = fill(&template, &[("VERSION", "1")]).unwrap();
        assert_eq!(text, "Version: 1 evfs@data a@b@c\n");
        assert!(fill(&template, &[]).unwrap_err().contains("@VERSION@"));
    }

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (file, program) = (dir.path().join("d/f"), dir.path().join("d/p"));
        write(&file, b"").unwrap();
        write(&program, b"").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("l")).unwrap();
        let set =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
        set(&file, 0o600).unwrap();
        set(&program, 0o700).unwrap();
        set_modes(dir.path()).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&file), mode(&program)), (0o644, 0o755));
        assert_eq!(mode(&dir.path().join("d")), 0o755);
    }
}
