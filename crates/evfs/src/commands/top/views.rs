//! The views: which tables there are, and how a sample fills them.

use super::format::{percent, rate, time};
use super::grid::{Cell, Column, Grid, Kind, Row, Tone};
use crate::commands::status::duration;
use stack::short_size;
use stack::watch::{
    CacheSample, ClientSample, FileSample, IoRates, PathSample, Sample, ServiceSample,
    TransferRates,
};

/// A table of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Services,
    Paths,
    Cache,
    Files,
    Clients,
}

impl View {
    /// All views, in the order of their numbers.
    pub const ALL: [View; 5] = [
        View::Services,
        View::Paths,
        View::Cache,
        View::Files,
        View::Clients,
    ];

    /// Returns the position in [`View::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    pub fn title(self) -> &'static str {
        match self {
            View::Services => "Services",
            View::Paths => "Paths",
            View::Cache => "Cache",
            View::Files => "Files",
            View::Clients => "Clients",
        }
    }

    /// Explains why a table is empty.
    pub fn nothing(self) -> &'static str {
        match self {
            View::Services => "nothing is attached, mounted or served",
            View::Paths => "no service is on a LUN",
            View::Cache => "no service has a cache",
            View::Files => "no file is in a cache",
            View::Clients => "no client has called a cell",
        }
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            View::Services => SERVICES,
            View::Paths => PATHS,
            View::Cache => CACHES,
            View::Files => FILES,
            View::Clients => CLIENTS,
        }
    }

    /// Returns the column by which a table is sorted at first, and whether large values come first.
    pub fn first_sort(self) -> (usize, bool) {
        match self {
            View::Services | View::Paths | View::Cache => (0, false),
            View::Files => (2, true),
            View::Clients => (3, false),
        }
    }

    /// Builds the table, sorted.
    pub fn grid(self, sample: &Sample, (column, descending): (usize, bool)) -> Grid {
        let rows = match self {
            View::Services => sample.services.iter().map(service).collect(),
            View::Paths => sample.paths.iter().map(path).collect(),
            View::Cache => sample.caches.iter().map(cache).collect(),
            View::Files => sample.files.iter().map(file).collect(),
            View::Clients => sample.clients.iter().map(client).collect(),
        };
        let columns = self.columns();
        let mut grid = Grid { columns, rows };
        grid.sort(column, descending);
        grid
    }
}

const fn column(title: &'static str, kind: Kind, rank: u8) -> Column {
    Column { title, kind, rank }
}

const SERVICES: &[Column] = &[
    column("NAME", Kind::Name, 0),
    column("KIND", Kind::Word, 3),
    column("STATE", Kind::Word, 0),
    column("READ/s", Kind::Number, 0),
    column("WRITE/s", Kind::Number, 0),
    column("OPS/s", Kind::Number, 1),
    column("P50", Kind::Number, 2),
    column("P99", Kind::Number, 1),
    column("ERR/s", Kind::Number, 4),
    column("DIRTY", Kind::Number, 2),
    column("USED", Kind::Number, 5),
    column("UPTIME", Kind::Number, 6),
    column("DEVICE", Kind::Path, 7),
];

const PATHS: &[Column] = &[
    column("SERVICE", Kind::Name, 2),
    column("LUN", Kind::Name, 4),
    column("PATH", Kind::Path, 0),
    column("STATE", Kind::Word, 0),
    column("READ/s", Kind::Number, 0),
    column("WRITE/s", Kind::Number, 0),
    column("OPS/s", Kind::Number, 2),
    column("P50", Kind::Number, 5),
    column("P99", Kind::Number, 1),
    column("FLIGHT", Kind::Number, 6),
    column("ERR/s", Kind::Number, 3),
    column("RETRY/s", Kind::Number, 6),
    column("LOST", Kind::Number, 7),
];

const CACHES: &[Column] = &[
    column("PID", Kind::Number, 1),
    column("SERVICES", Kind::Name, 0),
    column("HIT", Kind::Number, 0),
    column("READ/s", Kind::Number, 0),
    column("MISS/s", Kind::Number, 2),
    column("WRITE/s", Kind::Number, 0),
    column("AHEAD/s", Kind::Number, 4),
    column("WASTE/s", Kind::Number, 6),
    column("EVICT/s", Kind::Number, 3),
    column("USED", Kind::Number, 1),
    column("MAX", Kind::Number, 5),
    column("DIRTY", Kind::Number, 1),
    column("WAIT", Kind::Number, 7),
];

const FILES: &[Column] = &[
    column("SERVICE", Kind::Name, 1),
    column("FILE", Kind::Path, 0),
    column("PAGES/s", Kind::Number, 0),
    column("READ/s", Kind::Number, 2),
    column("WRITE/s", Kind::Number, 2),
    column("HIT", Kind::Number, 3),
    column("CACHED", Kind::Number, 1),
    column("DIRTY", Kind::Number, 1),
    column("AGE", Kind::Number, 5),
    column("SIZE", Kind::Number, 4),
];

const CLIENTS: &[Column] = &[
    column("CELL", Kind::Name, 1),
    column("CLIENT", Kind::Name, 0),
    column("STATE", Kind::Word, 0),
    column("HEARD", Kind::Number, 0),
    column("PROMISES", Kind::Number, 0),
];

fn service(s: &ServiceSample) -> Row {
    let op = |name: &str| s.io.get(name).map(|rates| rates.bytes_per_second);
    let total = |of: fn(&IoRates) -> f64| s.total.as_ref().map(of);
    let latency = |of: fn(&IoRates) -> Option<u64>| nanoseconds(s.total.as_ref().and_then(of));
    let errors: Option<f64> = s.interval_seconds.is_some().then(|| {
        let all = s.io.values();
        all.map(|rates| rates.errors_per_second).sum()
    });
    Row {
        key: s.name.clone(),
        cells: vec![
            Cell::text(&s.name),
            Cell::text(s.kind),
            Cell::text(&s.state),
            Cell::number(op("read"), short_size),
            Cell::number(op("write"), short_size),
            Cell::number(total(|rates| rates.requests_per_second), rate),
            latency(|rates| rates.p50_ns),
            latency(|rates| rates.p99_ns),
            Cell::number(errors, rate),
            size(s.dirty_bytes),
            Cell::number(used(s), percent),
            Cell::number(s.uptime_seconds.map(|s| s as f64), |s| {
                duration(s as u64 * 1000)
            }),
            Cell::text(&s.device),
        ],
        tone: tone(&s.state),
    }
}

/// Computes the share of a file system that files cannot use any more.
fn used(s: &ServiceSample) -> Option<f64> {
    let (available, all) = s.available_bytes.zip(s.filesystem_bytes)?;
    (all > 0).then(|| all.saturating_sub(available) as f64 / all as f64)
}

/// The emphasis for the state of a service or a path.
fn tone(state: &str) -> Tone {
    match state {
        "ok" | "active" | "standby" | "unopen" | "disabled" => Tone::Normal,
        "degraded" | "read-only" | "stopping" | "suspect" | "recovering" => Tone::Warning,
        _ => Tone::Failure,
    }
}

fn path(p: &PathSample) -> Row {
    let number = |of: fn(&TransferRates) -> f64| p.rates.as_ref().map(of);
    let latency =
        |of: fn(&TransferRates) -> Option<u64>| nanoseconds(p.rates.as_ref().and_then(of));
    Row {
        key: path_key(p),
        cells: vec![
            Cell::text(&p.service),
            Cell::text(&p.lun),
            Cell::text(&p.path),
            Cell::text(&p.state),
            Cell::number(number(|r| r.read_bytes_per_second), short_size),
            Cell::number(number(|r| r.written_bytes_per_second), short_size),
            Cell::number(number(|r| r.reads_per_second + r.writes_per_second), rate),
            latency(|r| r.p50_ns),
            latency(|r| r.p99_ns),
            Cell::number(Some(p.in_flight.into()), whole),
            Cell::number(number(|r| r.errors_per_second), rate),
            Cell::number(number(|r| r.retries_per_second), rate),
            Cell::number(Some(p.losses as f64), whole),
        ],
        tone: tone(&p.state),
    }
}

/// Identifies a path in its table.
pub fn path_key(p: &PathSample) -> String {
    format!("{} {}", p.service, p.path)
}

fn cache(c: &CacheSample) -> Row {
    Row {
        key: c.pid.to_string(),
        cells: vec![
            Cell::number(Some(c.pid.into()), |pid| format!("{pid:.0}")),
            Cell::text(&c.services.join(" ")),
            Cell::number(c.hit_ratio, percent),
            Cell::number(c.reads_per_second, rate),
            Cell::number(c.misses_per_second, rate),
            Cell::number(c.writes_per_second, rate),
            Cell::number(c.read_ahead_per_second, rate),
            Cell::number(c.wasted_per_second, rate),
            Cell::number(c.evicted_per_second, rate),
            size(Some(c.used_bytes)),
            size(Some(c.max_bytes)),
            size(Some(c.dirty_bytes)),
            Cell::number(c.throttled_share, percent),
        ],
        tone: Tone::Normal,
    }
}

fn file(f: &FileSample) -> Row {
    let pages = f.reads_per_second.zip(f.writes_per_second);
    Row {
        key: file_key(f),
        cells: vec![
            Cell::text(&f.service),
            Cell::text(&file_name(f)),
            Cell::number(pages.map(|(reads, writes)| reads + writes), rate),
            Cell::number(f.reads_per_second, rate),
            Cell::number(f.writes_per_second, rate),
            Cell::number(f.hit_ratio, percent),
            size(f.cached_bytes),
            size(Some(f.dirty_bytes)),
            Cell::number(f.oldest_dirty_ms.map(|ms| ms as f64), |ms| {
                duration(ms as u64)
            }),
            size(Some(f.size_bytes)),
        ],
        tone: Tone::Normal,
    }
}

/// Identifies a file in its table.
pub fn file_key(f: &FileSample) -> String {
    format!("{} {} {}", f.service, f.tree, f.file)
}

/// Names a file: by its path after the name of its fileset, or by its number.
pub fn file_name(f: &FileSample) -> String {
    match &f.path {
        Some(path) => format!("{}/{path}", f.tree),
        // A block device is cached as one file.
        None if f.tree == f.service => f.tree.clone(),
        None => format!("{}: inode {}", f.tree, f.file),
    }
}

fn client(c: &ClientSample) -> Row {
    Row {
        key: client_key(c),
        cells: vec![
            Cell::text(&c.service),
            Cell::text(&c.address),
            Cell::text(&c.state),
            Cell::number(Some(c.heard_seconds_ago.into()), |seconds| {
                duration(seconds as u64 * 1000)
            }),
            Cell::number(Some(c.promises as f64), whole),
        ],
        tone: if c.state == "dead" {
            Tone::Warning
        } else {
            Tone::Normal
        },
    }
}

/// Identifies a client in its table.
pub fn client_key(c: &ClientSample) -> String {
    format!("{} {}", c.service, c.address)
}

fn size(value: Option<u64>) -> Cell {
    Cell::number(value.map(|value| value as f64), short_size)
}

fn nanoseconds(value: Option<u64>) -> Cell {
    Cell::number(value.map(|value| value as f64), |value| time(value as u64))
}

/// Formats a number that is no rate.
fn whole(value: f64) -> String {
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let sample = Sample {
            services: vec![ServiceSample::default()],
            paths: vec![PathSample::default()],
            caches: vec![CacheSample::default()],
            files: vec![FileSample::default()],
            clients: vec![ClientSample::default()],
            ..Sample::default()
        };
        for (at, view) in View::ALL.into_iter().enumerate() {
            assert_eq!(view.index(), at);
            let grid = view.grid(&sample, view.first_sort());
            assert_eq!(grid.rows[0].cells.len(), grid.columns.len(), "{view:?}");
            assert!(view.first_sort().0 < grid.columns.len());
            let kept = grid.columns.iter().filter(|column| column.rank == 0);
            assert!(kept.count() >= 2, "{view:?}");
        }
    }

    #[test]
    fn a_file_is_named_by_its_path_or_by_its_number() {
        let mut file = FileSample {
            service: "m".into(),
            tree: "main".into(),
            file: 12,
            path: Some("a/b".into()),
            ..FileSample::default()
        };
        assert_eq!(file_name(&file), "main/a/b");
        file.path = None;
        assert_eq!(file_name(&file), "main: inode 12");
        file.tree = "m".into();
        assert_eq!(file_name(&file), "m");
    }

    #[test]
    fn a_state_that_is_not_known_is_shown_as_a_failure() {
        assert_eq!(tone("ok"), Tone::Normal);
        assert_eq!(tone("degraded"), Tone::Warning);
        assert_eq!(tone("not answering"), Tone::Failure);
        assert_eq!(tone("failed"), Tone::Failure);
    }
}
