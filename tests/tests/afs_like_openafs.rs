//! The same operations on our server and on OpenAFS's, through the same clients: their results and
//! the calls they make. The differences are listed in `docs/protocol/afs.md` with their reasons.

use std::fs;
use std::path::{Path, PathBuf};
use tests::afs::wire::{MARKS, Recording, Step};
use tests::afs::{ADDRESS, Machine};
use tests::mounts::On;
use tests::{PATIENCE, Ran, Sandbox, needs_root};

/// The page, and the heading of its table.
const PAGE: &str = include_str!("../../docs/protocol/afs.md");
const TABLE: &str = "\n## What differs from OpenAFS\n";

/// An operation, its result, and its calls.
#[derive(Debug, PartialEq, Eq)]
struct Op {
    name: String,
    result: String,
    calls: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Afsd,
    Kafs,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Afsd => "afsd.fuse",
            By::Kafs => "kafs",
        }
    }
}

/// Runs all operations in a client.
fn operate(s: &Sandbox, machine: &Machine<'_>, by: By) -> Vec<Op> {
    let program = Path::new(env!("CARGO_BIN_EXE_afs_ops"));
    let recording = Recording::start(machine, by.name(), program);
    let printed = match by {
        By::Afsd => {
            let client = machine.mount("one", &["-oattr_timeout=0,entry_timeout=0"]);
            let mut ops = machine.command(program);
            ops.arg(client.folder()).arg(format!("{ADDRESS}:{MARKS}"));
            ops.arg(client.volume("small")).arg(client.volume("locked"));
            let printed = Ran::of(&mut ops).ok().stdout;
            client.unmount();
            printed
        }
        By::Kafs => {
            let share = s.path("share");
            fs::create_dir(&share).unwrap();
            let programs = [PathBuf::from(program)];
            let ran = machine.guest(
                "linux-image-6.12-amd64",
                "kafs_ops.sh",
                &share,
                &programs,
                PATIENCE,
            );
            ran.ok().stdout
        }
    };
    let steps = recording.up_to("end");
    let lines = ["mount: done"].into_iter().chain(printed.lines());
    let mut ops: Vec<Op> = lines.map(|line| op(line, &steps)).collect();
    if by == By::Afsd {
        // The client stores at an arbitrary time after its program has closed the file.
        let stores = |call: &String| call.starts_with("StoreData64");
        let all = ops
            .iter_mut()
            .flat_map(|op| op.calls.extract_if(.., |call| stores(call)));
        let calls = all.collect();
        let (name, result) = ("all stores".into(), "done".into());
        ops.push(Op {
            name,
            result,
            calls,
        });
    }
    ops
}

fn op(line: &str, steps: &[Step]) -> Op {
    let (name, result) = line.split_once(": ").expect("an operation and its result");
    let step = steps.iter().find(|step| step.name == name);
    let result = result.split(" (os error").next().unwrap_or_default();
    // Servers call clients at arbitrary times; the effect of these calls is visible in the others.
    let of_client = |call: &&String| !call.starts_with("CB ");
    let calls = step.expect("it was marked").calls.iter();
    Op {
        name: name.to_owned(),
        result: result.to_owned(),
        calls: calls.filter(of_client).cloned().collect(),
    }
}

/// Returns the rows of the table, without the reasons, for two runs.
fn rows(by: By, openafs: &[Op], ours: &[Op]) -> Vec<String> {
    assert_eq!(openafs.len(), ours.len());
    let mut rows = Vec::new();
    for (theirs, ours) in openafs.iter().zip(ours) {
        assert_eq!(theirs.name, ours.name);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        if theirs.result != ours.result {
            left.push(theirs.result.clone());
            right.push(ours.result.clone());
        }
        if theirs.calls != ours.calls {
            left.push(theirs.calls.join(", "));
            right.push(ours.calls.join(", "));
        }
        if !left.is_empty() {
            let (left, right) = (left.join("; "), right.join("; "));
            let name = &theirs.name;
            rows.push(format!("| {} | {name} | {left} | {right} |", by.name()));
        }
    }
    rows
}

#[test]
fn operations_end_as_with_openafs_and_take_the_same_calls() {
    needs_root("it makes namespaces and mounts");
    let (ours, theirs) = (Sandbox::new(), Sandbox::new());
    let our_machine = Machine::new(&ours);
    let device = our_machine.cell(On::Clear, "1G");
    let served = our_machine.serve(device);
    let their_machine = Machine::new(&theirs);
    their_machine.openafs();
    let mut differ = Vec::new();
    for by in [By::Afsd, By::Kafs] {
        let run = |s, machine| operate(s, machine, by);
        let theirs = run(&theirs, &their_machine);
        let ours = run(&ours, &our_machine);
        println!("{}: {theirs:#?}", by.name());
        differ.extend(rows(by, &theirs, &ours));
    }
    served.end();
    let table = PAGE.split_once(TABLE).expect("the table").1;
    let table = table.split("\n## ").next().expect("its end");
    let is_known = |row: &String| table.lines().any(|line| line.starts_with(row.as_str()));
    let unknown: Vec<&String> = differ.iter().filter(|row| !is_known(row)).collect();
    let known = table.lines().filter(|line| {
        let by = line.split(" | ").next().unwrap_or_default();
        by == "| afsd.fuse" || by == "| kafs"
    });
    let is_so = |line: &&str| differ.iter().any(|row| line.starts_with(row));
    let gone: Vec<&str> = known.filter(|line| !is_so(line)).collect();
    let rows = |rows: &[&String]| rows.iter().map(|r| format!("{r}\n")).collect::<String>();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "what differs and is not in the table:\n{}\nwhat is in the table and does not differ:\n{}",
        rows(&unknown),
        gone.join("\n")
    );
}
