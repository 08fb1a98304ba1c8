//! Status and sense data, decided into what to do (SAM-5, section 5.3; SPC-4, section 4.5).

/// Sense key and additional sense code of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Sense key, 0 to 15.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
}

impl Sense {
    /// Whether it tells that a port's access to the unit has changed, or should have: ASYMMETRIC
    /// ACCESS STATE CHANGED, IMPLICIT ASYMMETRIC ACCESS STATE TRANSITION FAILED.
    pub fn access_changed(self) -> bool {
        matches!((self.key, self.asc, self.ascq), (0x6, 0x2a, 0x06 | 0x07))
    }

    /// Reads fixed or descriptor format, current or deferred. `None`: neither.
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

/// Why a command cannot succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The medium has lost the data.
    Medium,
    /// The unit is not ready, and will not be soon.
    NotReady,
    /// The unit is not there any more, behind this port.
    NoUnit,
    /// This port gives no access to the unit now, another may (SPC-4, section 5.15.2.4).
    NoAccess(PortState),
    /// The target does not know the command or a field in it.
    IllegalRequest,
    /// A block beyond the end.
    OutOfRange,
    /// Writes are refused.
    WriteProtected,
    /// Somebody else holds a reservation, or ours was preempted.
    ReservationConflict,
    /// No space is left to allocate.
    NoSpace,
    /// Anything else: hardware, and what no standard knows.
    Other,
}

/// Why a port gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It has to be made active first.
    Standby,
    /// It cannot be made active as things are.
    Unavailable,
    /// It is on its way from one state to another.
    Transitioning,
}

/// What to do about the end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It went well.
    Done,
    /// Send it again at once, a limited number of times: something happened beside it.
    Again,
    /// Send it again, after this many milliseconds where the target named a time.
    Later {
        /// Milliseconds, at most 60,000.
        delay_ms: Option<u32>,
        /// The target's queue is full: have fewer commands in flight.
        queue_full: bool,
    },
    /// It has failed.
    Fail(Fault),
}

/// Longest delay that a target may ask for.
const DELAY_MS_MAX: u32 = 60_000;

/// Decides. `qualifier` is the status qualifier of the response, zero where there is none.
pub fn judge(status: u8, qualifier: u16, sense: &[u8]) -> Action {
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
        // TASK ABORTED: by somebody else's reset
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
        // Becoming ready.
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

/// A retry delay of SAM-5, section 5.3.2: two bits of scope, then units of 100 ms below 0x3ff0.
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
        assert_eq!(judge(0, 0, &[]), Done);
        assert_eq!(judge(8, 0, &[]), later(None, false));
        assert_eq!(judge(8, 5, &[]), later(Some(500), false));
        assert_eq!(judge(0x28, 0x4003, &[]), later(Some(300), true));
        assert_eq!(judge(0x28, 0x3fef, &[]), later(Some(DELAY_MS_MAX), true));
        assert_eq!(judge(8, 0x3fff, &[]), later(None, false));
        assert_eq!(judge(0x18, 0, &[]), Fail(Fault::ReservationConflict));
        assert_eq!(judge(0x40, 0, &[]), Again);
        assert_eq!(judge(2, 0, &[]), Fail(Fault::Other));
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
                judge(2, 0, &fixed(key, asc, ascq)),
                action,
                "{key:x}/{asc:x}"
            );
        }
    }
}
