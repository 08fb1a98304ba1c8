//! Parsers for READ CAPACITY, MODE SENSE, REPORT LUNS and REPORT TARGET PORT GROUPS responses.

use crate::bytes::{array, u16_at, u32_at, u64_at};

/// Capacity of a logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
}

/// Parses READ CAPACITY(16) data (SBC-3, section 5.16.2). Returns `None` if the data is truncated
/// or the block size is zero.
pub fn parse_capacity16(data: &[u8]) -> Option<Capacity> {
    Some(Capacity {
        blocks: u64_at(data, 0)?.checked_add(1)?,
        block_bytes: u32_at(data, 8).filter(|bytes| *bytes > 0)?,
    })
}

/// Parses READ CAPACITY(10) data. Returns `None` if the data is truncated, the block size is zero,
/// or the unit is too large for READ CAPACITY(10).
pub fn parse_capacity10(data: &[u8]) -> Option<Capacity> {
    Some(Capacity {
        blocks: u64::from(u32_at(data, 0)?.checked_add(1)?),
        block_bytes: u32_at(data, 4).filter(|bytes| *bytes > 0)?,
    })
}

/// Caching and write-protection state from MODE SENSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeSense {
    /// The unit is write-protected (WP).
    pub write_protected: bool,
    /// FUA is supported (DPOFUA).
    pub fua: bool,
    /// Write cache enabled (WCE), from the caching page; `None` without that page.
    pub write_cache: Option<bool>,
}

/// Parses MODE SENSE(6) data (SPC-4, section 7.5; SBC-3, section 6.5.5). Returns `None` if the
/// header is truncated.
pub fn parse_mode_sense(data: &[u8]) -> Option<ModeSense> {
    let flags = *data.get(2)?;
    let descriptors = usize::from(*data.get(3)?);
    let page = data.get(4 + descriptors..).unwrap_or_default();
    let is_caching = page.first().is_some_and(|code| code & 0x3f == 0x08);
    Some(ModeSense {
        write_protected: flags & 0x80 != 0,
        fua: flags & 0x10 != 0,
        write_cache: page.get(2).filter(|_| is_caching).map(|b| b & 0x04 != 0),
    })
}

/// Parses REPORT LUNS data (SPC-4, section 6.33) and returns the LUN fields in order. A truncated
/// entry ends the list.
pub fn parse_luns(data: &[u8]) -> Vec<[u8; 8]> {
    let len = u32_at(data, 0).and_then(|len| usize::try_from(len).ok());
    let entries = data.get(8..).unwrap_or_default();
    let entries = entries.get(..len.unwrap_or(0)).unwrap_or(entries);
    entries
        .chunks_exact(8)
        .filter_map(|e| array(e, 0))
        .collect()
}

/// A target port group (SPC-4, section 6.37).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortGroup {
    /// Target port group identifier.
    pub group: u16,
    /// Asymmetric access state: 0 optimized, 1 non-optimized, 2 standby, 3 unavailable, 4 logical
    /// block dependent, 15 transitioning.
    pub state: u8,
}

/// Parses REPORT TARGET PORT GROUPS data with a short header. A truncated entry ends the list.
pub fn parse_port_groups(data: &[u8]) -> Vec<PortGroup> {
    let len = u32_at(data, 0).and_then(|len| usize::try_from(len).ok());
    let all = data.get(4..).unwrap_or_default();
    let mut rest = all.get(..len.unwrap_or(0)).unwrap_or(all);
    let mut found = Vec::new();
    while let (Some(first), Some(group), Some(ports)) = (rest.first(), u16_at(rest, 2), rest.get(7))
    {
        found.push(PortGroup {
            group,
            state: first & 0x0f,
        });
        rest = rest.get(8 + 4 * usize::from(*ports)..).unwrap_or_default();
    }
    found
}

/// Finds the access state of `group`. A single group is used whatever its number.
pub fn access_of(groups: &[PortGroup], group: Option<u16>) -> Option<u8> {
    match (groups, group) {
        ([only], _) => Some(only.state),
        (groups, Some(group)) => groups.iter().find(|g| g.group == group).map(|g| g.state),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_counted_from_the_last_block() {
        let mut data = [0; 32];
        (data[7], data[10]) = (99, 2);
        let expected = Some(Capacity {
            blocks: 100,
            block_bytes: 512,
        });
        assert_eq!(parse_capacity16(&data), expected);
        assert_eq!(parse_capacity16(&data[..11]), None);
        assert_eq!(parse_capacity16(&[0xff; 32]), None);
        assert_eq!(parse_capacity10(&[0, 0, 0, 99, 0, 0, 2, 0]), expected);
        assert_eq!(
            parse_capacity10(&[0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]),
            None
        );
    }

    #[test]
    fn mode_pages_tell_of_cache_and_protection() {
        let sense = parse_mode_sense(&[23, 0, 0x90, 0, 0x08, 0x12, 0x04]).unwrap();
        assert_eq!((sense.write_protected, sense.fua), (true, true));
        assert_eq!(sense.write_cache, Some(true));
        let with_descriptor = [23, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x12, 0x00];
        assert_eq!(
            parse_mode_sense(&with_descriptor).unwrap().write_cache,
            Some(false)
        );
        assert_eq!(parse_mode_sense(&[3, 0, 0, 0]).unwrap().write_cache, None);
        assert_eq!(parse_mode_sense(&[3, 0]), None);
    }

    #[test]
    fn lists_end_where_they_are_cut() {
        let luns = [[0, 0, 0, 16, 0, 0, 0, 0], [0; 8], [0, 1, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(parse_luns(&luns), [[0; 8], [0, 1, 0, 0, 0, 0, 0, 0]]);
        assert_eq!(parse_luns(&luns[..23]).len(), 1);
        assert!(parse_luns(&[]).is_empty());
        let groups = [
            [0, 0, 0, 24].as_slice(),
            &[0x80, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
            &[0x02, 0xcf, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2],
        ]
        .concat();
        let parsed = parse_port_groups(&groups);
        assert_eq!((parsed.len(), access_of(&parsed, Some(2))), (2, Some(2)));
        assert_eq!(access_of(&parsed, None), None);
        assert_eq!(access_of(&parsed[..1], None), Some(0));
        assert_eq!(parse_port_groups(&groups[..20]).len(), 1);
    }
}
