//! INQUIRY data and vital product data (SPC-4, sections 6.6 and 7.8; SBC-3, section 6.6).

use crate::bytes::{hex, text, u16_at, u32_at, u64_at};

/// Standard INQUIRY data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// The unit is a connected direct-access block device (qualifier 0, type 0).
    pub is_disk: bool,
    /// Vendor identification, at most eight characters.
    pub vendor: String,
    /// Product identification, at most sixteen characters.
    pub product: String,
    /// The target supports asymmetric logical unit access (TPGS is not 0).
    pub alua: bool,
}

/// Parses standard INQUIRY data. Returns `None` for fewer than 32 bytes; `alua` needs 36.
pub fn parse_inquiry(data: &[u8]) -> Option<Inquiry> {
    Some(Inquiry {
        is_disk: *data.first()? == 0,
        vendor: text(data.get(8..16)?),
        product: text(data.get(16..32)?),
        alua: data.get(5)? & 0x30 != 0 && data.len() >= 36,
    })
}

/// Finds the body of a vital product data page if its page code is `code`.
fn page(data: &[u8], code: u8) -> Option<&[u8]> {
    if *data.get(1)? != code {
        return None;
    }
    let len = usize::from(u16_at(data, 2)?);
    let body = data.get(4..)?;
    Some(body.get(..len).unwrap_or(body))
}

/// Parses page 0x00 and returns the codes of the supported pages.
pub fn parse_pages(data: &[u8]) -> Option<Vec<u8>> {
    page(data, 0x00).map(<[u8]>::to_vec)
}

/// Parses page 0x80, the unit serial number. Returns `None` if it is empty.
pub fn parse_serial(data: &[u8]) -> Option<String> {
    let serial = text(page(data, 0x80)?);
    (!serial.is_empty()).then_some(serial)
}

/// A designation descriptor of page 0x83 (SPC-4, section 7.8.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceId {
    /// 0: logical unit, 1: target port, 2: target device.
    pub association: u8,
    /// 1: T10 vendor, 2: EUI-64, 3: NAA, 5: target port group, 8: SCSI name string, 10: UUID.
    pub kind: u8,
    /// 1: binary, 2: ASCII, 3: UTF-8.
    pub code_set: u8,
    /// Value of the designator, at most 255 bytes.
    pub designator: Vec<u8>,
}

/// Parses the designators of page 0x83 in order. A truncated one ends the list.
pub fn device_ids(data: &[u8]) -> Vec<DeviceId> {
    let mut rest = page(data, 0x83).unwrap_or_default();
    let mut found = Vec::new();
    while let Some(([first, second, _, len], after)) = rest.split_first_chunk::<4>() {
        let Some((designator, next)) = after.split_at_checked(usize::from(*len)) else {
            break;
        };
        found.push(DeviceId {
            association: second >> 4 & 3,
            kind: second & 0x0f,
            code_set: first & 0x0f,
            designator: designator.into(),
        });
        rest = next;
    }
    found
}

/// Returns the world-wide ID of the logical unit, in order of preference: `naa.HEX`, `eui.HEX`,
/// `t10.TEXT`, `name.TEXT`, `uuid.HEX`. Only designators of the logical unit count. A locally
/// assigned NAA designator (first digit 3) comes last because its uniqueness is not guaranteed.
pub fn wwid(ids: &[DeviceId]) -> Option<String> {
    const NAA: u8 = 3;
    let of = |kind: u8, naa: Option<u8>| {
        let fits = |id: &&DeviceId| {
            let first = id.designator.first().map(|b| b >> 4);
            id.association == 0
                && id.kind == kind
                && id.designator.iter().any(|b| *b != 0)
                && (naa.is_none() || naa == first)
        };
        ids.iter().find(fits)
    };
    let shown =
        |prefix: &str, value: String| (!value.is_empty()).then(|| prefix.to_owned() + &value);
    let naa = |format| of(NAA, Some(format)).and_then(|id| shown("naa.", hex(&id.designator)));
    let words = |prefix, kind| of(kind, None).and_then(|id| shown(prefix, text(&id.designator)));
    // NAA IEEE registered extended, registered, extended; then the other unique formats.
    naa(6)
        .or_else(|| naa(5))
        .or_else(|| naa(2))
        .or_else(|| of(2, None).and_then(|id| shown("eui.", hex(&id.designator))))
        .or_else(|| words("t10.", 1))
        .or_else(|| words("name.", 8))
        .or_else(|| {
            // A type byte and a reserved byte precede the 16 bytes.
            let uuid = of(10, None)?.designator.get(2..18)?;
            shown("uuid.", hex(uuid))
        })
        .or_else(|| naa(3))
}

/// Finds the target port group of the responding port (designator type 5).
pub fn target_port_group(ids: &[DeviceId]) -> Option<u16> {
    let id = ids.iter().find(|id| id.kind == 5 && id.association == 1)?;
    u16_at(&id.designator, 2)
}

/// Page 0xB0, block limits, in logical blocks; zero means that no limit is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Maximum transfer length.
    pub transfer_max: u32,
    /// Optimal transfer length.
    pub transfer_optimal: u32,
    /// Maximum number of blocks in one UNMAP.
    pub unmap_max: u32,
    /// Maximum number of ranges in one UNMAP.
    pub unmap_ranges_max: u32,
    /// Maximum number of blocks in one WRITE SAME.
    pub write_same_max: u64,
}

/// Parses page 0xB0. Fields past the end of a short page are zero.
pub fn parse_limits(data: &[u8]) -> Option<Limits> {
    page(data, 0xb0)?;
    let long = |at| u32_at(data, at).unwrap_or(0);
    Some(Limits {
        transfer_max: long(8),
        transfer_optimal: long(12),
        unmap_max: long(20),
        unmap_ranges_max: long(24),
        write_same_max: u64_at(data, 36).unwrap_or(0),
    })
}

/// Page 0xB2, logical block provisioning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Provisioning {
    /// UNMAP is supported (LBPU).
    pub unmap: bool,
    /// WRITE SAME(16) can unmap (LBPWS).
    pub write_same_unmap: bool,
    /// Unmapped blocks read as zeros (LBPRZ).
    pub reads_zeros: bool,
}

/// Parses page 0xB2.
pub fn parse_provisioning(data: &[u8]) -> Option<Provisioning> {
    let flags = *page(data, 0xb2)?.get(1)?;
    Some(Provisioning {
        unmap: flags & 0x80 != 0,
        write_same_unmap: flags & 0x40 != 0,
        reads_zeros: flags & 0x1c == 0x04,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(association: u8, kind: u8, designator: &[u8]) -> Vec<u8> {
        let mut out = vec![1, association << 4 | kind, 0, designator.len() as u8];
        out.extend(designator);
        out
    }

    fn page83(ids: &[Vec<u8>]) -> Vec<u8> {
        let body = ids.concat();
        let mut out = vec![0, 0x83, 0, body.len() as u8];
        out.extend(body);
        out
    }

    #[test]
    fn the_world_wide_id_is_the_units_own_and_the_best_there_is() {
        let port = id(1, 3, &[0x50; 8]);
        let t10 = id(0, 1, b"IET     00010001  ");
        let eui = id(0, 2, &[0xab; 8]);
        let naa = id(
            0,
            3,
            &[0x60, 0, 0, 0, 0, 0, 0, 0, 0x0e, 0, 0, 0, 0, 1, 0, 1],
        );
        let name = id(0, 8, b"iqn.x\0\0\0");
        let uuid = id(0, 10, &[[0x10, 0].as_slice(), &[0xcd; 16]].concat());
        let of = |ids: &[&Vec<u8>]| {
            let ids: Vec<Vec<u8>> = ids.iter().map(|i| (*i).clone()).collect();
            wwid(&device_ids(&page83(&ids)))
        };
        assert_eq!(
            of(&[&port, &t10, &eui, &naa]).as_deref(),
            Some("naa.60000000000000000e00000000010001")
        );
        assert_eq!(of(&[&t10, &eui]).as_deref(), Some("eui.abababababababab"));
        assert_eq!(
            of(&[&uuid, &name, &t10]).as_deref(),
            Some("t10.IET     00010001")
        );
        assert_eq!(of(&[&uuid, &name]).as_deref(), Some("name.iqn.x"));
        let expected = format!("uuid.{}", "cd".repeat(16));
        assert_eq!(of(&[&uuid]), Some(expected));
        assert_eq!(of(&[&port]), None);
        let local = id(0, 3, &[0x30, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(of(&[&local]).as_deref(), Some("naa.3000000100000001"));
        assert_eq!(of(&[&local, &eui]).as_deref(), Some("eui.abababababababab"));
        assert_eq!(of(&[&id(0, 3, &[0; 8])]), None, "all zero names nothing");
    }

    #[test]
    fn a_cut_page_gives_what_is_whole() {
        let page = page83(&[id(0, 3, &[1; 8]), id(1, 5, &[0, 0, 0, 7])]);
        for end in 0..page.len() {
            let ids = device_ids(&page[..end]);
            assert!(ids.len() < 2, "{end}");
        }
        assert_eq!(target_port_group(&device_ids(&page)), Some(7));
    }

    #[test]
    fn other_pages_are_read() {
        assert_eq!(
            parse_serial(b"\0\x80\0\x0a    beaf11").as_deref(),
            Some("beaf11")
        );
        assert_eq!(parse_serial(b"\0\x80\0\x04    "), None);
        assert_eq!(parse_serial(b"\0\x83\0\x04abcd"), None);
        assert_eq!(
            parse_pages(&[0, 0, 0, 3, 0, 0x80, 0x83]),
            Some(vec![0, 0x80, 0x83])
        );
        let mut limits = [0; 64];
        (limits[1], limits[3], limits[11], limits[23], limits[43]) = (0xb0, 60, 8, 9, 7);
        let parsed = parse_limits(&limits).unwrap();
        let got = (parsed.transfer_max, parsed.unmap_max, parsed.write_same_max);
        assert_eq!(got, (8, 9, 7));
        let parsed = parse_provisioning(&[0, 0xb2, 0, 4, 0, 0xe4, 0, 0]).unwrap();
        assert!(parsed.unmap && parsed.write_same_unmap && parsed.reads_zeros);
        let mut data = [b' '; 36];
        data[..8].copy_from_slice(&[0, 0, 5, 2, 31, 0x10, 0, 2]);
        data[8..11].copy_from_slice(b"IET");
        let parsed = parse_inquiry(&data).unwrap();
        assert_eq!(
            (parsed.is_disk, parsed.alua, parsed.vendor.as_str()),
            (true, true, "IET")
        );
        assert_eq!(parse_inquiry(&data[..31]), None);
    }
}
