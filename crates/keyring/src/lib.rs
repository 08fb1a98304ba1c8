//! keyring
