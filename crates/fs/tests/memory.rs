//! Memory of many small files. A process for itself, because it measures its resident memory.

mod common;

use block::BlockDevice;
use cache::{Cache, Config};
use common::{amount, format};
use fs::{FIRST_FILESET, FileType, Files, Fs, New, Options, ROOT, WritePosition};
use std::sync::Arc;

const NEW: New = New::of_root(FileType::File, 0o644);
const MIB: u64 = 1 << 20;

/// Largest resident memory of this process since the last call of [`reset_peak`].
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.expect("a peak").parse::<u64>().expect("a number") << 10
}

fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be reset");
}

/// The formula of `docs/guide/performance.md`, with smaller caches.
#[test]
fn many_small_files_take_no_more_memory_than_the_caches_and_the_uncommitted_changes() {
    let files = amount("EVFS_FILES", 50_000) as u64;
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    image
        .as_file()
        .set_len(files * 8192 + (256 << 20))
        .expect("a size");
    let options = path_file::Options::default();
    let device: Arc<dyn BlockDevice> =
        path_file::FileDevice::open(image.path(), &options).expect("it opens");
    format(&device);
    let (pages, metadata) = (16 * MIB, 8 * MIB);
    let options = || Options {
        metadata_cache_bytes: metadata as usize,
        ..Options::default()
    };
    let fs = Fs::open(common::keyed(&device), options()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(pages)).expect("a cache");
    let open = Files::new(&main, &cache).expect("attached");
    let mut lane = open.lane().expect("a lane");
    reset_peak();
    let before = peak_bytes();
    for i in 0..files {
        let name = format!("file-{i:07}").into_bytes();
        let (_, file) = open.create_open(ROOT, &name, &NEW).expect("made");
        let data = [i as u8; 1000];
        lane.write(&file, WritePosition::Offset(0), &data)
            .expect("written");
    }
    drop(lane);
    open.close().expect("closed");
    let taken = peak_bytes() - before;
    // An uncommitted change takes up to 512 bytes, and a file causes four.
    let uncommitted = 4 * 512 * files.min(2 * 131_072 / 4);
    let most = pages + metadata + 2 * uncommitted;
    println!("{files} files created: {taken} bytes more, allowed {most}");
    assert!(taken <= most, "{taken} bytes, allowed {most}");
    drop((open, main));
    fs.close().expect("closed");

    let fs = Fs::open(common::keyed(&device), options()).expect("it opens");
    reset_peak();
    let before = peak_bytes();
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert_eq!(report.entries, files);
    let taken = peak_bytes() - before;
    let most = metadata + 64 * MIB + 48 * files;
    println!("checked: {taken} bytes more, allowed {most}");
    assert!(taken <= most, "{taken} bytes, allowed {most}");
    fs.close().expect("closed");
}
