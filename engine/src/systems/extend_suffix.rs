//! extend_suffix: a suffix tail behind each row's MTP prefix. The query is `history ++ prefix`; the window is never
//! indexed. What a constraint does not allow is cut.

use crate::clock::Clock;
use crate::ids::TokenId;
use crate::pieces::Pieces;
use crate::rules;
use crate::tables::constraints::Constraints;
use crate::tables::counters::Counters;
use crate::tables::plans::Plans;
use crate::tables::requests::Requests;
use crate::tables::suffix::{Suffix, continuation};
use crate::tables::survival::bucket;
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;

/// Appends tails. Cost: one seed look-up and at most `SUFFIX_CANDIDATES` compares a row.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn extend_suffix(
    requests: &Requests,
    tokens: &Tokens,
    suffix: &Suffix,
    plans: &Plans,
    windows: &mut Windows,
    constraints: &mut Constraints,
    counters: &mut Counters,
    pieces: &Pieces,
    draft: &mut Vec<TokenId>,
    clock: &dyn Clock,
) {
    for row in 0..windows.len() {
        let slot = windows.slot[row];
        let s = slot.index();
        if !requests.speculation[s].strategy.uses_suffix() || !plans.counted[s] {
            continue;
        }
        let counts = &mut counters.report[s];
        let stop = &requests.stop[s];
        let prefix = windows.drafts(row);
        let room = plans.width[s] as usize - prefix.len();
        let most = plans.tail[s].iter().copied().max().unwrap_or(0) as usize;
        // Behind an end token there is nothing to propose.
        if room.min(most) == 0 || prefix.last().is_some_and(|t| rules::ends(stop, pieces, *t)) {
            counts.suffix_lookups.skipped += 1;
            continue;
        }
        let start = clock.now_ns();
        let history = tokens.history(slot, requests.token_len[s]);
        let m = suffix.query(slot, history, prefix);
        draft.clear();
        if m.len > 0 {
            let most = room.min(plans.tail[s][bucket(m.len)] as usize);
            continuation(m, history, prefix, most, |t| rules::ends(stop, pieces, t), draft);
        }
        let ns = clock.now_ns() - start;
        let lookups = &mut counts.suffix_lookups;
        lookups.lookups += 1;
        lookups.lookup_ns += ns;
        lookups.lookup_ns_max = lookups.lookup_ns_max.max(ns);
        if draft.is_empty() {
            lookups.misses += 1;
            continue;
        }
        lookups.hits += 1;
        lookups.match_len_sum += u64::from(m.len);
        counts.suffix.proposed += draft.len() as u64;
        let usable = constraints.usable(slot, prefix, draft);
        counts.suffix.trimmed += (draft.len() - usable) as u64;
        counts.trimmed_constraint += (draft.len() - usable) as u64;
        draft.truncate(usable);
        windows.match_len[row] = if draft.is_empty() { 0 } else { m.len };
        for &token in draft.iter() {
            windows.push_suffix(row, token);
        }
    }
}
