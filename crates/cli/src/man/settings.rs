//! The page of the configuration file, and the sections of the program's page about files and
//! environment variables, all from the table of settings.

use super::sheet::{Sheet, sentence};
use super::{PROGRAM, Page, markdown, page_name};
use clap_mangen::roff::{bold, roman};
use stack::Described;

/// Environment variables that are not those of settings.
const VARIABLES: &[(&str, &str)] = &[
    (
        "EVFS_CONFIG",
        "Path of the configuration file, instead of the default one.",
    ),
    (
        "CREDENTIALS_DIRECTORY",
        "Directory of the credentials of a service, which systemd sets. The credential `evfs.NAME` \
         opens the volume that is attached as NAME.",
    ),
    (
        "NOTIFY_SOCKET, WATCHDOG_USEC",
        "Address of the service manager, which systemd sets for a unit of `Type=notify`, and its \
         time limit for signs of life.",
    ),
    (
        "XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR",
        "Base directories of the files of a user other than root.",
    ),
];

/// Writes the page of the configuration file.
pub(super) fn page() -> Page {
    let mut sheet = Sheet::new("evfs.toml", 5, "configuration file of evfs");
    sheet.heading("SYNOPSIS");
    let [root, user] = stack::config_files();
    sheet.line([
        bold(root),
        roman(" (root), "),
        bold(user),
        roman(" (other users)"),
    ]);
    sheet.heading("DESCRIPTION");
    let text = include_str!("../../../../docs/guide/settings.md");
    markdown::add(&mut sheet, text);
    sheet.heading("SETTINGS");
    for setting in stack::described() {
        let text = format!("{} {}", sentence(setting.reason), value(&setting));
        sheet.entry([bold(setting.key)], &text);
    }
    let pages = ["evfs-config-show", "evfs-cache-set", "evfs-up"];
    let mut related = vec![page_name(PROGRAM, 1)];
    related.extend(pages.map(|page| page_name(page, 1)));
    related.push(page_name(PROGRAM, 7));
    sheet.see_also(&related);
    sheet.finish()
}

/// Describes the value of a setting: its type, its default, and its variable.
fn value(setting: &Described) -> String {
    let is_number = setting
        .accepts
        .as_ref()
        .is_some_and(|accepts| accepts.contains("number"));
    let accepts = match &setting.accepts {
        Some(accepts) if is_number => format!("{accepts} ({})", setting.unit),
        Some(accepts) => accepts.clone(),
        None => setting.unit.to_owned(),
    };
    let default = match &setting.defaults {
        [root, user] if root != user => format!("{root} for root, {user} for other users"),
        [default, _] if default.is_empty() => "none".to_owned(),
        [default, _] => default.clone(),
    };
    format!(
        "Value: {accepts}. Default: {default}. Variable: **{}**.",
        setting.env
    )
}

/// Adds the environment variables.
pub(super) fn environment(sheet: &mut Sheet) {
    sheet.heading("ENVIRONMENT");
    for (name, text) in VARIABLES {
        sheet.entry([bold(*name)], text);
    }
    for setting in stack::described() {
        let text = format!("Setting `{}`: {}", setting.key, setting.reason);
        sheet.entry([bold(setting.env)], &sentence(&text));
    }
}

/// Adds the files whose locations depend on the user.
pub(super) fn files(sheet: &mut Sheet) {
    sheet.heading("FILES");
    let mut add = |[root, user]: [String; 2], text: &str| {
        let term = [
            bold(root),
            roman(" (root), "),
            bold(user),
            roman(" (other users)"),
        ];
        sheet.entry(term, text);
    };
    add(
        stack::config_files(),
        "Configuration file; see `evfs.toml(5)`.",
    );
    for setting in stack::described() {
        if setting.defaults[0] != setting.defaults[1] {
            let text = format!("{} Setting `{}`.", sentence(setting.reason), setting.key);
            add(setting.defaults, &text);
        }
    }
}
