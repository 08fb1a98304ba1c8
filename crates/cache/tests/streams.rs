//! The read-ahead for given accesses: exact ranges, and properties that hold for all accesses.

// A request is often one range, but still a list of ranges.
#![allow(clippy::single_range_in_vec_init)]

use block_testing::Random;
use cache::stream::{Access, Advice, Limits, Streams};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const PAGE: u64 = 4 * K;
const SIZE: u64 = 64 * M;

fn streams() -> Streams {
    Streams::new(Limits::default())
}

fn access(streams: &mut Streams, offset: u64, len: u64, hit: bool) -> Advice {
    streams.accessed(Access {
        offset,
        len,
        file_size: SIZE,
        hit,
    })
}

fn hit(streams: &mut Streams, offset: u64, len: u64) -> Advice {
    access(streams, offset, len, true)
}

fn miss(streams: &mut Streams, offset: u64, len: u64) -> Advice {
    access(streams, offset, len, false)
}

fn ranges(advice: &Advice) -> Vec<Range<u64>> {
    advice.ahead.iter().flat_map(|a| a.ranges()).collect()
}

/// A reader of one file whose pages stay once they are resident.
struct Reader {
    streams: Streams,
    present: BTreeSet<u64>,
    file_size: u64,
}

impl Reader {
    fn new(file_size: u64) -> Reader {
        Reader {
            streams: streams(),
            present: BTreeSet::new(),
            file_size,
        }
    }

    fn pages(range: Range<u64>) -> Range<u64> {
        range.start / PAGE..range.end.div_ceil(PAGE)
    }

    fn read(&mut self, offset: u64, len: u64) -> (bool, Advice) {
        let pages = Reader::pages(offset..offset + len);
        let hit = pages.clone().all(|page| self.present.contains(&page));
        let advice = self.streams.accessed(Access {
            offset,
            len,
            file_size: self.file_size,
            hit,
        });
        self.present.extend(pages);
        for range in ranges(&advice) {
            self.present.extend(Reader::pages(range));
        }
        (hit, advice)
    }

    /// Reads at these offsets; returns the requests and the offsets at which they were made.
    fn asks(
        &mut self,
        offsets: impl IntoIterator<Item = u64>,
        len: u64,
    ) -> Vec<(u64, Vec<Range<u64>>)> {
        let asked = offsets
            .into_iter()
            .map(|at| (at, ranges(&self.read(at, len).1)));
        asked.filter(|(_, ranges)| !ranges.is_empty()).collect()
    }
}

#[test]
fn a_forward_stream_doubles_its_window_and_asks_at_the_middle() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks((0..400).map(|n| n * PAGE), PAGE);
    let expected = [
        (0, 4 * K..68 * K),
        (32 * K, 68 * K..196 * K),
        (128 * K, 196 * K..452 * K),
        (320 * K, 452 * K..964 * K),
        (704 * K, 964 * K..1988 * K),
        (1472 * K, 1988 * K..4036 * K),
    ];
    assert_eq!(asked, expected.map(|(at, range)| (at, vec![range])));
}

#[test]
fn a_window_grows_no_further_than_the_device_wants() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks((0..4096).map(|n| n * PAGE), PAGE);
    let sizes: Vec<u64> = asked.iter().map(|(_, r)| r[0].end - r[0].start).collect();
    assert_eq!(
        sizes[..7],
        [64 * K, 128 * K, 256 * K, 512 * K, M, 2 * M, 2 * M]
    );
    assert!(sizes.iter().all(|size| *size <= 2 * M));
}

#[test]
fn a_stream_waits_for_the_device_once() {
    let mut reader = Reader::new(SIZE);
    let misses = (0..4096).filter(|n| !reader.read(n * PAGE, PAGE).0).count();
    assert_eq!(misses, 1);
}

#[test]
fn a_stream_in_the_middle_of_a_file_is_recognised_by_its_second_access() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks([M, M + 16 * K, M + 32 * K], 16 * K);
    assert_eq!(asked, [(M + 16 * K, vec![M + 32 * K..M + 96 * K])]);
}

#[test]
fn a_backward_stream_is_read_ahead_downwards() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks((0..32).map(|n| M - n * PAGE), PAGE);
    let expected = [
        (M - 4 * K, M - 68 * K..M - 4 * K),
        (M - 36 * K, M - 196 * K..M - 68 * K),
    ];
    assert_eq!(asked, expected.map(|(at, range)| (at, vec![range])));
}

#[test]
fn a_backward_stream_stops_at_the_start_of_the_file() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks([40 * K, 36 * K, 32 * K, 4 * K, 0], PAGE);
    assert_eq!(asked, [(36 * K, vec![0..36 * K])]);
}

#[test]
fn a_strided_stream_asks_for_records_and_not_for_what_lies_between() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks((0..12).map(|n| M + n * M / 2), 16 * K);
    let record = |n: u64| M + n * M / 2..M + n * M / 2 + 16 * K;
    let expected = [
        (2 * M, (3..7).map(record).collect::<Vec<_>>()),
        (3 * M, (7..15).map(record).collect()),
        (6 * M, (15..31).map(record).collect()),
    ];
    assert_eq!(asked, expected);
}

#[test]
fn a_stride_may_be_negative_and_records_unaligned() {
    let mut reader = Reader::new(SIZE);
    let at = |n: u64| 32 * M + 100 - n * 300_000;
    let asked = reader.asks((0..4).map(at), 5000);
    let record = |n| at(n) / PAGE * PAGE..(at(n) + 5000).div_ceil(PAGE) * PAGE;
    assert_eq!(asked[0], (at(2), (3..11).map(record).collect()));
}

#[test]
fn a_strided_stream_ends_with_the_file() {
    let mut reader = Reader::new(4 * M + PAGE);
    let asked = reader.asks([M, 2 * M, 3 * M, 4 * M], 8 * K);
    assert_eq!(asked, [(3 * M, vec![4 * M..4 * M + PAGE])]);
}

#[test]
fn three_interleaved_strides_are_told_apart() {
    let mut reader = Reader::new(SIZE);
    let offsets = (0..40).flat_map(|n| [n * 100 * K, 20 * M + n * 200 * K, 60 * M - n * 300 * K]);
    let offsets: Vec<u64> = offsets.skip(3).collect();
    let hits = offsets
        .iter()
        .filter(|at| reader.read(**at, PAGE).0)
        .count();
    assert_eq!(hits, offsets.len() - 9);
}

#[test]
fn a_stride_of_little_gaps_is_read_through() {
    let mut reader = Reader::new(SIZE);
    let asked = reader.asks([M, M + 12 * K, M + 24 * K], PAGE);
    assert_eq!(asked, [(M + 24 * K, vec![M + 28 * K..M + 92 * K])]);
}

#[test]
fn eight_interleaved_streams_are_followed() {
    let mut reader = Reader::new(1 << 30);
    let mut misses = 0;
    for n in 0..200 {
        for stream in 0..8 {
            misses += u64::from(!reader.read(((2 * M) << stream) + n * PAGE, PAGE).0);
        }
    }
    assert_eq!(misses, 16);
}

#[test]
fn random_accesses_ask_for_nothing() {
    let mut random = Random::new(1);
    let mut streams = streams();
    for _ in 0..100_000 {
        // Odd pages only, so that none are adjacent by chance.
        let page = random.below(1 << 30) * 2 + 1;
        let advice = streams.accessed(Access {
            offset: page * PAGE * 8,
            len: PAGE,
            file_size: 1 << 60,
            hit: false,
        });
        assert_eq!(advice, Advice::default());
    }
}

#[test]
fn a_file_that_is_there_is_not_read_ahead() {
    let mut streams = streams();
    for n in 0..100 {
        let advice = hit(&mut streams, n * PAGE, PAGE);
        assert_eq!(advice.ahead, None);
        assert_eq!(advice.in_stream, n > 0);
    }
    let advice = miss(&mut streams, 100 * PAGE, PAGE);
    assert_eq!(
        ranges(&advice),
        [101 * PAGE..117 * PAGE],
        "where it is no longer there"
    );
}

#[test]
fn records_smaller_than_a_page_repeat_it_and_ask_when_they_leave_it() {
    let mut streams = streams();
    let at = |n: u64| M + n * K;
    assert_eq!(miss(&mut streams, at(0), K), Advice::default());
    for n in 1..4 {
        let advice = hit(&mut streams, at(n), K);
        assert_eq!((advice.repeat, advice.ahead), (Some(M / PAGE), None));
    }
    let advice = miss(&mut streams, at(4), K);
    assert_eq!(advice.repeat, None);
    assert_eq!(ranges(&advice), [M + 8 * K..M + 72 * K]);
    // Six pages and a half: only the shared page is a repeat.
    let advice = hit(&mut streams, at(5), 26 * K);
    assert_eq!(advice.repeat, Some(M / PAGE + 1));
}

#[test]
fn a_backward_stream_repeats_its_lowest_page() {
    let mut streams = streams();
    miss(&mut streams, M + 2 * K, 2 * K);
    let advice = hit(&mut streams, M, 2 * K);
    assert_eq!(advice.repeat, Some(M / PAGE));
    assert_eq!(miss(&mut streams, M - 2 * K, 2 * K).repeat, None);
}

#[test]
fn looking_at_a_page_again_is_a_reference() {
    let mut streams = streams();
    miss(&mut streams, M, PAGE);
    assert_eq!(hit(&mut streams, M, PAGE).repeat, None);
}

#[test]
fn parallel_readers_of_one_stream_do_not_break_it() {
    let mut streams = streams();
    let mut asked = 0;
    for n in (0..200).step_by(2) {
        for n in [n + 1, n] {
            let hit = n > 3;
            let advice = access(&mut streams, n * PAGE, PAGE, hit);
            asked += ranges(&advice).iter().map(|r| r.end - r.start).sum::<u64>();
            assert!(advice.in_stream || n < 4);
        }
    }
    assert!(asked >= 200 * PAGE);
}

#[test]
fn an_opener_that_goes_elsewhere_starts_over() {
    let mut reader = Reader::new(SIZE);
    reader.asks((0..400).map(|n| n * PAGE), PAGE);
    for n in 0..8 {
        reader.read(32 * M + ((100 * K) << n), PAGE);
    }
    // The last request was 1988 KiB to 4036 KiB; its middle is at 3012 KiB.
    let asked = reader.asks((400..760).map(|n| n * PAGE), PAGE);
    assert_eq!(asked[0].1, [4036 * K..4100 * K]);
}

#[test]
fn wasted_read_ahead_shrinks_the_window_and_use_lets_it_grow_again() {
    let mut reader = Reader::new(SIZE);
    reader.asks((0..400).map(|n| n * PAGE), PAGE);
    reader.streams.wasted(3000 * K..3004 * K);
    let asked = reader.asks((400..1600).map(|n| n * PAGE), PAGE);
    let sizes: Vec<u64> = asked.iter().map(|(_, r)| r[0].end - r[0].start).collect();
    assert_eq!(sizes[..3], [1024 * K, 1088 * K, 1152 * K]);
}

#[test]
fn waste_elsewhere_leaves_a_stream_alone() {
    let mut reader = Reader::new(SIZE);
    reader.asks((0..400).map(|n| n * PAGE), PAGE);
    reader.streams.wasted(32 * M..33 * M);
    let asked = reader.asks((400..1400).map(|n| n * PAGE), PAGE);
    assert_eq!(asked[0].1, [4036 * K..6084 * K]);
}

#[test]
fn what_was_lost_is_asked_for_again_and_less_of_it() {
    let mut streams = streams();
    miss(&mut streams, 0, PAGE);
    let advice = miss(&mut streams, PAGE, PAGE);
    assert_eq!(ranges(&advice), [8 * K..40 * K]);
    let advice = miss(&mut streams, 2 * PAGE, PAGE);
    assert_eq!(
        ranges(&advice),
        [12 * K..28 * K],
        "a quarter of the first window at least"
    );
}

#[test]
fn the_end_of_the_file_ends_the_window() {
    let mut reader = Reader::new(30 * K + 7);
    let asked = reader.asks((0..7).map(|n| n * PAGE), PAGE);
    assert_eq!(asked, [(0, vec![4 * K..30 * K + 7])]);
    // The file grows: the page that was partial is already resident.
    reader.file_size = SIZE;
    let asked = reader.asks([28 * K], PAGE);
    assert_eq!(asked, [(28 * K, vec![32 * K..160 * K])]);
}

#[test]
fn no_read_ahead_still_recognises_streams() {
    let mut streams = Streams::new(Limits {
        most: 0,
        ..Limits::default()
    });
    for n in 0..50 {
        let advice = miss(&mut streams, n * PAGE, PAGE);
        assert_eq!((advice.ahead, advice.in_stream), (None, true));
    }
    streams.wasted(0..u64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks for arbitrary accesses that requests lie in the file, are aligned and bounded.
    #[test]
    fn any_access_asks_for_bounded_ranges_of_the_file(
        accesses in prop::collection::vec(
            (any::<u64>(), 0u32..64, any::<u64>(), 0u32..64, any::<u64>(), any::<bool>(), any::<bool>()),
            1..200,
        ),
    ) {
        let mut streams = streams();
        for (offset, offset_bits, len, len_bits, file_size, hit, wasted) in accesses {
            let (offset, len) = (offset >> offset_bits, len >> len_bits);
            let advice = streams.accessed(Access { offset, len, file_size, hit });
            let asked = ranges(&advice);
            let total: u64 = asked.iter().map(|r| r.end - r.start).sum();
            prop_assert!(asked.len() <= 32);
            prop_assert!(total <= (2 * M).max(len.saturating_add(2 * PAGE)));
            for range in asked {
                prop_assert!(range.start < range.end && range.end <= file_size);
                prop_assert_eq!(range.start % PAGE, 0);
                prop_assert!(range.end % PAGE == 0 || range.end == file_size);
            }
            if wasted {
                streams.wasted(offset..offset.saturating_add(len));
            }
        }
    }

    /// Streams of all shapes and noise, mixed: mostly regular ones, so that they are detected.
    #[test]
    fn mixed_streams_never_ask_twice(seed in any::<u64>(), size in 64u64..256) {
        let mut random = Random::new(seed);
        let mut reader = Reader::new(size * M + random.below(M));
        let mut asked = BTreeSet::new();
        // Each shape has a region of the file that it does not leave in this number of accesses.
        let region = reader.file_size / 6;
        let mut at = [0, region + random.below(region), 4 * region - 1];
        let mut skip = 0;
        for _ in 0..1500 {
            let stream = random.below(4) as usize;
            let len = 1 + random.below(12 * K);
            let offset = match stream {
                0 | 1 => { at[stream] += len; at[stream] - len }
                2 => { at[2] -= len.min(at[2]); at[2] }
                _ => { skip += 37 * K + random.below(90 * K); 4 * region + 8 * M + skip % region }
            };
            let (_, advice) = reader.read(offset, len);
            // Noise may have three equal distances by chance; its region of the file is its own.
            for range in ranges(&advice).into_iter().filter(|_| stream < 3) {
                prop_assert!(range.end <= reader.file_size);
                let near = offset + len + 3 * M + PAGE;
                prop_assert!(range.end <= near && range.start + 3 * M + PAGE >= offset);
                for page in Reader::pages(range) {
                    prop_assert!(asked.insert(page), "page {} is asked for twice", page);
                }
            }
        }
    }
}
