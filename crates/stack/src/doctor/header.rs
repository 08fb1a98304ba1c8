//! The header of a volume: both copies, the trust store's record of it, its keys and its backups.

use super::backups::{self, Saved};
use super::subjects::Subject;
use super::{Finding, ids, quoted};
use crate::device::{Peek, peek};
use crate::trust::{SeenSeal, TrustFile, epoch_of, seal_of};
use crate::{Error, Settings, short_size, signature};
use block::BlockDevice;
use crypt::{CheckReport, CopyReport, HeaderErrorKind, KeyEntry, Role, Volume};
use luks2::Kdf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Least work of Argon2 for a passphrase, in KiB of memory times passes: that of the cheapest key
/// derivation that EVFS chooses by itself.
const ARGON2_WORK_MIN_KIB: u64 = 4 * 32 * 1024;

/// Least number of PBKDF2 iterations for a passphrase (OWASP, for SHA-256).
const PBKDF2_ITERATIONS_MIN: u32 = 600_000;

/// Pause before a damaged header is read again: another process may be changing it.
const READ_AGAIN: Duration = Duration::from_millis(200);

/// Checks the header of a subject, without a key.
pub(super) fn check(
    subject: &Subject,
    settings: &Settings,
    trust: &TrustFile,
    saved: &[Saved],
) -> Vec<Finding> {
    let peeked = match peek(&subject.device, settings) {
        Ok(peeked) => peeked,
        Err(error) => return vec![unreadable(subject, &error)],
    };
    let device = &peeked.device;
    let found = match signature::find(&**device) {
        Ok(found) => found,
        Err(error) => return vec![unreadable(subject, &error.into())],
    };
    let known_there = trust.at_any(&peeked.places, |_| true);
    if !found.is_some_and(signature::is_volume) {
        return vec![no_volume(subject, found, known_there)];
    }
    let report = match check_twice(device) {
        Ok(report) => report,
        Err(error) => return vec![destroyed(subject, error)],
    };
    let mut findings = copies(subject, &report);
    match Volume::inspect(Arc::clone(device)) {
        Ok(volume) => findings.extend(of_volume(subject, &volume, &peeked, trust, saved, settings)),
        Err(error) => findings.push(destroyed(subject, error)),
    }
    findings
}

fn unreadable(subject: &Subject, error: &Error) -> Finding {
    let is_denied = matches!(error, Error::Block(e) if e.kind() == block::ErrorKind::Permission);
    if is_denied {
        let found = Finding::unchecked(ids::READABLE, "the header and the keys", error.chain());
        let command = format!("sudo evfs doctor {}", quoted(&subject.name));
        return found
            .remedy("run the check as a user who may read the device")
            .command(command);
    }
    Finding::error(ids::READABLE, "the device cannot be read")
        .why(error.chain())
        .remedy("connect the device, or repair its storage")
}

/// Judges a device without the signature of a volume.
fn no_volume(subject: &Subject, found: Option<&str>, known: Option<&String>) -> Finding {
    if let Some(uuid) = known {
        return Finding::error(ids::TRUST, "no encrypted volume is there")
            .why(format!(
                "this machine knows the volume {uuid} there: it was replaced, or its header is \
                 destroyed"
            ))
            .remedy("restore a header backup, or, if you replaced the volume, forget the old one")
            .command(format!("evfs volume trust {uuid} --reset"));
    }
    match found {
        Some(found) if signature::is_ours(found) => Finding::note(
            ids::HEADER,
            "a file system without encryption; it has no header",
        ),
        found => {
            let holds = found.map_or("nothing that EVFS knows".to_owned(), |f| f.to_owned());
            let what = format!("no encrypted volume is there, but {holds}");
            if subject.is_expected {
                Finding::warning(ids::HEADER, what)
                    .why("a service or the configuration uses the device")
                    .remedy("correct the configuration, or restore a header backup")
            } else {
                Finding::note(ids::HEADER, what)
            }
        }
    }
}

/// Checks both copies of the header; if they are damaged, once more after a pause.
fn check_twice(device: &Arc<dyn BlockDevice>) -> crypt::Result<CheckReport> {
    let first = crypt::check(Arc::clone(device));
    if first
        .as_ref()
        .is_ok_and(|report| report.findings.is_empty())
    {
        return first;
    }
    std::thread::sleep(READ_AGAIN);
    crypt::check(Arc::clone(device))
}

fn destroyed(subject: &Subject, error: crypt::Error) -> Finding {
    let is_damage = matches!(
        &error,
        crypt::Error::Header { source, .. } if source.kind() == HeaderErrorKind::Damaged
    );
    let why = Error::Volume(error).chain();
    let found = Finding::error(ids::HEADER, "the header cannot be used").why(why);
    if is_damage {
        let device = quoted(&subject.name);
        found
            .remedy("restore a header backup; without one the data is lost")
            .command(format!("evfs volume header restore {device} FILE"))
    } else {
        found.remedy("the reason says what EVFS does not support")
    }
}

/// Judges the two copies of the header.
fn copies(subject: &Subject, report: &CheckReport) -> Vec<Finding> {
    if report.findings.is_empty() {
        let seqid = match report.primary {
            CopyReport::Valid { seqid } => seqid.to_string(),
            CopyReport::Damaged { .. } => "unknown".into(),
        };
        let what = format!("both copies of the header are intact (sequence id {seqid})");
        return vec![Finding::ok(ids::HEADER, what)];
    }
    let device = quoted(&subject.name);
    let found = report.findings.iter().map(|what| {
        let found = Finding::error(ids::HEADER, what);
        if report.can_be_repaired() {
            found
                .why("the next damage may be to the other copy")
                .remedy("rewrite the damaged copy from the intact one")
                .command(format!("evfs volume repair {device}"))
        } else {
            found
                .remedy("see the details; a header backup restores keyslots")
                .command(format!("evfs volume check {device}"))
        }
    });
    found.collect()
}

fn of_volume(
    subject: &Subject,
    volume: &Volume,
    peeked: &Peek,
    trust: &TrustFile,
    saved: &[Saved],
    settings: &Settings,
) -> Vec<Finding> {
    let uuid = volume.uuid();
    let seal = seal_of(volume);
    let mut findings = Vec::new();
    let other = trust.at_any(&peeked.places, |known| known != uuid);
    let record = trust.volumes.get(uuid);
    let outdated = record.filter(|record| record.is_newer_than(seal.as_ref()));
    let known_seal = outdated.map(|record| record.seal.as_ref());
    findings.push(trusted(
        uuid,
        other,
        record.is_some(),
        known_seal,
        seal.as_ref(),
    ));
    findings.push(sealed(subject, volume.is_sealed()));
    let entries = volume.keys();
    findings.extend(keys(subject, &entries));
    let slots = entries.iter().filter(|key| key.recipient.is_none());
    for key in slots {
        if let Some(kdf) = volume.kdf_of(key.keyslot) {
            findings.push(derivation(subject, key.keyslot, &kdf));
        }
    }
    let beside = backups::saved_beside(&subject.device);
    let own: Vec<&Saved> = saved.iter().chain(&beside).collect();
    findings.push(backups::judge(
        &backups::Wanted {
            device: &subject.device,
            uuid,
            seal: seal.as_ref(),
            keys: &entries,
        },
        &own,
        &settings.backup_dir(),
        SystemTime::now(),
    ));
    findings
}

/// Compares the header with the trust store. `known_seal` is the recorded seal, if it is newer than
/// `seal`, that of the header.
fn trusted(
    uuid: &str,
    other: Option<&String>,
    is_known: bool,
    known_seal: Option<Option<&SeenSeal>>,
    seal: Option<&SeenSeal>,
) -> Finding {
    if let Some(other) = other {
        return Finding::error(ids::TRUST, format!("it is volume {uuid}, not {other}"))
            .why("this machine knows another volume there: it was replaced")
            .remedy("if you replaced it, forget the other volume")
            .command(format!("evfs volume trust {other} --reset"));
    }
    if let Some(known) = known_seal {
        let (is, was) = (epoch_of(seal), epoch_of(known));
        return Finding::error(ids::TRUST, format!("the header has {is}; known: {was}"))
            .why("an older or another header is in place; keys that were removed may open it again")
            .remedy("restore the current header, or, if you restored this one, accept it")
            .command(format!("evfs volume trust {uuid} --reset"));
    }
    if is_known {
        Finding::ok(ids::TRUST, "the header is the one that this machine knows")
    } else {
        Finding::note(ids::TRUST, "this machine has never opened the volume")
            .why("an exchange of the volume cannot be detected before its first use")
    }
}

fn sealed(subject: &Subject, is_sealed: bool) -> Finding {
    if is_sealed {
        return Finding::ok(
            ids::SEAL,
            "the header has a seal, which each open of the volume verifies",
        );
    }
    let command = format!("evfs volume repair {} --reseal", quoted(&subject.name));
    Finding::note(ids::SEAL, "the header has no seal")
        .why("changes to its keys and roles are not detected; another program created it")
        .remedy("seal the header with the owner's key")
        .command(command)
}

/// Judges the number and the roles of the keys.
fn keys(subject: &Subject, entries: &[KeyEntry]) -> Vec<Finding> {
    let device = quoted(&subject.name);
    let add = format!("evfs volume key add {device} --recovery NAME");
    let opening: Vec<&KeyEntry> = entries.iter().filter(|key| key.bound).collect();
    let mut findings = Vec::new();
    findings.push(match opening.len() {
        0 => Finding::error(ids::KEYS, "no key opens the volume")
            .why("it was erased, or its keyslots were made by a program that EVFS cannot follow")
            .remedy("restore a header backup")
            .command(format!("evfs volume header restore {device} FILE")),
        1 => Finding::warning(ids::KEYS, "a single key opens the volume")
            .why("without that key the data is lost")
            .remedy("add a recovery key, and keep it elsewhere")
            .command(add.clone()),
        n => Finding::ok(ids::KEYS, format!("{n} keys open the volume")),
    });
    let unbound = entries.len() - opening.len();
    if unbound > 0 {
        let found = Finding::note(ids::KEYS, format!("{unbound} keyslots open nothing"))
            .why("they do not hold the volume key")
            .remedy("remove them, if no program needs them")
            .command(format!("evfs volume key list {device}"));
        findings.push(found);
    }
    let recovers = opening.iter().any(|key| key.role == Role::Recovery);
    findings.push(if recovers {
        Finding::ok(ids::RECOVERY, "a recovery key can set another owner")
    } else {
        Finding::note(ids::RECOVERY, "no recovery key")
            .why("if the owner loses the key, no other key can add or remove keys")
            .remedy("add a key pair in the recovery role, and keep it elsewhere")
            .command(add)
    });
    findings
}

/// Judges the key derivation of a keyslot that no key pair opens.
fn derivation(subject: &Subject, keyslot: u32, kdf: &Kdf) -> Finding {
    let cost = crate::volume::describe_kdf(kdf);
    let (is_weak, is_hard) = match *kdf {
        Kdf::Argon2id(_) | Kdf::Argon2i(_) => (kdf.work_kib() < ARGON2_WORK_MIN_KIB, true),
        Kdf::Pbkdf2 { iterations, .. } => (iterations < PBKDF2_ITERATIONS_MIN, false),
    };
    let remedy = "set the passphrase again, which keeps the role and the label; a random key file \
                  needs no costly derivation";
    let command = format!(
        "evfs volume key change {} --key-slot {keyslot}",
        quoted(&subject.name)
    );
    if is_weak {
        let least = short_size((ARGON2_WORK_MIN_KIB * 1024) as f64);
        Finding::warning(
            ids::KDF,
            format!("keyslot {keyslot}: weak key derivation ({cost})"),
        )
        .why(format!(
            "a passphrase can be guessed quickly: Argon2 should pass over {least} or more, and \
                 PBKDF2 take {PBKDF2_ITERATIONS_MIN} iterations"
        ))
        .remedy(remedy)
        .command(command)
    } else if is_hard {
        Finding::ok(ids::KDF, format!("keyslot {keyslot}: {cost}"))
    } else {
        Finding::note(ids::KDF, format!("keyslot {keyslot}: {cost}"))
            .why("PBKDF2 needs no memory, so that graphics cards guess passphrases fast")
            .remedy(remedy)
            .command(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{self, Error as Bad, Note, Ok as Fine, Warning};

    fn subject() -> Subject {
        Subject {
            name: "my disk.img".into(),
            device: "/nonexistent/my disk.img".into(),
            served: None,
            is_expected: false,
        }
    }

    fn entry(keyslot: u32, role: Role, bound: bool) -> KeyEntry {
        KeyEntry {
            label: None,
            keyslot,
            role,
            name: None,
            recipient: None,
            kdf: "argon2id".into(),
            bound,
        }
    }

    fn severities(found: &[Finding]) -> Vec<(&'static str, Severity)> {
        found.iter().map(|f| (f.id, f.severity)).collect()
    }

    #[test]
    fn a_single_key_is_a_warning_and_a_recovery_key_wanted() {
        let judged = |all: &[KeyEntry]| severities(&keys(&subject(), all));
        let owner = entry(0, Role::Owner, true);
        let safe = entry(1, Role::Recovery, true);
        let empty = entry(2, Role::User, false);
        assert_eq!(
            judged(std::slice::from_ref(&owner)),
            [(ids::KEYS, Warning), (ids::RECOVERY, Note)]
        );
        assert_eq!(
            judged(&[owner.clone(), safe]),
            [(ids::KEYS, Fine), (ids::RECOVERY, Fine)]
        );
        assert_eq!(
            judged(&[owner, empty]),
            [
                (ids::KEYS, Warning),
                (ids::KEYS, Note),
                (ids::RECOVERY, Note)
            ]
        );
        assert_eq!(judged(&[])[0], (ids::KEYS, Bad));
        let command = keys(&subject(), &[])[0].command.clone().unwrap_or_default();
        assert!(command.contains("'my disk.img'"), "{command}");
    }

    #[test]
    fn cheap_key_derivations_are_weak() {
        let argon2 = |time, memory_kib| {
            Kdf::Argon2id(luks2::Argon2Cost {
                time,
                memory_kib,
                cpus: 1,
            })
        };
        let pbkdf2 = |iterations| Kdf::Pbkdf2 {
            hash: luks2::Hash::Sha256,
            iterations,
        };
        for (kdf, severity) in [
            (argon2(4, 1024), Warning),
            (argon2(4, 32 * 1024), Fine),
            (argon2(5, 1024 * 1024), Fine),
            (pbkdf2(1000), Warning),
            (pbkdf2(2_000_000), Note),
        ] {
            let found = derivation(&subject(), 1, &kdf);
            assert_eq!(found.severity, severity, "{kdf:?}");
        }
    }

    #[test]
    fn damage_of_one_copy_has_a_repair_and_a_cut_device_has_none() {
        let intact = CheckReport {
            primary: CopyReport::Valid { seqid: 3 },
            secondary: CopyReport::Valid { seqid: 3 },
            findings: Vec::new(),
            cut_short: false,
        };
        assert_eq!(
            severities(&copies(&subject(), &intact)),
            [(ids::HEADER, Fine)]
        );
        let damaged = CheckReport {
            secondary: CopyReport::Damaged { why: "bad".into() },
            findings: vec!["the secondary copy of the header is damaged".into()],
            ..intact
        };
        let found = copies(&subject(), &damaged);
        assert_eq!(severities(&found), [(ids::HEADER, Bad)]);
        let command = found[0].command.as_deref();
        assert_eq!(command, Some("evfs volume repair 'my disk.img'"));
        let cut = CheckReport {
            cut_short: true,
            ..damaged
        };
        let found = copies(&subject(), &cut);
        assert!(
            found[0]
                .command
                .as_deref()
                .is_some_and(|c| c.contains("volume check"))
        );
    }

    #[test]
    fn another_or_an_older_header_than_the_known_one_is_an_error() {
        let (uuid, other) = ("1".to_owned(), "2".to_owned());
        let judged = |other, known, older| trusted(&uuid, other, known, older, None).severity;
        assert_eq!(judged(None, true, None), Fine);
        assert_eq!(judged(None, false, None), Note);
        assert_eq!(judged(Some(&other), true, None), Bad);
        assert_eq!(judged(None, true, Some(None)), Bad);
    }

    #[test]
    fn a_device_without_a_volume_is_judged_by_what_is_expected() {
        let uuid = "1".to_owned();
        let mut one = subject();
        assert_eq!(no_volume(&one, None, Some(&uuid)).severity, Bad);
        assert_eq!(no_volume(&one, None, None).severity, Note);
        assert_eq!(
            no_volume(&one, Some("EVFS file system"), None).severity,
            Note
        );
        one.is_expected = true;
        assert_eq!(no_volume(&one, Some("XFS"), None).severity, Warning);
    }
}
