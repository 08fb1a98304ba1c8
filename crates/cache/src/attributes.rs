//! What a file may have otherwise than the rest.

/// Attributes of one file; the last to set them wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Age in milliseconds at which a dirty page is written out; `None`: as the cache has it.
    pub sync_ms: Option<u32>,
    /// Bring whole clusters of 64 KiB, into frames side by side.
    pub large_page: bool,
    /// The node whose memory the pages are to lie in.
    pub numa_node: Option<u32>,
    /// Do not read ahead.
    pub no_read_ahead: bool,
    /// Do not keep pages longer than they are used.
    pub no_cache: bool,
    /// When written pages go below.
    pub flush_behind: FlushBehind,
}

/// When the pages of a sequential write go below; the values of `fcache_fb_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushBehind {
    /// When they are due by age, or there are too many.
    #[default]
    None = 0,
    /// Soon, by the background.
    Background = 1,
    /// At once, by the writer.
    Inline = 2,
}
