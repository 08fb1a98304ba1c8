//! Clients that all call a file server at once: how fast it answers them.
//!
//! ```text
//!   load SERVER VOLUME CLIENTS SECONDS time              # GetTime, again and again
//!   load SERVER VOLUME CLIENTS SECONDS status            # FetchStatus of the root
//!   load SERVER VOLUME CLIENTS SECONDS fetch MIB         # each client a file of its own, whole
//!   load SERVER VOLUME CLIENTS SECONDS share MIB         # all the same file
//!   load SERVER VOLUME CLIENTS SECONDS store MIB         # each client a file of its own, whole
//!   load SERVER VOLUME CLIENTS SECONDS names             # makes and removes a file
//! ```
//!
//! Each client has a port of its own and answers callbacks. Prints calls and MB in a second, and the
//! longest call. The files lie in the root of the volume, where anybody must be allowed to write, and stay
//! there.

use afs_proto::cb::{self, InterfaceAddr};
use afs_proto::fs::{AfsStoreStatus, Reply, Request};
use afs_proto::{AfsFid, List, Name, Reader, Uuid, to_bytes};
use rx::{Call, Connection, Port, Service, Settings, Timeouts};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
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
    let all = (0..clients).map(|n| Client::new(server, root, n));
    let mut all: Vec<Client> = all.collect::<Outcome<_>>()?;
    for at in 0..all.len() {
        match &what[..] {
            "share" if at > 0 => all[at].file = all[0].file,
            "fetch" | "share" | "store" => all[at].prepare(mib)?,
            // Known before it counts.
            _ => all[at].once("status", mib)?,
        }
    }
    let (calls, worst) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let run = |client: &Client| -> Outcome<()> {
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

struct Client {
    _port: Port,
    files: Connection,
    root: AfsFid,
    name: String,
    file: AfsFid,
}

impl Client {
    fn new(server: IpAddr, root: AfsFid, n: usize) -> Outcome<Client> {
        let settings = Settings {
            listen: ([0, 0, 0, 0], 0).into(),
            workers: 4,
            ..Settings::default()
        };
        let uuid = Uuid([n as u8 + 1; 16]);
        let service = Service {
            id: cb::SERVICE,
            handler: Arc::new(move |call: &mut Call| called_back(call, uuid)),
        };
        let port = Port::open(&settings, vec![service])?;
        let to = (server, afs_proto::fs::PORT).into();
        Ok(Client {
            files: port.connect(to, afs_proto::fs::SERVICE, Timeouts::default()),
            _port: port,
            root,
            name: format!("load-{}-{n}", std::process::id()),
            file: AfsFid::default(),
        })
    }

    /// Makes the file that is fetched.
    fn prepare(&mut self, mib: usize) -> Outcome<()> {
        self.file = self.make()?;
        self.store(mib)
    }

    fn once(&self, what: &str, mib: usize) -> Outcome<()> {
        match what {
            "time" => self.call(&Request::GetTime {}, &[], 4096).map(drop),
            "status" => self
                .call(&Request::FetchStatus { fid: self.root }, &[], 4096)
                .map(drop),
            "fetch" | "share" => self.fetch(mib),
            "store" => self.store(mib),
            "names" => self.names(),
            other => Err(format!("{other}?").into()),
        }
    }

    /// Makes the client's file.
    fn make(&self) -> Outcome<AfsFid> {
        let (directory, name) = (self.root, Name::new(self.name.as_bytes())?);
        let wanted = nothing();
        let create = Request::CreateFile {
            directory,
            name,
            wanted,
        };
        let bytes = self.call(&create, &[], 4096)?;
        match afs_proto::fs::read_reply(create.opcode(), &mut Reader::new(&bytes))? {
            Reply::CreateFile { fid, .. } => Ok(fid),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn fetch(&self, mib: usize) -> Outcome<()> {
        let fid = self.file;
        let request = Request::FetchData64 {
            fid,
            position: 0,
            length: (mib << 20) as u64,
        };
        let mut call = self.files.call()?;
        call.write(to_bytes(&request))?;
        call.finish()?;
        let mut bytes = 0;
        while let Some(piece) = call.read()? {
            bytes += piece.len();
        }
        match bytes > mib << 20 {
            true => Ok(()),
            false => Err("not all of it came".into()),
        }
    }

    fn store(&self, mib: usize) -> Outcome<()> {
        let fid = self.file;
        let request = Request::StoreData64 {
            fid,
            wanted: nothing(),
            position: 0,
            length: (mib << 20) as u64,
            file_length: (mib << 20) as u64,
        };
        self.call(&request, &vec![7; mib << 20], 4096).map(drop)
    }

    fn names(&self) -> Outcome<()> {
        let (directory, name) = (self.root, Name::new(self.name.as_bytes())?);
        let wanted = nothing();
        let create = Request::CreateFile {
            directory,
            name,
            wanted,
        };
        self.call(&create, &[], 4096)?;
        let remove = Request::RemoveFile { directory, name };
        self.call(&remove, &[], 4096).map(drop)
    }

    fn call(&self, request: &Request<'_>, data: &[u8], most: usize) -> Outcome<Vec<u8>> {
        let mut call = self.files.call()?;
        call.write(to_bytes(request))?;
        if !data.is_empty() {
            call.write(data)?;
        }
        call.finish()?;
        Ok(call.read_to_end(most)?)
    }
}

fn nothing() -> AfsStoreStatus {
    AfsStoreStatus::default()
}

/// Answers the server's questions, as little as it takes.
fn called_back(call: &mut Call, uuid: Uuid) -> Result<(), rx::Abort> {
    let bytes = call.read_to_end(4096)?;
    let mut reply = Vec::new();
    match afs_proto::prefix::<cb::Request>(&bytes) {
        Ok((cb::Request::TellMeAboutYourself {}, _)) => cb::Reply::TellMeAboutYourself {
            address: InterfaceAddr {
                uuid,
                interfaces: List::new(Vec::new()).map_err(|_| rx::Abort(-452))?,
            },
            capabilities: List::new(vec![1]).map_err(|_| rx::Abort(-452))?,
        }
        .write(&mut reply),
        Ok(_) => {}
        Err(error) => return Err(rx::Abort(error.server_abort().0)),
    }
    Ok(call.write(reply)?)
}
