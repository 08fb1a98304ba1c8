//! The sides that suites name themselves.
//!
//! **Invariant:** a side is built when the first part needs it and gone when no later part does, so that the files,
//! mounts and connections of a suite are never all there at once.

use super::sides::{Builder, Built};
use stack::{Error, Result};
use std::collections::BTreeMap;

/// Sides by what they are written as.
pub struct Pool<'a> {
    builder: Builder<'a>,
    sides: BTreeMap<String, Built>,
}

impl<'a> Pool<'a> {
    pub fn new(builder: Builder<'a>) -> Pool<'a> {
        Pool {
            builder,
            sides: BTreeMap::new(),
        }
    }

    /// Lets all go but these.
    pub fn keep<'t>(&mut self, texts: impl Iterator<Item = &'t &'t str>) {
        let kept: Vec<&str> = texts.copied().collect();
        self.sides.retain(|text, _| kept.contains(&text.as_str()));
    }

    /// The side that a text stands for.
    pub fn built(&mut self, text: &str) -> Result<&Built> {
        if !self.sides.contains_key(text) {
            let mut built = self.builder.build(text)?;
            let (Some(one), true) = (built.pop(), built.is_empty()) else {
                return Err(Error::Usage(format!("`{text}` is more than one side")));
            };
            self.sides.insert(text.to_owned(), one);
        }
        Ok(&self.sides[text])
    }
}
