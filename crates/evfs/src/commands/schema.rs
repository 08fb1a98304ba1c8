//! `evfs schema`: the schemas of the JSON documents that commands print.

use super::man::{WRITTEN, Written};
use super::volume::shown as volume;
use super::{
    cache, cell, cluster, completions, config, detach, doctor, explain, files, fileset,
    fileset_diff, fileset_quota, fileset_transfer, grow, key, lun, man, path, restart, scrub,
    service, shrink, stats, status, sync, top, up, upgrade, volume_backups, volume_key,
    volume_trust, web,
};
use cli::document::{Document, ERROR, Published};
use cli::progress::PROGRESS;
use cli::table::Column::Left;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::{Error, Result, exit};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "\
With --json, a command prints one document, whose key `schema` has the name and the version of its \
form, such as evfs/status/1. Schemas are written in JSON Schema, draft 2020-12.

Examples:
  evfs schema                               list all documents and the commands that print them
  evfs schema status                        print the schema of `evfs --json status`
  evfs schema --dir schemas                 write all schemas")]
pub struct Args {
    /// Document, such as status, or the value of its key `schema` [default: list all]
    #[arg(conflicts_with = "dir")]
    name: Option<String>,
    /// Write all schemas to this directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// All documents.
#[derive(Serialize, JsonSchema)]
pub struct Schemas {
    /// The documents.
    schemas: Vec<ShownSchema>,
}

/// A document that commands print.
#[derive(Serialize, JsonSchema)]
struct ShownSchema {
    /// Name of the document.
    name: &'static str,
    /// Value of its key `schema`.
    form: &'static str,
    /// Commands that print it; if empty, all.
    commands: &'static [&'static str],
}

/// The schema of a document.
#[derive(Serialize, JsonSchema)]
pub struct Definition {
    /// Value of the key `schema` of the document.
    form: &'static str,
    /// The schema, in JSON Schema.
    definition: Value,
}

pub const SCHEMAS: Document<Schemas> = Document::new("evfs/schemas/1");
pub const DEFINITION: Document<Definition> = Document::new("evfs/schema/1");

/// Commands that show progress.
const SHOW_PROGRESS: &[&str] = if cfg!(feature = "bench") {
    &[
        "fsck",
        "scrub",
        "defrag",
        "shrink",
        "upgrade",
        "fileset send",
        "fileset receive",
        "lun scan",
        "bench run",
        "bench compare",
        "plan",
    ]
} else {
    &[
        "fsck",
        "scrub",
        "defrag",
        "shrink",
        "upgrade",
        "fileset send",
        "fileset receive",
        "lun scan",
    ]
};

/// Documents of the commands of every build.
const DOCUMENTS: &[Published] = &[
    Published::of(&ERROR, &[]),
    Published::of(&PROGRESS, SHOW_PROGRESS),
    Published::of(&cluster::SHOWN, &["cluster status"]),
    Published::of(&cluster::MADE, &["cluster init"]),
    Published::of(
        &cluster::CHANGED,
        &[
            "cluster move",
            "cluster drain",
            "cluster unfence",
            "cluster remove",
        ],
    ),
    Published::of(&key::KEY, &["key generate", "key show", "key import"]),
    Published::of(&key::KEYS, &["key list"]),
    Published::of(&key::EXPORTED, &["key export"]),
    Published::of(&key::REMOVED, &["key remove"]),
    Published::of(&volume::VOLUME, &["volume info"]),
    Published::of(&volume::MADE, &["volume create"]),
    Published::of(&volume::CHECK, &["volume check"]),
    Published::of(&volume::REPAIR, &["volume repair"]),
    Published::of(&volume::OWNER, &["volume owner set"]),
    Published::of(&volume::BACKUP, &["volume header backup"]),
    Published::of(&volume::RESTORED, &["volume header restore"]),
    Published::of(&volume_backups::BACKUPS, &["volume header list"]),
    Published::of(&volume_backups::PRUNED, &["volume header prune"]),
    Published::of(&volume::ERASED, &["volume erase"]),
    Published::of(&volume_key::KEY, &["volume key change", "volume key test"]),
    Published::of(&volume_key::ADDED, &["volume key add"]),
    Published::of(&volume_key::KEYS, &["volume key list"]),
    Published::of(&volume_key::REMOVED, &["volume key remove"]),
    Published::of(&volume_trust::RECORDS, &["volume trust"]),
    Published::of(&volume_trust::RECORD, &["volume trust"]),
    Published::of(&volume_trust::FORGOTTEN, &["volume trust"]),
    Published::of(&service::SERVICE, &["attach", "mount", "serve", "up"]),
    Published::of(&service::SERVICES, &["up"]),
    Published::of(&detach::DETACHED, &["detach"]),
    Published::of(&up::DETACHED, &["down"]),
    Published::of(&status::STATUS, &["status"]),
    Published::of(&restart::RESTARTED, &["restart"]),
    Published::of(&sync::SYNCED, &["sync"]),
    Published::of(&stats::STATS, &["stats"]),
    Published::of(&top::SAMPLE, &["top"]),
    Published::of(&web::ADDRESS, &["web"]),
    Published::of(&files::FORMATTED, &["format"]),
    Published::of(&files::UNMOUNTED, &["unmount"]),
    Published::of(&files::CHECKED, &["fsck"]),
    Published::of(&scrub::SCRUBBED, &["scrub"]),
    Published::of(&files::DEFRAGMENTED, &["defrag"]),
    Published::of(&grow::GROWN, &["grow"]),
    Published::of(&shrink::SHRUNK, &["shrink"]),
    Published::of(&upgrade::UPGRADED, &["upgrade"]),
    Published::of(&files::USAGE, &["df"]),
    Published::of(
        &fileset::FILESET,
        &[
            "fileset compression",
            "fileset create",
            "fileset rename",
            "fileset quota",
            "fileset snapshot",
            "fileset clone",
            "fileset hold",
            "fileset release",
        ],
    ),
    Published::of(&fileset_quota::OWNERS, &["fileset quota"]),
    Published::of(&fileset::FILESETS, &["fileset list"]),
    Published::of(&fileset::REMOVED, &["fileset remove"]),
    Published::of(&fileset::ROLLED_BACK, &["fileset rollback"]),
    Published::of(&fileset_diff::DIFFERENCES, &["fileset diff"]),
    Published::of(&fileset_transfer::SENT, &["fileset send"]),
    Published::of(&fileset_transfer::RECEIVED, &["fileset receive"]),
    Published::of(&fileset_transfer::RECEPTION, &["fileset receive"]),
    Published::of(&cell::MADE, &["cell init"]),
    Published::of(&cell::CELLS, &["cell status"]),
    Published::of(&cell::ACCESS_LIST, &["cell acl get", "cell acl set"]),
    Published::of(
        &cell::VOLUME,
        &[
            "cell volume create",
            "cell volume clone",
            "cell volume quota",
        ],
    ),
    Published::of(&cell::VOLUMES, &["cell volume list"]),
    Published::of(&cell::MOUNTED, &["cell volume mount"]),
    Published::of(&cell::REMOVED, &["cell volume remove"]),
    Published::of(&cache::CACHES, &["cache show"]),
    Published::of(&cache::SETTINGS, &["cache set"]),
    Published::of(&cache::FLUSHED, &["cache flush"]),
    Published::of(&cache::DROPPED, &["cache drop"]),
    Published::of(&cache::ATTRIBUTES, &["cache advise"]),
    Published::of(&lun::SCAN, &["lun scan"]),
    Published::of(&lun::LUNS, &["lun list"]),
    Published::of(&lun::LUN, &["lun show"]),
    Published::of(&lun::COUNTERS, &["lun stats"]),
    Published::of(&lun::CLEARED, &["lun stats"]),
    Published::of(&lun::ATTRIBUTES, &["lun get"]),
    Published::of(&lun::SET, &["lun set"]),
    Published::of(&lun::SAVED, &["lun save"]),
    Published::of(&lun::FORGOTTEN, &["lun forget"]),
    Published::of(&lun::ADVICE, &["lun advise"]),
    Published::of(&lun::WAITING, &["lun waiting"]),
    Published::of(
        &path::PATH,
        &[
            "path add",
            "path remove",
            "path enable",
            "path disable",
            "path replace-wwid",
        ],
    ),
    Published::of(&config::SETTINGS, &["config show"]),
    Published::of(&doctor::DIAGNOSIS, &["doctor"]),
    Published::of(&explain::EVENT, &["explain"]),
    Published::of(&explain::ALL, &["explain"]),
    Published::of(&man::PAGE, &["man"]),
    Published::of(&WRITTEN, &["man", "schema"]),
    Published::of(&completions::SCRIPT, &["completions"]),
    Published::of(&DEFINITION, &["schema"]),
    Published::of(&SCHEMAS, &["schema"]),
];

/// The documents of all commands of this build.
fn documents() -> impl Iterator<Item = &'static Published> {
    #[cfg(feature = "bench")]
    let of_bench = bench_commands::DOCUMENTS;
    #[cfg(not(feature = "bench"))]
    let of_bench: &[Published] = &[];
    DOCUMENTS.iter().chain(of_bench)
}

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    match (&args.dir, &args.name) {
        (Some(dir), _) => write(context, dir)?,
        (None, Some(name)) => print(context, name)?,
        (None, None) => list(context),
    }
    Ok(exit::OK)
}

fn list(context: &Context) {
    let shown = |document: &'static Published| ShownSchema {
        name: document.name(),
        form: document.schema,
        commands: document.commands,
    };
    let content = Schemas {
        schemas: documents().map(shown).collect(),
    };
    output::show(context.json, &SCHEMAS, &content, || {
        let rows: Vec<_> = content.schemas.iter().map(row).collect();
        cli::table::text(&[Left(22), Left(0)], &rows)
    });
}

fn row(document: &ShownSchema) -> [String; 2] {
    let commands = match document.commands {
        [] => "every command, for an error".to_owned(),
        commands => commands.join(", "),
    };
    [document.name.to_owned(), commands]
}

fn print(context: &Context, name: &str) -> Result<()> {
    let is_it = |document: &&Published| document.name() == name || document.schema == name;
    let document = documents().find(is_it).ok_or_else(|| {
        Error::NotFound(format!(
            "there is no document `{name}`; `evfs schema` lists all"
        ))
    })?;
    let text = document.text();
    let content = Definition {
        form: document.schema,
        definition: serde_json::from_str(&text).expect("a schema is JSON"),
    };
    output::show(context.json, &DEFINITION, &content, || text);
    Ok(())
}

fn write(context: &Context, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| Error::io("cannot create the directory", dir, e))?;
    let mut written = Vec::new();
    for document in documents() {
        let file = dir.join(format!("{}.json", document.name()));
        let text = document.text() + "\n";
        fs::write(&file, text).map_err(|e| Error::io("cannot write", &file, e))?;
        written.push(file.display().to_string());
    }
    let content = Written { written };
    output::done(context.json, &WRITTEN, &content, || {
        let count = content.written.len();
        format!("wrote {count} schemas to {}", dir.display())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    /// Commands that print no document.
    const WITHOUT: [&str; 4] = ["__complete", "bench agent", "bench echo", "bench guard"];

    /// Adds the names of all commands that have no commands of their own.
    fn leaves(of: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
        for command in of.get_subcommands() {
            let path = format!("{path} {}", command.get_name());
            if command.has_subcommands() {
                leaves(command, &path, found);
            } else {
                found.insert(path.trim().to_owned());
            }
        }
    }

    #[test]
    fn every_command_has_the_schema_of_its_document() {
        let mut all = BTreeSet::new();
        leaves(&crate::Cli::command(), "", &mut all);
        assert!(all.len() > 60, "{all:?}");
        let with: BTreeSet<String> = documents()
            .flat_map(|document| document.commands)
            .map(|command| (*command).to_owned())
            .collect();
        let without: BTreeSet<String> = WITHOUT.map(str::to_owned).into();
        assert!(with.is_disjoint(&without));
        if cfg!(feature = "bench") {
            let listed: BTreeSet<String> = &with | &without;
            assert_eq!(listed, all);
        }
    }

    #[test]
    fn documents_have_names_of_their_own_and_versions() {
        let mut names = BTreeSet::new();
        for document in documents() {
            assert!(names.insert(document.name()), "{}", document.name());
            let (_, version) = document.schema.rsplit_once('/').unwrap();
            assert!(version.parse::<u32>().is_ok(), "{}", document.schema);
        }
    }
}
