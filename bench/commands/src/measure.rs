//! `evfs bench run` and `compare`: from the command line to planned studies.

use crate::arguments::{CompareArgs, MeasureArgs, Unmatched};
use crate::guest::Guests;
use crate::session::{Planned, Session, Sides, side};
use bench_core::Workload;
use bench_load::{Job, Needs, RunEnvironment};
use bench_report::suite::{Axis, Columns, Part, SUITES, Suite};
use bench_study::Side;
use bench_targets::{Built, assignment, folder, machine, program_error};
use cli::Context;
use stack::{Error, Result};

/// Runs `evfs bench run`.
pub fn run(context: &Context, names: &[String], on: Option<&str>, how: &MeasureArgs) -> Result<u8> {
    let mut builder = how.builder(context);
    // Kept until all studies are done: dropping it removes the directory.
    let mut temporary = None;
    let (suites, workloads): (Vec<String>, Vec<String>) = names
        .iter()
        .cloned()
        .partition(|name| Suite::named(name).is_some());
    let jobs = how.jobs(&workloads, Unmatched::with_suites(&suites))?;
    let needs = |job: &Job| job.entry().needs;
    let scratch = match on {
        None if jobs.iter().any(|job| needs(job) == Needs::Device) => builder.build("clear")?,
        None if jobs.is_empty() && own_side(&suites).is_some() => {
            builder.build(own_side(&suites).expect("checked by the guard"))?
        }
        None => vec![temporary_folder(&mut temporary)?],
        Some(text) => builder.build(text)?,
    };
    let [target] = scratch.as_slice() else {
        return Err(Error::Usage("--target names two sides; choose one".into()));
    };
    let guests = Guests::new(&how.guest, how.builder(context), context.json);
    let mut own_machine = None;
    if !suites.is_empty() && target.target.server.is_some() {
        own_machine = Some(temporary_folder(&mut temporary)?);
    }
    let mut studies = Vec::new();
    for job in jobs {
        let environments = how.environments(target.surroundings);
        studies.push(beside(target, job, how, &environments, &guests)?);
    }
    for name in &suites {
        let suite = Suite::named(name).expect("the suite was found above");
        if !how.env.is_empty() {
            return Err(Error::Usage(format!(
                "{name} defines its own environments; remove --env"
            )));
        }
        studies.extend(match suite.axis {
            Axis::Environments => in_environments(suite, target, own_machine.as_ref(), how, &guests)?,
            Axis::Sides if on.is_some() && workloads.is_empty() => {
                return Err(Error::Usage(format!(
                    "{name} has its own sides; remove --target, or choose two sides: evfs bench compare A B --suite {name}"
                )));
            }
            Axis::Sides => between_own(suite, how)?,
        });
    }
    let control = how.env.len() > 1 || !suites.is_empty();
    Session::new(context, how, control)?.all(studies)
}

/// Finds the default side of suites, if one of them has one.
fn own_side(suites: &[String]) -> Option<&'static str> {
    suites.iter().find_map(|name| Suite::named(name)?.on)
}

/// Plans a study of one target in one or more environments.
fn beside(
    target: &Built,
    job: Job,
    how: &MeasureArgs,
    environments: &[RunEnvironment],
    guests: &Guests<'_>,
) -> Result<Planned> {
    let none = machine();
    let on = match job.entry().needs {
        Needs::Machine => &none,
        _ => target,
    };
    let one = |surroundings: &RunEnvironment| {
        let mut side = side(on, &job, how, &[])?;
        side.surroundings = *surroundings;
        if environments.len() > 1 {
            side.name = surroundings.to_string();
        }
        guests.place(&mut side, on)?;
        Ok(side)
    };
    Ok(Planned {
        sides: Sides::Built(environments.iter().map(one).collect::<Result<_>>()?),
        job,
        part: None,
    })
}

/// Reports whether the report of 1990 ran this job on the server's machine; its other measurements
/// used the served file system.
fn is_of_the_machine(job: &Job) -> bool {
    matches!(job, Job::Micro(_) | Job::Build(_))
}

/// Plans the studies of a suite whose columns are environments. `own_machine`: a directory for jobs
/// of the server's own machine, if the target is a server.
fn in_environments(
    suite: &Suite,
    target: &Built,
    own_machine: Option<&Built>,
    how: &MeasureArgs,
    guests: &Guests<'_>,
) -> Result<Vec<Planned>> {
    let mut studies = Vec::new();
    for (part, columns) in parts(suite) {
        let job = how.part(part)?;
        let environments = columns.surroundings().map_err(program_error)?;
        let on = match own_machine {
            Some(folder) if is_of_the_machine(&job) => folder,
            _ => target,
        };
        let mut study = beside(on, job, how, &environments, guests)?;
        study.part = Some(suite.key(part, columns));
        studies.push(study);
    }
    Ok(studies)
}

/// Plans the studies of a suite between the sides that it names itself.
fn between_own(suite: &Suite, how: &MeasureArgs) -> Result<Vec<Planned>> {
    let mut studies = Vec::new();
    for (part, columns) in parts(suite) {
        if columns.sides.is_empty() {
            let name = suite.name;
            return Err(Error::Usage(format!(
                "{name} compares two sides of your choice: evfs bench compare A B --suite {name}"
            )));
        }
        studies.push(Planned {
            sides: Sides::Named(columns.sides),
            job: how.part(part)?,
            part: Some(suite.key(part, columns)),
        });
    }
    Ok(studies)
}

fn parts(suite: &Suite) -> impl Iterator<Item = (&Part, &Columns)> {
    let parts = suite.parts.iter();
    parts.flat_map(|part| part.columns.iter().map(move |columns| (part, columns)))
}

/// Runs `evfs bench compare`.
pub fn compare(context: &Context, args: &CompareArgs) -> Result<u8> {
    let how = &args.how;
    let mut builder = how.builder(context);
    let base = builder.build(&args.base)?;
    let mut sides = vec![
        base.into_iter()
            .next()
            .expect("a text names at least one side"),
    ];
    sides.extend(builder.build(&args.other)?);
    for n in 1..sides.len() {
        if sides[..n].iter().any(|s| s.name == sides[n].name) {
            // The same place with other parameters.
            sides[n].name = format!("{} ({})", sides[n].name, n + 1);
        }
    }
    let control = !args.no_control;
    let again = builder.again(&sides[0], &args.base, control)?;
    let more = [assignments(&args.set_a)?, assignments(&args.set_b)?];
    let all = |job: &Job| {
        let own = sides.iter().enumerate();
        let own = own.map(|(n, built)| side(built, job, how, &more[n.min(1)]));
        let mut own = own.collect::<Result<Vec<Side>>>()?;
        own[0].again = again.as_ref().map(|built| built.target.clone());
        Ok::<_, Error>(own)
    };
    let guests = Guests::new(&how.guest, how.builder(context), context.json);
    let placed = |mut own: Vec<Side>| {
        let mut each = own.iter_mut().zip(&sides);
        each.try_for_each(|(side, built)| guests.place(side, built))?;
        Ok::<_, Error>(own)
    };
    let mut studies = Vec::new();
    for name in &args.suite {
        let suite = Suite::named(name).ok_or_else(|| unknown_suite(name))?;
        if suite.axis != Axis::Sides {
            return Err(Error::Usage(format!(
                "{name} has one side, so there is nothing to compare; use `evfs bench run {name}`"
            )));
        }
        for (part, columns) in parts(suite).filter(|(_, columns)| columns.choice) {
            let job = how.part(part)?;
            studies.push(Planned {
                sides: Sides::Built(placed(all(&job)?)?),
                job,
                part: Some(suite.key(part, columns)),
            });
        }
    }
    let unmatched = Unmatched::with_suites(&args.suite);
    for job in how.jobs(&wanted(args, &sides), unmatched)? {
        let own = all(&job)?;
        for surroundings in &how.env {
            let mut own = own.clone();
            let around = |side: &mut Side| side.surroundings = *surroundings;
            own.iter_mut().for_each(around);
            studies.push(Planned {
                sides: Sides::Built(placed(own)?),
                job: job.clone(),
                part: None,
            });
        }
        if how.env.is_empty() {
            studies.push(Planned {
                sides: Sides::Built(placed(own)?),
                job,
                part: None,
            });
        }
    }
    Session::new(context, how, control)?.all(studies)
}

/// Selects the requested workloads, or those that fit the sides.
fn wanted(args: &CompareArgs, sides: &[Built]) -> Vec<String> {
    let fitting = || {
        if sides[0].is_device() {
            Workload::ALL.map(|w| w.name().to_owned()).to_vec()
        } else {
            ["seqrand", "mailmix", "nfsbasic"]
                .map(str::to_owned)
                .to_vec()
        }
    };
    if args.workload.is_empty() && args.suite.is_empty() {
        fitting()
    } else {
        args.workload.clone()
    }
}

fn unknown_suite(name: &str) -> Error {
    let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    Error::Usage(format!(
        "unknown suite `{name}`; expected one of {}",
        names.join(", ")
    ))
}

fn assignments(texts: &[String]) -> Result<Vec<(String, String)>> {
    texts.iter().map(|text| assignment(text)).collect()
}

/// Creates a directory for jobs that need nothing else. Its name is constant, so that an
/// interrupted study can be resumed.
fn temporary_folder(kept: &mut Option<tempfile::TempDir>) -> Result<Built> {
    let dir = tempfile::tempdir()
        .map_err(|e| Error::Failed(format!("cannot create a temporary directory: {e}")))?;
    let mut built = folder(kept.insert(dir).path())?;
    built.name = "a temporary folder".into();
    built.target.name.clone_from(&built.name);
    Ok(built)
}
