//! keep: where a row stands at a place worth coming back to, the prefix cache keeps it, with its state where a sequence is
//! more than its pages. Runs before the pass of the tick, when nothing behind the cursor has been written.
//!
//! Such places, of sequences with a state: ends of messages, [`CHECKPOINT_TAIL`] tokens before the prompt's end, and
//! every [`CHECKPOINT_TOKENS`]; two stand at least [`CHECKPOINT_TOKENS_MIN`] apart where that loses less than it saves.
//! Elsewhere any place is as good: the prompt's end, and every [`CHECKPOINT_TOKENS`] of the answer.
//! Leaves true: a row that was kept here shares the pages before its cursor with the tree, and none behind it.

use crate::ids::Slot;
use crate::limits::{CHECKPOINT_TAIL, CHECKPOINT_TOKENS, CHECKPOINT_TOKENS_MIN};
use crate::pieces::{PieceFlags, Pieces};
use crate::step::SlotOp;
use crate::tables::counters::Counters;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::prefix::Prefix;
use crate::tables::requests::{Phase, Requests};
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;

/// Keeps the rows of this tick that are due.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn keep(
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &mut Pages,
    prefix: &mut Prefix,
    counters: &mut Counters,
    plans: &Plans,
    windows: &Windows,
    ops: &mut Vec<SlotOp>,
) {
    for i in 0..requests.live.len() {
        let slot = requests.live[i];
        if plans.keep[slot.index()] && plans.prefill[slot.index()] > 0 {
            keep_row(slot, false, requests, tokens, pages, prefix, counters, ops);
        }
    }
    for &slot in windows.slot.iter().filter(|slot| plans.keep[slot.index()]) {
        keep_row(slot, false, requests, tokens, pages, prefix, counters, ops);
    }
}

/// Keeps what a row has computed.
#[expect(clippy::too_many_arguments, reason = "a part of keep and retire, over their columns")]
pub(super) fn keep_row(
    slot: Slot,
    ends: bool,
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &mut Pages,
    prefix: &mut Prefix,
    counters: &mut Counters,
    ops: &mut Vec<SlotOp>,
) {
    let s = slot.index();
    let Some(namespace) = requests.cache[s] else { return };
    let kv_len = requests.kv_len[s];
    let known = tokens.history(slot, kv_len);
    let new = prefix.keep(namespace, known, slot, Requests::state(slot), ends, pages, ops);
    // What is new lies at the end, and the answer behind the prompt.
    let answered = kv_len.saturating_sub(requests.prompt_len[s]);
    counters.report[s].cache_written += u64::from(new.saturating_sub(answered));
    requests.kept_len[s] = kv_len;
}

/// Whether a row that runs in this tick is to be kept as it stands.
pub(super) fn is_due(slot: Slot, requests: &Requests, tokens: &Tokens, prefix: &Prefix, pieces: &Pieces) -> bool {
    let s = slot.index();
    let (kv_len, kept) = (requests.kv_len[s], requests.kept_len[s]);
    if !prefix.is_on() || requests.cache[s].is_none() || kv_len <= kept {
        return false;
    }
    let far = kv_len >= kept + CHECKPOINT_TOKENS as u32;
    match requests.phase[s] {
        Phase::Prefill => prefix.is_stateful() && next_place(slot, kv_len - 1, requests, tokens, pieces) == kv_len,
        Phase::Decode => far || (!prefix.is_stateful() && requests.completion_len(slot) == 0),
        Phase::Free | Phase::Preempted | Phase::Done => false,
    }
}

/// The prompt rows that a row may compute before it is to be kept.
pub(super) fn rows_to_place(slot: Slot, requests: &Requests, tokens: &Tokens, prefix: &Prefix, pieces: &Pieces) -> u32 {
    let s = slot.index();
    if !prefix.is_on() || !prefix.is_stateful() || requests.cache[s].is_none() {
        return u32::MAX;
    }
    next_place(slot, requests.kv_len[s], requests, tokens, pieces) - requests.kv_len[s]
}

/// The first place behind `from` at which the sequence of a row is worth keeping.
fn next_place(slot: Slot, from: u32, requests: &Requests, tokens: &Tokens, pieces: &Pieces) -> u32 {
    let s = slot.index();
    let kept = requests.kept_len[s];
    // The end is worth a place of its own even near another: it is where the next turn goes on.
    let tail = requests.prompt_len[s].saturating_sub(CHECKPOINT_TAIL as u32);
    let tail = (tail > from && tail >= kept + CHECKPOINT_TAIL as u32).then_some(tail);
    let far = (kept + CHECKPOINT_TOKENS as u32).max(from + 1);
    let first = (kept + CHECKPOINT_TOKENS_MIN as u32).max(from + 1);
    let last = far.min(tail.unwrap_or(requests.prompt_len[s]));
    let ends = |p: &u32| pieces.flags(tokens.get(slot, p - 1)).contains(PieceFlags::END);
    let message = (first..last).find(ends);
    [Some(far), tail, message].into_iter().flatten().min().expect("one of them is there")
}
