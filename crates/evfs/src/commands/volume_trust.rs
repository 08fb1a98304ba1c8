//! `evfs volume trust`: the record that this machine keeps of the volumes that it has opened.

use super::dry_run::DryRun;
use super::{handle, names};
use cli::Context;
use cli::output;
use serde_json::{Value, json};
use stack::trust::{TrustStore, VolumeRecord, epoch_of, seal_of};
use stack::volume::{Intent, open_locked};
use stack::{Error, Result, exit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  evfs volume trust\n  evfs volume trust disk.img\n  evfs volume trust disk.img --reset"
)]
pub struct Args {
    /// Volume: file, disk, LUN or UUID, or the name or mount point of a service on it [default: all
    /// known volumes]
    #[arg(add = names::devices())]
    device: Option<PathBuf>,
    /// Forget the volume; the next volume opened with its UUID is trusted
    #[arg(long, requires = "device")]
    reset: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    match &args.device {
        None => all(context),
        Some(device) if args.reset => reset(&args.dry_run.context(context), device),
        Some(device) => one(context, device),
    }
}

fn all(context: &Context) -> Result<u8> {
    let known = TrustStore::of(&context.settings).load()?;
    let volumes: Vec<Value> = known.volumes.iter().map(|(u, e)| value(u, e)).collect();
    output::show(context.json, &json!({ "volumes": volumes }), || {
        if known.volumes.is_empty() {
            "no volume has been opened on this machine".into()
        } else {
            let texts = known.volumes.iter().map(|(u, e)| text(u, e));
            texts.collect::<Vec<_>>().join("\n")
        }
    });
    Ok(exit::OK)
}

fn one(context: &Context, device: &Path) -> Result<u8> {
    let known = TrustStore::of(&context.settings).load()?;
    let (uuid, states) = match known.named(device) {
        Some(uuid) => (uuid, None),
        None => {
            let device = handle::device(context, device)?;
            let held = open_locked(&device, Intent::Inspect, &context.settings)?;
            (held.volume.uuid().to_owned(), Some(seal_of(&held.volume)))
        }
    };
    let entry = known.volumes.get(&uuid).ok_or_else(|| unknown(&uuid))?;
    let mut shown = value(&uuid, entry);
    if let Some(states) = &states {
        shown["header"] = json!({
            "sealed": states.is_some(),
            "epoch": states.as_ref().map(|s| s.epoch),
            "same": *states == entry.seal,
        });
    }
    output::show(context.json, &shown, || {
        let mut text = text(&uuid, entry);
        if let Some(states) = &states {
            let same = if *states == entry.seal {
                "as remembered"
            } else {
                "not as remembered"
            };
            let _ = writeln!(text, "header        {}, {same}", epoch_of(states.as_ref()));
        }
        text + "the header is verified when a key opens it"
    });
    Ok(exit::OK)
}

fn reset(context: &Context, device: &Path) -> Result<u8> {
    let store = TrustStore::of(&context.settings);
    let uuid = match store.load()?.named(device) {
        Some(uuid) => uuid,
        None => {
            let device = handle::device(context, device)?;
            let held = open_locked(&device, Intent::Inspect, &context.settings)?;
            held.volume.uuid().to_owned()
        }
    };
    if !store.forget(&uuid)? {
        return Err(unknown(&uuid));
    }
    output::done(context.json, &json!({ "forgotten": uuid }), || {
        format!("forgot volume {uuid}; its next use counts as the first")
    });
    Ok(exit::OK)
}

fn unknown(uuid: &str) -> Error {
    Error::NotFound(format!(
        "volume {uuid} has not been opened on this machine; `evfs volume trust` lists those that have"
    ))
}

fn value(uuid: &str, entry: &VolumeRecord) -> Value {
    json!({
        "uuid": uuid,
        "sealed": entry.seal.is_some(),
        "epoch": entry.seal.as_ref().map(|s| s.epoch),
        "first_used": entry.first_used,
        "places": entry.places,
        "keys": entry.keys.iter().map(|(keyslot, key)| json!({ "keyslot": keyslot, "key": key })).collect::<Vec<_>>(),
    })
}

fn text(uuid: &str, entry: &VolumeRecord) -> String {
    let mut text = format!(
        "UUID          {uuid}\nremembered    {}\n",
        epoch_of(entry.seal.as_ref())
    );
    for place in &entry.places {
        let _ = writeln!(text, "found at      {}", place.escape_debug());
    }
    for (keyslot, key) in &entry.keys {
        let _ = writeln!(text, "keyslot {keyslot:<3}   {key}");
    }
    text
}
