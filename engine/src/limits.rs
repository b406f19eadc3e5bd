//! Limits: every capacity is a number known at start.

use serde::{Deserialize, Serialize};

/// Positions of a KV page.
pub const PAGE_TOKENS: usize = 16;
/// Absolute positions of one attention split; partials are merged in split order.
pub const ATTENTION_SPLIT: usize = 256;
/// Most rows of one trunk pass, window rows and prefill rows together.
pub const STEP_ROWS_MAX: usize = 512;
/// Rows of a trunk pass that prefill gets at least while a prompt waits.
pub const PREFILL_ROWS_MIN: usize = 64;
/// Most drafts of one window; a window has one row more.
pub const WINDOW_MAX: usize = 63;
/// Default of the largest window.
pub const WINDOW_MAX_DEFAULT: usize = 32;
/// Most MTP drafts of one window.
pub const MTP_TOKENS_MAX: usize = 15;
/// Default of the MTP chain length.
pub const MTP_TOKENS_DEFAULT: usize = 3;
/// Default of the shortest suffix match that proposes.
pub const SUFFIX_MIN_DEFAULT: usize = 3;
/// Default (and largest) suffix match that is looked for.
pub const SUFFIX_MAX_DEFAULT: usize = 64;
/// Default length of a suffix tail, before the window limit.
pub const SUFFIX_TOKENS_DEFAULT: usize = 48;
/// Positions between two checkpoints of a sequence, at most.
pub const CHECKPOINT_TOKENS: usize = 512;
/// Least positions between two checkpoints, where messages end.
pub const CHECKPOINT_TOKENS_MIN: usize = 64;
/// Tokens before a prompt's end at which a checkpoint stands: chat templates end a prompt with the start of an answer,
/// which the next prompt may spell otherwise.
pub const CHECKPOINT_TAIL: usize = 4;
/// Newest candidates of a seed that a suffix search looks at.
pub const SUFFIX_CANDIDATES: usize = 16;

const _: () = assert!(WINDOW_MAX < STEP_ROWS_MAX, "a full window fits a step");
const _: () = assert!(ATTENTION_SPLIT.is_multiple_of(PAGE_TOKENS), "a split is whole pages");

/// Submissions that wait for admission, by default.
pub const WAITING_MAX: usize = 256;

/// Capacities fixed when the world is built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests that run at once: rows of the requests table and of the recurrent state.
    pub slots: usize,
    /// Tokens one request may hold, prompt and completion together.
    pub context: usize,
    /// Pages of the KV pool.
    pub pages: usize,
    /// Most rows of one trunk pass.
    pub step_rows: usize,
    /// Most prompt rows of one request in one pass.
    pub prefill_chunk: usize,
    /// Most drafts of a window, at most [`WINDOW_MAX`] and less than `step_rows`; also the capacity of the ingredient log.
    pub window_max: usize,
    /// Submissions that wait for admission.
    pub waiting: usize,
    /// Events that wait for the reader of the engine's event channel.
    pub events: usize,
    /// Checkpoints the Executor may hold.
    pub checkpoints: usize,
    /// What was computed of a sequence is kept for others that begin with the same tokens.
    pub prefix_cache: bool,
}

/// Why limits cannot be worked with.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimitsError {
    /// A number is outside its range.
    #[error("{name} is {found}; it must be {least} to {most}")]
    Range {
        /// Which.
        name: &'static str,
        /// Its value.
        found: usize,
        /// Least allowed value.
        least: usize,
        /// Largest allowed value.
        most: usize,
    },
}

impl Limits {
    /// Checks every number against the others, so that one request alone always ends and every anchor fits a pass.
    ///
    /// # Errors
    /// The first number outside its range.
    pub fn check(&self) -> Result<(), LimitsError> {
        let ids = u32::MAX as usize - 1;
        let range = |name, found, least, most| {
            if (least..=most).contains(&found) { Ok(()) } else { Err(LimitsError::Range { name, found, least, most }) }
        };
        range("slots", self.slots, 1, STEP_ROWS_MAX - 1)?;
        range("context", self.context, 2, ids)?;
        range("pages", self.pages, Self::pages_for(self.context), ids)?;
        range("step_rows", self.step_rows, self.slots + 1, STEP_ROWS_MAX)?;
        range("prefill_chunk", self.prefill_chunk, 1, STEP_ROWS_MAX)?;
        range("window_max", self.window_max, 0, WINDOW_MAX.min(self.step_rows - 1))?;
        range("waiting", self.waiting, 1, ids)?;
        range("events", self.events, 1, ids)
    }

    /// Pages that hold `tokens` positions.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// The same for other numbers of requests and tokens, with a pool that holds all of them at once.
    pub fn resized(&self, slots: usize, context: usize) -> Self {
        let Self { pages, .. } = Self::new(slots, context);
        Self { slots, context, pages, ..self.clone() }
    }

    /// The usual limits for `slots` requests of `context` tokens: the pool holds all of them at once.
    pub fn new(slots: usize, context: usize) -> Self {
        Self {
            slots,
            context,
            pages: slots.saturating_mul(Self::pages_for(context)),
            step_rows: STEP_ROWS_MAX,
            prefill_chunk: STEP_ROWS_MAX,
            window_max: WINDOW_MAX_DEFAULT,
            waiting: WAITING_MAX,
            events: 4096,
            checkpoints: 0,
            prefix_cache: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_checked() {
        let good = Limits::new(2, 100);
        assert_eq!(good.check(), Ok(()));
        for (name, bad) in [
            ("slots", Limits { slots: 0, ..good.clone() }),
            ("slots", Limits { slots: 512, ..good.clone() }),
            ("context", Limits { context: 1, ..good.clone() }),
            ("pages", Limits { pages: 6, ..good.clone() }),
            ("step_rows", Limits { step_rows: 2, ..good.clone() }),
            ("prefill_chunk", Limits { prefill_chunk: 0, ..good.clone() }),
            ("window_max", Limits { window_max: 64, ..good.clone() }),
            ("window_max", Limits { window_max: 32, step_rows: 32, ..good.clone() }),
            ("context", Limits::new(511, usize::MAX)),
            ("pages", Limits::new(511, u32::MAX as usize - 1)),
            ("waiting", Limits { waiting: 0, ..good.clone() }),
            ("events", Limits { events: 0, ..good.clone() }),
        ] {
            let Err(LimitsError::Range { name: found, .. }) = bad.check() else { panic!("{name} passes: {bad:?}") };
            assert_eq!(found, name);
        }
        assert_eq!(Limits { window_max: 31, step_rows: 32, ..good }.check(), Ok(()));
    }
}
