//! `dhrystone`, modeled on Weicker's Dhrystone 2.1 (1988): a loop of assignments, comparisons,
//! calls and strings whose result is known. It measures a CPU and its compiler, not storage; it is
//! included because the reports of 1990 and 2006 state it for their machines.
//!
//! Weicker's rules are observed: procedures are not merged into their callers, at least two seconds
//! are measured, and the final values are checked. His two compilation units become
//! `#[inline(never)]` functions, and inputs pass through `black_box`; pointers are indexes into a
//! table of two records. Results of this version compare with one another, not with those of a C
//! compiler.

use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Dhrystones per second of a VAX 11/780, which counts as one MIPS.
pub const VAX: f64 = 1757.0;

type Text = [u8; 30];
const SOME: &Text = b"DHRYSTONE PROGRAM, SOME STRING";
const FIRST: &Text = b"DHRYSTONE PROGRAM, 1'ST STRING";
const SECOND: &Text = b"DHRYSTONE PROGRAM, 2'ND STRING";
const THIRD: &Text = b"DHRYSTONE PROGRAM, 3'RD STRING";

/// Duration of the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Minimum duration in milliseconds; Weicker requires at least 2,000.
    pub millis: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config { millis: 2000 }
    }
}

/// Result of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DhrystoneResult {
    /// Iterations of the loop.
    pub runs: u64,
    /// Duration in seconds.
    pub secs: f64,
}

impl DhrystoneResult {
    /// Returns iterations per second.
    pub fn per_sec(&self) -> f64 {
        self.runs as f64 / self.secs
    }

    /// Returns the speed relative to a VAX 11/780.
    pub fn mips(&self) -> f64 {
        self.per_sec() / VAX
    }
}

/// Repeats the loop with more iterations until one measurement lasts long enough.
///
/// # Errors
/// [`Error::Program`] if a final value is wrong, which means that the compiler or the CPU is
/// broken.
pub fn run(config: &Config) -> Result<DhrystoneResult> {
    let enough = Duration::from_millis(config.millis);
    let mut runs = 50_000_i32;
    loop {
        let (state, last, took) = turn(runs);
        check(&state, &last, runs)?;
        if took >= enough || runs == i32::MAX {
            return Ok(DhrystoneResult {
                runs: runs as u64,
                secs: took.as_secs_f64(),
            });
        }
        let factor = 1.2 * enough.as_secs_f64() / took.as_secs_f64().max(1e-9);
        runs = (f64::from(runs) * factor.clamp(1.2, 16.0)) as i32;
    }
}

/// The original has a fifth value, which its loop never uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ident {
    One,
    Two,
    Three,
    Four,
}

/// A record of the original's linked list; `next` is an index into [`State::records`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct Record {
    next: usize,
    discriminant: Ident,
    ident: Ident,
    int: i32,
    text: Text,
}

/// The original's global variables.
struct State {
    records: [Record; 2],
    /// Index of the record that the original's global pointer refers to.
    head: usize,
    int: i32,
    flag: bool,
    char_1: u8,
    char_2: u8,
    array_1: [i32; 50],
    array_2: Box<[[i32; 50]; 50]>,
}

/// The local variables of the loop at its end.
struct Last {
    int_1: i32,
    int_2: i32,
    int_3: i32,
    ident: Ident,
    text_1: Text,
    text_2: Text,
}

impl State {
    fn new() -> State {
        let blank = Record {
            next: 0,
            discriminant: Ident::One,
            ident: Ident::One,
            int: 0,
            text: [0; 30],
        };
        let head = Record {
            next: 0,
            discriminant: Ident::One,
            ident: Ident::Three,
            int: 40,
            text: *SOME,
        };
        let mut array_2 = Box::new([[0; 50]; 50]);
        array_2[8][7] = 10;
        State {
            records: [blank, head],
            head: 1,
            int: 0,
            flag: false,
            char_1: 0,
            char_2: 0,
            array_1: [0; 50],
            array_2,
        }
    }
}

#[inline(never)]
fn turn(runs: i32) -> (State, Last, Duration) {
    let mut state = State::new();
    let s = black_box(&mut state);
    let (mut int_1, mut int_2, mut int_3) = (0, 0, 0);
    let mut ident = Ident::One;
    let text_1 = *black_box(FIRST);
    let mut text_2 = [0; 30];
    let began = Instant::now();
    for run in 1..=black_box(runs) {
        procedure_5(s);
        procedure_4(s);
        int_1 = 2;
        int_2 = 3;
        text_2 = *black_box(SECOND);
        ident = Ident::Two;
        s.flag = !function_2(s, &text_1, &text_2);
        while int_1 < int_2 {
            int_3 = 5 * int_1 - int_2;
            procedure_7(int_1, int_2, &mut int_3);
            int_1 += 1;
        }
        procedure_8(s, int_1, int_3);
        procedure_1(s, s.head);
        for letter in b'A'..=s.char_2 {
            if ident == function_1(s, letter, b'C') {
                procedure_6(s, Ident::One, &mut ident);
                text_2 = *black_box(THIRD);
                int_2 = run;
                s.int = run;
            }
        }
        int_2 *= int_1;
        int_1 = int_2 / int_3;
        int_2 = 7 * (int_2 - int_3) - int_1;
        procedure_2(s, &mut int_1);
    }
    let took = began.elapsed();
    let last = Last {
        int_1,
        int_2,
        int_3,
        ident,
        text_1,
        text_2,
    };
    (state, black_box(last), took)
}

#[inline(never)]
fn procedure_1(s: &mut State, at: usize) {
    let next = s.records[at].next;
    s.records[next] = s.records[s.head];
    s.records[at].int = 5;
    s.records[next].int = s.records[at].int;
    s.records[next].next = s.records[at].next;
    let mut found = s.records[next].next;
    procedure_3(s, &mut found);
    s.records[next].next = found;
    if s.records[next].discriminant == Ident::One {
        s.records[next].int = 6;
        let mut ident = s.records[next].ident;
        procedure_6(s, s.records[at].ident, &mut ident);
        s.records[next].ident = ident;
        s.records[next].next = s.records[s.head].next;
        let mut int = s.records[next].int;
        procedure_7(int, 10, &mut int);
        s.records[next].int = int;
    } else {
        s.records[at] = s.records[next];
    }
}

#[inline(never)]
fn procedure_2(s: &State, int: &mut i32) {
    let mut local = *int + 10;
    loop {
        if s.char_1 == b'A' {
            local -= 1;
            *int = local - s.int;
            return;
        }
    }
}

#[inline(never)]
fn procedure_3(s: &mut State, to: &mut usize) {
    *to = s.records[s.head].next;
    let mut int = 0;
    procedure_7(10, s.int, &mut int);
    s.records[s.head].int = int;
}

#[inline(never)]
fn procedure_4(s: &mut State) {
    s.flag |= s.char_1 == b'A';
    s.char_2 = b'B';
}

#[inline(never)]
fn procedure_5(s: &mut State) {
    s.char_1 = b'A';
    s.flag = false;
}

#[inline(never)]
fn procedure_6(s: &State, from: Ident, to: &mut Ident) {
    *to = if function_3(from) { from } else { Ident::Four };
    match from {
        Ident::One => *to = Ident::One,
        Ident::Two if s.int > 100 => *to = Ident::One,
        Ident::Two => *to = Ident::Four,
        Ident::Three => *to = Ident::Two,
        Ident::Four => {}
    }
}

#[inline(never)]
fn procedure_7(a: i32, b: i32, out: &mut i32) {
    *out = b + (a + 2);
}

#[inline(never)]
fn procedure_8(s: &mut State, a: i32, b: i32) {
    let at = (a + 5) as usize;
    s.array_1[at] = b;
    s.array_1[at + 1] = s.array_1[at];
    s.array_1[at + 30] = at as i32;
    for column in at..=at + 1 {
        s.array_2[at][column] = at as i32;
    }
    s.array_2[at][at - 1] += 1;
    s.array_2[at + 20][at] = s.array_1[at];
    s.int = 5;
}

#[inline(never)]
fn function_1(s: &mut State, a: u8, b: u8) -> Ident {
    let copy = black_box(a);
    if copy != b {
        return Ident::One;
    }
    s.char_1 = copy;
    Ident::Two
}

#[inline(never)]
fn function_2(s: &mut State, a: &Text, b: &Text) -> bool {
    let mut at = 2;
    let mut letter = 0;
    while at <= 2 {
        if function_1(s, a[at], b[at + 1]) == Ident::One {
            letter = b'A';
            at += 1;
        }
    }
    if (b'W'..b'Z').contains(&letter) {
        at = 7;
    }
    if letter == b'R' {
        return true;
    }
    if a > b {
        s.int = at as i32 + 7;
        return true;
    }
    false
}

#[inline(never)]
fn function_3(ident: Ident) -> bool {
    let copy = black_box(ident);
    copy == Ident::Three
}

/// Checks the values that the original prints at its end.
fn check(s: &State, last: &Last, runs: i32) -> Result<()> {
    let (head, next) = (&s.records[1], &s.records[0]);
    let right = [
        ("the global integer", s.int == 5),
        ("the flag", s.flag),
        ("the letters", (s.char_1, s.char_2) == (b'A', b'B')),
        ("the first array", s.array_1[8] == 7),
        ("the second array", s.array_2[8][7] == runs + 10),
        (
            "the first record",
            head.next == 0
                && (head.discriminant, head.ident, head.int) == (Ident::One, Ident::Three, 17)
                && head.text == *SOME,
        ),
        (
            "the second record",
            next.next == 0
                && (next.discriminant, next.ident, next.int) == (Ident::One, Ident::Two, 18)
                && next.text == *SOME,
        ),
        (
            "the local integers",
            (last.int_1, last.int_2, last.int_3) == (5, 13, 7),
        ),
        ("the local identifier", last.ident == Ident::Two),
        (
            "the strings",
            last.text_1 == *FIRST && last.text_2 == *SECOND,
        ),
    ];
    match right.iter().find(|(_, right)| !right) {
        None => Ok(()),
        Some((what, _)) => Err(Error::Program {
            what: "dhrystone".into(),
            detail: format!("wrong value of {what} after {runs} iterations"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_values_are_those_of_the_original() {
        for runs in [1, 2, 100, 12_345] {
            let (state, last, _) = turn(runs);
            check(&state, &last, runs).unwrap();
        }
        let (mut state, last, _) = turn(10);
        state.array_2[8][7] += 1;
        let wrong = check(&state, &last, 10).unwrap_err().to_string();
        assert!(wrong.contains("the second array"), "{wrong}");
    }

    #[test]
    fn the_loop_is_turned_as_long_as_was_asked() {
        let outcome = run(&Config { millis: 50 }).unwrap();
        assert!(
            outcome.secs >= 0.05 && outcome.runs >= 50_000,
            "{outcome:?}"
        );
    }
}
