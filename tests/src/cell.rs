//! Cells on this machine.

use crate::Sandbox;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Returns an address for one cell: the ports are fixed, so each cell needs its own addresses.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id().to_be_bytes();
    Ipv4Addr::new(
        127,
        100 + process[2] % 100,
        process[3],
        NEXT.fetch_add(1, Ordering::Relaxed),
    )
}

/// Creates the cell `test.local` in `cell.img`; returns the address at which it is to be served.
pub fn create_cell(s: &Sandbox) -> String {
    let at = address().to_string();
    let init = ["cell", "init", "test.local", "cell.img"];
    s.run(&[&init[..], &["--size", "64M", "--listen", &at]].concat())
        .ok();
    at
}
