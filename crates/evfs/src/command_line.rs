//! The parts of the command line that concern several commands: groups in the help of the program,
//! aliases, and former spellings. Each has one table.

mod aliases;
mod groups;
mod spellings;

use clap::Command;
pub use spellings::notices;

/// Adds aliases, former spellings and groups to the definitions of the commands.
pub fn completed(program: Command) -> Command {
    groups::add(spellings::add(aliases::add(program)))
}

/// Changes the command at a path below `command`.
fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [first, rest @ ..] => command.mut_subcommands(|inner| {
            if inner.get_name() == *first {
                at(inner, rest, change)
            } else {
                inner
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    /// Finds the command at a path, by names and not by aliases.
    pub(super) fn find<'a>(program: &'a Command, path: &[&str]) -> Option<&'a Command> {
        path.iter().try_fold(program, |here, name| {
            here.get_subcommands()
                .find(|inner| inner.get_name() == *name)
        })
    }

    #[test]
    fn the_command_line_is_consistent() {
        crate::command().debug_assert();
    }
}
