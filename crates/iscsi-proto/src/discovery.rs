//! Response to SendTargets (appendix C).

use crate::text::pairs;
use crate::{Result, broken};

/// A target and its portals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// iSCSI qualified name of the target.
    pub iqn: String,
    /// `HOST:PORT` of each portal, with its portal group tag if the target reports one.
    pub portals: Vec<(String, Option<u16>)>,
}

/// Maximum number of lines (targets and portals) accepted in one response.
const TARGETS_MAX: usize = 16_384;

/// Parses the concatenated text of all responses to `SendTargets=All`.
///
/// # Errors
/// The text is malformed, names a portal before a target, or holds more than 16,384 lines.
pub fn parse_targets(text: &[u8]) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for (count, (key, value)) in pairs(text)?.into_iter().enumerate() {
        if count >= TARGETS_MAX {
            return broken("too many targets and portals");
        }
        match (key, targets.last_mut()) {
            ("TargetName", _) => targets.push(Target {
                iqn: value.into(),
                portals: Vec::new(),
            }),
            ("TargetAddress", Some(target)) => {
                let (address, group) = split_group(value);
                target.portals.push((address.into(), group));
            }
            ("TargetAddress", None) => return broken("a portal before the first target"),
            _ => {}
        }
    }
    Ok(targets)
}

/// Splits `HOST[:PORT][,GROUP]` into the address and the portal group tag.
pub(crate) fn split_group(value: &str) -> (&str, Option<u16>) {
    match value.split_once(',') {
        Some((address, group)) => (address, group.parse().ok()),
        None => (value, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_their_portals_in_order() {
        let text =
            b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[fe80::1]:3261,2\0\
                     TargetName=iqn.b\0";
        let targets = parse_targets(text).unwrap();
        assert_eq!(targets.len(), 2);
        let portals = [
            ("10.0.0.1:3260".into(), Some(1)),
            ("[fe80::1]:3261".into(), Some(2)),
        ];
        assert_eq!(targets[0].portals, portals);
        assert_eq!(
            (targets[1].iqn.as_str(), targets[1].portals.len()),
            ("iqn.b", 0)
        );
        assert!(parse_targets(b"TargetAddress=x\0").is_err());
        assert_eq!(parse_targets(b""), Ok(Vec::new()));
    }
}
