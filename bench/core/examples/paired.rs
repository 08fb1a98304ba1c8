//! Computes medians of paired ratios with exact intervals, for benchmarks driven by a shell script.
//!
//! Reads one pair per line, `METRIC A B` (separated by blanks, tabs or commas) or
//! `{"metric": "...", "a": 1.0, "b": 2.0}`; skips empty lines and lines that begin with `#`. Prints
//! a Markdown table with one row per metric in order of first appearance; with `--json` one object
//! per metric. The ratio is B / A.
//!
//! ```text
//! printf 'seq-read 100 97\nseq-read 101 99\n' |
//!   cargo run -q -p evfs-bench-core --example paired -- [--json] [--theta 0.05]
//! ```

use bench_core::{Ratio, Verdict, median, paired, verdict};
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

#[derive(serde::Deserialize)]
struct Pair {
    metric: String,
    a: f64,
    b: f64,
}

#[derive(serde::Serialize)]
struct Row {
    metric: String,
    median_a: f64,
    median_b: f64,
    ratio: Ratio,
    verdict: Verdict,
}

struct Options {
    json: bool,
    theta: f64,
}

fn main() -> ExitCode {
    match options().and_then(|o| work(&o)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("paired: {text}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        json: false,
        theta: 0.05,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => options.json = true,
            "--theta" => {
                let value = args.next().and_then(|v| v.parse().ok());
                options.theta = value
                    .filter(|t| *t > 0.0 && *t < 1.0)
                    .ok_or("--theta takes a number between 0 and 1")?;
            }
            other => {
                return Err(format!(
                    "unknown option {other}; expected --json or --theta NUMBER"
                ));
            }
        }
    }
    Ok(options)
}

fn work(options: &Options) -> Result<(), String> {
    let mut metrics: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (number, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|e| e.to_string())?;
        let Some(pair) = parse(&line).map_err(|e| format!("line {}: {e}", number + 1))? else {
            continue;
        };
        match metrics.iter_mut().find(|(name, _)| *name == pair.metric) {
            Some((_, pairs)) => pairs.push((pair.a, pair.b)),
            None => metrics.push((pair.metric, vec![(pair.a, pair.b)])),
        }
    }
    let rows = metrics
        .into_iter()
        .map(|(metric, pairs)| row(metric, &pairs, options.theta));
    print(&rows.collect::<Result<Vec<Row>, String>>()?, options).map_err(|e| e.to_string())
}

fn parse(line: &str) -> Result<Option<Pair>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.starts_with('{') {
        return serde_json::from_str(line)
            .map(Some)
            .map_err(|e| e.to_string());
    }
    let fields: Vec<&str> = line
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|f| !f.is_empty())
        .collect();
    let [metric, a, b] = fields[..] else {
        return Err("expected METRIC A B".into());
    };
    let number = |text: &str| {
        text.parse::<f64>()
            .map_err(|_| format!("`{text}` is not a number"))
    };
    Ok(Some(Pair {
        metric: metric.to_owned(),
        a: number(a)?,
        b: number(b)?,
    }))
}

fn row(metric: String, pairs: &[(f64, f64)], theta: f64) -> Result<Row, String> {
    let unusable = || format!("{metric}: no pair has two positive values");
    let ratio = paired(pairs).ok_or_else(unusable)?;
    let side = |pick: fn(&(f64, f64)) -> f64| {
        median(&pairs.iter().map(pick).collect::<Vec<_>>()).ok_or_else(unusable)
    };
    Ok(Row {
        median_a: side(|p| p.0)?,
        median_b: side(|p| p.1)?,
        verdict: verdict(&ratio, theta),
        ratio,
        metric,
    })
}

fn print(rows: &[Row], options: &Options) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if options.json {
        return rows.iter().try_for_each(|row| {
            serde_json::to_writer(&mut out, row)?;
            writeln!(out)
        });
    }
    writeln!(
        out,
        "| metric | median A | median B | B / A | 95 % interval | pairs | B against A |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for row in rows {
        let r = &row.ratio;
        let interval = match r.interval {
            Some(i) => format!("[{:.3}, {:.3}]", i.low, i.high),
            None => format!("no interval; range {:.3} to {:.3}", r.min, r.max),
        };
        let words = match row.verdict {
            Verdict::Lower => "lower".to_owned(),
            Verdict::Higher => "higher".to_owned(),
            Verdict::Same => format!("no difference within {} %", options.theta * 100.0),
            Verdict::Undecided => "undecided".to_owned(),
            Verdict::NoInterval => "too few pairs".to_owned(),
        };
        writeln!(
            out,
            "| {} | {:.4} | {:.4} | {:.3} | {interval} | {}{} | {words} |",
            row.metric,
            row.median_a,
            row.median_b,
            r.median,
            r.n,
            if r.unusable > 0 {
                format!(" ({} unusable)", r.unusable)
            } else {
                String::new()
            },
        )?;
    }
    Ok(())
}
