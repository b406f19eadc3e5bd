//! From hidden rows to chosen tokens: the LM head for the rows that rules ask for, then acceptance.

use std::ops::Range;

use crate::accept;
use crate::ids::TokenId;
use crate::sample;
use crate::step::{Fault, NO_LOGPROBS, RowRules, StepResult, TrunkWork};

/// Logit rows that are held at once. A whole window fits, so that a walk never waits for a second block.
pub const LOGIT_ROWS: usize = crate::limits::WINDOW_MAX + 1;

/// Consecutive rules of one segment that are decided together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Trunk segment.
    pub segment: usize,
    /// Rules.
    pub rules: Range<usize>,
    /// The rows are a window (the last committed row and drafts); else their successors are committed already.
    pub window: bool,
}

/// Splits the rules into runs.
///
/// # Panics
/// If rules are not in row order, name rows outside the pass, or a window whose rows are not all ruled from its
/// first on.
pub fn runs(trunk: &TrunkWork) -> Vec<Run> {
    let rules = &trunk.rules;
    let mut out: Vec<Run> = Vec::new();
    let mut segment = 0;
    for (i, &row) in rules.row.iter().enumerate() {
        assert!(i == 0 || rules.row[i - 1] < row, "rules are in row order");
        while row >= trunk.row_start[segment + 1] {
            segment += 1;
        }
        let local = row - trunk.row_start[segment];
        let anchor = trunk.committed[segment] - 1;
        match out.last_mut() {
            Some(run) if run.window && run.segment == segment => {
                assert_eq!(row, rules.row[i - 1] + 1, "the ruled rows of a window are contiguous");
                run.rules.end = i + 1;
            }
            _ => {
                let window = local >= anchor;
                assert!(local <= anchor, "the rules of a window begin at its last committed row");
                out.push(Run { segment, rules: i..i + 1, window });
            }
        }
    }
    out
}

/// Groups of runs whose rules together fit [`LOGIT_ROWS`].
pub fn blocks(runs: &[Run]) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    let mut rows = 0;
    for (i, run) in runs.iter().enumerate() {
        match out.last_mut() {
            Some(block) if rows + run.rules.len() <= LOGIT_ROWS => {
                block.end = i + 1;
                rows += run.rules.len();
            }
            _ => {
                out.push(i..i + 1);
                rows = run.rules.len();
            }
        }
    }
    out
}

/// Decides one run. `logits`: `[rules of the run][stride]`, of which `vocab` may be chosen; unchanged on return.
pub fn decide(
    trunk: &TrunkWork,
    run: &Run,
    logits: &mut [f32],
    stride: usize,
    vocab: usize,
    scratch: &mut sample::Scratch,
    out: &mut StepResult,
) {
    let rules = &trunk.rules;
    let start = trunk.row_start[run.segment] as usize;
    let end = trunk.row_start[run.segment + 1] as usize;
    let mut decided = 0;
    let mut chosen = Vec::with_capacity(run.rules.len());
    if run.window {
        let anchor = start + trunk.committed[run.segment] as usize - 1;
        let ruled = &trunk.token[anchor + 1..end];
        // A window may be ruled in part: what lies behind the last rule is not judged.
        let drafts = &ruled[..ruled.len().min(run.rules.len() - 1)];
        let verdict = accept::walk(drafts, |i| {
            let row = &mut logits[i * stride..i * stride + vocab];
            let token = choose(rules, run.rules.start + i, row, vocab, scratch);
            decided = i + 1;
            chosen.push(token);
            token
        });
        out.accepted[run.segment] = verdict.accepted;
        match verdict.next {
            Ok(token) => out.next[run.segment] = token,
            Err(fault) => out.fault[run.segment] = Some(fault),
        }
    } else {
        // The successor of a committed row is committed: its probability is all there is to ask for.
        let row = rules.row[run.rules.start] as usize;
        decided = 1;
        chosen.push(Ok(trunk.token[row + 1]));
    }
    for i in 0..run.rules.len() {
        let wanted = rules.top_n.get(run.rules.start + i).copied().unwrap_or(NO_LOGPROBS);
        let token = if i < decided { chosen[i].ok() } else { None };
        let logprob = match (wanted, token) {
            (NO_LOGPROBS, _) | (_, None) => f32::NAN,
            (n, Some(token)) => {
                let row = &logits[i * stride..i * stride + vocab];
                sample::log_probs(row, scratch, token, n as usize, &mut out.top)
            }
        };
        out.logprob.push(logprob);
        out.top_start.push(out.top.len() as u32);
    }
}

fn choose(
    rules: &RowRules,
    rule: usize,
    logits: &mut [f32],
    vocab: usize,
    scratch: &mut sample::Scratch,
) -> Result<TokenId, Fault> {
    let edits = match rules.edit_start.as_slice() {
        [] => &[],
        starts => &rules.edit[starts[rule] as usize..starts[rule + 1] as usize],
    };
    let mask = match rules.mask.get(rule) {
        None | Some(&u32::MAX) => None,
        Some(&first) => Some(&rules.mask_word[first as usize..][..vocab.div_ceil(32)]),
    };
    let filters = &rules.filters[rules.filter[rule] as usize];
    sample::choose(logits, scratch, filters, rules.draw[rule], edits, mask)
}
