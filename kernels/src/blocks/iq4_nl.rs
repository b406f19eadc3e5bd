//! IQ4_NL: 32 weights, `value = table[nibble] * d`.
//!
//! Laid out as Q4_0. Source: ggml `block_iq4_nl`, `dequantize_row_iq4_nl`.

use super::encode::{put_f16, put_nibbles};
use super::search::{NOTHING, extreme, inverse};
use super::{Block32, IQ4_VALUES, f16_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = IQ4_VALUES[usize::from(b[2 + i] & 15)];
        code[16 + i] = IQ4_VALUES[usize::from(b[2 + i] >> 4)];
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}

/// Tries 16 scales and keeps the one with the least squared error, weighted by x squared.
/// Source: ggml `quantize_iq4_nl`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    const TRIES: i32 = 7;
    let max = extreme(x);
    let fit = |inverse: f32| {
        let (mut qx, mut qq) = (0.0f32, 0.0f32);
        for &v in x {
            let (q, w) = (f32::from(IQ4_VALUES[usize::from(closest(inverse * v))]), v * v);
            qx += w * q * v;
            qq += w * q * q;
        }
        (qx, qq)
    };
    let lowest = f32::from(IQ4_VALUES[0]);
    let mut d = 0.0;
    if max.abs() >= NOTHING {
        let (qx, qq) = fit(1.0 / (-max / lowest));
        d = qx / qq;
        let mut best = d * qx;
        for step in -TRIES..=TRIES {
            let (qx, qq) = fit((step as f32 + lowest) / max);
            if qq > 0.0 && qx * qx > best * qq {
                d = qx / qq;
                best = d * qx;
            }
        }
    }
    put_f16(b, 0, d);
    let inverse = inverse(d);
    put_nibbles(&x.map(|x| closest(inverse * x)), &mut b[2..]);
}

/// The code whose value is closest; the upper one of two.
fn closest(x: f32) -> u8 {
    let above = IQ4_VALUES.partition_point(|&value| f32::from(value) <= x);
    match above {
        0 => 0,
        16 => 15,
        _ => {
            let (low, high) = (f32::from(IQ4_VALUES[above - 1]), f32::from(IQ4_VALUES[above]));
            (if x - low < high - x { above - 1 } else { above }) as u8
        }
    }
}
