//! TQ1_0: 256 weights of -1, 0, 1, `value = code * d`.
//!
//! `digits [48] | last digits [4] | d f16`. A byte is a fraction of 256 that holds five ternary digits: digit n is what
//! 3 times the byte `* 3^n` carries. Bytes 0..32 have digit n of weights 32n..32n+32, bytes 32..48 that of
//! 160+16n..160+16n+16, the last four bytes digit n (of four) of 240+4n..240+4n+4.
//! Source: ggml `block_tq1_0`, `dequantize_row_tq1_0`.

use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 48 + 4 + 2;
const _: () = assert!(BYTES == 54);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut code = [0; 256];
    digits(&b[..32], &mut code[..160]);
    digits(&b[32..48], &mut code[160..240]);
    digits(&b[48..52], &mut code[240..]);
    Block256 { d: f16_at(b, 52), dmin: 0.0, code, scale: [1; 16], min: [0; 16] }
}

/// The first digits of all bytes, then the second ones, for as long as there are codes.
#[inline(always)]
fn digits(bytes: &[u8], codes: &mut [i8]) {
    let mut power = 1u8;
    for codes in codes.chunks_exact_mut(bytes.len()) {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}
