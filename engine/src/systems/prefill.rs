//! prefill: packs prompt rows, the first segments of the trunk pass. Nothing is chosen at them: the last known token of
//! a row is its anchor and comes as a window. Where log-probabilities of the prompt are wanted, each row is asked for that of
//! the token behind it.

use crate::ids::{PageId, Slot, StateSlot};
use crate::step::{Filters, Source, TrunkWork};
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::requests::Requests;
use crate::tables::tokens::Tokens;

/// Starts the trunk work with this tick's prompt rows, oldest request first.
pub fn prefill(requests: &Requests, tokens: &Tokens, pages: &Pages, plans: &Plans, trunk: &mut TrunkWork) {
    assert!(trunk.state.is_empty(), "commit left the last pass behind");
    for &slot in &requests.live {
        let n = plans.prefill[slot.index()];
        if n == 0 {
            continue;
        }
        let from = requests.kv_len[slot.index()];
        let rows = &tokens.history(slot, from + n)[from as usize..];
        trunk.token.extend_from_slice(rows);
        trunk.source.resize(trunk.token.len(), Source::Prompt);
        if requests.scores(slot) {
            ask_scores(slot, from, n, requests, tokens, trunk);
        }
        close_segment(trunk, Requests::state(slot), from, n, pages.table(slot));
    }
}

/// Rules of the last `n` rows, at positions from `from` on.
fn ask_scores(slot: Slot, from: u32, n: u32, requests: &Requests, tokens: &Tokens, trunk: &mut TrunkWork) {
    let s = slot.index();
    let first = trunk.token.len() as u32 - n;
    let rules = &mut trunk.rules;
    let filter = rules.filters.len() as u32;
    rules.filters.push(Filters::GREEDY);
    if rules.edit_start.is_empty() {
        rules.edit_start.push(0);
    }
    let top_n = requests.logprobs[s].unwrap_or(0);
    for next in (from + 1).max(requests.scored_len[s])..(from + n + 1).min(requests.prompt_len[s]) {
        rules.row.push(first + next - 1 - from);
        rules.filter.push(filter);
        rules.draw.push(0);
        rules.edit_start.push(rules.edit.len() as u32);
        rules.mask.push(u32::MAX);
        rules.top_n.push(top_n);
        rules.known.push(tokens.get(slot, next));
    }
}

/// Ends a segment whose rows were just appended.
pub(super) fn close_segment(trunk: &mut TrunkWork, state: StateSlot, position: u32, committed: u32, pages: &[PageId]) {
    if trunk.state.is_empty() {
        trunk.row_start.push(0);
        trunk.page_start.push(0);
    }
    trunk.state.push(state);
    trunk.position.push(position);
    trunk.committed.push(committed);
    trunk.row_start.push(trunk.token.len() as u32);
    trunk.page.extend_from_slice(pages);
    trunk.page_start.push(trunk.page.len() as u32);
}
