//! Runs the ownership protocol ([`cluster_proto`]) on one machine: etcd holds the records and the
//! leases, a process of its own serves each unit, and the address of a unit moves with it.
//!
//! A [`Node`] has one process for each claim on a unit. It commands the process through a [`Link`]
//! and ends it by a signal. The process has a [`Deadline`]: the end of the time for which its
//! machine may serve.
//!
//! **Invariant:** what a machine serves ends with its lease, whatever state its processes are in:
//! the kernel ends the processes and removes the addresses.
//!
//! Deliberately absent: fences and the storage of epochs, which the process of a unit does when it
//! opens the device.

mod address;
mod deadline;
mod etcd;
mod members;
mod node;
mod store;
mod unit;

pub use address::Address;
pub use deadline::{Deadline, now};
pub use etcd::{Endpoints, Error, Etcd};
pub use node::{Handle, Node, Options, Units};
pub use store::{Drain, Host, Own, Seen, State, Store, Stored};
pub use unit::{Link, Report, Step};
