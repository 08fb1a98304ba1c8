//! The file server of tests that kill it, or that measure it from outside.
//!
//! ```text
//!   test_server FILE PORT
//! ```
//!
//! Serves a file that contains the volume of the tests at a local port (0: any), prints the address
//! and the number of the volume, and ends when its standard input does.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Cell, config, process::device};
use std::error::Error;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("which file?")?;
    let port = args.next().ok_or("which port?")?.parse()?;
    let config = afs_server::Config {
        file_service: vec![(Ipv4Addr::LOCALHOST, port).into()],
        workers: 64,
        // For a loaded machine.
        answer_time: Duration::from_secs(20),
        ..config()
    };
    let cell = Cell::on(&device(Path::new(&file)), config);
    println!("{} {}", cell.server.file_service(), cell.root().volume);
    std::io::stdin().read_exact(&mut [0]).ok();
    // Ends at once, as the tests that do not kill the server do not need it to close its files.
    std::process::exit(0)
}
