//! The boundary behind which a panic becomes an error.

use crate::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a parser. A panic, a mistake of the parser or of a library that it uses, is an error of the
/// file that it reads; the trees have no state that a panic could leave half changed.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!(
            name: "EVFS-0607",
            "a parser of a file system has panicked: the operation fails; report this with the image"
        );
        Err(Error::corrupt("the parser of the file system has failed"))
    })
}
