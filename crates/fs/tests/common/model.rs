//! The simplest possible file system, as a reference for the real one.

use fs::InodeFlags;
use std::collections::BTreeMap;

pub type Id = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir(BTreeMap<Vec<u8>, Id>),
    Link(Vec<u8>),
    Fifo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    pub flags: u32,
    pub links: u32,
    pub data: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub parent: Id,
    pub opens: u32,
    /// Number of changes of the content, to tell which files have not changed.
    pub version: u64,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub nodes: BTreeMap<Id, Node>,
    next: Id,
}

pub const ROOT: Id = 0;
type Result<T> = std::result::Result<T, i32>;

impl Model {
    pub fn new() -> Model {
        let root = Node {
            kind: Kind::Dir(BTreeMap::new()),
            permissions: 0o755,
            uid: 0,
            gid: 0,
            flags: 0,
            links: 2,
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            parent: ROOT,
            opens: 0,
            version: 0,
        };
        Model {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: 1,
        }
    }

    /// Returns the state for a snapshot: no file is open, and those without a name are not seen.
    pub fn frozen(&self) -> Model {
        let mut frozen = self.clone();
        frozen.nodes.retain(|_, node| node.links > 0);
        frozen.nodes.values_mut().for_each(|node| node.opens = 0);
        frozen
    }

    /// Returns to an earlier state; the numbers of nodes used since are not used again.
    pub fn roll_back(&mut self, to: &Model) {
        let next = self.next;
        *self = Model { next, ..to.clone() };
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of the model")
    }

    pub fn is_dir(&self, id: Id) -> bool {
        matches!(self.nodes[&id].kind, Kind::Dir(_))
    }

    pub fn entries(&self, dir: Id) -> Result<&BTreeMap<Vec<u8>, Id>> {
        match &self.nodes[&dir].kind {
            Kind::Dir(entries) => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.node_mut(dir).kind {
            Kind::Dir(entries) => entries,
            _ => unreachable!("checked before"),
        }
    }

    /// Returns the entries of a directory that still has a name.
    fn live(&self, dir: Id) -> Result<&BTreeMap<Vec<u8>, Id>> {
        let entries = self.entries(dir)?;
        match self.nodes[&dir].links {
            0 => Err(libc::ENOENT),
            _ => Ok(entries),
        }
    }

    pub fn lookup(&self, dir: Id, name: &[u8]) -> Result<Id> {
        self.live(dir)?.get(name).copied().ok_or(libc::ENOENT)
    }

    pub fn make(
        &mut self,
        dir: Id,
        name: &[u8],
        kind: Kind,
        permissions: u32,
        uid: u32,
    ) -> Result<Id> {
        if self.live(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let id = self.next;
        self.next += 1;
        let is_dir = matches!(kind, Kind::Dir(_));
        let inherits_flags = is_dir || kind == Kind::File;
        // A directory inherits set-group-id from its parent, and everything the group with it.
        let inherited = self.nodes[&dir].permissions & 0o2000;
        let gid = if inherited == 0 {
            0
        } else {
            self.nodes[&dir].gid
        };
        let permissions = permissions | if is_dir { inherited } else { 0 };
        let node = Node {
            kind,
            permissions,
            uid,
            gid,
            flags: if inherits_flags {
                self.nodes[&dir].flags & InodeFlags::INHERITED.0
            } else {
                0
            },
            links: if is_dir { 2 } else { 1 },
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            parent: dir,
            opens: 0,
            version: 0,
        };
        self.nodes.insert(id, node);
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.node_mut(dir).links += u32::from(is_dir);
        Ok(id)
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Result<()> {
        if self.is_dir(id) {
            return Err(libc::EPERM);
        }
        if self.nodes[&id].links == 0 {
            return Err(libc::ENOENT);
        }
        if self.live(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.node_mut(id).links += 1;
        Ok(())
    }

    fn drop_link(&mut self, id: Id) {
        let is_dir = self.is_dir(id);
        let node = self.node_mut(id);
        node.links = if is_dir { 0 } else { node.links - 1 };
        self.reap(id);
    }

    fn reap(&mut self, id: Id) {
        let node = &self.nodes[&id];
        if node.links == 0 && node.opens == 0 {
            self.nodes.remove(&id);
        }
    }

    pub fn remove(&mut self, dir: Id, name: &[u8], rmdir: bool) -> Result<()> {
        let id = self.lookup(dir, name)?;
        match (self.is_dir(id), rmdir) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        if rmdir && !self.entries(id)?.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.entries_mut(dir).remove(name);
        self.node_mut(dir).links -= u32::from(rmdir);
        self.drop_link(id);
        Ok(())
    }

    fn is_below(&self, mut at: Id, above: Id) -> bool {
        loop {
            if at == above {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.nodes[&at].parent;
        }
    }

    pub fn rename(&mut self, from: (Id, &[u8]), to: (Id, &[u8]), how: fs::Rename) -> Result<()> {
        self.live(from.0)?;
        self.live(to.0)?;
        let moved = self.lookup(from.0, from.1)?;
        let target = self.lookup(to.0, to.1).ok();
        if self.is_dir(moved) && from.0 != to.0 && self.is_below(to.0, moved) {
            return Err(libc::EINVAL);
        }
        let Some(target) = target else {
            if how == fs::Rename::Exchange {
                return Err(libc::ENOENT);
            }
            self.detach(from, moved);
            self.attach(to, moved);
            return Ok(());
        };
        if how == fs::Rename::NoReplace {
            return Err(libc::EEXIST);
        }
        if target == moved {
            return Ok(());
        }
        if how == fs::Rename::Exchange {
            if self.is_dir(target) && from.0 != to.0 && self.is_below(from.0, target) {
                return Err(libc::EINVAL);
            }
            self.detach(from, moved);
            self.detach(to, target);
            self.attach(from, target);
            self.attach(to, moved);
            return Ok(());
        }
        match (self.is_dir(moved), self.is_dir(target)) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) if !self.entries(target)?.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.detach(from, moved);
        self.detach(to, target);
        self.attach(to, moved);
        self.drop_link(target);
        Ok(())
    }

    fn detach(&mut self, (dir, name): (Id, &[u8]), id: Id) {
        self.entries_mut(dir).remove(name);
        if self.is_dir(id) {
            self.node_mut(dir).links -= 1;
        }
    }

    fn attach(&mut self, (dir, name): (Id, &[u8]), id: Id) {
        self.entries_mut(dir).insert(name.to_vec(), id);
        if self.is_dir(id) {
            self.node_mut(dir).links += 1;
            self.node_mut(id).parent = dir;
        }
    }

    pub fn open(&mut self, id: Id) {
        self.node_mut(id).opens += 1;
    }

    pub fn release(&mut self, id: Id) {
        self.node_mut(id).opens -= 1;
        self.reap(id);
    }

    pub fn write(&mut self, id: Id, offset: u64, data: &[u8]) {
        let node = self.node_mut(id);
        let end = offset as usize + data.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[offset as usize..end].copy_from_slice(data);
        node.version += 1;
    }

    pub fn copy(&mut self, from: (Id, u64), to: (Id, u64), len: u64) {
        let data = &self.nodes[&from.0].data;
        let end = data.len().min((from.1 + len) as usize);
        if (from.1 as usize) < end {
            let copied = data[from.1 as usize..end].to_vec();
            self.write(to.0, to.1, &copied);
        }
    }

    pub fn truncate(&mut self, id: Id, size: u64) -> Result<()> {
        match self.nodes[&id].kind {
            Kind::File => {}
            Kind::Dir(_) => return Err(libc::EISDIR),
            _ => return Err(libc::EINVAL),
        }
        let node = self.node_mut(id);
        node.data.resize(size as usize, 0);
        node.version += 1;
        Ok(())
    }

    pub fn allocate(&mut self, id: Id, from: u64, to: u64, how: fs::Allocate) {
        use fs::Allocate::{Grow, KeepSize, Punch, Zero, ZeroKeepSize};
        let node = self.node_mut(id);
        if matches!(how, Punch | Zero | ZeroKeepSize) {
            let (from, to) = (from as usize, (to as usize).min(node.data.len()));
            if from < to {
                node.data[from..to].fill(0);
            }
        }
        if matches!(how, Grow | Zero) && node.data.len() < to as usize {
            node.data.resize(to as usize, 0);
        }
        let _ = KeepSize;
        node.version += 1;
    }

    /// Returns the tree without the content of files as text, for comparison after a crash.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        self.describe_below(ROOT, &mut String::from(""), &mut out, &mut BTreeMap::new());
        out
    }

    fn describe_below(
        &self,
        id: Id,
        path: &mut String,
        out: &mut String,
        known: &mut BTreeMap<Id, usize>,
    ) {
        let node = &self.nodes[&id];
        let next = known.len();
        let number = *known.entry(id).or_insert(next);
        let kind = match &node.kind {
            Kind::File => "file".into(),
            Kind::Dir(_) => "dir".into(),
            Kind::Link(target) => format!("link {}", String::from_utf8_lossy(target)),
            Kind::Fifo => "fifo".into(),
        };
        let xattrs = describe_xattrs(node.xattrs.iter().map(|(n, v)| (&n[..], &v[..])));
        out.push_str(&format!(
            "{path} #{number} {kind} {:o}{} {} {}{xattrs}\n",
            node.permissions,
            describe_flags(node.flags),
            describe_owners(node.uid, node.gid),
            node.links
        ));
        if let Kind::Dir(entries) = &node.kind {
            for (name, id) in entries {
                let len = path.len();
                path.push_str(&format!("/{}", String::from_utf8_lossy(name)));
                self.describe_below(*id, path, out, known);
                path.truncate(len);
            }
        }
    }
}

/// Describes the owner of a file, and its group if that is not the usual one.
pub fn describe_owners(uid: u32, gid: u32) -> String {
    match gid {
        0 => uid.to_string(),
        gid => format!("{uid}:{gid}"),
    }
}

/// Describes the flags of a file, if it has any.
pub fn describe_flags(flags: u32) -> String {
    if flags == 0 {
        String::new()
    } else {
        format!("+{flags:x}")
    }
}

pub fn describe_xattrs<'a>(xattrs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> String {
    xattrs
        .map(|(name, value)| {
            let sum: u64 = value
                .iter()
                .fold(7, |sum, b| sum.wrapping_mul(31) + u64::from(*b));
            format!(" {}={}:{sum:x}", String::from_utf8_lossy(name), value.len())
        })
        .collect()
}
