//! plan: who does what this tick. Shares out the rows of the trunk pass and the pages, and asks the window policy.
//!
//! Rows: every anchor first, then at least [`PREFILL_ROWS_MIN`] prompt rows while a prompt waits, then drafts, then
//! more prompt rows. Pages the same way; an anchor or a prompt that finds none preempts the youngest row behind it
//! (a stalled one first), drafts only take what is free. What the prefix cache alone holds is as good as free. The oldest running row can thus take every page, and the pool
//! holds one whole context: it always gets on.
//!
//! Leaves true: a window is open for every decoding row that runs, and everything planned has its pages.

use crate::cost::Cost;
use crate::ids::Slot;
use crate::limits::{Limits, PREFILL_ROWS_MIN};
use crate::pieces::Pieces;
use crate::policy::{self, Batch};
use crate::step::{Shape, SlotOp};
use crate::systems::keep;
use crate::tables::counters::Counters;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::prefix::Prefix;
use crate::tables::requests::{Phase, Requests};
use crate::tables::suffix::Suffix;
use crate::tables::survival::{Survival, bucket};
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;

/// Plans the tick.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn plan(
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &mut Pages,
    prefix: &mut Prefix,
    suffix: &Suffix,
    survival: &mut Survival,
    counters: &mut Counters,
    plans: &mut Plans,
    windows: &mut Windows,
    ops: &mut Vec<SlotOp>,
    cost: &Cost,
    pieces: &Pieces,
    limits: &Limits,
    shape: &Shape,
    now_ns: u64,
) {
    plans.clear();
    windows.clear();
    track_stalls(requests, counters, now_ns);

    let chunk = |requests: &Requests, prefix: &Prefix, slot: Slot| {
        let s = slot.index();
        let wanted = requests.token_len[s] - 1 - requests.kv_len[s];
        let wanted = wanted.min(keep::rows_to_place(slot, requests, tokens, prefix, pieces)) as usize;
        let ring = if shape.mtp { shape.hidden_rows } else { usize::MAX };
        wanted.min(limits.prefill_chunk).min(ring)
    };

    // Anchors, and the least of the prompts. Oldest first: whoever is preempted has nothing planned yet.
    plans.order.extend_from_slice(&requests.live);
    let anchors =
        plans.order.iter().filter(|s| requests.phase[s.index()] == Phase::Decode && requests.runs(**s)).count();
    assert!(anchors < limits.step_rows, "limits keep room for every anchor");
    let mut least = PREFILL_ROWS_MIN.min(limits.step_rows - anchors);
    let mut rows = limits.step_rows;
    for i in 0..plans.order.len() {
        let slot = plans.order[i];
        // Asked for each: an older row may just have preempted this one.
        if !requests.runs(slot) {
            continue;
        }
        let kv_len = requests.kv_len[slot.index()];
        plans.keep[slot.index()] = keep::is_due(slot, requests, tokens, prefix, pieces);
        if requests.phase[slot.index()] == Phase::Prefill {
            let n = chunk(requests, prefix, slot).min(least);
            let given = claim_prompt(slot, 0, n, true, requests, pages, prefix, counters, ops, shape);
            plans.prefill[slot.index()] = given;
            least -= given as usize;
            rows -= given as usize;
        } else if claim(slot, kv_len + 1, true, requests, pages, prefix, counters, ops, shape) {
            windows.open(slot, tokens.get(slot, kv_len));
            rows -= 1;
        } else {
            preempt(slot, requests, pages, counters);
        }
    }

    // Drafts.
    let mut batch = Batch { windows: windows.len(), rows: limits.step_rows - rows, expected: 0.0, depth: 0 };
    for row in 0..windows.len() {
        let slot = windows.slot[row];
        let s = slot.index();
        let completed = requests.completion_len(slot);
        plans.counted[s] = completed > 0;
        if completed == 0 {
            continue;
        }
        let spec = &requests.speculation[s];
        let token_len = requests.token_len[s];
        let room = (requests.max_tokens[s] - completed - 1)
            .min(limits.context as u32 - token_len - 1)
            .min(u32::from(spec.window_max))
            .min(limits.window_max as u32)
            .min(if shape.mtp { shape.hidden_rows as u32 - 1 } else { u32::MAX })
            .min(rows as u32);
        let m = suffix.matched(slot);
        let matched = (spec.strategy.uses_suffix() && m.len > 0).then(|| bucket(m.len));
        let possible = matched.is_some() || spec.strategy.uses_mtp();
        let retry = survival.down[s] && possible && token_len >= survival.retry_at[s];
        let first_window = counters.report[s].windows == 0;
        let (decision, gain) = policy::decide(spec, survival, slot, cost, &batch, matched, room, first_window, retry);
        if retry || (decision.turned_down && !survival.down[s]) {
            survival.retry_at[s] = token_len + policy::RETRY_TOKENS;
        }
        if decision.turned_down {
            let report = &mut counters.report[s];
            let after_step = report.steps;
            report.turned_down.get_or_insert(crate::api::TurnedDown { after_step, reason: "cost" });
        }
        // A retry does not settle the question: the next plan does, with what it taught.
        if !retry {
            survival.down[s] = decision.turned_down || (survival.down[s] && decision.width() == 0);
        }
        plans.mtp_depth[s] = decision.mtp;
        plans.tail[s] = decision.tail;
        plans.width[s] = decision.width().min(room);
        // Free pages only, and never another row's.
        let kv_len = requests.kv_len[s];
        let owned_or_free = (pages.blocks(slot) + pages.available()) * crate::limits::PAGE_TOKENS;
        let width = plans.width[s].min(u32::try_from(owned_or_free).unwrap_or(u32::MAX).saturating_sub(kv_len + 1));
        plans.narrow(slot, width);
        let width = plans.width[s];
        let reserved = reserve(slot, kv_len, kv_len + 1 + width, pages, prefix, ops);
        assert!(reserved, "{slot}: free pages were counted");
        rows -= width as usize;
        batch.rows += width as usize;
        batch.expected += gain;
        batch.depth = batch.depth.max(plans.mtp_depth[s]);
    }

    // The rest of the prompts, from free pages.
    for i in 0..plans.order.len() {
        let slot = plans.order[i];
        if requests.phase[slot.index()] != Phase::Prefill || rows == 0 {
            continue;
        }
        let given = plans.prefill[slot.index()];
        let n = chunk(requests, prefix, slot).min(given as usize + rows);
        let all = claim_prompt(slot, given, n, false, requests, pages, prefix, counters, ops, shape);
        plans.prefill[slot.index()] = all;
        rows -= (all - given) as usize;
    }
}

/// Makes the pages of `given..n` prompt rows past the cursor the row's own, or of as many of them as can be had.
/// Returns the rows that have pages.
#[expect(clippy::too_many_arguments, reason = "a part of plan, over its columns")]
fn claim_prompt(
    slot: Slot,
    given: u32,
    n: usize,
    force: bool,
    requests: &mut Requests,
    pages: &mut Pages,
    prefix: &mut Prefix,
    counters: &mut Counters,
    ops: &mut Vec<SlotOp>,
    shape: &Shape,
) -> u32 {
    let kv_len = requests.kv_len[slot.index()];
    let wanted = n as u32;
    if wanted <= given {
        return given;
    }
    if claim(slot, kv_len + wanted, force, requests, pages, prefix, counters, ops, shape) {
        return wanted;
    }
    // Fewer rows: what the row owns and what is free.
    let from = write_from(requests, slot, shape);
    let copies = pages.needed(slot, from, kv_len);
    let reach = (pages.blocks(slot) + pages.available().saturating_sub(copies)) * crate::limits::PAGE_TOKENS;
    let fewer = u32::try_from(reach).unwrap_or(u32::MAX).saturating_sub(kv_len).min(wanted);
    if fewer > given && reserve(slot, from, kv_len + fewer, pages, prefix, ops) { fewer } else { given }
}

/// First position that a pass over this row may write: the cursor, or the MTP cache's where that is behind.
fn write_from(requests: &Requests, slot: Slot, shape: &Shape) -> u32 {
    let s = slot.index();
    if shape.mtp { requests.mtp_len[s].min(requests.kv_len[s]) } else { requests.kv_len[s] }
}

/// As [`Pages::reserve`], after room was made in the prefix cache.
fn reserve(
    slot: Slot,
    write_from: u32,
    positions: u32,
    pages: &mut Pages,
    prefix: &mut Prefix,
    ops: &mut Vec<SlotOp>,
) -> bool {
    prefix.make_room(pages.needed(slot, write_from, positions), pages, ops);
    pages.reserve(slot, write_from, positions, ops)
}

/// Reserves a row's pages up to `positions`; with `force` younger or stalled rows are preempted until they suffice.
#[expect(clippy::too_many_arguments, reason = "a part of plan, over its columns")]
fn claim(
    slot: Slot,
    positions: u32,
    force: bool,
    requests: &mut Requests,
    pages: &mut Pages,
    prefix: &mut Prefix,
    counters: &mut Counters,
    ops: &mut Vec<SlotOp>,
    shape: &Shape,
) -> bool {
    loop {
        if reserve(slot, write_from(requests, slot, shape), positions, pages, prefix, ops) {
            return true;
        }
        let victim = if force { victim(slot, requests, pages) } else { None };
        let Some(victim) = victim else { return false };
        preempt(victim, requests, pages, counters);
    }
}

/// Who loses its pages to `slot`: a stalled row if there is one, else the youngest row behind it.
fn victim(slot: Slot, requests: &Requests, pages: &Pages) -> Option<Slot> {
    let holds = |s: &Slot| *s != slot && pages.blocks(*s) > 0;
    let stalled = |s: &Slot| requests.phase[s.index()] == Phase::Decode && requests.stalled(*s);
    let young_first = || requests.live.iter().rev().copied();
    young_first()
        .find(|s| holds(s) && stalled(s))
        .or_else(|| young_first().take_while(|s| *s != slot).find(|s| holds(s)))
}

/// Takes a row's pages; its tokens, output state, index and counters stay.
fn preempt(slot: Slot, requests: &mut Requests, pages: &mut Pages, counters: &mut Counters) {
    let s = slot.index();
    tracing::info!(request = %requests.id(slot), pages = pages.blocks(slot), kv_len = requests.kv_len[s], "preempted");
    pages.truncate(slot, 0);
    requests.phase[s] = Phase::Preempted;
    requests.kv_len[s] = 0;
    requests.mtp_len[s] = 0;
    counters.report[s].preempted += 1;
    counters.preempted += 1;
}

fn track_stalls(requests: &mut Requests, counters: &mut Counters, now_ns: u64) {
    for i in 0..requests.live.len() {
        let slot = requests.live[i];
        let s = slot.index();
        let since = requests.stalled_ns[s];
        match (requests.stalled(slot), since) {
            (true, 0) => requests.stalled_ns[s] = now_ns.max(1),
            (false, since) if since > 0 => {
                counters.report[s].stall_ns += now_ns.saturating_sub(since);
                requests.stalled_ns[s] = 0;
            }
            _ => {}
        }
    }
}
