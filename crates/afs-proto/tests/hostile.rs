//! Untrusted bytes: no panic, accepted values survive a write and a read unchanged, and decoding
//! takes no more memory than the limits allow.

mod common;

use afs_proto::gather::{Gather, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use afs_proto::{Reader, WireError, Xdr, acl::AccessList, cb, fs, to_bytes, vl};
use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Allocator that counts the bytes held by each thread.
struct Counting;

fn count(change: isize) {
    // The counters of a terminating thread may already be destroyed.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: all calls are forwarded to the system allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `dealloc`; `ptr` came from `System.alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the peak of this thread's allocations during `work`, in bytes above the initial level.
fn peak_of<T>(work: impl FnOnce() -> T) -> (isize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (PEAK.get() - before, result)
}

/// Memory limit for a decoded value: 50 statuses and callbacks, in memory a third larger than on
/// the wire, and twice that while a list grows.
const VALUE_BYTES_MAX: isize = 4 * REPLY_BYTES_MAX as isize;

/// Generates streams that often get past the first fields: an opcode of the tables, then mostly
/// small words.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let tables = [fs::PROCEDURES, vl::PROCEDURES, cb::PROCEDURES].concat();
    let opcodes: Vec<u32> = tables.into_iter().map(|(opcode, _)| opcode).collect();
    let opcode = prop_oneof![9 => proptest::sample::select(opcodes), 1 => any::<u32>()];
    let word = prop_oneof![6 => 0..4u32, 2 => 4..70u32, 1 => any::<u32>()];
    (opcode, vec(word, 0..400), vec(any::<u8>(), 0..4)).prop_map(|(opcode, words, rest)| {
        let words = std::iter::once(opcode).chain(words);
        words.flat_map(u32::to_be_bytes).chain(rest).collect()
    })
}

/// Checks that an accepted value decodes to itself after encoding.
macro_rules! stable {
    ($read:expr, $write:expr, $bytes:expr) => {{
        let mut from = Reader::new($bytes);
        let (peak, read) = peak_of(|| $read(&mut from));
        prop_assert!(peak <= VALUE_BYTES_MAX, "{peak} bytes held");
        if let Ok(value) = read {
            let written: Vec<u8> = $write(&value);
            prop_assert_eq!(written.len(), $bytes.len() - from.rest().len());
            prop_assert_eq!($read(&mut Reader::new(&written)), Ok(value));
        }
    }};
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_accepted_reads_the_same_after_it_was_written(bytes in stream()) {
        stable!(fs::Request::read, to_bytes, &bytes);
        stable!(vl::Request::read, to_bytes, &bytes);
        stable!(cb::Request::read, to_bytes, &bytes);
        let (opcode, results) = bytes.split_at(4);
        let opcode = u32::from_be_bytes(opcode.try_into().expect("four bytes"));
        stable!(|from| fs::read_reply(opcode, from), |reply: &fs::Reply<'_>| {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            bytes
        }, results);
        stable!(|from| vl::read_reply(opcode, from), |reply: &vl::Reply| {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            bytes
        }, results);
        stable!(|from| cb::read_reply(opcode, from), |reply: &cb::Reply| {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            bytes
        }, results);
    }

    /// For every split of the stream the outcome is that of the whole, within the memory of a
    /// request.
    #[test]
    fn pieces_give_what_the_whole_gives(bytes in stream(), sizes in vec(1..40usize, 1..20)) {
        let whole = afs_proto::prefix::<fs::Request>(&bytes);
        let mut gather = Gather::new(REQUEST_BYTES_MAX);
        let mut sizes = sizes.iter().cycle();
        let mut rest = &bytes[..];
        let mut used = 0;
        let outcome = loop {
            if rest.is_empty() {
                break Err(WireError::Incomplete);
            }
            let (piece, later) = rest.split_at(*sizes.next().expect("a cycle").min(&rest.len()));
            rest = later;
            let (peak, offered) = peak_of(|| gather.offer(piece, fs::Request::read));
            prop_assert!(peak <= 2 * REQUEST_BYTES_MAX as isize + VALUE_BYTES_MAX);
            match offered {
                Ok(None) => used += piece.len(),
                Ok(Some((value, taken))) => break Ok((value, used + taken)),
                Err(error) => break Err(error),
            }
        };
        prop_assert_eq!(outcome, whole);
    }

    /// Mutates a few bytes of a valid message.
    #[test]
    fn damaged_messages_are_refused_or_read(
        which in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let requests = common::fs_requests();
        let request = which.get(&requests);
        let mut bytes = to_bytes(request);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        stable!(fs::Request::read, to_bytes, &bytes);
    }

    #[test]
    fn any_bytes_are_an_access_list_or_not(bytes in vec(any::<u8>(), 0..1200)) {
        let _ = AccessList::parse(&bytes);
    }

    /// Generates texts close to the form of an access list.
    #[test]
    fn an_access_list_that_is_accepted_reads_the_same_after_it_was_written(
        text in "[0-3]{1,2}\n[0-3]\n([a-d:]{1,70}[ \t]-?[0-9]{1,11}\n){0,8}\0?",
    ) {
        if let Ok(list) = AccessList::parse(text.as_bytes()) {
            let text = list.to_text().expect("no longer than what was read");
            prop_assert_eq!(AccessList::parse(&text), Ok(list));
        }
    }
}

#[test]
fn the_counter_counts() {
    let (peak, kept) = peak_of(|| vec![0u8; 100_000].len());
    assert_eq!(kept, 100_000);
    assert!((100_000..110_000).contains(&peak), "{peak}");
}
