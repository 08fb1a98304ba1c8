//! The file server under real clients: `afsd.fuse` of OpenAFS 1.8, and the client in Linux.

use std::fs;
use std::path::Path;
use tests::afs::wire::{MARKS, Recording};
use tests::afs::{ADDRESS, Machine};
use tests::{Ran, Sandbox, is_root};

#[test]
fn ops_fuse() {
    if !is_root("mounts") {
        return;
    }
    for ours in [true, false] {
        let s = Sandbox::new();
        let m = Machine::new(&s);
        let served = ours.then(|| m.serve());
        if !ours {
            m.openafs();
        }
        let recording = Recording::start(&m, "wire", Path::new(env!("CARGO_BIN_EXE_afs_ops")));
        let client = m.mount("a", &["-oattr_timeout=0,entry_timeout=0"]);
        let mut c = m.command(env!("CARGO_BIN_EXE_afs_ops"));
        let ran = Ran::of(c.arg(client.folder()).arg(format!("{ADDRESS}:{MARKS}")));
        println!("{}{}", ran.stdout, ran.stderr);
        let steps = recording.up_to("end");
        let mut out = ran.stdout.clone();
        for st in &steps { out += &format!("{}: {}\n", st.name, st.calls.join(", ")); }
        fs::write(format!("/tmp/afscl-fuse-{ours}"), out).unwrap();
        client.unmount();
        if let Some(served) = served { println!("{}", served.end()); }
    }
}

#[test]
fn ops_kafs() {
    for ours in [true, false] {
        let s = Sandbox::new();
        let m = Machine::new(&s);
        let served = ours.then(|| m.serve());
        if !ours {
            m.openafs();
        }
        let recording = Recording::start(&m, "wire", Path::new(env!("CARGO_BIN_EXE_afs_ops")));
        let share = s.path("share");
        fs::create_dir(&share).unwrap();
        let mut out = m.guest(if ours {"linux-image-6.12-amd64"} else {"linux-image-6.12-amd64"}, "kafs_ops.sh", &share, &[Path::new(env!("CARGO_BIN_EXE_afs_ops"))]);
        let steps = recording.up_to("end");
        for st in &steps { out += &format!("{}: {}\n", st.name, st.calls.join(", ")); }
        fs::write(format!("/tmp/afscl-kafs-{ours}"), out).unwrap();
        if let Some(served) = served { println!("{}", served.end()); }
    }
}
