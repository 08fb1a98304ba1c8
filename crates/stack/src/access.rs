//! Choices with which a device is opened.

/// Access to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes are refused.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    /// Chooses [`Access::ReadOnly`] if `read_only` is set.
    pub fn read_only_if(read_only: bool) -> Access {
        if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// Checks whether writes are refused.
    pub fn is_read_only(self) -> bool {
        self == Access::ReadOnly
    }
}

/// Treatment of data on a device that is to be formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, which is an error.
    Keep,
    /// It is overwritten.
    Overwrite,
}

impl Existing {
    /// Chooses [`Existing::Overwrite`] if the operation is forced.
    pub fn overwrite_if(forced: bool) -> Existing {
        if forced {
            Existing::Overwrite
        } else {
            Existing::Keep
        }
    }
}
