//! The kernel of a guest and the modules that the guest needs.
//!
//! **Invariant:** a module comes after all modules that it depends on, so they can be loaded in
//! order. Dependencies are read from the modules themselves, so an unpacked package that was never
//! installed suffices.

use super::initramfs::read;
use bench_core::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Maximum depth of the search for modules, and of dependencies.
const DEEP: usize = 16;
const WHICH: &str =
    "select a kernel with --guest-kernel, for example that of Debian's package linux-image-amd64";

/// A kernel and the location of its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Kernel image that a boot loader would load.
    pub image: PathBuf,
    /// Directory that contains the modules, possibly in subdirectories.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds the kernel `asked` for, else the running one, else the newest in /boot.
    ///
    /// Searches for modules in `modules` next to the image, in `../lib/modules/RELEASE` and in
    /// `/lib/modules/RELEASE`.
    ///
    /// # Errors
    /// [`Error::Spec`] if there is no kernel, or it has no modules.
    pub fn find(asked: Option<&Path>) -> Result<Kernel> {
        let image = match asked {
            Some(image) => std::path::absolute(image).unwrap_or_else(|_| image.to_owned()),
            None => installed(Path::new("/boot"))?,
        };
        // Check readability now: in /boot the image may be readable only by root.
        std::fs::File::open(&image).map_err(|e| {
            Error::Spec(format!(
                "cannot read the guest kernel {}: {e}; {WHICH}",
                image.display()
            ))
        })?;
        let folder = image.parent().unwrap_or(Path::new("/"));
        let name = image.file_name().and_then(|name| name.to_str());
        let release = name.and_then(|name| name.strip_prefix("vmlinuz-"));
        let mut places = vec![folder.join("modules")];
        if let Some(release) = release {
            places.push(folder.join("../lib/modules").join(release));
            places.push(Path::new("/lib/modules").join(release));
        }
        match places.iter().find(|place| place.is_dir()) {
            Some(modules) => Ok(Kernel {
                modules: modules.clone(),
                image,
            }),
            None => {
                let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
                Err(Error::Spec(format!(
                    "the guest kernel {} has no modules: no directory {}",
                    image.display(),
                    places.join(" or ")
                )))
            }
        }
    }

    /// Reads the named modules with their dependencies: names and contents, in load order.
    /// Modules built into the kernel are omitted.
    pub(super) fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = BTreeMap::new();
        let mut builtin = String::new();
        find(&self.modules, DEEP, &mut files, &mut builtin);
        let mut found = Found {
            kernel: self,
            files,
            builtin: builtin
                .lines()
                .filter_map(|line| module(Path::new(line)))
                .collect(),
            order: Vec::new(),
        };
        names.iter().try_for_each(|name| found.add(name, DEEP))?;
        Ok(found.order)
    }
}

/// Finds the image of the running kernel if present, else the newest.
fn installed(boot: &Path) -> Result<PathBuf> {
    let uname = rustix::system::uname();
    let running = boot.join(format!("vmlinuz-{}", uname.release().to_string_lossy()));
    if running.exists() {
        return Ok(running);
    }
    let entries = std::fs::read_dir(boot).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(b"vmlinuz-")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| {
            let boot = boot.display();
            Error::Spec(format!("no guest kernel found in {boot}; {WHICH}"))
        })
}

/// Derives the module name from a file `NAME.ko`, possibly compressed, with underscores as the
/// kernel spells it.
fn module(path: &Path) -> Option<String> {
    let (name, end) = path.file_name()?.to_str()?.split_once(".ko")?;
    matches!(end, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

fn find(folder: &Path, deep: usize, files: &mut BTreeMap<String, PathBuf>, builtin: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Symbolic links to sources are not followed.
        if deep > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&path, deep - 1, files, builtin);
        } else if path.ends_with("modules.builtin") {
            builtin.push_str(&std::fs::read_to_string(&path).unwrap_or_default());
        } else if let Some(name) = module(&path) {
            files.insert(name, path);
        }
    }
}

struct Found<'a> {
    kernel: &'a Kernel,
    files: BTreeMap<String, PathBuf>,
    builtin: Vec<String>,
    order: Vec<(String, Vec<u8>)>,
}

impl Found<'_> {
    fn add(&mut self, name: &str, deep: usize) -> Result<()> {
        let name = name.replace('-', "_");
        if self.builtin.contains(&name) || self.order.iter().any(|(known, _)| *known == name) {
            return Ok(());
        }
        let Some(path) = self.files.get(&name).filter(|_| deep > 0) else {
            return Err(Error::Spec(format!(
                "the guest kernel {} has no module {name}; {WHICH}",
                self.kernel.image.display()
            )));
        };
        let content = unpacked(path)?;
        for needed in depends(&content) {
            self.add(&needed, deep - 1)?;
        }
        self.order.push((name, content));
        Ok(())
    }
}

/// Reads and decompresses a module file.
fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return read(path),
    };
    let failed = |detail: String| Error::Program {
        what: format!("{program} -dc {}", path.display()),
        detail,
    };
    let ran = Command::new(program)
        .arg("-dc")
        .arg(path)
        .stdin(Stdio::null())
        .output();
    let ran = ran.map_err(|e| failed(e.to_string()))?;
    if ran.status.success() {
        Ok(ran.stdout)
    } else {
        Err(failed(String::from_utf8_lossy(&ran.stderr).into_owned()))
    }
}

/// Parses the dependencies in a module's section `.modinfo`: `depends=A,B` between NUL bytes.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let names = module[at + key.len()..].split(|byte| *byte == 0).next();
    let names = String::from_utf8_lossy(names.unwrap_or_default());
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn modules_stand_behind_what_they_depend_on_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (boot, modules) = (dir.path().join("boot"), dir.path().join("lib/modules/6.0"));
        fs::create_dir(&boot).unwrap();
        fs::create_dir_all(modules.join("kernel/net")).unwrap();
        let image = boot.join("vmlinuz-6.0");
        fs::write(&image, "").unwrap();
        let put = |name: &str, text: &str| fs::write(modules.join(name), text).unwrap();
        put("kernel/top-most.ko", "x\0depends=middle,low\0y");
        put("kernel/net/middle.ko", "\0depends=low\0");
        put("kernel/low.ko", "\0depends=\0");
        put("kernel/round.ko", "\0depends=round\0");
        put("modules.builtin", "kernel/fs/inside.ko\n");
        let kernel = Kernel::find(Some(&image)).unwrap();
        let names = |asked: &[&str]| {
            let found = kernel.modules(asked);
            found.map(|all| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        let order = names(&["inside", "top_most", "low"]).unwrap();
        assert_eq!(order, ["low", "middle", "top_most"]);
        assert!(
            names(&["absent"])
                .unwrap_err()
                .to_string()
                .contains("absent")
        );
        assert!(
            names(&["round"]).is_err(),
            "a module that depends on itself"
        );
    }

    #[test]
    fn the_newest_kernel_is_taken_and_none_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let none = installed(dir.path()).unwrap_err().to_string();
        assert!(none.contains("--guest-kernel"), "{none}");
        for (name, seconds) in [("vmlinuz-2", 2), ("vmlinuz-10", 10), ("vmlinuz-9", 9)] {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        }
        assert!(installed(dir.path()).unwrap().ends_with("vmlinuz-10"));
    }
}
