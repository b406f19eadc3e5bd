//! Acceptance: what the target says about a window, and how each draft is counted. Pure rules.
//!
//! A draft is accepted iff it equals the target's own choice at its row. Drafts are points, so this *is* rejection
//! sampling: accepted with the target's probability, and what replaces it is drawn from the rest.
//! Source: Leviathan, Kalman, Matias 2023, with q a point mass.

use crate::api::DraftCounts;
use crate::ids::TokenId;
use crate::step::Fault;

/// What the target says about one window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Leading drafts that equal the target's choices.
    pub accepted: u32,
    /// The target's choice after them, or why there is none.
    pub next: Result<TokenId, Fault>,
}

/// Walks a window: `choose(i)` is the target's choice at row i (row 0 is the anchor) and is asked for rows
/// `0..=accepted` only, in order.
pub fn walk(drafts: &[TokenId], mut choose: impl FnMut(usize) -> Result<TokenId, Fault>) -> Verdict {
    for (i, draft) in drafts.iter().enumerate() {
        match choose(i) {
            Ok(token) if token == *draft => {}
            next => return Verdict { accepted: i as u32, next },
        }
    }
    Verdict { accepted: drafts.len() as u32, next: choose(drafts.len()) }
}

/// What became of one draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Committed.
    Accepted,
    /// The one row where target and draft differ.
    Rejected,
    /// Behind a rejected row: not tested.
    Unreached,
    /// Behind the point where the walk ended the choice, whether it agreed or not.
    Discarded,
}

/// Fate of the draft at 0-based `position`, when `committed` drafts were committed and the walk `ended` inside the
/// drafts (end token, stop, limit or fault) or else went on to the target's own token.
pub fn fate(position: u32, committed: u32, ended: bool) -> Fate {
    if position < committed {
        Fate::Accepted
    } else if ended {
        Fate::Discarded
    } else if position == committed {
        Fate::Rejected
    } else {
        Fate::Unreached
    }
}

/// Counts one verified draft.
pub fn count(counts: &mut DraftCounts, fate: Fate) {
    counts.drafted += 1;
    match fate {
        Fate::Accepted => counts.accepted += 1,
        Fate::Rejected => counts.rejected += 1,
        Fate::Unreached => counts.unreached += 1,
        Fate::Discarded => counts.discarded += 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(v: &[u32]) -> Vec<TokenId> {
        v.iter().map(|&t| TokenId(t)).collect()
    }

    /// Walks `drafts` against a target that says `target`, and checks that no row past the verdict is asked.
    fn check(drafts: &[u32], target: &[u32], accepted: u32, next: u32) {
        let mut asked = 0;
        let verdict = walk(&ids(drafts), |i| {
            assert_eq!(i, asked, "rows are asked in order");
            asked += 1;
            Ok(TokenId(target[i]))
        });
        assert_eq!(verdict, Verdict { accepted, next: Ok(TokenId(next)) });
        assert_eq!(asked as u32, accepted + 1);
    }

    #[test]
    fn the_walk_stops_at_the_first_difference() {
        check(&[], &[5], 0, 5);
        check(&[1, 2, 3], &[1, 2, 3, 9], 3, 9);
        check(&[1, 2, 3], &[7, 2, 3, 9], 0, 7);
        check(&[1, 2, 3], &[1, 8, 3, 9], 1, 8);
    }

    #[test]
    fn a_fault_keeps_the_drafts_before_it() {
        let v = walk(&ids(&[1, 2]), |i| if i == 1 { Err(Fault::NonFinite) } else { Ok(TokenId(1)) });
        assert_eq!(v, Verdict { accepted: 1, next: Err(Fault::NonFinite) });
    }

    #[test]
    fn every_draft_has_one_fate() {
        let fates = |k, committed, ended| (0..k).map(|p| fate(p, committed, ended)).collect::<Vec<_>>();
        use Fate::*;
        assert_eq!(fates(3, 0, false), [Rejected, Unreached, Unreached]);
        assert_eq!(fates(3, 1, false), [Accepted, Rejected, Unreached]);
        assert_eq!(fates(3, 3, false), [Accepted; 3]);
        assert_eq!(fates(3, 2, true), [Accepted, Accepted, Discarded]);
        let mut counts = DraftCounts::default();
        for f in fates(3, 1, false).into_iter().chain(fates(3, 2, true)) {
            count(&mut counts, f);
        }
        assert_eq!(counts.drafted, counts.accepted + counts.rejected + counts.unreached + counts.discarded);
        assert_eq!((counts.accepted, counts.rejected, counts.unreached, counts.discarded), (3, 1, 1, 1));
    }
}
