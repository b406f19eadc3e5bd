//! Causal attention over paged keys and values, grouped query heads, ragged segments.
//!
//! Order of one query's arithmetic, a function of its own position only:
//! - positions are cut into splits of 256 *absolute* positions; a split takes part as far as the query may see;
//! - score: `sum_d q[d] k[d]`, fused, d ascending, then times `scale`;
//! - the split's greatest score m, weights `exp(score - m)`; their sum has 16 partial sums (lane = position mod 16,
//!   ascending) and the tree of [`Vector::sum`]; the output is `sum_t weight[t] v[t]`, fused, t ascending;
//! - splits are merged in ascending order: `m' = max(m, m_s)`, `a = exp(m - m')`, `b = exp(m_s - m')`,
//!   `sum = sum * a + sum_s * b`, `out = out * a + out_s * b` (each a product, then a fused step);
//! - the output is divided by the sum at the end (times its reciprocal).
//!
//! Positions past the query's own are not multiplied by zero, they are left out, so nothing stored there (the rest of
//! a page, another row's fault) can reach it.

use std::ops::Range;

use bumpalo::collections::Vec as List;
use bumpalo::{Bump, vec as list};

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::exp_lanes;
use super::kv_cache::{Element, KvCache, KvGeometry, PAGE_TOKENS, Pages, Payload};

/// Absolute positions of a split.
pub const SPLIT_TOKENS: usize = 256;
pub(super) const SPLIT_PAGES: usize = SPLIT_TOKENS / PAGE_TOKENS;
/// Queries of one work item, about: enough to share the reading of a split, few enough to spread over workers.
const ITEM_QUERIES: usize = 64;
/// Floats of partial results kept when the splits of few rows are spread over workers; beyond it they are not.
const PARTIALS_MAX: usize = 4 << 20;

/// Rows of one sequence in a pass.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// Rows of the batch, contiguous.
    pub rows: Range<usize>,
    /// Position of the first; they ascend by one. Keys and values up to each row's own position are stored already.
    pub position: usize,
    /// Block table of the sequence: page of positions `16 i .. 16 i + 16`.
    pub pages: &'a [u32],
}

/// Buffers kept between calls.
#[derive(Default)]
pub struct AttentionScratch {
    partials: Vec<f32>,
}

impl AttentionScratch {
    /// Room for `bytes`, see [`Self::bytes_for`].
    pub fn with_room(bytes: usize) -> Self {
        Self { partials: Vec::with_capacity(bytes / size_of::<f32>()) }
    }

    /// Bytes at most, after calls on `threads` workers for `heads` query heads over the KV heads of `geometry` and up
    /// to `positions` positions.
    pub fn bytes_for(threads: usize, geometry: KvGeometry, heads: usize, positions: usize) -> usize {
        let group = heads / geometry.kv_heads;
        let items = few(threads) - 1;
        let queries = items.saturating_mul(rows_per_item(group) * group);
        let floats = queries.saturating_mul(positions.div_ceil(SPLIT_TOKENS) * partial_len(geometry.head_dim));
        if threads > 1 { floats.min(PARTIALS_MAX) * size_of::<f32>() } else { 0 }
    }
}

/// Work items from which on every worker has enough without splits.
fn few(threads: usize) -> usize {
    2 * threads
}

/// Rows that a work item takes at most, for groups of query heads that share a KV head.
fn rows_per_item(group: usize) -> usize {
    (ITEM_QUERIES / group).max(1)
}

/// Floats of a partial result: a head's output, its greatest score and its sum.
fn partial_len(head_dim: usize) -> usize {
    head_dim + 2
}

/// `dst[r][h] = sum_t softmax_t(scale q[r][h] . k[t]) v[t]`, t up to the row's own position.
///
/// q, dst: `[rows][heads][head_dim]`, `heads` a multiple of the layer's KV heads; query head h reads KV head
/// `h / (heads / kv_heads)`. Rows in no segment are left as they are.
///
/// # Panics
/// If lengths disagree, a block table is too short or segments overlap.
#[expect(clippy::too_many_arguments, reason = "one op, its operands")]
pub fn attention(
    pool: &Pool,
    isa: Isa,
    cache: &KvCache,
    layer: usize,
    q: &[f32],
    heads: usize,
    segments: &[Segment<'_>],
    scale: f32,
    scratch: &mut AttentionScratch,
    dst: &mut [f32],
) {
    let layer = &cache.layers[layer];
    let KvGeometry { kv_heads, head_dim } = layer.geometry;
    assert!(heads.is_multiple_of(kv_heads) && heads > 0, "{heads} query heads over {kv_heads} KV heads");
    assert_eq!(q.len(), dst.len(), "attention: q and dst differ in length");
    assert!(q.len().is_multiple_of(heads * head_dim), "{} elements are no rows of {heads} heads", q.len());
    for segment in segments {
        let seen = segment.position + segment.rows.len();
        let pages = segment.pages.len();
        assert!(seen <= pages * PAGE_TOKENS, "{pages} pages do not cover {seen} positions");
        assert!(segment.rows.end * heads * head_dim <= q.len(), "rows {:?} are not in the batch", segment.rows);
    }
    match &layer.payload {
        Payload::F32(pages) => {
            Call { pages, q, heads, kv_heads, head_dim, scale }.run(pool, isa, segments, scratch, dst)
        }
        Payload::F16(pages) => {
            Call { pages, q, heads, kv_heads, head_dim, scale }.run(pool, isa, segments, scratch, dst)
        }
    }
}

struct Call<'a, E> {
    pages: &'a Pages<E>,
    q: &'a [f32],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f32,
}

/// Some rows of a segment under one KV head.
#[derive(Clone)]
struct Item<'a> {
    rows: Range<usize>,
    position: usize,
    table: &'a [u32],
    kv_head: usize,
    /// Split-parallel: the one split to do, and the first of its partial blocks (`[query]` from there on).
    split: usize,
    partial: usize,
}

impl Item<'_> {
    /// Splits that its last row sees.
    fn splits(&self) -> usize {
        (self.position + self.rows.len()).div_ceil(SPLIT_TOKENS)
    }
}

impl<E: Element> Call<'_, E> {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn run(&self, pool: &Pool, isa: Isa, segments: &[Segment<'_>], scratch: &mut AttentionScratch, dst: &mut [f32]) {
        let rows_per_item = rows_per_item(self.group());
        pool.lists(|lists| {
            let mut items = List::new_in(lists);
            for segment in segments {
                let mut start = segment.rows.start;
                while start < segment.rows.end {
                    let end = segment.rows.end.min(start + rows_per_item);
                    let position = segment.position + (start - segment.rows.start);
                    for kv_head in 0..self.kv_heads {
                        let table = segment.pages;
                        items.push(Item { rows: start..end, position, table, kv_head, split: 0, partial: 0 });
                    }
                    start = end;
                }
            }
            let items = items.into_bump_slice();
            let partial_len = partial_len(self.head_dim);
            let partials: usize = items.iter().map(|item| item.rows.len() * self.group() * item.splits()).sum();
            let few = items.len() < few(pool.threads()) && items.iter().any(|item| item.splits() > 1);
            // One block per row and KV head: the heads of a group lie next to each other.
            let out = Blocks::new(dst, self.group() * self.head_dim, lists);
            if pool.threads() > 1 && few && partials * partial_len <= PARTIALS_MAX {
                scratch.partials.resize(partials * partial_len, 0.0);
                self.run_splits(pool, isa, items, &mut scratch.partials, &out, lists);
            } else {
                pool.split_with_lists(items.len(), 1, |lists, range| {
                    for item in &items[range] {
                        dispatch(isa, Whole { call: self, item, out: &out, lists });
                    }
                });
            }
        });
    }

    /// Splits are spread over the workers and merged afterwards, in the same order and with the same arithmetic.
    fn run_splits(
        &self,
        pool: &Pool,
        isa: Isa,
        items: &[Item<'_>],
        partials: &mut [f32],
        out: &Blocks<'_, f32>,
        lists: &Bump,
    ) {
        let partial_len = partial_len(self.head_dim);
        let mut tasks = List::new_in(lists);
        let mut first_task = List::new_in(lists);
        let mut partial = 0;
        for item in items {
            first_task.push(tasks.len());
            for split in 0..item.splits() {
                tasks.push(Item { split, partial, ..item.clone() });
                partial += item.rows.len() * self.group();
            }
        }
        let (tasks, first_task) = (tasks.into_bump_slice(), first_task.into_bump_slice());
        let blocks = Blocks::new(partials, partial_len, lists);
        pool.split_with_lists(tasks.len(), 1, |lists, range| {
            for item in &tasks[range] {
                dispatch(isa, OneSplit { call: self, item, partials: &blocks, lists });
            }
        });
        let partials = &*partials;
        pool.split_with_lists(items.len(), 1, |lists, range| {
            for i in range {
                let tasks = &tasks[first_task[i]..][..items[i].splits()];
                dispatch(isa, Merge { call: self, tasks, partials, out, lists });
            }
        });
    }

    fn outputs<'o>(&self, item: &Item<'_>, out: &'o Blocks<'_, f32>, lists: &'o Bump) -> List<'o, &'o mut [f32]> {
        let blocks = item.rows.clone().map(|row| out.take(row * self.kv_heads + item.kv_head));
        List::from_iter_in(blocks.flat_map(|block| block.chunks_exact_mut(self.head_dim)), lists)
    }
}

/// What a query has of a softmax so far.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) max: f32,
    pub(super) sum: f32,
}

const NOTHING: Running = Running { max: f32::NEG_INFINITY, sum: 0.0 };

impl Running {
    /// Takes a split in; returns the factors of the output so far and of the split's.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, s: S, split: Running) -> (f32, f32) {
        let max = if split.max > self.max { split.max } else { self.max };
        let [a, b, ..] = exp_lanes(s, s.load_partial(&[self.max - max, split.max - max])).to_array();
        self.sum = split.sum.mul_add(b, self.sum * a);
        self.max = max;
        (a, b)
    }
}

struct Whole<'a, E> {
    call: &'a Call<'a, E>,
    item: &'a Item<'a>,
    out: &'a Blocks<'a, f32>,
    lists: &'a Bump,
}

impl<E: Element> Kernel for Whole<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, item, out, lists } = self;
        let mut out = call.outputs(item, out, lists);
        let mut running = list![in lists; NOTHING; out.len()];
        let queries = pack_queries::<S, E>(call, item, lists);
        for split in 0..item.splits() {
            split_all(s, call, item, split, &queries, &mut running, &mut out);
        }
        for (out, running) in out.iter_mut().zip(&running) {
            let factor = s.splat(1.0 / running.sum);
            let (lanes, rest) = out.as_chunks_mut::<LANES>();
            for lanes in lanes {
                s.load(lanes).mul(factor).store(lanes);
            }
            s.load_partial(rest).mul(factor).store_partial(rest);
        }
    }
}

struct OneSplit<'a, E> {
    call: &'a Call<'a, E>,
    item: &'a Item<'a>,
    partials: &'a Blocks<'a, f32>,
    lists: &'a Bump,
}

impl<E: Element> Kernel for OneSplit<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, item, partials, lists } = self;
        let n = item.rows.len() * call.group();
        let (mut heads, mut out) = (List::with_capacity_in(n, lists), List::with_capacity_in(n, lists));
        for i in 0..n {
            let (head, of_split) = partials.take(item.partial + i).split_at_mut(2);
            heads.push(head);
            out.push(of_split);
        }
        let mut running = list![in lists; NOTHING; n];
        let queries = pack_queries::<S, E>(call, item, lists);
        split_all(s, call, item, item.split, &queries, &mut running, &mut out);
        for (head, running) in heads.iter_mut().zip(&running) {
            head.copy_from_slice(&[running.max, running.sum]);
        }
    }
}

struct Merge<'a, E> {
    call: &'a Call<'a, E>,
    tasks: &'a [Item<'a>],
    partials: &'a [f32],
    out: &'a Blocks<'a, f32>,
    lists: &'a Bump,
}

impl<E: Element> Kernel for Merge<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, tasks, partials, out, lists } = self;
        let (group, len) = (call.group(), call.head_dim + 2);
        let item = &tasks[0];
        for (i, out) in call.outputs(item, out, lists).into_iter().enumerate() {
            let splits = (item.position + i / group + 1).div_ceil(SPLIT_TOKENS);
            let mut running = NOTHING;
            for (split, task) in tasks[..splits].iter().enumerate() {
                let partial = &partials[(task.partial + i) * len..][..len];
                let of_split = Running { max: partial[0], sum: partial[1] };
                if split == 0 {
                    running = of_split;
                    out.copy_from_slice(&partial[2..]);
                    continue;
                }
                let (a, b) = running.merge(s, of_split);
                fold(s, out, &partial[2..], a, b);
            }
            let factor = s.splat(1.0 / running.sum);
            let (lanes, rest) = out.as_chunks_mut::<LANES>();
            for lanes in lanes {
                s.load(lanes).mul(factor).store(lanes);
            }
            s.load_partial(rest).mul(factor).store_partial(rest);
        }
    }
}

/// `out = out * a + x * b`.
#[inline(always)]
fn fold<S: Simd>(s: S, out: &mut [f32], x: &[f32], a: f32, b: f32) {
    let (a, b) = (s.splat(a), s.splat(b));
    let (lanes, rest) = out.as_chunks_mut::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    for (lanes, x) in lanes.iter_mut().zip(x) {
        s.load(x).mul_add(b, s.load(lanes).mul(a)).store(lanes);
    }
    s.load_partial(x_rest).mul_add(b, s.load_partial(rest).mul(a)).store_partial(rest);
}

/// Queries are worked on eight (with few registers: two) at a time, the rest by four, two, one.
#[inline(always)]
fn tile<S: Simd>(left: usize) -> usize {
    let most = if S::REGISTERS >= 16 { 8 } else { 2 };
    let mut tile = most;
    while tile > left {
        tile /= 2;
    }
    tile
}

/// The item's queries tile by tile, `[head_dim][queries of the tile]`, so that a step of d reads neighbours.
#[inline(always)]
fn pack_queries<'l, S: Simd, E: Element>(call: &Call<'_, E>, item: &Item<'_>, lists: &'l Bump) -> List<'l, f32> {
    let (group, head_dim) = (call.group(), call.head_dim);
    let n = item.rows.len() * group;
    let mut packed = list![in lists; 0.0; n * head_dim];
    let mut start = 0;
    while start < n {
        let tile = tile::<S>(n - start);
        let columns = &mut packed[start * head_dim..(start + tile) * head_dim];
        for i in 0..tile {
            let row = item.rows.start + (start + i) / group;
            let head = item.kv_head * group + (start + i) % group;
            let query = &call.q[(row * call.heads + head) * head_dim..][..head_dim];
            for (column, &x) in columns.chunks_exact_mut(tile).zip(query) {
                column[i] = x;
            }
        }
        start += tile;
    }
    packed
}

/// One split for all queries of an item.
#[inline(always)]
fn split_all<S: Simd, E: Element>(
    s: S,
    call: &Call<'_, E>,
    item: &Item<'_>,
    split: usize,
    queries: &[f32],
    running: &mut [Running],
    out: &mut [&mut [f32]],
) {
    let n = running.len();
    let mut start = 0;
    while start < n {
        let tile = tile::<S>(n - start);
        let work =
            Tile { call, item, split, start, queries: &queries[start * call.head_dim..][..tile * call.head_dim] };
        let (running, out) = (&mut running[start..start + tile], &mut out[start..start + tile]);
        // Tiles of scores (queries, pages) and of outputs (queries, channel vectors) that fill the registers.
        match (tile, S::REGISTERS >= 16) {
            (8, _) => work.run::<S, 8, 1, 2>(s, running, out),
            (4, _) => work.run::<S, 4, 4, 4>(s, running, out),
            (2, true) => work.run::<S, 2, 4, 4>(s, running, out),
            (2, false) => work.run::<S, 2, 2, 2>(s, running, out),
            _ => work.run::<S, 1, 4, 4>(s, running, out),
        }
        start += tile;
    }
}

/// Some queries against one split.
struct Tile<'a, E> {
    call: &'a Call<'a, E>,
    item: &'a Item<'a>,
    split: usize,
    /// First query within the item.
    start: usize,
    queries: &'a [f32],
}

impl<E: Element> Tile<'_, E> {
    /// K and V of a page of the split.
    #[inline(always)]
    fn page(&self, page: usize) -> (&[E], &[E]) {
        self.call.pages.head(self.item.table[self.split * SPLIT_PAGES + page], self.item.kv_head)
    }

    #[inline(always)]
    fn run<S: Simd, const Q: usize, const P: usize, const C: usize>(
        &self,
        s: S,
        running: &mut [Running],
        out: &mut [&mut [f32]],
    ) {
        let group = self.call.group();
        // Positions of the split that each query sees; ascending.
        let seen: [usize; Q] = std::array::from_fn(|i| {
            let position = self.item.position + (self.start + i) / group;
            (position + 1).saturating_sub(self.split * SPLIT_TOKENS).min(SPLIT_TOKENS)
        });
        if seen[Q - 1] == 0 {
            return;
        }
        let mut weights = Weights([[0.0; SPLIT_TOKENS]; Q]);
        let weights = &mut weights.0;
        let pages = seen[Q - 1].div_ceil(PAGE_TOKENS);
        let mut page = 0;
        while page + P <= pages {
            self.scores::<S, Q, P>(s, page, weights);
            page += P;
        }
        while page < pages {
            self.scores::<S, Q, 1>(s, page, weights);
            page += 1;
        }
        let mut factors = [(0.0, 1.0); Q];
        let mut first = [false; Q];
        for i in 0..Q {
            if seen[i] > 0 {
                let of_split = softmax_split(s, &mut weights[i], seen[i]);
                first[i] = self.split == 0 || running[i].max == f32::NEG_INFINITY && running[i].sum == 0.0;
                if first[i] {
                    running[i] = of_split;
                } else {
                    factors[i] = running[i].merge(s, of_split);
                }
            }
        }
        let merge = Merging { seen, first, factors };
        let mut channel = 0;
        while channel + C * LANES <= self.call.head_dim {
            self.outputs::<S, Q, C>(s, channel, weights, &merge, out);
            channel += C * LANES;
        }
        while channel + LANES <= self.call.head_dim {
            self.outputs::<S, Q, 1>(s, channel, weights, &merge, out);
            channel += LANES;
        }
        if channel < self.call.head_dim {
            self.output_rest::<S, Q>(s, channel, weights, &merge, out);
        }
    }

    /// Scores of `P` pages from `page` on.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        page: usize,
        scores: &mut [[f32; SPLIT_TOKENS]; Q],
    ) {
        let head_dim = self.call.head_dim;
        let keys: [&[[E; LANES]]; P] =
            std::array::from_fn(|p| &self.page(page + p).0.as_chunks::<LANES>().0[..head_dim]);
        let queries = &self.queries.as_chunks::<Q>().0[..head_dim];
        let mut sums = [[s.splat(0.0); Q]; P];
        for d in 0..head_dim {
            let q = &queries[d];
            for p in 0..P {
                let k = E::load(s, &keys[p][d]);
                for i in 0..Q {
                    sums[p][i] = s.splat(q[i]).mul_add(k, sums[p][i]);
                }
            }
        }
        let scale = s.splat(self.call.scale);
        for (p, sums) in sums.iter().enumerate() {
            for i in 0..Q {
                sums[i].mul(scale).store(&mut scores[i].as_chunks_mut::<LANES>().0[page + p]);
            }
        }
    }

    /// Channels `channel .. channel + 16 C` of the outputs.
    #[inline(always)]
    fn outputs<S: Simd, const Q: usize, const C: usize>(
        &self,
        s: S,
        channel: usize,
        weights: &[[f32; SPLIT_TOKENS]; Q],
        merge: &Merging<Q>,
        out: &mut [&mut [f32]],
    ) {
        let head_dim = self.call.head_dim;
        let mut sums = [[s.splat(0.0); C]; Q];
        let common = merge.seen[0];
        for page in 0..common.div_ceil(PAGE_TOKENS) {
            let values = self.page(page).1;
            let weights: [&[f32; LANES]; Q] = std::array::from_fn(|i| &weights[i].as_chunks::<LANES>().0[page]);
            for t in 0..PAGE_TOKENS.min(common - page * PAGE_TOKENS) {
                let row = values[t * head_dim + channel..][..C * LANES].as_chunks::<LANES>().0;
                let mut v = [s.splat(0.0); C];
                for c in 0..C {
                    v[c] = E::load(s, &row[c]);
                }
                for i in 0..Q {
                    let w = s.splat(weights[i][t]);
                    for c in 0..C {
                        sums[i][c] = w.mul_add(v[c], sums[i][c]);
                    }
                }
            }
        }
        for i in 0..Q {
            // What only later rows of the window see.
            for t in common..merge.seen[i] {
                let values = self.page(t / PAGE_TOKENS).1;
                let row = values[t % PAGE_TOKENS * head_dim + channel..][..C * LANES].as_chunks::<LANES>().0;
                let w = s.splat(weights[i][t]);
                for c in 0..C {
                    sums[i][c] = w.mul_add(E::load(s, &row[c]), sums[i][c]);
                }
            }
            if merge.seen[i] > 0 {
                let out = out[i][channel..][..C * LANES].as_chunks_mut::<LANES>().0;
                for c in 0..C {
                    merge.put(s, i, sums[i][c], s.load(&out[c])).store(&mut out[c]);
                }
            }
        }
    }

    /// The last channels, fewer than 16.
    #[inline(always)]
    fn output_rest<S: Simd, const Q: usize>(
        &self,
        s: S,
        channel: usize,
        weights: &[[f32; SPLIT_TOKENS]; Q],
        merge: &Merging<Q>,
        out: &mut [&mut [f32]],
    ) {
        let head_dim = self.call.head_dim;
        for i in 0..Q {
            let mut sum = s.splat(0.0);
            for (t, &weight) in weights[i][..merge.seen[i]].iter().enumerate() {
                let row = &self.page(t / PAGE_TOKENS).1[t % PAGE_TOKENS * head_dim..][channel..head_dim];
                let mut v = [E::default(); LANES];
                v[..row.len()].copy_from_slice(row);
                sum = s.splat(weight).mul_add(E::load(s, &v), sum);
            }
            if merge.seen[i] > 0 {
                let out = &mut out[i][channel..];
                merge.put(s, i, sum, s.load_partial(out)).store_partial(out);
            }
        }
    }
}

/// Scores, then weights, of some queries over one split; aligned, so that no vector lies on two cache lines.
#[repr(align(64))]
struct Weights<const Q: usize>([[f32; SPLIT_TOKENS]; Q]);

/// How a split's outputs join those before it.
struct Merging<const Q: usize> {
    seen: [usize; Q],
    first: [bool; Q],
    factors: [(f32, f32); Q],
}

impl<const Q: usize> Merging<Q> {
    #[inline(always)]
    fn put<S: Simd>(&self, s: S, i: usize, sum: S::V, before: S::V) -> S::V {
        if self.first[i] {
            return sum;
        }
        let (a, b) = self.factors[i];
        sum.mul_add(s.splat(b), before.mul(s.splat(a)))
    }
}

/// Turns the first `seen` scores of a split into weights; the others become 0.
#[inline(always)]
fn softmax_split<S: Simd>(s: S, scores: &mut [f32; SPLIT_TOKENS], seen: usize) -> Running {
    let (pages, _) = scores.as_chunks_mut::<LANES>();
    let pages = &mut pages[..seen.div_ceil(LANES)];
    let hidden = s.splat(f32::NEG_INFINITY);
    for (p, page) in pages.iter_mut().enumerate() {
        s.load(page).first(seen - p * LANES, hidden).store(page);
    }
    softmax(s, pages)
}

/// Turns the scores of a split into weights, page by page; a position that takes no part has the score -inf.
#[inline(always)]
pub(super) fn softmax<S: Simd>(s: S, pages: &mut [[f32; LANES]]) -> Running {
    let mut max = s.splat(f32::NEG_INFINITY);
    for page in pages.iter() {
        max = s.load(page).max(max);
    }
    let max = max.greatest();
    let mut sum = s.splat(0.0);
    for page in pages.iter_mut() {
        let weight = exp_lanes(s, s.load(page).sub(s.splat(max)));
        weight.store(page);
        sum = sum.add(weight);
    }
    Running { max, sum: sum.sum() }
}

#[cfg(test)]
pub(super) mod tests;
