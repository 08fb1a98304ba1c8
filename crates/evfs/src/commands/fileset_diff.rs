//! `evfs fileset diff`: the differences between two states of a fileset.

use super::device::DeviceArgs;
use super::names;
use cli::document::Document;
use cli::{Context, output};
use serde::Deserialize;
use serde_json::{Value, json};
use stack::control::FsRequest;
use stack::filesystem::{Differences, request};
use stack::{Result, exit};

/// Arguments of `evfs fileset diff`.
#[derive(clap::Args)]
pub struct DiffArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// First state: a snapshot, or the fileset itself
    #[arg(add = names::filesets())]
    first: String,
    /// Second state: the fileset itself, or another snapshot of it
    #[arg(add = names::filesets())]
    second: String,
}

pub const DIFFERENCES: Document<Differences> = Document::new("evfs/fileset-diff/1");

pub fn run(context: &Context, args: DiffArgs) -> Result<u8> {
    let on = args.on.resolved(context)?;
    let mut all = Vec::new();
    on.with(context, |target| {
        let mut after = None;
        loop {
            let question = FsRequest::Diff {
                first: args.first.clone(),
                second: args.second.clone(),
                after,
            };
            let part = request(target, &question)?;
            let differences = part["differences"].as_array().cloned().unwrap_or_default();
            after = Option::<Vec<u8>>::deserialize(&part["more"]).unwrap_or_default();
            if context.json {
                all.extend(differences);
            } else {
                let lines = differences.iter().map(line);
                lines.for_each(|line| output::line(&output::printable(&line)));
            }
            if after.is_none() {
                return Ok(());
            }
        }
    })?;
    if context.json {
        let all = json!({ "differences": all });
        output::relay(true, &DIFFERENCES, &all, String::new);
    }
    Ok(exit::OK)
}

/// Formats a difference: a letter or a sign, and the path.
fn line(one: &Value) -> String {
    let text = |key: &str| one[key].as_str().unwrap_or_default();
    let slash = if one["directory"] == true { "/" } else { "" };
    let sign = match text("kind") {
        "created" => "+",
        "removed" => "-",
        "renamed" => "R",
        _ => "M",
    };
    let path = format!("/{}", text("path"));
    let path = format!("{}{slash}", path.trim_end_matches('/'));
    match one["from"].as_str() {
        Some(from) => format!("{sign} /{from}{slash} -> {path}"),
        None => format!("{sign} {path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_a_sign_and_a_path() {
        let shown = |kind: &str, path: &str, from: Option<&str>, directory: bool| {
            let one = json!({ "kind": kind, "path": path, "from": from, "directory": directory });
            line(&one)
        };
        assert_eq!(shown("created", "a/b", None, false), "+ /a/b");
        assert_eq!(shown("removed", "a", None, true), "- /a/");
        assert_eq!(shown("renamed", "c", Some("b"), false), "R /b -> /c");
        assert_eq!(shown("changed", "", None, true), "M /");
    }
}
