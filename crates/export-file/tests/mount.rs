//! Volumes as files, used by programs.

use block_testing::Mem;
use export_file::{Config, Export, Mount, WhenBusy};
use std::fs::{self as sys, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Unmounts. A process that another test starts has a copy of every descriptor for a moment.
fn unmount(mount: Mount) {
    let end = Instant::now() + Duration::from_secs(30);
    let mut mount = mount;
    while let Err(failed) = mount.unmount(WhenBusy::Refuse) {
        let (back, error) = *failed;
        assert!(error.is_busy() && Instant::now() < end, "{error}");
        mount = back;
        std::thread::yield_now();
    }
}

#[test]
fn programs_read_write_and_list_volumes_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Mem::new(4 << 20, 4096);
    let export = |name: &str, read_only| Export {
        name: name.into(),
        device: Arc::new(disk.fork()),
        read_only,
    };
    let exports = vec![export("disk", false), export("fixed", true)];
    let mount = Mount::start(Config::new(dir.path().to_owned()), exports).unwrap();
    let entries = sys::read_dir(dir.path()).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["disk", "fixed"]);
    let path = mount.path_of("disk");
    let meta = path.metadata().unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o7777), (4 << 20, 0o600));
    assert!(meta.modified().unwrap().elapsed().unwrap() < Duration::from_secs(3600));

    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let data: Vec<u8> = (0..2_500_000u32).map(|i| (i % 253) as u8).collect();
    std::thread::scope(|scope| {
        for part in 0..5 {
            let (file, bytes) = (&file, part * 500_000..(part + 1) * 500_000);
            let data = &data[bytes.clone()];
            scope.spawn(move || file.write_all_at(data, bytes.start as u64).unwrap());
        }
    });
    file.sync_all().unwrap();
    let mut read = vec![0; data.len()];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
    // The file neither grows nor shrinks.
    let error = file.write_all_at(b"xy", (4 << 20) - 1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let error = file.set_len(1 << 20).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    drop(file);
    sys::write(&path, "truncates nothing").unwrap();
    let file = OpenOptions::new().read(true).open(&path).unwrap();
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read[..17], b"truncates nothing");
    assert!(read[17..] == data[17..]);
    drop(file);

    let fixed = mount.path_of("fixed");
    assert_eq!(fixed.metadata().unwrap().mode() & 0o7777, 0o400);
    let error = OpenOptions::new().write(true).open(&fixed).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let missing = dir.path().join("missing").metadata().unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    unmount(mount);
    assert!(!path.exists());
}
