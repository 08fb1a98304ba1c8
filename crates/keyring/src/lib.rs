//! User key pairs and their files: `age` identities (X25519), and ssh-ed25519 keys that a user has
//! already.
//!
//! ```text
//!   keys/alice.pub   0644   age1...  or  ssh-ed25519 AAAA...
//!   keys/alice.key   0600   age identity, plain or under a passphrase (an age file), or OpenSSH key
//! ```
//!
//! A key of which only the `.pub` is there is somebody else's: enough to let them in.
//!
//! **Invariant:** a private key is on disk only in a file that its user alone can read, and in
//! memory only while an [`Identity`] lives; a file is there whole or not at all.
//!
//! Absent on purpose: RSA. The only implementation at hand leaks through its timing
//! (RUSTSEC-2023-0071), so ssh-rsa keys are refused, and no crate that knows RSA is linked: age's support of ssh keys
//! is left out, and `ssh.rs` takes its place for ed25519.

mod error;
mod identity;
mod openssh;
mod recipient;
mod ssh;
mod store;

pub use error::{Error, Result};
pub use identity::Identity;
pub use recipient::{KeyKind, Recipient};
pub use store::{Files, KeyInfo, Keyring, Listing, Private, Prompt, name_to_import};
