//! User key pairs and their files: `age` identities (X25519) and existing ssh-ed25519 keys.
//!
//! ```text
//!   keys/alice.pub   0644   age1...  or  ssh-ed25519 AAAA...
//!   keys/alice.key   0600   age identity, plain or encrypted (an age file), or OpenSSH key
//! ```
//!
//! A key with only a `.pub` file belongs to another user; it suffices to grant that user access.
//!
//! **Invariant:** a private key is on disk only in a file that its user alone can read, and in
//! memory only while an [`Identity`] lives. A key file is complete or does not exist.
//!
//! Deliberately absent: RSA. The only available implementation leaks through its timing
//! (RUSTSEC-2023-0071), so ssh-rsa keys are refused, and no crate that implements RSA is linked:
//! age's support of ssh keys is disabled, and `ssh.rs` replaces it for ed25519.

mod error;
mod identity;
mod openssh;
mod recipient;
mod ssh;
mod store;
pub mod stream;

pub use error::{Error, Result};
pub use identity::Identity;
pub use recipient::{KeyKind, Recipient, fingerprint};
pub use store::{
    Files, KeyInfo, Keyring, Listing, Private, Prompt, identity_of_file, looks_public,
    name_to_import, secret_of_file,
};
