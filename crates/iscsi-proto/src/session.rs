//! Full-feature phase (section 4.2): commands, their data, and all other exchanges.
//!
//! A PDU is built only when it can be sent ([`Session::next_pdu`]), so it carries the newest
//! `ExpStatSN`; commands keep their order. Task data is referenced, not buffered: by
//! [`Payload::Task`] on output, by [`Event::Data`] and [`Session::direct`] on input.

use crate::framer::{Digests, Frame, Framer};
use crate::params::Params;
use crate::pdu::{BHS_BYTES, Bhs, FINAL, NO_TAG, opcode, padding};
use crate::serial::{Window, before};
use crate::task::{Function, Purpose, Task, TaskId, Tasks, Transfer};
use crate::text::TEXT_BYTES_MAX;
use crate::{Result, broken};
use std::collections::VecDeque;

/// Maximum number of queued answers to pings of the target.
const PONGS_MAX: usize = 64;

/// Event received from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The last `bytes` bytes consumed are data of `task`, starting at `offset`.
    Data {
        /// Task that the data belongs to.
        task: TaskId,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Number of bytes.
        bytes: usize,
    },
    /// A command has completed.
    Done {
        /// Completed task.
        task: TaskId,
        /// SCSI status (SAM-5, section 5.3).
        status: u8,
        /// Bytes received for a read.
        received: u32,
        /// Residual count: bytes expected but not transferred.
        underflow: u32,
        /// Status qualifier of RFC 7144 (retry delay), or 0.
        qualifier: u16,
        /// Sense data; empty if the response has none.
        sense: Vec<u8>,
    },
    /// Final response to an [abandoned](Session::abandon) command.
    Late {
        /// Abandoned task.
        task: TaskId,
    },
    /// A task management function has completed.
    Managed {
        /// Task of the function.
        task: TaskId,
        /// Response code (section 11.6.1); 0 means function complete.
        response: u8,
    },
    /// Complete response to a text request.
    Text {
        /// Task of the request.
        task: TaskId,
        /// `key=value` pairs, each terminated by a zero byte.
        text: Vec<u8>,
    },
    /// Response to one of our pings.
    Pong {
        /// Task of the ping.
        task: TaskId,
    },
    /// The target closed the session in response to a logout.
    LoggedOut,
    /// The target requests or announces the end of the session (section 11.9, events 1 to 3).
    Leaving {
        /// Event code.
        code: u8,
    },
}

/// Result of [`Session::handle_input`].
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// Number of input bytes consumed.
    pub bytes: usize,
    /// Event that they completed; `None` means that more input is needed.
    pub event: Option<Event>,
}

/// Destination of data that the driver may read directly, see [`Session::direct`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direct {
    /// Task that the data belongs to.
    pub task: TaskId,
    /// Offset of the next byte in the task's data.
    pub offset: u32,
    /// Unread bytes of the current data segment.
    pub left: u32,
}

/// Data segment of an outgoing PDU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No data.
    None,
    /// Part of a task's data, which the driver holds.
    Task {
        /// Task that the data belongs to.
        task: TaskId,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Data held by the PDU itself.
    Own(Vec<u8>),
}

impl Payload {
    /// Returns the length in bytes, without padding.
    pub fn len(&self) -> u32 {
        match self {
            Payload::None => 0,
            Payload::Task { len, .. } => *len,
            Payload::Own(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Reports whether the data segment is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An outgoing PDU, sent as header, payload, trailer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutPdu {
    header: [u8; BHS_BYTES + 4],
    header_len: usize,
    /// Data segment.
    pub payload: Payload,
    trailer: [u8; 8],
    trailer_len: usize,
    digest: bool,
}

impl OutPdu {
    /// Returns the header, with its digest if negotiated.
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.header_len).unwrap_or_default()
    }

    /// Returns padding and digest of the data segment. Call [`OutPdu::seal`] first.
    pub fn trailer(&self) -> &[u8] {
        self.trailer.get(..self.trailer_len).unwrap_or_default()
    }

    /// Computes the trailer. `payload` passes the parts of the data segment in order to its
    /// argument; it is called only if a data digest was negotiated and the segment is not empty.
    pub fn seal(&mut self, payload: impl FnOnce(&mut dyn FnMut(&[u8]))) {
        let bytes = self.payload.len();
        let pad = padding(bytes);
        self.trailer_len = pad;
        if self.digest && bytes > 0 {
            let mut crc = 0;
            payload(&mut |part| crc = crc32c::crc32c_append(crc, part));
            crc = crc32c::crc32c_append(crc, [0; 3].get(..pad).unwrap_or_default());
            crate::bytes::put(&mut self.trailer, pad, &crc.to_le_bytes());
            self.trailer_len = pad + 4;
        }
    }
}

/// Output that has not been built yet.
#[derive(Debug)]
enum Pending {
    Pdu(Bhs, Payload),
    /// Data-Out PDUs for the bytes from `next` to `end`.
    Burst {
        task: TaskId,
        ttt: u32,
        next: u32,
        end: u32,
        data_sn: u32,
    },
}

/// A session of one connection in the full-feature phase.
#[derive(Debug)]
pub struct Session {
    params: Params,
    lun: [u8; 8],
    framer: Framer,
    cmd_sn: u32,
    exp_stat_sn: u32,
    window: Window,
    tasks: Tasks,
    pending: VecDeque<Pending>,
    /// Header of the PDU being received; `current_offset` is the next byte of its data.
    current: Bhs,
    current_offset: u32,
    /// Data segment of the current PDU, unless it is command data.
    held: Vec<u8>,
    /// Text of the exchange in progress.
    text: Vec<u8>,
}

impl Session {
    pub(crate) fn new(params: Params, lun: [u8; 8], cmd_sn: u32, login: &Bhs) -> Session {
        let digests = Digests {
            header: params.header_digest,
            data: params.data_digest,
        };
        let framer = Framer::new(digests, params.max_recv_data_segment);
        Session {
            framer,
            lun,
            cmd_sn,
            exp_stat_sn: login.u32(24).wrapping_add(1),
            window: Window::new(login.u32(28), login.u32(32)),
            params,
            tasks: Tasks::default(),
            pending: VecDeque::new(),
            current: Bhs([0; BHS_BYTES]),
            current_offset: 0,
            held: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Returns the negotiated parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the number of tasks without a final response, abandoned ones included.
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Checks whether the target's window allows another command (section 4.2.2.1).
    pub fn has_room(&self) -> bool {
        self.window.allows(self.cmd_sn)
    }

    /// Queues a command to the logical unit. Returns `None` if the window is closed, see
    /// [`Session::has_room`], or all task slots are in use. The data of a write is requested with
    /// [`Payload::Task`].
    pub fn command(&mut self, cdb: &[u8; 16], transfer: Transfer) -> Option<TaskId> {
        if !self.has_room() {
            return None;
        }
        let task = self.tasks.add(Purpose::Command, transfer, self.cmd_sn)?;
        let direction = match transfer {
            Transfer::None => 0,
            Transfer::In(_) => 0x40,
            Transfer::Out(_) => 0x20,
        };
        const SIMPLE: u8 = 1;
        let mut bhs = Bhs::new(opcode::COMMAND, FINAL | direction | SIMPLE);
        bhs.set(8, &self.lun);
        bhs.set_u32(16, task.tag());
        bhs.set_u32(20, transfer.bytes());
        bhs.set_u32(24, self.cmd_sn);
        bhs.set(32, cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        let Transfer::Out(bytes) = transfer else {
            self.pending.push_back(Pending::Pdu(bhs, Payload::None));
            return Some(task);
        };
        // Data that may be sent without an R2T: immediate data, then unsolicited data, together no
        // more than the first burst.
        let first = bytes.min(self.params.first_burst);
        let immediate = if self.params.immediate_data {
            first.min(self.params.max_send_data_segment)
        } else {
            0
        };
        let unsolicited = if self.params.initial_r2t {
            immediate
        } else {
            first
        };
        if unsolicited > immediate {
            bhs.0[1] &= !FINAL;
        }
        let payload = match immediate {
            0 => Payload::None,
            len => Payload::Task {
                task,
                offset: 0,
                len,
            },
        };
        self.pending.push_back(Pending::Pdu(bhs, payload));
        if unsolicited > immediate {
            self.pending.push_back(Pending::Burst {
                task,
                ttt: NO_TAG,
                next: immediate,
                end: unsolicited,
                data_sn: 0,
            });
        }
        if let Some(task) = self.tasks.get(task) {
            task.moved = unsolicited;
        }
        Some(task)
    }

    /// Abandons a command. Its data is discarded from now on; its completion is [`Event::Late`].
    pub fn abandon(&mut self, task: TaskId) {
        if let Some(task) = self.tasks.get(task) {
            task.late = true;
        }
    }

    /// Checks whether [`Session::next_pdu`] may still request data of this write.
    pub fn wants_data(&mut self, id: TaskId) -> bool {
        let queued = self.pending.iter().any(|pending| match pending {
            Pending::Pdu(_, Payload::Task { task, .. }) | Pending::Burst { task, .. } => {
                *task == id
            }
            Pending::Pdu(..) => false,
        });
        let task = self.tasks.get(id);
        queued
            || task.is_some_and(|t| matches!(t.transfer, Transfer::Out(bytes) if t.moved < bytes))
    }

    /// Queues a task management function (section 11.5) for immediate delivery.
    pub fn manage(&mut self, function: Function) -> Option<TaskId> {
        let id = self.tasks.add(Purpose::Management, Transfer::None, 0)?;
        let (code, referenced) = match function {
            Function::AbortTask(task) => (1, Some(task)),
            Function::LogicalUnitReset => (5, None),
        };
        let mut bhs = Bhs::new(opcode::TASK_MANAGEMENT, FINAL | code).immediate();
        bhs.set(8, &self.lun);
        bhs.set_u32(16, id.tag());
        bhs.set_u32(20, referenced.map_or(NO_TAG, TaskId::tag));
        let ref_cmd_sn = referenced
            .and_then(|task| self.tasks.get(task))
            .map(|t| t.cmd_sn);
        bhs.set_u32(32, ref_cmd_sn.unwrap_or(0));
        self.push_immediate(bhs, Payload::None);
        Some(id)
    }

    /// Queues a ping (NOP-Out, section 11.18).
    pub fn ping(&mut self) -> Option<TaskId> {
        let id = self.tasks.add(Purpose::Ping, Transfer::None, 0)?;
        let mut bhs = Bhs::new(opcode::NOP_OUT, FINAL).immediate();
        bhs.set_u32(16, id.tag());
        bhs.set_u32(20, NO_TAG);
        self.push_immediate(bhs, Payload::None);
        Some(id)
    }

    /// Queues a request for the targets behind this portal (appendix C), in a discovery session.
    pub fn send_targets(&mut self) -> Option<TaskId> {
        let id = self.tasks.add(Purpose::Text, Transfer::None, 0)?;
        self.push_text(id, NO_TAG, b"SendTargets=All\0");
        Some(id)
    }

    /// Queues a logout (section 11.14); the response is [`Event::LoggedOut`].
    pub fn logout(&mut self) -> Option<TaskId> {
        let id = self.tasks.add(Purpose::Logout, Transfer::None, 0)?;
        let mut bhs = Bhs::new(opcode::LOGOUT, FINAL).immediate();
        bhs.set_u32(16, id.tag());
        self.push_immediate(bhs, Payload::None);
        Some(id)
    }

    fn push_text(&mut self, id: TaskId, ttt: u32, text: &[u8]) {
        let mut bhs = Bhs::new(opcode::TEXT, FINAL).immediate();
        bhs.set_u32(16, id.tag());
        bhs.set_u32(20, ttt);
        self.push_immediate(bhs, Payload::Own(text.into()));
    }

    fn push_immediate(&mut self, mut bhs: Bhs, payload: Payload) {
        bhs.set_u32(24, self.cmd_sn);
        self.pending.push_back(Pending::Pdu(bhs, payload));
    }

    /// Builds the next PDU to send.
    pub fn next_pdu(&mut self) -> Option<OutPdu> {
        let (mut bhs, payload) = match self.pending.pop_front()? {
            Pending::Pdu(bhs, payload) => (bhs, payload),
            Pending::Burst {
                task,
                ttt,
                next,
                end,
                data_sn,
            } => {
                let len = (end - next).min(self.params.max_send_data_segment);
                let last = next + len == end;
                if !last {
                    self.pending.push_front(Pending::Burst {
                        task,
                        ttt,
                        next: next + len,
                        end,
                        data_sn: data_sn.wrapping_add(1),
                    });
                } else if let Some(task) = self.tasks.get(task).filter(|_| ttt != NO_TAG) {
                    task.r2ts = task.r2ts.saturating_sub(1);
                }
                let mut bhs = Bhs::new(opcode::DATA_OUT, if last { FINAL } else { 0 });
                bhs.set(8, &self.lun);
                bhs.set_u32(16, task.tag());
                bhs.set_u32(20, ttt);
                bhs.set_u32(36, data_sn);
                bhs.set_u32(40, next);
                let offset = next;
                (bhs, Payload::Task { task, offset, len })
            }
        };
        bhs.set_u32(28, self.exp_stat_sn);
        bhs.set_data_bytes(payload.len());
        let mut header = [0; BHS_BYTES + 4];
        crate::bytes::put(&mut header, 0, &bhs.0);
        let mut header_len = BHS_BYTES;
        if self.params.header_digest {
            let crc = crc32c::crc32c(&bhs.0);
            crate::bytes::put(&mut header, BHS_BYTES, &crc.to_le_bytes());
            header_len += 4;
        }
        Some(OutPdu {
            header,
            header_len,
            payload,
            trailer: [0; 8],
            trailer_len: 0,
            digest: self.params.data_digest,
        })
    }

    /// Consumes `input` up to the next event or to its end.
    ///
    /// # Errors
    /// The connection is unusable: the target violates the protocol, or bytes were corrupted in
    /// transit.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<Taken> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            let (taken, frame) = self.framer.next(rest)?;
            at += taken;
            let event = match frame {
                None => {
                    let bytes = at;
                    return Ok(Taken { bytes, event: None });
                }
                Some(Frame::Header(bhs)) => {
                    self.begin(bhs)?;
                    None
                }
                Some(Frame::Data(n)) => {
                    let from = taken.saturating_sub(n);
                    self.data(rest.get(from..taken).unwrap_or_default())
                }
                Some(Frame::End) => self.finish()?,
            };
            if event.is_some() {
                return Ok(Taken { bytes: at, event });
            }
        }
    }

    /// Returns the destination of the next bytes if the last input ended within the data of a
    /// command. The driver may read up to `left` bytes directly into it, then calls
    /// [`Session::took`].
    pub fn direct(&mut self) -> Option<Direct> {
        let left = self.framer.data_left();
        if left == 0 || self.current.opcode() != opcode::DATA_IN {
            return None;
        }
        let task = self
            .tasks
            .get(TaskId::new(self.current.itt()))
            .filter(|t| !t.late)?;
        Some(Direct {
            task: task.id,
            offset: self.current_offset,
            left,
        })
    }

    /// Accounts for data that was read directly to the destination of [`Session::direct`].
    pub fn took(&mut self, bytes: &[u8]) {
        self.framer.took_data(bytes);
        let n = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.current_offset = self.current_offset.saturating_add(n);
    }

    /// Validates a header before its data is read.
    fn begin(&mut self, bhs: Bhs) -> Result<()> {
        self.current = bhs;
        self.held.clear();
        if bhs.opcode() != opcode::DATA_IN {
            return Ok(());
        }
        let Some(task) = self.tasks.get(TaskId::new(bhs.itt())) else {
            return broken(format!(
                "data for task {:#x}, which is not in flight",
                bhs.itt()
            ));
        };
        let Transfer::In(expected) = task.transfer else {
            return broken("data for a task that does not read");
        };
        let (offset, bytes) = (bhs.u32(40), bhs.data_bytes());
        // DataPDUInOrder and DataSequenceInOrder are Yes: no gaps and no duplicates.
        if offset != task.moved || bytes > expected - task.moved {
            return broken(format!(
                "unexpected data: {bytes} bytes at {offset}, after {} of {expected}",
                task.moved
            ));
        }
        if bhs.u32(36) != task.next_sn && bytes > 0 {
            return broken(format!(
                "DataSN {} instead of {}",
                bhs.u32(36),
                task.next_sn
            ));
        }
        task.next_sn = task.next_sn.wrapping_add(1);
        task.moved += bytes;
        self.current_offset = offset;
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) -> Option<Event> {
        if self.current.opcode() != opcode::DATA_IN {
            self.held.extend_from_slice(bytes);
            return None;
        }
        let offset = self.current_offset;
        let n = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.current_offset = offset.saturating_add(n);
        let task = self
            .tasks
            .get(TaskId::new(self.current.itt()))
            .filter(|t| !t.late)?;
        Some(Event::Data {
            task: task.id,
            offset,
            bytes: bytes.len(),
        })
    }

    /// Handles a complete PDU.
    fn finish(&mut self) -> Result<Option<Event>> {
        let bhs = self.current;
        self.window.update(bhs.u32(28), bhs.u32(32));
        const STATUS: u8 = 0x01;
        match bhs.opcode() {
            opcode::DATA_IN if bhs.flags() & STATUS != 0 => {
                self.acknowledge(&bhs);
                self.end_command(&bhs, 0, Vec::new()).map(Some)
            }
            opcode::DATA_IN => Ok(None),
            opcode::RESPONSE => {
                self.acknowledge(&bhs);
                // Without RFC 7144, bytes 8 and 9 are reserved; with it, they are the status
                // qualifier.
                let qualifier = bhs.u16(8);
                match bhs.byte(2) {
                    0 => {
                        let sense = sense_of(&self.held);
                        self.end_command(&bhs, qualifier, sense).map(Some)
                    }
                    code => broken(format!("iSCSI response {code:#x}: target failure")),
                }
            }
            opcode::R2T => self.ready_to_transfer(&bhs),
            opcode::NOP_IN => self.nop_in(&bhs),
            opcode::TASK_MANAGEMENT_RESPONSE => {
                self.acknowledge(&bhs);
                let task = self.end(&bhs, Purpose::Management)?.id;
                let response = bhs.byte(2);
                Ok(Some(Event::Managed { task, response }))
            }
            opcode::TEXT_RESPONSE => self.text_response(&bhs),
            opcode::LOGOUT_RESPONSE => {
                self.acknowledge(&bhs);
                self.end(&bhs, Purpose::Logout)?;
                Ok(Some(Event::LoggedOut))
            }
            opcode::ASYNC => {
                self.acknowledge(&bhs);
                // 0 is sense data, which the next command reports too; 4 requests a negotiation,
                // which is not supported.
                let code = bhs.byte(36);
                Ok(matches!(code, 1..=3).then_some(Event::Leaving { code }))
            }
            opcode::REJECT => {
                self.acknowledge(&bhs);
                self.reject(&bhs)
            }
            other => broken(format!("unexpected opcode {other:#x} from a target")),
        }
    }

    /// Updates ExpStatSN. StatSN arrives in order on a single connection.
    fn acknowledge(&mut self, bhs: &Bhs) {
        let next = bhs.u32(24).wrapping_add(1);
        if before(self.exp_stat_sn, next) {
            self.exp_stat_sn = next;
        }
    }

    /// Removes and returns the task that a response ends.
    fn end(&mut self, bhs: &Bhs, purpose: Purpose) -> Result<Task> {
        match self.tasks.remove(TaskId::new(bhs.itt())) {
            Some(task) if task.purpose == purpose => Ok(task),
            _ => broken(format!("unexpected response to task {:#x}", bhs.itt())),
        }
    }

    fn end_command(&mut self, bhs: &Bhs, qualifier: u16, sense: Vec<u8>) -> Result<Event> {
        let task = self.end(bhs, Purpose::Command)?;
        let id = task.id;
        if self
            .pending
            .iter()
            .any(|p| matches!(p, Pending::Pdu(bhs, _) if bhs.itt() == id.tag()))
        {
            return broken("a response to a command that was not sent");
        }
        // Data of a task that has ended is not sent.
        self.pending
            .retain(|p| !matches!(p, Pending::Burst { task, .. } if *task == id));
        if task.late {
            return Ok(Event::Late { task: id });
        }
        const UNDERFLOW: u8 = 0x02;
        let underflow = if bhs.flags() & UNDERFLOW != 0 {
            bhs.u32(44).min(task.transfer.bytes())
        } else {
            0
        };
        let received = match task.transfer {
            Transfer::In(_) => task.moved,
            _ => 0,
        };
        Ok(Event::Done {
            task: id,
            status: bhs.byte(3),
            received,
            underflow,
            qualifier,
            sense,
        })
    }

    fn ready_to_transfer(&mut self, bhs: &Bhs) -> Result<Option<Event>> {
        let outstanding_max = self.params.max_outstanding_r2t;
        let max_burst = self.params.max_burst;
        let Some(task) = self.tasks.get(TaskId::new(bhs.itt())) else {
            return broken(format!(
                "R2T for task {:#x}, which is not in flight",
                bhs.itt()
            ));
        };
        let Transfer::Out(expected) = task.transfer else {
            return broken("R2T for a task that does not write");
        };
        let (offset, len) = (bhs.u32(40), bhs.u32(44));
        if task.r2ts >= outstanding_max {
            return broken(format!("more than {outstanding_max} R2Ts at a time"));
        }
        if bhs.u32(36) != task.next_sn || offset != task.moved {
            return broken("R2Ts out of order");
        }
        if len == 0 || len > max_burst || len > expected - task.moved {
            return broken(format!(
                "invalid R2T: {len} bytes at {offset} of {expected}"
            ));
        }
        task.next_sn = task.next_sn.wrapping_add(1);
        task.moved += len;
        task.r2ts += 1;
        let task = task.id;
        self.pending.push_back(Pending::Burst {
            task,
            ttt: bhs.ttt(),
            next: offset,
            end: offset + len,
            data_sn: 0,
        });
        Ok(None)
    }

    fn nop_in(&mut self, bhs: &Bhs) -> Result<Option<Event>> {
        if bhs.itt() != NO_TAG {
            self.acknowledge(bhs);
            let task = self.end(bhs, Purpose::Ping)?.id;
            return Ok(Some(Event::Pong { task }));
        }
        if bhs.ttt() == NO_TAG {
            // Only its sequence numbers matter.
            return Ok(None);
        }
        let is_pong =
            |p: &&Pending| matches!(p, Pending::Pdu(b, _) if b.opcode() == opcode::NOP_OUT);
        if self.pending.iter().filter(is_pong).count() >= PONGS_MAX {
            return broken("too many pings");
        }
        let mut answer = Bhs::new(opcode::NOP_OUT, FINAL).immediate();
        answer.set(8, &bhs.lun());
        answer.set_u32(16, NO_TAG);
        answer.set_u32(20, bhs.ttt());
        self.push_immediate(answer, Payload::None);
        Ok(None)
    }

    fn text_response(&mut self, bhs: &Bhs) -> Result<Option<Event>> {
        self.acknowledge(bhs);
        let Some(task) = self
            .tasks
            .get(TaskId::new(bhs.itt()))
            .filter(|t| t.purpose == Purpose::Text)
        else {
            return broken("a response to a text request that was not sent");
        };
        let id = task.id;
        self.text.append(&mut self.held);
        if self.text.len() > TEXT_BYTES_MAX {
            return broken("the text of a response is too long");
        }
        if bhs.flags() & FINAL == 0 {
            self.push_text(id, bhs.ttt(), &[]);
            return Ok(None);
        }
        self.tasks.remove(id);
        let text = std::mem::take(&mut self.text);
        Ok(Some(Event::Text { task: id, text }))
    }

    /// Completes a rejected ping or function; any other reject is fatal at recovery level 0.
    fn reject(&mut self, bhs: &Bhs) -> Result<Option<Event>> {
        const REJECTED: u8 = 255;
        let reason = bhs.byte(2);
        let rejected = crate::bytes::array(&self.held, 0).map(Bhs);
        let known = rejected.and_then(|r| {
            let task = self.tasks.get(TaskId::new(r.itt()))?;
            Some((task.id, task.purpose))
        });
        match known {
            Some((task, Purpose::Management)) => {
                self.tasks.remove(task);
                let response = REJECTED;
                Ok(Some(Event::Managed { task, response }))
            }
            Some((task, Purpose::Ping)) => {
                self.tasks.remove(task);
                Ok(Some(Event::Pong { task }))
            }
            _ => broken(format!("the target rejects a PDU, reason {reason:#x}")),
        }
    }
}

/// Extracts the sense data of a response: two bytes of length, then the data (section 11.4.7).
fn sense_of(data: &[u8]) -> Vec<u8> {
    let len = usize::from(crate::bytes::u16_at(data, 0).unwrap_or(0));
    let sense = data.get(2..).unwrap_or_default();
    sense.get(..len.min(sense.len())).unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
