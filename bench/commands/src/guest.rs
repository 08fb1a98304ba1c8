//! Sides in guests: the guest of each side, started on first use and kept until the command ends,
//! and the agent, which is this program in the guest.

use bench_core::facts::Accelerator;
use bench_core::{Facts, Target};
use bench_guest::{Disk, Guest, Kernel, Plan, serve};
use bench_load::Processors;
use bench_study::Side;
use bench_targets::{
    BenchDevice, Builder, Built, CALLED, FILES, Recipe, SERVED, bare, machine, program_error,
};
use cli::Context;
use cli::output;
use serde::{Deserialize, Serialize};
use stack::{Error, Result, exit};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// The disk of a guest, under the name in its kernel.
const DISK: &str = "/dev/vda";
const MIB: u64 = 1 << 20;
/// Minimum memory for a kernel and this program, in bytes.
const MEMORY_MIN: u64 = 256 * MIB;

#[derive(clap::Args)]
pub struct GuestArgs {
    /// Kernel image of a guest; its modules are in ../lib/modules/RELEASE, in modules/ beside it,
    /// or in /lib/modules/RELEASE [default: the running kernel, or the newest, in /boot]
    #[arg(long, value_name = "FILE")]
    guest_kernel: Option<PathBuf>,
    /// Accelerator of a guest: kvm, or tcg, which translates instructions [default: kvm if a guest
    /// starts with it, otherwise tcg]
    #[arg(long, value_name = "ACCEL")]
    guest_accel: Option<Accelerator>,
    /// Number of CPUs of a guest [default: the CPUs of this process]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    guest_cpus: Option<u32>,
    /// Memory size of a guest
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = stack::parse_size)]
    guest_memory: u64,
}

/// Side that an agent opens.
#[derive(Serialize, Deserialize)]
struct Open {
    name: String,
    recipe: Recipe,
    /// Bytes of the device to use.
    size: u64,
}

/// The guests of a command.
pub struct Guests<'a> {
    args: &'a GuestArgs,
    /// Creates the disks of stacks that have files.
    builder: Builder<'a>,
    json: bool,
    running: RefCell<Vec<Running>>,
}

struct Running {
    side: String,
    guest: Arc<Guest>,
    /// Its disk, which is locked while the guest runs.
    _bench: Option<Rc<BenchDevice>>,
}

impl<'a> Guests<'a> {
    pub fn new(args: &'a GuestArgs, builder: Builder<'a>, json: bool) -> Guests<'a> {
        Guests {
            args,
            builder,
            json,
            running: RefCell::default(),
        }
    }

    /// Moves a side whose environment is a guest into its guest.
    pub fn place(&self, side: &mut Side, built: &Built) -> Result<()> {
        if side.surroundings.processors != Processors::Guest {
            return Ok(());
        }
        let outside = [
            (!built.target.daemons.is_empty(), "daemons"),
            (built.before.is_some(), "a command before each run"),
            (built.after.is_some(), "a command after each run"),
            (built.target.paths.is_some(), "paths"),
        ];
        if let Some((_, what)) = outside.iter().find(|(there, _)| *there) {
            return Err(Error::Usage(format!(
                "{} has {what} on this machine, which a guest cannot reach; remove that or choose another environment",
                built.name
            )));
        }
        let guest = self.of(built)?;
        let facts = guest.facts();
        side.facts = Facts {
            note: built.facts.note.clone().or(facts.note.clone()),
            ..facts.clone()
        };
        side.target = Target::guest(built.target.name.clone(), guest);
        side.again = None;
        Ok(())
    }

    fn of(&self, built: &Built) -> Result<Arc<Guest>> {
        let mut running = self.running.borrow_mut();
        if let Some(found) = running.iter().find(|r| r.side == built.name) {
            return Ok(Arc::clone(&found.guest));
        }
        let bench = self.bench(built)?;
        let disk = match &bench {
            Some(bench) => Some(disk(bench)?),
            None => None,
        };
        let plan = Plan {
            kernel: Kernel::find(self.args.guest_kernel.as_deref()).map_err(program_error)?,
            accelerator: self.args.guest_accel,
            cpus: self.args.guest_cpus.unwrap_or_else(processors),
            memory_mib: (self.args.guest_memory.max(MEMORY_MIN) / MIB) as u32,
            disk,
            folder: match &built.recipe {
                Recipe::Folder(path) => Some(path.clone()),
                _ => None,
            },
        };
        let open = Open {
            name: built.target.name.clone(),
            recipe: built.recipe.clone(),
            size: match &built.recipe {
                Recipe::Stack(name, _) if has_files(name) => self.builder.files_size,
                _ => self.builder.size,
            },
        };
        let open = serde_json::to_value(open).expect("plain data serializes");
        output::say(self.json, &format!("starting the guest of {}", built.name));
        let guest = Arc::new(Guest::boot(&plan, &open).map_err(program_error)?);
        running.push(Running {
            side: built.name.clone(),
            guest: Arc::clone(&guest),
            _bench: bench,
        });
        Ok(guest)
    }

    /// Returns the bench below a stack: for blocks the shared device, for files one of its own.
    fn bench(&self, built: &Built) -> Result<Option<Rc<BenchDevice>>> {
        let Recipe::Stack(name, _) = &built.recipe else {
            return Ok(None);
        };
        if !has_files(name) {
            return Ok(built.bench.clone());
        }
        self.builder.files_bench().map(Some)
    }
}

fn has_files(stack: &str) -> bool {
    [FILES, CALLED, SERVED]
        .iter()
        .any(|kind| stack.starts_with(kind))
}

fn disk(bench: &BenchDevice) -> Result<Disk> {
    let path = bench.path().expect("shared benches have a file or a disk");
    let path = std::path::absolute(path).map_err(|e| Error::io("cannot resolve", path, e))?;
    Ok(Disk {
        path,
        direct: bench.direct(),
    })
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// `evfs bench agent`: the first process of a guest.
pub fn agent(context: &Context) -> Result<u8> {
    let mut kept = None;
    let done = serve(&mut |open| {
        let open: Open = serde_json::from_value(open.clone()).map_err(|e| {
            bench_core::Error::Spec(format!(
                "incompatible version of the benchmark program: {e}"
            ))
        })?;
        let built = again(context, &open).map_err(|e| bench_core::Error::Spec(e.chain()))?;
        let given = (built.target.clone(), built.facts.clone());
        kept = Some(built);
        Ok(given)
    });
    done.map_err(program_error)?;
    Ok(exit::OK)
}

/// Builds the side that was, or would have been, built outside.
fn again(context: &Context, open: &Open) -> Result<Built> {
    let mut builder = Builder {
        settings: &context.settings,
        device: Some(Path::new(DISK)),
        size: open.size,
        files_size: open.size,
        // The check before overwriting was made outside.
        force: true,
        bench: None,
        for_guests: false,
    };
    match &open.recipe {
        Recipe::Machine => Ok(machine()),
        Recipe::Folder(path) => {
            let target = bench_guest::shared(open.name.clone()).map_err(program_error)?;
            let mut built = bare(target, Recipe::Folder(path.clone()));
            built.facts.note = Some("shared with the guest by 9p, without a cache".into());
            Ok(built)
        }
        Recipe::Stack(name, cache) => {
            let unknown = || Error::Usage(format!("unknown stack {name}"));
            let built = builder.stacks(name, cache).ok_or_else(unknown)??;
            built.into_iter().next().ok_or_else(unknown)
        }
    }
}
