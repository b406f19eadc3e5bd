//! Step and StepResult: all that the Ledger and the Executor say to each other.
//!
//! The Ledger (ids, history, counters) writes a [`Step`]; the Executor (weights, KV, recurrent state, logits) runs it
//! and fills a [`StepResult`]. Both are plain, serialisable columns, so that a stage of a split model in another
//! process or a device backend is just another Executor. A tick runs two steps: one with [`MtpWork`] (catch up and
//! draft), one with [`TrunkWork`] (the single trunk pass over window rows and prefill rows together).
//!
//! Order inside one step: `ops`, then `mtp`, then `trunk`.
//!
//! ```text
//! trunk segment of a window:   token   [ anchor | d1 .. dm | dm+1 .. dk ]     committed = 1
//!                              position  kv_len   ...                         rules on every row
//! trunk segment of a prefill:  token   [ x_p .. x_(p+n-1) ]                   committed = n, rules that choose nothing
//! ```

use serde::{Deserialize, Serialize};

use crate::ids::{CheckpointId, PageId, StateSlot, TokenId};
use crate::limits::Limits;

/// Who put a row into a trunk pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Source {
    /// A prompt (or recomputed) token: known, nothing is chosen at it.
    Prompt,
    /// The last committed token; its KV is computed by this pass.
    Anchor,
    /// A draft of the MTP block.
    Mtp,
    /// A draft of the suffix index.
    Suffix,
    /// A draft suggested by a grammar.
    Grammar,
}

/// What happens to a sequence's payload before anything is computed. Applied in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SlotOp {
    /// Empty sequence: zero state, empty log, `kv_len` 0, the pending hidden row is h_(-1) = 0.
    Reset {
        /// The sequence.
        state: StateSlot,
    },
    /// Forget everything at positions `kv_len..`: log rows and hidden rows. Reaching below the log's base asserts.
    Truncate {
        /// The sequence.
        state: StateSlot,
        /// Positions that remain.
        kv_len: u32,
    },
    /// Fold every logged row into the recurrent state now.
    Fold {
        /// The sequence.
        state: StateSlot,
    },
    /// Copy the payload of a page (all layers, MTP cache included).
    CopyPage {
        /// Source page.
        from: PageId,
        /// Destination page.
        to: PageId,
    },
    /// Make `to` an exact copy of `from`: recurrent state, log, hidden ring and cursors. Pages are the Ledger's.
    Fork {
        /// Source sequence.
        from: StateSlot,
        /// Destination sequence.
        to: StateSlot,
    },
    /// Save the recurrent state folded to `kv_len` and the pending hidden row. The MTP cache must cover
    /// `0..kv_len` (no other hidden row pending); the sequence itself is unchanged apart from being folded.
    Save {
        /// The sequence.
        state: StateSlot,
        /// Name of the copy, free until now.
        checkpoint: CheckpointId,
    },
    /// Make the sequence what it was at [`SlotOp::Save`].
    Restore {
        /// Name of the copy.
        checkpoint: CheckpointId,
        /// The sequence.
        state: StateSlot,
    },
    /// Make the sequence one of `kv_len` positions that pages hold already. For models whose sequences are nothing but
    /// their pages: no recurrent state, no MTP block.
    Adopt {
        /// The sequence.
        state: StateSlot,
        /// Positions.
        kv_len: u32,
    },
    /// Forget a checkpoint.
    Drop {
        /// Name of the copy.
        checkpoint: CheckpointId,
    },
}

/// Catch-up and drafting of the MTP block. One segment per sequence.
///
/// Row p pairs token x_p with the trunk's hidden row h_(p-1) (h_(-1) = 0). A segment names the committed tokens whose
/// MTP row is not in the cache yet; what is cached of them is computed from the hidden rows that the Executor kept. With `depth > 0` the last token is the anchor: its whole block is run, and drafts are chained from
/// it; rows past the anchor are scratch and need pages, but leave `mtp_len` at `position + tokens`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MtpWork {
    /// Per segment: the sequence.
    pub state: Vec<StateSlot>,
    /// Per segment: position of its first token, equal to the sequence's `mtp_len`.
    pub position: Vec<u32>,
    /// Per segment: drafts wanted, 0 = catch up only.
    pub depth: Vec<u32>,
    /// Per segment: stop the chain before a draft whose probability is below this (0 = never).
    pub p_min: Vec<f32>,
    /// Segment i owns `token[token_start[i]..token_start[i + 1]]`. Length: segments + 1, or empty.
    pub token_start: Vec<u32>,
    /// Committed tokens.
    pub token: Vec<TokenId>,
    /// Segment i owns `page[page_start[i]..page_start[i + 1]]`, its block table. Length: segments + 1, or empty.
    pub page_start: Vec<u32>,
    /// Block tables.
    pub page: Vec<PageId>,
    /// Return [`StepResult::mtp_logits`]: the block is then run whole for every token (the numerics probe).
    pub probe: bool,
}

/// One trunk pass. One segment per sequence: its rows are contiguous and their positions ascend by one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TrunkWork {
    /// Per segment: the sequence.
    pub state: Vec<StateSlot>,
    /// Per segment: position of its first row, equal to the sequence's `kv_len`.
    pub position: Vec<u32>,
    /// Per segment: leading rows known to be committed; they are folded into the recurrent state in this pass, the
    /// rest is logged. 1 for a window (the anchor), all rows for a prefill chunk.
    pub committed: Vec<u32>,
    /// Segment i owns rows `row_start[i]..row_start[i + 1]`. Length: segments + 1, or empty.
    pub row_start: Vec<u32>,
    /// Segment i owns `page[page_start[i]..page_start[i + 1]]`, its block table. Length: segments + 1, or empty.
    pub page_start: Vec<u32>,
    /// Block tables.
    pub page: Vec<PageId>,
    /// Per row: token.
    pub token: Vec<TokenId>,
    /// Per row: who proposed it.
    pub source: Vec<Source>,
    /// What is wanted of which rows.
    pub rules: RowRules,
}

/// Filters of one request, shared by its rows. The order of application is fixed: mask and bans, bias, penalties
/// (both as [`LogitEdit`]s and masks), temperature, top_k, typical_p, top_p, min_p, draw.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Filters {
    /// 0 = argmax, lowest id wins ties, the other filters are skipped.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub typical_p: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// Key of the counter generator, with `choice` and the row's draw position.
    pub seed: u64,
    /// Choice index of the request.
    pub choice: u32,
}

impl Filters {
    /// Plain argmax.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, typical_p: 1.0, top_p: 1.0, min_p: 0.0, seed: 0, choice: 0 };
}

/// One sparse change of a row's logits: `l = if l > 0 { l / repeat } else { l * repeat }`, then `l += add`.
/// `repeat` is 1 and `add` 0 when unused; a ban is `add = -inf`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LogitEdit {
    /// The token whose logit changes.
    pub token: TokenId,
    /// Multiplicative repetition penalty.
    pub repeat: f32,
    /// Additive bias, presence and frequency penalties.
    pub add: f32,
}

/// Rules of the rows at which a token is chosen, in row order. Columns are per rule.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RowRules {
    /// Row of the trunk pass.
    pub row: Vec<u32>,
    /// Index into `filters`.
    pub filter: Vec<u32>,
    /// Completion position of the token that the row chooses (0 = the first after the prompt): keys the draw.
    pub draw: Vec<u32>,
    /// Rule i owns `edit[edit_start[i]..edit_start[i + 1]]`. Length: rules + 1, or empty.
    pub edit_start: Vec<u32>,
    /// Logit edits, at most one per token and rule.
    pub edit: Vec<LogitEdit>,
    /// First word of the rule's bit mask in `mask_word` (bit set = allowed), `u32::MAX` = everything is allowed.
    pub mask: Vec<u32>,
    /// Masks, `vocab.div_ceil(32)` words each.
    pub mask_word: Vec<u32>,
    /// Alternatives wanted with their log-probabilities: `u32::MAX` = not even the chosen token's.
    pub top_n: Vec<u32>,
    /// The token behind the row where that is known, as in a prompt: its log-probability is wanted and nothing is chosen.
    /// `NONE` where the row chooses. Rows before the last committed one need none: their successors are rows too. Length:
    /// rules, or empty.
    pub known: Vec<TokenId>,
    /// Per request: its filters.
    pub filters: Vec<Filters>,
    /// Return [`StepResult::logits`] and [`StepResult::hidden`] of every rule's row (the numerics probe).
    pub probe: bool,
}

/// [`RowRules::top_n`] of a row whose log-probabilities are not wanted.
pub const NO_LOGPROBS: u32 = u32::MAX;

impl RowRules {
    /// The token behind the row of a rule, where the rule says it.
    pub fn known_at(&self, rule: usize) -> Option<TokenId> {
        self.known.get(rule).copied().filter(|token| !token.is_none())
    }

    /// The mask of a rule, of a vocabulary of `vocab` tokens; `None` where everything is allowed.
    pub fn mask_of(&self, rule: usize, vocab: usize) -> Option<&[u32]> {
        match self.mask.get(rule) {
            None | Some(&u32::MAX) => None,
            Some(&first) => Some(&self.mask_word[first as usize..][..vocab.div_ceil(32)]),
        }
    }
}

impl MtpWork {
    /// Empties every column and keeps its capacity.
    pub fn clear(&mut self) {
        self.state.clear();
        self.position.clear();
        self.depth.clear();
        self.p_min.clear();
        self.token_start.clear();
        self.token.clear();
        self.page_start.clear();
        self.page.clear();
        self.probe = false;
    }
}

impl TrunkWork {
    /// Empties every column and keeps its capacity.
    pub fn clear(&mut self) {
        self.state.clear();
        self.position.clear();
        self.committed.clear();
        self.row_start.clear();
        self.page_start.clear();
        self.page.clear();
        self.token.clear();
        self.source.clear();
        let rules = &mut self.rules;
        rules.row.clear();
        rules.filter.clear();
        rules.draw.clear();
        rules.edit_start.clear();
        rules.edit.clear();
        rules.mask.clear();
        rules.mask_word.clear();
        rules.top_n.clear();
        rules.known.clear();
        rules.filters.clear();
        rules.probe = false;
    }
}

/// Everything the Executor does at once.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Payload operations, in order, before the rest.
    pub ops: Vec<SlotOp>,
    /// MTP catch-up and drafts.
    pub mtp: MtpWork,
    /// The trunk pass.
    pub trunk: TrunkWork,
}

impl Step {
    /// Nothing, with room for whatever `limits` allow.
    pub fn with_room(limits: &Limits) -> Self {
        let Room { segments, rows, rules, pages, pending } = Room::new(limits);
        Self {
            ops: Vec::new(),
            mtp: MtpWork {
                state: Vec::with_capacity(segments),
                position: Vec::with_capacity(segments),
                depth: Vec::with_capacity(segments),
                p_min: Vec::with_capacity(segments),
                token_start: Vec::with_capacity(segments + 1),
                token: Vec::with_capacity(pending),
                page_start: Vec::with_capacity(segments + 1),
                page: Vec::with_capacity(pages),
                probe: false,
            },
            trunk: TrunkWork {
                state: Vec::with_capacity(segments),
                position: Vec::with_capacity(segments),
                committed: Vec::with_capacity(segments),
                row_start: Vec::with_capacity(segments + 1),
                page_start: Vec::with_capacity(segments + 1),
                page: Vec::with_capacity(pages),
                token: Vec::with_capacity(rows),
                source: Vec::with_capacity(rows),
                rules: RowRules {
                    row: Vec::with_capacity(rules),
                    filter: Vec::with_capacity(rules),
                    draw: Vec::with_capacity(rules),
                    edit_start: Vec::with_capacity(rules + 1),
                    edit: Vec::with_capacity(rules),
                    mask: Vec::with_capacity(rules),
                    top_n: Vec::with_capacity(rules),
                    known: Vec::with_capacity(rules),
                    filters: Vec::with_capacity(segments),
                    ..RowRules::default()
                },
            },
        }
    }

    /// Bytes of [`Self::with_room`] and [`StepResult::with_room`].
    pub fn bytes_for(limits: &Limits) -> usize {
        let Room { segments, rows, rules, pages, pending } = Room::new(limits);
        let word = size_of::<u32>();
        let mtp = word * (6 * segments + 2 + pending + pages);
        let trunk = word * (5 * segments + 2 + rows + pages) + rows * size_of::<Source>();
        let edits = rules * size_of::<LogitEdit>();
        let of_rules = word * (7 * rules + 1) + edits + segments * size_of::<Filters>();
        let result = word * (3 * segments + 3 * rows + 2 * rules + 2) + segments * size_of::<Option<Fault>>();
        mtp.saturating_add(trunk).saturating_add(of_rules).saturating_add(result)
    }

    /// Empties every column and keeps its capacity.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.mtp.clear();
        self.trunk.clear();
    }
}

/// Most of what a step has.
struct Room {
    segments: usize,
    rows: usize,
    rules: usize,
    pages: usize,
    /// Tokens that MTP caches may be behind.
    pending: usize,
}

impl Room {
    fn new(limits: &Limits) -> Self {
        let &Limits { slots, context, step_rows, window_max, prefill_chunk, .. } = limits;
        let rules = step_rows.min(slots * (window_max + 1));
        let pending = slots * context.min(prefill_chunk + window_max + 2);
        Self {
            segments: slots,
            rows: step_rows,
            rules,
            pages: slots.saturating_mul(Limits::pages_for(context)),
            pending,
        }
    }
}

/// Why a row could not be decided, or a prompt not be computed; ends its own request only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// No logit of the row is finite.
    NonFinite,
    /// Finite logits there are, and mask and bans leave none of them.
    Barred,
    /// The Executor has lost the sequence: nothing of it is left but what the Ledger has.
    Lost,
}

/// Nanoseconds of the parts of a step, as the Executor's own clock saw them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// MTP catch-up: committed rows that no chain starts from. Whole prompts at times, whatever the strategy.
    pub fill_ns: u64,
    /// MTP chains, their anchors included.
    pub draft_ns: u64,
    /// Trunk pass, logits included.
    pub trunk_ns: u64,
    /// Choosing tokens.
    pub choose_ns: u64,
}

/// What came of a [`Step`]. Reused between steps; [`StepResult::clear`] keeps the capacity.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StepResult {
    /// MTP segment i drafted `draft[draft_start[i]..draft_start[i + 1]]`. Length: segments + 1, or empty.
    pub draft_start: Vec<u32>,
    /// Drafts.
    pub draft: Vec<TokenId>,
    /// Per draft: the MTP block's own probability of it.
    pub draft_prob: Vec<f32>,

    /// Per trunk segment: drafts the target agrees with, counted from the first. 0 where nothing was chosen.
    pub accepted: Vec<u32>,
    /// Per trunk segment: the target's own token after the accepted drafts; `NONE` where nothing was chosen.
    pub next: Vec<TokenId>,
    /// Per trunk segment: why no token could be chosen, if so, or why a prompt's rows are not there. The drafts before
    /// the fault stay accepted.
    pub fault: Vec<Option<Fault>>,

    /// Per rule: log-probability of the token chosen at its row under the raw logits; NaN where not wanted or the
    /// row lies behind the first disagreement. At a row whose successor is committed too, that one is the choice.
    pub logprob: Vec<f32>,
    /// Rule i owns `top[top_start[i]..top_start[i + 1]]`. Length: rules + 1, or empty.
    pub top_start: Vec<u32>,
    /// Alternatives, best first: token and log-probability under the raw logits.
    pub top: Vec<(TokenId, f32)>,

    /// Probe: `[rule][vocab]` raw logits.
    pub logits: Vec<f32>,
    /// Probe: `[rule][hidden_width]` hidden rows, as the MTP block is fed them.
    pub hidden: Vec<f32>,
    /// Probe: `[row][vocab]` MTP logits, first of every catch-up token, then of every draft step past the anchor.
    pub mtp_logits: Vec<f32>,

    /// Measured by the Executor.
    pub times: Times,
}

impl StepResult {
    /// Nothing, with room for what comes of any step.
    pub fn with_room(limits: &Limits) -> Self {
        let Room { segments, rows, rules, .. } = Room::new(limits);
        Self {
            draft_start: Vec::with_capacity(segments + 1),
            draft: Vec::with_capacity(rows),
            draft_prob: Vec::with_capacity(rows),
            accepted: Vec::with_capacity(segments),
            next: Vec::with_capacity(segments),
            fault: Vec::with_capacity(segments),
            logprob: Vec::with_capacity(rules),
            top_start: Vec::with_capacity(rules + 1),
            ..Self::default()
        }
    }

    /// Empties every column and keeps its capacity.
    pub fn clear(&mut self) {
        self.draft_start.clear();
        self.draft.clear();
        self.draft_prob.clear();
        self.accepted.clear();
        self.next.clear();
        self.fault.clear();
        self.logprob.clear();
        self.top_start.clear();
        self.top.clear();
        self.logits.clear();
        self.hidden.clear();
        self.mtp_logits.clear();
        self.times = Times::default();
    }
}

/// What the Ledger needs to know of a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Tokens that may be chosen: ids `0..vocab`.
    pub vocab: usize,
    /// Width of a hidden row, as the MTP block is fed it; not what the LM head reads everywhere.
    pub hidden_width: usize,
    /// Positions the model was made for.
    pub context_train: usize,
    /// Whether an MTP block is loaded.
    pub mtp: bool,
    /// Whether any layer carries a recurrent state (checkpoints matter).
    pub recurrent: bool,
    /// Hidden rows a sequence may have pending before its MTP cache must catch up; 0 without an MTP block.
    pub hidden_rows: usize,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: usize,
}

/// Runs steps. Owns payload only: weights, KV pages, recurrent states and their logs, MTP cache, hidden rings, logits.
///
/// A step that breaks a precondition (unknown page, position other than the cursor, rollback below the log) is a bug
/// of the Ledger and asserts.
pub trait Executor: Send {
    /// What the model is.
    fn shape(&self) -> &Shape;

    /// Runs `step` and overwrites `out`.
    fn run(&mut self, step: &Step, out: &mut StepResult);

    /// Changes whenever everything that was computed before is lost: pages, states, checkpoints. Asked before steps are
    /// made that build on it; what is lost after that is a [`Fault::Lost`].
    fn epoch(&mut self) -> u64;

    /// The bytes of a checkpoint, for comparison in tests; layout is the Executor's own.
    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>>;
}
