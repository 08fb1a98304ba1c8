//! Blocks whose use is stated, whatever it was: what a log says that may begin before the disk.

use super::Space;
use crate::format::record::Run;

impl Space {
    /// Makes all blocks of a run free or used, whatever each was.
    pub fn set_use(&self, run: Run, used: bool) {
        if run.blocks == 0 {
            return;
        }
        let mut inner = self.lock();
        loop {
            let before = inner.by_start.range(..run.end()).next_back();
            let free = before.map(|(&start, &blocks)| Run { start, blocks });
            let Some(free) = free.filter(|free| free.end() > run.start) else {
                break;
            };
            let start = free.start.max(run.start);
            let blocks = free.end().min(run.end()) - start;
            inner.remove(Run { start, blocks });
        }
        if !used {
            inner.release(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_statement_counts_whatever_was_free_before() {
        let space = Space::new(0);
        let run = |start, blocks| Run { start, blocks };
        for free in [run(10, 10), run(30, 10), run(50, 5)] {
            space.add(free);
        }
        space.set_use(run(15, 37), true);
        assert_eq!(space.usage().free, 5 + 3);
        space.set_use(run(15, 37), true);
        space.set_use(run(12, 0), true);
        assert_eq!((space.usage().free, space.usage().runs), (8, 2));
        space.set_use(run(12, 40), false);
        space.set_use(run(12, 40), false);
        assert_eq!((space.usage().free, space.usage().runs), (45, 1));
        space.set_use(run(20, 2), true);
        assert_eq!((space.usage().free, space.usage().runs), (43, 2));
    }
}
