//! `evfs status`: attached volumes, mounted file systems and served cells.

use cli::Context;
use cli::output;
use serde_json::{Value, json};
use stack::{Result, control, exit};
use std::fmt::Write as _;

pub fn run(context: &Context) -> Result<u8> {
    let all = control::statuses(&context.settings.run_dir())?;
    let silent = |(name, status): (String, Result<Value>)| {
        status.unwrap_or_else(
            |error| json!({ "name": name, "state": "not answering", "error": error.chain() }),
        )
    };
    let volumes: Vec<Value> = all.into_iter().map(silent).collect();
    output::show(context.json, &json!({ "volumes": volumes }), || {
        if volumes.is_empty() {
            return "nothing is attached or mounted".into();
        }
        volumes.iter().map(describe).collect::<Vec<_>>().join("\n")
    });
    Ok(exit::OK)
}

fn describe(v: &Value) -> String {
    let text = |key: &str| v[key].as_str().unwrap_or("-").to_owned();
    if let Some(error) = v["error"].as_str() {
        return format!("{}  {}\n    {error}\n", text("name"), text("state"));
    }
    let cipher = match v["key_bits"].as_u64() {
        Some(bits) => format!("aes-{bits}-xts ({})", text("kernel")),
        None => "clear".into(),
    };
    let mut out = format!(
        "{}  {}  {}  {cipher}  {} threads  pid {}{}{}\n",
        text("name"),
        text("device"),
        output::size(v["size"].as_u64().unwrap_or(0)),
        v["threads"],
        v["pid"],
        if v["read_only"] == true {
            "  read-only"
        } else {
            ""
        },
        v["state"]
            .as_str()
            .map_or(String::new(), |state| format!("  {state}")),
    );
    if let Some(cell) = v["cell"].as_str() {
        let _ = writeln!(out, "    cell  {cell}");
    }
    let record = match v["in_use_record"].as_str() {
        Some("kept") => "kept: other machines see that it is in use",
        Some("reader") => "not kept: this process only reads",
        Some("impossible") => {
            "impossible: no space for it; other machines cannot see that it is in use"
        }
        Some("lost") => {
            "lost: another machine has taken it over, so all I/O is refused; detach with --force"
        }
        _ => "",
    };
    if !record.is_empty() {
        let _ = writeln!(out, "    record {record}");
    }
    if let Some(lun) = v["lun"].as_str() {
        let _ = writeln!(
            out,
            "    lun   {lun}  {}",
            v["lun_state"]["health"].as_str().unwrap_or("-")
        );
    }
    for path in v["lun_state"]["paths"].as_array().into_iter().flatten() {
        let text = |key: &str| path[key].as_str().unwrap_or_default();
        if !matches!(text("state"), "active" | "standby") {
            let _ = writeln!(
                out,
                "    path  {}  {}  {}",
                text("name"),
                text("state"),
                text("why")
            );
        }
    }
    for export in v["exports"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "    {:<5} {}",
            export["kind"].as_str().unwrap_or("-"),
            export["at"].as_str().unwrap_or("-")
        );
    }
    if let Some(warning) = v["warning"].as_str() {
        let _ = writeln!(out, "    warning: {warning}");
    }
    out
}
