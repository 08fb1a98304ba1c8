//! Words that users know from other programs, as aliases of commands.

use super::at;
use clap::Command;

/// An alias: the command, and the other word for its last level. The help shows only those that are
/// visible.
struct Alias {
    command: &'static [&'static str],
    word: &'static str,
    is_visible: bool,
}

const fn visible(command: &'static [&'static str], word: &'static str) -> Alias {
    Alias {
        command,
        word,
        is_visible: true,
    }
}

const fn hidden(command: &'static [&'static str], word: &'static str) -> Alias {
    Alias {
        command,
        word,
        is_visible: false,
    }
}

const ALIASES: &[Alias] = &[
    // mount(8), mkfs(8), e2fsck(8), cryptsetup(8)
    visible(&["unmount"], "umount"),
    hidden(&["format"], "mkfs"),
    hidden(&["attach"], "open"),
    hidden(&["detach"], "close"),
    hidden(&["fsck"], "check"),
    hidden(&["volume", "create"], "format"),
    hidden(&["status"], "list"),
    hidden(&["status"], "ls"),
    // lists
    visible(&["key", "list"], "ls"),
    visible(&["volume", "key", "list"], "ls"),
    visible(&["volume", "header", "list"], "ls"),
    visible(&["fileset", "list"], "ls"),
    visible(&["cell", "volume", "list"], "ls"),
    visible(&["lun", "list"], "ls"),
    // removal
    visible(&["key", "remove"], "rm"),
    visible(&["volume", "key", "remove"], "rm"),
    visible(&["fileset", "remove"], "rm"),
    visible(&["cell", "volume", "remove"], "rm"),
    visible(&["path", "remove"], "rm"),
    hidden(&["key", "remove"], "delete"),
    hidden(&["volume", "key", "remove"], "delete"),
    hidden(&["fileset", "remove"], "delete"),
    hidden(&["cell", "volume", "remove"], "delete"),
    hidden(&["path", "remove"], "delete"),
    hidden(&["lun", "forget"], "remove"),
    hidden(&["lun", "forget"], "rm"),
    // creation
    hidden(&["key", "generate"], "create"),
    hidden(&["key", "generate"], "new"),
    hidden(&["fileset", "snapshot"], "snap"),
    hidden(&["cell", "volume", "clone"], "snapshot"),
    hidden(&["cell", "init"], "create"),
    // inspection
    visible(&["volume", "info"], "show"),
    hidden(&["key", "show"], "info"),
    hidden(&["cache", "show"], "info"),
    hidden(&["cache", "show"], "status"),
    hidden(&["lun", "show"], "info"),
    hidden(&["config", "show"], "list"),
];

/// Adds the aliases.
pub fn add(program: Command) -> Command {
    ALIASES.iter().fold(program, |program, alias| {
        at(program, alias.command, &|command| {
            if alias.is_visible {
                command.visible_alias(alias.word)
            } else {
                command.alias(alias.word)
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::find;
    use super::*;

    #[test]
    fn each_alias_is_a_new_word_for_an_existing_command() {
        let program = crate::definitions();
        for alias in ALIASES {
            let found = find(&program, alias.command);
            assert!(found.is_some(), "{:?}", alias.command);
            let (_, parent) = alias.command.split_last().unwrap();
            let parent = find(&program, parent).unwrap();
            let other = parent.find_subcommand(alias.word);
            assert!(other.is_none(), "{:?} {}", alias.command, alias.word);
        }
    }
}
