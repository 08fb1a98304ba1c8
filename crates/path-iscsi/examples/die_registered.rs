//! Connects to a LUN with persistent reservations, and ends without closing the connection, so that
//! its registration stays at the target.
//!
//! ```text
//!   die_registered URI
//! ```

use lunpath::Lunpath;
use path_iscsi::{IscsiPath, Options};
use std::time::Duration;

fn main() {
    let uri = std::env::args().nth(1).expect("which LUN?");
    let options = Options {
        persistent_reservations: true,
        ..Options::default()
    };
    let path = IscsiPath::parse(&uri, options).expect("a URI");
    let _connection = path.connect(Duration::from_secs(20)).expect("a connection");
    std::process::abort();
}
