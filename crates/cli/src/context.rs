//! Context of every command.

use crate::{output, secrets};
use keyring::Keyring;
use stack::trust::TrustStore;
use stack::{Opener, Settings};

/// Context of every command.
#[derive(Clone)]
pub struct Context {
    /// Print one JSON document instead of text.
    pub json: bool,
    /// Settings in effect.
    pub settings: Settings,
}

impl Context {
    /// Opens the user's key pairs.
    pub fn keyring(&self) -> Keyring {
        Keyring::open(self.settings.keys_dir())
    }

    /// Creates the opener of volumes for this user, which asks for passphrases at the terminal.
    pub fn opener(&self) -> Opener {
        let json = self.json;
        let settings = &self.settings;
        let tell = Box::new(move |text: &str| output::say(json, text));
        Opener::new(
            self.keyring(),
            secrets::ask,
            tell,
            TrustStore::of(settings),
            settings.kdf_limits(),
        )
    }
}
