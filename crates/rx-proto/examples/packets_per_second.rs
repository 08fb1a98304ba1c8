//! Cost of the core per full packet: two endpoints in one thread, a large reply, no network.
//!
//! ```text
//!   cargo run --release -p evfs-rx-proto --example packets_per_second [ROUNDS]
//! ```
//!
//! Sending consists of `write`, `poll_transmit` and processing the returned acknowledgements;
//! receiving of `handle_input`, `read` and building those acknowledgements. The work of a network
//! (assembling a datagram from its parts) is not counted. Datagrams arrive in batches of up to 45,
//! as a driver with receive offload gets them.

use rx_proto::{
    Config, Connect, Endpoint, Event, Read, Route, Service, Shared, Timeouts, Timestamp, Transmit,
};
use std::net::SocketAddr;
use std::time::Duration;

const SERVICE: u16 = 1;
/// Length in bytes of a reply, and of the pages that it is written in.
const REPLY: usize = 64 << 20;
const PAGE: usize = 4096;

struct Side {
    endpoint: Endpoint<Shared, Shared>,
    route: Route,
    batch: Transmit<Shared>,
    /// CPU time spent in the core.
    spent: Duration,
}

impl Side {
    fn new(seed: u8, peer: SocketAddr) -> Side {
        let mut endpoint = Endpoint::new(Config::default(), [seed; 32]);
        endpoint.serve(Service {
            id: SERVICE,
            classes: vec![0],
        });
        Side {
            endpoint,
            route: Route { peer, local: None },
            batch: Transmit::new(45),
            spent: Duration::ZERO,
        }
    }

    /// Counts the time of `work` as spent in the core.
    fn time<T>(&mut self, work: impl FnOnce(&mut Side) -> T) -> T {
        let start = cpu_time();
        let result = work(self);
        self.spent += cpu_time() - start;
        result
    }
}

/// Returns the CPU time of this thread: other programs on the machine do not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Delivers all pending datagrams of `from` to `to`; returns whether there were any.
fn carry(now: Timestamp, from: &mut Side, to: &mut Side) -> bool {
    let mut any = false;
    while from.time(|s| s.endpoint.poll_transmit(now, &mut s.batch)) {
        any = true;
        let datagrams: Vec<Shared> = from
            .batch
            .datagrams()
            .into_iter()
            .map(Shared::from)
            .collect();
        to.time(|s| {
            for datagram in datagrams {
                s.endpoint.handle_input(now, s.route, datagram);
            }
        });
    }
    any
}

/// Transfers one reply of [`REPLY`] bytes; returns the number of packets sent and the time spent by
/// each side.
fn round(seed: u8) -> (u64, Duration, Duration) {
    let [a, b] = ["127.0.0.1:7001", "127.0.0.1:7000"].map(|s| s.parse().expect("an address"));
    let (mut client, mut server) = (Side::new(seed, b), Side::new(!seed, a));
    let page = Shared::from(vec![7; PAGE]);
    let mut now = Timestamp::from_nanos(1_000_000_000);
    let connection = client.endpoint.connect(
        now,
        Connect {
            route: client.route,
            service: SERVICE,
            timeouts: Timeouts::default(),
            security: None,
        },
    );
    let call = client
        .endpoint
        .start(now, connection)
        .expect("a free channel");
    client
        .endpoint
        .write(now, call, Shared::from(&b"give"[..]))
        .expect("room");
    client.endpoint.finish(now, call).expect("a call");
    let (mut answering, mut written, mut received) = (None, 0, 0);
    while received < REPLY {
        now = now + Duration::from_micros(50);
        while let Some(event) = server.time(|s| s.endpoint.poll_event()) {
            if let Event::Call(incoming) = event {
                answering = Some(incoming.call);
            }
        }
        if let Some(id) = answering {
            server.time(|s| {
                while let Ok(Read::Data(_)) = s.endpoint.read(now, id) {}
                while written < REPLY && s.endpoint.write(now, id, page.clone()).is_ok() {
                    written += PAGE;
                }
                if written >= REPLY {
                    let _ = s.endpoint.finish(now, id);
                }
            });
        }
        carry(now, &mut server, &mut client);
        client.time(|s| {
            while let Ok(Read::Data(data)) = s.endpoint.read(now, call) {
                received += rx_proto::Payload::len(&data);
            }
            while s.endpoint.poll_event().is_some() {}
        });
        carry(now, &mut client, &mut server);
        for side in [&mut client, &mut server] {
            if side.endpoint.poll_timeout().is_some_and(|at| at <= now) {
                side.time(|s| s.endpoint.handle_timeout(now));
            }
        }
    }
    (
        server.endpoint.stats().packets_out[0],
        server.spent,
        client.spent,
    )
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(5);
    round(0);
    let mut best = [f64::INFINITY; 2];
    for seed in 1..=rounds {
        let (packets, send, receive) = round(seed);
        let per_packet = |time: Duration| time.as_secs_f64() * 1e9 / packets as f64;
        let nanos = [per_packet(send), per_packet(receive)];
        for (best, nanos) in best.iter_mut().zip(nanos) {
            *best = best.min(nanos);
        }
        println!(
            "{packets} packets: send {:.0} ns each, receive {:.0} ns each",
            nanos[0], nanos[1]
        );
    }
    for (what, nanos) in ["send", "receive"].iter().zip(best) {
        println!(
            "best {what}: {nanos:.0} ns, {:.2} million packets a second",
            1e3 / nanos
        );
    }
}
