//! Results of one run of a job: phases, each with its figures, its CPU time and the background
//! load.
//!
//! **Invariant:** a figure is stored as its two counters, an amount and the resource spent on it.
//! Runs that repeat their work sum both; nothing is averaged before it is stored.

use crate::account::Account;
use crate::meter::{CpuTime, DeviceBytes, Layers, Noise, Others};
use crate::{Carried, Direction, Latency, Sample};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const MIB: f64 = 1_048_576.0;

/// Direction in which a figure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// A rate: amount per unit spent.
    Higher,
    /// A cost: resource spent per unit of the amount.
    Lower,
}

/// One figure of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseFigure {
    /// Name such as `parent` or `CPU`; it does not repeat the name of the phase.
    pub name: String,
    /// Unit of the value, as printed.
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// Amount of work done.
    pub amount: f64,
    /// Resource spent on the work.
    pub spent: f64,
}

impl PhaseFigure {
    /// Creates a rate.
    pub fn rate(name: &str, unit: &str, amount: f64, spent: f64) -> PhaseFigure {
        PhaseFigure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            better: Better::Higher,
            amount,
            spent,
        }
    }

    /// Creates a cost.
    pub fn cost(name: &str, unit: &str, spent: f64, amount: f64) -> PhaseFigure {
        PhaseFigure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            better: Better::Lower,
            amount,
            spent,
        }
    }

    /// Creates a throughput in MiB (2^20 bytes) per second.
    pub fn throughput(name: &str, bytes: u64, secs: f64) -> PhaseFigure {
        PhaseFigure::rate(name, "MiB/s", bytes as f64 / MIB, secs)
    }

    /// Returns the figure in its unit; NaN if nothing was done.
    pub fn value(&self) -> f64 {
        match self.better {
            Better::Higher => self.amount / self.spent,
            Better::Lower => self.spent / self.amount,
        }
    }
}

/// Position of a phase in a chart: phases of one series form a line over an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Name of the line.
    pub series: String,
    /// Quantity on the axis, such as `threads` or `bytes of a record`.
    pub axis: String,
    /// Position on the axis.
    pub x: f64,
    /// Position on a second axis if the chart is a table, such as bytes of a file.
    pub y: Option<f64>,
}

/// A timed part of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Name, unique within the run.
    pub name: String,
    /// Position in a chart, if the phase belongs to one.
    pub point: Option<Point>,
    /// Figures, headlines first. The last is CPU.
    pub cells: Vec<PhaseFigure>,
    /// Number of headlines if it is not one: a phase of several tests has one per test. 0 stands
    /// for one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub headlines: usize,
    /// Nanoseconds between the two edges, including untimed parts.
    pub wall_ns: u64,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// CPU time of children and named processes.
    pub others: Others,
    /// This process's CPU time by layer, if it was counted.
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Bytes requested from the target; 0 if the phase is not about bytes.
    pub asked: u64,
    /// Whether the bytes were written.
    pub writes: bool,
    /// Bytes that reached the device, if known.
    pub device: Option<DeviceBytes>,
    /// I/O carried by each path, if the target lies over paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Carried>,
    /// Service times, if each request was timed; with a schedule, times from when each request was
    /// due.
    pub latency: Option<Latency>,
    /// Background load on the machine.
    pub noise: Noise,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Phase {
    /// Returns the number of headlines, which are the first figures.
    pub fn headlines(&self) -> usize {
        self.headlines.max(1)
    }

    /// Marks the first `count` figures of the phase as headlines.
    pub fn with_headlines(mut self, count: usize) -> Phase {
        self.headlines = count;
        self
    }

    /// Returns device bytes per requested byte: about 1 if no layer in between cached.
    pub fn device_per_asked(&self) -> Option<f64> {
        let device = self.device?;
        let moved = if self.writes {
            device.written
        } else {
            device.read
        };
        (self.asked > 0).then(|| moved as f64 / self.asked as f64)
    }

    /// Creates the phase of a sample of the block engine.
    pub fn of_sample(name: String, sample: &Sample, direction: Direction) -> Phase {
        let secs = sample.wall_ns as f64 / 1e9;
        let cpu = (sample.cpu.total_ns + sample.others.total_ns()) as f64;
        let requests = sample.requests as f64;
        let mut cells = vec![
            PhaseFigure::rate("requests", "IOPS", requests, secs),
            PhaseFigure::throughput("bytes", sample.bytes, secs),
        ];
        if let Some(kept) = sample.schedule {
            let time = |name, ns: u64| PhaseFigure::cost(name, "µs", ns as f64 / 1e3, 1.0);
            let late = PhaseFigure::cost("held up", "of 1", kept.held_up as f64, requests);
            // The request rate is fixed here, so the times of the requests are the headline.
            cells.splice(
                ..0,
                [
                    time("from due, p99", sample.latency.p99_ns),
                    time("from due, p50", sample.latency.p50_ns),
                    time("from due, max", sample.latency.max_ns),
                    time("service, p99", kept.service.p99_ns),
                    time("service, p50", kept.service.p50_ns),
                    late,
                ],
            );
        }
        cells.push(PhaseFigure::cost("CPU", "µs/op", cpu / 1e3, requests));
        Phase {
            name,
            point: None,
            cells,
            headlines: 0,
            wall_ns: sample.wall_ns,
            cpu: sample.cpu,
            others: sample.others,
            layers: sample.layers,
            asked: sample.bytes,
            writes: direction == Direction::Write,
            device: sample.device,
            paths: Vec::new(),
            latency: Some(sample.latency),
            noise: sample.noise,
        }
    }

    /// Places the phase in a chart.
    pub fn at(mut self, series: &str, axis: &str, x: f64, y: Option<f64>) -> Phase {
        self.point = Some(Point {
            series: series.to_owned(),
            axis: axis.to_owned(),
            x,
            y,
        });
        self
    }

    /// Computes the mean number of cores in use, including those of children and named processes.
    pub fn cores(&self) -> f64 {
        (self.cpu.total_ns + self.others.total_ns()) as f64 / self.wall_ns.max(1) as f64
    }

    fn add(&mut self, more: Phase) {
        for (cell, other) in self.cells.iter_mut().zip(more.cells) {
            cell.amount += other.amount;
            cell.spent += other.spent;
        }
        self.wall_ns += more.wall_ns;
        self.cpu.total_ns += more.cpu.total_ns;
        self.cpu.user_ns += more.cpu.user_ns;
        self.cpu.system_ns += more.cpu.system_ns;
        self.others.children_ns += more.others.children_ns;
        self.others.daemons_ns += more.others.daemons_ns;
        self.others.competitors_ns += more.others.competitors_ns;
        if let (Some(mine), Some(theirs)) = (&mut self.layers, more.layers) {
            *mine = mine.with(theirs, |a, b| a + b);
        }
        self.asked += more.asked;
        if let (Some(mine), Some(theirs)) = (&mut self.device, more.device) {
            mine.read += theirs.read;
            mine.written += theirs.written;
        }
        Carried::add(&mut self.paths, &more.paths);
        self.noise.join(more.noise);
    }
}

/// All phases of a run in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Record {
    pub phases: Vec<Phase>,
    /// Measurements by the host of all phases, if the run was in a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<Outside>,
    /// Machine resources used by the run, all phases together.
    #[serde(default)]
    pub account: Option<Account>,
}

/// A run in a guest, as seen by the host.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Outside {
    /// Nanoseconds from sending the request until the record arrived.
    pub wall_ns: u64,
    /// CPU time of the whole guest, including its kernel and devices, and of this process.
    pub cpu_ns: u64,
    /// Background load on the host.
    pub noise: Noise,
}

impl Record {
    /// Adds a repetition of the same work: same phases, same cells. Percentiles stay those of the
    /// first repetition, because they cannot be added.
    pub fn add(&mut self, more: Record) {
        for (phase, other) in self.phases.iter_mut().zip(more.phases) {
            phase.add(other);
        }
    }

    /// Looks up the value of one figure.
    pub fn value(&self, phase: &str, cell: &str) -> Option<f64> {
        let phase = self.phases.iter().find(|p| p.name == phase)?;
        Some(phase.cells.iter().find(|c| c.name == cell)?.value())
    }

    /// Computes the total duration of the phases, without the time between them.
    pub fn wall_ns(&self) -> u64 {
        self.phases.iter().map(|p| p.wall_ns).sum()
    }

    /// Checks whether background load disturbed any phase.
    pub fn tainted(&self) -> bool {
        let outside = self.outside.is_some_and(|o| o.noise.tainted());
        outside || self.phases.iter().any(|p| p.noise.tainted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(amount: f64, spent: f64) -> Record {
        Record {
            phases: vec![Phase {
                name: "read".into(),
                cells: vec![
                    PhaseFigure::rate("rate", "MiB/s", amount, spent),
                    PhaseFigure::cost("time", "µs", spent, amount),
                ],
                asked: 100,
                device: Some(DeviceBytes {
                    read: 50,
                    ..DeviceBytes::default()
                }),
                ..Phase::default()
            }],
            ..Record::default()
        }
    }

    #[test]
    fn repetitions_add_up_and_are_not_averaged() {
        let mut twice = record(100.0, 1.0);
        twice.add(record(100.0, 3.0));
        // The mean of 100 and 33 would be 67; 200 units in four seconds are 50 per second.
        assert_eq!(twice.value("read", "rate"), Some(50.0));
        assert_eq!(twice.value("read", "time"), Some(0.02));
        assert_eq!(twice.phases[0].asked, 200);
        assert_eq!(twice.phases[0].device_per_asked(), Some(0.5));
        assert_eq!(twice.value("read", "none"), None);
    }
}
