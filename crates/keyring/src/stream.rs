//! Streams encrypted to a key: age files of any length, written and read in pieces.
//!
//! The reader returns only bytes whose authenticity it has verified, and an error at a premature end.
//! An age file does not tell who wrote it: each holder of the public key can.

use crate::{Error, Identity, Recipient, Result};
use std::io::{self, Read, Write};

/// Bytes with which an age file begins.
pub const MAGIC: &[u8] = b"age-encryption.org/v1";

/// Writer of an encrypted stream.
pub struct EncryptedWriter<W: Write>(age::stream::StreamWriter<W>);

/// Reader of an encrypted stream.
pub struct DecryptedReader<R: Read>(age::stream::StreamReader<R>);

impl Recipient {
    /// Begins a stream that only the private half decrypts.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn encrypt<W: Write>(&self, out: W) -> Result<EncryptedWriter<W>> {
        let malformed = |e: String| Error::malformed(self.to_string(), e);
        let encryptor = age::Encryptor::with_recipients(std::iter::once(self.as_age()));
        let encryptor = encryptor.map_err(|e| malformed(e.to_string()))?;
        let writer = encryptor.wrap_output(out);
        secret::burn_stack();
        Ok(EncryptedWriter(
            writer.map_err(|e| malformed(e.to_string()))?,
        ))
    }
}

impl<W: Write> EncryptedWriter<W> {
    /// Writes the end of the stream, without which it is incomplete.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for EncryptedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Identity {
    /// Begins to decrypt a stream.
    ///
    /// # Errors
    /// [`Error::WrongKey`]: it is no stream, or encrypted to another key.
    pub fn decrypt<R: Read>(&self, input: R) -> Result<DecryptedReader<R>> {
        let decryptor = age::Decryptor::new(input).map_err(|_| Error::NotForKey)?;
        if decryptor.is_scrypt() {
            return Err(Error::NotForKey);
        }
        let opened = decryptor.decrypt(std::iter::once(self.as_age()));
        secret::burn_stack();
        Ok(DecryptedReader(opened.map_err(|_| Error::NotForKey)?))
    }
}

impl<R: Read> Read for DecryptedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Identity {
        Identity::generate().unwrap().0
    }

    fn encrypted(to: &Identity, bytes: &[u8]) -> Vec<u8> {
        let mut writer = to.recipient().encrypt(Vec::new()).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn decrypted(by: &Identity, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut clear = Vec::new();
        by.decrypt(bytes).ok()?.read_to_end(&mut clear).ok()?;
        Some(clear)
    }

    #[test]
    fn a_stream_is_read_by_its_key_only_and_whole_only() {
        let (own, other) = (pair(), pair());
        let clear = vec![7; 200_000];
        let bytes = encrypted(&own, &clear);
        assert!(bytes.starts_with(MAGIC));
        assert_eq!(decrypted(&own, &bytes), Some(clear));
        assert_eq!(decrypted(&other, &bytes), None);
        for len in [0, 10, 300, 70_000, bytes.len() - 1] {
            assert_eq!(decrypted(&own, &bytes[..len]), None, "{len}");
        }
        for at in [0, 100, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decrypted(&own, &damaged), None, "{at}");
        }
    }
}
