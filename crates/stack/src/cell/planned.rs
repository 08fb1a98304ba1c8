//! Dry runs of requests to a served cell. Only its process can change it, so the checks of a request
//! are made here, on the answers to queries.

use super::acl::{changed, list_of, shown_list};
use super::{Mounted, ShownVolume};
use crate::control::{self, CellRequest, ControlRequest};
use crate::filesystem::Removed;
use crate::text::json_of;
use crate::{Error, Result};
use afs_proto::acl::AccessList;
use serde_json::{Value, json};
use std::path::Path;

/// Returns the answer that the request would get from the service `service`. The path of a mount
/// point is not checked: no query can.
///
/// # Errors
/// Those of the request, except for errors of the device.
pub(super) fn answer(run_dir: &Path, service: &str, ask: &CellRequest) -> Result<Value> {
    let query = |ask| control::send_query(run_dir, service, &ControlRequest::Cell(ask));
    let listed = query(CellRequest::List)?;
    match ask {
        CellRequest::AclSet {
            volume,
            path,
            changes,
            negative,
            clear,
        } => {
            let get = CellRequest::AclGet {
                volume: volume.clone(),
                path: path.clone(),
            };
            let before = list_of(&query(get)?)?;
            let before = if *clear {
                AccessList::default()
            } else {
                before
            };
            let list = changed(&before, changes, *negative)?;
            Ok(json_of(&shown_list(volume, path, &list)))
        }
        other => planned(&listed, other),
    }
}

fn planned(listed: &Value, ask: &CellRequest) -> Result<Value> {
    let rows = listed["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let found = |name: &str| rows.iter().find(|row| row["name"] == name);
    let existing = |name: &str| {
        found(name)
            .cloned()
            .ok_or_else(|| Error::NotFound(format!("no volume named `{name}`")))
    };
    match ask {
        CellRequest::Create { name, quota, .. } => match found(name) {
            Some(_) => Err(Error::Usage(format!("the volume `{name}` exists already"))),
            None => Ok(json_of(&ShownVolume {
                name: name.clone(),
                id: None,
                kind: "read-write",
                of: None,
                created: None,
                used_bytes: Some(0),
                used_inodes: Some(1),
                quota_bytes: quota.filter(|bytes| *bytes > 0),
            })),
        },
        CellRequest::Mount { name, path, .. } => {
            existing(name)?;
            Ok(json_of(&Mounted {
                mounted: name.clone(),
                path: path.clone(),
            }))
        }
        CellRequest::Clone { name, backup } => {
            let mut row = existing(name)?;
            let (suffix, kind) = if *backup {
                ("backup", "backup")
            } else {
                ("readonly", "read-only")
            };
            let clone = format!("{name}.{suffix}");
            // A new one gets a number when it is made.
            row["id"] = found(&clone).map_or(Value::Null, |clone| clone["id"].clone());
            row["name"] = json!(clone);
            row["kind"] = json!(kind);
            Ok(row)
        }
        CellRequest::Quota { name, bytes } => {
            let mut row = existing(name)?;
            row["quota_bytes"] = json!((*bytes > 0).then_some(bytes));
            Ok(row)
        }
        CellRequest::Remove { name, force } => {
            let row = existing(name)?;
            let holds = row["used_inodes"].as_u64().unwrap_or(0).saturating_sub(1);
            if holds > 0 && !force && row["kind"] == "read-write" {
                return Err(Error::Usage(format!(
                    "the volume `{name}` holds {holds} files and directories; --force removes them \
                     permanently"
                )));
            }
            let removed = name.clone();
            Ok(json_of(&Removed { removed }))
        }
        CellRequest::Status { .. }
        | CellRequest::List
        | CellRequest::AclGet { .. }
        | CellRequest::AclSet { .. } => Ok(listed.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_a_served_cell_is_checked_without_being_sent() {
        let rows = [
            json!({ "name": "root.cell", "kind": "read-write", "used_inodes": 1 }),
            json!({ "name": "full", "kind": "read-write", "used_inodes": 5 }),
            json!({ "name": "full.readonly", "kind": "read-only", "used_inodes": 5 }),
        ];
        let listed = json!({ "volumes": rows });
        let create = |name: &str| CellRequest::Create {
            name: name.into(),
            quota: None,
            mount: None,
        };
        let remove = |name: &str, force| CellRequest::Remove {
            name: name.into(),
            force,
        };
        let clone = |name: &str| CellRequest::Clone {
            name: name.into(),
            backup: false,
        };
        for (ask, expected) in [
            (create("new"), 0),
            (create("full"), 2),
            (clone("full"), 0),
            (clone("none"), 10),
            (remove("none", true), 10),
            (remove("full", false), 2),
            (remove("full", true), 0),
            (remove("full.readonly", false), 0),
        ] {
            let code = planned(&listed, &ask).map_or_else(|error| error.exit_code(), |_| 0);
            assert_eq!(code, expected, "{ask:?}");
        }
        let row = planned(&listed, &clone("full")).unwrap();
        assert_eq!(
            (&row["name"], &row["kind"]),
            (&json!("full.readonly"), &json!("read-only"))
        );
    }
}
