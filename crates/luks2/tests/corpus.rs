//! Reads the fuzz corpora in every test run: sound inputs must remain readable, and inputs that
//! once caused a failure must remain harmless.

use luks2::Header;
use std::path::Path;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name);
    let entries = std::fs::read_dir(folder).expect("the corpus");
    let read = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        (
            path.display().to_string(),
            std::fs::read(path).expect("a seed"),
        )
    });
    read.collect()
}

#[test]
fn every_header_of_the_corpus_is_read_without_panic_and_the_seeds_are_sound() {
    let seeds = corpus("luks2_header");
    let mut sound = 0;
    for (name, bytes) in &seeds {
        if let Ok(opened) = Header::open(bytes, 17 << 20) {
            assert!(!opened.needs_repair(), "{name}: {opened:?}");
            sound += 1;
        }
        for len in (0..bytes.len()).step_by(509) {
            assert!(
                Header::open(&bytes[..len], len as u64).is_err(),
                "{name}: {len}"
            );
        }
    }
    println!("{sound} of {} headers are sound", seeds.len());
    assert!(sound >= 5);
}

#[test]
fn every_text_of_the_corpus_is_read_without_panic_as_json_of_a_header() {
    let (_, template) = corpus("luks2_header")
        .into_iter()
        .find(|(_, b)| b.len() == 32768)
        .expect("a seed");
    let seeds = corpus("luks2_json");
    let mut sound = 0;
    for (_, text) in seeds.iter().filter(|(_, text)| text.len() < 12288) {
        let mut image = template.clone();
        for copy in image.chunks_mut(0x4000) {
            copy[4096..].fill(0);
            copy[4096..4096 + text.len()].copy_from_slice(text);
            luks2::fix_checksum(copy);
        }
        sound += usize::from(Header::open(&image, 17 << 20).is_ok());
    }
    println!("{sound} of {} texts are sound", seeds.len());
    // One seed has an area of another size, so its JSON is wrong in this template.
    assert!(sound >= 4);
}
