//! A model in two processes: the first stage has the requests and the first blocks, the last stage has the rest.
//!
//! ```text
//! first stage                                          last stage
//! Ledger ─Step─► Split: own blocks ──Request, rows──►  own blocks, head, choice, MTP block      last.rs
//!                  ▲                                       │ then drafts for the tick to come   foresight.rs
//!        StepResult└──────────────Reply, drafts────────────┘
//! ```
//!
//! To the Ledger this is one more Executor. Results are the bits of one process: both halves run the operations that one
//! process would run, on the floats that it would run them on, and floats cross as they are.
//!
//! The wait for the answer is in the tick, as the pass itself would be: there is nothing else to do. It ends, since
//! whoever carries the bytes ([`Link`]) answers within a bound.

pub mod first;
pub mod foresight;
pub mod last;
pub mod message;
pub mod wire;

use crate::limits::Limits;
use crate::model::Model;
use crate::step::Shape;

pub use first::{Link, LinkLost, Split};
pub use last::LastStage;

/// What the Ledger sees of a model in two stages.
pub fn whole_shape(first: &Shape, last: &Shape) -> Shape {
    Shape { recurrent: first.recurrent || last.recurrent, ..last.clone() }
}

/// The capacities that both stages agree on: they bound every length of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Of the engine.
    pub limits: Limits,
    /// Rows of the token table.
    pub vocab_rows: usize,
    /// Ids that may be chosen.
    pub vocab: usize,
    /// Floats per row that cross the border.
    pub border_width: usize,
}

impl Agreed {
    /// Of either stage's model, run with `limits`.
    pub fn new(model: &Model, limits: &Limits, border_width: usize) -> Self {
        Self { limits: limits.clone(), vocab_rows: model.vocab_rows, vocab: model.vocab, border_width }
    }

    /// Bytes of the longest message. Most of it are activations, and logit edits of requests with penalties.
    pub fn body_bytes(&self) -> usize {
        let Limits { slots, step_rows, context, window_max, .. } = self.limits;
        let pages = slots.saturating_mul(Limits::pages_for(context + 1));
        let rows = step_rows.saturating_mul(4 * self.border_width + 64);
        let edits = step_rows.saturating_mul(12 * self.vocab);
        let masks = step_rows.saturating_mul(4 * self.vocab.div_ceil(32));
        let tops = step_rows.saturating_mul(8 * self.vocab);
        let drafts = slots.saturating_mul(32 * (window_max + step_rows));
        let all = [8 * pages, rows, edits.max(tops), masks, drafts, 1 << 16];
        all.into_iter().fold(0, usize::saturating_add).min(BODY_BYTES_MAX)
    }
}

/// Messages are never longer, whatever the limits.
const BODY_BYTES_MAX: usize = 1 << 30;
