use std::sync::Arc;

use super::*;
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::input::InputScratch;
use crate::matrix::Matrix;
use crate::ops::exp::{exp, sigmoid};
use crate::quant::{Activation, Quant};
use crate::test_data::random_rows;
use crate::test_noise::{Noise, bits};

const PLAIN: Router =
    Router { experts: 4, used: 2, gating: Gating::Sigmoid, groups: None, norm_floor: None, scale: 1.0 };

/// Routes of one row on one thread of plain Rust.
fn row(router: &Router, logits: &[f32], bias: Option<&[f32]>) -> Vec<Route> {
    let mut routes = vec![Route::default(); router.used];
    route(&Pool::new(1), Isa::Scalar, router, &mut logits.to_vec(), bias, &mut routes);
    routes
}

fn ids(routes: &[Route]) -> Vec<u32> {
    routes.iter().map(|r| r.expert).collect()
}

fn weights(routes: &[Route]) -> Vec<f32> {
    routes.iter().map(|r| r.weight).collect()
}

#[test]
fn best_first_and_ties_to_the_lower_id() {
    assert_eq!(ids(&row(&PLAIN, &[0.0, 3.0, -1.0, 2.0], None)), [1, 3]);
    assert_eq!(ids(&row(&PLAIN, &[1.0, 1.0, 1.0, 1.0], None)), [0, 1]);
    assert_eq!(ids(&row(&PLAIN, &[0.0, 1.0, 2.0, 1.0], None)), [2, 1]);
    assert_eq!(ids(&row(&Router { used: 4, ..PLAIN }, &[1.0, 2.0, 2.0, 1.0], None)), [1, 2, 0, 3]);
}

#[test]
fn weights_are_scores_by_the_formula() {
    let logits = [0.5, 3.0, -1.0, 2.0];
    let plain = row(&PLAIN, &logits, None);
    assert_eq!(bits(&weights(&plain)), bits(&[sigmoid(3.0), sigmoid(2.0)]));
    let softmax = Router { gating: Gating::Softmax, ..PLAIN };
    let e = logits.map(|x| exp(x - 3.0));
    let sum = e.iter().map(|&e| f64::from(e)).sum::<f64>() as f32;
    assert_eq!(bits(&weights(&row(&softmax, &logits, None))), bits(&[e[1] / sum, e[3] / sum]));
    let normed = Router { norm_floor: Some(1e-4), scale: 2.5, ..softmax };
    let (a, b) = (e[1] / sum, e[3] / sum);
    let both = (f64::from(a) + f64::from(b)) as f32;
    assert_eq!(bits(&weights(&row(&normed, &logits, None))), bits(&[a / both * 2.5, b / both * 2.5]));
    let floored = Router { norm_floor: Some(4.0), ..PLAIN };
    assert_eq!(bits(&weights(&row(&floored, &logits, None))), bits(&[sigmoid(3.0) / 4.0, sigmoid(2.0) / 4.0]));
}

/// A bias chooses; the weights are those of the scores without it.
#[test]
fn bias_is_for_choosing_only() {
    let routes = row(&PLAIN, &[0.0, 3.0, -1.0, 2.0], Some(&[0.0, -5.0, 4.0, 0.0]));
    assert_eq!(ids(&routes), [2, 3]);
    assert_eq!(bits(&weights(&routes)), bits(&[sigmoid(-1.0), sigmoid(2.0)]));
}

/// The group of the best expert loses to one with two good ones; groups of one expert count it once.
#[test]
fn groups_count_their_two_best() {
    let grouped = |count, used| Router { experts: 6, groups: Some(Groups { count, used }), ..PLAIN };
    let logits = [4.0, -4.0, -4.0, 1.0, 2.0, 1.5];
    assert_eq!(ids(&row(&grouped(2, 1), &logits, None)), [4, 5]);
    assert_eq!(ids(&row(&grouped(2, 2), &logits, None)), [0, 4]);
    assert_eq!(ids(&row(&grouped(3, 2), &logits, None)), [0, 4]);
    // Sums of the pairs: 0.98 + 0.02, 0.02 + 0.73, 0.88 + 0.82.
    assert_eq!(ids(&row(&grouped(3, 1), &logits, None)), [4, 5]);
    assert_eq!(ids(&row(&grouped(6, 2), &logits, None)), [0, 4]);
    // Equal groups: the lower one.
    assert_eq!(ids(&row(&grouped(3, 1), &[1.0; 6], None)), [0, 1]);
    // The bias counts in the choice of groups too.
    let bias = [0.0, 3.0, 3.0, 0.0, 0.0, 0.0];
    assert_eq!(ids(&row(&grouped(2, 1), &logits, Some(&bias))), [1, 2]);
}

/// Against a sort of all experts, for many shapes.
#[test]
fn the_choice_is_the_head_of_the_sorted_list() {
    let mut noise = Noise::new(11);
    for case in 0..400 {
        let experts = 1 + noise.below(70);
        let used = 1 + noise.below(experts);
        let router = Router { experts, used, ..PLAIN };
        // Few values, so that many are equal.
        let logits: Vec<f32> = (0..experts).map(|_| noise.below(9) as f32 / 4.0).collect();
        let bias: Vec<f32> = (0..experts).map(|_| noise.below(3) as f32 / 8.0).collect();
        let bias = (case % 2 == 0).then_some(&bias[..]);
        let key = |e: usize| sigmoid(logits[e]) + bias.map_or(0.0, |b| b[e]);
        let mut sorted: Vec<usize> = (0..experts).collect();
        sorted.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
        let want: Vec<u32> = sorted[..used].iter().map(|&e| e as u32).collect();
        assert_eq!(ids(&row(&router, &logits, bias)), want, "{used} of {experts}");
    }
}

/// A row that is not finite still names experts that exist, each once; its weights spoil its own sum alone.
#[test]
fn rows_of_nan_choose_something() {
    for gating in [Gating::Softmax, Gating::Sigmoid] {
        for groups in [None, Some(Groups { count: 2, used: 1 })] {
            let router = Router { gating, groups, norm_floor: Some(6e-5), ..PLAIN };
            let routes = row(&router, &[f32::NAN; 4], None);
            assert_eq!(ids(&routes), [0, 1]);
            assert!(routes.iter().all(|r| r.weight.is_nan()));
        }
    }
    assert_eq!(ids(&row(&PLAIN, &[f32::NAN, 1.0, f32::NAN, 2.0], None)), [3, 1]);
    assert_eq!(ids(&row(&Router { used: 3, ..PLAIN }, &[f32::NAN, 1.0, f32::NAN, 2.0], None)), [3, 1, 0]);
}

#[test]
fn routers_that_cannot_choose_are_invalid() {
    assert!(PLAIN.is_valid());
    assert!(!Router { used: 0, ..PLAIN }.is_valid());
    assert!(!Router { used: 5, ..PLAIN }.is_valid());
    let grouped = |count, used| Router { groups: Some(Groups { count, used }), ..PLAIN };
    assert!(grouped(2, 1).is_valid() && grouped(4, 2).is_valid());
    for (count, used) in [(0, 0), (3, 1), (2, 0), (2, 3), (4, 1)] {
        assert!(!grouped(count, used).is_valid(), "{used} of {count} groups");
    }
    let many = Groups { count: 128, used: 128 };
    assert!(!Router { experts: 128, groups: Some(many), ..PLAIN }.is_valid());
}

#[test]
fn threads_instruction_sets_and_neighbours_route_alike() {
    let mut noise = Noise::new(5);
    for gating in [Gating::Softmax, Gating::Sigmoid] {
        let groups = Some(Groups { count: 13, used: 6 });
        let router = Router { experts: 143, used: 9, gating, groups, norm_floor: Some(6.103_515_6e-5), scale: 2.5 };
        let rows = 170;
        let logits = noise.vec(rows * router.experts);
        let bias = noise.vec(router.experts);
        let want: Vec<Route> = logits.chunks_exact(router.experts).flat_map(|x| row(&router, x, Some(&bias))).collect();
        for isa in Isa::available() {
            for threads in 1..=3 {
                let mut routes = vec![Route::default(); rows * router.used];
                route(&Pool::new(threads), isa, &router, &mut logits.clone(), Some(&bias), &mut routes);
                assert_eq!(ids(&routes), ids(&want), "{isa:?}, {threads} threads");
                assert_eq!(bits(&weights(&routes)), bits(&weights(&want)), "{isa:?}, {threads} threads");
            }
        }
    }
}

/// Experts of one format, and the file bytes of each matrix.
struct Bank {
    gate: Option<Vec<Matrix>>,
    up: Vec<Matrix>,
    down: Vec<Matrix>,
    bytes: [Vec<Vec<u8>>; 3],
    quant: Quant,
    k: usize,
    width: usize,
}

impl Bank {
    fn new(quant: Quant, count: usize, (k, width, n): (usize, usize, usize), gated: bool, repack: bool) -> Self {
        let shapes = [(width, k), (width, k), (n, width)];
        let bytes: [Vec<Vec<u8>>; 3] = std::array::from_fn(|part| {
            let (n, k) = shapes[part];
            (0..count).map(|e| random_rows(quant, n, k, (100 * part + e) as u64)).collect()
        });
        let matrices = |part: usize| -> Vec<Matrix> {
            let (n, k) = shapes[part];
            let new = |bytes: &Vec<u8>| Matrix::new(quant, n, k, Arc::new(bytes.clone())).expect("a valid shape");
            let mut all: Vec<Matrix> = bytes[part].iter().map(new).collect();
            if repack {
                Matrix::repack_all(&mut all.iter_mut().collect::<Vec<_>>());
            }
            all
        };
        let (gate, up, down) = (gated.then(|| matrices(0)), matrices(1), matrices(2));
        Self { gate, up, down, bytes, quant, k, width }
    }

    fn weights(&self) -> Experts<'_> {
        Experts { gate: self.gate.as_deref(), up: &self.up, down: &self.down }
    }

    /// The formula for one row, product by product.
    fn specification(&self, mode: Activation, routes: &[Route], x: &[f32]) -> Vec<f32> {
        let product = |part: usize, e: u32, x: &[f32]| -> Vec<f32> {
            let rows = self.bytes[part][e as usize].chunks_exact(self.quant.row_bytes(x.len()));
            rows.map(|row| self.quant.dot_reference(row, x, mode)).collect()
        };
        let mut sum: Option<Vec<f32>> = None;
        for Route { expert, weight } in routes {
            let up = product(1, *expert, x);
            let hidden: Vec<f32> = match self.gate {
                Some(_) => product(0, *expert, x).iter().zip(up).map(|(g, u)| g / (1.0 + exp(0.0 - g)) * u).collect(),
                None => up.iter().map(|u| u.max(0.0) * u.max(0.0)).collect(),
            };
            let y: Vec<f32> = product(2, *expert, &hidden).iter().map(|y| y * weight).collect();
            sum = Some(match sum {
                None => y,
                Some(sum) => sum.iter().zip(y).map(|(s, y)| s + y).collect(),
            });
        }
        sum.expect("a row has experts")
    }
}

/// Routes of random distinct experts.
fn random_routes(noise: &mut Noise, rows: usize, used: usize, count: usize) -> Vec<Route> {
    let mut routes = Vec::new();
    for _ in 0..rows {
        let first = routes.len();
        while routes.len() < first + used {
            let expert = noise.below(count) as u32;
            if routes[first..].iter().all(|r: &Route| r.expert != expert) {
                routes.push(Route { expert, weight: noise.signed() });
            }
        }
    }
    routes
}

/// Every format, both activations, file rows and panels, all instruction sets, several batches and thread counts: the
/// bits of the formula, row by row.
#[test]
fn every_batch_gives_the_bits_of_the_formula() {
    let (count, used, rows) = (5, 3, 11);
    for (quant, dims) in [
        (Quant::F32, (40, 24, 35)),
        (Quant::Q8_0, (64, 32, 48)),
        (Quant::Q4_1, (32, 64, 17)),
        (Quant::Q4_K, (256, 256, 20)),
    ] {
        let mut noise = Noise::new(3);
        let x = noise.vec(rows * dims.0);
        let routes = random_routes(&mut noise, rows, used, count);
        for (gated, repack, mode) in
            [(true, false, Activation::Integer), (false, true, Activation::Integer), (true, true, Activation::Exact)]
        {
            let bank = Bank::new(quant, count, dims, gated, repack);
            let (k, n) = (bank.k, dims.2);
            assert_eq!(bank.width, dims.1);
            let want: Vec<f32> = x
                .chunks_exact(k)
                .zip(routes.chunks_exact(used))
                .flat_map(|(x, routes)| bank.specification(mode, routes, x))
                .collect();
            assert!(want.iter().all(|v| v.is_finite()));
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let pool = Pool::new(threads);
                    let mut scratch = (InputScratch::new(), ExpertScratch::default());
                    for batch in [rows, 1, 4] {
                        let mut got = vec![f32::NAN; rows * n];
                        let parts = x.chunks(batch * k).zip(routes.chunks(batch * used));
                        for ((x, routes), dst) in parts.zip(got.chunks_mut(batch * n)) {
                            let scratch = (&mut scratch.0, &mut scratch.1);
                            experts(&pool, isa, mode, bank.weights(), routes, x, scratch, dst);
                        }
                        let what = format!("{} {mode:?} {isa:?} {threads} threads, {batch} rows", quant.name());
                        assert_eq!(bits(&got), bits(&want), "{what}");
                    }
                }
            }
        }
    }
}

/// The order of a row's sum is the order of its routes: turning them round changes bits, so no other order is used.
#[test]
fn the_sum_follows_the_routes() {
    let bank = Bank::new(Quant::F32, 6, (40, 24, 64), true, false);
    let mut noise = Noise::new(8);
    let x = noise.vec(bank.k);
    let routes = random_routes(&mut noise, 1, 6, 6);
    let mut turned = routes.clone();
    turned.reverse();
    let run = |routes: &[Route]| {
        let mut dst = vec![0.0; 64];
        let mut scratch = (InputScratch::new(), ExpertScratch::default());
        let scratch = (&mut scratch.0, &mut scratch.1);
        experts(&Pool::new(1), Isa::best(), Activation::Exact, bank.weights(), routes, &x, scratch, &mut dst);
        bits(&dst)
    };
    assert_eq!(run(&routes), bits(&bank.specification(Activation::Exact, &routes, &x)));
    assert_ne!(run(&routes), run(&turned));
}

#[test]
fn a_bad_row_spoils_no_other() {
    let bank = Bank::new(Quant::Q8_0, 4, (64, 32, 48), true, false);
    let mut noise = Noise::new(9);
    let mut x = noise.vec(5 * 64);
    let routes = random_routes(&mut noise, 5, 2, 4);
    let run = |x: &[f32]| {
        let mut dst = vec![0.0; 5 * 48];
        let mut scratch = (InputScratch::new(), ExpertScratch::default());
        let scratch = (&mut scratch.0, &mut scratch.1);
        experts(&Pool::new(2), Isa::best(), Activation::Integer, bank.weights(), &routes, x, scratch, &mut dst);
        dst
    };
    let good = run(&x);
    x[2 * 64 + 5] = f32::NAN;
    let bad = run(&x);
    for (r, (good, bad)) in good.chunks_exact(48).zip(bad.chunks_exact(48)).enumerate() {
        assert_eq!(bits(good) == bits(bad), r != 2, "row {r}");
        assert_eq!(bad.iter().all(|v| v.is_nan()), r == 2, "row {r}");
    }
}

/// A second batch that is no larger uses the memory of the first.
#[test]
fn memory_is_reused() {
    let bank = Bank::new(Quant::Q8_0, 4, (64, 32, 48), true, false);
    let mut noise = Noise::new(10);
    let mut scratch = (InputScratch::new(), ExpertScratch::default());
    let mut sizes = Vec::new();
    for rows in [9, 9, 4, 9] {
        let x = noise.vec(rows * 64);
        // The same experts for every row, so that the largest gathering comes first.
        let routes: Vec<Route> = (0..2 * rows).map(|i| Route { expert: (i % 2) as u32, weight: 0.5 }).collect();
        let mut dst = vec![0.0; rows * 48];
        let pool = Pool::new(1);
        let parts = (&mut scratch.0, &mut scratch.1);
        experts(&pool, Isa::best(), Activation::Integer, bank.weights(), &routes, &x, parts, &mut dst);
        let s = &scratch.1;
        let floats = [&s.gathered, &s.hidden, &s.up, &s.out].map(Vec::capacity);
        sizes.push((floats, s.start.capacity(), s.pair.capacity(), s.row.capacity()));
        let bytes = 4 * floats.iter().sum::<usize>() + 8 * (s.pair.capacity() + s.row.capacity());
        assert!(bytes <= ExpertScratch::bytes_for(9, 2, 64, 32, 48), "{bytes}");
    }
    assert!(sizes.iter().all(|s| *s == sizes[0]), "{sizes:?}");
}
