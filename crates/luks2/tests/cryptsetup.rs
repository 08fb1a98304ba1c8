//! Interoperability with `cryptsetup`, in both directions.

mod common;

use common::{ARGON2ID, Image, PBKDF2, cryptsetup, expect, formatted, options};
use luks2::{Argon2Cost, ErrorKind, FormatOptions, Hash, Header, Kdf, KdfLimits, Priority, Token};

/// Formats with `cryptsetup` and reads with this crate: same key, same segment.
#[track_caller]
fn reads(options: &[&str], key_len: usize, sector: u32, kdf: &str) {
    let image = Image::by_cryptsetup(options);
    let header = image.header();
    assert_eq!(header.metadata().to_json(), compact(&image), "{options:?}");
    assert_eq!(header.segment().sector_size(), sector, "{options:?}");
    let keyslot = &header.metadata().keyslots()[&0];
    assert_eq!(
        keyslot.protection().expect("usable").kdf.name(),
        kdf,
        "{options:?}"
    );
    let key = image
        .unlock(&header, 0, "pw")
        .expect("the right passphrase");
    assert_eq!(key.len(), key_len, "{options:?}");
    assert_eq!(key[..], image.volume_key(), "{options:?}");
    let wrong = image
        .unlock(&header, 0, "pW")
        .expect_err("the wrong passphrase");
    assert_eq!(wrong.kind(), ErrorKind::WrongKey);
}

/// Returns the JSON text as stored on the disk.
fn compact(image: &Image) -> String {
    let size = image.header().header_size();
    let area = image.read(4096, size - 4096);
    String::from_utf8(area.split(|b| *b == 0).next().expect("text").to_vec()).expect("UTF-8")
}

#[test]
fn backups_that_are_damaged_or_of_another_layout_are_refused() {
    let (image, _) = formatted(&options(), &PBKDF2);
    let header = image.header();
    let good = image.read(0, header.backup_len());
    let kind = |bytes: &[u8]| {
        luks2::Backup::open(bytes, image.size())
            .expect_err("bad")
            .kind()
    };
    for len in [0, 1, 4095, 4096, 0x8000, good.len() - 1] {
        let expected = if len < 6 {
            ErrorKind::NotLuks
        } else {
            ErrorKind::Damaged
        };
        let got = kind(&good[..len]);
        assert!(
            got == expected || got == ErrorKind::Damaged,
            "{len}: {got:?}"
        );
    }
    for at in [0, 5000, 0x4000, 0x4000 + 5000] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(kind(&bad), ErrorKind::Damaged, "{at}");
    }
    let other = FormatOptions {
        header_size: 0x8000,
        data_offset: 8 << 20,
        ..options()
    };
    let (other, _) = formatted(&other, &PBKDF2);
    let backup = luks2::Backup::open(&good, image.size()).expect("good");
    let refused = backup
        .restore(Some(&other.header()))
        .expect_err("another layout");
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

/// Keyslots in a cipher that `cryptsetup` implements in user space, for every cipher of the data.
const AES_KEYSLOT: &[&str] = &["--keyslot-cipher=aes-xts-plain64", "--keyslot-key-size=512"];

/// A 32-byte key and the same key with 32 zero bytes appended have the same PBKDF2 digest.
#[test]
fn a_zero_padded_volume_key_does_not_pass() {
    let (image, key) = formatted(
        &FormatOptions {
            key_bits: 128,
            ..options()
        },
        &PBKDF2,
    );
    let header = image.header();
    let mut padded = secret::SecretBytes::zeroed(64);
    padded[..32].copy_from_slice(&key);
    let limits = KdfLimits::default();
    assert_eq!(header.is_volume_key(&key, &limits), Ok(true));
    assert_eq!(header.is_volume_key(&padded, &limits), Ok(false));
    assert_eq!(header.is_volume_key(&key.truncated(31), &limits), Ok(false));
}

mod needs_peer {
    use super::*;

    #[test]
    fn reads_both_key_lengths_and_both_sector_sizes_of_cryptsetup() {
        for (bits, len) in [("256", 32), ("512", 64)] {
            for (sector, bytes) in [("512", 512), ("4096", 4096)] {
                reads(
                    &["-s", bits, "--sector-size", sector],
                    len,
                    bytes,
                    "argon2id",
                );
            }
        }
    }

    #[test]
    fn reads_every_key_derivation_and_hash_of_cryptsetup() {
        reads(&["--pbkdf", "argon2i"], 64, 4096, "argon2i");
        for hash in ["sha1", "sha256", "sha512"] {
            reads(&["--pbkdf", "pbkdf2", "--hash", hash], 64, 4096, "pbkdf2");
            reads(
                &["--pbkdf", "argon2id", "--hash", hash],
                64,
                4096,
                "argon2id",
            );
        }
        let lanes = ["--pbkdf-parallel=2", "--pbkdf-memory=1024"];
        reads(&lanes, 64, 4096, "argon2id");
    }

    #[test]
    fn reads_every_metadata_size_of_cryptsetup_also_without_the_primary() {
        for size in [
            "16k", "32k", "64k", "128k", "256k", "512k", "1m", "2m", "4m",
        ] {
            reads(&["--luks2-metadata-size", size], 64, 4096, "argon2id");
            let image = Image::by_cryptsetup(&["--luks2-metadata-size", size]);
            let before = image.header();
            image.write(0, &[0; 4096]);
            let opened = image.open().expect("the secondary");
            assert!(opened.needs_repair() && !opened.primary.is_valid());
            assert_eq!(opened.header.metadata(), before.metadata(), "{size}");
        }
    }

    #[test]
    fn reads_label_uuid_flags_priority_tokens_and_unbound_keyslots_of_cryptsetup() {
        let uuid = "0f5e8d3a-6d0b-4a35-9c5c-0a4b8a4f2f11";
        let image =
            Image::by_cryptsetup(&["--label", "données", "--subsystem", "sub", "--uuid", uuid]);
        let token =
            r#"{"type":"other","keyslots":["0"],"n":1.50,"s":"/é\u0001","o":{"z":1,"a":[]}}"#;
        let file = image.beside("token", token.as_bytes());
        let path = image.path.to_str().expect("UTF-8");
        expect(&cryptsetup(
            &["token", "import", "--json-file", &file, path],
            "",
        ));
        expect(&cryptsetup(
            &["config", path, "--key-slot=0", "--priority=prefer"],
            "",
        ));
        let unbound = [
            "luksAddKey",
            "-q",
            "--unbound",
            "-s",
            "128",
            "--key-file=-",
            "-S",
            "7",
        ];
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations=1000"];
        let new = image.beside("new", b"pw7");
        expect(&image.cryptsetup(&[&unbound[..], &cheap, &[&new]].concat(), "pw"));
        let header = image.header();
        assert_eq!(
            (header.label(), header.subsystem()),
            ("données".into(), "sub".into())
        );
        assert_eq!(header.uuid(), uuid);
        let slots = header.metadata().keyslots();
        assert_eq!(slots[&0].priority(), Priority::Prefer);
        assert_eq!(slots[&7].key_size(), 16);
        assert_eq!(header.keyslots_to_try(), [0]);
        let unbound = image.unlock(&header, 7, "pw7").expect_err("opens no data");
        assert_eq!(unbound.kind(), ErrorKind::Unsupported);
        assert_eq!(header.metadata().tokens()[&0].to_json(), token);
    }

    #[test]
    fn cryptsetup_opens_what_we_format() {
        for key_bits in [128, 256] {
            for (sector_size, kdf) in [(512, ARGON2ID), (4096, PBKDF2)] {
                let options = FormatOptions {
                    key_bits,
                    sector_size,
                    ..options()
                };
                let (image, key) = formatted(&options, &kdf);
                expect(&image.cryptsetup(&["luksDump"], ""));
                assert!(image.opens("pw") && !image.opens("pW"));
                assert_eq!(image.volume_key(), key[..], "{options:?}");
                assert_eq!(image.header().metadata().to_json(), compact(&image));
            }
        }
        let hashes = [Hash::Sha1, Hash::Sha256, Hash::Sha512];
        let pbkdf2 = hashes.map(|hash| Kdf::Pbkdf2 {
            hash,
            iterations: 1000,
        });
        let argon2i = Kdf::Argon2i(Argon2Cost {
            time: 4,
            memory_kib: 64,
            cpus: 2,
        });
        for kdf in pbkdf2.into_iter().chain([argon2i]) {
            let (image, key) = formatted(&options(), &kdf);
            assert_eq!(image.volume_key(), key[..], "{kdf:?}");
        }
    }

    #[test]
    fn cryptsetup_opens_every_metadata_size_we_format() {
        for n in 0..9 {
            let options = FormatOptions {
                header_size: 0x4000 << n,
                ..options()
            };
            let (image, key) = formatted(&options, &PBKDF2);
            assert_eq!(image.volume_key(), key[..], "{options:?}");
        }
    }

    /// Expects the same keys in the same order, and the same values except for the random ones.
    #[test]
    fn our_layout_is_that_of_cryptsetup() {
        for (bits, key_bits) in [("256", 128), ("512", 256)] {
            let theirs = Image::by_cryptsetup(&["-s", bits, "--sector-size=512"]);
            let (ours, _) = formatted(
                &FormatOptions {
                    key_bits,
                    sector_size: 512,
                    ..options()
                },
                &ARGON2ID,
            );
            let plain = |image: &Image| {
                let mut dump = image.dump();
                dump["keyslots"]["0"]["kdf"]["salt"] = "".into();
                dump["digests"]["0"]["salt"] = "".into();
                dump["digests"]["0"]["digest"] = "".into();
                serde_json::to_string(&dump).expect("JSON")
            };
            assert_eq!(plain(&ours), plain(&theirs));
        }
    }

    #[test]
    fn keyslots_of_either_program_open_with_the_other() {
        let (image, key) = formatted(&options(), &PBKDF2);
        let new = image.beside("new", b"theirs");
        let cheap = ["--pbkdf-memory=32", "--pbkdf-force-iterations=4"];
        expect(&image.cryptsetup(
            &[&["luksAddKey", "-q", "--key-file=-", &new][..], &cheap].concat(),
            "pw",
        ));
        let mut header = image.header();
        assert!(image.unlock(&header, 1, "theirs").expect("their keyslot") == key);

        let slot = header.add_keyslot(&key, b"ours", &ARGON2ID, Some(9), Priority::Prefer);
        assert_eq!(slot, Ok(9));
        image.carry_out(header.update().expect("a plan"));
        assert!(["pw", "theirs", "ours"].iter().all(|p| image.opens(p)));
        assert_eq!(image.header().keyslots_to_try(), [9, 0, 1]);

        header
            .replace_keyslot(1, &key, b"changed", &PBKDF2)
            .expect("replaced");
        header.remove_keyslot(0).expect("removed");
        image.carry_out(header.update().expect("a plan"));
        assert!(["changed", "ours"].iter().all(|p| image.opens(p)));
        assert!(!["pw", "theirs"].iter().any(|p| image.opens(p)));

        expect(&image.cryptsetup(&["luksKillSlot", "-q", "--key-file=-", "9"], "changed"));
        let header = image.header();
        assert_eq!(header.keyslots_to_try(), [1]);
        assert!(image.unlock(&header, 1, "changed").expect("still ours") == key);
    }

    #[test]
    fn all_32_keyslots_fit_and_open_and_the_33rd_is_refused() {
        let (image, key) = formatted(&options(), &PBKDF2);
        let mut header = image.header();
        for n in 1..32 {
            let pass = format!("pass {n}");
            header
                .add_keyslot(&key, pass.as_bytes(), &PBKDF2, None, Priority::Normal)
                .expect("room");
        }
        let full = header.add_keyslot(&key, b"x", &PBKDF2, None, Priority::Normal);
        assert_eq!(full.expect_err("full").kind(), ErrorKind::NoSpace);
        image.carry_out(header.update().expect("a plan"));
        let header = image.header();
        for n in [1, 17, 31] {
            assert!(
                image
                    .unlock(&header, n, &format!("pass {n}"))
                    .expect("opens")
                    == key
            );
        }
        assert!(image.opens("pass 31"));
    }

    #[test]
    fn tokens_survive_both_programs_byte_for_byte() {
        let (image, key) = formatted(&options(), &PBKDF2);
        let mut header = image.header();
        let text =
            r#"{"type":"evfs","keyslots":["0"],"z":[1,2.50,{"b":null,"a":true}],"u":"/\"\\é"}"#;
        let token = Token::from_json(text).expect("a token");
        assert_eq!(header.add_token(Some(5), &token), Ok(5));
        assert_eq!(
            header.add_token(Some(5), &token).expect_err("taken").kind(),
            ErrorKind::InUse
        );
        header.set_flag("allow-discards", true).expect("room");
        header.set_label("our label").expect("short");
        image.carry_out(header.update().expect("a plan"));

        let path = image.path.to_str().expect("UTF-8");
        let exported = cryptsetup(&["token", "export", "--token-id=5", path], "");
        expect(&exported);
        let value =
            |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
        assert_eq!(value(&exported.stdout), value(text.as_bytes()));

        // cryptsetup rewrites the whole header for any change.
        expect(&cryptsetup(
            &["config", path, "--key-slot=0", "--priority=ignore"],
            "",
        ));
        let mut header = image.header();
        assert_eq!(header.metadata().tokens()[&5].to_json(), text);
        assert!(header.allow_discards());
        assert_eq!(header.label(), "our label");
        assert!(
            header.keyslots_to_try().is_empty(),
            "an ignored keyslot has to be named"
        );
        assert!(image.unlock(&header, 0, "pw").expect("named") == key);

        header.set_priority(0, Priority::Normal).expect("exists");
        header.remove_token(5).expect("exists");
        header.set_flag("allow-discards", false).expect("room");
        image.carry_out(header.update().expect("a plan"));
        assert!(image.opens("pw"));
        assert!(image.dump()["config"].get("flags").is_none());
    }

    /// The canonical bytes must not change when cryptsetup rewrites a header, only when it is changed.
    #[test]
    fn canonical_bytes_follow_the_meaning_and_not_the_spelling() {
        let (image, _) = formatted(&options(), &PBKDF2);
        let mut header = image.header();
        let seal = Token::from_json(r#"{"type":"seal","keyslots":[],"mac":"1"}"#).expect("a token");
        let other =
            Token::from_json(r#"{"type":"o","keyslots":["0"],"x":"\u00e9"}"#).expect("a token");
        header.add_token(None, &seal).expect("room");
        header.add_token(None, &other).expect("room");
        image.carry_out(header.update().expect("a plan"));
        let both = |h: &Header| (h.canonical_core(), h.canonical_keys(&["seal"]));
        let before = both(&header);
        assert_eq!(both(&image.header()), before);

        let path = image.path.to_str().expect("UTF-8");
        expect(&cryptsetup(&["config", path, "--label=new"], ""));
        assert_eq!(
            both(&image.header()),
            before,
            "a label says nothing about data or keys"
        );
        expect(&cryptsetup(
            &["config", path, "--key-slot=0", "--priority=prefer"],
            "",
        ));
        let (core, keys) = both(&image.header());
        assert!(core == before.0 && keys != before.1);
        let unbound = [
            "luksAddKey",
            "-q",
            "--unbound",
            "-s",
            "128",
            "--key-file=-",
            "-S",
            "7",
        ];
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations=1000"];
        let new = image.beside("new", b"pw7");
        expect(&image.cryptsetup(&[&unbound[..], &cheap, &[&new]].concat(), "pw"));
        let (core, with_unbound) = both(&image.header());
        assert!(
            core == before.0 && with_unbound != keys,
            "an unbound keyslot is no matter of the data"
        );
        let keys = with_unbound;

        let mut header = image.header();
        header.set_flag("allow-discards", true).expect("room");
        assert!(header.canonical_core() != before.0);
        header.set_flag("allow-discards", false).expect("room");
        assert!(header.canonical_core() == before.0);
        let changed =
            Token::from_json(r#"{"type":"seal","keyslots":[],"mac":"2"}"#).expect("a token");
        header.replace_token(0, &changed).expect("exists");
        assert!(header.canonical_keys(&["seal"]) == keys);
        assert!(header.canonical_keys(&[]) != keys);
    }

    #[test]
    fn backups_of_either_program_are_restored_by_the_other() {
        let (image, key) = formatted(&options(), &PBKDF2);
        let theirs = format!("{}.theirs", image.path.display());
        let file = format!("--header-backup-file={theirs}");
        expect(&image.cryptsetup(&["luksHeaderBackup", &file], ""));
        let backup = std::fs::read(&theirs).expect("a backup");
        std::fs::remove_file(&theirs).expect("removed");
        let mut header = image.header();
        assert_eq!(
            backup,
            image.read(0, header.backup_len()),
            "the same bytes as ours"
        );

        image.carry_out(header.erase_all().expect("a plan"));
        assert!(!image.opens("pw"));
        let erased = image.header();
        assert!(erased.metadata().keyslots().is_empty());
        let restored = luks2::Backup::open(&backup, image.size()).expect("a backup");
        image.carry_out(restored.restore(Some(&erased)).expect("a plan"));
        assert_eq!(image.volume_key(), key[..]);
        assert!(image.header().seqid() > erased.seqid());

        let mut header = image.header();
        let ours = image.beside("ours", &image.read(0, header.backup_len()));
        image.carry_out(header.erase_all().expect("a plan"));
        let file = format!("--header-backup-file={ours}");
        expect(&image.cryptsetup(&["luksHeaderRestore", "-q", &file], ""));
        assert_eq!(image.volume_key(), key[..]);
        assert!(image.unlock(&image.header(), 0, "pw").expect("restored") == key);
    }

    #[test]
    fn formatting_over_an_older_volume_leaves_no_copy_of_it() {
        for n in [0, 3, 8] {
            let (image, _) = formatted(
                &FormatOptions {
                    header_size: 0x4000 << n,
                    ..options()
                },
                &PBKDF2,
            );
            let uuid = image.header().uuid().to_owned();
            let key = luks2::generate_volume_key(128).expect("a key");
            let new = FormatOptions {
                key_bits: 128,
                header_size: 0x4000 << (8 - n),
                ..options()
            };
            let mut header = Header::format(&new, &key).expect("a header");
            header
                .add_keyslot(&key, b"new", &PBKDF2, None, Priority::Normal)
                .expect("room");
            image.carry_out(header.update().expect("a plan"));
            assert!(image.opens("new") && !image.opens("pw"));
            // Even with both new copies lost, the old volume must not reappear.
            image.write(0, &[0; 4096]);
            image.write(new.header_size, &[0; 4096]);
            let lost = image.open().expect_err("both copies lost");
            assert_eq!(lost.kind(), ErrorKind::Damaged, "{uuid}: {lost}");
        }
    }

    #[test]
    fn an_older_luks_is_named_and_no_header_is_no_damage() {
        let image = Image::new(common::IMAGE_BYTES);
        assert_eq!(image.open().expect_err("empty").kind(), ErrorKind::NotLuks);
        let args = [
            "luksFormat",
            "-q",
            "--type=luks1",
            "--pbkdf-force-iterations=1000",
            "--key-file=-",
        ];
        expect(&image.cryptsetup(&args, "pw"));
        let error = image.open().expect_err("version 1");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cryptsetup convert"), "{error}");
    }

    #[test]
    fn what_cryptsetup_can_do_and_we_cannot_is_refused_by_name() {
        // Ciphers that need device-mapper even to format are in the table of hostile headers.
        let cases: [(&[&str], &str); 3] = [
            (
                &["--cipher=aes-cbc-essiv:sha256", "-s", "256"],
                "aes-cbc-essiv:sha256",
            ),
            (&["--sector-size=1024"], "sector size 1024"),
            (&["--sector-size=2048"], "sector size 2048"),
        ];
        for (args, why) in cases {
            let error = Image::by_cryptsetup(&[AES_KEYSLOT, args].concat())
                .open()
                .expect_err(why);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_volume_in_reencryption_is_refused_by_name() {
        let image = Image::by_cryptsetup(&["--sector-size=512"]);
        let args = [
            "reencrypt",
            "-q",
            "--init-only",
            "--force-offline-reencrypt",
            "--key-file=-",
        ];
        expect(
            &image.cryptsetup(
                &[
                    &args[..],
                    &["--pbkdf-force-iterations=4", "--pbkdf-memory=32"],
                ]
                .concat(),
                "pw",
            ),
        );
        let error = image.open().expect_err("in reencryption");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("--resume-only"), "{error}");
    }

    #[test]
    fn a_concurrent_update_by_cryptsetup_is_noticed() {
        let (image, _) = formatted(&options(), &PBKDF2);
        let header = image.header();
        header
            .check_unchanged(&image.read(0, 512))
            .expect("unchanged");
        let path = image.path.to_str().expect("UTF-8");
        expect(&cryptsetup(&["config", path, "--label=new"], ""));
        let changed = header
            .check_unchanged(&image.read(0, 512))
            .expect_err("changed");
        assert_eq!(changed.kind(), ErrorKind::Changed);
    }

    #[test]
    fn the_last_keyslot_is_removed_only_by_force() {
        let (image, key) = formatted(&options(), &PBKDF2);
        let mut header = image.header();
        let refused = header.remove_keyslot(0).expect_err("the last one");
        assert_eq!(refused.kind(), ErrorKind::LastKeyslot);
        let area = header.metadata().keyslots()[&0].area();
        let material = image.read(area.offset, area.len);
        header.force_remove_keyslot(0).expect("by force");
        image.carry_out(header.update().expect("a plan"));
        assert!(!image.opens("pw"));
        let left = image.read(area.offset, area.len);
        let same = left
            .chunks(16)
            .zip(material.chunks(16))
            .filter(|(a, b)| a == b)
            .count();
        assert_eq!(same, 0, "the key material is overwritten");
        // The right key can still add a keyslot.
        header
            .add_keyslot(&key, b"back", &PBKDF2, None, Priority::Normal)
            .expect("the right key");
        image.carry_out(header.update().expect("a plan"));
        assert!(image.opens("back"));
        let wrong = luks2::generate_volume_key(256).expect("a key");
        let refused = header.add_keyslot(&wrong, b"x", &PBKDF2, None, Priority::Normal);
        assert_eq!(
            refused.expect_err("another key").kind(),
            ErrorKind::WrongKey
        );
    }
}
