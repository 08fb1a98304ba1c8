//! Reading the parts of a message.

use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Longest name, link target or attribute name that a request may carry, in bytes. The kernel's
/// own limit is not higher (`PATH_MAX`).
pub const NAME_BYTES_MAX: usize = 4095;

/// Message that is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read a FUSE request of the kernel{}: {reason}", self.operation())]
pub struct Malformed {
    /// Identifier of the request, if the message is long enough to have one: the request can be
    /// answered with an error.
    pub unique: Option<u64>,
    /// Operation, if the message is long enough to have one. `FUSE_FORGET` and
    /// `FUSE_BATCH_FORGET` are not answered.
    pub opcode: Option<u32>,
    /// Part of the message that is wrong.
    pub reason: &'static str,
}

impl Malformed {
    fn operation(&self) -> String {
        let opcode = self.opcode.map(|opcode| format!(" (operation {opcode})"));
        opcode.unwrap_or_default()
    }
}

/// Part of a message that is wrong.
pub(crate) type Wrong = &'static str;

/// Arguments of a request that have not been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// Area of the first argument, if it is separate from the others (io_uring).
    pub(crate) first: Option<&'a [u8]>,
    pub(crate) rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// Reads a structure.
    pub(crate) fn fixed<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Wrong> {
        let bytes = self.bytes(size_of::<T>())?;
        T::read_from_bytes(bytes).map_err(|_| "an argument is too short")
    }

    /// Takes the given number of bytes, which are the structure of the request.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        // The area of the first argument has a constant size, and the argument is at its begin.
        if let Some(first) = self.first.take() {
            return first.get(..count).ok_or("an argument is too short");
        }
        self.data(count)
    }

    /// Takes the given number of bytes of data.
    pub(crate) fn data(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or("an argument is too short")?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes a string that a NUL byte ends.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Wrong> {
        // No more than the longest name is searched, whatever the length of the message.
        let window = self.rest.get(..=NAME_BYTES_MAX).unwrap_or(self.rest);
        let len = window.iter().position(|&b| b == 0);
        let len = len.ok_or(if window.len() > NAME_BYTES_MAX {
            "a name is too long"
        } else {
            "a name has no end"
        })?;
        let string = self.data(len)?;
        self.data(1)?;
        match string {
            [] => Err("a name is empty"),
            _ => Ok(string),
        }
    }

    /// Takes the name of a directory entry.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Wrong> {
        let name = self.string()?;
        if name.contains(&b'/') {
            return Err("a name contains a slash");
        }
        Ok(name)
    }
}
