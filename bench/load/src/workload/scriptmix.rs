//! `scriptmix`, modeled on SPEC's SDET (SDM 1991): users that each run scripts of the same small
//! commands in different orders, without think time; measures scripts per hour by number of users.
//!
//! ```text
//!   create directories   │ release ─► user 1: script, script, ... │ remove directories
//!        untimed         │            user N: script, script, ... │      untimed
//!                        ├── until the last user is done ─────────┤
//! ```
//!
//! The commands are available on any Linux (`cp`, `sed`, `grep`, `find`, `sort`, `tar`, `cc`, ...)
//! and work on a C program that is part of this workload, in a separate directory per user. The
//! order is drawn from the seed, the user and the script, so two targets run the same orders. The
//! original's scripts are licensed and not included: results of this mix compare only with one
//! another.

use super::programs::shell;
use bench_core::rng::Rng;
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

/// Initial files of a user's directory.
const SOURCES: [(&str, &str); 3] = [
    (
        "count.h",
        "#ifndef COUNT_H\n#define COUNT_H\nunsigned long count(const char *text);\n#endif\n",
    ),
    (
        "count.c",
        "#include \"count.h\"\nunsigned long count(const char *text)\n{\n    unsigned long n = 0;\n    \
         while (*text)\n        n = n * 31 + (unsigned char)*text++;\n    return n;\n}\n",
    ),
    (
        "main.c",
        "#include <stdio.h>\n#include \"count.h\"\nint main(int n, char **words)\n{\n    \
         printf(\"%lu\\n\", count(n > 1 ? words[1] : \"none\"));\n    return 0;\n}\n",
    ),
];

/// The steps of a script. Each derives its files from `src` and leaves nothing that another step
/// needs, so every order works.
const STEPS: [&str; 20] = [
    "mkdir edit && sed 's/31/33/' src/count.c >edit/count.c && cp src/*.h edit && rm -r edit",
    "mkdir build && cc -O1 -c -o build/count.o src/count.c && rm -r build",
    "mkdir link && cc -O1 -o link/count src/count.c src/main.c && link/count word && rm -r link",
    "grep -n count src/*.c src/*.h",
    "find . -name '*.c' -print",
    "ls -lR .",
    "cp -r src copy && rm -r copy",
    "mkdir mv && cp src/main.c mv/a && mv mv/a mv/b && rm -r mv",
    "sort text >sorted && rm sorted",
    "wc text src/*.c",
    "tr a-z A-Z <text >upper && cmp -s text upper || rm upper",
    "cp text text.old && diff text text.old && rm text.old",
    "tar cf all.tar src text && tar tf all.tar && rm all.tar",
    "mkdir out && tar cf - src | (cd out && tar xf -) && rm -r out",
    "cat text >>mail && wc -c mail",
    "cut -d' ' -f1 text | sort | uniq -c >words && rm words",
    "touch one two three && chmod 600 one two && rm one two three",
    "mkdir -p a/b/c/d && rmdir a/b/c/d a/b/c a/b a",
    "head -n 20 text >part && tail -n 5 part && rm part",
    "ln -s src/main.c name && cat name >/dev/null && rm name",
];

/// Numbers of users, and the work of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Numbers of users, one point of the curve each.
    pub users: Vec<usize>,
    /// Scripts per user.
    pub scripts: u64,
    /// Lines of each user's text, about 60 bytes each.
    pub lines: u64,
    /// Seed of the orders and texts.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            users: vec![1, 2, 4, 8],
            scripts: 5,
            lines: 2000,
            seed: 1,
        }
    }
}

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalingPoint {
    /// Number of users.
    pub users: usize,
    /// Scripts of all users together.
    pub scripts: u64,
    /// Seconds until the last user finished.
    pub secs: f64,
}

impl ScalingPoint {
    /// Returns scripts per hour.
    pub fn per_hour(&self) -> f64 {
        self.scripts as f64 / self.secs * 3600.0
    }
}

/// Checks whether the configuration is within its limits.
///
/// # Errors
/// [`Error::Spec`] if it is not.
pub fn check(config: &Config) -> Result<()> {
    let users = !config.users.is_empty() && config.users.iter().all(|n| (1..=1000).contains(n));
    if users && config.scripts > 0 && config.lines <= 1_000_000 {
        return Ok(());
    }
    Err(Error::Spec(
        "users must be 1 to 1000, scripts at least 1, and lines at most 1000000".into(),
    ))
}

/// Measures one number of users in `folder` and removes its own files afterwards.
///
/// # Errors
/// [`Error::Spec`] for an invalid configuration; [`Error::Program`] for a step that fails, with its
/// error output.
pub fn point(folder: &Path, config: &Config, users: usize) -> Result<ScalingPoint> {
    check(config)?;
    let homes: Vec<_> = (0..users)
        .map(|user| folder.join(format!("scriptmix.{user}")))
        .collect();
    let prepared = homes
        .iter()
        .enumerate()
        .try_for_each(|(user, home)| move_in(home, config, user as u64));
    let timed = prepared.and_then(|()| work(&homes, config));
    // Even after a failure: the next run begins with an empty directory.
    for home in homes.iter().filter(|home| home.exists()) {
        fs::remove_dir_all(home).map_err(|e| failed(home, &e))?;
    }
    let secs = timed?;
    Ok(ScalingPoint {
        users,
        scripts: users as u64 * config.scripts,
        secs,
    })
}

fn work(homes: &[std::path::PathBuf], config: &Config) -> Result<f64> {
    let gate = Barrier::new(homes.len() + 1);
    std::thread::scope(|scope| {
        let users: Vec<_> = homes
            .iter()
            .enumerate()
            .map(|(user, home)| {
                let gate = &gate;
                scope.spawn(move || {
                    gate.wait();
                    (0..config.scripts).try_for_each(|n| script(home, config.seed, user as u64, n))
                })
            })
            .collect();
        gate.wait();
        let began = Instant::now();
        let done: Vec<Result<()>> = users
            .into_iter()
            .map(|user| user.join().expect("a user's thread does not panic"))
            .collect();
        let secs = began.elapsed().as_secs_f64();
        done.into_iter().collect::<Result<()>>().map(|()| secs)
    })
}

fn script(home: &Path, seed: u64, user: u64, number: u64) -> Result<()> {
    order(seed, user, number)
        .into_iter()
        .try_for_each(|step| shell(home, STEPS[step], &[]))
}

/// Draws the steps of one script in order.
fn order(seed: u64, user: u64, number: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..STEPS.len()).collect();
    Rng::stream(seed, user << 32 | number).shuffle(&mut order);
    order
}

fn move_in(home: &Path, config: &Config, user: u64) -> Result<()> {
    let put = |name: &str, content: &[u8]| {
        let path = home.join(name);
        fs::write(&path, content).map_err(|e| failed(&path, &e))
    };
    fs::create_dir_all(home.join("src")).map_err(|e| failed(home, &e))?;
    for (name, content) in SOURCES {
        put(&format!("src/{name}"), content.as_bytes())?;
    }
    put("text", text(config, user).as_bytes())
}

fn text(config: &Config, user: u64) -> String {
    let mut rng = Rng::stream(config.seed, 1 << 48 | user);
    let words = ["disk", "page", "record", "file", "cache", "path", "key"];
    let line = |rng: &mut Rng| {
        let word = words[rng.below(words.len() as u32) as usize];
        format!(
            "{word} {:016x} {:016x} {word}\n",
            rng.next_u64(),
            rng.next_u64()
        )
    };
    (0..config.lines).map(|_| line(&mut rng)).collect()
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::Program {
        what: "scriptmix".into(),
        detail: format!("{}: {e}", path.display()),
    }
}

/// Gunther's Universal Scalability Law, `X(N) = λN / (1 + σ(N-1) + κN(N-1))`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// λ: rate of one user.
    pub lambda: f64,
    /// σ, contention: the fraction of work that is serialized.
    pub sigma: f64,
    /// κ, coherence: the cost of interaction per pair of users.
    pub kappa: f64,
}

impl Scaling {
    /// Fits the law to (users, rate) points by least squares of the relative errors of N / X, which
    /// is linear in the law's terms. `None` for fewer than three different numbers of users.
    pub fn fit(points: &[(f64, f64)]) -> Option<Scaling> {
        // Normal equations for rows (1, N-1, N(N-1)) / y and right-hand side 1, where y = N / X.
        let mut m = [[0.0; 4]; 3];
        for &(n, x) in points.iter().filter(|(n, x)| *n > 0.0 && *x > 0.0) {
            let y = n / x;
            let row = [1.0 / y, (n - 1.0) / y, n * (n - 1.0) / y, 1.0];
            for i in 0..3 {
                for j in 0..4 {
                    m[i][j] += row[i] * row[j];
                }
            }
        }
        let [a, b, c] = solve(m)?;
        (a > 0.0).then(|| Scaling {
            lambda: 1.0 / a,
            sigma: b / a,
            kappa: c / a,
        })
    }

    /// Computes the number of users with the highest rate, if the curve has a peak.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0 && self.sigma < 1.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt())
    }
}

/// Solves a linear system by Gaussian elimination with pivoting; `None` if it has no unique
/// solution.
fn solve(mut m: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    let scale = m.iter().flatten().fold(0.0_f64, |a, b| a.max(b.abs()));
    for i in 0..3 {
        let largest = (i..3).max_by(|&a, &b| m[a][i].abs().total_cmp(&m[b][i].abs()))?;
        m.swap(i, largest);
        if m[i][i].abs() <= 1e-12 * scale {
            return None;
        }
        for row in 0..3 {
            if row != i {
                let pivot = m[i];
                let factor = m[row][i] / pivot[i];
                for (value, above) in m[row].iter_mut().zip(pivot).skip(i) {
                    *value -= factor * above;
                }
            }
        }
    }
    Some([m[0][3] / m[0][0], m[1][3] / m[1][1], m[2][3] / m[2][2]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_curve_gives_back_its_terms() {
        let law = |n: f64| 100.0 * n / (1.0 + 0.05 * (n - 1.0) + 0.002 * n * (n - 1.0));
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
            .map(|n| (n, law(n)))
            .to_vec();
        let fit = Scaling::fit(&points).unwrap();
        assert!((fit.lambda - 100.0).abs() < 1e-6, "{fit:?}");
        assert!((fit.sigma - 0.05).abs() < 1e-6, "{fit:?}");
        assert!((fit.kappa - 0.002).abs() < 1e-7, "{fit:?}");
        assert!((fit.peak().unwrap() - (0.95_f64 / 0.002).sqrt()).abs() < 1e-3);
        assert_eq!(Scaling::fit(&points[..2]), None);
        assert_eq!(Scaling::fit(&[(4.0, 1.0); 5]), None);
    }

    #[test]
    fn every_script_has_every_step_once_in_an_order_of_its_own() {
        let orders: Vec<Vec<usize>> = (0..4).map(|n| order(1, n / 2, n % 2)).collect();
        for one in &orders {
            let mut sorted = one.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..STEPS.len()));
        }
        assert!((1..4).all(|n| orders[n] != orders[0]));
        assert_eq!(order(1, 1, 1), orders[3]);
    }

    #[test]
    fn users_do_their_scripts_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            scripts: 1,
            lines: 50,
            ..Config::default()
        };
        let outcome = point(dir.path(), &config, 2).unwrap();
        assert!(outcome.scripts == 2 && outcome.secs > 0.0, "{outcome:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
