//! Dry runs of requests, compared with the real ones, and answers in parts.

use super::*;
use crate::control::{OwnerId, OwnersRequest};
use ::fs::{FileType, New};
use block_testing::Mem;

#[test]
fn a_dry_run_has_the_answer_of_the_real_one_and_changes_nothing() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = open_fs(&device, "test", ::fs::Options::default()).unwrap();
    let main = fs.fileset_named(FIRST_FILESET).unwrap().id();
    let run = |ask: &FsRequest, run| {
        let answer = execute(&fs, ask, run, &|| Ok(()), Some(main));
        let mut answer = answer.map_err(|error| (error.exit_code(), error.chain()))?;
        if let Some(row) = answer.as_object_mut() {
            // A dry run cannot know the number, and the time passes.
            row.retain(|key, _| key != "id" && key != "created");
        }
        Ok::<Value, (u8, String)>(answer)
    };
    let quota = Limits {
        bytes: Some(5000),
        inodes: Some(7),
    };
    let create = |name: &str| FsRequest::Create {
        name: name.into(),
        quota,
    };
    let rename = |from: &str, to: &str| FsRequest::Rename {
        from: from.into(),
        to: to.into(),
    };
    let limit = |name: &str| FsRequest::Quota {
        name: name.into(),
        quota,
    };
    let owners = |fileset: &str, owner| {
        FsRequest::Owners(OwnersRequest {
            fileset: fileset.into(),
            owner,
            quota,
        })
    };
    let snapshot = |of: &str, name: &str| FsRequest::Snapshot {
        of: of.into(),
        name: name.into(),
    };
    let remove = |name: &str, force| FsRequest::Remove {
        name: name.into(),
        force,
    };
    run(&create("full"), Run::Real).unwrap();
    let full = fs.fileset_named("full").unwrap();
    let file = New::of_root(FileType::File, 0o644);
    full.create(ROOT, b"file", &file).unwrap();
    fs.sync().unwrap();
    for (ask, code) in [
        (create("new"), 0),
        (create("full"), 2),
        (create("a/b"), 2),
        (rename("none", "people"), 10),
        (rename("new", "full"), 2),
        (rename("new", "people"), 0),
        (limit("people"), 0),
        (limit("none"), 10),
        (owners("people", Some(OwnerId::User(7))), 0),
        (owners("people", Some(OwnerId::Group(8))), 0),
        (owners("none", Some(OwnerId::Group(8))), 10),
        // The snapshot has no limits.
        (snapshot("full", "monday"), 0),
        (snapshot("monday", "tuesday"), 2),
        (snapshot("full", "monday"), 2),
        (limit("monday"), 2),
        (owners("monday", Some(OwnerId::User(7))), 2),
        (remove("none", true), 10),
        (remove(FIRST_FILESET, true), 11),
        (remove("full", false), 2),
        (remove("full", true), 11),
        (remove("monday", true), 0),
        (remove("full", true), 0),
    ] {
        let before = run(&FsRequest::List, Run::Real);
        let dry = run(&ask, Run::Dry);
        assert_eq!(run(&FsRequest::List, Run::Real), before, "{ask:?}");
        assert_eq!(dry.as_ref().err().map_or(0, |e| e.0), code, "{ask:?}");
        assert_eq!(dry, run(&ask, Run::Real), "{ask:?}");
    }
}

#[test]
fn a_comparison_in_parts_continues_after_the_last_path_although_the_fileset_changes() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = open_fs(&device, "test", ::fs::Options::default()).unwrap();
    let main = fs.fileset_named(FIRST_FILESET).unwrap();
    let then = fs.snapshot(main.id(), "then").unwrap().id();
    let name = |number: usize| format!("{number:03}");
    let new = New::of_root(FileType::File, 0o644);
    for number in 0..100 {
        main.create(ROOT, name(number).as_bytes(), &new).unwrap();
    }
    let (mut seen, mut after, mut parts) = (Vec::new(), None, 0);
    loop {
        let part = Part::of(&fs, (then, main.id()), after.as_deref(), 1000).unwrap();
        seen.extend(part.differences.into_iter().map(|one| one.path));
        after = part.more;
        if after.is_none() {
            break;
        }
        // Those that were reported are no longer there when the next part is composed.
        main.unlink(ROOT, name(parts).as_bytes()).unwrap();
        parts += 1;
    }
    assert!(parts > 3, "{parts}");
    assert_eq!(seen, (0..100).map(name).collect::<Vec<_>>());
}
