//! Operational parameters and their negotiation (section 13).

use crate::text::{number, push};
use crate::{ProtocolError, Result, broken};

/// Policy for a CRC32C digest over headers or data segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// Offer no digest.
    #[default]
    Never,
    /// Use a digest if the target supports it.
    Prefer,
    /// Offer CRC32C only; a target that chooses `None` fails the login.
    Require,
}

impl DigestPolicy {
    fn offer(self) -> &'static str {
        match self {
            DigestPolicy::Never => "None",
            DigestPolicy::Prefer => "CRC32C,None",
            DigestPolicy::Require => "CRC32C",
        }
    }

    /// Checks whether the target's choice turns the digest on; an error if it was not offered.
    fn agreed(self, key: &str, choice: &str) -> Result<bool> {
        match (self, choice) {
            (DigestPolicy::Never | DigestPolicy::Prefer, "None") => Ok(false),
            (DigestPolicy::Prefer | DigestPolicy::Require, "CRC32C") => Ok(true),
            _ => Err(ProtocolError::Untrusted(format!(
                "{key}={choice} was not offered; allow that digest, or configure the target"
            ))),
        }
    }
}

/// Parameters that the initiator offers. Lengths are in bytes.
#[derive(Debug, Clone)]
pub struct OfferedParams {
    /// Policy for the header digest.
    pub header_digest: DigestPolicy,
    /// Policy for the data digest.
    pub data_digest: DigestPolicy,
    /// Send the first data of a write together with the command.
    pub immediate_data: bool,
    /// Require an R2T before any data that is not immediate.
    pub initial_r2t: bool,
    /// Maximum data segment length to receive: 512 to 16,777,215.
    pub max_recv_data_segment: u32,
    /// Maximum length of the data sequence for one R2T.
    pub max_burst: u32,
    /// Maximum amount of unsolicited data of a write, immediate data included.
    pub first_burst: u32,
    /// Maximum number of outstanding R2Ts per task.
    pub max_outstanding_r2t: u16,
}

impl Default for OfferedParams {
    fn default() -> OfferedParams {
        OfferedParams {
            header_digest: DigestPolicy::Never,
            data_digest: DigestPolicy::Never,
            immediate_data: true,
            initial_r2t: false,
            max_recv_data_segment: 256 * 1024,
            max_burst: 1 << 20,
            first_burst: 256 * 1024,
            max_outstanding_r2t: 8,
        }
    }
}

/// Negotiated parameters. Lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// CRC32C after each header.
    pub header_digest: bool,
    /// CRC32C after each data segment.
    pub data_digest: bool,
    /// A command PDU may carry data.
    pub immediate_data: bool,
    /// Data that is not immediate requires an R2T.
    pub initial_r2t: bool,
    /// Maximum data segment length that the target may send.
    pub max_recv_data_segment: u32,
    /// Maximum data segment length that the target accepts.
    pub max_send_data_segment: u32,
    /// Maximum length of the data sequence for one R2T.
    pub max_burst: u32,
    /// Maximum amount of unsolicited data of a write, immediate data included.
    pub first_burst: u32,
    /// Maximum number of outstanding R2Ts per task.
    pub max_outstanding_r2t: u16,
    /// Seconds to wait before reconnecting.
    pub default_time2wait: u16,
    /// Portal group tag, if the target reported one.
    pub portal_group: Option<u16>,
}

/// Default maximum data segment length (section 13.12).
const SEGMENT_DEFAULT: u32 = 8192;
/// Valid range of length keys (sections 13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=0x00ff_ffff;

impl Params {
    /// Creates the parameters before negotiation: our own declaration, and the defaults of the
    /// standard for the target's side.
    pub(crate) fn start(wanted: &OfferedParams) -> Params {
        Params {
            header_digest: false,
            data_digest: false,
            immediate_data: true,
            initial_r2t: true,
            max_recv_data_segment: wanted.max_recv_data_segment,
            max_send_data_segment: SEGMENT_DEFAULT,
            max_burst: 262_144,
            first_burst: 65_536,
            max_outstanding_r2t: 1,
            default_time2wait: 2,
            portal_group: None,
        }
    }

    /// Applies one key of the target. Returns the answer to send if the key requires one.
    pub(crate) fn take(
        &mut self,
        wanted: &OfferedParams,
        key: &str,
        value: &str,
    ) -> Result<Option<&'static str>> {
        // For a key that the target does not know, the default stays in force.
        if matches!(value, "NotUnderstood" | "Irrelevant" | "Reject") {
            return if value == "Reject" {
                broken(format!("{key}=Reject"))
            } else {
                Ok(None)
            };
        }
        match key {
            "HeaderDigest" => self.header_digest = wanted.header_digest.agreed(key, value)?,
            "DataDigest" => self.data_digest = wanted.data_digest.agreed(key, value)?,
            "ImmediateData" => self.immediate_data = yes(key, value)? && wanted.immediate_data,
            "InitialR2T" => self.initial_r2t = yes(key, value)? || wanted.initial_r2t,
            "MaxRecvDataSegmentLength" => self.max_send_data_segment = length(key, value)?,
            "MaxBurstLength" => self.max_burst = length(key, value)?.min(wanted.max_burst),
            "FirstBurstLength" => self.first_burst = length(key, value)?.min(wanted.first_burst),
            "MaxOutstandingR2T" => {
                self.max_outstanding_r2t = small(key, value)?.clamp(1, wanted.max_outstanding_r2t);
            }
            "DefaultTime2Wait" => self.default_time2wait = small(key, value)?,
            "TargetPortalGroupTag" => self.portal_group = Some(small(key, value)?),
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                if !yes(key, value)? {
                    return broken(format!("{key}=No after an offer of Yes"));
                }
            }
            "ErrorRecoveryLevel" => {
                if small(key, value)? != 0 {
                    return broken("ErrorRecoveryLevel exceeds the offered 0");
                }
            }
            "MaxConnections" => {
                if small(key, value)? != 1 {
                    return broken("MaxConnections exceeds the offered 1");
                }
            }
            "DefaultTime2Retain" | "TargetAlias" | "TargetAddress" | "TargetName" => {}
            // Keys of the security stage need no answer; unknown (vendor) keys do.
            "AuthMethod" | "SessionType" | "InitiatorName" | "InitiatorAlias" => {}
            _ => return Ok(Some("NotUnderstood")),
        }
        Ok(None)
    }

    /// Makes the negotiated values consistent.
    pub(crate) fn normalize(&mut self) {
        self.first_burst = self.first_burst.min(self.max_burst);
    }
}

/// Builds the offer of the operational stage; a discovery session has fewer keys (section 13).
pub(crate) fn offer(wanted: &OfferedParams, normal: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let yes_no = |b: bool| if b { "Yes" } else { "No" };
    push(&mut out, "HeaderDigest", wanted.header_digest.offer());
    push(&mut out, "DataDigest", wanted.data_digest.offer());
    let segment = wanted.max_recv_data_segment.to_string();
    push(&mut out, "MaxRecvDataSegmentLength", &segment);
    push(&mut out, "DefaultTime2Wait", "2");
    push(&mut out, "DefaultTime2Retain", "0");
    push(&mut out, "ErrorRecoveryLevel", "0");
    if normal {
        push(&mut out, "InitialR2T", yes_no(wanted.initial_r2t));
        push(&mut out, "ImmediateData", yes_no(wanted.immediate_data));
        push(&mut out, "MaxBurstLength", &wanted.max_burst.to_string());
        push(
            &mut out,
            "FirstBurstLength",
            &wanted.first_burst.to_string(),
        );
        let r2ts = wanted.max_outstanding_r2t.to_string();
        push(&mut out, "MaxOutstandingR2T", &r2ts);
        push(&mut out, "MaxConnections", "1");
        push(&mut out, "DataPDUInOrder", "Yes");
        push(&mut out, "DataSequenceInOrder", "Yes");
    }
    out
}

fn yes(key: &str, value: &str) -> Result<bool> {
    match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => broken(format!("{key} is neither Yes nor No")),
    }
}

fn length(key: &str, value: &str) -> Result<u32> {
    match number(value) {
        Some(length) if LENGTHS.contains(&length) => Ok(length),
        _ => broken(format!("{key} is not a length from 512 to 16777215")),
    }
}

fn small(key: &str, value: &str) -> Result<u16> {
    match number(value).and_then(|n| u16::try_from(n).ok()) {
        Some(value) => Ok(value),
        None => broken(format!("{key} is not a number from 0 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree(wanted: &OfferedParams, answers: &[(&str, &str)]) -> Result<Params> {
        let mut params = Params::start(wanted);
        for (key, value) in answers {
            params.take(wanted, key, value)?;
        }
        params.normalize();
        Ok(params)
    }

    #[test]
    fn the_narrower_side_wins() {
        let wanted = OfferedParams::default();
        let params = agree(
            &wanted,
            &[
                ("InitialR2T", "Yes"),
                ("ImmediateData", "No"),
                ("MaxRecvDataSegmentLength", "65536"),
                ("MaxBurstLength", "16776192"),
                ("FirstBurstLength", "2097152"),
                ("MaxOutstandingR2T", "1"),
                ("TargetPortalGroupTag", "1"),
            ],
        )
        .unwrap();
        assert!(params.initial_r2t && !params.immediate_data);
        assert_eq!(params.max_send_data_segment, 65_536);
        assert_eq!(
            (params.max_burst, params.first_burst),
            (1 << 20, 256 * 1024)
        );
        assert_eq!(
            (params.max_outstanding_r2t, params.portal_group),
            (1, Some(1))
        );
    }

    #[test]
    fn a_digest_is_on_only_if_both_want_it() {
        let with = |policy, choice| {
            let wanted = OfferedParams {
                data_digest: policy,
                ..OfferedParams::default()
            };
            agree(&wanted, &[("DataDigest", choice)]).map(|p| p.data_digest)
        };
        assert_eq!(with(DigestPolicy::Prefer, "CRC32C"), Ok(true));
        assert_eq!(with(DigestPolicy::Prefer, "None"), Ok(false));
        assert_eq!(with(DigestPolicy::Require, "CRC32C"), Ok(true));
        assert!(with(DigestPolicy::Require, "None").is_err());
        assert!(with(DigestPolicy::Never, "CRC32C").is_err());
        assert!(with(DigestPolicy::Prefer, "SHA").is_err());
    }

    #[test]
    fn nonsense_is_refused_and_unknown_keys_are_answered() {
        let wanted = OfferedParams::default();
        for bad in [
            ("MaxBurstLength", "12"),
            ("MaxBurstLength", "16777216"),
            ("ImmediateData", "Perhaps"),
            ("ErrorRecoveryLevel", "2"),
            ("MaxConnections", "8"),
            ("DataPDUInOrder", "No"),
            ("MaxOutstandingR2T", "70000"),
            ("InitialR2T", "Reject"),
        ] {
            assert!(agree(&wanted, &[bad]).is_err(), "{bad:?}");
        }
        let mut params = Params::start(&wanted);
        let answer = params.take(&wanted, "X-com.example.key", "1");
        assert_eq!(answer, Ok(Some("NotUnderstood")));
    }
}
