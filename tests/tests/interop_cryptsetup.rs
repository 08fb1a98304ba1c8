//! Each program opens the other's volumes: EVFS and the real `cryptsetup`, byte for byte.
//!
//! `cryptsetup` cannot map a device here (no device-mapper), but it can decrypt a volume in place
//! offline (`reencrypt --decrypt`) and encrypt one in place (`reencrypt --encrypt`), which
//! exercises its whole data path.

use nbd_client::Client;
use std::fs;
use std::path::Path;
use tests::{Random, Sandbox, peer};

const PASSPHRASE: &[u8] = b"correct horse battery staple";
const MIB: u64 = 1 << 20;

/// Cheap key derivation for headers that cryptsetup creates; its cost is not tested.
const CHEAP: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

fn cryptsetup(args: &[&str]) -> String {
    let mut all = args.to_vec();
    all.push("--batch-mode");
    peer("cryptsetup", &all)
}

/// Returns combinations of key bits, sector size and data size: both key lengths, both sector
/// sizes, several sizes.
fn sets() -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    let sizes = [MIB, 5 * MIB, 16 * MIB, 33 * MIB + 4096];
    ["128", "256"].into_iter().flat_map(move |bits| {
        ["512", "4096"]
            .into_iter()
            .flat_map(move |sector| sizes.map(move |size| (bits, sector, size)))
    })
}

fn write_all(s: &Sandbox, name: &str, data: &[u8]) {
    let mut client = Client::connect(&s.path(&format!("run/{name}.nbd")), name).unwrap();
    assert_eq!(client.size(), data.len() as u64);
    client.write_at(0, data).unwrap();
    client.flush().unwrap();
    client.disconnect().unwrap();
}

fn read_all(s: &Sandbox, name: &str) -> Vec<u8> {
    let mut client = Client::connect(&s.path(&format!("run/{name}.nbd")), name).unwrap();
    let mut data = vec![0; client.size() as usize];
    client.read_at(0, &mut data).unwrap();
    data
}

#[test]
fn cryptsetup_opens_and_decrypts_what_evfs_wrote() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    fs::write(s.path("phrase"), PASSPHRASE).unwrap();
    let phrase = s.path("phrase");
    let phrase = phrase.to_str().unwrap();
    for (n, (bits, sector, size)) in sets().enumerate() {
        let name = format!("v{n}");
        let file = format!("{name}.img");
        let total = (16 * MIB + size).to_string();
        let image = s.volume(
            &file,
            &total,
            &["--key-bits", bits, "--sector-size", sector],
        );
        let image = image.to_str().unwrap();
        s.run(&["volume", "key", "add", &file, "--new-key-file", "phrase"])
            .ok();
        let data = random.bytes(size as usize);
        s.attach(&[&file]);
        write_all(&s, &name, &data);
        s.detach(&name);

        let dump = cryptsetup(&["luksDump", image]);
        assert!(
            dump.contains("aes-xts-plain64") && dump.contains(&format!("sector: {sector} [bytes]")),
            "{dump}"
        );
        cryptsetup(&["open", "--test-passphrase", "--key-file", phrase, image]);
        let detached = s.path(&format!("{name}.header"));
        let detached = detached.to_str().unwrap();
        cryptsetup(&[
            "reencrypt",
            "--decrypt",
            "--header",
            detached,
            "--key-file",
            phrase,
            "--force-offline-reencrypt",
            image,
        ]);
        let clear = fs::read(image).unwrap();
        assert!(
            clear.len() as u64 >= size && clear[..size as usize] == data[..],
            "{bits} bits, sectors of {sector}, {size} bytes: cryptsetup decrypts to something else"
        );
        fs::remove_file(image).unwrap();
    }
}

#[test]
fn evfs_reads_what_cryptsetup_made_and_filled() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    fs::write(s.path("phrase"), PASSPHRASE).unwrap();
    let phrase = s.path("phrase");
    for (n, (bits, sector, size)) in sets().enumerate() {
        let name = format!("c{n}");
        let data = random.bytes(size as usize);
        // cryptsetup encrypts a plaintext file in place, after moving it to make room.
        let image = s.path(&format!("{name}.img"));
        let mut content = data.clone();
        content.resize((size + 32 * MIB) as usize, 0);
        fs::write(&image, &content).unwrap();
        let key_size = (bits.parse::<u32>().unwrap() * 2).to_string();
        let mut args = vec![
            "reencrypt",
            "--encrypt",
            "--type",
            "luks2",
            "--reduce-device-size",
            "32M",
            "--cipher",
            "aes-xts-plain64",
            "--key-size",
            &key_size,
            "--sector-size",
            sector,
            "--key-file",
            phrase.to_str().unwrap(),
            image.to_str().unwrap(),
        ];
        args.extend(CHEAP);
        cryptsetup(&args);
        s.attach(&[&format!("{name}.img"), "--key-file", "phrase"]);
        let read = read_all(&s, &name);
        assert!(
            read[..size as usize] == data[..],
            "{bits} bits, sectors of {sector}, {size} bytes"
        );
        s.detach(&name);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn keyslots_added_by_either_open_in_the_other() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    let image = image.to_str().unwrap();
    for (name, content) in [
        ("p1", "first phrase"),
        ("p2", "second phrase"),
        ("p3", "third phrase"),
    ] {
        fs::write(s.path(name), content).unwrap();
    }
    let path = |name: &str| s.path(name).to_str().unwrap().to_owned();
    // EVFS adds, cryptsetup opens; cryptsetup adds with it, EVFS opens; with both key derivations.
    s.run(&["volume", "key", "add", "a.img", "--new-key-file", "p1"])
        .ok();
    cryptsetup(&[
        "open",
        "--test-passphrase",
        "--key-file",
        &path("p1"),
        image,
    ]);
    let argon: &[&str] = &[
        "--pbkdf",
        "argon2id",
        "--pbkdf-memory",
        "1024",
        "--pbkdf-force-iterations",
        "4",
    ];
    for (file, kdf) in [("p2", CHEAP), ("p3", argon)] {
        let (old, new) = (path("p1"), path(file));
        let mut args = vec!["luksAddKey", "--key-file", &old];
        args.extend(kdf);
        args.extend([image, &new]);
        cryptsetup(&args);
        // The change by another program is refused until an owner seals it.
        let said = s.run(&["attach", "a.img", "--key-file", file]).code(14);
        assert!(said.stderr.contains("--reseal"), "{}", said.stderr);
        s.run(&["volume", "repair", "a.img", "--reseal", "--yes"])
            .ok();
        s.attach(&["a.img", "--key-file", file]);
        s.detach("a");
    }
    s.key("bob");
    s.run(&["volume", "key", "add", "a.img", "--user", "bob"])
        .ok();
    s.attach(&["a.img"]);
    s.detach("a");
    // cryptsetup removes one of our keyslots, and the volume stays valid for both.
    cryptsetup(&["luksRemoveKey", image, &path("p1")]);
    s.run(&["attach", "a.img", "--key-file", "p1"]).code(12);
    cryptsetup(&[
        "open",
        "--test-passphrase",
        "--key-file",
        &path("p2"),
        image,
    ]);
    s.run(&["volume", "check", "a.img"]).ok();
}

/// A volume that cryptsetup created stays plain LUKS2 until EVFS changes its keys; until then
/// cryptsetup may change them freely. The first change by EVFS seals it, and its old keys become
/// owners.
#[test]
fn a_volume_of_cryptsetup_is_sealed_by_the_first_change_of_evfs() {
    let s = Sandbox::new();
    for (name, content) in [("p1", "first phrase"), ("p2", "second phrase")] {
        fs::write(s.path(name), content).unwrap();
    }
    let path = |name: &str| s.path(name).to_str().unwrap().to_owned();
    let (image, p1, p2) = (path("c.img"), path("p1"), path("p2"));
    fs::File::create(&image).unwrap().set_len(32 * MIB).unwrap();
    let with = |args: &[&str]| cryptsetup(&[args, CHEAP].concat());
    with(&["luksFormat", "--type", "luks2", "--key-file", &p1, &image]);
    s.attach(&["c.img", "--key-file", "p1"]);
    s.detach("c");
    with(&["luksAddKey", "--key-file", &p1, &image, &p2]);
    s.attach(&["c.img", "--key-file", "p2"]);
    s.detach("c");
    let before = fs::read(&image).unwrap();
    s.key("bob");
    let add = ["volume", "key", "add", "c.img", "--user", "bob"];
    s.run(&[&add[..], &["--unlock-key-file", "p2"]].concat())
        .ok();
    let keys = s.json(&["volume", "key", "list", "c.img"]);
    let roles: Vec<_> = (0..3).map(|n| keys["keys"][n]["role"].clone()).collect();
    assert_eq!(roles, ["owner", "owner", "user"]);
    for key in [&p1, &p2] {
        cryptsetup(&["open", "--test-passphrase", "--key-file", key, &image]);
    }
    cryptsetup(&["luksRemoveKey", &image, &p1]);
    s.run(&["attach", "c.img", "--key-file", "p2"]).code(14);
    let reseal = ["volume", "repair", "c.img", "--reseal", "--yes"];
    s.run(&[&reseal[..], &["--unlock-key-file", "p2"]].concat())
        .ok();
    s.attach(&["c.img", "--key", "bob"]);
    s.detach("c");
    // The header from before the sealing is not accepted either.
    fs::write(&image, before).unwrap();
    let said = s.run(&["attach", "c.img", "--key-file", "p2"]).code(14);
    assert!(said.stderr.contains("no seal"), "{}", said.stderr);
    s.run(&["volume", "trust", "c.img", "--reset"]).ok();
    s.attach(&["c.img", "--key-file", "p2"]);
    s.detach("c");
}

/// Reports whether `cryptsetup` opens `image` with the content of `file`.
fn opens_in_cryptsetup(s: &Sandbox, image: &Path, file: &str) -> bool {
    let out = std::process::Command::new("cryptsetup")
        .args(["open", "--test-passphrase", "--key-file"])
        .arg(s.path(file))
        .arg(image)
        .output()
        .unwrap();
    out.status.success()
}

/// A volume that belongs to a passphrase alone, a changed passphrase, and a recovery key as it is
/// printed.
#[test]
fn cryptsetup_opens_with_passphrases_and_recovery_keys_of_evfs() {
    let s = Sandbox::new();
    for (name, content) in [("p1", "first phrase"), ("p2", "second phrase")] {
        fs::write(s.path(name), content).unwrap();
    }
    let made = s.passphrase_volume("a.img", "first phrase", &["--recovery"]);
    fs::write(s.path("recovery"), made["recovery_key"].as_str().unwrap()).unwrap();
    let image = s.path("a.img");
    let opens = |file| opens_in_cryptsetup(&s, &image, file);
    assert!(opens("p1") && opens("recovery") && !opens("p2"));
    let change = [
        "volume",
        "key",
        "change",
        "a.img",
        "--unlock-key-file",
        "p1",
    ];
    s.run(&[&change[..], &["--new-key-file", "p2"]].concat())
        .ok();
    assert!(!opens("p1") && opens("recovery") && opens("p2"));
    let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
    assert!(dump.contains("evfs-key"), "{dump}");
    s.run(&["volume", "check", "a.img"]).ok();
}

#[test]
fn passphrases_of_cryptsetup_are_tested_and_changed_by_evfs() {
    let s = Sandbox::new();
    for (name, content) in [("p1", "first phrase"), ("p2", "second phrase")] {
        fs::write(s.path(name), content).unwrap();
    }
    let image = s.path("c.img");
    fs::File::create(&image).unwrap().set_len(32 * MIB).unwrap();
    let (p1, path) = (s.path("p1"), image.to_str().unwrap());
    let format = [
        "luksFormat",
        "--type",
        "luks2",
        "--key-file",
        p1.to_str().unwrap(),
        path,
    ];
    cryptsetup(&[&format[..], CHEAP].concat());
    let before = fs::read(&image).unwrap();
    let test = |file| s.run(&["volume", "key", "test", "c.img", "--key-file", file]);
    let said = test("p1").ok().stdout;
    assert!(said.contains("keyslot 0 (owner, "), "{said}");
    test("p2").code(12);
    assert!(
        fs::read(&image).unwrap() == before,
        "a test wrote to the volume"
    );
    let change = [
        "volume",
        "key",
        "change",
        "c.img",
        "--unlock-key-file",
        "p1",
    ];
    let new = ["--new-key-file", "p2", "--label", "new"];
    s.run(&[&change[..], &new].concat()).ok();
    let opens = |file| opens_in_cryptsetup(&s, &image, file);
    assert!(!opens("p1") && opens("p2"));
    let listed = s.json(&["volume", "key", "list", "c.img"]);
    assert_eq!(listed["keys"][0]["label"], "new");
    assert_eq!(listed["keys"][0]["role"], "owner");
}

#[test]
fn the_four_kinds_of_damage_end_as_they_do_in_cryptsetup() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    fs::write(s.path("p"), PASSPHRASE).unwrap();
    s.run(&["volume", "key", "add", "a.img", "--new-key-file", "p"])
        .ok();
    let whole = fs::read(&image).unwrap();
    let opens = |image: &Path| opens_in_cryptsetup(&s, image, "p");
    let ours = || s.run(&["volume", "info", "a.img"]).status.success();
    let zero = |bytes: &mut Vec<u8>, from: usize, len: usize| bytes[from..from + len].fill(0);
    // Primary zeroed, primary JSON torn, secondary torn: both open. Both torn: both refuse.
    let damages: [(&[(usize, usize)], bool); 4] = [
        (&[(0, 4096)], true),
        (&[(4096 + 512, 512)], true),
        (&[(16384 + 4096, 512)], true),
        (&[(4096, 512), (16384 + 4096, 512)], false),
    ];
    for (ranges, expected) in damages {
        let mut bytes = whole.clone();
        for (from, len) in ranges {
            zero(&mut bytes, *from, *len);
        }
        fs::write(&image, &bytes).unwrap();
        assert_eq!(ours(), expected, "EVFS: {ranges:?}");
        assert_eq!(opens(&image), expected, "cryptsetup: {ranges:?}");
    }
}

#[test]
fn a_header_that_evfs_repaired_is_whole_for_cryptsetup() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    for copy in [0usize, 16384] {
        let mut bytes = fs::read(&image).unwrap();
        bytes[copy + 4200] ^= 0x40;
        fs::write(&image, &bytes).unwrap();
        s.run(&["volume", "repair", "a.img"]).ok();
        cryptsetup(&["luksDump", image.to_str().unwrap()]);
        s.run(&["volume", "check", "a.img"]).ok();
        // With only the other copy left both programs still agree.
        let mut bytes = fs::read(&image).unwrap();
        bytes[16384 - copy..16384 - copy + 4096].fill(0);
        fs::write(s.path("half.img"), &bytes).unwrap();
        cryptsetup(&["luksDump", s.path("half.img").to_str().unwrap()]);
    }
}
