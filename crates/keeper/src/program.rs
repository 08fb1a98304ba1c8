//! Programs that serve in the place of this one: how a keeper executes them, and how they learn what
//! they begin with.
//!
//! ```text
//!   EVFS_KEEPER=PID:FD    for process PID, FD is a file with the lines
//!     keeper 1            the version of this format
//!     generation N        as in Begin
//!     refused 0|1         as in Begin
//!     link FD             the connection to the keeper
//!     kept NAME FD...     what the keeper holds
//! ```
//!
//! The descriptors are open in the new program, which has its own rules for their content.

use crate::link::{Kept, Link};
use crate::{Begin, link};
use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

const VARIABLE: &str = "EVFS_KEEPER";
const VERSION: u32 = 1;
/// Longest file in bytes: ten thousand descriptors.
const FILE_MAX: u64 = 128 << 10;
/// Exit code of a process that cannot execute a program, as shells use it.
const NOT_EXECUTED: i32 = 126;

/// The place of the program that this process executes. Another file may take it.
pub(crate) struct Place(io::Result<PathBuf>);

impl Place {
    pub fn of_this_process() -> Place {
        Place(std::env::current_exe())
    }

    /// Opens the program that is there now.
    pub fn open(&self) -> io::Result<Program> {
        let path = self
            .0
            .as_ref()
            .map_err(|e| io::Error::new(e.kind(), e.to_string()))?;
        File::open(path).map(|file| Program(file.into()))
    }
}

/// A program that stays the same, also if its file is removed.
pub(crate) struct Program(OwnedFd);

impl Program {
    /// Executes it as a server, with the arguments of this process.
    pub fn serve(&self, begin: &Begin) -> ! {
        let Err(why) = self.execute(begin);
        tracing::error!(name: "EVFS-0819", "cannot execute the new program: {why}");
        std::process::exit(NOT_EXECUTED)
    }

    fn execute(&self, begin: &Begin) -> io::Result<Infallible> {
        let Begin {
            link,
            kept,
            generation,
            refused,
        } = begin;
        let mut text = format!("keeper {VERSION}\ngeneration {generation}\n");
        let _ = writeln!(text, "refused {}", u8::from(*refused));
        let _ = writeln!(text, "link {}", inherit(link.as_fd())?);
        for (name, descriptors) in kept.all() {
            let _ = write!(text, "kept {name}");
            for descriptor in descriptors {
                let _ = write!(text, " {}", inherit(descriptor.as_fd())?);
            }
            text.push('\n');
        }
        let file = rustix::fs::memfd_create("evfs-keeper", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        let number = inherit(file.as_fd())?;

        let arguments: Vec<OsString> = std::env::args_os().collect();
        let others = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
        let mut variables: Vec<OsString> =
            others.map(|(name, value)| pair(&name, &value)).collect();
        let value = format!("{}:{number}", std::process::id());
        variables.push(pair(OsStr::new(VARIABLE), OsStr::new(&value)));
        let (arguments, variables) = (strings(arguments)?, strings(variables)?);
        let pointers = |all: &[CString]| {
            let own = all.iter().map(|one| one.as_ptr());
            own.chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let (argv, envp) = (pointers(&arguments), pointers(&variables));
        // SAFETY: both lists end with a null pointer and point to strings that live until the call
        // ends, if it does.
        unsafe { libc::fexecve(self.0.as_raw_fd(), argv.as_ptr(), envp.as_ptr()) };
        Err(io::Error::last_os_error())
    }
}

fn pair(name: &OsStr, value: &OsStr) -> OsString {
    let bytes = [name.as_bytes(), b"=", value.as_bytes()].concat();
    OsString::from_vec(bytes)
}

fn strings(all: Vec<OsString>) -> io::Result<Vec<CString>> {
    let all = all.into_iter().map(|one| CString::new(one.into_vec()));
    Ok(all.collect::<Result<_, _>>()?)
}

/// Leaves a descriptor open in the next program; returns its number.
fn inherit(descriptor: BorrowedFd<'_>) -> io::Result<RawFd> {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
    Ok(descriptor.as_raw_fd())
}

/// Reports whether a keeper executed this program as a server.
pub fn is_executed() -> bool {
    file_number().is_some()
}

/// Returns the descriptor of the file, if the variable is for this process.
fn file_number() -> Option<RawFd> {
    let value = std::env::var(VARIABLE).ok()?;
    let (pid, number) = value.split_once(':')?;
    let is_ours = pid.parse() == Ok(std::process::id());
    number.parse().ok().filter(|number| is_ours && *number > 2)
}

/// Takes what a keeper has left for this program; `None` if none executed it. Must be called once.
///
/// # Errors
/// The file is not one of this version, or names a descriptor that is not open.
pub(crate) fn begin() -> io::Result<Option<Begin>> {
    let Some(number) = file_number() else {
        return Ok(None);
    };
    let mut text = String::new();
    File::from(own(number)?)
        .take(FILE_MAX)
        .read_to_string(&mut text)?;
    parse(&text).map(Some)
}

fn parse(text: &str) -> io::Result<Begin> {
    let mut lines = text.lines();
    let version: u32 = number(line(&mut lines, "keeper")?)?;
    if version != VERSION {
        return Err(wrong());
    }
    let generation = number(line(&mut lines, "generation")?)?;
    let refused = match line(&mut lines, "refused")? {
        "0" => false,
        "1" => true,
        _ => return Err(wrong()),
    };
    let link = Link::of(own(number(line(&mut lines, "link")?)?)?);
    let mut kept = Kept::default();
    for line in lines {
        let words = line.strip_prefix("kept ").ok_or_else(wrong)?;
        let mut words = words.split(' ');
        let name = words.next().filter(|name| link::is_name(name));
        let descriptors = words.map(|word| own(number(word)?));
        let descriptors = descriptors.collect::<io::Result<_>>()?;
        kept.put(name.ok_or_else(wrong)?, descriptors);
    }
    Ok(Begin {
        link,
        kept,
        generation,
        refused,
    })
}

fn line<'a>(lines: &mut impl Iterator<Item = &'a str>, key: &str) -> io::Result<&'a str> {
    let (found, rest) = lines
        .next()
        .and_then(|line| line.split_once(' '))
        .ok_or_else(wrong)?;
    if found == key { Ok(rest) } else { Err(wrong()) }
}

fn number<T: std::str::FromStr>(word: &str) -> io::Result<T> {
    word.parse().map_err(|_| wrong())
}

fn wrong() -> io::Error {
    let text = "what the keeper left for this program is of another version, or damaged";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Takes an inherited descriptor, which no later program gets.
fn own(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only reads the flags of a number, which may be any.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if number <= 2 || flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(wrong());
    }
    // SAFETY: it is open and was inherited, so no other code of this program owns it; the flag that
    // is set now keeps it from being taken again.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_text_is_an_error_and_takes_no_descriptor_twice() {
        let file = tempfile::tempfile().unwrap();
        let left = |file: &File| {
            inherit(
                file.try_clone()
                    .map(std::mem::ManuallyDrop::new)
                    .unwrap()
                    .as_fd(),
            )
            .unwrap()
        };
        let (a, b) = (left(&file), left(&file));
        let head = "keeper 1\ngeneration 3\nrefused 1\n";
        for wrong in [
            String::new(),
            "keeper 2\ngeneration 3\nrefused 1\nlink 1000".into(),
            head.into(),
            format!("{head}link 1"),
            format!("{head}link 100000"),
            format!("{head}link -1"),
            "keeper 1\ngeneration x\n".into(),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
        let mut begin = parse(&format!("{head}link {a}\nkept some-name {b}\nkept none")).unwrap();
        assert!((begin.generation, begin.refused) == (3, true));
        assert_eq!(begin.kept.take("some-name").len(), 1);
        assert!(begin.kept.has("none"));
        let c = left(&file);
        assert!(parse(&format!("{head}link {c}\nkept x {c}")).is_err());
    }
}
