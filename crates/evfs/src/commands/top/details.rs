//! The lines about the selected row: curves, latencies of each kind of request, reasons.

use super::format::{ABSENT, largest, or_absent, percent, plain, rate, time};
use super::model::Model;
use super::views::{View, client_key, file_key, file_name, path_key};
use crate::commands::status::duration;
use stack::short_size;
use stack::watch::{CellSample, IoRates, Sample, Series, ServiceSample};

/// Width of the names in front of curves.
const LABEL: usize = 8;

/// Width of the value after a curve.
const VALUE: usize = 28;

/// Describes the row of the current view with this key, in lines of at most `width` characters.
pub fn lines(model: &Model, key: &str, width: usize) -> Vec<String> {
    let Some(sample) = &model.sample else {
        return Vec::new();
    };
    let about = About { model, width };
    let lines = match model.view {
        View::Services => about.service(sample, key),
        View::Paths => about.path(sample, key),
        View::Cache => about.cache(sample, key),
        View::Files => about.file(sample, key),
        View::Clients => about.client(sample, key),
    };
    lines.unwrap_or_default()
}

struct About<'a> {
    model: &'a Model,
    width: usize,
}

impl About<'_> {
    fn service(&self, sample: &Sample, key: &str) -> Option<Vec<String>> {
        let service = sample.services.iter().find(|s| s.name == key)?;
        let name = || service.name.clone();
        let mut lines = vec![headline(service)];
        let reasons = service.error.iter().chain(&service.reasons);
        lines.extend(reasons.map(|why| format!("why     {}", plain(why))));
        let claim = service.epoch.zip(service.lease_ms);
        lines.extend(claim.map(|(epoch, lease)| {
            let lease = lease as f64 / 1e3;
            format!("unit    of a cluster, epoch {epoch}, lease for {lease:.1} s")
        }));
        let bytes_per_second = |op: &str| service.io.get(op).map(|rates| rates.bytes_per_second);
        let read = or_absent(bytes_per_second("read"), short_size) + "/s";
        let write = or_absent(bytes_per_second("write"), short_size) + "/s";
        let p99 = service.total.and_then(|total| total.p99_ns);
        lines.push(self.curve("read", &Series::Read(name()), &read, short_size));
        lines.push(self.curve("write", &Series::Write(name()), &write, short_size));
        let slow = or_absent(p99, time);
        let latency = Series::Latency(name());
        lines.push(self.curve("p99", &latency, &slow, |ns| time(ns as u64)));
        if let Some(cell) = sample.cells.iter().find(|cell| cell.service == key) {
            lines.push(self.calls(cell));
            lines.push(transfers(cell));
        }
        let shown = service
            .io
            .iter()
            .filter(|(_, io)| io.requests_per_second > 0.0);
        lines.extend(shown.map(|(op, rates)| of_op(op, rates)));
        Some(lines)
    }

    fn path(&self, sample: &Sample, key: &str) -> Option<Vec<String>> {
        let path = sample.paths.iter().find(|path| path_key(path) == key)?;
        let sum = path
            .rates
            .map(|rates| rates.read_bytes_per_second + rates.written_bytes_per_second);
        let series = Series::Path(path.service.clone(), path.path.clone());
        let value = or_absent(sum, short_size) + "/s";
        let (lun, address) = (plain(&path.lun), plain(&path.path));
        let mut lines = vec![format!("{lun} over {address}: {}", plain(&path.state))];
        lines.extend(path.why.iter().map(|why| format!("why     {}", plain(why))));
        lines.push(self.curve("bytes", &series, &value, short_size));
        lines.push(format!(
            "{} in flight, {} wait for a path; {} lost connections",
            path.in_flight, path.waiting, path.losses
        ));
        Some(lines)
    }

    fn cache(&self, sample: &Sample, key: &str) -> Option<Vec<String>> {
        let mut caches = sample.caches.iter();
        let cache = caches.find(|cache| cache.pid.to_string() == key)?;
        let hits = or_absent(cache.hit_ratio, percent);
        let reads = or_absent(cache.reads_per_second, rate) + " pages/s";
        let writes = or_absent(cache.writes_per_second, rate) + " pages/s";
        let age = cache.oldest_dirty_ms;
        let age = age.map_or_else(String::new, |ms| {
            format!(", the oldest for {}", duration(ms))
        });
        Some(vec![
            format!(
                "process {}: {} of {} used, {} dirty{age}",
                cache.pid,
                short_size(cache.used_bytes as f64),
                short_size(cache.max_bytes as f64),
                short_size(cache.dirty_bytes as f64),
            ),
            format!("serves  {}", plain(&cache.services.join(" "))),
            self.curve_to("hits", &Series::HitRatio(cache.pid), &hits, 1.0),
            self.curve("read", &Series::PageReads(cache.pid), &reads, rate),
            self.curve("write", &Series::PageWrites(cache.pid), &writes, rate),
        ])
    }

    fn file(&self, sample: &Sample, key: &str) -> Option<Vec<String>> {
        let file = sample.files.iter().find(|file| file_key(file) == key)?;
        let cached = file.cached_bytes.map(|value| value as f64);
        let age = file.oldest_dirty_ms;
        let age = age.map_or_else(String::new, |ms| {
            format!(", the oldest for {}", duration(ms))
        });
        Some(vec![
            format!("{} of {}", plain(&file_name(file)), plain(&file.service)),
            format!(
                "{} bytes, {} cached, {} dirty{age}",
                file.size_bytes,
                or_absent(cached, short_size),
                short_size(file.dirty_bytes as f64),
            ),
        ])
    }

    fn client(&self, sample: &Sample, key: &str) -> Option<Vec<String>> {
        let client = sample.clients.iter().find(|c| client_key(c) == key)?;
        let mut cells = sample.cells.iter();
        let cell = cells.find(|cell| cell.service == client.service)?;
        let mut lines = vec![
            format!(
                "cell {}: {} clients, {} of them active within 15 minutes, {} promises",
                plain(&cell.cell),
                cell.clients,
                cell.active_clients,
                cell.promises
            ),
            self.calls(cell),
            transfers(cell),
        ];
        let called = cell.procedures.iter().take(4);
        lines.extend(called.map(|(name, calls)| format!("  {name:<24}{:>8}/s", rate(*calls))));
        Some(lines)
    }

    fn calls(&self, cell: &CellSample) -> String {
        let value = or_absent(cell.calls_per_second, rate) + "/s";
        self.curve("calls", &Series::Calls(cell.service.clone()), &value, rate)
    }

    /// Draws a curve between its name and its last value, scaled to its largest value.
    fn curve(
        &self,
        label: &str,
        series: &Series,
        value: &str,
        format: impl FnOnce(f64) -> String,
    ) -> String {
        let width = self.curve_width();
        let values = self.model.history.last(series, width);
        let top = largest(&values, 0.0);
        let curve = self.model.look.symbols.curve(&values, width, top);
        let top = match values.iter().flatten().next() {
            Some(_) => format(top),
            None => ABSENT.to_owned(),
        };
        format!("{label:<LABEL$}{curve} {value} (max {top})")
    }

    /// Draws a curve whose largest value is known.
    fn curve_to(&self, label: &str, series: &Series, value: &str, top: f64) -> String {
        let width = self.curve_width();
        let values = self.model.history.last(series, width);
        let curve = self.model.look.symbols.curve(&values, width, top);
        format!("{label:<LABEL$}{curve} {value}")
    }

    fn curve_width(&self) -> usize {
        self.width.saturating_sub(LABEL + 1 + VALUE)
    }
}

fn headline(service: &ServiceSample) -> String {
    let mut places = service.exports.iter().map(|place| plain(place));
    let at = places
        .next()
        .map_or_else(String::new, |place| format!(" at {place}"));
    let size = or_absent(service.size_bytes.map(|size| size as f64), short_size);
    let age = match (service.dirty_bytes, service.oldest_dirty_ms) {
        (Some(dirty), Some(ms)) if dirty > 0 => format!(", dirty for {}", duration(ms)),
        _ => String::new(),
    };
    let (name, device) = (plain(&service.name), plain(&service.device));
    format!("{name}: {} on {device}, {size}{at}{age}", service.kind)
}

fn of_op(op: &str, rates: &IoRates) -> String {
    format!(
        "{op:<LABEL$}{:>6}/s {:>8}/s  p50 {:>7}  p99 {:>7}  mean {:>7}  {} errors/s",
        rate(rates.requests_per_second),
        short_size(rates.bytes_per_second),
        or_absent(rates.p50_ns, time),
        or_absent(rates.p99_ns, time),
        or_absent(rates.mean_ns, time),
        rate(rates.errors_per_second),
    )
}

fn transfers(cell: &CellSample) -> String {
    format!(
        "fetched {}/s, stored {}/s, {} callbacks/s, {} errors/s",
        or_absent(cell.fetched_bytes_per_second, short_size),
        or_absent(cell.stored_bytes_per_second, short_size),
        or_absent(cell.breaks_per_second, rate),
        or_absent(cell.errors_per_second, rate),
    )
}
