//! `evfs completions`: completion of the command line in shells.
//!
//! The script of a shell passes the words before the cursor to `evfs __complete`, which prints the
//! candidates in the format of that shell. So the candidates are always those of the program that
//! is installed, and a script does not depend on its version.

use clap_complete::engine::{self, CompletionCandidate};
use cli::document::Document;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
use stack::{Result, exit};
use std::ffi::OsString;

#[derive(clap::Args)]
#[command(after_help = "\
Commands, options, files, and the names of keys, volumes, LUNs and filesets are completed.

Examples:
  source <(evfs completions bash)                                   in ~/.bashrc
  source <(evfs completions zsh)                                    in ~/.zshrc, after compinit
  evfs completions fish > ~/.config/fish/completions/evfs.fish")]
pub struct Args {
    /// Shell to print the script for
    shell: Shell,
}

#[derive(clap::Args)]
pub struct WordsArgs {
    /// Shell that needs the candidates
    shell: Shell,
    /// Words of the command line, from the name of the program to the cursor
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// Shells with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Script that completes commands in a shell.
#[derive(Serialize, JsonSchema)]
pub struct ShownScript {
    /// Name of the shell.
    shell: &'static str,
    /// Text for the shell to read.
    script: &'static str,
}

pub const SCRIPT: Document<ShownScript> = Document::new("evfs/completions/1");

/// Prints the script of a shell.
pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let (shell, script) = match args.shell {
        Shell::Bash => ("bash", include_str!("completions/evfs.bash")),
        Shell::Zsh => ("zsh", include_str!("completions/evfs.zsh")),
        Shell::Fish => ("fish", include_str!("completions/evfs.fish")),
    };
    let content = ShownScript { shell, script };
    output::show(context.json, &SCRIPT, &content, || script.to_owned());
    Ok(exit::OK)
}

/// Prints the candidates for the last of the words, one on each line.
pub fn complete(args: WordsArgs) -> Result<u8> {
    for candidate in candidates(args.words) {
        if let Some(line) = line(args.shell, &candidate) {
            output::line(&line);
        }
    }
    Ok(exit::OK)
}

fn candidates(words: Vec<OsString>) -> Vec<CompletionCandidate> {
    let here = std::env::current_dir().ok();
    let last = words.len().saturating_sub(1);
    let is_empty = words.last().is_none_or(|word| word.is_empty());
    let mut program = crate::command();
    let found = engine::complete(&mut program, words, last, here.as_deref());
    let mut found = found.unwrap_or_default();
    // Options are offered once a hyphen is typed, or where nothing else can follow.
    let is_option = |candidate: &CompletionCandidate| {
        let value = candidate.get_value().as_encoded_bytes();
        value.starts_with(b"-")
    };
    if is_empty && !found.iter().all(is_option) {
        found.retain(|candidate| !is_option(candidate));
    }
    found
}

/// Formats a candidate. Shells separate candidates by line breaks, so names with control characters
/// are left out.
fn line(shell: Shell, candidate: &CompletionCandidate) -> Option<String> {
    let value = candidate.get_value().to_str()?;
    if value.chars().any(char::is_control) {
        return None;
    }
    let help = candidate.get_help().map(ToString::to_string);
    let help = help.as_deref().and_then(|help| help.lines().next());
    Some(match (shell, help) {
        (Shell::Bash, _) | (Shell::Fish, None) => value.to_owned(),
        (Shell::Fish, Some(help)) => format!("{value}\t{help}"),
        (Shell::Zsh, help) => {
            // The mark states whether more of the word follows.
            let mark = if value.ends_with(['=', '/', ':']) {
                '+'
            } else {
                '-'
            };
            let value = value.replace('\\', "\\\\").replace(':', "\\:");
            match help {
                Some(help) => format!("{mark}{value}:{}", help.replace('\\', "\\\\")),
                None => format!("{mark}{value}"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(words: &[&str]) -> Vec<String> {
        let found = candidates(words.iter().map(OsString::from).collect());
        let values = found
            .iter()
            .map(|c| c.get_value().to_string_lossy().into_owned());
        values.collect()
    }

    #[test]
    fn verbs_options_and_values_are_found() {
        assert_eq!(values(&["evfs", "volume", "cr"]), ["create"]);
        assert_eq!(values(&["evfs", "mount", "--fo"]), [""; 0]);
        assert_eq!(values(&["evfs", "mount", "--excl"]), ["--exclusive"]);
        let atime = values(&["evfs", "mount", "--atime", ""]);
        assert_eq!(atime, ["relatime", "none", "strict"]);
        assert_eq!(values(&["evfs", "mount", "--atime=n"]), ["--atime=none"]);
        assert_eq!(values(&["evfs"]), [""; 0]);
        let settings = values(&["evfs", "cache", "set", "filecache_m"]);
        assert_eq!(settings, ["filecache_min=", "filecache_max="]);
    }

    #[test]
    fn options_are_offered_only_where_nothing_else_follows() {
        let verbs = values(&["evfs", ""]);
        assert!(verbs.contains(&"attach".into()) && !verbs.iter().any(|v| v.starts_with('-')));
        assert!(!verbs.contains(&"__complete".into()) && !verbs.contains(&"man".into()));
        assert!(values(&["evfs", "down", ""]).contains(&"--json".into()));
    }

    #[test]
    fn each_shell_has_its_format() {
        let open = CompletionCandidate::new("a:b=").help(Some("it\nmore".into()));
        let whole = CompletionCandidate::new("c");
        let lines = |shell| [line(shell, &open).unwrap(), line(shell, &whole).unwrap()];
        assert_eq!(lines(Shell::Bash), ["a:b=", "c"]);
        assert_eq!(lines(Shell::Zsh), ["+a\\:b=:it", "-c"]);
        assert_eq!(lines(Shell::Fish), ["a:b=\tit", "c"]);
        let strange = CompletionCandidate::new("a\nb");
        assert_eq!(line(Shell::Bash, &strange), None);
    }
}
