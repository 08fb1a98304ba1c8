//! Draws the model. A pure function: from a model and an area to the characters in a buffer.
//!
//! ```text
//!   evfs top  3 services, 1 not answering                 every 1 s
//!   [1 Services] 2 Paths  3 Cache  4 Files  5 Clients   sorted by NAME
//!   NAME ...                                              the heading
//!   ...                                                   rows
//!   ----
//!   ...                                                   the selected row in detail
//!   q quit ...                                            keys
//! ```
//!
//! Foreground and background are those of the terminal, so the screen is legible in light and dark
//! ones. Colors only repeat what a word says.

use super::details;
use super::format::ABSENT;
use super::grid::{Grid, Placed, Row, Tone};
use super::model::Model;
use super::views::View;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Lines before the rows, and after the details.
const HEAD: u16 = 3;
const FOOT: u16 = 1;

/// Lines of a screen that has room for details.
const DETAILED: u16 = 14;

const KEYS: &str = "q quit  ? help  Tab view  j/k row  s/S sort  r reverse  p pause";

const HELP: &[&str] = &[
    "Tab, Right, 1 to 5    next view, or the view with this number",
    "Shift-Tab, Left       previous view",
    "Down/j, Up/k          next or previous row; its details are at the bottom",
    "PageDown, PageUp      a page of rows",
    "Home/g, End/G         first or last row",
    "s, S                  sort by the next or previous column",
    "r                     reverse the order",
    "p, Space              pause: keep this sample",
    "Ctrl-L                draw the screen again",
    "?, h                  show or close this help",
    "q, Ctrl-C             quit",
    "",
    "P50 and P99 are latencies of the interval, for reads and writes together.",
    "READ/s and WRITE/s of a mount or a cell are those of its device, below the",
    "cache; rates of caches and files are in pages of 4 KiB.",
];

/// Parts of the screen, in lines.
struct Parts {
    rows: u16,
    details: u16,
}

/// Returns the number of rows that are visible in an area, for scrolling by pages.
pub fn page(model: &Model, area: Rect) -> usize {
    let grid = model.grid();
    let lines = selected_lines(model, &grid, area);
    parts(area, &grid, lines.len()).rows.into()
}

/// Draws the model.
pub fn render(model: &Model, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(*buffer.area());
    if area.is_empty() {
        return;
    }
    let mut canvas = Canvas { area, buffer };
    head(model, &mut canvas);
    if area.height > HEAD + FOOT {
        if model.help {
            for (at, line) in (HEAD - 1..area.height - FOOT).zip(HELP) {
                canvas.put(0, at, line, Style::new());
            }
        } else {
            body(model, &mut canvas);
        }
    }
    if area.height > HEAD {
        let dim = Style::new().add_modifier(Modifier::DIM);
        canvas.put(0, area.height - 1, KEYS, dim);
    }
}

/// The area that is drawn. Coordinates are relative to it, and nothing is drawn outside of it.
struct Canvas<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
}

impl Canvas<'_> {
    /// Draws a text, and cuts it at the end of the line. Returns the column after it.
    fn put(&mut self, x: u16, y: u16, text: &str, style: Style) -> u16 {
        if x >= self.area.width || y >= self.area.height {
            return x;
        }
        let left = usize::from(self.area.width - x);
        let (left_edge, top) = (self.area.x, self.area.y);
        let place = (left_edge + x, top + y);
        let (end, _) = self.buffer.set_stringn(place.0, place.1, text, left, style);
        end - left_edge
    }

    /// Draws a text at the end of a line, if it does not touch the text that ends at `after`.
    fn put_right(&mut self, after: u16, y: u16, text: &str, style: Style) {
        let length = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        let x = self.area.width.saturating_sub(length);
        if x > after {
            self.put(x, y, text, style);
        }
    }

    /// Sets the style of a whole line.
    fn paint(&mut self, y: u16, style: Style) {
        let line = Rect::new(self.area.x, self.area.y + y, self.area.width, 1);
        self.buffer.set_style(line, style);
    }
}

fn head(model: &Model, canvas: &mut Canvas<'_>) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let after = canvas.put(0, 0, "evfs top", bold);
    let after = match &model.sample {
        None => canvas.put(after + 2, 0, "measuring", Style::new()),
        Some(sample) => {
            let all = sample.services.len();
            let silent = sample.services.iter().filter(|s| s.error.is_some());
            let silent = silent.count();
            let services = if all == 1 { "service" } else { "services" };
            let end = canvas.put(after + 2, 0, &format!("{all} {services}"), Style::new());
            if silent == 0 {
                end
            } else {
                let style = style_of(model, Tone::Failure);
                canvas.put(end, 0, &format!(", {silent} not answering"), style)
            }
        }
    };
    let every = model.interval.as_secs_f64();
    if model.paused {
        canvas.put_right(after, 0, "PAUSED", bold);
    } else {
        canvas.put_right(after, 0, &format!("every {every} s"), Style::new());
    }
    if canvas.area.height > 1 {
        tabs(model, canvas);
    }
}

fn tabs(model: &Model, canvas: &mut Canvas<'_>) {
    let mut x = 0;
    for (at, view) in View::ALL.into_iter().enumerate() {
        let text = format!("{} {}", at + 1, view.title());
        let (text, style) = if view == model.view {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            (format!("[{text}]"), bold)
        } else {
            (format!(" {text} "), Style::new())
        };
        x = canvas.put(x, 1, &text, style);
    }
    let (column, descending) = model.sort();
    let columns = model.view.columns();
    let title = columns.get(column).map_or(ABSENT, |column| column.title);
    let direction = if descending { "v" } else { "^" };
    canvas.put_right(x, 1, &format!("by {title} {direction}"), Style::new());
}

/// Divides the lines of the screen between the rows and the details of one of them.
fn parts(area: Rect, grid: &Grid, lines: usize) -> Parts {
    let body = area.height.saturating_sub(HEAD + FOOT);
    if area.height < DETAILED || lines == 0 {
        return Parts {
            rows: body,
            details: 0,
        };
    }
    let rows = u16::try_from(grid.rows.len()).unwrap_or(u16::MAX);
    let rows = rows.clamp(1, body / 2);
    // One line separates the details from the rows.
    let lines = u16::try_from(lines).unwrap_or(u16::MAX);
    let details = lines.saturating_add(1).min(body - rows);
    Parts {
        rows: body - details,
        details,
    }
}

/// The details of the selected row.
fn selected_lines(model: &Model, grid: &Grid, area: Rect) -> Vec<String> {
    let row = grid.rows.get(model.selected(grid));
    row.map_or_else(Vec::new, |row| {
        details::lines(model, &row.key, area.width.into())
    })
}

fn body(model: &Model, canvas: &mut Canvas<'_>) {
    let grid = model.grid();
    if grid.rows.is_empty() {
        if model.sample.is_some() {
            canvas.put(0, HEAD, model.view.nothing(), Style::new());
        }
        return;
    }
    let lines = selected_lines(model, &grid, canvas.area);
    let parts = parts(canvas.area, &grid, lines.len());
    let placed = grid.place(Some(canvas.area.width.into()));
    heading(model, &grid, &placed, canvas);
    let selected = model.selected(&grid);
    let visible = usize::from(parts.rows);
    let first = (selected + 1).saturating_sub(visible);
    let rows = grid.rows.iter().enumerate().skip(first).take(visible);
    for (y, (at, row)) in (HEAD..).zip(rows) {
        let style = style_of(model, row.tone);
        put_row(&grid, &placed, row, y, style, canvas);
        if at == selected {
            canvas.paint(y, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if parts.details > 0 {
        let top = HEAD + parts.rows;
        let dim = Style::new().add_modifier(Modifier::DIM);
        let rule = "-".repeat(canvas.area.width.into());
        canvas.put(0, top, &rule, dim);
        let shown = lines.iter().take(usize::from(parts.details) - 1);
        for (y, line) in (top + 1..).zip(shown) {
            canvas.put(0, y, line, Style::new());
        }
    }
}

fn heading(model: &Model, grid: &Grid, placed: &[Placed], canvas: &mut Canvas<'_>) {
    let (sorted, descending) = model.sort();
    let bold = Modifier::BOLD | Modifier::UNDERLINED;
    for place in placed {
        let title = grid.columns[place.column].title;
        let mark = match (place.column == sorted, descending) {
            (false, _) => "",
            (true, true) => "v",
            (true, false) => "^",
        };
        let text = grid.fit(*place, &format!("{title}{mark}"));
        let style = Style::new().add_modifier(bold);
        canvas.put(column(place.x), HEAD - 1, &text, style);
    }
}

fn put_row(
    grid: &Grid,
    placed: &[Placed],
    row: &Row,
    y: u16,
    style: Style,
    canvas: &mut Canvas<'_>,
) {
    for place in placed {
        if let Some(cell) = row.cells.get(place.column) {
            let text = grid.fit(*place, &cell.text);
            canvas.put(column(place.x), y, &text, style);
        }
    }
}

fn column(x: usize) -> u16 {
    u16::try_from(x).unwrap_or(u16::MAX)
}

fn style_of(model: &Model, tone: Tone) -> Style {
    let color = match tone {
        Tone::Normal => return Style::new(),
        // Yellow is not legible on a light background.
        Tone::Warning => Color::Magenta,
        Tone::Failure => Color::Red,
    };
    let style = Style::new().add_modifier(Modifier::BOLD);
    if model.look.colors {
        style.fg(color)
    } else {
        style
    }
}

#[cfg(test)]
mod tests;
