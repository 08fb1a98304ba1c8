//! Hostile headers: every kind of them is refused with the right kind of error, and at least as
//! strictly as by `cryptsetup`.
//!
//! One relation holds in both tables: `cryptsetup` does not read headers that this crate calls
//! [`ErrorKind::Damaged`] either. It matters because only damage makes a reader fall back to the
//! other copy.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use cases::{CASES, DAMAGED, REFUSED, UNSUPPORTED};
use common::{IMAGE_BYTES, Image, PBKDF2, Rng, formatted, options};
use luks2::{ErrorKind, Header};
use serde_json::{Value, json};
use std::sync::OnceLock;

/// Returns the image of a sound header with keyslot 0 (passphrase `pw`) and a token, the bytes of
/// its two copies, and its JSON.
fn base() -> &'static (Image, Vec<u8>, Value) {
    static BASE: OnceLock<(Image, Vec<u8>, Value)> = OnceLock::new();
    BASE.get_or_init(|| {
        let (image, _) = formatted(&options(), &PBKDF2);
        let mut header = image.header();
        let token = luks2::Token::from_json(r#"{"type":"t","keyslots":["0"]}"#).expect("a token");
        header.add_token(None, &token).expect("room");
        image.carry_out(header.update().expect("a plan"));
        let copies = image.read(0, 2 * 0x4000);
        let json = serde_json::from_str(&image.header().metadata().to_json()).expect("JSON");
        (image, copies, json)
    })
}

/// Returns both copies with `text` as their JSON and correct checksums.
fn with_text(text: &[u8]) -> Vec<u8> {
    let mut copies = base().1.clone();
    for copy in copies.chunks_mut(0x4000) {
        copy[4096..].fill(0);
        copy[4096..4096 + text.len()].copy_from_slice(text);
        luks2::fix_checksum(copy);
    }
    copies
}

/// Opens the header with this crate, then its keyslot 0 with passphrase `pw`.
fn ours(copies: &[u8]) -> Result<(), luks2::Error> {
    let header = Header::open(copies, IMAGE_BYTES)?.header;
    base().0.unlock(&header, 0, "pw").map(drop)
}

/// Checks whether `cryptsetup` reads the header.
fn theirs(copies: &[u8]) -> bool {
    let image = Image::new(IMAGE_BYTES);
    image.write(0, copies);
    image.cryptsetup(&["luksDump"], "").status.success()
}

/// Returns the cases: a name, the text of the JSON area, and the expected error.
fn texts() -> Vec<(&'static str, Vec<u8>, ErrorKind)> {
    let text = base().2.to_string();
    let replaced = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1).into_bytes()
    };
    let deep = format!(
        "{{\"deep\":{}1{},{}",
        "[".repeat(60),
        "]".repeat(60),
        &text[1..]
    );
    let many = format!("{{\"many\":[{}0],{}", "0,".repeat(5000), &text[1..]);
    // Unknown fields and white space are not errors.
    for fine in [many, format!("{text} \n"), text.replace(':', " :\t")] {
        let copies = with_text(fine.as_bytes());
        ours(&copies).expect("nothing wrong with it");
        assert!(theirs(&copies));
    }
    vec![
        ("nothing", vec![], DAMAGED),
        ("an array", b"[]".to_vec(), DAMAGED),
        ("a space first", [b" ", text.as_bytes()].concat(), DAMAGED),
        (
            "a letter after it",
            [text.as_bytes(), b"x"].concat(),
            DAMAGED,
        ),
        (
            "a letter after a zero",
            [text.as_bytes(), b"\0x"].concat(),
            DAMAGED,
        ),
        (
            "cut in half",
            text.as_bytes()[..text.len() / 2].to_vec(),
            DAMAGED,
        ),
        (
            "no zero at the end",
            format!("{text:<12288}").replace(' ', "x").into_bytes(),
            DAMAGED,
        ),
        (
            "a comma too many",
            replaced(r#""tokens":"#, r#","tokens":"#),
            DAMAGED,
        ),
        (
            "a key without quotes",
            replaced(r#""tokens":"#, r#"tokens:"#),
            DAMAGED,
        ),
        (
            "a segment twice",
            replaced(r#""segments":{"#, r#""segments":{"0":{},"#),
            REFUSED,
        ),
        (
            "a null cipher before the real one",
            replaced(
                r#""encryption":"aes"#,
                r#""encryption":"cipher_null-ecb","encryption":"aes"#,
            ),
            REFUSED,
        ),
        (
            "a section twice",
            replaced(r#""tokens":"#, r#""tokens":{},"tokens":"#),
            REFUSED,
        ),
        (
            "the same key spelt differently",
            replaced(r#""tokens":"#, r#""\u0074okens":{},"tokens":"#),
            REFUSED,
        ),
        (
            "U+0000 in a cipher",
            replaced("aes-xts-plain64", r"aes-xts-plain64\u0000"),
            REFUSED,
        ),
        (
            "no UTF-8",
            [&text.as_bytes()[..text.len() - 1], b",\"\xff\":1}"].concat(),
            REFUSED,
        ),
        ("nested 60 deep", deep.into_bytes(), REFUSED),
    ]
}

/// A name, the change made to each of the two copies before its checksum is fixed, and the expected
/// error.
type BinaryCase = (&'static str, fn(&mut [u8]), ErrorKind);

const BINARY_CASES: &[BinaryCase] = &[
    ("version 3", |c| c[7] = 3, DAMAGED),
    ("version 0", |c| c[7] = 0, DAMAGED),
    ("size 0", |c| c[8..16].fill(0), DAMAGED),
    ("size one more", |c| c[15] = 1, DAMAGED),
    ("size 12 KiB", |c| c[14] = 0x30, DAMAGED),
    ("size 24 KiB", |c| c[14] = 0x60, DAMAGED),
    (
        "size 8 MiB",
        |c| c[8..16].copy_from_slice(&(8u64 << 20).to_be_bytes()),
        DAMAGED,
    ),
    ("size of 2^64-1", |c| c[8..16].fill(0xff), DAMAGED),
    ("another offset", |c| c[262] ^= 0x80, DAMAGED),
    // Their remains distinguish them from a device that never had a header.
    ("both magics swapped", |c| c[..4].reverse(), DAMAGED),
    ("no magic", |c| c[0] = 0, DAMAGED),
    (
        "unknown checksum algorithm",
        |c| c[72..78].copy_from_slice(b"crc32c"),
        UNSUPPORTED,
    ),
    (
        "UUID with an escape sequence",
        |c| c[168..172].copy_from_slice(b"\x1b[2J"),
        REFUSED,
    ),
];

#[test]
fn every_malformed_binary_header_is_refused() {
    for (name, change, kind) in BINARY_CASES {
        let mut copies = base().1.clone();
        for copy in copies.chunks_mut(0x4000) {
            change(copy);
            luks2::fix_checksum(copy);
        }
        // With an impossible size, the reader searches every possible offset for the secondary.
        copies.resize(luks2::PREFIX_BYTES_MAX as usize, 0);
        let error = ours(&copies).expect_err(name);
        assert_eq!(error.kind(), *kind, "{name}: {error}");
    }
}

/// Returns a value that a mutation may put anywhere.
fn spare(rng: &mut Rng) -> Value {
    let spares = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(4096),
        json!(1.5),
        json!(4294967296u64),
        json!(""),
        json!("0"),
        json!("1"),
        json!("4096"),
        json!("dynamic"),
        json!("16777216"),
        json!("18446744073709551615"),
        json!("aes-xts-plain64"),
        json!("sha256"),
        json!([]),
        json!(["0"]),
        json!(["1"]),
        json!({}),
        json!({"0": {}}),
    ];
    spares[rng.below(spares.len())].clone()
}

/// Changes one place at random: removes it, replaces it, or duplicates it.
fn mutate(value: &mut Value, rng: &mut Rng) {
    let deeper = rng.below(4) > 0;
    match value {
        Value::Object(object) if !object.is_empty() => {
            let key = object
                .keys()
                .nth(rng.below(object.len()))
                .expect("a key")
                .clone();
            let inner = object.get_mut(&key).expect("a value");
            if deeper && (inner.is_object() || inner.is_array()) {
                return mutate(inner, rng);
            }
            match rng.below(4) {
                0 => drop(object.remove(&key)),
                1 => drop(object.insert(rng.below(40).to_string(), object[&key].clone())),
                _ => object[&key] = spare(rng),
            }
        }
        Value::Array(values) if !values.is_empty() => {
            let at = rng.below(values.len());
            match rng.below(3) {
                0 => drop(values.remove(at)),
                1 => values.push(spare(rng)),
                _ => values[at] = spare(rng),
            }
        }
        other => *other = spare(rng),
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn every_family_of_hostile_metadata_is_refused_at_least_as_by_cryptsetup() {
        let (_, copies, sound) = base();
        ours(copies).expect("the base is sound");
        assert!(theirs(copies), "the base is sound");
        let mut stricter = 0;
        for (name, change, kind) in CASES {
            let mut value = sound.clone();
            change(&mut value);
            assert_ne!(value, *sound, "{name}: nothing was changed");
            let copies = with_text(value.to_string().as_bytes());
            let error = ours(&copies).expect_err(name);
            assert_eq!(error.kind(), *kind, "{name}: {error}");
            let theirs = theirs(&copies);
            assert!(
                !theirs || *kind != DAMAGED,
                "{name}: cryptsetup does not call it damaged"
            );
            stricter += usize::from(theirs);
        }
        let all = CASES.len();
        println!("{all}/{all} families refused, {stricter} of which cryptsetup reads");
        assert!(all >= 85);
    }

    #[test]
    fn every_malformed_json_text_is_refused_at_least_as_by_cryptsetup() {
        for (name, text, kind) in texts() {
            let copies = with_text(&text);
            let error = ours(&copies).expect_err(name);
            assert_eq!(error.kind(), kind, "{name}: {error}");
            let theirs = theirs(&copies);
            assert!(
                !theirs || kind != DAMAGED,
                "{name}: cryptsetup does not call it damaged"
            );
        }
    }

    /// After random changes (`EVFS_ROUNDS` of them, 300 if not set), `cryptsetup` must read every
    /// header that this crate opens, and refuse every header that this crate calls damaged.
    #[test]
    fn random_metadata_is_judged_at_least_as_strictly_as_by_cryptsetup() {
        let mut rng = Rng::seeded("random_metadata");
        let (_, _, sound) = base();
        let (mut opened, mut damaged) = (0, 0);
        let rounds = std::env::var("EVFS_ROUNDS")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(300);
        for round in 0..rounds {
            let mut value = sound.clone();
            for _ in 0..1 + rng.below(3) {
                mutate(&mut value, &mut rng);
            }
            let copies = with_text(value.to_string().as_bytes());
            let verdict = Header::open(&copies, IMAGE_BYTES);
            let theirs = theirs(&copies);
            match verdict {
                Ok(_) => {
                    opened += 1;
                    assert!(theirs, "round {round}: we are laxer\n{value}");
                }
                Err(e) if e.kind() == DAMAGED => {
                    damaged += 1;
                    assert!(
                        !theirs,
                        "round {round}: not damaged for cryptsetup: {e}\n{value}"
                    );
                }
                Err(_) => (),
            }
        }
        println!("{rounds}/{rounds} verdicts agree: {opened} opened, {damaged} damaged");
        assert!(opened > 0 && damaged > 0);
    }
}
