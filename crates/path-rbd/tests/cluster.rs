//! The path against a real cluster.

use block::{BlockDevice, Blocking, ErrorKind};
use block_testing::conformance;
use lunpath::{Lunpath, Transport};
use path_rbd::{Lock, Options, RbdPath};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use test_support::ceph::{Ceph, POOL};

/// Limit for calls on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Size in bytes of the images.
const BYTES: u64 = 16 << 20;

fn start() -> Ceph {
    Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), 1)
}

fn path(ceph: &Ceph, image: &str, options: Options) -> RbdPath {
    RbdPath::parse(&ceph.address(image), options).expect("an address")
}

/// Creates an image under a new name.
fn fresh(ceph: &Ceph) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("image{}", NEXT.fetch_add(1, Relaxed));
    ceph.create_image(&name, BYTES);
    name
}

mod needs_peer {
    use super::*;

    #[test]
    fn the_conformance_suite_passes() {
        let ceph = start();
        conformance::run(&|| -> Arc<dyn BlockDevice> {
            let path = path(&ceph, &fresh(&ceph), Options::default());
            Arc::new(path.open(LONG).expect("the cluster answers"))
        });
        let options = Options {
            read_only: true,
            ..Options::default()
        };
        conformance::run_read_only(&|| -> Arc<dyn BlockDevice> {
            let path = path(&ceph, &fresh(&ceph), options.clone());
            Arc::new(path.open(LONG).expect("the cluster answers"))
        });
        // A client that copies, and gives its requests up after a while.
        let options = Options {
            lock: Lock::Cooperative,
            give_up: Some(LONG),
            queue_depth: 3,
            ..Options::default()
        };
        conformance::run(&|| -> Arc<dyn BlockDevice> {
            let path = path(&ceph, &fresh(&ceph), options.clone());
            Arc::new(path.open(LONG).expect("the cluster answers"))
        });
    }
}
