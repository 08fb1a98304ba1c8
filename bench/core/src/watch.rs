//! Measures one phase of a run: counters are read at its beginning and at its end.

use crate::Direction;
use crate::meter::Edge;
use crate::path_io::Carried;
use crate::record::{Phase, PhaseFigure};
use crate::server_cpu::Watched;
use crate::target::{Server, Target};

const GIB: f64 = 1_073_741_824.0;

/// Counters read at the beginning of a phase.
pub struct Watch<'a> {
    target: &'a Target,
    server: Option<Watched>,
    start: Edge,
    carried: Vec<Carried>,
}

impl<'a> Watch<'a> {
    pub fn start(target: &'a Target) -> Watch<'a> {
        let watched = |server: &std::sync::Arc<dyn Server>| Watched::start(server.threads());
        Watch {
            target,
            server: target.server.as_ref().map(watched),
            start: target.edge(),
            carried: target.carried(),
        }
    }

    /// Ends a phase that moved bytes; CPU is reported per GiB.
    pub fn bytes(
        self,
        name: &str,
        asked: u64,
        direction: Direction,
        cells: Vec<PhaseFigure>,
    ) -> Phase {
        let mut phase = self.close(name, cells);
        (phase.asked, phase.writes) = (asked, direction == Direction::Write);
        let spent = (phase.cpu.total_ns + phase.others.total_ns()) as f64 / 1e9;
        let cpu = PhaseFigure::cost("CPU", "s/GiB", spent, asked as f64 / GIB);
        phase.cells.push(cpu);
        phase
    }

    /// Ends a phase of `count` operations; CPU is reported per operation.
    pub fn operations(self, name: &str, count: f64, cells: Vec<PhaseFigure>) -> Phase {
        let mut phase = self.close(name, cells);
        let spent = (phase.cpu.total_ns + phase.others.total_ns()) as f64 / 1e3;
        phase
            .cells
            .push(PhaseFigure::cost("CPU", "µs/op", spent, count));
        phase
    }

    /// Ends a phase that is a single task; CPU is reported in seconds.
    pub fn whole(self, name: &str, cells: Vec<PhaseFigure>) -> Phase {
        let mut phase = self.close(name, cells);
        let spent = (phase.cpu.total_ns + phase.others.total_ns()) as f64 / 1e9;
        phase.cells.push(PhaseFigure::cost("CPU", "s", spent, 1.0));
        phase
    }

    fn close(self, name: &str, mut cells: Vec<PhaseFigure>) -> Phase {
        let end = self.target.edge();
        cells.extend(self.server.into_iter().flat_map(Watched::end));
        let used = end.since(&self.start, None);
        Phase {
            name: name.to_owned(),
            point: None,
            cells,
            headlines: 0,
            wall_ns: end.at().duration_since(self.start.at()).as_nanos() as u64,
            cpu: used.cpu,
            others: used.others,
            layers: used.layers,
            asked: 0,
            writes: false,
            device: used.device,
            paths: Carried::between(&self.carried, self.target.carried()),
            latency: None,
            noise: used.noise,
        }
    }
}
