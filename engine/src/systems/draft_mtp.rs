//! draft_mtp: the MTP cache catches up with committed tokens, then chains drafts past the anchor.
//!
//! A row that drafts catches up first; any other row, whatever its strategy, catches up when its hidden ring has no
//! room for what this tick adds, or the prefix cache is to keep it: the cache of a page is complete whoever wrote it.
//! Speculation is charged for its chains alone: the cache is filled for every row, sooner or later.
//! Leaves true: every running row's pending hidden rows and this tick's fit the ring.

use crate::ids::TokenId;
use crate::rules;
use crate::step::{Executor, MtpWork, Shape, Step, StepResult};
use crate::tables::constraints::Constraints;
use crate::tables::counters::Counters;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::requests::Requests;
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;
use crate::{cost::Cost, pieces::Pieces};

/// Catches up and drafts; `step.ops` goes out with the call, if there is one. Returns the rows that it had.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn draft_mtp(
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &Pages,
    plans: &Plans,
    windows: &mut Windows,
    constraints: &mut Constraints,
    counters: &mut Counters,
    cost: &mut Cost,
    pieces: &Pieces,
    shape: &Shape,
    executor: &mut dyn Executor,
    step: &mut Step,
    result: &mut StepResult,
) -> usize {
    if !shape.mtp {
        return 0;
    }
    let work = &mut step.mtp;
    assert!(work.state.is_empty());
    // Window rows first, in window order, then prompts.
    for row in 0..windows.len() {
        let slot = windows.slot[row];
        let depth = plans.mtp_depth[slot.index()];
        let adds = 1 + plans.width[slot.index()] as usize;
        if depth > 0 || plans.keep[slot.index()] || lacks_room(requests, slot.index(), adds, shape) {
            append(work, requests, tokens, pages, slot, depth);
        }
    }
    for i in 0..requests.live.len() {
        let slot = requests.live[i];
        let adds = plans.prefill[slot.index()] as usize;
        if adds > 0 && (plans.keep[slot.index()] || lacks_room(requests, slot.index(), adds, shape)) {
            append(work, requests, tokens, pages, slot, 0);
        }
    }
    if work.state.is_empty() {
        return 0;
    }
    executor.run(step, result);
    step.ops.clear();
    let rows = step.mtp.token.len() + result.draft.len();

    let deepest = step.mtp.depth.iter().copied().max().unwrap_or(0);
    let wanted: u32 = step.mtp.depth.iter().sum();
    cost.observe_draft(deepest as usize, result.times.draft_ns);
    // Segments that draft are those of windows with a depth, in the same order.
    let mut next = 0;
    for row in 0..windows.len() {
        let slot = windows.slot[row];
        if plans.mtp_depth[slot.index()] == 0 {
            continue;
        }
        while step.mtp.depth[next] == 0 {
            next += 1;
        }
        let segment = next;
        next += 1;
        let drafts = &result.draft[result.draft_start[segment] as usize..result.draft_start[segment + 1] as usize];
        let depth = step.mtp.depth[segment];
        assert!(drafts.len() <= depth as usize, "{slot}: {} drafts of a chain of {depth}", drafts.len());
        let usable = usable_len(drafts, shape.vocab, |t| rules::ends(&requests.stop[slot.index()], pieces, t));
        let known = usable;
        let usable = constraints.usable(slot, &[], &drafts[..known]);
        for &token in &drafts[..usable] {
            windows.push_mtp(row, token);
        }
        let report = &mut counters.report[slot.index()];
        report.mtp.proposed += drafts.len() as u64;
        report.mtp.trimmed += (drafts.len() - usable) as u64;
        report.trimmed_constraint += (known - usable) as u64;
        report.mtp_draft_ns += result.times.draft_ns * u64::from(depth) / u64::from(wanted);
    }
    step.mtp.clear();
    rows
}

/// Drafts worth verifying: up to the first end token, and none that the target cannot choose.
fn usable_len(drafts: &[TokenId], vocab: usize, ends: impl Fn(TokenId) -> bool) -> usize {
    let known = drafts.iter().position(|t| t.0 as usize >= vocab).unwrap_or(drafts.len());
    drafts[..known].iter().position(|t| ends(*t)).map_or(known, |end| end + 1)
}

fn lacks_room(requests: &Requests, s: usize, adds: usize, shape: &Shape) -> bool {
    let pending = (requests.kv_len[s] + 1 - requests.mtp_len[s]) as usize;
    pending + adds > shape.hidden_rows
}

fn append(
    work: &mut MtpWork,
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &Pages,
    slot: crate::ids::Slot,
    depth: u32,
) {
    let s = slot.index();
    if work.state.is_empty() {
        work.token_start.push(0);
        work.page_start.push(0);
    }
    let (from, to) = (requests.mtp_len[s], requests.kv_len[s] + 1);
    work.state.push(Requests::state(slot));
    work.position.push(from);
    work.depth.push(depth);
    work.p_min.push(0.0);
    work.token.extend_from_slice(&tokens.history(slot, to)[from as usize..]);
    work.token_start.push(work.token.len() as u32);
    work.page.extend_from_slice(pages.table(slot));
    work.page_start.push(work.page.len() as u32);
    requests.mtp_len[s] = to;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_cut_behind_an_end_and_before_the_unknown() {
        let ids = |v: &[u32]| v.iter().map(|t| TokenId(*t)).collect::<Vec<_>>();
        let cut = |v: &[u32]| usable_len(&ids(v), 100, |t| t.0 == 7);
        assert_eq!(cut(&[1, 2, 3]), 3);
        assert_eq!(cut(&[1, 7, 3]), 2);
        assert_eq!(cut(&[1, 100, 7]), 1);
        assert_eq!(cut(&[u32::MAX]), 0);
        assert_eq!(cut(&[]), 0);
    }
}
