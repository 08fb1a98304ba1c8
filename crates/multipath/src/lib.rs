//! One LUN over many paths. This much of it is pure: which path takes an I/O, how that turns out in
//! virtual time, and what another policy would have made of recorded I/O.

pub mod advise;
pub mod policy;
pub mod topology;
pub mod trace;
pub mod virtual_time;
