//! A real iSCSI target, and paths to it.

use path_iscsi::{IscsiPath, Options};
use pathsim::{Address, Pathsim};
use std::ops::Deref;
use std::path::Path;
use test_support::tgtd::IQN;

/// Returns the path to LUN 1 at a portal.
pub fn path(at: &str, options: Options) -> IscsiPath {
    IscsiPath::parse(&format!("iscsi://{at}/{IQN}/1"), options).expect("an address")
}

/// A running daemon, killed on drop.
pub struct Tgtd(test_support::tgtd::Tgtd);

impl Tgtd {
    /// Starts a daemon with LUN 1 of 16 MiB and a unique world-wide ID.
    pub fn start() -> Tgtd {
        let tgtd = Tgtd::start_generic();
        tgtd.set_id("5000c500a1b2c3d4", "S1");
        tgtd
    }

    /// Changes the world-wide ID and the serial number of the LUN.
    pub fn set_id(&self, id: &str, serial: &str) {
        let unit = "--op update --mode logicalunit --tid 1 --lun 1 --params";
        self.admin(&format!("{unit} scsi_id={id},scsi_sn={serial}"));
    }

    /// Starts a daemon with the default world-wide ID, which all `tgtd` instances share.
    pub fn start_generic() -> Tgtd {
        // In memory: tests of late writes must not depend on a disk that stalls.
        let place = Path::new("/dev/shm");
        Tgtd(test_support::tgtd::Tgtd::start(place, super::SIZE))
    }

    /// Returns a path through a portal.
    pub fn path(&self, portal: usize, options: Options) -> IscsiPath {
        path(&self.portals[portal], options)
    }

    /// Starts a proxy in front of a portal.
    pub fn proxy(&self, portal: usize) -> Pathsim {
        let upstream = Address::Tcp(self.portals[portal].clone());
        Pathsim::start(&Address::Tcp("127.0.0.1:0".into()), upstream).expect("a free port")
    }
}

impl Deref for Tgtd {
    type Target = test_support::tgtd::Tgtd;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
