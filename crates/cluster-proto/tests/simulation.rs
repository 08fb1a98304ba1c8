//! Clusters in virtual time under faults: never two owners past a fence, and every unit owned again.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_SEED=N` | first seed |
//! | `EVFS_SEEDS=N` | number of worlds of each test (default: 40) |
//! | `EVFS_MACHINES=N`, `EVFS_UNITS=N` | size of the large world (default: 100, 2,000) |
//! | `EVFS_EVENTS=1` | prints what happened before a failure |

mod world;

use block_testing::Random;
use cluster_proto::{Action, Answer, Ask, At, Config, Machine};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use world::{Fault, MS, PATHS, Planted, Rules, SECOND, World};

fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable);
    set.map_or(default, |text| text.parse().expect("a number"))
}

fn seeds() -> std::ops::Range<u64> {
    let first = number("EVFS_SEED", 1);
    first..first + number("EVFS_SEEDS", 40)
}

fn small(seed: u64) -> Rules {
    Rules {
        seed,
        machines: 3 + (seed % 5) as usize,
        units: 12,
        candidates: [0, 3, 2][(seed % 3) as usize],
        lost: [0, 20, 200][(seed / 3 % 3) as usize],
        drift: 5000,
        write_every: 10 * MS,
        planted: Planted::Nothing,
    }
}

/// Chooses a fault.
fn fault(random: &mut Random, rules: &Rules) -> Fault {
    let host = random.below(rules.machines as u64) as usize;
    let scale = 4 + random.below(10);
    let time = MS * (1 + random.below(1 << scale));
    match random.below(18) {
        0..4 => Fault::Kill(host, time),
        4..6 => Fault::Stop(host, time),
        6 => Fault::Freeze(host, 4 * time),
        7..9 => Fault::NoStore(host, time),
        9..11 => Fault::NoDisks(host, Some(random.below(PATHS as u64) as usize), time),
        11 => Fault::NoDisks(host, None, time),
        12 => Fault::Stall(time / 2),
        13 => Fault::Drain(host, time),
        14..16 => Fault::Retire(host, random.below(rules.units as u64) as usize, time),
        _ => Fault::Move(random.below(rules.units as u64) as usize, host),
    }
}

fn live(rules: Rules, faults: u32) -> World {
    let mut random = Random::new(rules.seed ^ 0x5eed);
    let mut world = World::new(rules.clone());
    world.step(3 * SECOND);
    for _ in 0..faults {
        let one = fault(&mut random, &rules);
        world.suffer(one);
        let pause = random.below(2 * SECOND);
        world.step(pause);
    }
    world.settle(120 * SECOND);
    world
}

#[test]
fn no_fault_makes_two_owners_and_every_unit_is_owned_again() {
    let (mut opened, mut refused, mut writes) = (0, 0, 0);
    for seed in seeds() {
        let world = live(small(seed), 60);
        opened += world.opened;
        refused += world.refused;
        writes += world.writes;
    }
    println!("{opened} times opened, {writes} writes, {refused} refused by a fence");
    assert!(opened > 500 && writes > 100_000 && refused > 10);
}

#[test]
fn planted_defects_are_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = Vec::new();
    for planted in [
        Planted::PathNotFenced,
        Planted::LateStop,
        Planted::BlindStore,
    ] {
        let fails = |seed: u64| {
            let rules = Rules {
                planted,
                ..small(seed)
            };
            catch_unwind(AssertUnwindSafe(|| live(rules, 60))).is_err()
        };
        found.push((planted, (1..60).any(fails)));
    }
    let _ = std::panic::take_hook();
    assert!(found.iter().all(|(_, is_found)| *is_found), "{found:?}");
}

#[test]
fn a_unit_of_a_dead_machine_is_served_again_within_the_bound() {
    let mut outages = Vec::new();
    for seed in seeds() {
        let rules = Rules {
            lost: 0,
            ..small(seed)
        };
        let mut world = World::new(rules.clone());
        world.step(5 * SECOND);
        world.outages.clear();
        for host in 0..rules.machines {
            world.suffer(Fault::Kill(host, 8 * SECOND));
            world.step(12 * SECOND);
        }
        world.settle(60 * SECOND);
        outages.append(&mut world.outages);
    }
    outages.sort_unstable();
    let at = |percent: usize| outages[(outages.len() - 1) * percent / 100] / MS;
    println!(
        "{} outages: median {} ms, 99 % {} ms, longest {} ms",
        outages.len(),
        at(50),
        at(99),
        at(100)
    );
    assert!(outages.len() > 100);
    assert!(at(50) <= 5000 && at(99) <= 8000, "{} {}", at(50), at(99));
}

#[test]
fn a_unit_without_a_table_moves_in_order_and_others_stay() {
    for seed in seeds() {
        let rules = Rules {
            lost: 0,
            candidates: 0,
            ..small(seed)
        };
        let mut world = World::new(rules.clone());
        world.settle(60 * SECOND);
        for number in 0..2 {
            let owner = world.owner(number);
            let before = (world.opened, world.refused, world.serving(owner));
            world.suffer(Fault::Retire(owner, number, 4 * SECOND));
            world.step(3 * SECOND);
            let next = world.owner(number);
            assert_ne!(next, owner, "EVFS_SEED={seed}");
            let after = (world.opened, world.refused, world.serving(owner));
            let expected = (before.0 + 1, before.1, before.2 - 1);
            assert_eq!(after, expected, "EVFS_SEED={seed}");
            // Its table is back, which alone moves nothing.
            world.step(3 * SECOND);
            assert_eq!(world.owner(number), next, "EVFS_SEED={seed}");
            world.suffer(Fault::Move(number, owner));
            world.step(3 * SECOND);
            assert_eq!(world.owner(number), owner, "EVFS_SEED={seed}");
        }
    }
}

#[test]
fn a_large_cluster_survives_the_loss_of_a_rack() {
    let machines = number("EVFS_MACHINES", 100) as usize;
    let units = number("EVFS_UNITS", 2000) as usize;
    let rules = Rules {
        seed: number("EVFS_SEED", 1),
        machines,
        units,
        candidates: 4,
        lost: 10,
        drift: 5000,
        write_every: 500 * MS,
        planted: Planted::Nothing,
    };
    let mut world = World::new(rules);
    world.settle(600 * SECOND);
    let start = world.load();
    println!(
        "start: {} s, {} renewals, {} other requests, {} notices, {} records read",
        world.now / SECOND,
        start.renewals,
        start.others,
        start.notices,
        start.loaded
    );
    world.step(10 * SECOND);
    let before = world.load();
    println!(
        "idle: {} renewals/s",
        (before.renewals - start.renewals) / 10
    );
    world.outages.clear();
    let rack = machines.div_ceil(25);
    let lost: usize = (0..rack).map(|host| world.serving(host)).sum();
    for host in 0..rack {
        world.suffer(Fault::Kill(host, 600 * SECOND));
    }
    world.settle(300 * SECOND);
    let after = world.load();
    let mut outages = std::mem::take(&mut world.outages);
    outages.sort_unstable();
    let at = |percent: usize| outages[(outages.len() - 1) * percent / 100] / MS;
    println!(
        "{rack} of {machines} machines lost with {lost} of {units} units: median {} ms, 99 % {} ms, \
         longest {} ms; {} requests, {} notices",
        at(50),
        at(99),
        at(100),
        after.others - before.others,
        after.notices - before.notices
    );
    assert!(lost > 0 && outages.len() >= lost);
    assert!(at(99) < 15_000, "{} ms", at(99));
}

#[test]
fn machines_that_lose_the_store_together_return_one_after_another() {
    const MACHINES: usize = 200;
    let now = At(Duration::from_secs(100));
    let returns = |number: usize| {
        let config = Config::new(format!("m{number}").into());
        let mut machine = Machine::new(config, now);
        let Some(Action::Ask(id, Ask::Grant { .. })) = machine.next_action() else {
            panic!("a machine first asks for a lease");
        };
        machine.answer(now, id, Answer::Unknown);
        assert_eq!(machine.next_action(), None);
        machine.wakes().0 - now.0
    };
    let times: Vec<Duration> = (0..MACHINES).map(returns).collect();
    // They return within 100 ms, each tenth of which has a tenth of the machines.
    let mut parts = [0; 10];
    for time in &times {
        let after = time.as_millis() as usize - 100;
        parts[after / 10] += 1;
    }
    assert!(
        parts.iter().all(|count| (5..40).contains(count)),
        "{parts:?}"
    );
}
