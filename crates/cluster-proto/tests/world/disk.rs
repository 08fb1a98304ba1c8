//! Disks.

use super::{Name, PATHS, Task};
use std::collections::BTreeSet;

/// What a machine wants from a disk.
#[derive(Debug, Clone)]
pub enum Operation {
    Fence(Task),
    Bump(Task, usize),
    Write { unit: Name, epoch: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Done,
    Refused,
    Newer(u64),
    /// It was executed although a newer claim has the disk.
    Violation(u64),
}

/// State of a disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// The epoch that it stores, and the machine that has it.
    epoch: u64,
    host: usize,
    /// Claims that it does not obey, by path.
    fenced: [BTreeSet<u64>; PATHS],
}

impl Disk {
    pub fn execute(&mut self, path: usize, operation: &Operation) -> Reply {
        match operation {
            Operation::Fence(task) => {
                self.fenced[path].extend(&task.fences);
                Reply::Done
            }
            Operation::Bump(Task { epoch, .. }, _) | Operation::Write { epoch, .. }
                if self.fenced[path].contains(epoch) =>
            {
                Reply::Refused
            }
            Operation::Bump(task, _) if task.epoch < self.epoch => Reply::Newer(self.epoch),
            Operation::Bump(task, host) if task.epoch == self.epoch && *host != self.host => {
                Reply::Violation(self.epoch)
            }
            Operation::Bump(task, host) => {
                (self.epoch, self.host) = (task.epoch, *host);
                Reply::Done
            }
            Operation::Write { epoch, .. } if *epoch < self.epoch => Reply::Violation(self.epoch),
            Operation::Write { .. } => Reply::Done,
        }
    }
}
