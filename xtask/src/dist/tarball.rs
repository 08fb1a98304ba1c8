//! Archives for systems without packages, and for debuggers.

use super::deb::copy_tree;
use super::elf::Program;
use super::{Release, copy, create, fill, write};
use std::path::Path;

/// Builds the archive with the files of the packages and an installer, and returns its name.
pub fn build(release: &Release, program: &Program) -> Result<String, String> {
    let name = name(release);
    let dir = release.work.join(&name);
    create(&dir)?;
    copy_tree(&release.tree().join("usr"), &dir)?;
    let sources = release.root.join("dist/tarball");
    let glibc = program.glibc();
    let values = [
        ("VERSION", release.version.as_str()),
        ("ARCHITECTURE", std::env::consts::ARCH),
        ("GLIBC", &glibc),
    ];
    let readme = fill(&sources.join("README"), &values)?;
    write(&dir.join("README"), readme.as_bytes())?;
    copy(&sources.join("install.sh"), &dir.join("install.sh"))?;
    release.normalize(&dir)?;
    let archive = format!("{name}.tar.gz");
    // Every system has gzip, whose lowest level is 1.
    let compressor = format!("gzip --no-name -{}", release.level.max(1));
    release.archive(&name, &archive, &compressor)?;
    Ok(archive)
}

/// Builds the archive of the debug symbols, at the place in which debuggers search for them, and
/// returns its name.
pub fn build_symbols(
    release: &Release,
    program: &Program,
    symbols: &Path,
) -> Result<String, String> {
    let (first, rest) = program.build_id.split_at(2);
    let file = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    let dir = format!("{}-debug", name(release));
    let place = release.work.join(&dir);
    copy(symbols, &place.join(file))?;
    release.normalize(&place)?;
    let archive = format!("{dir}.tar.xz");
    // The number of threads changes the result.
    let compressor = format!("xz --threads=1 -{}", release.level);
    release.archive(&dir, &archive, &compressor)?;
    Ok(archive)
}

fn name(release: &Release) -> String {
    let (version, arch) = (&release.version, std::env::consts::ARCH);
    format!("evfs-{version}-{arch}-linux-gnu")
}
