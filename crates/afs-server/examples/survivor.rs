//! The file server of tests that kill it and expect another one to continue it.
//!
//! ```text
//!   survivor FILE PORT
//! ```
//!
//! As `test_server`, but a keeper starts the server again. Each server prints a line: the address, the
//! number of the volume, and its process.

#[path = "../tests/common/mod.rs"]
mod common;

use afs_server::{Server, Survival, Volumes};
use cache::{Cache, Predecessor};
use common::{CACHE_BYTES, Cell, config, process::device};
use fs::{Fs, Options, Superblock};
use keeper::{Begin, Kept, Link, Side};
use std::error::Error;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use survival::{Log, Memory, Pages, Requests};

/// Words of the log.
const LOG_WORDS: usize = 1 << 20;

/// What the keeper holds.
struct Held {
    link: Link,
    kept: Mutex<Kept>,
}

impl rx::Keep for Held {
    fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.kept.lock().expect("no panic under it").take(name)
    }

    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.link.replace(name, descriptors)
    }
}

impl Held {
    fn memory(&self, name: &str) -> io::Result<Memory> {
        let file = rx::Keep::take(self, name).pop();
        Memory::adopt(file.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Takes over the dirty pages of the server before this one, and leaves those of this one.
    fn adopt_pages(&self, cache: &Cache, volumes: &Volumes, fs: &Fs) -> Result<(), Box<dyn Error>> {
        let mut left = rx::Keep::take(self, "cache");
        if let (Some(pages), Some(memory)) = (left.pop(), left.pop()) {
            let pages = Pages::adopt(Memory::adopt(pages)?)?;
            let before = Predecessor::new(memory, &pages)?;
            for volume in volumes.all() {
                volume.files.adopt(&before)?;
            }
            fs.end_adoption()?;
        }
        let memory = cache.memory_fd().ok_or("no shared memory")?;
        let pages = cache.surviving().ok_or("no table of pages")?;
        rx::Keep::keep(self, "cache", &[memory, pages.file()])?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    match keeper::keep(|| {})? {
        Side::Keeper(code) => std::process::exit(code.into()),
        Side::Server(begin) => serve(begin),
    }
}

fn serve(begin: Begin) -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device = device(Path::new(&args.next().ok_or("which file?")?));
    let port = args.next().ok_or("which port?")?.parse()?;
    let config = afs_server::Config {
        file_service: vec![(Ipv4Addr::LOCALHOST, port).into()],
        workers: 64,
        // For a loaded machine.
        answer_time: Duration::from_secs(20),
        ..config()
    };
    let adopt = begin.generation > 0;
    let held = Arc::new(Held {
        link: begin.link,
        kept: Mutex::new(begin.kept),
    });
    let uuid = Superblock::on(&*device).ok_or("no file system")?.uuid;
    let (log, requests) = if adopt {
        let log = Log::adopt(held.memory("log")?, uuid)?;
        (log, Requests::adopt(held.memory("requests")?)?)
    } else {
        (Log::create(LOG_WORDS, uuid)?, Requests::create()?)
    };
    rx::Keep::keep(&*held, "log", &[log.file()])?;
    rx::Keep::keep(&*held, "requests", &[requests.file()])?;
    let requests = Arc::new(requests);
    let options = Options {
        survival: Some(fs::Survival {
            log: Arc::new(log),
            requests: Some(Arc::clone(&requests)),
            adopt,
        }),
        ..Options::default()
    };
    let fs = Arc::new(Fs::open(device, options)?);
    let of_cache = cache::Config::new(CACHE_BYTES);
    let pages = Pages::unclaimed(of_cache.frames())?;
    let cache = Cache::new(cache::Config {
        surviving: Some(pages),
        ..of_cache
    })?;
    let survival = Survival {
        keep: Arc::clone(&held) as Arc<dyn rx::Keep>,
        done: requests.done(),
        requests,
        adopt: Box::new({
            let (held, cache, fs) = (Arc::clone(&held), Arc::clone(&cache), Arc::clone(&fs));
            move |volumes| {
                let adopted = held.adopt_pages(&cache, volumes, &fs);
                adopted.map_err(|error| io::Error::other(error.to_string()))
            }
        }),
    };
    let server = Server::start_surviving(config, Arc::clone(&fs), cache, survival)?;
    held.link.serving()?;
    let cell = Cell { server, fs };
    let (address, volume) = (cell.server.file_service(), cell.root().volume);
    println!("{address} {volume} {}", std::process::id());
    io::stdin().read_exact(&mut [0]).ok();
    // Ends at once, as the tests do not need it to close its files.
    std::process::exit(0)
}
