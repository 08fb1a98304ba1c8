//! How a port is opened: limits, each with its unit and reason.

use crate::Handler;
use std::net::SocketAddr;
use std::sync::Arc;

/// A service that others may call, and who answers.
#[derive(Clone)]
pub struct Service {
    /// Its number: 1 is the file service, 52 volume location.
    pub id: u16,
    /// Answers its calls, several at a time.
    pub handler: Arc<dyn Handler>,
}

/// Settings of a port.
#[derive(Clone)]
pub struct Settings {
    /// Address and port; port 0 lets the system choose, the address 0.0.0.0 is all of IPv4. Replies
    /// leave from the address that was called.
    pub listen: SocketAddr,
    /// Sockets on the port, each with a thread. The kernel keeps a peer's packets on one of them.
    pub sockets: usize,
    /// Calls that are served at a time, each by a thread. Threads are made when they are needed; calls
    /// beyond wait, as many as [`rx_proto::Config::calls_max`] says. A host gets one more only while it
    /// has no more than are free: alone it has half of them, so that one that holds its calls for ever
    /// stops none of the others.
    pub workers: usize,
    /// Name of its threads, of which the kernel keeps 15 bytes: by it a process that has several ports tells what
    /// each of them takes of its CPU.
    pub thread_name: &'static str,
    /// Bytes of each socket's buffers, both ways. OpenAFS's rule is threads times window times packet:
    /// 128 times 32 times 1.4 KB is 6 MB. More than the system's limit needs `CAP_NET_ADMIN`.
    pub socket_buffer_bytes: usize,
    /// Receive buffers of 64 KiB for each socket that may be referred to by data that was not read yet;
    /// beyond, data is copied out. They are made when they are needed and then kept. 16 MiB.
    pub lent_buffers: usize,
    /// Limits of the protocol, for each socket.
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
            rx: rx_proto::Config::default(),
        }
    }
}
