//! `evfs status`: attached volumes, mounted file systems and served cells, and their health.

use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::table::Column::{Left, Right};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;
use stack::control::{SilentStatus, silent_status};
use stack::handle::Service;
use stack::{Result, Status, control, exit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
States:
  ok         everything works
  degraded   data is served, but a reserve is lost: paths of the LUN, or a copy of the header
  read-only  changes are refused because of an error
  failing    requests fail, or acknowledged data cannot be written
  stopping   the service is being detached

DIRTY is acknowledged data that is in memory only.

Examples:
  evfs status
  evfs status disk
  evfs status /mnt
  evfs status --check || mail -s 'EVFS needs attention' root < /dev/null")]
pub struct Args {
    /// Service to show, by its name, its device, or the place of an export [default: all]
    #[arg(value_name = "NAME", add = names::services())]
    name: Option<PathBuf>,
    /// Exit with code 26 if a service is in another state than ok, or does not answer
    #[arg(long)]
    check: bool,
}

/// Services with their state.
#[derive(Serialize, JsonSchema)]
pub struct Statuses {
    /// The services; one that does not answer has other keys.
    #[schemars(schema_with = "services_or_silent")]
    volumes: Vec<Value>,
}

fn services_or_silent(generator: &mut SchemaGenerator) -> Schema {
    let service = generator.subschema_for::<Status>();
    let silent = generator.subschema_for::<SilentStatus>();
    json_schema!({ "type": "array", "items": { "anyOf": [service, silent] } })
}

pub const STATUS: Document<Statuses> = Document::new("evfs/status/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let run_dir = context.settings.run_dir();
    let volumes = match &args.name {
        Some(name) => vec![one(context, name)?],
        None => all(&run_dir)?,
    };
    let content = Statuses { volumes };
    let volumes = &content.volumes;
    output::show(context.json, &STATUS, &content, || {
        if volumes.is_empty() {
            return "nothing is attached or mounted".into();
        }
        describe(volumes, args.name.is_some())
    });
    let is_ok = volumes.iter().all(|volume| state(volume) == "ok");
    Ok(if args.check && !is_ok {
        exit::CHECK_FOUND_ERRORS
    } else {
        exit::OK
    })
}

fn all(run_dir: &Path) -> Result<Vec<Value>> {
    let all = control::statuses(run_dir)?.into_iter();
    let shown =
        all.map(|(name, status)| status.unwrap_or_else(|error| silent_status(&name, &error)));
    Ok(shown.collect())
}

fn one(context: &Context, word: &Path) -> Result<Value> {
    let Service { name, status } = handle::service(context, word)?;
    Ok(status.unwrap_or_else(|error| silent_status(&name, &error)))
}

/// The word for the state. A process of an earlier version reports none.
fn state(v: &Value) -> &str {
    let health = v["health"]["state"].as_str();
    let health = health.filter(|_| v["error"].is_null());
    health.or_else(|| v["state"].as_str()).unwrap_or("ok")
}

fn describe(volumes: &[Value], is_alone: bool) -> String {
    let heading = ["NAME", "STATE", "SIZE", "USED", "DIRTY", "UPTIME", "DEVICE"];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(volumes.iter().map(row));
    let columns = [
        Left(8),
        Left(9),
        Right(9),
        Right(5),
        Right(9),
        Right(9),
        Left(0),
    ];
    let mut lines = cli::table::lines(&columns, &rows).into_iter();
    let mut out = lines.next().unwrap_or_default() + "\n";
    for (line, volume) in lines.zip(volumes) {
        let _ = writeln!(out, "{line}");
        add_details(&mut out, volume, is_alone);
    }
    out
}

fn row(v: &Value) -> [String; 7] {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
    let bytes = |value: &Value| or_dash(value.as_u64().map(output::size));
    let uptime = v["uptime_seconds"].as_u64();
    [
        text(&v["name"]),
        state(v).to_owned(),
        bytes(&v["size"]),
        or_dash(used_percent(&v["space"]).map(|percent| format!("{percent} %"))),
        bytes(&v["write_back"]["dirty_bytes"]),
        or_dash(uptime.map(|seconds| duration(seconds * 1000))),
        text(&v["device"]),
    ]
}

/// Computes how full a file system is, rounded up, so that 100 means full.
fn used_percent(space: &Value) -> Option<u64> {
    let size = space["size_bytes"].as_u64().filter(|size| *size > 0)?;
    let available = space["available_bytes"].as_u64()?;
    let used = u128::from(size.saturating_sub(available));
    u64::try_from((used * 100).div_ceil(u128::from(size))).ok()
}

/// Formats a time with one or two units.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if seconds == 0 => format!("{ms} ms"),
        () if minutes == 0 => format!("{seconds} s"),
        () if hours == 0 => format!("{minutes} min"),
        () if days == 0 => format!("{hours} h {} min", minutes % 60),
        () => format!("{days} d {} h", hours % 24),
    }
}

fn add_details(out: &mut String, v: &Value, is_alone: bool) {
    let text = |key: &str| v[key].as_str().unwrap_or("-").to_owned();
    if let Some(error) = v["error"].as_str() {
        let _ = writeln!(out, "    {error}");
        return;
    }
    let cipher = match v["key_bits"].as_u64() {
        Some(bits) => format!("aes-{bits}-xts ({})  role {}", text("kernel"), text("role")),
        None => "clear".into(),
    };
    let read_only = if v["read_only"] == true {
        "  read-only"
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "    cipher {cipher}  {} threads  pid {}{read_only}",
        v["threads"], v["pid"]
    );
    add_health(out, v, is_alone);
    if let Some(cell) = v["cell"].as_str() {
        let _ = writeln!(out, "    cell  {cell}");
    }
    add_claim(out, v);
    add_record(out, v);
    add_lun(out, v);
    for export in v["exports"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "    {:<5} {}",
            export["kind"].as_str().unwrap_or("-"),
            export["at"].as_str().unwrap_or("-")
        );
        if let Some(effect) = effect_of_sync(export) {
            let _ = writeln!(out, "    sync  {effect}");
        }
    }
    if let Some(log) = v["log"].as_str().filter(|_| is_alone) {
        let _ = writeln!(out, "    log   {log}");
    }
    if let Some(warning) = v["warning"].as_str() {
        let _ = writeln!(out, "    warning: {warning}");
    }
}

/// Describes the effect of sync(2) on a mount; `None` for other exports.
pub(super) fn effect_of_sync(export: &Value) -> Option<&'static str> {
    Some(match export["sync"].as_str()? {
        "durable" => "sync(2) and syncfs(2) make everything durable",
        _ => "sync(2) and syncfs(2) do nothing; use fsync(2) or `evfs sync`",
    })
}

/// Adds paths and errors, the reasons for the state, and data that is in memory only.
fn add_health(out: &mut String, v: &Value, is_alone: bool) {
    let health = &v["health"];
    let errors = match health["errors"].as_u64() {
        None => return,
        Some(0) => "no errors since the start".to_owned(),
        Some(errors) => format!("{errors} errors since the start"),
    };
    let paths = match (health["paths_failed"].as_u64(), health["paths"].as_u64()) {
        (Some(failed), Some(all)) => format!("{failed} of {all} paths failed, "),
        _ => String::new(),
    };
    let _ = writeln!(out, "    health {paths}{errors}");
    let warning = v["warning"].as_str().unwrap_or_default();
    let reasons = health["reasons"].as_array().into_iter().flatten();
    for reason in reasons.filter_map(Value::as_str) {
        if !warning.contains(reason) {
            let _ = writeln!(out, "    why   {reason}");
        }
    }
    let dirty = v["write_back"]["dirty_bytes"].as_u64();
    match (dirty, v["write_back"]["oldest_dirty_ms"].as_u64()) {
        (Some(bytes), Some(age)) if bytes > 0 => {
            let (bytes, age) = (output::size(bytes), duration(age));
            let _ = writeln!(
                out,
                "    dirty {bytes} not written back, the oldest for {age}"
            );
        }
        (Some(0), _) if is_alone => {
            let _ = writeln!(out, "    dirty none: all data is written back");
        }
        _ => {}
    }
}

/// Adds the claim of a unit of a cluster.
fn add_claim(out: &mut String, v: &Value) {
    let cluster = &v["cluster"];
    let (epoch, lease) = (cluster["epoch"].as_u64(), cluster["lease_ms"].as_u64());
    if let Some((epoch, lease)) = epoch.zip(lease) {
        let _ = writeln!(
            out,
            "    unit  of machine {} in its cluster, epoch {epoch}, lease for {:.1} s",
            cluster["machine"].as_str().unwrap_or("-"),
            lease as f64 / 1e3
        );
    }
}

fn add_record(out: &mut String, v: &Value) {
    let record = match v["in_use_record"].as_str() {
        Some("kept") => "kept: other machines see that it is in use",
        Some("reader") => "not kept: this process only reads",
        Some("impossible") => {
            "impossible: no space for it; other machines cannot see that it is in use"
        }
        Some("lost") => {
            "lost: another machine has taken it over, so all I/O is refused; detach with --force"
        }
        _ => return,
    };
    let _ = writeln!(out, "    record {record}");
}

fn add_lun(out: &mut String, v: &Value) {
    if let Some(lun) = v["lun"].as_str() {
        let health = v["lun_state"]["health"].as_str().unwrap_or("-");
        let _ = writeln!(out, "    lun   {lun}  {health}");
    }
    for path in v["lun_state"]["paths"].as_array().into_iter().flatten() {
        let text = |key: &str| path[key].as_str().unwrap_or_default();
        if !matches!(text("state"), "active" | "standby") || !text("why").is_empty() {
            let _ = writeln!(
                out,
                "    path  {}  {}  {}",
                text("name"),
                text("state"),
                text("why")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_have_one_or_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1500, "1 s"),
            (61_000, "1 min"),
            (7_260_000, "2 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }

    #[test]
    fn a_file_system_is_full_only_without_available_space() {
        let used = |size: u64, available: u64| {
            used_percent(&json!({ "size_bytes": size, "available_bytes": available }))
        };
        assert_eq!(used(1000, 1000), Some(0));
        assert_eq!(used(1000, 999), Some(1));
        assert_eq!(used(1000, 0), Some(100));
        assert_eq!(used(0, 0), None);
        assert_eq!(used(u64::MAX, 1), Some(100));
        assert_eq!(used_percent(&Value::Null), None);
    }

    #[test]
    fn a_service_has_one_line_with_its_state_and_then_its_details() {
        let degraded = json!({
            "name": "disk", "device": "disk1", "size": 1 << 30, "key_bits": 256,
            "kernel": "vaes", "role": "owner", "threads": 2, "pid": 7, "read_only": false,
            "uptime_seconds": 61, "in_use_record": "kept", "lun": "disk1",
            "cluster": { "machine": "m1", "epoch": 7, "lease_ms": 1900 },
            "health": {
                "state": "degraded", "reasons": ["1 of 2 paths failed"],
                "paths": 2, "paths_failed": 1, "errors": 3,
            },
            "write_back": { "state": "ok", "dirty_bytes": 8192, "oldest_dirty_ms": 450 },
            "exports": [
                { "kind": "nbd", "at": "/run/disk.nbd" },
                { "kind": "mount", "at": "/mnt", "sync": "durable" },
            ],
        });
        let silent = silent_status("b", &stack::Error::Busy("it is stopped".into()));
        let text = describe(&[degraded.clone(), silent.clone()], false);
        let expected = "\
NAME     STATE              SIZE  USED     DIRTY    UPTIME DEVICE
disk     degraded          1 GiB     -     8 KiB     1 min disk1
    cipher aes-256-xts (vaes)  role owner  2 threads  pid 7
    health 1 of 2 paths failed, 3 errors since the start
    why   1 of 2 paths failed
    dirty 8 KiB not written back, the oldest for 450 ms
    unit  of machine m1 in its cluster, epoch 7, lease for 1.9 s
    record kept: other machines see that it is in use
    lun   disk1  -
    nbd   /run/disk.nbd
    mount /mnt
    sync  sync(2) and syncfs(2) make everything durable
b        not answering         -     -         -         - -
    it is stopped
";
        assert_eq!(text, expected);
        assert_eq!(
            (state(&degraded), state(&silent)),
            ("degraded", "not answering")
        );
        let earlier = json!({ "name": "x", "state": null });
        assert_eq!(state(&earlier), "ok");
    }
}
