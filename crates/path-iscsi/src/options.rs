//! How a target is reached.

use iscsi_proto::{DigestPolicy, Wanted};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a path. Lengths are bytes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of this initiator; targets allow access by it.
    pub initiator_name: String,
    /// User for CHAP; one in the URI comes before it. `None`: no CHAP.
    pub chap_user: Option<String>,
    /// File with the secret of that user. A line end at its end does not count.
    pub chap_secret_file: Option<PathBuf>,
    /// File with the secret by which the target proves itself (mutual CHAP).
    pub chap_target_secret_file: Option<PathBuf>,
    /// CRC32C of headers.
    pub header_digest: DigestPolicy,
    /// CRC32C of data.
    pub data_digest: DigestPolicy,
    /// Send the first data of a write with its command.
    pub immediate_data: bool,
    /// Send no more than immediate data before the target asks.
    pub initial_r2t: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// Requests in flight on each queue.
    pub queue_depth: u32,
    /// Longest transfer, where the target allows that much.
    pub max_transfer: u32,
    /// Register a key with each connection and hold a reservation (write exclusive, registrants
    /// only), so that a lost connection can be fenced. Not for a LUN that others write to.
    pub persistent_reservations: bool,
    /// How long the target's machine may leave what was sent unacknowledged before the connection
    /// is lost (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// How long [`block::BlockDevice::queue`] may take to connect.
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
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            immediate_data: self.immediate_data,
            initial_r2t: self.initial_r2t,
            ..Wanted::default()
        }
    }
}
