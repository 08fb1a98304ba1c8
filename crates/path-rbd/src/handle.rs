//! Safe handles of Ceph's libraries: a client of a cluster, a pool, an image and its completions.
//!
//! All unsafe code of the crate is here and in `api.rs`. Both libraries permit calls with the same
//! handle from any thread; a handle is destroyed when its last reference is dropped.

use crate::api::{self, Api, Raw, Watcher};
use crate::errors::Failure;
use libc::{c_char, c_int, c_void, iovec};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Maximum length of text that a library writes to a buffer of the caller, in bytes.
const TEXT_MAX: usize = 256;
/// Maximum number of watchers and owners that are read of an image.
const CLIENTS_MAX: usize = 64;
/// Maximum number of completions taken in one call.
const EVENTS_MAX: usize = 64;

type Result<T> = std::result::Result<T, Failure>;

/// Names `call` as the origin of a negative result.
fn check(call: &'static str, result: c_int) -> Result<()> {
    match result {
        0.. => Ok(()),
        negative => Err(Failure {
            call,
            errno: negative.saturating_neg(),
        }),
    }
}

/// Converts text for a library. Addresses are parsed without zero bytes, and other text is ours.
fn c(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("the text ends before its first zero byte")
}

/// A client of a cluster.
pub(crate) struct Cluster {
    api: &'static Api,
    raw: Raw,
}

// SAFETY: "librados is thread-safe": a `rados_t` may be used by several threads at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects to the cluster that a configuration describes, as a user of the cluster. `settings`
    /// override the configuration; one that the library does not know is ignored.
    pub(crate) fn connect(
        api: &'static Api,
        id: &str,
        conf: Option<&str>,
        settings: &[(&str, String)],
    ) -> Result<Cluster> {
        let mut raw = null_mut();
        let (cluster, user) = (c("ceph"), c(&format!("client.{id}")));
        // SAFETY: the strings live until the call returns; `raw` receives the handle.
        let made = unsafe { (api.rados_create2)(&mut raw, cluster.as_ptr(), user.as_ptr(), 0) };
        check("rados_create2", made)?;
        let new = Cluster { api, raw };
        let conf = conf.map(c);
        let file = conf.as_ref().map_or(null(), |conf| conf.as_ptr());
        // SAFETY: a null pointer selects the library's own search for the file.
        check("rados_conf_read_file", unsafe {
            (api.rados_conf_read_file)(raw, file)
        })?;
        for (key, value) in settings {
            let (key, value) = (c(key), c(value));
            // SAFETY: both strings live until the call returns.
            unsafe { (api.rados_conf_set)(raw, key.as_ptr(), value.as_ptr()) };
        }
        // SAFETY: the handle was made above and is not connected.
        check("rados_connect", unsafe { (api.rados_connect)(raw) })?;
        Ok(new)
    }

    /// Queries the ID of the cluster.
    pub(crate) fn fsid(&self) -> Result<String> {
        let mut text = [0u8; TEXT_MAX];
        let at = text.as_mut_ptr().cast();
        // SAFETY: the library writes at most this many bytes.
        let result = unsafe { (self.api.rados_cluster_fsid)(self.raw, at, text.len()) };
        check("rados_cluster_fsid", result)?;
        Ok(until_zero(&text))
    }

    /// Returns the number of this client, unique in the cluster.
    pub(crate) fn instance(&self) -> u64 {
        // SAFETY: the client is connected.
        unsafe { (self.api.rados_get_instance_id)(self.raw) }
    }

    /// Returns the addresses of this client, as the cluster's blocklist takes them.
    pub(crate) fn addresses(&self) -> Result<String> {
        let mut text = null_mut();
        // SAFETY: the library allocates the text; it is freed by `take_text`.
        let result = unsafe { (self.api.rados_getaddrs)(self.raw, &mut text) };
        check("rados_getaddrs", result)?;
        let len = if text.is_null() {
            0
        } else {
            // SAFETY: the text ends with a zero byte.
            unsafe { CStr::from_ptr(text) }.count_bytes()
        };
        Ok(String::from_utf8_lossy(&self.take_bytes(text, len)).into_owned())
    }

    /// Puts the client at an address on the cluster's blocklist.
    pub(crate) fn blocklist(&self, address: &str, seconds: u32) -> Result<()> {
        let address = c(address).into_raw();
        // SAFETY: the function takes a mutable pointer and does not write. The string is taken back
        // at once.
        let result = unsafe { (self.api.rados_blocklist_add)(self.raw, address, seconds) };
        // SAFETY: from `into_raw` above, with its length unchanged.
        drop(unsafe { CString::from_raw(address) });
        check("rados_blocklist_add", result)
    }

    /// Waits until this client knows the latest map of the cluster. Its requests then make every
    /// OSD that serves them learn that map first.
    pub(crate) fn wait_for_latest_map(&self) -> Result<()> {
        // SAFETY: the client is connected.
        let result = unsafe { (self.api.rados_wait_for_latest_osdmap)(self.raw) };
        check("rados_wait_for_latest_osdmap", result)
    }

    /// Sends a command to the monitors, and returns its output.
    pub(crate) fn ask_monitor(&self, command: &str) -> Result<Vec<u8>> {
        let command = c(command);
        let mut words = [command.as_ptr()];
        let (mut out, mut text) = (null_mut(), null_mut());
        let (mut out_len, mut text_len) = (0, 0);
        // SAFETY: one command, no input; the library allocates both results.
        let result = unsafe {
            (self.api.rados_mon_command)(
                self.raw,
                words.as_mut_ptr(),
                words.len(),
                null(),
                0,
                &mut out,
                &mut out_len,
                &mut text,
                &mut text_len,
            )
        };
        let out = self.take_bytes(out, out_len);
        self.take_bytes(text, text_len);
        check("rados_mon_command", result)?;
        Ok(out)
    }

    /// Copies bytes that the library allocated, and frees them.
    fn take_bytes(&self, at: *mut c_char, len: usize) -> Vec<u8> {
        if at.is_null() {
            return Vec::new();
        }
        // SAFETY: the library allocated at least `len` bytes here.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec();
        // SAFETY: allocated by the library, and freed once.
        unsafe { (self.api.rados_buffer_free)(at) };
        bytes
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools and images hold a reference to the cluster, so none is left.
        unsafe { (self.api.rados_shutdown)(self.raw) }
    }
}

/// Reads the text before the first zero byte.
fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A pool, or a namespace in it, as a client uses it.
pub(crate) struct Pool {
    pub(crate) cluster: Arc<Cluster>,
    raw: Raw,
}

// SAFETY: a `rados_ioctx_t` may be used by several threads; only its namespace, which is set once
// before the value is shared, may not be changed at the same time.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn open(cluster: Arc<Cluster>, name: &str, namespace: &str) -> Result<Pool> {
        let mut raw = null_mut();
        let (name, namespace) = (c(name), c(namespace));
        let api = cluster.api;
        // SAFETY: the name lives until the call returns; `raw` receives the handle.
        let result = unsafe { (api.rados_ioctx_create)(cluster.raw, name.as_ptr(), &mut raw) };
        check("rados_ioctx_create", result)?;
        // SAFETY: the handle is valid; the library copies the name.
        unsafe { (api.rados_ioctx_set_namespace)(raw, namespace.as_ptr()) };
        Ok(Pool { cluster, raw })
    }

    /// Returns the number of the pool.
    pub(crate) fn id(&self) -> i64 {
        // SAFETY: the handle is valid.
        unsafe { (self.cluster.api.rados_ioctx_get_id)(self.raw) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: an image owns its pool, so no image uses the handle.
        unsafe { (self.cluster.api.rados_ioctx_destroy)(self.raw) }
    }
}

/// A client that has the image open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    /// Number of the client in the cluster.
    pub(crate) instance: u64,
    pub(crate) address: String,
}

/// A completed request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Argument of the request.
    pub(crate) token: u64,
    /// Bytes read, or a negative error number.
    pub(crate) result: isize,
}

/// Reaction to changes of an image's header. Runs on a thread of the library.
pub(crate) type OnUpdate = Box<dyn Fn() + Send + Sync>;

/// An open image.
pub(crate) struct Image {
    pub(crate) pool: Pool,
    api: &'static Api,
    raw: Raw,
    /// Readable when requests have been completed.
    event: OwnedFd,
    update: Option<(u64, Box<OnUpdate>)>,
}

// SAFETY: "librbd is thread-safe": a `rbd_image_t` may be used by several threads at once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image. Completions make `event` readable, which is an eventfd.
    pub(crate) fn open(
        pool: Pool,
        name: &str,
        snapshot: Option<&str>,
        read_only: bool,
        event: OwnedFd,
    ) -> Result<Image> {
        let api = pool.cluster.api;
        let (name, snapshot) = (c(name), snapshot.map(c));
        let snapshot = snapshot.as_ref().map_or(null(), |name| name.as_ptr());
        let mut raw = null_mut();
        let open = if read_only {
            api.rbd_open_read_only
        } else {
            api.rbd_open
        };
        // SAFETY: the names live until the call returns; `raw` receives the handle.
        let result = unsafe { open(pool.raw, name.as_ptr(), &mut raw, snapshot) };
        check("rbd_open", result)?;
        let image = Image {
            pool,
            api,
            raw,
            event,
            update: None,
        };
        let fd = image.event.as_raw_fd();
        // SAFETY: the descriptor stays open until the image is closed.
        check("rbd_set_image_notification", unsafe {
            (api.rbd_set_image_notification)(raw, fd, api::EVENTFD)
        })?;
        Ok(image)
    }

    /// Returns the eventfd that becomes readable when requests have been completed.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Returns the size in bytes, as the latest header that the library has seen states it.
    pub(crate) fn size(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open.
        let result = unsafe { (self.api.rbd_get_size)(self.raw, &mut size) };
        check("rbd_get_size", result).map(|()| size)
    }

    pub(crate) fn has_exclusive_lock_feature(&self) -> Result<bool> {
        let mut features = 0;
        // SAFETY: the image is open.
        let result = unsafe { (self.api.rbd_get_features)(self.raw, &mut features) };
        check("rbd_get_features", result)?;
        Ok(features & api::FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Returns the ID of the image, which stays the same when the image is renamed.
    pub(crate) fn id(&self) -> Result<String> {
        let mut text = [0u8; TEXT_MAX];
        let at = text.as_mut_ptr().cast();
        // SAFETY: the library writes at most this many bytes.
        let result = unsafe { (self.api.rbd_get_id)(self.raw, at, text.len()) };
        check("rbd_get_id", result)?;
        Ok(until_zero(&text))
    }

    /// Looks up the number of a snapshot.
    pub(crate) fn snapshot(&self, name: &str) -> Result<u64> {
        let (name, mut id) = (c(name), 0);
        // SAFETY: the name lives until the call returns.
        let result = unsafe { (self.api.rbd_snap_get_id)(self.raw, name.as_ptr(), &mut id) };
        check("rbd_snap_get_id", result).map(|()| id)
    }

    /// Takes the exclusive lock, and keeps it until the image is closed. Takes it from a client
    /// that no longer answers, which it puts on the blocklist.
    pub(crate) fn lock(&self) -> Result<()> {
        // SAFETY: the image is open.
        let result = unsafe { (self.api.rbd_lock_acquire)(self.raw, api::LOCK_EXCLUSIVE) };
        check("rbd_lock_acquire", result)
    }

    /// Returns the address of the client that has the exclusive lock.
    pub(crate) fn lock_owner(&self) -> Result<Option<String>> {
        let mut owners = [null_mut(); CLIENTS_MAX];
        let (mut mode, mut count) = (0, owners.len());
        // SAFETY: the library fills at most `count` pointers, and sets `count` to their number.
        let result = unsafe {
            (self.api.rbd_lock_get_owners)(self.raw, &mut mode, owners.as_mut_ptr(), &mut count)
        };
        match check("rbd_lock_get_owners", result) {
            // No client has it.
            Err(failure) if failure.errno == libc::ENOENT => return Ok(None),
            other => other?,
        }
        let owner = owners[..count.min(CLIENTS_MAX)].first();
        // SAFETY: the library returned a text that ends with a zero byte.
        let owner = owner.map(|text| unsafe { text_of(*text) });
        // SAFETY: the pointers of the call above, freed once.
        unsafe { (self.api.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Lists the clients that have the image open for writing.
    pub(crate) fn watchers(&self) -> Result<Vec<Client>> {
        let none = Watcher {
            addr: null_mut(),
            id: 0,
            cookie: 0,
        };
        let mut watchers = [none; CLIENTS_MAX];
        let mut count = watchers.len();
        // SAFETY: the library fills at most `count` entries, and sets `count` to their number.
        let result =
            unsafe { (self.api.rbd_watchers_list)(self.raw, watchers.as_mut_ptr(), &mut count) };
        check("rbd_watchers_list", result)?;
        let found = watchers[..count.min(CLIENTS_MAX)].iter();
        let found = found.map(|watcher| Client {
            instance: watcher.id as u64,
            // SAFETY: the library returned a text that ends with a zero byte.
            address: unsafe { text_of(watcher.addr) },
        });
        let found = found.collect();
        // SAFETY: the entries of the call above, freed once.
        unsafe { (self.api.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(found)
    }

    /// Calls `on_update` when the header of the image changes, for example its size.
    pub(crate) fn watch(&mut self, on_update: OnUpdate) -> Result<()> {
        let on_update = Box::new(on_update);
        let at = (&raw const *on_update).cast_mut().cast::<c_void>();
        let mut handle = 0;
        // SAFETY: `update` keeps the argument in place until the watch has ended in `drop`.
        let result = unsafe { (self.api.rbd_update_watch)(self.raw, &mut handle, updated, at) };
        check("rbd_update_watch", result)?;
        self.update = Some((handle, on_update));
        Ok(())
    }

    /// Takes completed requests, at most 64, and appends them to `events`. Returns their number.
    pub(crate) fn poll(&self, events: &mut Vec<Event>) -> Result<usize> {
        let mut raw = [null_mut(); EVENTS_MAX];
        // SAFETY: the library fills at most this many pointers.
        let count = unsafe {
            (self.api.rbd_poll_io_events)(self.raw, raw.as_mut_ptr(), EVENTS_MAX as c_int)
        };
        check("rbd_poll_io_events", count)?;
        let count = count as usize;
        for completion in &raw[..count.min(EVENTS_MAX)] {
            // SAFETY: the completion has ended, was not released, and is released here.
            unsafe {
                events.push(Event {
                    token: (self.api.rbd_aio_get_arg)(*completion) as usize as u64,
                    result: (self.api.rbd_aio_get_return_value)(*completion),
                });
                (self.api.rbd_aio_release)(*completion);
            }
        }
        Ok(count)
    }

    /// Starts a request, whose completion has this token.
    ///
    /// # Safety
    /// The memory that `io` names, and the list of its parts, must stay in place, and must not be
    /// used otherwise, until [`Image::poll`] has returned the token.
    pub(crate) unsafe fn start(&self, token: u64, io: Io<'_>) -> Result<()> {
        let (api, image) = (self.api, self.raw);
        let mut done = null_mut();
        // SAFETY: without a callback, the argument is only stored.
        check("rbd_aio_create_completion", unsafe {
            (api.rbd_aio_create_completion)(token as usize as *mut c_void, None, &mut done)
        })?;
        // SAFETY: the caller's promise; lengths and pointers belong together.
        let (call, result) = unsafe {
            match io {
                Io::Read { offset, parts } => match parts {
                    [one] => {
                        let (at, len) = (one.iov_base.cast(), one.iov_len);
                        let result = (api.rbd_aio_read)(image, offset, len, at, done);
                        ("rbd_aio_read", result)
                    }
                    many => {
                        let (at, count) = (many.as_ptr(), many.len() as c_int);
                        let result = (api.rbd_aio_readv)(image, at, count, offset, done);
                        ("rbd_aio_readv", result)
                    }
                },
                Io::Write { offset, parts } => match parts {
                    [one] => {
                        let (at, len) = (one.iov_base.cast_const().cast(), one.iov_len);
                        let result = (api.rbd_aio_write)(image, offset, len, at, done);
                        ("rbd_aio_write", result)
                    }
                    many => {
                        let (at, count) = (many.as_ptr(), many.len() as c_int);
                        let result = (api.rbd_aio_writev)(image, at, count, offset, done);
                        ("rbd_aio_writev", result)
                    }
                },
                Io::Flush => ("rbd_aio_flush", (api.rbd_aio_flush)(image, done)),
                Io::Discard { offset, len } => {
                    let result = (api.rbd_aio_discard)(image, offset, len, done);
                    ("rbd_aio_discard", result)
                }
                Io::Zeroes { offset, len, thick } => {
                    let flags = if thick { api::ZEROES_THICK } else { 0 };
                    let len = len as usize;
                    let zeroes = api.rbd_aio_write_zeroes;
                    let result = zeroes(image, offset, len, done, flags, 0);
                    ("rbd_aio_write_zeroes", result)
                }
            }
        };
        let started = check(call, result);
        if started.is_err() {
            // SAFETY: a request that was not started never uses its completion.
            unsafe { (api.rbd_aio_release)(done) };
        }
        started
    }
}

impl Drop for Image {
    /// Blocks until the cluster has carried out all requests in flight.
    fn drop(&mut self) {
        // SAFETY: the handles are valid. After the watch has ended, no callback runs; the argument
        // is dropped after that, with `self`.
        unsafe {
            if let Some((handle, _)) = &self.update {
                (self.api.rbd_update_unwatch)(self.raw, *handle);
            }
            (self.api.rbd_close)(self.raw);
        }
    }
}

/// Places in memory of the parts of a request, in order.
#[derive(Default)]
pub(crate) struct Parts(Vec<iovec>);

// SAFETY: the addresses are only passed on to the library; the owner of the value also owns
// the buffers, which are `Send`.
unsafe impl Send for Parts {}

impl Parts {
    /// Appends a buffer that is read or written.
    pub(crate) fn push(&mut self, buf: &mut [u8]) {
        self.0.push(iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        });
    }

    pub(crate) fn as_slice(&self) -> &[iovec] {
        &self.0
    }
}

/// A request to an image.
#[derive(Clone, Copy)]
pub(crate) enum Io<'a> {
    Read {
        offset: u64,
        parts: &'a [iovec],
    },
    Write {
        offset: u64,
        parts: &'a [iovec],
    },
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
    /// `thick`: the zeros occupy space.
    Zeroes {
        offset: u64,
        len: u64,
        thick: bool,
    },
}

/// Called by the library, on one of its threads, when the header of an image has changed.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: the argument that `watch` registered, which is in place until the watch has ended.
    let on_update = unsafe { &*argument.cast_const().cast::<OnUpdate>() };
    on_update();
}

/// Copies a text of the library.
///
/// # Safety
/// `text` is null, or points to bytes that end with zero.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
