//! Addresses of images: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]`.

use block::{Error, ErrorKind, Result};
use lunpath::percent_decode;
use std::ffi::CString;

/// Scheme of an address.
const SCHEME: &str = "rbd:";
/// User of the cluster if the address names none, as in Ceph's own programs.
const USER: &str = "admin";
/// Maximum length of a name, in bytes. Ceph's limit for images is 96 characters.
const NAME_MAX: usize = 255;

/// Address of an image. Contains no secret: the key of the user is in the keyring that the
/// configuration of the cluster names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdAddress {
    /// Pool of the image.
    pub pool: String,
    /// Namespace in the pool; empty for the default one.
    pub namespace: String,
    /// Name of the image.
    pub image: String,
    /// Snapshot to read.
    pub snapshot: Option<String>,
    /// Configuration of the cluster. `None`: the file that `librados` finds, usually
    /// `/etc/ceph/ceph.conf`.
    pub conf: Option<String>,
    /// User of the cluster, without `client.`.
    pub id: String,
}

impl RbdAddress {
    /// Checks whether `text` has the scheme of an address.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Parses an address. A character that separates parts is escaped in names, `%40` for `@`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], with the problem and the expected form.
    pub fn parse(text: &str) -> Result<RbdAddress> {
        let invalid = |why: &str| {
            let how = "an RBD address is rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]";
            Error::new(ErrorKind::Invalid, text, format!("{why}; {how}"))
        };
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| invalid("unknown scheme"))?;
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let name = |raw: &str, what: &str| {
            let name = percent_decode(raw)
                .ok_or_else(|| invalid(&format!("the {what} has an invalid escape")))?;
            match name.len() {
                0 => Err(invalid(&format!("the {what} is missing"))),
                1..=NAME_MAX if CString::new(name.as_str()).is_ok() => Ok(name),
                _ => Err(invalid(&format!(
                    "the {what} is longer than {NAME_MAX} bytes, or contains a zero byte"
                ))),
            }
        };
        let (place, snapshot) = match place.split_once('@') {
            Some((place, snapshot)) => (place, Some(name(snapshot, "snapshot")?)),
            None => (place, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            [_] => return Err(invalid("the image is missing")),
            _ => return Err(invalid("there are too many slashes")),
        };
        let mut address = RbdAddress {
            pool: name(pool, "pool")?,
            namespace: match namespace {
                Some(namespace) => name(namespace, "namespace")?,
                None => String::new(),
            },
            image: name(image, "image")?,
            snapshot,
            conf: None,
            id: USER.to_owned(),
        };
        let query = query.into_iter().flat_map(|query| query.split('&'));
        for parameter in query {
            match parameter.split_once('=') {
                Some(("conf", file)) => {
                    let file = name(file, "file name after conf=")?;
                    if !file.starts_with('/') {
                        return Err(invalid("the file after conf= needs an absolute path"));
                    }
                    address.conf = Some(file);
                }
                Some(("id", id)) => {
                    let id = name(id, "user after id=")?;
                    if id.starts_with("client.") {
                        return Err(invalid("the user after id= has no `client.` before it"));
                    }
                    address.id = id;
                }
                // The value is not repeated: it may be a key.
                other => {
                    let key = other.map_or(parameter, |(key, _)| key);
                    return Err(invalid(&format!("unexpected parameter `{key}`")));
                }
            }
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_pool_and_an_image_and_may_have_more() {
        let short = RbdAddress::parse("rbd:vms/disk").unwrap();
        assert_eq!((short.pool.as_str(), short.image.as_str()), ("vms", "disk"));
        assert_eq!((short.namespace.as_str(), short.id.as_str()), ("", "admin"));
        assert_eq!((short.snapshot, short.conf), (None, None));
        let long = "rbd:vms/blue/my%40disk@monday?conf=/etc/ceph/b.conf&id=evfs";
        let long = RbdAddress::parse(long).unwrap();
        assert_eq!(long.namespace, "blue");
        assert_eq!(long.image, "my@disk");
        assert_eq!(long.snapshot.as_deref(), Some("monday"));
        assert_eq!(long.conf.as_deref(), Some("/etc/ceph/b.conf"));
        assert_eq!(long.id, "evfs");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_expected_form() {
        let long = format!("rbd:p/{}", "x".repeat(NAME_MAX + 1));
        for bad in [
            "rbd:",
            "rbd:pool",
            "rbd:/image",
            "rbd:pool/",
            "rbd:a/b/c/d",
            "rbd:p//i",
            "rbd:p/i@",
            "rbd:p/i?conf=ceph.conf",
            "rbd:p/i?conf=",
            "rbd:p/i?id=client.admin",
            "rbd:p/i?",
            "rbd:p/i%zz",
            "rbd:p/i%ff",
            "rbd:p/i%00",
            "nbd://p/i",
            &long,
        ] {
            let error = RbdAddress::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(error.to_string().contains("rbd:POOL"), "{error}");
        }
    }

    #[test]
    fn a_key_in_an_address_is_refused_and_the_message_does_not_explain_it() {
        let error = RbdAddress::parse("rbd:p/i?key=AQBhunter2==").unwrap_err();
        let detail = error.to_string().replace("rbd:p/i?key=AQBhunter2==", "");
        assert!(
            detail.contains("`key`") && !detail.contains("hunter2"),
            "{detail}"
        );
    }
}
