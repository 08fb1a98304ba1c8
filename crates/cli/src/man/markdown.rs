//! The part of Markdown that pages of the guide use, as roff: headings, paragraphs, lists and code.
//!
//! Deliberately absent: tables, images, quotes, and lists in lists.

use super::sheet::Sheet;

/// Adds a text. Its title, a heading of the first level, is left out.
pub(super) fn add(sheet: &mut Sheet, text: &str) {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with("# ") {
            continue;
        }
        if let Some(title) = line.strip_prefix("## ") {
            sheet.subheading(title);
        } else if line.starts_with("```") {
            let code = lines.by_ref().take_while(|line| !line.starts_with("```"));
            sheet.example(code.collect::<Vec<_>>());
        } else {
            // A paragraph, or an entry of a list, ends at an empty line or at the next entry.
            let mut whole = line.to_owned();
            while let Some(more) =
                lines.next_if(|more| !more.is_empty() && marker(more).is_none() && !is_block(more))
            {
                whole.push(' ');
                whole += more.trim_start();
            }
            match marker(line) {
                Some(mark) => sheet.bullet(mark, whole[mark.len()..].trim_start()),
                None => sheet.paragraph(&whole),
            }
        }
    }
}

/// Returns the mark that begins an entry of a list: `-`, or a number with a period.
fn marker(line: &str) -> Option<&str> {
    let (mark, _) = line.split_once(' ')?;
    let number = mark.strip_suffix('.');
    let is_number = number.is_some_and(|digits| digits.parse::<u32>().is_ok());
    (mark == "-" || is_number).then_some(mark)
}

fn is_block(line: &str) -> bool {
    line.starts_with("```") || line.starts_with("# ") || line.starts_with("## ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_macros() {
        let mut sheet = Sheet::new("x", 7, "y");
        let text = "# T\n\none\ntwo\n\n## S\n\n- a\n  b\n- c\n\n1. d\n\n```sh\n  e\n```\nf\n";
        add(&mut sheet, text);
        let page = sheet.finish().text;
        let (_, body) = page.split_once("x \\- y\n").unwrap();
        let wanted = ".PP\none two\n.SS S\n.IP \\(bu 4\na b\n.IP \\(bu 4\nc\n.IP 1. 4\nd\n\
                      .PP\n.RS 4\n.EX\n  e\n.EE\n.RE\n.PP\nf\n";
        assert_eq!(body, wanted);
    }
}
