//! Work on the whole of a file system in use: checks and defragmentation, which its service does in
//! the background, and the command follows.
//!
//! If the command ends, the work goes on. A command that asks for the same work then follows it.

use super::{Checked, Defragmented, FIRST_FILESET, Progress, Scope, Target, WholeOperation};
use super::{fsck, mounted_as, open_unmounted};
use crate::control::{self, ControlRequest, DefragRequest, FsRequest, JobKind, JobRequest, Run};
use crate::{Error, Result};
use ::fs::{Fileset, Finding, FindingKind, Fs, Pace, ROOT, Recompress, Repair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Times between two requests for the progress: the first ones, and later ones.
const FOLLOW_SOON: Duration = Duration::from_millis(10);
const FOLLOW: Duration = Duration::from_millis(200);

/// State of work in the background.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Followed {
    pub id: u64,
    pub done: u64,
    pub total: u64,
    /// Result, once the work is over.
    pub result: Option<Value>,
}

/// Checks the metadata of a file system in use; with `repair` also returns space in use to which
/// nothing refers. If it is not in use, checks and repairs all.
///
/// # Errors
/// The device fails; the file system was unmounted, or changes too fast. Problems found are not
/// errors.
pub fn fsck_online(
    target: &Target<'_>,
    rate: Option<u64>,
    repair: bool,
    progress: Progress<'_>,
) -> Result<Checked> {
    match mounted_as(target.path, target.settings) {
        Some(name) => follow(target, &name, JobKind::Check { rate, repair }, progress),
        None => {
            let (pace, mut before) = (Pace::new(rate), 0);
            fsck(target, Scope::Metadata, repair, &mut |done, of| {
                // Nothing ends this pace. A repair counts from the start again.
                let _ = pace.pass(done.saturating_sub(before));
                before = done;
                progress(done, of);
            })
        }
    }
}

/// Rewrites fragmented files with fewer extents, and compresses or decompresses them on request.
/// Files in use that change at the same time stay as they are.
///
/// # Errors
/// The path does not exist, or the file system was unmounted. The device fails; the file being
/// rewritten is unchanged then.
pub fn defrag(
    target: &Target<'_>,
    what: &DefragRequest,
    progress: Progress<'_>,
) -> Result<Defragmented> {
    if let Some(name) = mounted_as(target.path, target.settings) {
        return follow(target, &name, JobKind::Defrag(what.clone()), progress);
    }
    let (fs, failed) = open_unmounted(target, WholeOperation::Defragment)?;
    let run = if target.settings.is_dry_run() {
        Run::Dry
    } else {
        Run::Real
    };
    let pace = Pace::new(what.rate);
    let done = defrag_files(&fs, what, None, &pace, run, progress).map_err(failed())?;
    fs.close().map_err(failed())?;
    Ok(done)
}

/// Begins work in a service, and waits for its result.
fn follow<T: DeserializeOwned>(
    target: &Target<'_>,
    name: &str,
    kind: JobKind,
    progress: Progress<'_>,
) -> Result<T> {
    let ask = |job| {
        let request = FsRequest::Job(job);
        let run_dir = target.settings.run_dir();
        let answer = if target.settings.is_dry_run() {
            control::send_query(&run_dir, name, &ControlRequest::PlanFiles(request))?
        } else {
            control::send_request(&run_dir, name, &ControlRequest::Files(request))?
        };
        parse::<Followed>(name, answer)
    };
    let mut state = ask(JobRequest::Start(kind))?;
    let mut pause = FOLLOW_SOON;
    loop {
        progress(state.done, state.total);
        if let Some(result) = state.result {
            return parse(name, result);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(FOLLOW);
        let id = state.id;
        state = ask(JobRequest::Follow { id }).map_err(|error| match error {
            Error::NotFound(_) if mounted_as(target.path, target.settings).is_none() => Error::Failed(format!(
                "it ended before its end: `{name}` was detached; start it again when it is in use, \
                 or on the device"
            )),
            other => other,
        })?;
    }
}

fn parse<T: DeserializeOwned>(name: &str, answer: Value) -> Result<T> {
    let invalid = |e| Error::Failed(format!("invalid answer of `{name}`: {e}"));
    serde_json::from_value(answer).map_err(invalid)
}

/// Checks an open file system; with `repair`, also returns orphaned space.
pub(crate) fn check(
    fs: &Fs,
    pace: &Arc<Pace>,
    repair: bool,
    progress: Progress<'_>,
) -> ::fs::Result<Checked> {
    let found = fs.check_online(pace, progress)?;
    if !repair || !found.has_orphaned() {
        return Ok(Checked {
            found: found.report,
            repair: None,
        });
    }
    let blocks = fs.return_orphaned(&found)?;
    let text = format!("returned space in use to which nothing refers; blocks: {blocks}");
    let done = Finding {
        kind: FindingKind::Space,
        fileset: None,
        inode: None,
        path: None,
        text,
    };
    let repair = Repair {
        done: vec![done],
        done_count: 1,
        left: fs.check_online(pace, progress)?.report,
    };
    Ok(Checked {
        found: found.report,
        repair: Some(repair),
    })
}

/// Defragments the files of a fileset below a path, or all. `own` is the fileset of a path without
/// one. A dry run counts only.
pub(crate) fn defrag_files(
    fs: &Fs,
    what: &DefragRequest,
    own: Option<&str>,
    pace: &Pace,
    run: Run,
    progress: Progress<'_>,
) -> ::fs::Result<Defragmented> {
    let path = what.path.as_deref().unwrap_or_default();
    let names: Vec<String> = match &what.fileset {
        Some(name) => vec![name.clone()],
        None if !path.is_empty() => vec![own.unwrap_or(FIRST_FILESET).to_owned()],
        None => {
            let own = fs.filesets().into_iter().filter(|(_, r)| r.origin == 0);
            own.map(|(_, record)| record.name).collect()
        }
    };
    let recompress = if what.recompress {
        Recompress::Yes
    } else {
        Recompress::No
    };
    let mut all = Defragmented::default();
    for name in names {
        let fileset = fs.fileset_named(&name)?;
        let top = (fileset.id(), find(&fileset, path)?);
        let done = match run {
            Run::Dry => fs.plan_defrag(top, recompress, pace, progress),
            Run::Real => fs.defrag(top, recompress, pace, progress),
        }?;
        all.files += done.files;
        all.improved += done.improved;
        all.extents_before += done.extents_before;
        all.extents_after += done.extents_after;
        all.moved_blocks += done.moved_blocks;
        all.recompressed += done.recompressed;
        all.blocks_before += done.blocks_before;
        all.blocks_after += done.blocks_after;
    }
    Ok(all)
}

/// Finds the inode of a path from the root of a fileset.
fn find(fileset: &Fileset, path: &str) -> ::fs::Result<u64> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let top = parts.try_fold(ROOT, |dir, part| {
        Ok(fileset.lookup(dir, part.as_bytes())?.ino)
    });
    top.map_err(|error: ::fs::Error| {
        ::fs::Error::new(error.kind(), format!("cannot find {path}: {error}"))
    })
}
