//! Many paths, many LUNs, and paths that are added and removed.

use crate::common::*;
use crate::{Pair, goes_on};
use block::{BlockDevice, Blocking};
use lunpath::Lunpath;
use multipath::{LastPath, Lun, PathSpec, PathState};
use path_file::FilePath;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

/// Returns another path to a server, through another name of its socket.
fn alias(server: &Server, number: usize) -> Arc<dyn Lunpath> {
    let name = format!("{}.alias{number}", server.socket.display());
    std::os::unix::fs::symlink(&server.socket, &name).unwrap();
    Arc::new(path(&format!("nbd+unix:///e?socket={name}")))
}

#[test]
fn a_path_whose_ring_holds_requests_is_taken_out_without_losing_one() {
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("disk");
    let other = dir.path().join("same");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    std::fs::hard_link(&image, &other).unwrap();
    let file = |name: &std::path::Path| {
        let options = path_file::Options {
            lock: path_file::Lock::None,
            ..path_file::Options::default()
        };
        Arc::new(FilePath::new(name.to_owned(), options)) as Arc<dyn Lunpath>
    };
    let mut config = config(vec![file(&image), file(&other)]);
    config.proof = multipath::Proof::Nonce { offset: 12 << 20 };
    let lun = Arc::new(Lun::open(config).unwrap());
    assert!(lun.queue().is_ok(), "{:?}", lun.status().paths);
    let load = Load::start(Arc::clone(&lun) as _, 512, 42);
    for round in 0..20 {
        let name = format!("c{}t0d0", round % 2);
        goes_on(&lun, round % 2, 20);
        lun.disable(&name, LastPath::Keep).unwrap();
        goes_on(&lun, 1 - round % 2, 20);
        lun.enable(&name).unwrap();
        until("it is back", || {
            states(&lun)[round % 2] == PathState::Active
        });
    }
    assert!(load.end() > 200);
}

mod needs_peer {
    use super::*;

    #[test]
    fn thirty_two_paths_carry_one_lun() {
        let dir = TempDir::new().unwrap();
        let server = Server::new(dir.path(), "disk", 0, WWID);
        let paths = (0..32).map(|n| alias(&server, n)).collect();
        let lun = Arc::new(open(paths, |a| {
            a.set("load_bal_policy", "round_robin").unwrap();
        }));
        let one_more = lun.add(PathSpec {
            path: alias(&server, 32),
            legacy: "c32t0d0".into(),
            enabled: true,
        });
        assert!(one_more.unwrap_err().to_string().contains("32"));
        let load = Load::start(Arc::clone(&lun) as _, 128, 40);
        until("all carry I/O", || {
            lun.status().paths.iter().all(|p| p.reads > 5)
        });
        for n in 0..31 {
            // Refused while every other path is suspect: the 32 paths share a slow target.
            until("another path is usable", || {
                lun.disable(&format!("c{n}t0d0"), LastPath::Keep).is_ok()
            });
        }
        goes_on(&lun, 31, 50);
        for n in 0..31 {
            lun.enable(&format!("c{n}t0d0")).unwrap();
        }
        until("all are back", || {
            states(&lun).iter().all(|s| *s == PathState::Active)
        });
        assert!(load.end() > 200);
    }

    #[test]
    fn a_hundred_luns_open_at_once_and_a_dead_path_holds_none_up() {
        let pair = Pair::new();
        let dead = proxy(&pair.servers[0]);
        dead.run("hole").unwrap();
        let busy = pair.lun(|_| ());
        let load = Load::start(Arc::clone(&busy) as _, 64, 41);
        goes_on(&busy, 0, 20);
        let one = || {
            let paths = vec![
                through(&dead),
                through(&pair.sims[0]),
                through(&pair.sims[1]),
            ];
            let lun = open(paths, |_| ());
            let mut all = Blocking::open(&lun).unwrap();
            all.read_at(8 << 20, &mut [0; BLOCK]).unwrap();
            drop(all);
            lun
        };
        let began = Instant::now();
        drop(one());
        let alone = began.elapsed();
        let began = Instant::now();
        let opened: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let took = began.elapsed();
        println!("one LUN after {alone:?}, 100 after {took:?}");
        assert!(took < alone * 20, "{alone:?}, {took:?}");
        assert_eq!(opened.len(), 100);
        goes_on(&busy, 0, 20);
        drop(opened);
        assert!(load.end() > 50);
    }
}
