use super::{Pairing, Rope, RopeTable};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::test_noise::{Noise, bits};

fn rope(pairing: Pairing, n_rot: usize, freq_base: f32) -> Rope {
    Rope { pairing, n_rot, freq_base, freq_scale: 1.0, freq_factors: Vec::new() }
}

/// One head, straight from the formula in double precision.
fn naive(rope: &Rope, position: u32, head: &[f32]) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    for c in 0..rope.n_rot / 2 {
        let factor = f64::from(rope.freq_factors.get(c).copied().unwrap_or(1.0));
        let power = f64::from(rope.freq_base).powf(-2.0 * c as f64 / rope.n_rot as f64);
        let angle = f64::from(position) * power / factor * f64::from(rope.freq_scale);
        let (i, j) = match rope.pairing {
            Pairing::Halves => (c, c + rope.n_rot / 2),
            Pairing::Adjacent => (2 * c, 2 * c + 1),
        };
        let (a, b) = (f64::from(head[i]), f64::from(head[j]));
        out[i] = a * angle.cos() - b * angle.sin();
        out[j] = a * angle.sin() + b * angle.cos();
    }
    out
}

#[test]
fn close_to_the_formula_for_both_pairings_partial_heads_scale_and_factors() {
    let mut noise = Noise::new(11);
    let pool = Pool::new(2);
    for pairing in [Pairing::Halves, Pairing::Adjacent] {
        for (head_dim, n_rot) in [(16, 16), (32, 8), (64, 64), (128, 64), (256, 64), (24, 6)] {
            let mut rope = rope(pairing, n_rot, 10_000.0);
            if head_dim == 128 {
                rope.freq_scale = 0.25;
                rope.freq_factors = (0..n_rot / 2).map(|c| 1.0 + c as f32 / 4.0).collect();
            }
            let (heads, positions) = (3, [0, 1, 17, 900]);
            let x = noise.vec(positions.len() * heads * head_dim);
            let mut table = RopeTable::default();
            rope.fill(&positions, &mut table);
            let mut plain = x.clone();
            rope.apply(&pool, Isa::Scalar, &table, head_dim, &mut plain);
            for isa in Isa::available() {
                let mut copy = x.clone();
                rope.apply(&pool, isa, &table, head_dim, &mut copy);
                assert_eq!(bits(&copy), bits(&plain));
            }
            for (n, (got, head)) in plain.chunks(head_dim).zip(x.chunks(head_dim)).enumerate() {
                let position = positions[n / heads];
                for (got, expected) in got.iter().zip(naive(&rope, position, head)) {
                    assert!((f64::from(*got) - expected).abs() < 3e-6 * f64::from(position.max(30)) / 10.0);
                }
                assert_eq!(got[n_rot..], head[n_rot..], "what is past n_rot passes through");
                assert!(position > 0 || got == head, "position 0 turns nothing");
            }
        }
    }
}

#[test]
fn angles_are_the_iterative_product() {
    let rope = rope(Pairing::Halves, 64, 1e7);
    let mut table = RopeTable::default();
    rope.fill(&[4242], &mut table);
    let step = 1e7f64.powf(-2.0 / 64.0) as f32;
    let mut theta = 4242f32;
    for c in 0..32 {
        assert_eq!(table.cos[c].to_bits(), (f64::from(theta).cos() as f32).to_bits());
        theta *= step;
    }
    // Every pair turns at a large position: no stream of M-RoPE is missing.
    assert!(table.sin.iter().all(|&s| s != 0.0));
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let mut noise = Noise::new(12);
    let pool = Pool::new(3);
    let rope = rope(Pairing::Halves, 64, 1e6);
    let positions: Vec<u32> = (0..33).map(|i| i * 7 + 3).collect();
    let x = noise.vec(33 * 4 * 128);
    let mut table = RopeTable::default();
    rope.fill(&positions, &mut table);
    let mut together = x.clone();
    rope.apply(&pool, Isa::best(), &table, 128, &mut together);
    for (r, &position) in positions.iter().enumerate() {
        rope.fill(&[position], &mut table);
        let mut alone = x[r * 512..][..512].to_vec();
        rope.apply(&pool, Isa::best(), &table, 128, &mut alone);
        assert_eq!(bits(&alone), bits(&together[r * 512..][..512]));
    }
}
