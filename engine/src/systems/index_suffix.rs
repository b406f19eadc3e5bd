//! index_suffix: the suffix index catches up with what was committed. Leaves true: it has seen the whole history of
//! every running row whose strategy asks it, and nothing else.

use crate::clock::Clock;
use crate::tables::counters::Counters;
use crate::tables::requests::Requests;
use crate::tables::suffix::Suffix;
use crate::tables::tokens::Tokens;

/// Indexes committed tokens. Cost: two stores a token, and a search where the match breaks.
pub fn index_suffix(
    requests: &Requests,
    tokens: &Tokens,
    suffix: &mut Suffix,
    counters: &mut Counters,
    clock: &dyn Clock,
) {
    for &slot in &requests.live {
        let s = slot.index();
        let len = requests.token_len[s];
        if !requests.runs(slot) || !requests.speculation[s].strategy.uses_suffix() || suffix.indexed_len(slot) == len {
            continue;
        }
        let start = clock.now_ns();
        suffix.catch_up(slot, tokens.history(slot, len));
        counters.report[s].suffix_lookups.extend_ns += clock.now_ns() - start;
    }
}
