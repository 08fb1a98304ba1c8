//! Load generator: measures the call rate of a file server under concurrent clients.
//!
//! ```text
//!   load SERVER VOLUME CLIENTS SECONDS time              # GetTime in a loop
//!   load SERVER VOLUME CLIENTS SECONDS status            # FetchStatus of the root
//!   load SERVER VOLUME CLIENTS SECONDS fetch MIB         # whole file, one per client
//!   load SERVER VOLUME CLIENTS SECONDS share MIB         # whole file, the same for all clients
//!   load SERVER VOLUME CLIENTS SECONDS store MIB         # whole file, one per client
//!   load SERVER VOLUME CLIENTS SECONDS names             # create and remove a file
//! ```
//!
//! Each client has its own port and answers callbacks. Prints calls and MB per second, and the
//! duration of the longest call. The files are created in the root of the volume, which must permit
//! anonymous writes, and are not removed.

use afs_client::{Client, Options, PortSet};
use afs_proto::AfsFid;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, volume, clients, seconds, what, rest @ ..] = &args[..] else {
        return Err("SERVER VOLUME CLIENTS SECONDS time|status|fetch|share|store|names".into());
    };
    let server: IpAddr = server.parse()?;
    let root = AfsFid {
        volume: volume.parse()?,
        vnode: 1,
        unique: 1,
    };
    let clients: usize = clients.parse()?;
    let time = Duration::from_secs(seconds.parse()?);
    let mib: usize = rest.first().map_or(Ok(1), |mib| mib.parse())?;
    let all = (0..clients).map(|n| Caller::new(server, root, n));
    let mut all: Vec<Caller> = all.collect::<Outcome<_>>()?;
    for at in 0..all.len() {
        match &what[..] {
            "share" if at > 0 => all[at].file = all[0].file,
            "fetch" | "share" | "store" => all[at].prepare(mib)?,
            // Registers the client with the server before the measurement.
            _ => all[at].once("status", mib)?,
        }
    }
    let (calls, worst) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let run = |client: &Caller| -> Outcome<()> {
            while begun.elapsed() < time {
                let start = Instant::now();
                client.once(what, mib)?;
                worst.fetch_max(start.elapsed().as_micros() as u64, Relaxed);
                calls.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = all
            .iter()
            .map(|client| scope.spawn(move || run(client)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let (took, calls) = (begun.elapsed().as_secs_f64(), calls.load(Relaxed) as f64);
    let moved = if matches!(&what[..], "fetch" | "share" | "store") {
        mib
    } else {
        0
    };
    println!(
        "{what} {clients} clients: {:.0} calls/s, {:.0} MB/s, longest {:.1} ms",
        calls / took,
        calls * (moved << 20) as f64 / took / 1e6,
        worst.load(Relaxed) as f64 / 1e3,
    );
    Ok(())
}

/// Client and the file that it works on.
struct Caller {
    client: Client,
    root: AfsFid,
    name: String,
    file: AfsFid,
}

impl Caller {
    fn new(server: IpAddr, root: AfsFid, n: usize) -> Outcome<Caller> {
        let to = (server, afs_proto::fs::PORT).into();
        // Each client gets its own port; the system chooses the local address.
        let client = PortSet::new().client(Ipv4Addr::UNSPECIFIED, to, Options::default())?;
        Ok(Caller {
            client,
            root,
            name: format!("load-{}-{n}", std::process::id()),
            file: AfsFid::default(),
        })
    }

    /// Creates the file to fetch.
    fn prepare(&mut self, mib: usize) -> Outcome<()> {
        self.file = self.client.create(self.root, &self.name)?.0;
        self.store(mib)
    }

    fn once(&self, what: &str, mib: usize) -> Outcome<()> {
        match what {
            "time" => self.client.time().map(drop)?,
            "status" => self.client.fetch_status(self.root).map(drop)?,
            "fetch" | "share" => self.fetch(mib)?,
            "store" => self.store(mib)?,
            "names" => {
                self.client.create(self.root, &self.name)?;
                self.client.remove(self.root, &self.name)?;
            }
            other => return Err(format!("{other}?").into()),
        }
        Ok(())
    }

    /// Fetches the file without caching or copying its data.
    fn fetch(&self, mib: usize) -> Outcome<()> {
        if self.client.skip_data(self.file, 0, (mib << 20) as u64)? == mib << 20 {
            Ok(())
        } else {
            Err("not all of it came".into())
        }
    }

    fn store(&self, mib: usize) -> Outcome<()> {
        let data = vec![7; mib << 20];
        self.client
            .store_data(self.file, 0, &data, data.len() as u64)?;
        Ok(())
    }
}
