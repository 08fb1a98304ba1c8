//! The configuration of `evfs up`: a TOML file with a table for each volume.
//!
//! ```toml
//! [volume.data]
//! device = "/srv/data.img"
//! key-file = "/etc/evfs/data.key"
//! loop = true
//!
//! [volume.scratch]
//! device = "/srv/scratch.img"
//! key = "alice"
//! nbd = "127.0.0.1:10809"
//! threads = 4
//! ```

use crate::attach::AttachSpec;
use crate::settings::did_you_mean;
use crate::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Keys of a volume's table, for the hint at a misspelt one.
const KEYS: &[&str] = &[
    "device",
    "key",
    "key-file",
    "nbd",
    "nbd-unix",
    "tls-cert",
    "tls-key",
    "tls-ca",
    "fuse",
    "loop",
    "threads",
    "read-only",
    "allow-discards",
    "direct",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    volume: BTreeMap<String, Volume>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Volume {
    device: PathBuf,
    key: Option<String>,
    key_file: Option<PathBuf>,
    nbd: Option<SocketAddr>,
    nbd_unix: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    fuse: Option<PathBuf>,
    #[serde(default)]
    r#loop: bool,
    threads: Option<usize>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    allow_discards: bool,
    #[serde(default)]
    direct: bool,
}

/// A volume of the file: what to attach, and with which key.
pub struct Entry {
    /// What to attach.
    pub spec: AttachSpec,
    /// Name of the key pair, where one is given.
    pub key: Option<String>,
    /// Key file, where one is given.
    pub key_file: Option<PathBuf>,
}

/// Reads the file.
///
/// # Errors
/// [`Error::Config`] with the line for whatever is wrong in it.
pub fn read(path: &Path, threads: usize) -> Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::io("cannot read the configuration", path, e))?;
    parse(path, &text, threads)
}

fn parse(path: &Path, text: &str, threads: usize) -> Result<Vec<Entry>> {
    let file: File = toml::from_str(text).map_err(|e| {
        let message = e.to_string();
        let unknown = message
            .split("unknown field `")
            .nth(1)
            .and_then(|m| m.split('`').next());
        let hint = unknown.map(|word| did_you_mean(word, KEYS.iter().copied()));
        Error::config(
            path,
            format!("{}{}", message.trim_end(), hint.unwrap_or_default()),
        )
    })?;
    if file.volume.is_empty() {
        return Err(Error::config(
            path,
            "no volume in it; a [volume.NAME] table makes one".into(),
        ));
    }
    file.volume
        .into_iter()
        .map(|(name, v)| entry(path, name, v, threads))
        .collect()
}

fn entry(path: &Path, name: String, v: Volume, threads: usize) -> Result<Entry> {
    let tls = match (v.tls_cert, v.tls_key) {
        (Some(certificate), Some(key)) => Some(export_nbd::Tls {
            certificate,
            key,
            client_ca: v.tls_ca,
        }),
        (None, None) => None,
        _ => {
            let detail = format!("volume.{name}: tls-cert and tls-key go together");
            return Err(Error::config(path, detail));
        }
    };
    if v.key.is_some() && v.key_file.is_some() {
        let detail = format!("volume.{name}: key and key-file exclude each other");
        return Err(Error::config(path, detail));
    }
    let spec = AttachSpec {
        name,
        nbd: v.nbd,
        nbd_unix: v.nbd_unix,
        tls,
        fuse: v.fuse,
        loop_device: v.r#loop,
        read_only: v.read_only,
        allow_discards: v.allow_discards,
        cached: !v.direct,
        config: Some(std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())),
        ..AttachSpec::new(&v.device, v.threads.unwrap_or(threads))
    };
    Ok(Entry {
        spec,
        key: v.key,
        key_file: v.key_file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_example_of_the_module() {
        let text = "[volume.data]\ndevice = \"/d\"\nkey-file = \"/k\"\nloop = true\n\
                    [volume.scratch]\ndevice = \"/s\"\nkey = \"alice\"\nnbd = \"127.0.0.1:10809\"\nthreads = 4\n";
        let entries = parse(Path::new("x.toml"), text, 2).unwrap();
        let names: Vec<_> = entries
            .iter()
            .map(|e| (e.spec.name.as_str(), e.spec.threads))
            .collect();
        assert_eq!(names, [("data", 2), ("scratch", 4)]);
        assert!(entries[0].spec.loop_device && entries[1].key.as_deref() == Some("alice"));
    }

    #[test]
    fn a_misspelt_key_gets_a_hint_and_a_line() {
        let text = "[volume.data]\ndevice = \"/d\"\nread-olny = true\n";
        let error = parse(Path::new("x.toml"), text, 2)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("did you mean `read-only`?") && error.contains("line 3"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_file_is_an_error() {
        assert!(parse(Path::new("x.toml"), "", 2).is_err());
    }
}
