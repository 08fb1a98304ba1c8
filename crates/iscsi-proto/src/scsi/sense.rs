//! Maps status and sense data to an action (SAM-5, section 5.3; SPC-4, section 4.5).

/// Sense key and additional sense code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Sense key, 0 to 15.
    pub key: u8,
    /// Additional sense code (ASC).
    pub asc: u8,
    /// Additional sense code qualifier (ASCQ).
    pub ascq: u8,
}

impl Sense {
    /// Checks whether it reports that a port's access state has changed, or failed to change:
    /// ASYMMETRIC ACCESS STATE CHANGED, IMPLICIT ASYMMETRIC ACCESS STATE TRANSITION FAILED.
    pub fn access_changed(self) -> bool {
        matches!((self.key, self.asc, self.ascq), (0x6, 0x2a, 0x06 | 0x07))
    }

    /// Parses fixed or descriptor format, current or deferred. Returns `None` for other formats.
    pub fn parse(data: &[u8]) -> Option<Sense> {
        let at = |index: usize| data.get(index).copied();
        match at(0)? & 0x7f {
            0x70 | 0x71 => Some(Sense {
                key: at(2)? & 0x0f,
                asc: at(12).unwrap_or(0),
                ascq: at(13).unwrap_or(0),
            }),
            0x72 | 0x73 => Some(Sense {
                key: at(1)? & 0x0f,
                asc: at(2).unwrap_or(0),
                ascq: at(3).unwrap_or(0),
            }),
            _ => None,
        }
    }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sense {:x}/{:02x}/{:02x}", self.key, self.asc, self.ascq)
    }
}

/// Reason why a command cannot succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Medium error: the data is lost.
    Medium,
    /// The unit is not ready and not becoming ready.
    NotReady,
    /// The logical unit no longer exists behind this port.
    NoUnit,
    /// This port cannot access the unit now; another port may (SPC-4, section 5.15.2.4).
    NoAccess(PortState),
    /// The target does not support the command or a field in it.
    IllegalRequest,
    /// Logical block address out of range.
    OutOfRange,
    /// The unit is write-protected.
    WriteProtected,
    /// Another initiator holds a reservation, or ours was preempted.
    ReservationConflict,
    /// Space allocation failed.
    NoSpace,
    /// Any other error: hardware errors and nonstandard codes.
    Other,
}

/// Access state of a port that cannot access the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// Standby: must be made active first.
    Standby,
    /// Unavailable: cannot be made active in its current condition.
    Unavailable,
    /// Changing from one state to another.
    Transitioning,
}

/// Action to take when a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The command succeeded.
    Done,
    /// Resend immediately, a limited number of times: an unrelated event interrupted the command.
    Again,
    /// Resend later, after the delay if the target named one.
    Later {
        /// Delay in milliseconds, at most 60,000.
        delay_ms: Option<u32>,
        /// The target's queue is full: reduce the number of commands in flight.
        queue_full: bool,
    },
    /// The command failed.
    Fail(Fault),
}

/// Maximum delay accepted from a target.
const DELAY_MS_MAX: u32 = 60_000;

/// Determines the action for a response. `qualifier` is its status qualifier, or 0 without one.
pub fn classify(status: u8, qualifier: u16, sense: &[u8]) -> Action {
    let later = |queue_full| Action::Later {
        delay_ms: delay(qualifier),
        queue_full,
    };
    match status {
        // GOOD, CONDITION MET
        0x00 | 0x04 => Action::Done,
        0x02 => match Sense::parse(sense) {
            Some(sense) => judge_sense(sense),
            None => Action::Fail(Fault::Other),
        },
        // BUSY
        0x08 => later(false),
        0x18 => Action::Fail(Fault::ReservationConflict),
        // TASK SET FULL
        0x28 => later(true),
        // ACA ACTIVE
        0x30 => later(false),
        // TASK ABORTED: by another initiator's reset
        0x40 => Action::Again,
        _ => Action::Fail(Fault::Other),
    }
}

fn judge_sense(sense: Sense) -> Action {
    let later = Action::Later {
        delay_ms: None,
        queue_full: false,
    };
    match (sense.key, sense.asc, sense.ascq) {
        // NO SENSE, RECOVERED ERROR, COMPLETED
        (0x0 | 0x1 | 0xf, ..) => Action::Done,
        // Becoming ready
        (0x2, 0x04, 0x01) => later,
        (0x2, 0x04, 0x0a) => Action::Fail(Fault::NoAccess(PortState::Transitioning)),
        (0x2, 0x04, 0x0b) => Action::Fail(Fault::NoAccess(PortState::Standby)),
        (0x2, 0x04, 0x0c) => Action::Fail(Fault::NoAccess(PortState::Unavailable)),
        (0x2, ..) => Action::Fail(Fault::NotReady),
        (0x3, ..) => Action::Fail(Fault::Medium),
        (0x5, 0x21, 0x00) => Action::Fail(Fault::OutOfRange),
        // LOGICAL UNIT NOT SUPPORTED
        (0x5, 0x25, _) => Action::Fail(Fault::NoUnit),
        (0x5, ..) => Action::Fail(Fault::IllegalRequest),
        (0x6, ..) => Action::Again,
        // SPACE ALLOCATION FAILED
        (0x7, 0x27, 0x07) => Action::Fail(Fault::NoSpace),
        (0x7, ..) => Action::Fail(Fault::WriteProtected),
        // ABORTED COMMAND
        (0xb, ..) => Action::Again,
        // VOLUME OVERFLOW
        (0xd, ..) => Action::Fail(Fault::NoSpace),
        _ => Action::Fail(Fault::Other),
    }
}

/// Decodes the retry delay of a status qualifier (SAM-5, section 5.3.2) in milliseconds: two bits
/// of scope, then units of 100 ms below 0x3ff0.
fn delay(qualifier: u16) -> Option<u32> {
    match u32::from(qualifier & 0x3fff) {
        units @ 1..=0x3fef => Some((units * 100).min(DELAY_MS_MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(key: u8, asc: u8, ascq: u8) -> Vec<u8> {
        let mut sense = vec![0; 18];
        (sense[0], sense[2], sense[12], sense[13]) = (0x70, key, asc, ascq);
        sense
    }

    #[test]
    fn both_formats_say_the_same() {
        let expected = Some(Sense {
            key: 5,
            asc: 0x20,
            ascq: 1,
        });
        assert_eq!(Sense::parse(&fixed(5, 0x20, 1)), expected);
        assert_eq!(Sense::parse(&[0x72, 5, 0x20, 1, 0, 0, 0, 0]), expected);
        assert_eq!(
            Sense::parse(&[0xf1, 0, 0xe5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 1]),
            expected
        );
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x7f; 20]), None);
    }

    #[test]
    fn a_change_of_access_is_told_from_other_attentions() {
        for (ascq, changed) in [(0x05, false), (0x06, true), (0x07, true), (0x09, false)] {
            let sense = Sense::parse(&fixed(6, 0x2a, ascq)).unwrap();
            assert_eq!(sense.access_changed(), changed, "2a/{ascq:02x}");
        }
        assert!(!Sense::parse(&fixed(2, 0x2a, 6)).unwrap().access_changed());
    }

    #[test]
    fn each_end_leads_to_an_action() {
        use Action::{Again, Done, Fail};
        let no_access = |state| Fail(Fault::NoAccess(state));
        let later = |delay_ms, queue_full| Action::Later {
            delay_ms,
            queue_full,
        };
        assert_eq!(classify(0, 0, &[]), Done);
        assert_eq!(classify(8, 0, &[]), later(None, false));
        assert_eq!(classify(8, 5, &[]), later(Some(500), false));
        assert_eq!(classify(0x28, 0x4003, &[]), later(Some(300), true));
        assert_eq!(classify(0x28, 0x3fef, &[]), later(Some(DELAY_MS_MAX), true));
        assert_eq!(classify(8, 0x3fff, &[]), later(None, false));
        assert_eq!(classify(0x18, 0, &[]), Fail(Fault::ReservationConflict));
        assert_eq!(classify(0x40, 0, &[]), Again);
        assert_eq!(classify(2, 0, &[]), Fail(Fault::Other));
        for ((key, asc, ascq), action) in [
            ((1, 0x17, 0), Done),
            ((2, 0x04, 0x01), later(None, false)),
            ((2, 0x04, 0x0a), no_access(PortState::Transitioning)),
            ((2, 0x04, 0x0b), no_access(PortState::Standby)),
            ((2, 0x04, 0x0c), no_access(PortState::Unavailable)),
            ((2, 0x3a, 0), Fail(Fault::NotReady)),
            ((3, 0x11, 0), Fail(Fault::Medium)),
            ((4, 0x44, 0), Fail(Fault::Other)),
            ((5, 0x20, 0), Fail(Fault::IllegalRequest)),
            ((5, 0x21, 0), Fail(Fault::OutOfRange)),
            ((5, 0x25, 0), Fail(Fault::NoUnit)),
            ((6, 0x29, 0), Again),
            ((7, 0x27, 0), Fail(Fault::WriteProtected)),
            ((7, 0x27, 7), Fail(Fault::NoSpace)),
            ((0xb, 0, 0), Again),
        ] {
            assert_eq!(
                classify(2, 0, &fixed(key, asc, ascq)),
                action,
                "{key:x}/{asc:x}"
            );
        }
    }
}
