//! Settings of a port: limits, each with its unit and reason.

use crate::handler::Handler;
use crate::keep::Keep;
use std::net::SocketAddr;
use std::sync::Arc;

/// A service and its handler.
#[derive(Clone)]
pub struct Service {
    /// Service id: 1 is the file service, 52 volume location.
    pub id: u16,
    /// Handler of its calls, several at a time.
    pub handler: Arc<dyn Handler>,
}

/// Settings of a port.
#[derive(Clone)]
pub struct Settings {
    /// Address and port; port 0 lets the system choose, the address 0.0.0.0 covers all of IPv4.
    /// Replies leave from the address that was called.
    pub listen: SocketAddr,
    /// Number of sockets on the port, each with a thread. The kernel keeps a peer's packets on one
    /// of them.
    pub sockets: usize,
    /// Largest number of calls served concurrently, each by a thread. Threads are created on
    /// demand; further calls wait, up to [`rx_proto::Config::calls_max`]. A host gets another
    /// thread only while it uses no more threads than are free: alone it gets half of them, so that
    /// a host whose calls never end does not block the others.
    pub workers: usize,
    /// Name of the threads, of which the kernel keeps 15 bytes: it tells the CPU time of several
    /// ports in one process apart.
    pub thread_name: &'static str,
    /// Bytes of each socket's receive and send buffer. OpenAFS's rule is threads times window times
    /// packet: 128 times 32 times 1.4 KB is 6 MB. More than the system's limit needs
    /// `CAP_NET_ADMIN`.
    pub socket_buffer_bytes: usize,
    /// Receive buffers of 64 KiB per socket that unread data may reference; beyond that, data is
    /// copied. They are allocated on demand and then kept. The default is 16 MiB.
    pub lent_buffers: usize,
    /// Who holds the sockets for another server, and the name of what this port leaves.
    pub keep: Option<(Arc<dyn Keep>, String)>,
    /// Protocol limits of each socket's endpoint.
    pub rx: rx_proto::Config,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            sockets: 1,
            workers: 64,
            thread_name: "rx-worker",
            socket_buffer_bytes: 8 << 20,
            lent_buffers: 256,
            keep: None,
            rx: rx_proto::Config::default(),
        }
    }
}
