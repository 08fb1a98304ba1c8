//! Execution of jobs: turns each workload's outcome into a record of phases and cells.

use super::scratch_directory::{ScratchDirectory, through};
use super::{Job, Needs, Sweep, Throughput};
use crate::workload::seqrand;
use crate::workload::seqrand::Access;
use crate::workload::{
    build, clientload, coherence, devmix, dhrystone, fio, mailmix, micro, mounts, nfsbasic,
    packets, scriptmix, sendfile, solver,
};
use bench_core::files::{Files, HostDirectory};
use bench_core::record::{Phase, PhaseFigure, Record};
use bench_core::target::{Target, TargetKind};
use bench_core::watch::Watch;
use bench_core::{Direction, Error, Result, median};
use std::time::Duration;

impl Job {
    /// Checks whether the job can run on a target, without running it.
    ///
    /// # Errors
    /// [`bench_core::Error::Spec`] if it cannot.
    pub fn check(&self, target: &Target) -> Result<()> {
        if let TargetKind::Guest(_) = &target.place {
            return self.check_for_guest();
        }
        match self.entry().needs {
            Needs::Files => target.require_files().map(drop),
            Needs::Folder => target.path().map(drop),
            Needs::Device => target.block().map(drop),
            Needs::Machine => Ok(()),
        }
    }

    /// Checks whether a guest provides everything except the target, which the guest checks itself.
    fn check_for_guest(&self) -> Result<()> {
        match self {
            Job::Build(_) | Job::Fio(_) | Job::Scriptmix(_) => Err(Error::Spec(format!(
                "{} runs programs of this machine, which a guest does not contain; use another \
                 environment",
                self.entry().name
            ))),
            _ => Ok(()),
        }
    }

    /// Prepares a target before the first run: writes a device as far as it will be read.
    ///
    /// # Errors
    /// Any error of the target.
    pub fn prepare(&self, target: &Target) -> Result<()> {
        match self {
            Job::Devmix(_) if let TargetKind::Guest(guest) = &target.place => {
                guest.prepare(&self.as_json())
            }
            Job::Devmix(config) if !target.block()?.info().read_only => {
                // The rate limits of paths do not apply to preparation, which is not measured.
                target.paths.iter().for_each(|paths| paths.lift_limits());
                let prepared = devmix::prepare(target, config);
                target.paths.iter().for_each(|paths| paths.limit());
                prepared
            }
            _ => Ok(()),
        }
    }

    /// Runs the job `times` times and sums the records.
    ///
    /// # Errors
    /// Any error of the workload; [`bench_core::Error::Files`] also if a run leaves files behind.
    pub fn run(&self, target: &Target, times: u32) -> Result<Record> {
        self.check(target)?;
        if let TargetKind::Guest(guest) = &target.place {
            return guest.run(&self.as_json(), times, &target.competitors);
        }
        let Some((own, inside)) = ScratchDirectory::make(self, target)? else {
            return self.repeat(target, times);
        };
        let record = self.repeat(&inside, times)?;
        own.close()?;
        Ok(record)
    }

    /// Returns the job in the form in which it reaches a guest.
    fn as_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("plain data has a JSON form")
    }

    fn repeat(&self, target: &Target, times: u32) -> Result<Record> {
        let mut record = self.once(target)?;
        for _ in 1..times {
            record.add(self.once(target)?);
        }
        Ok(record)
    }

    fn once(&self, target: &Target) -> Result<Record> {
        let phases = match self {
            Job::Seqrand(job) => throughput(target, job),
            Job::Sweep(job) => sweep(target, job),
            Job::Mailmix(config) => mail(target, config),
            Job::Nfsbasic(job) => basic(target, job.scale),
            Job::Micro(job) => costs(target, Duration::from_millis(job.millis)),
            Job::Devmix(config) => devices(target, config),
            Job::Scriptmix(config) => scripts(target, config),
            Job::Mounts(config) => mounting(target, config),
            Job::Clientload(config) => clients(target, config),
            Job::Packets(config) => pumping(target, config),
            Job::Dhrystone(config) => processor(target, config),
            Job::Build(config) => building(target, config),
            Job::Fio(config) => by_fio(target, config),
            Job::Coherence(config) => mixed_mode(target, config),
            Job::Sendfile(config) => sending(target, config),
            Job::Solver(config) => solving(target, config),
        }?;
        Ok(Record {
            phases,
            outside: None,
            account: None,
        })
    }
}

/// Runs phases of `seqrand` one by one and removes the files, even after a failure.
fn passes(
    target: &Target,
    config: &seqrand::Config,
    phases: &[seqrand::Phase],
    name: &dyn Fn(seqrand::Phase) -> String,
) -> Result<Vec<Phase>> {
    let files = target.require_files()?;
    let one = |phase: &seqrand::Phase| {
        if config.cold && phase.all_read() {
            target.drop_caches()?;
            seqrand::drop_caches(files, config)?;
        }
        let watch = Watch::start(target);
        let outcome = seqrand::run(files, config, &[*phase])?.remove(0);
        let bytes: u64 = outcome.bytes.iter().sum();
        // Sum of the threads' rates, stored as bytes over the mean of their durations.
        let clock = outcome.secs.iter().sum::<f64>() / outcome.secs.len() as f64;
        let moved = (outcome.children() * clock) as u64;
        let cells = vec![
            PhaseFigure::throughput("parent", bytes, outcome.parent_secs),
            PhaseFigure::throughput("children", moved, clock),
        ];
        let direction = Direction::write_if(phase.all_write());
        Ok(watch.bytes(&name(*phase), bytes, direction, cells))
    };
    let done: Result<Vec<Phase>> = phases.iter().map(one).collect();
    let removed = seqrand::remove(files, config);
    let done = done?;
    removed.map(|()| done)
}

fn throughput(target: &Target, job: &Throughput) -> Result<Vec<Phase>> {
    let mut all = Vec::new();
    for &threads in &job.threads {
        let config = seqrand::Config {
            threads,
            file: job.file(threads),
            ..job.options.clone()
        };
        let name =
            |phase: seqrand::Phase| format!("{}, {}", phase.name(), plural(threads, "thread"));
        let done = passes(target, &config, &job.phases, &name)?;
        let series = job.phases.iter().map(|phase| phase.name());
        all.extend(
            done.into_iter()
                .zip(series)
                .map(|(phase, series)| phase.at(series, "threads", threads as f64, None)),
        );
    }
    Ok(all)
}

fn plural(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}

fn sweep(target: &Target, job: &Sweep) -> Result<Vec<Phase>> {
    use seqrand::Phase::{Read, Reread, Rewrite, Write};
    let mut all = Vec::new();
    for (file, record) in job.cells()? {
        let config = seqrand::Config {
            file,
            record,
            threads: 1,
            ..job.options.clone()
        };
        let mut column = |config: &seqrand::Config, phases: &[seqrand::Phase], prefix: &str| {
            let series = |phase: seqrand::Phase| format!("{prefix}{}", phase.name());
            let (kib, of) = (file >> 10, record >> 10);
            let name = |phase: seqrand::Phase| format!("{}, {kib} KiB by {of} KiB", series(phase));
            let done = passes(target, config, phases, &name)?;
            let axis = "bytes of a record";
            let (x, y) = (record as f64, Some(file as f64));
            all.extend(
                done.into_iter()
                    .zip(phases)
                    .map(|(phase, of)| phase.at(&series(*of), axis, x, y)),
            );
            Ok(())
        };
        column(&config, &job.phases, "")?;
        if job.buffered {
            let config = seqrand::Config {
                access: Access::Buffered,
                direct: false,
                ..config
            };
            column(&config, &[Write, Rewrite, Read, Reread], "buffered ")?;
        }
    }
    Ok(all)
}

fn mail(target: &Target, config: &mailmix::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let r = mailmix::run(target.require_files()?, config)?;
    let created = (r.created_alone + r.created_mixed) as f64;
    let deleted = (r.deleted_alone + r.deleted_mixed) as f64;
    let transactions = r.transactions as f64;
    let cells = vec![
        PhaseFigure::rate("transactions", "tx/s", transactions, r.transaction_secs),
        PhaseFigure::throughput("read", r.bytes_read, r.total_secs),
        PhaseFigure::throughput("written", r.bytes_written, r.total_secs),
        PhaseFigure::rate("created", "files/s", created, r.total_secs),
        PhaseFigure::rate("files read", "files/s", r.read as f64, r.transaction_secs),
        PhaseFigure::rate("appended", "files/s", r.appended as f64, r.transaction_secs),
        PhaseFigure::rate("deleted", "files/s", deleted, r.total_secs),
        PhaseFigure::cost("total", "s", r.total_secs, 1.0),
    ];
    Ok(vec![watch.operations("mailmix", transactions, cells)])
}

fn basic(target: &Target, scale: u64) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let outcomes = nfsbasic::run(
        target.require_files()?,
        &nfsbasic::Config::scaled(scale.max(1)),
    )?;
    // A skipped test keeps a cell without a value, so that the cells of two sides correspond by
    // index.
    let cell = |o: &nfsbasic::TestResult| {
        let name = format!("{}: {}", o.test, o.what);
        match (o.bytes, o.operations.unwrap_or(0)) {
            (0, operations) => PhaseFigure::cost(&name, "µs/op", o.secs * 1e6, operations as f64),
            (bytes, _) => PhaseFigure::throughput(&name, bytes, o.secs),
        }
    };
    let count: u64 = outcomes.iter().filter_map(|o| o.operations).sum();
    let cells: Vec<PhaseFigure> = outcomes.iter().map(cell).collect();
    let tests = cells.len();
    let phase = watch.operations("nfsbasic", count as f64, cells);
    Ok(vec![phase.with_headlines(tests)])
}

fn costs(target: &Target, long_enough: Duration) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let rows = micro::run(target.require_files()?, long_enough)?;
    let cost = |name: &str, each_us: f64, count: u64| {
        PhaseFigure::cost(name, "µs/op", each_us * count as f64, count as f64)
    };
    let wall = rows
        .iter()
        .map(|row| cost(&row.what, row.wall_us, row.count));
    let cpu = |row: &micro::Row| cost(&format!("{}, CPU", row.what), row.cpu_us, row.count);
    let cells = wall.chain(rows.iter().map(cpu)).collect();
    Ok(vec![watch.whole("micro", cells).with_headlines(rows.len())])
}

fn devices(target: &Target, config: &devmix::Config) -> Result<Vec<Phase>> {
    config
        .points()?
        .into_iter()
        .map(|spec| {
            let depth = spec.depth;
            let bytes = match spec.sizes.as_slice() {
                [] => spec.block.to_string(),
                sizes => {
                    let all: Vec<String> = sizes.iter().map(u32::to_string).collect();
                    format!("mixed {}", all.join("/"))
                }
            };
            let series = format!(
                "{}, {bytes} bytes, {}",
                spec.workload,
                plural(spec.threads as usize, "thread")
            );
            let point = devmix::point(target, config, spec)?;
            let direction = point.spec.workload.direction();
            let name = format!("{series}, depth {depth}");
            let mut phase = Phase::of_sample(name, &point.sample, direction);
            phase.paths = point.paths;
            Ok(phase.at(&series, "requests in flight", f64::from(depth), None))
        })
        .collect()
}

fn scripts(target: &Target, config: &scriptmix::Config) -> Result<Vec<Phase>> {
    scriptmix::check(config)?;
    let point = |&users: &usize| {
        let watch = Watch::start(target);
        let outcome = scriptmix::point(target.path()?, config, users)?;
        let count = outcome.scripts as f64;
        let rate = PhaseFigure::rate("scripts", "scripts/h", count, outcome.secs / 3600.0);
        let name = plural(users, "user");
        let phase = watch.operations(&name, count, vec![rate]);
        Ok(phase.at("scripts", "users", users as f64, None))
    };
    config.users.iter().map(point).collect()
}

fn mounting(target: &Target, config: &mounts::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let outcome = mounts::run(target.path()?, config, target.remount.as_deref())?;
    let middle = |secs: &[f64]| median(secs).unwrap_or(f64::NAN);
    let (mount, unmount) = (&outcome.mount_secs, &outcome.unmount_secs);
    let cells = [
        ("mount", middle(mount)),
        ("unmount", middle(unmount)),
        ("mount, p95", p95(mount)),
        ("unmount, p95", p95(unmount)),
    ];
    let cells = cells.map(|(name, secs)| PhaseFigure::cost(name, "ms", secs * 1e3, 1.0));
    let phase = watch.operations("mount and unmount", mount.len() as f64, cells.into());
    Ok(vec![phase.with_headlines(2)])
}

/// Computes the 95th percentile.
fn p95(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() * 95).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

fn clients(target: &Target, config: &clientload::Config) -> Result<Vec<Phase>> {
    let others = config
        .folders
        .iter()
        .map(|path| {
            HostDirectory::open(&through(path)).map_err(|source| {
                bench_core::Error::on_files(path.display().to_string(), "open", ".", source)
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let own = std::iter::once(target.require_files()?);
    let served = match &target.server {
        Some(server) => server.clients(config.clients).map_err(|source| {
            bench_core::Error::on_files(target.name.clone(), "connect", ".", source)
        })?,
        None => Vec::new(),
    };
    let all: Vec<&dyn Files> = if served.is_empty() {
        own.chain(others.iter().map(|f| f as &dyn Files)).collect()
    } else {
        served.iter().map(|client| &**client).collect()
    };
    let prepared = clientload::Prepared::new(&all, config)?;
    let watch = Watch::start(target);
    let read = prepared.read();
    let phase = read.map(|outcome| {
        let name = if outcome.flushed {
            format!("{} after flushing", plural(config.clients, "client"))
        } else {
            format!("{}, caches kept", plural(config.clients, "client"))
        };
        let cells = client_cells(&outcome);
        watch.bytes(&name, outcome.bytes, Direction::Read, cells)
    });
    prepared.remove()?;
    Ok(vec![phase?])
}

/// Maximum number of clients whose times become separate figures.
const CLIENTS_SHOWN: usize = 64;

fn client_cells(outcome: &clientload::ClientLoadResult) -> Vec<PhaseFigure> {
    let (first, last) = (outcome.first(), outcome.last());
    let mean = outcome.secs.iter().sum::<f64>() / outcome.secs.len() as f64;
    let mut cells = vec![
        PhaseFigure::cost("last client", "s", last, 1.0),
        PhaseFigure::cost("mean of clients", "s", mean, 1.0),
        PhaseFigure::cost("first client", "s", first, 1.0),
        PhaseFigure::cost("spread, last / first", "x", last, first),
        PhaseFigure::throughput("all together", outcome.bytes, last),
    ];
    let shown = outcome.secs.iter().take(CLIENTS_SHOWN).enumerate();
    cells.extend(
        shown.map(|(n, secs)| PhaseFigure::cost(&format!("client {}", n + 1), "s", *secs, 1.0)),
    );
    cells
}

fn pumping(target: &Target, config: &packets::Config) -> Result<Vec<Phase>> {
    packets::check(config)?;
    packets::with_ends(config, |near| {
        let one = |work: packets::Work| {
            let watch = Watch::start(target);
            let o = near.exchange(work)?;
            let count = o.exchanges as f64;
            let mut cells = vec![
                PhaseFigure::cost("exchange", "µs/exchange", o.secs * 1e6, count),
                PhaseFigure::cost("all", "s", o.secs, 1.0),
                PhaseFigure::cost("sent again", "of 1", o.again as f64, count),
            ];
            if let Some(packets) = o.packets {
                cells.push(PhaseFigure::cost(
                    "packets of a request",
                    "packets",
                    packets as f64,
                    count,
                ));
            }
            Ok(watch.operations(&o.name(), count, cells))
        };
        near.works(config).into_iter().map(one).collect()
    })
}

fn processor(target: &Target, config: &dhrystone::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let outcome = dhrystone::run(config)?;
    let runs = outcome.runs as f64;
    let cells = vec![
        PhaseFigure::rate("rate", "Dhrystones/s", runs, outcome.secs),
        PhaseFigure::rate("of a VAX", "MIPS", runs / dhrystone::VAX, outcome.secs),
    ];
    Ok(vec![watch.whole("dhrystone", cells)])
}

fn building(target: &Target, config: &build::Config) -> Result<Vec<Phase>> {
    let tree = build::Tree::new(config)?;
    let at = target.path()?.join("evfs-bench.build");
    let part = |part: build::Part| {
        let watch = Watch::start(target);
        let began = std::time::Instant::now();
        tree.part(&at, part)?;
        let secs = began.elapsed().as_secs_f64();
        let cells = vec![PhaseFigure::cost("time", "s", secs, 1.0)];
        Ok(watch.whole(part.name(), cells))
    };
    let done = build::Part::ALL.into_iter().map(part).collect();
    // Even after a failure: the next run begins with an empty directory.
    let _ = std::fs::remove_dir_all(&at);
    done
}

fn by_fio(target: &Target, config: &fio::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let outcome = fio::run(target.path()?, config)?;
    let sides = [("read", &outcome.read), ("write", &outcome.write)];
    let mut cells = Vec::new();
    let mut bytes = 0;
    for (name, side) in sides {
        if let Some(side) = side {
            bytes += side.bytes;
            let requests = side.requests as f64;
            cells.push(PhaseFigure::throughput(name, side.bytes, side.secs));
            let requests =
                PhaseFigure::rate(&format!("{name} requests"), "IOPS", requests, side.secs);
            cells.push(requests);
        }
    }
    let direction = Direction::write_if(outcome.read.is_none());
    let mut phase = watch.bytes(&format!("fio {}", config.rw), bytes, direction, cells);
    phase.latency = outcome.read.or(outcome.write).map(|side| side.latency);
    Ok(vec![phase])
}

fn mixed_mode(target: &Target, config: &coherence::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let outcomes = coherence::run(target.require_files()?, config)?;
    let steps: u64 = outcomes.iter().map(|o| o.steps).sum();
    let cell = |o: &coherence::CoherenceResult| {
        PhaseFigure::rate(&o.what, "ops/s", o.steps as f64, o.secs)
    };
    let cells = outcomes.iter().map(cell).collect();
    let name = if config.sync {
        "with sync between"
    } else {
        "without sync"
    };
    let phase = watch.operations(name, steps as f64, cells);
    Ok(vec![phase.with_headlines(outcomes.len())])
}

fn solving(target: &Target, config: &solver::Config) -> Result<Vec<Phase>> {
    let watch = Watch::start(target);
    let o = solver::run(target.require_files()?, config)?;
    let total = o.assemble_secs + o.factor_secs + o.solve_secs;
    let cells = vec![
        PhaseFigure::cost("total", "s", total, 1.0),
        PhaseFigure::cost("assemble", "s", o.assemble_secs, 1.0),
        PhaseFigure::cost("factor", "s", o.factor_secs, 1.0),
        PhaseFigure::cost("solve", "s", o.solve_secs, 1.0),
        PhaseFigure::throughput("scratch file", o.bytes, total),
    ];
    Ok(vec![watch.whole("solver", cells)])
}

fn sending(target: &Target, config: &sendfile::Config) -> Result<Vec<Phase>> {
    let prepared = sendfile::Prepared::new(target.path()?, config)?;
    let bytes = config.file * config.passes;
    let one = |way: sendfile::SendMethod| {
        let watch = Watch::start(target);
        let secs = prepared.send(way)?;
        let cells = vec![PhaseFigure::throughput("sent", bytes, secs)];
        Ok(watch.bytes(way.name(), bytes, Direction::Read, cells))
    };
    sendfile::SendMethod::ALL.into_iter().map(one).collect()
}
