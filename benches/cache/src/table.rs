//! Tables, as Markdown and as JSON.

use crate::rounds::{Arm, Estimate, estimate};
use serde_json::{Value, json};
use std::fmt;

/// A table: its title, its columns, its formatted rows, and the values behind them.
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub raw: Vec<Value>,
}

impl Table {
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|c| c.to_string()).collect(),
            rows: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// Creates the usual table: a row per variant with its cost, and the ratio to the variant it is
    /// compared with.
    pub fn of_arms(
        title: impl Into<String>,
        unit: &str,
        arms: &[Arm<'_>],
        costs: &[Vec<f64>],
    ) -> Table {
        let mut table = Table::new(title, &["", unit, "compared with", "ratio"]);
        for (arm, cost) in arms.iter().zip(costs) {
            let base = &costs[arm.against];
            let ratios: Vec<f64> = cost.iter().zip(base).map(|(a, b)| a / b).collect();
            let itself = std::ptr::eq(cost, base);
            let (against, ratio) = match itself {
                true => (String::new(), String::new()),
                false => (
                    arms[arm.against].name.clone(),
                    interval(estimate(&ratios), 2),
                ),
            };
            let value = estimate(cost).median;
            table.push(
                vec![arm.name.clone(), number(value), against, ratio],
                json!({ "name": arm.name, "against": arms[arm.against].name, "rounds": cost }),
            );
        }
        table
    }

    pub fn push(&mut self, cells: Vec<String>, raw: Value) {
        self.rows.push(cells);
        self.raw.push(raw);
    }

    pub fn json(&self) -> Value {
        json!({
            "title": self.title,
            "columns": self.columns,
            "rows": self.rows,
            "raw": self.raw,
        })
    }
}

/// Formats an estimate as `median [low, high]`.
pub fn interval(e: Estimate, digits: usize) -> String {
    format!(
        "{:.digits$} [{:.digits$}, {:.digits$}]",
        e.median, e.low, e.high
    )
}

/// Formats a number with about three digits.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        writeln!(f, "| {} |", self.columns.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}
