//! A mounted file system, used through the kernel. Needs `/dev/fuse` and the right to mount.

mod common;

use common::{device, device_of, mounted};
use std::fs as sys;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn what_programs_write_is_there_for_them_and_after_a_remount() {
    let device = device();
    mounted(&device, |dir| {
        sys::create_dir_all(dir.join("a/b/c")).expect("made");
        sys::write(dir.join("a/b/c/file"), vec![7; 300_000]).expect("written");
        sys::hard_link(dir.join("a/b/c/file"), dir.join("link")).expect("linked");
        symlink("a/b", dir.join("symlink")).expect("linked");
        sys::set_permissions(dir.join("link"), sys::Permissions::from_mode(0o751)).expect("set");
        sys::rename(dir.join("a/b/c"), dir.join("moved")).expect("renamed");
        assert!(sys::rename(dir.join("a"), dir.join("a/b/x")).is_err());
        assert!(sys::remove_dir(dir.join("moved")).is_err());
        for i in 0..3000 {
            sys::write(dir.join("a/b").join(format!("entry {i}")), b"x").expect("written");
        }
        let mut names: Vec<_> = sys::read_dir(dir.join("symlink"))
            .expect("listed")
            .collect();
        assert_eq!(names.len(), 3000);
        names.clear();
        let meta = sys::metadata(dir.join("moved/file")).expect("there");
        assert_eq!(
            (meta.nlink(), meta.mode() & 0o7777, meta.len()),
            (2, 0o751, 300_000)
        );
    });
    mounted(&device, |dir| {
        assert_eq!(
            sys::read(dir.join("link")).expect("readable"),
            vec![7; 300_000]
        );
        assert_eq!(
            sys::read_link(dir.join("symlink")).expect("readable"),
            Path::new("a/b")
        );
        let names = sys::read_dir(dir.join("a/b")).expect("listed");
        names.for_each(|entry| sys::remove_file(entry.expect("an entry").path()).expect("removed"));
        sys::remove_dir_all(dir.join("a")).expect("removed");
    });
}

#[test]
fn a_file_can_be_cut_extended_and_used_without_a_name() {
    mounted(&device(), |dir| {
        let path = dir.join("file");
        let options = || {
            sys::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .clone()
        };
        let mut file = options().open(&path).expect("open");
        file.write_all(&[1; 10_000]).expect("written");
        file.set_len(5_000).expect("cut");
        file.set_len(20_000).expect("extended");
        file.write_all_at(&[2; 10], 30_000).expect("written");
        sys::remove_file(&path).expect("removed");
        assert_eq!(file.metadata().expect("there").nlink(), 0);
        let mut all = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("sought");
        file.read_to_end(&mut all).expect("readable");
        let mut expected = vec![0; 30_010];
        expected[..5_000].fill(1);
        expected[30_000..].fill(2);
        assert!(all == expected);
        file.sync_all().expect("synced");
        assert!(options().create(false).open(&path).is_err());
    });
}

#[test]
fn appends_from_many_threads_and_openings_are_whole() {
    mounted(&device(), |dir| {
        let path = dir.join("log");
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let path = &path;
                scope.spawn(move || {
                    let mut file = sys::OpenOptions::new()
                        .append(true)
                        .create(true)
                        .open(path)
                        .expect("open");
                    for _ in 0..100 {
                        file.write_all(&[thread; 1000]).expect("written");
                    }
                });
            }
        });
        let all = sys::read(&path).expect("readable");
        assert_eq!(all.len(), 400_000);
        for record in all.chunks(1000) {
            assert!(record.iter().all(|byte| *byte == record[0]));
        }
    });
}

#[test]
fn a_full_device_says_so_and_goes_on() {
    mounted(&device_of(16), |dir| {
        let error = sys::write(dir.join("large"), vec![1; 32 << 20]).expect_err("too much");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        sys::remove_file(dir.join("large")).expect("removed");
        sys::write(dir.join("small"), vec![1; 1 << 20]).expect("there is room");
        assert_eq!(
            sys::read(dir.join("small")).expect("readable"),
            vec![1; 1 << 20]
        );
    });
}
