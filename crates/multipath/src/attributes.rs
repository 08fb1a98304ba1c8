//! Attributes of a LUN. An attribute that `scsimgr` also has uses the same name.
//!
//! An attribute has a *default*, a *saved* value per scope (all LUNs, a transport, a vendor and
//! product, one LUN; the most specific one applies) and a *current* value, which `set` changes
//! until the LUN is opened again.

use crate::policy::Policy;
use std::collections::BTreeMap;
use std::time::Duration;

/// Condition under which a lost path carries I/O again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// As soon as it answers.
    Immediate,
    /// After `ping_count_threshold` consecutive answers.
    CountBased,
    /// After it has answered for `ping_time_threshold` seconds.
    TimeBased,
}

/// Current attribute values of a LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Load-balancing policy.
    pub load_bal_policy: Policy,
    /// Maximum number of I/Os in flight on one path, over all threads.
    pub max_q_depth: u32,
    /// Seconds of silence after which a path's connection is closed.
    pub path_fail_secs: u32,
    /// Seconds that I/O waits for a path when none is up.
    pub transient_secs: u32,
    /// I/O waits for a path indefinitely.
    pub infinite_retries_enable: bool,
    /// Timeout in seconds of one attempt of an I/O.
    pub esd_secs: u32,
    /// Maximum number of attempts of one I/O.
    pub max_retries: u32,
    /// Condition under which a lost path is used again.
    pub ping_recovery: Recovery,
    /// Consecutive answers required by `count_based`.
    pub ping_count_threshold: u32,
    /// Seconds of answers required by `time_based`.
    pub ping_time_threshold: u32,
    /// Path selected by the policy `preferred_path`; empty for none.
    pub preferred_path: String,
    /// Target port selected by the policy `pref_tport`; empty for none.
    pub pref_tport: String,
    /// Path selected by the policy `path_lockdown`; empty selects the path with the fewest I/Os.
    pub lpt_to_lockdown: String,
    /// `PATH=WEIGHT,...` for `weighted_rr`; a path that is not listed has weight 1.
    pub wrr_path_weight: BTreeMap<String, u32>,
    /// A legacy name uses all paths of its LUN, not only its own path.
    pub leg_mpath_enable: bool,
    /// Respect the access states that a target reports for its ports.
    pub alua_enabled: bool,
    /// Minimum silence, with I/O outstanding, before a path becomes suspect, in milliseconds.
    pub silence_ms: u32,
    /// Seconds that a write waits for an older write to the same blocks that was left unanswered on
    /// a lost path and cannot be fenced, counted from the close of its connection. If the older
    /// write can be fenced, the wait is longer by `transient_secs`.
    pub quiesce_secs: u32,
    /// Maximum time in seconds that a path which failed repeatedly must answer before it is used; 0
    /// for none.
    pub flap_penalty_secs: u32,
    /// All paths share one cache, so a flush through any path covers writes sent through a path
    /// that is lost. If false, such a flush fails.
    pub shared_cache: bool,
    /// Maximum number of I/Os in flight on one target port, over all threads; 0 for no limit.
    pub tport_max_qdepth: u32,
    /// Maximum number of bytes in flight on the LUN, per thread.
    pub max_bytes: u64,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            load_bal_policy: Policy::LeastCmdLoad,
            max_q_depth: 32,
            path_fail_secs: 10,
            transient_secs: 120,
            infinite_retries_enable: false,
            esd_secs: 30,
            max_retries: 45,
            ping_recovery: Recovery::Immediate,
            ping_count_threshold: 3,
            ping_time_threshold: 5,
            preferred_path: String::new(),
            pref_tport: String::new(),
            lpt_to_lockdown: String::new(),
            wrr_path_weight: BTreeMap::new(),
            leg_mpath_enable: true,
            alua_enabled: true,
            silence_ms: 50,
            quiesce_secs: 5,
            flap_penalty_secs: 30,
            shared_cache: true,
            tport_max_qdepth: 0,
            max_bytes: 64 << 20,
        }
    }
}

/// Name and help text of an attribute, as shown by `evfs lun get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    /// Attribute name, as in `evfs lun set`.
    pub name: &'static str,
    /// Meaning of the attribute, with unit and range.
    pub help: &'static str,
}

const fn attribute(name: &'static str, help: &'static str) -> Attribute {
    Attribute { name, help }
}

/// All attributes, in the order in which they are listed.
pub const ATTRIBUTES: &[Attribute] = &[
    attribute(
        "load_bal_policy",
        "policy that selects the path of the next I/O",
    ),
    attribute(
        "max_q_depth",
        "maximum I/Os in flight on one path, 1 to 4096",
    ),
    attribute(
        "path_fail_secs",
        "seconds of silence before a connection is closed, 1 to 600",
    ),
    attribute(
        "transient_secs",
        "seconds that I/O waits when no path is up, 0 to 600",
    ),
    attribute(
        "infinite_retries_enable",
        "I/O waits for a path indefinitely",
    ),
    attribute(
        "esd_secs",
        "timeout of one attempt of an I/O in seconds, 1 to 600",
    ),
    attribute("max_retries", "maximum attempts of one I/O, 1 to 1000"),
    attribute(
        "ping_recovery",
        "when a lost path is used again: immediate, count_based or time_based",
    ),
    attribute(
        "ping_count_threshold",
        "consecutive answers for count_based, 1 to 100",
    ),
    attribute(
        "ping_time_threshold",
        "seconds of answers for time_based, 1 to 600",
    ),
    attribute("preferred_path", "path for the policy preferred_path"),
    attribute("pref_tport", "target port for the policy pref_tport"),
    attribute("lpt_to_lockdown", "path for the policy path_lockdown"),
    attribute(
        "wrr_path_weight",
        "PATH=WEIGHT,... for weighted_rr; 0 excludes",
    ),
    attribute("leg_mpath_enable", "legacy names use all paths"),
    attribute("alua_enabled", "respect the access states of target ports"),
    attribute(
        "silence_ms",
        "minimum silence in ms before a path is suspect, 5 to 60000",
    ),
    attribute(
        "quiesce_secs",
        "seconds to wait for a lost write that cannot be fenced, 0 to 600",
    ),
    attribute(
        "flap_penalty_secs",
        "maximum wait of a flapping path in seconds, 0 (none) to 600",
    ),
    attribute("shared_cache", "a flush through one path covers the others"),
    attribute(
        "tport_max_qdepth",
        "maximum I/Os in flight on one target port, 0 (no limit) to 4096",
    ),
    attribute(
        "max_bytes",
        "maximum bytes in flight per thread, 1048576 or more",
    ),
];

impl Attributes {
    /// Formats the value of an attribute as text; `None` if no attribute has this name.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "load_bal_policy" => self.load_bal_policy.to_string(),
            "max_q_depth" => self.max_q_depth.to_string(),
            "path_fail_secs" => self.path_fail_secs.to_string(),
            "transient_secs" => self.transient_secs.to_string(),
            "infinite_retries_enable" => self.infinite_retries_enable.to_string(),
            "esd_secs" => self.esd_secs.to_string(),
            "max_retries" => self.max_retries.to_string(),
            "ping_recovery" => match self.ping_recovery {
                Recovery::Immediate => "immediate".into(),
                Recovery::CountBased => "count_based".into(),
                Recovery::TimeBased => "time_based".into(),
            },
            "ping_count_threshold" => self.ping_count_threshold.to_string(),
            "ping_time_threshold" => self.ping_time_threshold.to_string(),
            "preferred_path" => self.preferred_path.clone(),
            "pref_tport" => self.pref_tport.clone(),
            "lpt_to_lockdown" => self.lpt_to_lockdown.clone(),
            "wrr_path_weight" => {
                let weights = self.wrr_path_weight.iter();
                let weights: Vec<_> = weights.map(|(path, w)| format!("{path}={w}")).collect();
                weights.join(",")
            }
            "leg_mpath_enable" => self.leg_mpath_enable.to_string(),
            "alua_enabled" => self.alua_enabled.to_string(),
            "silence_ms" => self.silence_ms.to_string(),
            "quiesce_secs" => self.quiesce_secs.to_string(),
            "flap_penalty_secs" => self.flap_penalty_secs.to_string(),
            "shared_cache" => self.shared_cache.to_string(),
            "tport_max_qdepth" => self.tport_max_qdepth.to_string(),
            "max_bytes" => self.max_bytes.to_string(),
            _ => return None,
        })
    }

    /// Sets an attribute from text.
    ///
    /// # Errors
    /// The error names the problem with the name or the value, and the valid values.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let help = |name: &str| {
            let known = ATTRIBUTES.iter().find(|a| a.name == name);
            known.map_or("", |a| a.help)
        };
        let bad = || format!("invalid value `{value}` for {name}: {}", help(name));
        let number = |min: u32, max: u32| -> Result<u32, String> {
            let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
            parsed.ok_or_else(bad)
        };
        let flag = || {
            value
                .parse::<bool>()
                .map_err(|_| format!("{}; use true or false", bad()))
        };
        match name {
            "load_bal_policy" => {
                self.load_bal_policy = value.parse().map_err(|_| {
                    let names: Vec<_> = Policy::ALL.iter().map(|p| p.name()).collect();
                    format!(
                        "unknown policy `{value}`; choose one of {}",
                        names.join(", ")
                    )
                })?;
            }
            "max_q_depth" => self.max_q_depth = number(1, 4096)?,
            "path_fail_secs" => self.path_fail_secs = number(1, 600)?,
            "transient_secs" => self.transient_secs = number(0, 600)?,
            "infinite_retries_enable" => self.infinite_retries_enable = flag()?,
            "esd_secs" => self.esd_secs = number(1, 600)?,
            "max_retries" => self.max_retries = number(1, 1000)?,
            "ping_recovery" => {
                self.ping_recovery = match value {
                    "immediate" => Recovery::Immediate,
                    "count_based" => Recovery::CountBased,
                    "time_based" => Recovery::TimeBased,
                    _ => return Err(bad()),
                }
            }
            "ping_count_threshold" => self.ping_count_threshold = number(1, 100)?,
            "ping_time_threshold" => self.ping_time_threshold = number(1, 600)?,
            "preferred_path" => self.preferred_path = value.into(),
            "pref_tport" => self.pref_tport = value.into(),
            "lpt_to_lockdown" => self.lpt_to_lockdown = value.into(),
            "wrr_path_weight" => {
                let mut weights = BTreeMap::new();
                for part in value.split(',').filter(|p| !p.is_empty()) {
                    let (path, weight) = part.rsplit_once('=').ok_or_else(bad)?;
                    let weight = weight.parse().ok().filter(|w| *w <= 1000);
                    weights.insert(path.to_owned(), weight.ok_or_else(bad)?);
                }
                self.wrr_path_weight = weights;
            }
            "leg_mpath_enable" => self.leg_mpath_enable = flag()?,
            "alua_enabled" => self.alua_enabled = flag()?,
            "silence_ms" => self.silence_ms = number(5, 60_000)?,
            "quiesce_secs" => self.quiesce_secs = number(0, 600)?,
            "flap_penalty_secs" => self.flap_penalty_secs = number(0, 600)?,
            "shared_cache" => self.shared_cache = flag()?,
            "tport_max_qdepth" => self.tport_max_qdepth = number(0, 4096)?,
            "max_bytes" => {
                let parsed = value.parse().ok().filter(|n| *n >= 1 << 20);
                self.max_bytes = parsed.ok_or_else(bad)?;
            }
            _ => {
                let names: Vec<_> = ATTRIBUTES.iter().map(|a| a.name).collect();
                return Err(format!(
                    "unknown attribute `{name}`; choose one of {}",
                    names.join(", ")
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(u64::from(self.silence_ms))
    }

    pub(crate) fn quiesce(&self) -> Duration {
        Duration::from_secs(u64::from(self.quiesce_secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_can_be_read_and_written_back() {
        let mut attributes = Attributes::default();
        for attribute in ATTRIBUTES {
            let value = attributes.get(attribute.name).unwrap();
            attributes.set(attribute.name, &value).unwrap();
        }
        assert_eq!(attributes, Attributes::default());
        attributes
            .set("wrr_path_weight", "nbd://a:1/=3,c1t0d0=0")
            .unwrap();
        assert_eq!(
            attributes.get("wrr_path_weight").unwrap(),
            "c1t0d0=0,nbd://a:1/=3"
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut attributes = Attributes::default();
        for (name, value) in [
            ("load_bal_policy", "fastest"),
            ("max_q_depth", "0"),
            ("esd_secs", "-1"),
            ("shared_cache", "maybe"),
            ("wrr_path_weight", "a"),
            ("colour", "red"),
        ] {
            let why = attributes.set(name, value).unwrap_err();
            assert!(why.contains(value) || why.contains(name), "{why}");
        }
        assert_eq!(attributes, Attributes::default());
    }
}
