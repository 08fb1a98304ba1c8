//! SCSI commands of a disk: command descriptor blocks, parsers for their responses, and error
//! handling. Layouts cite SPC-4, SBC-3 and SAM-5.

pub mod cdb;
mod data;
mod inquiry;
mod reserve;
mod sense;

pub use data::{
    Capacity, ModeSense, PortGroup, access_of, parse_capacity10, parse_capacity16, parse_luns,
    parse_mode_sense, parse_port_groups,
};
pub use inquiry::{
    DeviceId, Inquiry, Limits, Provisioning, device_ids, parse_inquiry, parse_limits, parse_pages,
    parse_provisioning, parse_serial, target_port_group, wwid,
};
pub use reserve::{Keys, Reservation, parse_keys, parse_reservation, reserve_out};
pub use sense::{Action, Fault, PortState, Sense, classify};

/// Encodes a logical unit number as an eight-byte field: peripheral device addressing below 256,
/// flat space addressing below 16,384 (SAM-5, section 4.7). `None` for larger numbers.
pub fn lun_field(lun: u16) -> Option<[u8; 8]> {
    let first = match lun {
        0..=0xff => lun,
        0x100..=0x3fff => 0x4000 | lun,
        _ => return None,
    };
    let [a, b] = first.to_be_bytes();
    Some([a, b, 0, 0, 0, 0, 0, 0])
}

/// Decodes the number in a single-level eight-byte LUN field; `None` for other addressing methods.
pub fn lun_number(field: [u8; 8]) -> Option<u16> {
    let [a, b, rest @ ..] = field;
    if rest != [0; 6] {
        return None;
    }
    match a >> 6 {
        0 if a == 0 => Some(u16::from(b)),
        1 => Some(u16::from_be_bytes([a & 0x3f, b])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lun_fields_are_read_back() {
        for lun in [0, 1, 255, 256, 16_383] {
            assert_eq!(lun_number(lun_field(lun).unwrap()), Some(lun));
        }
        assert_eq!(lun_field(1), Some([0, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(lun_field(256), Some([0x41, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(lun_field(16_384), None);
        assert_eq!(lun_number([0xc1, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
