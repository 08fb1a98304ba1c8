//! The process is killed, or its memory is inspected: no acknowledged data is lost, and no secret
//! is found.

use nbd_client::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::{Killed, Ran, Random, Sandbox, needs_root, peer, wait_until};

const BLOCK: usize = 4096;

/// Returns a block that identifies itself: its number, its generation, and bytes derived from both.
fn block(number: u64, generation: u64) -> Vec<u8> {
    let mut data = Random::new(number << 32 | generation).bytes(BLOCK);
    data[..8].copy_from_slice(&number.to_le_bytes());
    data[8..16].copy_from_slice(&generation.to_le_bytes());
    data
}

/// kill -9 of an attached volume while it is written, 100 times: every block that was acknowledged
/// and then flushed is intact afterwards, and a block written later is old or new, never torn.
#[test]
fn kill_9_a_hundred_times_loses_nothing_that_was_flushed() {
    let s = Sandbox::new();
    s.volume("a.img", "48M", &[]);
    let blocks = (32 << 20) / BLOCK as u64;
    let mut random = Random::from_environment();
    let mut flushed: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 1..=100u64 {
        let how = if round % 2 == 0 {
            "--cached"
        } else {
            "--direct"
        };
        let child = s
            .evfs()
            .args(["attach", "a.img", "--threads", "1", how])
            .stdout(Stdio::null())
            .spawn();
        let mut child = Killed(child.unwrap());
        let socket = s.path("run/a.nbd");
        let mut client = None;
        wait_until("the volume answers", || {
            client = Client::connect(&socket, "a").ok();
            client.is_some()
        });
        let mut client = client.unwrap();
        for (&number, &generation) in &flushed {
            let mut read = vec![0; BLOCK];
            client.read_at(number * BLOCK as u64, &mut read).unwrap();
            let found = u64::from_le_bytes(read[8..16].try_into().unwrap());
            assert!(
                found >= generation,
                "round {round}: block {number} fell back from {generation} to {found}"
            );
            assert!(
                read == block(number, found),
                "round {round}: block {number} is torn"
            );
        }
        let pid = child.0.id() as i32;
        let pause = Duration::from_micros(random.below(30_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(pause);
            tests::signal(pid, libc::SIGKILL);
        });
        // Writes until the connection breaks; counts only blocks that a flush covered.
        let mut pending = Vec::new();
        loop {
            let number = random.below(blocks.min(512));
            if client
                .write_at(number * BLOCK as u64, &block(number, round))
                .is_err()
            {
                break;
            }
            pending.push(number);
            if random.below(4) == 0 {
                if client.flush().is_err() {
                    break;
                }
                flushed.extend(pending.drain(..).map(|n| (n, round)));
            }
        }
        killer.join().unwrap();
        child.0.wait().unwrap();
    }
    assert!(
        flushed.len() > 100,
        "only {} blocks were ever flushed: nothing was tested",
        flushed.len()
    );
}

/// kill -9 as soon as a command begins to create its file: the file is complete or absent, and
/// leftovers do not disturb later commands.
#[test]
fn a_file_that_is_made_when_the_process_is_killed_is_whole_or_not_there() {
    let s = Sandbox::new();
    s.volume("v.img", "32M", &[]);
    s.key("other");
    let names = |folder: &str| -> BTreeSet<std::ffi::OsString> {
        let entries = fs::read_dir(s.path(folder)).unwrap();
        entries.map(|e| e.unwrap().file_name()).collect()
    };
    let create = ["volume", "create", "a", "--owner", "owner", "--size"];
    let cell = ["cell", "init", "a.example", "a", "--size", "64M"];
    let made: [(&str, &str, &[&str], &[&str]); 5] = [
        (
            "",
            "a",
            &[&create[..], &["64M"]].concat(),
            &["volume", "info", "a"],
        ),
        ("", "a", &["format", "a", "--size", "64M"], &["fsck", "a"]),
        ("", "a", &cell, &["cell", "status", "a"]),
        (
            "",
            "a",
            &["volume", "header", "backup", "v.img", "a"],
            &["volume", "info", "a"],
        ),
        (
            "keys",
            "a.key",
            &["key", "generate", "a", "--no-passphrase"],
            &["key", "show", "a"],
        ),
    ];
    for (folder, file, make, look) in made {
        for _ in 0..10 {
            let before = names(folder);
            let mut command = s.evfs();
            command
                .args(make)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut child = Killed(command.spawn().unwrap());
            wait_until("it begins a file or ends", || {
                names(folder) != before || child.0.try_wait().unwrap().is_some()
            });
            drop(child);
            let mut there = s.path(folder).join(file).exists();
            if there && folder == "keys" && !s.path("keys/a.pub").exists() {
                s.run(&["key", "remove", "a", "--yes"]).ok();
                there = false;
            }
            if !there {
                s.run(make).ok();
            }
            s.run(look).ok();
            let _ = fs::remove_file(s.path(folder).join(file));
            let _ = fs::remove_file(s.path("keys/a.pub"));
            let left = names(folder);
            let left = left
                .iter()
                .filter(|n| n.to_string_lossy().contains("evfs-new"));
            let left = left.filter(|_| !there);
            assert_eq!(left.count(), 0, "of {make:?}");
        }
    }
}

/// A secret in all forms in which it could be stored.
struct Canary {
    name: &'static str,
    forms: Vec<Vec<u8>>,
}

impl Canary {
    fn new(name: &'static str, secret: &[u8]) -> Canary {
        let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        let mut forms = vec![
            secret.to_vec(),
            hex.to_uppercase().into_bytes(),
            hex.into_bytes(),
        ];
        forms.push(base64(secret).into_bytes());
        Canary { name, forms }
    }

    #[track_caller]
    fn must_not_be_in(&self, place: &str, bytes: &[u8]) {
        for form in &self.forms {
            // Sixteen consecutive bytes count as a leak, and are quick to search for.
            for needle in form.chunks_exact(16) {
                assert!(!contains(bytes, needle), "{} lies in {place}", self.name);
            }
        }
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    // SAFETY: memmem reads the two slices within their lengths.
    let at = unsafe {
        libc::memmem(
            haystack.as_ptr().cast(),
            haystack.len(),
            needle.as_ptr().cast(),
            needle.len(),
        )
    };
    !at.is_null()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |group: u32, n: u32| DIGITS[(group >> (18 - 6 * n) & 63) as usize] as char;
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let group = part.iter().fold(0u32, |g, b| g << 8 | u32::from(*b)) << (8 * (3 - part.len()));
        text.extend((0..=part.len() as u32).map(|n| digit(group, n)));
    }
    text
}

/// Expands an AES key (FIPS 197, section 5.2), to search for its later round keys in a dump.
fn round_keys(key: &[u8]) -> Vec<u8> {
    let sbox = sbox();
    let nk = key.len() / 4;
    let rounds = nk + 6;
    let mut words: Vec<[u8; 4]> = key.chunks(4).map(|c| c.try_into().unwrap()).collect();
    let mut rcon = 1u8;
    for i in nk..4 * (rounds + 1) {
        let mut t = words[i - 1];
        if i % nk == 0 {
            t.rotate_left(1);
            t = t.map(|b| sbox[b as usize]);
            t[0] ^= rcon;
            rcon = rcon << 1 ^ if rcon & 0x80 != 0 { 0x1b } else { 0 };
        } else if nk > 6 && i % nk == 4 {
            t = t.map(|b| sbox[b as usize]);
        }
        let before = words[i - nk];
        words.push(std::array::from_fn(|j| before[j] ^ t[j]));
    }
    words.concat()
}

fn sbox() -> [u8; 256] {
    let mut sbox = [0u8; 256];
    let (mut p, mut q) = (1u8, 1u8);
    loop {
        p ^= p << 1 ^ if p & 0x80 != 0 { 0x1b } else { 0 };
        q ^= q << 1;
        q ^= q << 2;
        q ^= q << 4;
        if q & 0x80 != 0 {
            q ^= 0x09;
        }
        let x = q ^ q.rotate_left(1) ^ q.rotate_left(2) ^ q.rotate_left(3) ^ q.rotate_left(4);
        sbox[p as usize] = x ^ 0x63;
        if p == 1 {
            break;
        }
    }
    sbox[0] = 0x63;
    sbox
}

/// Returns the secrets to search for, obtained with the real `cryptsetup` and `age`.
fn secrets_of(s: &Sandbox, passphrase: &[u8], pair_passphrase: &[u8]) -> Vec<Canary> {
    let identity = fs::read_to_string(s.path("keys/plain.key")).unwrap();
    let identity = identity
        .lines()
        .find(|l| l.starts_with("AGE-SECRET-KEY-"))
        .unwrap()
        .to_owned();
    let image = s.path("a.img");
    let image = image.to_str().unwrap();
    let dump = peer(
        "cryptsetup",
        &[
            "luksDump",
            "--dump-volume-key",
            "--batch-mode",
            "--key-file",
            s.path("phrase").to_str().unwrap(),
            image,
        ],
    );
    let hex: String = dump
        .split("MK dump:")
        .nth(1)
        .unwrap()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let volume_key: Vec<u8> = (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    assert_eq!(volume_key.len(), 64, "{dump}");
    let (data, tweak) = volume_key.split_at(32);
    let mut canaries = vec![
        Canary::new("the passphrase", passphrase),
        Canary::new("the passphrase of the key pair", pair_passphrase),
        // After the prefix that every age identity has, and the program itself.
        Canary::new(
            "the private key",
            &identity.as_bytes()["AGE-SECRET-KEY-1".len()..],
        ),
        Canary::new("the volume key", &volume_key),
        Canary::new("the round keys for data", &round_keys(data)),
        Canary::new("the round keys for tweaks", &round_keys(tweak)),
    ];
    // The keyslot's secret, extracted from its envelope in the header by the real age.
    let metadata = peer("cryptsetup", &["luksDump", "--dump-json-metadata", image]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    for token in metadata["tokens"].as_object().unwrap().values() {
        let Some(envelope) = token["envelope"]
            .as_str()
            .filter(|_| token["name"] == "plain")
        else {
            continue;
        };
        fs::write(s.path("envelope.b64"), envelope).unwrap();
        let out = Ran::of(
            Command::new("bash")
                .arg("-c")
                .current_dir(s.path(""))
                .arg("base64 -d envelope.b64 | age -d -i keys/plain.key | base64 -w0"),
        )
        .ok();
        fs::remove_file(s.path("envelope.b64")).unwrap();
        let text = out.stdout.trim().to_owned();
        assert!(text.len() >= 32, "an empty keyslot secret");
        canaries.push(Canary {
            name: "the secret of a keyslot",
            forms: vec![text.clone().into_bytes(), unbase64(&text)],
        });
    }
    assert_eq!(
        canaries.len(),
        7,
        "no envelope of the key pair in the header: {metadata}"
    );
    canaries
}

fn unbase64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u32> = text
        .bytes()
        .filter_map(|b| DIGITS.iter().position(|d| *d == b))
        .map(|n| n as u32)
        .collect();
    let whole = |part: &[u32]| part.iter().fold(0u32, |g, d| g << 6 | d) << (6 * (4 - part.len()));
    bits.chunks(4)
        .flat_map(|part| whole(part).to_be_bytes()[1..part.len()].to_vec())
        .collect()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_below(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn sockets_and_keys_are_for_their_user_alone() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    for (path, socket) in [
        ("run/a.control", true),
        ("run/a.nbd", true),
        ("keys/owner.key", false),
    ] {
        let meta = fs::metadata(s.path(path)).unwrap();
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            meta.permissions().mode() & 0o077,
            0,
            "{path} is open to others"
        );
        assert_eq!(meta.file_type().is_socket(), socket);
    }
    s.detach("a");
}

mod needs_root {
    use super::*;

    /// The whole life of a volume with the log at its most verbose; then a core dump of the process
    /// that serves it under load, its command line, environment, log, and every file it left.
    #[test]
    fn no_secret_in_core_dump_log_command_line_environment_or_files() {
        assert_eq!(
            round_keys(&[0; 16])[16..20],
            [0x62, 0x63, 0x63, 0x63],
            "FIPS 197 key schedule"
        );
        let s = Sandbox::new();
        let passphrase = b"canary passphrase 7f3a9c51e8d24b60";
        let pair_passphrase = b"canary pair passphrase 1b2c3d4e5f60718";
        fs::write(s.path("pair-phrase"), pair_passphrase).unwrap();
        fs::write(s.path("phrase"), passphrase).unwrap();
        let log = s.path("log");
        // Through a shell, because one command takes two secrets by two descriptors.
        let shell = |command: &str| {
            let mut bash = Command::new("bash");
            s.environment(&mut bash);
            let line = command.replace(
                "evfs ",
                &format!("{} --log trace ", tests::program().display()),
            );
            Ran::of(bash.arg("-c").arg(format!("{{ {line} ; }} >> log 2>&1"))).ok();
        };
        shell("evfs key generate owner --passphrase-fd 3 3< pair-phrase");
        shell("evfs key generate plain --no-passphrase");
        shell("evfs volume create a.img --size 48M --owner owner --key-bits 256");
        shell(
            "evfs volume key add a.img --user plain --key owner --unlock-passphrase-fd 4 4< pair-phrase",
        );
        shell(
            "evfs volume key add a.img --new-passphrase-fd 3 --key owner --unlock-passphrase-fd 4 3< phrase 4< pair-phrase",
        );
        // The only output of a command that is a secret.
        shell(
            "evfs --json volume key add a.img --recovery --key owner --unlock-passphrase-fd 4 4< pair-phrase > recovery",
        );
        let added = fs::read(s.path("recovery")).unwrap();
        let added: serde_json::Value = serde_json::from_slice(&added).unwrap();
        let recovery_key = added["recovery_key"].as_str().unwrap();
        fs::write(s.path("recovery-key"), recovery_key).unwrap();
        let mut canaries = secrets_of(&s, passphrase, pair_passphrase);
        canaries.push(Canary::new("the recovery key", recovery_key.as_bytes()));

        for unlock in [
            "--passphrase-fd 3 3< phrase",
            "--key owner --passphrase-fd 3 3< pair-phrase",
            "--key plain",
        ] {
            shell(&format!("evfs attach a.img --background {unlock}"));
            let mut client = Client::connect(&s.path("run/a.nbd"), "a").unwrap();
            for number in 0..64 {
                client
                    .write_at(number * BLOCK as u64, &block(number, 1))
                    .unwrap();
                client
                    .read_at(number * BLOCK as u64, &mut vec![0; BLOCK])
                    .unwrap();
            }
            client.flush().unwrap();
            let pid = s.json(&["status"])["volumes"][0]["pid"].to_string();
            for file in ["cmdline", "environ"] {
                let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap();
                canaries
                    .iter()
                    .for_each(|c| c.must_not_be_in(&format!("{file} ({unlock})"), &bytes));
            }
            needs_root("a core dump of a process that refuses to be traced");
            let core = s.path("core");
            peer("gcore", &["-o", core.to_str().unwrap(), &pid]);
            let core = s.path(&format!("core.{pid}"));
            let bytes = fs::read(&core).unwrap();
            assert!(
                contains(&bytes, b"a.img"),
                "that is no dump of this process"
            );
            canaries
                .iter()
                .for_each(|c| c.must_not_be_in(&format!("a core dump ({unlock})"), &bytes));
            fs::remove_file(&core).unwrap();
            client.disconnect().unwrap();
            s.detach("a");
        }
        for verb in [
            "evfs volume info a.img",
            "evfs volume check a.img",
            "evfs volume key test a.img --key-file recovery-key",
            "evfs volume header backup a.img header",
            "evfs key list",
            "evfs format a.img --key plain --force",
            "evfs fsck a.img --key plain",
            "evfs volume key remove a.img plain --yes --key owner --unlock-passphrase-fd 4 4< pair-phrase",
        ] {
            shell(verb);
        }
        let logged = fs::read(&log).unwrap();
        assert!(!logged.is_empty(), "the log at its most verbose is empty");
        canaries
            .iter()
            .for_each(|c| c.must_not_be_in("the log", &logged));
        // Every file left behind, except those that are secrets themselves.
        let own = [
            "phrase",
            "pair-phrase",
            "plain.key",
            "recovery",
            "recovery-key",
        ];
        for file in files_below(&s.path("")) {
            if !own.iter().any(|name| file.ends_with(name)) {
                let bytes = fs::read(&file).unwrap();
                canaries
                    .iter()
                    .for_each(|c| c.must_not_be_in(&file.display().to_string(), &bytes));
            }
        }
    }
}
