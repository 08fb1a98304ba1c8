//! Cost and memory of a check of a file system that is not in use.
//!
//! `cargo run --release -p evfs-fs --example check FILE_OR_DEVICE`

#[allow(dead_code, reason = "the device is opened for reading here")]
mod support;

use fs::{Fs, Options};
use support::rate;

fn main() {
    let path = std::env::args().nth(1).expect("a file or a device");
    let options = path_file::Options {
        read_only: true,
        ..path_file::Options::default()
    };
    let device = path_file::FileDevice::open(path.as_ref(), &options).expect("the file opens");
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = rate("open", 1, || Fs::open(device, options).expect("it opens"));
    let report = rate("check", 1, || fs.check().expect("checked"));
    assert!(report.is_clean(), "{:#?}", report.problems);
    println!(
        "{} inodes, {} metadata blocks",
        report.inodes, report.metadata_blocks
    );
    fs.close().expect("closed");
}
