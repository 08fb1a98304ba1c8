//! The system operations that a queue passes to its executor.

/// System operation.
pub(crate) enum Sys<'a> {
    /// Read into one buffer.
    Read {
        offset: u64,
        ptr: *mut u8,
        len: u32,
    },
    /// Write from one buffer.
    Write {
        offset: u64,
        ptr: *const u8,
        len: u32,
        fua: bool,
    },
    /// Read into several buffers.
    ReadV {
        offset: u64,
        iov: &'a [libc::iovec],
    },
    /// Write from several buffers.
    WriteV {
        offset: u64,
        iov: &'a [libc::iovec],
        fua: bool,
    },
    /// `fdatasync`.
    Sync,
    Fallocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
}
