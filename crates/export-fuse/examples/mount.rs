//! Mounts a file system stored in a file or on a device, until it is unmounted.
//!
//! `cargo run --release -p evfs-export-fuse --example mount -- [--format] [--exclusive] FILE DIR [CACHE_MIB]`

use cache::{Cache, Config};
use export_fuse::{Mount, MountConfig};
use fs::{FIRST_FILESET, Files, Fs, Options};
use std::path::PathBuf;
use std::sync::Arc;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.map(|at| args.remove(at)).is_some()
    };
    let (format, exclusive) = (option("--format"), option("--exclusive"));
    let cache_mib: u64 = args
        .get(2)
        .map_or(1024, |n| n.parse().expect("a number of MiB"));
    let options = path_file::Options::default();
    let device: Arc<dyn block::BlockDevice> =
        path_file::FileDevice::open(args[0].as_ref(), &options).expect("the file opens");
    if format {
        Fs::format(Arc::clone(&device), "").expect("it formats");
    }
    let fs = Fs::open(device, Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(cache_mib << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let mut config = MountConfig::new(PathBuf::from(&args[1]));
    config.exclusive = exclusive;
    let mount = Mount::start(config, Arc::clone(&files)).expect("it mounts");
    println!("mounted");
    mount.wait();
    files.close().expect("everything is written");
    drop((files, main));
    let report = fs.check().expect("it can be checked");
    println!("{} problems {:#?}", report.problem_count, report.problems);
    fs.close().expect("it closes");
}
