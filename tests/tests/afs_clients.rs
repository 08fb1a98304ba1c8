//! The file server with real clients: `afsd.fuse` of OpenAFS 1.8 and the clients in Linux 6.1 and
//! 6.12.
//!
//! Not tested with `afsd.fuse`, which does not support them: times, owners, devices, locks;
//! symbolic links, which it writes with another target (Connectathon's test 8); changing the length
//! of a file beyond 2 GiB.
//!
//! The large file is sparse. `cargo run --release -p tests --bin afs_large_file` transfers one with
//! 4.1 GiB of data through each client, which takes many minutes.

use serde_json::Value;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tests::afs::{ASK_ALWAYS, Client, KERNELS, Machine};
use tests::mounts::On;
use tests::{PATIENCE, Ran, Random, Sandbox, installed, lua, needs_root, peer, wait_until};

const MIB: u64 = 1 << 20;

/// Number of changes of a file that two kernels read continuously. A kernel would miss one in ten
/// if the server announced each only once.
const ROUNDS: usize = 60;

/// Offsets of pieces of 2 MiB in a large file, besides the one at its start: across 4 GiB, and
/// beyond.
const ACROSS: u64 = 4095 * MIB;
const FAR: u64 = 4608 * MIB;

/// Creates a source tree with the checksums of its files, at `tree`, `tree.tar` and `sums` in a
/// directory.
fn tree(folder: &Path) {
    lua::copy(&folder.join("tree"));
    let script = "tar cf tree.tar tree; cd tree; sha256sum * > ../sums";
    peer(
        "sh",
        &["-ec", &format!("cd {}; {script}", folder.display())],
    );
}

fn sum(machine: &Machine<'_>, what: &str) -> String {
    let printed = machine.shell(Path::new("/"), &format!("{what} | sha256sum"));
    printed.split(' ').next().unwrap_or_default().to_owned()
}

/// Verifies the tree and the pieces of the large file that `use_as_a_disk` left.
#[track_caller]
fn verify(machine: &Machine<'_>, client: &Client<'_>, s: &Sandbox, piece: &[u8]) {
    let sums = s.path("sums");
    let moved = client.folder().join("work/moved");
    machine.shell(&moved, &format!("sha256sum --quiet -c {}", sums.display()));
    let large = File::open(client.inside().join("work/large")).unwrap();
    assert_eq!(large.metadata().unwrap().size(), FAR + piece.len() as u64);
    let mut found = vec![1; piece.len()];
    for (at, wanted) in [
        (0, piece),
        (ACROSS, piece),
        (FAR, piece),
        (FAR - 2 * MIB, &vec![0; piece.len()]),
    ] {
        large.read_exact_at(&mut found, at).unwrap();
        assert!(found == wanted, "at {at}");
    }
}

/// Runs all operations that a client without times, owners and locks supports.
fn use_as_a_disk(machine: &Machine<'_>, client: &Client<'_>, s: &Sandbox, piece: &[u8]) {
    let root = client.folder();
    let script = format!(
        "mkdir work; cd work
         tar xmf {0}/tree.tar --no-same-owner
         cd tree; sha256sum --quiet -c {0}/sums; cd ..
         mv tree moved; cd moved
         make -s -j2; ./minimal script.lua
         mkdir ../built; mv minimal ../built/program; mv ../built ../again
         ../again/program script.lua
         rm *.o *.d *.a kept
         ln lua.h second.h; stat -c %h lua.h; rm lua.h; stat -c %h second.h; mv second.h lua.h
         chmod 600 main.c; stat -c %a main.c; chmod 644 main.c
         ls | wc -l",
        s.path("").display()
    );
    let files = fs::read_dir(s.path("tree")).unwrap().count();
    let printed = machine.shell(&root, &script);
    let ran = lua::PRINTED;
    assert_eq!(printed, format!("{ran}{ran}2\n1\n600\n{files}\n"));
    assert!(rustix::fs::statfs(client.inside()).unwrap().f_blocks > 0);

    let large = client.inside().join("work/large");
    let out = File::create_new(&large).unwrap();
    out.write_all_at(piece, 0).unwrap();
    out.write_all_at(piece, FAR).unwrap();
    out.write_all_at(piece, ACROSS).unwrap();
}

fn afsd_fuse_uses_a_cell_as_a_disk(on: On) {
    needs_root("it makes namespaces and mounts");
    let s = Sandbox::new();
    let piece = Random::from_environment().bytes(2 * MIB as usize);
    tree(&s.path(""));
    let machine = Machine::new(&s);
    let device = machine.cell(on, "6G");
    let served = machine.serve(device);
    let client = machine.mount("one", ASK_ALWAYS);
    use_as_a_disk(&machine, &client, &s, &piece);
    let basic = client.folder().join("connectathon");
    fs::create_dir(client.inside().join("connectathon")).unwrap();
    let mut connectathon = machine.command(env!("CARGO_BIN_EXE_connectathon"));
    let tests = ["1", "2", "3", "4", "5", "6", "7", "9"];
    let ran = Ran::of(connectathon.arg(basic).args(tests)).ok();
    println!("{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), tests.len());
    verify(&machine, &client, &s, &piece);
    client.unmount();

    // All client caches are empty.
    let client = machine.mount("two", ASK_ALWAYS);
    verify(&machine, &client, &s, &piece);
    served.end();
    let served = machine.serve(device);
    verify(&machine, &client, &s, &piece);
    let other = machine.mount("three", ASK_ALWAYS);
    verify(&machine, &other, &s, &piece);
    served.kill();
    let served = machine.serve(device);
    fs::write(client.inside().join("work/more"), "written").unwrap();
    // A client learns on its next call that a server has lost its callback promises.
    fs::write(other.inside().join("call"), "").unwrap();
    wait_until("the other client sees it", || {
        fs::read(other.inside().join("work/more")).is_ok_and(|text| text == b"written")
    });
    machine.shell(
        &client.folder(),
        "rm -r work connectathon call; test -z \"$(ls)\"",
    );
    wait_until("the other client sees that it is gone", || {
        fs::read_dir(other.inside()).is_ok_and(|mut left| left.next().is_none())
    });
    other.unmount();
    client.unmount();
    served.end();
    s.run(&["fsck", device]).ok();
}

#[test]
fn afsd_fuse_uses_a_cell_in_the_clear_as_a_disk() {
    afsd_fuse_uses_a_cell_as_a_disk(On::Clear);
}

#[test]
fn afsd_fuse_uses_an_encrypted_cell_as_a_disk() {
    afsd_fuse_uses_a_cell_as_a_disk(On::Encrypted);
}

/// Creates the /share of a guest: the tree, a compiler's files, and the names of the guests.
fn share(s: &Sandbox, me: &str, other: &str, piece: &[u8]) -> PathBuf {
    let share = s.path(me);
    fs::create_dir(&share).unwrap();
    tree(&share);
    fs::write(share.join("piece"), piece).unwrap();
    fs::write(share.join("me"), me).unwrap();
    fs::write(share.join("other"), other).unwrap();
    fs::write(share.join("rounds"), ROUNDS.to_string()).unwrap();
    fs::write(share.join("tests"), tests_of(me)).unwrap();
    let library = "usr/lib/x86_64-linux-gnu";
    let files = format!(
        "tar chf {}/cc.tar -C / {library}/tcc {library}/crt1.o {library}/crti.o {library}/crtn.o \
         {library}/libc.so {library}/libc_nonshared.a {library}/libm.so usr/include/*.h \
         usr/include/linux usr/include/asm-generic usr/include/x86_64-linux-gnu/asm \
         usr/include/x86_64-linux-gnu/bits usr/include/x86_64-linux-gnu/gnu \
         usr/include/x86_64-linux-gnu/sys",
        share.display()
    );
    peer("sh", &["-ec", &format!("cd /; {files}")]);
    share
}

/// Returns Connectathon's tests for a guest: all in one kernel; in the other those that `afsd.fuse`
/// does not support or that Linux had failed.
fn tests_of(guest: &str) -> &'static str {
    match guest {
        "a" => "7 8",
        _ => "1 2 3 4 5 6 7 8 9",
    }
}

/// Waits for a file of a guest, as long as the guest runs.
#[track_caller]
fn await_file<T>(file: &Path, guest: &std::thread::ScopedJoinHandle<'_, T>) {
    let end = Instant::now() + Duration::from_secs(500);
    while !file.exists() {
        assert!(!guest.is_finished(), "the guest ended before {file:?}");
        assert!(Instant::now() < end, "{file:?} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_kernels_and_afsd_fuse_use_one_cell_as_a_disk() {
    needs_root("it makes namespaces and mounts");
    let s = Sandbox::new();
    let piece = Random::from_environment().bytes(2 * MIB as usize);
    let shares = [("a", "b"), ("b", "a")].map(|(me, other)| share(&s, me, other, &piece));
    let machine = Machine::new(&s);
    let device = machine.cell(On::Clear, "12G");
    let served = machine.serve(device);
    let client = machine.mount("one", ASK_ALWAYS);
    let programs = [
        PathBuf::from(env!("CARGO_BIN_EXE_connectathon")),
        installed("tcc"),
        installed("flock"),
    ];
    let (served, printed) = std::thread::scope(|scope| {
        let guests = [0, 1].map(|i| {
            let (machine, share, programs) = (&machine, &shares[i], &programs);
            scope.spawn(move || {
                let ran = machine.guest(KERNELS[i].1, "kafs_disk.sh", share, programs, PATIENCE);
                println!("{}\n{}{}", KERNELS[i].1, ran.stdout, ran.stderr);
                ran
            })
        });
        let tell = |name: &str| {
            shares
                .iter()
                .for_each(|s| fs::write(s.join(name), "").unwrap())
        };
        let hear = |i: usize, name: &str| await_file(&shares[i].join(name), &guests[i]);

        hear(0, "a-may-restart");
        hear(1, "b-may-restart");
        served.kill();
        let served = machine.serve(device);
        tell("restarted");

        // A file that all clients have read grows, and all of them notice, even while they are
        // reading it.
        let talk = client.inside().join("talk");
        fs::write(client.inside().join("lock"), "").unwrap();
        for length in 1..=ROUNDS {
            fs::write(&talk, "h".repeat(length)).unwrap();
            hear(0, &format!("a-heard-{length}"));
            hear(1, &format!("b-heard-{length}"));
        }
        for (speaker, other, i, length) in [("a", "b", 1, ROUNDS + 1), ("b", "a", 0, ROUNDS + 2)] {
            tell(&format!("{speaker}-speaks"));
            wait_until("it is heard here", || {
                fs::read_to_string(&talk).is_ok_and(|said| said == speaker.repeat(length))
                    && client
                        .inside()
                        .join(format!("folder-of-{speaker}"))
                        .is_dir()
            });
            hear(i, &format!("{other}-heard-{speaker}"));
        }
        hear(0, "locked");
        fs::write(shares[1].join("locked"), "").unwrap();
        hear(1, "refused");
        fs::write(shares[0].join("refused"), "").unwrap();
        (
            served,
            guests.map(|guest| guest.join().expect("no panic").ok().stdout),
        )
    });
    client.unmount();
    served.end();
    s.run(&["fsck", device]).ok();
    let files = fs::read_dir(shares[0].join("tree")).unwrap().count();
    let first = sum(
        &machine,
        &format!("cat {}", shares[0].join("piece").display()),
    );
    for (printed, (me, other)) in printed.iter().zip([("a", "b"), ("b", "a")]) {
        let said: HashMap<&str, &str> = printed.lines().filter_map(|l| l.split_once(' ')).collect();
        let lua = lua::PRINTED.trim_end().replace('\t', " ");
        let size = (FAR + piece.len() as u64).to_string();
        let facts = [
            ("verified", files.to_string()),
            ("ran", lua.clone()),
            ("ran_again", lua),
            ("links", "2".into()),
            ("links_left", "1".into()),
            ("symbolic", "lua.h same".into()),
            ("attributes", "600 981173106".into()),
            ("statfs", "1".into()),
            ("large", size),
            ("after", "after the restart".into()),
            ("heard", other.into()),
            ("left", "0".into()),
        ];
        for (what, wanted) in facts {
            assert_eq!(said.get(what), Some(&wanted.as_str()), "{me}: {what}");
        }
        for when in ["cold", "warm", "restarted"] {
            assert_eq!(said[&*format!("{when}_verified")], files.to_string());
            assert_eq!(said[&*format!("{when}_first")], first);
            assert_eq!(said[&*format!("{when}_hole")], "0");
            assert_eq!(said[&*format!("{when}_across")], first);
            assert_eq!(said[&*format!("{when}_last")], first);
        }
        let tests = printed.lines().filter(|line| line.starts_with("test "));
        let wanted = tests_of(me).split(' ');
        assert_eq!(tests.count(), wanted.count(), "{printed}");
    }
}

#[test]
fn fifteen_cold_clients_read_a_file_that_is_read_from_the_disk_once() {
    const CLIENTS: usize = 15;
    needs_root("it makes namespaces and mounts");
    let s = Sandbox::new();
    let bytes = Random::from_environment().bytes(MIB as usize);
    let machine = Machine::new(&s);
    let device = machine.cell(On::Clear, "1G");
    let served = machine.serve(device);
    let writer = machine.mount("writer", &[]);
    fs::write(writer.inside().join("file"), &bytes).unwrap();
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(writer.inside().join("file"), readable).unwrap();
    writer.unmount();
    served.end();

    // Neither the server nor any client has the file in its cache.
    let served = machine.serve(device);
    let blocks = &["-blocks", "8192"][..];
    let names: Vec<String> = (0..CLIENTS).map(|i| format!("client{i}")).collect();
    let clients: Vec<Client> = names
        .iter()
        .map(|n| machine.mount_soon(n, blocks))
        .collect();
    clients.iter().for_each(Client::wait);
    let before = served.stats();
    let together = Barrier::new(CLIENTS);
    let times: Vec<Duration> = std::thread::scope(|scope| {
        let readers = clients.iter().map(|client| {
            let (together, bytes) = (&together, &bytes);
            scope.spawn(move || {
                let file = client.inside().join("file");
                together.wait();
                let began = Instant::now();
                assert!(fs::read(file).unwrap() == *bytes, "{}", client.said());
                began.elapsed()
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().map(|r| r.join().unwrap()).collect()
    });
    println!("{times:?}");
    let after = served.stats();
    let read = |stats: &Value| stats["read"]["bytes"].as_u64().unwrap();
    let (read, size) = (read(&after) - read(&before), bytes.len() as u64);
    assert!((size..2 * size).contains(&read), "{read} bytes of the disk");
    let fetched = served.status()["stats"]["fetched_bytes"].as_u64();
    assert!(fetched.is_some_and(|fetched| fetched >= CLIENTS as u64 * size));
    clients.into_iter().for_each(Client::unmount);
    served.end();
}
