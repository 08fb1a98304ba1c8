//! A write that the network delays while it is resubmitted on another path must never undo a later
//! write: not when the network heals, not when the connection was reset, and not when it arrives
//! twice.

mod common;

use block::{BlockDevice, Queue};
use block_testing::Random;
use common::target::Tgtd;
use common::*;
use lunpath::Lunpath;
use multipath::{Attributes, Lun, PathState, PathStatus};
use path_iscsi::Options;
use pathsim::Pathsim;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Block that both writes go to.
const AT: u64 = 77;

/// A LUN with two paths, each through a proxy. I/O uses the second path while it can.
struct Rig {
    sims: [Pathsim; 2],
    servers: Vec<Server>,
    tgtd: Option<Tgtd>,
    image: PathBuf,
    _dir: TempDir,
}

impl Rig {
    fn nbd(program: Program) -> Rig {
        // In memory: a disk that stalls for longer than `quiesce_secs` would execute a lost write
        // after it counts as settled.
        let dir = TempDir::new_in("/dev/shm").unwrap();
        let server = |port| Server::with(program, dir.path(), "disk", port, WWID, &[]);
        let servers = vec![server(0), server(1)];
        Rig {
            sims: [proxy(&servers[0]), proxy(&servers[1])],
            image: servers[0].image.clone(),
            servers,
            tgtd: None,
            _dir: dir,
        }
    }

    fn iscsi() -> Rig {
        let tgtd = Tgtd::start();
        Rig {
            sims: [tgtd.proxy(0), tgtd.proxy(1)],
            image: tgtd.image.clone(),
            servers: Vec::new(),
            tgtd: Some(tgtd),
            _dir: TempDir::new().unwrap(),
        }
    }

    fn lun(&self, change: impl Fn(&mut Attributes)) -> Lun {
        let options = Options {
            persistent_reservations: false,
            ..Options::default()
        };
        self.lun_over(&options, change)
    }

    /// Opens the LUN with persistent reservations, so that a lost connection can be fenced.
    fn fencing_lun(&self, change: impl Fn(&mut Attributes)) -> Lun {
        let options = Options {
            persistent_reservations: true,
            ..Options::default()
        };
        self.lun_over(&options, change)
    }

    fn lun_over(&self, options: &Options, change: impl Fn(&mut Attributes)) -> Lun {
        let path = |sim: &Pathsim| -> Arc<dyn Lunpath> {
            match &self.tgtd {
                None => through(sim),
                Some(_) => Arc::new(target::path(port_of(sim), options.clone())),
            }
        };
        open(self.sims.iter().map(path).collect(), |a| {
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
            change(a);
        })
    }

    fn finds(&self, generation: u64, when: &str) {
        let found = on_disk(&self.image, AT);
        let wanted = stamp(AT, generation, 1);
        assert!(found == wanted, "{when}: {}", named(&found));
    }

    fn both_up(&self, lun: &Lun) -> Box<dyn Queue> {
        let mut queue = lun.queue().unwrap();
        until("both are up", || {
            queue.kick().unwrap();
            states(lun) == [PathState::Active; 2]
        });
        queue
    }

    fn lose_one(&self, lun: &Lun) -> Box<dyn Queue> {
        let mut queue = self.both_up(lun);
        self.lose(lun, &mut *queue);
        queue
    }

    /// Delays write A in the network until it is acknowledged through the other path.
    fn lose(&self, lun: &Lun, queue: &mut dyn Queue) {
        self.sims[1].run("hold").unwrap();
        queue.submit(write(1, AT, &stamp(AT, 1, 1))).unwrap();
        answer(queue).result.unwrap();
        self.finds(1, "after the failover");
        assert!(self.sims[1].stats().held >= BLOCK as u64, "A is under way");
        assert!(lun.status().lost_writes > 0);
    }

    /// Submits write B to the same block and waits until it is held.
    fn overwrite(&self, lun: &Lun, queue: &mut dyn Queue) {
        queue.submit(write(2, AT, &stamp(AT, 2, 1))).unwrap();
        until("B is held", || {
            let early = reap(queue, Duration::from_millis(5));
            assert!(early.is_empty(), "B is acknowledged while A may still land");
            lun.status().held == 1
        });
    }

    /// Waits until the server has answered requests that it received after the delayed data.
    fn has_had_its_chance(&mut self) {
        until("all that was held is delivered", || {
            self.sims[1].stats().held == 0
        });
        // A server that crashed on a reset is restarted; that is not the subject of this test.
        for server in &mut self.servers {
            server.revive();
        }
        let way: Arc<dyn Lunpath> = match &self.tgtd {
            None => through(&self.sims[1]),
            Some(_) => Arc::new(target::path(port_of(&self.sims[1]), Options::default())),
        };
        for _ in 0..8 {
            let mut queue = way.connect(WITHIN).unwrap().open().unwrap();
            for tag in 0..8 {
                queue.submit(read(tag, AT)).unwrap();
                answer(&mut *queue).result.unwrap();
            }
        }
    }

    /// Checks that B is on disk after A was delivered.
    fn settled(&mut self, lun: &Lun) {
        self.sims[1].run("pass").unwrap();
        self.has_had_its_chance();
        self.finds(2, "at the end");
        assert_eq!(lun.status().lost_writes, 0);
    }

    fn heals_in_time(mut self) {
        let lun = self.lun(|a| a.quiesce_secs = 600);
        let mut queue = self.lose_one(&lun);
        self.overwrite(&lun, &mut *queue);
        self.sims[1].run("pass").unwrap();
        // Only the late response can have released it.
        answer(&mut *queue).result.unwrap();
        assert!(lun.status().paths[1].late_answers > 0);
        self.finds(2, "after the late answer");
        self.settled(&lun);
    }

    /// The quiesce time starts when the connection is closed, not at the first suspicion: data
    /// queued on an open connection may be sent at any time.
    fn heals_after_the_quiesce_time_of_an_open_connection(mut self) {
        let lun = self.lun(|a| {
            a.quiesce_secs = 1;
            a.path_fail_secs = 20;
        });
        let mut queue = self.lose_one(&lun);
        self.overwrite(&lun, &mut *queue);
        still_held(&lun, &mut *queue);
        self.sims[1].run("pass").unwrap();
        answer(&mut *queue).result.unwrap();
        self.settled(&lun);
    }

    fn heals_within_the_quiesce_time_of_a_closed_connection(mut self) {
        let lun = self.lun(|a| {
            a.quiesce_secs = 3;
            a.path_fail_secs = 1;
        });
        let mut queue = self.lose_one(&lun);
        self.overwrite(&lun, &mut *queue);
        until("it is given up", || {
            assert!(reap(&mut *queue, Duration::from_millis(20)).is_empty());
            states(&lun)[1] == PathState::Failed
        });
        self.sims[1].run("pass").unwrap();
        self.has_had_its_chance();
        self.finds(1, "B waits");
        answer(&mut *queue).result.unwrap();
        self.settled(&lun);
    }

    fn reset_while_held(mut self) {
        let lun = self.lun(|a| a.quiesce_secs = 2);
        let mut queue = self.lose_one(&lun);
        self.sims[1].run("rst").unwrap();
        let lost = Instant::now();
        until("it is noticed", || {
            reap(&mut *queue, Duration::from_millis(5));
            lun.status().paths[1].offline_events > 0
        });
        self.overwrite(&lun, &mut *queue);
        answer(&mut *queue).result.unwrap();
        assert!(lost.elapsed() >= Duration::from_secs(2), "it waited");
        self.settled(&lun);
    }

    fn arrives_after_its_client_is_gone(mut self) {
        self.sims[1].run("record").unwrap();
        let lun = self.lun(|a| a.quiesce_secs = 6);
        let mut queue = self.lose_one(&lun);
        self.sims[1].run("rst").unwrap();
        until("it is noticed", || {
            reap(&mut *queue, Duration::from_millis(5));
            lun.status().paths[1].offline_events > 0
        });
        self.overwrite(&lun, &mut *queue);
        // The stream that was cut off arrives after all, from its first byte on.
        std::fs::write(&self.image, vec![0; SIZE as usize]).unwrap();
        self.sims[1].run("replay").unwrap();
        self.finds(1, "A landed late");
        answer(&mut *queue).result.unwrap();
        self.settled(&lun);
    }

    fn fenced(mut self) {
        let lun = self.fencing_lun(|a| a.quiesce_secs = 600);
        let mut queue = self.lose_one(&lun);
        queue.submit(write(2, AT, &stamp(AT, 2, 1))).unwrap();
        // Only the fence can release it.
        answer(&mut *queue).result.unwrap();
        self.finds(2, "after the fence");
        let status = lun.status();
        assert!(status.log.iter().any(|e| e.what.contains("fenced")));
        self.settled(&lun);
    }
}

impl Rig {
    /// The fence needs a connection, and none can be made for longer than the quiesce time of an
    /// unfenced write.
    fn fenced_late(mut self) {
        let lun = self.fencing_lun(|a| {
            a.quiesce_secs = 1;
            a.path_fail_secs = 1;
        });
        let mut queue = self.both_up(&lun);
        self.sims[0].run("refuse").unwrap();
        self.lose(&lun, &mut *queue);
        self.overwrite(&lun, &mut *queue);
        until("it is given up", || {
            assert!(reap(&mut *queue, Duration::from_millis(20)).is_empty());
            states(&lun)[1] == PathState::Failed
        });
        still_held(&lun, &mut *queue);
        self.sims[0].run("pass").unwrap();
        answer(&mut *queue).result.unwrap();
        self.settled(&lun);
    }
}

/// Checks that no completion arrives for longer than the quiesce time of an unfenced write.
fn still_held(lun: &Lun, queue: &mut dyn Queue) {
    let quiesce = Duration::from_secs(lun.attributes().quiesce_secs.into());
    let began = Instant::now();
    while began.elapsed() < quiesce + quiesce / 2 {
        let early = reap(queue, Duration::from_millis(20));
        assert!(early.is_empty(), "A may still land");
    }
}

#[test]
fn qemu_nbd_the_network_heals() {
    Rig::nbd(Program::QemuNbd).heals_in_time();
}

#[test]
fn nbdkit_the_network_heals() {
    Rig::nbd(Program::Nbdkit).heals_in_time();
}

#[test]
fn tgtd_the_network_heals() {
    Rig::iscsi().heals_in_time();
}

#[test]
fn qemu_nbd_the_network_heals_late() {
    Rig::nbd(Program::QemuNbd).heals_after_the_quiesce_time_of_an_open_connection();
}

#[test]
fn nbdkit_the_network_heals_late() {
    Rig::nbd(Program::Nbdkit).heals_after_the_quiesce_time_of_an_open_connection();
}

#[test]
fn tgtd_the_network_heals_late() {
    Rig::iscsi().heals_after_the_quiesce_time_of_an_open_connection();
}

#[test]
fn qemu_nbd_the_connection_is_given_up() {
    Rig::nbd(Program::QemuNbd).heals_within_the_quiesce_time_of_a_closed_connection();
}

#[test]
fn nbdkit_the_connection_is_given_up() {
    Rig::nbd(Program::Nbdkit).heals_within_the_quiesce_time_of_a_closed_connection();
}

#[test]
fn tgtd_the_connection_is_given_up() {
    Rig::iscsi().heals_within_the_quiesce_time_of_a_closed_connection();
}

#[test]
fn qemu_nbd_the_connection_is_reset() {
    Rig::nbd(Program::QemuNbd).reset_while_held();
}

#[test]
fn nbdkit_the_connection_is_reset() {
    Rig::nbd(Program::Nbdkit).reset_while_held();
}

#[test]
fn tgtd_the_connection_is_reset() {
    Rig::iscsi().reset_while_held();
}

#[test]
fn qemu_nbd_a_cut_off_stream_arrives_late() {
    Rig::nbd(Program::QemuNbd).arrives_after_its_client_is_gone();
}

#[test]
fn nbdkit_a_cut_off_stream_arrives_late() {
    Rig::nbd(Program::Nbdkit).arrives_after_its_client_is_gone();
}

#[test]
fn tgtd_a_reservation_fences_the_lost_write() {
    Rig::iscsi().fenced();
}

#[test]
fn tgtd_a_fence_that_comes_late_is_waited_for() {
    Rig::iscsi().fenced_late();
}

/// A queue that is closed with writes in flight leaves lost writes as well.
#[test]
fn a_queue_closed_with_a_write_under_way_holds_the_next_one() {
    let mut rig = Rig::nbd(Program::QemuNbd);
    let lun = rig.lun(|a| a.quiesce_secs = 2);
    let mut other = lun.queue().unwrap();
    let mut queue = lun.queue().unwrap();
    rig.sims[1].run("hold").unwrap();
    queue.submit(write(1, AT, &stamp(AT, 1, 1))).unwrap();
    queue.kick().unwrap();
    until("A is under way", || {
        rig.sims[1].stats().held >= BLOCK as u64
    });
    drop(queue);
    rig.overwrite(&lun, &mut *other);
    rig.sims[1].run("pass").unwrap();
    until("A landed", || on_disk(&rig.image, AT) == stamp(AT, 1, 1));
    answer(&mut *other).result.unwrap();
    rig.settled(&lun);
}

/// The next opener of the LUN does not know about a lost write.
#[test]
fn a_close_in_order_waits_for_a_lost_write_and_one_by_force_does_not() {
    let rig = Rig::nbd(Program::QemuNbd);
    let lun = rig.lun(|a| a.quiesce_secs = 1);
    drop(rig.lose_one(&lun));
    assert_eq!(lun.status().lost_writes, 1);
    lun.prepare_close();
    assert_eq!(lun.status().lost_writes, 0);
    rig.sims[1].run("rst").unwrap();
    rig.sims[1].run("pass").unwrap();
    let lun = rig.lun(|a| a.quiesce_secs = 600);
    drop(rig.lose_one(&lun));
    lun.prepare_forced_close();
    lun.prepare_close();
    assert_eq!(lun.status().lost_writes, 1);
}

/// Totals over all paths: I/Os carried, suspicions, and losses.
struct Seen {
    carried: u64,
    shown: u64,
    lost: u64,
}

fn seen(lun: &Lun) -> Seen {
    let paths = lun.status().paths;
    let sum = |f: fn(&PathStatus) -> u64| paths.iter().map(f).sum();
    Seen {
        carried: sum(|p| p.reads + p.writes),
        shown: sum(|p| p.suspect_events),
        lost: sum(|p| p.offline_events),
    }
}

fn goes_on(lun: &Lun, more: u64) {
    let before = seen(lun).carried;
    until("it goes on", || seen(lun).carried >= before + more);
}

/// Injects random faults on random paths, under a load that verifies every byte.
fn rounds(rig: &Rig, seed: u64, count: u32) {
    let lun = Arc::new(rig.lun(|a| {
        a.set("load_bal_policy", "round_robin").unwrap();
        a.quiesce_secs = 2;
        a.path_fail_secs = 1;
        a.flap_penalty_secs = 0;
    }));
    let loads = [1, 2].map(|writer| {
        let blocks = writer * 64..writer * 64 + 24;
        Load::on(Arc::clone(&lun) as _, blocks, seed + writer)
    });
    let mut random = Random::new(seed);
    for round in 0..count {
        let sim = &rig.sims[random.below(2) as usize];
        let fault = match random.below(6) {
            0 | 1 => "hold",
            2 => "hole",
            3 => "delay=150",
            4 => "half-close=up",
            _ => "rst",
        };
        let lasts = match random.below(4) {
            // On a busy machine a delay is shorter than the silence that makes a path suspect.
            0 if !fault.starts_with("delay") => "until it shows",
            1 if fault.starts_with("ho") => "until it is given up",
            _ => "a moment",
        };
        println!("round {round}: {fault} {lasts}");
        if lasts != "a moment" {
            // If a path were down already, the fault would have no visible effect.
            until("both are up", || states(&lun) == [PathState::Active; 2]);
        }
        let before = seen(&lun);
        sim.run(fault).unwrap();
        match lasts {
            "until it shows" => until(fault, || {
                let now = seen(&lun);
                now.shown > before.shown || now.lost > before.lost
            }),
            "until it is given up" => until(fault, || seen(&lun).lost > before.lost),
            // What is held must not arrive later than `quiesce_secs` after its connection was
            // closed, so a loss ends the fault at once.
            _ => {
                let more = random.below(300);
                until("a moment", || {
                    let now = seen(&lun);
                    now.carried >= before.carried + more || now.lost > before.lost
                });
            }
        }
        if random.below(3) == 0 {
            sim.run("rst").unwrap();
        }
        sim.run("pass").unwrap();
        goes_on(&lun, random.below(300));
    }
    for load in loads {
        assert!(load.end() > 100);
    }
    assert!(lun.status().paths.iter().any(|p| p.retried > 0));
}

#[test]
fn random_rounds_over_qemu_nbd() {
    rounds(&Rig::nbd(Program::QemuNbd), 11, 15);
}

#[test]
fn random_rounds_over_tgtd() {
    rounds(&Rig::iscsi(), 12, 15);
}
