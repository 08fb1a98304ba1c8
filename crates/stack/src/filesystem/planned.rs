//! Dry runs of requests to a mounted file system. Only its process can change it, so the checks of a
//! request are made here, on the answers to queries.

use super::{BLOCK_BYTES, Removed, ShownFileset, not_empty, still_mounted};
use crate::control::{self, ControlRequest, FsRequest, Limits};
use crate::text::{json_of, now_seconds};
use crate::{Error, Result};
use ::fs::is_tree_name;
use serde_json::{Value, json};
use std::path::Path;

/// Returns the answer that the request would get from the service `service`.
///
/// # Errors
/// Those of the request, except for errors of the device.
pub(super) fn answer(run_dir: &Path, service: &str, ask: &FsRequest) -> Result<Value> {
    let query = |ask| control::send_query(run_dir, service, &ask);
    let listed = query(ControlRequest::Files(FsRequest::List))?;
    let status = query(ControlRequest::Status)?;
    planned(&listed, &status, ask)
}

fn planned(listed: &Value, status: &Value, ask: &FsRequest) -> Result<Value> {
    let rows = listed["filesets"].as_array();
    let rows = rows.map_or(&[][..], Vec::as_slice);
    match ask {
        FsRequest::List | FsRequest::Usage => Ok(listed.clone()),
        FsRequest::Create { name, quota } => {
            refuse_name(rows, name)?;
            let mut row = json_of(&ShownFileset {
                id: None,
                name: name.clone(),
                snapshot_of: None,
                created: now_seconds(),
                used_bytes: 0,
                used_inodes: 1,
                quota_bytes: None,
                quota_inodes: None,
                cell: None,
            });
            limit(&mut row, quota);
            Ok(row)
        }
        FsRequest::Rename { from, to } => {
            let mut row = find(rows, from)?.clone();
            refuse_name(rows, to)?;
            row["name"] = json!(to);
            Ok(row)
        }
        FsRequest::Quota { name, quota } => {
            let mut row = find(rows, name)?.clone();
            if row["snapshot_of"].is_string() {
                return Err(Error::Usage(format!(
                    "cannot set the quota of '{name}': a snapshot has no quota"
                )));
            }
            limit(&mut row, quota);
            Ok(row)
        }
        FsRequest::Snapshot { of, name } => {
            let mut row = find(rows, of)?.clone();
            if row["snapshot_of"].is_string() {
                return Err(Error::Usage(format!(
                    "cannot create a snapshot of '{of}': it is a snapshot itself"
                )));
            }
            refuse_name(rows, name)?;
            (row["id"], row["name"]) = (Value::Null, json!(name));
            row["snapshot_of"] = json!(of);
            row["created"] = json!(now_seconds());
            Ok(row)
        }
        FsRequest::Remove { name, force } => {
            let row = find(rows, name)?;
            if status["fileset"] == name.as_str() {
                return Err(still_mounted(name));
            }
            let holds = row["used_inodes"].as_u64().unwrap_or(0).saturating_sub(1);
            if holds > 0 && !force {
                return Err(not_empty(name, holds));
            }
            if rows.iter().any(|row| row["snapshot_of"] == name.as_str()) {
                return Err(Error::Busy(format!(
                    "cannot remove '{name}': the fileset has snapshots"
                )));
            }
            let removed = name.clone();
            Ok(json_of(&Removed { removed }))
        }
    }
}

fn find<'a>(rows: &'a [Value], name: &str) -> Result<&'a Value> {
    let found = rows.iter().find(|row| row["name"] == name);
    found.ok_or_else(|| {
        Error::NotFound(format!(
            "cannot find the fileset: no fileset or snapshot named '{name}'"
        ))
    })
}

/// Refuses a name that is invalid or in use.
fn refuse_name(rows: &[Value], name: &str) -> Result<()> {
    if !is_tree_name(name) {
        return Err(Error::Usage(format!(
            "invalid name '{name}': 1 to 255 bytes, no `/` or control characters, and not `.` or \
             `..`"
        )));
    }
    match find(rows, name) {
        Ok(_) => Err(Error::Usage(format!(
            "a fileset or snapshot named '{name}' exists already"
        ))),
        Err(_) => Ok(()),
    }
}

fn limit(row: &mut Value, limits: &Limits) {
    let limited = |n: u64| (n > 0).then_some(n);
    if let Some(bytes) = limits.bytes {
        row["quota_bytes"] = json!(limited(bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES));
    }
    if let Some(inodes) = limits.inodes {
        row["quota_inodes"] = json!(limited(inodes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_a_mount_is_checked_without_being_sent() {
        let rows = [
            json!({ "name": "main", "used_inodes": 1, "snapshot_of": null }),
            json!({ "name": "full", "used_inodes": 5, "snapshot_of": null }),
            json!({ "name": "monday", "used_inodes": 5, "snapshot_of": "full" }),
        ];
        let listed = json!({ "filesets": rows });
        let status = json!({ "fileset": "main" });
        let code = |ask: FsRequest| match planned(&listed, &status, &ask) {
            Ok(_) => 0,
            Err(error) => error.exit_code(),
        };
        let quota = Limits {
            bytes: Some(1),
            inodes: None,
        };
        let create = |name: &str| FsRequest::Create {
            name: name.into(),
            quota,
        };
        let rename = |from: &str, to: &str| FsRequest::Rename {
            from: from.into(),
            to: to.into(),
        };
        let snapshot = |of: &str, name: &str| FsRequest::Snapshot {
            of: of.into(),
            name: name.into(),
        };
        let remove = |name: &str, force| FsRequest::Remove {
            name: name.into(),
            force,
        };
        let limits = |name: &str| FsRequest::Quota {
            name: name.into(),
            quota,
        };
        for (ask, expected) in [
            (create("new"), 0),
            (create("main"), 2),
            (create("a/b"), 2),
            (rename("full", "new"), 0),
            (rename("none", "new"), 10),
            (rename("full", "main"), 2),
            (limits("full"), 0),
            (limits("monday"), 2),
            (snapshot("full", "new"), 0),
            (snapshot("monday", "new"), 2),
            (snapshot("full", "monday"), 2),
            (remove("none", true), 10),
            (remove("main", true), 11),
            (remove("full", false), 2),
            (remove("full", true), 11),
            (remove("monday", true), 0),
        ] {
            assert_eq!(code(ask.clone()), expected, "{ask:?}");
        }
        let row = planned(&listed, &status, &create("new")).unwrap();
        assert_eq!(row["quota_bytes"], BLOCK_BYTES);
    }
}
