//! Analysis of a study's runs: for each figure the median of paired ratios with its interval, the
//! noise shown by the control, and a judgement.
//!
//! Everything here is derived from the raw runs. No run is excluded because of its value; outliers
//! are marked.

use crate::study::Study;
use bench_core::record::{Better, Phase, PhaseFigure, Point, Record};
use bench_core::result::{Run, pairs};
use bench_core::stats::{Ratio, Verdict, median, paired, verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of headlines above which only the intervals of their means decide whether a study is long
/// enough.
const HEADLINES_EACH: usize = 12;
/// Outlier limit: distance of a log ratio from the median in units of the median absolute
/// deviation. It marks about one in a million values of a normal distribution, whose median
/// absolute deviation is 0.67 standard deviations.
const FAR: f64 = 7.0;
/// Half-width of an interval, as a fraction of the effect, that counts as narrow enough.
const OF_EFFECT: f64 = 0.25;

/// Role of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Subject of the phase: the first figure, or one for each of its tests.
    Headline,
    /// CPU cost of the phase.
    Cpu,
    /// Any other figure.
    Further,
}

/// Conclusion about a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The whole interval is on the good side, and not within the threshold.
    Better,
    /// The whole interval is on the bad side, and not within the threshold.
    Worse,
    /// The whole interval is within the threshold.
    Same,
    /// The interval is consistent with more than one of these.
    Undecided,
    /// The difference is not confirmed by the control: the first side differs from itself by as
    /// much, or by half as much and significantly, or the other side does not differ from the
    /// control as it does from the first side.
    Noise,
    /// Fewer than six pairs.
    NoInterval,
}

impl Judgement {
    /// Returns the text for reports.
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

/// One figure of another side compared with the first side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Name of the other side, or of the first if the study has only one.
    pub side: String,
    /// Name of the phase.
    pub phase: String,
    /// Position of the phase in a chart.
    pub point: Option<Point>,
    /// Name of the figure.
    pub cell: String,
    /// Unit of the values.
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// Role of the figure.
    pub kind: Kind,
    /// Median of the first side.
    pub base: f64,
    /// Median of the other side, or of the only one.
    pub value: f64,
    /// Ratio other / first over pairs; `None` if there is only one side.
    pub ratio: Option<Ratio>,
    /// Ratio control / first.
    pub control: Option<Ratio>,
    /// Conclusion from the ratios.
    pub judgement: Judgement,
    /// Number of outlier pairs; they are counted nevertheless.
    pub far: usize,
}

impl Finding {
    /// Computes the change in percent of the first side, as in the tables of 1990: (B - A) / A.
    pub fn change(&self) -> Option<f64> {
        self.ratio.map(|r| (r.median - 1.0) * 100.0)
    }

    /// Computes the gain in percent; positive values are improvements.
    pub fn gain(&self) -> Option<f64> {
        let r = self.ratio?.median;
        Some(match self.better {
            Better::Higher => (r - 1.0) * 100.0,
            Better::Lower => (1.0 / r - 1.0) * 100.0,
        })
    }
}

/// Summary of all figures of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Aggregate {
    /// Name of the other side.
    pub side: String,
    /// Kind of the figures.
    pub kind: Kind,
    /// Number of figures.
    pub cells: usize,
    /// Geometric mean of their ratios in each pair, over pairs; above 1 is an improvement whatever
    /// their units.
    pub gain: Option<Ratio>,
    /// Conclusion about the mean.
    pub judgement: Judgement,
    /// Number of figures per judgement.
    pub counts: Vec<(Judgement, usize)>,
}

/// Ratios of runs that were measured side by side.
pub(crate) struct Ratios {
    /// Other side over first side.
    pub(crate) ratio: Ratio,
    /// Control over first side, which have the same configuration.
    pub(crate) control: Option<Ratio>,
    /// Other side over control.
    pub(crate) beside: Option<Ratio>,
}

/// Computes every figure of a study in the order of its phases, and their means.
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

/// Position of a figure in a record.
struct Key {
    phase: usize,
    cell: usize,
    kind: Kind,
}

/// Lists the keys of all figures, taken from the first record.
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

fn cell<'a>(record: &'a Record, key: &Key) -> Option<&'a PhaseFigure> {
    record.phases.get(key.phase)?.cells.get(key.cell)
}

fn value(record: &Record, key: &Key) -> f64 {
    cell(record, key).map_or(f64::NAN, PhaseFigure::value)
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
            verdict_of(&ratios, shown.better, study.plan.theta)
        }),
        ratio,
        control,
        far: pairs.map_or(0, |pairs| far(&pairs)),
    }
}

/// Derives the judgement about a ratio.
pub(crate) fn verdict_of(ratios: &Ratios, better: Better, theta: f64) -> Judgement {
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
    if claims && ratios.are_noise() {
        Judgement::Noise
    } else {
        judged
    }
}

impl Ratios {
    /// Checks whether the control refutes the effect: the control differs from the first side by
    /// at least the effect, or by half of it if its interval excludes 1; or the other side does not
    /// differ from the control in the same direction.
    ///
    /// The second condition keeps false claims rare if there are many figures: one in twenty 95 %
    /// intervals misses, and here two must miss on the same side.
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

/// Counts the log ratios that are far from their median.
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
            verdict_of(&ratios, Better::Higher, theta)
        }),
        counts,
    }
}

/// Computes, for each pair, the geometric mean of the gains of all figures of a kind, against 1.
///
/// One number per pair makes the interval of the mean as exact as that of a single figure, without
/// resampling: pairs are independent of each other, the figures of a pair are not.
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

/// Checks whether the intervals of a study are narrow enough: those of every headline and its CPU,
/// or of their means if there are many headlines. The control, which follows the sides, is ignored.
pub(crate) fn narrow(runs: &[Vec<Run<Record>>], sides: usize, width: f64) -> bool {
    let Some((first, others)) = runs[..sides].split_first() else {
        return true;
    };
    let keys: Vec<Key> = keys(first)
        .into_iter()
        .filter(|key| key.kind != Kind::Further)
        .collect();
    let headlines = keys.iter().filter(|key| key.kind == Kind::Headline).count();
    others.iter().all(|other| {
        if headlines > HEADLINES_EACH {
            [Kind::Headline, Kind::Cpu]
                .into_iter()
                .all(|kind| enough(&gains(first, other, kind), width))
        } else {
            keys.iter()
                .all(|key| enough(&values(first, other, key), width))
        }
    })
}

fn enough(pairs: &[(f64, f64)], width: f64) -> bool {
    let Some(ratio) = paired(pairs) else {
        // More pairs would not make unusable values usable.
        return true;
    };
    let Some(interval) = ratio.interval else {
        return false;
    };
    let half = (interval.high / interval.low).ln() / 2.0;
    half <= width.ln_1p().max(OF_EFFECT * ratio.median.ln().abs())
}
