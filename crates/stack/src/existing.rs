//! Treatment of existing data by commands that format.

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
