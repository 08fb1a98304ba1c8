//! Stream detection for one open file, and the read-ahead of its streams.
//!
//! A stream is an access that continues an earlier one: forward, backward, or at a constant stride.
//! Several streams may share an open file at a time. Each has a window that doubles from `first` to
//! `most` as it is used up; when the reader reaches the middle of the last request, the next window
//! is requested, so that a device and a reader of the same speed never wait for one another. A
//! window shrinks when read-ahead was evicted before its use, and restarts when the accesses went
//! elsewhere for a while.
//!
//! The result depends only on the reported accesses: no clock, no I/O, no allocation. Requested
//! ranges lie in the file, at most a window and a half ahead of the reader, and do not overlap
//! those requested and not yet reached, by the same stream or by any other that is not strided.
//!
//! A hit that belongs to no stream costs one comparison per stream; patterns are searched for only
//! among misses, which access the device anyway.

use std::ops::Range;

/// Streams tracked at a time; a new one replaces the one that was idle longest.
const STREAMS: usize = 8;
/// Remembered accesses outside of streams. Eight are enough to detect four interleaved strides.
const RECENT: usize = 8;
/// A forward or backward stream may skip its own record length or this many pages: reading the gap
/// is cheaper than a second request.
const GAP_PAGES: u64 = 4;
/// Misses elsewhere after which a resumed stream starts with the first window again.
const COLLAPSE_AFTER: u32 = 8;
/// Hits outside of all streams after which the streams are dropped, so that random reads of
/// resident pages no longer pay for them.
const STRAYS_MAX: u32 = 1024;
/// Records of a strided stream requested at a time; each is a separate device request.
const RECORDS_MAX: u64 = 32;
/// Wasted read-ahead shrinks a window to no less than `first` / `FLOOR_SHARE`.
const FLOOR_SHARE: u64 = 4;

/// Window limits in bytes. `first` and `most` are multiples of `page`, which is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Alignment of requested ranges, except at the end of the file.
    pub page: u64,
    /// The first window of a stream.
    pub first: u64,
    /// The largest window: the device's best size. With 0, nothing is read ahead, but streams are
    /// still detected.
    pub most: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            page: 4096,
            first: 64 << 10,
            most: 2 << 20,
        }
    }
}

/// One read or write of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The file's size at this moment.
    pub file_size: u64,
    /// All of its pages were resident, or being loaded. For a write: it needs no load.
    pub hit: bool,
}

/// Classification of an access.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// Ranges to read ahead in the background.
    pub ahead: Option<ReadAhead>,
    /// The access belongs to a stream.
    pub in_stream: bool,
    /// A page that the stream's previous access touched as well; touching it again is not a
    /// reference.
    pub repeat: Option<u64>,
}

/// Ranges of bytes at equal distances; one, unless the stream is strided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadAhead {
    first: Range<u64>,
    stride: i64,
    count: u64,
    file_size: u64,
    page: u64,
}

impl ReadAhead {
    /// Iterates over the ranges in the order in which the stream will reach them; none is empty.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        (0..self.count).map(|n| {
            let shift = self.stride.wrapping_mul(n as i64);
            let start = self.first.start.wrapping_add_signed(shift);
            let end = self.first.end.wrapping_add_signed(shift);
            down(start, self.page)..up(end, self.page).min(self.file_size)
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Forward,
    Backward,
    /// Distance in bytes from the start of one record to the start of the next; never 0.
    Strided(i64),
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    shape: Shape,
    /// The last access: first byte, and the byte after its end.
    start: u64,
    end: u64,
    /// Limit of the requested range: its end (forward), its start (backward), or the start of the
    /// last record (strided). The reader's position while nothing has been requested.
    edge: u64,
    /// Size of the last request in bytes; 0 before the first one.
    asked: u64,
    /// Size of the next request in bytes.
    window: u64,
    /// Upper limit for the growth of the window.
    ceiling: u64,
    /// `Streams::clock` at the last access.
    used: u64,
    /// `Streams::elsewhere` at the last access.
    elsewhere: u32,
    /// The stream has had no access after those that began it.
    young: bool,
}

impl Stream {
    /// Computes the bytes that were requested and not yet reached by the reader.
    fn outstanding(&self) -> Range<u64> {
        match self.shape {
            Shape::Forward => self.end.min(self.edge)..self.edge,
            Shape::Backward => self.edge..self.start.max(self.edge),
            Shape::Strided(stride) if stride > 0 => self.end..self.edge.max(self.end),
            Shape::Strided(_) => self.edge.min(self.start)..self.start,
        }
    }
}

/// Relation of an access to a stream.
enum Relation {
    None,
    /// It is the next one.
    Next,
    /// It shows that the stream runs in the other direction: its first two accesses came in the
    /// wrong order.
    Turned(Shape),
    /// It fills a gap that the stream has passed, as parallel readers do.
    Late,
}

/// The streams of one open file.
#[derive(Debug, Clone)]
pub struct Streams {
    limits: Limits,
    streams: [Stream; STREAMS],
    live: usize,
    recent: [(u64, u64); RECENT],
    /// Number of accesses that were put into `recent`.
    pushed: usize,
    clock: u64,
    /// Misses that belonged to no stream.
    elsewhere: u32,
    /// Hits that belonged to no stream, since the last access that did.
    strays: u32,
    /// The first window of the next stream.
    first: u64,
}

impl Streams {
    /// Creates a tracker without streams.
    pub fn new(limits: Limits) -> Streams {
        assert!(limits.page.is_power_of_two());
        assert!(limits.first >= limits.page && limits.first.is_multiple_of(limits.page));
        assert!(limits.most.is_multiple_of(limits.page));
        let idle = Stream {
            shape: Shape::Forward,
            start: 0,
            end: 0,
            edge: 0,
            asked: 0,
            window: 0,
            ceiling: 0,
            used: 0,
            elsewhere: 0,
            young: false,
        };
        Streams {
            limits,
            streams: [idle; STREAMS],
            live: 0,
            recent: [(u64::MAX, u64::MAX); RECENT],
            pushed: 0,
            clock: 0,
            elsewhere: 0,
            strays: 0,
            first: limits.first.min(limits.most),
        }
    }

    /// Checks whether there is no stream. Hits then need not be reported: two adjacent misses
    /// begin a stream.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// Sets the largest window, a multiple of a page, and shrinks existing windows accordingly.
    pub fn set_most(&mut self, most: u64) {
        if most == self.limits.most {
            return;
        }
        assert!(most.is_multiple_of(self.limits.page));
        self.limits.most = most;
        self.first = self.limits.first.min(most);
        for stream in &mut self.streams[..self.live] {
            stream.ceiling = most;
            stream.window = stream.window.clamp(self.first, most);
        }
    }

    /// Records an access and returns its classification. An empty access, or one that ends beyond
    /// 2^63 - 1, is ignored.
    pub fn accessed(&mut self, access: Access) -> Advice {
        let Some(end) = access.offset.checked_add(access.len) else {
            return Advice::default();
        };
        if access.len == 0 || end > i64::MAX as u64 {
            return Advice::default();
        }
        let access = Access {
            file_size: access.file_size.min(i64::MAX as u64),
            ..access
        };
        self.clock += 1;
        let mut late = false;
        for n in 0..self.live {
            match self.relation(&self.streams[n], access.offset, end) {
                Relation::None => {}
                Relation::Next => {
                    self.streams[n].young = false;
                    return self.advance(n, access, end);
                }
                Relation::Turned(shape) => {
                    let before = (self.streams[n].start, self.streams[n].end);
                    self.streams[n] = Stream {
                        young: false,
                        ..self.fresh(shape, before)
                    };
                    return self.advance(n, access, end);
                }
                Relation::Late => late = true,
            }
        }
        if late {
            return Advice {
                in_stream: true,
                ..Advice::default()
            };
        }
        match self.recognise(access, end) {
            Some((shape, before)) => self.begin(shape, before, access, end),
            None => {
                self.strays += u32::from(access.hit);
                if self.strays >= STRAYS_MAX {
                    (self.live, self.strays) = (0, 0);
                }
                self.elsewhere = self.elsewhere.wrapping_add(u32::from(!access.hit));
                self.recent[self.pushed % RECENT] = (access.offset, end);
                self.pushed += 1;
                Advice::default()
            }
        }
    }

    /// Records that pages of this range were read ahead and evicted before their use. The streams
    /// that requested them, and future streams, request less.
    pub fn wasted(&mut self, range: Range<u64>) {
        let floor = self.floor();
        for stream in &mut self.streams[..self.live] {
            let asked = stream.outstanding();
            if asked.start < range.end && range.start < asked.end {
                shrink(stream, floor);
            }
        }
        self.first = (self.first / 2).max(floor);
    }

    fn floor(&self) -> u64 {
        up(self.limits.first / FLOOR_SHARE, self.limits.page).min(self.limits.most)
    }

    fn gap(&self, len: u64) -> u64 {
        len.max(GAP_PAGES * self.limits.page)
    }

    fn relation(&self, stream: &Stream, start: u64, end: u64) -> Relation {
        let gap = self.gap(end - start);
        let near = self.limits.first;
        match stream.shape {
            Shape::Forward if start >= stream.end && start - stream.end <= gap => Relation::Next,
            Shape::Backward if end <= stream.start && stream.start - end <= gap => Relation::Next,
            Shape::Strided(stride) if stream.start.wrapping_add_signed(stride) == start => {
                Relation::Next
            }
            Shape::Forward if stream.young && end <= stream.start && stream.start - end <= gap => {
                Relation::Turned(Shape::Backward)
            }
            Shape::Backward if stream.young && start >= stream.end && start - stream.end <= gap => {
                Relation::Turned(Shape::Forward)
            }
            Shape::Forward if end <= stream.end && stream.end - start <= near => Relation::Late,
            Shape::Backward if start >= stream.start && end - stream.start <= near => {
                Relation::Late
            }
            _ => Relation::None,
        }
    }

    /// Finds the stream that an access begins, and the access that it continues.
    fn recognise(&self, access: Access, end: u64) -> Option<(Shape, (u64, u64))> {
        let start = access.offset;
        if self.pushed > 0 {
            let newest = self.recent[(self.pushed - 1) % RECENT];
            if let Some(shape) = adjacent(newest, start, end) {
                return Some((shape, newest));
            }
        }
        if access.hit {
            return None;
        }
        let known = &self.recent[..self.pushed.min(RECENT)];
        for before in known {
            if let Some(shape) = adjacent(*before, start, end) {
                return Some((shape, *before));
            }
        }
        if start == 0 {
            return Some((Shape::Forward, (0, 0)));
        }
        self.stride(known, start, end)
    }

    /// Searches for three record starts at equal distances.
    fn stride(&self, known: &[(u64, u64)], start: u64, end: u64) -> Option<(Shape, (u64, u64))> {
        for before in known {
            let stride = start.wrapping_sub(before.0) as i64;
            let first = before.0.wrapping_add_signed(stride.wrapping_neg());
            // The record must not overlap the one before it, nor that one the first.
            if stride.unsigned_abs() < end - start || !known.iter().any(|k| k.0 == first) {
                continue;
            }
            let dense = stride.unsigned_abs() - (end - start) <= self.gap(end - start);
            let shape = match (dense, stride > 0) {
                (false, _) => Shape::Strided(stride),
                (true, true) => Shape::Forward,
                (true, false) => Shape::Backward,
            };
            return Some((shape, *before));
        }
        None
    }

    fn begin(&mut self, shape: Shape, before: (u64, u64), access: Access, end: u64) -> Advice {
        let slot = if self.live < STREAMS {
            self.live += 1;
            self.live - 1
        } else {
            let idle = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used);
            idle.expect("there are streams").0
        };
        self.streams[slot] = self.fresh(shape, before);
        self.advance(slot, access, end)
    }

    fn fresh(&self, shape: Shape, before: (u64, u64)) -> Stream {
        Stream {
            shape,
            start: before.0,
            end: before.1,
            edge: match shape {
                Shape::Forward => before.1,
                Shape::Backward | Shape::Strided(_) => before.0,
            },
            asked: 0,
            window: self.first,
            ceiling: self.limits.most,
            used: self.clock,
            elsewhere: self.elsewhere,
            young: true,
        }
    }

    /// Advances stream `n` by an access.
    fn advance(&mut self, n: usize, access: Access, end: u64) -> Advice {
        self.strays = 0;
        let page = self.limits.page;
        let floor = self.floor();
        let stream = &mut self.streams[n];
        let (lowest, highest) = (access.offset, end - 1);
        let touched = match stream.shape {
            Shape::Backward => Some((highest, stream.start)),
            _ => stream.end.checked_sub(1).map(|last| (lowest, last)),
        };
        let repeat = touched
            .filter(|(again, before)| same_page(*again, *before, page))
            .map(|(again, _)| again >> page.trailing_zeros());
        // Records within one page do not predict an access to the following pages yet.
        let in_one_page = repeat.is_some() && same_page(lowest, highest, page);
        let lost = !access.hit && stream.asked > 0 && reached(stream, access.offset, end);
        if lost {
            shrink(stream, floor);
        }
        if self.elsewhere.wrapping_sub(stream.elsewhere) >= COLLAPSE_AFTER {
            stream.window = self.first;
        }
        stream.start = access.offset;
        stream.end = end;
        stream.used = self.clock;
        stream.elsewhere = self.elsewhere;
        follow(stream, page, lost);
        let wants = if stream.asked == 0 {
            !access.hit && !in_one_page
        } else {
            past_middle(stream)
        };
        let ahead = if wants && self.limits.most > 0 {
            self.ask(n, access.file_size)
        } else {
            None
        };
        Advice {
            ahead,
            in_stream: true,
            repeat,
        }
    }

    /// Computes the next request of stream `n`, if there is anything to read.
    fn ask(&mut self, n: usize, file_size: u64) -> Option<ReadAhead> {
        let page = self.limits.page;
        let stream = &self.streams[n];
        let (ahead, edge, asked) = match stream.shape {
            Shape::Strided(stride) => self.records(stream, stride, file_size)?,
            Shape::Forward => {
                let free = self.clip_forward(n, stream.edge..stream.edge + stream.window);
                let range = free.start..free.end.min(file_size);
                let edge = up(range.end, page);
                (single(range, file_size, page)?, edge, stream.window)
            }
            Shape::Backward => {
                let top = stream.edge.min(up(file_size, page));
                let range = self.clip_backward(n, top.saturating_sub(stream.window)..top);
                (
                    single(range.clone(), file_size, page)?,
                    range.start,
                    stream.window,
                )
            }
        };
        let (first, most) = (self.limits.first, self.limits.most);
        let stream = &mut self.streams[n];
        stream.edge = edge;
        stream.asked = asked;
        stream.ceiling = (stream.ceiling + first).min(most);
        stream.window = (stream.window * 2).min(stream.ceiling);
        self.first = (self.first * 2).min(first.min(most));
        Some(ahead)
    }

    /// Computes the next request of a strided stream: enough records to fill the window.
    fn records(
        &self,
        stream: &Stream,
        stride: i64,
        file_size: u64,
    ) -> Option<(ReadAhead, u64, u64)> {
        let len = stream.end - stream.start;
        let wanted = (stream.window / up(len, self.limits.page)).clamp(1, RECORDS_MAX);
        let first = stream.edge.checked_add_signed(stride)?;
        // Number of records whose first byte lies in the file.
        let room = if stride > 0 {
            file_size.checked_sub(first + 1)? / stride.unsigned_abs() + 1
        } else if first < file_size {
            first / stride.unsigned_abs() + 1
        } else {
            return None;
        };
        let count = wanted.min(room);
        let ahead = ReadAhead {
            first: first..first + len,
            stride,
            count,
            file_size,
            page: self.limits.page,
        };
        let edge = first.wrapping_add_signed(stride.wrapping_mul(count as i64 - 1));
        Some((ahead, edge, stride.unsigned_abs().saturating_mul(count)))
    }

    /// Excludes the outstanding requests of other streams.
    fn clip_forward(&self, n: usize, mut range: Range<u64>) -> Range<u64> {
        for other in self.others(n) {
            if other.start <= range.start && range.start < other.end {
                range.start = up(other.end, self.limits.page);
            } else if range.start < other.start {
                range.end = range.end.min(down(other.start, self.limits.page));
            }
        }
        range
    }

    fn clip_backward(&self, n: usize, mut range: Range<u64>) -> Range<u64> {
        for other in self.others(n) {
            if other.start < range.end && range.end <= other.end {
                range.end = down(other.start, self.limits.page);
            } else if other.end < range.end {
                range.start = range.start.max(up(other.end, self.limits.page));
            }
        }
        range
    }

    fn others(&self, n: usize) -> impl Iterator<Item = Range<u64>> + '_ {
        let live = self.streams[..self.live].iter().enumerate();
        live.filter(move |(m, s)| *m != n && !matches!(s.shape, Shape::Strided(_)))
            .map(|(_, stream)| stream.outstanding())
            .filter(|asked| !asked.is_empty())
    }
}

fn adjacent(before: (u64, u64), start: u64, end: u64) -> Option<Shape> {
    if before.1 == start {
        Some(Shape::Forward)
    } else if before.0 == end {
        Some(Shape::Backward)
    } else {
        None
    }
}

/// Checks whether an access lies in the requested range.
fn reached(stream: &Stream, start: u64, end: u64) -> bool {
    match stream.shape {
        Shape::Forward => end <= stream.edge,
        Shape::Backward => start >= stream.edge,
        Shape::Strided(stride) if stride > 0 => start <= stream.edge,
        Shape::Strided(_) => start >= stream.edge,
    }
}

/// Moves the edge to the reader, if the reader has passed it or the requested data is lost.
fn follow(stream: &mut Stream, page: u64, lost: bool) {
    let (ahead, behind) = (up(stream.end, page), down(stream.start, page));
    match stream.shape {
        Shape::Forward if lost || stream.edge < ahead => stream.edge = ahead,
        Shape::Backward if lost || stream.edge > behind => stream.edge = behind,
        Shape::Strided(stride) => {
            let passed = (stride > 0) == (stream.edge < stream.start);
            if lost || passed {
                stream.edge = stream.start;
            }
        }
        _ => {}
    }
}

/// Checks whether the reader is in the second half of the last request.
fn past_middle(stream: &Stream) -> bool {
    let left = match stream.shape {
        Shape::Forward => stream.edge - stream.end.min(stream.edge),
        Shape::Backward => stream.start - stream.edge,
        Shape::Strided(_) => stream.edge.abs_diff(stream.start),
    };
    left <= stream.asked / 2
}

fn shrink(stream: &mut Stream, floor: u64) {
    stream.ceiling = (stream.asked / 2).clamp(floor, stream.ceiling.max(floor));
    stream.window = stream.window.min(stream.ceiling);
}

fn single(range: Range<u64>, file_size: u64, page: u64) -> Option<ReadAhead> {
    (range.start < range.end).then_some(ReadAhead {
        first: range,
        stride: 0,
        count: 1,
        file_size,
        page,
    })
}

/// Checks whether two offsets lie in one page; `page` is a power of two.
fn same_page(a: u64, b: u64, page: u64) -> bool {
    (a ^ b) < page
}

fn down(offset: u64, page: u64) -> u64 {
    offset & !(page - 1)
}

fn up(offset: u64, page: u64) -> u64 {
    down(offset + (page - 1), page)
}
