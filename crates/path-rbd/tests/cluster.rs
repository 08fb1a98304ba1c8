//! The path against a real cluster.

use block::{BlockDevice, Blocking, ErrorKind};
use block_testing::conformance;
use lunpath::{Lunpath, Transport};
use path_rbd::{Lock, Options, RbdPath};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use test_support::ceph::Ceph;

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

fn read_only() -> Options {
    Options {
        read_only: true,
        ..Options::default()
    }
}

fn conforms(ceph: &Ceph, options: &Options) {
    conformance::run(&|| -> Arc<dyn BlockDevice> {
        let path = path(ceph, &fresh(ceph), options.clone());
        Arc::new(path.open(LONG).expect("the cluster answers"))
    });
}

mod needs_peer {
    use super::*;

    #[test]
    fn the_conformance_suite_passes() {
        let ceph = start();
        conforms(&ceph, &Options::default());
        conformance::run_read_only(&|| -> Arc<dyn BlockDevice> {
            let path = path(&ceph, &fresh(&ceph), read_only());
            Arc::new(path.open(LONG).expect("the cluster answers"))
        });
        // A client that gives its requests up after a while, and has few of them.
        let options = Options {
            lock: Lock::Cooperative,
            give_up: Some(LONG),
            queue_depth: 3,
            ..Options::default()
        };
        conforms(&ceph, &options);
    }

    #[test]
    fn an_image_has_an_identity_a_lock_a_size_and_snapshots() {
        let ceph = start();
        ceph.create_image("disk", BYTES);
        let first = path(&ceph, "disk", Options::default());
        identities(&ceph, &first);
        // The lock keeps out writers, and no readers. It is free once the path is closed.
        let connection = first.connect(LONG).unwrap();
        let second = path(&ceph, "disk", Options::default());
        let refused = second.connect(LONG).err().expect("the first has the lock");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(refused.to_string().contains("blocklist add"), "{refused}");
        path(&ceph, "disk", read_only()).connect(LONG).unwrap();
        drop(connection);
        first.close(LONG);
        let device = second.open(LONG).unwrap();
        snapshots(&ceph, &device);
        grows(&ceph, &device);
        errors(&ceph);
    }

    fn identities(ceph: &Ceph, disk: &RbdPath) {
        ceph.create_image("other", BYTES);
        let one = disk.identify(LONG).unwrap();
        let two = path(ceph, "other", Options::default())
            .identify(LONG)
            .unwrap();
        assert_eq!((one.size, one.logical_block_size), (BYTES, 512));
        assert_eq!(
            (one.vendor.as_str(), disk.transport()),
            ("Ceph", Transport::Rbd)
        );
        let fsid = ceph.ceph(&["fsid"]);
        let prefix = format!("rbd.{}.", fsid.trim());
        assert!(one.wwid.as_ref().unwrap().starts_with(&prefix), "{one:?}");
        assert_ne!(one.wwid, two.wwid);
        ceph.rbd(&["rename", "rbd/other", "rbd/renamed"]);
        let renamed = path(ceph, "renamed", Options::default());
        assert_eq!(renamed.identify(LONG).unwrap(), two);
    }

    fn snapshots(ceph: &Ceph, device: &dyn BlockDevice) {
        let mut queue = Blocking::open(device).unwrap();
        queue.write_at(0, &[1; 512]).unwrap();
        ceph.rbd(&["snap", "create", "rbd/disk@monday"]);
        queue.write_at(0, &[2; 512]).unwrap();
        let snapshot = path(ceph, "disk@monday", Options::default());
        assert!(snapshot.identify(LONG).unwrap().read_only);
        let mut old = [0; 512];
        let snapshot = snapshot.open(LONG).unwrap();
        let mut reader = Blocking::open(&snapshot).unwrap();
        reader.read_at(0, &mut old).unwrap();
        assert_eq!(old, [1; 512]);
        let refused = reader.write_at(0, &[3; 512]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }

    /// A queue that is open accepts requests to the new part.
    fn grows(ceph: &Ceph, device: &dyn BlockDevice) {
        let mut queue = Blocking::open(device).unwrap();
        let beyond = queue.write_at(BYTES, &[7; 512]).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::OutOfRange);
        let size = format!("{}B", 2 * BYTES);
        ceph.rbd(&["resize", "--size", &size, "rbd/disk"]);
        let until = Instant::now() + LONG;
        while device.update_size().unwrap() < 2 * BYTES {
            assert!(Instant::now() < until, "the client is told of the new size");
            std::thread::sleep(Duration::from_millis(20));
        }
        queue.write_at(BYTES, &[7; 512]).unwrap();
        assert_eq!(device.info().size, 2 * BYTES);
    }

    fn errors(ceph: &Ceph) {
        let kind = |address: &str| {
            let path = RbdPath::parse(address, Options::default()).unwrap();
            let error = path.identify(LONG).unwrap_err();
            (error.kind(), error.to_string())
        };
        let conf = ceph.conf();
        let conf = conf.display();
        for (address, remedy) in [
            (format!("rbd:rbd/none?conf={conf}"), "rbd ls"),
            (format!("rbd:none/disk?conf={conf}"), "osd pool ls"),
            ("rbd:rbd/disk?conf=/not/there".to_owned(), "?conf=FILE"),
        ] {
            let (kind, text) = kind(&address);
            assert_eq!(kind, ErrorKind::NotFound, "{text}");
            assert!(text.contains(remedy), "{text}");
        }
        // A user without a key.
        let (_, text) = kind(&format!("rbd:rbd/disk?conf={conf}&id=nobody"));
        assert!(text.contains("keyring"), "{text}");
    }
}
