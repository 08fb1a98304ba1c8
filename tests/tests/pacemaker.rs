//! The resource agent of Pacemaker: the tester of resource agents, exit codes after failures, and
//! that a stop loses nothing.

use std::fs;
use std::process::Command;
use tests::{Ran, Sandbox, installed, needs_root, program, root};

/// Exit codes of resource agents.
const SUCCESS: i32 = 0;
const ERR_GENERIC: i32 = 1;
const ERR_ARGS: i32 = 2;
const ERR_UNIMPLEMENTED: i32 = 3;
const ERR_PERM: i32 = 4;
const ERR_INSTALLED: i32 = 5;
const ERR_CONFIGURED: i32 = 6;
const NOT_RUNNING: i32 = 7;

/// Runs the agent as the executor of Pacemaker does, for the table `a` of `up.toml`.
fn agent(s: &Sandbox, action: &str, changed: &[(&str, &str)]) -> Ran {
    let mut agent = Command::new(root().join("dist/ocf/evfs"));
    s.environment(&mut agent);
    agent
        .arg(action)
        .current_dir(s.path(""))
        .env("OCF_ROOT", "/usr/lib/ocf")
        .env("OCF_RESOURCE_INSTANCE", "data")
        .env("OCF_RESKEY_name", "a")
        .env("OCF_RESKEY_config", s.path("up.toml"))
        .env("OCF_RESKEY_binary", program())
        .envs(changed.iter().copied());
    Ran::of(&mut agent)
}

mod needs_peer {
    use super::*;
    use tests::signal;

    /// Makes the volume `a.img` with a table.
    fn volume() -> Sandbox {
        needs_root("resource agents raise limits of processes");
        // With the functions of all agents.
        installed("ocf-tester");
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let table = format!("[volume.a]\ndevice = \"{}\"\n", image.display());
        fs::write(s.path("up.toml"), table).unwrap();
        s
    }

    /// A process that stands still, and continues on drop.
    struct Stopped(i32);

    impl Stopped {
        fn new(pid: i32) -> Stopped {
            signal(pid, libc::SIGSTOP);
            Stopped(pid)
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            signal(self.0, libc::SIGCONT);
        }
    }

    fn pid(s: &Sandbox) -> i32 {
        let pid = s.json(&["status"])["volumes"][0]["pid"].as_i64();
        i32::try_from(pid.expect("a service")).unwrap()
    }

    #[test]
    fn the_tester_of_resource_agents_accepts_it() {
        let s = volume();
        installed("xmllint");
        let mut tester = Command::new(installed("ocf-tester"));
        s.environment(&mut tester);
        tester
            .args(["-v", "-n", "data", "-o", "name=a", "-o"])
            .arg(format!("config={}", s.path("up.toml").display()))
            .arg("-o")
            .arg(format!("binary={}", program().display()))
            .arg(root().join("dist/ocf/evfs"));
        let ran = Ran::of(&mut tester).ok();
        assert!(ran.stdout.contains("passed all tests"), "{ran:?}");
        assert!(!ran.stdout.contains("* rc="), "{ran:?}");
    }

    #[test]
    fn the_tester_finds_a_stop_that_does_nothing() {
        let s = volume();
        let text = fs::read_to_string(root().join("dist/ocf/evfs")).unwrap();
        let broken = text.replace("stop) validate && stop ;;", "stop) exit 0 ;;");
        assert_ne!(text, broken);
        let file = s.path("agent");
        fs::copy(root().join("dist/ocf/evfs"), &file).unwrap();
        fs::write(&file, broken).unwrap();
        let mut tester = Command::new(installed("ocf-tester"));
        s.environment(&mut tester);
        tester
            .args(["-n", "data", "-o", "name=a", "-o"])
            .arg(format!("config={}", s.path("up.toml").display()))
            .arg("-o")
            .arg(format!("binary={}", program().display()))
            .arg(file);
        Ran::of(&mut tester).code(1);
    }

    #[test]
    fn each_failure_has_the_exit_code_that_pacemaker_acts_on() {
        let s = volume();
        let code = |action: &str, changed: &[(&str, &str)], expected: i32| {
            agent(&s, action, changed).code(expected)
        };
        for action in ["start", "stop", "monitor", "validate-all"] {
            code(action, &[("OCF_RESKEY_name", "../a")], ERR_CONFIGURED);
            code(action, &[("OCF_RESKEY_name", "")], ERR_CONFIGURED);
            // A stop must not pass: the service may run.
            code(action, &[("OCF_RESKEY_binary", "/none")], ERR_INSTALLED);
        }
        code("start", &[("OCF_RESKEY_config", "/none")], ERR_INSTALLED);
        code(
            "validate-all",
            &[("OCF_RESKEY_config", "/none")],
            ERR_INSTALLED,
        );
        code("promote", &[], ERR_UNIMPLEMENTED);
        code("start", &[("OCF_RESKEY_name", "b")], ERR_GENERIC);
        let file = s.path("up.toml");
        let table = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{table}unknown = 1\n")).unwrap();
        code("start", &[], ERR_ARGS);
        fs::write(s.path("other.key"), "other").unwrap();
        let other = format!("key-file = \"{}\"\n", s.path("other.key").display());
        fs::write(&file, format!("{table}{other}")).unwrap();
        code("start", &[], ERR_PERM);
        fs::write(&file, table).unwrap();
        code("monitor", &[], NOT_RUNNING);
        code("stop", &[], SUCCESS);
        let help = code("usage", &[], SUCCESS).stdout;
        assert!(help.contains("STONITH"), "{help}");
        let help = code("meta-data", &[], SUCCESS).stdout;
        assert!(help.contains("fencing of nodes (STONITH)"), "{help}");
    }

    #[test]
    fn a_service_that_was_killed_is_not_running_and_one_that_hangs_needs_a_fence() {
        let s = volume();
        agent(&s, "start", &[]).code(SUCCESS);
        signal(pid(&s), libc::SIGKILL);
        tests::wait_until("the monitor notices the end", || {
            agent(&s, "monitor", &[]).status.code() == Some(NOT_RUNNING)
        });
        agent(&s, "stop", &[]).code(SUCCESS);
        agent(&s, "start", &[]).code(SUCCESS);
        agent(&s, "monitor", &[]).code(SUCCESS);
        let hung = Stopped::new(pid(&s));
        agent(&s, "monitor", &[]).code(ERR_GENERIC);
        agent(&s, "stop", &[]).code(ERR_GENERIC);
        drop(hung);
        agent(&s, "stop", &[]).code(SUCCESS);
        agent(&s, "monitor", &[]).code(NOT_RUNNING);
    }

    /// The name of the table is the DEVICE of another service.
    #[test]
    fn another_service_is_left_alone() {
        let s = volume();
        fs::rename(s.path("a.img"), s.path("a")).unwrap();
        s.attach(&["a", "--name", "other"]);
        agent(&s, "monitor", &[]).code(NOT_RUNNING);
        agent(&s, "stop", &[]).code(SUCCESS);
        assert_eq!(s.json(&["status"])["volumes"][0]["name"], "other");
        s.detach("other");
    }

    #[test]
    fn a_stop_fails_while_a_file_is_open_and_loses_no_write() {
        let s = volume();
        s.run(&["format", "a.img"]).ok();
        fs::create_dir(s.path("mnt")).unwrap();
        let table = format!(
            "[mount.a]\ndevice = \"{}\"\nat = \"{}\"\n",
            s.path("a.img").display(),
            s.path("mnt").display()
        );
        fs::write(s.path("up.toml"), table).unwrap();
        let written = s.path("mnt/file");
        agent(&s, "start", &[]).code(SUCCESS);
        let mut file = fs::File::create(&written).unwrap();
        std::io::Write::write_all(&mut file, b"kept").unwrap();
        let refused = agent(&s, "stop", &[]).code(ERR_GENERIC);
        assert!(
            refused
                .stderr
                .contains("ocf-exit-reason:evfs detach failed")
        );
        agent(&s, "monitor", &[]).code(SUCCESS);
        drop(file);
        agent(&s, "stop", &[]).code(SUCCESS);
        assert!(!written.exists());
        agent(&s, "start", &[]).code(SUCCESS);
        assert_eq!(fs::read(&written).unwrap(), b"kept");
        // The mount of a process that was killed does not stand in the way of the next start.
        signal(pid(&s), libc::SIGKILL);
        tests::wait_until("the monitor notices the end", || {
            agent(&s, "monitor", &[]).status.code() == Some(NOT_RUNNING)
        });
        agent(&s, "start", &[]).code(SUCCESS);
        assert_eq!(fs::read(&written).unwrap(), b"kept");
        agent(&s, "stop", &[]).code(SUCCESS);
    }
}
