//! The configuration: its file, unknown and unusable values, and settings that cancel each other
//! out.

use super::{Finding, ids};
use crate::Settings;
use crate::config::ServiceTable;
use crate::service::ServiceSpec;
use crate::settings::{self, Examined, Problem};
use crate::text::did_you_mean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reports the problems of the settings.
pub(super) fn check_settings(examined: &Examined) -> Vec<Finding> {
    let file = examined.path.display().to_string();
    let mut findings: Vec<Finding> = examined
        .problems
        .iter()
        .map(|problem| of_problem(problem, &file))
        .collect();
    let is_unreadable = |finding: &Finding| finding.id == ids::FILE;
    if !findings.iter().any(is_unreadable) {
        let what = if examined.exists {
            "the file can be read"
        } else {
            "the file does not exist, so each setting has its default or comes from the environment"
        };
        findings.insert(0, Finding::ok(ids::FILE, what).on(file));
    }
    findings
}

fn of_problem(problem: &Problem, file: &str) -> Finding {
    match problem {
        Problem::Unreadable(why) => Finding::error(ids::FILE, "the file cannot be used")
            .on(file)
            .why(why.trim_end())
            .remedy("correct the file or its mode; EVFS_CONFIG names another"),
        Problem::UnknownKey(message) => Finding::error(ids::KEY, message)
            .on(file)
            .why("every other command refuses the file")
            .remedy("correct or remove the key; `evfs config show` lists all keys")
            .command("evfs config show"),
        Problem::Invalid(message) => Finding::error(ids::VALUE, message)
            .why("every other command refuses the value")
            .remedy("correct the value, or remove it to use the default"),
        Problem::Overridden { key, env, value } => Finding::note(
            ids::OVERRIDDEN,
            format!("`{key}` in the file has no effect: ${env} sets it to `{value}`"),
        )
        .on(file)
        .remedy("remove one of the two")
        .command(format!("unset {env}")),
    }
}

/// Reports variables of the environment with a misspelled name.
pub(super) fn check_variables() -> Vec<Finding> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let names: Vec<String> = names.collect();
    misspelled(names.iter().map(String::as_str))
}

fn misspelled<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let known: Vec<&str> = settings::variables().collect();
    let unknown = names.filter(|name| name.starts_with("EVFS_") && !known.contains(name));
    let found = unknown.filter_map(|name| {
        let hint = did_you_mean(name, known.iter().copied());
        let what = format!("the variable {name} sets nothing{hint}");
        let found = Finding::warning(ids::VARIABLE, what)
            .remedy("correct its name, or unset it")
            .command(format!("unset {name}"));
        // A name that resembles none is probably meant for another program.
        (!hint.is_empty()).then_some(found)
    });
    found.collect()
}

/// Reports settings that cancel each other out, or protection that is switched off.
pub(super) fn check_conflicts(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let half = cache::memory_bytes() / 1024 / 2;
    let new = u64::from(settings.kdf_memory_kib()).min(half);
    let max = u64::from(settings.kdf_limits().memory_kib_max);
    if new > max {
        let what = format!(
            "a new passphrase may take {new} KiB (`kdf.memory-kib`), but only {max} KiB are \
             allowed to open one (`kdf.memory-max-kib`)"
        );
        let found = Finding::warning(ids::CONFLICT, what)
            .why("this machine could not open keyslots that it has made itself")
            .remedy("raise kdf.memory-max-kib or lower kdf.memory-kib")
            .command(format!("export EVFS_KDF_MEMORY_KIB={max}"));
        findings.push(found);
    }
    if !settings.sandbox() {
        let found = Finding::warning(ids::CONFLICT, "`sandbox` is false")
            .why("services keep privileges and system calls that they do not need")
            .remedy("set it to true; false is only for the search for a fault")
            .command("evfs config show --origin");
        findings.push(found);
    }
    if findings.is_empty() {
        let what = "no settings cancel each other out";
        findings.push(Finding::ok(ids::CONFLICT, what));
    }
    findings
}

/// Reports options of tables that have no effect, and tables that exclude each other.
pub(super) fn check_tables(tables: &[ServiceTable], settings: &Settings) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tables.iter().flat_map(without_effect).collect();
    findings.extend(shared(tables, "device", |table| {
        Some(real(table.spec.device()))
    }));
    findings.extend(shared(tables, "name", |table| {
        Some(table.spec.name().to_owned())
    }));
    findings.extend(shared(tables, "mount point", |table| match &table.spec {
        ServiceSpec::Mount(spec) => Some(real(&spec.folder)),
        ServiceSpec::Attach(spec) => spec.fuse.as_deref().map(real),
        ServiceSpec::Serve(_) => None,
    }));
    findings.extend(shared(tables, "NBD address", |table| match &table.spec {
        ServiceSpec::Attach(spec) => spec.nbd.map(|address| address.to_string()),
        _ => None,
    }));
    let is_cached = |table: &ServiceTable| match &table.spec {
        ServiceSpec::Attach(spec) => spec.cached,
        _ => true,
    };
    if !settings.cache_tunables().is_empty() && !tables.is_empty() && !tables.iter().any(is_cached)
    {
        let what = "`cache.tunables` has no effect: every table is direct, and uses no cache";
        let found = Finding::note(ids::CONFLICT, what);
        findings.push(found.remedy("remove `cache.tunables`, or `direct = true` from a table"));
    }
    findings
}

fn real(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.display().to_string()
}

/// Reports values that several tables have, each of which only one of them can use.
fn shared(
    tables: &[ServiceTable],
    what: &str,
    value: impl Fn(&ServiceTable) -> Option<String>,
) -> Vec<Finding> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for table in tables {
        if let Some(value) = value(table) {
            users.entry(value).or_default().push(table.table());
        }
    }
    let several = users.into_iter().filter(|(_, tables)| tables.len() > 1);
    several
        .map(|(value, tables)| {
            let tables = tables.join(" and ");
            Finding::error(ids::CONFLICT, format!("{tables} have the {what} {value}"))
                .why("the second of them cannot start")
                .remedy("change or remove one of the tables")
        })
        .collect()
}

/// Reports the options of a table that have no effect next to others.
fn without_effect(table: &ServiceTable) -> Vec<Finding> {
    let pairs: Vec<(bool, &str, &str)> = match &table.spec {
        ServiceSpec::Attach(spec) => vec![
            (
                spec.read_only && spec.allow_discards,
                "allow-discards",
                "read-only",
            ),
            (
                spec.anonymous && spec.nbd.is_none(),
                "anonymous",
                "a missing `nbd`",
            ),
            (
                spec.tls.is_some() && spec.nbd.is_none(),
                "tls-cert",
                "a missing `nbd`",
            ),
        ],
        ServiceSpec::Mount(spec) => vec![
            (
                spec.read_only && spec.allow_discards,
                "allow-discards",
                "read-only",
            ),
            (spec.read_only && spec.exclusive, "exclusive", "read-only"),
        ],
        ServiceSpec::Serve(_) => Vec::new(),
    };
    let useless = pairs.into_iter().filter(|(applies, ..)| *applies);
    useless
        .map(|(_, option, other)| {
            let what = format!("`{option}` has no effect because of {other}");
            let config: Option<&PathBuf> = match &table.spec {
                ServiceSpec::Attach(spec) => spec.config.as_ref(),
                ServiceSpec::Mount(spec) => spec.config.as_ref(),
                ServiceSpec::Serve(spec) => spec.config.as_ref(),
            };
            let file = config.map_or(String::new(), |path| format!("{}: ", path.display()));
            Finding::note(ids::CONFLICT, what)
                .on(format!("{file}{}", table.table()))
                .remedy(format!("remove `{option}`"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::service::{AttachSpec, MountSpec};

    fn table(spec: ServiceSpec) -> ServiceTable {
        ServiceTable {
            address: None,
            spec,
            key: None,
            key_file: None,
        }
    }

    fn volume(name: &str, device: &str) -> AttachSpec {
        AttachSpec {
            name: name.into(),
            ..AttachSpec::new(Path::new(device), 1)
        }
    }

    #[test]
    fn each_problem_of_the_settings_is_an_error_and_a_file_without_any_is_fine() {
        let settings = Settings::of_env(&|_| None);
        let examined = |problems: &[Problem]| Examined {
            settings: settings.clone(),
            path: "/etc/evfs/evfs.toml".into(),
            exists: true,
            problems: problems.to_vec(),
        };
        let fine = check_settings(&examined(&[]));
        assert_eq!(fine.len(), 1);
        assert_eq!(fine[0].severity, Severity::Ok);
        let all = check_settings(&examined(&[
            Problem::Unreadable("line 1".into()),
            Problem::UnknownKey("unknown key `x`".into()),
            Problem::Invalid("threads is `0`".into()),
        ]));
        let ids: Vec<_> = all.iter().map(|f| (f.id, f.severity)).collect();
        let error = Severity::Error;
        assert_eq!(
            ids,
            [(ids::FILE, error), (ids::KEY, error), (ids::VALUE, error)]
        );
    }

    #[test]
    fn a_variable_that_resembles_a_known_one_is_misspelled() {
        let names = ["EVFS_THREDS", "EVFS_THREADS", "EVFS_SOMETHING_ELSE", "PATH"];
        let found = misspelled(names.into_iter());
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("`EVFS_THREADS`"), "{found:?}");
    }

    #[test]
    fn limits_of_the_key_derivation_must_allow_what_is_made_here() {
        let judged = |max: &str| {
            let max = max.to_owned();
            let settings = Settings::of_env(&move |name| match name {
                "EVFS_KDF_MEMORY_KIB" => Some("8192".into()),
                "EVFS_KDF_MEMORY_MAX_KIB" => Some(max.clone()),
                _ => None,
            });
            check_conflicts(&settings)[0].severity
        };
        assert_eq!(judged("4096"), Severity::Warning);
        assert_eq!(judged("8192"), Severity::Ok);
    }

    #[test]
    fn tables_that_exclude_each_other_are_errors_and_useless_options_notes() {
        let settings = Settings::of_env(&|_| None);
        let apart = [
            table(ServiceSpec::Attach(volume("a", "/nonexistent/a"))),
            table(ServiceSpec::Attach(volume("b", "/nonexistent/b"))),
        ];
        assert!(check_tables(&apart, &settings).is_empty());
        let same_device = [
            apart[0].clone(),
            table(ServiceSpec::Attach(volume("c", "/nonexistent/a"))),
        ];
        let found = check_tables(&same_device, &settings);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].what.contains("[volume.a] and [volume.c]"));
        let useless = [
            table(ServiceSpec::Attach(AttachSpec {
                read_only: true,
                allow_discards: true,
                anonymous: true,
                ..volume("a", "/nonexistent/a")
            })),
            table(ServiceSpec::Mount(MountSpec {
                read_only: true,
                exclusive: true,
                ..MountSpec::new(Path::new("/nonexistent/m"), Path::new("/nonexistent/at"))
            })),
        ];
        let found = check_tables(&useless, &settings);
        let notes = found.iter().filter(|f| f.severity == Severity::Note);
        assert_eq!((notes.count(), found.len()), (3, 3), "{found:?}");
    }

    #[test]
    fn tunables_without_a_cache_are_useless() {
        let settings = Settings::of_env(&|name| {
            (name == "EVFS_CACHE_TUNABLES").then(|| "filecache_max=10%".into())
        });
        let direct = [table(ServiceSpec::Attach(AttachSpec {
            cached: false,
            ..volume("a", "/nonexistent/a")
        }))];
        assert_eq!(check_tables(&direct, &settings).len(), 1);
        let cached = [table(ServiceSpec::Attach(volume("a", "/nonexistent/a")))];
        assert!(check_tables(&cached, &settings).is_empty());
    }
}
