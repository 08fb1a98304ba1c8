//! Accepted and rejected values, and the wording of the errors.

use super::table::MB;
use super::*;

const MEMORY: u64 = 8 << 30;

fn set(name: &str, value: &str) -> Result<(Tunables, Settings), Error> {
    Tunables::default().with([(name, value)], MEMORY)
}

fn shown(name: &str, value: &str) -> String {
    let (tunables, _) = set(name, value).expect("is valid");
    let (_, value) = tunables
        .iter()
        .find(|(t, _)| t.text == name)
        .expect("is there");
    value.to_string()
}

#[test]
fn the_table_is_in_the_order_of_names_and_its_defaults_hold_everywhere() {
    for (n, tunable) in TUNABLES.iter().enumerate() {
        assert_eq!(tunable.name as usize, n);
    }
    for memory in [2 * MB, 64 * MB, 1 << 30, MEMORY, 1 << 46] {
        let settings = Tunables::default().resolve(memory).expect("defaults hold");
        assert!(settings.filecache_min <= settings.filecache_max);
    }
}

#[test]
fn defaults_are_those_of_hp_ux() {
    let settings = Tunables::default().resolve(MEMORY).expect("defaults hold");
    assert_eq!(settings.filecache_min, MEMORY / 20 / PAGE * PAGE);
    assert_eq!(settings.filecache_max, MEMORY / 2);
    assert_eq!(
        (settings.seqlimit_system, settings.seqlimit_file),
        (100, 100)
    );
    assert_eq!(settings.sync_interval_ms, 30_000);
    assert_eq!(
        settings.dirty_limit,
        settings.filecache_max / 5 / PAGE * PAGE
    );
}

#[test]
fn sizes_have_binary_units_and_are_rounded_down_to_a_page() {
    for (text, bytes) in [
        ("2000000", 1_998_848),
        ("3000K", 3_072_000),
        ("3000KB", 3_072_000),
        ("2M", 2_097_152),
        ("2MB", 2_097_152),
        ("2MiB", 2_097_152),
        ("1.5m", 1_572_864),
        ("1G", 1_073_741_824),
        ("1GB", 1_073_741_824),
    ] {
        let (_, settings) = set("filecache_max", text).unwrap_or_else(|_| {
            // Below the default of filecache_min.
            let both = [("filecache_min", "1MB"), ("filecache_max", text)];
            Tunables::default().with(both, MEMORY).expect(text)
        });
        assert_eq!(settings.filecache_max, bytes, "{text}");
    }
}

#[test]
fn what_is_shown_can_be_set_again() {
    for (name, given, text) in [
        ("filecache_max", "70%", "70%"),
        ("filecache_max", "2GB", "2GiB"),
        ("filecache_max", "default", "50%"),
        ("fcache_seqlimit_file", "5", "5%"),
        ("fcache_fb_policy", "2", "2"),
        ("read_ahead_max", "1MB", "1MiB"),
        ("read_ahead_max", "default", "2MiB"),
    ] {
        assert_eq!(shown(name, given), text);
        assert_eq!(shown(name, text), text);
    }
}

#[test]
fn refuses_what_is_no_value() {
    for (name, value) in [
        ("filecache_max", ""),
        ("filecache_max", "%"),
        ("filecache_max", "-5%"),
        ("filecache_max", "+5%"),
        ("filecache_max", "1.5"),
        ("filecache_max", "1XB"),
        ("filecache_max", "99999999999999999999"),
        ("filecache_max", "18446744073709551615GB"),
        ("read_ahead_max", "5%"),
        ("fcache_fb_policy", "1%"),
        ("sync_interval_ms", "30s"),
    ] {
        let error = set(name, value).expect_err(value);
        assert_eq!(error.kind, ErrorKind::Syntax, "{name}={value}");
    }
}

#[test]
fn refuses_what_is_out_of_bounds() {
    for (name, value) in [
        ("filecache_min", "71%"),
        ("filecache_max", "91%"),
        ("filecache_max", "0%"),
        ("filecache_min", "1000K"),
        ("filecache_max", "8GB"),
        ("fcache_seqlimit_system", "101"),
        ("fcache_fb_policy", "3"),
        ("sync_interval_ms", "9"),
        ("read_ahead_max", "65MB"),
    ] {
        let error = set(name, value).expect_err(value);
        assert_eq!(error.kind, ErrorKind::OutOfBounds, "{name}={value}");
    }
}

#[test]
fn the_bounds_themselves_are_allowed() {
    let both = [("filecache_min", "70%"), ("filecache_max", "90%")];
    assert!(Tunables::default().with(both, MEMORY).is_ok());
    let both = [("filecache_min", "1MB"), ("filecache_max", "1MB")];
    let (_, settings) = Tunables::default()
        .with(both, MEMORY)
        .expect("min = max is allowed");
    assert_eq!(settings.filecache_max, MB);
}

#[test]
fn settings_that_contradict_one_another_change_nothing_and_together_may_come_in_any_order() {
    let error = set("filecache_min", "60%").expect_err("above max");
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(
        set("dirty_limit", "5").expect_err("below background").kind,
        ErrorKind::Conflict
    );
    for both in [
        [("filecache_min", "60%"), ("filecache_max", "80%")],
        [("filecache_max", "80%"), ("filecache_min", "60%")],
    ] {
        assert!(Tunables::default().with(both, MEMORY).is_ok());
    }
}

#[test]
fn errors_say_what_why_and_what_to_do() {
    for (name, value, text) in [
        (
            "filecache_max",
            "1XB",
            "filecache_max=1XB: invalid value; expected 1% to 90% of memory, or a size such as 64M \
             or 1.5G, from 1MiB",
        ),
        (
            "filecache_min",
            "60%",
            "filecache_min=60%: 5033164KiB are more than filecache_max=50% (4GiB); lower \
             filecache_min or raise filecache_max, both in one command if need be",
        ),
        (
            "filecache_max",
            "8GB",
            "filecache_max=8GiB: 8GiB are more than 90% of the 8GiB of memory; give at most \
             7549744KiB or 90%",
        ),
    ] {
        assert_eq!(set(name, value).expect_err(value).to_string(), text);
    }
    let unknown = set("filecache_mx", "1").expect_err("is misspelt");
    assert_eq!(unknown.kind, ErrorKind::UnknownName);
    assert!(unknown.to_string().contains("filecache_max"));
}
