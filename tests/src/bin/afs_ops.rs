//! Runs operations on a file system one after the other, including some that fail, and prints the
//! result of each. Before each it sends its name to an address, so that a network recording can
//! assign packets to operations.
//!
//! ```text
//!   afs_ops FOLDER ADDRESS:PORT SMALL LOCKED
//!   afs_ops --answer PORT
//! ```
//!
//! The listener echoes each name; the second form is that listener.
//!
//! SMALL is a directory with a quota of 64 KiB, LOCKED one that is read-only.

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Timespec, Timestamps, Uid, XattrFlags, setxattr,
};
use std::error::Error;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Printed result of an operation.
type Shown = io::Result<String>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("which folder?")?);
    let to = args.next().ok_or("which address?")?;
    if folder.as_os_str() == "--answer" {
        return answer(to.parse()?);
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let ops = Ops {
        to,
        socket,
        at: folder.join("ops"),
        small: args.next().ok_or("which small folder?")?.into(),
        locked: args.next().ok_or("which locked folder?")?.into(),
    };
    ops.names()?;
    ops.data()?;
    ops.renames()?;
    ops.refusals()?;
    ops.removals()?;
    ops.say("end")?;
    Ok(())
}

struct Ops {
    socket: UdpSocket,
    to: String,
    at: PathBuf,
    small: PathBuf,
    locked: PathBuf,
}

impl Ops {
    /// Announces a step, and repeats that until the listener has answered.
    fn say(&self, name: &str) -> io::Result<()> {
        let mut heard = [0; 256];
        for _ in 0..30 {
            self.socket.send_to(name.as_bytes(), &self.to)?;
            while let Ok(length) = self.socket.recv(&mut heard) {
                if heard[..length] == *name.as_bytes() {
                    return Ok(());
                }
            }
        }
        Err(io::Error::other("nobody hears the marks"))
    }

    fn op(&self, name: &str, done: impl FnOnce() -> Shown) -> io::Result<()> {
        self.say(name)?;
        match done() {
            Ok(shown) => println!("{name}: {shown}"),
            Err(error) => println!("{name}: {error}"),
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn names(&self) -> io::Result<()> {
        let at = |name: &str| self.path(name);
        self.op("make the folder", || done(fs::create_dir(&self.at)))?;
        self.op("make it again", || done(fs::create_dir(&self.at)))?;
        self.op("make d", || done(fs::create_dir(at("d"))))?;
        self.op("make e", || done(fs::create_dir(at("e"))))?;
        self.op("create a", || done(create(&at("a"))))?;
        self.op("create a again", || done(create(&at("a"))))?;
        self.op("look at a", || look(&at("a")))?;
        self.op("look at what is not", || look(&at("nothing")))?;
        self.op("look below a file", || look(&at("a/below")))?;
        self.op("create where no folder is", || {
            done(create(&at("nothing/x")))
        })?;
        self.op("create below a file", || done(create(&at("a/x"))))?;
        self.op("create a name of 200", || done(create(&at(&long(200)))))?;
        self.op("create a name of 255", || done(create(&at(&long(255)))))?;
        self.op("create a name of 256", || done(create(&at(&long(256)))))?;
        self.op("link a to b", || done(fs::hard_link(at("a"), at("b"))))?;
        self.op("link over b", || done(fs::hard_link(at("a"), at("b"))))?;
        self.op("link into d", || done(fs::hard_link(at("a"), at("d/b"))))?;
        self.op("link a folder", || done(fs::hard_link(at("d"), at("l"))))?;
        self.op("links of a", || look(&at("a")))?;
        self.op("symlink s", || done(symlink("a", at("s"))))?;
        self.op("symlink s again", || done(symlink("a", at("s"))))?;
        self.op("look at s", || look(&at("s")))?;
        self.op("read s", || {
            Ok(fs::read_link(at("s"))?.display().to_string())
        })?;
        self.op("symlink to nothing", || done(symlink("nothing", at("t"))))?;
        self.op("make a fifo", || {
            let kind = rustix::fs::FileType::Fifo;
            let mode = rustix::fs::Mode::RUSR;
            done(rustix::fs::mknodat(CWD, at("fifo"), kind, mode, 0).map_err(Into::into))
        })
    }

    fn data(&self) -> io::Result<()> {
        let at = |name: &str| self.path(name);
        self.op("write to a", || done(fs::write(at("a"), "hello\n")))?;
        self.op("read a", || text(&at("a")))?;
        self.op("write more to a", || {
            let mut file = OpenOptions::new().append(true).open(at("a"))?;
            done(file.write_all(b"world\n"))
        })?;
        self.op("read more of a", || text(&at("a")))?;
        self.op("write a over", || done(fs::write(at("a"), "short\n")))?;
        self.op("write far behind the end", || {
            let file = OpenOptions::new().write(true).open(at("a"))?;
            done(file.write_all_at(b"far", 300_000))
        })?;
        self.op("look at the far end", || look(&at("a")))?;
        self.op("read at the far end", || {
            let mut file = File::open(at("a"))?;
            file.seek(SeekFrom::Start(299_998))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(format!("{bytes:?}"))
        })?;
        self.op("truncate a", || {
            let file = OpenOptions::new().write(true).open(at("a"))?;
            done(file.set_len(3))
        })?;
        self.op("look at what was truncated", || look(&at("a")))?;
        self.op("write two chunks", || {
            done(fs::write(at("chunks"), vec![7; 200_000]))
        })?;
        self.op("change the mode of a", || {
            done(fs::set_permissions(at("a"), Permissions::from_mode(0o640)))
        })?;
        self.op("change the mode of d", || {
            done(fs::set_permissions(at("d"), Permissions::from_mode(0o700)))
        })?;
        self.op("change the time of a", || {
            let time = Timespec {
                tv_sec: 1_000_000_000,
                tv_nsec: 0,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            let changed = rustix::fs::utimensat(CWD, at("a"), &times, AtFlags::empty());
            done(changed.map_err(Into::into))?;
            Ok(fs::metadata(at("a"))?.mtime().to_string())
        })?;
        self.op("change the owner of a", || {
            let (uid, gid) = (Uid::from_raw(5), Gid::from_raw(6));
            done(rustix::fs::chown(at("a"), Some(uid), Some(gid)).map_err(Into::into))
        })?;
        self.op("look at a changed", || look(&at("a")))?;
        self.op("lock a", || {
            let file = OpenOptions::new().write(true).open(at("a"))?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            done(rustix::fs::flock(&file, FlockOperation::Unlock).map_err(Into::into))
        })?;
        self.op("statfs", || {
            let room = rustix::fs::statfs(&self.at)?;
            Ok(format!("blocks of {}", room.f_bsize))
        })
    }

    fn renames(&self) -> io::Result<()> {
        let at = |name: &str| self.path(name);
        let rename = |from: &str, to: &str| done(fs::rename(at(from), at(to)));
        self.op("rename b to c", || rename("b", "c"))?;
        self.op("rename what is not", || rename("nothing", "c"))?;
        self.op("rename with a link over the other", || rename("c", "a"))?;
        self.op("remove c", || done(fs::remove_file(at("c"))))?;
        self.op("rename a into d", || rename("a", "d/a"))?;
        self.op("look at it in d", || look(&at("d/a")))?;
        self.op("rename it over another", || rename("d/a", "chunks"))?;
        self.op("create x", || done(create(&at("x"))))?;
        self.op("link x to y", || done(fs::hard_link(at("x"), at("y"))))?;
        self.op("create z", || done(create(&at("z"))))?;
        self.op("rename z over y", || rename("z", "y"))?;
        self.op("links of x", || look(&at("x")))?;
        self.op("link x to z", || done(fs::hard_link(at("x"), at("z"))))?;
        self.op("remove z", || done(fs::remove_file(at("z"))))?;
        self.op("links of x again", || look(&at("x")))?;
        self.op("remove x", || done(fs::remove_file(at("x"))))?;
        self.op("remove y", || done(fs::remove_file(at("y"))))?;
        self.op("create a file in d", || done(create(&at("d/f"))))?;
        self.op("rename a file over a folder", || rename("chunks", "d"))?;
        self.op("rename a folder over a file", || rename("d", "chunks"))?;
        self.op("rename a folder over a full one", || rename("e", "d"))?;
        self.op("rename a folder over an empty one", || rename("d", "e"))?;
        self.op("make d anew", || done(fs::create_dir(at("d"))))?;
        self.op("rename a folder below itself", || rename("d", "d/d"))?;
        self.op("rename a folder into another", || rename("d", "e/d"))?;
        self.op("look at its parent", || {
            look(&at("e/d/.."))?;
            let same = fs::metadata(at("e/d/.."))?.ino() == fs::metadata(at("e"))?.ino();
            Ok(format!("is e: {same}"))
        })?;
        self.op("rename a name to one of 256", || rename("t", &long(256)))?;
        self.op("list", || list(&self.at))
    }

    /// Operations refused by an access list, a mode or a quota.
    fn refusals(&self) -> io::Result<()> {
        let at = |name: &str| self.path(name);
        self.op("make a closed folder", || {
            done(fs::create_dir(at("closed")))
        })?;
        self.op("give it an access list", || {
            let list = b"1\n0\nsystem:anyuser 9\n";
            let flags = XattrFlags::empty();
            done(setxattr(at("closed"), "afs.acl", list, flags).map_err(Into::into))
        })?;
        self.op("create in the closed folder", || {
            done(create(&at("closed/x")))
        })?;
        self.op("list the closed folder", || list(&at("closed")))?;
        self.op("remove what is in it", || {
            done(fs::remove_file(at("closed/x")))
        })?;
        self.op("remove the closed folder", || {
            done(fs::remove_dir(at("closed")))
        })?;
        self.op("create a file to read only", || {
            let mut options = OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o444);
            done(made.open(at("r")).map(drop))
        })?;
        self.op("write to a file to read only", || {
            done(fs::write(at("r"), "more"))
        })?;
        self.op("remove the file to read only", || {
            done(fs::remove_file(at("r")))
        })?;
        let (small, locked) = (&self.small, &self.locked);
        self.op("list the locked folder", || list(locked))?;
        self.op("create in the locked folder", || {
            done(create(&locked.join("x")))
        })?;
        self.op("make a folder in the locked folder", || {
            done(fs::create_dir(locked.join("x")))
        })?;
        self.op("write to the small volume", || {
            done(write_out(&small.join("fits"), 20_000))
        })?;
        self.op("write too much to the small volume", || {
            done(write_out(&small.join("too-much"), 200_000))
        })?;
        self.op("link from one volume to another", || {
            done(fs::hard_link(small.join("fits"), at("fits")))
        })?;
        self.op("rename from one volume to another", || {
            done(fs::rename(small.join("fits"), at("fits")))
        })?;
        // A client may still be storing, with or without learning the result.
        self.say("what is not compared")?;
        for name in ["fits", "too-much"] {
            fs::remove_file(small.join(name))?;
        }
        Ok(())
    }

    fn removals(&self) -> io::Result<()> {
        let at = |name: &str| self.path(name);
        self.op("remove a folder that is full", || {
            done(fs::remove_dir(at("e")))
        })?;
        self.op("remove a folder as a file", || {
            done(fs::remove_file(at("e")))
        })?;
        self.op("remove a file as a folder", || {
            done(fs::remove_dir(at("chunks")))
        })?;
        self.op("remove what is not", || {
            done(fs::remove_file(at("nothing")))
        })?;
        self.op("remove what is open", || {
            let mut file = File::open(at("chunks"))?;
            fs::remove_file(at("chunks"))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            drop(file);
            // The client may keep it under another name for a short time.
            while list(&self.at)?.contains('.') {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(format!("{} bytes", bytes.len()))
        })?;
        self.op("look at what was open", || look(&at("chunks")))?;
        self.op("remove the symlink", || done(fs::remove_file(at("s"))))?;
        self.op("remove f", || done(fs::remove_file(at("e/f"))))?;
        self.op("remove d in e", || done(fs::remove_dir(at("e/d"))))?;
        self.op("remove e", || done(fs::remove_dir(at("e"))))?;
        self.op("list what is left", || list(&self.at))?;
        self.op("remove all", || done(fs::remove_dir_all(&self.at)))
    }
}

/// Echoes all datagrams.
fn answer(port: u16) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    println!("answering");
    let mut heard = [0; 256];
    loop {
        let (length, from) = socket.recv_from(&mut heard)?;
        socket.send_to(&heard[..length], from)?;
    }
}

fn done(outcome: io::Result<()>) -> Shown {
    outcome.map(|()| String::from("done"))
}

fn text(path: &Path) -> Shown {
    Ok(format!("{:?}", fs::read_to_string(path)?))
}

/// Writes a file so that a failed store is an error, if the client supports `fsync`.
fn write_out(path: &Path, bytes: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![1; bytes])?;
    file.sync_all()
}

fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    options.open(path).map(drop)
}

fn long(bytes: usize) -> String {
    "n".repeat(bytes)
}

fn look(path: &Path) -> Shown {
    let found = fs::symlink_metadata(path)?;
    let size = if found.is_dir() {
        // The size of a directory is specific to the server.
        String::from("a directory")
    } else {
        format!("{} bytes", found.size())
    };
    let (mode, links) = (found.mode(), found.nlink());
    let (uid, gid) = (found.uid(), found.gid());
    Ok(format!("{mode:o}, {links} links, {size}, of {uid}:{gid}"))
}

fn list(path: &Path) -> Shown {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.push(match name.len() {
            100.. => format!("a name of {}", name.len()),
            _ => name,
        });
    }
    names.sort();
    Ok(names.join(" "))
}
