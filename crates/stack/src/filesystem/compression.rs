//! Setting the compression of a fileset.

use super::shown::ShownFileset;
use crate::control::Run;
use crate::text::json_of;
use crate::{Error, Result};
use ::fs::{Compression, FilesetChange, Fs, TreeId};
use serde_json::Value;

/// Sets the method of the fileset `name`.
pub(super) fn execute(
    fs: &Fs,
    (id, name): (TreeId, &str),
    method: Option<&str>,
    run: Run,
) -> Result<Value> {
    let failed = || Error::files(format!("cannot set the compression of `{name}`"));
    let parsed = method.map(|method| {
        method.parse::<Compression>().map_err(|()| {
            let text = format!("no method `{method}`: use lz4 or zstd");
            failed()(::fs::Error::new(::fs::Kind::Invalid, text))
        })
    });
    let method = parsed.transpose()?;
    if run == Run::Dry {
        let planned = fs.plan(FilesetChange::Compression { id, method });
        let record = planned.map_err(failed())?;
        return Ok(json_of(&ShownFileset::planned(fs, Some(id), &record)));
    }
    fs.set_compression(id, method).map_err(failed())?;
    Ok(json_of(&ShownFileset::named(fs, name)))
}
