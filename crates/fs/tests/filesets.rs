//! Changes of filesets as a whole, planned and made.

use block_testing::Mem;
use cache::{Cache, Config};
use fs::{
    Compression, FIRST_FILESET, Files, FilesetChange, Fs, Kind, Options, Quota, Result, Time,
    TreeRecord,
};
use std::sync::Arc;

/// Makes a change, and returns the record after it, or the last one of a removed fileset.
fn make(fs: &Fs, change: FilesetChange<'_>) -> Result<TreeRecord> {
    match change {
        FilesetChange::Create { name } => fs.create_fileset(name)?.record(),
        FilesetChange::Snapshot { of, name } => fs.snapshot(of, name)?.record(),
        FilesetChange::Clone { of, name } => fs.clone_snapshot(of, name)?.record(),
        FilesetChange::Rename { id, name } => {
            fs.rename_fileset(id, name)?;
            fs.fileset(id)?.record()
        }
        FilesetChange::Quota { id, quota } => {
            fs.set_quota(id, quota)?;
            fs.fileset(id)?.record()
        }
        FilesetChange::Compression { id, method } => {
            fs.set_compression(id, method)?;
            fs.fileset(id)?.record()
        }
        FilesetChange::Hold { id, held } => {
            fs.hold(id, held)?;
            fs.fileset(id)?.record()
        }
        FilesetChange::Rollback { to, keep } => {
            let of = fs.fileset(to)?.record()?.origin;
            fs.rollback(to, keep)?;
            fs.fileset(of)?.record()
        }
        FilesetChange::Remove { id } => {
            let record = fs.fileset(id)?.record()?;
            fs.remove_fileset(id)?;
            Ok(record)
        }
    }
}

/// Reduces a result to its parts that do not depend on the time.
fn timeless(result: Result<TreeRecord>) -> std::result::Result<TreeRecord, Kind> {
    let created = Time::default();
    let record = result.map(|record| TreeRecord { created, ..record });
    record.map_err(|error| error.kind())
}

#[test]
fn a_planned_change_has_the_result_of_the_real_one_and_changes_nothing() {
    let device = Arc::new(Mem::new(32 << 20, 512));
    Fs::format(device.clone(), "").expect("formatted");
    let fs = Fs::open(device, Options::default()).expect("open");
    let main = fs.fileset_named(FIRST_FILESET).expect("there").id();
    let home = fs.create_fileset("home").expect("made").id();
    let limits = Quota {
        blocks: 7,
        inodes: 8,
    };
    fs.set_quota(home, limits).expect("set");
    let then = fs.snapshot(home, "then").expect("made").id();
    let none = 1000;
    let quota = Quota {
        blocks: 100,
        inodes: 0,
    };
    let create = |name| FilesetChange::Create { name };
    let snapshot = |of, name| FilesetChange::Snapshot { of, name };
    let clone = |of, name| FilesetChange::Clone { of, name };
    let rename = |id, name| FilesetChange::Rename { id, name };
    let limit = |id| FilesetChange::Quota { id, quota };
    let compress = |id, method| FilesetChange::Compression { id, method };
    let remove = |id| FilesetChange::Remove { id };
    let hold = |id, held| FilesetChange::Hold { id, held };
    let rollback = |to, keep| FilesetChange::Rollback { to, keep };
    for (change, refusal) in [
        (create("home"), Some(Kind::Exists)),
        (create("a/b"), Some(Kind::Invalid)),
        (create("new"), None),
        (snapshot(home, "then"), Some(Kind::Exists)),
        (snapshot(then, "again"), Some(Kind::Invalid)),
        (snapshot(none, "again"), Some(Kind::NotFound)),
        (clone(then, "home"), Some(Kind::Exists)),
        (clone(home, "trial"), Some(Kind::Invalid)),
        (clone(none, "trial"), Some(Kind::NotFound)),
        (clone(then, "trial"), None),
        (snapshot(home, "again"), None),
        (rename(home, "main"), Some(Kind::Exists)),
        (rename(none, "people"), Some(Kind::NotFound)),
        (rename(home, "people"), None),
        (limit(then), Some(Kind::Invalid)),
        (limit(none), Some(Kind::NotFound)),
        (limit(main), None),
        (compress(then, Some(Compression::Lz4)), Some(Kind::Invalid)),
        (compress(none, None), Some(Kind::NotFound)),
        (compress(home, Some(Compression::Zstd)), None),
        (compress(main, Some(Compression::Lz4)), None),
        (compress(main, None), None),
        (hold(home, true), Some(Kind::Invalid)),
        (hold(none, true), Some(Kind::NotFound)),
        (hold(then, true), None),
        (remove(then), Some(Kind::Busy)),
        (hold(then, false), None),
        (rollback(home, None), Some(Kind::Invalid)),
        (rollback(none, None), Some(Kind::NotFound)),
        (rollback(then, Some("main")), Some(Kind::Exists)),
        (rollback(then, Some("before")), None),
        (remove(home), Some(Kind::Busy)),
        (remove(none), Some(Kind::NotFound)),
        (remove(then), None),
    ] {
        let before = fs.filesets();
        let planned = timeless(fs.plan(change));
        assert_eq!(fs.filesets(), before, "{change:?}");
        assert_eq!(planned.as_ref().err().copied(), refusal, "{change:?}");
        assert_eq!(planned, timeless(make(&fs, change)), "{change:?}");
    }
}

#[test]
fn a_fileset_in_use_is_not_removed_whatever_its_name() {
    let device = Arc::new(Mem::new(32 << 20, 512));
    Fs::format(device.clone(), "").expect("formatted");
    let fs = Fs::open(device, Options::default()).expect("open");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let home = fs.create_fileset("home").expect("made");
    let id = home.id();
    let files = Files::new(&home, &cache).expect("in use");
    fs.rename_fileset(id, "people").expect("renamed");
    let busy = |result: Result<()>| {
        let error = result.expect_err("in use");
        assert_eq!(error.kind(), Kind::Busy, "{error}");
    };
    busy(fs.plan(FilesetChange::Remove { id }).map(drop));
    busy(fs.remove_fileset(id));
    // A thread may keep a lane of files that are closed.
    let lane = files.lane().expect("a lane");
    files.close().expect("closed");
    fs.plan(FilesetChange::Remove { id }).expect("unused");
    fs.remove_fileset(id).expect("unused");
    drop(lane);
}
