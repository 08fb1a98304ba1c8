//! Asynchronous writes that bypass the kernel's page cache, with concurrent readers that use it.
//! Needs `/dev/fuse` and the right to mount.

mod common;

use common::{c, check, device, mounted};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of the file in bytes.
const BYTES: usize = 640 << 10;
/// Size of a write in bytes.
const WRITE: usize = 64 << 10;

/// `struct iocb` of <linux/aio_abi.h>, on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

const IOCB_CMD_PWRITE: u16 = 1;

/// Fills the file with one byte value by asynchronous writes, and waits for them.
fn write_all(context: u64, fd: &OwnedFd, buf: &mut [u8], byte: u8) {
    buf.fill(byte);
    let piece = |at: usize| Iocb {
        opcode: IOCB_CMD_PWRITE,
        fd: fd.as_raw_fd() as u32,
        buf: buf[at..].as_ptr() as u64,
        bytes: WRITE as u64,
        offset: at as i64,
        ..Iocb::default()
    };
    let pieces: Vec<Iocb> = (0..BYTES).step_by(WRITE).map(piece).collect();
    let list: Vec<*const Iocb> = pieces.iter().map(|piece| piece as *const Iocb).collect();
    let mut events = vec![[0u64; 4]; pieces.len()];
    // SAFETY: the buffer, the pieces and the events live until all writes are done.
    unsafe {
        let sent = libc::syscall(libc::SYS_io_submit, context, list.len(), list.as_ptr());
        assert_eq!(check(sent).expect("submitted"), list.len() as i64);
        let (all, none) = (events.len(), std::ptr::null::<libc::timespec>());
        let to = events.as_mut_ptr();
        let done = libc::syscall(libc::SYS_io_getevents, context, all, all, to, none);
        assert_eq!(check(done).expect("done"), all as i64);
    }
    assert!(
        events.iter().all(|event| event[2] == WRITE as u64),
        "{events:?}"
    );
}

fn open(path: &Path, flags: i32) -> OwnedFd {
    let path = c(path);
    // SAFETY: the string ends with a zero, and the new descriptor has no other owner.
    unsafe {
        let fd = check(libc::open(path.as_ptr(), flags)).expect("opened");
        OwnedFd::from_raw_fd(fd as i32)
    }
}

#[test]
fn what_an_asynchronous_direct_write_has_written_is_what_a_buffered_read_finds() {
    mounted(&device(), |dir| {
        let path = dir.join("file");
        std::fs::write(&path, vec![0; BYTES]).expect("written");
        let fd = open(&path, libc::O_WRONLY | libc::O_DIRECT);
        let mut room = vec![0u8; BYTES + 4096];
        let start = room.as_ptr().align_offset(4096);
        let buf = &mut room[start..start + BYTES];
        let mut context = 0u64;
        // SAFETY: the call writes the context to a live variable.
        check(unsafe { libc::syscall(libc::SYS_io_setup, 64, &mut context) }).expect("a context");
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::fs::read(&path).expect("read");
                    }
                });
            }
            let mut stale = None;
            for round in 1..=300u32 {
                let byte = round as u8;
                write_all(context, &fd, buf, byte);
                let found = std::fs::read(&path).expect("read");
                if found.iter().any(|found| *found != byte) {
                    stale = Some(round);
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(stale, None, "a read found what was there before");
        });
        // SAFETY: the context was created above and is not used again.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    });
}
