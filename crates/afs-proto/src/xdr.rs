//! XDR (RFC 4506) as the AFS interfaces use it: every item is a multiple of four bytes, big endian.
//!
//! **Invariant:** nothing is read past the end, no count is used before it was checked against its
//! limit, and only values that can be written back are accepted: a [`Text`] or [`List`] is always
//! within its limit.
//!
//! Text and opaque bytes are borrowed from the received bytes. The bytes that pad a string to a
//! multiple of four are written as zeros and ignored when read, as in OpenAFS.

use crate::{Abort, Result};
use std::net::Ipv4Addr;

/// Decoding error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the value does. More of the stream may complete it: a proper prefix of
    /// a valid value returns this error and no other.
    #[error("the value is truncated")]
    Incomplete,
    /// More bytes or elements than the interface allows.
    #[error("{what} of length {length} exceeds the limit of {max}")]
    TooLong {
        /// Name of the item.
        what: &'static str,
        /// Actual length.
        length: usize,
        /// Maximum length.
        max: usize,
    },
    /// Undefined number.
    #[error("{what} {value} is not defined")]
    Undefined {
        /// Name of the item.
        what: &'static str,
        /// Received number.
        value: u32,
    },
    /// String that contains a zero byte, which no C implementation can have intended.
    #[error("a string contains a zero byte")]
    ZeroInString,
    /// Bytes after a value that should consume the whole input.
    #[error("{0} surplus bytes after the value")]
    Surplus(usize),
    /// Procedure that this side does not implement.
    #[error("procedure {0} is not supported")]
    Opcode(u32),
}

impl WireError {
    /// Returns the abort code with which a server ends such a call. Here [`WireError::Incomplete`]
    /// means that the stream has ended.
    pub fn server_abort(self) -> Abort {
        match self {
            WireError::Opcode(_) => Abort::RXGEN_OPCODE,
            _ => Abort::RXGEN_SS_UNMARSHAL,
        }
    }
}

/// Value with a wire encoding. `'a` is the lifetime of the bytes it is read from.
pub trait Xdr<'a>: Sized {
    /// Reads the value from the front of `from`.
    fn read(from: &mut Reader<'a>) -> Result<Self>;
    /// Appends the encoding of the value to `to`.
    fn write(&self, to: &mut Vec<u8>);
}

/// Reads one value that consumes all of `bytes`.
pub fn from_bytes<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<T> {
    let (value, taken) = prefix(bytes)?;
    match bytes.len() - taken {
        0 => Ok(value),
        surplus => Err(WireError::Surplus(surplus)),
    }
}

/// Reads one value from the front of `bytes` and returns it with the number of bytes consumed.
pub fn prefix<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<(T, usize)> {
    let mut from = Reader::new(bytes);
    let value = T::read(&mut from)?;
    Ok((value, bytes.len() - from.rest.len()))
}

/// Encodes one value.
pub fn to_bytes<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    bytes
}

/// Cursor over received bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the unread bytes.
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

    /// Reads the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WireError::Incomplete)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads a count and that number of bytes, padded to a multiple of four.
    fn counted(&mut self, what: &'static str, max: usize) -> Result<&'a [u8]> {
        let length = self.count(what, max)?;
        let filled = self.take(length.next_multiple_of(4))?;
        filled.get(..length).ok_or(WireError::Incomplete)
    }

    /// Reads a count and checks it against its limit.
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

/// Writes a count. The counted items are within their limit, so the count always fits.
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

/// Encodes an IPv4 address as one word, the first byte the most significant.
impl<'a> Xdr<'a> for Ipv4Addr {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        u32::read(from).map(Ipv4Addr::from)
    }
    fn write(&self, to: &mut Vec<u8>) {
        u32::from(*self).write(to);
    }
}

/// Encodes a truth value, a `char` in the interface, as a word.
impl<'a> Xdr<'a> for bool {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        u32::read(from).map(|word| word != 0)
    }
    fn write(&self, to: &mut Vec<u8>) {
        u32::from(*self).write(to);
    }
}

/// Encodes an array of fixed length, which has no count (RFC 4506, section 4.12).
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

/// Encodes a boxed value; boxing keeps an enum with a large variant small.
impl<'a, T: Xdr<'a>> Xdr<'a> for Box<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        T::read(from).map(Box::new)
    }
    fn write(&self, to: &mut Vec<u8>) {
        (**self).write(to);
    }
}

/// String of at most `MAX` bytes, without a zero byte (RFC 4506, section 4.11). AFS does not
/// specify its character set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Text<'a, MAX> {
    /// Creates a string to send; fails if it is too long or contains a zero byte.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        within("a string", bytes.len(), MAX)?;
        if bytes.contains(&0) {
            return Err(WireError::ZeroInString);
        }
        Ok(Text(bytes))
    }

    /// Returns the bytes of the string.
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

/// At most `MAX` opaque bytes (RFC 4506, section 4.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Bytes<'a, MAX> {
    /// Creates opaque data to send; fails if it is too long.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        within("opaque data", bytes.len(), MAX)?;
        Ok(Bytes(bytes))
    }

    /// Returns the opaque bytes.
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
    /// Creates a list to send; fails if it has too many elements.
    pub fn new(elements: Vec<T>) -> Result<Self> {
        within("an array", elements.len(), MAX)?;
        Ok(List(elements))
    }

    /// Converts the list into a vector.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }

    /// Appends the number of elements, without the elements.
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
