//! Serves a file over a Unix socket until its standard input ends:
//! `cargo run -p export-nbd --example serve -- FILE SOCKET [THREADS] [direct|cached]`
//!
//! Without encryption; for measuring the server alone, and for a first look at the interface.

use export_nbd::{Config, Export, Listen, Server};
use path_file::{Direct, FileDevice, Options};
use std::error::Error;
use std::io::Read;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, socket, rest @ ..] = args.as_slice() else {
        return Err("usage: serve FILE SOCKET [THREADS] [direct|cached]".into());
    };
    let threads = rest.first().map_or(Ok(1), |n| n.parse())?;
    let direct = match rest.get(1).map(String::as_str) {
        Some("cached") => Direct::Never,
        _ => Direct::Auto,
    };
    let options = Options {
        direct,
        ..Options::default()
    };
    let export = Export {
        name: "disk".into(),
        description: file.clone(),
        device: FileDevice::open(Path::new(file), &options)?,
        read_only: false,
    };
    let config = Config {
        listen: vec![Listen::Unix(socket.into())],
        threads,
        ..Config::default()
    };
    let server = Server::start(config, vec![export])?;
    println!("{}", server.uris("disk").join(" "));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    eprintln!("{:?}", server.stats());
    Ok(server.shutdown()?)
}
