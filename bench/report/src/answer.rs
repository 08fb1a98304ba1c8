//! The answer of a report: one sentence for its top, and the rows of the table beneath it.
//!
//! ```text
//!   studies ──► Compared, one per side and kind of figure ──┬─► sentence
//!                                                           └─► rows of the first table
//! ```
//!
//! **Invariant:** each percentage in the sentence is also in the table, because both format the
//! same ratio. The ratio has the direction of the figures: if all of them are times, it is a ratio
//! of times.

use crate::label::{readable, title};
use crate::notes::notes;
use crate::suite::Shown;
use bench_core::figures::{change, change_interval, number};
use bench_core::record::Better;
use bench_core::{Interval, Ratio};
use bench_study::{Aggregate, Finding, Judgement, Kind, Study, findings};

/// Maximum number of comparisons that the sentence describes one by one.
const EACH: usize = 4;
/// Maximum number of cautions at the top of a report.
const CAUTIONS: usize = 3;
/// Beginnings of the notes that a reader must see before any figure.
const GRAVE: [&str; 4] = ["INCOMPLETE", "DEBUG BUILD", "NOT COMPARABLE", "EMULATED"];

/// All figures of one kind of one side, compared with those of the first side.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Compared {
    study: String,
    base: String,
    side: String,
    kind: Kind,
    /// Whether a smaller value is better for every figure.
    costs: bool,
    figures: usize,
    /// Ratio side / first in the direction of the figures; the geometric mean if there are several.
    ratio: Option<Ratio>,
    judgement: Judgement,
    /// Relative difference that does not matter.
    theta: f64,
    counts: Vec<(Judgement, usize)>,
}

/// Compares each further side of a study with the first: its headline figures, then its CPU.
pub(crate) fn compared(study: &Study, found: &[Finding], means: &[Aggregate]) -> Vec<Compared> {
    let base = study.sides.first().map_or("", |side| side.name.as_str());
    let one = |mean: &Aggregate| {
        let mut own = found
            .iter()
            .filter(|f| f.kind == mean.kind && f.side == mean.side)
            .peekable();
        let costs = own.peek().is_some() && own.all(|f| f.better == Better::Lower);
        Compared {
            study: study.key(),
            base: base.to_owned(),
            side: mean.side.clone(),
            kind: mean.kind,
            costs,
            figures: mean.cells,
            ratio: mean
                .gain
                .map(|gain| if costs { inverted(gain) } else { gain }),
            judgement: mean.judgement,
            theta: study.plan.theta,
            counts: mean.counts.clone(),
        }
    };
    means.iter().map(one).collect()
}

/// Turns a gain into the ratio of values that improve as they fall, or back.
fn inverted(r: Ratio) -> Ratio {
    let turned = |i: Interval| Interval {
        low: 1.0 / i.high,
        high: 1.0 / i.low,
        ..i
    };
    Ratio {
        median: 1.0 / r.median,
        min: 1.0 / r.max,
        max: 1.0 / r.min,
        interval: r.interval.map(turned),
        ..r
    }
}

impl Compared {
    /// Describes the speed of the side: a clause whose subject is the side.
    fn speed(&self) -> String {
        let (side, base) = (&self.side, &self.base);
        let Some(r) = &self.ratio else {
            return format!("{side} and {base} have no figure to compare");
        };
        let between = self.between(r);
        match self.judgement {
            Judgement::Better | Judgement::Worse => {
                format!("{side} {} ({between})", self.differs("is", "takes", r))
            }
            Judgement::Same => format!(
                "{side} is as fast as {base} within {} ({between})",
                self.threshold()
            ),
            Judgement::Noise => format!(
                "{side} does not differ from {base} by more than the noise of this machine \
                 ({between})"
            ),
            Judgement::Undecided => {
                format!("it is undecided whether {side} differs from {base} ({between})")
            }
            Judgement::NoInterval => format!(
                "{side} {}, with too few pairs for an interval ({})",
                self.differs("was", "took", r),
                r.n
            ),
        }
    }

    /// Describes the CPU of the side: a clause without a subject; `None` if there is nothing to
    /// compare.
    fn cpu(&self) -> Option<String> {
        let r = self.ratio.as_ref()?;
        let between = self.between(r);
        let (size, more) = (unsigned(r.median), more(r));
        Some(match self.judgement {
            Judgement::Better | Judgement::Worse => {
                format!("uses {size} {more} CPU for the same work ({between})")
            }
            Judgement::Same => format!(
                "uses as much CPU for the same work within {} ({between})",
                self.threshold()
            ),
            Judgement::Noise => {
                format!("uses as much CPU for the same work, as far as the noise shows ({between})")
            }
            Judgement::Undecided => {
                format!("it is undecided whether its CPU for the same work differs ({between})")
            }
            Judgement::NoInterval => format!("used {size} {more} CPU for the same work"),
        })
    }

    /// Describes a difference from the first side: rates are faster or slower, times more or less.
    fn differs(&self, rate: &str, time: &str, r: &Ratio) -> String {
        let (size, base) = (unsigned(r.median), &self.base);
        match (self.costs, r.median < 1.0) {
            (true, _) => format!("{time} {size} {} time than {base}", more(r)),
            (false, true) => format!("{rate} {size} slower than {base}"),
            (false, false) => format!("{rate} {size} faster than {base}"),
        }
    }

    /// Formats the interval: sizes if the words before it state the direction, else changes.
    fn between(&self, r: &Ratio) -> String {
        let Some(i) = r.interval else {
            return "no interval".into();
        };
        if matches!(self.judgement, Judgement::Better | Judgement::Worse) {
            let (near, far) = if r.median < 1.0 {
                (i.high, i.low)
            } else {
                (i.low, i.high)
            };
            format!("95 % interval {} to {}", unsigned(near), unsigned(far))
        } else {
            format!("{}, 95 % interval {}", change(r.median), change_interval(r))
        }
    }

    fn threshold(&self) -> String {
        format!("{} %", number_of(self.theta * 100.0))
    }

    /// Returns the cells of the row in the first table, in the order of [`HEAD`].
    pub(crate) fn cells(&self) -> Vec<String> {
        let what = match (self.kind, self.costs) {
            (Kind::Cpu, _) => "CPU for the same work",
            (_, true) => "time",
            (_, false) => "speed",
        };
        let verdict = match self.judgement {
            Judgement::Same => format!("no difference (within {})", self.threshold()),
            other => other.name().to_owned(),
        };
        let several = match self.figures {
            0 | 1 => self.figures.to_string(),
            n => format!("mean of {n}"),
        };
        let dash = || "-".to_owned();
        vec![
            format!("{}: {} against {}", self.study, self.side, self.base),
            what.to_owned(),
            several,
            self.ratio.map_or_else(dash, |r| change(r.median)),
            self.ratio.map_or_else(dash, |r| change_interval(&r)),
            verdict,
            self.each(),
        ]
    }

    /// Lists the number of figures per judgement.
    fn each(&self) -> String {
        let one = |(judgement, n): &(Judgement, usize)| format!("{n} {}", judgement.name());
        let all: Vec<String> = self.counts.iter().map(one).collect();
        all.join(", ")
    }
}

/// Column headers of the first table.
pub(crate) const HEAD: [&str; 7] = [
    "comparison",
    "what",
    "figures",
    "change",
    "95 % interval",
    "verdict",
    "each figure",
];

/// Formats the size of a change without its sign.
fn unsigned(ratio: f64) -> String {
    change(ratio).trim_start_matches(['+', '-']).to_owned()
}

fn more(r: &Ratio) -> &'static str {
    if r.median < 1.0 { "less" } else { "more" }
}

/// Formats a threshold in percent, which has no decimals unless it was given with some.
fn number_of(percent: f64) -> String {
    let rounded = (percent * 100.0).round() / 100.0;
    rounded.to_string()
}

/// Describes each further side of a study in one line.
pub(crate) fn lines(study: &Study, found: &[Finding], means: &[Aggregate]) -> Vec<String> {
    let all = compared(study, found, means);
    let one = |pair: &[Compared]| {
        let counts: Vec<String> = pair
            .iter()
            .filter(|c| c.figures > 1)
            .map(|c| match c.kind {
                Kind::Cpu => format!("their CPU: {}", c.each()),
                _ => format!("{} figures: {}", c.figures, c.each()),
            })
            .collect();
        let counts = match counts.len() {
            0 => String::new(),
            _ => format!(" ({})", counts.join("; ")),
        };
        format!("{}{counts}.", clause(pair))
    };
    by_side(&all).map(one).collect()
}

/// Splits comparisons into those of one side of one study.
fn by_side(all: &[Compared]) -> impl Iterator<Item = &[Compared]> {
    all.chunk_by(|a, b| a.side == b.side && a.study == b.study)
}

/// Joins the speed and the CPU of a side.
fn clause(pair: &[Compared]) -> String {
    let speed = pair.iter().find(|c| c.kind != Kind::Cpu);
    let cpu = pair.iter().find(|c| c.kind == Kind::Cpu);
    let speed = speed.map(Compared::speed).unwrap_or_default();
    match cpu.and_then(Compared::cpu) {
        Some(cpu) => format!("{speed} and {cpu}"),
        None => speed,
    }
}

/// Answers the question of a report in one sentence.
pub(crate) fn sentence(studies: &[Study], suites: &[Shown]) -> String {
    let alone = || studies.iter().filter(|study| study.plan.part.is_none());
    let mut parts: Vec<String> = suites.iter().map(of_suite).collect();
    let all: Vec<Compared> = alone()
        .filter(|study| study.sides.len() > 1)
        .flat_map(|study| {
            let (found, means) = findings(study);
            compared(study, &found, &means)
        })
        .collect();
    let sides: Vec<&[Compared]> = by_side(&all).collect();
    let several = alone().count() + suites.len() > 1;
    if sides.len() <= EACH {
        parts.extend(sides.iter().map(|pair| {
            let name = pair.first().map_or("", |c| c.study.as_str());
            let said = clause(pair);
            if several {
                format!("{name}: {said}")
            } else {
                said
            }
        }));
    } else {
        parts.push(counted(&sides));
    }
    parts.extend(of_single(alone().filter(|study| study.sides.len() == 1)));
    match parts.len() {
        0 => "Nothing was measured.".into(),
        _ => parts.join("; ") + ".",
    }
}

/// Counts comparisons by the judgement of their speed.
fn counted(sides: &[&[Compared]]) -> String {
    let of = |pair: &&[Compared]| Some(pair.iter().find(|c| c.kind != Kind::Cpu)?.judgement);
    let judged: Vec<Judgement> = sides.iter().filter_map(of).collect();
    let words = [
        (Judgement::Worse, "slower"),
        (Judgement::Better, "faster"),
        (Judgement::Same, "no different"),
        (Judgement::Noise, "within the noise of this machine"),
        (Judgement::Undecided, "undecided"),
        (Judgement::NoInterval, "measured in too few pairs"),
    ];
    let counts: Vec<String> = words
        .iter()
        .map(|(wanted, words)| (judged.iter().filter(|j| *j == wanted).count(), words))
        .filter(|(n, _)| *n > 0)
        .map(|(n, words)| format!("{words} in {n}"))
        .collect();
    format!(
        "In {} comparisons, the other side is {}",
        sides.len(),
        counts.join(", ")
    )
}

/// Number of measured lines of a suite, and of those that changed as published.
pub(crate) struct SuiteCounts {
    pub(crate) lines: usize,
    pub(crate) measured: usize,
    pub(crate) published: usize,
    pub(crate) alike: usize,
}

impl SuiteCounts {
    pub(crate) fn of(shown: &Shown) -> SuiteCounts {
        let changes: Vec<(f64, f64)> = shown
            .lines
            .iter()
            .filter_map(|line| Some((line.published_change?, line.measured.as_ref()?.change)))
            .collect();
        let alike = |(there, here): &&(f64, f64)| (*there < 0.0) == (*here < 0.0);
        SuiteCounts {
            lines: shown.lines.len(),
            measured: shown.lines.iter().filter(|l| l.measured.is_some()).count(),
            published: changes.len(),
            alike: changes.iter().filter(alike).count(),
        }
    }
}

fn of_suite(shown: &Shown) -> String {
    let counts = SuiteCounts::of(shown);
    let measured = format!(
        "{}: {} of {} lines of the published report were measured",
        shown.suite, counts.measured, counts.lines
    );
    match counts.published {
        0 => measured,
        of => format!(
            "{measured}, and {} of the {of} with a published change changed in the same direction",
            counts.alike
        ),
    }
}

/// Describes studies of a single side by their first figure.
fn of_single<'a>(studies: impl Iterator<Item = &'a Study>) -> Vec<String> {
    let one = |study: &Study| {
        let (found, _) = findings(study);
        let first = found.first().filter(|f| f.value.is_finite())?;
        let runs = study.runs.first()?.iter().filter(|run| !run.warm_up);
        let what = match found.iter().filter(|f| f.kind == Kind::Headline).count() {
            1 => String::new(),
            _ => format!(" for {}", readable(&first.phase)),
        };
        Some(format!(
            "{} reached {} {}{what} (median of {} runs, nothing was compared)",
            title(study),
            number(first.value),
            first.unit,
            runs.count()
        ))
    };
    let all: Vec<String> = studies.filter_map(one).collect();
    match all.len() {
        n if n > EACH => vec![format!(
            "{n} workloads were measured on one side each, and nothing was compared"
        )],
        _ => all,
    }
}

/// Returns the rows of single-sided studies: workload, phase, figure, median, unit, runs.
pub(crate) fn single_rows(studies: &[Study]) -> Vec<Vec<String>> {
    let alone = |study: &&Study| study.plan.part.is_none() && study.sides.len() == 1;
    let of = |study: &Study| {
        let counted = study.runs.first().into_iter().flatten();
        let runs = counted.filter(|run| !run.warm_up).count();
        let (found, _) = findings(study);
        let headlines = found.into_iter().filter(|f| f.kind == Kind::Headline);
        let row = |f: Finding| {
            vec![
                study.key(),
                readable(&f.phase),
                readable(&f.cell),
                number(f.value),
                f.unit,
                runs.to_string(),
            ]
        };
        headlines.map(row).collect::<Vec<_>>()
    };
    studies.iter().filter(alone).flat_map(of).collect()
}

/// Lists when and on which machines the studies were measured, one line per machine.
pub(crate) fn facts(studies: &[Study]) -> Vec<String> {
    let mut machines: Vec<(String, String, String)> = Vec::new();
    let mut sessions: Vec<_> = studies.iter().flat_map(|study| &study.sessions).collect();
    sessions.sort_by_key(|session| session.unix_time);
    for session in sessions {
        let (line, at) = (session.line(), session.started());
        match machines.iter_mut().find(|(known, ..)| *known == line) {
            Some((_, _, last)) => *last = at,
            None => machines.push((line, at.clone(), at)),
        }
    }
    let one = |(line, first, last): (String, String, String)| {
        if first == last {
            format!("Measured {first} on {line}")
        } else {
            format!("Measured from {first} to {last} on {line}")
        }
    };
    machines.into_iter().map(one).collect()
}

/// Lists the notes that a reader must see before any figure, each with the name of its study.
pub(crate) fn cautions(studies: &[Study]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for study in studies {
        let (found, _) = findings(study);
        let grave = |note: &String| GRAVE.iter().any(|begin| note.starts_with(begin));
        for note in notes(study, &found).into_iter().filter(grave) {
            let said = match studies.len() {
                1 => note,
                _ => format!("{}: {note}", study.key()),
            };
            all.push(said);
        }
    }
    let further = all.len().saturating_sub(CAUTIONS);
    all.truncate(CAUTIONS);
    if further > 0 {
        all.push(format!(
            "{further} further cautions are in the notes of the studies"
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comparison of one kind with an interval.
    fn of(
        kind: Kind,
        costs: bool,
        judgement: Judgement,
        [low, median, high]: [f64; 3],
    ) -> Compared {
        let interval = Interval {
            low,
            high,
            confidence: 0.95,
            rank_low: 1,
            rank_high: 8,
        };
        Compared {
            study: "seqrand".into(),
            base: "clear".into(),
            side: "encrypted".into(),
            kind,
            costs,
            figures: 1,
            ratio: Some(Ratio {
                n: 8,
                unusable: 0,
                median,
                min: low,
                max: high,
                interval: Some(interval),
            }),
            judgement,
            theta: 0.05,
            counts: vec![(judgement, 1)],
        }
    }

    #[test]
    fn a_comparison_is_a_sentence() {
        let cpu = of(Kind::Cpu, true, Judgement::Worse, [1.1823, 1.25, 1.331]);
        for (speed, said) in [
            (
                of(
                    Kind::Headline,
                    false,
                    Judgement::Worse,
                    [0.811, 0.902, 0.967],
                ),
                "encrypted is 9.8 % slower than clear (95 % interval 3.3 % to 18.9 %)",
            ),
            (
                of(Kind::Headline, false, Judgement::Better, [1.1, 1.2, 1.25]),
                "encrypted is 20.0 % faster than clear (95 % interval 10.0 % to 25.0 %)",
            ),
            (
                of(Kind::Headline, true, Judgement::Worse, [1.1, 1.2, 1.25]),
                "encrypted takes 20.0 % more time than clear (95 % interval 10.0 % to 25.0 %)",
            ),
            (
                of(Kind::Headline, false, Judgement::Same, [0.99, 1.0, 1.02]),
                "encrypted is as fast as clear within 5 % (+0.0 %, 95 % interval -1.0 % to +2.0 %)",
            ),
        ] {
            let both = clause(&[speed, cpu.clone()]);
            let cpu = "uses 25.0 % more CPU for the same work (95 % interval 18.2 % to 33.1 %)";
            assert_eq!(both, format!("{said} and {cpu}"));
        }
    }

    /// Without this, the headline of a report can contradict the table beneath it.
    #[test]
    fn each_percentage_of_the_sentence_is_in_the_table() {
        let judgements = [
            Judgement::Better,
            Judgement::Worse,
            Judgement::Same,
            Judgement::Noise,
            Judgement::Undecided,
        ];
        for judgement in judgements {
            for costs in [false, true] {
                for bounds in [[0.811, 0.902, 0.967], [1.034, 1.108, 1.233]] {
                    let all = [Kind::Headline, Kind::Cpu].map(|k| of(k, costs, judgement, bounds));
                    let cells = all.iter().flat_map(Compared::cells).collect::<Vec<_>>();
                    let row = cells.join(" ");
                    let said = clause(&all);
                    let words: Vec<&str> = said.split([' ', '(', ')', ',']).collect();
                    let decimals = words.iter().filter(|word| word.contains('.'));
                    let decimals: Vec<&str> =
                        decimals.map(|w| w.trim_start_matches(['+', '-'])).collect();
                    assert!(decimals.len() >= 6, "{said}");
                    for number in decimals {
                        assert!(
                            row.contains(&format!("{number} %")),
                            "{number}: {said}: {row}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_gain_of_times_is_the_change_of_the_time() {
        // A gain of 0.8 means that the same work takes 1.25 times as long.
        let gain = of(Kind::Headline, false, Judgement::Worse, [0.5, 0.8, 1.0])
            .ratio
            .unwrap();
        let turned = inverted(gain);
        let interval = turned.interval.unwrap();
        assert_eq!((turned.median, turned.min, turned.max), (1.25, 1.0, 2.0));
        assert_eq!((interval.low, interval.high), (1.0, 2.0));
        assert_eq!(inverted(turned), gain);
    }

    #[test]
    fn too_few_pairs_are_said() {
        let mut few = of(
            Kind::Headline,
            false,
            Judgement::NoInterval,
            [0.9, 0.95, 1.0],
        );
        few.ratio.as_mut().unwrap().interval = None;
        let said = few.speed();
        assert!(said.contains("was 5.0 % slower"), "{said}");
        assert!(said.contains("too few pairs for an interval (8)"), "{said}");
        assert_eq!(few.cells()[4], "no interval");
        few.ratio = None;
        assert!(few.speed().contains("no figure to compare"));
    }

    #[test]
    fn many_comparisons_are_counted() {
        let judged = |judgement| [of(Kind::Headline, false, judgement, [0.8, 0.9, 1.0])];
        let all = [
            judged(Judgement::Worse),
            judged(Judgement::Worse),
            judged(Judgement::Noise),
        ];
        let sides: Vec<&[Compared]> = all.iter().map(<[Compared; 1]>::as_slice).collect();
        assert_eq!(
            counted(&sides),
            "In 3 comparisons, the other side is slower in 2, within the noise of this machine in 1"
        );
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(sentence(&[], &[]), "Nothing was measured.");
        assert!(facts(&[]).is_empty() && cautions(&[]).is_empty());
    }
}
