//! Checks of `evfs doctor` for a machine of a cluster. They only read.

use super::cluster_units::{host, store};
use cluster::{Address, State, Store};
use stack::Settings;
use stack::config::ServiceTable;
use stack::doctor::{Finding, check_secret, ids};
use std::path::Path;
use std::time::Duration;

/// Limit for a request to etcd.
const WITHIN: Duration = Duration::from_secs(2);

/// Checks the cluster that the settings name; nothing if they name none.
pub fn check(settings: &Settings, tables: &[ServiceTable]) -> Vec<Finding> {
    if settings.cluster_etcd().is_empty() {
        return Vec::new();
    }
    let mut findings = certificates(settings);
    match store(settings) {
        Ok(store) => findings.extend(of_store(&store, &settings.cluster_name(), tables)),
        Err(error) => {
            let found = Finding::error(ids::CLUSTER_MEMBER, "the members of etcd cannot be asked")
                .why(error.chain())
                .remedy("correct cluster.etcd, or the files of the settings cluster.tls-...")
                .command("evfs config show");
            findings.push(found);
            findings.extend(unchecked("the members of etcd cannot be asked"));
        }
    }
    findings.extend(tables.iter().filter_map(interface));
    findings
}

/// The checks that need an answer of etcd.
fn unchecked(why: &str) -> [Finding; 2] {
    [
        Finding::unchecked(ids::CLUSTER_NAME, "the name of this machine", why),
        Finding::unchecked(ids::CLUSTER_UNIT, "the records of units", why),
    ]
}

fn certificates(settings: &Settings) -> Vec<Finding> {
    let id = ids::CLUSTER_CERTIFICATE;
    let [ca, cert, key] = settings.cluster_tls_files();
    let mut findings = Vec::new();
    if let (Some(_), None) | (None, Some(_)) = (&cert, &key) {
        let what = "cluster.tls-cert and cluster.tls-key need each other, and one is not set";
        let found = Finding::error(id, what)
            .why("this machine sends etcd no certificate")
            .remedy("set both, or remove the other one");
        findings.push(found);
    }
    for (setting, path) in [("cluster.tls-ca", &ca), ("cluster.tls-cert", &cert)] {
        findings.extend(path.as_ref().map(|path| certificate(setting, path)));
    }
    findings.extend(key.map(|path| match std::fs::File::open(&path) {
        Ok(_) => check_secret(id, &path, "the private key for etcd"),
        Err(error) => unreadable("cluster.tls-key", &path, &error),
    }));
    findings
}

fn certificate(setting: &str, path: &Path) -> Finding {
    match std::fs::File::open(path) {
        Ok(_) => Finding::ok(
            ids::CLUSTER_CERTIFICATE,
            format!("the file of {setting} can be read"),
        )
        .on(path.display().to_string()),
        Err(error) => unreadable(setting, path, &error),
    }
}

fn unreadable(setting: &str, path: &Path, error: &std::io::Error) -> Finding {
    let what = format!("the file of {setting} cannot be read");
    Finding::error(ids::CLUSTER_CERTIFICATE, what)
        .on(path.display().to_string())
        .why(error.to_string())
        .remedy(format!("correct {setting}, or restore the file"))
}

/// Asks etcd, and judges the name of this machine and its tables by what it has stored.
fn of_store(store: &Store, name: &str, tables: &[ServiceTable]) -> Vec<Finding> {
    let members = store.etcd().versions(WITHIN).into_iter();
    let mut findings: Vec<Finding> = members
        .map(|(url, answer)| match answer {
            Ok(version) => {
                let what = format!("this member of etcd answers, version {version}");
                Finding::ok(ids::CLUSTER_MEMBER, what).on(url)
            }
            Err(error) => Finding::warning(ids::CLUSTER_MEMBER, "this member of etcd is silent")
                .on(url)
                .why(error.to_string())
                .remedy("start it, or repair its network; correct cluster.etcd if it has moved"),
        })
        .collect();
    // A linearizable read: a member without a majority does not answer it.
    match store.state(WITHIN) {
        Ok((state, _)) => {
            let what = "a majority of the members of etcd answers";
            findings.push(Finding::ok(ids::CLUSTER_MAJORITY, what));
            findings.push(of_name(store, name));
            findings.extend(units(&state, tables));
        }
        Err(error) => {
            let what = "no majority of the members of etcd answers";
            let found = Finding::error(ids::CLUSTER_MAJORITY, what)
                .why(format!("no machine serves a unit until one does: {error}"))
                .remedy("start members until more than half of them run and reach each other");
            findings.push(found);
            findings.extend(unchecked(what));
        }
    }
    findings
}

fn of_name(store: &Store, name: &str) -> Finding {
    let id = ids::CLUSTER_NAME;
    match store.host(name, WITHIN) {
        Ok(None) => Finding::ok(id, "no host uses the name of this machine at present"),
        Ok(Some(other)) if other == host() => {
            Finding::ok(id, "this host is a machine of the cluster")
        }
        Ok(Some(_)) => Finding::error(
            id,
            "another host uses the name of this machine, or did until a moment ago",
        )
        .why("of two machines with one name, one serves nothing")
        .remedy("give each machine a cluster.name of its own")
        .command("evfs config show"),
        Err(error) => Finding::unchecked(id, "the name of this machine", error.to_string()),
    }
    .on(name)
}

fn units(state: &State, tables: &[ServiceTable]) -> Vec<Finding> {
    let id = ids::CLUSTER_UNIT;
    let judge = |table: &ServiceTable| {
        let name = table.spec.name();
        let stored = state.units.iter().find(|(unit, _)| &**unit == name);
        let found = match stored {
            Some((_, (Ok(_), _))) => Finding::ok(id, "it is a unit of the cluster"),
            Some((_, (Err(error), _))) => {
                Finding::error(id, "its record in the cluster is unreadable")
                    .why(error.to_string())
                    .remedy("install the version of EVFS here that the other machines have")
            }
            None => {
                let what = "the cluster has no record of it, so `evfs up --cluster` ignores it";
                // Only units of a cluster have one.
                let found = match table.address {
                    Some(_) => Finding::warning(id, what),
                    None => Finding::note(id, what),
                };
                found
                    .remedy("make it a unit, unless it is to be served without the cluster")
                    .command(format!("evfs cluster init {name}"))
            }
        };
        found.on(table.table())
    };
    tables.iter().map(judge).collect()
}

/// Judges the interface of the address of a table; nothing if it has no address.
fn interface(table: &ServiceTable) -> Option<Finding> {
    let id = ids::CLUSTER_INTERFACE;
    let found = match table.address.as_ref()?.parse::<Address>() {
        Err(why) => Finding::error(id, why).remedy("correct `address`"),
        Ok(address) => {
            let name = &address.interface;
            match address.has_interface() {
                Ok(true) => Finding::ok(id, format!("the interface {name} exists")),
                Ok(false) => Finding::error(id, format!("there is no interface {name}"))
                    .why(format!("this machine cannot get the address {address}"))
                    .remedy("correct the interface in `address`; this command lists all")
                    .command("ip link"),
                Err(e) => Finding::unchecked(id, &format!("the interface {name}"), e.to_string()),
            }
        }
    };
    Some(found.on(table.table()))
}
