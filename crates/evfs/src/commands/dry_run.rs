//! `--dry-run`, for commands that change a disk. A dry run executes the whole command, but on devices
//! whose changes stay in memory, so that all checks are those of the real command.

use cli::Context;

/// `--dry-run`, for commands that change a disk.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct DryRun {
    /// Make all checks and print the result, but change nothing
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    /// Returns the context of a command that is a dry run if `dry_run` says so.
    pub fn context_of(dry_run: Option<DryRun>, context: &Context) -> Context {
        dry_run.map_or_else(|| context.clone(), |dry_run| dry_run.context(context))
    }

    /// Returns the context of the command.
    pub fn context(self, context: &Context) -> Context {
        if self.dry_run {
            context.for_dry_run()
        } else {
            context.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    /// Commands without `--dry-run`, by the reason. All others must have it.
    const OTHERS: &[(&str, &[&str])] = &[
        (
            "shows or checks",
            &[
                "key list",
                "key show",
                "key export",
                "volume info",
                "volume check",
                "volume key test",
                "volume key list",
                "volume header list",
                "cell status",
                "cell acl get",
                "cell volume list",
                "fileset list",
                "fileset diff",
                "df",
                "status",
                "stats",
                "top",
                "web",
                "explain",
                "schema",
                "cache show",
                "cluster status",
                "lun list",
                "lun show",
                "lun stats",
                "lun get",
                "lun advise",
                "lun waiting",
                "config show",
                "completions",
                "__complete",
                "doctor",
                "scrub",
            ],
        ),
        (
            "starts, changes or ends a service",
            &[
                "attach",
                "detach",
                "mount",
                "unmount",
                "serve",
                "up",
                "down",
                "cluster init",
                "cluster move",
                "cluster drain",
                "cluster unfence",
                "cluster remove",
                "cache set",
                "restart",
                "sync",
                "cache flush",
                "cache drop",
                "cache advise",
                "lun set",
                "path add",
                "path remove",
                "path enable",
                "path disable",
                "path replace-wwid",
            ],
        ),
        (
            "writes files of the user, not a disk",
            &[
                "key generate",
                "key import",
                "key remove",
                "volume header backup",
                "volume header prune",
                "lun scan",
                "lun save",
                "lun forget",
                "man",
            ],
        ),
        ("measures", &["quickstart", "bench", "benchmark", "plan"]),
    ];

    fn add(command: &Command, names: &[&str], found: &mut Vec<(String, bool)>) {
        let mut inner = command.get_subcommands().peekable();
        if inner.peek().is_none() {
            let has = command
                .get_arguments()
                .any(|arg| arg.get_long() == Some("dry-run"));
            found.push((names.join(" "), has));
        }
        for inner in inner {
            add(inner, &[names, &[inner.get_name()]].concat(), found);
        }
    }

    #[test]
    fn every_command_that_changes_a_disk_has_a_dry_run() {
        let mut found = Vec::new();
        add(&crate::definitions(), &[], &mut found);
        let is_other = |name: &str| {
            let mut names = OTHERS.iter().flat_map(|(_, names)| names.iter());
            // The commands in `bench` are alike.
            names.any(|other| name == *other || name.starts_with(&format!("{other} ")))
        };
        for (name, has) in &found {
            assert_ne!(
                *has,
                is_other(name),
                "`{name}` needs --dry-run, or a reason in this table, and not both"
            );
        }
        let names = OTHERS.iter().flat_map(|(_, names)| names.iter());
        for name in names.filter(|_| cfg!(feature = "bench")) {
            let exists = |(found, _): &(String, bool)| {
                found == name || found.starts_with(&format!("{name} "))
            };
            assert!(found.iter().any(exists), "{name}");
        }
    }
}
