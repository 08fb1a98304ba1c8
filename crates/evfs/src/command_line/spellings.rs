//! Former spellings, which work for one more release and print a notice.

use super::at;
use clap::{ArgMatches, Command};
use std::ffi::OsString;

/// A former spelling.
struct Former {
    /// Command, by the present names of its levels.
    command: &'static [&'static str],
    old: Old,
    /// The present spelling, for the notice.
    new: &'static str,
}

/// The part of a command that was renamed.
enum Old {
    /// The last level of the command had this name.
    Name(&'static str),
    /// The command itself, which still exists and is hidden.
    Whole,
    /// The option `.0` is now called `.1`.
    Option(&'static str, &'static str),
    /// The option still exists, and is hidden.
    WholeOption(&'static str),
}

const fn renamed(command: &'static [&'static str], old: &'static str, new: &'static str) -> Former {
    let old = Old::Name(old);
    Former { command, old, new }
}

/// A new secret has options of its own, where the same words open a volume in other commands.
const ADD: &[&str] = &["volume", "key", "add"];
const CHANGE: &[&str] = &["volume", "key", "change"];
const SET: &[&str] = &["volume", "owner", "set"];

const fn option(
    command: &'static [&'static str],
    old: &'static str,
    new: &'static str,
    shown: &'static str,
) -> Former {
    Former {
        command,
        old: Old::Option(old, new),
        new: shown,
    }
}

const FORMER: &[Former] = &[
    renamed(&["lun", "stats"], "stat", "evfs lun stats"),
    option(ADD, "key-file", "new-key-file", "--new-key-file"),
    option(ADD, "passphrase", "new-passphrase", "--new-passphrase"),
    option(
        ADD,
        "passphrase-fd",
        "new-passphrase-fd",
        "--new-passphrase-fd",
    ),
    option(CHANGE, "key-file", "new-key-file", "--new-key-file"),
    option(
        CHANGE,
        "passphrase-fd",
        "new-passphrase-fd",
        "--new-passphrase-fd",
    ),
    option(SET, "passphrase", "new-passphrase", "--new-passphrase"),
    option(
        SET,
        "passphrase-fd",
        "new-passphrase-fd",
        "--new-passphrase-fd",
    ),
    option(
        &["volume", "key", "remove"],
        "keyslot",
        "key-slot",
        "--key-slot",
    ),
    option(&["fileset", "create"], "bytes", "quota", "--quota"),
    Former {
        command: &["fileset", "quota"],
        old: Old::WholeOption("bytes"),
        new: "SIZE after NAME",
    },
    #[cfg(feature = "bench")]
    renamed(&["bench"], "lab", "evfs bench"),
    #[cfg(feature = "bench")]
    Former {
        command: &["benchmark"],
        old: Old::Whole,
        new: "evfs bench machine",
    },
];

/// Adds the former spellings, hidden.
pub fn add(program: Command) -> Command {
    FORMER.iter().fold(program, |program, former| {
        at(program, former.command, &|command| match former.old {
            Old::Name(old) => command.alias(old),
            Old::Option(old, new) => command.mut_args(|arg| {
                if arg.get_long() == Some(new) {
                    arg.alias(old)
                } else {
                    arg
                }
            }),
            Old::Whole | Old::WholeOption(_) => command,
        })
    })
}

/// Returns a notice for each former spelling on a command line. `program` has parsed `words` to
/// `matches`.
pub fn notices(program: &Command, matches: &ArgMatches, words: &[OsString]) -> Vec<String> {
    let (typed, rest) = levels(program, matches, words);
    let names: Vec<&str> = typed.iter().map(|(name, _)| name.as_str()).collect();
    let options: Vec<&str> = rest
        .iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.to_str()?.strip_prefix("--"))
        .map(|option| option.split('=').next().unwrap_or_default())
        .collect();
    let notice = |former: &Former| {
        let is_here = names.starts_with(former.command);
        let last = former.command.len().checked_sub(1)?;
        let old = match former.old {
            Old::Name(old) => {
                let is_old = is_here && typed[last].1 == old;
                is_old.then(|| {
                    let mut old_names = former.command.to_vec();
                    old_names[last] = old;
                    format!("evfs {}", old_names.join(" "))
                })
            }
            Old::Whole => is_here.then(|| format!("evfs {}", former.command.join(" "))),
            Old::Option(old, _) | Old::WholeOption(old) => {
                (names == former.command && options.contains(&old)).then(|| format!("--{old}"))
            }
        }?;
        Some(format!(
            "note: `{old}` is a former spelling, which the next release no longer accepts; write \
             `{}`",
            former.new
        ))
    };
    FORMER.iter().filter_map(notice).collect()
}

/// The name of each level of the command with the word that was typed for it, and the words
/// after the last level.
fn levels<'a>(
    program: &Command,
    matches: &ArgMatches,
    words: &'a [OsString],
) -> (Vec<(String, &'a OsString)>, &'a [OsString]) {
    let mut typed = Vec::new();
    let mut rest = words.get(1..).unwrap_or_default();
    let (mut here, mut level) = (program, matches);
    while let Some((name, inner)) = level.subcommand() {
        let means = |word: &OsString| {
            let found = here.find_subcommand(word);
            found.is_some_and(|found| found.get_name() == name)
        };
        let at = rest.iter().position(means);
        let (Some(at), Some(next)) = (at, here.find_subcommand(name)) else {
            break;
        };
        typed.push((name.to_owned(), &rest[at]));
        rest = &rest[at + 1..];
        (here, level) = (next, inner);
    }
    (typed, rest)
}

#[cfg(test)]
mod tests {
    use super::super::tests::find;
    use super::*;

    fn notices_of(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let program = crate::command();
        let matches = program.clone().try_get_matches_from(&words);
        notices(&program, &matches.unwrap_or_else(|e| panic!("{e}")), &words)
    }

    #[test]
    fn each_former_spelling_leads_to_a_present_one() {
        let program = crate::definitions();
        for former in FORMER {
            let command = find(&program, former.command).expect("the command exists");
            let has = |option: &str| {
                let mut all = command.get_arguments();
                all.any(|arg| arg.get_long() == Some(option))
            };
            match former.old {
                Old::Name(old) => assert!(former.command.last() != Some(&old)),
                Old::Whole => assert!(command.is_hide_set()),
                Old::Option(old, new) => assert!(has(new) && !has(old), "{old}"),
                Old::WholeOption(old) => {
                    let mut all = command.get_arguments();
                    let arg = all.find(|arg| arg.get_long() == Some(old));
                    assert!(arg.is_some_and(clap::Arg::is_hide_set), "{old}");
                }
            }
        }
    }

    #[test]
    fn only_former_spellings_have_a_notice() {
        for (line, old, new) in [
            ("evfs lun stat disk1", "evfs lun stat", "evfs lun stats"),
            (
                "evfs --log info volume key add a.img --key-file=k",
                "--key-file",
                "--new-key-file",
            ),
            (
                "evfs volume key rm a.img --keyslot 2",
                "--keyslot",
                "--key-slot",
            ),
            (
                "evfs fileset create a.img b --bytes 5G",
                "--bytes",
                "--quota",
            ),
            (
                "evfs fileset quota a.img b --bytes 5G",
                "--bytes",
                "SIZE after NAME",
            ),
        ] {
            let [notice]: [String; 1] = notices_of(line).try_into().expect(line);
            assert!(
                notice.contains(&format!("`{old}`")) && notice.contains(&format!("`{new}`")),
                "{notice}"
            );
        }
        for line in [
            "evfs lun stats stat",
            "evfs attach a.img --key-file k",
            "evfs volume key add a.img --new-key-file k",
            "evfs fileset quota a.img b 5G",
            "evfs umount mnt",
        ] {
            assert_eq!(notices_of(line), [""; 0], "{line}");
        }
    }
}
