//! SVG drawing: shapes in user units with y downward, and the style shared by all charts.
//!
//! All charts have the width of a narrow window, so that their text stays readable there; wider
//! windows show charts side by side. A chart grows downward: each part reserves its height, and
//! text that is too long for its line continues on the next.
//!
//! **Invariant:** no text leaves the drawing, whichever font the browser has: widths are estimates
//! for a wide font.

use std::fmt::Write;

/// Width of every chart in user units.
pub(super) const WIDTH: f64 = 360.0;
/// Height of a line of small text.
pub(super) const LINE: f64 = 15.0;
/// Space at the edges.
pub(super) const MARGIN: f64 = 8.0;

/// Size of headings and of all other text.
const LARGE: f64 = 13.0;
const SMALL: f64 = 11.0;
/// Number of colors for sides; further sides reuse them and differ in the dashes of their lines.
const SIDES: usize = 4;

/// Style sheet of every chart, for light and dark color schemes.
const STYLE: &str = "svg{background:#fff}text{font:13px system-ui,sans-serif;fill:#222}.s{font-size:11px}.h{font-weight:600}\
.axis{stroke:#767676;stroke-width:1}.grid{stroke:#ddd;stroke-width:1}.track{fill:#8882}.band{fill:#8886}\
.c0{--c:#2166ac}.c1{--c:#c2482f}.c2{--c:#1b7837}.c3{--c:#762a83}\
.line{fill:none;stroke:var(--c);stroke-width:2}.d1{stroke-dasharray:6 4}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}\
.mark{fill:var(--c)}.bar{fill:var(--c);opacity:.7}.open{fill:none;stroke:var(--c);stroke-width:1.5}.whisk{stroke:var(--c);stroke-width:1.5}\
.noise{--c:#666}.good{--c:#1b7837}.bad{--c:#b2182b}.piece{stroke:#fff;stroke-width:.5}\
@media(prefers-color-scheme:dark){svg{background:#1a1a1a}text{fill:#ddd}.grid{stroke:#444}.axis{stroke:#999}\
.c0{--c:#6baed6}.c1{--c:#f4a582}.c2{--c:#7fbf7b}.c3{--c:#c2a5cf}.noise{--c:#aaa}.good{--c:#7fbf7b}.bad{--c:#ef8a62}.piece{stroke:#1a1a1a}}\
@media print{svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

/// Escapes `text` for an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML cannot represent control characters, not even escaped.
            c if c.is_control() && c != '\n' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// A chart under construction.
pub(super) struct Drawing {
    title: String,
    description: String,
    body: String,
    /// Height of everything reserved so far.
    height: f64,
}

/// Formats the CSS class of side `n`.
pub(super) fn side(n: usize) -> String {
    format!("c{}", n % SIDES)
}

impl Drawing {
    /// Begins a chart with its heading. `description` states in words what the chart shows.
    pub(super) fn new(title: &str, description: &str) -> Drawing {
        let mut d = Drawing {
            title: title.to_owned(),
            description: description.to_owned(),
            body: String::new(),
            height: MARGIN,
        };
        for line in wrap(title, WIDTH - 2.0 * MARGIN, LARGE * BOLD) {
            let top = d.reserve(LARGE + 5.0);
            d.text("h", (MARGIN, top + LARGE), "start", &line);
        }
        d
    }

    /// Reserves the next `height` units; returns their top.
    pub(super) fn reserve(&mut self, height: f64) -> f64 {
        let top = self.height;
        self.height += height;
        top
    }

    /// Writes small text over the whole width from `left`, on as many lines as it needs.
    pub(super) fn paragraph(&mut self, left: f64, text: &str) {
        for line in wrap(text, WIDTH - left - MARGIN, SMALL) {
            let top = self.reserve(LINE);
            self.text("s", (left, top + SMALL), "start", &line);
        }
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        let _ = writeln!(
            self.body,
            r#"<polyline class="{class}" points="{points}"/>"#
        );
    }

    pub(super) fn dot(&mut self, class: &str, (x, y): (f64, f64), title: &str) {
        let title = escape(title);
        let _ = writeln!(
            self.body,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="4"><title>{title}</title></circle>"#
        );
    }

    /// Draws a rectangle from its upper left corner. `style` overrides the color of the class.
    pub(super) fn rect(
        &mut self,
        class: &str,
        (x, y, w, h): (f64, f64, f64, f64),
        title: &str,
        style: &str,
    ) {
        let (title, w, h) = (escape(title), w.max(0.0), h.max(0.0));
        let style = match style {
            "" => String::new(),
            some => format!(r#" style="{some}""#),
        };
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}"{style} x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}"><title>{title}</title></rect>"#
        );
    }

    /// Draws text; `anchor` is `start`, `middle` or `end`.
    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    /// Labels positions on an axis, in ascending order, and omits labels that would touch the one
    /// before them. Labels at the ends move inward.
    pub(super) fn labels(&mut self, y: f64, labels: &[(f64, String)]) {
        let mut free = 0.0;
        for (x, text) in labels {
            let half = small_width(text) / 2.0;
            let x = x.clamp(half, (WIDTH - half).max(half));
            if x - half >= free {
                self.text("s", (x, y), "middle", text);
                free = x + half + 4.0;
            }
        }
    }

    /// Renders the chart as a self-contained SVG document; `id` is unique on a page.
    pub(super) fn finish(self, id: &str) -> String {
        let Drawing {
            title,
            description,
            body,
            height,
        } = self;
        let (id, title, description) = (escape(id), escape(&title), escape(&description));
        let height = height + MARGIN;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0} {height:.0}" width="{WIDTH:.0}" height="{height:.0}" role="img" aria-labelledby="{id}-title" aria-describedby="{id}-desc">
<style>{STYLE}</style>
<title id="{id}-title">{title}</title>
<desc id="{id}-desc">{description}</desc>
{body}</svg>
"#
        )
    }
}

/// Width of a bold letter relative to a regular one.
const BOLD: f64 = 1.12;

/// Estimates the width of small text; wide fonts need no more.
pub(super) fn small_width(text: &str) -> f64 {
    width(text, SMALL)
}

/// Estimates the width of text in a font of `size` from the letters of DejaVu Sans, which is wider
/// than the system fonts of desktops.
fn width(text: &str, size: f64) -> f64 {
    let one = |c: char| match c {
        ' ' | ',' | '.' | ':' | ';' | '/' | '|' | '!' | '\'' | 'i' | 'j' | 'l' | 'I' => 0.35,
        'f' | 'r' | 't' | '-' | '(' | ')' | '[' | ']' => 0.43,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '+' | '<' | '>' | '=' | '_' => 1.0,
        'A'..='Z' => 0.8,
        c if c.is_ascii() => 0.65,
        _ => 1.05,
    };
    text.chars().map(one).sum::<f64>() * size
}

/// Breaks text into lines of at most `most` units, between words or, if a word is longer, within
/// it. A text without words is one empty line.
fn wrap(text: &str, most: f64, size: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("begins with one line");
        let joined = match last.as_str() {
            "" => word.to_owned(),
            before => format!("{before} {word}"),
        };
        if width(&joined, size) <= most {
            *last = joined;
            continue;
        }
        let mut parts = pieces(word, most, size);
        if last.is_empty() {
            *last = parts.remove(0);
        }
        lines.extend(parts);
    }
    lines
}

/// Cuts a word into pieces that fit, at least one.
fn pieces(word: &str, most: f64, size: f64) -> Vec<String> {
    let mut all = vec![String::new()];
    for c in word.chars() {
        let last = all.last_mut().expect("begins with one piece");
        let longer = format!("{last}{c}");
        if last.is_empty() || width(&longer, size) <= most {
            *last = longer;
        } else {
            all.push(c.to_string());
        }
    }
    all
}

/// Computes about five round steps from 0 to `top` or beyond.
pub(super) fn steps(top: f64) -> Vec<f64> {
    // The smallest positive numbers have no power of ten less than them.
    if !(top.is_finite() && top > 1e-300) {
        return vec![0.0, 1.0];
    }
    let rough = top / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= rough)
        .unwrap_or(10.0 * power);
    (0..=(top / step).ceil() as u32)
        .map(|n| f64::from(n) * step)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_reach_the_top() {
        assert_eq!(steps(100.0), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(steps(7.3), [0.0, 2.0, 4.0, 6.0, 8.0]);
        for top in [1e-9, 0.013, 1.0, 12_345.0, 1e12] {
            let all = steps(top);
            assert!(
                (3..=7).contains(&all.len()) && *all.last().unwrap() >= top,
                "{top}"
            );
        }
        for top in [f64::NAN, f64::INFINITY, -1.0, 1e-320] {
            assert_eq!(steps(top), [0.0, 1.0]);
        }
    }

    #[test]
    fn what_a_name_holds_cannot_leave_its_element() {
        let bad = escape("</title><script>\"&\u{1}");
        assert_eq!(bad, "&lt;/title&gt;&lt;script&gt;&quot;&amp;?");
    }

    #[test]
    fn long_text_continues_on_the_next_line_and_loses_nothing() {
        let text = "encrypted-256: seq-read, 64 KiB, 1 thread, depth 1, requests";
        let lines = wrap(text, 120.0, SMALL);
        assert!(lines.len() > 2, "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert!(
            lines.iter().all(|line| width(line, SMALL) <= 120.0),
            "{lines:?}"
        );
        // A word without blanks is cut, not lost.
        let word = "x".repeat(100);
        let lines = wrap(&format!("a {word} b"), 120.0, SMALL);
        assert_eq!(lines.concat().replace(['a', 'b', ' '], ""), word);
        assert!(
            lines.iter().all(|line| width(line, SMALL) <= 120.0),
            "{lines:?}"
        );
        assert_eq!(wrap("", 120.0, SMALL), [""]);
    }

    #[test]
    fn labels_neither_touch_nor_leave_the_drawing() {
        let mut d = Drawing::new("title", "description");
        let all: Vec<(f64, String)> = (0..=36)
            .map(|n| (10.0 * f64::from(n), "1000".into()))
            .collect();
        d.labels(20.0, &all);
        let svg = d.finish("x");
        let placed: Vec<f64> = svg
            .split("<text class=\"s\" x=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        let wide = small_width("1000");
        assert!(placed.len() > 5, "{svg}");
        assert!(
            placed[0] >= wide / 2.0 - 0.1 && placed[placed.len() - 1] <= WIDTH - wide / 2.0 + 0.1
        );
        assert!(
            placed.windows(2).all(|pair| pair[1] - pair[0] > wide),
            "{placed:?}"
        );
    }
}
