//! `evfs fileset quota`: limits of a fileset, and of users and groups in it.

use super::device::DeviceArgs;
use super::dry_run::DryRun;
use super::names;
use cli::Context;
use cli::document::Document;
use cli::output::{self, size};
use cli::table::Column::{self, Left};
use nix::unistd::{Gid, Group, Uid, User};
use serde_json::{Value, json};
use stack::control::{FsRequest, Limits, OwnerId, OwnersRequest};
use stack::filesystem::{FilesetOwners, request};
use stack::{Error, Result, exit, parse_size};

/// Arguments of `evfs fileset quota`.
#[derive(clap::Args)]
pub struct QuotaArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Name of the fileset
    #[arg(add = names::filesets())]
    name: String,
    /// Maximum size of files and names, like 10G; 0 for no limit
    #[arg(value_parser = parse_size)]
    size: Option<u64>,
    /// The former form of SIZE
    #[arg(long, value_name = "SIZE", value_parser = parse_size, hide = true, conflicts_with = "size")]
    bytes: Option<u64>,
    /// Maximum number of files, directories and other objects; 0 for no limit
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Limit the files of a user, by name or number, instead of the whole fileset
    #[arg(long, value_name = "USER", conflicts_with = "group")]
    user: Option<String>,
    /// Limit the files of a group, by name or number, instead of the whole fileset
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Show the use and the limits of all users and groups
    #[arg(long, conflicts_with_all = ["size", "bytes", "files", "user", "group"])]
    report: bool,
    /// Refused: a project is a fileset
    #[arg(long, value_name = "PROJECT", hide = true)]
    project: Option<String>,
    #[command(flatten)]
    dry_run: DryRun,
}

pub const OWNERS: Document<FilesetOwners> = Document::new("evfs/fileset-quota/1");

/// Sets or shows limits; `of_fileset` prints those of a fileset.
pub fn run(context: &Context, args: QuotaArgs, of_fileset: &dyn Fn(&Value)) -> Result<u8> {
    if args.project.is_some() {
        return Err(Error::Usage(
            "there is no limit for a project: the project of a file is its fileset; limit the \
             fileset, without --project"
                .into(),
        ));
    }
    let owner = match (&args.user, &args.group) {
        (Some(user), _) => Some(OwnerId::User(user_id(user)?)),
        (_, Some(group)) => Some(OwnerId::Group(group_id(group)?)),
        _ => None,
    };
    let quota = Limits {
        bytes: args.size.or(args.bytes),
        inodes: args.files,
    };
    let name = args.name;
    let context = &DryRun::context_of(Some(args.dry_run), context);
    let on = args.on.resolved(context)?;
    let answer = |question: &FsRequest| on.with(context, |target| request(target, question));
    if owner.is_none() && !args.report {
        let value = answer(&FsRequest::Quota { name, quota })?;
        output::changed();
        of_fileset(&value);
        return Ok(exit::OK);
    }
    let fileset = name;
    let ask = OwnersRequest {
        fileset,
        owner,
        quota,
    };
    let mut value = answer(&FsRequest::Owners(ask))?;
    add_names(&mut value, "users", user_name);
    add_names(&mut value, "groups", group_name);
    if quota != Limits::default() {
        output::changed();
    }
    output::relay(context.json, &OWNERS, &value, || table(&value));
    Ok(exit::OK)
}

/// Finds the number of a user.
fn user_id(user: &str) -> Result<u32> {
    let found = || Ok(User::from_name(user)?.map(|user| user.uid.as_raw()));
    id("user", user, found)
}

/// Finds the number of a group.
fn group_id(group: &str) -> Result<u32> {
    let found = || Ok(Group::from_name(group)?.map(|group| group.gid.as_raw()));
    id("group", group, found)
}

fn id(kind: &str, text: &str, found: impl FnOnce() -> nix::Result<Option<u32>>) -> Result<u32> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The largest number means no user in system calls.
        let id = text.parse().ok().filter(|id| *id != u32::MAX);
        return id.ok_or_else(|| Error::Usage(format!("{kind} {text}: the number is too large")));
    }
    let found = found().map_err(|error| Error::Failed(format!("cannot look up `{text}`: {error}")));
    found?.ok_or_else(|| {
        Error::Usage(format!(
            "there is no {kind} `{text}` on this machine; use its number"
        ))
    })
}

fn user_name(id: u32) -> Option<String> {
    let found = User::from_uid(Uid::from_raw(id)).ok().flatten();
    found.map(|user| user.name)
}

fn group_name(id: u32) -> Option<String> {
    let found = Group::from_gid(Gid::from_raw(id)).ok().flatten();
    found.map(|group| group.name)
}

fn add_names(value: &mut Value, kind: &str, name: impl Fn(u32) -> Option<String>) {
    for one in value[kind].as_array_mut().into_iter().flatten() {
        let id = one["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        one["name"] = json!(id.and_then(&name));
    }
}

const COLUMNS: [Column; 4] = [Left(5), Left(16), Left(24), Left(0)];

/// Formats a line for each user and each group.
fn table(value: &Value) -> String {
    let mut rows = Vec::new();
    for (kind, key) in [("user", "users"), ("group", "groups")] {
        for one in value[key].as_array().into_iter().flatten() {
            let number = |key: &str| one[key].as_u64();
            let bytes = size(number("used_bytes").unwrap_or(0));
            let files = number("used_files").unwrap_or(0).to_string();
            let limited = |used: String, limit: Option<String>| match limit {
                Some(limit) => format!("{used} of {limit}"),
                None => used,
            };
            let id = number("id").unwrap_or(0).to_string();
            let name = one["name"].as_str().map_or(id, str::to_owned);
            let files = limited(files, number("quota_files").map(|n| n.to_string()));
            rows.push([
                kind.to_owned(),
                output::printable(&name),
                limited(bytes, number("quota_bytes").map(size)),
                format!("{files} files"),
            ]);
        }
    }
    cli::table::text(&COLUMNS, &rows)
}
