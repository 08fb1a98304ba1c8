//! Data that a unit returns for SCSI commands.
//!
//! Claims: reading never panics; truncated data is refused or yields no more than the whole.
#![no_main]

use iscsi_proto::scsi;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let ids = scsi::device_ids(data);
    let _ = (scsi::wwid(&ids), scsi::target_port_group(&ids));
    let luns = scsi::parse_luns(data);
    let groups = scsi::parse_port_groups(data);
    let _ = scsi::access_of(&groups, Some(1));
    for lun in &luns {
        if let Some(number) = scsi::lun_number(*lun) {
            assert!(number < 0x4000);
        }
    }
    let keys = scsi::parse_keys(data).map_or(0, |k| k.keys.len());
    assert!(8 * (luns.len() + 1) <= data.len().max(8) && 8 * keys <= data.len());
    let _ = (scsi::parse_capacity10(data), scsi::parse_capacity16(data));
    let _ = (scsi::parse_mode_sense(data), scsi::parse_reservation(data));
    let _ = (scsi::parse_inquiry(data), scsi::parse_pages(data), scsi::parse_serial(data));
    let _ = (scsi::parse_limits(data), scsi::parse_provisioning(data));
    if let Some((status, sense)) = data.split_first() {
        let _ = (scsi::classify(*status, u16::from(*status), sense), scsi::Sense::parse(sense));
    }
    let half = &data[..data.len() / 2];
    assert!(scsi::device_ids(half).len() <= ids.len());
    assert!(scsi::parse_luns(half).len() <= luns.len());
    assert!(scsi::parse_port_groups(half).len() <= groups.len());
});
