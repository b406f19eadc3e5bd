use super::{argmax, log_sum_exp};
use crate::cpu::detect::Isa;
use crate::test_noise::Noise;

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
        for isa in Isa::available() {
            assert_eq!(log_sum_exp(isa, &row).unwrap().to_bits(), plain.to_bits());
        }
    }
}
