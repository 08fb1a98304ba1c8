//! The JSON of a header, in an otherwise valid one.
//!
//! Claims: reading never panics; JSON that we accept is also valid for `serde_json`; every change
//! to it can be written and reads back equal; opening a keyslot costs no more than the limits
//! allow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use luks2::{FormatOptions, Header, Kdf, KdfLimits, Priority, Step, Token};
use std::sync::OnceLock;

const DEVICE_BYTES: u64 = 17 << 20;
const COPY: usize = 0x4000;

/// Limits low enough for a thousand openings per second.
const LIMITS: KdfLimits = KdfLimits {
    memory_kib_max: 256,
    work_kib_max: 1024,
    cpus_max: 1,
    iterations_max: 100,
};

fn template() -> &'static [u8] {
    static TEMPLATE: OnceLock<Vec<u8>> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let key = luks2::generate_volume_key(256).expect("random bytes");
        let options = FormatOptions {
            digest_iterations: 1000,
            ..FormatOptions::new(DEVICE_BYTES)
        };
        let mut header = Header::format(&options, &key).expect("sound options");
        let kdf = Kdf::Pbkdf2 {
            hash: luks2::Hash::Sha256,
            iterations: 1,
        };
        header
            .add_keyslot(&key, b"pw", &kdf, None, Priority::Normal)
            .expect("room");
        let mut image = vec![0; DEVICE_BYTES as usize];
        header
            .update()
            .expect("random bytes")
            .apply(&mut image)
            .expect("long enough");
        image.truncate(2 * COPY);
        image
    })
}

fuzz_target!(|text: &[u8]| {
    let mut image = template().to_vec();
    for copy in image.chunks_mut(COPY) {
        let (_, area) = copy.split_at_mut(4096);
        area.fill(0);
        let len = text.len().min(area.len());
        area[..len].copy_from_slice(&text[..len]);
        luks2::fix_checksum(copy);
    }
    let Ok(opened) = Header::open(&image, DEVICE_BYTES) else {
        return;
    };
    let header = opened.header;
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    let theirs: serde_json::Value = serde_json::from_slice(&text[..end]).expect("JSON");
    let ours: serde_json::Value = serde_json::from_str(&header.metadata().to_json()).expect("JSON");
    assert_eq!(theirs, ours);
    for slot in header.keyslots_to_try() {
        let area = header.keyslot_area(slot).expect("usable");
        let bytes = vec![0; usize::try_from(area.len).expect("at most 2 MiB")];
        let _ = header.open_keyslot(slot, b"pw", &bytes, &LIMITS);
    }
    change(header, &mut image);
});

fn change(mut header: Header, image: &mut [u8]) {
    let slots: Vec<u32> = header.metadata().keyslots().keys().copied().collect();
    for slot in &slots {
        header
            .set_priority(*slot, Priority::Prefer)
            .expect("it is there");
    }
    if let Some(slot) = slots.first() {
        header.force_remove_keyslot(*slot).expect("by force");
    }
    let token = Token::from_json(r#"{"type":"t","keyslots":[],"x":1}"#).expect("a token");
    let _ = header.add_token(None, &token);
    let _ = header.set_flag("allow-discards", true);
    let Ok(plan) = header.update() else { return };
    for step in plan {
        if let Step::Write { offset, bytes } = step
            && let Ok(at) = usize::try_from(offset)
            && let Some(place) = image.get_mut(at..at + bytes.len())
        {
            place.copy_from_slice(&bytes);
        }
    }
    let again = Header::open(image, DEVICE_BYTES)
        .expect("what we wrote")
        .header;
    assert_eq!(again.metadata(), header.metadata());
}
