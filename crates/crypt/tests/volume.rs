//! Volumes: roles, the seal, and every write boundary of every key operation.

use block::BlockDevice;
use block_testing::{Mem, PowerCut};
use crypt::{Action, Epoch, Error, Format, Identified, NewKey, NewSecret, Role, Seal, Volume};
use keyring::{Identity, Keyring};
use luks2::{Argon2Cost, Kdf};
use secret::SecretBytes;
use std::sync::Arc;

const SIZE: u64 = 18 << 20;

struct Keys {
    _dir: tempfile::TempDir,
    keyring: Keyring,
}

impl Keys {
    fn new() -> Keys {
        let dir = tempfile::tempdir().unwrap();
        let keyring = Keyring::open(dir.path().join("keys"));
        for name in ["alice", "bob", "safe"] {
            keyring.generate(name, None).unwrap();
        }
        Keys { _dir: dir, keyring }
    }

    fn who(&self, name: &str) -> Identified {
        Identified::of(name, self.keyring.recipient(name).unwrap())
    }

    fn identity(&self, name: &str) -> Identity {
        self.keyring
            .identity(name, &mut |_| panic!("no passphrase here"))
            .unwrap()
    }
}

fn format() -> Format {
    Format {
        key_bits: 128,
        sector_size: 4096,
        label: "test".into(),
    }
}

fn cheap() -> Kdf {
    Kdf::Argon2id(Argon2Cost {
        time: 4,
        memory_kib: 32,
        cpus: 1,
    })
}

fn secret(text: &str) -> SecretBytes {
    SecretBytes::from_slice(text.as_bytes())
}

fn create(keys: &Keys, device: Arc<dyn BlockDevice>) -> Volume {
    let (owner, safe) = (keys.who("alice"), keys.who("safe"));
    let recovery = [NewKey::Pair(&safe)];
    let made = Volume::create(device, &format(), NewKey::Pair(&owner), &recovery);
    made.unwrap().0
}

#[test]
fn roles_allow_what_they_say() {
    let keys = Keys::new();
    let mut volume = create(&keys, Arc::new(Mem::new(SIZE, 512)));
    let owner = volume.unlock_identity(&keys.identity("alice")).unwrap();
    assert_eq!((owner.role, owner.seal), (Role::Owner, Seal::Intact));
    volume
        .add_pair(&owner, Role::User, &keys.who("bob"))
        .unwrap();
    volume
        .add_secret(&owner, None, NewSecret::new(&secret("sesame"), cheap()))
        .unwrap();
    let bob = volume.unlock_identity(&keys.identity("bob")).unwrap();
    let phrase = volume.unlock_secret(&secret("sesame")).unwrap();
    let safe = volume.unlock_identity(&keys.identity("safe")).unwrap();
    assert_eq!(
        (bob.role, phrase.role, safe.role),
        (Role::User, Role::User, Role::Recovery)
    );
    assert!(bob.role.allow(Action::ChangeOwnSecret).is_ok());
    assert!(safe.role.allow(Action::ChangeOwnSecret).is_err());
    for action in [
        Action::Attach,
        Action::ChangeKeys,
        Action::SetOwner,
        Action::Erase,
    ] {
        assert!(owner.role.allow(action).is_ok());
        assert_eq!(bob.role.allow(action).is_ok(), action == Action::Attach);
        assert_eq!(safe.role.allow(action).is_ok(), action == Action::SetOwner);
    }
    assert!(matches!(
        volume.remove_key(&bob, 0),
        Err(Error::RoleRefuses { .. })
    ));
    assert!(matches!(
        volume.set_owner(&phrase, &keys.who("bob")),
        Err(Error::RoleRefuses { .. })
    ));
    assert!(
        volume.remove_key(&owner, owner.keyslot).is_err(),
        "the only owner must stay"
    );
    assert!(
        volume
            .add_pair(&owner, Role::User, &keys.who("bob"))
            .is_err(),
        "twice"
    );
    volume.set_owner(&safe, &keys.who("bob")).unwrap();
    assert_eq!(
        volume.unlock_identity(&keys.identity("bob")).unwrap().role,
        Role::Owner
    );
    assert!(matches!(
        volume.unlock_identity(&keys.identity("alice")),
        Err(Error::WrongKey(_))
    ));
    assert!(matches!(
        volume.unlock_secret(&secret("wrong")),
        Err(Error::WrongKey(_))
    ));
}

/// Rewrites the header through the format crate, as another program would.
#[test]
fn a_process_that_continues_another_opens_the_volume_with_what_that_has_kept() {
    let keys = Keys::new();
    let disk = Mem::new(SIZE, 512);
    let volume = create(&keys, Arc::new(disk.fork()));
    let alice = volume.unlock_identity(&keys.identity("alice")).unwrap();
    let kept = alice.to_keep(&volume);
    let again = volume.unlock_kept(&kept).unwrap();
    assert_eq!((again.role, again.keyslot), (alice.role, alice.keyslot));
    assert_eq!(again.seal, alice.seal);
    // Another volume, a cut and an empty secret open nothing.
    let other = create(&keys, Arc::new(Mem::new(SIZE, 512)));
    for wrong in [
        other.unlock_kept(&kept),
        volume.unlock_kept(&kept.truncated(kept.len() - 1)),
        volume.unlock_kept(&kept.truncated(3)),
        volume.unlock_kept(&SecretBytes::zeroed(0)),
    ] {
        assert!(matches!(wrong.map(drop), Err(Error::WrongKey(_))));
    }
    // A key that differs is noticed by the seal.
    let mut forged = SecretBytes::from_slice(&kept);
    *forged.last_mut().unwrap() ^= 1;
    let forged = volume.unlock_kept(&forged).unwrap();
    assert_ne!(forged.seal, alice.seal);
}

fn changed_by_another(disk: &Mem, change: impl FnOnce(&mut luks2::Header)) {
    let mut prefix = vec![0; 32 * 1024];
    disk.peek(0, &mut prefix);
    let mut header = luks2::Header::open(&prefix, SIZE).unwrap().header;
    change(&mut header);
    for step in header.update().unwrap() {
        if let luks2::Step::Write { offset, bytes } = step {
            disk.poke(offset, &bytes);
        }
    }
}

#[test]
fn a_changed_header_shows_when_the_volume_is_opened() {
    let keys = Keys::new();
    let disk = Arc::new(Mem::new(SIZE, 512));
    create(&keys, disk.clone());
    let seal = |disk: &Arc<Mem>| {
        let volume = Volume::open(disk.clone()).unwrap();
        let unlocked = volume.unlock_identity(&keys.identity("alice")).unwrap();
        let attached = volume.device(&unlocked, crypt::Options::default()).is_ok();
        (unlocked.seal, attached)
    };
    assert_eq!(seal(&disk), (Seal::Intact, true));

    let keys_changed = Arc::new(disk.fork());
    changed_by_another(&keys_changed, |header| {
        let token = luks2::Token::from_json(r#"{"type":"other","keyslots":["0"]}"#).unwrap();
        header.add_token(None, &token).unwrap();
    });
    assert_eq!(seal(&keys_changed), (Seal::KeysChanged, false));

    let core_changed = Arc::new(disk.fork());
    changed_by_another(&core_changed, |header| {
        header.set_flag("allow-discards", true).unwrap()
    });
    assert_eq!(seal(&core_changed), (Seal::CoreChanged, false));

    let stripped = Arc::new(disk.fork());
    changed_by_another(&stripped, |header| strip(header, "evfs-seal"));
    assert_eq!(seal(&stripped), (Seal::Missing, false));

    let unreadable = Arc::new(disk.fork());
    changed_by_another(&unreadable, |header| {
        strip(header, "evfs-seal");
        let text = r#"{"type":"evfs-seal","keyslots":[],"version":2,"core":"?","keys":7}"#;
        let token = luks2::Token::from_json(text).unwrap();
        header.add_token(None, &token).unwrap();
    });
    assert_eq!(seal(&unreadable), (Seal::CoreChanged, false));

    // The owner seals the change to accept it.
    let mut volume = Volume::open(core_changed.clone()).unwrap();
    let owner = volume.unlock_identity(&keys.identity("alice")).unwrap();
    assert!(matches!(
        volume.add_pair(&owner, Role::User, &keys.who("bob")),
        Err(Error::SealBroken { .. })
    ));
    volume.reseal(&owner, Epoch::ZERO).unwrap();
    assert_eq!(seal(&core_changed), (Seal::Intact, true));
}

/// Removes the tokens whose type begins with `prefix`.
fn strip(header: &mut luks2::Header, prefix: &str) {
    let tokens = header.metadata().tokens().iter();
    let ours = tokens.filter(|(_, t)| t.token_type().starts_with(prefix));
    let numbers: Vec<u32> = ours.map(|(number, _)| *number).collect();
    assert!(!numbers.is_empty());
    for number in numbers {
        header.remove_token(number).unwrap();
    }
}

/// Without any EVFS token in its header a sealed volume looks like one created by `cryptsetup`,
/// except for the salt of its digest, which cannot be changed without the volume key.
#[test]
fn a_header_without_any_token_of_ours_is_known_to_have_been_sealed() {
    let keys = Keys::new();
    let disk = Arc::new(Mem::new(SIZE, 512));
    let mut volume = create(&keys, disk.clone());
    let owner = volume.unlock_identity(&keys.identity("alice")).unwrap();
    volume
        .add_secret(&owner, None, NewSecret::new(&secret("sesame"), cheap()))
        .unwrap();
    changed_by_another(&disk, |header| strip(header, "evfs-"));
    let mut volume = Volume::open(disk.clone()).unwrap();
    let phrase = volume.unlock_secret(&secret("sesame")).unwrap();
    assert_eq!((phrase.seal, phrase.role), (Seal::Missing, Role::User));
    assert!(matches!(
        volume.device(&phrase, crypt::Options::default()),
        Err(Error::SealBroken { .. })
    ));
    assert!(matches!(
        volume.reseal(&phrase, Epoch::ZERO),
        Err(Error::RoleRefuses { .. })
    ));
}

/// Creates a disk with a volume whose only key is a passphrase; `finish` edits its header.
fn of_another_program(
    phrase: &SecretBytes,
    finish: impl FnOnce(&mut luks2::Header, &SecretBytes),
) -> Arc<Mem> {
    let disk = Arc::new(Mem::new(SIZE, 512));
    let volume_key = luks2::generate_volume_key(128).unwrap();
    let options = luks2::FormatOptions {
        key_bits: 128,
        ..luks2::FormatOptions::new(SIZE)
    };
    let mut header = luks2::Header::format(&options, &volume_key).unwrap();
    let normal = luks2::Priority::Normal;
    header
        .add_keyslot(&volume_key, phrase, &cheap(), None, normal)
        .unwrap();
    finish(&mut header, &volume_key);
    for step in header.update().unwrap() {
        if let luks2::Step::Write { offset, bytes } = step {
            disk.poke(offset, &bytes);
        }
    }
    disk
}

/// A volume of another program keeps working, and its keys keep their roles when EVFS seals it.
#[test]
fn a_volume_of_another_program_is_sealed_by_the_first_change_and_its_keys_stay_owners() {
    let keys = Keys::new();
    let phrase = secret("sesame");
    let disk = of_another_program(&phrase, |_, _| ());
    let mut volume = Volume::open(disk.clone()).unwrap();
    let owner = volume.unlock_secret(&phrase).unwrap();
    assert_eq!((owner.seal, owner.role), (Seal::Never, Role::Owner));
    volume.device(&owner, crypt::Options::default()).unwrap();
    volume
        .add_pair(&owner, Role::User, &keys.who("bob"))
        .unwrap();
    let bobs = volume.find_key("bob").unwrap();
    volume.remove_key(&owner, bobs).unwrap();
    let volume = Volume::open(disk).unwrap();
    let owner = volume.unlock_secret(&phrase).unwrap();
    assert_eq!((owner.seal, owner.role), (Seal::Intact, Role::Owner));
    assert_eq!(volume.mark().unwrap().epoch.get(), 2);
}

/// Seals made before epochs existed are valid, count as epoch 0, and are followed by epoch 1. This
/// test also defines version 1, byte for byte.
#[test]
fn a_seal_of_version_1_holds_and_counts_as_epoch_0() {
    use base64::Engine as _;
    let keys = Keys::new();
    let phrase = secret("sesame");
    let disk = of_another_program(&phrase, |header, volume_key| {
        let mut put = |text: String| {
            let token = luks2::Token::from_json(&text).unwrap();
            header.add_token(None, &token).unwrap();
            (
                header.canonical_core(),
                header.canonical_keys(&["evfs-seal"]),
            )
        };
        let owner = r#"{"type":"evfs-key","keyslots":["0"],"version":1,"role":"owner","name":null,"recipient":null,"envelope":null}"#;
        let (core, sealed) = put(owner.into());
        let key = hmac(volume_key, b"evfs header seal 1");
        let code =
            |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(hmac(&key, bytes));
        put(format!(
            r#"{{"type":"evfs-seal","keyslots":[],"version":1,"core":"{}","keys":"{}"}}"#,
            code(&core),
            code(&sealed)
        ));
    });
    let mut volume = Volume::open(disk.clone()).unwrap();
    let owner = volume.unlock_secret(&phrase).unwrap();
    assert_eq!((owner.seal, owner.role), (Seal::Intact, Role::Owner));
    assert_eq!(volume.mark().unwrap().epoch, Epoch::ZERO);
    let id = volume.key_id(&owner);
    volume
        .add_pair(&owner, Role::User, &keys.who("bob"))
        .unwrap();
    assert_eq!(volume.mark().unwrap().epoch.get(), 1);
    let volume = Volume::open(disk).unwrap();
    let owner = volume.unlock_secret(&phrase).unwrap();
    assert_eq!(owner.seal, Seal::Intact);
    assert_eq!(volume.key_id(&owner), id, "one key has one name");
}

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac = <Hmac<sha2::Sha256> as KeyInit>::new_from_slice(key).unwrap();
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

/// A forged epoch does not make a seal valid, nor does it keep the owner from sealing again.
#[test]
fn a_forged_epoch_does_not_hold_and_can_be_sealed_over() {
    let keys = Keys::new();
    let disk = Arc::new(Mem::new(SIZE, 512));
    create(&keys, disk.clone());
    for epoch in [0, 1 << 32, 1 << 48, (1 << 48) + 1, u64::MAX] {
        let before = Volume::open(disk.clone()).unwrap().mark().unwrap().epoch;
        changed_by_another(&disk, |header| {
            let tokens = header.metadata().tokens().iter();
            let mut seals = tokens.filter(|(_, t)| t.token_type() == "evfs-seal");
            let (number, token) = seals.next().unwrap();
            let (old, new) = (format!("\"epoch\":{before}"), format!("\"epoch\":{epoch}"));
            let text = token.to_json().replace(&old, &new);
            let (number, token) = (*number, luks2::Token::from_json(&text).unwrap());
            header.replace_token(number, &token).unwrap();
        });
        let mut volume = Volume::open(disk.clone()).unwrap();
        let owner = volume.unlock_identity(&keys.identity("alice")).unwrap();
        assert_eq!(owner.seal, Seal::CoreChanged, "{epoch}");
        volume.reseal(&owner, before).unwrap();
        let volume = Volume::open(disk.clone()).unwrap();
        let owner = volume.unlock_identity(&keys.identity("alice")).unwrap();
        assert_eq!(owner.seal, Seal::Intact, "{epoch}");
        assert!(
            volume.mark().unwrap().epoch.get() > before.get().min(1 << 32),
            "{epoch}"
        );
    }
}

/// Runs a key operation on a disk with a volatile cache and cuts the power at every write boundary,
/// with unflushed data dropped, kept and torn. After each cut, one of `one_of` and all of `always`
/// must open the volume.
fn at_every_boundary(
    name: &str,
    keys: &Keys,
    prepare: impl Fn(&mut Volume),
    change: impl Fn(&mut Volume),
    always: &[&dyn Fn(&Volume) -> bool],
    one_of: &[&dyn Fn(&Volume) -> bool],
) {
    let base = Arc::new(Mem::new(SIZE, 512));
    let mut volume = create(keys, base.clone());
    prepare(&mut volume);
    let disk = Arc::new(PowerCut::new(&base));
    change(&mut Volume::open(disk.clone()).unwrap());
    let mut states = 0;
    for crash in disk.boundaries(7, 6) {
        let shown = format!("{name}: {crash}");
        let after = Volume::open(Arc::new(crash.image)).unwrap_or_else(|e| panic!("{shown}: {e}"));
        for opens in always {
            assert!(
                opens(&after),
                "{shown}: a key that was not touched does not open"
            );
        }
        assert!(
            one_of.iter().any(|opens| opens(&after)),
            "{shown}: neither the old nor the new key opens"
        );
        states += 1;
    }
    assert!(states > 12, "{name}: only {states} states");
}

#[test]
fn at_every_write_of_every_key_operation_the_old_or_the_new_key_opens() {
    let keys = Keys::new();
    let by = |name: &'static str| {
        let identity = keys.identity(name);
        move |volume: &Volume| {
            volume
                .unlock_identity(&identity)
                .is_ok_and(|u| u.seal == Seal::Intact)
        }
    };
    let (alice, bob, safe) = (by("alice"), by("bob"), by("safe"));
    let phrase = |volume: &Volume| volume.unlock_secret(&secret("sesame")).is_ok();
    let owner = |volume: &Volume| volume.unlock_identity(&keys.identity("alice")).unwrap();
    let nothing = |_: &mut Volume| {};
    let add_bob = |volume: &mut Volume| {
        let owner = owner(volume);
        volume
            .add_pair(&owner, Role::User, &keys.who("bob"))
            .unwrap();
    };
    let add_phrase = |volume: &mut Volume| {
        let owner = owner(volume);
        volume
            .add_secret(&owner, None, NewSecret::new(&secret("sesame"), cheap()))
            .unwrap();
    };
    at_every_boundary(
        "add a pair",
        &keys,
        nothing,
        add_bob,
        &[&alice, &safe],
        &[&alice, &bob],
    );
    at_every_boundary(
        "add a passphrase",
        &keys,
        nothing,
        add_phrase,
        &[&alice, &safe],
        &[&alice, &phrase],
    );
    let new_phrase = |volume: &Volume| volume.unlock_secret(&secret("open")).is_ok();
    let change_phrase = |volume: &mut Volume| {
        let owner = owner(volume);
        let keyslot = volume.unlock_secret(&secret("sesame")).unwrap().keyslot;
        volume
            .change_secret(&owner, keyslot, NewSecret::new(&secret("open"), cheap()))
            .unwrap();
    };
    at_every_boundary(
        "change a passphrase",
        &keys,
        add_phrase,
        change_phrase,
        &[&alice, &safe],
        &[&phrase, &new_phrase],
    );
    let remove_bob = |volume: &mut Volume| {
        let owner = owner(volume);
        let keyslot = volume.find_key("bob").unwrap();
        volume.remove_key(&owner, keyslot).unwrap();
    };
    at_every_boundary(
        "remove a pair",
        &keys,
        add_bob,
        remove_bob,
        &[&alice, &safe],
        &[&alice],
    );
    let set_owner = |volume: &mut Volume| {
        let recovery = volume.unlock_identity(&keys.identity("safe")).unwrap();
        volume.set_owner(&recovery, &keys.who("bob")).unwrap();
    };
    at_every_boundary(
        "set an owner",
        &keys,
        nothing,
        set_owner,
        &[&safe],
        &[&alice, &bob],
    );
    let promote = |volume: &mut Volume| {
        let owner = owner(volume);
        volume.set_owner(&owner, &keys.who("bob")).unwrap();
    };
    at_every_boundary(
        "make a user the owner",
        &keys,
        add_bob,
        promote,
        &[&safe],
        &[&alice, &bob],
    );
    let reseal = |volume: &mut Volume| {
        let owner = owner(volume);
        volume.reseal(&owner, Epoch::ZERO).unwrap();
    };
    at_every_boundary(
        "seal again",
        &keys,
        nothing,
        reseal,
        &[&alice, &safe],
        &[&alice],
    );
}

#[test]
fn a_repair_cut_off_anywhere_leaves_a_header_that_opens() {
    let keys = Keys::new();
    let base = Arc::new(Mem::new(SIZE, 512));
    create(&keys, base.clone());
    for damaged in [5000u64, 16384 + 5000] {
        let broken = base.fork();
        broken.poke(damaged, &[0xff]);
        let disk = Arc::new(PowerCut::new(&broken));
        assert_eq!(crypt::repair(disk.clone()).unwrap().len(), 1);
        for crash in disk.boundaries(3, 8) {
            let shown = crash.to_string();
            let after =
                Volume::open(Arc::new(crash.image)).unwrap_or_else(|e| panic!("{shown}: {e}"));
            after
                .unlock_identity(&keys.identity("alice"))
                .unwrap_or_else(|e| panic!("{shown}: {e}"));
        }
    }
}

#[test]
fn a_restored_backup_opens_with_the_keys_it_was_made_with() {
    let keys = Keys::new();
    let disk = Arc::new(Mem::new(SIZE, 512));
    let mut volume = create(&keys, disk.clone());
    let backup = volume.backup().unwrap();
    volume.erase().unwrap();
    assert!(
        Volume::open(disk.clone())
            .unwrap()
            .unlock_identity(&keys.identity("alice"))
            .is_err()
    );
    let plan = crypt::plan_restore(disk.clone(), &backup).unwrap();
    assert!(plan.objection.is_none());
    plan.apply().unwrap();
    let restored = Volume::open(disk)
        .unwrap()
        .unlock_identity(&keys.identity("alice"))
        .unwrap();
    assert_eq!(restored.seal, Seal::Intact);
    for len in [0, 100, 4096, 40_000, backup.len() - 1] {
        assert!(
            crypt::plan_restore(Arc::new(Mem::new(SIZE, 512)), &backup[..len]).is_err(),
            "{len} bytes"
        );
    }
}
