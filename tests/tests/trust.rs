//! An attacker who can write to the disk but has no key: every command refuses a changed header, an
//! old header, and a volume that impersonates another.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tests::sparse::Content;
use tests::targets::{free_port, image, nbdkit};
use tests::{HEADER_COPY as COPY, Ran, Sandbox, forge};

/// Returns the content of an image, except for the in-use record (`docs/format/in-use.md`).
fn content(image: &Path) -> Content {
    let mut content = Content::read(image);
    content.clear((16 << 20) - 8192, 4096);
    content
}

/// A change of the header's JSON.
type Forgery = fn(&mut Value);

fn strip(json: &mut Value, prefix: &str) {
    let tokens = json["tokens"].as_object_mut().unwrap();
    tokens.retain(|_, t| !t["type"].as_str().unwrap().starts_with(prefix));
}

/// Changes the mapping of the data, and permits discards.
fn core(json: &mut Value) {
    json["segments"]["0"]["iv_tweak"] = "8".into();
    json["config"]["flags"] = serde_json::json!(["allow-discards"]);
}

/// Makes `bob` an owner.
fn role(json: &mut Value) {
    for token in json["tokens"].as_object_mut().unwrap().values_mut() {
        if token["name"] == "bob" {
            token["role"] = "owner".into();
        }
    }
}

/// Creates a volume of `owner` that `bob`, a recovery key and a passphrase open, with a file system
/// in it.
fn volume(s: &Sandbox) {
    for name in ["bob", "safe", "eve"] {
        s.key(name);
    }
    fs::write(s.path("phrase"), "sesame").unwrap();
    s.volume("a.img", "64M", &["--recovery", "safe"]);
    s.run(&["volume", "key", "add", "a.img", "--user", "bob"])
        .ok();
    s.run(&["volume", "key", "add", "a.img", "--new-key-file", "phrase"])
        .ok();
    s.run(&["format", "a.img"]).ok();
}

/// Runs the program like a machine that has never opened any volume.
fn elsewhere(s: &Sandbox, args: &[&str]) -> Ran {
    let store = s.path("elsewhere/trust.json");
    let _ = fs::remove_file(&store);
    Ran::of(s.evfs().env("EVFS_TRUST_STORE", store).args(args))
}

/// The commands that open a volume with a key.
const VERBS: &[&[&str]] = &[
    &["attach", "a.img", "--background"],
    &["attach", "a.img", "--background", "--read-only"],
    &["fsck", "a.img"],
    &["df", "a.img"],
    &["format", "a.img", "--force"],
    &["fileset", "list", "a.img"],
    &["volume", "key", "add", "a.img", "--user", "eve"],
    &["volume", "key", "remove", "a.img", "bob"],
    &["volume", "owner", "set", "a.img", "bob", "--key", "safe"],
    &["volume", "erase", "a.img"],
];

#[test]
fn no_verb_uses_a_header_that_was_changed_without_a_key() {
    let s = Sandbox::new();
    volume(&s);
    let whole = fs::read(s.path("a.img")).unwrap();
    let forgeries: &[(&str, Forgery)] = &[
        ("core", core),
        ("role", role),
        ("no seal", |j| strip(j, "evfs-seal")),
        ("core, no seal", |j| {
            core(j);
            strip(j, "evfs-seal");
        }),
        ("a seal of rubbish", |j| {
            for token in j["tokens"].as_object_mut().unwrap().values_mut() {
                if token["type"] == "evfs-seal" {
                    token["core"] = 7.into();
                }
            }
        }),
    ];
    for (what, forgery) in forgeries {
        fs::write(s.path("a.img"), &whole).unwrap();
        forge(&s.path("a.img"), forgery);
        let forged = content(&s.path("a.img"));
        for verb in VERBS {
            for ran in [s.run(verb), elsewhere(&s, verb)] {
                let said = ran.code(14).stderr;
                assert!(said.contains("seal"), "{what}: {said}");
            }
            let now = content(&s.path("a.img"));
            assert!(now == forged, "{what}: {verb:?} has changed the image");
        }
    }
    // All EVFS metadata is removed: key pairs are removed with it, and a passphrase opens nothing
    // either.
    for change in [|_: &mut Value| (), core] {
        fs::write(s.path("a.img"), &whole).unwrap();
        forge(&s.path("a.img"), |json| {
            strip(json, "evfs-");
            change(json);
        });
        let attach = &["attach", "a.img", "--background", "--key-file", "phrase"];
        s.run(attach).code(14);
        elsewhere(&s, attach).code(14);
        let add = &[
            "volume",
            "key",
            "add",
            "a.img",
            "--user",
            "eve",
            "--unlock-key-file",
            "phrase",
        ];
        s.run(add).code(14);
        elsewhere(&s, add).code(14);
        let reseal = &[
            "volume",
            "repair",
            "a.img",
            "--reseal",
            "--yes",
            "--unlock-key-file",
            "phrase",
        ];
        elsewhere(&s, reseal).code(13);
    }
    fs::write(s.path("a.img"), &whole).unwrap();
    s.attach(&["a.img"]);
    s.detach("a");
}

#[test]
fn a_forged_role_is_named_and_sealed_only_on_the_owners_word() {
    let s = Sandbox::new();
    volume(&s);
    forge(&s.path("a.img"), role);
    let ran = s.run(&["attach", "a.img", "--key", "bob"]).code(14);
    assert!(
        ran.stderr.contains("from user bob to owner bob"),
        "{}",
        ran.stderr
    );
    let info = s.json(&["volume", "info", "a.img"]);
    assert_eq!(info["keys"][2]["role"], "owner", "as forged: {info}");
    // The forger cannot seal with the forged role: this machine remembers the key as a user key.
    let own = ["volume", "repair", "a.img", "--reseal", "--key", "bob"];
    let said = s.run(&[&own[..], &["--yes"]].concat()).code(14).stderr;
    assert!(said.contains("as a user key"), "{said}");
    let reseal = ["volume", "repair", "a.img", "--reseal", "--key", "owner"];
    let said = s.run(&reseal).code(2).stderr;
    assert!(said.contains("(owner, key pair bob)"), "{said}");
    let sealed = s.json(&[&reseal[..], &["--yes"]].concat());
    let done = sealed["repaired"].to_string();
    assert!(done.contains("owner     key pair bob"), "{done}");
    s.run(&["volume", "key", "remove", "a.img", "bob", "--yes"])
        .ok();
    s.attach(&["a.img"]);
    s.detach("a");
}

#[test]
fn a_recovery_key_gets_past_a_broken_seal_and_a_user_does_not() {
    let s = Sandbox::new();
    volume(&s);
    forge(&s.path("a.img"), |j| strip(j, "evfs-seal"));
    let reseal = ["volume", "repair", "a.img", "--reseal", "--yes"];
    let reseal = |key: &str| s.run(&[&reseal[..], &["--key", key]].concat());
    reseal("bob").code(13);
    reseal("safe").ok();
    s.run(&[
        "volume", "owner", "set", "a.img", "eve", "--key", "safe", "--yes",
    ])
    .ok();
}

#[test]
fn an_old_header_is_refused_until_the_administrator_says_so() {
    let s = Sandbox::new();
    volume(&s);
    let old = fs::read(s.path("a.img")).unwrap();
    s.run(&["volume", "header", "backup", "a.img", "old.header"])
        .ok();
    s.run(&["volume", "key", "remove", "a.img", "bob", "--yes"])
        .ok();
    let new = fs::read(s.path("a.img")).unwrap();
    fs::write(s.path("a.img"), &old).unwrap();
    for verb in VERBS {
        let said = s.run(verb).code(14).stderr;
        assert!(
            said.contains("older than the one that this machine knows"),
            "{said}"
        );
        assert!(
            said.contains("keyslot 2 (user bob) was added") && said.contains("--reset"),
            "{said}"
        );
    }
    s.run(&["attach", "a.img", "--key", "bob"]).code(14);
    // Sealing the header again does not circumvent this.
    s.run(&["volume", "repair", "a.img", "--reseal"]).code(14);
    // A header newer than this machine's record is accepted: it was changed elsewhere.
    fs::write(s.path("a.img"), &new).unwrap();
    Ran::of(
        s.evfs()
            .env("EVFS_TRUST_STORE", s.path("elsewhere/trust.json"))
            .args(["volume", "key", "add", "a.img", "--user", "eve"]),
    )
    .ok();
    s.attach(&["a.img"]);
    s.detach("a");
    fs::write(s.path("a.img"), &new).unwrap();
    s.run(&["attach", "a.img"]).code(14);

    // Restoring an older header needs an explicit option; a refused one causes no question.
    let before = content(&s.path("a.img"));
    let restore = ["volume", "header", "restore", "a.img", "old.header"];
    for more in [&[][..], &["--yes"], &["--force"]] {
        let said = s.run(&[&restore[..], more].concat()).code(14).stderr;
        assert!(said.contains("older") && said.contains("--older"), "{said}");
        assert!(said.contains("known: seal 5"), "{said}");
    }
    let said = s.run(&[&restore[..], &["--older"]].concat()).code(2).stderr;
    assert!(
        said.contains("--yes") && said.contains("keys removed since then"),
        "{said}"
    );
    assert!(content(&s.path("a.img")) == before);
    s.run(&[&restore[..], &["--older", "--yes"]].concat()).ok();
    assert_eq!(
        s.json(&["volume", "trust", "a.img"])["header"]["same"],
        true
    );
    s.attach(&["a.img", "--key", "bob"]);
    s.detach("a");
    // The same holds for an old image that was put back in another way.
    s.run(&["volume", "key", "remove", "a.img", "bob", "--yes"])
        .ok();
    fs::write(s.path("a.img"), &old).unwrap();
    s.run(&["attach", "a.img"]).code(14);
    s.run(&["volume", "trust", "a.img", "--reset"]).ok();
    s.attach(&["a.img"]);
    s.detach("a");
}

#[test]
fn a_header_that_was_restored_by_force_is_expected_there_from_then_on() {
    let s = Sandbox::new();
    s.volume("a.img", "64M", &[]);
    s.volume("b.img", "64M", &[]);
    s.run(&["volume", "header", "backup", "b.img", "b.header"])
        .ok();
    let uuid = |image: &str| s.json(&["volume", "info", image])["uuid"].clone();
    let (old, new) = (uuid("a.img"), uuid("b.img"));
    let restore = ["volume", "header", "restore", "a.img", "b.header"];
    s.run(&[&restore[..], &["--yes"]].concat()).code(2);
    s.run(&[&restore[..], &["--force"]].concat()).ok();
    assert_eq!(uuid("a.img"), new);
    s.attach(&["a.img"]);
    s.detach("a");
    let places = |uuid: &Value| {
        let known = s.json(&["volume", "trust", uuid.as_str().unwrap()]);
        known["places"].as_array().unwrap().len()
    };
    assert_eq!((places(&old), places(&new)), (0, 2));
}

#[test]
fn a_volume_that_pretends_to_be_another_is_refused() {
    let s = Sandbox::new();
    volume(&s);
    // Mallory knows the public key of the owner, and the UUID.
    s.key("mallory");
    let mallory = |args: &[&str]| {
        let mut command = s.evfs();
        command.env("EVFS_TRUST_STORE", s.path("mallory/trust.json"));
        Ran::of(command.args(args)).ok()
    };
    mallory(&[
        "volume", "create", "m.img", "--size", "64M", "--owner", "mallory",
    ]);
    mallory(&[
        "volume", "key", "add", "m.img", "--user", "owner", "--key", "mallory",
    ]);
    let victim = fs::read(s.path("a.img")).unwrap();
    let mut forged = fs::read(s.path("m.img")).unwrap();
    for copy in forged[..2 * COPY].chunks_mut(COPY) {
        copy[168..208].copy_from_slice(&victim[168..208]);
        luks2::fix_checksum(copy);
    }
    fs::write(s.path("a.img"), &forged).unwrap();
    mallory(&["volume", "trust", "m.img", "--reset"]);
    mallory(&[
        "volume", "repair", "a.img", "--reseal", "--yes", "--key", "mallory",
    ]);
    let forged = fs::read(s.path("a.img")).unwrap();
    for args in [
        &["attach", "a.img", "--key", "owner", "--background"][..],
        &["format", "a.img", "--key", "owner"],
    ] {
        let said = s.run(args).code(14).stderr;
        assert!(said.contains("another volume key"), "{said}");
    }
    // A volume with another UUID at that path is refused as well; and so is unencrypted data.
    fs::copy(s.path("m.img"), s.path("a.img")).unwrap();
    for args in [
        &["attach", "a.img", "--key", "owner", "--background"][..],
        &["fsck", "a.img", "--key", "owner"],
    ] {
        let said = s.run(args).code(14).stderr;
        assert!(said.contains("it was replaced"), "{said}");
    }
    let clear = fs::File::create(s.path("a.img")).unwrap();
    clear.set_len(64 << 20).unwrap();
    elsewhere(&s, &["format", "a.img"]).ok();
    for args in [
        &["fsck", "a.img"][..],
        &["df", "a.img"],
        &["format", "a.img", "--force"],
    ] {
        let said = s.run(args).code(14).stderr;
        assert!(said.contains("not encrypted"), "{said}");
    }
    // A file that was removed and created again is intended by the user.
    fs::remove_file(s.path("a.img")).unwrap();
    s.run(&["format", "a.img", "--size", "32M"]).ok();
    s.run(&["fsck", "a.img"]).ok();
    s.volume("b.img", "32M", &[]);
    fs::remove_file(s.path("b.img")).unwrap();
    s.volume("b.img", "32M", &[]);
    s.attach(&["b.img"]);
    s.detach("b");
    fs::write(s.path("a.img"), &forged).unwrap();
    // On first use, the message names its owner.
    let said = elsewhere(&s, &["fsck", "a.img", "--key", "owner"]).stderr;
    assert!(
        said.contains("for the first time") && said.contains("owner mallory"),
        "{said}"
    );
}

/// An attacker who can exchange an image can replace it, or its directory, by a link.
#[test]
fn a_link_to_another_volume_or_to_clear_data_is_an_exchange_as_well() {
    let s = Sandbox::new();
    for dir in ["st", "evil"] {
        fs::create_dir(s.path(dir)).unwrap();
    }
    s.volume("st/a.img", "32M", &[]);
    let uuid = s.json(&["volume", "info", "st/a.img"])["uuid"].clone();
    let clear = ["format", "evil/a.img", "--size", "32M"];
    elsewhere(&s, &clear).ok();
    let create = ["volume", "create", "evil/b.img", "--size", "32M"];
    elsewhere(&s, &[&create[..], &["--owner", "owner"]].concat()).ok();
    let link = |to: &str, name: &str| symlink(s.path(to), s.path(name)).unwrap();
    let refused = |what: &str| {
        for verb in ["df", "fsck"] {
            let said = s.run(&[verb, "st/a.img"]).code(14).stderr;
            assert!(said.contains("it was replaced"), "{what}: {said}");
            let reset = format!("volume trust {} --reset", uuid.as_str().unwrap());
            assert!(said.contains(&reset), "{what}: {said}");
        }
        let there = Ran::of(s.evfs().current_dir(s.path("st")).args(["df", "a.img"]));
        there.code(14);
    };
    s.run(&["format", "st/a.img"]).ok();
    fs::rename(s.path("st/a.img"), s.path("kept.img")).unwrap();
    for to in ["evil/a.img", "evil/b.img"] {
        link(to, "st/a.img");
        refused(to);
        fs::remove_file(s.path("st/a.img")).unwrap();
    }
    fs::rename(s.path("st"), s.path("old")).unwrap();
    link("evil", "st");
    let shell = |args: &[&str]| {
        // The current directory as a shell sets it.
        let mut command = s.evfs();
        command.current_dir(s.path("st")).env("PWD", s.path("st"));
        Ran::of(command.args(args))
    };
    for verb in ["df", "fsck"] {
        let said = s.run(&[verb, "st/a.img"]).code(14).stderr;
        assert!(said.contains("not encrypted"), "{said}");
    }
    shell(&["df", "a.img"]).code(14);
    // A link to the volume itself is accepted, and known from then on.
    fs::remove_file(s.path("st")).unwrap();
    fs::rename(s.path("old"), s.path("st")).unwrap();
    link("kept.img", "st/a.img");
    link("st/a.img", "way.img");
    for name in ["way.img", "st/a.img", "kept.img"] {
        s.run(&["df", name]).ok();
    }
    fs::remove_file(s.path("way.img")).unwrap();
    link("evil/a.img", "way.img");
    s.run(&["df", "way.img"]).code(14);
    // An administrator who changed the link resets the trust.
    s.run(&["volume", "trust", uuid.as_str().unwrap(), "--reset"])
        .ok();
    s.run(&["df", "way.img"]).ok();
}

#[test]
fn trust_is_shown_and_reset() {
    let s = Sandbox::new();
    volume(&s);
    let uuid = s.json(&["volume", "info", "a.img"])["uuid"].clone();
    let all = s.json(&["volume", "trust"]);
    assert_eq!(all["volumes"][0]["uuid"], uuid);
    let one = s.json(&["volume", "trust", "a.img"]);
    assert_eq!((&one["epoch"], &one["sealed"]), (&3.into(), &true.into()));
    assert_eq!(one["header"]["same"], true);
    let keys = one["keys"].to_string();
    assert!(
        keys.contains("owner owner") && keys.contains("user bob"),
        "{keys}"
    );
    let store = fs::read_to_string(s.path("state/trust.json")).unwrap();
    let mode = fs::metadata(s.path("state/trust.json")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    s.run(&["volume", "trust", uuid.as_str().unwrap(), "--reset"])
        .ok();
    s.run(&["volume", "trust", "a.img", "--reset"]).code(10);
    s.run(&["volume", "trust", "--reset"]).code(2);
    // The first use is reported and recorded; the second is not reported.
    let said = s.run(&["fsck", "a.img"]).ok().stderr;
    assert!(
        said.contains("for the first time") && said.contains("owner owner"),
        "{said}"
    );
    assert!(!s.run(&["fsck", "a.img"]).ok().stderr.contains("first time"));
    // The JSON output contains it as well.
    s.run(&["volume", "trust", "a.img", "--reset"]).ok();
    let attached = s.attach(&["a.img"]);
    let said = attached["first_use"].as_str().unwrap_or_default();
    assert!(
        said.contains("for the first time") && said.contains("owner owner"),
        "{attached}"
    );
    s.detach("a");
    let attached = s.attach(&["a.img"]);
    assert!(attached.get("first_use").is_none(), "{attached}");
    s.detach("a");
    // An unreadable store does not lead to trust on first use.
    fs::write(s.path("state/trust.json"), &store[..store.len() / 2]).unwrap();
    let said = s.run(&["attach", "a.img"]).code(2).stderr;
    assert!(said.contains("trust store is damaged"), "{said}");
    fs::write(
        s.path("state/trust.json"),
        store.replace("\"version\": 1", "\"version\": 9"),
    )
    .unwrap();
    let said = s.run(&["attach", "a.img"]).code(2).stderr;
    assert!(said.contains("later version"), "{said}");
}

#[test]
fn a_copy_is_fine_until_the_keys_of_both_were_changed() {
    let s = Sandbox::new();
    volume(&s);
    fs::copy(s.path("a.img"), s.path("b.img")).unwrap();
    s.attach(&["b.img"]);
    s.detach("b");
    s.run(&["volume", "key", "add", "a.img", "--user", "eve"])
        .ok();
    let remove = ["volume", "key", "remove", "b.img", "bob", "--yes"];
    s.run(&remove).code(14);
    elsewhere(&s, &remove).ok();
    let said = s.run(&["attach", "b.img"]).code(14).stderr;
    assert!(said.contains("changed independently"), "{said}");
    s.attach(&["a.img"]);
    s.detach("a");
}

/// A process that dies between writing the header and writing the store leaves an outdated store.
#[test]
fn a_store_that_lags_behind_the_header_catches_up() {
    let s = Sandbox::new();
    volume(&s);
    let store = fs::read(s.path("state/trust.json")).unwrap();
    s.run(&["volume", "key", "remove", "a.img", "bob", "--yes"])
        .ok();
    let after = fs::read(s.path("state/trust.json")).unwrap();
    assert_ne!(store, after);
    fs::write(s.path("state/trust.json"), &store).unwrap();
    s.run(&["fsck", "a.img"]).ok();
    assert_eq!(fs::read(s.path("state/trust.json")).unwrap(), after);
}

/// Concurrent key changes and opens: no header is mistaken for an old one.
#[test]
fn changes_and_openings_at_once_are_not_taken_for_a_rollback() {
    let s = Sandbox::new();
    volume(&s);
    let names: Vec<String> = (0..6).map(|n| format!("user{n}")).collect();
    names.iter().for_each(|name| s.key(name));
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| {
                s.run(&["volume", "key", "add", "a.img", "--user", name])
                    .ok();
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..6 {
                    let ran = s.run(&["df", "a.img"]);
                    let code = ran.status.code();
                    assert!(matches!(code, Some(0 | 11)), "{ran:?}");
                }
            });
        }
    });
    assert_eq!(s.json(&["volume", "trust", "a.img"])["epoch"], 9);
    s.attach(&["a.img"]);
    s.detach("a");
}

mod needs_peer {
    use super::*;

    #[test]
    fn luns_of_two_registries_with_one_name_are_two() {
        let s = Sandbox::new();
        s.key("owner");
        let servers = ["one", "two"].map(|name| {
            let (disk, port) = (image(&s, name, 32 << 20), free_port());
            (nbdkit(&disk, port), format!("nbd://127.0.0.1:{port}/e"))
        });
        let at = |registry: usize, args: &[&str]| {
            let registry = s.path(&format!("state/luns{registry}.json"));
            Ran::of(s.evfs().env("EVFS_LUN_REGISTRY", registry).args(args))
        };
        for (n, (_server, uri)) in servers.iter().enumerate() {
            at(n, &["volume", "create", uri, "--owner", "owner"]).ok();
            at(n, &["format", "disk1"]).ok();
        }
        // Both are named `disk1`, and each is recognized.
        for n in [0, 1, 0] {
            at(n, &["fsck", "disk1"]).ok();
        }
        // Forgetting one leaves no record of it, and keeps that of the other.
        let store = || fs::read_to_string(s.path("state/trust.json")).unwrap();
        assert_eq!(store().matches(":disk1").count(), 2);
        at(0, &["lun", "forget", "disk1", "--yes"]).ok();
        assert_eq!(store().matches(":disk1").count(), 1);
        assert!(store().contains("luns1.json:disk1"), "{}", store());
        at(1, &["fsck", "disk1"]).ok();
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_named_with_its_own_variable() {
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let (disk, port) = (image(&s, "disk", 32 << 20), free_port());
        let _server = nbdkit(&disk, port);
        let uri = format!("nbd://127.0.0.1:{port}/e");
        let open = s.path("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let cases: [(&str, &str, &[&str]); 4] = [
            ("EVFS_TRUST_STORE", "open/trust.json", &["fsck", "a.img"]),
            (
                "EVFS_LUN_REGISTRY",
                "open/luns.json",
                &["lun", "scan", &uri],
            ),
            (
                "EVFS_BACKUP_DIR",
                "open",
                &["key", "remove", "owner", "--yes"],
            ),
            ("EVFS_RUN_DIR", "open", &["attach", "a.img", "--background"]),
        ];
        for (variable, value, args) in cases {
            let ran = Ran::of(s.evfs().env(variable, s.path(value)).args(args));
            assert!(!ran.status.success(), "{ran:?}");
            assert!(ran.stderr.contains("others cannot write to"), "{ran:?}");
            for (other, ..) in cases {
                assert_eq!(ran.stderr.contains(other), other == variable, "{ran:?}");
            }
        }
    }
}
