//! What a study's runs say: for each figure the median of paired ratios with its interval, the noise that the
//! control shows, and a judgement in words.
//!
//! Everything here follows from the raw runs. No run is left out because of its value; one that is far from the
//! others is marked.

use super::Study;
use crate::record::{Better, Cell, Phase, Point, Record};
use crate::result::{Run, pairs};
use crate::stats::{Ratio, Verdict, median, paired, verdict};
use serde::{Deserialize, Serialize};

/// Above so many headlines, a study is long enough when their means are narrow.
const HEADLINES_EACH: usize = 12;
/// A log ratio so many times the median deviation away from the median is marked: about one in a million
/// of a bell curve (the median deviation is 0.67 of its standard deviation).
const FAR: f64 = 7.0;
/// An interval that is narrow beside its effect is narrow enough.
const OF_EFFECT: f64 = 0.25;

/// What a figure counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// What its phase is about: the first, or one for each of its tests.
    Headline,
    /// CPU of the phase.
    Cpu,
    /// Any other.
    Further,
}

/// What may be said about a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The whole interval is on the good side, and not within the threshold.
    Better,
    /// The whole interval is on the bad side, and not within the threshold.
    Worse,
    /// The whole interval is within the threshold.
    Same,
    /// The interval allows more than one of these.
    Undecided,
    /// A claim that does not stand beside the control: the first side differs from itself by as much, or by half as
    /// much and not by accident, or the other side does not differ from the control as it does from the first side.
    Noise,
    /// Fewer than six pairs.
    NoInterval,
}

impl Judgement {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Judgement::Better => "better",
            Judgement::Worse => "worse",
            Judgement::Same => "no difference",
            Judgement::Undecided => "undecided",
            Judgement::Noise => "within noise",
            Judgement::NoInterval => "no interval",
        }
    }
}

/// One figure of one other side against the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The other side; the first itself where a study has one side only.
    pub side: String,
    /// The phase.
    pub phase: String,
    /// Its place in a figure.
    pub point: Option<Point>,
    /// The figure.
    pub cell: String,
    /// Its unit.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// What it counts for.
    pub kind: Kind,
    /// Median of the first side.
    pub base: f64,
    /// Median of the other side; of the only one.
    pub value: f64,
    /// other / first over pairs; `None` where there is one side.
    pub ratio: Option<Ratio>,
    /// The control against the first side.
    pub control: Option<Ratio>,
    /// What may be said.
    pub judgement: Judgement,
    /// Pairs far from the others; they are counted.
    pub far: usize,
}

impl Finding {
    /// Change in percent of the first, as the tables of 1990 have it: (B - A) / A.
    pub fn change(&self) -> Option<f64> {
        self.ratio.map(|r| (r.median - 1.0) * 100.0)
    }

    /// Gain in percent: positive is good.
    pub fn gain(&self) -> Option<f64> {
        let r = self.ratio?.median;
        Some(match self.better {
            Better::Higher => (r - 1.0) * 100.0,
            Better::Lower => (1.0 / r - 1.0) * 100.0,
        })
    }
}

/// All figures of a kind together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The other side.
    pub side: String,
    /// Which figures.
    pub kind: Kind,
    /// How many.
    pub cells: usize,
    /// The geometric mean of their ratios in each pair, over pairs; above 1 is good, whatever their units.
    pub gain: Option<Ratio>,
    /// What may be said of it.
    pub judgement: Judgement,
    /// How many were judged so.
    pub counts: Vec<(Judgement, usize)>,
}

/// Ratios of runs that stood together.
pub(super) struct Ratios {
    /// The other side to the first.
    pub(super) ratio: Ratio,
    /// The control to the first side, which are the same thing.
    pub(super) control: Option<Ratio>,
    /// The other side to the control.
    pub(super) beside: Option<Ratio>,
}

/// Every figure of a study, in the order of its phases, and their means.
pub fn findings(study: &Study) -> (Vec<Finding>, Vec<Aggregate>) {
    let sides = study.sides.len();
    let Some(first) = study.runs.first() else {
        return (Vec::new(), Vec::new());
    };
    let control = study.runs.get(sides);
    let mut all = Vec::new();
    let mut means = Vec::new();
    let others: &[Vec<Run<Record>>] = match sides {
        1 => &study.runs[..1],
        _ => &study.runs[1..sides],
    };
    for (index, runs) in others.iter().enumerate() {
        let name = &study.sides[if sides == 1 { 0 } else { index + 1 }].name;
        let own: Vec<Finding> = keys(first)
            .into_iter()
            .map(|key| {
                let other = (sides > 1).then_some(runs.as_slice());
                finding(study, name, &key, first, other, control)
            })
            .collect();
        if sides > 1 {
            for kind in [Kind::Headline, Kind::Cpu] {
                means.push(aggregate(
                    (name, kind),
                    &own,
                    [first, runs],
                    control,
                    study.plan.theta,
                ));
            }
        }
        all.extend(own);
    }
    (all, means)
}

/// A figure's place in a record.
struct Key {
    phase: usize,
    cell: usize,
    kind: Kind,
}

/// All figures of the records, by the first of them.
fn keys(runs: &[Run<Record>]) -> Vec<Key> {
    let Some(run) = runs.first() else {
        return Vec::new();
    };
    let of_phase = |(phase, p): (usize, &Phase)| {
        let last = p.cells.len().saturating_sub(1);
        (0..p.cells.len())
            .map(|cell| Key {
                phase,
                cell,
                kind: match cell {
                    c if c < p.headlines() => Kind::Headline,
                    c if c == last => Kind::Cpu,
                    _ => Kind::Further,
                },
            })
            .collect::<Vec<_>>()
    };
    let phases = run.sample.phases.iter().enumerate();
    phases.flat_map(of_phase).collect()
}

fn cell<'a>(record: &'a Record, key: &Key) -> Option<&'a Cell> {
    record.phases.get(key.phase)?.cells.get(key.cell)
}

fn value(record: &Record, key: &Key) -> f64 {
    cell(record, key).map_or(f64::NAN, Cell::value)
}

fn values(a: &[Run<Record>], b: &[Run<Record>], key: &Key) -> Vec<(f64, f64)> {
    pairs(a, b)
        .iter()
        .map(|(a, b)| (value(a, key), value(b, key)))
        .collect()
}

fn middle(runs: &[Run<Record>], key: &Key) -> f64 {
    let counted = runs.iter().filter(|run| !run.warm_up);
    let values: Vec<f64> = counted.map(|run| value(&run.sample, key)).collect();
    median(&values).unwrap_or(f64::NAN)
}

fn finding(
    study: &Study,
    side: &str,
    key: &Key,
    first: &[Run<Record>],
    other: Option<&[Run<Record>]>,
    control: Option<&Vec<Run<Record>>>,
) -> Finding {
    let record = &first[0].sample;
    let phase = &record.phases[key.phase];
    let shown = &phase.cells[key.cell];
    let pairs = other.map(|other| values(first, other, key));
    let ratio = pairs.as_ref().and_then(|pairs| paired(pairs));
    let beside = control
        .zip(other)
        .and_then(|(control, other)| paired(&values(control, other, key)));
    let control = control.and_then(|control| paired(&values(first, control, key)));
    let ratios = ratio.map(|ratio| Ratios {
        ratio,
        control,
        beside,
    });
    Finding {
        side: side.to_owned(),
        phase: phase.name.clone(),
        point: phase.point.clone(),
        cell: shown.name.clone(),
        unit: shown.unit.clone(),
        better: shown.better,
        kind: key.kind,
        base: middle(first, key),
        value: middle(other.unwrap_or(first), key),
        judgement: ratios.map_or(Judgement::NoInterval, |ratios| {
            judge(&ratios, shown.better, study.plan.theta)
        }),
        ratio,
        control,
        far: pairs.map_or(0, |pairs| far(&pairs)),
    }
}

/// The judgement over a ratio.
pub(super) fn judge(ratios: &Ratios, better: Better, theta: f64) -> Judgement {
    let good = better == Better::Higher;
    let judged = match verdict(&ratios.ratio, theta) {
        Verdict::Higher if good => Judgement::Better,
        Verdict::Higher => Judgement::Worse,
        Verdict::Lower if good => Judgement::Worse,
        Verdict::Lower => Judgement::Better,
        Verdict::Same => Judgement::Same,
        Verdict::Undecided => Judgement::Undecided,
        Verdict::NoInterval => Judgement::NoInterval,
    };
    let claims = matches!(judged, Judgement::Better | Judgement::Worse);
    match claims && ratios.are_noise() {
        true => Judgement::Noise,
        false => judged,
    }
}

impl Ratios {
    /// Whether a thing that was compared with itself came out as far from 1: as far as the effect, or half as far
    /// where its interval says that this is no accident; or whether the effect is not there against that thing.
    ///
    /// The second is what keeps false claims rare where there are many figures: of intervals of 95 % one in
    /// twenty misses, and it takes two to miss on the same side.
    fn are_noise(&self) -> bool {
        let effect = self.ratio.median.ln();
        let strays = self.control.is_some_and(|control| {
            let stray = control.median.ln().abs();
            let unfit = control.interval.is_some_and(|i| !i.contains(1.0));
            stray >= effect.abs() || unfit && stray >= effect.abs() / 2.0
        });
        let fails = self.beside.is_some_and(|beside| match beside.interval {
            Some(i) if effect > 0.0 => i.low <= 1.0,
            Some(i) => i.high >= 1.0,
            None => true,
        });
        strays || fails
    }
}

/// How many log ratios are far from their median.
fn far(pairs: &[(f64, f64)]) -> usize {
    let logs: Vec<f64> = pairs
        .iter()
        .map(|(a, b)| (b / a).ln())
        .filter(|log| log.is_finite())
        .collect();
    let Some(middle) = median(&logs) else {
        return 0;
    };
    let away: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
    let usual = median(&away).unwrap_or(0.0).max(1e-9);
    away.iter().filter(|d| **d > FAR * usual).count()
}

fn aggregate(
    (side, kind): (&str, Kind),
    findings: &[Finding],
    [first, other]: [&[Run<Record>]; 2],
    control: Option<&Vec<Run<Record>>>,
    theta: f64,
) -> Aggregate {
    let own: Vec<&Finding> = findings.iter().filter(|f| f.kind == kind).collect();
    let mut counts: Vec<(Judgement, usize)> = Vec::new();
    for finding in &own {
        match counts.iter_mut().find(|(j, _)| *j == finding.judgement) {
            Some((_, n)) => *n += 1,
            None => counts.push((finding.judgement, 1)),
        }
    }
    let gain = paired(&gains(first, other, kind));
    let ratios = gain.map(|ratio| Ratios {
        ratio,
        control: control.and_then(|control| paired(&gains(first, control, kind))),
        beside: control.and_then(|control| paired(&gains(control, other, kind))),
    });
    Aggregate {
        side: side.to_owned(),
        kind,
        cells: own.len(),
        gain,
        judgement: ratios.map_or(Judgement::NoInterval, |ratios| {
            judge(&ratios, Better::Higher, theta)
        }),
        counts,
    }
}

/// In each pair, the geometric mean of the gains of all figures of a kind, against 1.
///
/// One number a pair makes the interval of the mean as exact as that of a figure, with no resampling:
/// pairs are independent of one another, the figures of a pair are not.
fn gains(first: &[Run<Record>], other: &[Run<Record>], kind: Kind) -> Vec<(f64, f64)> {
    let keys: Vec<Key> = keys(first).into_iter().filter(|k| k.kind == kind).collect();
    let gain = |a: &Record, b: &Record, key: &Key| {
        let log = (value(b, key) / value(a, key)).ln();
        let better = cell(a, key)?.better;
        let gain = match better {
            Better::Higher => log,
            Better::Lower => -log,
        };
        gain.is_finite().then_some(gain)
    };
    pairs(first, other)
        .iter()
        .map(|(a, b)| {
            let logs: Vec<f64> = keys.iter().filter_map(|key| gain(a, b, key)).collect();
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            (1.0, mean.exp())
        })
        .collect()
}

/// Whether the intervals of a study are narrow enough: those of every headline and its CPU, or of their means
/// where there are many. The control, which comes after the sides, has no say.
pub(super) fn narrow(runs: &[Vec<Run<Record>>], sides: usize, width: f64) -> bool {
    let Some((first, others)) = runs[..sides].split_first() else {
        return true;
    };
    let keys: Vec<Key> = keys(first)
        .into_iter()
        .filter(|key| key.kind != Kind::Further)
        .collect();
    let headlines = keys.iter().filter(|key| key.kind == Kind::Headline).count();
    others.iter().all(|other| match headlines > HEADLINES_EACH {
        true => [Kind::Headline, Kind::Cpu]
            .into_iter()
            .all(|kind| enough(&gains(first, other, kind), width)),
        false => keys
            .iter()
            .all(|key| enough(&values(first, other, key), width)),
    })
}

fn enough(pairs: &[(f64, f64)], width: f64) -> bool {
    let Some(ratio) = paired(pairs) else {
        // Nothing usable will not become usable.
        return true;
    };
    let Some(interval) = ratio.interval else {
        return false;
    };
    let half = (interval.high / interval.low).ln() / 2.0;
    half <= width.ln_1p().max(OF_EFFECT * ratio.median.ln().abs())
}
