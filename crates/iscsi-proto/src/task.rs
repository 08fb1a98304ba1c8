//! Tasks in flight, by their initiator task tag.

use crate::pdu::NO_TAG;

/// An initiator task tag: in the low 16 bits a slot, which is in use once at a time and small; above
/// it a count, so that a late answer does not meet the slot's next task.
pub type TaskId = u32;

/// The slot of a task, for tables of the driver.
pub fn slot_of(task: TaskId) -> usize {
    (task & 0xffff) as usize
}

/// Most tasks at a time.
const SLOTS_MAX: usize = 0xfff0;

/// Data that a command moves. Lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// From the target.
    In(u32),
    /// To the target.
    Out(u32),
}

impl Transfer {
    /// Bytes, whichever way.
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
    /// Reset the logical unit.
    LogicalUnitReset,
}

/// What a tag stands for.
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
    /// Bytes received of a read; bytes sent, promised or asked for of a write.
    pub(crate) moved: u32,
    /// DataSN or R2TSN that comes next.
    pub(crate) next_sn: u32,
    /// R2Ts that have not been answered in full.
    pub(crate) r2ts: u16,
    /// Taken back by the driver: data is thrown away.
    pub(crate) late: bool,
}

/// The tasks of a session.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
    count: u32,
}

impl Tasks {
    /// Room for a task; `None` when 65,520 are in flight.
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
        let id = self.count << 16 | slot;
        debug_assert_ne!(id, NO_TAG, "the highest slots are not used");
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
        self.free.push(id & 0xffff);
        entry.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
