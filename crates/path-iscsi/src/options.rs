//! Settings of an iSCSI path.

use iscsi_proto::{DigestPolicy, OfferedParams};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a path. Lengths are in bytes.
#[derive(Debug, Clone)]
pub struct Options {
    /// iSCSI qualified name of this initiator; targets use it for access control.
    pub initiator_name: String,
    /// CHAP user name; a user in the URI takes precedence. `None` disables CHAP.
    pub chap_user: Option<String>,
    /// File with the CHAP secret of that user. A trailing line break is ignored.
    pub chap_secret_file: Option<PathBuf>,
    /// File with the secret that authenticates the target (mutual CHAP).
    pub chap_target_secret_file: Option<PathBuf>,
    /// Policy for CRC32C header digests.
    pub header_digest: DigestPolicy,
    /// Policy for CRC32C data digests.
    pub data_digest: DigestPolicy,
    /// Send the first data of a write with its command.
    pub immediate_data: bool,
    /// Send no data beyond immediate data before the target's R2T.
    pub initial_r2t: bool,
    /// Refuse writes on the initiator side.
    pub read_only: bool,
    /// Maximum number of requests in flight on each queue.
    pub queue_depth: u32,
    /// Maximum transfer length; the target may lower it.
    pub max_transfer: u32,
    /// Register a key for each connection and hold a reservation (Write Exclusive, Registrants
    /// Only), so that a lost connection can be fenced. Not for a LUN that other hosts write to.
    pub persistent_reservations: bool,
    /// Time after which a connection with unacknowledged data is lost (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// Maximum time that [`block::BlockDevice::queue`] may take to connect.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            initiator_name: "iqn.2026-01.org.evfs:initiator".into(),
            chap_user: None,
            chap_secret_file: None,
            chap_target_secret_file: None,
            header_digest: DigestPolicy::Never,
            data_digest: DigestPolicy::Never,
            immediate_data: true,
            initial_r2t: false,
            read_only: false,
            queue_depth: 64,
            max_transfer: 1 << 20,
            persistent_reservations: false,
            user_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(15),
        }
    }
}

impl Options {
    pub(crate) fn wanted(&self) -> OfferedParams {
        OfferedParams {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            immediate_data: self.immediate_data,
            initial_r2t: self.initial_r2t,
            ..OfferedParams::default()
        }
    }
}
