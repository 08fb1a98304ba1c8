//! A secret of fixed length.

use crate::arena::Pages;
use std::fmt;
use std::ops::{Deref, DerefMut};
use subtle::ConstantTimeEq;

/// Key material of a fixed length in bytes.
///
/// Compared in constant time by [`PartialEq`]; its `Debug` output shows only the length.
pub struct SecretBytes {
    pages: Pages,
}

impl SecretBytes {
    /// Creates a secret of `len` zero bytes, to be filled in place.
    pub fn zeroed(len: usize) -> SecretBytes {
        SecretBytes {
            pages: Pages::new(len),
        }
    }

    /// Copies `bytes`. The caller has to zero its own copy.
    pub fn from_slice(bytes: &[u8]) -> SecretBytes {
        let mut secret = SecretBytes::zeroed(bytes.len());
        secret.copy_from_slice(bytes);
        secret
    }

    /// Creates a secret of `len` bytes from the kernel's random number generator.
    ///
    /// # Panics
    /// Panics if the kernel cannot provide random bytes: no key may be generated then.
    pub fn random(len: usize) -> SecretBytes {
        let mut secret = SecretBytes::zeroed(len);
        getrandom::fill(&mut secret).expect("the kernel gives random bytes");
        secret
    }

    /// Copies the first `len` bytes, or all bytes if the secret is shorter.
    pub fn truncated(&self, len: usize) -> SecretBytes {
        SecretBytes::from_slice(&self[..len.min(self.len())])
    }

    /// Checks that the secret can protect something.
    ///
    /// # Errors
    /// It is empty.
    pub fn check(&self) -> Result<(), EmptySecret> {
        if self.is_empty() {
            Err(EmptySecret)
        } else {
            Ok(())
        }
    }
}

/// A new secret is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptySecret;

impl fmt::Display for EmptySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an empty passphrase or key file protects nothing; use one that is not empty")
    }
}

impl std::error::Error for EmptySecret {}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Pages` maps `len` readable bytes for as long as it lives.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), self.pages.len()) }
    }
}

impl DerefMut for SecretBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `Pages` maps `len` writable bytes, and `&mut self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr(), self.pages.len()) }
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &SecretBytes) -> bool {
        self[..].ct_eq(&other[..]).into()
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in_and_compares_by_content() {
        let a = SecretBytes::from_slice(b"correct horse");
        assert_eq!(&a[..], b"correct horse");
        assert!(a == SecretBytes::from_slice(b"correct horse"));
        assert!(a != SecretBytes::from_slice(b"correct horsf"));
        assert!(a != SecretBytes::from_slice(b"correct"));
    }

    #[test]
    fn an_empty_secret_protects_nothing() {
        assert_eq!(SecretBytes::zeroed(0).check(), Err(EmptySecret));
        assert_eq!(SecretBytes::zeroed(1).check(), Ok(()));
    }

    #[test]
    fn debug_shows_the_length_and_nothing_else() {
        let shown = format!("{:?}", SecretBytes::from_slice(b"hunter2"));
        assert_eq!(shown, "SecretBytes(7 bytes)");
    }

    #[test]
    fn pages_are_excluded_from_core_dumps() {
        let secret = SecretBytes::random(64);
        let at = secret.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps can be read");
        let mut ours = false;
        for line in maps.lines() {
            if let Some((from, rest)) = line.split_once('-')
                && let Ok(from) = usize::from_str_radix(from, 16)
            {
                let to = rest.split(' ').next().unwrap_or_default();
                ours = (from..usize::from_str_radix(to, 16).unwrap_or(0)).contains(&at);
            } else if ours && line.starts_with("VmFlags:") {
                assert!(line.contains(" dd"), "not excluded from dumps: {line}");
                assert!(line.contains(" lo"), "not locked: {line}");
                return;
            }
        }
        panic!("the mapping of the secret is not in smaps");
    }

    #[test]
    fn random_secrets_differ() {
        assert!(SecretBytes::random(32) != SecretBytes::random(32));
    }
}
