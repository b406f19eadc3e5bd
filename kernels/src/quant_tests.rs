use std::path::PathBuf;

use super::*;
use crate::blocks::f16_at;

/// The recorded quants of ggml, from SLIPSTREAM_FIXTURES or the committed copy.
struct Fixture {
    bytes: Vec<u8>,
}

impl Fixture {
    fn open() -> Option<Fixture> {
        let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/quants/quants.safetensors");
        let named = std::env::var_os("SLIPSTREAM_FIXTURES").map(|d| PathBuf::from(d).join("quants/quants.safetensors"));
        let path = named.into_iter().chain([beside]).find(|p| p.exists());
        if path.is_none() {
            println!("skipped: no quants fixture (SLIPSTREAM_FIXTURES is not set)");
        }
        Some(Fixture { bytes: std::fs::read(path?).expect("a readable fixture") })
    }

    fn tensor(&self, name: &str) -> Vec<u8> {
        let file = safetensors::SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.tensor(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

fn fixture_name(quant: Quant) -> String {
    quant.name().to_lowercase().replace("_k", "_K")
}

fn ulps(a: f32, b: f32) -> u32 {
    let key = |v: f32| if v.is_sign_negative() { -(v.to_bits() as i64 & 0x7fff_ffff) } else { i64::from(v.to_bits()) };
    (key(a) - key(b)).unsigned_abs() as u32
}

#[test]
fn dequantises_as_ggml() {
    let Some(fixture) = Fixture::open() else { return };
    for quant in Quant::ALL {
        let name = fixture_name(quant);
        let expected = fixture.floats(&format!("{name}.deq"));
        let mut found = vec![0.0; expected.len()];
        quant.dequantize(&fixture.tensor(&format!("{name}.bytes")), &mut found);
        let worst = found.iter().zip(&expected).map(|(&a, &b)| ulps(a, b)).max();
        assert_eq!(worst, Some(0), "{name}: ulps");
    }
}

#[test]
fn quantises_as_ggml() {
    let Some(fixture) = Fixture::open() else { return };
    let x = fixture.floats("src");
    let mut written = 0;
    for quant in Quant::ALL.into_iter().filter(|quant| quant.can_quantize()) {
        let name = fixture_name(quant);
        let expected = fixture.tensor(&format!("{name}.bytes"));
        let mut found = vec![0xa5; expected.len()];
        quant.quantize(&x, &mut found);
        let bytes = quant.row_bytes(512);
        for (row, (found, expected)) in found.chunks_exact(bytes).zip(expected.chunks_exact(bytes)).enumerate() {
            let differ = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{name} row {row}: bytes that differ, of {bytes}");
        }
        written += 1;
    }
    assert_eq!(written, 14);
}

#[test]
fn activations_are_quantised_as_ggml() {
    let Some(fixture) = Fixture::open() else { return };
    let x = fixture.floats("x");
    for (x, b) in x.as_chunks::<32>().0.iter().zip(fixture.tensor("x.q8_0").chunks_exact(34)) {
        let q = Plain.block_32(x);
        assert_eq!(q.scale, f16_at(b, 0));
        assert!(q.codes.iter().zip(&b[2..]).all(|(a, b)| *a == *b as i8));
    }
    for (x, b) in x.as_chunks::<32>().0.iter().zip(fixture.tensor("x.q8_1").chunks_exact(36)) {
        let q = Plain.block_32(x);
        assert_eq!(q.scale, f16_at(b, 0));
        assert_eq!(q.scaled_sum, f16_at(b, 2));
        assert!(q.codes.iter().zip(&b[4..]).all(|(a, b)| *a == *b as i8));
    }
    for (x, b) in x.as_chunks::<256>().0.iter().zip(fixture.tensor("x.q8_K").chunks_exact(292)) {
        let q = Plain.block_256(x);
        let scale = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        assert_eq!(q.scale, scale.abs());
        let sign = scale.signum() as i8;
        assert!(q.codes.iter().zip(&b[4..260]).all(|(a, b)| *a == *b as i8 * sign));
    }
}

/// The integer formula in f64, from dequantised weights and activations where the format has no minimum.
fn integer_formula(quant: Quant, row: &[u8], x: &[f32]) -> f64 {
    let mut w = vec![0.0; x.len()];
    quant.dequantize(row, &mut w);
    let dot = |x: &[f32], w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
    match quant.family() {
        Family::Float => dot(x, &w),
        Family::Block16 => w
            .as_chunks::<32>()
            .0
            .iter()
            .zip(x.as_chunks::<32>().0)
            .map(|(w, x)| {
                let q = Plain.block_32(x);
                dot(&q.codes.map(|c| f32::from(c) * q.scale), w)
            })
            .sum(),
        Family::Block32 { .. } => quant
            .blocks_32(row)
            .zip(w.as_chunks::<32>().0)
            .zip(x.as_chunks::<32>().0)
            .map(|((block, w), x)| {
                let (q, m) = (Plain.block_32(x), f64::from(block.m));
                // The minimum is multiplied by the rounded sum, not by the sum of the rounded values.
                let values = q.codes.map(|c| f32::from(c) * q.scale);
                let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
                dot(&values, w) + m * (f64::from(q.scaled_sum) - sum)
            })
            .sum(),
        Family::Block256 { .. } => w
            .as_chunks::<256>()
            .0
            .iter()
            .zip(x.as_chunks::<256>().0)
            .map(|(w, x)| {
                let q = Plain.block_256(x);
                dot(&q.codes.map(|c| f32::from(c) * q.scale), w)
            })
            .sum(),
    }
}

#[test]
fn dot_products_agree_with_ggml_and_with_the_exact_formula() {
    let Some(fixture) = Fixture::open() else { return };
    let x = fixture.floats("x");
    let x_norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    for quant in Quant::ALL {
        let name = fixture_name(quant);
        let bytes = fixture.tensor(&format!("{name}.bytes"));
        let peer = fixture.floats(&format!("{name}.vec_dot"));
        let values = fixture.floats(&format!("{name}.deq"));
        let bound = if matches!(quant.family(), Family::Block16 | Family::Block32 { .. }) { 1e-7 } else { 1e-12 };
        // The peer rounds the activations of F16 and BF16 to the weight type; this engine does not.
        let peer_x: Vec<f32> = match quant {
            Quant::F16 => x.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect(),
            Quant::BF16 => x.iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect(),
            _ => x.clone(),
        };
        let (mut error, mut power) = (0f64, 0f64);
        for (r, row) in bytes.chunks_exact(quant.row_bytes(512)).enumerate() {
            let w = &values[512 * r..][..512];
            let limit = 1e-6 * x_norm * w.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let dot = |x: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();

            let exact = quant.dot_reference(row, &x, Activation::Exact);
            assert!((f64::from(exact) - dot(&x)).abs() <= limit, "{name} row {r}: exact {exact}, {}", dot(&x));

            let integer = quant.dot_reference(row, &x, Activation::Integer);
            let sum = integer_formula(quant, row, &x);
            assert!((f64::from(integer) - sum).abs() <= limit, "{name} row {r}: integer {integer}, {sum}");

            let found = quant.dot_reference(row, &peer_x, Activation::Integer);
            error += (f64::from(found) - f64::from(peer[r])).powi(2);
            power += f64::from(peer[r]).powi(2);
        }
        println!("{name}: NMSE {:e}", error / power);
        assert!(error / power <= bound, "{name}: NMSE {:e} against the peer", error / power);
    }
}

#[test]
fn activation_blocks_at_the_edges() {
    let zero = Plain.block_32(&[0.0; 32]);
    assert_eq!((zero.scale, zero.scaled_sum), (0.0, 0.0));
    assert_eq!(zero.codes, [0; 32]);
    assert_eq!(Plain.block_256(&[-0.0; 256]).scale, 0.0);

    // Too small to have an inverse, and too large for a half: no infinity appears.
    let tiny = Plain.block_256(&[1e-40; 256]);
    assert_eq!((tiny.scale, tiny.codes), (0.0, [0; 256]));
    let large = Plain.block_32(&[-3e38; 32]);
    assert!(large.scale.is_finite() && large.codes == [-127; 32]);

    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [1.0; 256];
        x[77] = bad;
        assert!(Plain.block_256(&x).scale.is_nan());
        assert!(Plain.block_32(x[64..96].as_array().expect("32")).scale.is_nan());
        assert_eq!(Plain.block_32(x[..32].as_array().expect("32")).codes, [127; 32]);
    }
}
