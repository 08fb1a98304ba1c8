//! QR codes of secrets, drawn with characters.
//!
//! A character shows two modules, one above the other. Light modules are drawn, and dark ones left
//! out: most terminals have a dark background, and at a terminal the colors are set, too.
//!
//! **Invariant:** the code is as secret as its text. It is only in memory that the allocator of the
//! program zeroes, and the stack is overwritten.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use std::io::IsTerminal;

/// Colors of a terminal: drawn parts white, the background black.
const WHITE_ON_BLACK: &str = "\x1b[40;37;1m";
const RESET: &str = "\x1b[0m";

/// Draws the code of a text for standard output. Returns `None` if the text is too long.
pub fn drawn(text: &str) -> Option<String> {
    let code = draw(text)?;
    if !std::io::stdout().is_terminal() {
        return Some(code);
    }
    let lines = code.lines();
    Some(
        lines
            .map(|line| format!("{WHITE_ON_BLACK}{line}{RESET}\n"))
            .collect(),
    )
}

fn draw(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M).ok();
    let drawn = code.map(|code| {
        let mut renderer = code.render::<Dense1x2>();
        let inverted = renderer.dark_color(Dense1x2::Light);
        inverted.light_color(Dense1x2::Dark).build() + "\n"
    });
    secret::burn_stack();
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use qrcode::Color;

    /// A recovery key has this length.
    const TEXT: &str =
        "ccccccccc-ccccccccl-cccccccci-cccccccct-ccccccccu-ccccccccf-cccccccck-cccccccce";

    /// Modules of light margin on each side.
    const MARGIN: usize = 4;

    /// Reads the rows of modules back from the characters; true is dark.
    fn modules(drawn: &str) -> Vec<Vec<bool>> {
        let mut rows = Vec::new();
        for line in drawn.lines() {
            let of = |dark: [char; 2]| line.chars().map(|c| dark.contains(&c)).collect();
            rows.push(of([' ', '▄']));
            rows.push(of([' ', '▀']));
        }
        rows
    }

    #[test]
    fn every_module_is_drawn_within_a_light_margin() {
        let code = QrCode::with_error_correction_level(TEXT, EcLevel::M).unwrap();
        let width = code.width();
        let drawn = draw(TEXT).unwrap();
        assert!(
            drawn
                .lines()
                .all(|line| line.chars().count() == width + 2 * MARGIN)
        );
        assert!(width + 2 * MARGIN <= 80);
        let modules = modules(&drawn);
        for (y, row) in modules.iter().enumerate().take(width + 2 * MARGIN) {
            for (x, dark) in row.iter().enumerate() {
                let inside =
                    (MARGIN..width + MARGIN).contains(&x) && (MARGIN..width + MARGIN).contains(&y);
                let expected = inside && code[(x - MARGIN, y - MARGIN)] == Color::Dark;
                assert_eq!(*dark, expected, "{x}, {y}");
            }
        }
    }

    #[test]
    fn a_text_that_is_too_long_has_no_code() {
        assert_eq!(draw(&"x".repeat(5000)), None);
    }
}
