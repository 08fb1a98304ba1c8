//! Directories: pages of OpenAFS, writer against reader, arbitrary ranges, malformed pages.
//!
//! `data/*.dir` are directories of an OpenAFS 1.8.9 file server as fetched by `afsd.fuse`: `small`
//! and `ordered` had files added and none removed, from `used` every third file was removed and 31
//! were added.

use afs_proto::Fid;
use afs_proto::dir::{
    BLOBS_SURE, Directory, DirectoryError, Entry, Image, Layout, LayoutError, PAGE_BYTES,
    PAGES_MAX, Plan, blobs,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SMALL: &[u8] = include_bytes!("data/small.dir");
const ORDERED: &[u8] = include_bytes!("data/ordered.dir");
const USED: &[u8] = include_bytes!("data/used.dir");

const OWN: Fid = Fid::ROOT;
const PARENT: Fid = fid(3, 7);

const fn fid(vnode: u32, unique: u32) -> Fid {
    Fid { vnode, unique }
}

fn plan(names: &[Vec<u8>]) -> Result<Layout, LayoutError> {
    let mut plan = Plan::new(OWN, PARENT);
    names.iter().try_for_each(|name| plan.push(name))?;
    Ok(plan.finish())
}

/// Returns the file of the n-th entry.
fn numbers(n: usize) -> Fid {
    fid(2 * n as u32 + 2, 1000 + n as u32)
}

fn write(
    layout: &Layout,
    names: &[Vec<u8>],
    range: std::ops::Range<usize>,
) -> Result<Vec<u8>, LayoutError> {
    let mut bytes = Vec::new();
    let mut pages = layout.pages(range);
    for n in pages.entries() {
        let fid = numbers(n);
        let name = names.get(n).ok_or(LayoutError::Changed)?;
        pages.push(Entry { name, fid }, &mut bytes)?;
    }
    pages.finish(&mut bytes)?;
    Ok(bytes)
}

/// Returns the pages of a directory with these names.
fn image(names: &[Vec<u8>]) -> Vec<u8> {
    let layout = plan(names).expect("few names");
    write(&layout, names, 0..usize::MAX).expect("the same names")
}

/// Returns `count` names: the index, zero-padded to `length` bytes.
fn uniform(count: usize, length: usize) -> Vec<Vec<u8>> {
    let name = |n| format!("{n:0length$}").into_bytes();
    (0..count).map(name).collect()
}

#[test]
fn pages_of_openafs_are_written_again_to_the_same_bytes() {
    for image in [SMALL, ORDERED] {
        let read = Directory::verify(image).expect("a good directory");
        let entries: Vec<_> = read.entries().collect();
        let [own, parent, rest @ ..] = &entries[..] else {
            panic!("no dots");
        };
        let mut plan = Plan::new(own.fid, parent.fid);
        for entry in rest {
            plan.push(entry.name).expect("a good name");
        }
        let layout = plan.finish();
        assert_eq!(
            (layout.length(), layout.entries()),
            (image.len(), rest.len())
        );
        let (mut written, mut pages) = (Vec::new(), layout.pages(0..usize::MAX));
        for entry in rest {
            pages.push(*entry, &mut written).expect("the same entry");
        }
        pages.finish(&mut written).expect("all entries");
        assert_eq!(written.len(), image.len());
        for (at, (ours, theirs)) in written.chunks(32).zip(image.chunks(32)).enumerate() {
            assert_eq!(ours, theirs, "blob {at}");
        }
    }
}

#[test]
fn names_are_added_where_openafs_adds_them() {
    for expected in [SMALL, ORDERED] {
        let read = Directory::verify(expected).expect("a good directory");
        let mut entries = read.entries();
        let mut dot = || entries.next().map(|entry| entry.fid);
        let (own, parent) = (dot().expect("a dot"), dot().expect("two dots"));
        let mut image = Image::new(own, parent);
        // Both only grew, with entries of one size or in this order, so position follows age.
        entries.for_each(|entry| image.insert(entry).expect("room"));
        assert!(image.bytes() == expected);
    }
    // A new entry takes the first gap that is long enough, in the first page that has one.
    let mut image = Image::from_pages(USED.to_vec()).expect("a good directory");
    let victim = image_names(&image).swap_remove(5);
    assert!(image.remove(&victim) && image.find(&victim).is_none());
    let length = image.bytes().len();
    let name = vec![b'z'; victim.len()];
    let entry = Entry {
        name: &name,
        fid: fid(4, 9),
    };
    image.insert(entry).expect("room");
    assert_eq!(image.find(&name), Some(fid(4, 9)));
    assert_eq!(image.bytes().len(), length);
    assert!(image.replace(&name, fid(6, 7)) && image.find(&name) == Some(fid(6, 7)));
    assert!(!image.remove(b"not there") && !image.replace(b"not there", OWN));
    Directory::verify(image.bytes()).expect("sound");
}

fn image_names(image: &Image) -> Vec<Vec<u8>> {
    let read = Directory::verify(image.bytes()).expect("sound");
    read.entries().map(|entry| entry.name.to_vec()).collect()
}

#[test]
fn pages_of_openafs_with_gaps_are_read() {
    let read = Directory::verify(USED).expect("a good directory");
    let names: Vec<&[u8]> = read.entries().map(|entry| entry.name).collect();
    assert_eq!(names.len(), 2 + 121 - 41 + 31);
    for n in 0..=120 {
        let name = format!("name-{n:03}{}", "x".repeat(n * 7 % 60));
        assert_eq!(read.lookup(name.as_bytes()).is_some(), n % 3 != 0, "{name}");
    }
    for entry in read.entries() {
        assert_eq!(read.lookup(entry.name), Some(entry.fid));
        assert!(
            entry.fid.vnode % 2 == 0 || entry.name.starts_with(b"."),
            "files are even"
        );
    }
    assert_eq!(read.lookup(b"late-30").map(|fid| fid.vnode % 2), Some(0));
}

#[test]
fn an_empty_directory_is_one_page_of_known_bytes() {
    let image = image(&[]);
    let mut expected = vec![0; PAGE_BYTES];
    expected[..15].copy_from_slice(&[0, 1, 0x04, 0xd2, 51, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected[32..160].fill(64);
    expected[32] = 49;
    // `.` is in chain 46, `..` in chain (46 * 173 + 46) % 128 = 68.
    expected[160 + 2 * 46 + 1] = 13;
    expected[160 + 2 * 68 + 1] = 14;
    expected[13 * 32..][..13].copy_from_slice(b"\x01\0\0\0\0\0\0\x01\0\0\0\x01.");
    expected[14 * 32..][..14].copy_from_slice(b"\x01\0\0\0\0\0\0\x03\0\0\0\x07..");
    assert_eq!(image, expected);
}

#[test]
fn an_entry_takes_as_many_blobs_as_its_name_needs() {
    let sizes = [
        (1, 1),
        (15, 1),
        (16, 2),
        (47, 2),
        (48, 3),
        (79, 3),
        (255, 9),
    ];
    for (length, expected) in sizes {
        assert_eq!(blobs(length), expected, "{length} bytes");
    }
}

#[test]
fn names_that_no_directory_can_have_are_refused() {
    let mut plan = Plan::new(OWN, PARENT);
    let long = [b'n'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &long] {
        assert_eq!(
            plan.push(name),
            Err(LayoutError::Name),
            "{}",
            name.escape_ascii()
        );
    }
    assert_eq!(plan.push(&long[..255]), Ok(()));
    assert_eq!(plan.push(b"..."), Ok(()));
}

/// Checks the limits stated in the documentation of `dir`.
#[test]
fn a_directory_is_full_at_1023_pages() {
    for (length, most) in [
        (15, 64_435),
        (16, 31_706),
        (47, 31_706),
        (255, 7 * 1022 + 5),
    ] {
        let mut plan = Plan::new(OWN, PARENT);
        let names = uniform(most + 1, length);
        for name in &names[..most] {
            plan.push(name).expect("room");
        }
        assert_eq!(
            plan.push(&names[most]),
            Err(LayoutError::Full),
            "names of {length} bytes"
        );
        let layout = plan.finish();
        assert_eq!(layout.length(), PAGES_MAX * PAGE_BYTES);
        let image = write(&layout, &names, 0..usize::MAX).expect("the same names");
        let read = Directory::verify(&image).expect("a good directory");
        assert_eq!(read.entries().count(), most + 2);
        assert_eq!(read.lookup(&names[most - 1]), Some(numbers(most - 1)));
    }
}

/// Worst case for a page: one free blob less than the next entry needs.
#[test]
fn so_many_blobs_fit_in_any_order() {
    // Pages of six 9-blob entries and one single blob leave 8 free when a 9-blob entry follows.
    let (mut used, mut plan, mut n) = (0, Plan::new(OWN, PARENT), 0);
    let mut push = |length: usize| {
        let name = format!("{n:0length$}");
        n += 1;
        used += blobs(length);
        (used <= BLOBS_SURE).then(|| plan.push(name.as_bytes()))
    };
    let order = [[255; 6].as_slice(), &[15]].concat();
    for length in order.iter().cycle() {
        match push(*length) {
            Some(pushed) => assert_eq!(pushed, Ok(())),
            None => return,
        }
    }
}

#[test]
fn entries_that_are_not_those_of_the_plan_are_found_out() {
    let names = uniform(300, 12);
    let layout = plan(&names).expect("few names");
    let all = || 0..usize::MAX;
    let mut other = names.clone();
    other[200] = b"another name".to_vec();
    assert_eq!(write(&layout, &other, all()), Err(LayoutError::Changed));
    other[200] = b"a longer name than it was".to_vec();
    assert_eq!(write(&layout, &other, all()), Err(LayoutError::Changed));
    assert_eq!(
        write(&layout, &names[1..], all()),
        Err(LayoutError::Changed)
    );

    // The last name of a directory: a changed longer one may hash to the same chain.
    for n in 0..1000 {
        other = names.clone();
        other[299] = format!("{n:020}").into_bytes();
        assert_eq!(write(&layout, &other, all()), Err(LayoutError::Changed));
    }

    let mut pages = layout.pages(0..PAGE_BYTES);
    let mut bytes = Vec::new();
    for n in pages.entries() {
        let entry = Entry {
            name: &names[n],
            fid: numbers(n),
        };
        pages.push(entry, &mut bytes).expect("planned");
    }
    let one_more = Entry {
        name: b"one more",
        fid: fid(2, 2),
    };
    assert_eq!(pages.push(one_more, &mut bytes), Err(LayoutError::Changed));
    let none = layout.pages(0..PAGE_BYTES);
    assert_eq!(
        none.finish(&mut bytes),
        Err(LayoutError::Changed),
        "no entry was pushed"
    );
}

#[test]
fn damage_of_each_kind_is_found() {
    let good = image(&uniform(100, 20));
    let damaged = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        Directory::verify(&image).err()
    };
    let entry = |n: usize| 32 * n;
    assert_eq!(damaged(0, &[0, 9]), Some(DirectoryError::Size(good.len())));
    assert_eq!(damaged(0, &[0, 0]), None, "the older kind");
    assert_eq!(damaged(2, b"x"), Some(DirectoryError::Header(0)));
    assert_eq!(
        damaged(PAGE_BYTES + 3, b"x"),
        Some(DirectoryError::Header(1))
    );
    // A name of 20 bytes takes two blobs, so the last blob of the first page is free.
    assert_eq!(damaged(5 + 7, &[0xff]), Some(DirectoryError::Map(0)));
    assert_eq!(damaged(32, &[2]), Some(DirectoryError::Map(0)));
    assert_eq!(damaged(32 + 127, &[0]), Some(DirectoryError::Map(127)));
    let bad = |at, bytes: &[u8]| {
        let error = damaged(at, bytes);
        assert!(
            matches!(error, Some(DirectoryError::Entry { .. })),
            "{at}: {error:?}"
        );
    };
    bad(entry(15), &[0]); // not the start of an entry
    bad(entry(15) + 12, b"\0"); // empty name
    bad(entry(15) + 12, b"x"); // name of another chain
    bad(entry(13) + 2, &[0, 13]); // cyclic chain
    bad(entry(13) + 2, &[0xff, 0xff]); // entry out of range
    bad(entry(13) + 2, &[0, 1]); // entry within the counts
    bad(160, &[0, 64]); // entry within a page header
    let mut full = image(&uniform(49, 15));
    full[entry(63) + 12 + 15] = b'x';
    let error = Directory::verify(&full).err();
    assert!(
        matches!(error, Some(DirectoryError::Entry { entry: 63, .. })),
        "{error:?}"
    );
    let mut other = good.clone();
    other[entry(13) + 12..][..2].copy_from_slice(b"\xae\0");
    let error = Directory::verify(&other).err();
    assert!(
        matches!(error, Some(DirectoryError::Dots)),
        "0xae is in the chain of a dot: {error:?}"
    );
    for len in [0, 1, 2047, 2049, good.len() - 1] {
        assert_eq!(
            Directory::verify(&good[..len]).err(),
            Some(DirectoryError::Size(len))
        );
    }
    let shorter = good.len() - PAGE_BYTES;
    assert_eq!(
        Directory::verify(&good[..shorter]).err(),
        Some(DirectoryError::Size(shorter))
    );
    let much = vec![0; (PAGES_MAX + 1) * PAGE_BYTES];
    assert_eq!(
        Directory::verify(&much).err(),
        Some(DirectoryError::Size(much.len()))
    );
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let short = vec(prop_oneof![b'a'..=b'd', 0x80..=0xffu8], 1..6);
    let long = (vec(b'a'..=b'z', 1..6), 10..250usize).prop_map(|(mut name, length)| {
        name.resize(name.len() + length, b'n');
        name
    });
    let sound = |name: &Vec<u8>| name != b"." && name != b".." && !name.contains(&b'/');
    prop_oneof![4 => short, 1 => long].prop_filter("a name", sound)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_written_is_read(names in btree_set(name(), 0..600), shuffle in any::<u64>()) {
        let mut names: Vec<_> = names.into_iter().collect();
        // The caller chooses the order; shuffle.
        names.sort_by_key(|name| name.iter().fold(shuffle, |h, b| h.rotate_left(5) ^ u64::from(*b)));
        let image = image(&names);
        let read = Directory::verify(&image).expect("a good directory");
        let expected: BTreeMap<&[u8], Fid> =
            names.iter().enumerate().map(|(n, name)| (&name[..], numbers(n))).collect();
        for (name, numbers) in &expected {
            prop_assert_eq!(read.lookup(name), Some(*numbers));
        }
        prop_assert_eq!((read.lookup(b"."), read.lookup(b"..")), (Some(OWN), Some(PARENT)));
        prop_assert_eq!(read.lookup(b"not there"), None);
        let listed: Vec<&[u8]> = read.entries().map(|entry| entry.name).collect();
        let order: Vec<&[u8]> = [&b"."[..], b".."].into_iter().chain(names.iter().map(|n| &n[..])).collect();
        prop_assert_eq!(listed, order);
    }

    #[test]
    fn an_image_has_the_names_that_came_and_did_not_go(
        names in vec(name(), 1..300),
        steps in vec((any::<prop::sample::Index>(), any::<bool>(), any::<u32>()), 1..1500),
    ) {
        let (mut model, mut image) = (BTreeMap::new(), Image::new(OWN, PARENT));
        for (which, adds, vnode) in steps {
            let name = which.get(&names);
            let was = model.get(name).copied();
            prop_assert_eq!(image.find(name), was);
            match (adds, was) {
                (true, None) => {
                    model.insert(name.clone(), fid(vnode, 1));
                    prop_assert_eq!(image.insert(Entry { name, fid: fid(vnode, 1) }), Ok(()));
                }
                (true, Some(_)) => {
                    model.insert(name.clone(), fid(vnode, 2));
                    prop_assert!(image.replace(name, fid(vnode, 2)));
                }
                (false, _) => prop_assert_eq!(image.remove(name), model.remove(name).is_some()),
            }
        }
        let read = Directory::verify(image.bytes()).expect("sound");
        let found: BTreeMap<_, _> = read
            .entries()
            .skip(2)
            .map(|entry| (entry.name.to_vec(), entry.fid))
            .collect();
        prop_assert_eq!(found, model);
    }

    #[test]
    fn any_range_is_that_part_of_the_whole(
        names in btree_set(name(), 0..400),
        (from, length) in (0..40_000usize, 0..20_000usize),
    ) {
        let names: Vec<_> = names.into_iter().collect();
        let whole = image(&names);
        let layout = plan(&names).expect("few names");
        let part = write(&layout, &names, from..from + length).expect("the same names");
        let begin = from.min(whole.len());
        prop_assert_eq!(&part[..], &whole[begin..(from + length).min(whole.len()).max(begin)]);
    }

    /// Pages that pass verification are consistent: every listed entry is found, in bounded time.
    #[test]
    fn damaged_pages_are_refused_or_sound(
        names in btree_set(name(), 0..200),
        damage in vec((any::<prop::sample::Index>(), prop_oneof![0..16u8, any::<u8>()]), 1..6),
    ) {
        let names: Vec<_> = names.into_iter().collect();
        let mut image = image(&names);
        for (place, value) in damage {
            let place = place.index(image.len());
            image[place] = value;
        }
        if let Ok(read) = Directory::verify(&image) {
            let mut count = 0;
            for entry in read.entries() {
                // Of a duplicate name only the first entry is found.
                prop_assert!(read.lookup(entry.name).is_some());
                count += 1;
            }
            prop_assert_eq!(count, names.len() + 2);
        }
    }
}
