//! The server of a cell with `--survive` is killed or restarted again and again while programs use
//! it through OpenAFS's client: they see no error, each byte of a file that was closed is there, and no
//! client sees an older one.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=100` | number of kills of each test (default: 8) |
//! | `EVFS_SEED=N` | repeats the same changes, as far as timing permits |

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tests::afs::{ASK_ALWAYS, Machine, Served};
use tests::mounts::On;
use tests::{Ran, Random, Sandbox, needs_root, wait_until};

/// Options of `afsd.fuse` with which the kernel caches nothing for it.
const UNCACHED: &[&str] = &["-oattr_timeout=0,entry_timeout=0,direct_io"];

/// Most bytes of a file: several windows of OpenAFS's client.
const LEN_MAX: u64 = 300_000;
/// Most files of a program at a time.
const FILES_MAX: usize = 12;
/// Time that no step takes unless the server is killed.
const PAUSE: Duration = Duration::from_millis(300);

/// A program that uses a directory of its own, and knows what must be there. It never syncs: what it
/// has closed counts.
struct Program {
    dir: PathBuf,
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    next: u64,
    steps: u64,
    pauses: Vec<(Duration, &'static str)>,
}

impl Program {
    fn new(dir: PathBuf, seed: u64) -> Program {
        fs::create_dir(&dir).unwrap();
        Program {
            dir,
            random: Random::new(seed),
            files: BTreeMap::new(),
            next: 0,
            steps: 0,
            pauses: Vec::new(),
        }
    }

    fn run_until(&mut self, is_over: &AtomicBool) {
        while !is_over.load(SeqCst) {
            let began = Instant::now();
            let what = self.step();
            let took = began.elapsed();
            if took >= PAUSE {
                self.pauses.push((took, what));
            }
            self.steps += 1;
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.random.below(LEN_MAX) as usize + 1;
        self.random.bytes(len)
    }

    fn new_path(&mut self) -> String {
        self.next += 1;
        format!("file{}", self.next)
    }

    fn any(&mut self) -> Option<String> {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(at).cloned()
    }

    fn step(&mut self) -> &'static str {
        let step = self.random.below(8);
        let any = self.any();
        match (step, any) {
            (0..=2, _) if self.files.len() < FILES_MAX => {
                let (name, bytes) = (self.new_path(), self.bytes());
                fs::write(self.dir.join(&name), &bytes).unwrap();
                self.files.insert(name, bytes);
                "create"
            }
            (3, Some(name)) => {
                let bytes = self.bytes();
                fs::write(self.dir.join(&name), &bytes).unwrap();
                self.files.insert(name, bytes);
                "overwrite"
            }
            (4, Some(name)) => {
                let new = self.new_path();
                fs::rename(self.dir.join(&name), self.dir.join(&new)).unwrap();
                let bytes = self.files.remove(&name).unwrap();
                self.files.insert(new, bytes);
                "rename"
            }
            (5, Some(name)) => {
                fs::remove_file(self.dir.join(&name)).unwrap();
                self.files.remove(&name);
                "remove"
            }
            (6, _) => {
                let name = self.new_path();
                fs::create_dir(self.dir.join(&name)).unwrap();
                fs::remove_dir(self.dir.join(&name)).unwrap();
                "directory"
            }
            (_, Some(name)) => {
                let read = fs::read(self.dir.join(&name)).unwrap();
                assert!(read == self.files[&name], "{name} has other bytes");
                "read"
            }
            (_, None) => "nothing",
        }
    }

    /// Checks everything, seen from another client.
    fn check(&self, dir: &Path) {
        let names = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let known: Vec<&String> = self.files.keys().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), known);
        for (name, bytes) in &self.files {
            let read = fs::read(dir.join(name)).unwrap();
            assert!(read == *bytes, "{name} has other bytes");
        }
    }
}

fn kill_the_server(machine: &Machine<'_>, served: &Served<'_>) -> Duration {
    let server = served.server();
    let began = Instant::now();
    let number = server.to_string();
    Ran::of(machine.command("kill").args(["-KILL", &number])).ok();
    wait_until("another server answers", || {
        served.answering_server().is_some_and(|pid| pid != server)
    });
    began.elapsed()
}

/// Writes numbers through one client, and reads them through another: none is older than the one
/// before. Closing a file does not wait for `afsd.fuse` to store it.
fn pass_numbers(from: &Path, to: &Path, is_over: &AtomicBool) -> u64 {
    let written = AtomicU64::new(0);
    fs::write(from, "00000000").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let number = written.load(SeqCst) + 1;
                fs::write(from, format!("{number:08}")).unwrap();
                written.store(number, SeqCst);
            }
        });
        let mut known = 0;
        while !is_over.load(SeqCst) {
            let read = fs::read_to_string(to).unwrap();
            // Each write truncates the file first.
            if let Ok(number) = read.parse::<u64>()
                && read.len() == 8
            {
                assert!(number >= known, "{number} after {known}");
                known = number;
            }
        }
    });
    written.into_inner()
}

fn programs_do_not_notice(on: On) {
    needs_root("it makes namespaces and mounts");
    let kills = std::env::var("EVFS_TEST_KILLS").map_or(8, |n| n.parse().expect("a number"));
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let machine = Machine::new(&s);
    let device = machine.cell(on, "2G");
    let served = machine.serve_with(device, &["--survive"]);
    let one = machine.mount("one", ASK_ALWAYS);
    let two = machine.mount("two", UNCACHED);
    let mut programs: Vec<Program> = (0..2)
        .map(|n| {
            Program::new(
                one.inside().join(format!("program{n}")),
                random.below(1 << 40),
            )
        })
        .collect();
    fs::write(one.inside().join("numbers"), "0").unwrap();
    let is_over = AtomicBool::new(false);
    let (times, passed) = std::thread::scope(|scope| {
        for program in &mut programs {
            let is_over = &is_over;
            scope.spawn(move || program.run_until(is_over));
        }
        let numbers = (one.inside().join("numbers"), two.inside().join("numbers"));
        let over = &is_over;
        let passed = scope.spawn(move || pass_numbers(&numbers.0, &numbers.1, over));
        let killed = catch_unwind(AssertUnwindSafe(|| {
            let mut times = Vec::new();
            for number in 1..=kills {
                std::thread::sleep(Duration::from_millis(200 + random.below(1500)));
                if number % 4 == 0 {
                    s.run(&["restart"]).ok();
                } else {
                    times.push(kill_the_server(&machine, &served));
                }
            }
            std::thread::sleep(Duration::from_secs(1));
            times
        }));
        is_over.store(true, SeqCst);
        (killed, passed.join())
    });
    println!("{}\n{}", one.said(), two.said());
    let mut times = times.unwrap_or_else(|panic| resume_unwind(panic));
    let passed = passed.unwrap_or_else(|panic| resume_unwind(panic));
    for (n, program) in programs.iter().enumerate() {
        let name = format!("program{n}");
        program.check(&one.inside().join(&name));
        program.check(&two.inside().join(&name));
    }
    let steps: u64 = programs.iter().map(|program| program.steps).sum();
    let mut pauses: Vec<_> = programs.iter().flat_map(|p| p.pauses.clone()).collect();
    pauses.sort_unstable();
    times.sort_unstable();
    println!(
        "{kills} kills, another server after {:?} (median); {steps} steps, {passed} numbers passed; {} \
         steps of more than {PAUSE:?}; longest: {:?}",
        times.get(times.len() / 2),
        pauses.len(),
        pauses.iter().rev().take(5).collect::<Vec<_>>()
    );
    assert!(steps > 0 && passed > 0, "nothing was tried");
    two.unmount();
    one.unmount();
    served.end();
    s.run(&["fsck", device]).ok();
    // What is on the disk is what the clients saw.
    let served = machine.serve(device);
    let three = machine.mount("three", ASK_ALWAYS);
    for (n, program) in programs.iter().enumerate() {
        program.check(&three.inside().join(format!("program{n}")));
    }
    three.unmount();
    served.end();
}

mod needs_peer {
    use super::*;

    #[test]
    fn programs_on_a_clear_cell_do_not_notice_that_the_server_is_killed() {
        programs_do_not_notice(On::Clear);
    }

    #[test]
    fn programs_on_an_encrypted_cell_do_not_notice_that_the_server_is_killed() {
        programs_do_not_notice(On::Encrypted);
    }
}
