//! Attention over some of the positions that a row sees: what `block_select` allows.
//!
//! The order of arithmetic is that of [`super::attention`] with the other positions left out: splits of 256 absolute
//! positions ascending, those without an allowed position passed over; inside a split the same scores, the greatest of
//! the allowed, sixteen partial sums by position mod 16, outputs by position ascending. So a row that is allowed
//! everything has the bits of dense attention, and no row knows of any other. A position that is not allowed is never
//! multiplied with, nothing stored there can reach the row.
//!
//! A page is scored whole where any position of it is allowed: one vector per element of a head.

use bumpalo::collections::Vec as List;
use bumpalo::{Bump, vec as list};

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::attention::{AttentionScratch, Running, SPLIT_PAGES, Segment, attention, softmax};
use super::block_select::Selection;
use super::kv_cache::{Element, KvCache, KvGeometry, PAGE_TOKENS, Pages, Payload};

/// As [`attention`], over the positions of `selection`, which was made of the same segments.
///
/// # Panics
/// As [`attention`].
#[expect(clippy::too_many_arguments, reason = "one op, its operands")]
pub fn sparse_attention(
    pool: &Pool,
    isa: Isa,
    cache: &KvCache,
    layer: usize,
    q: &[f32],
    heads: usize,
    segments: &[Segment<'_>],
    selection: &Selection,
    scale: f32,
    scratch: &mut AttentionScratch,
    dst: &mut [f32],
) {
    assert_eq!(segments.len(), selection.dense.len(), "a selection of other segments");
    pool.lists(|lists| {
        let dense = segments
            .iter()
            .zip(&selection.dense)
            .map(|(s, &rows)| Segment { rows: s.rows.start..s.rows.start + rows, ..s.clone() });
        let dense = List::from_iter_in(dense, lists);
        attention(pool, isa, cache, layer, q, heads, &dense, scale, scratch, dst);

        let layer = &cache.layers[layer];
        let KvGeometry { kv_heads, head_dim } = layer.geometry;
        let group = heads / kv_heads;
        let items = selection.sparse.iter().flat_map(|row| {
            let (table, mask) = (segments[row.segment].pages, selection.mask(row));
            assert!(mask.len() <= table.len(), "{} pages do not cover position {}", table.len(), row.position);
            (0..kv_heads).map(move |kv_head| Item { row: row.row, kv_head, table, mask })
        });
        let items = List::from_iter_in(items, lists).into_bump_slice();
        let out = Blocks::new(dst, group * head_dim, lists);
        pool.split_with_lists(items.len(), 1, |lists, range| {
            for item in &items[range] {
                let block = item.row * kv_heads + item.kv_head;
                let q = &q[block * group * head_dim..][..group * head_dim];
                let out = out.take(block);
                match &layer.payload {
                    Payload::F32(pages) => dispatch(isa, Row { pages, item, q, head_dim, scale, out, lists }),
                    Payload::F16(pages) => dispatch(isa, Row { pages, item, q, head_dim, scale, out, lists }),
                }
            }
        });
    });
}

/// One row under one KV head.
struct Item<'a> {
    row: usize,
    kv_head: usize,
    table: &'a [u32],
    mask: &'a [u16],
}

struct Row<'a, E> {
    pages: &'a Pages<E>,
    item: &'a Item<'a>,
    /// `[group][head_dim]`.
    q: &'a [f32],
    head_dim: usize,
    scale: f32,
    /// `[group][head_dim]`.
    out: &'a mut [f32],
    lists: &'a Bump,
}

/// A page of a split with allowed positions: its keys `[head_dim][16]`, its values `[16][head_dim]`, and which.
#[derive(Clone, Copy)]
struct Allowed<'a, E> {
    keys: &'a [E],
    values: &'a [E],
    mask: u16,
}

impl<E: Element> Kernel for Row<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { pages, item, q, head_dim, scale, out, lists } = self;
        let mut running = list![in lists; None; q.len() / head_dim];
        let mut allowed: List<'_, Allowed<'_, E>> = List::with_capacity_in(SPLIT_PAGES, lists);
        for (masks, table) in item.mask.chunks(SPLIT_PAGES).zip(item.table.chunks(SPLIT_PAGES)) {
            allowed.clear();
            for (&mask, &page) in masks.iter().zip(table).filter(|(mask, _)| **mask != 0) {
                let (keys, values) = pages.head(page, item.kv_head);
                allowed.push(Allowed { keys, values, mask });
            }
            if allowed.is_empty() {
                continue;
            }
            let queries = q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
            for ((q, out), running) in queries.zip(&mut running) {
                split(s, &allowed, q, scale, running, out);
            }
        }
        for (running, out) in running.iter().zip(out.chunks_exact_mut(head_dim)) {
            let Some(Running { sum, .. }) = running else { continue };
            let factor = s.splat(1.0 / sum);
            for lanes in out.chunks_mut(LANES) {
                s.load_partial(lanes).mul(factor).store_partial(lanes);
            }
        }
    }
}

/// One query against one split.
#[inline(always)]
fn split<S: Simd, E: Element>(
    s: S,
    allowed: &[Allowed<'_, E>],
    q: &[f32],
    scale: f32,
    running: &mut Option<Running>,
    out: &mut [f32],
) {
    let mut weights = [[0.0; LANES]; SPLIT_PAGES];
    let weights = &mut weights[..allowed.len()];
    let scale = s.splat(scale);
    for (page, weights) in allowed.iter().zip(weights.iter_mut()) {
        let mut sum = s.splat(0.0);
        for (&q, k) in q.iter().zip(page.keys.as_chunks::<LANES>().0) {
            sum = s.splat(q).mul_add(E::load(s, k), sum);
        }
        sum.mul(scale).store(weights);
        for (t, score) in weights.iter_mut().enumerate() {
            if page.mask >> t & 1 == 0 {
                *score = f32::NEG_INFINITY;
            }
        }
    }
    let of_split = softmax(s, weights);
    let factors = match running {
        None => {
            *running = Some(of_split);
            None
        }
        Some(running) => Some(running.merge(s, of_split)),
    };
    let head_dim = q.len();
    let mut channel = 0;
    while channel < head_dim {
        channel += match head_dim - channel {
            n if n >= 4 * LANES => outputs::<S, E, 4>(s, allowed, weights, head_dim, channel, factors, out),
            n if n >= LANES => outputs::<S, E, 1>(s, allowed, weights, head_dim, channel, factors, out),
            _ => output_rest(s, allowed, weights, head_dim, channel, factors, out),
        };
    }
}

/// How a split's output joins what is before it.
#[inline(always)]
fn join<S: Simd>(s: S, factors: Option<(f32, f32)>, sum: S::V, before: S::V) -> S::V {
    match factors {
        None => sum,
        Some((a, b)) => sum.mul_add(s.splat(b), before.mul(s.splat(a))),
    }
}

/// Channels `channel .. channel + 16 C`; returns how many.
#[inline(always)]
fn outputs<S: Simd, E: Element, const C: usize>(
    s: S,
    allowed: &[Allowed<'_, E>],
    weights: &[[f32; LANES]],
    head_dim: usize,
    channel: usize,
    factors: Option<(f32, f32)>,
    out: &mut [f32],
) -> usize {
    let mut sums = [s.splat(0.0); C];
    for (page, weights) in allowed.iter().zip(weights) {
        for (t, &weight) in weights.iter().enumerate() {
            if page.mask >> t & 1 == 0 {
                continue;
            }
            let row = page.values[t * head_dim + channel..][..C * LANES].as_chunks::<LANES>().0;
            let weight = s.splat(weight);
            for c in 0..C {
                sums[c] = weight.mul_add(E::load(s, &row[c]), sums[c]);
            }
        }
    }
    let out = out[channel..][..C * LANES].as_chunks_mut::<LANES>().0;
    for c in 0..C {
        join(s, factors, sums[c], s.load(&out[c])).store(&mut out[c]);
    }
    C * LANES
}

/// The last channels, fewer than 16; returns how many.
#[inline(always)]
fn output_rest<S: Simd, E: Element>(
    s: S,
    allowed: &[Allowed<'_, E>],
    weights: &[[f32; LANES]],
    head_dim: usize,
    channel: usize,
    factors: Option<(f32, f32)>,
    out: &mut [f32],
) -> usize {
    let mut sum = s.splat(0.0);
    let rest = head_dim - channel;
    for (page, weights) in allowed.iter().zip(weights) {
        for (t, &weight) in weights.iter().enumerate() {
            if page.mask >> t & 1 == 0 {
                continue;
            }
            let mut v = [E::default(); LANES];
            v[..rest].copy_from_slice(&page.values[t * head_dim + channel..][..rest]);
            sum = s.splat(weight).mul_add(E::load(s, &v), sum);
        }
    }
    let out = &mut out[channel..];
    join(s, factors, sum, s.load_partial(out)).store_partial(out);
    rest
}

#[cfg(test)]
mod tests;

const _: () = assert!(PAGE_TOKENS == u16::BITS as usize && PAGE_TOKENS == LANES, "a bit and a lane per position");
