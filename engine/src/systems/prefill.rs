//! prefill: packs prompt rows, the first segments of the trunk pass. Nothing is chosen at them: the last known token of
//! a row is its anchor and comes as a window.

use crate::ids::{PageId, StateSlot};
use crate::step::{Source, TrunkWork};
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
        close_segment(trunk, Requests::state(slot), from, n, pages.table(slot));
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
