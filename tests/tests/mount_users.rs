//! Permission to mount, processes that block an unmount, and the messages for both.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::mounts::{Disk, On, is_mounted, take_away};
use tests::{Killed, NOBODY, Ran, Sandbox, needs_root, peer, program, wait_until};

/// A user that owns nothing.
#[test]
fn unmounting_under_load_says_who_is_in_the_way() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "128M");
    let mounted = disk.mount(&[]);
    let dir = mounted.dir().to_owned();
    // A program that writes endlessly, and one whose current directory is in the mount.
    let mut load = Killed(
        Command::new("dd")
            .args([
                "if=/dev/zero",
                "bs=64k",
                "conv=notrunc,fsync",
                "count=100000000",
            ])
            .arg(format!("of={}", mounted.path("load").display()))
            .args(["oflag=nocache", "seek=0"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until("it writes", || {
        fs::metadata(mounted.path("load")).is_ok_and(|m| m.len() > 0)
    });
    let refused = s.run(&[Path::new("unmount"), &dir]).code(11);
    let pid = load.0.id().to_string();
    assert!(
        refused.stderr.contains("dd") && refused.stderr.contains(&pid),
        "{}",
        refused.stderr
    );
    assert!(is_mounted(&dir), "a refusal changes nothing");
    load.0.kill().unwrap();
    load.0.wait().unwrap();
    let stands = Killed(
        Command::new("sleep")
            .arg("1000")
            .current_dir(&dir)
            .spawn()
            .unwrap(),
    );
    wait_until("it stands there", || {
        fs::read_link(format!("/proc/{}/cwd", stands.0.id())).is_ok_and(|at| at == dir)
    });
    let refused = s.run(&[Path::new("unmount"), &dir]).code(11);
    assert!(refused.stderr.contains("sleep"), "{}", refused.stderr);
    drop(stands);
    mounted.unmount(&s);
    disk.check();
}

#[test]
fn a_forced_unmount_takes_the_mount_away_and_what_was_written_stays() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Encrypted, "128M");
    let mounted = disk.mount(&[]);
    let dir = mounted.dir().to_owned();
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(mounted.path("open"))
        .unwrap();
    file.write_all(&[3; 300_000]).unwrap();
    s.run(&[Path::new("unmount"), &dir]).code(11);
    s.run(&[Path::new("unmount"), Path::new("--force"), &dir])
        .ok();
    assert!(!is_mounted(&dir));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // A process with an open file either continues or gets an error.
    let mut found = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut found));
    match read {
        Ok(_) => assert!(found == [3; 300_000]),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}"),
    }
    drop(file);
    mounted.ended();
    disk.check();
    let mounted = disk.mount(&[]);
    assert!(fs::read(mounted.path("open")).unwrap() == [3; 300_000]);
    mounted.unmount(&s);
}

#[test]
fn a_device_is_mounted_once() {
    let s = Sandbox::new();
    for on in [On::Clear, On::Encrypted] {
        let disk = Disk::new(&s, on, "128M");
        let mounted = disk.mount(&[]);
        fs::write(mounted.path("file"), "content").unwrap();
        fs::create_dir_all(s.path("other")).unwrap();
        let device = disk.device();
        let again = s
            .run(&["mount", device, "other", "--name", "again"])
            .code(11);
        assert!(again.stderr.contains(device), "{}", again.stderr);
        s.run(&["mount", device, "other"]).code(11);
        s.run(&["mount", device, "other", "--read-only", "--name", "again"])
            .code(11);
        s.run(&["fsck", device]).code(11);
        s.run(&["fsck", device, "--repair"]).code(11);
        s.run(&["format", device, "--force"]).code(11);
        if on == On::Encrypted {
            s.run(&["attach", device, "--name", "again"]).code(11);
        }
        // Another device at the same mount point.
        s.run(&["format", "second.img", "--size", "64M", "--force"])
            .ok();
        let over = s.run(&["mount", "second.img", "mnt"]).code(11);
        assert!(over.stderr.contains("mnt"), "{}", over.stderr);
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
        mounted.unmount(&s);
        disk.check();
        s.run(&["format", device]).code(2);
        let mounted = disk.mount(&[]);
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
        mounted.unmount(&s);
        fs::remove_file(s.path("second.img")).unwrap();
    }
    s.run(&["unmount", "other"]).code(10);
    s.run(&["unmount", "nowhere"]).code(10);
}

/// After any end of a mount, written data is present and no repair is needed.
#[test]
fn the_ways_to_end_a_mount() {
    needs_root("umount");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "128M");
    let ways: &[(&str, &[&str])] = &[
        ("umount", &["DIR"]),
        ("fusermount3", &["-u", "DIR"]),
        ("kill", &["-s", "TERM", "PID"]),
        ("kill", &["-s", "INT", "PID"]),
    ];
    for (number, (program, args)) in ways.iter().enumerate() {
        let mounted = disk.mount(&[]);
        for before in 0..number {
            assert!(
                fs::read(mounted.path(&before.to_string())).unwrap() == vec![before as u8; 100_000]
            );
        }
        fs::write(
            mounted.path(&number.to_string()),
            vec![number as u8; 100_000],
        )
        .unwrap();
        let dir = mounted.dir().to_owned();
        let pid = mounted.pid().to_string();
        let args: Vec<&str> = args
            .iter()
            .map(|arg| match *arg {
                "DIR" => dir.to_str().unwrap(),
                "PID" => &pid,
                other => other,
            })
            .collect();
        peer(program, &args);
        mounted.ended();
        assert!(!is_mounted(&dir));
        disk.check();
    }
}

/// The process that starts a mount may hold a lock, and a reader may wait for the end of its
/// output.
#[test]
fn a_mount_in_the_background_holds_nothing_of_its_callers() {
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Encrypted, "96M");
    fs::create_dir(s.path("mnt")).unwrap();
    let mut bash = Command::new("bash");
    s.environment(&mut bash);
    let line = "exec 7> lock 8>&1; flock 7; PROGRAM mount DEVICE mnt --background --key-file <(cat phrase) 2>&1";
    let line = line
        .replace("PROGRAM", program().to_str().unwrap())
        .replace("DEVICE", disk.device());
    fs::write(s.path("phrase"), "by a pipe that nobody names").unwrap();
    let add = [
        "volume",
        "key",
        "add",
        disk.device(),
        "--new-passphrase-fd",
        "0",
        "--key",
        "owner",
    ];
    s.run_with_input(&add, &fs::read(s.path("phrase")).unwrap())
        .ok();
    Ran::of(bash.args(["-c", &line])).ok();
    assert!(is_mounted(&s.path("mnt")));
    peer("flock", &["-n", s.path("lock").to_str().unwrap(), "true"]);
    s.run(&["unmount", "mnt"]).ok();
    disk.check();
}

/// Users have exactly the rights that the permissions of files grant.
#[test]
fn the_permissions_of_files_count_for_other_users() {
    needs_root("becoming other users");
    let s = Sandbox::new();
    let disk = Disk::new(&s, On::Clear, "128M");
    let mounted = disk.mount(&["--suid"]);
    mounted.allow_every_client(&s);
    let as_nobody = |line: &str| {
        let mut command = Command::new("bash");
        let dir = mounted.dir();
        Ran::of(
            command
                .args(["-c", line])
                .current_dir(dir)
                .uid(NOBODY)
                .gid(NOBODY),
        )
    };
    fs::write(mounted.path("secret"), "secret").unwrap();
    fs::set_permissions(mounted.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(mounted.path("open")).unwrap();
    fs::set_permissions(mounted.path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(mounted.path("open/of root"), "x").unwrap();
    let refused = |line: &str, why: &str| {
        let ran = as_nobody(line);
        assert!(!ran.status.success() && ran.stderr.contains(why), "{ran:?}");
    };
    refused("cat secret", "Permission denied");
    refused("echo > file", "Permission denied");
    refused("rm -f 'open/of root'", "Operation not permitted");
    refused("chown 0 open", "Operation not permitted");
    as_nobody("echo mine > open/mine && chmod 640 open/mine && cat open/mine").ok();
    as_nobody("cp /usr/bin/id open/id && chmod 4755 open/id && open/id -u | grep -qx 65534").ok();
    peer(
        "chown",
        &["root:", mounted.path("open/id").to_str().unwrap()],
    );
    let mode = fs::metadata(mounted.path("open/id"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755, "another owner, and no set-user-ID");
    peer(
        "chmod",
        &["4755", mounted.path("open/id").to_str().unwrap()],
    );
    as_nobody("test \"$(open/id -u)\" = 0").ok();
    let mode = || {
        fs::metadata(mounted.path("open/id"))
            .unwrap()
            .permissions()
            .mode()
    };
    fs::set_permissions(mounted.path("open/id"), fs::Permissions::from_mode(0o6777)).unwrap();
    as_nobody("printf x >> open/id").ok();
    assert_eq!(
        mode() & 0o7777,
        0o777,
        "who writes takes the privileges away"
    );
    peer(
        "setfacl",
        &["-m", "u:nobody:r", mounted.path("secret").to_str().unwrap()],
    );
    as_nobody("grep -q secret secret").ok();
    mounted.unmount(&s);
    disk.check();
}

/// Returns a command of a user who owns only a directory.
fn of_nobody(home: &Path) -> Command {
    let mut command = Command::new(home.join("evfs"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home)
        .env("TMPDIR", home)
        .env("EVFS_RUN_DIR", home.join("run"))
        .env("EVFS_KEYS_DIR", home.join("keys"))
        .env("EVFS_KDF_MEMORY_KIB", "1024")
        .env("EVFS_KDF_TIME_MS", "1")
        .current_dir(home)
        .uid(NOBODY)
        .gid(NOBODY);
    command
}

/// Ability of a server's programs to gain privileges.
enum Privileges {
    Kept,
    Dropped,
}

/// Checks whether programs started by the only server of that user may gain privileges; if not, a
/// system call filter must be active, too.
#[track_caller]
fn must_have(privileges: Privileges, home: &Path) {
    let ran = Ran::of(of_nobody(home).args(["status", "--json"])).ok();
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let pid = &status["volumes"][0]["pid"];
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let (privileges, filter) = match privileges {
        Privileges::Kept => ("NoNewPrivs:\t0", "Seccomp:\t0"),
        Privileges::Dropped => ("NoNewPrivs:\t1", "Seccomp:\t2"),
    };
    assert!(
        status.contains(privileges) && status.contains(filter),
        "{status}"
    );
}

#[test]
fn an_ordinary_user_mounts_for_himself_alone() {
    needs_root("becoming another user");
    let home = tempfile::tempdir().unwrap();
    fs::copy(program(), home.path().join("evfs")).unwrap();
    for dir in ["mnt", "run"] {
        fs::create_dir(home.path().join(dir)).unwrap();
        chown(home.path().join(dir), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(home.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
    chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mnt = home.path().join("mnt");
    struct Away<'a>(&'a Path);
    impl Drop for Away<'_> {
        fn drop(&mut self) {
            take_away(self.0);
        }
    }
    let _away = Away(&mnt);
    let run = |args: &[&str]| Ran::of(of_nobody(home.path()).args(args));
    let shell = |line: &str| {
        let mut command = Command::new("bash");
        command.args(["-ec", line]).current_dir(home.path());
        Ran::of(command.uid(NOBODY).gid(NOBODY))
    };
    run(&["key", "generate", "owner", "--no-passphrase"]).ok();
    run(&[
        "volume", "create", "a.img", "--size", "96M", "--owner", "owner",
    ])
    .ok();
    run(&["format", "a.img"]).ok();
    run(&["mount", "a.img", "mnt", "--background"]).ok();
    // fusermount3 ends the mount, and could not if the process had no_new_privs set.
    must_have(Privileges::Kept, home.path());
    shell("cd mnt; cp -r /usr/include/linux .; diff -r /usr/include/linux linux; sync -f .; df . >/dev/null").ok();
    shell("cd mnt; cp /usr/bin/id .; chmod 4755 id; ./id -u | grep -qx 65534").ok();
    // Even root cannot read the mount of another user.
    let error = fs::read_dir(&mnt).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
    let busy = shell("cd mnt; EVFS_RUN_DIR=$(realpath ../run) ../evfs unmount ../mnt || exit $?");
    assert_eq!(busy.status.code(), Some(11), "{busy:?}");
    assert!(busy.stderr.contains("bash"), "{}", busy.stderr);
    run(&["fileset", "snapshot", "mnt", "main", "early"]).ok();
    shell("cd mnt; echo new > note; cmp id .snapshots/early/id; ls -A .snapshots | grep -qx early")
        .ok();
    let refused = shell("cat mnt/.snapshots/early/note || echo > mnt/.snapshots/early/id");
    assert!(refused.stderr.contains("No such file"), "{refused:?}");
    assert!(
        refused.stderr.contains("Read-only file system"),
        "{refused:?}"
    );
    run(&["fileset", "diff", "mnt", "early", "main"]).ok();
    run(&["unmount", "mnt"]).ok();
    run(&["fileset", "rollback", "a.img", "main", "early", "--yes"]).ok();
    run(&["fsck", "a.img"]).ok();
    run(&["attach", "a.img", "--background"]).ok();
    must_have(Privileges::Dropped, home.path());
    run(&["detach", "a"]).ok();
    // The mount of an ordinary user outlives its server as well, and another program takes over.
    run(&["mount", "a.img", "mnt", "--survive", "--background"]).ok();
    shell(
        r#"exec 5> mnt/open
         export EVFS_RUN_DIR=$PWD/run
         server() { ./evfs --json status | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p'; }
         for how in kill restart kill; do
             echo $how >&5
             if [ $how = kill ]; then kill -9 $(server); else ./evfs restart; fi
         done
         diff -r /usr/include/linux mnt/linux
         test $(tr '\n' ' ' < mnt/open | wc -w) = 3"#,
    )
    .ok();
    run(&["unmount", "mnt"]).ok();

    // With only FUSE 2's fusermount installed, mount and unmount work.
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let helper = peer("sh", &["-c", "command -v fusermount3"]);
    std::os::unix::fs::symlink(helper.trim(), bin.join("fusermount")).unwrap();
    let run_old = |args: &[&str]| Ran::of(of_nobody(home.path()).env("PATH", &bin).args(args));
    run_old(&["mount", "a.img", "mnt", "--background"]).ok();
    run_old(&["unmount", "mnt"]).ok();
    // If only root can open the device, the error names it.
    let of_his = of_nobody(home.path());
    let environment = of_his
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut closed = Command::new("unshare");
    let script = "mknod -m 600 fuse c 10 229; mount --bind fuse /dev/fuse; \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups ./evfs mount a.img mnt --background";
    closed
        .args(["-m", "bash", "-ec", script])
        .env_clear()
        .envs(environment)
        .current_dir(home.path());
    let refused = Ran::of(&mut closed);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("/dev/fuse"), "{}", refused.stderr);

    // A refused mount point is reported with the reason.
    let refused = run(&["mount", "a.img", "/usr", "--background"]);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("/usr"), "{}", refused.stderr);
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !allowed
        .lines()
        .any(|line| line.trim() == "user_allow_other")
    {
        let refused = run(&["mount", "a.img", "mnt", "--allow-other", "--background"]);
        assert!(!refused.status.success());
        assert!(
            refused.stderr.contains("user_allow_other"),
            "{}",
            refused.stderr
        );
    }
    run(&["fsck", "a.img"]).ok();
}
