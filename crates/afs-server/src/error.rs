//! Errors of calls, and the codes sent to clients.

use afs_proto::Abort;
use fs::Kind;

/// Result of a procedure.
pub(crate) type CallResult<T> = Result<T, Fault>;

/// Reason why a call has no reply.
#[derive(Debug)]
pub(crate) enum Fault {
    /// AFS abort code.
    Code(Abort),
    /// Linux errno: sent in the [`ErrnoForm`] of the client.
    Errno(i32),
    /// The call itself failed; the client knows.
    Call(rx::Error),
}

/// Form in which a client receives errno values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrnoForm {
    /// Codes of the error table, for clients that know it.
    Table,
    /// Values of Linux.
    Linux,
}

impl Fault {
    /// Returns the abort code for a client.
    pub(crate) fn code(self, errno_form: ErrnoForm) -> Abort {
        match (self, errno_form) {
            (Fault::Code(code), _) => code,
            (Fault::Errno(errno), ErrnoForm::Table) => Abort::from_errno(errno),
            (Fault::Errno(errno), ErrnoForm::Linux) => Abort(errno),
            (Fault::Call(error), _) => Abort(rx::Abort::from(error).0),
        }
    }
}

/// Permission denied.
pub(crate) const DENIED: Fault = Fault::Errno(libc::EACCES);

impl From<Abort> for Fault {
    fn from(code: Abort) -> Fault {
        Fault::Code(code)
    }
}

impl From<rx::Error> for Fault {
    fn from(error: rx::Error) -> Fault {
        Fault::Call(error)
    }
}

impl From<fs::Error> for Fault {
    fn from(error: fs::Error) -> Fault {
        match error.kind() {
            Kind::Stale => Fault::Code(Abort::VNOVNODE),
            Kind::NoSpace => Fault::Code(Abort::VDISKFULL),
            Kind::Quota => Fault::Code(Abort::VOVERQUOTA),
            Kind::Corrupt | Kind::Io => {
                tracing::error!(name: "EVFS-0703", "cannot access a file: {error}");
                Fault::Errno(error.errno())
            }
            _ => Fault::Errno(error.errno()),
        }
    }
}

impl From<afs_proto::WireError> for Fault {
    fn from(error: afs_proto::WireError) -> Fault {
        Fault::Code(error.server_abort())
    }
}
