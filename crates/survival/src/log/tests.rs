//! Goal: a successor gets exactly the entries that the disk may lack, or an error, whatever the log
//! went through and at whatever store its server died.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const UUID: [u8; 16] = [7; 16];

fn payload(sequence: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (sequence as usize + i) as u8).collect()
}

/// Copies words into new memory, as a successor would see them.
fn copy_of(words: &[u64]) -> Memory {
    let memory = Memory::create("evfs-test", words.len()).unwrap();
    for (to, from) in memory.words().iter().zip(words) {
        to.store(*from, Relaxed);
    }
    memory
}

fn words_now(log: &Log) -> Vec<u64> {
    let words = log.memory().words().iter();
    words.map(|word| word.load(Relaxed)).collect()
}

fn adopted(words: &[u64]) -> Result<Vec<Entry>, Unusable> {
    Log::adopt(copy_of(words), UUID)?.entries()
}

/// Numbers of the entries that a successor sees.
fn seen(words: &[u64]) -> Result<Vec<u64>, Unusable> {
    let entries = adopted(words)?;
    for entry in &entries {
        let expected = payload(entry.sequence, entry.payload.len());
        assert_eq!(entry.payload, expected, "{}", entry.sequence);
    }
    Ok(entries.iter().map(|entry| entry.sequence).collect())
}

/// Returns the words as they are after each store between two states. A store that comes last in the
/// program comes last here: the words of the ring change before those of the header.
fn cuts(before: &[u64], after: &[u64], order: &[usize]) -> Vec<Vec<u64>> {
    let ring = HEADER_WORDS..before.len();
    let changed = ring.chain(order.iter().copied());
    let mut now = before.to_vec();
    let mut all = vec![now.clone()];
    for at in changed.filter(|at| before[*at] != after[*at]) {
        now[at] = after[at];
        all.push(now.clone());
    }
    assert_eq!(now, after, "every word that changed is in the order");
    all
}

#[test]
fn entries_come_back_with_their_requests_until_they_are_durable() {
    let log = Log::create(200, UUID).unwrap();
    let requests = crate::Requests::create().unwrap();
    assert!(log.append(1, b"one"));
    requests.begin(0, 42);
    assert!(log.append(2, &[]));
    requests.end();
    assert!(log.append(2, &payload(3, 500)));
    let entries = adopted(&words_now(&log)).unwrap();
    let numbers = entries.iter().map(|entry| (entry.sequence, entry.request));
    assert_eq!(numbers.collect::<Vec<_>>(), [(1, 0), (2, 42), (2, 0)]);
    assert_eq!(entries[0].payload, b"one");
    assert_eq!(entries[2].payload, payload(3, 500));
    log.durable(1);
    assert_eq!(log.entries().unwrap(), entries[1..]);
    log.durable(2);
    assert!(log.entries().unwrap().is_empty());
}

#[test]
fn a_change_without_room_breaks_the_log_until_the_disk_has_it() {
    let log = Log::create(HEADER_WORDS + 20, UUID).unwrap();
    assert!(log.append(1, &payload(1, 60)));
    assert!(log.has_room(40) && !log.has_room(60));
    assert!(!log.append(2, &payload(2, 60)));
    assert_eq!(seen(&words_now(&log)), Err(Unusable::Broken));
    assert!(
        !log.append(3, b""),
        "an entry after a missing one is no use"
    );
    log.durable(2);
    assert_eq!(seen(&words_now(&log)), Err(Unusable::Broken));
    assert!(log.is_short(2));
    log.durable(3);
    assert!(log.append(4, &payload(4, 60)) && !log.is_short(4));
    assert_eq!(seen(&words_now(&log)), Ok(vec![4]));
    log.lacks(5);
    assert_eq!(log.entries(), Err(Unusable::Broken));
    let heir = Log::adopt(copy_of(&words_now(&log)), UUID).unwrap();
    heir.durable(100);
    assert_eq!(heir.entries(), Err(Unusable::Broken));
    heir.reset();
    assert!(heir.append(6, &payload(6, 8)));
    assert_eq!(seen(&words_now(&heir)), Ok(vec![6]));
}

#[test]
fn an_heir_continues_the_log() {
    let log = Log::create(HEADER_WORDS + 40, UUID).unwrap();
    for sequence in 1..40 {
        assert!(log.append(sequence, &payload(sequence, 50)));
        log.durable(sequence - 1);
    }
    log.mark(Mark::Begun, 9);
    let heir = Log::adopt(copy_of(&words_now(&log)), UUID).unwrap();
    assert_eq!(heir.marked(Mark::Begun), Ok(9));
    assert_eq!(heir.marked(Mark::Committed), Ok(0));
    assert!(heir.append(40, &payload(40, 70)));
    assert_eq!(seen(&words_now(&heir)), Ok(vec![39, 40]));
    heir.durable(39);
    assert_eq!(seen(&words_now(&heir)), Ok(vec![40]));
}

#[test]
fn logs_of_other_file_systems_and_other_memory_are_refused() {
    let log = Log::create(100, UUID).unwrap();
    let other = Log::adopt(copy_of(&words_now(&log)), [8; 16]);
    assert_eq!(other.err(), Some(Unusable::Foreign));
    assert!(Log::adopt(Memory::create("evfs-test", 100).unwrap(), UUID).is_err());
    assert!(Log::adopt(copy_of(&words_now(&log)[..99]), UUID).is_err());
    assert!(Log::create(HEADER_WORDS, UUID).is_err());
}

/// Every store of a history with full laps of the ring, changes without room, and repairs.
#[test]
fn a_death_after_any_store_leaves_the_entries_before_or_after() {
    let log = Log::create(HEADER_WORDS + 37, UUID).unwrap();
    let mut expected: VecDeque<u64> = VecDeque::new();
    let mut missing = None;
    let fields = |all: &[Field]| all.iter().map(|f| *f as usize).collect::<Vec<_>>();
    let (mut stores, mut broken) = (0, 0);
    for sequence in 1..300_u64 {
        let before = words_now(&log);
        let old: Vec<u64> = expected.iter().copied().collect();
        let was_broken = missing.is_some();
        if log.append(sequence, &payload(sequence, (sequence % 9 * 11) as usize)) {
            expected.push_back(sequence);
        } else {
            missing = Some(sequence);
            broken += 1;
        }
        let order = fields(&[Field::End, Field::Broken]);
        let after_append: Vec<u64> = expected.iter().copied().collect();
        for words in cuts(&before, &words_now(&log), &order) {
            let answer = seen(&words);
            stores += 1;
            let fits = match &answer {
                Ok(now) => !was_broken && (*now == old || *now == after_append),
                Err(error) => *error == Unusable::Broken && missing.is_some(),
            };
            assert!(fits, "change {sequence}: {answer:?} of {after_append:?}");
        }
        if sequence % 4 != 0 {
            continue;
        }
        let durable = sequence - sequence % 3;
        let before = words_now(&log);
        log.durable(durable);
        let was_broken = missing.is_some();
        if missing.is_none_or(|missing| missing <= durable) {
            missing = None;
        }
        expected.retain(|one| *one > durable);
        let now_expected: Vec<u64> = expected.iter().copied().collect();
        for words in cuts(
            &before,
            &words_now(&log),
            &fields(&[Field::Start, Field::Broken]),
        ) {
            let answer = seen(&words);
            stores += 1;
            let fits = match &answer {
                Ok(now) => missing.is_none() && (*now == after_append || *now == now_expected),
                Err(error) => *error == Unusable::Broken && was_broken,
            };
            assert!(fits, "durable {durable}: {answer:?} of {now_expected:?}");
        }
    }
    assert!(stores > 1500 && broken > 5, "{stores} {broken}");
}

/// A log with several entries that wrap around.
fn wrapped() -> Log {
    let log = Log::create(HEADER_WORDS + 60, UUID).unwrap();
    for sequence in 1..50 {
        assert!(log.append(sequence, &payload(sequence, 70)));
        log.durable(sequence.saturating_sub(3));
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn flipped_bits_are_an_error_or_change_nothing(
        flips in prop::collection::vec((0_usize..HEADER_WORDS + 60, 0_u32..64), 1..4)
    ) {
        let log = wrapped();
        let mut words = words_now(&log);
        for (word, bit) in &flips {
            words[*word] ^= 1 << bit;
        }
        if let Ok(entries) = adopted(&words) {
            prop_assert_eq!(entries, log.entries().unwrap());
        }
    }

    #[test]
    fn any_words_are_an_error_or_a_log_that_can_be_used(
        words in prop::collection::vec(any::<u64>(), HEADER_WORDS + 60),
        header in 0_usize..=HEADER_WORDS,
        lengths in prop::collection::vec(any::<u8>(), 60),
    ) {
        let mut all = words_now(&wrapped());
        all[header..].copy_from_slice(&words[header..]);
        // Short lengths, so that the walk gets somewhere.
        for (word, len) in all[HEADER_WORDS..].iter_mut().zip(lengths) {
            *word = *word >> 32 << 32 | u64::from(len);
        }
        if let Ok(log) = Log::adopt(copy_of(&all), UUID) {
            prop_assert!(log.entries().is_err());
            log.durable(30);
            log.append(60, &[1; 20]);
            log.durable(60);
            log.reset();
            prop_assert!(log.append(61, &[1; 20]) && log.entries().unwrap().len() == 1);
        }
    }
}
