//! A volume has a single writer, by whatever name it is opened.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::mounts::take_away;
use tests::targets::{free_port, qemu_nbd};
use tests::{Killed, NOBODY, Ran, Sandbox, needs_root, peer, program, wait_until};

/// A loop device over a file, created by another program.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Loop {
        Loop::with(&[], image)
    }

    fn with(flags: &[&str], image: &Path) -> Loop {
        let args = ["-f", "--show", image.to_str().unwrap()];
        let made = peer("losetup", &[flags, &args].concat());
        Loop(made.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

fn uuid_of(s: &Sandbox, image: &str) -> String {
    let info = s.json(&["volume", "info", image]);
    info["uuid"].as_str().unwrap().to_owned()
}

/// Checks that a command was refused because the volume is in use, and that the message names the
/// process.
#[track_caller]
fn refused(ran: Ran, uuid: &str, pid: &Value) {
    let ran = ran.code(11);
    for word in [uuid, &format!("process {pid} (evfs)"), "detach"] {
        let says = ran.stderr.to_lowercase();
        assert!(says.contains(word), "{word}: {}", ran.stderr);
    }
}

#[test]
fn who_comes_second_by_the_same_name_is_told_who_was_first() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("f.img", "48M", &[]);
    s.run(&["format", "f.img"]).ok();
    let mut all = Vec::new();
    for (image, more) in [
        ("a.img", &[][..]),
        ("a.img", &["--read-only"]),
        ("f.img", &[]),
    ] {
        let mut args = vec![image, "--name", "first"];
        args.extend(more);
        let pid = &s.attach(&args)["pid"];
        let uuid = uuid_of(&s, image);
        all.push(vec!["volume", "erase", image, "--force"]);
        all.push(vec!["attach", image, "--name", "b", "--background"]);
        if more.is_empty() {
            all.push(vec!["attach", image, "--name", "b", "--read-only"]);
        }
        for args in all.drain(..) {
            refused(s.run(&args), &uuid, pid);
            // The directory of sockets does not matter.
            let mut elsewhere = s.evfs();
            elsewhere.args(&args).env("EVFS_RUN_DIR", s.path("run2"));
            refused(Ran::of(&mut elsewhere), &uuid, pid);
        }
        s.detach("first");
    }
}

/// Runs the program like another machine that shares the device: claims are invisible in a separate
/// network namespace.
fn elsewhere(s: &Sandbox, args: &[&str]) -> Ran {
    let mut command = Command::new("unshare");
    command.arg("-n").arg(program()).args(args);
    s.environment(&mut command);
    Ran::of(command.env("EVFS_VOLUME_HEARTBEAT_MS", "300"))
}

/// Returns the state of the in-use record of a device in `evfs status`.
fn record_of(s: &Sandbox, name: &str) -> String {
    let status = s.json(&["status"]);
    let all = status["volumes"].as_array().unwrap();
    let one = all.iter().find(|v| v["name"] == name).unwrap();
    one["in_use_record"].as_str().unwrap().to_owned()
}

#[test]
fn status_says_whether_other_machines_see_that_a_volume_is_in_use() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img", "--name", "a"]);
    assert_eq!(record_of(&s, "a"), "kept");
    let text = s.run(&["status"]).ok().stdout;
    assert!(text.contains("record kept: other machines see"), "{text}");
    s.detach("a");
    s.attach(&["a.img", "--name", "a", "--read-only"]);
    assert_eq!(record_of(&s, "a"), "reader");
    s.detach("a");
    // As cryptsetup and earlier versions leave it: without a record in the gap before the data.
    let header = fs::read(s.path("a.img")).unwrap();
    let at = header.windows(8).position(|w| w == b"EVFSUSE\x1a").unwrap();
    let image = fs::OpenOptions::new()
        .write(true)
        .open(s.path("a.img"))
        .unwrap();
    image.write_all_at(&[0; 4096], at as u64).unwrap();
    s.attach(&["a.img", "--name", "a"]);
    assert_eq!(record_of(&s, "a"), "impossible");
    let text = s.run(&["status"]).ok().stdout;
    assert!(text.contains("record impossible"), "{text}");
    s.detach("a");
}

mod needs_root {
    use super::*;

    #[test]
    fn what_can_only_be_read_is_refused_with_the_option_that_opens_it() {
        needs_root("loop devices, mount");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        s.run(&["format", "b.img", "--size", "64M"]).ok();
        fs::create_dir(s.path("mnt")).unwrap();
        let mnt = s.path("mnt");
        let at = mnt.to_str().unwrap();
        let on_a_file_system = |image: &str| {
            // A bind mount of the file itself, which ends with its namespace.
            let path = s.path(image);
            let path = path.to_str().unwrap().to_owned();
            let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
            let s = &s;
            move |args: &[&str]| {
                let mut command = Command::new("unshare");
                command
                    .args(["-m", "sh", "-c", script, "sh", &path])
                    .arg(program());
                s.environment(command.args(args));
                Ran::of(&mut command)
            }
        };
        let attach = on_a_file_system("a.img")(&["attach", "a.img"]).code(1);
        let mount = on_a_file_system("b.img")(&["mount", "b.img", at]).code(1);
        for ran in [attach, mount] {
            assert!(ran.stderr.contains("--read-only"), "{}", ran.stderr);
        }
        for (image, verb) in [("a.img", "attach"), ("b.img", "mount")] {
            let disk = Loop::with(&["-r"], &s.path(image));
            let mut args = vec![verb, &disk.0, "--name", "x", "--background"];
            if verb == "mount" {
                args.insert(2, at);
            }
            let ran = s.run(&args).code(1);
            assert!(ran.stderr.contains("--read-only"), "{}", ran.stderr);
            args.push("--read-only");
            s.run(&args).ok();
            s.detach("x");
        }
        // A table of a configuration file has a key for this option.
        let disk = Loop::with(&["-r"], &s.path("a.img"));
        let table = format!("[volume.x]\ndevice = \"{}\"\n", disk.0);
        fs::write(s.path("up.toml"), table).unwrap();
        let ran = s.run(&["up", "up.toml"]).code(1);
        assert!(ran.stderr.contains("`read-only = true`"), "{}", ran.stderr);
    }

    #[test]
    fn a_disk_is_free_at_once_for_the_next_user() {
        needs_root("loop device");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let disk = Loop::over(&s.path("a.img"));
        for round in 0..12 {
            let pid = s.attach(&[&disk.0, "--name", "disk"])["pid"].to_string();
            if round % 2 == 0 {
                s.detach("disk");
            } else {
                peer("kill", &["-s", "KILL", &pid]);
                wait_until("it is gone", || !Path::new("/proc").join(&pid).exists());
            }
        }
    }

    #[test]
    fn a_loop_device_over_an_attached_file_is_refused() {
        needs_root("loop devices");
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let uuid = uuid_of(&s, "a.img");
        let device = Loop::over(&image);
        let there = device.0.as_str();
        let pid = &s.attach(&["a.img", "--name", "file"])["pid"];
        for args in [
            &["attach", there, "--name", "b", "--background"][..],
            &[
                "attach",
                there,
                "--name",
                "b",
                "--read-only",
                "--background",
            ],
            &["volume", "create", there, "--owner", "owner", "--force"],
            &["volume", "erase", there, "--force"],
            &["format", there, "--force"],
        ] {
            refused(s.run(args), &uuid, pid);
        }
        // Keys can be changed through either name while a volume is attached.
        s.key("guest");
        s.run(&["volume", "key", "add", there, "--user", "guest"])
            .ok();
        // After a kill the volume is free at once.
        let pid = pid.as_i64().unwrap() as i32;
        tests::signal(pid, libc::SIGKILL);
        s.attach(&[there, "--name", "b"]);
        s.detach("b");
        s.attach(&["a.img", "--name", "file"]);
    }

    #[test]
    fn readers_share_a_volume_and_keep_writers_out() {
        needs_root("loop devices");
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let uuid = uuid_of(&s, "a.img");
        let device = Loop::over(&image);
        let there = device.0.as_str();
        let first = s.attach(&["a.img", "--name", "file", "--read-only"]);
        s.attach(&[there, "--name", "loop", "--read-only"]);
        s.detach("loop");
        let write = ["attach", there, "--name", "loop", "--background"];
        refused(s.run(&write), &uuid, &first["pid"]);
        s.detach("file");
        s.run(&write).ok();
    }

    #[test]
    fn a_file_system_in_the_clear_is_mounted_once() {
        needs_root("loop devices");
        let s = Sandbox::new();
        s.run(&["format", "a.img", "--size", "32M"]).ok();
        let device = Loop::over(&s.path("a.img"));
        fs::create_dir(s.path("one")).unwrap();
        fs::create_dir(s.path("two")).unwrap();
        let mounted = s.json(&["mount", "a.img", "one", "--background"]);
        let uuid = mounted["uuid"].as_str().unwrap();
        for args in [
            &["mount", &device.0, "two", "--background"][..],
            &["mount", &device.0, "two", "--read-only", "--background"],
            &["fsck", &device.0],
            &["fileset", "create", &device.0, "x"],
        ] {
            refused(s.run(args), uuid, &mounted["pid"]);
        }
        // A copy has the same UUID. Only one of them can be used at a time.
        fs::copy(s.path("a.img"), s.path("b.img")).unwrap();
        refused(
            s.run(&["mount", "b.img", "two", "--background"]),
            uuid,
            &mounted["pid"],
        );
        s.detach(mounted["name"].as_str().unwrap());
        s.run(&["mount", "b.img", "two", "--background"]).ok();
        s.run(&["detach", "b"]).ok();
        take_away(&s.path("two"));
    }

    #[test]
    fn one_lun_at_two_addresses_is_attached_once_by_whatever_user() {
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let uuid = uuid_of(&s, "a.img");
        // Two servers that do not report that they serve the same disk.
        let servers = [(); 2].map(|()| {
            let port = free_port();
            (qemu_nbd(&image, port), port)
        });
        let [one, two] = servers
            .each_ref()
            .map(|(_, p)| format!("nbd://127.0.0.1:{p}/e"));
        // Two registries and socket directories, so that neither knows the other's name for the LUN.
        let other = Sandbox::new();
        fs::create_dir(other.path("keys")).unwrap();
        for file in ["owner.key", "owner.pub"] {
            if s.path("keys").join(file).exists() {
                fs::copy(s.path("keys").join(file), other.path("keys").join(file)).unwrap();
            }
        }
        let pid = &s.attach(&[&one, "--name", "one"])["pid"];
        for address in [&one, &two] {
            let attach = ["attach", address, "--name", "two", "--background"];
            refused(other.run(&attach), &uuid, pid);
        }
        needs_root("becoming another user");
        // Another user, with a program that this user may execute.
        let home = tempfile::tempdir().unwrap();
        fs::copy(program(), home.path().join("evfs")).unwrap();
        let own = |path: &Path| chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        for dir in ["run", "keys"] {
            let dir = home.path().join(dir);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
            own(&dir);
        }
        own(home.path());
        for entry in fs::read_dir(other.path("keys")).unwrap() {
            let entry = entry.unwrap();
            let to = home.path().join("keys").join(entry.file_name());
            fs::copy(entry.path(), &to).unwrap();
            own(&to);
        }
        let run = |args: &[&str]| {
            let mut command = Command::new(home.path().join("evfs"));
            command
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", home.path())
                .env("EVFS_RUN_DIR", home.path().join("run"))
                .env("EVFS_KEYS_DIR", home.path().join("keys"))
                .env("EVFS_LUN_REGISTRY", home.path().join("luns.json"))
                .current_dir(home.path())
                .uid(NOBODY)
                .gid(NOBODY);
            Ran::of(command.args(args))
        };
        let attach = ["attach", &two, "--name", "two", "--background"];
        refused(run(&attach), &uuid, pid);
        s.detach("one");
        run(&attach).ok();
        run(&["detach", "two"]).ok();
    }

    /// The rings of a killed process hold its lock until the kernel has torn them down.
    #[test]
    fn a_lock_that_no_process_is_seen_to_hold_is_waited_for() {
        needs_root("PID namespaces");
        let s = Sandbox::new();
        s.run(&["format", "f.img", "--size", "64M"]).ok();
        let image = s.path("f.img");
        let file = fs::File::options().write(true).open(image).unwrap();
        // SAFETY: an all-zero flock is a valid value, and the descriptor is open.
        let locked = unsafe {
            let mut whole: libc::flock = std::mem::zeroed();
            whole.l_type = libc::F_WRLCK as libc::c_short;
            libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole)
        };
        assert_eq!(locked, 0);
        // A process that sees the holder is refused.
        s.run(&["fsck", "f.img"]).code(11);
        // One that does not see it waits.
        let mut command = Command::new("unshare");
        s.environment(&mut command);
        command.args(["--pid", "--fork", "--mount", "--mount-proc"]);
        command.arg(program()).args(["fsck", "f.img"]);
        let mut waits = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(waits.0.stderr.take().unwrap()).lines();
        let waiting = lines.any(|line| line.unwrap().contains("until it is closed"));
        assert!(waiting, "it was refused");
        drop(file);
        assert!(waits.0.wait().unwrap().success());
    }

    #[test]
    fn another_machine_is_kept_out_while_the_record_moves_and_takes_over_when_it_stops() {
        needs_root("loop devices and network namespaces");
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let device = Loop::over(&image);
        let there = device.0.as_str();
        let theirs = ["attach", there, "--name", "b", "--background"];
        let mut ours = s.evfs();
        ours.env("EVFS_VOLUME_HEARTBEAT_MS", "300");
        ours.args([
            "--json",
            "attach",
            "a.img",
            "--name",
            "a",
            "--direct",
            "--background",
        ]);
        let status: Value = serde_json::from_str(&Ran::of(&mut ours).ok().stdout).unwrap();
        assert_eq!(record_of(&s, "a"), "kept");
        let ran = elsewhere(&s, &theirs).code(11);
        assert!(ran.stderr.contains("on machine"), "{}", ran.stderr);
        // A process that does not respond for this long has lost the volume, and detects that before it
        // writes.
        let pid = status["pid"].as_i64().unwrap() as i32;
        tests::signal(pid, libc::SIGSTOP);
        // The kernel may hold a disk slightly longer than the refused process exists.
        let mut ran = elsewhere(&s, &theirs);
        wait_until("the kernel has let the disk go", || {
            let held = ran.stderr.contains("another process has it open");
            if held {
                ran = elsewhere(&s, &theirs);
            }
            !held
        });
        let ran = ran.ok();
        assert!(ran.stderr.contains("taking it over"), "{}", ran.stderr);
        tests::signal(pid, libc::SIGCONT);
        let uri = format!("nbd+unix:///a?socket={}", s.path("run/a.nbd").display());
        let written = Ran::of(Command::new("qemu-io").args([
            "-f",
            "raw",
            "-t",
            "none",
            "-c",
            "write 0 64k",
            &uri,
        ]));
        let said = format!("{}{}", written.stdout, written.stderr);
        assert!(said.contains("error") || said.contains("failed"), "{said}");
        let text = s.run(&["status"]).ok().stdout;
        assert!(text.contains("record lost: another machine"), "{text}");
        assert_eq!(record_of(&s, "a"), "lost");
        let ran = s.run(&["detach", "a", "--force"]).code(30);
        assert!(
            ran.stderr.contains("taken over the device"),
            "{}",
            ran.stderr
        );
        s.detach("b");
        // Closed by both: an attach does not wait, even after a crash on this machine.
        let again = s.attach(&["a.img", "--name", "a"]);
        tests::signal(again["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
        let ran = s
            .run(&["attach", there, "--name", "a", "--background"])
            .ok();
        assert!(!ran.stderr.contains("waiting"), "{}", ran.stderr);
    }
}
