//! Users, and processes at the other end of a socket.

use std::io;
use std::os::fd::AsFd;

/// Returns the effective user of this process.
pub(crate) fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reports whether `uid` is this user or root, which can act as any user.
pub(crate) fn is_trusted_user(uid: u32) -> bool {
    uid == me() || uid == 0
}

/// The process at the other end of a connection.
pub(crate) struct Peer {
    /// Process ID; 0 for a process of another PID namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// Gets the credentials of the peer from the kernel (`SO_PEERCRED`). rustix cannot represent a peer
/// without a process ID.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer {
        pid: peer.pid(),
        uid: peer.uid(),
    })
}
