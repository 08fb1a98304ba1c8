//! Services: attached volumes, mounted file systems and served cells.

mod attach;
mod cell;
mod hub;
mod mount;
mod status;

pub use attach::{AttachSpec, Attachment};
pub use cell::{CellService, ServeSpec};
pub use hub::{Ended, Hub, Reload, Serving, serve};
pub use mount::{MountService, MountSpec};
pub use status::{CipherStatus, ExportAt, Status, WriteBack};
