//! SVG drawing: shapes in user units with y downward, and the style shared by all charts.

use std::fmt::Write;

/// Number of colors for sides; further sides reuse them and differ in the dashes of their lines.
const SIDES: usize = 4;

/// Style sheet of every chart, for light and dark color schemes.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:10px}.axis{stroke:#999;stroke-width:1}\
.grid{stroke:#ddd;stroke-width:1}.band{fill:#8883}.c0{--c:#2166ac}.c1{--c:#d6604d}.c2{--c:#1b7837}.c3{--c:#762a83}\
.line{fill:none;stroke:var(--c);stroke-width:2}.d1{stroke-dasharray:6 4}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}\
.mark{fill:var(--c)}.bar{fill:var(--c);opacity:.55}.open{fill:none;stroke:var(--c);stroke-width:1.5}.whisk{stroke:var(--c);stroke-width:1.2}\
.noise{--c:#888}.good{--c:#1b7837}.bad{--c:#b2182b}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.axis{stroke:#888}.c0{--c:#6baed6}.c1{--c:#f4a582}.c2{--c:#7fbf7b}.c3{--c:#c2a5cf}\
.good{--c:#7fbf7b}.bad{--c:#ef8a62}}";

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
    width: f64,
    height: f64,
    title: String,
    body: String,
}

/// Formats the CSS class of side `n`.
pub(super) fn side(n: usize) -> String {
    format!("c{}", n % SIDES)
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Drawing {
        Drawing {
            width,
            height,
            title: escape(title),
            body: String::new(),
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

    /// Renders the chart as a self-contained SVG document.
    pub(super) fn finish(self) -> String {
        let Drawing {
            width,
            height,
            title,
            body,
        } = self;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<title>{title}</title>
{body}</svg>
"#
        )
    }
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
}
