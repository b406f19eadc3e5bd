//! verify: one trunk pass over prompt rows and every window row. Each window row carries the rule of its own history,
//! drafts included, so the target chooses at it what it would choose in plain decoding.

use crate::clock::Clock;
use crate::cost::Cost;
use crate::ids::TokenId;
use crate::pieces::Pieces;
use crate::rules::{self, History};
use crate::step::{Executor, NO_LOGPROBS, Step, StepResult};
use crate::systems::prefill::close_segment;
use crate::tables::constraints::{Constraints, leaves_only};
use crate::tables::counters::Counters;
use crate::tables::pages::Pages;
use crate::tables::requests::Requests;
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;

/// Appends the windows to the trunk work and runs it; whether there was anything to run.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn verify(
    requests: &Requests,
    tokens: &Tokens,
    pages: &Pages,
    windows: &Windows,
    constraints: &mut Constraints,
    counters: &mut Counters,
    history: &mut History,
    cost: &mut Cost,
    pieces: &Pieces,
    clock: &dyn Clock,
    executor: &mut dyn Executor,
    step: &mut Step,
    result: &mut StepResult,
) -> bool {
    let prompt_rows = step.trunk.token.len();
    let vocab = executor.shape().vocab;
    for row in 0..windows.len() {
        let slot = windows.slot[row];
        let rules = &mut step.trunk.rules;
        let start = constraints.is_on(slot).then(|| clock.now_ns());
        constraints.masks(slot, windows.drafts(row), &mut rules.mask_word, &mut rules.mask);
        if let Some(start) = start {
            counters.report[slot.index()].mask_ns += clock.now_ns() - start;
        }
        append(requests, tokens, pages, windows, row, history, pieces, vocab, step);
    }
    if step.trunk.token.is_empty() {
        result.clear();
        return false;
    }
    executor.run(step, result);
    step.ops.clear();
    let window_rows = step.trunk.token.len() - prompt_rows;
    assert_eq!(result.accepted.len(), step.trunk.state.len(), "one verdict a segment");
    if prompt_rows == 0 {
        cost.observe_trunk(window_rows, result.times.trunk_ns + result.times.choose_ns);
    }
    tracing::debug!(prompt_rows, window_rows, us = result.times.trunk_ns / 1000, "trunk pass");
    true
}

#[expect(clippy::too_many_arguments, reason = "a part of verify, over its columns")]
fn append(
    requests: &Requests,
    tokens: &Tokens,
    pages: &Pages,
    windows: &Windows,
    row: usize,
    history: &mut History,
    pieces: &Pieces,
    vocab: usize,
    step: &mut Step,
) {
    let slot = windows.slot[row];
    let s = slot.index();
    let sampling = &requests.sampling[s];
    let window = windows.tokens(row);
    let known = tokens.history(slot, requests.token_len[s]);
    let first_row = step.trunk.token.len();
    let trunk = &mut step.trunk;
    let rules = &mut trunk.rules;
    let filter = rules.filters.len() as u32;
    rules.filters.push(rules::filters(sampling));
    if rules.edit_start.is_empty() {
        rules.edit_start.push(0);
    }
    history.start(sampling, known, requests.prompt_len[s] as usize);
    for (i, &token) in window.iter().enumerate() {
        if i > 0 {
            // Position of this draft, and the token that the look-back loses for it.
            let at = known.len() + i - 1;
            let leaves = at.checked_sub(history.repeat_last_n());
            let leaves = leaves.map(|p| if p < known.len() { known[p] } else { window[p - known.len() + 1] });
            history.advance(sampling, token, leaves);
        }
        let draw = requests.completion_len(slot) + i as u32;
        rules.row.push((first_row + i) as u32);
        rules.filter.push(filter);
        rules.draw.push(draw);
        let banned = rules::banned(&requests.stop[s], pieces, draw);
        // A constraint that lets nothing but an end follow has the last word on when that is.
        let mask = rules.mask_of(rules.row.len() - 1, vocab);
        let only = mask.is_some_and(|mask| leaves_only(mask, banned.clone()));
        history.edits(sampling, banned.filter(|_| !only), &mut rules.edit);
        rules.edit_start.push(rules.edit.len() as u32);
        rules.top_n.push(requests.logprobs[s].unwrap_or(NO_LOGPROBS));
        rules.known.push(TokenId::NONE);
        trunk.token.push(token);
        trunk.source.push(windows.source(row, i));
    }
    close_segment(trunk, Requests::state(slot), requests.kv_len[s], 1, pages.table(slot));
}
