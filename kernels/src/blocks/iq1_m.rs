//! IQ1_M: 256 weights, as IQ1_S with a scale per 16 and the sign of the eighth per 8.
//!
//! `index [32] | high [16] | scales u16 [4]`. Nibble l of `high` has the upper 3 bits of index l and, in its fourth,
//! the sign of the eighth. Scale j of 16 weights: bits 3(j%4) of `scales` j/4. The upper nibbles of `scales` are d, an f16.
//! Source: ggml `block_iq1_m`, `dequantize_row_iq1_m`.

use half::f16;

use super::grids::IQ1;
use super::iq1_s::put_shifted;
use super::{Block256, u16_at};

pub(crate) const BYTES: usize = 32 + 16 + 8;
const _: () = assert!(BYTES == 56);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let (mut d, mut scale) = (0, [0; 16]);
    for i in 0..4 {
        let packed = u16_at(b, 48 + 2 * i);
        d |= packed >> 12 << (4 * i);
        for j in 0..4 {
            scale[4 * i + j] = (2 * (packed >> (3 * j) & 7) + 1) as i8;
        }
    }
    let mut code = [0; 256];
    for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = b[32 + l / 2] >> (4 * (l % 2)) & 15;
        let index = usize::from(b[l]) | usize::from(high & 7) << 8;
        put_shifted(code, &IQ1[index], if high & 8 == 0 { 1 } else { -1 });
    }
    Block256 { d: f16::from_bits(d).to_f32() * 0.125, dmin: 0.0, code, scale, min: [0; 16] }
}
