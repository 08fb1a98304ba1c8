//! Damage: reading a header of which one copy is lost, torn or outdated, and the state after a
//! crash at any point of an update.

mod common;

use common::{IMAGE_BYTES, Image, PBKDF2, Rng, formatted, options};
use luks2::{CopyState, ErrorKind, Header, Kdf, KdfLimits, Opened, Plan, Priority, Step, Token};
use secret::SecretBytes;

/// Length in bytes of both copies of a header of the default size.
const COPIES: usize = 2 * 0x4000;

/// PBKDF2 with one iteration: the cheapest derivation, for tests that open thousands of keyslots.
const CHEAP: Kdf = Kdf::Pbkdf2 {
    hash: luks2::Hash::Sha256,
    iterations: 1,
};

fn open(image: &[u8]) -> luks2::Result<Opened> {
    Header::open(image, IMAGE_BYTES)
}

/// Creates an image with one keyslot; returns it with its first bytes before and after an update.
fn two_states() -> (Image, Vec<u8>, Vec<u8>) {
    let (image, _) = formatted(&options(), &PBKDF2);
    let old = image.read(0, COPIES as u64);
    let mut header = image.header();
    header.set_flag("allow-discards", true).expect("room");
    image.carry_out(header.update().expect("a plan"));
    let new = image.read(0, COPIES as u64);
    (image, old, new)
}

#[test]
fn copies_of_one_sequence_id_that_differ_are_noticed() {
    let (_, _, new) = two_states();
    let mut bytes = new.clone();
    let at = 0x4000 + 24; // label of the secondary
    bytes[at] = b'X';
    luks2::fix_checksum(&mut bytes[0x4000..]);
    let opened = open(&bytes).expect("the primary");
    assert!(matches!(opened.secondary, CopyState::Differs { .. }));
    assert_eq!(opened.header.label(), "");
}

/// A header that a newer program wrote must not be "repaired" from an older copy.
#[test]
fn a_newer_copy_that_is_whole_but_refused_is_not_passed_over() {
    let (_, old, new) = two_states();
    let text = String::from_utf8_lossy(&new[4096..0x4000]).replace(
        r#""flags":["allow-discards"]"#,
        r#""requirements":{"mandatory":["x"]}"#,
    );
    let mut primary = new[..4096].to_vec();
    primary.extend(text.as_bytes());
    primary.resize(0x4000, 0);
    luks2::fix_checksum(&mut primary);
    let mixed = [&primary[..], &old[0x4000..]].concat();
    assert_eq!(
        open(&mixed).expect_err("newer").kind(),
        ErrorKind::Unsupported
    );
    // If the refused copy is the older one, it is ignored.
    let mut secondary = new[0x4000..].to_vec();
    secondary[16..24].copy_from_slice(&u64::MAX.to_be_bytes());
    luks2::fix_checksum(&mut secondary);
    let opened = open(&[&primary[..], &secondary].concat()).expect("the newer secondary");
    assert!(matches!(opened.primary, CopyState::Stale { .. }));
    let mut header = opened.header;
    let refused = header.update().expect_err("no sequence id is left");
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

/// The bytes of the checksum field that SHA-256 leaves unused: the only ones that no checksum
/// covers, and that no reader uses.
const UNUSED: std::ops::Range<usize> = 480..512;

/// A flip in either copy must leave the header readable from the other, with the same metadata.
#[test]
fn every_single_bit_flip_over_both_copies_opens_from_the_other_copy() {
    let (_, _, image) = two_states();
    let good = open(&image).expect("good").header;
    let (json, uuid) = (good.metadata().to_json(), good.uuid().to_owned());
    let half = |bytes: std::ops::Range<usize>| {
        let mut flipped = image.clone();
        let mut count = 0;
        for at in bytes {
            for bit in 0..8 {
                flipped[at] ^= 1 << bit;
                let opened = open(&flipped).unwrap_or_else(|e| panic!("byte {at} bit {bit}: {e}"));
                let unused = UNUSED.contains(&(at % 0x4000));
                let states = (opened.primary.is_valid(), opened.secondary.is_valid());
                let expected = (at >= 0x4000 || unused, at < 0x4000 || unused);
                assert_eq!(states, expected, "byte {at} bit {bit}");
                let header = opened.header;
                let same = header.metadata() == good.metadata() && header.uuid() == uuid;
                assert!(
                    same && header.seqid() == good.seqid(),
                    "byte {at} bit {bit}"
                );
                flipped[at] ^= 1 << bit;
                count += 1;
            }
        }
        assert_eq!(flipped, image);
        assert_eq!(
            open(&flipped).expect("good").header.metadata().to_json(),
            json
        );
        count
    };
    let count = std::thread::scope(|scope| {
        let first = scope.spawn(|| half(0..0x4000));
        half(0x4000..COPIES) + first.join().expect("no panic")
    });
    assert_eq!(count, 262_144);
    println!("262144/262144 single-bit flips open from the other copy");
}

#[test]
fn flips_in_both_copies_are_damage_and_nothing_else() {
    let mut rng = Rng::seeded("flips_in_both_copies");
    let (_, _, image) = two_states();
    for _ in 0..5000 {
        let mut bytes = image.clone();
        for copy in [0, 0x4000] {
            for _ in 0..1 + rng.below(20) {
                let at = rng.below(0x4000);
                if !UNUSED.contains(&at) {
                    bytes[copy + at] ^= 1 << rng.below(8);
                }
            }
        }
        let flipped = |copy| bytes[copy..copy + 0x4000] != image[copy..copy + 0x4000];
        match open(&bytes) {
            Ok(opened) => assert!(!(flipped(0) && flipped(0x4000)), "{opened:?}"),
            // A flip in the size makes the reader search for the secondary beyond the prefix.
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Damaged | ErrorKind::NeedMore),
                "{e}"
            ),
        }
    }
}

#[test]
fn every_truncation_is_an_error_and_no_panic() {
    let (image, _) = formatted(&options(), &PBKDF2);
    let bytes = image.read(0, IMAGE_BYTES);
    let all = (0..COPIES + 8192).chain((COPIES..16 << 20).step_by(65_536));
    for len in all {
        let cut = Header::open(&bytes[..len], len as u64);
        let kind = cut.expect_err("the data is missing").kind();
        let expected = match len {
            0..0x4000 => &[ErrorKind::NotLuks, ErrorKind::Damaged][..],
            _ => &[ErrorKind::DeviceTooSmall],
        };
        assert!(expected.contains(&kind), "{len}: {kind:?}");
    }
    // A cut inside the data makes it shorter; a cut inside the header was tested above.
    let shorter = Header::open(&bytes, (16 << 20) + 4096 + 4095).expect("one sector");
    assert_eq!(
        shorter.header.segment().data_len((16 << 20) + 8191),
        Ok(4096)
    );
    // A prefix that is too short is distinguished from damage.
    for len in 0..COPIES {
        match Header::open(&bytes[..len], IMAGE_BYTES) {
            Err(e) => assert_eq!(e.kind(), ErrorKind::NeedMore, "{len}"),
            Ok(_) => panic!("{len} bytes cannot be enough"),
        }
    }
    assert_eq!(
        Header::bytes_wanted(&bytes[..4096], IMAGE_BYTES),
        COPIES as u64
    );
    assert_eq!(
        Header::bytes_wanted(&[0; 4096], IMAGE_BYTES),
        luks2::PREFIX_BYTES_MAX
    );
    assert_eq!(Header::bytes_wanted(&[0; 4096], 5000), 5000);
}

/// Calls `check` with states that a crash may leave on the disk: all flushed writes, and any of the
/// unflushed ones, in full, in part (at 512 bytes, from the front or from the back), or not at all.
fn crashes(plan: &Plan, before: &[u8], rng: &mut Rng, mut check: impl FnMut(&[u8], &str)) {
    let mut image = before.to_vec();
    for epoch in plan.steps().split(|step| *step == Step::Flush) {
        check(&image, "at a flush");
        let flushed = image.clone();
        for round in 0..16 {
            image.copy_from_slice(&flushed);
            for step in epoch {
                let Step::Write { offset, bytes } = step else {
                    continue;
                };
                let sectors = bytes.len() / 512;
                let cut = 512 * rng.below(sectors + 1);
                let part = match (round, rng.below(4)) {
                    (0, _) | (_, 0) => 0..bytes.len(),
                    (_, 1) => 0..cut,
                    (_, 2) => cut..bytes.len(),
                    _ => 0..0,
                };
                let at = *offset as usize + part.start;
                image[at..at + part.len()].copy_from_slice(&bytes[part]);
            }
            check(&image, "between flushes");
        }
        image.copy_from_slice(&flushed);
        for step in epoch {
            let Step::Write { offset, bytes } = step else {
                continue;
            };
            image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    check(&image, "at the end");
}

fn key_opens(image: &[u8], header: &Header, passphrase: &[u8]) -> Option<SecretBytes> {
    header.keyslots_to_try().into_iter().find_map(|slot| {
        let area = header.keyslot_area(slot).expect("usable");
        let bytes = &image[area.offset as usize..area.end() as usize];
        header
            .open_keyslot(slot, passphrase, bytes, &KdfLimits::default())
            .ok()
    })
}

/// Tests every operation on keys, from every state that the copies can have before it.
#[test]
fn at_every_write_boundary_the_old_or_the_new_key_opens() {
    type Change = fn(&mut Header, &SecretBytes);
    /// A name, the change, and passphrases of which at least one opens at every moment.
    const CHANGES: &[(&str, Change, &[&[u8]])] = &[
        (
            "add",
            |h, k| drop(h.add_keyslot(k, b"new", &CHEAP, None, Priority::Normal)),
            &[b"pw"],
        ),
        (
            "replace",
            |h, k| h.replace_keyslot(0, k, b"new", &CHEAP).expect("there"),
            &[b"pw", b"new"],
        ),
        (
            "remove and add in one",
            |h, k| {
                h.force_remove_keyslot(0).expect("there");
                h.add_keyslot(k, b"new", &CHEAP, Some(0), Priority::Normal)
                    .expect("room");
            },
            &[b"pw", b"new"],
        ),
        (
            "add and remove in one",
            |h, k| {
                h.add_keyslot(k, b"new", &CHEAP, None, Priority::Normal)
                    .expect("room");
                h.remove_keyslot(0).expect("there");
            },
            &[b"pw", b"new"],
        ),
        (
            "remove the other",
            |h, _| h.remove_keyslot(1).expect("there"),
            &[b"pw"],
        ),
        (
            "token, label, flag",
            |h, _| {
                let token = Token::from_json(r#"{"type":"x","keyslots":["0"]}"#).expect("token");
                h.add_token(None, &token).expect("room");
                h.set_label("label").expect("short");
                h.set_flag("allow-discards", true).expect("room");
            },
            &[b"pw"],
        ),
    ];
    let mut rng = Rng::seeded("at_every_write_boundary");
    let (image, key) = formatted(&options(), &CHEAP);
    let stale = image.read(0, COPIES as u64);
    let mut header = image.header();
    header
        .add_keyslot(&key, b"other", &CHEAP, None, Priority::Normal)
        .expect("room");
    image.carry_out(header.update().expect("a plan"));
    // The header area without the unused rest of the keyslots area, to keep the copies small.
    let good = image.read(0, 1 << 20);
    let mut torn = [good.clone(), good.clone(), good.clone(), good.clone()];
    torn[1][4096..4608].fill(0);
    torn[2][0x4000..0x4200].fill(0);
    torn[3][0x4000..COPIES].copy_from_slice(&stale[0x4000..]);
    let mut states = 0;
    for (before, state) in torn
        .iter()
        .zip(["good", "primary torn", "secondary torn", "stale"])
    {
        for (name, change, passphrases) in CHANGES {
            let mut header = open(before).expect("one copy").header;
            change(&mut header, &key);
            let plan = header.update().expect("a plan");
            crashes(&plan, before, &mut rng, |image, when| {
                let opened = open(image).unwrap_or_else(|e| panic!("{state}, {name}, {when}: {e}"));
                let open = passphrases
                    .iter()
                    .find_map(|p| key_opens(image, &opened.header, p));
                assert!(
                    open.is_some_and(|k| k == key),
                    "{state}, {name}, {when}: no key opens"
                );
                states += 1;
            });
            let mut after = before.clone();
            plan.apply(&mut after).expect("long enough");
            let after = open(&after).expect("written");
            assert!(!after.needs_repair(), "{state}, {name}");
            assert_eq!(
                after.header.metadata(),
                header.metadata(),
                "{state}, {name}"
            );
        }
    }
    println!("{states}/{states} states of the disk open");
    assert!(states > 1000, "the plans were cut at their steps");
}

/// The area of a removed keyslot is not reused before the header that names it is replaced.
#[test]
fn no_area_that_the_disk_names_is_written_before_the_header_is() {
    let (image, key) = formatted(&options(), &CHEAP);
    let mut header = image.header();
    let old = header.metadata().keyslots()[&0].area();
    header.force_remove_keyslot(0).expect("there");
    header
        .add_keyslot(&key, b"new", &CHEAP, Some(0), Priority::Normal)
        .expect("room");
    let new = header.metadata().keyslots()[&0].area();
    assert!(new.offset >= old.end());
    let plan = header.update().expect("a plan");
    let place = |step: &Step| match step {
        Step::Write { offset, .. } => Some(*offset),
        Step::Flush => None,
    };
    let order: Vec<_> = plan.steps().iter().map(place).collect();
    let wipe = order[6];
    assert_eq!(
        order[..6],
        [Some(new.offset), None, Some(0), None, Some(0x4000), None]
    );
    assert_eq!((wipe, order[7]), (Some(old.offset), None));
    // Once the header is written, the old area is free again.
    header
        .replace_keyslot(0, &key, b"third", &CHEAP)
        .expect("there");
    assert_eq!(header.metadata().keyslots()[&0].area(), old);
}

#[test]
fn erasing_destroys_the_key_material_with_the_first_flush() {
    let (image, _) = formatted(&options(), &CHEAP);
    let mut header = image.header();
    let plan = header.erase_all().expect("a plan");
    let mut bytes = image.read(0, header.backup_len());
    for step in plan.steps().iter().take_while(|step| **step != Step::Flush) {
        let Step::Write { offset, bytes: new } = step else {
            continue;
        };
        bytes[*offset as usize..][..new.len()].copy_from_slice(new);
    }
    let opened = open(&bytes).expect("the header is still there");
    assert!(key_opens(&bytes, &opened.header, b"pw").is_none());
    plan.apply(&mut bytes).expect("long enough");
    assert!(
        open(&bytes)
            .expect("a header")
            .header
            .metadata()
            .keyslots()
            .is_empty()
    );
}

#[test]
fn wiping_the_unused_leaves_what_is_used() {
    let (image, key) = formatted(&options(), &CHEAP);
    let mut header = image.header();
    header
        .add_keyslot(&key, b"second", &CHEAP, None, Priority::Normal)
        .expect("room");
    header
        .add_keyslot(&key, b"third", &CHEAP, None, Priority::Normal)
        .expect("room");
    image.carry_out(header.update().expect("a plan"));
    let gone = header.metadata().keyslots()[&1].area();
    let material = image.read(gone.offset, gone.len);
    header.remove_keyslot(1).expect("there");
    // As after a crash between writing the header and wiping the area.
    let plan = header.update().expect("a plan");
    for step in &plan.steps()[..plan.steps().len() - 2] {
        if let Step::Write { offset, bytes } = step {
            image.write(*offset, bytes);
        }
    }
    assert_eq!(image.read(gone.offset, gone.len), material);
    let header = image.header();
    image.carry_out(header.wipe_unused().expect("a plan"));
    assert_ne!(image.read(gone.offset, gone.len), material);
    for (slot, pass) in [(0, "pw"), (2, "third")] {
        assert!(image.unlock(&header, slot, pass).expect("untouched") == key);
    }
}

mod needs_peer {
    use super::*;

    /// Expects the same four results as `cryptsetup` on the same images, and a repair by each program.
    #[test]
    fn a_lost_torn_or_older_copy_heals_as_with_cryptsetup_and_two_torn_ones_do_not() {
        let (image, old, new) = two_states();
        let torn = |at: usize| {
            let mut bytes = new.clone();
            bytes[at..at + 512].fill(0x5a);
            bytes
        };
        let join = |a: &[u8], b: &[u8]| [&a[..0x4000], &b[0x4000..]].concat();
        let zeroed = join(&[0; 0x4000], &new);
        let cases = [
            ("primary zeroed", zeroed, true),
            ("primary JSON torn", torn(4096), true),
            ("primary binary header torn", torn(0), true),
            ("secondary JSON torn", torn(0x4000 + 4096), true),
            ("secondary binary header torn", torn(0x4000), true),
            ("primary older", join(&old, &new), true),
            ("secondary older", join(&new, &old), true),
            ("both torn", join(&torn(4096), &torn(0x4000 + 4096)), false),
        ];
        for (name, bytes, heals) in cases {
            image.write(0, &bytes);
            let ours = image.open();
            if !heals {
                assert_eq!(ours.expect_err(name).kind(), ErrorKind::Damaged);
                assert!(!image.opens("pw"), "{name}");
                continue;
            }
            let opened = ours.expect(name);
            assert!(
                opened.needs_repair() && opened.header.allow_discards(),
                "{name}"
            );
            let mut header = opened.header;
            let seqid = header.seqid();
            image.carry_out(header.repair().expect("a plan"));
            assert!(
                header.repair().expect("a plan").is_empty(),
                "{name}: repaired once"
            );
            let repaired = image.header();
            assert_eq!(
                (repaired.seqid(), repaired.allow_discards()),
                (seqid, true),
                "{name}"
            );
            let ours = image.read(0, COPIES as u64);
            assert!(image.opens("pw"), "{name}");
            assert_eq!(
                image.read(0, COPIES as u64),
                ours,
                "{name}: cryptsetup repairs no more"
            );
            // And the other way round: after cryptsetup repairs the copy, nothing is left to repair.
            image.write(0, &bytes);
            assert!(image.opens("pw"), "{name}");
            assert_eq!(image.header().seqid(), seqid, "{name}");
        }
    }
}
