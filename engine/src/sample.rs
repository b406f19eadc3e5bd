//! Choosing a token from a row of logits: one rule for plain decoding, verification and every Executor.
//!
//! The order is fixed: mask and bans, bias and penalties ([`LogitEdit`]), temperature, top_k, typical_p, top_p,
//! min_p, draw.
//! A draw is a pure function of (seed, choice, completion position); sums run in id order or in rank order, never in
//! an order that depends on how the work was cut; the exponential is this module's own, so that the same logits give
//! the same token on every machine.

use std::cmp::Ordering;

use crate::ids::TokenId;
use crate::step::{Fault, Filters, LogitEdit};

/// Weights below `exp(-CUT)` of the largest are nothing: a vocabulary of them is far below the generator's step.
const CUT: f64 = 64.0;
/// Ranked first when a set of the likeliest or most typical is looked for; four times as many in every further round.
const NUCLEUS_FIRST: usize = 64;

/// Buffers of [`choose`], reused between rows.
#[derive(Debug, Default)]
pub struct Scratch {
    id: Vec<u32>,
    weight: Vec<f64>,
    rank: Vec<u32>,
    saved: Vec<f32>,
}

impl Scratch {
    /// Bytes after a draw without filters from `vocab` tokens, all of them edited.
    pub fn bytes_for(vocab: usize) -> usize {
        vocab * (2 * size_of::<u32>() + size_of::<f64>() + size_of::<f32>())
    }
}

/// Bijective 64-bit mix. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", variant 13.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The random number of one completion position: 64 bits keyed by (seed, choice, position).
pub fn random_bits(seed: u64, choice: u32, position: u32) -> u64 {
    let key = (u64::from(choice) << 32) | u64::from(position);
    let h = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    mix(mix(h ^ key).wrapping_add(h.rotate_left(32)))
}

/// [`random_bits`] as a number in `0.0..1.0` with 53 bits.
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    (random_bits(seed, choice, position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// e^x for `x <= 0`, 0 below -700. Plain IEEE additions and multiplications in one order: the same bits everywhere.
///
/// Source: range reduction x = n ln 2 + r, Taylor polynomial of degree 13 in r (error below 1e-17 for |r| <= ln 2 / 2).
pub fn exp(x: f64) -> f64 {
    debug_assert!(x <= 0.0);
    if x < -700.0 {
        return 0.0;
    }
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    const INVERSE_FACTORIAL: [f64; 14] = [
        1.0,
        1.0,
        1.0 / 2.0,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5040.0,
        1.0 / 40320.0,
        1.0 / 362_880.0,
        1.0 / 3_628_800.0,
        1.0 / 39_916_800.0,
        1.0 / 479_001_600.0,
        1.0 / 6_227_020_800.0,
    ];
    let n = (x * std::f64::consts::LOG2_E - 0.5).ceil();
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = INVERSE_FACTORIAL[13];
    for c in INVERSE_FACTORIAL[..13].iter().rev() {
        p = p * r + c;
    }
    p * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[inline]
fn allowed(mask: Option<&[u32]>, id: usize) -> bool {
    mask.is_none_or(|m| m[id / 32] >> (id % 32) & 1 == 1)
}

/// Index of the largest finite logit that the mask allows; the lowest id wins ties. `None` if there is none.
pub fn pick(logits: &[f32], mask: Option<&[u32]>) -> Option<TokenId> {
    let mut best = f32::NEG_INFINITY;
    let mut at = None;
    for (id, &l) in logits.iter().enumerate() {
        if l > best && l.is_finite() && allowed(mask, id) {
            best = l;
            at = Some(TokenId(id as u32));
        }
    }
    at
}

/// Higher logit first, then lower id: a strict order over finite logits.
fn rank_order(logits: &[f32], a: u32, b: u32) -> Ordering {
    let (x, y) = (logits[a as usize], logits[b as usize]);
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Chooses the token of one row. `logits`: `[vocab]` raw; they are edited for the choice and restored before the
/// return, so that log-probabilities can be read afterwards. `draw` is the completion position, `mask` has
/// `vocab.div_ceil(32)` words. Edits of ids past the vocabulary are nothing.
///
/// # Errors
/// [`Fault::NonFinite`] when no logit is finite, [`Fault::Barred`] when mask and edits leave no finite one.
///
/// # Panics
/// If the mask is too short.
pub fn choose(
    logits: &mut [f32],
    scratch: &mut Scratch,
    filters: &Filters,
    draw: u32,
    edits: &[LogitEdit],
    mask: Option<&[u32]>,
) -> Result<TokenId, Fault> {
    if let Some(m) = mask {
        assert!(m.len() >= logits.len().div_ceil(32), "mask of {} words for {} tokens", m.len(), logits.len());
    }
    scratch.saved.clear();
    for e in edits {
        let l = logits.get_mut(e.token.index());
        scratch.saved.push(l.as_deref().copied().unwrap_or(0.0));
        if let Some(l) = l {
            *l = if *l > 0.0 { *l / e.repeat } else { *l * e.repeat } + e.add;
        }
    }
    let chosen =
        if filters.temperature <= 0.0 { pick(logits, mask) } else { sample(logits, scratch, filters, draw, mask) };
    for (e, &old) in edits.iter().zip(&scratch.saved).rev() {
        if let Some(l) = logits.get_mut(e.token.index()) {
            *l = old;
        }
    }
    chosen.ok_or_else(|| if logits.iter().any(|l| l.is_finite()) { Fault::Barred } else { Fault::NonFinite })
}

fn sample(
    logits: &[f32],
    scratch: &mut Scratch,
    filters: &Filters,
    draw: u32,
    mask: Option<&[u32]>,
) -> Option<TokenId> {
    let Scratch { id, weight, rank, .. } = scratch;
    id.clear();
    id.extend((0..logits.len()).filter(|&i| logits[i].is_finite() && allowed(mask, i)).map(|i| i as u32));
    let top_k = filters.top_k as usize;
    if top_k > 0 && top_k < id.len() {
        id.select_nth_unstable_by(top_k - 1, |&a, &b| rank_order(logits, a, b));
        id.truncate(top_k);
        id.sort_unstable();
    }
    let max = id.iter().map(|&i| logits[i as usize]).fold(f32::NEG_INFINITY, f32::max);
    // A temperature so small that its inverse is infinite is argmax, as is its limit.
    let scale = 1.0 / f64::from(filters.temperature);
    if !scale.is_finite() {
        return pick(logits, mask);
    }
    let x_of = |i: u32| (f64::from(logits[i as usize]) - f64::from(max)) * scale;
    let weight_of = |i: u32| if x_of(i) < -CUT { 0.0 } else { exp(x_of(i)) };
    weight.clear();
    weight.extend(id.iter().map(|&i| weight_of(i)));

    if filters.typical_p < 1.0 {
        // Surprise is `ln(total) - x`, and the entropy `ln(total) - mean`: their distance needs no logarithm.
        let total: f64 = weight.iter().sum();
        let weighted = |(&i, &w): (&u32, &f64)| if w > 0.0 { w * x_of(i) } else { 0.0 };
        let mean = id.iter().zip(weight.iter()).map(weighted).sum::<f64>() / total;
        let order = |a: u32, b: u32| {
            let (x, y) = ((x_of(a) - mean).abs(), (x_of(b) - mean).abs());
            x.partial_cmp(&y).unwrap_or(Ordering::Equal).then(rank_order(logits, a, b))
        };
        let last = last_of_smallest(id, rank, f64::from(filters.typical_p) * total, weight_of, order)?;
        keep(id, weight, |i, _| order(i, last) != Ordering::Greater);
    }
    if filters.top_p < 1.0 {
        let total: f64 = weight.iter().sum();
        let order = |a: u32, b: u32| rank_order(logits, a, b);
        let last = last_of_smallest(id, rank, f64::from(filters.top_p) * total, weight_of, order)?;
        keep(id, weight, |i, _| order(i, last) != Ordering::Greater);
    }
    if filters.min_p > 0.0 {
        // The largest weight is exp(0) = 1 and always stays.
        let least = f64::from(filters.min_p.min(1.0));
        keep(id, weight, |_, w| w >= least);
    }

    let total: f64 = weight.iter().sum();
    let target = uniform(filters.seed, filters.choice, draw) * total;
    let mut sum = 0.0;
    let mut chosen = None;
    for (&i, &w) in id.iter().zip(weight.iter()) {
        if w > 0.0 {
            sum += w;
            chosen = Some(TokenId(i));
            if sum > target {
                break;
            }
        }
    }
    chosen
}

/// The last id of the smallest set, taken from the first on in `order`, whose weights reach `need`.
fn last_of_smallest(
    id: &[u32],
    rank: &mut Vec<u32>,
    need: f64,
    weight_of: impl Fn(u32) -> f64,
    order: impl Fn(u32, u32) -> Ordering,
) -> Option<u32> {
    rank.clear();
    rank.extend_from_slice(id);
    let mut rest = rank.as_mut_slice();
    let (mut sum, mut count, mut last) = (0.0, NUCLEUS_FIRST, None);
    while !rest.is_empty() {
        if count < rest.len() {
            rest.select_nth_unstable_by(count, |&a, &b| order(a, b));
        }
        let (head, tail) = rest.split_at_mut(count.min(rest.len()));
        head.sort_unstable_by(|&a, &b| order(a, b));
        for &i in head.iter() {
            sum += weight_of(i);
            last = Some(i);
            if sum >= need {
                return last;
            }
        }
        rest = tail;
        count *= 4;
    }
    last
}

fn keep(id: &mut Vec<u32>, weight: &mut Vec<f64>, mut stays: impl FnMut(u32, f64) -> bool) {
    let mut n = 0;
    for r in 0..id.len() {
        if stays(id[r], weight[r]) {
            id[n] = id[r];
            weight[n] = weight[r];
            n += 1;
        }
    }
    id.truncate(n);
    weight.truncate(n);
}

/// `ln(sum(exp(l)))` over the finite logits; `-inf` if there are none.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().filter(|l| l.is_finite()).fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return f64::NEG_INFINITY;
    }
    let max = f64::from(max);
    let sum: f64 = logits.iter().filter(|l| l.is_finite()).map(|&l| exp(f64::from(l) - max)).sum();
    max + sum.ln()
}

/// Appends the `n` best finite tokens with their log-probabilities, best first, and returns that of `chosen`.
/// `logits` are raw: no edit, no filter.
///
/// # Panics
/// If `chosen` is outside the row.
pub fn log_probs(
    logits: &[f32],
    scratch: &mut Scratch,
    chosen: TokenId,
    n: usize,
    top: &mut Vec<(TokenId, f32)>,
) -> f32 {
    let lse = log_sum_exp(logits);
    let rank = &mut scratch.rank;
    rank.clear();
    if n > 0 {
        rank.extend((0..logits.len() as u32).filter(|&i| logits[i as usize].is_finite()));
        if n < rank.len() {
            rank.select_nth_unstable_by(n - 1, |&a, &b| rank_order(logits, a, b));
            rank.truncate(n);
        }
        rank.sort_unstable_by(|&a, &b| rank_order(logits, a, b));
        top.extend(rank.iter().map(|&i| (TokenId(i), (f64::from(logits[i as usize]) - lse) as f32)));
    }
    (f64::from(logits[chosen.index()]) - lse) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(temperature: f32) -> Filters {
        Filters { temperature, ..Filters::GREEDY }
    }

    fn draws(logits: &[f32], f: Filters, n: u32) -> Vec<u64> {
        let mut scratch = Scratch::default();
        let mut l = logits.to_vec();
        let mut seen = vec![0u64; logits.len()];
        for draw in 0..n {
            seen[choose(&mut l, &mut scratch, &f, draw, &[], None).unwrap().index()] += 1;
        }
        assert_eq!(l, logits, "the row is left as it came");
        seen
    }

    #[test]
    fn exp_agrees_with_the_standard_one() {
        let mut x = 0.0f64;
        while x > -699.0 {
            let (got, want) = (exp(x), x.exp());
            assert!((got - want).abs() <= want * 4e-16, "exp({x}) = {got}, expected {want}");
            x -= 0.137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e9), 0.0);
    }

    #[test]
    fn argmax_ties_go_to_the_lowest_id_and_non_finite_is_never_chosen() {
        assert_eq!(pick(&[1.0, 3.0, 3.0], None), Some(TokenId(1)));
        assert_eq!(pick(&[f32::NAN, f32::INFINITY, -5.0], None), Some(TokenId(2)));
        assert_eq!(pick(&[f32::NAN, f32::NEG_INFINITY], None), None);
        assert_eq!(pick(&[9.0, 3.0, 4.0], Some(&[0b110])), Some(TokenId(2)));
        assert_eq!(pick(&[], None), None);
    }

    #[test]
    fn every_path_agrees_on_degenerate_rows() {
        let mut scratch = Scratch::default();
        for f in
            [filters(0.0), filters(1.0), Filters { top_k: 1, ..filters(0.7) }, Filters { top_p: 0.0, ..filters(2.0) }]
        {
            let mut none = [f32::NAN, f32::NEG_INFINITY];
            assert_eq!(choose(&mut none, &mut scratch, &f, 0, &[], None), Err(Fault::NonFinite));
            let mut one = [f32::NAN, -3.0e38, f32::INFINITY];
            assert_eq!(choose(&mut one, &mut scratch, &f, 0, &[], None), Ok(TokenId(1)));
            let mut masked = [1.0, 2.0];
            assert_eq!(choose(&mut masked, &mut scratch, &f, 0, &[], Some(&[0])), Err(Fault::Barred));
            let ban = LogitEdit { token: TokenId(1), repeat: 1.0, add: f32::NEG_INFINITY };
            assert_eq!(choose(&mut masked, &mut scratch, &f, 0, &[ban], Some(&[0b10])), Err(Fault::Barred));
            assert_eq!(choose(&mut none, &mut scratch, &f, 0, &[ban], Some(&[0])), Err(Fault::NonFinite));
            let mut other = [f32::NAN, 2.0];
            assert_eq!(choose(&mut other, &mut scratch, &f, 0, &[], Some(&[0b01])), Err(Fault::Barred));
            assert_eq!(choose(&mut masked, &mut scratch, &f, 0, &[ban], None), Ok(TokenId(0)));
            assert_eq!(masked, [1.0, 2.0]);
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [2.0, 1.5, 1.0, 0.5];
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let n = 200_000;
        let seen = draws(&logits, filters(1.0), n);
        let chi2: f64 = (0..4)
            .map(|i| {
                let e = f64::from(logits[i]).exp() / total * f64::from(n);
                (seen[i] as f64 - e).powi(2) / e
            })
            .sum();
        // 3 degrees of freedom: 16.27 is the 0.1 % point.
        assert!(chi2 < 16.27, "chi-square {chi2}: {seen:?}");
    }

    #[test]
    fn filters_cut_what_they_say() {
        // Probabilities 0.64, 0.24, 0.09, 0.03 or so.
        let logits = [1.0, 4.0, 3.0, 2.0];
        assert_eq!(draws(&logits, Filters { top_k: 2, ..filters(1.0) }, 2000)[0], 0);
        assert_eq!(draws(&logits, Filters { top_k: 2, ..filters(1.0) }, 2000)[3], 0);
        let nucleus = draws(&logits, Filters { top_p: 0.7, ..filters(1.0) }, 2000);
        assert!(nucleus[1] > 0 && nucleus[2] > 0 && nucleus[3] == 0 && nucleus[0] == 0, "{nucleus:?}");
        let least = draws(&logits, Filters { min_p: 0.1, ..filters(1.0) }, 2000);
        assert!(least[3] > 0 && least[0] == 0, "{least:?}");
        assert_eq!(draws(&logits, Filters { top_p: 0.0, ..filters(1.0) }, 100)[1], 100);
        // Equal logits at the border: the lower id stays.
        assert_eq!(draws(&[1.0, 1.0, 1.0], Filters { top_k: 1, ..filters(1.0) }, 100)[0], 100);
    }

    /// Ids that a filter for typical tokens keeps, by the definition: nearest to the entropy in surprise first.
    fn typical(logits: &[f32], temperature: f64, p: f64) -> Vec<usize> {
        let weights: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let surprise: Vec<f64> = weights.iter().map(|w| -(w / total).ln()).collect();
        let entropy: f64 = surprise.iter().map(|s| (-s).exp() * s).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| (surprise[a] - entropy).abs().total_cmp(&(surprise[b] - entropy).abs()));
        let mut sum = 0.0;
        let mut out = Vec::new();
        for i in order {
            out.push(i);
            sum += weights[i] / total;
            if sum >= p {
                break;
            }
        }
        out.sort_unstable();
        out
    }

    #[test]
    fn typical_tokens_are_those_of_the_definition() {
        for seed in 0..40 {
            let logits: Vec<f32> =
                (0..12).map(|i| (random_bits(seed, 0, i) % 1000) as f32 / 150.0 + i as f32 * 0.001).collect();
            for (temperature, p) in [(1.0, 0.2), (1.0, 0.6), (0.5, 0.9), (2.0, 0.95)] {
                let seen = draws(&logits, Filters { typical_p: p, ..filters(temperature) }, 3000);
                let kept = typical(&logits, f64::from(temperature), f64::from(p));
                let said: Vec<usize> = (0..12).filter(|i| seen[*i] > 0).collect();
                assert!(said.iter().all(|i| kept.contains(i)), "{kept:?} {seen:?}");
                let weight = |i: usize| f64::from(logits[i] / temperature).exp();
                let total: f64 = kept.iter().map(|i| weight(*i)).sum();
                // What is kept and likely enough to be drawn was drawn.
                assert!(kept.iter().all(|i| weight(*i) / total < 0.005 || said.contains(i)), "{kept:?} {seen:?}");
            }
        }
        // The likeliest of all may be too little of a surprise.
        let logits = [3.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4];
        let seen = draws(&logits, Filters { typical_p: 0.3, ..filters(1.0) }, 500);
        assert_eq!(seen[0] > 0, typical(&logits, 1.0, 0.3).contains(&0), "{seen:?}");
        assert_eq!(seen[0], 0, "{seen:?}");
    }

    #[test]
    fn a_wide_nucleus_equals_a_full_sort() {
        let logits: Vec<f32> = (0..3000).map(|i| ((i * 7919) % 3001) as f32 * 0.001).collect();
        let id: Vec<u32> = (0..3000).collect();
        let w = |i: u32| exp(f64::from(logits[i as usize]) - 3.1);
        let total: f64 = id.iter().map(|&i| w(i)).sum();
        let mut sorted = id.clone();
        sorted.sort_by(|&a, &b| rank_order(&logits, a, b));
        for p in [0.001, 0.02, 0.1, 0.5, 0.9, 1.0] {
            let mut sum = 0.0;
            let want = sorted.iter().copied().find(|&i| {
                sum += w(i);
                sum >= p * total
            });
            let order = |a, b| rank_order(&logits, a, b);
            let last = last_of_smallest(&id, &mut Vec::new(), p * total, w, order);
            assert_eq!(last, want.or(sorted.last().copied()));
        }
    }

    #[test]
    fn draws_are_keyed_by_seed_choice_and_position_alone() {
        assert_eq!(uniform(1, 2, 3), uniform(1, 2, 3));
        let mut all: Vec<u64> = Vec::new();
        for seed in 0..8 {
            for choice in 0..8 {
                all.extend((0..64).map(|p| random_bits(seed, choice, p)));
            }
        }
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
        let mean: f64 = (0..100_000).map(|p| uniform(7, 0, p)).sum::<f64>() / 100_000.0;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }

    #[test]
    fn edits_act_in_their_order_and_penalties_know_the_sign() {
        let mut scratch = Scratch::default();
        let mut l = [2.0, -2.0, 0.5];
        let edit = |token, repeat, add| LogitEdit { token: TokenId(token), repeat, add };
        // 2 / 4 = 0.5 ties with id 2 and wins by id; one tenth less loses.
        assert_eq!(choose(&mut l, &mut scratch, &Filters::GREEDY, 0, &[edit(0, 4.0, 0.0)], None), Ok(TokenId(0)));
        assert_eq!(choose(&mut l, &mut scratch, &Filters::GREEDY, 0, &[edit(0, 4.0, -0.1)], None), Ok(TokenId(2)));
        // A negative logit is pushed further down: -8 + 10 = 2 against 2.
        let e = [edit(1, 4.0, 10.0)];
        assert_eq!(choose(&mut l, &mut scratch, &Filters::GREEDY, 0, &e, None), Ok(TokenId(0)));
        // An id past the vocabulary changes nothing.
        let e = [edit(7, 1.0, 100.0)];
        assert_eq!(choose(&mut l, &mut scratch, &Filters::GREEDY, 0, &e, None), Ok(TokenId(0)));
    }

    #[test]
    fn log_probs_are_of_the_raw_row() {
        let mut scratch = Scratch::default();
        let logits = [0.0f32, 1.0, f32::NAN, 1.0];
        let mut top = Vec::new();
        let lp = log_probs(&logits, &mut scratch, TokenId(0), 2, &mut top);
        let lse = (1.0f64 + 2.0 * 1.0f64.exp()).ln();
        assert!((f64::from(lp) + lse).abs() < 1e-6);
        assert_eq!(top.iter().map(|t| t.0.0).collect::<Vec<_>>(), [1, 3]);
        top.clear();
        log_probs(&logits, &mut scratch, TokenId(0), 99, &mut top);
        assert_eq!(top.len(), 3);
    }
}
