//! A real target, and a proxy in front of it.

pub mod proxy;

use path_iscsi::{IscsiPath, Options};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
pub use test_support::tgtd::IQN;

/// Timeout that no test reaches if it passes.
pub const LONG: Duration = Duration::from_secs(20);

/// A running daemon, killed on drop.
pub struct Tgtd(test_support::tgtd::Tgtd);

impl Tgtd {
    /// Starts a daemon with LUN 1 of 32 MiB.
    pub fn start() -> Tgtd {
        let place = std::env::temp_dir();
        Tgtd(test_support::tgtd::Tgtd::start(&place, 32 << 20))
    }

    /// Returns a path to LUN 1 through a portal.
    pub fn path(&self, portal: usize, options: Options) -> IscsiPath {
        let uri = format!("iscsi://{}/{IQN}/1", self.portals[portal]);
        IscsiPath::parse(&uri, options).expect("an address")
    }
}

impl Deref for Tgtd {
    type Target = test_support::tgtd::Tgtd;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Tgtd {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
