//! A fileset with a past.

use super::client::Client;
use super::pair::describe;
use super::{format, open};
use block::BlockDevice;
use block_testing::Random;
use fs::{FIRST_FILESET, FileType, Fs, New, ROOT, SetAttr, SetTime};
use std::sync::Arc;

/// Writes a file through the cache of a test.
fn write(client: &mut Client, ino: u64, offset: u64, data: &[u8]) {
    client.write(ino, offset, data).expect("written");
    client
        .fsync(ino, &mut Random::new(1))
        .expect("on the device");
}

fn make(client: &mut Client, name: &str, data: &[u8]) -> u64 {
    let new = New::of_root(FileType::File, 0o644);
    let made = client.fileset.create(ROOT, name.as_bytes(), &new);
    let ino = made.expect("created").ino;
    if !data.is_empty() {
        write(client, ino, 0, data);
    }
    ino
}

/// Tree with the content of all files in the root.
pub fn seen(fs: &Fs, fileset: &str) -> String {
    let fileset = fs.fileset_named(fileset).expect("it exists");
    let mut text = describe(&fileset);
    let mut files = Vec::new();
    fileset
        .read_dir(ROOT, 2, |entry| {
            if entry.kind == FileType::File {
                files.push((entry.name.to_vec(), entry.ino));
            }
            Ok(true)
        })
        .expect("listed");
    files.sort();
    let mut client = Client::new(fileset);
    for (name, ino) in files {
        let data = client.read(ino, 0, 1 << 30).expect("readable");
        text += &format!("{}: {data:?}\n", String::from_utf8_lossy(&name));
    }
    text
}

/// A fileset that has changed in every way since the snapshot `then`.
pub fn changed(device: &Arc<dyn BlockDevice>) -> Fs {
    format(device);
    let fs = open(device);
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
    let mut client = Client::new(main.clone());
    let kept = make(&mut client, "kept", &[1; 20_000]);
    let removed = make(&mut client, "removed", &[2; 30_000]);
    let cut = make(&mut client, "cut", &[3; 40_000]);
    let moved = make(&mut client, "moved", b"moved");
    let dir = New::of_root(FileType::Directory, 0o755);
    let dir = main.create(ROOT, b"dir", &dir).expect("created").ino;
    fs.snapshot(main.id(), "then").expect("a snapshot");
    write(&mut client, kept, 5_000, &[4; 10_000]);
    main.unlink(ROOT, b"removed").expect("removed");
    client.forget(removed);
    client.truncate(cut, 100).expect("truncated");
    let replace = fs::Rename::Replace;
    main.rename((ROOT, b"moved"), (dir, b"here"), replace)
        .expect("renamed");
    main.link(moved, ROOT, b"link").expect("linked");
    fs.snapshot(main.id(), "between").expect("a snapshot");
    make(&mut client, "new", &[5; 50_000]);
    write(&mut client, cut, 50, &[6; 8_000]);
    let touch = SetAttr {
        modified: Some(SetTime::Now),
        ..SetAttr::default()
    };
    main.set_attr(kept, &touch).expect("a new time");
    drop(client);
    fs.commit().expect("committed");
    fs
}
