//! Initial RAM file system of a guest: this program with its shared libraries, and kernel modules.
//!
//! The archive is cpio(5) `newc`, as the kernel's `early-userspace/buffer-format` requires. Debug
//! information is stripped from programs: it can be most of a file, and all of it would occupy the
//! guest's memory.

use bench_core::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
/// Maximum file size in the archive: its field has eight hexadecimal digits.
const FILE_MAX: usize = u32::MAX as usize;

/// An archive under construction.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    number: u32,
    folders: Vec<PathBuf>,
}

impl Archive {
    /// Adds a file with its parent directories; `path` is absolute.
    pub(super) fn file(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        if content.len() > FILE_MAX {
            let name = path.display();
            return Err(Error::Spec(format!(
                "{name} is too large for the guest's initramfs"
            )));
        }
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(path, PROGRAM, content);
        Ok(())
    }

    /// Adds a directory with its parents, unless already present.
    pub(super) fn folder(&mut self, path: &Path) {
        if path == Path::new("/") || self.folders.iter().any(|known| known == path) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.folders.push(path.to_owned());
        self.entry(path, FOLDER, &[]);
    }

    /// Finishes the archive and returns its bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) {
        let name = path.as_os_str().as_encoded_bytes();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        self.number += 1;
        let links = 1;
        // Inode, mode, uid, gid, links, mtime, size, device (2), rdev (2), name length, checksum.
        let fields = [
            self.number,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Other programs that workloads need in a guest: `cat` for the workload `micro`.
const PROGRAMS: [&str; 1] = ["cat"];

/// Adds this program as `/init`, [`PROGRAMS`] in `/bin`, and the shared libraries of all of them at
/// their paths on the host.
pub(super) fn programs(archive: &mut Archive) -> Result<()> {
    let own = std::env::current_exe();
    let own =
        own.map_err(|e| Error::Spec(format!("cannot locate the executable of this program: {e}")))?;
    let mut all = vec![(own, PathBuf::from("/init"))];
    for name in PROGRAMS {
        all.push((installed(name)?, Path::new("/bin").join(name)));
    }
    let mut needed = BTreeSet::new();
    for (program, place) in &all {
        archive.file(place, &slim(read(program)?))?;
        needed.extend(libraries(program)?);
    }
    for library in needed {
        archive.file(&library, &slim(read(&library)?))?;
    }
    Ok(())
}

fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            Error::Spec(format!(
                "a guest needs the program {name}, which is not in PATH"
            ))
        })
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        Error::Spec(format!(
            "cannot read {}, which a guest needs: {e}",
            path.display()
        ))
    })
}

/// Lists the shared libraries of a program as listed by ldd(1).
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let failed = |detail: String| Error::Program {
        what: "ldd".into(),
        detail,
    };
    let said = Command::new("ldd").arg(program).output();
    let said = said.map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&said.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(failed(line.trim().to_owned()));
    }
    Ok(libraries_of(&text))
}

/// Parses lines of the form `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`; skips entries without a
/// file.
fn libraries_of(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (left, _) = line.rsplit_once(" (")?;
        let path = left.rsplit_once("=> ").map_or(left, |(_, path)| path);
        let path = path.trim();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    text.lines().filter_map(path).collect()
}

/// Strips a 64-bit ELF file to the bytes that program headers refer to; returns any other file
/// unchanged.
///
/// ELF-64 Object File Format: the header has the offset of program headers at 32, of sections at
/// 40, and the size and number of program headers at 54 and 56; a program header has its offset at
/// 8 and its size at 32.
fn slim(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(end) = loaded_end(&file) {
        file.truncate(end);
        // Section headers: offset, entry size, count, index of the name table.
        file[40..48].fill(0);
        file[58..64].fill(0);
    }
    file
}

fn loaded_end(file: &[u8]) -> Option<usize> {
    let short = |at: usize| {
        let bytes = file.get(at..at.checked_add(2)?)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    };
    let long = |at: usize| {
        let bytes = file.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    // 64 bits, little-endian.
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (long(32)?, short(54)?, short(56)?);
    let mut end = first.checked_add(size.checked_mul(count)?)?.max(64);
    for n in 0..count {
        let header = first.checked_add(n * size)?;
        let last = long(header.checked_add(8)?)?.checked_add(long(header.checked_add(32)?)?)?;
        end = end.max(last);
    }
    (end <= file.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    mod needs_peer {
        use super::*;

        #[test]
        fn cpio_reads_the_archive() {
            test_support::installed("cpio");
            let mut archive = Archive::default();
            archive.folder(Path::new("/proc"));
            archive.file(Path::new("/a/b/five"), b"12345").unwrap();
            archive.file(Path::new("/a/b/none"), b"").unwrap();
            let dir = tempfile::tempdir().unwrap();
            let packed = dir.path().join("packed");
            std::fs::write(&packed, archive.finish()).unwrap();
            let script = "cpio -idm --quiet < packed && find proc a | sort";
            let ran = Command::new("sh")
                .args(["-c", script])
                .current_dir(&dir)
                .output();
            let ran = ran.unwrap();
            let words = String::from_utf8(ran.stdout).unwrap();
            assert_eq!(words, "a\na/b\na/b/five\na/b/none\nproc\n");
            assert_eq!(
                std::fs::read(dir.path().join("a/b/five")).unwrap(),
                b"12345"
            );
        }
    }

    #[test]
    fn a_program_still_runs_without_what_debuggers_read() {
        let own = std::env::current_exe().unwrap();
        let whole = std::fs::read(&own).unwrap();
        let less = slim(whole.clone());
        assert!(less.len() < whole.len());
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        std::fs::write(&copy, less).unwrap();
        std::fs::set_permissions(&copy, std::fs::metadata(&own).unwrap().permissions()).unwrap();
        let ran = Command::new(&copy).arg("--list").output().unwrap();
        assert!(ran.status.success() && !ran.stdout.is_empty());
    }

    #[test]
    fn what_is_no_program_stays_as_it_is() {
        let mut mad = b"\x7fELF\x02\x01".to_vec();
        mad.resize(64, 0xff);
        for file in [b"text".to_vec(), b"\x7fELF\x02\x01".to_vec(), mad] {
            assert_eq!(slim(file.clone()), file);
        }
    }

    #[test]
    fn libraries_are_those_with_a_path() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so (0x7f)\n";
        let paths = ["/lib/libc.so.6", "/lib64/ld.so"].map(PathBuf::from);
        assert_eq!(libraries_of(text), paths);
        assert!(libraries_of("\tstatically linked\n").is_empty());
    }
}
