//! State of the screen, and its changes by keys and samples.

use super::format::Symbols;
use super::grid::{Grid, Kind};
use super::keys::Key;
use super::views::View;
use stack::watch::{History, Sample};
use std::time::Duration;

/// Samples whose values are kept for curves: more than a wide terminal has columns.
const HISTORY_SAMPLES: usize = 300;

/// State of the screen.
#[derive(Debug)]
pub struct Model {
    pub view: View,
    /// Sorted column of each view, and whether large values come first.
    sorts: [(usize, bool); View::ALL.len()],
    /// Key of the selected row of each view; `None` selects the first.
    selected: [Option<String>; View::ALL.len()],
    pub paused: bool,
    pub help: bool,
    /// The last sample.
    pub sample: Option<Sample>,
    pub history: History,
    pub interval: Duration,
    pub look: Look,
}

/// Abilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Whether states may have colors.
    pub colors: bool,
    pub symbols: Symbols,
}

/// Effect of a key on the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Draw the screen.
    Draw,
    /// Draw the screen after erasing it.
    Redraw,
    /// End the program.
    Quit,
    /// End the program, as Ctrl-C does.
    Interrupt,
    /// Stop the process until the shell continues it.
    Suspend,
}

impl Model {
    /// Creates a screen without a sample.
    pub fn new(interval: Duration, look: Look) -> Model {
        Model {
            view: View::Services,
            sorts: View::ALL.map(View::first_sort),
            selected: Default::default(),
            paused: false,
            help: false,
            sample: None,
            history: History::new(HISTORY_SAMPLES),
            interval,
            look,
        }
    }

    /// Takes a new sample, unless the screen is paused.
    pub fn take(&mut self, sample: Sample) {
        if self.paused {
            return;
        }
        self.history.record(&sample);
        self.sample = Some(sample);
    }

    /// Returns the sorted column of the view, and whether large values come first.
    pub fn sort(&self) -> (usize, bool) {
        self.sorts[self.view.index()]
    }

    /// Builds the table of the view.
    pub fn grid(&self) -> Grid {
        match &self.sample {
            Some(sample) => self.view.grid(sample, self.sort()),
            None => Grid {
                columns: self.view.columns(),
                rows: Vec::new(),
            },
        }
    }

    /// Returns the place of the selected row; the first one if the selected row no longer exists.
    pub fn selected(&self, grid: &Grid) -> usize {
        let key = self.selected[self.view.index()].as_ref();
        let place = key.and_then(|key| grid.rows.iter().position(|row| row.key == *key));
        place.unwrap_or(0)
    }

    /// Handles a key. `page` is the number of visible rows.
    pub fn handle(&mut self, key: Key, page: usize) -> Effect {
        match key {
            Key::Char('q') => return Effect::Quit,
            Key::Ctrl('c') => return Effect::Interrupt,
            Key::Ctrl('z') => return Effect::Suspend,
            Key::Ctrl('l') => return Effect::Redraw,
            Key::Char('?' | 'h') => self.help = !self.help,
            Key::Escape | Key::Enter => self.help = false,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Tab | Key::Right => self.show_next(1),
            Key::BackTab | Key::Left => self.show_next(View::ALL.len() - 1),
            Key::Char(digit @ '1'..='5') => {
                let number = digit as usize - '1' as usize;
                self.view = View::ALL[number];
            }
            Key::Char('s') => self.sort_by_next(1),
            Key::Char('S') => self.sort_by_next(self.view.columns().len() - 1),
            Key::Char('r') => {
                let (_, descending) = &mut self.sorts[self.view.index()];
                *descending = !*descending;
            }
            Key::Up | Key::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(|at, _| at + 1),
            Key::PageUp => self.select(|at, _| at.saturating_sub(page)),
            Key::PageDown => self.select(|at, _| at + page),
            Key::Home | Key::Char('g') => self.select(|_, _| 0),
            Key::End | Key::Char('G') => self.select(|_, rows| rows),
            Key::Char(_) | Key::Ctrl(_) => {}
        }
        Effect::Draw
    }

    fn show_next(&mut self, step: usize) {
        let next = (self.view.index() + step) % View::ALL.len();
        self.view = View::ALL[next];
    }

    /// Sorts by another column: numbers with the largest first, names in their order.
    fn sort_by_next(&mut self, step: usize) {
        let columns = self.view.columns();
        let next = (self.sort().0 + step) % columns.len();
        let descending = columns[next].kind == Kind::Number;
        self.sorts[self.view.index()] = (next, descending);
    }

    /// Selects the row that `to` computes from the current one and the number of rows.
    fn select(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let grid = self.grid();
        let place = to(self.selected(&grid), grid.rows.len());
        let place = place.min(grid.rows.len().saturating_sub(1));
        let row = grid.rows.get(place);
        self.selected[self.view.index()] = row.map(|row| row.key.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stack::watch::ServiceSample;

    fn sample(names: &[&str]) -> Sample {
        let service = |name: &&str| ServiceSample {
            name: (*name).into(),
            ..ServiceSample::default()
        };
        Sample {
            services: names.iter().map(service).collect(),
            ..Sample::default()
        }
    }

    fn model() -> Model {
        let look = Look {
            colors: false,
            symbols: Symbols::ASCII,
        };
        let mut model = Model::new(Duration::from_secs(1), look);
        model.take(sample(&["a", "b", "c"]));
        model
    }

    fn selected(model: &Model) -> String {
        let grid = model.grid();
        grid.rows[model.selected(&grid)].key.clone()
    }

    #[test]
    fn rows_are_selected_and_stay_selected_while_others_come_and_go() {
        let mut model = model();
        assert_eq!(selected(&model), "a");
        for (key, name) in [
            (Key::Up, "a"),
            (Key::Down, "b"),
            (Key::Char('j'), "c"),
            (Key::Down, "c"),
            (Key::Char('k'), "b"),
            (Key::Home, "a"),
            (Key::End, "c"),
            (Key::PageUp, "a"),
            (Key::PageDown, "c"),
        ] {
            assert_eq!(model.handle(key, 2), Effect::Draw);
            assert_eq!(selected(&model), name, "{key:?}");
        }
        model.take(sample(&["0", "a", "c", "d"]));
        assert_eq!(selected(&model), "c");
        model.handle(Key::Char('r'), 2);
        assert_eq!(selected(&model), "c");
        model.take(sample(&["a", "b"]));
        assert_eq!(selected(&model), "b", "the first in descending order");
        model.take(sample(&[]));
        model.handle(Key::Down, 2);
        assert!(model.grid().rows.is_empty());
    }

    #[test]
    fn views_are_shown_in_turn_and_by_number() {
        let mut model = model();
        for view in [1, 2, 3, 4, 0, 1] {
            model.handle(Key::Tab, 9);
            assert_eq!(model.view, View::ALL[view]);
        }
        model.handle(Key::BackTab, 9);
        model.handle(Key::Left, 9);
        assert_eq!(model.view, View::Clients);
        model.handle(Key::Char('3'), 9);
        assert_eq!(model.view, View::Cache);
        for key in [Key::Down, Key::End, Key::PageUp, Key::Char('s')] {
            model.handle(key, 0);
        }
    }

    #[test]
    fn columns_are_sorted_in_turn() {
        let mut model = model();
        assert_eq!(model.sort(), (0, false));
        model.handle(Key::Char('S'), 9);
        assert_eq!(model.sort().0, View::Services.columns().len() - 1);
        model.handle(Key::Char('s'), 9);
        for _ in 0..3 {
            model.handle(Key::Char('s'), 9);
        }
        assert_eq!(model.sort(), (3, true), "numbers are sorted downwards");
        model.handle(Key::Char('r'), 9);
        assert_eq!(model.sort(), (3, false));
        model.handle(Key::Tab, 9);
        assert_eq!(model.sort(), View::Paths.first_sort());
    }

    #[test]
    fn a_paused_screen_keeps_its_sample() {
        let mut model = model();
        model.handle(Key::Char('p'), 9);
        model.take(sample(&["x"]));
        assert_eq!(model.grid().rows.len(), 3);
        model.handle(Key::Char(' '), 9);
        model.take(sample(&["x"]));
        assert_eq!(model.grid().rows.len(), 1);
    }

    #[test]
    fn keys_end_the_program_or_close_the_help() {
        let mut model = model();
        assert_eq!(model.handle(Key::Char('q'), 9), Effect::Quit);
        assert_eq!(model.handle(Key::Ctrl('c'), 9), Effect::Interrupt);
        assert_eq!(model.handle(Key::Ctrl('z'), 9), Effect::Suspend);
        assert_eq!(model.handle(Key::Ctrl('l'), 9), Effect::Redraw);
        model.handle(Key::Char('?'), 9);
        assert!(model.help);
        model.handle(Key::Escape, 9);
        assert!(!model.help);
    }
}
