//! The login phase (section 6.3): security, then operational parameters.

use crate::chap::{self, Algorithm};
use crate::discovery::split_group;
use crate::framer::{Digests, Frame, Framer};
use crate::params::{OfferedParams, Params, offer};
use crate::pdu::{Bhs, opcode, padding};
use crate::session::Session;
use crate::text::{TEXT_BYTES_MAX, binary, pairs, push};
use crate::{ProtocolError, Result, broken};
use subtle::ConstantTimeEq;

/// Type of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Discovery session: SendTargets only.
    Discovery,
    /// Normal session: commands to one logical unit of a target.
    Normal {
        /// iSCSI qualified name of the target.
        target: &'a str,
        /// Logical unit number as an eight-byte field (SAM-5, section 4.7).
        lun: [u8; 8],
    },
}

/// CHAP credentials of the initiator.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// CHAP user name of the initiator.
    pub user: &'a str,
    /// CHAP secret of the initiator.
    pub secret: &'a [u8],
    /// Offer MD5 only: some targets assign the number of SHA-256 to another hash.
    pub md5_only: bool,
    /// If set, the target must authenticate itself too.
    pub mutual: Option<Mutual<'a>>,
}

/// Authentication of the target in mutual CHAP.
#[derive(Clone, Copy)]
pub struct Mutual<'a> {
    /// CHAP secret of the target.
    pub secret: &'a [u8],
    /// Random CHAP identifier.
    pub id: u8,
    /// Random CHAP challenge.
    pub challenge: [u8; 16],
}

/// Parameters of a login: initiator, session type, credentials and the operational offer.
#[derive(Clone, Copy)]
pub struct LoginConfig<'a> {
    /// iSCSI qualified name of the initiator.
    pub initiator: &'a str,
    /// Session type and, for a normal session, its target.
    pub kind: Kind<'a>,
    /// Initiator part of the session identifier; random for each session.
    pub isid: [u8; 6],
    /// CHAP credentials; `None` offers no authentication.
    pub credentials: Option<Credentials<'a>>,
    /// Operational parameters to offer.
    pub offered: &'a OfferedParams,
}

/// Result of a completed login.
#[derive(Debug)]
pub enum LoginResult {
    /// The full-feature phase begins; unconsumed input belongs to the session.
    LoggedIn(Box<Session>),
    /// The target moved (section 11.13.5, class 1).
    Redirect {
        /// `HOST:PORT`, or `HOST` for port 3260.
        address: String,
        /// The target reports the move as permanent.
        permanent: bool,
    },
}

/// State of the exchange, named after the response that is expected next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Method,
    Algorithm,
    Proof,
    /// Security stage complete; the target has yet to agree to leave it.
    LeaveSecurity,
    Operational,
}

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;
const TRANSIT: u8 = 0x80;
const CONTINUE: u8 = 0x40;
/// Maximum number of exchanges before the login is considered stuck in a loop.
const ROUNDS_MAX: u32 = 64;
/// Maximum data segment length during the login phase (section 13.12).
const SEGMENT_MAX: u32 = 8192;

/// A login in progress.
pub struct Login<'a> {
    config: LoginConfig<'a>,
    step: Step,
    params: Params,
    framer: Framer,
    bhs: Option<Bhs>,
    segment: Vec<u8>,
    text: Vec<u8>,
    output: Vec<u8>,
    outcome: Option<LoginResult>,
    algorithm: Option<Algorithm>,
    exp_stat_sn: u32,
    rounds: u32,
}

/// CmdSN of the first command and of the login requests before it.
const FIRST_CMD_SN: u32 = 1;

impl<'a> Login<'a> {
    /// Starts a login. The first request is available from [`Login::take_output`].
    pub fn new(config: LoginConfig<'a>) -> Login<'a> {
        let mut login = Login {
            config,
            step: Step::Method,
            params: Params::start(config.offered),
            framer: Framer::new(Digests::NONE, SEGMENT_MAX),
            bhs: None,
            segment: Vec::new(),
            text: Vec::new(),
            output: Vec::new(),
            outcome: None,
            algorithm: None,
            exp_stat_sn: 0,
            rounds: 0,
        };
        login.open();
        login
    }

    /// Returns the bytes to send to the target and clears the output.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the outcome, once, when the login is complete.
    pub fn take_outcome(&mut self) -> Option<LoginResult> {
        self.outcome.take()
    }

    /// Reports whether the target chose SHA-256. If it then rejects the response, it may have meant
    /// MD5.
    pub fn used_sha256(&self) -> bool {
        self.algorithm == Some(Algorithm::Sha256)
    }

    /// Processes bytes from the target and returns the number consumed. Stops at the outcome.
    ///
    /// # Errors
    /// The target rejects the login, fails authentication, or violates the protocol.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<usize> {
        let mut at = 0;
        while self.outcome.is_none() {
            let rest = input.get(at..).unwrap_or_default();
            let (taken, frame) = self.framer.next(rest)?;
            match frame {
                None => return Ok(at + taken),
                Some(Frame::Header(bhs)) => self.bhs = Some(bhs),
                Some(Frame::Data(n)) => {
                    let data = rest.get(taken.saturating_sub(n)..taken).unwrap_or_default();
                    self.segment.extend_from_slice(data);
                }
                Some(Frame::End) => {
                    if let Some(bhs) = self.bhs.take() {
                        let segment = std::mem::take(&mut self.segment);
                        self.handle_response(&bhs, &segment)?;
                    }
                }
            }
            at += taken;
        }
        Ok(at)
    }

    fn open(&mut self) {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", self.config.initiator);
        match self.config.kind {
            Kind::Discovery => push(&mut text, "SessionType", "Discovery"),
            Kind::Normal { target, .. } => {
                push(&mut text, "SessionType", "Normal");
                push(&mut text, "TargetName", target);
            }
        }
        match self.config.credentials {
            None => {
                push(&mut text, "AuthMethod", "None");
                self.send(TRANSIT, SECURITY, OPERATIONAL, &text);
            }
            Some(Credentials { mutual, .. }) => {
                let methods = if mutual.is_some() {
                    "CHAP"
                } else {
                    "CHAP,None"
                };
                push(&mut text, "AuthMethod", methods);
                self.send(0, SECURITY, SECURITY, &text);
            }
        }
    }

    /// Queues a login request with `text` as its data segment, truncated to one PDU.
    fn send(&mut self, transit: u8, current: u8, next: u8, text: &[u8]) {
        let mut bhs = Bhs::new(opcode::LOGIN, transit | current << 2 | next).immediate();
        bhs.set(8, &self.config.isid);
        bhs.set_u32(24, FIRST_CMD_SN);
        bhs.set_u32(28, self.exp_stat_sn);
        // Our keys take a few hundred bytes; the longest values are names of 223 bytes and
        // responses of 64.
        let bytes = u32::try_from(text.len())
            .unwrap_or(SEGMENT_MAX)
            .min(SEGMENT_MAX);
        bhs.set_data_bytes(bytes);
        self.output.extend_from_slice(&bhs.0);
        self.output.extend(text.iter().take(SEGMENT_MAX as usize));
        let end = self.output.len() + padding(bytes);
        self.output.resize(end, 0);
    }

    fn handle_response(&mut self, bhs: &Bhs, segment: &[u8]) -> Result<()> {
        if bhs.opcode() != opcode::LOGIN_RESPONSE {
            return broken(format!(
                "unexpected opcode {:#x} during the login",
                bhs.opcode()
            ));
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return broken("the login has too many steps");
        }
        self.exp_stat_sn = bhs.u32(24).wrapping_add(1);
        self.text.extend_from_slice(segment);
        if self.text.len() > TEXT_BYTES_MAX {
            return broken("the text of the login is too long");
        }
        let current = bhs.flags() >> 2 & 3;
        let (class, detail) = (bhs.byte(36), bhs.byte(37));
        if class == 0 && bhs.flags() & CONTINUE != 0 {
            // Request the rest of the text with an empty PDU.
            self.send(0, current, current, &[]);
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        let keys = pairs(&text)?;
        match class {
            0 => self.advance(bhs, &keys),
            1 => self.redirect(detail, &keys),
            _ => Err(ProtocolError::Refused {
                class,
                detail,
                text: refusal(class, detail),
            }),
        }
    }

    fn redirect(&mut self, detail: u8, keys: &[(&str, &str)]) -> Result<()> {
        let Some(address) = value(keys, "TargetAddress") else {
            return broken("the target moved, but sent no new address");
        };
        self.outcome = Some(LoginResult::Redirect {
            address: split_group(address).0.into(),
            permanent: detail == 2,
        });
        Ok(())
    }

    fn advance(&mut self, bhs: &Bhs, keys: &[(&str, &str)]) -> Result<()> {
        let expected = match self.step {
            Step::Operational => OPERATIONAL,
            _ => SECURITY,
        };
        if bhs.flags() >> 2 & 3 != expected {
            return broken("the target is in a different stage of the login");
        }
        let next = (bhs.flags() & TRANSIT != 0).then_some(bhs.flags() & 3);
        match self.step {
            Step::Method => self.choose_method(next, keys),
            Step::Algorithm => self.answer_challenge(keys),
            Step::Proof => {
                self.check_proof(keys)?;
                self.leave_security(next)
            }
            Step::LeaveSecurity => self.leave_security(next),
            Step::Operational => self.negotiate(bhs, next, keys),
        }
    }

    fn choose_method(&mut self, next: Option<u8>, keys: &[(&str, &str)]) -> Result<()> {
        if let Some(group) = value(keys, "TargetPortalGroupTag") {
            self.params
                .take(self.config.offered, "TargetPortalGroupTag", group)?;
        }
        let chosen = value(keys, "AuthMethod");
        match (chosen, self.config.credentials) {
            (Some("CHAP"), Some(credentials)) => {
                let mut text = Vec::new();
                let offered = if credentials.md5_only { "5" } else { "7,5" };
                push(&mut text, "CHAP_A", offered);
                self.step = Step::Algorithm;
                self.send(0, SECURITY, SECURITY, &text);
                Ok(())
            }
            (Some("None") | None, None) => self.leave_security(next),
            (Some("None"), Some(Credentials { mutual: None, .. })) => self.leave_security(next),
            (chosen, _) => Err(ProtocolError::Untrusted(format!(
                "AuthMethod={} was not offered",
                chosen.unwrap_or("(nothing)")
            ))),
        }
    }

    fn answer_challenge(&mut self, keys: &[(&str, &str)]) -> Result<()> {
        let Some(credentials) = self.config.credentials else {
            return broken("a CHAP challenge, although CHAP was not negotiated");
        };
        let algorithm = match value(keys, "CHAP_A") {
            Some("5") => Algorithm::Md5,
            Some("7") if !credentials.md5_only => Algorithm::Sha256,
            _ => return broken("the target chose a CHAP algorithm that was not offered"),
        };
        self.algorithm = Some(algorithm);
        let id = value(keys, "CHAP_I").and_then(crate::text::number);
        let challenge = value(keys, "CHAP_C").and_then(|c| binary(c, chap::BYTES_MAX));
        let (Some(Ok(id)), Some(challenge)) = (id.map(u8::try_from), challenge) else {
            return broken("a CHAP challenge without a valid identifier or value");
        };
        if let Some(mutual) = credentials.mutual
            && mutual.challenge[..] == challenge[..]
        {
            return Err(ProtocolError::Untrusted(
                "it sent the initiator's CHAP challenge back".into(),
            ));
        }
        let mut text = Vec::new();
        push(&mut text, "CHAP_N", credentials.user);
        let response = algorithm.response(id, credentials.secret, &challenge);
        push(&mut text, "CHAP_R", &hex_value(&response));
        self.step = Step::LeaveSecurity;
        if let Some(mutual) = credentials.mutual {
            push(&mut text, "CHAP_I", &mutual.id.to_string());
            push(&mut text, "CHAP_C", &hex_value(&mutual.challenge));
            self.step = Step::Proof;
        }
        self.send(TRANSIT, SECURITY, OPERATIONAL, &text);
        Ok(())
    }

    fn check_proof(&mut self, keys: &[(&str, &str)]) -> Result<()> {
        let proven = (|| {
            let (mutual, algorithm) = (self.config.credentials?.mutual?, self.algorithm?);
            let got = binary(value(keys, "CHAP_R")?, chap::BYTES_MAX)?;
            let expected = algorithm.response(mutual.id, mutual.secret, &mutual.challenge);
            Some(bool::from(got.ct_eq(&expected)))
        })();
        if proven == Some(true) {
            Ok(())
        } else {
            let why = "it did not prove that it knows the mutual CHAP secret";
            Err(ProtocolError::Untrusted(why.into()))
        }
    }

    fn leave_security(&mut self, next: Option<u8>) -> Result<()> {
        match next {
            Some(OPERATIONAL) => {
                let normal = self.config.kind != Kind::Discovery;
                let text = offer(self.config.offered, normal);
                self.step = Step::Operational;
                self.send(TRANSIT, OPERATIONAL, FULL_FEATURE, &text);
                Ok(())
            }
            None => {
                self.step = Step::LeaveSecurity;
                self.send(TRANSIT, SECURITY, OPERATIONAL, &[]);
                Ok(())
            }
            Some(_) => broken("the target skips the operational stage"),
        }
    }

    fn negotiate(&mut self, bhs: &Bhs, next: Option<u8>, keys: &[(&str, &str)]) -> Result<()> {
        let mut answers = Vec::new();
        for (key, value) in keys {
            if let Some(answer) = self.params.take(self.config.offered, key, value)? {
                push(&mut answers, key, answer);
            }
        }
        match next {
            Some(FULL_FEATURE) => {
                self.params.normalize();
                let lun = match self.config.kind {
                    Kind::Normal { lun, .. } => lun,
                    Kind::Discovery => [0; 8],
                };
                let session = Session::new(self.params.clone(), lun, FIRST_CMD_SN, bhs);
                self.outcome = Some(LoginResult::LoggedIn(Box::new(session)));
            }
            None => self.send(TRANSIT, OPERATIONAL, FULL_FEATURE, &answers),
            Some(_) => return broken("the target returns to an earlier stage"),
        }
        Ok(())
    }
}

fn value<'k>(keys: &[(&str, &'k str)], key: &str) -> Option<&'k str> {
    keys.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
}

fn hex_value(bytes: &[u8]) -> String {
    format!("0x{}", crate::bytes::hex(bytes))
}

/// Returns the text for a login status class and detail (section 11.13.5).
fn refusal(class: u8, detail: u8) -> &'static str {
    match (class, detail) {
        (2, 0) => "initiator error",
        (2, 1) => "authentication failed; check the CHAP user and secret",
        (2, 2) => "not authorized; allow this initiator at the target",
        (2, 3) => "no such target",
        (2, 4) => "the target was removed",
        (2, 5) => "unsupported version",
        (2, 6) => "too many connections",
        (2, 7) => "missing parameter",
        (2, 8) => "the session cannot include this portal",
        (2, 9) => "the session type is not supported",
        (2, 10) => "no such session",
        (2, 11) => "invalid request during the login",
        (3, 1) => "the service is unavailable",
        (3, 2) => "out of resources",
        (3, _) => "target error",
        _ => "unknown reason",
    }
}

#[cfg(test)]
mod tests;
