//! Answers that are reused for a time in proportion to their cost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer is reused until its collection took at most this share of the time: one percent.
const COST_SHARE: u32 = 100;
/// Bounds of the time for which an answer is reused.
const REUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The last answer. Only one thread at a time collects a new one.
#[derive(Default)]
pub(crate) struct Reused(Mutex<Option<Answer>>);

struct Answer {
    text: Arc<str>,
    until: Instant,
}

impl Reused {
    /// Returns the last answer if it is recent enough, or collects a new one.
    pub(crate) fn get(&self, collect: impl FnOnce() -> String) -> Arc<str> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        if let Some(answer) = &*last
            && began < answer.until
        {
            return Arc::clone(&answer.text);
        }
        let text: Arc<str> = collect().into();
        let reuse = (began.elapsed() * COST_SHARE).clamp(REUSE.0, REUSE.1);
        *last = Some(Answer {
            text: Arc::clone(&text),
            until: Instant::now() + reuse,
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_reused_while_it_is_recent() {
        let reused = Reused::default();
        let mut collected = 0;
        let mut get = || {
            reused.get(|| {
                collected += 1;
                collected.to_string()
            })
        };
        let first = get();
        assert_eq!(get(), first);
        std::thread::sleep(REUSE.0 * 2);
        assert_ne!(get(), first);
    }
}
