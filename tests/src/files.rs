//! Histories of clients of a cell: each changes a directory of its own, one operation after another,
//! and compares what the server has with what it was told.
//!
//! An operation that the server acknowledged has happened. One without an answer has happened as a
//! whole or not at all, and the next look at the directory decides which. Anything else is a
//! [`Violation`].
//!
//! Rx sends a call again until it is answered. If an owner has executed it and died before its
//! answer, the next owner executes it again, and answers that the name exists already, or not any
//! more. Such a late answer means that the operation has happened.

use crate::Random;
use afs_client::{Client, Error};
use afs_proto::{Abort, AfsFid, dir};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long the server may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// A take-over lasts longer than this.
const LATE: Duration = Duration::from_secs(1);
/// Names of files.
const NAMES: u64 = 8;
/// Bytes that are written at once.
const BYTES: usize = 4096;

/// Names in a directory, each with the content of its file.
type State = BTreeMap<String, Vec<u8>>;

/// What the server has is not what its clients were told.
#[derive(Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Create(String),
    Write(String, Vec<u8>),
    Rename(String, String),
    Remove(String),
}

impl Operation {
    fn apply(&self, state: &mut State) {
        match self {
            Operation::Create(name) => {
                state.insert(name.clone(), Vec::new());
            }
            Operation::Write(name, data) => {
                state.insert(name.clone(), data.clone());
            }
            Operation::Rename(from, to) => {
                if let Some(content) = state.remove(from) {
                    state.insert(to.clone(), content);
                }
            }
            Operation::Remove(name) => {
                state.remove(name);
            }
        }
    }
}

/// A client with its directory, and the state that the server owes it.
pub struct FileClient {
    client: Client,
    directory: AfsFid,
    state: State,
    random: Random,
    written: u32,
    /// Operations without an answer, and those with a late one.
    pub unknown: u32,
}

impl FileClient {
    /// Creates a directory of this name in `root` for the client.
    ///
    /// # Panics
    /// The server refuses it.
    pub fn new(client: Client, root: AfsFid, name: &str, random: Random) -> FileClient {
        let (directory, _) = client.make_dir(root, name).unwrap();
        FileClient {
            client,
            directory,
            state: State::new(),
            random,
            written: 0,
            unknown: 0,
        }
    }

    /// Returns the directory.
    pub fn directory(&self) -> AfsFid {
        self.directory
    }

    /// Makes a change, and looks at the directory if its result is unknown, and sometimes otherwise.
    ///
    /// # Errors
    /// The server has something else than it should, or refuses the operation.
    pub fn step(&mut self) -> Result<(), Violation> {
        let operation = self.choose();
        let mut after = self.state.clone();
        operation.apply(&mut after);
        let before = std::mem::replace(&mut self.state, after);
        let began = Instant::now();
        match self.execute(&operation) {
            Ok(()) if self.random.below(8) != 0 => Ok(()),
            Ok(()) => self.check(),
            Err(error) if is_unknown(&error) => {
                self.unknown += 1;
                let found = self.look()?;
                if found == before {
                    self.state = before;
                    return Ok(());
                }
                self.compare(&found, &format!("after {operation:?}, which had no answer"))
            }
            Err(Error::Abort(code)) if is_known_already(code) && began.elapsed() > LATE => {
                self.unknown += 1;
                let found = self.look()?;
                self.compare(&found, &format!("after {operation:?}, which was repeated"))
            }
            Err(error) => Err(Violation(format!("{operation:?}: {error}"))),
        }
    }

    /// Looks at the directory, and at all files in it.
    ///
    /// # Errors
    /// The server has something else than it should.
    pub fn check(&self) -> Result<(), Violation> {
        let found = self.look()?;
        self.compare(&found, "in order")
    }

    fn compare(&self, found: &State, when: &str) -> Result<(), Violation> {
        if *found == self.state {
            return Ok(());
        }
        let short = |state: &State| {
            let one = |(name, data): (&String, &Vec<u8>)| {
                let first = data
                    .first_chunk::<4>()
                    .map(|first| u32::from_le_bytes(*first));
                format!("{name}: {} bytes of {first:?}", data.len())
            };
            state.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        Err(Violation(format!(
            "{when}: the server has {{{}}}, and should have {{{}}}",
            short(found),
            short(&self.state)
        )))
    }

    fn choose(&mut self) -> Operation {
        let mut name = || format!("f{}", self.random.below(NAMES));
        let (one, other) = (name(), name());
        let exists = self.state.contains_key(&one);
        match self.random.below(8) {
            _ if !exists => Operation::Create(one),
            0 => Operation::Remove(one),
            1 | 2 if one != other => Operation::Rename(one, other),
            _ => {
                self.written += 1;
                Operation::Write(one, self.written.to_le_bytes().repeat(BYTES / 4))
            }
        }
    }

    fn execute(&self, operation: &Operation) -> Result<(), Error> {
        let (client, directory) = (&self.client, self.directory);
        match operation {
            Operation::Create(name) => client.create(directory, name).map(drop),
            Operation::Write(name, data) => {
                let file = client.find(directory, name)?;
                client.write(file, 0, data).map(drop)
            }
            Operation::Rename(from, to) => {
                client.rename((directory, from), (directory, to)).map(drop)
            }
            Operation::Remove(name) => client.remove(directory, name).map(drop),
        }
    }

    /// Reads everything from the server, not from the cache.
    fn look(&self) -> Result<State, Violation> {
        let began = Instant::now();
        loop {
            match self.read_all() {
                Ok(state) => return Ok(state),
                Err(error) if is_unknown(&error) && began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(Violation(format!("cannot read: {error}"))),
            }
        }
    }

    fn read_all(&self) -> Result<State, Error> {
        self.client.flush();
        let pages = self.client.directory(self.directory)?;
        let entries = dir::Directory::verify(&pages).map_err(|_| Error::Nonsense("a directory"))?;
        let mut state = State::new();
        for entry in entries.entries() {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            if name != "." && name != ".." {
                let file = entry.fid.within(self.directory.volume);
                let content = self.client.read(file, 0, 2 * BYTES as u64)?;
                state.insert(name, content);
            }
        }
        Ok(state)
    }
}

/// Reports whether the server says that a name exists already, or not any more.
fn is_known_already(code: Abort) -> bool {
    matches!(code.errno(), Some(libc::EEXIST | libc::ENOENT))
}

/// Reports whether the call may have been executed, or was not because the server has just begun.
fn is_unknown(error: &Error) -> bool {
    match error {
        Error::Broken(_) => true,
        Error::Abort(code) => matches!(*code, Abort::VRESTARTING | Abort::VBUSY),
        _ => false,
    }
}
