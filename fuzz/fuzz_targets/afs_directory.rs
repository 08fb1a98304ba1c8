//! AFS directories: those of another server, and those that we write.
//!
//! If the first byte is even, the rest is the pages of a directory, the last one padded with zeros.
//! If it is odd, the rest is names separated by line ends, then, after an empty name, corruptions:
//! a position of two bytes and a value of one byte.
//!
//! Claims: verification never panics; in a directory that passes it, every listed name is found,
//! and no more names are listed than fit; a directory that we write passes, has the entries in
//! their order, and its parts equal those of the whole; a directory that is changed name by name
//! stays valid and has the remaining names, even if the pages came from another server. names that
//! are left, also where the pages were another server's.
#![no_main]

use afs_proto::Fid;
use afs_proto::dir::{Directory, Entry, Image, Layout, LayoutError, PAGE_BYTES, Plan};
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

/// File that names are changed to refer to.
const OTHER: Fid = Fid { vnode: 7, unique: 8 };

/// Returns the file of the n-th name.
fn numbered(n: usize) -> Fid {
    Fid { vnode: n as u32, unique: !(n as u32) }
}

/// Removes every second name from valid pages, changes the target of the others, and adds the
/// removed names again.
fn change(pages: &[u8]) {
    let before = Directory::verify(pages).expect("sound");
    let names: Vec<&[u8]> = before.entries().skip(2).map(|entry| entry.name).collect();
    let mut image = Image::from_pages(pages.to_vec()).expect("sound");
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        // A directory of another server with duplicate names: only that server knows which one is
        // meant.
        return;
    }
    for (n, name) in names.iter().enumerate() {
        match n % 2 {
            0 => assert!(image.remove(name) && image.find(name).is_none()),
            _ => assert!(image.replace(name, OTHER) && image.find(name) == Some(OTHER)),
        }
    }
    let left = Directory::verify(image.bytes()).expect("still sound").entries().count();
    assert_eq!(left, 2 + names.len() / 2);
    for name in names.iter().step_by(2) {
        let fits = image.fits(name);
        let entry = Entry { name, fid: Fid { vnode: 9, unique: 10 } };
        assert_eq!(image.insert(entry).is_ok(), fits, "said to fit, or not");
    }
    let now = Directory::verify(image.bytes()).expect("still sound");
    assert!(now.entries().count() <= 2 + names.len());
}

fn verify(image: &[u8]) {
    let Ok(directory) = Directory::verify(image) else {
        assert!(Image::from_pages(image.to_vec()).is_err());
        return;
    };
    let mut count = 0;
    for entry in directory.entries() {
        assert!(directory.lookup(entry.name).is_some());
        count += 1;
    }
    assert!((2..=image.len() / 32).contains(&count));
    change(image);
}

fn write(layout: &Layout, names: &[&[u8]], range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pages = layout.pages(range);
    for n in pages.entries() {
        let entry = Entry { name: names[n], fid: numbered(n) };
        pages.push(entry, &mut bytes).expect("as planned");
    }
    pages.finish(&mut bytes).expect("all of them");
    bytes
}

fn build(text: &[u8]) {
    let mut lines = text.split(|byte| *byte == b'\n');
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let mut plan = Plan::new(Fid::ROOT, Fid::ROOT);
    for name in lines.by_ref().take_while(|name| !name.is_empty()) {
        if !seen.insert(name) {
            continue;
        }
        match plan.push(name) {
            Ok(()) => names.push(name),
            Err(error) => assert_eq!(error, LayoutError::Name, "an input is too short to fill a directory"),
        }
    }
    let layout = plan.finish();
    let mut image = write(&layout, &names, 0..usize::MAX);
    assert_eq!(image.len(), layout.length());
    let directory = Directory::verify(&image).expect("what we write is sound");
    let listed = directory.entries().skip(2).map(|entry| entry.name);
    assert!(listed.eq(names.iter().copied()));
    for (n, name) in names.iter().enumerate() {
        assert_eq!(directory.lookup(name), Some(numbered(n)));
    }

    change(&image);

    let damage: Vec<u8> = lines.flatten().copied().collect();
    let mut places = Vec::new();
    for change in damage.chunks_exact(3) {
        let place = usize::from(u16::from_be_bytes([change[0], change[1]])) % image.len();
        places.push(place);
        image[place] = change[2];
    }
    if let [from, to, ..] = places[..] {
        let whole = write(&layout, &names, 0..usize::MAX);
        let range = from.min(to)..from.max(to);
        assert_eq!(write(&layout, &names, range.clone()), whole[range]);
    }
    verify(&image);
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    if mode % 2 == 1 {
        return build(rest);
    }
    let mut image = rest.to_vec();
    image.resize(rest.len().next_multiple_of(PAGE_BYTES), 0);
    verify(&image);
});
