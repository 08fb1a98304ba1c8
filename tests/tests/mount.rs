//! Real programs on a mounted file system: `git`, a compiler, `tar`, `rsync`, SQLite, PostgreSQL,
//! `fio`; then it is unmounted, checked, mounted again, and verified once more.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_TREE=/usr` | the directory that `rsync` copies (default: `/usr/lib/python3`) |
//! | `EVFS_TEST_TREE_SIZE=12G` | the file system for it (default: 1G) |
//! | `EVFS_TEST_TRANSACTIONS=20000` | transactions of SQLite and of `pgbench`, each (default: 400) |

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use tests::mounts::{Disk, Mounted, On};
use tests::{Ran, Sandbox, lua, needs_root, wait_until};

/// Runs a shell line in a directory; it must succeed. Returns its output.
#[track_caller]
fn shell(folder: &Path, line: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", line])
        .current_dir(folder);
    bash.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        bash.env(format!("GIT_{who}_NAME"), "A Writer");
        bash.env(format!("GIT_{who}_EMAIL"), "writer@example.org");
    }
    Ran::of(&mut bash).ok().stdout
}

/// Returns a number from the environment.
fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |t| t.parse().expect("a number"))
}

/// Unmounts, checks, and mounts again.
fn once_more(s: &Sandbox, disk: &Disk, mounted: Mounted) -> Mounted {
    mounted.unmount(s);
    disk.check();
    disk.mount(&[])
}

/// Creates a repository with a history: the sources, then several commits.
fn repository(s: &Sandbox) -> PathBuf {
    let repository = s.path("repository");
    lua::copy(&repository);
    fs::write(
        repository.join(".gitignore"),
        "*.o\n*.d\n*.a\nminimal\nkept\n",
    )
    .unwrap();
    shell(
        &repository,
        "git init -q -b main; git add .; git commit -qm first
         for i in $(seq 12); do
             for f in lvm.c ltable.c lstring.h; do echo \"/* $i */\" >> $f; done
             git commit -qam \"change $i\"
         done
         git branch old HEAD~8",
    );
    repository
}

/// Mean time between two kills of the server.
const KILLS: Duration = Duration::from_millis(700);

fn git_and_a_build(on: On, options: &'static [&'static str], kills: Option<Duration>) {
    let s = Sandbox::new();
    let repository = repository(&s);
    let disk = Disk::new(&s, on, "512M").with(options).killed_every(kills);
    let mounted = disk.mount(&[]);
    shell(
        mounted.dir(),
        &format!("git clone -q --no-hardlinks {} clone", repository.display()),
    );
    let clone = mounted.path("clone");
    let builds = "make -s -j2 && ./minimal script.lua";
    assert_eq!(shell(&clone, builds), lua::PRINTED);
    assert_eq!(shell(&clone, "git status --porcelain"), "");
    shell(
        &clone,
        "git checkout -q -b mine origin/old
         echo '/* mine */' >> lapi.c; git commit -qam mine
         git rebase -q origin/main
         git gc -q --aggressive --prune=now
         git fsck --full --strict",
    );
    // A second build recompiles only changed files, according to their times.
    assert_eq!(shell(&clone, builds), lua::PRINTED);
    assert_eq!(shell(&clone, "make -q && echo nothing"), "nothing\n");
    shell(
        mounted.dir(),
        "tar cf clone.tar clone; mkdir again; tar xf clone.tar -C again
         diff -r --no-dereference clone again/clone",
    );

    let mounted = once_more(&s, &disk, mounted);
    shell(
        mounted.dir(),
        "tar df clone.tar; diff -r --no-dereference clone again/clone",
    );
    let clone = mounted.path("clone");
    shell(
        &clone,
        "git fsck --full --strict; test -z \"$(git status --porcelain)\"",
    );
    assert_eq!(shell(&clone, "make -q && echo nothing"), "nothing\n");
    assert_eq!(shell(&clone, "./minimal script.lua"), lua::PRINTED);
    shell(
        mounted.dir(),
        "rm -r clone again clone.tar; test -z \"$(ls -A)\"",
    );
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn git_make_and_tar_on_a_clear_file() {
    git_and_a_build(On::Clear, &[], None);
}

#[test]
fn git_make_and_tar_do_not_notice_that_the_server_is_killed() {
    git_and_a_build(On::Encrypted, &[], Some(KILLS));
}

#[test]
fn git_make_and_tar_on_an_encrypted_volume_for_the_kernel_alone() {
    git_and_a_build(On::Encrypted, &["--exclusive"], None);
}

/// The kernel writes back data at any time, even after it has reported the time of the change.
#[test]
fn what_the_kernel_holds_back_keeps_the_times_that_programs_saw() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "256M").with(&["--exclusive"]);
    let mounted = disk.mount(&[]);
    let times = |mounted: &Mounted| -> Vec<(SystemTime, i64, i64)> {
        let of = |n| {
            let meta = fs::metadata(mounted.path(&format!("file {n}"))).expect("it is there");
            (
                meta.modified().expect("known"),
                meta.ctime(),
                meta.ctime_nsec(),
            )
        };
        (0..10).map(of).collect()
    };
    let mut open = Vec::new();
    for n in 0..10 {
        let mut file = fs::File::create_new(mounted.path(&format!("file {n}"))).expect("made");
        file.write_all(&vec![7; 4 << 20]).expect("written");
        // SAFETY: no arguments.
        unsafe { libc::sync() };
        // While it is open, no flush waits for its pages.
        open.push(file);
    }
    let seen = times(&mounted);
    drop(open);
    let mounted = once_more(&s, &disk, mounted);
    assert_eq!(times(&mounted), seen);
    mounted.unmount(&s);
}

/// Kinds of files that are rare in a tree of packages.
const ODD: &str = r#"
mkdir -p odd/list odd/sticky; cd odd
echo one > a; ln a b; ln a list/c; ln -s a soft; ln -s "$(printf 'x%.0s' {1..3000})" dangling
mkfifo pipe; mknod null c 1 3; mknod disk b 259 1048575
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
setfacl -m u:nobody:rw,g:daemon:r,m::rwx a; setfacl -d -m u:nobody:rwx,o::- list
setfattr -n user.short -v 1 a; setfattr -n user.empty list
setfattr -n user.long -v "$(head -c 3000 /dev/urandom | base64 -w0)" soft 2>/dev/null || true
setfattr -n user.long -v "$(head -c 3000 /dev/urandom | base64 -w0)" list
setfattr -n trusted.kept -v secret list
chmod 4751 a; chmod 2755 list; chmod 1777 sticky
truncate -s 99M sparse; printf middle | dd of=sparse bs=1 seek=50M conv=notrunc status=none
cp "$(type -P true)" able; setcap cap_net_raw+ep able; chown 12345:54321 list/../pipe
touch -d '1901-12-14 00:00:00.123456789 UTC' old; touch -d '2100-02-03 04:05:06.987654321 UTC' new
touch "$(printf 'name\nof lines')" "$(printf '\377\376')" "$(printf 'n%.0s' {1..255})" -- -dash
mkdir "deep"; d=deep; for i in $(seq 60); do d="$d/level$i"; done; mkdir -p "$d"; echo bottom > "$d/file"
mkdir many; (cd many; seq -f 'entry %g' 3000 | tr '\n' '\0' | xargs -0 touch)
"#;

#[test]
fn rsync_copies_a_tree_with_all_that_belongs_to_it() {
    needs_root("device files, and attributes that are root's");
    let tree = std::env::var("EVFS_TEST_TREE").unwrap_or("/usr/lib/python3".into());
    let size = std::env::var("EVFS_TEST_TREE_SIZE").unwrap_or("1G".into());
    let s = Sandbox::new();
    shell(&s.path(""), ODD);
    let disk = Disk::new(&s, On::Clear, &size);
    let mounted = disk.mount(&[]);
    let odd = s.path("odd").display().to_string();
    shell(
        mounted.dir(),
        &format!("rsync -aHAXS {tree}/ tree/; rsync -aHAXS {odd} ."),
    );
    let same = |mounted: &Mounted| {
        let differences = shell(
            mounted.dir(),
            &format!(
                "rsync -aHAXS -ncii --delete {tree}/ tree/ | grep -Ev '^[.h][fdLDS] {{9}} ' || true
                 rsync -aHAXS -ncii --delete {odd}/ odd/ | grep -Ev '^[.h][fdLDS] {{9}} ' || true"
            ),
        );
        assert_eq!(differences, "");
    };
    same(&mounted);
    // Properties that `rsync` does not compare: allocated size, and access lists as text.
    let facts = "cd odd; stat -c '%n %s %t:%T %a' a null disk sparse able; getcap able
                 getfacl -p a list; stat -c %h a; cat a list/c; test $(stat -c %b sparse) -lt 100";
    let of_original = shell(&s.path(""), facts);
    assert_eq!(shell(mounted.dir(), facts), of_original);

    let mounted = once_more(&s, &disk, mounted);
    same(&mounted);
    assert_eq!(shell(mounted.dir(), facts), of_original);
    shell(mounted.dir(), "rm -r tree odd; test -z \"$(ls -A)\"");
    mounted.unmount(&s);
    disk.check();
}

/// Two programs at once in WAL mode, whose shared memory both map; then one program with each
/// journal mode.
fn sqlite(on: On, options: &'static [&'static str]) {
    let transactions = number("EVFS_TEST_TRANSACTIONS", 400);
    let s = Sandbox::new();
    let disk = Disk::new(&s, on, "512M").with(options);
    let mounted = disk.mount(&[]);
    let run = |mounted: &Mounted, script: &str| {
        let ran = Ran::with_input(
            Command::new("sqlite3")
                .args(["-bail", "base.db"])
                .current_dir(mounted.dir()),
            format!(".timeout 60000\n{script}").as_bytes(),
        );
        ran.ok().stdout
    };
    run(
        &mounted,
        "pragma journal_mode = wal;
         create table t(who, n, filling, unique(who, n)); create index i on t(filling);",
    );
    let load = |who: &str, mode: &str, count: u64| {
        let mut script = format!("{mode}\npragma synchronous = full;\n");
        for n in 1..=count {
            script += &format!(
                "begin immediate; insert into t values('{who}', {n}, hex(randomblob({})));
                 update t set filling = hex(randomblob(90)) where n = {}; commit;\n",
                10 + n * 37 % 2000,
                n * 7 % count
            );
        }
        script
    };
    std::thread::scope(|scope| {
        for who in ["one", "other"] {
            let (run, mounted) = (&run, &mounted);
            let script = load(who, "", transactions / 2);
            scope.spawn(move || run(mounted, &script));
        }
    });
    let journals = ["delete", "truncate", "persist"];
    for mode in journals {
        let set = format!("pragma journal_mode = {mode};");
        run(&mounted, &load(mode, &set, transactions / 16));
    }
    let whole = "pragma integrity_check; pragma foreign_key_check; select count(*) from t;";
    let rows = 2 * (transactions / 2) + 3 * (transactions / 16);
    assert_eq!(run(&mounted, whole), format!("ok\n{rows}\n"));
    let mounted = once_more(&s, &disk, mounted);
    assert_eq!(run(&mounted, whole), format!("ok\n{rows}\n"));
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn sqlite_on_a_clear_file_for_the_kernel_alone() {
    sqlite(On::Clear, &["--exclusive"]);
}

#[test]
fn sqlite_on_an_encrypted_volume() {
    sqlite(On::Encrypted, &[]);
}

/// Runs a line as the user `postgres`, as root may not run a database server.
#[track_caller]
fn as_postgres(folder: &Path, line: &str) -> String {
    let path = fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let newest = path.map(|e| e.path().join("bin")).max().expect("a version");
    shell(
        folder,
        &format!(
            "exec runuser -u postgres -- env PATH={}:$PATH LC_ALL=C.UTF-8 PGHOST=$PWD/data \
             bash -euo pipefail -c '{line}'",
            newest.display()
        ),
    )
}

#[test]
fn postgresql_serves_pgbench() {
    pgbench(None);
}

#[test]
fn postgresql_does_not_notice_that_the_server_is_killed() {
    pgbench(Some(KILLS));
}

fn pgbench(kills: Option<Duration>) {
    needs_root("becoming the user postgres");
    let transactions = number("EVFS_TEST_TRANSACTIONS", 400);
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "1G").killed_every(kills);
    let mounted = disk.mount(&[]);
    mounted.allow_every_client(&s);
    let start = "pg_ctl -D data -w -t 300 -l data/log start >/dev/null \
                 -o \"-k $PGHOST -c listen_addresses=\"";
    let stop = "pg_ctl -D data -w -t 300 -m fast stop >/dev/null";
    let sums = "psql -Atd postgres -c \"select (select sum(abalance) from pgbench_accounts)
        = (select sum(delta) from pgbench_history), (select sum(tbalance) from pgbench_tellers)
        = (select sum(delta) from pgbench_history), (select count(*) from pgbench_history)\"";
    let home = mounted.path("pg");
    fs::create_dir(&home).unwrap();
    shell(mounted.dir(), "chown postgres: pg");
    as_postgres(&home, "initdb -D data --data-checksums -A trust >/dev/null");
    as_postgres(&home, start);
    as_postgres(&home, "pgbench -q -i -s 2 postgres 2>&1");
    let each = transactions / 4;
    let bench = as_postgres(&home, &format!("pgbench -c 4 -j 2 -t {each} postgres 2>&1"));
    assert!(
        bench.contains("number of failed transactions: 0"),
        "{bench}"
    );
    let expected = format!("t|t|{}\n", each * 4);
    assert_eq!(as_postgres(&home, sums), expected);
    as_postgres(&home, "pg_amcheck --install-missing -d postgres");
    as_postgres(&home, stop);
    as_postgres(&home, "pg_checksums --check -D data");

    let mounted = once_more(&s, &disk, mounted);
    let home = mounted.path("pg");
    as_postgres(&home, "pg_checksums --check -D data");
    as_postgres(&home, start);
    assert_eq!(as_postgres(&home, sums), expected);
    as_postgres(&home, stop);
    mounted.unmount(&s);
    disk.check();
}

/// Reads, writes and mappings of the same files, cached and direct, each with checksums.
#[test]
fn fio_finds_what_it_has_written() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Encrypted, "512M");
    let mounted = disk.mount(&[]);
    let load = |mounted: &Mounted, more: &[&str]| {
        let mut fio = Command::new("fio");
        fio.args(["--size=12M", "--verify=crc32c", "--verify_fatal=1"])
            .args(["--verify_state_save=0", "--group_reporting"])
            .arg(format!("--directory={}", mounted.dir().display()))
            .args(more)
            .args(["--name=direct", "--rw=randwrite", "--bs=4k"])
            .args(["--ioengine=libaio", "--iodepth=8", "--direct=1"])
            .args(["--name=uneven", "--rw=write", "--bsrange=600-20000"])
            .args(["--bs_unaligned", "--ioengine=psync", "--fsync=50"])
            .args(["--name=mapped", "--rw=randwrite", "--bs=4k"])
            .args(["--ioengine=mmap", "--fsync=100"])
            .args(["--name=in-turn", "--rw=write", "--bs=64k"])
            .args(["--ioengine=psync", "--numjobs=2", "--end_fsync=1"]);
        Ran::of(&mut fio).ok();
    };
    load(&mounted, &[]);
    let mounted = once_more(&s, &disk, mounted);
    load(&mounted, &["--verify_only"]);
    mounted.unmount(&s);
    disk.check();
}

/// Damages a block of a file of an image that is not in use.
fn flip(image: &Path, content: &[u8]) {
    let mut bytes = fs::read(image).unwrap();
    let mut places = bytes.chunks(4096).enumerate();
    let found = places.find(|(_, block)| block.starts_with(content));
    let (block, _) = found.expect("the content is there");
    bytes[block * 4096 + 1000] ^= 1;
    fs::write(image, bytes).unwrap();
}

#[test]
fn a_table_of_up_scrubs_by_the_clock() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    let content = [b"content of the page ".repeat(250), vec![b'x'; 40_000]].concat();
    fs::write(mounted.path("file"), &content).unwrap();
    mounted.unmount(&s);
    flip(&s.path(disk.device()), &content[..100]);

    fs::create_dir_all(s.path("mnt")).unwrap();
    let table = format!(
        "[mount.data]\ndevice = \"{}\"\nat = \"mnt\"\n",
        disk.device()
    );
    let up = |more: &str| {
        fs::write(s.path("up.toml"), format!("{table}{more}")).unwrap();
        s.run(&["up", "up.toml", "--background"])
    };
    let mismatches = || {
        let status = s.json(&["status", "data"])["volumes"][0].clone();
        status["space"]["checksum_mismatches"].as_u64().unwrap()
    };
    let known = || {
        let known = fs::read_to_string(s.path("state/scrubs.json")).unwrap_or_default();
        let known: serde_json::Value = serde_json::from_str(&known).unwrap_or_default();
        let systems = known["file_systems"].as_object();
        systems.and_then(|all| all.values().next()).cloned()
    };
    // No program reads the file.
    up("scrub = { every = \"month\", rate = \"1G\" }\n").ok();
    wait_until("the scrub is complete", || {
        known().is_some_and(|known| known["next"].is_null())
    });
    assert_eq!(mismatches(), 1);
    let first = known().unwrap();
    assert_eq!(first["damaged"], 1, "{first}");
    assert!(first["read_bytes"].as_u64() >= Some(44_000), "{first}");
    s.run(&["down"]).ok();
    // It is complete for this month: the next mount reads nothing.
    up("scrub.every = \"month\"\nread-only = true\n").ok();
    assert!(fs::read(s.path("mnt/file")).is_err());
    s.run(&["down"]).ok();
    let again = known().unwrap();
    assert!(
        again == first || again["period"] != first["period"],
        "{again}"
    );
    for (wrong, said) in [
        ("scrub = true\n", "expected a table"),
        ("scrub.every = \"hour\"\n", "`month`"),
        ("scrub.rate = \"1M\"\n", "`every`"),
    ] {
        let refused = up(wrong).code(2);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}

#[test]
fn a_damaged_file_is_an_error_and_scrub_names_it() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    fs::create_dir(mounted.path("dir")).unwrap();
    let page = |i: u8| [&b"page "[..], &[b'a' + i], &vec![i; 4090]].concat();
    let content: Vec<u8> = (0..20).flat_map(page).collect();
    fs::write(mounted.path("dir/file"), &content).unwrap();
    mounted.unmount(&s);
    let image = s.path(disk.device());
    assert!(s.json(&["scrub", disk.device()])["read_bytes"].as_u64() >= Some(20 * 4096));
    flip(&image, &page(7)[..100]);

    let mounted = disk.mount(&[]);
    let file = fs::File::open(mounted.path("dir/file")).unwrap();
    let mut one = vec![0; 4096];
    for i in 0..20 {
        let read = file.read_exact_at(&mut one, u64::from(i) * 4096);
        match i {
            7 => assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO)),
            _ => assert!(read.is_ok() && one == page(i), "page {i}"),
        }
    }
    assert!(mounted.said().contains("EVFS-0208"), "{}", mounted.said());
    let dir = mounted.dir().to_str().unwrap().to_owned();
    let status = s.json(&["status", &dir])["volumes"][0].clone();
    let mismatches = &status["space"]["checksum_mismatches"];
    assert!(mismatches.as_u64() >= Some(1), "{status}");
    assert_eq!(status["health"]["state"], "degraded", "{status}");
    let shown = s.run(&["status", &dir]).ok().stdout;
    let place = "(/dir/file): the block at byte 28672";
    assert!(shown.contains(place), "{shown}");
    let found = |args: &[&str]| {
        let ran = s.run(&[&["--json"], args].concat()).code(26);
        serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()
    };
    for on in [&dir, disk.device()] {
        let result = found(&["scrub", on, "--rate", "1G"]);
        let damage = &result["damage"][0];
        assert_eq!(result["damage_count"], 1, "{result}");
        assert_eq!(damage["path"], "dir/file", "{result}");
        assert_eq!(damage["offset"], 7 * 4096, "{result}");
        assert_eq!(damage["kind"], "checksum", "{result}");
    }
    let told = s.run(&["scrub", &dir]).code(26).stdout;
    assert!(told.contains("(/dir/file): 4 KiB at byte 28672"), "{told}");
    // The whole block again repairs it.
    drop(file);
    mounted.unmount(&s);
    let checked = found(&["fsck", "--data", disk.device()]);
    assert_eq!(checked["found"]["problem_count"], 1, "{checked}");
    assert_eq!(checked["found"]["problems"][0]["kind"], "data", "{checked}");
    let mounted = disk.mount(&[]);
    let file = fs::File::options()
        .write(true)
        .open(mounted.path("dir/file"));
    file.unwrap().write_all_at(&page(7), 7 * 4096).unwrap();
    mounted.unmount(&s);
    s.run(&["scrub", disk.device()]).ok();
    let mounted = disk.mount(&[]);
    assert!(fs::read(mounted.path("dir/file")).unwrap() == content);
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn a_scrub_counts_data_without_checksums_and_continues_at_a_position() {
    let s = Sandbox::new();
    s.run(&["format", "old.img", "--size", "64M", "--no-checksums"])
        .ok();
    let disk = Disk::existing(&s, "old.img");
    let mounted = disk.mount(&[]);
    let inodes = ["one", "two"].map(|name| {
        fs::write(mounted.path(name), [7; 20 * 4096]).unwrap();
        fs::metadata(mounted.path(name)).unwrap().ino()
    });
    assert!(inodes[0] < inodes[1]);
    let dir = mounted.dir().to_str().unwrap().to_owned();
    s.run(&["sync", &dir]).ok();
    // All, the second file, nothing.
    let second = format!("1.{}.0.0", inodes[1]);
    let scrub = |on: &str| {
        for (from, code, files) in [("1.0.0.0", 27, 2), (&second, 27, 1), ("9.0.0.0", 0, 0)] {
            let ran = s.run(&["--json", "scrub", on, "--from", from]).code(code);
            let result: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
            for bytes in ["read_bytes", "unverified_bytes"] {
                assert_eq!(result[bytes], files * 20 * 4096, "{from}: {result}");
            }
        }
        s.run(&["scrub", on]).code(27);
    };
    scrub(&dir);
    mounted.unmount(&s);
    scrub(disk.device());
    disk.check();
}

#[test]
fn a_check_of_data_repairs_a_file_with_an_invalid_extent() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "64M");
    let mounted = disk.mount(&[]);
    let content = [&b"the content"[..], &[7; 5 * 4096 - 11]].concat();
    fs::write(mounted.path("file"), &content).unwrap();
    mounted.unmount(&s);
    let image = s.path(disk.device());
    let mut bytes = fs::read(&image).unwrap();
    let mut blocks = bytes.chunks(4096);
    let block = blocks.position(|block| block.starts_with(b"the content"));
    // The record of the extent: first block, number of blocks.
    let block = block.expect("it is there") as u64;
    let record = [&block.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
    let places: Vec<usize> = (0..bytes.len() - record.len())
        .filter(|at| bytes[*at..].starts_with(&record))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 4] = 1;
    }
    fs::write(&image, bytes).unwrap();
    let args = ["--json", "fsck", "--data", disk.device()];
    let found = s.run(&args).code(26).stdout;
    assert!(found.contains("extent"), "{found}");
    let repaired = s.json(&["fsck", "--data", "--repair", disk.device()]);
    assert_eq!(repaired["clean"], true, "{repaired}");
    disk.check();
}
