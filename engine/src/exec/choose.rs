//! From hidden rows to chosen tokens: the LM head for the rows that rules ask for, then acceptance.

use std::ops::Range;

use bumpalo::Bump;
use bumpalo::collections::Vec as List;
use engine_kernels::Isa;
use engine_kernels::ops::logits::argmax;
use smallvec::SmallVec;

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
    /// The rows are a window (the last committed row and drafts); else their successors are known already.
    pub window: bool,
}

/// What choosing works with.
pub struct Chooser {
    isa: Isa,
    scratch: sample::Scratch,
}

impl Chooser {
    /// On this instruction set.
    pub fn new(isa: Isa) -> Self {
        Self { isa, scratch: sample::Scratch::default() }
    }
}

/// Splits the rules into runs.
///
/// # Panics
/// If rules are not in row order, name rows outside the pass, or a window whose rows are not all ruled from its
/// first on, or whose successors are known.
pub fn runs<'l>(trunk: &TrunkWork, lists: &'l Bump) -> List<'l, Run> {
    let rules = &trunk.rules;
    let mut out: List<'l, Run> = List::with_capacity_in(trunk.state.len(), lists);
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
                assert!(rules.known_at(i).is_none(), "what follows a draft is not known");
                run.rules.end = i + 1;
            }
            _ => {
                let window = local >= anchor && rules.known_at(i).is_none();
                assert!(local <= anchor, "the rules of a window begin at its last committed row");
                out.push(Run { segment, rules: i..i + 1, window });
            }
        }
    }
    out
}

/// Groups of runs whose rules together fit [`LOGIT_ROWS`].
pub fn blocks<'l>(runs: &[Run], lists: &'l Bump) -> List<'l, Range<usize>> {
    let mut out: List<'l, Range<usize>> = List::new_in(lists);
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
    by: &mut Chooser,
    out: &mut StepResult,
) {
    let rules = &trunk.rules;
    let start = trunk.row_start[run.segment] as usize;
    let end = trunk.row_start[run.segment + 1] as usize;
    let mut decided = 0;
    let mut chosen: SmallVec<[Result<TokenId, Fault>; LOGIT_ROWS]> = SmallVec::new();
    if run.window {
        let anchor = start + trunk.committed[run.segment] as usize - 1;
        let ruled = &trunk.token[anchor + 1..end];
        // A window may be ruled in part: what lies behind the last rule is not judged.
        let drafts = &ruled[..ruled.len().min(run.rules.len() - 1)];
        let verdict = accept::walk(drafts, |i| {
            let row = &mut logits[i * stride..i * stride + vocab];
            let token = choose(rules, run.rules.start + i, row, by);
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
        // The successor is known, from the rule or as a row: its probability is all there is to ask for.
        let row = rules.row[run.rules.start] as usize;
        decided = 1;
        chosen.push(Ok(rules.known_at(run.rules.start).unwrap_or_else(|| trunk.token[row + 1])));
    }
    for i in 0..run.rules.len() {
        let wanted = rules.top_n.get(run.rules.start + i).copied().unwrap_or(NO_LOGPROBS);
        let token = if i < decided { chosen[i].ok() } else { None };
        let logprob = match (wanted, token) {
            (NO_LOGPROBS, _) | (_, None) => f32::NAN,
            (n, Some(token)) => {
                let row = &logits[i * stride..i * stride + vocab];
                sample::log_probs(row, &mut by.scratch, token, n as usize, &mut out.top)
            }
        };
        out.logprob.push(logprob);
        out.top_start.push(out.top.len() as u32);
    }
}

fn choose(rules: &RowRules, rule: usize, logits: &mut [f32], by: &mut Chooser) -> Result<TokenId, Fault> {
    let edits = match rules.edit_start.as_slice() {
        [] => &[],
        starts => &rules.edit[starts[rule] as usize..starts[rule + 1] as usize],
    };
    let mask = rules.mask_of(rule, logits.len());
    let filters = &rules.filters[rules.filter[rule] as usize];
    if filters.temperature <= 0.0 && edits.is_empty() && mask.is_none() {
        // The same rule, vectorised; a row with an infinity goes the careful way.
        if let Some((token, _)) = argmax(by.isa, logits) {
            return Ok(TokenId(token));
        }
    }
    sample::choose(logits, &mut by.scratch, filters, rules.draw[rule], edits, mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StateSlot;
    use crate::step::{Filters, LogitEdit, Source};

    const VOCAB: usize = 5;
    /// Columns of the head, padding included; the padding is always the greatest.
    const STRIDE: usize = 7;

    /// Segments of (tokens, committed), every row from the last committed on ruled, or every row if `all`.
    fn work(segments: &[(&[u32], u32)], all: bool) -> TrunkWork {
        let mut trunk = TrunkWork { row_start: vec![0], ..TrunkWork::default() };
        for (s, &(tokens, committed)) in segments.iter().enumerate() {
            let first = trunk.token.len() as u32;
            trunk.state.push(StateSlot(s as u32));
            trunk.position.push(0);
            trunk.committed.push(committed);
            trunk.token.extend(tokens.iter().map(|&t| TokenId(t)));
            trunk.source.extend(tokens.iter().map(|_| Source::Prompt));
            trunk.row_start.push(trunk.token.len() as u32);
            let from = if all { first } else { first + committed - 1 };
            for row in from..trunk.token.len() as u32 {
                trunk.rules.row.push(row);
                trunk.rules.filter.push(0);
                trunk.rules.draw.push(row);
                trunk.rules.mask.push(u32::MAX);
                trunk.rules.top_n.push(1);
            }
        }
        trunk.rules.filters.push(Filters::GREEDY);
        trunk
    }

    /// Decides every run of `trunk` on logits that make `target[rule]` the best.
    fn decide_on(trunk: &TrunkWork, target: &[u32]) -> StepResult {
        let mut out = StepResult {
            accepted: vec![0; trunk.state.len()],
            next: vec![TokenId::NONE; trunk.state.len()],
            fault: vec![None; trunk.state.len()],
            top_start: vec![0],
            ..StepResult::default()
        };
        for run in runs(trunk, &Bump::new()) {
            let mut logits = Vec::new();
            for &t in &target[run.rules.clone()] {
                let mut row = [0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0];
                match t {
                    u32::MAX => row[..VOCAB].fill(f32::NAN),
                    t => row[t as usize] = 1.0,
                }
                logits.extend(row);
            }
            let before: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
            decide(trunk, &run, &mut logits, STRIDE, VOCAB, &mut Chooser::new(Isa::best()), &mut out);
            assert!(logits.iter().map(|x| x.to_bits()).eq(before), "logits are handed back as they were");
        }
        out
    }

    #[test]
    fn windows_are_judged_side_by_side() {
        let trunk = work(&[(&[1, 2, 3], 1), (&[4, 4], 1), (&[0], 1)], false);
        let out = decide_on(&trunk, &[2, 3, 0, /**/ 1, 1, /**/ 3]);
        assert_eq!(out.accepted, [2, 0, 0]);
        assert_eq!(out.next, [TokenId(0), TokenId(1), TokenId(3)]);
        assert_eq!(out.fault, [None; 3]);
    }

    #[test]
    fn log_probabilities_end_at_the_first_disagreement() {
        let out = decide_on(&work(&[(&[1, 2, 3], 1)], false), &[2, 4, 0]);
        assert_eq!((out.accepted[0], out.next[0]), (1, TokenId(4)));
        let expected = 1.0 - (1f32.exp() + 4.0).ln();
        assert!((out.logprob[0] - expected).abs() < 1e-6 && (out.logprob[1] - expected).abs() < 1e-6);
        assert!(out.logprob[2].is_nan());
        assert_eq!(out.top_start, [0, 1, 2, 2]);
        assert_eq!((out.top[0].0, out.top[1].0), (TokenId(2), TokenId(4)));
    }

    #[test]
    fn rows_before_the_last_committed_one_judge_their_successor() {
        let out = decide_on(&work(&[(&[1, 2, 3], 3)], true), &[2, 0, 4]);
        assert_eq!((out.accepted[0], out.next[0]), (0, TokenId(4)));
        let z = (1f32.exp() + 4.0).ln();
        assert!((out.logprob[0] - (1.0 - z)).abs() < 1e-6, "2 follows, and was the best");
        assert!((out.logprob[1] + z).abs() < 1e-6, "3 follows, and was not");
    }

    #[test]
    fn prefill_without_rules_decides_nothing() {
        let mut trunk = work(&[(&[1, 2], 2), (&[3], 1)], false);
        trunk.rules.row.remove(0);
        let out = decide_on(&trunk, &[2, 2]);
        assert_eq!(out.next, [TokenId::NONE, TokenId(2)]);
    }

    #[test]
    fn a_row_without_a_finite_logit_faults_its_own_segment() {
        let out = decide_on(&work(&[(&[1, 2, 3], 1), (&[4], 1)], false), &[2, u32::MAX, 0, /**/ 3]);
        assert_eq!((out.accepted[0], out.next[0], out.fault[0]), (1, TokenId::NONE, Some(Fault::NonFinite)));
        assert_eq!((out.next[1], out.fault[1]), (TokenId(3), None));
        assert!(out.logprob[1].is_nan());
    }

    #[test]
    fn edits_and_masks_are_each_rows_own() {
        let mut trunk = work(&[(&[1, 2, 3], 1)], false);
        let ban = |t| LogitEdit { token: TokenId(t), repeat: 1.0, add: f32::NEG_INFINITY };
        trunk.rules.edit_start = vec![0, 0, 1, 1];
        trunk.rules.edit = vec![ban(3)];
        trunk.rules.mask = vec![u32::MAX, u32::MAX, 0];
        trunk.rules.mask_word = vec![0b10000];
        let out = decide_on(&trunk, &[2, 3, 0]);
        assert_eq!((out.accepted[0], out.next[0]), (1, TokenId(0)), "the ban at row 1 rejects its draft");
        trunk.rules.edit_start = vec![0, 0, 0, 0];
        let out = decide_on(&trunk, &[2, 3, 0]);
        assert_eq!((out.accepted[0], out.next[0]), (2, TokenId(4)), "the mask of row 2 leaves one token");
    }

    #[test]
    fn an_infinite_logit_is_no_choice() {
        let trunk = work(&[(&[1], 1)], false);
        for isa in Isa::available() {
            let mut row = [0.0, f32::INFINITY, 2.0, f32::NAN, 2.0];
            assert_eq!(choose(&trunk.rules, 0, &mut row, &mut Chooser::new(isa)), Ok(TokenId(2)));
        }
    }

    #[test]
    fn windows_are_never_torn_apart() {
        let long: Vec<u32> = vec![0; 40];
        let trunk = work(&[(&long, 1), (&long, 1), (&[1], 1)], false);
        let lists = Bump::new();
        let runs = runs(&trunk, &lists);
        assert_eq!(runs.iter().map(|r| r.rules.clone()).collect::<Vec<_>>(), [0..40, 40..80, 80..81]);
        assert_eq!(blocks(&runs, &lists), [0..1, 1..3]);
        let probe = work(&[(&long, 40), (&long, 40)], true);
        let runs = super::runs(&probe, &lists);
        assert_eq!(runs.len(), 80);
        assert_eq!(blocks(&runs, &lists), [0..LOGIT_ROWS, LOGIT_ROWS..80]);
    }

    #[test]
    #[should_panic(expected = "row order")]
    fn rules_out_of_order_assert() {
        let mut trunk = work(&[(&[1], 1), (&[2], 1)], false);
        trunk.rules.row.swap(0, 1);
        runs(&trunk, &Bump::new());
    }

    #[test]
    #[should_panic(expected = "contiguous")]
    fn a_window_with_a_gap_in_its_rules_asserts() {
        let mut trunk = work(&[(&[1, 2, 3], 1)], false);
        trunk.rules.row.swap(1, 2);
        runs(&trunk, &Bump::new());
    }
}
