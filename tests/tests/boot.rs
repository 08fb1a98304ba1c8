//! Start at boot: reports to the service manager, the systemd units, mount(8) and fstab(5), and
//! passphrases without a terminal.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::mounts::forwards_sync;
use tests::{Killed, Ran, Sandbox, installed, needs_root, program, root, wait_until};

fn names(s: &Sandbox) -> Vec<String> {
    let all = s.json(&["status"])["volumes"].as_array().unwrap().clone();
    let name = |v: &Value| v["name"].as_str().unwrap().to_owned();
    all.iter().map(name).collect()
}

/// A service manager that receives reports.
struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        let patience = Some(Duration::from_secs(60));
        socket.set_read_timeout(patience).unwrap();
        Manager { socket }
    }

    fn receive(&self) -> String {
        let mut room = [0; 4096];
        let len = self.socket.recv(&mut room).expect("a report");
        String::from_utf8(room[..len].to_vec()).unwrap()
    }

    /// Receives the next report that is no keep-alive.
    fn next(&self) -> String {
        loop {
            let report = self.receive();
            if report != "WATCHDOG=1" {
                return report;
            }
        }
    }
}

#[test]
fn up_reports_its_state_and_its_life_to_the_service_manager() {
    let s = Sandbox::new();
    let both = "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"b.img\"\n";
    let (first, _) = both.split_at(both.find("[volume.b]").unwrap());
    for image in ["a.img", "b.img"] {
        s.volume(image, "32M", &[]);
    }
    fs::write(s.path("up.toml"), first).unwrap();
    let manager = Manager::at(&s.path("notify"));
    let mut up = s.evfs();
    up.args(["up", "up.toml"])
        .env("NOTIFY_SOCKET", s.path("notify"))
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut up = Killed(up.spawn().unwrap());
    assert_eq!(manager.next(), "READY=1\nSTATUS=serving a");
    assert_eq!(names(&s), ["a"], "ready before it serves");
    for _ in 0..4 {
        assert_eq!(manager.receive(), "WATCHDOG=1");
    }
    fs::write(s.path("up.toml"), both).unwrap();
    up.signal(libc::SIGHUP);
    let report = manager.next();
    let fields: Vec<&str> = report.lines().collect();
    assert_eq!(fields[0], "RELOADING=1", "{report}");
    let usec = fields[1].strip_prefix("MONOTONIC_USEC=");
    assert!(usec.is_some_and(|n| n.parse::<u64>().is_ok()), "{report}");
    assert_eq!(manager.next(), "READY=1\nSTATUS=serving a, b");
    s.detach("b");
    assert_eq!(manager.next(), "STATUS=serving a");
    up.signal(libc::SIGTERM);
    let report = manager.next();
    assert!(report.starts_with("STOPPING=1\n"), "{report}");
    assert_eq!(up.0.wait().unwrap().code(), Some(143));
}

#[test]
fn keep_alives_are_sent_if_the_manager_asks_for_them() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let manager = Manager::at(&s.path("notify"));
    let mut attach = s.evfs();
    attach
        .args(["attach", "a.img"])
        .env("NOTIFY_SOCKET", s.path("notify"))
        .env("WATCHDOG_USEC", "20000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _attach = Killed(attach.spawn().unwrap());
    assert_eq!(manager.receive(), "READY=1\nSTATUS=serving a");
    for _ in 0..3 {
        assert_eq!(manager.receive(), "WATCHDOG=1");
    }
    s.detach("a");
    assert!(manager.next().starts_with("STOPPING=1\n"));
}

/// Settings and services share a file, and a unit with instances serves one of them.
#[test]
fn up_without_a_path_serves_the_tables_of_the_settings() {
    let s = Sandbox::new();
    for image in ["a.img", "b.img"] {
        s.volume(image, "32M", &[]);
    }
    let text = "threads = 1\n[volume]\nheartbeat-ms = 400\n[volume.a]\ndevice = \"a.img\"\n\
                [volume.b]\ndevice = \"b.img\"\n";
    fs::write(s.path("evfs.toml"), text).unwrap();
    let evfs = |args: &[&str]| {
        let mut command = s.evfs();
        command.env("EVFS_CONFIG", s.path("evfs.toml"));
        Ran::of(command.args(args))
    };
    evfs(&["up", "--only", "b", "--background"]).ok();
    assert_eq!(names(&s), ["b"]);
    assert_eq!(s.json(&["status"])["volumes"][0]["threads"], 1);
    evfs(&["down"]).ok();
    // The path of the file of the settings means the same.
    evfs(&["up", "evfs.toml", "--background"]).ok();
    assert_eq!(names(&s), ["a", "b"]);
    evfs(&["down"]).ok();
    let absent = evfs(&["up", "--only", "c", "--background"]).code(10);
    assert!(absent.stderr.contains("`c`"), "{absent:?}");
    // In another file, a setting is a mistake.
    s.run(&["up", "evfs.toml"]).code(2);
}

/// Runs the program as a helper of mount(8) or umount(8).
fn helper(s: &Sandbox, name: &str, args: &[&str]) -> Ran {
    let link = s.path(name);
    if !link.exists() {
        symlink(program(), &link).unwrap();
    }
    let mut command = Command::new(link);
    s.environment(&mut command);
    Ran::of(command.args(args))
}

#[test]
fn the_helpers_of_mount_end_with_its_codes() {
    let s = Sandbox::new();
    s.run(&["format", "a.img", "--size", "64M"]).ok();
    fs::create_dir(s.path("mnt")).unwrap();
    for (args, code, word) in [
        (&["a.img"][..], 1, "<DIR>"),
        (&["a.img", "mnt", "-o", "ro,strange=1"], 1, "`strange`"),
        (&["a.img", "mnt", "-o", "key=a,keyfile=/b"], 1, "`keyfile`"),
        (&["a.img", "mnt", "-t", "ext4"], 1, "`ext4`"),
        (&["a.img", "mnt", "-N", "/proc/1/ns/mnt"], 1, "-N"),
        (&["a.img", "a.img"], 1, "not a directory"),
        (&["none.img", "mnt"], 32, "none.img"),
        (&["a.img", "mnt", "-o", "fileset=none"], 32, "none"),
        (&["a.img", "mnt", "-f", "-s", "-o", "strange"], 0, ""),
    ] {
        let ran = helper(&s, "mount.evfs", args);
        assert!(ran.stderr.contains(word), "{ran:?}");
        ran.code(code);
    }
    assert_eq!(names(&s), [""; 0]);
    let not_mounted = helper(&s, "umount.evfs", &["mnt"]);
    assert!(!not_mounted.status.success(), "{not_mounted:?}");
    helper(&s, "umount.evfs", &["mnt", "-N", "1"]).code(1);
}

/// Writes a program of the sandbox that answers a prompt, and returns a PATH that begins with it.
fn fake_agent(s: &Sandbox, script: &str) -> String {
    let dir = s.path("bin");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("systemd-ask-password");
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", dir.display())
}

/// Attaches `p.img` without a terminal.
fn attach_without_terminal(s: &Sandbox, path: &str, ask: bool) -> Ran {
    let mut command = Command::new(installed("setsid"));
    s.environment(&mut command);
    command
        .env("PATH", path)
        .env("EVFS_UNLOCK_ASK_PASSWORD", ask.to_string())
        .arg("--wait")
        .arg(program())
        .args(["attach", "p.img", "--background"]);
    Ran::of(&mut command)
}

/// Makes the volume `p.img`, which opens by a key pair with the passphrase `secret`.
fn volume_with_passphrase(s: &Sandbox) {
    let generate = ["key", "generate", "asked", "--passphrase-fd", "0"];
    s.run_with_input(&generate, b"secret\n").ok();
    let create = ["volume", "create", "p.img", "--owner", "asked"];
    s.run(&[&create[..], &["--size", "32M"]].concat()).ok();
}

#[test]
fn the_agents_of_systemd_are_asked_only_if_the_settings_say_so() {
    let s = Sandbox::new();
    volume_with_passphrase(&s);
    let asked = s.path("asked");
    let answers = format!("printf '%s\\n' \"$@\" > {}; echo secret", asked.display());
    let path = fake_agent(&s, &answers);
    let refused = attach_without_terminal(&s, &path, false).code(2);
    assert!(refused.stderr.contains("no terminal"), "{refused:?}");
    assert!(!asked.exists(), "it asked unexpectedly");
    attach_without_terminal(&s, &path, true).ok();
    s.detach("p");
    let arguments = fs::read_to_string(&asked).unwrap();
    let prompt = arguments.lines().last().unwrap();
    assert!(
        prompt.contains("asked") && prompt.ends_with(':'),
        "{arguments}"
    );
    let path = fake_agent(&s, "exit 1");
    let unanswered = attach_without_terminal(&s, &path, true).code(2);
    let why = "systemd-ask-password returned none";
    assert!(unanswered.stderr.contains(why), "{unanswered:?}");
    // Without the program, the message is the usual one.
    let empty = s.path("empty").display().to_string();
    let absent = attach_without_terminal(&s, &empty, true).code(2);
    assert!(absent.stderr.contains("no terminal"), "{absent:?}");
}

/// The units in the sources.
const UNITS: [&str; 3] = ["evfs.service", "evfs@.service", "evfs-cluster.service"];

/// Returns the path of a unit in the sources.
fn unit(name: &str) -> PathBuf {
    root().join("dist/systemd").join(name)
}

/// Returns the assignments of a unit.
fn assignments(name: &str) -> Vec<String> {
    let text = fs::read_to_string(unit(name)).unwrap();
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// The options that give a service a mount namespace, from which its mounts reach no one else.
#[test]
fn the_units_share_the_mounts_of_the_system() {
    let namespaces = [
        "BindPaths",
        "BindReadOnlyPaths",
        "DynamicUser",
        "ExecPaths",
        "InaccessiblePaths",
        "MountFlags",
        "NoExecPaths",
        "PrivateDevices",
        "PrivateIPC",
        "PrivateMounts",
        "PrivateTmp",
        "PrivateUsers",
        "ProcSubset",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProtectSystem",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "RootDirectory",
        "RootImage",
        "TemporaryFileSystem",
    ];
    for name in UNITS {
        for line in assignments(name) {
            let key = line.split('=').next().unwrap_or_default();
            assert!(!namespaces.contains(&key), "{name}: {line}");
        }
    }
}

/// The unit with instances differs in the lines that name the instance.
#[test]
fn both_units_say_the_same() {
    let common = |name: &str| {
        let differ = ["Description=", "ExecStart=", "LoadCredentialEncrypted="];
        let mut lines = assignments(name);
        lines.retain(|line| !differ.iter().any(|start| line.starts_with(start)));
        lines
    };
    assert_eq!(common("evfs.service"), common("evfs@.service"));
}

/// The unit of a cluster differs in what the cluster needs: addresses, leases, and its own start.
#[test]
fn the_unit_of_a_cluster_permits_what_addresses_need_and_nothing_else() {
    let (alone, cluster) = (
        assignments("evfs.service"),
        assignments("evfs-cluster.service"),
    );
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        let mut lines = these.to_vec();
        lines.retain(|line| !those.contains(line));
        lines
    };
    let added = [
        "Description=EVFS encrypted storage: units of a cluster",
        "Documentation=man:evfs-cluster(1) man:evfs-up(1) man:evfs.toml(5)",
        "After=local-fs.target network-online.target etcd.service",
        "Conflicts=evfs.service",
        "ExecStart=/usr/bin/evfs up --cluster",
        "NotifyAccess=main",
        "OOMPolicy=stop",
        "WatchdogSec=1min",
        "RestartSec=3s",
        "RestartPreventExitStatus=2",
        "CapabilityBoundingSet=CAP_NET_RAW",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET",
    ];
    assert_eq!(only(&cluster, &alone), added);
    let keys = |lines: &[String]| -> Vec<String> {
        let key = |line: &String| line.split('=').next().unwrap().to_owned();
        lines.iter().map(key).collect()
    };
    assert_eq!(only(&keys(&alone), &keys(&cluster)), [""; 0]);
}

mod needs_peer {
    use super::*;
    use test_support::etcd::Etcd;
    use test_support::needs_file;

    /// Copies the units into the sandbox, for the program under test.
    fn units(s: &Sandbox) -> PathBuf {
        let dir = s.path("units");
        fs::create_dir(&dir).unwrap();
        for name in UNITS {
            let text = fs::read_to_string(unit(name)).unwrap();
            let own = text.replace("/usr/bin/evfs", program().to_str().unwrap());
            assert_ne!(own, text, "{name} starts another program");
            fs::write(dir.join(name), own).unwrap();
        }
        symlink("evfs@.service", dir.join("evfs@data.service")).unwrap();
        dir
    }

    #[test]
    fn a_machine_reports_when_it_is_part_of_a_cluster_and_that_it_answers() {
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        fs::write(s.path("up.toml"), "[volume.a]\ndevice = \"a.img\"\n").unwrap();
        let mut etcd = Etcd::start(&std::env::temp_dir(), 1);
        let command = |args: &[&str]| {
            let mut command = s.evfs();
            command
                .args(args)
                .env("EVFS_CLUSTER_NAME", "m1")
                .env("EVFS_CLUSTER_ETCD", etcd.endpoints().join(" "));
            command
        };
        Ran::of(&mut command(&["cluster", "init", "--config", "up.toml"])).ok();
        let mut up = command(&["up", "up.toml", "--cluster"]);
        etcd.kill(0);
        let manager = Manager::at(&s.path("notify"));
        up.env("NOTIFY_SOCKET", s.path("notify"))
            .env("WATCHDOG_USEC", "200000")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut up = Killed(up.spawn().unwrap());
        // It lives, but has no lease.
        for _ in 0..3 {
            assert_eq!(manager.receive(), "WATCHDOG=1");
        }
        etcd.start_member(0);
        assert_eq!(
            manager.next(),
            "READY=1\nSTATUS=serving the units of a cluster"
        );
        wait_until("the unit is served", || names(&s) == ["a"]);
        for _ in 0..3 {
            assert_eq!(manager.receive(), "WATCHDOG=1");
        }
        up.signal(libc::SIGHUP);
        let report = manager.next();
        assert!(report.starts_with("RELOADING=1\n"), "{report}");
        assert_eq!(
            manager.next(),
            "READY=1\nSTATUS=serving the units of a cluster"
        );
        up.signal(libc::SIGTERM);
        let report = manager.next();
        assert!(report.starts_with("STOPPING=1\n"), "{report}");
        assert_eq!(up.0.wait().unwrap().code(), Some(143));
        assert_eq!(names(&s), [""; 0], "the unit outlives the machine");
    }

    /// Runs `systemd-analyze verify`; returns the messages about units in `dir`.
    fn verify(dir: &Path, names: &[&str]) -> String {
        let mut analyze = Command::new(installed("systemd-analyze"));
        analyze.args(["verify", "--man=no"]);
        let ran = Ran::of(analyze.args(names.iter().map(|name| dir.join(name))));
        // It also checks the units of this machine, which may have faults.
        let is_ours = |line: &&str| line.contains(dir.to_str().unwrap()) || line.contains("evfs");
        let ours = ran.stderr.lines().filter(is_ours);
        ours.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn systemd_accepts_the_units() {
        let s = Sandbox::new();
        let dir = units(&s);
        let names = ["evfs.service", "evfs@data.service", "evfs-cluster.service"];
        assert_eq!(verify(&dir, &names), "");
        let file = dir.join("evfs.service");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("KillMode=", "KillModes=")).unwrap();
        assert!(
            verify(&dir, &names).contains("KillModes"),
            "no check at all"
        );
    }

    /// A line of fstab(5) becomes a unit that starts `mount -t evfs`, without a generator of EVFS.
    #[test]
    fn systemd_makes_mounts_of_fstab() {
        let generator = Path::new("/usr/lib/systemd/system-generators/systemd-fstab-generator");
        needs_file(generator);
        let s = Sandbox::new();
        let fstab = "/srv/data.img /srv/data evfs nofail,keyfile=/etc/evfs/data.key 0 0\n\
                     nbd://a/x /srv/x evfs _netdev,noauto,x-systemd.automount,name=x 0 0\n";
        fs::write(s.path("fstab"), fstab).unwrap();
        let dir = s.path("units");
        fs::create_dir(&dir).unwrap();
        let mut generate = Command::new(generator);
        generate.env("SYSTEMD_FSTAB", s.path("fstab"));
        Ran::of(generate.args([&dir, &dir, &dir])).ok();
        let data = fs::read_to_string(dir.join("srv-data.mount")).unwrap();
        for line in [
            "What=/srv/data.img",
            "Where=/srv/data",
            "Type=evfs",
            "Options=nofail,keyfile=/etc/evfs/data.key",
        ] {
            assert!(data.lines().any(|l| l == line), "{line} in {data}");
        }
        assert!(dir.join("local-fs.target.wants/srv-data.mount").exists());
        let x = fs::read_to_string(dir.join("srv-x.mount")).unwrap();
        assert!(x.contains("What=nbd://a/x\n"), "{x}");
        assert!(dir.join("srv-x.automount").exists());
        assert!(
            dir.join("remote-fs.target.requires/srv-x.automount")
                .exists()
        );
        let names = ["srv-data.mount", "srv-x.mount", "srv-x.automount"];
        assert_eq!(verify(&dir, &names), "");
    }
}

mod needs_root {
    use super::*;

    /// Runs a script in a mount namespace with an empty /run, and with an /sbin that has only the
    /// helpers.
    fn with_helpers(s: &Sandbox, script: &str) -> Ran {
        let sbin = s.path("sbin");
        fs::create_dir_all(&sbin).unwrap();
        for name in [
            "mount.evfs",
            "mount.fuse.evfs",
            "mount.fuseblk.evfs",
            "umount.evfs",
            "umount.fuse.evfs",
            "umount.fuseblk.evfs",
        ] {
            let link = sbin.join(name);
            if !link.exists() {
                symlink(program(), link).unwrap();
            }
        }
        let script = format!(
            "set -e; mount -t tmpfs none /run; mount --bind {sbin} \"$(readlink -f /sbin)\"\n\
             evfs() {{ {evfs} \"$@\"; }}\n\
             fails() {{ if \"$@\" 2> /dev/null; then echo \"succeeds: $*\" >&2; exit 40; fi; }}\n\
             {script}",
            sbin = sbin.display(),
            evfs = program().display(),
        );
        let mut apart = Command::new("unshare");
        s.environment(&mut apart);
        Ran::of(apart.args(["-m", "bash", "-c", &script]))
    }

    #[test]
    fn mount_and_fstab_mount_and_umount_waits_for_the_disk() {
        needs_root("mount(8) in a mount namespace");
        let s = Sandbox::new();
        s.volume("a.img", "128M", &[]);
        s.run(&["format", "a.img"]).ok();
        fs::create_dir(s.path("mnt")).unwrap();
        // Without an `x-` option, umount(8) does not learn the type for an absolute path.
        let script = "\
            mount -t evfs a.img mnt -o nofail,noexec,key=owner,name=boot,x-evfs.wait\n\
            findmnt -n -o SOURCE,FSTYPE mnt\n\
            evfs --json status > mounted\n\
            cp /bin/true mnt/true; fails mnt/true\n\
            echo kept > mnt/file\n\
            umount \"$PWD/mnt\"\n\
            evfs --json status > unmounted\n\
            echo \"$PWD/a.img $PWD/mnt evfs ro,key=owner,x-evfs.wait 0 0\" > fstab\n\
            mount -T fstab -a\n\
            mount -T fstab -a\n\
            cat mnt/file\n\
            fails touch mnt/other\n\
            (cd mnt; if umount -c \"$OLDPWD/mnt\" 2> ../busy; then exit 41; fi)\n\
            umount -c \"$PWD/mnt\"\n\
            echo \"$PWD/a.img $PWD/mnt evfs key=owner,x-evfs.wait 0 0\" > fstab\n\
            mount -T fstab -a\n\
            mount -T fstab -a\n\
            umount \"$PWD/a.img\"\n\
            mount -t fuse.evfs a.img mnt -o key=owner\n\
            umount mnt\n\
            evfs --json status > end\n";
        let ran = with_helpers(&s, script).ok();
        let image = s.path("a.img").canonicalize().unwrap();
        let lines: Vec<&str> = ran.stdout.lines().collect();
        let [mount, file] = lines[..] else {
            panic!("{ran:?}");
        };
        let fields: Vec<&str> = mount.split_whitespace().collect();
        let kind = if forwards_sync() {
            "fuseblk.evfs"
        } else {
            "fuse.evfs"
        };
        assert_eq!(fields, [image.to_str().unwrap(), kind]);
        assert_eq!(file, "kept");
        let status = |file: &str| -> Value {
            let text = fs::read_to_string(s.path(file)).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["volumes"].clone()
        };
        assert_eq!(status("mounted")[0]["name"], "boot");
        for file in ["unmounted", "end"] {
            assert_eq!(status(file), serde_json::json!([]), "umount did not wait");
        }
        let busy = fs::read_to_string(s.path("busy")).unwrap();
        assert!(busy.contains("used by"), "{busy}");
    }

    #[test]
    fn mount_passes_on_what_is_wrong() {
        needs_root("mount(8) in a mount namespace");
        let s = Sandbox::new();
        s.run(&["format", "a.img", "--size", "64M"]).ok();
        fs::create_dir(s.path("mnt")).unwrap();
        for (line, code, word) in [
            ("mount -t evfs a.img mnt -o strange=1", 1, "`strange`"),
            ("mount -t evfs none.img mnt", 32, "none.img"),
            ("mount -t evfs a.img mnt -o remount,ro", 1, "`remount`"),
            // The process in the background finds that the device is not encrypted.
            ("/sbin/mount.evfs a.img mnt -o key=owner", 1, "takes no key"),
            // That process and its caller are both process 1, each in its own namespace.
            (
                "unshare --pid --fork unshare --pid /sbin/mount.evfs a.img mnt -o key=owner",
                1,
                "takes no key",
            ),
        ] {
            let ran = with_helpers(&s, line);
            assert!(ran.stderr.contains(word), "{ran:?}");
            ran.code(code);
        }
        let script = "\
            mount -f -t evfs a.img mnt; fails findmnt mnt\n\
            mount -s -t evfs a.img mnt -o z; umount mnt; fails findmnt mnt\n";
        with_helpers(&s, script).ok();
        assert_eq!(names(&s), [""; 0]);
    }

    #[test]
    fn the_helper_unmounts_no_other_file_system() {
        needs_root("mount(8) in a mount namespace");
        let s = Sandbox::new();
        fs::create_dir(s.path("mnt")).unwrap();
        let script = "\
            mount -t tmpfs other mnt\n\
            for option in '' -l -f; do\n\
            if /sbin/umount.evfs mnt $option 2>> said; then exit 41; fi\n\
            findmnt -n -o SOURCE,FSTYPE mnt\n\
            done\n";
        let ran = with_helpers(&s, script).ok();
        let lines: Vec<String> = ran
            .stdout
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines, ["other tmpfs"; 3]);
        let said = fs::read_to_string(s.path("said")).unwrap();
        let why = "no file system of EVFS is mounted there";
        assert_eq!(said.matches(why).count(), 3, "{said}");
    }

    /// The real program asks although the process that starts it is confined.
    #[test]
    fn systemd_ask_password_asks_for_a_confined_server() {
        needs_root("a /run of its own");
        let s = Sandbox::new();
        volume_with_passphrase(&s);
        installed("systemd-ask-password");
        fs::create_dir(s.path("asked")).unwrap();
        let script = format!(
            "mount -t tmpfs none /run; mkdir -p /run/systemd/ask-password\n\
             mount --bind {} /run/systemd/ask-password\n\
             exec setsid --wait {} attach p.img --background",
            s.path("asked").display(),
            program().display(),
        );
        let mut apart = Command::new("unshare");
        s.environment(&mut apart);
        apart
            .env("EVFS_UNLOCK_ASK_PASSWORD", "true")
            .args(["-m", "bash", "-ec", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut attach = Killed(apart.spawn().unwrap());
        let find = |start: &str| -> Option<PathBuf> {
            let entries = fs::read_dir(s.path("asked")).unwrap().flatten();
            let mut paths = entries.map(|entry| entry.path());
            paths.find(|path| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with(start)
            })
        };
        wait_until("it asks", || find("ask.").is_some());
        let question = fs::read_to_string(find("ask.").unwrap()).unwrap();
        assert!(question.contains("Message="), "{question}");
        let agent = UnixDatagram::unbound().unwrap();
        agent.send_to(b"+secret", find("sck.").unwrap()).unwrap();
        assert_eq!(attach.0.wait().unwrap().code(), Some(0));
        assert_eq!(names(&s), ["p"]);
        s.detach("p");
    }
}
