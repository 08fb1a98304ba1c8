//! The first bytes of a device, as they are and with corrected checksums, so that changes get past
//! the checksum into the binary header and the JSON.
//!
//! Claims: reading never panics; a header that was read is written so that it reads back equal; a
//! repair leaves two valid copies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use luks2::{Header, Plan, Step};

/// Room for the header, its keyslots and some data; the input is a short prefix of it.
const DEVICE_BYTES: u64 = 1 << 40;

fuzz_target!(|data: &[u8]| {
    exercise(data);
    let mut fixed = data.to_vec();
    let size = fixed
        .get(8..16)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_be_bytes);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if let Some((primary, rest)) = fixed.split_at_mut_checked(size) {
        luks2::fix_checksum(primary);
        if let Some(secondary) = rest.get_mut(..size) {
            luks2::fix_checksum(secondary);
        }
    }
    exercise(&fixed);
});

fn exercise(prefix: &[u8]) {
    for device_size in [DEVICE_BYTES, prefix.len() as u64] {
        assert!(Header::bytes_wanted(prefix, device_size) <= device_size);
    }
    let Ok(opened) = Header::open(prefix, DEVICE_BYTES) else {
        return;
    };
    let broken = opened.needs_repair();
    let mut header = opened.header;
    let metadata = header.metadata().clone();
    assert_eq!(header.segment().encryption(), "aes-xts-plain64");
    for slot in metadata.keyslots().keys() {
        let _ = header.keyslot_area(*slot);
    }
    let (core, keys) = (header.canonical_core(), header.canonical_keys(&[]));

    let mut image = prefix.to_vec();
    let copies = usize::try_from(2 * header.header_size()).expect("at most 8 MiB");
    image.resize(copies.max(prefix.len()), 0);
    let plan = header.repair().expect("random bytes");
    assert_eq!(plan.is_empty(), !broken);
    apply(plan, &mut image);
    let mut header = good(&image);
    assert_eq!(*header.metadata(), metadata);
    let Ok(plan) = header.update() else { return };
    apply(plan, &mut image);
    let header = good(&image);
    assert_eq!(*header.metadata(), metadata);
    assert_eq!(
        (header.canonical_core(), header.canonical_keys(&[])),
        (core, keys)
    );
}

fn good(image: &[u8]) -> Header {
    let opened = Header::open(image, DEVICE_BYTES).expect("what we wrote");
    assert!(!opened.needs_repair(), "{opened:?}");
    opened.header
}

fn apply(plan: Plan, image: &mut [u8]) {
    for step in plan {
        if let Step::Write { offset, bytes } = step {
            let at = usize::try_from(offset).expect("inside the copies");
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}
