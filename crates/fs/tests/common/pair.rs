//! The file system and its model side by side, and random operations on both.

use super::client::{Client, PAGE, Portion};
use super::model::{self, Id, Kind, Model, describe_flags, describe_owners, describe_xattrs};
use block_testing::Random;
use fs::{Allocate, Attr, FileType, Fileset, Fs, Ino, InodeFlags, New, Rename, SetAttr, SetXattr};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

/// Longest file of a random test in bytes.
const SIZE_MAX: u64 = 200_000;
/// Number of names; few, so that they conflict.
const NAMES: u64 = 24;

pub struct Pair {
    pub fs: Fs,
    pub client: Client,
    pub model: Model,
    pub inodes: HashMap<Id, Ino>,
    pub random: Random,
    /// Open inodes, once per open.
    open: Vec<Id>,
    /// Whether written data identifies its file: words of the node's number and a counter.
    pub signed: bool,
    counter: u64,
    /// Whether the file system may fail where the model does not, because the device is full or
    /// fails.
    pub lenient: bool,
    /// Number of operations that were refused for that reason.
    pub refused: Cell<u64>,
    /// All inodes ever used.
    pub ever: HashMap<Ino, Id>,
}

impl Pair {
    pub fn new(fs: Fs, seed: u64) -> Pair {
        let fileset = fs
            .fileset_named(fs::FIRST_FILESET)
            .expect("the first fileset");
        Pair {
            client: Client::new(fileset),
            fs,
            model: Model::new(),
            inodes: HashMap::from([(model::ROOT, fs::ROOT)]),
            random: Random::new(seed),
            open: Vec::new(),
            signed: false,
            counter: 0,
            lenient: false,
            refused: Cell::new(0),
            ever: HashMap::new(),
        }
    }

    /// Continues with the file system of a successor: opens what is open, and hands over the dirty
    /// pages. Returns the file system of the predecessor.
    pub fn succeed(&mut self, fs: Fs) -> Fs {
        let fileset = fs
            .fileset_named(fs::FIRST_FILESET)
            .expect("the first fileset");
        for id in &self.open {
            fileset.open(self.inodes[id]).expect("it is still there");
        }
        self.client.succeed(fileset);
        fs.end_adoption().expect("it ends");
        std::mem::replace(&mut self.fs, fs)
    }

    pub fn fileset(&self) -> &Fileset {
        &self.client.fileset
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.below(NAMES);
        match number {
            0 => vec![b'x'; 255],
            1 => "ümläut \n".into(),
            n => format!("n{n}").into_bytes(),
        }
    }

    fn any(&mut self) -> Id {
        let at = self.random.below(self.model.nodes.len() as u64) as usize;
        *self.model.nodes.keys().nth(at).unwrap()
    }

    fn any_where(&mut self, fits: impl Fn(&model::Node) -> bool) -> Option<Id> {
        let fitting: Vec<Id> = self
            .model
            .nodes
            .iter()
            .filter(|(_, n)| fits(n))
            .map(|(id, _)| *id)
            .collect();
        let count = fitting.len() as u64;
        (count > 0).then(|| fitting[self.random.below(count) as usize])
    }

    /// Returns a random node, in most cases a directory with a name.
    fn dir(&mut self) -> Id {
        if self.random.below(20) == 0 {
            return self.any();
        }
        self.any_where(|n| matches!(n.kind, Kind::Dir(_)) && n.links > 0)
            .unwrap()
    }

    fn file(&mut self) -> Option<Id> {
        self.any_where(|n| n.kind == Kind::File)
    }

    fn ino(&self, id: Id) -> Ino {
        self.inodes[&id]
    }

    /// Returns data to write.
    pub fn content(&mut self, id: Id, len: usize) -> Vec<u8> {
        self.counter += 1;
        let word = ((id as u64) << 32 | self.counter).to_le_bytes();
        if self.signed {
            return word.iter().copied().cycle().take(len).collect();
        }
        // Half of them compress.
        let period = if self.random.below(2) == 0 { len } else { 500 };
        let mut data = vec![0; period.min(len)];
        self.random.fill(&mut data);
        data.iter().copied().cycle().take(len).collect()
    }

    /// Returns whether a full or failing device refused the operation, which changes nothing and is
    /// not a test failure.
    fn is_refused<T>(&self, ours: &fs::Result<T>) -> bool {
        let refused = self.lenient && ours.as_ref().is_err_and(|e| is_full(e.errno()));
        self.refused.set(self.refused.get() + u64::from(refused));
        refused
    }

    fn same<T: std::fmt::Debug>(&self, what: &str, ours: Result<T, i32>, theirs: &Result<(), i32>) {
        if self.lenient && matches!(ours, Err(libc::ENOSPC | libc::EDQUOT | libc::EIO)) {
            return;
        }
        let ours_errno = ours.as_ref().err();
        assert_eq!(
            ours_errno,
            theirs.as_ref().err(),
            "{what}: {ours:?} and {theirs:?}"
        );
    }

    /// Applies one random operation to both.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..=13 => self.create(),
            14..=17 => self.symlink(),
            18..=21 => self.link(),
            22..=30 => self.remove(),
            31..=40 => self.rename(),
            41..=58 => self.write(),
            59..=64 => self.copy(),
            65..=70 => self.truncate(),
            71..=75 => self.allocate(),
            76..=79 => self.chmod(),
            80..=85 => self.xattr(),
            86..=89 => self.open_or_release(),
            90..=94 => self.write_out(),
            95 | 96 => self.set_flags(),
            _ => self.compare_one(),
        }
    }

    fn create(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let (kind, theirs) = match self.random.below(6) {
            0 | 1 => (FileType::Directory, Kind::Dir(BTreeMap::new())),
            2 => (FileType::Fifo, Kind::Fifo),
            _ => (FileType::File, Kind::File),
        };
        let permissions = self.random.below(0o1000) as u32;
        let uid = self.random.below(3) as u32;
        let new = New {
            uid,
            ..New::of_root(kind, permissions)
        };
        let ours = self.fileset().create(self.ino(dir), &name, &new);
        self.made(dir, &name, theirs, permissions, uid, ours, "create");
    }

    #[allow(clippy::too_many_arguments)]
    fn made(
        &mut self,
        dir: Id,
        name: &[u8],
        kind: Kind,
        permissions: u32,
        uid: u32,
        ours: fs::Result<Attr>,
        what: &str,
    ) {
        if self.is_refused(&ours) {
            return;
        }
        let theirs = self.model.make(dir, name, kind, permissions, uid);
        if let (Ok(attr), Ok(id)) = (&ours, &theirs) {
            self.inodes.insert(*id, attr.ino);
            self.ever.insert(attr.ino, *id);
        }
        self.same(what, ours.map_err(|e| e.errno()), &theirs.map(drop));
    }

    fn symlink(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let target = vec![b't'; 1 + self.random.below(300) as usize];
        let ours = self.fileset().symlink(self.ino(dir), &name, &target, 1, 0);
        self.made(dir, &name, Kind::Link(target), 0o777, 1, ours, "symlink");
    }

    fn link(&mut self) {
        let (id, dir, name) = (self.any(), self.dir(), self.name());
        let ours = self.fileset().link(self.ino(id), self.ino(dir), &name);
        if self.is_refused(&ours) {
            return;
        }
        let theirs = self.model.link(id, dir, &name);
        self.same("link", ours.map_err(|e| e.errno()), &theirs);
    }

    /// Drops inodes that the model has removed from the cache, and checks that they no longer
    /// exist.
    fn forget_gone(&mut self) {
        let gone: Vec<Id> = self
            .inodes
            .keys()
            .filter(|id| !self.model.nodes.contains_key(id))
            .copied()
            .collect();
        for id in gone {
            let ino = self.inodes.remove(&id).unwrap();
            self.client.forget(ino);
            assert!(
                self.client.fileset.attr(ino).is_err(),
                "inode {ino} is gone"
            );
        }
    }

    fn remove(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let rmdir = match self.model.lookup(dir, &name) {
            Ok(id) if self.random.below(10) > 0 => self.model.is_dir(id),
            _ => self.random.below(2) == 0,
        };
        let ours = if rmdir {
            self.fileset().rmdir(self.ino(dir), &name)
        } else {
            self.fileset().unlink(self.ino(dir), &name)
        };
        let theirs = self.model.remove(dir, &name, rmdir);
        self.same("remove", ours.map_err(|e| e.errno()), &theirs);
        self.forget_gone();
    }

    fn rename(&mut self) {
        let (from, to) = (self.dir(), self.dir());
        let (old, new) = (self.name(), self.name());
        let how = [
            Rename::Replace,
            Rename::Replace,
            Rename::NoReplace,
            Rename::Exchange,
        ];
        let how = how[self.random.below(4) as usize];
        let ours = self
            .fileset()
            .rename((self.ino(from), &old), (self.ino(to), &new), how);
        if self.is_refused(&ours) {
            return;
        }
        let theirs = self.model.rename((from, &old), (to, &new), how);
        self.same("rename", ours.map_err(|e| e.errno()), &theirs);
        self.forget_gone();
    }

    pub fn write(&mut self) {
        let Some(id) = self.file() else { return };
        let size = self.model.node(id).data.len() as u64;
        let mut offset = match self.random.below(3) {
            0 => size,
            1 => self.random.below(SIZE_MAX),
            _ => self.random.below(size + 1),
        };
        let mut len = 1 + self.random.below(20_000);
        if self.signed {
            offset -= offset % 8;
            len = len.next_multiple_of(8);
        }
        let data = self.content(id, len as usize);
        let ours = self.client.write(self.ino(id), offset, &data);
        if ours.is_ok() || !self.lenient {
            self.model.write(id, offset, &data);
        }
        self.same("write", ours, &Ok(()));
    }

    /// Copies a range, in most cases of whole blocks, between two files or within one.
    fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.file(), self.file()) else {
            return;
        };
        // Signed data must stay in its file.
        let to = if self.signed { from } else { to };
        let unit = if self.random.below(4) == 0 { 8 } else { PAGE };
        let mut place = |max: u64| self.random.below(max / unit) * unit;
        let (at, to_at, len) = (place(SIZE_MAX), place(SIZE_MAX), unit + place(50_000));
        if from == to && at.abs_diff(to_at) < len {
            return;
        }
        let (source, target) = ((self.ino(from), at), (self.ino(to), to_at));
        let ours = self.client.copy(source, target, len, &mut self.random);
        if ours.is_err() && self.lenient {
            // A part may have been copied before the error.
            let now = self.client.read(self.ino(to), 0, u64::MAX / 2);
            self.model.node_mut(to).data = now.expect("readable");
            return;
        }
        self.model.copy((from, at), (to, to_at), len);
        self.same("copy", ours, &Ok(()));
    }

    fn truncate(&mut self) {
        let id = self.file().unwrap_or(model::ROOT);
        let mut size = self.random.below(SIZE_MAX);
        if self.signed {
            size -= size % 8;
        }
        let ours = self.client.truncate(self.ino(id), size);
        if self.lenient && ours.is_err_and(is_full) {
            return;
        }
        let theirs = self.model.truncate(id, size);
        self.same("truncate", ours, &theirs);
    }

    fn allocate(&mut self) {
        let Some(id) = self.file() else { return };
        use Allocate::{Grow, KeepSize, Punch, Zero, ZeroKeepSize};
        let how = [Grow, KeepSize, Punch, Zero, ZeroKeepSize][self.random.below(5) as usize];
        let mut from = self.random.below(SIZE_MAX);
        let mut to = from + 1 + self.random.below(50_000);
        if self.signed {
            (from, to) = (from - from % 8, to.next_multiple_of(8));
        }
        let ours = self.client.allocate(self.ino(id), from, to, how);
        if ours.is_err() && self.lenient {
            // The edges may have been zeroed before the error.
            let size = self.model.node(id).data.len();
            let now = self
                .client
                .read(self.ino(id), 0, size as u64)
                .expect("readable");
            self.model.node_mut(id).data = now;
            return;
        }
        self.model.allocate(id, from, to, how);
        self.same("allocate", ours, &Ok(()));
    }

    fn chmod(&mut self) {
        let id = self.any();
        let permissions = self.random.below(0o10000) as u32;
        let (uid, gid) = (self.random.below(4) as u32, self.random.below(3) as u32);
        let set = SetAttr {
            permissions: Some(permissions),
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        let ours = self.fileset().set_attr(self.ino(id), &set);
        if self.is_refused(&ours) {
            return;
        }
        let node = self.model.node_mut(id);
        (node.permissions, node.uid, node.gid) = (permissions, uid, gid);
        self.same("chmod", ours.map_err(|e| e.errno()), &Ok(()));
    }

    /// Sets flags that forbid nothing: those that do have tests of their own.
    fn set_flags(&mut self) {
        let id = self.any();
        let all = [InodeFlags::NO_DUMP, InodeFlags::NO_ACCESS_TIME];
        let flags = match self.random.below(8) {
            0 => InodeFlags::default(),
            1 => all[0],
            2 => all[1],
            3 => all[0].with(all[1]),
            4 => InodeFlags::NO_COMPRESS,
            _ => InodeFlags::COMPRESS,
        };
        let ours = self.fileset().set_flags(self.ino(id), flags);
        if self.is_refused(&ours) {
            return;
        }
        let node = self.model.node_mut(id);
        let theirs = match node.kind {
            Kind::File | Kind::Dir(_) => {
                node.flags = flags.0;
                Ok(())
            }
            _ => Err(libc::EOPNOTSUPP),
        };
        self.same("set_flags", ours.map_err(|e| e.errno()), &theirs);
    }

    fn xattr(&mut self) {
        let id = self.any();
        let name = format!("user.{}", self.random.below(6)).into_bytes();
        let has = self.model.node(id).xattrs.contains_key(&name);
        if self.random.below(3) == 0 {
            let ours = self.fileset().remove_xattr(self.ino(id), &name);
            if self.is_refused(&ours) {
                return;
            }
            self.model.node_mut(id).xattrs.remove(&name);
            let theirs = if has { Ok(()) } else { Err(libc::ENODATA) };
            return self.same("remove_xattr", ours.map_err(|e| e.errno()), &theirs);
        }
        let value = vec![id as u8; self.random.below(600) as usize];
        let how =
            [SetXattr::Any, SetXattr::Create, SetXattr::Replace][self.random.below(3) as usize];
        let theirs = match how {
            SetXattr::Create if has => Err(libc::EEXIST),
            SetXattr::Replace if !has => Err(libc::ENODATA),
            _ => Ok(()),
        };
        let ours = self.fileset().set_xattr(self.ino(id), &name, &value, how);
        if theirs.is_ok() && ours.is_ok() {
            self.model.node_mut(id).xattrs.insert(name, value);
        }
        self.same("set_xattr", ours.map_err(|e| e.errno()), &theirs);
    }

    fn open_or_release(&mut self) {
        if self.open.len() < 10 && self.random.below(2) == 0 {
            let id = self.any();
            self.fileset().open(self.ino(id)).expect("it opens");
            self.model.open(id);
            self.open.push(id);
        } else {
            self.release_one();
        }
    }

    fn release_one(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.random.below(self.open.len() as u64) as usize;
        let id = self.open.swap_remove(at);
        let ino = self.ino(id);
        self.model.release(id);
        if !self.model.nodes.contains_key(&id) {
            self.client.forget(ino);
        }
        self.fileset().release(ino).expect("it closes");
        self.forget_gone();
    }

    pub fn release_all(&mut self) {
        while !self.open.is_empty() {
            self.release_one();
        }
    }

    fn write_out(&mut self) {
        let Some(id) = self.file() else { return };
        let ino = self.ino(id);
        let ours = match self.random.below(6) {
            0 => self.client.fsync(ino, &mut self.random),
            _ => self.client.write_out(ino, &mut self.random, Portion::Some),
        };
        self.same("write_out", ours, &Ok(()));
    }

    /// Compares a random inode.
    pub fn compare_one(&mut self) {
        let id = self.any();
        let ino = self.ino(id);
        let node = self.model.node(id).clone();
        let attr = self.fileset().attr(ino).expect("it is there");
        assert_eq!(attr.inode.links, node.links, "inode {ino}");
        assert_eq!(attr.inode.permissions, node.permissions, "inode {ino}");
        assert_eq!(attr.inode.flags.0, node.flags, "inode {ino}");
        match &node.kind {
            Kind::File => {
                assert_eq!(attr.inode.size, node.data.len() as u64, "inode {ino}");
                let data = self.client.read(ino, 0, u64::MAX / 2).expect("readable");
                if data != node.data {
                    let differs = data.iter().zip(&node.data).position(|(a, b)| a != b);
                    panic!("inode {ino} of {} bytes: {differs:?}", data.len());
                }
            }
            Kind::Link(target) => assert_eq!(self.fileset().read_link(ino).unwrap(), *target),
            Kind::Dir(entries) => {
                let mut names = BTreeMap::new();
                let (mut cookie, mut more) = (0, true);
                // In portions, as a kernel reads it.
                while more {
                    let mut left = 5;
                    more = false;
                    self.fileset()
                        .read_dir(ino, cookie, |entry| {
                            if left == 0 {
                                more = true;
                                return Ok(false);
                            }
                            left -= 1;
                            cookie = entry.cookie;
                            names.insert(entry.name.to_vec(), entry.ino);
                            Ok(true)
                        })
                        .expect("it lists");
                }
                names.remove(&b"."[..]);
                names.remove(&b".."[..]);
                let theirs: BTreeMap<Vec<u8>, Ino> = entries
                    .iter()
                    .map(|(name, id)| (name.clone(), self.ino(*id)))
                    .collect();
                assert_eq!(names, theirs);
            }
            Kind::Fifo => {}
        }
    }

    /// Compares as many random inodes as there are, and the tree as a whole.
    pub fn compare_all(&mut self) {
        let (random, ids) = (self.random.clone(), self.model.nodes.len());
        for _ in 0..ids {
            self.compare_one();
        }
        self.random = random;
        assert_eq!(describe(self.fileset()), self.model.describe());
    }
}

fn is_full(errno: i32) -> bool {
    errno == libc::ENOSPC || errno == libc::EDQUOT || errno == libc::EIO
}

/// Returns a tree without the content of files, in the format of [`Model::describe`].
pub fn describe(fileset: &Fileset) -> String {
    let mut out = String::new();
    describe_below(
        fileset,
        fs::ROOT,
        &mut String::new(),
        &mut out,
        &mut BTreeMap::new(),
    );
    out
}

fn describe_below(
    fileset: &Fileset,
    ino: Ino,
    path: &mut String,
    out: &mut String,
    known: &mut BTreeMap<Ino, usize>,
) {
    let inode = fileset.attr(ino).expect("a name leads to an inode").inode;
    let next = known.len();
    let number = *known.entry(ino).or_insert(next);
    let kind = match inode.kind {
        FileType::File => "file".into(),
        FileType::Directory => "dir".into(),
        FileType::Symlink => {
            let target = fileset.read_link(ino).expect("a target");
            format!("link {}", String::from_utf8_lossy(&target))
        }
        FileType::Fifo => "fifo".into(),
        other => format!("{other:?}"),
    };
    let mut xattrs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut names = Vec::new();
    fileset
        .xattrs(ino, |name| names.push(name.to_vec()))
        .expect("attributes");
    for name in names {
        let value = fileset.xattr(ino, &name).expect("a value");
        xattrs.insert(name, value);
    }
    let xattrs = describe_xattrs(xattrs.iter().map(|(n, v)| (&n[..], &v[..])));
    out.push_str(&format!(
        "{path} #{number} {kind} {:o}{} {} {}{xattrs}\n",
        inode.permissions,
        describe_flags(inode.flags.0),
        describe_owners(inode.uid, inode.gid),
        inode.links
    ));
    if inode.is_dir() {
        let mut entries: BTreeMap<Vec<u8>, Ino> = BTreeMap::new();
        fileset
            .read_dir(ino, 2, |entry| {
                entries.insert(entry.name.to_vec(), entry.ino);
                Ok(true)
            })
            .expect("it lists");
        for (name, ino) in entries {
            let len = path.len();
            path.push_str(&format!("/{}", String::from_utf8_lossy(&name)));
            describe_below(fileset, ino, path, out, known);
            path.truncate(len);
        }
    }
}
