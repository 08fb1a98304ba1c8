//! `build`: generates a C program, compiles and links it with `make`, runs it, and runs `make`
//! again with nothing to do.
//!
//! The tree is generated from a seed, so every target builds the same files: sources of a few
//! hundred lines that include common headers, in directories of 25. The program sums the results of
//! its own functions, and the sum is known. A build is CPU-bound: a file system many times slower
//! makes it a few percent slower (Traeger, Zadok, Joukov, Wright 2008), so it is never the headline
//! of a claim about storage.

use super::programs::output;
use bench_core::rng::Rng;
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Source files per directory.
const FOLDER: usize = 25;
const FUNCTIONS: usize = 12;

/// Size of the build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of source files.
    pub files: usize,
    /// Number of concurrent compilers.
    pub jobs: usize,
    /// Seed of the tree.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            files: 300,
            jobs: 2,
            seed: 1,
        }
    }
}

/// The parts of a build in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Writes the tree.
    Unpack,
    /// Compiles and links everything, and runs the program.
    Build,
    /// Runs `make` with nothing to do: it checks all files.
    Again,
    /// Removes the build products.
    Clean,
}

impl Part {
    /// All parts in order.
    pub const ALL: [Part; 4] = [Part::Unpack, Part::Build, Part::Again, Part::Clean];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Part::Unpack => "unpack",
            Part::Build => "build",
            Part::Again => "nothing to do",
            Part::Clean => "clean",
        }
    }
}

/// A source tree in memory.
pub struct Tree {
    files: Vec<(String, String)>,
    /// Expected output of the program.
    answer: u32,
    jobs: usize,
}

impl Tree {
    /// Generates the tree of a configuration.
    ///
    /// # Errors
    /// [`Error::Spec`] for values out of range.
    pub fn new(config: &Config) -> Result<Tree> {
        if !(1..=10_000).contains(&config.files) || !(1..=1024).contains(&config.jobs) {
            return Err(Error::Spec(
                "files must be 1 to 10000, and jobs 1 to 1024".into(),
            ));
        }
        let mut rng = Rng::new(config.seed);
        let mut files = vec![("all.h".to_owned(), header(config.files))];
        let mut answer = 0u32;
        for n in 0..config.files {
            let (text, value) = source(n, &mut rng);
            answer = answer.wrapping_add(value);
            files.push((path(n), text));
        }
        files.push(("main.c".to_owned(), main_file(config.files)));
        files.push(("Makefile".to_owned(), makefile(config.files)));
        Ok(Tree {
            files,
            answer,
            jobs: config.jobs,
        })
    }

    /// Returns the number of files and their total size in bytes.
    pub fn size(&self) -> (usize, u64) {
        let bytes = self.files.iter().map(|(_, text)| text.len() as u64).sum();
        (self.files.len(), bytes)
    }

    /// Performs a part in the directory `at`, which [`Part::Unpack`] creates.
    ///
    /// # Errors
    /// [`Error::Program`] if `make` or `cc` is missing, a file cannot be written, or the program
    /// prints a wrong result.
    pub fn part(&self, at: &Path, part: Part) -> Result<()> {
        let jobs = format!("-j{}", self.jobs);
        match part {
            Part::Unpack => self.unpack(at).map_err(|e| failed(at, e.to_string())),
            Part::Build => {
                make(at, &[&jobs])?;
                let printed = output(&mut Command::new(at.join("program")), "the built program")?;
                let wanted = format!("{}\n", self.answer);
                if printed == wanted.as_bytes() {
                    Ok(())
                } else {
                    Err(failed(
                        at,
                        "the built program printed a wrong result".into(),
                    ))
                }
            }
            Part::Again => make(at, &[&jobs]),
            Part::Clean => make(at, &["clean"]),
        }
    }

    fn unpack(&self, at: &Path) -> std::io::Result<()> {
        fs::create_dir(at)?;
        for (name, text) in &self.files {
            let path = at.join(name);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(path, text)?;
        }
        Ok(())
    }
}

fn make(at: &Path, arguments: &[&str]) -> Result<()> {
    let mut make = Command::new("make");
    // Flags of a `make` that runs this program must not affect the build.
    make.env_remove("MAKEFLAGS").env_remove("MFLAGS");
    make.arg("-s").args(arguments).current_dir(at);
    output(&mut make, "make").map(drop)
}

fn failed(at: &Path, detail: String) -> Error {
    Error::Program {
        what: "build".into(),
        detail: format!("{}: {detail}", at.display()),
    }
}

fn path(n: usize) -> String {
    format!("part{}/unit{n}.c", n / FOLDER)
}

fn header(files: usize) -> String {
    let mut text = String::from(
        "#ifndef ALL_H\n#define ALL_H\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n",
    );
    for n in 0..files {
        let _ = writeln!(text, "uint32_t unit{n}(void);");
    }
    text + "#endif\n"
}

/// Generates a source file and the return value of its function.
fn source(n: usize, rng: &mut Rng) -> (String, u32) {
    let mut text = String::from("#include \"../all.h\"\n\n");
    let mut value = n as u32;
    for f in 0..FUNCTIONS {
        let (add, times) = (rng.next_u64() as u32, rng.next_u64() as u32 | 1);
        let turn = 1 + rng.below(31);
        let _ = write!(
            text,
            "static uint32_t step{f}(uint32_t value)\n{{\n    uint32_t table[8];\n    unsigned i;\n\n    \
             for (i = 0; i < 8; i++)\n        table[i] = value + i * {add}u;\n    \
             for (i = 0; i < 64; i++)\n        table[i % 8] = table[(i + 1) % 8] * {times}u ^ (table[i % 8] << {turn});\n    \
             return table[0] + table[7];\n}}\n\n"
        );
        value = step(value, add, times, turn);
    }
    let calls = (0..FUNCTIONS).fold("SEED".to_owned(), |inner, f| format!("step{f}({inner})"));
    let _ = write!(
        text,
        "uint32_t unit{n}(void)\n{{\n    return {};\n}}\n",
        calls.replace("SEED", &format!("{n}u"))
    );
    (text, value)
}

/// Computes the result of a generated C function in Rust.
fn step(value: u32, add: u32, times: u32, turn: u32) -> u32 {
    let mut table = [0u32; 8];
    for i in 0..8u32 {
        table[i as usize] = value.wrapping_add(i.wrapping_mul(add));
    }
    for i in 0..64 {
        table[i % 8] = table[(i + 1) % 8].wrapping_mul(times) ^ (table[i % 8] << turn);
    }
    table[0].wrapping_add(table[7])
}

fn main_file(files: usize) -> String {
    let mut text = String::from("#include \"all.h\"\n\nint main(void)\n{\n    uint32_t sum = 0;\n");
    for n in 0..files {
        let _ = writeln!(text, "    sum += unit{n}();");
    }
    text + "    printf(\"%u\\n\", sum);\n    return 0;\n}\n"
}

fn makefile(files: usize) -> String {
    let objects: Vec<String> = (0..files).map(|n| path(n).replace(".c", ".o")).collect();
    format!(
        "CFLAGS = -O1\nOBJECTS = main.o {}\n\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n\n\
         $(OBJECTS): all.h\n\nclean:\n\trm -f program $(OBJECTS)\n",
        objects.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    mod needs_peer {
        use super::*;

        #[test]
        fn the_tree_builds_and_the_program_gives_the_known_answer() {
            test_support::installed("make");
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join("tree");
            let config = Config {
                files: 30,
                ..Config::default()
            };
            let tree = Tree::new(&config).unwrap();
            assert_eq!(tree.size().0, 33);
            for part in Part::ALL {
                tree.part(&at, part).unwrap();
                let built = at.join("part1/unit29.o").exists();
                assert_eq!(built, matches!(part, Part::Build | Part::Again), "{part:?}");
            }
            let wrong = Tree {
                answer: tree.answer + 1,
                ..tree
            };
            assert!(wrong.part(&at, Part::Build).is_err());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tree() {
        let tree = |seed| {
            let config = Config {
                files: 3,
                seed,
                ..Config::default()
            };
            Tree::new(&config).unwrap().files
        };
        assert_eq!(tree(1), tree(1));
        assert_ne!(tree(1), tree(2));
    }
}
