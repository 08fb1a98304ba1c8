//! Parser for `iscsi://[USER@]HOST[:PORT]/TARGET/LUN`.

use block::{Error, ErrorKind, Result};

/// Default port of iSCSI (RFC 7143, section 15).
const PORT: u16 = 3260;
/// Maximum length of a target name in bytes (RFC 7143, section 4.2.7.2).
const NAME_BYTES_MAX: usize = 223;

/// Address of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) user: Option<String>,
    pub(crate) portal: Portal,
    pub(crate) target: String,
    pub(crate) lun: u16,
}

/// Address on which a target listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    /// Host name or IP address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Portal {
    /// Parses `HOST[:PORT]`, with brackets around an IPv6 address.
    pub(crate) fn parse(text: &str) -> Result<Portal> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, text, why));
        let (host, port) = match text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, rest.strip_prefix(':').or(Some(rest))),
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() {
            return refuse("the portal has no host; write HOST or HOST:PORT");
        }
        match port.map(str::parse) {
            None => Ok(Portal {
                host: host.into(),
                port: PORT,
            }),
            Some(Ok(port)) => Ok(Portal {
                host: host.into(),
                port,
            }),
            Some(Err(_)) => refuse("the port is not a number; put an IPv6 address in brackets"),
        }
    }
}

impl Address {
    pub(crate) fn parse(uri: &str) -> Result<Address> {
        let refuse = |why: &str| {
            // The part before an `@` may hold a password put there by mistake.
            let shown = uri.rsplit_once('@').map_or(uri, |(_, rest)| rest);
            let why = format!("{why}; write iscsi://[USER@]HOST[:PORT]/TARGET/LUN");
            Err(Error::new(ErrorKind::Invalid, shown, why))
        };
        let Some(rest) = uri.strip_prefix("iscsi://") else {
            return refuse("not an iSCSI address");
        };
        let Some((authority, path)) = rest.split_once('/') else {
            return refuse("the target is missing");
        };
        let (user, portal) = match authority.rsplit_once('@') {
            Some((user, portal)) => (Some(user), portal),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains([':', '%'])) {
            return refuse("an address must not contain a secret: name a file that holds it");
        }
        if user.is_some_and(str::is_empty) {
            return refuse("the user name is empty");
        }
        let Some((target, lun)) = path.trim_end_matches('/').rsplit_once('/') else {
            return refuse("the LUN is missing");
        };
        let name = |c: char| c.is_ascii_alphanumeric() || ".-:_".contains(c);
        if target.is_empty() || target.len() > NAME_BYTES_MAX || !target.chars().all(name) {
            return refuse("the target name is invalid");
        }
        match lun.parse() {
            Ok(lun @ 0..=0x3fff) => Ok(Address {
                user: user.map(Into::into),
                portal: Portal::parse(portal)?,
                target: target.into(),
                lun,
            }),
            _ => refuse("the LUN is not a number from 0 to 16383"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let full =
            Address::parse("iscsi://joe@10.0.0.1:3261/iqn.2001-04.com.example:x.y/7").unwrap();
        assert_eq!(full.user.as_deref(), Some("joe"));
        assert_eq!(full.portal.to_string(), "10.0.0.1:3261");
        assert_eq!(
            (full.target.as_str(), full.lun),
            ("iqn.2001-04.com.example:x.y", 7)
        );
        let short = Address::parse("iscsi://host/iqn.x/0").unwrap();
        assert_eq!((short.user, short.portal.port), (None, 3260));
        let six = Address::parse("iscsi://[fe80::1]:1/iqn.x/0").unwrap();
        assert_eq!((six.portal.host.as_str(), six.portal.port), ("fe80::1", 1));
        assert_eq!(Portal::parse("[::1]").unwrap().to_string(), "[::1]:3260");
    }

    #[test]
    fn what_is_no_address_is_refused_and_no_secret_is_shown() {
        for bad in [
            "nbd://h/iqn.x/0",
            "iscsi://h",
            "iscsi://h/iqn.x",
            "iscsi://h/iqn.x/z",
            "iscsi://h/iqn.x/16384",
            "iscsi://h/iqn x/0",
            "iscsi:///iqn.x/0",
            "iscsi://h:port/iqn.x/0",
            "iscsi://@h/iqn.x/0",
            "iscsi://fe80::1/iqn.x/0",
            "iscsi://joe:hunter2@h/iqn.x/0",
            "iscsi://joe%hunter2@h/iqn.x/0",
        ] {
            let error = Address::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
