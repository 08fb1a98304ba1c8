//! The commands in the help of the program, by subject.

use clap::Command;
use clap::builder::StyledStr;
use std::fmt::Write as _;

/// Titles, each with the names of its commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("First steps", &["quickstart", "plan", "doctor"]),
    ("Keys and volumes", &["key", "volume"]),
    ("Block devices", &["attach", "detach", "lun", "path"]),
    (
        "File systems",
        &[
            "format", "mount", "unmount", "fileset", "df", "fsck", "scrub", "defrag", "grow",
            "shrink", "upgrade",
        ],
    ),
    ("Cells", &["cell", "serve"]),
    (
        "Running services",
        &[
            "status", "top", "web", "stats", "sync", "restart", "cache", "up", "down", "cluster",
        ],
    ),
    (
        "Help and settings",
        &["config", "explain", "schema", "completions", "help"],
    ),
    ("Measurement", &["bench"]),
];

/// Width of the help where it is not shown at a terminal, and its largest width.
const WIDTH: usize = 100;

/// Shortest column for descriptions.
const ABOUT_WIDTH_MIN: usize = 20;

/// Lists the commands in groups.
pub fn add(program: Command) -> Command {
    let template = template(&program, cli::output::width().unwrap_or(WIDTH).min(WIDTH));
    program.help_template(template)
}

fn template(program: &Command, width: usize) -> StyledStr {
    let styles = program.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let names = program
        .get_subcommands()
        .map(|inner| inner.get_name().len());
    let column = names.max().unwrap_or(0);
    let indent = column + 4;
    let mut text = String::from("{before-help}{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        let shown: Vec<(&str, String)> = names
            .iter()
            .filter_map(|name| Some((*name, about(program, name)?)))
            .collect();
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{header}{title}:{header:#}");
        for (name, about) in shown {
            let about = wrapped(&about, width.saturating_sub(indent), indent);
            let _ = writeln!(text, "  {literal}{name:column$}{literal:#}  {about}");
        }
    }
    let _ = write!(
        text,
        "\n{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    text.into()
}

/// The description of a command, with its visible aliases.
fn about(program: &Command, name: &str) -> Option<String> {
    if name == "help" {
        return Some("Print this message or the help of a command".into());
    }
    let mut all = program.get_subcommands();
    let command = all.find(|inner| inner.get_name() == name)?;
    let mut about = command.get_about().map(StyledStr::to_string)?;
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if !aliases.is_empty() {
        let _ = write!(about, " [aliases: {}]", aliases.join(", "));
    }
    Some(about)
}

/// Breaks a text into lines of `width` columns; all but the first are indented.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let width = width.max(ABOUT_WIDTH_MIN);
    let mut result = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            let _ = write!(result, "\n{:indent$}", "");
            column = 0;
        } else if column > 0 {
            result.push(' ');
            column += 1;
        }
        result += word;
        column += len;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visible_command_is_in_one_group() {
        let program = crate::command();
        let mut visible: Vec<&str> = program
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set())
            .map(Command::get_name)
            .collect();
        visible.push("help");
        visible.sort_unstable();
        let all = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let mut listed: Vec<&str> = all
            .filter(|name| cfg!(feature = "bench") || visible.contains(name))
            .collect();
        listed.sort_unstable();
        assert_eq!(listed, visible);
    }

    #[test]
    fn the_help_of_the_program_fits_the_terminal() {
        for width in [60, 80, 100] {
            let text = template(&crate::definitions(), width).to_string();
            let lines = text.lines().filter(|line| !line.contains('{'));
            for line in lines {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            assert!(text.contains("\nFile systems:\n  format "), "{text}");
        }
    }

    #[test]
    fn long_descriptions_are_wrapped() {
        let text = wrapped("one two three four five six", 20, 2);
        assert_eq!(text, "one two three four\n  five six");
    }
}
