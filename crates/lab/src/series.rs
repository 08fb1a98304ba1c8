//! The order in which the arms run, and when enough of them have.
//!
//! ```text
//!   one other arm     A B · B A     or     B A · A B        drawn by the seed, block by block
//!   two other arms    B A C · C A B                         A stands next to both
//! ```
//!
//! **Invariant:** in a block every arm runs twice, at places whose mean is the same for all arms,
//! so a drift of the machine that is even over the block falls out of the comparison. Half a block
//! gives one pair for each other arm. The first block is a warm-up: kept, marked, never counted.

use crate::compare::Progress;
use crate::result::{End, Run, pairs, values};
use crate::rng::Rng;
use crate::stats::{Verdict, paired, verdict};
use crate::{Error, Plan, Result, Sample};
use std::ops::ControlFlow;
use std::time::Duration;

/// The runs of a comparison as they come in.
pub(crate) struct Series<'a> {
    names: &'a [&'a str],
    plan: &'a Plan,
    rng: Rng,
    pub(crate) runs: Vec<Vec<Run>>,
    pub(crate) pairs: u32,
    pub(crate) extended: bool,
}

impl<'a> Series<'a> {
    pub(crate) fn new(names: &'a [&'a str], plan: &'a Plan) -> Series<'a> {
        Series {
            names,
            plan,
            rng: Rng::new(plan.seed),
            runs: vec![Vec::new(); names.len()],
            pairs: 0,
            extended: false,
        }
    }

    /// Measures block after block until the plan says stop. `elapsed` is the time since the
    /// comparison began.
    pub(crate) fn measure(
        &mut self,
        elapsed: &dyn Fn() -> Duration,
        run: &mut dyn FnMut(usize) -> Result<Sample>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<End> {
        let mut block = 0;
        loop {
            let began = elapsed();
            let warm_up = self.plan.discard_first && block == 0;
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
            if self.pairs >= self.plan.pairs {
                if self.pairs >= self.plan.max_pairs || self.decided() {
                    return Ok(End::Complete);
                }
                self.extended = true;
            }
            let now = elapsed();
            if now + (now - began) > self.plan.budget {
                // A pair beyond the plan was a bonus: its absence is no shortfall.
                let short = self.pairs < self.plan.pairs;
                return Ok(if short { End::Budget } else { End::Complete });
            }
        }
    }

    fn block(
        &mut self,
        block: u32,
        warm_up: bool,
        run: &mut dyn FnMut(usize) -> Result<Sample>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut order = self.draw_order();
        let mut position = 0;
        for half in 0..2 {
            for (i, &arm) in order.iter().enumerate() {
                let sample = run(arm)?;
                let mib_per_s = sample.mib_per_s();
                self.runs[arm].push(Run {
                    block,
                    half,
                    position,
                    warm_up,
                    sample,
                });
                position += 1;
                self.pairs += u32::from(!warm_up && i + 1 == order.len());
                let told = progress(Progress::Ran {
                    arm: self.names[arm].to_owned(),
                    mib_per_s,
                    pairs: self.pairs,
                    of: self.plan.pairs,
                    warm_up,
                });
                if told.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            order.reverse();
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The first half of a block: the other arms in a drawn order, the first arm in their middle.
    fn draw_order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (1..self.names.len()).collect();
        self.rng.shuffle(&mut order);
        let middle = match order.len() {
            1 => self.rng.below(2) as usize,
            others => others / 2,
        };
        order.insert(middle, 0);
        order
    }

    fn decided(&self) -> bool {
        let (a, others) = self.runs.split_first().expect("at least two arms");
        others.iter().all(|b| {
            [
                Sample::mib_per_s as fn(&Sample) -> f64,
                Sample::cpu_s_per_gib,
            ]
            .into_iter()
            .all(|value| {
                let ratio = paired(&values(&pairs(a, b), value));
                ratio.is_some_and(|r| verdict(&r, self.plan.theta) != Verdict::Undecided)
            })
        })
    }
}
