//! When a candidate that others come before claims a unit.

use cluster_proto::{Action, Answer, Ask, At, Config, Machine, Name, Notice, Record};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(50);

fn at(step: u32) -> At {
    At(STEP * step)
}

/// Returns the step in which the last of `count` machines claims a unit that the others leave, if
/// `disturb` is called in each step.
fn claims(count: usize, mut disturb: impl FnMut(&mut Machine, At, u32)) -> Option<u32> {
    let names: Vec<Name> = (0..count).map(|m| format!("m{m}").into()).collect();
    let own = Name::clone(&names[count - 1]);
    let mut machine = Machine::new(Config::new(own), at(0));
    for step in 0..200 {
        machine.tick(at(step));
        disturb(&mut machine, at(step), step);
        while let Some(action) = machine.next_action() {
            let Action::Ask(id, ask) = action else {
                continue;
            };
            let answer = match ask {
                Ask::Grant { ttl } => Answer::Granted { lease: 1, ttl },
                Ask::Load => {
                    let alive = names.iter().zip((1..=count as u64).rev());
                    let alive = alive.map(|(name, lease)| Notice::Machine {
                        name: Name::clone(name),
                        lease,
                    });
                    let unit = Notice::Unit {
                        unit: "u".into(),
                        record: Record::new(names.clone()),
                        revision: 1,
                    };
                    Answer::Loaded(alive.chain([unit]).collect())
                }
                Ask::Change { .. } => return Some(step),
                _ => Answer::Done,
            };
            machine.answer(at(step), id, answer);
        }
    }
    None
}

#[test]
fn the_last_candidate_waits_for_the_others_but_not_for_all_of_many() {
    // 300 ms for each.
    for (count, waits) in [(1, 1), (3, 12), (9, 48), (500, 60)] {
        assert_eq!(claims(count, |_, _, _| {}), Some(waits));
    }
}

#[test]
fn news_that_change_nothing_do_not_delay_it() {
    let disturbed = claims(9, |machine, now, step| {
        if step % 10 == 0 {
            machine.drain(now, false);
        }
    });
    assert_eq!(disturbed, Some(48));
}

#[test]
fn a_machine_that_is_drained_claims_nothing_until_it_is_not() {
    let drained = claims(2, |machine, now, step| machine.drain(now, step < 100));
    assert_eq!(drained, Some(106));
}
