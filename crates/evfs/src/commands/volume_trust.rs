//! `evfs volume trust`: the record that this machine keeps of the volumes that it has opened.

use super::dry_run::DryRun;
use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use schemars::JsonSchema;
use serde::Serialize;
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

/// Records of all volumes that this machine has opened.
#[derive(Serialize, JsonSchema)]
pub struct Records {
    /// The records, by UUID.
    volumes: Vec<ShownRecord>,
}

/// Record of a volume.
#[derive(Serialize, JsonSchema)]
pub struct ShownRecord {
    /// UUID of the volume.
    uuid: String,
    /// Whether its header had a seal.
    sealed: bool,
    /// Number of the last seal; a newer seal has a higher one.
    epoch: Option<u64>,
    /// First use on this machine, in seconds since 1970.
    first_used: u64,
    /// Paths and LUNs where the volume was found.
    places: Vec<String>,
    /// Keys of the volume at the last use.
    keys: Vec<RecordedKey>,
}

/// A key in the record of a volume.
#[derive(Serialize, JsonSchema)]
struct RecordedKey {
    /// Number of the keyslot.
    keyslot: u32,
    /// Role and name of the key.
    key: String,
}

/// Record of one volume, beside its header.
#[derive(Serialize, JsonSchema)]
pub struct ComparedRecord {
    #[serde(flatten)]
    record: ShownRecord,
    /// The header, if a DEVICE was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<ShownHeader>,
}

/// Seal of a header.
#[derive(Serialize, JsonSchema)]
struct ShownHeader {
    /// Whether the header has a seal.
    sealed: bool,
    /// Number of the seal.
    epoch: Option<u64>,
    /// Whether the seal is the recorded one.
    same: bool,
}

/// A record that was removed.
#[derive(Serialize, JsonSchema)]
pub struct ForgottenRecord {
    /// UUID of the volume.
    forgotten: String,
}

pub const RECORDS: Document<Records> = Document::new("evfs/trust-records/1");
pub const RECORD: Document<ComparedRecord> = Document::new("evfs/trust-record/1");
pub const FORGOTTEN: Document<ForgottenRecord> = Document::new("evfs/trust-reset/1");

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    match &args.device {
        None => all(context),
        Some(device) if args.reset => reset(&args.dry_run.context(context), device),
        Some(device) => one(context, device),
    }
}

fn all(context: &Context) -> Result<u8> {
    let known = TrustStore::of(&context.settings).load()?;
    let volumes = known.volumes.iter().map(|(u, e)| shown(u, e)).collect();
    output::show(context.json, &RECORDS, &Records { volumes }, || {
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
    let header = states.as_ref().map(|states| ShownHeader {
        sealed: states.is_some(),
        epoch: states.as_ref().map(|s| s.epoch.get()),
        same: *states == entry.seal,
    });
    let content = ComparedRecord {
        record: shown(&uuid, entry),
        header,
    };
    output::show(context.json, &RECORD, &content, || {
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
    let content = ForgottenRecord { forgotten: uuid };
    output::done(context.json, &FORGOTTEN, &content, || {
        format!(
            "forgot volume {}; its next use counts as the first",
            content.forgotten
        )
    });
    Ok(exit::OK)
}

fn unknown(uuid: &str) -> Error {
    Error::NotFound(format!(
        "volume {uuid} has not been opened on this machine; `evfs volume trust` lists those that have"
    ))
}

fn shown(uuid: &str, entry: &VolumeRecord) -> ShownRecord {
    let key = |(keyslot, key): (&u32, &String)| RecordedKey {
        keyslot: *keyslot,
        key: key.clone(),
    };
    ShownRecord {
        uuid: uuid.to_owned(),
        sealed: entry.seal.is_some(),
        epoch: entry.seal.as_ref().map(|s| s.epoch.get()),
        first_used: entry.first_used,
        places: entry.places.iter().cloned().collect(),
        keys: entry.keys.iter().map(key).collect(),
    }
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
