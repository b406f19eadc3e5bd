use super::{argmax, log_sum_exp, softmax_in_place, top_k};
use crate::cpu::detect::Isa;
use crate::test_noise::{Noise, bits};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn the_greatest_wins_ties_go_to_the_lowest_id_and_nan_never_wins() {
    let mut noise = Noise::new(8);
    for len in (1..=200).chain([4095, 4096, 4097, 9000]) {
        let mut row: Vec<f32> = (0..len).map(|_| noise.below(40) as f32 - 20.0).collect();
        for _ in 0..len / 7 {
            row[noise.below(len)] = [NAN, -INF][noise.below(2)];
        }
        let mut expected: Option<(u32, f32)> = None;
        for (id, &x) in row.iter().enumerate() {
            if x.is_finite() && expected.is_none_or(|(_, best)| x > best) {
                expected = Some((id as u32, x));
            }
        }
        for isa in Isa::available() {
            assert_eq!(argmax(isa, &row), expected, "{len} logits, {isa:?}");
        }
    }
}

#[test]
fn a_row_without_a_finite_maximum_is_reported() {
    for row in [&[][..], &[NAN; 70], &[-INF; 70], &[NAN, -INF, NAN], &[1.0, INF, 2.0]] {
        for isa in Isa::available() {
            assert_eq!(argmax(isa, row), None);
            assert_eq!(log_sum_exp(isa, row), None);
            let mut copy = row.to_vec();
            assert!(!softmax_in_place(isa, &mut copy));
            assert_eq!(bits(&copy), bits(row));
        }
    }
    let mut found = Vec::new();
    top_k(&[NAN, -INF], 3, &mut found);
    assert!(found.is_empty());
}

#[test]
fn top_k_is_a_stable_sort() {
    let mut noise = Noise::new(9);
    let mut found = Vec::new();
    for len in [1, 5, 40, 1000] {
        let mut row: Vec<f32> = (0..len).map(|_| noise.below(30) as f32).collect();
        row[noise.below(len)] = NAN;
        row[noise.below(len)] = -INF;
        let mut sorted: Vec<(u32, f32)> =
            row.iter().enumerate().filter(|(_, x)| x.is_finite()).map(|(id, &x)| (id as u32, x)).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        for k in [0, 1, 2, 10, 64, 2000] {
            top_k(&row, k, &mut found);
            assert_eq!(found, sorted[..k.min(sorted.len())]);
        }
    }
}

#[test]
fn sums_are_close_to_double_precision_and_equal_on_every_instruction_set() {
    let mut noise = Noise::new(10);
    for len in (1..=70).chain([4095, 4096, 4097, 248_320]) {
        let mut row: Vec<f32> = (0..len).map(|_| noise.signed() * 12.0).collect();
        if len > 3 {
            row[len / 2] = NAN;
            row[len - 1] = -INF;
        }
        let exact: f64 = row.iter().filter(|x| !x.is_nan()).map(|&x| f64::from(x).exp()).sum();
        let plain = log_sum_exp(Isa::Scalar, &row).unwrap();
        assert!((f64::from(plain) - exact.ln()).abs() < 2e-6, "{len}: {plain} {}", exact.ln());
        let mut probabilities = row.clone();
        softmax_in_place(Isa::Scalar, &mut probabilities);
        for (&p, &x) in probabilities.iter().zip(&row) {
            let exact = if x.is_nan() { 0.0 } else { f64::from(x).exp() / exact };
            assert!((f64::from(p) - exact).abs() <= 3e-6 * exact);
        }
        for isa in Isa::available() {
            assert_eq!(log_sum_exp(isa, &row).unwrap().to_bits(), plain.to_bits());
            let mut copy = row.clone();
            assert!(softmax_in_place(isa, &mut copy));
            assert_eq!(bits(&copy), bits(&probabilities));
        }
    }
}
