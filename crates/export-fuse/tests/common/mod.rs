//! Mounts a file system in memory, and other code shared by the tests.
#![allow(dead_code, reason = "each of the tests uses a part")]

pub mod file_handles;

use block::BlockDevice;
use block_testing::Mem;
use cache::{Cache, Config};
use export_fuse::{Mount, MountConfig, WhenBusy};
use fs::{FIRST_FILESET, Files, Fs, Options};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Mounts, runs `work` on the directory, unmounts, and checks the file system.
pub fn mounted(device: &Arc<dyn BlockDevice>, work: impl FnOnce(&Path)) {
    shared(device, |dir, _| work(dir));
}

/// Does the same, and also passes `work` the files as a client other than the mount.
pub fn shared(device: &Arc<dyn BlockDevice>, work: impl FnOnce(&Path, &Arc<Files>)) {
    configured(device, |_| (), work);
}

/// Does the same, with a configuration changed by `set`.
pub fn configured(
    device: &Arc<dyn BlockDevice>,
    set: impl FnOnce(&mut MountConfig),
    work: impl FnOnce(&Path, &Arc<Files>),
) {
    let fs = Fs::open(Arc::clone(device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = MountConfig::new(folder.path().to_owned());
    set(&mut config);
    let mount = Mount::start(config, Arc::clone(&files)).expect("it mounts");
    work(folder.path(), &files);
    unmount(mount);
    files.close().expect("everything is written");
    drop((files, main));
    let report = fs.check().expect("it can be checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    fs.close().expect("it closes");
}

/// Unmounts. A process that another test is just starting has a copy of every descriptor, and makes
/// the mount busy for a moment.
#[track_caller]
pub fn unmount(mount: Mount) {
    let mut mount = Some(mount);
    wait_until("it is unmounted", || {
        match mount.take().map(|mount| mount.unmount(WhenBusy::Refuse)) {
            None | Some(Ok(_)) => true,
            Some(Err(failed)) => {
                let (back, error) = *failed;
                assert!(error.is_busy(), "{error}");
                mount = Some(back);
                false
            }
        }
    });
}

/// Creates a formatted device of `mib` MiB.
pub fn device_of(mib: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(mib << 20, 4096));
    Fs::format(Arc::clone(&device), "").expect("it formats");
    device
}

/// Creates a formatted device that is large enough for every test.
pub fn device() -> Arc<dyn BlockDevice> {
    device_of(256)
}

/// Converts a path for a system call.
pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in it")
}

/// Converts the result of a system call; the error is its errno.
pub fn check(result: impl Into<i64>) -> Result<i64, i32> {
    match result.into() {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        value => Ok(value),
    }
}

/// Reports whether the kernel is older than a version.
pub fn kernel_before(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    version < (Some(major), Some(minor))
}

/// Waits for a condition, longer than the slowest machine takes.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `work` in another process, which must succeed.
///
/// The child is a fork of one thread of many: it may make system calls, but neither allocate nor
/// panic.
#[track_caller]
pub fn in_another_process(work: impl FnOnce() -> bool) {
    // SAFETY: the child only calls `work`, which follows the rules above, and _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no process");
    if pid == 0 {
        let code = i32::from(!work());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child created above.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the other process disagrees");
}

/// Stores a byte to a shared mapping of a file at an offset, calls `look` with the descriptor and the
/// mapping, and removes the mapping. Returns false if the file cannot be mapped.
///
/// For [`in_another_process`]: the kernel may wait for the server while it holds the lock of the
/// process's address space, which the server must not need.
pub fn store(path: &CStr, at: i64, byte: u8, look: impl FnOnce(i32, *mut u8) -> bool) -> bool {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: system calls with a zero-terminated string and a mapping of this function; the caller
    // passes an offset in the file.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
        let map = libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_SHARED, fd, at);
        if map == libc::MAP_FAILED {
            return false;
        }
        map.cast::<u8>().write_volatile(byte);
        let looked = look(fd, map.cast());
        libc::munmap(map, 4096);
        looked
    }
}
