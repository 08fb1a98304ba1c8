//! The paths of LUNs: failed ones, and single points of failure.

use super::subjects::Subject;
use super::{Finding, Running, ids, quoted};
use crate::Settings;
use crate::device::{answers, is_lun, is_uri, lunpath};
use crate::registry::{KnownLun, Registry};
use block::Access;
use path_rbd::RbdAddress;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// State of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Works,
    Disabled,
    /// The reason why it carries no I/O.
    Failed(String),
}

/// A path as found.
#[derive(Debug, Clone)]
struct Route {
    address: String,
    /// Target port that it leads to.
    port: String,
    state: State,
}

/// Checks the paths of the LUNs among the subjects, or without names those of all known LUNs.
pub(super) fn check(
    names: &[PathBuf],
    subjects: &[Subject],
    running: &[Running],
    settings: &Settings,
) -> Vec<Finding> {
    let registry = match Registry::load(&settings.lun_registry()) {
        Ok(registry) => registry,
        Err(error) => return vec![Finding::error(ids::REGISTRY, error.chain())],
    };
    let is_subject = |lun: &&KnownLun| {
        names.is_empty()
            || subjects.iter().any(|subject| {
                let name = subject.device.to_str().unwrap_or_default();
                let served = subject.served.as_ref();
                let is_served = served.is_some_and(|(_, status)| status["lun"] == lun.name);
                let found = || registry.find(name).is_some_and(|l| l.name == lun.name);
                is_served || (is_lun(&subject.device) && found())
            })
    };
    let mut findings = Vec::new();
    for lun in registry.luns.iter().filter(is_subject) {
        let status = running.iter().find_map(|(_, status)| {
            let status = status.as_ref().ok()?;
            (status["lun"] == lun.name).then_some(status)
        });
        let routes = match status {
            Some(status) => of_status(status, lun, settings),
            None => of_registry(lun, settings),
        };
        let found = judge(&lun.name, &routes);
        findings.extend(found.into_iter().map(|f| f.on(&lun.name)));
    }
    findings
}

/// Takes the states of the paths from the service that has the LUN open.
fn of_status(status: &Value, lun: &KnownLun, settings: &Settings) -> Vec<Route> {
    let shown = status["lun_state"]["paths"].as_array();
    let routes = shown.into_iter().flatten().map(|path| {
        let text = |key: &str| path[key].as_str().unwrap_or_default().to_owned();
        let state = match text("state").as_str() {
            // With a reason, its storage keeps I/O waiting.
            "active" | "standby" | "unopen" if text("why").is_empty() => State::Works,
            "disabled" => State::Disabled,
            other => State::Failed(match text("why") {
                why if why.is_empty() => other.to_owned(),
                why => why,
            }),
        };
        let address = text("name");
        Route {
            port: port_of(&address, settings),
            address,
            state,
        }
    });
    let routes: Vec<Route> = routes.collect();
    if routes.is_empty() {
        return of_registry(lun, settings);
    }
    routes
}

/// Queries the paths of a LUN that no service of this user has open, all at once.
fn of_registry(lun: &KnownLun, settings: &Settings) -> Vec<Route> {
    let state = |address: &str| match answers(address, settings) {
        Ok(()) => State::Works,
        Err(error) => State::Failed(error.chain()),
    };
    let state = &state;
    std::thread::scope(|scope| {
        let mut asked = Vec::new();
        for path in &lun.paths {
            let ask = || scope.spawn(move || state(&path.address));
            asked.push((path, path.enabled.then(ask)));
        }
        let mut routes = Vec::new();
        for (path, thread) in asked {
            routes.push(Route {
                address: path.address.clone(),
                port: port_of(&path.address, settings),
                state: thread.map_or(State::Disabled, answer),
            });
        }
        routes
    })
}

fn answer(thread: std::thread::ScopedJoinHandle<'_, State>) -> State {
    let failed = || State::Failed("the query of the path failed".into());
    thread.join().unwrap_or_else(|_| failed())
}

fn port_of(address: &str, settings: &Settings) -> String {
    lunpath(address, settings, Access::ReadOnly).map_or(String::new(), |path| path.target_port())
}

/// Finds the host of an address; empty for this machine.
fn host_of(address: &str) -> &str {
    let Some((scheme, rest)) = address.split_once("://").filter(|_| is_uri(address)) else {
        return "";
    };
    if scheme.ends_with("+unix") {
        return "";
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, _)) => host,
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn judge(lun: &str, routes: &[Route]) -> Vec<Finding> {
    let name = quoted(lun);
    let used: Vec<&Route> = routes
        .iter()
        .filter(|route| route.state != State::Disabled)
        .collect();
    let failed: Vec<String> = used
        .iter()
        .filter_map(|route| match &route.state {
            State::Failed(why) => Some(format!("{}: {why}", route.address)),
            State::Works | State::Disabled => None,
        })
        .collect();
    let working = used.len() - failed.len();
    let state = match (working, failed.len()) {
        (0, 0) => Finding::error(ids::PATHS, "no path is enabled")
            .remedy("enable a path")
            .command(format!("evfs path enable {name} ADDRESS")),
        (0, _) => Finding::error(ids::PATHS, "no path works")
            .why(failed.join("; "))
            .remedy("repair the network or the target")
            .command(format!("evfs lun show {name}")),
        (working, 0) => Finding::ok(ids::PATHS, format!("{working} of {working} paths work")),
        (working, failures) => Finding::warning(
            ids::PATHS,
            format!("{failures} of {} paths failed", working + failures),
        )
        .why(failed.join("; "))
        .remedy("repair the network or the target; I/O continues on the other paths")
        .command(format!("evfs lun show {name}")),
    };
    vec![state, redundancy(&name, &used)]
}

/// Judges how many failures the enabled paths survive.
fn redundancy(lun: &str, used: &[&Route]) -> Finding {
    let ports: BTreeSet<&str> = used.iter().map(|route| route.port.as_str()).collect();
    let hosts: BTreeSet<&str> = used.iter().map(|route| host_of(&route.address)).collect();
    let add = format!("evfs path add {lun} ADDRESS");
    if let [only] = used
        && RbdAddress::is_one(&only.address)
    {
        Finding::ok(
            ids::REDUNDANCY,
            "the path leads to a cluster of several monitors and OSDs",
        )
    } else if used.len() < 2 {
        Finding::warning(ids::REDUNDANCY, "a single path leads to the LUN")
            .why("if it fails, all I/O fails")
            .remedy("add a path over another network and another port of the target")
            .command(add)
    } else if ports.len() < 2 {
        Finding::warning(ids::REDUNDANCY, "all paths lead to one target port")
            .why(format!(
                "if {} fails, all I/O fails",
                ports.into_iter().collect::<String>()
            ))
            .remedy("add a path to another port of the target")
            .command(add)
    } else if hosts.len() < 2 {
        let host = hosts.into_iter().find(|host| !host.is_empty());
        let host = host.unwrap_or("this machine");
        Finding::note(ids::REDUNDANCY, format!("all paths lead to {host}"))
            .why("the paths survive the failure of a port, but not that of the host")
            .remedy("add a path to another host, if the target has one")
            .command(add)
    } else {
        let what = format!(
            "paths lead to {} ports on {} hosts",
            ports.len(),
            hosts.len()
        );
        Finding::ok(ids::REDUNDANCY, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Error, Note, Ok as Fine, Warning};

    fn route(address: &str, state: State) -> Route {
        Route {
            address: address.into(),
            port: host_of(address).to_owned() + address.rsplit('/').next().unwrap_or_default(),
            state,
        }
    }

    #[test]
    fn hosts_are_taken_from_addresses() {
        for (address, host) in [
            ("nbd://a.example:10809/x", "a.example"),
            ("nbd://[fe80::1]:10809/x", "fe80::1"),
            ("iscsi://user@10.0.0.1:3260/iqn.x/1", "10.0.0.1"),
            ("nbd+unix:///x?socket=/run/x", ""),
            ("/srv/x.img", ""),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }

    #[test]
    fn failed_paths_and_single_points_of_failure_are_found() {
        let works = |address: &str| route(address, State::Works);
        let failed = |address: &str| route(address, State::Failed("no answer".into()));
        let judged = |routes: &[Route]| {
            let found = judge("disk1", routes);
            (found[0].severity, found[1].severity)
        };
        let (a, b) = ("nbd://a/1", "nbd://b/2");
        assert_eq!(judged(&[works(a), works(b)]), (Fine, Fine));
        assert_eq!(judged(&[works(a), failed(b)]), (Warning, Fine));
        assert_eq!(judged(&[failed(a), failed(b)]), (Error, Fine));
        assert_eq!(judged(&[works(a)]), (Fine, Warning));
        let disabled = route(b, State::Disabled);
        assert_eq!(judged(&[works(a), disabled.clone()]), (Fine, Warning));
        assert_eq!(judged(&[disabled]), (Error, Warning));
        assert_eq!(judged(&[works(a), works(a)]), (Fine, Warning));
        assert_eq!(judged(&[works(a), works("nbd://a/2")]), (Fine, Note));
    }
}
