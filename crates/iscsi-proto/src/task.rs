//! Tasks in flight, indexed by initiator task tag.

use crate::pdu::NO_TAG;

/// An initiator task tag. The low 16 bits are a small slot number, unique among tasks in flight;
/// the high bits are a counter, so a late response does not match the slot's next task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct TaskId(u32);

impl TaskId {
    /// Reads the tag of a PDU, which need not be that of a task in flight.
    #[inline]
    pub(crate) const fn new(tag: u32) -> TaskId {
        TaskId(tag)
    }

    /// Returns the tag for a PDU.
    #[inline]
    pub(crate) const fn tag(self) -> u32 {
        self.0
    }
}

/// Returns the slot of a task, as an index for tables of the driver.
#[inline]
pub fn slot_of(task: TaskId) -> usize {
    (task.0 & 0xffff) as usize
}

/// Maximum number of tasks in flight.
const SLOTS_MAX: usize = 0xfff0;

/// Direction and length in bytes of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// From the target (read).
    In(u32),
    /// To the target (write).
    Out(u32),
}

impl Transfer {
    /// Returns the length in bytes, in either direction.
    pub fn bytes(self) -> u32 {
        match self {
            Transfer::None => 0,
            Transfer::In(bytes) | Transfer::Out(bytes) => bytes,
        }
    }
}

/// Task management functions (section 11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Abort one task.
    AbortTask(TaskId),
    LogicalUnitReset,
}

/// Kind of request that a tag belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Command,
    Management,
    Text,
    Ping,
    Logout,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) purpose: Purpose,
    pub(crate) transfer: Transfer,
    pub(crate) cmd_sn: u32,
    /// For a read, bytes received; for a write, bytes sent, queued or requested by R2Ts.
    pub(crate) moved: u32,
    /// Next expected DataSN or R2TSN.
    pub(crate) next_sn: u32,
    /// R2Ts that have not been answered in full.
    pub(crate) r2ts: u16,
    /// Abandoned by the driver: data is discarded.
    pub(crate) late: bool,
}

/// Table of the tasks of a session.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
    count: u32,
}

impl Tasks {
    /// Allocates a task; `None` when 65,520 are in flight.
    pub(crate) fn add(
        &mut self,
        purpose: Purpose,
        transfer: Transfer,
        cmd_sn: u32,
    ) -> Option<TaskId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS_MAX => {
                self.slots.push(None);
                u32::try_from(self.slots.len()).ok()?.checked_sub(1)?
            }
            None => return None,
        };
        self.count = self.count.wrapping_add(1);
        let id = TaskId(self.count << 16 | slot);
        debug_assert_ne!(id.0, NO_TAG, "the highest slots are not used");
        let entry = self.slots.get_mut(slot_of(id))?;
        *entry = Some(Task {
            id,
            purpose,
            transfer,
            cmd_sn,
            moved: 0,
            next_sn: 0,
            r2ts: 0,
            late: false,
        });
        Some(id)
    }

    pub(crate) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let entry = self.slots.get_mut(slot_of(id))?.as_mut();
        entry.filter(|task| task.id == id)
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let entry = self.slots.get_mut(slot_of(id))?;
        if entry.as_ref().is_none_or(|task| task.id != id) {
            return None;
        }
        self.free.push(id.0 & 0xffff);
        entry.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
