//! Sides: parses them from a command line or file, and builds their targets with a name and facts.

use crate::afs::AfsCell;
use crate::device::{BenchDevice, BenchStack, StackKind};
use crate::error::program_error;
use crate::in_process::InProcessFs;
use crate::own_cell::OwnCell;
use crate::own_fs::OwnFs;
use crate::own_mount::OwnMount;
use crate::paths::{LunPaths, PathBench, PathConfig};
use crate::{kernel, orphans};
use bench_core::{Facts, Paths, Remount, Target, TargetKind};
use bench_load::RunEnvironment;
use numa::Topology;
use serde::{Deserialize, Serialize};
use stack::{Error, Existing, ProcessCache, Result, Settings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// A side without its job.
pub struct Built {
    pub name: String,
    pub target: Target,
    pub facts: Facts,
    pub before: Option<String>,
    pub after: Option<String>,
    pub surroundings: RunEnvironment,
    /// Parameters that this side sets.
    pub set: Vec<(String, String)>,
    /// Recipe from which a guest builds the side again.
    pub recipe: Recipe,
    /// The device under a stack, kept as long as the side.
    pub bench: Option<Rc<BenchDevice>>,
}

/// Recipe of a side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recipe {
    Machine,
    /// A directory.
    Folder(PathBuf),
    /// A stack of this name over a device; with files, with these settings of their cache.
    Stack(String, String),
}

impl Built {
    pub fn is_device(&self) -> bool {
        matches!(self.target.place, TargetKind::Device(_))
    }

    fn beneath(&mut self, paths: LowerPaths) {
        if let Some((paths, note)) = paths {
            self.target.paths = Some(paths);
            self.facts.note = Some(match self.facts.note.take() {
                Some(before) => format!("{before}; {note}"),
                None => note,
            });
        }
    }
}

/// Description of a side, in a file or after its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    folder: Option<PathBuf>,
    device: Option<PathBuf>,
    stack: Option<String>,
    /// Settings of the file cache, for a stack with files.
    #[serde(default)]
    cache: String,
    #[serde(default)]
    daemons: Vec<u32>,
    before: Option<String>,
    after: Option<String>,
    note: Option<String>,
    /// Number of paths of a LUN, instead of a stack.
    paths: Option<u32>,
    policy: Option<toml::Value>,
    path_rate: Option<toml::Value>,
    path_delay: Option<toml::Value>,
    cells: Option<toml::Value>,
    /// Key bits of a cipher over paths.
    encrypt: Option<u32>,
    #[serde(default)]
    environment: RunEnvironment,
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
}

/// Builds sides; stacks share one device, except file systems, which have one each.
pub struct Builder<'a> {
    pub settings: &'a Settings,
    pub device: Option<&'a Path>,
    pub size: u64,
    pub files_size: u64,
    pub force: bool,
    pub bench: Option<Rc<BenchDevice>>,
    /// All sides run in guests: no file system is created and mounted on this machine.
    pub for_guests: bool,
}

impl Builder<'_> {
    /// Builds the sides that a text names: `encrypted` is two.
    pub fn build(&mut self, text: &str) -> Result<Vec<Built>> {
        let path = text.strip_prefix("device:").unwrap_or(text);
        if !Path::new(path).exists()
            && let Some((place, more)) = text.split_once(',')
        {
            return Ok(vec![self.said(text, place, more)?]);
        }
        if let Some(built) = self.stacks(text, self.settings.cache_tunables()) {
            return built;
        }
        if let Some(kind) = kernel::kind(text) {
            return Ok(vec![self.of_the_kernel(kind)?]);
        }
        if let Some(path) = text.strip_prefix("device:") {
            return Ok(vec![self.disk(Path::new(path))?]);
        }
        if text.ends_with(".toml") {
            return Ok(vec![self.file(Path::new(text))?]);
        }
        if Path::new(text).is_dir() {
            return Ok(vec![folder(Path::new(text))?]);
        }
        if text.contains('/') && !Path::new(text).exists() {
            return Err(not_there(Path::new(text)));
        }
        Err(Error::Usage(format!(
            "unknown side `{text}`; expected clear, encrypted, encrypted-128, encrypted-256, path, paths-N or paths-N-POLICY, each also as fs-..., files-... or afs-..., loop-ext4, loop-xfs, loop-btrfs, a directory, device:PATH or a .toml file"
        )))
    }

    /// Builds the single side that a text names.
    pub fn one(&mut self, text: &str) -> Result<Built> {
        let mut built = self.build(text)?;
        match (built.pop(), built.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(Error::Usage(format!("`{text}` names more than one side"))),
        }
    }

    /// Builds the first side a second time, for a `control` if one is wanted, if it has files of
    /// its own.
    pub fn again(&mut self, first: &Built, text: &str, control: bool) -> Result<Option<Built>> {
        let made_here = first.bench.is_some() || first.target.remount.is_some();
        let room = self.device.is_none_or(Path::is_dir);
        let again = control && made_here && !first.is_device() && room;
        let one = || self.build(text).map(|built| built.into_iter().next());
        again.then(one).transpose().map(Option::flatten)
    }

    /// Builds the stacks that a name stands for, with these cache settings for those with files;
    /// `None` if it is not the name of a stack.
    pub fn stacks(&mut self, name: &str, cache: &str) -> Option<Result<Vec<Built>>> {
        let (form, all) = match stacks(name).transpose()? {
            Ok(named) => named,
            Err(e) => return Some(Err(e)),
        };
        Some(all.iter().map(|w| self.make(form, w, cache)).collect())
    }

    fn make(&mut self, form: Form, wanted: &Wanted, cache: &str) -> Result<Built> {
        let Some(prefix) = form.prefix() else {
            return self.stack(wanted);
        };
        if self.for_guests && wanted.paths.is_none() {
            return Ok(elsewhere(prefix, wanted.kind, cache));
        }
        match form {
            Form::Mounted => self.mounted(wanted, cache),
            Form::Called => self.called(wanted, cache),
            Form::Served | Form::Bare => self.served(wanted, cache),
        }
    }

    fn stack(&mut self, wanted: &Wanted) -> Result<Built> {
        let bench = match &self.bench {
            Some(bench) => Rc::clone(bench),
            None => self.bench_of(self.device, self.size)?,
        };
        self.bench = Some(Rc::clone(&bench));
        let (built, paths) = self.build_over(&bench, wanted)?;
        Ok(of_stack(bench, built, paths))
    }

    fn bench_of(&self, device: Option<&Path>, size: u64) -> Result<Rc<BenchDevice>> {
        let existing = Existing::overwrite_if(self.force);
        BenchDevice::open(device, size, existing, self.settings).map(Rc::new)
    }

    /// Opens a bench for a file system; each has its own.
    pub fn files_bench(&self) -> Result<Rc<BenchDevice>> {
        self.bench_of(self.device, self.files_size)
    }

    /// Builds a stack, with the paths beneath it and their description.
    fn build_over(&self, bench: &BenchDevice, wanted: &Wanted) -> Result<(BenchStack, LowerPaths)> {
        let Some(ways) = &wanted.paths else {
            return Ok((bench.build(wanted.kind)?, of_the_lun(bench)));
        };
        let topology = Topology::read(&self.settings.sysfs_root()).unwrap_or_default();
        let paths = PathBench::start(bench.lower(), ways, &topology)?;
        let mut built = bench.above(paths.device()).build(wanted.kind)?;
        built.name = match wanted.kind {
            StackKind::Clear => wanted.name.clone(),
            StackKind::Encrypted(bits) => format!("{}, encrypted-{bits}", wanted.name),
        };
        Ok((built, Some((Arc::new(paths), ways.note(&topology)))))
    }

    /// Builds a file system over a stack of its own, mounted by this process.
    fn mounted(&self, wanted: &Wanted, cache: &str) -> Result<Built> {
        let bench = self.files_bench()?;
        let (stack, paths) = self.build_over(&bench, wanted)?;
        let name = format!("{FILES}{}", stack.name);
        let cached = ProcessCache::with(self.settings, cache)?;
        let folder = orphans::guarded_folder()?;
        let own = OwnMount::new(
            Arc::clone(&stack.device),
            &name,
            &folder,
            self.settings,
            &cached,
        );
        let own = Arc::new(Own(own?));
        let target = Target::folder(own.0.folder()).map_err(program_error)?;
        let mut built = bare(target, Recipe::Stack(name.clone(), cache.to_owned()));
        built.target.name.clone_from(&name);
        built.target.remount = Some(own);
        built.name = name;
        built.facts = with_files(&stack, "mounted by this process", cache);
        built.beneath(paths);
        built.bench = Some(bench);
        Ok(built)
    }

    /// Builds a file system that is not mounted: files are accessed by function calls.
    fn called(&self, wanted: &Wanted, cache: &str) -> Result<Built> {
        let bench = self.files_bench()?;
        let (stack, paths) = self.build_over(&bench, wanted)?;
        let name = format!("{CALLED}{}", stack.name);
        let cached = ProcessCache::with(self.settings, cache)?;
        OwnFs::format(&stack.device, &name, self.settings)?;
        let own = OwnFs::open(&stack.device, &name, self.settings, &cached)?;
        let target = Target::files(&name, Arc::new(InProcessFs::new(&name, own)));
        let mut built = bare(target, Recipe::Stack(name, cache.to_owned()));
        built.facts = with_files(&stack, "called without a mount", cache);
        built.beneath(paths);
        built.bench = Some(bench);
        Ok(built)
    }

    /// Builds a file system of the kernel, mounted by this process.
    fn of_the_kernel(&self, kind: (&str, &[&str])) -> Result<Built> {
        let own = kernel::Mounted::new(kind, self.device, self.files_size)?;
        let own = Arc::new(own);
        let mut built = folder(own.folder())?;
        built.name = format!("{}{}", kernel::LOOP, kind.0);
        built.target.name.clone_from(&built.name);
        built.target.remount = Some(own);
        built.facts.note = Some(
            "kernel file system on a loop device, whose thread's CPU time is not counted".into(),
        );
        Ok(built)
    }

    /// Builds a file system behind an AFS server of this process, whose clients are in this
    /// process, too.
    fn served(&self, wanted: &Wanted, cache: &str) -> Result<Built> {
        let bench = self.files_bench()?;
        let (stack, paths) = self.build_over(&bench, wanted)?;
        let name = format!("{SERVED}{}", stack.name);
        let cached = ProcessCache::with(self.settings, cache)?;
        let own = OwnCell::new(&stack.device, &name, self.settings, &cached)?;
        let cell = Arc::new(AfsCell::new(&name, own));
        let first = cell.client(0);
        let first =
            first.map_err(|e| Error::Failed(format!("{name}: cannot start a client: {e}")))?;
        let mut built = bare(
            Target::files(&name, first),
            Recipe::Stack(name.clone(), cache.to_owned()),
        );
        built.target.server = Some(cell);
        built.facts = with_files(&stack, "served by AFS in this process", cache);
        built.beneath(paths);
        built.bench = Some(bench);
        Ok(built)
    }

    /// Builds a bare device, which is overwritten: as the clear stack over it.
    fn disk(&self, path: &Path) -> Result<Built> {
        if !path.exists() && !stack::device::is_lun(path) {
            let name = path.display();
            return Err(Error::NotFound(format!("device {name} does not exist")));
        }
        let bench = self.bench_of(Some(path), self.size)?;
        let mut built = over(bench, StackKind::Clear)?;
        built.name = path.display().to_string();
        built.target.name.clone_from(&built.name);
        Ok(built)
    }

    fn file(&mut self, path: &Path) -> Result<Built> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("cannot read", path, e))?;
        let file = toml::from_str(&text).map_err(|e| Error::Config {
            place: place.clone(),
            detail: e.to_string(),
        })?;
        self.described(&place, file)
    }

    /// Builds a side with settings: `fs-clear,cache=filecache_max=64M,set.direct=true`. The names
    /// are those of a file; the text before the first comma is its place.
    fn said(&mut self, text: &str, place: &str, more: &str) -> Result<Built> {
        let mut table = toml::Table::new();
        let mut set = toml::Table::new();
        for setting in more.split(',') {
            let (name, value) = assignment(setting)?;
            let value = toml_value(value);
            match name.strip_prefix("set.") {
                Some(name) => set.insert(name.to_owned(), value),
                None => table.insert(name, value),
            };
        }
        let (kind, place) = match place.strip_prefix("device:") {
            Some(path) => ("device", path),
            None if Path::new(place).is_dir() => ("folder", place),
            None => ("stack", place),
        };
        let own = [("set", toml::Value::Table(set)), (kind, place.into())];
        table.extend(own.map(|(name, value)| (name.to_owned(), value)));
        table.entry("name").or_insert_with(|| text.into());
        let file = table.try_into().map_err(|e: toml::de::Error| {
            let why = e.message().trim_end();
            Error::Usage(format!("invalid side `{text}`: {why}"))
        })?;
        self.described(text, file)
    }

    fn described(&mut self, place: &str, file: File) -> Result<Built> {
        let bad = |detail: String| Error::Config {
            place: place.to_owned(),
            detail,
        };
        let number = file.paths.map(|n| format!("paths-{n}"));
        let stack = file.stack.as_ref().or(number.as_ref());
        let mut built = match (&file.folder, &file.device, stack) {
            (Some(path), None, None) => folder(path)?,
            (None, Some(path), None) => self.disk(path)?,
            (None, None, Some(name)) if file.paths.is_none() || file.stack.is_none() => {
                match (kernel::kind(name), stacks(name)?) {
                    (Some(kind), _) => self.of_the_kernel(kind)?,
                    (None, Some((form, all))) if all.len() == 1 => {
                        self.make(form, &file.ways(all[0].clone())?, &file.cache)?
                    }
                    _ => return Err(bad(format!("`{name}` does not name exactly one stack"))),
                }
            }
            _ => {
                let why = "set exactly one of folder, device, stack and paths";
                return Err(bad(why.into()));
            }
        };
        built.name = file.name;
        built.target.daemons = file.daemons;
        (built.before, built.after) = (file.before, file.after);
        built.facts.note = file.note.or(built.facts.note);
        built.surroundings = file.environment;
        built.set = file
            .set
            .into_iter()
            .map(|(name, value)| (name, plain(&value)))
            .collect();
        Ok(built)
    }
}

/// Prefix of a stack with a mounted file system.
pub const FILES: &str = "fs-";

/// Prefix of a stack with a file system that is called without a mount.
pub const CALLED: &str = "files-";

/// Prefix of a stack with a file system behind an AFS server.
pub const SERVED: &str = "afs-";

/// Builds the facts of a stack with files.
fn with_files(stack: &BenchStack, how: &str, cache: &str) -> Facts {
    Facts {
        direct: Some(stack.direct),
        cipher: Some(stack.cipher.clone()),
        cipher_kernel: stack.kernel.clone(),
        note: Some(match cache {
            "" => how.to_owned(),
            cache => format!("{how}, {cache}"),
        }),
        guest: None,
    }
}

/// A mount of this process, for the benchmark.
struct Own(OwnMount);

impl Remount for Own {
    fn mount(&self) -> std::result::Result<(), String> {
        self.0.mount().map_err(|e| e.chain())
    }

    fn unmount(&self) -> std::result::Result<(), String> {
        self.0.unmount().map_err(|e| e.chain())
    }

    fn sync(&self) -> std::result::Result<(), String> {
        self.0.sync().map_err(|e| e.chain())
    }

    fn drop_caches(&self) -> std::result::Result<(), String> {
        self.0.drop_caches().map_err(|e| e.chain())
    }
}

/// Converts a command-line value as a file would have it: a number, true or false, else a string.
fn toml_value(text: String) -> toml::Value {
    match (text.parse::<i64>(), text.parse::<bool>()) {
        (Ok(number), _) => number.into(),
        (_, Ok(truth)) => truth.into(),
        _ => text.into(),
    }
}

/// Formats a value as on a command line.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Access method of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As a device.
    Bare,
    /// Through a mount.
    Mounted,
    /// By function calls.
    Called,
    /// By AFS clients.
    Served,
}

impl Form {
    /// Returns the prefix of the name of the stack.
    fn prefix(self) -> Option<&'static str> {
        match self {
            Form::Bare => None,
            Form::Mounted => Some(FILES),
            Form::Called => Some(CALLED),
            Form::Served => Some(SERVED),
        }
    }
}

/// A requested stack.
#[derive(Clone)]
struct Wanted {
    /// Name as written by the user.
    name: String,
    kind: StackKind,
    paths: Option<PathConfig>,
}

/// Paths beneath a stack, and their description.
type LowerPaths = Option<(Arc<dyn Paths>, String)>;

/// Returns the paths of the LUN under a stack.
fn of_the_lun(bench: &BenchDevice) -> LowerPaths {
    let theirs = LunPaths(Arc::clone(bench.lun()?));
    let note = theirs.note();
    Some((Arc::new(theirs), note))
}

/// Parses the stacks that a text names, if any, and their access method.
fn stacks(text: &str) -> Result<Option<(Form, Vec<Wanted>)>> {
    for form in [Form::Mounted, Form::Called, Form::Served] {
        let rest = form.prefix().and_then(|prefix| text.strip_prefix(prefix));
        if let Some(rest) = rest {
            return Ok(bare_stacks(rest)?.map(|all| (form, all)));
        }
    }
    Ok(bare_stacks(text)?.map(|all| (Form::Bare, all)))
}

fn bare_stacks(text: &str) -> Result<Option<Vec<Wanted>>> {
    let kinds: &[StackKind] = match text {
        "clear" => &[StackKind::Clear],
        "encrypted" => &[StackKind::Encrypted(128), StackKind::Encrypted(256)],
        "encrypted-128" => &[StackKind::Encrypted(128)],
        "encrypted-256" => &[StackKind::Encrypted(256)],
        _ => {
            let ways = PathConfig::parse(text).transpose()?;
            let wanted = |ways| Wanted {
                name: text.to_owned(),
                kind: StackKind::Clear,
                paths: Some(ways),
            };
            return Ok(ways.map(|ways| vec![wanted(ways)]));
        }
    };
    let one = |kind: &StackKind| Wanted {
        name: text.to_owned(),
        kind: *kind,
        paths: None,
    };
    Ok(Some(kinds.iter().map(one).collect()))
}

impl File {
    /// Applies the path settings of the file to a stack.
    fn ways(&self, mut wanted: Wanted) -> Result<Wanted> {
        let said = [
            ("policy", &self.policy),
            ("path_rate", &self.path_rate),
            ("path_delay", &self.path_delay),
            ("cells", &self.cells),
        ];
        for (name, value) in said {
            let Some(value) = value else { continue };
            let Some(ways) = &mut wanted.paths else {
                return Err(Error::Usage(format!("{name} needs a side with paths")));
            };
            ways.set(name, &plain(value))?;
        }
        wanted.kind = match (self.encrypt, &wanted.paths) {
            (None, _) => wanted.kind,
            (Some(bits @ (128 | 256)), Some(_)) => StackKind::Encrypted(bits),
            _ => {
                let why = "encrypt must be 128 or 256, on a side with paths";
                return Err(Error::Usage(why.into()));
            }
        };
        Ok(wanted)
    }
}

/// Builds a stack over a device that sides share.
pub fn over(bench: Rc<BenchDevice>, kind: StackKind) -> Result<Built> {
    let built = bench.build(kind)?;
    let paths = of_the_lun(&bench);
    Ok(of_stack(bench, built, paths))
}

fn of_stack(bench: Rc<BenchDevice>, built: BenchStack, paths: LowerPaths) -> Built {
    let facts = Facts {
        direct: Some(built.direct),
        cipher: Some(built.cipher),
        cipher_kernel: built.kernel,
        ..Facts::default()
    };
    let recipe = Recipe::Stack(built.name.clone(), String::new());
    let mut side = bare(Target::device(built.name, built.device), recipe);
    side.facts = facts;
    side.bench = Some(bench);
    side.beneath(paths);
    side
}

/// Builds a side for a directory of this machine.
pub fn folder(path: &Path) -> Result<Built> {
    if !path.exists() {
        return Err(not_there(path));
    }
    let target = Target::folder(path).map_err(program_error)?;
    let whole = std::path::absolute(path).map_err(|e| Error::io("cannot resolve", path, e))?;
    Ok(bare(target, Recipe::Folder(whole)))
}

fn not_there(path: &Path) -> Error {
    let path = path.display();
    Error::NotFound(format!(
        "directory {path} does not exist; create it, or mount the file system that belongs there"
    ))
}

/// Builds a side for this machine alone.
pub fn machine() -> Built {
    bare(Target::machine(), Recipe::Machine)
}

/// Builds a stack with files on which no job of this machine runs.
fn elsewhere(prefix: &str, kind: StackKind, cache: &str) -> Built {
    let name = format!("{prefix}{kind}");
    let mut built = bare(
        Target::machine(),
        Recipe::Stack(name.clone(), cache.to_owned()),
    );
    built.target.name.clone_from(&name);
    built.name = name;
    built
}

pub fn bare(target: Target, recipe: Recipe) -> Built {
    Built {
        name: target.name.clone(),
        target,
        facts: Facts::default(),
        before: None,
        after: None,
        surroundings: RunEnvironment::default(),
        set: Vec::new(),
        recipe,
        bench: None,
    }
}

/// Parses `name=value`.
pub fn assignment(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::Usage(format!(
            "`{text}` is not of the form NAME=VALUE; write a name, `=` and a value"
        ))),
    }
}
