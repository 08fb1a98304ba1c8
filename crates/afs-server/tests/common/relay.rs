//! UDP relay between one client and a server: loses, duplicates and reorders datagrams in both
//! directions, controlled by a seed.

use block_testing::Random;
use rustix::net::sockopt;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Size of its socket buffers in bytes, large enough to avoid unintended loss if the system permits
/// it.
const BUFFER_BYTES: usize = 8 << 20;

/// Interval between checks of the stop flag.
const LOOK: Duration = Duration::from_millis(20);

pub struct Relay {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES).expect("a size");
    }
    socket.set_read_timeout(Some(LOOK)).expect("a time");
    socket
}

impl Relay {
    /// Starts a relay that loses, duplicates, and delays behind the next datagram `per_mille` of
    /// 1,000 datagrams each.
    pub fn new(server: SocketAddr, per_mille: u64, seed: u64) -> Relay {
        let (front, back) = (socket(), socket());
        back.connect(server).expect("connected");
        let address = front.local_addr().expect("an address");
        let stop: Arc<AtomicBool> = Arc::default();
        let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let way = |from: &UdpSocket, to: &UdpSocket, seed: u64, there: bool| {
            let clone = |socket: &UdpSocket| socket.try_clone().expect("a socket");
            let (from, to) = (clone(from), clone(to));
            let (stop, client) = (Arc::clone(&stop), Arc::clone(&client));
            let (mut random, mut buffer, mut held) = (Random::new(seed), vec![0; 65_536], None);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, sender)) = from.recv_from(&mut buffer) else {
                        continue;
                    };
                    if there {
                        *client.lock().expect("no panic") = Some(sender);
                    }
                    let client = *client.lock().expect("no panic");
                    // A datagram that cannot be sent counts as lost.
                    let send = |datagram: &[u8]| match (there, client) {
                        (true, _) => drop(to.send(datagram)),
                        (false, Some(client)) => drop(to.send_to(datagram, client)),
                        (false, None) => {}
                    };
                    pass(&mut random, per_mille, &buffer[..length], &mut held, send);
                }
            })
        };
        let threads = vec![
            way(&front, &back, seed, true),
            way(&back, &front, !seed, false),
        ];
        Relay {
            address,
            stop,
            threads,
        }
    }
}

/// Sends the datagrams due when one arrives: none, the datagram, two copies, or the datagram before
/// a delayed one.
fn pass(
    random: &mut Random,
    per_mille: u64,
    datagram: &[u8],
    held: &mut Option<Vec<u8>>,
    send: impl Fn(&[u8]),
) {
    let mut happens = || random.below(1000) < per_mille;
    let (lost, twice, late) = (happens(), happens(), happens());
    if late && held.is_none() {
        *held = Some(datagram.to_vec());
        return;
    }
    for _ in 0..u8::from(!lost) + u8::from(twice) {
        send(datagram);
    }
    if let Some(late) = held.take() {
        send(&late);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}
