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

use crate::exec::hidden_rows;
use crate::limits::Limits;
use crate::model::Model;
use crate::step::Shape;

pub use first::{Link, LinkLost, Split};
pub use last::LastStage;

/// What the Ledger sees of a model in two stages. What `last` tells of itself came over a wire: every number in it is one
/// that the first stage knows, or is bounded by one.
///
/// # Errors
/// The first number that cannot be, and what it should be.
pub fn whole_shape(first: &Shape, last: &Shape, agreed: &Agreed) -> Result<Shape, String> {
    let known = [
        ("ids that may be chosen", last.vocab, agreed.vocab),
        ("positions the model was made for", last.context_train, first.context_train),
        ("pending hidden rows", last.hidden_rows, hidden_rows(last.mtp, &agreed.limits)),
    ];
    if let Some((what, found, expected)) = known.into_iter().find(|(_, found, expected)| found != expected) {
        return Err(format!(
            "stage 1 says {found} {what}, and {expected} are expected; give both stages the same model"
        ));
    }
    let (width, most) = (last.hidden_width, agreed.border_width);
    if !(1..=most).contains(&width) {
        return Err(format!("stage 1 says hidden rows of {width} floats, and 1 to {most} are expected"));
    }
    let checkpoint_bytes = first.checkpoint_bytes.saturating_add(last.checkpoint_bytes);
    Ok(Shape { recurrent: first.recurrent || last.recurrent, checkpoint_bytes, ..last.clone() })
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
