//! A blocking session for control-plane commands, each with a deadline, and its orderly shutdown.

use crate::errors::{of_fault, of_protocol};
use crate::nexus::{self, LostSession, LostSessions};
use crate::wire::{Memory, Wire};
use block::{Error, ErrorKind, Result};
use iscsi_proto::scsi::cdb::{Cdb, ReserveOut, persistent_reserve_out};
use iscsi_proto::scsi::{Action, Fault, classify, reserve_out};
use iscsi_proto::{Event, Function, TaskId, Transfer};
use retry::{Backoff, Jitter, random_seed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of attempts of a control-plane command: a new session may have several unit
/// attentions pending.
const AGAIN_MAX: u32 = 8;
/// Delays after BUSY if the target names none.
pub(crate) const BUSY: Backoff = Backoff::new(
    Duration::from_millis(5),
    Duration::from_millis(500),
    Jitter::Equal,
);
/// Maximum duration of the orderly shutdown of a session.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Data buffers of a single command.
#[derive(Default)]
struct One {
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Memory for One {
    fn gather<'a>(&'a self, _: TaskId, offset: u32, len: u32, mut each: impl FnMut(&'a [u8])) {
        each(&self.out[offset as usize..(offset + len) as usize]);
    }

    fn room(&mut self, _: TaskId, offset: u32) -> &mut [u8] {
        &mut self.input[offset as usize..]
    }
}

/// Data phase of a command.
pub(crate) enum Data<'a> {
    None,
    /// Data from the target, at most this many bytes.
    In(u32),
    Out(&'a [u8]),
}

/// Error of a failed command.
pub(crate) struct Failure {
    /// SCSI fault; `None` if the command got no SCSI response.
    pub(crate) fault: Option<Fault>,
    pub(crate) error: Error,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

/// A session used by blocking calls one at a time, or by a queue.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    /// Name of the path, for messages.
    pub(crate) name: String,
    /// Session identifier, initiator part.
    pub(crate) isid: [u8; 6],
    /// Reservation key registered by this session or by the session that it replaced.
    pub(crate) key: Option<u64>,
    /// Records the registration if the session cannot remove it.
    pub(crate) leavings: Arc<LostSessions>,
    /// The connection is lost; nothing more is sent on it.
    pub(crate) dead: bool,
}

impl Link {
    pub(crate) fn new(wire: Wire, name: &str, isid: [u8; 6]) -> Link {
        Link {
            wire,
            name: name.into(),
            isid,
            key: None,
            leavings: Arc::default(),
            dead: false,
        }
    }

    /// Executes a command and returns its incoming data.
    pub(crate) fn command(
        &mut self,
        cdb: &Cdb,
        data: &Data<'_>,
        deadline: Instant,
    ) -> std::result::Result<Vec<u8>, Failure> {
        let (mut busies, seed) = (0, random_seed());
        for _ in 0..AGAIN_MAX {
            let (status, qualifier, sense, input) = self.once(cdb, data, deadline)?;
            match classify(status, qualifier, &sense) {
                Action::Done => return Ok(input),
                Action::Again => {}
                Action::Later { delay_ms, .. } => {
                    let named = delay_ms.map(|ms| Duration::from_millis(ms.into()));
                    let delay = named.unwrap_or_else(|| BUSY.pause(busies, seed));
                    busies += 1;
                    let left = deadline.saturating_duration_since(Instant::now());
                    std::thread::sleep(delay.min(left));
                }
                Action::Fail(fault) => {
                    let error = of_fault(&self.name, fault, status, &sense);
                    let fault = Some(fault);
                    return Err(Failure { fault, error });
                }
            }
        }
        let why = "the target stays busy, or the unit keeps changing";
        Err(self.failed(ErrorKind::Busy, why))
    }

    fn once(
        &mut self,
        cdb: &Cdb,
        data: &Data<'_>,
        deadline: Instant,
    ) -> std::result::Result<(u8, u16, Vec<u8>, Vec<u8>), Failure> {
        let mut memory = One::default();
        let transfer = match data {
            Data::None => Transfer::None,
            Data::In(bytes) => {
                memory.input = vec![0; *bytes as usize];
                Transfer::In(*bytes)
            }
            Data::Out(bytes) => {
                memory.out = bytes.to_vec();
                Transfer::Out(bytes.len() as u32)
            }
        };
        let asked = loop {
            match self.wire.session.command(cdb, transfer) {
                Some(task) => break task,
                None => self.poll(&mut memory, deadline, &mut |_| None::<()>)?,
            };
        };
        let end = self.until(&mut memory, deadline, |event| match event {
            Event::Done {
                task,
                status,
                received,
                qualifier,
                sense,
                ..
            } if task == asked => Some((status, received, qualifier, sense)),
            _ => None,
        });
        let (status, received, qualifier, sense) = end?;
        memory.input.truncate(received as usize);
        Ok((status, qualifier, sense, memory.input))
    }

    /// Executes PERSISTENT RESERVE OUT as the registered `key`.
    pub(crate) fn reserve(
        &mut self,
        action: ReserveOut,
        key: u64,
        action_key: u64,
        deadline: Instant,
    ) -> std::result::Result<Vec<u8>, Failure> {
        let data = reserve_out(key, action_key);
        self.command(&persistent_reserve_out(action), &Data::Out(&data), deadline)
    }

    /// Removes this session's registration, whose key is `key`.
    fn unregister(&mut self, key: u64, deadline: Instant) -> Result<()> {
        match self.reserve(ReserveOut::Register, key, 0, deadline) {
            // Preempted by another session: the registration no longer exists.
            Err(failure) if failure.fault == Some(Fault::ReservationConflict) => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    /// Resets the logical unit, which aborts all its commands, including those of other sessions.
    pub(crate) fn reset_unit(&mut self, deadline: Instant) -> Result<()> {
        let asked = self.wire.session.manage(Function::LogicalUnitReset);
        let response = self.until(&mut One::default(), deadline, |event| match event {
            Event::Managed { task, response } if Some(task) == asked => Some(response),
            _ => None,
        })?;
        if response == 0 {
            return Ok(());
        }
        let why = format!("the target refuses to reset the unit (response {response})");
        Err(Error::new(ErrorKind::Unsupported, &self.name, why))
    }

    /// Returns the text of the response to SendTargets.
    pub(crate) fn send_targets(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let asked = self.wire.session.send_targets();
        let text = self.until(&mut One::default(), deadline, |event| match event {
            Event::Text { task, text } if Some(task) == asked => Some(text),
            _ => None,
        })?;
        Ok(text)
    }

    /// Pings the target and waits for its response.
    pub(crate) fn ping(&mut self, deadline: Instant) -> Result<()> {
        let asked = self.wire.session.ping();
        let answered = |event| matches!(event, Event::Pong { task } if Some(task) == asked);
        self.until(&mut One::default(), deadline, |event| {
            answered(event).then_some(())
        })?;
        Ok(())
    }

    /// Sends and receives until `pick` accepts an event.
    fn until<T>(
        &mut self,
        memory: &mut One,
        deadline: Instant,
        mut pick: impl FnMut(Event) -> Option<T>,
    ) -> std::result::Result<T, Failure> {
        loop {
            if let Some(picked) = self.poll(memory, deadline, &mut pick)? {
                return Ok(picked);
            }
        }
    }

    /// Sends pending output, waits for input once, and processes it.
    fn poll<T>(
        &mut self,
        memory: &mut One,
        deadline: Instant,
        pick: &mut dyn FnMut(Event) -> Option<T>,
    ) -> std::result::Result<Option<T>, Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.dead = true;
            let why = "the target did not answer in time; check whether it is overloaded";
            return Err(self.failed(ErrorKind::TimedOut, why));
        }
        let mut events = Vec::new();
        let exchanged = (|| {
            self.wire.flush(memory)?;
            self.wire.wait(Some(left)).map_err(|e| e.to_string())?;
            self.wire.receive(memory, &mut events)
        })();
        if let Err(why) = exchanged {
            self.dead = true;
            return Err(self.failed(ErrorKind::PathLost, &why));
        }
        let mut picked = None;
        for event in events {
            if let Event::Leaving { code } = event {
                self.dead = true;
                let why = format!("the target ended the session (event {code})");
                return Err(self.failed(ErrorKind::PathLost, &why));
            }
            picked = picked.or(pick(event));
        }
        Ok(picked)
    }

    fn failed(&self, kind: ErrorKind, why: &str) -> Failure {
        Failure {
            fault: None,
            error: Error::new(kind, &self.name, why),
        }
    }

    /// Creates the error for a response that cannot be parsed.
    pub(crate) fn senseless(&self, what: &str) -> Error {
        let why = format!("the target's response to {what} is malformed");
        Error::new(ErrorKind::Io, &self.name, why)
    }

    /// Converts a protocol error.
    pub(crate) fn protocol(&self, error: &iscsi_proto::ProtocolError) -> Error {
        of_protocol(&self.name, error)
    }
}

impl Link {
    /// Removes the registration and logs out. Returns whether no registration remains at the
    /// target.
    fn end(&mut self, deadline: Instant) -> bool {
        if self.dead || !self.wire.is_idle() {
            return false;
        }
        let mut left = false;
        if let Some(key) = self.key {
            // The reservation may belong to this session; it would end with the registration.
            left = self.leavings.guards();
            if !left && let Err(error) = self.unregister(key, deadline) {
                tracing::debug!(%error, "cannot remove a registration");
                left = true;
            }
        }
        if self.dead {
            return false;
        }
        self.wire.session.logout();
        let gone = |event| matches!(event, Event::LoggedOut).then_some(());
        if let Err(failure) = self.until(&mut One::default(), deadline, gone) {
            tracing::debug!(error = %failure.error, "the target did not answer the logout");
        }
        !left
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let ended = self.end(Instant::now() + CLOSE_TIME);
        let isid = self.isid;
        match self.key.take() {
            Some(key) if ended => nexus::ended(key),
            Some(key) => self.leavings.record(LostSession { isid, key }),
            None => {}
        }
    }
}
