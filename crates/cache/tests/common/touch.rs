//! Access to mapped memory: by the program, and by the kernel on its behalf, which gets an error
//! where the program would get a signal.
#![allow(dead_code, reason = "each test uses a part of it")]

use cache::Mapping;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

pub const PAGE: u64 = 4096;

/// Returns the first number of a page of the mapping.
pub fn load(mapping: &Mapping, page: u64) -> u64 {
    assert!((page * PAGE) as usize + 8 <= mapping.len());
    // SAFETY: inside the mapping, and aligned.
    unsafe { at(mapping, page * PAGE).cast::<u64>().read_volatile() }
}

/// Replaces the first number of a page.
pub fn store(mapping: &Mapping, page: u64, value: u64) {
    assert!((page * PAGE) as usize + 8 <= mapping.len());
    // SAFETY: as above.
    unsafe { at(mapping, page * PAGE).cast::<u64>().write_volatile(value) }
}

/// Copies bytes out of the mapping, by loads of this program.
pub fn load_bytes(mapping: &Mapping, offset: u64, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        assert!(offset as usize + i < mapping.len());
        // SAFETY: inside the mapping.
        *byte = unsafe { at(mapping, offset + i as u64).read_volatile() };
    }
}

/// Copies bytes into the mapping, by stores of this program.
pub fn store_bytes(mapping: &Mapping, offset: u64, data: &[u8]) {
    for (i, byte) in data.iter().enumerate() {
        assert!(offset as usize + i < mapping.len());
        // SAFETY: inside the mapping.
        unsafe { at(mapping, offset + i as u64).write_volatile(*byte) };
    }
}

/// Returns the bytes of a mapping as a slice, as no careful program would: for calls that take one.
#[expect(clippy::mut_from_ref, reason = "a mapping is no owner of its memory")]
pub fn slice(mapping: &Mapping, offset: u64, len: usize) -> &mut [u8] {
    assert!(offset as usize + len <= mapping.len());
    // SAFETY: inside the mapping; no other thread accesses it while the tests use this.
    unsafe { std::slice::from_raw_parts_mut(at(mapping, offset), len) }
}

/// Makes the kernel read a few bytes, which do not cross a page, as write(2) does.
pub fn kernel_loads(mapping: &Mapping, offset: u64, out: &mut [u8]) -> io::Result<()> {
    assert!(offset / PAGE == (offset + out.len() as u64 - 1) / PAGE);
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: the kernel checks the address; the bytes go into a pipe with room for a page.
    let got = unsafe { libc::write(writer.as_raw_fd(), at(mapping, offset).cast(), out.len()) };
    if got == out.len() as isize {
        return reader.read_exact(out);
    }
    Err(io::Error::last_os_error())
}

/// Makes the kernel store a few bytes, which do not cross a page, as read(2) does.
pub fn kernel_stores(mapping: &Mapping, offset: u64, data: &[u8]) -> io::Result<()> {
    assert!(offset / PAGE == (offset + data.len() as u64 - 1) / PAGE);
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(data)?;
    // SAFETY: as above; the page is the mapping's.
    let got = unsafe { libc::read(reader.as_raw_fd(), at(mapping, offset).cast(), data.len()) };
    if got == data.len() as isize {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Returns whether accessing a page raises SIGBUS.
pub fn is_poisoned(mapping: &Mapping, page: u64) -> bool {
    let errno = kernel_loads(mapping, page * PAGE, &mut [0])
        .err()
        .and_then(|e| e.raw_os_error());
    assert!(matches!(errno, None | Some(libc::EFAULT)), "{errno:?}");
    errno.is_some()
}

fn at(mapping: &Mapping, offset: u64) -> *mut u8 {
    mapping.as_ptr().wrapping_add(offset as usize)
}
