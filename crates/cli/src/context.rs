//! Context of every command.

use crate::{agent, output, secrets};
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
    /// Returns the context of a dry run, and marks its results as such.
    pub fn for_dry_run(&self) -> Context {
        output::begin_dry_run();
        Context {
            json: self.json,
            settings: self.settings.for_dry_run(),
        }
    }

    /// Returns the same context with other settings.
    pub fn with(&self, settings: Settings) -> Context {
        Context {
            json: self.json,
            settings,
        }
    }

    /// Opens the user's key pairs.
    pub fn keyring(&self) -> Keyring {
        Keyring::open(self.settings.keys_dir())
    }

    /// Creates the opener of volumes for this user. It asks for passphrases at the terminal or, if
    /// the setting `unlock.ask-password` permits it, through systemd.
    pub fn opener(&self) -> Opener {
        let json = self.json;
        let settings = &self.settings;
        let ask = if settings.ask_password() {
            agent::ask
        } else {
            secrets::ask
        };
        let tell = Box::new(move |text: &str| output::say(json, text));
        Opener::new(
            self.keyring(),
            ask,
            tell,
            TrustStore::of(settings),
            settings.kdf_limits(),
        )
    }
}
