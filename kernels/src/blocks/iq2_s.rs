//! IQ2_S: 256 weights, `value = (d * (scale + 1/2) / 4) * +-point`, 4-bit scale per 16.
//!
//! `d f16 | index [32] | signs [32] | high [8] | scales [8]`. Bits 2l of `high` j are the upper bits of index 4j + l;
//! its signs are a byte. Scales as in IQ2_XS. Source: ggml `block_iq2_s`, `dequantize_row_iq2_s`.

use super::grids::{IQ2_S, put_signed};
use super::iq2_xs::odd_scales;
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 2 + 64 + 8 + 8;
const _: () = assert!(BYTES == 82);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut code = [0; 256];
    for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = b[66 + l / 4] >> (2 * (l % 4)) & 3;
        let index = usize::from(b[2 + l]) | usize::from(high) << 8;
        put_signed(code, &IQ2_S[index], b[34 + l]);
    }
    Block256 { d: f16_at(b, 0) * 0.125, dmin: 0.0, code, scale: odd_scales(&b[74..]), min: [0; 16] }
}
