//! The directory of key pairs.

use crate::identity::{self, Identity, read_secret, secret_string};
use crate::recipient::{KeyKind, Recipient};
use crate::{Error, Result, openssh};
use secret::SecretBytes;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest key file, in bytes.
const FILE_BYTES_MAX: usize = 64 * 1024;
/// Prefix of the names of temporary files. Names of keys do not begin with a dot.
const TEMPORARY: &[u8] = b".evfs-new-";
/// First line of an age file, armored and not.
const AGE_MAGIC: &[u8] = b"age-encryption.org/v1\n";
const AGE_ARMOR: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// A directory of key pairs.
pub struct Keyring {
    dir: PathBuf,
    scrypt_log_n: Option<u8>,
}

/// State of the private half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Private {
    /// Not in this keyring.
    Absent,
    /// In this keyring, unprotected.
    Plain,
    /// In this keyring, under a passphrase.
    Passphrase,
}

/// A key pair as described by its files.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// Name of the key.
    pub name: String,
    /// Kind of the key.
    pub kind: KeyKind,
    /// Public half.
    pub recipient: Recipient,
    /// State of the private half.
    pub private: Private,
    /// File of the public half.
    pub public_file: PathBuf,
}

/// Existing files of a key pair.
#[derive(Debug, Clone)]
pub struct Files {
    /// File of the public half.
    pub public: Option<PathBuf>,
    /// File of the private half.
    pub private: Option<PathBuf>,
}

/// Contents of a keyring.
#[derive(Debug)]
pub struct Listing {
    /// Usable keys, sorted by name.
    pub keys: Vec<KeyInfo>,
    /// Names of unusable keys, each with the reason.
    pub refused: Vec<(String, Error)>,
}

/// Purpose of a passphrase; displayed as the question to ask.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Name of the key.
    pub name: String,
}

impl fmt::Display for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Passphrase for the key `{}`", self.name)
    }
}

impl Keyring {
    /// Creates a keyring of the keys in `dir`, which need not exist yet.
    pub fn open(dir: PathBuf) -> Keyring {
        Keyring {
            dir,
            scrypt_log_n: None,
        }
    }

    /// Sets the cost of new passphrases (log2 of scrypt's N), which otherwise is measured for about
    /// a second.
    pub fn with_scrypt_log_n(self, log_n: u8) -> Keyring {
        Keyring {
            scrypt_log_n: Some(log_n),
            ..self
        }
    }

    /// Generates a key pair and stores it, under a passphrase if there is one.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NumberName`], [`Error::PublicName`], [`Error::Exists`],
    /// [`Error::HalfMade`], [`Error::NoPassphrase`] for an empty passphrase, and errors of the
    /// system. No file is left behind.
    pub fn generate(&self, name: &str, passphrase: Option<&SecretBytes>) -> Result<KeyInfo> {
        self.vacant(name)?;
        let (identity, line) = Identity::generate()?;
        let recipient = identity.recipient().clone();
        let head = format!("# public key: {recipient}\n");
        let mut text = SecretBytes::zeroed(head.len() + line.len() + 1);
        text[..head.len()].copy_from_slice(head.as_bytes());
        text[head.len()..head.len() + line.len()].copy_from_slice(&line);
        let end = text.len() - 1;
        text[end] = b'\n';
        match passphrase {
            None => self.store(name, &recipient, Some(&text))?,
            Some(passphrase) => {
                let sealed = self.seal(&text, passphrase, name)?;
                self.store(name, &recipient, Some(&sealed))?;
            }
        }
        self.info(name)
    }

    /// Encrypts `text` under a passphrase to an armored age file.
    fn seal(&self, text: &SecretBytes, passphrase: &SecretBytes, name: &str) -> Result<Vec<u8>> {
        let checked = passphrase.check();
        checked.map_err(|e| Error::NoPassphrase(e.to_string()))?;
        let mut recipient = age::scrypt::Recipient::new(secret_string(passphrase, name)?);
        if let Some(log_n) = self.scrypt_log_n {
            recipient.set_work_factor(log_n);
        }
        let sealed = age::encrypt_and_armor(&recipient, text);
        secret::burn_stack();
        sealed
            .map(String::into_bytes)
            .map_err(|e| Error::malformed(format!("the key `{name}`"), e.to_string()))
    }

    /// Lists all keys, sorted by name; unusable ones come with the reason.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Listing> {
        let mut listing = Listing {
            keys: Vec::new(),
            refused: Vec::new(),
        };
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(listing),
            Err(e) => return Err(Error::io("cannot list", &self.dir, e)),
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".pub")?.to_owned()))
            .filter(|name| valid(name))
            .collect();
        names.sort();
        for name in names {
            match self.info(&name) {
                Ok(info) => listing.keys.push(info),
                Err(why) => listing.refused.push((name, why)),
            }
        }
        Ok(listing)
    }

    /// Describes a key from its files.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::NotFound`], [`Error::Malformed`], [`Error::Permissions`], and
    /// errors of the system.
    pub fn info(&self, name: &str) -> Result<KeyInfo> {
        let recipient = self.recipient(name)?;
        let private = match self.read_private(name) {
            Ok(text) if is_protected(&text) => Private::Passphrase,
            Ok(_) => Private::Plain,
            Err(Error::PublicOnly(_)) => Private::Absent,
            Err(e) => return Err(e),
        };
        Ok(KeyInfo {
            name: name.to_owned(),
            kind: recipient.kind(),
            recipient,
            private,
            public_file: self.path(name, "pub")?,
        })
    }

    /// Reads the public half of a key.
    ///
    /// # Errors
    /// As [`Keyring::info`].
    pub fn recipient(&self, name: &str) -> Result<Recipient> {
        let path = self.path(name, "pub")?;
        let text = match read_file(&path) {
            Ok(text) => text,
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotFound {
                    name: name.to_owned(),
                    dir: self.dir.clone(),
                });
            }
            Err(e) => return Err(e),
        };
        let text = std::str::from_utf8(&text)
            .map_err(|_| Error::malformed(path.display().to_string(), "it is not text"))?;
        text.lines().next().unwrap_or_default().parse()
    }

    /// Opens the private half; calls `ask` if it is under a passphrase.
    ///
    /// # Errors
    /// [`Error::PublicOnly`], [`Error::Permissions`], [`Error::WrongPassphrase`], errors of `ask`,
    /// and those of [`Keyring::info`].
    pub fn identity(
        &self,
        name: &str,
        ask: &mut dyn FnMut(&Prompt) -> Result<SecretBytes>,
    ) -> Result<Identity> {
        let recipient = self.recipient(name)?;
        let text = self.read_private(name)?;
        let mut ask = || {
            ask(&Prompt {
                name: name.to_owned(),
            })
        };
        let identity = open_private(&text, name, &mut ask)?;
        if *identity.recipient() != recipient {
            return Err(Error::malformed(
                format!("the key `{name}`"),
                "its private and public files do not match",
            ));
        }
        Ok(identity)
    }

    /// Finds the public half that `which` stands for: the name of a key, or a public key itself,
    /// `age1...` or `ssh-ed25519 AAAA...`. Returns it with a name for it: that of the key here, or
    /// one that is derived from the public key.
    ///
    /// # Errors
    /// As [`Keyring::info`]; [`Error::Malformed`] for a public key with an error.
    pub fn named_or_public(&self, which: &str) -> Result<(String, Recipient)> {
        if !looks_public(which) {
            return Ok((which.to_owned(), self.recipient(which)?));
        }
        match which.parse::<Recipient>() {
            Ok(public) => Ok((self.name_of(&public), public)),
            // The name of a key may look like the beginning of a public key.
            Err(error) => match self.recipient(which) {
                Ok(recipient) => Ok((which.to_owned(), recipient)),
                Err(_) => Err(error),
            },
        }
    }

    /// Returns the name of a public key here, or derives one from it.
    fn name_of(&self, public: &Recipient) -> String {
        let known = self.list().map_or_else(|_| Vec::new(), |l| l.keys);
        let known = known.into_iter().find(|info| info.recipient == *public);
        known.map_or_else(|| public.short_name(), |info| info.name)
    }

    /// Imports a key from a file: an age identity, plain or under a passphrase; an OpenSSH ed25519
    /// key; or a public key. The public half of an age identity under a passphrase is read from the
    /// file beside it, `FILE.pub`, or `FILE` with the extension `pub`. Without that file, `ask` is
    /// called for the passphrase.
    ///
    /// # Errors
    /// Those of [`Keyring::generate`] and of `ask`, [`Error::Unsupported`] and
    /// [`Error::Malformed`].
    pub fn import(
        &self,
        name: &str,
        file: &Path,
        ask: &mut dyn FnMut(&Prompt) -> Result<SecretBytes>,
    ) -> Result<KeyInfo> {
        self.vacant(name)?;
        let text = read_file(file)?;
        let what = file.display().to_string();
        let appended = PathBuf::from(format!("{what}.pub"));
        let places = [appended, file.with_extension("pub")];
        let beside = places.iter().find(|path| path.exists());
        let public = beside.filter(|_| is_protected(&text));
        let public = public.map(|path| read_file(path)).transpose()?;
        self.import_text(name, &text, &what, public.as_deref(), ask)
    }

    /// Imports a key like [`Keyring::import`], from its text. Errors call the text `what`. `public`
    /// is the text of the public half of an age identity under a passphrase, if it is known.
    ///
    /// # Errors
    /// As [`Keyring::import`].
    pub fn import_text(
        &self,
        name: &str,
        text: &[u8],
        what: &str,
        public: Option<&[u8]>,
        ask: &mut dyn FnMut(&Prompt) -> Result<SecretBytes>,
    ) -> Result<KeyInfo> {
        self.vacant(name)?;
        let as_text = std::str::from_utf8(text).unwrap_or_default();
        if openssh::is_private_key(as_text) {
            let clear = openssh::clear(as_text);
            let clear = clear
                .ok_or_else(|| Error::malformed(what, "the OpenSSH private key is damaged"))?;
            let recipient: Recipient = clear.public.parse()?;
            if !clear.encrypted {
                // Refuses an unusable key now, not when it is first needed.
                open_private(text, what, &mut || {
                    Err(Error::WrongPassphrase(what.to_owned()))
                })?;
            }
            self.store(name, &recipient, Some(text))?;
        } else if is_protected(text) {
            let recipient: Recipient = match public {
                Some(public) => std::str::from_utf8(public).unwrap_or_default().parse()?,
                None => {
                    let mut ask = || {
                        ask(&Prompt {
                            name: name.to_owned(),
                        })
                    };
                    open_private(text, name, &mut ask)?.recipient().clone()
                }
            };
            self.store(name, &recipient, Some(text))?;
        } else if as_text.contains("AGE-SECRET-KEY-") {
            let identity = Identity::from_age_text(text, what)?;
            self.store(name, identity.recipient(), Some(text))?;
        } else {
            let line = as_text
                .lines()
                .map(str::trim)
                .find(|l| !l.is_empty() && !l.starts_with('#'));
            let line = line.ok_or_else(|| Error::malformed(what, "it is empty"))?;
            if line.starts_with("-----BEGIN") {
                return Err(Error::Unsupported(format!(
                    "the format of {what} is not supported; convert an old ssh key with \
                     `ssh-keygen -p -f FILE`"
                )));
            }
            let recipient = line.parse().map_err(|error| match error {
                Error::Malformed { why, .. } => Error::malformed(what, why),
                other => other,
            })?;
            self.store(name, &recipient, None)?;
        }
        self.info(name)
    }

    /// Returns the text of the private half of a key, in the form in which [`Keyring::import_text`]
    /// accepts it. A protected key is returned as it is stored; an unprotected one is encrypted
    /// under `passphrase`, or returned in the clear without one.
    ///
    /// # Errors
    /// [`Error::PublicOnly`], [`Error::Permissions`], [`Error::NoPassphrase`] for an empty
    /// passphrase, those of [`Keyring::info`]; [`Error::Unsupported`] for a passphrase for an
    /// unprotected OpenSSH key.
    pub fn export_private(
        &self,
        name: &str,
        passphrase: Option<&SecretBytes>,
    ) -> Result<SecretBytes> {
        // A name without any file is reported as such.
        self.recipient(name)?;
        let text = self.read_private(name)?;
        let Some(passphrase) = passphrase.filter(|_| !is_protected(&text)) else {
            return Ok(text);
        };
        if std::str::from_utf8(&text).is_ok_and(openssh::is_private_key) {
            return Err(Error::Unsupported(format!(
                "an OpenSSH key cannot be exported under a passphrase; `ssh-keygen -p -f {}` \
                 protects the key itself",
                self.path(name, "key")?.display()
            )));
        }
        let sealed = self.seal(&text, passphrase, name)?;
        Ok(SecretBytes::from_slice(&sealed))
    }

    /// Finds the existing files of a key.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has none.
    pub fn files(&self, name: &str) -> Result<Files> {
        let there = |extension| {
            self.path(name, extension)
                .map(|path| path.exists().then_some(path))
        };
        let files = Files {
            public: there("pub")?,
            private: there("key")?,
        };
        match (&files.public, &files.private) {
            (None, None) => Err(Error::NotFound {
                name: name.to_owned(),
                dir: self.dir.clone(),
            }),
            _ => Ok(files),
        }
    }

    /// Removes both files of a key. Keyslots in volumes stay: a copy of the private key still opens
    /// them.
    ///
    /// # Errors
    /// [`Error::NotFound`], and errors of the system.
    pub fn remove(&self, name: &str) -> Result<()> {
        // A crash while a key is stored may have left the private file only.
        let Files { public, private } = self.files(name)?;
        for path in private.into_iter().chain(public) {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot remove", &path, e));
                }
                _ => {}
            }
        }
        sync_dir(&self.dir)
    }

    fn path(&self, name: &str, extension: &str) -> Result<PathBuf> {
        if !valid(name) {
            return Err(Error::BadName(name.to_owned()));
        }
        Ok(self.dir.join(format!("{name}.{extension}")))
    }

    /// Refuses a taken name, a number or a public key as the name of a new key. Existing keys named
    /// by numbers stay valid.
    fn vacant(&self, name: &str) -> Result<()> {
        if is_number(name) {
            return Err(Error::NumberName(name.to_owned()));
        }
        if looks_public(name) && name.parse::<Recipient>().is_ok() {
            return Err(Error::PublicName(name.to_owned()));
        }
        if self.path(name, "pub")?.exists() {
            return Err(Error::Exists(name.to_owned()));
        }
        if self.path(name, "key")?.exists() {
            return Err(Error::HalfMade(name.to_owned()));
        }
        Ok(())
    }

    fn read_private(&self, name: &str) -> Result<SecretBytes> {
        let path = self.path(name, "key")?;
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::PublicOnly(name.to_owned()));
            }
            Err(e) => return Err(Error::io("cannot open", &path, e)),
        };
        let meta = file
            .metadata()
            .map_err(|e| Error::io("cannot read the mode of", &path, e))?;
        if meta.mode() & 0o077 != 0 {
            return Err(Error::Permissions(path));
        }
        read_from(file, &path)
    }

    /// Writes the files of a key, the private one first: the key exists once its public half does.
    fn store(&self, name: &str, recipient: &Recipient, private: Option<&[u8]>) -> Result<()> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir);
        made.map_err(|e| Error::io("cannot create the directory", &self.dir, e))?;
        let _alone = self.alone();
        if let Some(private) = private {
            self.write_new(&self.path(name, "key")?, private, 0o600, name)?;
        }
        let public = format!("{recipient}\n");
        let written = self.write_new(&self.path(name, "pub")?, public.as_bytes(), 0o644, name);
        if written.is_err() && private.is_some() {
            let _ = std::fs::remove_file(self.path(name, "key")?);
        }
        written
    }

    /// Locks the directory against other processes that store keys, and removes temporary files
    /// that killed processes left. Removes nothing if the directory cannot be locked.
    fn alone(&self) -> Option<File> {
        let folder = File::open(&self.dir).ok()?;
        folder.lock().ok()?;
        for entry in std::fs::read_dir(&self.dir).ok()?.flatten() {
            if entry.file_name().as_bytes().starts_with(TEMPORARY) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Some(folder)
    }

    /// Writes a file that appears complete or not at all, and never replaces another.
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, name: &str) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("cannot write", path, e);
        let mut file = tempfile::Builder::new()
            .prefix(OsStr::from_bytes(TEMPORARY))
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(&self.dir)
            .map_err(failed)?;
        file.write_all(bytes)
            .and_then(|()| file.as_file().sync_all())
            .map_err(failed)?;
        file.persist_noclobber(path).map_err(|e| match e.error {
            e if e.kind() == std::io::ErrorKind::AlreadyExists => Error::Exists(name.to_owned()),
            e => failed(e),
        })?;
        sync_dir(&self.dir)
    }
}

/// Returns the name under which to import a key called `name`: older releases allowed numbers as
/// names, which new keys may not have.
pub fn name_to_import(name: &str) -> String {
    if is_number(name) {
        format!("key{name}")
    } else {
        name.to_owned()
    }
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

/// Reports whether text begins like a public key. The name of a key can do so, too.
pub fn looks_public(text: &str) -> bool {
    text.starts_with("age1") || text.starts_with("ssh-ed25519 ") || text.starts_with("ssh-rsa ")
}

fn valid(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len()) && name.chars().all(good) && !name.starts_with(['.', '-'])
}

fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|d| d.sync_all());
    synced.map_err(|e| Error::io("cannot sync the directory", dir, e))
}

/// Opens the private key in a file, in any form that [`Keyring::import`] accepts; calls `ask` if it
/// is under a passphrase.
///
/// # Errors
/// [`Error::Permissions`], [`Error::WrongPassphrase`], [`Error::Malformed`], [`Error::Unsupported`];
/// errors of `ask`.
pub fn identity_of_file(
    path: &Path,
    ask: &mut dyn FnMut(&Prompt) -> Result<SecretBytes>,
) -> Result<Identity> {
    let text = secret_of_file(path)?;
    let name = path.display().to_string();
    let mut ask = || ask(&Prompt { name: name.clone() });
    open_private(&text, &name, &mut ask)
}

/// Reads a secret from a file that other users cannot read, or from a pipe.
///
/// # Errors
/// [`Error::Permissions`]; [`Error::Malformed`]: it is longer than 64 KiB.
pub fn secret_of_file(path: &Path) -> Result<SecretBytes> {
    let file = File::open(path).map_err(|e| Error::io("cannot open", path, e))?;
    let meta = file.metadata();
    let meta = meta.map_err(|e| Error::io("cannot read the mode of", path, e))?;
    if meta.is_file() && meta.mode() & 0o077 != 0 {
        return Err(Error::Permissions(path.to_owned()));
    }
    read_from(file, path)
}

fn read_file(path: &Path) -> Result<SecretBytes> {
    let file = File::open(path).map_err(|e| Error::io("cannot open", path, e))?;
    read_from(file, path)
}

fn read_from(mut file: File, path: &Path) -> Result<SecretBytes> {
    let mut held = SecretBytes::zeroed(FILE_BYTES_MAX + 1);
    let mut len = 0;
    loop {
        match file.read(&mut held[len..]) {
            Ok(0) => return Ok(held.truncated(len)),
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("cannot read", path, e)),
        }
        if len > FILE_BYTES_MAX {
            return Err(Error::malformed(
                path.display().to_string(),
                "it is too large for a key",
            ));
        }
    }
}

/// Reports whether a private key file needs a passphrase.
fn is_protected(text: &[u8]) -> bool {
    let ssh = std::str::from_utf8(text).ok().and_then(openssh::clear);
    text.starts_with(AGE_MAGIC) || text.starts_with(AGE_ARMOR) || ssh.is_some_and(|c| c.encrypted)
}

fn open_private(
    text: &[u8],
    name: &str,
    ask: &mut dyn FnMut() -> Result<SecretBytes>,
) -> Result<Identity> {
    if std::str::from_utf8(text).is_ok_and(openssh::is_private_key) {
        return Identity::from_openssh(text, name, ask);
    }
    if !is_protected(text) {
        return Identity::from_age_text(text, name);
    }
    let damaged = || Error::malformed(format!("the key `{name}`"), "the age file is damaged");
    let decryptor = age::Decryptor::new_buffered(age::armor::ArmoredReader::new(text))
        .map_err(|_| damaged())?;
    if !decryptor.is_scrypt() {
        return Err(Error::malformed(
            format!("the key `{name}`"),
            "it is encrypted to another key",
        ));
    }
    let mut scrypt = age::scrypt::Identity::new(secret_string(&ask()?, name)?);
    scrypt.set_max_work_factor(identity::SCRYPT_LOG_N_MAX);
    let opened = match decryptor.decrypt(std::iter::once(&scrypt as &dyn age::Identity)) {
        Ok(stream) => read_secret(stream, FILE_BYTES_MAX).map_err(|_| damaged()),
        Err(age::DecryptError::ExcessiveWork { .. }) => Err(Error::Unsupported(format!(
            "the passphrase of the key `{name}` requires more work than is allowed"
        ))),
        Err(_) => Err(Error::WrongPassphrase(name.to_owned())),
    };
    secret::burn_stack();
    Identity::from_age_text(&opened?, name)
}
