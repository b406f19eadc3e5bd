//! From router logits to the experts of every row. Nothing here looks at a second row.

use std::cmp::Ordering;

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::super::exp::{exp_lanes, sigmoid_lanes};
use super::super::grain_rows;

/// Groups that experts can be cut into.
pub const GROUPS_MAX: usize = 64;

/// What turns router logits into scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// Over all experts of the row, chosen or not.
    Softmax,
    /// Each by itself.
    Sigmoid,
}

/// A first choice among equal groups of neighbouring experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups {
    /// Groups, a divisor of the experts, at most [`GROUPS_MAX`].
    pub count: usize,
    /// Groups whose experts can be chosen.
    pub used: usize,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Router {
    /// Experts of the block.
    pub experts: usize,
    /// Experts of a row.
    pub used: usize,
    /// Logits to scores.
    pub gating: Gating,
    /// Choice of groups before the choice of experts.
    pub groups: Option<Groups>,
    /// The chosen scores are divided by their sum, or by this where the sum is smaller; `None`: they are not.
    pub norm_floor: Option<f32>,
    /// What the weights are multiplied by at last.
    pub scale: f32,
}

impl Router {
    /// Whether the numbers fit together: enough experts, in few enough equal groups that hold enough of them.
    pub fn is_valid(&self) -> bool {
        let enough = match self.groups {
            None => self.experts,
            Some(Groups { count, used }) => {
                let fits = (1..=GROUPS_MAX).contains(&count)
                    && (1..=count).contains(&used)
                    && self.experts.is_multiple_of(count);
                if fits { used * (self.experts / count) } else { 0 }
            }
        };
        (1..=enough).contains(&self.used)
    }
}

/// One chosen expert of a row.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Route {
    /// Which.
    pub expert: u32,
    /// What its output is multiplied by.
    pub weight: f32,
}

/// Chooses the experts of every row, best first.
/// scores: `[rows][experts]`, router logits that are overwritten by their scores; bias: `[experts]`, added to the
/// scores for choosing and for nothing else; routes: `[rows][used]`.
///
/// Choice is by (score + bias) descending, ties to the lower id, NaN last. With groups, a group counts the sum of its
/// two best (its only one, if it is so small), and ties go to the lower group.
/// Order of sums: softmax adds in double, ascending ids; normalisation adds in double, best first.
///
/// # Panics
/// If the router is not valid, or a slice disagrees with it.
pub fn route(pool: &Pool, isa: Isa, router: &Router, scores: &mut [f32], bias: Option<&[f32]>, routes: &mut [Route]) {
    assert!(router.is_valid(), "{router:?}");
    let Router { experts, used, gating, .. } = *router;
    assert_eq!(scores.len() / experts * used, routes.len(), "route: {experts} scores, {used} routes a row");
    assert!(bias.is_none_or(|b| b.len() == experts), "route: a bias for each of {experts} experts");
    pool.split_rows_mut(scores, experts, grain_rows(experts), |_, scores| {
        dispatch(isa, Score { gating, experts, scores });
    });
    let scores = &*scores;
    pool.split_rows_mut(routes, used, grain_rows(experts), |first, routes| {
        let scores = scores[first * experts..].chunks_exact(experts);
        for (routes, scores) in routes.chunks_exact_mut(used).zip(scores) {
            choose(router, scores, bias, routes);
        }
    });
}

struct Score<'a> {
    gating: Gating,
    experts: usize,
    scores: &'a mut [f32],
}

impl Kernel for Score<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.scores.chunks_exact_mut(self.experts) {
            match self.gating {
                Gating::Sigmoid => each(row, s, Sigmoid),
                Gating::Softmax => {
                    let greatest = row.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
                    each(row, s, Exp { greatest });
                    // A NaN or an infinity makes every score of the row NaN.
                    let sum = row.iter().fold(0.0, |sum, &e| sum + f64::from(e)) as f32;
                    row.iter_mut().for_each(|e| *e /= sum);
                }
            }
        }
    }
}

trait Map: Copy {
    fn at<S: Simd>(self, s: S, x: S::V) -> S::V;
}

#[derive(Clone, Copy)]
struct Sigmoid;
impl Map for Sigmoid {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::V) -> S::V {
        sigmoid_lanes(s, x)
    }
}

/// `exp(x - greatest)`.
#[derive(Clone, Copy)]
struct Exp {
    greatest: f32,
}
impl Map for Exp {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::V) -> S::V {
        exp_lanes(s, x.sub(s.splat(self.greatest)))
    }
}

#[inline(always)]
fn each<S: Simd>(row: &mut [f32], s: S, map: impl Map) {
    let (lanes, rest) = row.as_chunks_mut::<LANES>();
    for lanes in lanes {
        map.at(s, s.load(lanes)).store(lanes);
    }
    if !rest.is_empty() {
        map.at(s, s.load_partial(rest)).store_partial(rest);
    }
}

/// Numbers by size, NaN below all of them.
fn compare(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// One row of [`route`].
fn choose(router: &Router, scores: &[f32], bias: Option<&[f32]>, routes: &mut [Route]) {
    let key = |e: usize| bias.map_or(scores[e], |bias| scores[e] + bias[e]);
    let groups = router.groups.unwrap_or(Groups { count: 1, used: 1 });
    let size = router.experts / groups.count;
    let open = open_groups(groups, size, key);
    let mut found = 0;
    for group in (0..groups.count).filter(|g| open >> g & 1 == 1) {
        for e in group * size..(group + 1) * size {
            let key = key(e);
            // Before every worse one, behind every equal one: those have lower ids.
            let at = routes[..found].partition_point(|r| compare(r.weight, key) != Ordering::Less);
            if at == routes.len() {
                continue;
            }
            found = (found + 1).min(routes.len());
            routes[at..found].rotate_right(1);
            routes[at] = Route { expert: e as u32, weight: key };
        }
    }
    for route in routes.iter_mut() {
        route.weight = scores[route.expert as usize];
    }
    if let Some(floor) = router.norm_floor {
        let sum = routes.iter().fold(0.0, |sum, r| sum + f64::from(r.weight)) as f32;
        let sum = sum.max(floor);
        routes.iter_mut().for_each(|r| r.weight /= sum);
    }
    if router.scale != 1.0 {
        routes.iter_mut().for_each(|r| r.weight *= router.scale);
    }
}

/// The groups whose experts may be chosen, one bit each.
fn open_groups(groups: Groups, size: usize, key: impl Fn(usize) -> f32) -> u64 {
    if groups.used == groups.count {
        return u64::MAX >> (GROUPS_MAX - groups.count);
    }
    let mut total = [0.0; GROUPS_MAX];
    for (group, total) in total[..groups.count].iter_mut().enumerate() {
        let first = group * size;
        let better = |a: f32, b: f32| if compare(a, b) == Ordering::Less { b } else { a };
        let (mut best, mut second) = (key(first), None);
        for e in first + 1..first + size {
            let key = key(e);
            if compare(best, key) == Ordering::Less {
                (best, second) = (key, Some(best));
            } else {
                second = Some(second.map_or(key, |second| better(second, key)));
            }
        }
        *total = second.map_or(best, |second| best + second);
    }
    let mut open = 0;
    for _ in 0..groups.used {
        let closed = (0..groups.count).filter(|g| open >> g & 1 == 0);
        let best = closed.reduce(|a, b| if compare(total[a], total[b]) == Ordering::Less { b } else { a });
        open |= 1 << best.expect("fewer groups are used than there are");
    }
    open
}
