//! Pages of commands, from their definitions.

use super::sheet::{Sheet, sentence};
use super::{PROGRAM, Page, page_name, settings};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{bold, roman};
use std::collections::BTreeSet;

/// First line of the examples in the help of a command.
const EXAMPLES: &str = "Examples:";

/// First words of the exit codes in the help of the program, which have a section of their own.
const EXIT_CODES: &str = "Exit codes:";

/// Writes the page of the program and those of all its commands, except for hidden ones.
pub(super) fn pages(program: &Command) -> Vec<Page> {
    let mut pages = Vec::new();
    add(program, program, None, &mut pages);
    pages
}

fn add(program: &Command, command: &Command, parent: Option<&Command>, pages: &mut Vec<Page>) {
    pages.push(page(program, command, parent));
    for inner in visible(command) {
        add(program, inner, Some(command), pages);
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

/// Returns the name of the page of a command, such as `evfs-key-list`.
fn name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn about(command: &Command) -> String {
    command.get_about().map_or_else(String::new, text)
}

fn text(text: &clap::builder::StyledStr) -> String {
    text.to_string()
}

fn page(program: &Command, command: &Command, parent: Option<&Command>) -> Page {
    let help = Help::of(command);
    let mut sheet = Sheet::new(name(command), 1, &about(command));
    synopsis(&mut sheet, command);
    description(&mut sheet, command, &help);
    commands(&mut sheet, command);
    options(&mut sheet, command);
    exit_status(&mut sheet);
    if parent.is_none() {
        settings::environment(&mut sheet);
        settings::files(&mut sheet);
    }
    if !help.examples.is_empty() {
        sheet.heading("EXAMPLES");
        sheet.example(help.examples.iter().map(String::as_str));
    }
    let mut related = mentioned(program, command);
    related.remove(&page_name(name(command), 1));
    related.extend(parent.map(|parent| page_name(name(parent), 1)));
    let mut related: Vec<String> = related.into_iter().collect();
    related.extend([page_name("evfs.toml", 5), page_name(PROGRAM, 7)]);
    sheet.see_also(&related);
    sheet.finish()
}

fn synopsis(sheet: &mut Sheet, command: &Command) {
    sheet.heading("SYNOPSIS");
    let program = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage:").unwrap_or(&usage);
    for form in usage.lines().map(str::trim).filter(|f| !f.is_empty()) {
        match form.strip_prefix(program) {
            Some(rest) => sheet.line([bold(program), roman(rest)]),
            None => sheet.line([roman(form)]),
        }
    }
}

fn description(sheet: &mut Sheet, command: &Command, help: &Help) {
    sheet.heading("DESCRIPTION");
    let long = command.get_long_about().map(text);
    let about = long.unwrap_or_else(|| about(command));
    for paragraph in about.split("\n\n") {
        sheet.paragraph(&sentence(&paragraph.replace('\n', " ")));
    }
    for note in &help.notes {
        match note {
            Note::Text(text) => sheet.paragraph(text),
            Note::Term { term, text } => sheet.entry([bold(term)], text),
            Note::Lines(lines) => sheet.example(lines.iter().map(String::as_str)),
        }
    }
}

fn commands(sheet: &mut Sheet, command: &Command) {
    let mut heading = Some("COMMANDS");
    for inner in visible(command) {
        if let Some(title) = heading.take() {
            sheet.heading(title);
        }
        sheet.entry([bold(name(inner)), roman("(1)")], &sentence(&about(inner)));
    }
}

/// Adds the options, as clap_mangen writes them.
fn options(sheet: &mut Sheet, command: &Command) {
    let mut rendered = Vec::new();
    let written = Man::new(command.clone()).render_options_section(&mut rendered);
    written.expect("a vector takes all bytes");
    sheet.add(&code_in_bold(&String::from_utf8_lossy(&rendered)));
}

/// Replaces text between grave accents by bold text, on each line that is no macro.
fn code_in_bold(rendered: &str) -> String {
    let mut result = String::with_capacity(rendered.len());
    for line in rendered.split_inclusive('\n') {
        let mut parts = line.split('`').peekable();
        let is_whole = line.matches('`').count().is_multiple_of(2);
        if line.starts_with('.') || !is_whole {
            result += line;
            continue;
        }
        let mut is_code = false;
        while let Some(part) = parts.next() {
            result += part;
            if parts.peek().is_some() {
                result += if is_code { "\\fR" } else { "\\fB" };
                is_code = !is_code;
            }
        }
    }
    result
}

fn exit_status(sheet: &mut Sheet) {
    sheet.heading("EXIT STATUS");
    for (code, meaning) in stack::exit::TABLE {
        sheet.entry([bold(*code)], meaning);
    }
}

/// The text behind the options in the help of a command.
#[derive(Default)]
struct Help {
    notes: Vec<Note>,
    /// Lines of the examples, without their indentation.
    examples: Vec<String>,
}

/// A part of the text behind the options.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    /// A paragraph.
    Text(String),
    /// A term and its explanation.
    Term { term: String, text: String },
    /// Lines that stay as they are.
    Lines(Vec<String>),
}

impl Help {
    fn of(command: &Command) -> Help {
        let after = command.get_after_long_help();
        let after = after.or_else(|| command.get_after_help());
        Help::parse(&after.map(text).unwrap_or_default())
    }

    /// Splits a text into blocks at empty lines.
    fn parse(text: &str) -> Help {
        let mut help = Help::default();
        for block in text.split("\n\n") {
            let mut lines: Vec<&str> = block.lines().collect();
            if lines.first() == Some(&EXAMPLES) {
                let own = lines.iter().skip(1).map(|line| unindented(line).to_owned());
                help.examples.extend(own);
            } else if !block.starts_with(EXIT_CODES) {
                while !lines.is_empty() {
                    let (note, len) = Note::first_of(&lines);
                    help.notes.push(note);
                    lines.drain(..len);
                }
            }
        }
        help
    }
}

impl Note {
    /// Parses the first part of `lines`, which is not empty; returns it with its number of lines.
    fn first_of(lines: &[&str]) -> (Note, usize) {
        let first = indent(lines[0]);
        if first == 0 {
            let part = lines.iter().take_while(|line| indent(line) == 0);
            let len = part.count();
            return (Note::Text(joined(&lines[..len])), len);
        }
        // The lines of an explanation are indented further than their term.
        let explains = |line: &&&str| indent(line) >= first + 4;
        let explanation = lines.iter().skip(1).take_while(explains).count();
        if explanation > 0 {
            let term = lines[0].trim().to_owned();
            let text = joined(&lines[1..=explanation]);
            return (Note::Term { term, text }, explanation + 1);
        }
        let is_term = |at: usize| lines.get(at + 1).is_some_and(|next| explains(&next));
        let part = lines.iter().take_while(|line| indent(line) > 0);
        let len = part.count();
        let len = (1..len).find(|at| is_term(*at)).unwrap_or(len);
        let own = lines[..len].iter().map(|line| unindented(line).to_owned());
        (Note::Lines(own.collect()), len)
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Joins the lines of a paragraph.
fn joined(lines: &[&str]) -> String {
    let trimmed: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    trimmed.join(" ")
}

/// Removes the indentation that all lines of a help text share.
fn unindented(line: &str) -> &str {
    line.strip_prefix("  ").unwrap_or(line)
}

/// Collects the pages of the commands that the texts of a command mention.
fn mentioned(program: &Command, command: &Command) -> BTreeSet<String> {
    let about = command.get_long_about().or_else(|| command.get_about());
    let after = command.get_after_long_help();
    let after = after.or_else(|| command.get_after_help());
    let helps = command.get_arguments();
    let helps = helps.filter_map(|arg| arg.get_long_help().or_else(|| arg.get_help()));
    let texts = about.into_iter().chain(after).chain(helps).map(text);
    let mut found = BTreeSet::new();
    for text in texts {
        for (at, prefix) in text.match_indices("evfs ") {
            let words = &text[at + prefix.len()..];
            if let Some(page) = named(program, words) {
                found.insert(page);
            }
        }
    }
    found
}

/// Returns the page of the command whose name begins `words`.
fn named(program: &Command, words: &str) -> Option<String> {
    let mut here: Option<&Command> = None;
    for word in words.split_whitespace() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let end = word.find(|c: char| !is_part(c)).unwrap_or(word.len());
        let inner = here.unwrap_or(program).find_subcommand(&word[..end]);
        let Some(inner) = inner.filter(|inner| !inner.is_hide_set()) else {
            break;
        };
        here = Some(inner);
        if end < word.len() {
            break;
        }
    }
    here.map(|command| page_name(name(command), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_is_split_into_notes_and_examples() {
        let help = Help::parse(
            "One note\nin two lines.\n\nExamples:\n  evfs a\n    b\n\nSettings:\n  x\n      of x\n  \
             y\n      of y\n\nTable:\n  a  b\n  c  d\n\nExit codes: 0 ok",
        );
        let text = |text: &str| Note::Text(text.into());
        let term = |term: &str, text: &str| Note::Term {
            term: term.into(),
            text: text.into(),
        };
        let notes = [
            text("One note in two lines."),
            text("Settings:"),
            term("x", "of x"),
            term("y", "of y"),
            text("Table:"),
            Note::Lines(vec!["a  b".into(), "c  d".into()]),
        ];
        assert_eq!(help.notes, notes);
        assert_eq!(help.examples, ["evfs a", "  b"]);
    }

    #[test]
    fn a_mentioned_command_is_found_by_its_longest_name() {
        let mut program = Command::new("evfs")
            .subcommand(
                Command::new("key")
                    .subcommand(Command::new("list"))
                    .after_help("`evfs key list`, `evfs key`; evfs key, and evfs none"),
            )
            .subcommand(Command::new("up").after_help("evfs key list FILE, `evfs up` list"));
        program.build();
        let of = |name: &str| mentioned(&program, program.find_subcommand(name).unwrap());
        let pages = ["evfs-key(1)", "evfs-key-list(1)"];
        assert!(of("key").iter().eq(pages), "{:?}", of("key"));
        let pages = ["evfs-key-list(1)", "evfs-up(1)"];
        assert!(of("up").iter().eq(pages), "{:?}", of("up"));
    }

    #[test]
    fn code_is_bold_and_a_lone_accent_stays() {
        let rendered = code_in_bold(".TP\na `b` c `d`\nx ` y\n");
        assert_eq!(rendered, ".TP\na \\fBb\\fR c \\fBd\\fR\nx ` y\n");
    }
}
