//! A manual page while it is written.

use super::Page;
use super::inline::inlines;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// A manual page while it is written.
pub(super) struct Sheet {
    name: String,
    section: u8,
    text: String,
    /// The last line was a heading, so the next paragraph needs no macro.
    is_after_heading: bool,
}

impl Sheet {
    /// Begins a page. `what` is its description in one line.
    pub fn new(name: &str, section: u8, what: &str) -> Sheet {
        let title = name.to_uppercase();
        let version = env!("CARGO_PKG_VERSION");
        let mut sheet = Sheet {
            name: name.to_owned(),
            section,
            text: format!(
                "{}.TH \"{title}\" \"{section}\" \"\" \"evfs {version}\" \"EVFS manual\"\n",
                preamble()
            ),
            is_after_heading: false,
        };
        sheet.heading("NAME");
        sheet.line([roman(format!("{name} - {what}"))]);
        sheet
    }

    /// Adds the heading of a section.
    pub fn heading(&mut self, title: &str) {
        self.control("SH", [title]);
        self.is_after_heading = true;
    }

    /// Adds the heading of a part of a section.
    pub fn subheading(&mut self, title: &str) {
        self.control("SS", [title]);
        self.is_after_heading = true;
    }

    /// Adds a paragraph with the marks of Markdown.
    pub fn paragraph(&mut self, text: &str) {
        self.break_paragraph();
        self.line(inlines(text));
    }

    /// Adds an entry of a list of terms. The text has the marks of Markdown.
    pub fn entry(&mut self, term: impl Into<Vec<Inline>>, text: &str) {
        self.control("TP", []);
        self.line(term);
        self.line(inlines(text));
    }

    /// Adds an entry of a list with bullets or numbers. The text has the marks of Markdown.
    pub fn bullet(&mut self, mark: &str, text: &str) {
        let mark = if mark == "-" { "\\(bu" } else { mark };
        self.control("IP", [mark, "4"]);
        self.line(inlines(text));
    }

    /// Adds lines as they are.
    pub fn example<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        self.break_paragraph();
        let mut roff = Roff::new();
        roff.control("RS", ["4"]).control("EX", []);
        for line in lines {
            roff.text([roman(line)]);
        }
        roff.control("EE", []).control("RE", []);
        self.add(&roff.render());
    }

    /// Adds lines that another writer of manual pages has rendered.
    pub fn add(&mut self, rendered: &str) {
        let preamble = preamble();
        self.text += rendered.strip_prefix(&preamble).unwrap_or(rendered);
        self.is_after_heading = false;
    }

    /// Adds the list of related pages, in the format `name(section)`.
    pub fn see_also(&mut self, pages: &[String]) {
        self.heading("SEE ALSO");
        let mut line = Vec::new();
        for page in pages {
            if !line.is_empty() {
                line.push(roman(", "));
            }
            let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
            line.extend([bold(name), roman(section)]);
        }
        self.line(line);
    }

    /// Ends the page.
    pub fn finish(self) -> Page {
        Page {
            name: self.name,
            section: self.section,
            text: self.text,
        }
    }

    fn break_paragraph(&mut self) {
        if !self.is_after_heading {
            self.control("PP", []);
        }
    }

    fn control<'a>(&mut self, name: &str, arguments: impl IntoIterator<Item = &'a str>) {
        let mut roff = Roff::new();
        roff.control(name, arguments);
        self.add(&roff.render());
    }

    /// Adds one line of text.
    pub fn line(&mut self, parts: impl Into<Vec<Inline>>) {
        let mut roff = Roff::new();
        roff.text(parts);
        self.add(&roff.render());
    }
}

/// Begins a text with a capital letter, and ends it with a period unless it ends with punctuation.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else {
        return String::new();
    };
    let rest = letters.as_str();
    // Names such as iSCSI stay as they are.
    let is_name = rest.starts_with(char::is_uppercase);
    let mut whole = if is_name {
        first.to_string()
    } else {
        first.to_uppercase().to_string()
    };
    whole += rest;
    if !whole.ends_with(['.', ':', '!', '?']) {
        whole.push('.');
    }
    whole
}

/// Returns the definitions that precede each rendered text.
fn preamble() -> String {
    Roff::new().render()
}
