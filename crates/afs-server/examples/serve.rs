//! Serves a plain file as a cell's file server, without encryption, to test clients.
//!
//! ```text
//!   serve FILE ADDRESS [--announce ADDRESS] [--size MIB] [--cache MIB] [--anonymous-write]
//! ```
//!
//! A missing file is created, with the volumes `root.afs` and `root.cell`. The server runs until
//! its standard input ends.

use afs_server::{Config, Server};
use block::BlockDevice;
use cache::Cache;
use fs::{Fs, Options};
use path_file::FileDevice;
use std::error::Error;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("which file?")?;
    let address: Ipv4Addr = args.next().ok_or("which address?")?.parse()?;
    let (mut announced, mut size, mut cache_mib, mut anonymous_write) = (address, 1024, 256, false);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} what?"));
        match arg.as_str() {
            "--announce" => announced = value()?.parse()?,
            "--size" => size = value()?.parse()?,
            "--cache" => cache_mib = value()?.parse()?,
            "--anonymous-write" => anonymous_write = true,
            other => return Err(format!("{other}?").into()),
        }
    }
    let is_new = !Path::new(&file).exists();
    if is_new {
        std::fs::File::create(&file)?.set_len(size << 20)?;
    }
    let device: Arc<dyn BlockDevice> = FileDevice::open(Path::new(&file), &Default::default())?;
    if is_new {
        Fs::format(Arc::clone(&device), "cell")?;
    }
    let fs = Arc::new(Fs::open(device, Options::default())?);
    if is_new {
        fs.create_fileset("root.afs")?;
        fs.create_fileset("root.cell")?;
    }
    let cache = Cache::new(cache::Config::new(cache_mib << 20))?;
    let config = Config {
        file_service: vec![(address, 7000).into()],
        location_service: vec![(address, 7003).into()],
        announced: vec![announced],
        anonymous_write,
        ..Config::default()
    };
    let server = Server::start(config, fs, cache)?;
    println!("serving at {address}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{:#?}", server.stats());
    Ok(())
}
