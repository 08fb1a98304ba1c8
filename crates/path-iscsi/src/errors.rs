//! Conversion of protocol errors and SCSI faults to [`block::Error`].

use block::{Error, ErrorKind};
use iscsi_proto::ProtocolError;
use iscsi_proto::scsi::{Fault, PortState, Sense};
use lunpath::Access;

/// Converts an error of a login or a session.
pub(crate) fn of_protocol(name: &str, error: &ProtocolError) -> Error {
    let kind = match error {
        ProtocolError::Broken(_) | ProtocolError::Digest(_) => ErrorKind::PathLost,
        ProtocolError::Refused {
            class: 2, detail, ..
        } => match detail {
            1 | 2 => ErrorKind::Permission,
            3 | 4 => ErrorKind::NotFound,
            _ => ErrorKind::Unsupported,
        },
        ProtocolError::Refused { .. } => ErrorKind::Busy,
        ProtocolError::Untrusted(_) => ErrorKind::Permission,
    };
    Error::new(kind, name, error.to_string())
}

/// Converts a SCSI fault of a command.
pub(crate) fn of_fault(name: &str, fault: Fault, status: u8, sense: &[u8]) -> Error {
    let (kind, why) = match fault {
        Fault::Medium => (ErrorKind::Media, "the target cannot read its medium"),
        Fault::NotReady => (ErrorKind::Io, "the unit is not ready; check the target"),
        Fault::NoUnit => (
            ErrorKind::PathLost,
            "the unit is no longer mapped to this port; map it at the target, or use another port",
        ),
        Fault::NoAccess(state) => (ErrorKind::NotNow, no_access(state)),
        Fault::IllegalRequest => (ErrorKind::Unsupported, "the target rejects the command"),
        Fault::OutOfRange => (
            ErrorKind::OutOfRange,
            "the unit has shrunk; reconnect to read its new size",
        ),
        Fault::WriteProtected => (ErrorKind::ReadOnly, "the unit is write-protected"),
        Fault::ReservationConflict => (
            ErrorKind::Busy,
            "reservation conflict: another initiator has reserved the unit; end that reservation, \
             or use another unit",
        ),
        Fault::NoSpace => (ErrorKind::NoSpace, "the target cannot allocate space"),
        Fault::Other => (ErrorKind::Io, "the target reports a failure; check its log"),
    };
    let detail = match Sense::parse(sense) {
        Some(sense) => format!("{why} ({sense})"),
        None => format!("{why} (status {status:#04x})"),
    };
    Error::new(kind, name, detail)
}

fn no_access(state: PortState) -> &'static str {
    match state {
        PortState::Standby => "this port is on standby and carries no I/O; use another",
        PortState::Unavailable => "the unit is unavailable through this port; use another",
        PortState::Transitioning => "the access state of this port is changing; retry later",
    }
}

/// Converts a SCSI port state to the access state reported to the upper layer.
pub(crate) fn access_of(state: PortState) -> Access {
    match state {
        PortState::Standby => Access::Standby,
        PortState::Unavailable => Access::Unavailable,
        PortState::Transitioning => Access::Transitioning,
    }
}
