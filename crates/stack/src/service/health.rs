//! The health of a service: one word for its state, and the reasons.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// State of a service, the least severe first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Everything works.
    #[default]
    Ok,
    /// Data is served, but a reserve is lost: paths of the LUN, or a copy of the header.
    Degraded,
    /// Changes are refused because of an error.
    ReadOnly,
    /// Requests fail, or acknowledged data cannot be written.
    Failing,
    /// The service is being detached.
    Stopping,
}

impl State {
    /// All states.
    pub const ALL: [State; 5] = [
        State::Ok,
        State::Degraded,
        State::ReadOnly,
        State::Failing,
        State::Stopping,
    ];

    /// Names the state in one word.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::ReadOnly => "read-only",
            State::Failing => "failing",
            State::Stopping => "stopping",
        }
    }
}

/// Health of a service.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Health {
    /// The most severe of all findings.
    pub state: State,
    /// Findings that led to the state.
    pub reasons: Vec<String>,
    /// Paths of the LUN, if the service is on one; without those that an administrator disabled.
    pub paths: Option<usize>,
    /// Paths that carry no I/O because of a fault.
    pub paths_failed: Option<usize>,
    /// Requests to the device that ended with an error since the start.
    pub errors: u64,
}

impl Health {
    /// Adds a finding.
    pub(crate) fn worsen(&mut self, state: State, reason: impl Into<String>) {
        self.state = self.state.max(state);
        self.reasons.push(reason.into());
    }

    /// Adds the state of the LUN, as [`crate::lun::health`] reports it.
    pub(crate) fn add_lun(&mut self, lun: &Value) {
        let paths = lun["paths"].as_array().map_or(&[][..], Vec::as_slice);
        let state_of = |path: &Value| path["state"].as_str().unwrap_or_default().to_owned();
        let enabled: Vec<&Value> = paths.iter().filter(|p| state_of(p) != "disabled").collect();
        let failed: Vec<&&Value> = enabled.iter().filter(|p| is_failed(&state_of(p))).collect();
        self.paths = Some(enabled.len());
        self.paths_failed = Some(failed.len());
        if lun["health"] == "offline" {
            self.worsen(State::Failing, "no path of the LUN works");
        } else if !failed.is_empty() {
            let reason = format!("{} of {} paths failed", failed.len(), enabled.len());
            self.worsen(State::Degraded, reason);
        }
        let carries = |path: &&&Value| !is_failed(&state_of(path));
        // The storage of a path that works keeps its I/O waiting.
        let waits = enabled
            .iter()
            .filter(carries)
            .filter_map(|path| path["why"].as_str());
        for why in waits.filter(|why| !why.is_empty()) {
            self.worsen(State::Degraded, why);
        }
    }
}

/// Reports whether a path in this state carries no I/O because of a fault.
fn is_failed(state: &str) -> bool {
    matches!(state, "failed" | "suspect" | "recovering" | "auth_failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lun(health: &str, states: &[&str]) -> Value {
        let paths: Vec<Value> = states.iter().map(|s| json!({ "state": s })).collect();
        json!({ "health": health, "paths": paths })
    }

    #[test]
    fn the_state_is_that_of_the_worst_finding() {
        let mut health = Health::default();
        health.worsen(State::Failing, "one");
        health.worsen(State::Degraded, "two");
        assert_eq!(health.state, State::Failing);
        assert_eq!(health.reasons, ["one", "two"]);
        assert!(State::ALL.is_sorted());
        for state in State::ALL {
            assert_eq!(json!(state), state.word());
        }
    }

    #[test]
    fn storage_that_keeps_io_waiting_is_a_finding() {
        let path = json!({ "state": "active", "why": "pool a is full" });
        let mut found = Health::default();
        found.add_lun(&json!({ "health": "online", "paths": [path] }));
        assert_eq!(
            (found.state, found.paths_failed),
            (State::Degraded, Some(0))
        );
        assert_eq!(found.reasons, ["pool a is full"]);
    }

    #[test]
    fn paths_that_an_administrator_disabled_are_no_fault() {
        for (states, health, counts, state) in [
            (["active", "standby"], "online", (2, 0), State::Ok),
            (["active", "disabled"], "limited", (1, 0), State::Ok),
            (["active", "failed"], "limited", (2, 1), State::Degraded),
            (
                ["active", "auth_failed"],
                "limited",
                (2, 1),
                State::Degraded,
            ),
            (["failed", "recovering"], "offline", (2, 2), State::Failing),
        ] {
            let mut found = Health::default();
            found.add_lun(&lun(health, &states));
            let seen = (found.paths, found.paths_failed);
            assert_eq!(seen, (Some(counts.0), Some(counts.1)), "{states:?}");
            assert_eq!(found.state, state, "{states:?}");
        }
    }
}
