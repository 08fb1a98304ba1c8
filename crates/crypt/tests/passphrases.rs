//! Passphrases and recovery keys: owners, labels, changes of a secret and their write boundaries.

use block::BlockDevice;
use block_testing::{Mem, PowerCut};
use crypt::recovery::RecoveryKey;
use crypt::{Error, Format, Identified, NewKey, NewSecret, Role, Seal, Unlocked, Volume};
use keyring::Keyring;
use luks2::{Argon2Cost, Kdf, KdfLimits};
use secret::SecretBytes;
use std::sync::Arc;

const SIZE: u64 = 18 << 20;

fn argon2(memory_kib: u32) -> Kdf {
    Kdf::Argon2id(Argon2Cost {
        time: 4,
        memory_kib,
        cpus: 1,
    })
}

fn cheap() -> Kdf {
    argon2(32)
}

fn secret(text: &str) -> SecretBytes {
    SecretBytes::from_slice(text.as_bytes())
}

/// Creates a volume whose owner is the passphrase `first`, with the label `laptop`.
fn create(device: Arc<dyn BlockDevice>) -> Volume {
    let format = Format {
        key_bits: 128,
        sector_size: 4096,
        label: "test".into(),
    };
    let first = secret("first");
    let owner = NewSecret::new(&first, cheap()).labeled(Some("laptop"));
    let made = Volume::create(device, &format, NewKey::Secret(owner), &[]);
    made.unwrap().0
}

fn disk() -> Arc<Mem> {
    Arc::new(Mem::new(SIZE, 512))
}

fn opened(volume: &Volume, text: &str) -> Unlocked {
    volume.unlock_secret(&secret(text)).unwrap()
}

fn opens(volume: &Volume, text: &str) -> bool {
    let opened = volume.unlock_secret(&secret(text));
    opened.is_ok_and(|unlocked| unlocked.seal == Seal::Intact)
}

/// Returns the message of the wrong key that `text` is.
fn wrong(volume: &Volume, text: &str) -> String {
    match volume.unlock_secret(&secret(text)) {
        Err(Error::WrongKey(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens the volume"),
    }
}

#[test]
fn a_passphrase_alone_owns_a_volume() {
    let disk = disk();
    create(disk.clone());
    let volume = Volume::open(disk).unwrap();
    let owner = opened(&volume, "first");
    assert_eq!((owner.role, owner.seal), (Role::Owner, Seal::Intact));
    volume.device(&owner, crypt::Options::default()).unwrap();
    let keys = volume.keys();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].label.as_deref(), Some("laptop"));
    assert_eq!(volume.find_key("laptop").unwrap(), 0);
    wrong(&volume, "second");
}

#[test]
fn an_empty_secret_and_a_bad_label_are_refused() {
    let disk = disk();
    let mut volume = create(disk.clone());
    let owner = opened(&volume, "first");
    let long = "x".repeat(65);
    for (text, label) in [
        ("", None),
        ("second", Some("")),
        ("second", Some("a\nb")),
        ("second", Some(long.as_str())),
    ] {
        let secret = secret(text);
        let new = NewSecret::new(&secret, cheap()).labeled(label);
        let refused = |error| assert!(matches!(error, Error::Refused(_)), "{text} {label:?}");
        refused(volume.add_secret(&owner, None, new).unwrap_err());
        refused(volume.change_secret(&owner, 0, new).unwrap_err());
        refused(volume.set_owner_secret(&owner, new).unwrap_err());
    }
    assert!(opens(&Volume::open(disk).unwrap(), "first"));
}

/// A token without a label is, byte for byte, that of a program that knows no labels.
#[test]
fn a_label_is_an_additional_member_of_the_token() {
    let disk = disk();
    let mut volume = create(disk.clone());
    let owner = opened(&volume, "first");
    let second = secret("second");
    volume
        .add_secret(&owner, Some(Role::User), NewSecret::new(&second, cheap()))
        .unwrap();
    let mut prefix = vec![0; 32 * 1024];
    disk.peek(0, &mut prefix);
    let header = luks2::Header::open(&prefix, SIZE).unwrap().header;
    let tokens = header.metadata().tokens().values();
    let tokens = tokens.filter(|token| token.token_type() == "evfs-key");
    let texts: Vec<String> = tokens.map(luks2::Token::to_json).collect();
    let of = |keyslot: u32, role: &str, label: &str| {
        format!(
            r#"{{"type":"evfs-key","keyslots":["{keyslot}"],"version":1,"role":"{role}","name":null,"recipient":null,"envelope":null{label}}}"#
        )
    };
    let expected = [of(0, "owner", r#","label":"laptop""#), of(1, "user", "")];
    assert!(
        expected.iter().all(|text| texts.contains(text)),
        "{texts:?}"
    );
}

#[test]
fn at_every_write_of_a_change_the_old_or_the_new_secret_opens() {
    let base = disk();
    create(base.clone());
    let disk = Arc::new(PowerCut::new(&base));
    let mut volume = Volume::open(disk.clone()).unwrap();
    let owner = opened(&volume, "first");
    let second = secret("second");
    volume
        .change_secret(&owner, 0, NewSecret::new(&second, cheap()))
        .unwrap();
    let (mut old, mut new) = (0, 0);
    for crash in disk.boundaries(7, 6) {
        let shown = crash.to_string();
        let after = Volume::open(Arc::new(crash.image)).unwrap_or_else(|e| panic!("{shown}: {e}"));
        let (first, second) = (opens(&after, "first"), opens(&after, "second"));
        assert!(
            first != second,
            "{shown}: the old secret: {first}, the new one: {second}"
        );
        let key = &after.keys()[0];
        assert_eq!((key.keyslot, key.role), (0, Role::Owner), "{shown}");
        assert_eq!(key.label.as_deref(), Some("laptop"), "{shown}");
        old += usize::from(first);
        new += usize::from(second);
    }
    assert!(old > 6 && new > 3, "{old} states before, {new} after");
    let after = Volume::open(disk).unwrap();
    assert!(opens(&after, "second"));
}

/// The new keyslot is opened with the new secret before the header names it: here its cost exceeds
/// the limits of this machine.
#[test]
fn a_secret_that_does_not_open_its_new_keyslot_replaces_nothing() {
    let disk = disk();
    create(disk.clone());
    let header = |disk: &Mem| {
        let mut bytes = vec![0; 32 * 1024];
        disk.peek(0, &mut bytes);
        bytes
    };
    let before = header(&disk);
    let limits = KdfLimits {
        memory_kib_max: 64,
        ..KdfLimits::default()
    };
    let mut volume = Volume::open(disk.clone()).unwrap().with_kdf_limits(limits);
    let owner = opened(&volume, "first");
    let second = secret("second");
    let error = volume
        .change_secret(&owner, 0, NewSecret::new(&second, argon2(128)))
        .unwrap_err();
    assert!(error.to_string().contains("remains valid"), "{error}");
    assert!(header(&disk) == before, "the header was written");
    // The same for an owner that takes the place of another.
    let mut volume = Volume::open(disk.clone()).unwrap().with_kdf_limits(limits);
    let error = volume
        .set_owner_secret(&owner, NewSecret::new(&second, argon2(128)))
        .unwrap_err();
    assert!(error.to_string().contains("remains valid"), "{error}");
    assert!(header(&disk) == before, "the header was written");
    let after = Volume::open(disk).unwrap();
    assert!(opens(&after, "first") && !opens(&after, "second"));
}

/// A key file is used unchanged, whatever it contains.
#[test]
fn a_key_file_that_contains_a_recovery_key_opens_what_it_was_added_to() {
    let disk = disk();
    let mut volume = create(disk);
    let owner = opened(&volume, "first");
    let file = format!("{}\n", RecoveryKey::generate().text().to_uppercase());
    let content = secret(&file);
    volume
        .add_secret(&owner, Some(Role::User), NewSecret::new(&content, cheap()))
        .unwrap();
    assert_eq!(opened(&volume, &file).role, Role::User);
}

#[test]
fn a_user_changes_the_own_secret_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = Keyring::open(dir.path().join("keys"));
    keyring.generate("bob", None).unwrap();
    let bob = Identified::of("bob", keyring.recipient("bob").unwrap());
    let disk = disk();
    let mut volume = create(disk.clone());
    let owner = opened(&volume, "first");
    let users = secret("users");
    let user = volume
        .add_secret(&owner, Some(Role::User), NewSecret::new(&users, cheap()))
        .unwrap();
    let pair = volume.add_pair(&owner, Role::User, &bob).unwrap();
    let key = RecoveryKey::generate();
    let recovery = volume
        .add_secret(&owner, Some(Role::Recovery), NewSecret::recovery(&key))
        .unwrap();
    let new = secret("new");
    let new = NewSecret::new(&new, cheap()).labeled(Some("phone"));
    let by_user = opened(&volume, "users");
    assert!(matches!(
        volume.change_secret(&by_user, owner.keyslot, new),
        Err(Error::RoleRefuses { .. })
    ));
    volume.change_secret(&by_user, user, new).unwrap();
    let mut volume = Volume::open(disk).unwrap();
    let by_user = opened(&volume, "new");
    assert_eq!((by_user.keyslot, by_user.role), (user, Role::User));
    assert_eq!(volume.find_key("phone").unwrap(), user);
    wrong(&volume, "users");
    let by_recovery = opened(&volume, key.text());
    assert!(matches!(
        volume.change_secret(&by_recovery, recovery, new),
        Err(Error::RoleRefuses { .. })
    ));
    let owner = opened(&volume, "first");
    for generated in [pair, recovery] {
        assert!(matches!(
            volume.change_secret(&owner, generated, new),
            Err(Error::Refused(_))
        ));
    }
    assert!(matches!(
        volume.change_secret(&owner, 9, new),
        Err(Error::NoSuchKey(_))
    ));
    volume
        .change_secret(&owner, user, new.labeled(None))
        .unwrap();
    assert_eq!(volume.find_key("phone").unwrap(), user);
}

#[test]
fn a_recovery_key_opens_however_it_is_typed_and_sets_a_new_owner() {
    let disk = disk();
    let mut volume = create(disk.clone());
    let owner = opened(&volume, "first");
    let key = RecoveryKey::generate();
    volume
        .add_secret(&owner, Some(Role::Recovery), NewSecret::recovery(&key))
        .unwrap();
    for typed in [
        key.text().to_owned(),
        key.text().to_uppercase(),
        key.text().replace('-', " "),
        format!("{}\n", key.text().replace('-', "")),
    ] {
        let unlocked = opened(&volume, &typed);
        assert_eq!(unlocked.role, Role::Recovery);
        assert!(volume.keys()[unlocked.keyslot as usize].is_recovery_key());
    }
    // The third group begins after two groups of nine letters and two hyphens.
    let mut mistyped = key.text().to_owned();
    let letter = if mistyped[20..].starts_with('c') {
        "b"
    } else {
        "c"
    };
    mistyped.replace_range(20..21, letter);
    let why = wrong(&volume, &mistyped);
    assert!(why.contains("group 3 of the recovery key"), "{why}");
    assert!(
        !why.contains(&mistyped[..9]),
        "a letter of the key is shown"
    );
    let other = RecoveryKey::generate();
    let why = wrong(&volume, other.text());
    assert!(!why.contains("mistyped"), "{why}");

    let by_recovery = opened(&volume, key.text());
    let new = secret("new owner");
    let new = volume
        .set_owner_secret(&by_recovery, NewSecret::new(&new, cheap()))
        .unwrap();
    let volume = Volume::open(disk).unwrap();
    let owner = opened(&volume, "new owner");
    assert_eq!((owner.role, owner.keyslot), (Role::Owner, new));
    wrong(&volume, "first");
    assert_eq!(opened(&volume, key.text()).role, Role::Recovery);
}

#[test]
fn one_keyslot_alone_is_tried_if_it_is_named() {
    let disk = disk();
    let mut volume = create(disk.clone());
    let owner = opened(&volume, "first");
    let second = secret("second");
    let keyslot = volume
        .add_secret(&owner, None, NewSecret::new(&second, cheap()))
        .unwrap();
    let only = |n: u32| volume.unlock_secret_in(Some(n), &second);
    assert_eq!(only(keyslot).unwrap().keyslot, keyslot);
    match only(0) {
        Err(Error::WrongKey(why)) => assert!(why.contains("keyslot 0"), "{why}"),
        _ => panic!("keyslot 0 is that of another secret"),
    }
    assert!(matches!(only(7), Err(Error::NoSuchKey(_))));
}

#[test]
fn two_key_pairs_of_one_name_have_two_fingerprints() {
    let mut volume = create(disk());
    let owner = opened(&volume, "first");
    let dir = tempfile::tempdir().unwrap();
    for home in ["here", "there"] {
        let keyring = Keyring::open(dir.path().join(home));
        keyring.generate("bob", None).unwrap();
        let bob = Identified::of("bob", keyring.recipient("bob").unwrap());
        volume.add_pair(&owner, Role::User, &bob).unwrap();
    }
    let keys = volume.keys();
    let prints: Vec<String> = keys.iter().filter_map(|k| k.fingerprint()).collect();
    assert_eq!(prints.len(), 2);
    assert_ne!(prints[0], prints[1]);
    assert!(volume.find_key("bob").is_err(), "the name means two keys");
}

#[test]
fn upper_layers_get_keys_that_the_volume_and_the_label_determine() {
    let device = |volume: &Volume, unlocked: &Unlocked| {
        let device = volume.device(unlocked, crypt::Options::default());
        device.unwrap()
    };
    let derived = |device: &dyn BlockDevice, label: &[u8]| {
        let mut key = [0; block::DERIVED_KEY_BYTES];
        assert!(device.derive_key(label, &mut key));
        key
    };
    let disk = disk();
    create(disk.clone());
    let mut volume = Volume::open(disk).unwrap();
    let owner = opened(&volume, "first");
    let first = device(&volume, &owner);
    let key = derived(&first, b"one");
    assert_ne!(key, [0; block::DERIVED_KEY_BYTES]);
    assert_ne!(key, derived(&first, b"two"));
    // Another passphrase of the volume leads to the same key.
    let second = secret("second");
    volume
        .add_secret(&owner, Some(Role::User), NewSecret::new(&second, cheap()))
        .unwrap();
    let again = device(&volume, &opened(&volume, "second"));
    assert_eq!(key, derived(&again, b"one"));
    let (layer, _) = block::Stats::new(Arc::new(again));
    assert_eq!(key, derived(&layer, b"one"));
    let other = create(self::disk());
    let other = device(&other, &opened(&other, "first"));
    assert_ne!(key, derived(&other, b"one"));
}
