//! The claims behind the choice of the default policy, on the traces of `examples/policy_table.rs`
//! at an eighth of the size. The traces are exact: a figure here changes only when a policy does.

mod traces;

use std::sync::OnceLock;
use traces::{Hot, Rival, Row, row};

const FRAMES: usize = 8_192;
const HOT_PAGES: usize = 25_000;

/// Returns the row of a policy, which is measured once.
fn row_of(rival: Rival) -> Row {
    static ROWS: [OnceLock<Row>; Rival::ALL.len()] = [const { OnceLock::new() }; Rival::ALL.len()];
    let number = Rival::ALL.iter().position(|r| *r == rival);
    *ROWS[number.expect("it is one of all")]
        .get_or_init(|| row(rival, FRAMES, &Hot::new(HOT_PAGES)))
}

fn at_least(what: &str, is: f64, bound: f64) {
    assert!(is >= bound, "{what}: {is:.1} is less than {bound:.1}");
}

#[test]
fn the_hot_set_alone_does_no_worse_than_under_any_rival() {
    let ours = row_of(Rival::Ufc).hot_alone;
    for rival in [Rival::Lru, Rival::Clock] {
        at_least(rival.name(), ours, row_of(rival).hot_alone);
    }
}

#[test]
fn a_scan_does_not_wipe_the_hot_set() {
    let ours = row_of(Rival::Ufc);
    at_least("scan", ours.scan, ours.hot_alone - 2.0);
    at_least(
        "scan in small records",
        ours.scan_4_refs,
        ours.hot_alone - 2.0,
    );
    at_least("against LRU", ours.scan, row_of(Rival::Lru).scan + 10.0);
    at_least(
        "against CLOCK",
        ours.scan_4_refs,
        row_of(Rival::Clock).scan_4_refs + 8.0,
    );
    at_least(
        "against stealback",
        ours.scan,
        row_of(Rival::LruStealback).scan + 3.0,
    );
}

#[test]
fn what_is_written_and_read_back_is_kept() {
    let (ours, lru) = (row_of(Rival::Ufc), row_of(Rival::Lru));
    at_least("reads of the file", ours.temp, 85.0);
    at_least("the hot set beside it", ours.temp_hot, lru.temp_hot + 5.0);
    // The cost of stealback as documented, and of taking clean pages only.
    assert!(row_of(Rival::LruStealback).temp < 5.0);
    at_least("clean only", row_of(Rival::LruStealbackBehind).temp, 95.0);
}

#[test]
fn a_flood_of_writes_does_not_wipe_the_hot_set() {
    let ours = row_of(Rival::Ufc);
    at_least("during", ours.flood, ours.hot_alone - 2.0);
    at_least("after", ours.after_flood, ours.hot_alone - 2.0);
    at_least("against LRU", ours.flood, row_of(Rival::Lru).flood + 10.0);
}

#[test]
fn a_loop_longer_than_the_cache_hits_in_part() {
    let ours = row_of(Rival::Ufc);
    at_least("into an empty cache", ours.loop_cold, 60.0);
    at_least("into a cache full of others", ours.loop_warm, 60.0);
    for rival in [Rival::Lru, Rival::Clock] {
        assert!(row_of(rival).loop_cold < 1.0);
    }
}

#[test]
fn four_looks_at_a_cold_page_do_not_make_it_hot() {
    let ours = row_of(Rival::Ufc);
    at_least("beside", ours.random_cold, ours.hot_alone - 2.0);
    at_least(
        "against LRU",
        ours.random_cold,
        row_of(Rival::Lru).random_cold + 7.0,
    );
}

#[test]
fn limits_beside_the_default_policy_change_no_more_than_they_say() {
    let (ours, limited) = (row_of(Rival::Ufc), row_of(Rival::UfcStealbackBehind));
    at_least("scan", limited.scan, ours.scan - 1.0);
    at_least("temporary file", limited.temp, ours.temp - 1.0);
    // A file limited to 5 % of the cache cannot keep a loop of 125 %.
    assert!(limited.loop_cold < 10.0);
}
