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
    /// Linux errno: sent as a table code to clients that know the error table, as is to others.
    Errno(i32),
    /// The call itself failed; the client knows.
    Call(rx::Error),
}

impl Fault {
    /// Returns the abort code for a client that knows the error table, or does not.
    pub(crate) fn code(self, knows_table: bool) -> Abort {
        match self {
            Fault::Code(code) => code,
            Fault::Errno(errno) if knows_table => Abort::from_errno(errno),
            Fault::Errno(errno) => Abort(errno),
            Fault::Call(error) => Abort(rx::Abort::from(error).0),
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
                tracing::error!("cannot access a file: {error}");
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
