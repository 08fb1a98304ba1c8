//! Two endpoints in one thread, with a network between them, in virtual time.

#![allow(dead_code, unused_imports)]

pub mod host;
pub mod net;
pub mod strangers;

pub use host::{Host, Outcome, reply_bytes, request_bytes};
pub use net::{Link, Net, Random};
use rx_proto::{CallId, Config, Connect, ConnectionId, Endpoint, Service, Timeouts, Timestamp};
use std::time::Duration;

pub const SERVICE: u16 = 7;
pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;

/// A client (0) and a server (1); both serve, and both can call.
pub struct Pair {
    pub now: Timestamp,
    pub hosts: [Host; 2],
    pub net: Net,
}

/// Returns the seed of a random test: that of the environment, to repeat a run, or `otherwise`.
pub fn seed(otherwise: u64) -> u64 {
    let seed = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or(otherwise);
    println!("seed {seed}: run again with EVFS_SEED={seed}");
    seed
}

pub fn endpoint(config: Config, seed: u64) -> Endpoint<rx_proto::Shared, rx_proto::Shared> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let mut endpoint = Endpoint::new(config, bytes);
    endpoint.serve(Service {
        id: SERVICE,
        classes: vec![0],
    });
    endpoint
}

impl Pair {
    pub fn new(link: Link, seed: u64) -> Pair {
        Pair::with([Config::default(), Config::default()], link, seed)
    }

    pub fn with(configs: [Config; 2], link: Link, seed: u64) -> Pair {
        let [a, b] = [
            "192.0.2.1:7001".parse().unwrap(),
            "192.0.2.2:7000".parse().unwrap(),
        ];
        let [client, server] = configs;
        Pair {
            now: Timestamp::from_nanos(1_000_000_000),
            hosts: [
                Host::new(endpoint(client, seed), CLIENT, a, b),
                Host::new(endpoint(server, !seed), SERVER, b, a),
            ],
            net: Net::new(link, seed),
        }
    }

    /// Makes a connection from host `from` to the other.
    pub fn connect(&mut self, from: usize) -> ConnectionId {
        let route = self.hosts[from].route();
        let connect = Connect {
            route,
            service: SERVICE,
            timeouts: Timeouts::default(),
            security: None,
        };
        self.hosts[from].endpoint.connect(self.now, connect)
    }

    /// Makes a call from host `from`.
    pub fn call(
        &mut self,
        from: usize,
        connection: ConnectionId,
        tag: u32,
        reply: u32,
        filling: usize,
    ) -> Option<CallId> {
        self.hosts[from].call(self.now, connection, tag, reply, filling)
    }

    /// Lets both hosts do all pending work.
    pub fn pump(&mut self) {
        for host in &mut self.hosts {
            host.pump(self.now, &mut self.net);
        }
    }

    /// Advances to the next event; returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.pump();
        let timers = self
            .hosts
            .iter_mut()
            .filter_map(|h| h.endpoint.poll_timeout());
        let Some(next) = timers.chain(self.net.next()).min() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some((to, bytes)) = self.net.arrive(self.now) {
            self.hosts[to].take(self.now, bytes);
        }
        for host in &mut self.hosts {
            if host
                .endpoint
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                host.endpoint.handle_timeout(self.now);
            }
        }
        self.pump();
        true
    }

    /// Advances until `done`, at most for `limit` of virtual time. Returns the elapsed time.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(self.now.since(start) < limit, "not done within {limit:?}");
            assert!(self.step(), "not done, and nothing is left to happen");
        }
        self.now.since(start)
    }

    /// Advances by `time`.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.pump();
        loop {
            let timers = self
                .hosts
                .iter_mut()
                .filter_map(|h| h.endpoint.poll_timeout());
            match timers.chain(self.net.next()).min() {
                Some(next) if next <= end => self.step(),
                _ => break,
            };
        }
        self.now = end;
    }

    /// Runs until `count` calls made from the host have an outcome; all of them must be
    /// [`Outcome::Done`].
    pub fn finish_calls(&mut self, from: usize, count: usize, limit: Duration) -> Duration {
        let time = self.run(limit, |pair| pair.hosts[from].outcomes.len() >= count);
        let outcomes = self.hosts[from].outcomes.values();
        let wrong: Vec<_> = outcomes.filter(|o| **o != Outcome::Done).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        time
    }
}
