//! Dry runs of requests, compared with the real ones.

use super::*;
use crate::Settings;
use ::fs::{FileType, New, ROOT};
use block::BlockDevice;
use block_testing::Mem;

#[test]
fn a_dry_run_has_the_answer_of_the_real_one_and_changes_nothing() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = Arc::new(open_fs(&device, "test", ::fs::Options::default()).unwrap());
    let settings = Settings::of_env(&|_| None);
    let cache = ProcessCache::new(&settings).unwrap();
    let admin = opened(&fs, &cache, "test").unwrap();
    for name in [ROOTS[0], ROOTS[1], "full"] {
        admin.create(&new_volume(name)).unwrap();
    }
    let full = fs.fileset_named("full").unwrap();
    let file = New::of_root(FileType::File, 0o644);
    full.create(ROOT, b"file", &file).unwrap();
    fs.sync().unwrap();
    let record = Record {
        name: "test.local".into(),
        listen: Vec::new(),
    };
    let run = |ask: &CellRequest, run| {
        let answer = execute(&record, &admin, ask, run);
        let mut answer = answer.map_err(|error| (error.exit_code(), error.chain()))?;
        if let Some(row) = answer.as_object_mut() {
            // A dry run cannot know the numbers of a new volume, and the time passes.
            row.retain(|key, _| !["id", "of", "created"].contains(&key.as_str()));
        }
        Ok::<Value, (u8, String)>(answer)
    };
    let create = |name: &str, mount: Option<&str>| CellRequest::Create {
        name: name.into(),
        quota: Some(5000),
        mount: mount.map(str::to_owned),
    };
    let mount = |name: &str, path: &str| CellRequest::Mount {
        name: name.into(),
        path: path.into(),
        read_write: false,
    };
    let clone = |name: &str| CellRequest::Clone {
        name: name.into(),
        backup: false,
    };
    let limit = |name: &str| CellRequest::Quota {
        name: name.into(),
        bytes: 5000,
    };
    let remove = |name: &str, force| CellRequest::Remove {
        name: name.into(),
        force,
    };
    let acl = |path: &str, name: &str| CellRequest::AclSet {
        volume: "full".into(),
        path: path.into(),
        changes: vec![(name.into(), "read".into())],
        negative: false,
        clear: false,
    };
    for (ask, code) in [
        (create("new", Some("/new")), 0),
        (create("full", None), 2),
        (create("new.backup", None), 2),
        (create("more", Some("/new")), 2),
        (mount("full", "/full"), 0),
        (mount("full", "/full"), 2),
        (mount("none", "/none"), 10),
        (mount("full", "/none/full"), 10),
        (clone("full"), 0),
        (clone("full"), 0),
        (clone("full.readonly"), 2),
        (clone("none"), 10),
        (limit("full"), 0),
        (limit("full.readonly"), 2),
        (limit("none"), 10),
        (acl("/", "10.0.0.7"), 0),
        (acl("/", "alice"), 2),
        (acl("/none", "10.0.0.7"), 10),
        (remove(ROOTS[1], true), 2),
        (remove("none", true), 10),
        (remove("full", false), 2),
        (remove("full.readonly", false), 0),
        (remove("full", true), 0),
    ] {
        let before = run(&CellRequest::List, Run::Real);
        let dry = run(&ask, Run::Dry);
        assert_eq!(run(&CellRequest::List, Run::Real), before, "{ask:?}");
        assert_eq!(dry.as_ref().err().map_or(0, |e| e.0), code, "{ask:?}");
        assert_eq!(dry, run(&ask, Run::Real), "{ask:?}");
    }
}
