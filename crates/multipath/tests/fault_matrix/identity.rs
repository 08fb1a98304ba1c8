//! Identity of the target at the other end of a path.

use crate::common::target::{self, Tgtd};
use crate::common::*;
use crate::{carried, goes_on};
use block::{BlockDevice, Blocking, Queue};
use multipath::{Lun, PathState, Proof};
use path_iscsi::Options;
use std::sync::Arc;
use tempfile::TempDir;

/// Waits until the path has the state. Drives the queue while waiting.
fn becomes(lun: &Lun, queue: &mut dyn Queue, path: usize, state: PathState) {
    let mut tag = 1 << 32;
    until(&format!("{state:?}"), || {
        for _ in 0..4 {
            tag += 1;
            queue.submit(read(tag, tag % 64)).unwrap();
            answer(queue).result.unwrap();
        }
        states(lun)[path] == state
    });
}

mod needs_peer {
    use super::*;

    #[test]
    fn two_targets_with_one_id_are_not_one_lun() {
        let (one, other) = (Tgtd::start_generic(), Tgtd::start_generic());
        std::fs::write(&other.image, vec![0; SIZE as usize]).unwrap();
        let refused = PathState::AuthFailed;
        for proof in [Proof::Compare, Proof::Nonce { offset: 12 << 20 }] {
            let path = |tgtd: &Tgtd, portal| Arc::new(tgtd.path(portal, Options::default())) as _;
            let mut config = config(vec![path(&one, 0), path(&other, 0), path(&one, 1)]);
            config.proof = proof;
            let lun = Lun::open(config).unwrap();
            let third = match proof {
                Proof::Compare => refused,
                Proof::Nonce { .. } => PathState::Unopen,
            };
            assert_eq!(states(&lun), [PathState::Unopen, refused, third]);
            let log = lun.status().log;
            assert!(log.iter().any(|e| e.what.contains("AUTH_FAILED")));
            let mut all = Blocking::open(&lun).unwrap();
            for offset in (0..SIZE / 2).step_by(65536) {
                all.write_at(offset, &[7; 65536]).unwrap();
            }
            all.flush().unwrap();
            assert_eq!(carried(&lun, 1), 0);
        }
        let untouched = std::fs::read(&other.image).unwrap();
        assert!(untouched.iter().all(|b| *b == 0));
    }

    #[test]
    fn an_id_that_changes_is_refused_until_it_is_accepted() {
        let tgtd = Tgtd::start();
        let sims = [tgtd.proxy(0), tgtd.proxy(1)];
        let path = |sim| Arc::new(target::path(port_of(sim), Options::default())) as _;
        let lun = open(sims.iter().map(path).collect(), |a| a.quiesce_secs = 0);
        let mut queue = lun.queue().unwrap();
        becomes(&lun, &mut *queue, 1, PathState::Active);
        tgtd.set_id("5000c500ffffffff", "S2");
        sims[1].run("rst").unwrap();
        becomes(&lun, &mut *queue, 1, PathState::AuthFailed);
        let why = lun.status().paths[1].why.clone().unwrap();
        assert!(why.contains("ffffffff"), "{why}");
        let before = carried(&lun, 1);
        becomes(&lun, &mut *queue, 0, PathState::Active);
        assert_eq!(carried(&lun, 1), before);
        lun.replace_wwid("c1t0d0").unwrap();
        becomes(&lun, &mut *queue, 1, PathState::Active);
        // The other path has the accepted ID and is recognized.
        sims[0].run("rst").unwrap();
        until("it was lost", || {
            reap(&mut *queue, std::time::Duration::from_millis(5));
            lun.status().paths[0].offline_events == 1
        });
        becomes(&lun, &mut *queue, 0, PathState::Active);
    }

    #[test]
    fn a_disk_that_shrank_is_refused_and_one_that_grew_is_not() {
        let dir = TempDir::new().unwrap();
        for (size, state) in [
            (SIZE / 2, PathState::AuthFailed),
            (SIZE * 2, PathState::Active),
        ] {
            let image = format!("disk{size}");
            let a = Server::new(dir.path(), &image, 0, WWID);
            let mut b = Server::new(dir.path(), &image, 1, WWID);
            let lun = lun(&[&a, &b], |x| x.quiesce_secs = 0);
            let mut queue = lun.queue().unwrap();
            becomes(&lun, &mut *queue, 1, PathState::Active);
            b.kill();
            until("it failed", || {
                reap(&mut *queue, std::time::Duration::from_millis(5));
                states(&lun)[1] == PathState::Failed
            });
            b.image = dir.path().join(format!("{image}.changed"));
            std::fs::File::create(&b.image)
                .unwrap()
                .set_len(size)
                .unwrap();
            b.start();
            becomes(&lun, &mut *queue, 1, state);
            let why = lun.status().paths[1].why.clone();
            assert_eq!(why.is_some_and(|w| w.contains("less than")), size < SIZE);
            assert_eq!(lun.info().size, SIZE);
        }
    }

    #[test]
    fn a_block_size_that_changes_is_refused_and_carries_nothing() {
        let dir = TempDir::new().unwrap();
        let mut a = Server::nbdkit(dir.path(), "disk", 0, &[]);
        let mut b = Server::nbdkit(dir.path(), "disk", 1, &[]);
        let lun = Arc::new(lun(&[&a, &b], |x| {
            x.quiesce_secs = 0;
            x.transient_secs = 1;
        }));
        assert_eq!(lun.info().logical_block_size, 512);
        let load = Load::start(Arc::clone(&lun) as _, 512, 31);
        goes_on(&lun, 1, 100);
        let blocks_of_4096 = |server: &mut Server| {
            server.kill();
            let extra = ["--filter=blocksize-policy", "--", "blocksize-minimum=4096"];
            server.extra = extra.map(Into::into).into();
        };
        blocks_of_4096(&mut b);
        until("it failed", || states(&lun)[1] == PathState::Failed);
        let before = carried(&lun, 1);
        b.start();
        until("it is refused", || states(&lun)[1] == PathState::AuthFailed);
        let why = lun.status().paths[1].why.clone().unwrap();
        assert!(why.contains("block size is 4096 bytes, not 512"), "{why}");
        let error = lun.replace_wwid("c1t0d0").unwrap_err();
        assert!(error.to_string().contains("block size"), "{error}");
        goes_on(&lun, 0, 100);
        assert!(load.end() > 100);
        // Then the other path as well: no path is left, and nothing is written to either.
        let mut queue = lun.queue().unwrap();
        blocks_of_4096(&mut a);
        a.start();
        until("it is refused", || {
            reap(&mut *queue, std::time::Duration::from_millis(5));
            states(&lun)[0] == PathState::AuthFailed
        });
        let content = std::fs::read(&a.image).unwrap();
        queue.submit(write(1, 0, &[7; BLOCK])).unwrap();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::PathLost, "{error}");
        assert!(std::fs::read(&a.image).unwrap() == content);
        assert_eq!(carried(&lun, 1), before);
        // Blocks of 512 bytes again, accepted by the administrator.
        b.kill();
        b.extra.clear();
        b.start();
        lun.set("transient_secs", "120").unwrap();
        lun.replace_wwid("c1t0d0").unwrap();
        becomes(&lun, &mut *queue, 1, PathState::Active);
    }

    #[test]
    fn a_path_whose_limits_shrank_has_failed_and_says_why_until_they_are_as_before() {
        let dir = TempDir::new().unwrap();
        let a = Server::new(dir.path(), "disk", 0, WWID);
        let mut b = Server::nbdkit(dir.path(), "disk", 1, &[]);
        let lun = Arc::new(lun(&[&a, &b], |x| x.quiesce_secs = 0));
        assert!(lun.info().max_transfer > 65536);
        let load = Load::start(Arc::clone(&lun) as _, 512, 32);
        goes_on(&lun, 1, 100);
        b.kill();
        let small = [
            "--filter=blocksize-policy",
            "--",
            "blocksize-maximum=65536",
            "blocksize-error-policy=error",
        ];
        b.extra = small.map(Into::into).into();
        until("it failed", || states(&lun)[1] == PathState::Failed);
        let before = carried(&lun, 1);
        b.start();
        // It is the LUN, so it needs no acceptance; it just cannot carry the LUN's transfer size.
        until("it says why", || {
            let path = &lun.status().paths[1];
            assert_ne!(path.state, PathState::AuthFailed, "{:?}", path.why);
            let why = path.why.as_deref().unwrap_or_default();
            why.contains("limits changed") && why.contains("65536")
        });
        goes_on(&lun, 0, 100);
        assert_eq!(states(&lun)[1], PathState::Failed);
        assert_eq!(carried(&lun, 1), before);
        b.kill();
        b.extra.clear();
        b.start();
        until("it is in use again", || {
            states(&lun)[1] == PathState::Active
        });
        goes_on(&lun, 1, 100);
        assert!(load.end() > 100);
    }

    #[test]
    fn a_path_with_other_content_is_refused_when_it_comes_back() {
        let dir = TempDir::new().unwrap();
        let a = Server::new(dir.path(), "disk", 0, WWID);
        let mut b = Server::new(dir.path(), "disk", 1, WWID);
        let lun = Arc::new(lun(&[&a, &b], |x| x.quiesce_secs = 0));
        let load = Load::start(Arc::clone(&lun) as _, 512, 30);
        goes_on(&lun, 1, 600);
        b.kill();
        until("it failed", || states(&lun)[1] == PathState::Failed);
        b.image = dir.path().join("other");
        std::fs::write(&b.image, vec![9; SIZE as usize]).unwrap();
        b.start();
        until("it is refused", || states(&lun)[1] == PathState::AuthFailed);
        let why = lun.status().paths[1].why.clone().unwrap();
        assert!(why.contains("different content"), "{why}");
        assert!(load.end() > 100);
        let untouched = std::fs::read(&b.image).unwrap();
        assert!(untouched.iter().all(|b| *b == 9));
    }
}
