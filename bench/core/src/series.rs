//! The order in which the arms run, and the condition to stop.
//!
//! ```text
//!   one other arm     A B · B A     or     B A · A B        drawn by the seed, block by block
//!   two other arms    B A C · C A B                         A runs next to both
//! ```
//!
//! **Invariant:** in a block every arm runs twice, at positions whose mean is the same for all
//! arms, so a linear drift of the machine over the block cancels out of the comparison. Half a
//! block yields one pair for each other arm. The first block is a warm-up: stored, marked, never
//! counted.

use crate::result::{End, Run};
use crate::rng::Rng;
use crate::{Error, Result};
use std::ops::ControlFlow;
use std::time::Duration;

/// Number of blocks and stop conditions.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Planned number of pairs, rounded up to whole blocks of two.
    pub pairs: u32,
    /// Maximum number of pairs if the planned ones do not suffice.
    pub max_pairs: u32,
    /// Time limit: a block that would probably exceed it is not started.
    pub budget: Duration,
    /// Time limit for blocks beyond `pairs`.
    pub extra: Duration,
    /// Whether the first block is a warm-up.
    pub discard_first: bool,
    /// Seed for the order of the arms.
    pub seed: u64,
}

/// Decides whether the runs so far, one list per arm, suffice.
pub type Enough<'a, S> = &'a dyn Fn(&[Vec<Run<S>>]) -> bool;

/// A run that has just finished.
pub struct Ran<'s, S> {
    pub arm: usize,
    pub sample: &'s S,
    pub pairs: u32,
    pub warm_up: bool,
}

/// The runs of a comparison as they finish, each with an `S`.
pub struct Series<S> {
    rules: Rules,
    rng: Rng,
    pub runs: Vec<Vec<Run<S>>>,
    pub pairs: u32,
    pub extended: bool,
}

impl<S> Series<S> {
    pub fn new(arms: usize, rules: Rules) -> Series<S> {
        Series {
            rules,
            rng: Rng::new(rules.seed),
            runs: (0..arms).map(|_| Vec::new()).collect(),
            pairs: 0,
            extended: false,
        }
    }

    /// Measures block after block until the rules say stop. `elapsed` returns the time since the
    /// comparison began; `enough` returns whether no more pairs are needed.
    pub fn measure(
        &mut self,
        elapsed: &dyn Fn() -> Duration,
        run: &mut dyn FnMut(usize) -> Result<S>,
        enough: Enough<'_, S>,
        progress: &mut dyn FnMut(Ran<'_, S>) -> ControlFlow<()>,
    ) -> Result<End> {
        let mut block = 0;
        loop {
            let began = elapsed();
            let warm_up = self.rules.discard_first && block == 0;
            if self.block(block, warm_up, run, progress)?.is_break() {
                return match self.pairs {
                    0 => Err(Error::Stopped),
                    _ => Ok(End::Stopped),
                };
            }
            block += 1;
            if warm_up {
                continue;
            }
            if self.pairs >= self.rules.pairs {
                if self.pairs >= self.rules.max_pairs || enough(&self.runs) {
                    return Ok(End::Complete);
                }
                self.extended = true;
            }
            let now = elapsed();
            // A pair beyond the plan is optional: its absence is not a shortfall.
            let short = self.pairs < self.rules.pairs;
            let limit = if short {
                self.rules.budget
            } else {
                self.rules.extra.min(self.rules.budget)
            };
            if now + (now - began) > limit {
                return Ok(if short { End::Budget } else { End::Complete });
            }
        }
    }

    fn block(
        &mut self,
        block: u32,
        warm_up: bool,
        run: &mut dyn FnMut(usize) -> Result<S>,
        progress: &mut dyn FnMut(Ran<'_, S>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut order = self.draw_order();
        let mut position = 0;
        for half in 0..2 {
            for (i, &arm) in order.iter().enumerate() {
                let sample = run(arm)?;
                self.pairs += u32::from(!warm_up && i + 1 == order.len());
                let told = progress(Ran {
                    arm,
                    sample: &sample,
                    pairs: self.pairs,
                    warm_up,
                });
                self.runs[arm].push(Run {
                    block,
                    half,
                    position,
                    warm_up,
                    sample,
                });
                position += 1;
                if told.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            order.reverse();
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Draws the first half of a block: the other arms in random order with the first arm in
    /// their middle.
    fn draw_order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (1..self.runs.len()).collect();
        self.rng.shuffle(&mut order);
        let middle = match order.len() {
            1 => self.rng.below(2) as usize,
            others => others / 2,
        };
        order.insert(middle, 0);
        order
    }
}

#[cfg(test)]
mod tests;
