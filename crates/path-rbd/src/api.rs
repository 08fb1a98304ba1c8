//! The functions of `librados` and `librbd` that this crate calls, loaded at run time.

use block::{Error, ErrorKind, Result};
use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t};
use libloading::Library;
use std::sync::OnceLock;

/// Package that contains the library, for messages: its name on Debian, and on Fedora.
pub const PACKAGE: &str = "librbd1";

/// File name of `librados`, whose interface has this version.
const RADOS: &str = "librados.so.2";
/// File name of `librbd`.
const RBD: &str = "librbd.so.1";

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`.
pub(crate) type Raw = *mut c_void;

/// `rbd_lock_mode_t`.
pub(crate) type LockMode = c_int;
/// `rbd_callback_t`.
pub(crate) type OnComplete = unsafe extern "C" fn(Raw, *mut c_void);
/// `rbd_update_callback_t`.
pub(crate) type OnUpdate = unsafe extern "C" fn(*mut c_void);

/// `EVENT_TYPE_EVENTFD`.
pub(crate) const EVENTFD: c_int = 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_EXCLUSIVE: LockMode = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const ZEROES_THICK: c_int = 1;

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) addr: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// Declares the table of functions, which is filled from the libraries by their names.
macro_rules! functions {
    ($($library:ident = $file:ident { $(fn $name:ident($($arg:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Functions of both libraries.
        pub(crate) struct Api {
            $($(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*)*
        }

        impl Api {
            fn load() -> std::result::Result<Api, libloading::Error> {
                $(
                    // SAFETY: the initializers of these libraries only register with the C++
                    // runtime. The library is never unloaded: `Api` is in a static, and the handle
                    // is leaked here.
                    let $library: &Library = Box::leak(Box::new(unsafe { Library::new($file)? }));
                )*
                Ok(Api {
                    $($(
                        // SAFETY: the type is the declaration in the header of the library's
                        // version, which the test `declarations_agree_with_the_headers` compares.
                        $name: *unsafe { $library.get(stringify!($name))? },
                    )*)*
                })
            }
        }
    };
}

functions! {
    rados = RADOS {
        fn rados_create2(*mut Raw, *const c_char, *const c_char, u64) -> c_int;
        fn rados_conf_read_file(Raw, *const c_char) -> c_int;
        fn rados_conf_set(Raw, *const c_char, *const c_char) -> c_int;
        fn rados_connect(Raw) -> c_int;
        fn rados_shutdown(Raw);
        fn rados_cluster_fsid(Raw, *mut c_char, size_t) -> c_int;
        fn rados_get_instance_id(Raw) -> u64;
        fn rados_getaddrs(Raw, *mut *mut c_char) -> c_int;
        fn rados_buffer_free(*mut c_char);
        fn rados_wait_for_latest_osdmap(Raw) -> c_int;
        fn rados_blocklist_add(Raw, *mut c_char, u32) -> c_int;
        fn rados_mon_command(
            Raw, *mut *const c_char, size_t, *const c_char, size_t,
            *mut *mut c_char, *mut size_t, *mut *mut c_char, *mut size_t
        ) -> c_int;
        fn rados_ioctx_create(Raw, *const c_char, *mut Raw) -> c_int;
        fn rados_ioctx_destroy(Raw);
        fn rados_ioctx_set_namespace(Raw, *const c_char);
        fn rados_ioctx_get_id(Raw) -> i64;
    }
    rbd = RBD {
        fn rbd_open(Raw, *const c_char, *mut Raw, *const c_char) -> c_int;
        fn rbd_open_read_only(Raw, *const c_char, *mut Raw, *const c_char) -> c_int;
        fn rbd_close(Raw) -> c_int;
        fn rbd_get_size(Raw, *mut u64) -> c_int;
        fn rbd_get_features(Raw, *mut u64) -> c_int;
        fn rbd_get_id(Raw, *mut c_char, size_t) -> c_int;
        fn rbd_snap_get_id(Raw, *const c_char, *mut u64) -> c_int;
        fn rbd_set_image_notification(Raw, c_int, c_int) -> c_int;
        fn rbd_poll_io_events(Raw, *mut Raw, c_int) -> c_int;
        fn rbd_lock_acquire(Raw, LockMode) -> c_int;
        fn rbd_lock_get_owners(Raw, *mut LockMode, *mut *mut c_char, *mut size_t) -> c_int;
        fn rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
        fn rbd_watchers_list(Raw, *mut Watcher, *mut size_t) -> c_int;
        fn rbd_watchers_list_cleanup(*mut Watcher, size_t);
        fn rbd_update_watch(Raw, *mut u64, OnUpdate, *mut c_void) -> c_int;
        fn rbd_update_unwatch(Raw, u64) -> c_int;
        fn rbd_aio_create_completion(*mut c_void, Option<OnComplete>, *mut Raw) -> c_int;
        fn rbd_aio_get_return_value(Raw) -> ssize_t;
        fn rbd_aio_get_arg(Raw) -> *mut c_void;
        fn rbd_aio_release(Raw);
        fn rbd_aio_read(Raw, u64, size_t, *mut c_char, Raw) -> c_int;
        fn rbd_aio_readv(Raw, *const iovec, c_int, u64, Raw) -> c_int;
        fn rbd_aio_write(Raw, u64, size_t, *const c_char, Raw) -> c_int;
        fn rbd_aio_writev(Raw, *const iovec, c_int, u64, Raw) -> c_int;
        fn rbd_aio_discard(Raw, u64, u64, Raw) -> c_int;
        fn rbd_aio_write_zeroes(Raw, u64, size_t, Raw, c_int, c_int) -> c_int;
        fn rbd_aio_flush(Raw, Raw) -> c_int;
    }
}

/// Loads the libraries on the first call, and returns their functions.
pub(crate) fn api() -> std::result::Result<&'static Api, libloading::Error> {
    static LOADED: OnceLock<Api> = OnceLock::new();
    if let Some(api) = LOADED.get() {
        return Ok(api);
    }
    let api = Api::load()?;
    Ok(LOADED.get_or_init(|| api))
}

/// Loads the libraries. `name`: the address for which they are needed.
///
/// # Errors
/// [`ErrorKind::NotFound`]: a library is missing, or too old; the message names the package.
pub fn require_library(name: &str) -> Result<()> {
    functions(name).map(drop)
}

/// Same as [`api`], with the error for users.
pub(crate) fn functions(name: &str) -> Result<&'static Api> {
    api().map_err(|error| {
        let why = format!(
            "Ceph's client library cannot be loaded ({error}); install the package {PACKAGE} \
             (16 or later)"
        );
        Error::new(ErrorKind::NotFound, name, why)
    })
}
