//! Documents of `evfs lun`, and of other commands about LUNs. Their serialized form is published
//! (`docs/schemas/`).

use multipath::{LunStatus, PathState, PathStatus};
use schemars::JsonSchema;
use serde::Serialize;

/// A LUN in `evfs lun list` and `evfs lun show`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownLun {
    /// Status of an open LUN. For a LUN that is not open, the registry has the fields that follow,
    /// and all others are absent.
    #[serde(flatten)]
    pub status: Option<LunStatus>,
    /// Persistent name, `diskN`.
    pub name: String,
    /// World-wide ID, if the target reports one.
    pub wwid: Option<String>,
    /// Serial number, if the target reports one.
    pub serial: Option<String>,
    /// Vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Size in bytes.
    pub size: u64,
    /// Size of a logical block in bytes.
    pub block_size: u32,
    /// `online`, `limited` (some paths fail) or `offline`; `unopen` if the LUN is not open.
    pub health: String,
    /// Whether a process has the LUN open.
    pub open: bool,
    /// Paths of the LUN, except removed ones.
    pub paths: Vec<ShownPath>,
}

/// A path of a LUN in `evfs lun list` and `evfs lun show`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownPath {
    /// Status of a path of an open LUN. For a LUN that is not open, the registry has the fields
    /// that follow, and all others are absent.
    #[serde(flatten)]
    pub status: Option<PathStatus>,
    /// Address of the path.
    pub name: String,
    /// Legacy name, `cXtYdZ`.
    pub legacy: String,
    /// `file`, `nbd`, `iscsi` or `rbd`; `none` for an address that is no longer valid.
    pub transport: String,
    /// Target port.
    pub port: String,
    /// Current state.
    pub state: PathState,
}

/// State of a LUN in `evfs status`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LunHealth {
    /// `online`, `limited` (some paths fail) or `offline`.
    pub health: &'static str,
    /// Paths of the LUN, except removed ones.
    pub paths: Vec<PathHealth>,
}

/// State of a path in `evfs status`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PathHealth {
    /// Address of the path.
    pub name: String,
    /// Legacy name, `cXtYdZ`.
    pub legacy: String,
    /// Current state.
    pub state: PathState,
    /// Reason why it is refused or has failed, or why its I/O waits.
    pub why: Option<String>,
}

/// A row of `evfs lun get`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AttributeRow {
    /// Name of the attribute.
    pub name: &'static str,
    /// Value in force, if the LUN is open.
    pub current: Option<String>,
    /// Value in force after the next open.
    pub saved: String,
    /// Built-in value.
    pub default: String,
    /// Scope of the saved value.
    pub origin: String,
    /// Meaning, unit and range.
    pub help: &'static str,
}

/// A path after an operation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Changed {
    /// Name of the LUN.
    pub lun: String,
    /// Address of the path.
    pub path: String,
    /// Legacy name of the path.
    pub legacy: String,
    /// Position among the paths of the LUN, from 1; `None` if it is removed.
    pub number: Option<usize>,
    /// New state: one of `lun show`, or `removed`.
    pub state: String,
    /// Reason why it carries no I/O.
    pub why: Option<String>,
}

/// Result of a scan at one address.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ScanResult {
    /// Scanned address.
    pub address: String,
    /// Name of the LUN that the path leads to.
    pub lun: Option<String>,
    /// World-wide ID of the LUN.
    pub wwid: Option<String>,
    /// Whether other LUNs may have the same ID: it counts as a LUN of its own until it is joined to
    /// another by `+`.
    pub generic: bool,
    /// Size of the LUN, in bytes.
    pub size: u64,
    /// Error of the scan.
    pub error: Option<String>,
}

/// Answer of `evfs lun advise`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Advice {
    /// Estimates for all policies, as text.
    pub text: String,
    /// Name of the policy with the best estimate.
    pub recommended: String,
}
