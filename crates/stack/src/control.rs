//! Control sockets of services: a request is one line of JSON, and so is its answer.
//!
//! The socket is in a directory that only its user can write to, and each side obtains the
//! credentials of its peer from the kernel: a server answers its own user and root, and a client
//! trusts only them. A name belongs to the process that holds the lock file `NAME.lock`; a socket
//! without such a process was left behind by a killed one. Deadlines limit an exchange as a whole,
//! however slowly the bytes arrive.
//!
//! `protocol` defines the requests, `server` receives them and `client` sends them. None of them
//! knows the modules that answer.

mod client;
mod protocol;
mod server;
mod socket;

pub use client::{SilentStatus, find, names, send_request, silent_status, statuses};
pub(crate) use client::{
    concurrently, find_other, send_query, send_query_until, statuses_unchanged,
};
pub use protocol::{
    Blob, CacheRequest, CellRequest, ControlRequest, DefragRequest, FsRequest, GrowRequest,
    JobKind, JobRequest, Limits, LunRequest, OwnerId, OwnersRequest, Transfer, TransferRequest,
    WatchRequest, valid_name,
};
pub(crate) use protocol::{Run, check_name};
pub use server::Listener;
pub(crate) use server::PendingReply;
pub(crate) use socket::Name;
pub use socket::socket_path;
