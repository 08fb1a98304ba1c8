//! The result of the command-line parser: help, or a wrong use in the form of other errors.

use crate::output::{complain, end, print_failure, printable, written};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use stack::exit;
use std::error::Error as _;
use std::ffi::OsString;
use std::process::ExitCode;

/// Prints the result of a parser: help, or a wrong use, as JSON if requested. Returns the exit code.
pub fn report(command: &Command, error: clap::Error) -> ExitCode {
    end(print(command, error))
}

/// Same as [`report`], for a program with exit codes of its own.
pub fn print(command: &Command, error: clap::Error) -> u8 {
    // The parser prints arguments verbatim, so it parses them again with control characters
    // escaped.
    let shown = std::env::args_os().map(|arg| printable(&arg.to_string_lossy()));
    let again = command.clone().try_get_matches_from(shown).err();
    let error = again.filter(|e| e.kind() == error.kind()).unwrap_or(error);
    let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let message = if is_help {
        "missing command; --help lists the commands".to_owned()
    } else {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        wrong_use(command, &arguments, &error)
    };
    let mut args = std::env::args_os().take_while(|arg| arg != "--");
    if error.use_stderr() && args.any(|arg| arg == "--json") {
        print_failure(&message, code);
    }
    if is_help {
        written(error.print());
    } else {
        complain(&message);
    }
    code
}

/// Words a wrong use of the command line: the mistake, and the next step.
fn wrong_use(command: &Command, arguments: &[OsString], error: &clap::Error) -> String {
    let mistake = mistake(error);
    match suggestion(error) {
        Some(meant) => format!("{mistake}; did you mean `{meant}`?"),
        // The parser's own suggestions are ignored: to pass an unknown option as a value, for
        // example, is rarely intended.
        None => {
            let used = used(command, arguments);
            format!("{mistake}; `{used} --help` shows the usage")
        }
    }
}

fn mistake(error: &clap::Error) -> String {
    let one = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = one(ContextKind::InvalidArg);
    let value = one(ContextKind::InvalidValue);
    match (error.kind(), argument, value) {
        (ErrorKind::InvalidSubcommand, ..) => {
            let word = one(ContextKind::InvalidSubcommand);
            format!("unknown command `{}`", word.unwrap_or_default())
        }
        (ErrorKind::UnknownArgument, Some(word), _) if word.starts_with('-') => {
            format!("unknown option `{word}`")
        }
        (ErrorKind::UnknownArgument, Some(word), _) => format!("unexpected argument `{word}`"),
        (ErrorKind::MissingRequiredArgument, ..) => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(missing)) => {
                let missing: Vec<String> = missing.iter().map(|one| choice(one)).collect();
                format!("missing {}", missing.join(" and "))
            }
            _ => general(error),
        },
        (ErrorKind::ValueValidation, Some(argument), Some(value)) => match error.source() {
            Some(why) => match reason(&why.to_string()) {
                why if why.contains(value) => format!("{argument}: {why}"),
                why => format!("{argument}: `{value}`: {why}"),
            },
            None => general(error),
        },
        (ErrorKind::InvalidValue, Some(argument), Some("")) => {
            format!("{argument} needs a value")
        }
        (ErrorKind::InvalidValue, Some(argument), Some(value)) => {
            let possible = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(all)) => format!(": use {}", all.join(", ")),
                _ => String::new(),
            };
            format!("{argument}: invalid value `{value}`{possible}")
        }
        _ => general(error),
    }
}

/// Words a missing argument; `<A|B>` is a choice of several.
fn choice(missing: &str) -> String {
    let inner = missing.strip_prefix('<').and_then(|m| m.strip_suffix('>'));
    match inner.and_then(|inner| inner.rsplit_once('|')) {
        Some((others, last)) => format!("one of {} or {last}", others.replace('|', ", ")),
        None => missing.to_owned(),
    }
}

/// Rewords the reasons of the standard library and the parser for people who do not program.
fn reason(why: &str) -> String {
    let range = why.split_once(" is not in ");
    if let Some((value, (low, high))) = range.and_then(|(v, r)| Some((v, r.split_once("..=")?))) {
        // The largest number of the type is no limit that a user should read.
        return match high.parse::<u64>() {
            Ok(high) if high < u64::from(u32::MAX) => {
                format!("{value} is not a number from {low} to {high}")
            }
            _ if value.starts_with('-') || value == "0" => format!("{value} is less than {low}"),
            _ => format!("{value} is too large"),
        };
    }
    let plain = match why {
        "invalid digit found in string" => "not a whole number",
        "cannot parse integer from empty string" => "a number is missing",
        "number too large to fit in target type" => "the number is too large",
        "number too small to fit in target type" => "the number is too small",
        "invalid socket address syntax" => "not an address and port such as 127.0.0.1:10809",
        "invalid IPv4 address syntax" => "not an IPv4 address such as 10.0.0.1",
        other => other,
    };
    plain.to_owned()
}

/// Finds the word that was probably meant.
fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    kinds.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(word) => Some(word.clone()),
        // The most similar word is the last.
        ContextValue::Strings(words) => words.last().cloned(),
        _ => None,
    })
}

/// Returns the command that was used wrongly, such as `evfs volume create`.
fn used(command: &Command, arguments: &[OsString]) -> String {
    let mut here = command;
    let mut names = vec![command.get_name()];
    for word in arguments.iter().skip(1) {
        if let Some(inner) = here.find_subcommand(word) {
            names.push(inner.get_name());
            here = inner;
        }
    }
    names.join(" ")
}

/// Converts the text of the parser: one line, and quotes as in other messages.
fn general(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said = text.strip_prefix("error: ").unwrap_or(&text);
    let is_end = |line: &&str| line.starts_with("Usage:") || line.starts_with("For more");
    let mut message = String::new();
    for line in said.lines().take_while(|line| !is_end(line)) {
        let line = line.trim();
        let line = line.strip_prefix("tip: ").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let joint = match message.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) => "; ",
        };
        message += joint;
        message += line;
    }
    // The parser marks options that may be repeated by dots.
    quoted(&message)
        .replace("...`", "`")
        .replace("the argument `", "`")
}

/// Replaces quotes around words by grave accents; apostrophes within words stay.
fn quoted(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let after = rest.peek().copied().unwrap_or(' ');
        let opens = before.is_whitespace() || before == '(';
        let closes = after.is_whitespace() || ":;,.)".contains(after);
        let shown = if c == '\'' && (opens || closes) {
            '`'
        } else {
            c
        };
        result.push(shown);
        before = c;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn command() -> Command {
        let number = clap::value_parser!(u16).range(1..=9);
        let create = Command::new("create")
            .arg(Arg::new("device").required(true).value_name("DEVICE"))
            .arg(Arg::new("threads").long("threads").value_parser(number))
            .arg(Arg::new("bits").long("bits").value_parser(["128", "256"]))
            .arg(Arg::new("a").long("aa").conflicts_with("bits"));
        let volume = Command::new("volume").subcommand(create);
        Command::new("evfs")
            .subcommand(volume.subcommand_required(true))
            .subcommand_required(true)
    }

    fn said(words: &[&str]) -> String {
        let words = [&["evfs"], words].concat();
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        let error = command().try_get_matches_from(words).unwrap_err();
        wrong_use(&command(), &arguments, &error)
    }

    #[test]
    fn a_wrong_use_is_one_line_with_the_next_step() {
        let usage = "; `evfs volume create --help` shows the usage";
        for (words, text) in [
            (
                &["volum"][..],
                "unknown command `volum`; did you mean `volume`?".to_owned(),
            ),
            (
                &["nothing"],
                "unknown command `nothing`; `evfs --help` shows the usage".into(),
            ),
            (&["volume", "create"], format!("missing <DEVICE>{usage}")),
            (
                &["volume", "create", "x", "--thread", "1"],
                "unknown option `--thread`; did you mean `--threads`?".into(),
            ),
            (
                &["volume", "create", "x", "y"],
                format!("unexpected argument `y`{usage}"),
            ),
            (
                &["volume", "create", "x", "--threads", "10"],
                format!("--threads <threads>: 10 is not a number from 1 to 9{usage}"),
            ),
            (
                &["volume", "create", "x", "--threads", "many"],
                format!("--threads <threads>: `many`: not a whole number{usage}"),
            ),
            (
                &["volume", "create", "x", "--strange"],
                format!("unknown option `--strange`{usage}"),
            ),
            (
                &["volume", "create", "x", "--bits", "7"],
                format!("--bits <bits>: invalid value `7`: use 128, 256{usage}"),
            ),
        ] {
            assert_eq!(said(words), text);
        }
        let conflict = said(&["volume", "create", "x", "--aa", "1", "--bits", "128"]);
        assert!(
            conflict.contains("cannot be used with `--bits <bits>`"),
            "{conflict}"
        );
        assert!(
            !conflict.contains('\n') && conflict.ends_with(usage),
            "{conflict}"
        );
    }

    #[test]
    fn reasons_and_choices_are_worded_for_users() {
        let largest = format!("0 is not in 1..={}", u64::MAX);
        assert_eq!(reason(&largest), "0 is less than 1");
        let beyond = format!("{} is not in 1..={}", 1_u64 << 32, u32::MAX);
        assert_eq!(reason(&beyond), "4294967296 is too large");
        assert_eq!(reason("not a size"), "not a size");
        assert_eq!(choice("<--a <A>|--b|--c>"), "one of --a <A>, --b or --c");
        assert_eq!(choice("<DEVICE>"), "<DEVICE>");
        assert_eq!(choice("--owner <NAME>"), "--owner <NAME>");
    }

    #[test]
    fn quotes_become_accents_and_apostrophes_stay() {
        let text = "the argument '--a <A>' isn't valid for 'b': 'c'";
        assert_eq!(
            quoted(text),
            "the argument `--a <A>` isn't valid for `b`: `c`"
        );
    }
}
