//! XDR (RFC 4506) as the AFS interfaces use it: everything is a multiple of four bytes, big endian.
//!
//! **Invariant:** nothing is read past the end, no count is believed before it was held against its
//! limit, and what cannot be written back is not accepted: a [`Text`] or [`List`] that exists is
//! within its limit.
//!
//! Text and opaque bytes are borrowed from what was received. The bytes that fill a string up to four
//! are written as zeros and not looked at when read: OpenAFS does not either.

use crate::{Abort, Result};
use std::net::Ipv4Addr;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the value does. More of the stream may complete it: bytes that are a
    /// beginning of a good value give this and no other error.
    #[error("the bytes end before the value does")]
    Incomplete,
    /// More bytes, or elements, than the interface allows.
    #[error("{what} of {length}; the interface allows {max}")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// How many there are.
        length: usize,
        /// How many there may be.
        max: usize,
    },
    /// A number that stands for nothing.
    #[error("{what} {value} is not defined")]
    Undefined {
        /// What it is.
        what: &'static str,
        /// The number.
        value: u32,
    },
    /// A string with a zero byte in it, which no C implementation could have meant.
    #[error("a string has a zero byte in it")]
    ZeroInString,
    /// Bytes behind a value that should fill all of them.
    #[error("{0} bytes too many")]
    Surplus(usize),
    /// A procedure that this side does not serve.
    #[error("procedure {0} is not served here")]
    Opcode(u32),
}

impl WireError {
    /// The code with which a server ends such a call, [`WireError::Incomplete`] meaning that no more
    /// bytes come.
    pub fn server_abort(self) -> Abort {
        match self {
            WireError::Opcode(_) => Abort::RXGEN_OPCODE,
            _ => Abort::RXGEN_SS_UNMARSHAL,
        }
    }
}

/// A value with a form on the wire. `'a` is the life of the bytes it is read from.
pub trait Xdr<'a>: Sized {
    /// Reads the value from the front of `from`.
    fn read(from: &mut Reader<'a>) -> Result<Self>;
    /// Appends the value.
    fn write(&self, to: &mut Vec<u8>);
}

/// Reads one value that fills all of `bytes`.
pub fn from_bytes<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<T> {
    let (value, taken) = prefix(bytes)?;
    match bytes.len() - taken {
        0 => Ok(value),
        surplus => Err(WireError::Surplus(surplus)),
    }
}

/// Reads one value from the front of `bytes`, and says how many of them it took.
pub fn prefix<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<(T, usize)> {
    let mut from = Reader::new(bytes);
    let value = T::read(&mut from)?;
    Ok((value, bytes.len() - from.rest.len()))
}

/// The form of one value on the wire.
pub fn to_bytes<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    bytes
}

/// Bytes that are read from the front.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(WireError::Incomplete)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as they are.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WireError::Incomplete)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A count and as many bytes, filled up to a multiple of four.
    fn counted(&mut self, what: &'static str, max: usize) -> Result<&'a [u8]> {
        let length = self.count(what, max)?;
        let filled = self.take(length.next_multiple_of(4))?;
        filled.get(..length).ok_or(WireError::Incomplete)
    }

    /// A count that is within its limit.
    pub(crate) fn count(&mut self, what: &'static str, max: usize) -> Result<usize> {
        let length = usize::try_from(u32::read(self)?).unwrap_or(usize::MAX);
        within(what, length, max)
    }
}

fn within(what: &'static str, length: usize, max: usize) -> Result<usize> {
    if length > max {
        return Err(WireError::TooLong { what, length, max });
    }
    Ok(length)
}

/// A count on the wire. What is counted has passed its limit, so it always fits.
fn write_count(count: usize, to: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).write(to);
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl<'a> Xdr<'a> for $type {
            fn read(from: &mut Reader<'a>) -> Result<Self> {
                from.array().map(<$type>::from_be_bytes)
            }
            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
number!(u32, i32, u64);

/// An Internet address is one word, the address's first byte the most significant.
impl<'a> Xdr<'a> for Ipv4Addr {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        u32::read(from).map(Ipv4Addr::from)
    }
    fn write(&self, to: &mut Vec<u8>) {
        u32::from(*self).write(to);
    }
}

/// A `char` that is used as a truth value takes a word of its own.
impl<'a> Xdr<'a> for bool {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        u32::read(from).map(|word| word != 0)
    }
    fn write(&self, to: &mut Vec<u8>) {
        u32::from(*self).write(to);
    }
}

/// An array of fixed length has no count (RFC 4506, section 4.12).
impl<'a, T: Xdr<'a> + Copy + Default, const N: usize> Xdr<'a> for [T; N] {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let mut all = [T::default(); N];
        for one in &mut all {
            *one = T::read(from)?;
        }
        Ok(all)
    }
    fn write(&self, to: &mut Vec<u8>) {
        for one in self {
            one.write(to);
        }
    }
}

/// A large value that would swell an enum.
impl<'a, T: Xdr<'a>> Xdr<'a> for Box<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        T::read(from).map(Box::new)
    }
    fn write(&self, to: &mut Vec<u8>) {
        (**self).write(to);
    }
}

/// A string of at most `MAX` bytes, without a zero byte (RFC 4506, section 4.11). AFS gives it no
/// character set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Text<'a, MAX> {
    /// A string to send; fails if it is too long or has a zero byte.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        within("a string", bytes.len(), MAX)?;
        if bytes.contains(&0) {
            return Err(WireError::ZeroInString);
        }
        Ok(Text(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<const MAX: usize> std::fmt::Debug for Text<'_, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<'a, const MAX: usize> Xdr<'a> for Text<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        Text::new(from.counted("a string", MAX)?)
    }
    fn write(&self, to: &mut Vec<u8>) {
        write_filled(self.0, to);
    }
}

/// At most `MAX` bytes of any kind (RFC 4506, section 4.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Bytes<'a, MAX> {
    /// Bytes to send; fails if they are too many.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        within("opaque data", bytes.len(), MAX)?;
        Ok(Bytes(bytes))
    }

    /// The bytes themselves.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a, const MAX: usize> Xdr<'a> for Bytes<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        from.counted("opaque data", MAX).map(Bytes)
    }
    fn write(&self, to: &mut Vec<u8>) {
        write_filled(self.0, to);
    }
}

fn write_filled(bytes: &[u8], to: &mut Vec<u8>) {
    write_count(bytes.len(), to);
    to.extend_from_slice(bytes);
    to.resize(to.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

/// At most `MAX` elements (RFC 4506, section 4.13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Elements to send; fails if they are too many.
    pub fn new(elements: Vec<T>) -> Result<Self> {
        within("an array", elements.len(), MAX)?;
        Ok(List(elements))
    }

    /// The elements, to keep.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }

    /// Appends how many there are, and nothing else.
    pub(crate) fn write_count(&self, to: &mut Vec<u8>) {
        write_count(self.0.len(), to);
    }
}

impl<T, const MAX: usize> std::ops::Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T: Xdr<'a>, const MAX: usize> Xdr<'a> for List<T, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let count = from.count("an array", MAX)?;
        (0..count)
            .map(|_| T::read(from))
            .collect::<Result<_>>()
            .map(List)
    }
    fn write(&self, to: &mut Vec<u8>) {
        write_count(self.0.len(), to);
        for element in &self.0 {
            element.write(to);
        }
    }
}
