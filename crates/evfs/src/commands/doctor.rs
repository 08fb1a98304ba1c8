//! `evfs doctor`: checks of the machine, of the configuration and of volumes.

use super::doctor_cluster;
use cli::Context;
use cli::document::Document;
use cli::output::{self, printable};
use schemars::JsonSchema;
use serde::Serialize;
use stack::Result;
use stack::doctor::{Finding, Report, Request, Severity, Tally, examine};
use std::fmt::Write as _;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs doctor                             check everything that this user knows
  evfs doctor disk.img                    check the machine, the configuration and one volume
  evfs doctor --config /etc/evfs/up.toml  check the tables of a configuration file, too
  evfs doctor --problems                  show only warnings and errors
  evfs doctor --json

Exit codes: 0 no warnings and no errors, 26 errors, 27 warnings but no errors.")]
pub struct Args {
    /// Names of attached or configured volumes, or DEVICEs, or UUIDs of known volumes [default: all
    /// that are attached, configured or known to the trust store]
    #[arg(value_name = "NAME|DEVICE")]
    names: Vec<PathBuf>,
    /// Configuration file of `evfs up` to check, in addition to those in use; may be repeated
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Show only warnings and errors; with --json, too
    #[arg(long)]
    problems: bool,
}

/// Result of all checks.
#[derive(Serialize, JsonSchema)]
pub struct Diagnosis<'a> {
    /// Version of the program.
    version: &'static str,
    /// Findings, grouped by area.
    findings: &'a [&'a Finding],
    /// Number of findings of each severity, including those that --problems omits.
    tally: Tally,
    /// Severity of the worst finding.
    worst: Severity,
    /// The result in a sentence.
    verdict: String,
}

pub const DIAGNOSIS: Document<Diagnosis<'static>> = Document::new("evfs/doctor/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let request = Request {
        names: &args.names,
        configs: &args.config,
    };
    let report = examine(&request, &context.settings, &|tables| {
        doctor_cluster::check(&context.settings, tables)
    })?;
    let is_shown = |finding: &&Finding| !args.problems || finding.severity >= Severity::Warning;
    let shown: Vec<&Finding> = report.findings.iter().filter(is_shown).collect();
    let content = Diagnosis {
        version: stack::VERSION,
        findings: &shown,
        tally: report.tally(),
        worst: report.worst(),
        verdict: report.verdict(),
    };
    output::show(context.json, &DIAGNOSIS, &content, || {
        describe(&shown, &report)
    });
    Ok(report.exit_code())
}

fn describe(shown: &[&Finding], report: &Report) -> String {
    let mut text = String::new();
    let mut area = "";
    for finding in shown {
        if finding.area != area {
            let gap = if area.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{}", heading(finding.area));
            area = finding.area;
        }
        let object = finding.object.as_deref();
        let object = object.map_or(String::new(), |object| format!("{object}: "));
        let mut line = |indent: &str, words: &str| {
            let _ = writeln!(text, "{indent}{}", printable(&words.replace('\n', " ")));
        };
        let what = format!("{object}{}  [{}]", finding.what, finding.id);
        line(&format!("  {:<8} ", finding.severity.name()), &what);
        let indent = " ".repeat(11);
        if let Some(why) = &finding.why {
            line(&indent, why);
        }
        if let Some(remedy) = &finding.remedy {
            line(&indent, &format!("remedy: {remedy}"));
        }
        if let Some(command) = &finding.command {
            line(&indent, &format!("$ {command}"));
        }
    }
    let gap = if area.is_empty() { "" } else { "\n" };
    let _ = write!(text, "{gap}{}", report.verdict());
    text
}

fn heading(area: &str) -> &str {
    match area {
        "machine" => "Machine",
        "config" => "Configuration",
        "volume" => "Volumes",
        "lun" => "Paths",
        "space" => "Free space",
        "service" => "Services",
        "cluster" => "Cluster",
        other => other,
    }
}
