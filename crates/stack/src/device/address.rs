//! The text of a DEVICE: whether it names a file or a LUN, and the addresses in it.

use path_nbd::NbdUri;
use path_rbd::RbdAddress;
use std::path::Path;

/// Reports whether a name has the form of those that the registry assigns.
pub(crate) fn is_lun_name(name: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let legacy = || {
        let (c, rest) = name.strip_prefix('c')?.split_once('t')?;
        let (t, d) = rest.split_once('d')?;
        Some(digits(c) && digits(t) && digits(d))
    };
    name.strip_prefix("disk").is_some_and(digits) || legacy() == Some(true)
}

pub(crate) fn is_uri(name: &str) -> bool {
    NbdUri::is_one(name) || name.starts_with("iscsi://") || RbdAddress::is_one(name)
}

/// Splits a DEVICE that names a LUN into its addresses; returns `None` for a file. An existing file
/// takes precedence over a LUN of the same name.
pub(super) fn addresses(device: &Path) -> Option<Vec<String>> {
    let text = device.to_str()?;
    if device.exists() {
        return None;
    }
    if is_lun_name(text) {
        return Some(vec![text.to_owned()]);
    }
    // The `+` of a URI scheme (`nbd+unix`) joins no paths: such a piece continues the last part.
    let mut parts: Vec<String> = Vec::new();
    for piece in text.split('+') {
        let inside = parts
            .last()
            .is_some_and(|p| matches!(p.as_str(), "nbd" | "nbds"));
        match parts.last_mut() {
            Some(last) if inside => *last = format!("{last}+{piece}"),
            _ => parts.push(piece.to_owned()),
        }
    }
    let one = |p: &String| is_uri(p) || is_lun_name(p) || Path::new(p).exists();
    let several = parts.len() > 1 && parts.iter().all(one);
    let full = || parts.iter().map(|part| full_address(part)).collect();
    (several || is_uri(text)).then(full)
}

/// Reports whether a DEVICE names a LUN, by name or address, and not a file.
pub fn is_lun(device: &Path) -> bool {
    addresses(device).is_some()
}

/// Derives the default name of a service from its DEVICE.
pub fn default_name(device: &Path) -> String {
    let Some(first) = addresses(device).and_then(|a| a.into_iter().next()) else {
        let stem = device.file_stem().map(|s| s.to_string_lossy().into_owned());
        return stem.unwrap_or_default();
    };
    let plain = first.split('?').next().unwrap_or_default();
    // The part behind the authority: an export, a target and a logical unit number, or an image.
    let plain = if RbdAddress::is_one(plain) {
        plain.split('@').next().unwrap_or_default()
    } else {
        plain
    };
    let within = match plain.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, within)| within),
        None => plain,
    };
    let mut parts = within.split('/').filter(|s| !s.is_empty());
    let name = if first.starts_with("iscsi://") {
        parts.next()
    } else {
        parts.next_back()
    };
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name
        .unwrap_or("volume")
        .chars()
        .filter(|c| good(*c))
        .collect();
    name.trim_start_matches(['.', '-'])
        .chars()
        .take(64)
        .collect()
}

/// Converts an address to the form that the registry stores: paths are absolute.
pub(crate) fn full_address(address: &str) -> String {
    if is_uri(address) || !Path::new(address).exists() {
        return address.to_owned();
    }
    let full = std::path::absolute(address).ok();
    let full = full.and_then(|path| path.into_os_string().into_string().ok());
    full.unwrap_or_else(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_file_or_the_paths_of_a_lun() {
        let parse = |text: &str| addresses(Path::new(text));
        assert_eq!(parse("/dev/null"), None);
        assert_eq!(parse("not-there.img"), None);
        assert_eq!(parse("disk12"), Some(vec!["disk12".into()]));
        assert_eq!(parse("c0t1d2"), Some(vec!["c0t1d2".into()]));
        assert_eq!(parse("diskette"), None);
        let unix = "nbd+unix:///e?socket=/a";
        let both = format!("{unix}+nbd://h/x+iscsi://p/iqn.x/1+{unix}");
        let parts = parse(&both).unwrap();
        assert_eq!(parts, [unix, "nbd://h/x", "iscsi://p/iqn.x/1", unix]);
        let rbd = "rbd:vms/a?conf=/etc/ceph/a.conf";
        assert_eq!(parse(rbd), Some(vec![rbd.into()]));
        assert_eq!(parse(&format!("{rbd}+nbd://h/x")).unwrap().len(), 2);
        assert_eq!(parse("/dev/null+/dev/zero").unwrap().len(), 2);
        assert_eq!(parse("/dev/null+/not/there"), None);
    }

    #[test]
    fn what_is_attached_has_a_name() {
        let name = |text: &str| default_name(Path::new(text));
        assert_eq!(name("/srv/data.img"), "data");
        assert_eq!(name("nbd+unix:///e?socket=/a+nbd://h/x"), "e");
        assert_eq!(name("nbd://h:1/x"), "x");
        assert_eq!(name("nbd://h:1/"), "volume");
        assert_eq!(
            name("iscsi://h/iqn.2026-01.org.evfs:d/1"),
            "iqn.2026-01.org.evfsd"
        );
        assert_eq!(name("rbd:vms/blue/web@monday?id=evfs"), "web");
        assert_eq!(name("disk3"), "disk3");
    }
}
