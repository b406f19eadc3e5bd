//! The index against a naive scan over the same candidates, and the behaviour that users know.

use proptest::prelude::*;

use super::*;

fn ids(v: &[u32]) -> Vec<TokenId> {
    v.iter().map(|&t| TokenId(t)).collect()
}

fn text(s: &str) -> Vec<TokenId> {
    s.bytes().map(|b| TokenId(u32::from(b))).collect()
}

/// The newest candidates are those whose seed has the query's chain; the longest common end wins, then the newest.
fn scan(index: &Suffix, history: &[TokenId], prefix: &[TokenId], min: usize, max: usize) -> Match {
    let query: Vec<TokenId> = history.iter().chain(prefix).copied().collect();
    let seed = min.min(SEED_MAX);
    if query.len() < seed || history.len() < 2 {
        return Match::default();
    }
    let wanted = index.chain(query[query.len() - seed..].iter().copied());
    let mut best = Match::default();
    (seed - 1..history.len() - 1)
        .rev()
        .filter(|&e| index.chain(history[e + 1 - seed..=e].iter().copied()) == wanted)
        .take(SUFFIX_CANDIDATES)
        .for_each(|e| {
            let len =
                (0..=e).take(max).take_while(|&i| i < query.len() && history[e - i] == query[query.len() - 1 - i]);
            let len = len.count() as u32;
            if len > best.len {
                best = Match { end: e as u32, len };
            }
        });
    if (best.len as usize) < min { Match::default() } else { best }
}

/// The match state by its definition.
fn state(index: &Suffix, history: &[TokenId], min: usize, max: usize) -> Match {
    let mut m = Match::default();
    for n in 1..=history.len() {
        m = if m.len > 0 && history[m.end as usize + 1] == history[n - 1] {
            Match { end: m.end + 1, len: m.len + 1 }
        } else {
            scan(index, &history[..n], &[], min, max)
        };
    }
    m
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn index_equals_a_naive_scan(
        history in prop::collection::vec(0u32..4, 0..200),
        prefix in prop::collection::vec(0u32..4, 0..5),
        min in 1u8..11,
        extra in 0u8..20,
        cuts in prop::collection::vec(0usize..200, 0..6),
    ) {
        let (history, prefix, max) = (ids(&history), ids(&prefix), min + extra);
        let mut index = Suffix::new(2, 256);
        index.reset(Slot(1), min, max);
        // However many tokens a tick commits, the state is that of the history.
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= history.len()).collect();
        cuts.sort_unstable();
        for n in cuts.into_iter().chain([history.len()]) {
            index.catch_up(Slot(1), &history[..n]);
            let want = state(&index, &history[..n], min.into(), max.into());
            prop_assert_eq!(index.matched(Slot(1)), want);
        }
        let m = index.query(Slot(1), &history, &prefix);
        let carried = index.matched(Slot(1));
        let whole: Vec<TokenId> = history.iter().chain(&prefix).copied().collect();
        let follows = carried.len > 0 && (0..prefix.len()).all(|i| whole[carried.end as usize + 1 + i] == prefix[i]);
        if follows {
            let p = prefix.len() as u32;
            prop_assert_eq!(m, Match { end: carried.end + p, len: carried.len + p });
        } else if !prefix.is_empty() {
            prop_assert_eq!(m, scan(&index, &history, &prefix, min.into(), max.into()));
        }
        if m.len > 0 {
            // The match is real, and its continuation reproduces itself.
            for i in 0..m.len.min(u32::from(max)) as usize {
                prop_assert_eq!(whole[m.end as usize - i], whole[whole.len() - 1 - i]);
            }
        }
        prop_assert_eq!(index.matched(Slot(0)), Match::default());
    }
}

fn propose(history: &str, prefix: &str, min: u8, most: usize) -> String {
    let (h, p) = (text(history), text(prefix));
    let mut index = Suffix::new(1, 512);
    index.reset(Slot(0), min, 64);
    index.catch_up(Slot(0), &h);
    let m = index.query(Slot(0), &h, &p);
    let mut draft = Vec::new();
    if m.len > 0 {
        continuation(m, &h, &p, most, |t| t.0 == u32::from(b'$'), &mut draft);
    }
    draft.iter().map(|t| t.0 as u8 as char).collect()
}

#[test]
fn behaviour() {
    assert_eq!(propose("abcXYZ..abc", "", 3, 3), "XYZ");
    assert_eq!(propose("1abcX 2abcY 1abc", "", 3, 1), "X", "the longest beats the newest");
    assert_eq!(propose("abcX abcY abc", "", 3, 1), "Y", "equal: the newest");
    assert_eq!(propose("abX ab", "", 3, 4), "", "below the least match");
    assert_eq!(propose("abababab", "", 3, 6), "ababab", "periodic text copies itself");
    assert_eq!(propose("abcdefgh abc", "de", 3, 3), "fgh", "the prefix is part of the query");
    assert_eq!(propose("abcdefgh xyzw abc", "xyz", 3, 1), "w", "a prefix that leaves the match is searched");
    assert_eq!(propose("abc", "abc", 3, 4), "", "a draft is no history");
    assert_eq!(propose("abcd$efg abc", "", 3, 8), "d$", "nothing behind an end token");
    assert_eq!(propose("", "", 3, 8), "");
    assert_eq!(propose("a", "", 1, 8), "");
    assert_eq!(propose("aa", "", 1, 3), "aaa");
}

#[test]
fn more_seeds_than_candidates_are_found_among_the_newest() {
    let mut history = String::new();
    for i in 0..40u8 {
        history.push_str("abc");
        history.push((b'!' + i) as char);
    }
    history.push_str("abc");
    assert_eq!(propose(&history, "", 3, 1), "H");
}

#[test]
fn a_row_is_empty_for_its_next_request_and_rows_are_apart() {
    let mut index = Suffix::new(2, 64);
    for slot in [Slot(0), Slot(1)] {
        index.reset(slot, 3, 64);
    }
    index.catch_up(Slot(0), &text("secret words secret"));
    assert!(index.matched(Slot(0)).len >= 6);
    index.reset(Slot(0), 3, 64);
    let h = text("my secret");
    index.catch_up(Slot(0), &h);
    assert_eq!(index.matched(Slot(0)), Match::default());
    index.catch_up(Slot(1), &h);
    assert_eq!(index.matched(Slot(1)), Match::default());
}

#[test]
fn the_capacity_edge_is_indexed() {
    let h: Vec<TokenId> = (0..64).map(|i| TokenId(i % 5)).collect();
    let mut index = Suffix::new(1, 64);
    index.reset(Slot(0), 3, 64);
    index.catch_up(Slot(0), &h);
    assert_eq!(index.matched(Slot(0)).end, 58);
}

#[test]
fn a_copy_goes_its_own_way() {
    let mut index = Suffix::new(2, 64);
    index.reset(Slot(0), 3, 64);
    let h = text("abcX abc");
    index.catch_up(Slot(0), &h);
    index.copy(Slot(0), Slot(1));
    assert_eq!(index.matched(Slot(1)), index.matched(Slot(0)));
    let longer = text("abcX abcX");
    index.catch_up(Slot(1), &longer);
    assert_eq!(index.matched(Slot(1)).len, index.matched(Slot(0)).len + 1);
    assert_eq!(index.indexed_len(Slot(0)), 8);
}
