//! Manual pages: one for each command, from its definition; `evfs.toml(5)`, from the table of
//! settings; and `evfs(7)`, from a page of the guide.
//!
//! The pages are the same on every machine, so that packages can be reproduced.

mod commands;
mod inline;
mod markdown;
mod settings;
mod sheet;

use sheet::Sheet;

/// Name of the program, and prefix of the names of all pages.
const PROGRAM: &str = "evfs";

/// One manual page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Name without the section, such as `evfs-attach`.
    pub name: String,
    /// Section of the manual: 1, 5 or 7.
    pub section: u8,
    /// Source in roff.
    pub text: String,
}

impl Page {
    /// Returns the name of the file of the page.
    pub fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }
}

/// Writes all pages. `program` is the definition of the program's command line.
pub fn pages(program: clap::Command) -> Vec<Page> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let mut pages = commands::pages(&program);
    pages.push(settings::page());
    pages.push(concepts());
    pages
}

/// Writes the page about the concepts, which is a page of the guide.
fn concepts() -> Page {
    let mut sheet = Sheet::new(PROGRAM, 7, "concepts of the encrypted storage stack");
    sheet.heading("DESCRIPTION");
    let text = include_str!("../../../docs/guide/concepts.md");
    markdown::add(&mut sheet, text);
    sheet.see_also(&[page_name(PROGRAM, 1), page_name("evfs.toml", 5)]);
    sheet.finish()
}

/// Formats the name of a page as other pages refer to it.
fn page_name(name: &str, section: u8) -> String {
    format!("{name}({section})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    fn program() -> Command {
        let device = Arg::new("device")
            .required(true)
            .help("File or disk, as for `evfs key list`");
        let lock = Command::new("lock")
            .about("Lock a device")
            .after_help("Notes come first.\n\nExamples:\n  evfs lock 'a'\n  .evfs lock b")
            .arg(device);
        let list = Command::new("list").about("List keys");
        let key = Command::new("key").about("Manage keys").subcommand(list);
        let hushed = Command::new("hushed").hide(true);
        Command::new(PROGRAM)
            .about("Encrypted storage")
            .subcommands([key, lock, hushed])
    }

    fn find(name: &str) -> Page {
        let mut pages = pages(program()).into_iter();
        pages.find(|page| page.file() == name).expect("a page")
    }

    #[test]
    fn every_visible_command_has_a_page() {
        let names: Vec<String> = pages(program()).iter().map(Page::file).collect();
        let wanted = [
            "evfs.1",
            "evfs-key.1",
            "evfs-key-list.1",
            "evfs-lock.1",
            "evfs.toml.5",
            "evfs.7",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn the_page_of_a_command_shows_all_of_its_definition() {
        let text = find("evfs-lock.1").text;
        for part in [
            "evfs\\-lock \\- Lock a device\n",
            "\\fBevfs lock\\fR <device>\n",
            "Lock a device.\nNotes come first.\n",
            "as for \\fBevfs key list\\fR\n",
            ".EX\nevfs lock \\*(Aqa\\*(Aq\n\\&.evfs lock b\n.EE\n",
            "\\fB12\\fR\nwrong key\n",
            "\\fBevfs\\-key\\-list\\fR(1)",
        ] {
            let text = text.replace(".PP\n", "");
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(find("evfs.1").text.contains("EVFS_KEYS_DIR"));
        assert!(!find("evfs.1").text.contains("hushed"));
    }

    #[test]
    fn pages_of_the_guide_become_pages_of_the_manual() {
        let concepts = find("evfs.7").text;
        assert!(concepts.contains(".SS ") && !concepts.contains("# "));
        for page in [concepts, find("evfs.toml.5").text] {
            assert!(!page.contains('`') && !page.contains("]("), "{page}");
        }
    }

    #[test]
    fn every_setting_is_in_its_page() {
        let text = find("evfs.toml.5").text;
        for setting in stack::described() {
            let key = setting.key.replace('-', "\\-");
            assert!(text.contains(&format!("\\fB{key}\\fR\n")), "{key}");
        }
        assert!(text.contains("Default: warn."), "{text}");
    }
}
