//! A network that can delay data on its way to a target, even beyond the end of the connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A proxy; its threads run until the process ends.
pub struct Proxy {
    /// `HOST:PORT` to connect to.
    pub portal: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    holds: AtomicBool,
    taken: AtomicUsize,
    passed: AtomicUsize,
    /// Connections that the target has not closed.
    open: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy in front of a portal.
    pub fn start(to: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let portal = listener.local_addr().expect("its address").to_string();
        let state = Arc::new(State::default());
        let (shared, to) = (Arc::clone(&state), to.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&to).expect("the target listens");
                relay(client, server, &shared);
            }
        });
        Proxy { portal, state }
    }

    /// Holds all data for the target from now on.
    pub fn hold(&self) {
        self.state.holds.store(true, Ordering::SeqCst);
    }

    /// Returns the number of bytes held.
    pub fn held(&self) -> usize {
        self.state.taken.load(Ordering::SeqCst) - self.state.passed.load(Ordering::SeqCst)
    }

    /// Returns whether the target has closed every connection, having received its data and its
    /// end.
    pub fn is_closed(&self) -> bool {
        self.state.open.load(Ordering::SeqCst) == 0
    }

    /// Releases all held data and waits until it has been forwarded.
    pub fn release(&self) {
        self.state.holds.store(false, Ordering::SeqCst);
        let started = Instant::now();
        while self.held() > 0 {
            assert!(started.elapsed() < super::LONG, "the target takes nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn relay(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    let (mut from_server, mut to_client) = (clone(&server), clone(&client));
    // An error ends its connection; the other direction continues.
    state.open.fetch_add(1, Ordering::SeqCst);
    let closed = Arc::clone(state);
    std::thread::spawn(move || {
        // Responses are read even if the client has disconnected.
        let mut buf = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = from_server.read(&mut buf) {
            let _ = to_client.write_all(&buf[..n]);
        }
        let _ = to_client.shutdown(Shutdown::Both);
        closed.open.fetch_sub(1, Ordering::SeqCst);
    });
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    let (mut client, mut server) = (client, server);
    let taken = Arc::clone(state);
    std::thread::spawn(move || {
        let mut buf = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = client.read(&mut buf) {
            taken.taken.fetch_add(n, Ordering::SeqCst);
            if sender.send(buf[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let passed = Arc::clone(state);
    std::thread::spawn(move || {
        for part in receiver {
            while passed.holds.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = server.write_all(&part);
            passed.passed.fetch_add(part.len(), Ordering::SeqCst);
        }
        let _ = server.shutdown(Shutdown::Write);
    });
}
