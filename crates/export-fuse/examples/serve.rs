//! Serves a file as a FUSE file, without encryption: `serve FILE FOLDER [THREADS]`. For looking at the
//! export alone, beside other programs that do the same.

use export_fuse::{Config, Export, Mount};
use path_file::{FileDevice, Options};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(file), Some(folder)) = (args.next(), args.next()) else {
        return Err("give a file and a folder".into());
    };
    let threads = match args.next() {
        Some(number) => number.to_string_lossy().parse()?,
        None => 1,
    };
    let device = FileDevice::open(Path::new(&file), &Options::default())?;
    let config = Config {
        threads,
        ..Config::new(folder.into())
    };
    let export = Export {
        name: "volume".into(),
        device,
        read_only: false,
    };
    let mount = Mount::start(config, vec![export])?;
    println!("{}", mount.path_of("volume").display());
    mount.wait(None);
    eprintln!("{:?}", mount.stats());
    Ok(())
}
