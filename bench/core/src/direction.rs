//! Direction of the transfers of a job.

/// Direction of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    /// Chooses [`Direction::Write`] if `writes` is set.
    pub fn write_if(writes: bool) -> Direction {
        if writes {
            Direction::Write
        } else {
            Direction::Read
        }
    }
}
