//! A Debian system with systemd in a guest: it opens and mounts volumes at boot, restarts what
//! fails, and is switched off in an orderly way; and a newcomer's first day, beside peers.
//!
//! `tests/guest/service.sh` and `tests/guest/newcomer.sh` run in the system.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::guest::{Booted, System, cache, scripts};
use tests::packages::{file, older, packages};
use tests::{Ran, Sandbox, root, wait_until};

/// Time limit of a boot, several times what it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Prompt of systemd for the terminal, after the question of EVFS.
const PROMPT: &str = "(press TAB for no echo)";

const PASSPHRASE: &str = "open sesame";

/// Copies a file into the share of a system, with this mode.
fn put(system: &System, from: &Path, to: &str, mode: u32) {
    let to = system.share(to);
    fs::copy(from, &to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).unwrap();
}

/// Starts the script of a boot.
fn begin(system: &System, name: &str) {
    fs::write(system.share("boot"), name).unwrap();
}

/// Fails unless the boot came to its end, and no unit has failed.
fn check_boot(booted: &Booted) {
    let faults: Vec<&str> = booted
        .facts("fault")
        .chain(booted.facts("failed"))
        .collect();
    assert_eq!(faults, [""; 0], "{}", booted.printed);
    assert_eq!(booted.facts("end").count(), 1, "{}", booted.printed);
}

/// Returns the volumes of a status that the guest printed, in order of their names.
fn volumes(booted: &Booted) -> Vec<(String, String, String)> {
    let status: Value = serde_json::from_str(booted.fact("status")).unwrap();
    let volumes = status["volumes"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = volumes
        .iter()
        .map(|v| {
            (
                text(&v["name"]),
                text(&v["device"]),
                text(&v["health"]["state"]),
            )
        })
        .collect();
    all.sort();
    all
}

fn volume(name: &str, device: &str) -> (String, String, String) {
    (name.into(), device.into(), "ok".into())
}

/// Creates three volumes: `data` opens by a key pair, `store` by a credential, whose key pair
/// stays on this machine, and `asked` by a passphrase.
fn volumes_with_keys(s: &Sandbox, system: &mut System) {
    s.key("elsewhere");
    s.volume("data.img", "64M", &[]);
    let store = ["volume", "create", "store.img", "--size", "64M"];
    s.run(&[&store[..], &["--owner", "elsewhere"]].concat())
        .ok();
    for image in ["data.img", "store.img"] {
        s.run(&["format", image]).ok();
    }
    // As the guide makes it: text, and no line break.
    fs::write(s.path("store.key"), "kHvN0cZ1rUqVtq3zJw5mXo8eD2yB4gA6").unwrap();
    let add = [
        "volume",
        "key",
        "add",
        "store.img",
        "--new-key-file",
        "store.key",
    ];
    s.run(&add).ok();
    let asked = ["volume", "create", "asked.img", "--size", "64M"];
    let asked = [&asked[..], &["--passphrase-fd", "0"]].concat();
    s.run_with_input(&asked, PASSPHRASE.as_bytes()).ok();
    for image in ["data.img", "store.img", "asked.img"] {
        system.add_disk(&s.path(image));
    }
    for half in ["owner.key", "owner.pub"] {
        let from = s.path("keys").join(half);
        put(system, &from, &format!("files/etc/evfs/keys/{half}"), 0o600);
    }
    put(system, &s.path("store.key"), "files/etc/store.key", 0o600);
}

/// Installs the package, and the configuration in `tests/guest/files`.
fn install(s: &Sandbox, system: &System) {
    put(system, &file(&packages(s), ".deb"), "install.deb", 0o644);
    let mut copy = Command::new("cp");
    copy.args(["-r", "-T"]).arg(scripts().join("files"));
    Ran::of(copy.arg(system.share("files"))).ok();
    fs::create_dir(system.share("files/store")).unwrap();
    put(system, &scripts().join("service.sh"), "run", 0o755);
    fs::write(system.share("enable"), "evfs.service").unwrap();
}

/// Checks the first boot: an automount, a credential, a service that ends or hangs.
fn check_first(booted: &Booted) {
    check_boot(booted);
    assert_eq!(booted.fact("state"), "running", "{}", booted.printed);
    assert_eq!(booted.fact("automount"), "waiting inactive");
    assert_eq!(booted.fact("accessed"), "active");
    assert_eq!(booted.fact("consumer"), "active");
    // The key itself is not on the disk any more.
    assert_eq!(booted.fact("credential"), "credstore.encrypted/evfs.store");
    let expected = [volume("data", "/dev/vdb"), volume("store", "/dev/vdc")];
    assert_eq!(volumes(booted), expected);
    for how in ["restarted_after_KILL", "restarted_after_STOP"] {
        assert_eq!(booted.facts(how).count(), 1, "{how}: {}", booted.printed);
    }
    assert!(booted.fact("watchdog").contains("Watchdog timeout"));
    // The check of the shutdown finds what killed services leave.
    let mut unclean = booted.facts("unclean");
    let left = unclean.any(|line| line.contains("unmounted /store, which a killed process left"));
    assert!(left, "{}", booted.printed);
    let asked = booted.console.contains("Passphrase");
    assert!(!asked, "an unexpected question: {}", booted.console);
}

/// Checks what the second boot has found about the shutdown of the first.
fn check_shutdown(booted: &Booted) {
    let stopped: Vec<&str> = booted.facts("stopped").collect();
    let when = |unit: &str| {
        let last = stopped.iter().rposition(|stopped| *stopped == unit);
        last.unwrap_or_else(|| panic!("{unit} was not stopped: {stopped:?}"))
    };
    for (earlier, later) in [
        ("consumer.service", "data.mount"),
        ("store.mount", "evfs.service"),
        ("data.mount", "local-fs-pre.target"),
        ("evfs.service", "local-fs-pre.target"),
    ] {
        assert!(
            when(earlier) < when(later),
            "{earlier}, {later}: {stopped:?}"
        );
    }
    let ours = |text: &&str| {
        let units = ["evfs", "data", "store", "consumer"];
        units.iter().any(|unit| text.contains(unit))
    };
    // An error of data.automount would mean that its trigger was unmounted by EVFS.
    let errors: Vec<&str> = booted.facts("error").filter(ours).collect();
    assert_eq!(errors, ["evfs.service: Watchdog timeout (limit 10s)!"]);
    let failed: Vec<&str> = booted.facts("job_failed").filter(ours).collect();
    let unclean: Vec<&str> = booted.facts("unclean").collect();
    assert_eq!((failed, unclean), (vec![], vec![]));
}

/// Power on, volumes unlocked and mounted, a service that needs one of them started, power off.
#[test]
fn a_system_opens_its_volumes_at_boot_and_closes_them_when_it_is_switched_off() {
    let s = Sandbox::new();
    let mut system = System::new(&s);
    volumes_with_keys(&s, &mut system);
    install(&s, &system);

    begin(&system, "first");
    let first = system.boot(PATIENCE, None);
    check_first(&first);
    // The next boot finds what the first one has left.
    for installed in ["install.deb", "enable"] {
        fs::remove_file(system.share(installed)).unwrap();
    }
    fs::remove_dir_all(system.share("files")).unwrap();

    begin(&system, "second");
    let second = system.boot(PATIENCE, Some((PROMPT, PASSPHRASE)));
    check_boot(&second);
    assert_eq!(second.fact("state"), "running", "{}", second.printed);
    let question = second.console.contains("Passphrase for /dev/vdd");
    assert!(question, "{}", second.console);
    let hidden = !second.console.contains(PASSPHRASE);
    assert!(
        hidden,
        "the passphrase is on the console: {}",
        second.console
    );
    check_shutdown(&second);
    for unit in ["evfs@store", "evfs@asked", "consumer"] {
        let active = second.fact(&format!("active_{unit}"));
        assert_eq!(active, "active 0", "{unit}");
    }
    let expected = [
        volume("asked", "/dev/vdd"),
        volume("data", "/dev/vdb"),
        volume("store", "/dev/vdc"),
    ];
    assert_eq!(volumes(&second), expected);
    assert_eq!(second.fact("kept"), "kept");
    assert_eq!(
        second.fact("late"),
        "late",
        "what was in memory at shutdown"
    );
    assert_eq!(second.fact("loop"), "through the loop device");

    let outlived: Vec<_> = second.facts("outlived").collect();
    assert_eq!(outlived, ["kill", "kill", "restart", "kill"]);
    assert_eq!(second.fact("watched"), "active 0");
    assert_eq!(second.fact("without_keeper"), "1");
    assert_eq!(second.fact("restarted"), "active");

    // The disks are in order, and no machine has left one in use.
    for (image, key) in [("data.img", "owner"), ("store.img", "elsewhere")] {
        let fsck = s.run(&["fsck", image, "--key", key]).ok();
        assert!(fsck.stdout.trim_end().ends_with("clean"), "{fsck:?}");
        assert_eq!(fsck.stderr, "", "the file system was not closed");
        s.run(&["volume", "check", image]).ok();
    }
    fs::create_dir(s.path("mnt")).unwrap();
    s.run(&["mount", "data.img", "mnt", "--background"]).ok();
    let log = fs::read_to_string(s.path("mnt/log")).unwrap();
    s.run(&["unmount", "mnt"]).ok();
    let boots = [first.fact("boot_id"), second.fact("boot_id")];
    let lines: Vec<String> = boots
        .iter()
        .flat_map(|boot| [format!("start {boot}"), format!("stop {boot}")])
        .collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), lines);
    wait_until("it is unmounted", || {
        s.json(&["status"])["volumes"] == serde_json::json!([])
    });
}

/// Steps of the first day, in order.
const STEPS: [&str; 9] = [
    "install",
    "quickstart",
    "create",
    "mount",
    "boot",
    "reboot",
    "kill",
    "upgrade",
    "remove",
];

const PEERS: [&str; 2] = ["cryptsetup", "gocryptfs"];

/// Effort of one step with one program.
struct Effort {
    commands: u64,
    millis: u64,
}

/// Finds the effort of a step; `None` if the program does not have the step.
fn effort(boots: &[Booted], program: &str, step: &str) -> Option<Effort> {
    boots.iter().flat_map(|b| b.facts("step")).find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [of, what, commands, millis] = fields[..] else {
            panic!("no step: {line}");
        };
        (of == program && what == step).then(|| Effort {
            commands: commands.parse().expect("a number"),
            millis: millis.parse().expect("a number"),
        })
    })
}

/// Returns the row of a step in the table: its name, and the effort with each program. A dash stands
/// for no such step, which is no command.
fn row(boots: &[Booted], step: &str) -> Vec<String> {
    let ours = Some(effort(boots, "evfs", step).expect(step));
    let peers = PEERS.map(|peer| effort(boots, peer, step));
    let cells = [ours].into_iter().chain(peers).map(|effort| match effort {
        Some(e) => format!("{} ({:.1} s)", e.commands, e.millis as f64 / 1000.0),
        None => "-".into(),
    });
    [step.to_owned()].into_iter().chain(cells).collect()
}

/// Returns the name of the step and the numbers of commands in a row.
fn first_words(row: &[String]) -> Vec<String> {
    let words = row.iter().map(|cell| cell.split_whitespace().next());
    words
        .map(|word| word.unwrap_or_default().to_owned())
        .collect()
}

/// Returns the steps and the numbers of commands in the guide's table.
fn documented() -> Vec<Vec<String>> {
    let root = root();
    let page = fs::read_to_string(root.join("docs/guide/boot.md")).unwrap();
    let section = page.split("\n## Effort\n").nth(1).expect("the section");
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split('|').map(str::to_owned);
        first_words(&cells.collect::<Vec<_>>())
    };
    rows.skip(2).map(cells).collect()
}

/// A newcomer installs, tries and creates; mounts at boot; restarts, kills, upgrades and removes.
#[test]
fn a_newcomer_needs_at_most_one_command_more_than_with_the_best_peer() {
    let s = Sandbox::new();
    let system = System::new(&s);
    let new = file(&packages(&s), ".deb");
    put(&system, &older(&s, &new), "old/evfs.deb", 0o644);
    put(&system, &new, "new/evfs.deb", 0o644);
    for entry in fs::read_dir(cache().join("debian/later")).unwrap() {
        let package = entry.unwrap();
        let name = package.file_name().into_string().unwrap();
        put(&system, &package.path(), &format!("later/{name}"), 0o644);
    }
    put(&system, &scripts().join("newcomer.sh"), "run", 0o755);
    let boots = ["first", "second"].map(|boot| {
        begin(&system, boot);
        let booted = system.boot(PATIENCE, None);
        check_boot(&booted);
        assert_eq!(booted.fact("state"), "running", "{}", booted.printed);
        booted
    });

    let measured: Vec<Vec<String>> = STEPS.iter().map(|step| row(&boots, step)).collect();
    // In the form of the guide, so that its table can be replaced by this one.
    println!("| step | EVFS | cryptsetup, ext4 | gocryptfs |\n|---|---|---|---|");
    for row in &measured {
        println!("| {} |", row.join(" | "));
    }
    // The seconds are not compared: they are those of this machine and this run.
    let counts: Vec<Vec<String>> = measured.iter().map(|row| first_words(row)).collect();
    for row in &counts {
        let count = |cell: &String| cell.parse::<u64>().unwrap_or_default();
        let best = row[2..].iter().map(count).min().unwrap_or_default();
        assert!(count(&row[1]) <= best + 1, "{row:?}");
    }
    assert_eq!(documented(), counts, "the table of the guide differs");
    // Removal stops and disables the instance of a unit, leaves no mount, and keeps the key.
    assert_eq!(boots[1].fact("instance"), "active 1 inactive 0");
    assert_eq!(boots[1].fact("left").trim(), "0");
    assert!(boots[1].fact("key").starts_with("admin.key"));
}
