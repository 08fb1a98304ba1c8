//! Writes a file of 4.1 GiB without repeated content through each AFS client, and compares it.
//!
//! ```text
//!   cargo build --release && cargo run --release -p tests --bin afs_large_file
//! ```
//!
//! Needs root and the peers of the tests, and takes many minutes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::afs::{ASK_ALWAYS, KERNELS, Machine};
use tests::mounts::On;
use tests::{Random, Sandbox, needs_root};

/// Bytes of a piece, which is written many times with its number before it.
const PIECE: usize = 2 << 20;
const PIECES: u64 = 2100;
/// Time limit for an emulated kernel.
const LONG: Duration = Duration::from_secs(6000);

fn main() {
    needs_root("it makes namespaces and mounts");
    let s = Sandbox::new();
    let share = s.path("share");
    fs::create_dir(&share).unwrap();
    let piece = Random::from_environment().bytes(PIECE);
    fs::write(share.join("piece"), piece).unwrap();
    fs::write(share.join("pieces"), PIECES.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/whole.sh");
    fs::copy(script, share.join("whole.sh")).unwrap();
    let machine = Machine::new(&s);
    let device = machine.cell(On::Clear, "6G");
    let served = machine.serve(device);
    let whole = format!("cd {}; exec sh whole.sh piece {PIECES}", share.display());
    let began = Instant::now();
    let lap = |what: &str| println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
    let client = machine.mount("one", ASK_ALWAYS);
    machine.shell(&client.folder(), &format!("({whole}) > whole"));
    client.unmount();
    lap("afsd.fuse wrote");
    let client = machine.mount("two", ASK_ALWAYS);
    machine.shell(
        &client.folder(),
        &format!("({whole}) | cmp - whole; rm whole"),
    );
    client.unmount();
    lap("afsd.fuse read");
    for (_, kernel) in KERNELS {
        machine
            .guest(kernel, "kafs_whole.sh", &share, &[], LONG)
            .ok();
        lap(kernel);
    }
    served.end();
}
