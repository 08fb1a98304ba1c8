//! Key pairs, tested with the real `age` and `ssh-keygen`.

use keyring::{Error, Keyring, Private, Prompt, Recipient};
use secret::SecretBytes;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn keyring(&self) -> Keyring {
        Keyring::open(self.path("keys")).with_scrypt_log_n(4)
    }
}

fn never(_: &Prompt) -> keyring::Result<SecretBytes> {
    panic!("asked for a passphrase that is not needed")
}

fn phrase(text: &'static str) -> impl FnMut(&Prompt) -> keyring::Result<SecretBytes> {
    move |_| Ok(SecretBytes::from_slice(text.as_bytes()))
}

/// Runs a real tool, which must be installed and succeed.
fn tool(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut child = Command::new(test_support::installed(program))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    output.stdout
}

#[test]
fn a_pair_is_made_listed_used_and_removed() {
    let folder = Folder::new();
    let keys = folder.keyring();
    let alice = keys.generate("alice", None).unwrap();
    let safe = keys
        .generate("safe", Some(&SecretBytes::from_slice(b"open sesame")))
        .unwrap();
    assert_eq!(
        (alice.private, safe.private),
        (Private::Plain, Private::Passphrase)
    );
    assert!(matches!(
        keys.generate("alice", None),
        Err(Error::Exists(_))
    ));
    let listing = keys.list().unwrap();
    let names: Vec<String> = listing.keys.into_iter().map(|k| k.name).collect();
    assert_eq!(names, ["alice", "safe"]);
    assert!(listing.refused.is_empty());
    let secret = SecretBytes::random(32);
    let envelope = safe.recipient.wrap(&secret).unwrap();
    assert!(
        keys.identity("safe", &mut phrase("open sesame"))
            .unwrap()
            .unwrap(&envelope)
            .unwrap()
            == secret
    );
    assert!(matches!(
        keys.identity("safe", &mut phrase("wrong")),
        Err(Error::WrongPassphrase(_))
    ));
    let other = keys.identity("alice", &mut never).unwrap();
    assert!(matches!(other.unwrap(&envelope), Err(Error::WrongKey)));
    keys.remove("alice").unwrap();
    assert!(matches!(keys.remove("alice"), Err(Error::NotFound { .. })));
    assert!(!folder.path("keys/alice.key").exists());
}

#[test]
fn private_files_are_for_their_user_alone_and_refused_otherwise() {
    let folder = Folder::new();
    let keys = folder.keyring();
    keys.generate("a", None).unwrap();
    let mode = |path: &str| {
        fs::metadata(folder.path(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!((mode("keys"), mode("keys/a.key")), (0o700, 0o600));
    fs::set_permissions(folder.path("keys/a.key"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(
        keys.identity("a", &mut never),
        Err(Error::Permissions(_))
    ));
}

#[test]
fn names_that_are_no_file_names_are_refused() {
    let keys = Folder::new();
    let keys = keys.keyring();
    for name in [
        "",
        ".",
        "..",
        "a/b",
        "../x",
        "-x",
        ".hidden",
        "a b",
        "ä",
        &"x".repeat(65),
    ] {
        assert!(
            matches!(keys.generate(name, None), Err(Error::BadName(_))),
            "{name:?}"
        );
        assert!(
            matches!(keys.recipient(name), Err(Error::BadName(_))),
            "{name:?}"
        );
    }
}

#[test]
fn a_new_key_is_not_named_like_a_number() {
    let folder = Folder::new();
    let keys = folder.keyring();
    for name in ["0", "12", "007", "99999999999999999999"] {
        let refused = keys.generate(name, None).map(drop);
        assert!(matches!(refused, Err(Error::NumberName(_))), "{name}");
    }
    keys.generate("key1", None).unwrap();
}

#[test]
fn text_that_is_no_key_is_never_quoted_in_an_error() {
    let folder = Folder::new();
    let secret = "age-secret-key-1qqqsyqcyq5rqwzqf hunter2 correct horse battery";
    for text in [
        secret.to_owned(),
        format!("ssh-{secret}"),
        secret.replace(' ', ""),
    ] {
        fs::write(folder.path("x"), &text).unwrap();
        let error = folder
            .keyring()
            .import("x", &folder.path("x"), &mut never)
            .unwrap_err();
        let shown = format!("{error} {error:?}").to_lowercase();
        for piece in ["qqqsyq", "hunter2", "battery"] {
            assert!(!shown.contains(piece), "{shown}");
        }
    }
}

/// The message uses the words of users, not those of the encoding.
#[test]
fn a_public_key_that_cannot_be_read_is_explained() {
    let folder = Folder::new();
    let keys = folder.keyring();
    keys.generate("a", None).unwrap();
    let good = keys.recipient("a").unwrap().to_string();
    for (text, said) in [
        (
            "age1yubikey1q2w7u3vpya839jxxuq8g0sedh3d740d4xvn639sqhr95ejj8vu3hyfumptt",
            "age plugins",
        ),
        (&good[..good.len() - 1], "copy the whole line again"),
        (&good.replace("age1", "age1qq"), "copy the whole line again"),
        ("abc", "begins with neither `age1`"),
    ] {
        let error = text.parse::<Recipient>().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn what_a_crash_left_of_a_new_key_can_be_removed() {
    let folder = Folder::new();
    let keys = folder.keyring();
    keys.generate("a", None).unwrap();
    fs::remove_file(folder.path("keys/a.pub")).unwrap();
    let half = keys.generate("a", None).unwrap_err();
    assert!(matches!(half, Error::HalfMade(_)));
    assert!(half.to_string().contains("evfs key remove a"), "{half}");
    keys.remove("a").unwrap();
    // The next process that stores a key removes stale temporary files.
    fs::write(folder.path("keys/.evfs-new-x"), "half of a private key").unwrap();
    keys.generate("a", None).unwrap();
    assert!(!folder.path("keys/.evfs-new-x").exists());
}

#[test]
fn a_key_that_cannot_be_used_is_listed_with_the_reason() {
    let folder = Folder::new();
    let keys = folder.keyring();
    for name in ["good", "open", "torn"] {
        keys.generate(name, None).unwrap();
    }
    let private = folder.path("keys/open.key");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(folder.path("keys/torn.pub"), "no key\n").unwrap();
    let listing = keys.list().unwrap();
    assert_eq!(listing.keys.len(), 1);
    let refused: Vec<&str> = listing.refused.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(refused, ["open", "torn"]);
    assert!(matches!(listing.refused[0].1, Error::Permissions(_)));
}

#[test]
fn two_threads_that_make_one_key_make_it_once() {
    let folder = Folder::new();
    let made: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| usize::from(folder.keyring().generate("one", None).is_ok())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(made, 1);
    folder.keyring().identity("one", &mut never).unwrap();
    let left = fs::read_dir(folder.path("keys")).unwrap().count();
    assert_eq!(left, 2, "the two files of the key and nothing else");
}

#[test]
fn a_public_key_is_accepted_in_place_of_a_name() {
    let folder = Folder::new();
    let keys = folder.keyring();
    let alice = keys.generate("alice", None).unwrap();
    assert_eq!(alice.public_file, folder.path("keys/alice.pub"));
    let text = alice.recipient.to_string();
    // A key of this keyring has its name, any other one the beginning of its text.
    let (name, public) = keys.named_or_public(&text).unwrap();
    assert_eq!((name.as_str(), &public), ("alice", &alice.recipient));
    let other = Folder::new().keyring().generate("x", None).unwrap();
    let text = other.recipient.to_string();
    let (name, public) = keys.named_or_public(&text).unwrap();
    assert_eq!(public, other.recipient);
    assert!(text.starts_with(&name) && name.len() == 12, "{name}");
    // A typing error is no unknown name; a key may have a name that only looks like a public key.
    let torn = keys.named_or_public(&text[..text.len() - 1]).unwrap_err();
    assert!(matches!(torn, Error::Malformed { .. }), "{torn}");
    keys.generate("age1", None).unwrap();
    assert_eq!(keys.named_or_public("age1").unwrap().0, "age1");
    let unknown = keys.named_or_public("bob").unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
    let confusing = keys.generate(&text, None).unwrap_err();
    assert!(matches!(confusing, Error::PublicName(_)), "{confusing}");
}

#[test]
fn an_exported_key_is_protected_and_opens_elsewhere() {
    let folder = Folder::new();
    let keys = folder.keyring();
    let plain = keys.generate("plain", None).unwrap();
    let passphrase = SecretBytes::from_slice(b"open sesame");
    let locked = keys.generate("locked", Some(&passphrase)).unwrap();
    let there = Folder::new();
    for (name, info) in [("plain", plain), ("locked", locked)] {
        let text = keys.export_private(name, Some(&passphrase)).unwrap();
        assert!(text.starts_with(b"-----BEGIN AGE ENCRYPTED FILE-----"));
        let away = there.keyring();
        // The public half comes from the private one, so that one text is enough.
        let wrong = away.import_text(name, &text, "x", None, &mut phrase("wrong"));
        assert!(matches!(wrong, Err(Error::WrongPassphrase(_))));
        let known = away
            .import_text(name, &text, "x", None, &mut phrase("open sesame"))
            .unwrap();
        assert_eq!(known.recipient, info.recipient);
        let secret = SecretBytes::random(32);
        let envelope = info.recipient.wrap(&secret).unwrap();
        let identity = away.identity(name, &mut phrase("open sesame")).unwrap();
        assert!(identity.unwrap(&envelope).unwrap() == secret);
    }
    let clear = keys.export_private("plain", None).unwrap();
    let file = fs::read(folder.path("keys/plain.key")).unwrap();
    assert!(clear[..] == file[..]);
    let absent = keys.export_private("nobody", None).map(drop);
    assert!(matches!(absent, Err(Error::NotFound { .. })));
}

mod needs_peer {
    use super::*;

    #[test]
    fn the_real_age_opens_our_envelopes_and_we_open_its() {
        let folder = Folder::new();
        let keys = folder.keyring();
        let info = keys.generate("a", None).unwrap();
        let secret = SecretBytes::random(32);
        let key_file = folder.path("keys/a.key");
        let opened = tool(
            "age",
            &["-d", "-i", key_file.to_str().unwrap()],
            &info.recipient.wrap(&secret).unwrap(),
        );
        assert_eq!(opened, secret[..]);
        let theirs = tool("age", &["-r", &info.recipient.to_string()], &secret);
        assert!(
            keys.identity("a", &mut never)
                .unwrap()
                .unwrap(&theirs)
                .unwrap()
                == secret
        );
    }

    #[test]
    fn keys_of_age_and_of_ssh_are_taken_over() {
        let folder = Folder::new();
        let keys = folder.keyring();
        fs::write(folder.path("age.key"), tool("age-keygen", &[], b"")).unwrap();
        assert_eq!(
            keys.import("a", &folder.path("age.key"), &mut never)
                .unwrap()
                .private,
            Private::Plain
        );
        let public = keys.recipient("a").unwrap().to_string();
        fs::write(folder.path("bob.pub"), format!("# bob\n{public}\n")).unwrap();
        assert_eq!(
            keys.import("bob", &folder.path("bob.pub"), &mut never)
                .unwrap()
                .private,
            Private::Absent
        );
        assert!(matches!(
            keys.identity("bob", &mut never),
            Err(Error::PublicOnly(_))
        ));
        for (name, passphrase, private) in [
            ("plain", "", Private::Plain),
            ("locked", "sesame", Private::Passphrase),
        ] {
            let file = folder.path(name);
            tool(
                "ssh-keygen",
                &[
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    passphrase,
                    "-f",
                    file.to_str().unwrap(),
                ],
                b"",
            );
            let info = keys.import(name, &file, &mut never).unwrap();
            assert_eq!(info.private, private);
            let line = fs::read_to_string(folder.path(&format!("{name}.pub"))).unwrap();
            assert!(
                line.starts_with(&info.recipient.to_string()),
                "{line} is not {}",
                info.recipient
            );
            let secret = SecretBytes::random(32);
            let envelope = info.recipient.wrap(&secret).unwrap();
            let identity = keys.identity(name, &mut phrase("sesame")).unwrap();
            assert!(identity.unwrap(&envelope).unwrap() == secret);
            // age decrypts envelopes of EVFS, and EVFS those of age.
            let public = folder.path(&format!("{name}.pub"));
            let theirs = tool("age", &["-R", public.to_str().unwrap()], &secret);
            assert!(identity.unwrap(&theirs).unwrap() == secret);
            if passphrase.is_empty() {
                let opened = tool("age", &["-d", "-i", file.to_str().unwrap()], &envelope);
                assert_eq!(opened, secret[..]);
            }
            // The public half of the key, as another user would import it.
            let other = format!("{name}-public");
            assert_eq!(
                keys.import(&other, &folder.path(&format!("{name}.pub")), &mut never)
                    .unwrap()
                    .recipient,
                info.recipient
            );
        }
        assert!(matches!(
            keys.identity("locked", &mut phrase("wrong")),
            Err(Error::WrongPassphrase(_))
        ));
    }

    #[test]
    fn rsa_is_refused_with_a_reason() {
        let folder = Folder::new();
        let file = folder.path("rsa");
        tool(
            "ssh-keygen",
            &[
                "-q",
                "-t",
                "rsa",
                "-b",
                "2048",
                "-N",
                "",
                "-f",
                file.to_str().unwrap(),
            ],
            b"",
        );
        for file in [file, folder.path("rsa.pub")] {
            let error = folder.keyring().import("r", &file, &mut never).unwrap_err();
            assert!(
                matches!(error, Error::Unsupported(_)) && error.to_string().contains("RUSTSEC"),
                "{error}"
            );
        }
    }

    #[test]
    fn damaged_files_are_errors_at_every_length_and_never_panics() {
        let folder = Folder::new();
        let keys = folder.keyring();
        keys.generate("plain", None).unwrap();
        keys.generate("locked", Some(&SecretBytes::from_slice(b"p")))
            .unwrap();
        let ssh = folder.path("ssh");
        tool(
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", ssh.to_str().unwrap()],
            b"",
        );
        keys.import("ssh", &ssh, &mut never).unwrap();
        for name in ["plain", "locked", "ssh"] {
            let path = folder.path(&format!("keys/{name}.key"));
            let whole = fs::read(&path).unwrap();
            // A missing last newline does no harm.
            for len in (0..whole.len() - 8).step_by(if name == "locked" { 7 } else { 3 }) {
                fs::write(&path, &whole[..len]).unwrap();
                assert!(
                    keys.identity(name, &mut phrase("p")).is_err(),
                    "{name} cut to {len} bytes"
                );
                let _ = keys
                    .import("copy", &path, &mut never)
                    .map(|_| keys.remove("copy"));
            }
            fs::write(&path, vec![b'x'; 70_000]).unwrap();
            assert!(keys.identity(name, &mut phrase("p")).is_err());
        }
        let envelope = keys
            .recipient("plain")
            .unwrap()
            .wrap(&SecretBytes::random(32))
            .unwrap();
        fs::remove_file(folder.path("keys/plain.key")).unwrap();
        fs::remove_file(folder.path("keys/plain.pub")).unwrap();
        keys.generate("plain", None).unwrap();
        let identity = keys.identity("plain", &mut never).unwrap();
        for len in 0..envelope.len() {
            assert!(identity.unwrap(&envelope[..len]).is_err());
        }
    }

    #[test]
    fn an_ssh_key_that_asks_for_endless_work_is_refused_before_it_is_done() {
        let folder = Folder::new();
        let file = folder.path("slow");
        let path = file.to_str().unwrap();
        tool(
            "ssh-keygen",
            &[
                "-q", "-t", "ed25519", "-a", "2000", "-N", "sesame", "-f", path,
            ],
            b"",
        );
        let keys = folder.keyring();
        keys.import("slow", &file, &mut never).unwrap();
        let error = keys.identity("slow", &mut never).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    }
}
