//! Three formats of int8 codes with f32 scales. No file has them: they are what a format without a panel kernel of its
//! own is expanded to, one for each way to scale. Every number of the decoded block is kept, so products and values
//! have the same bits.
//!
//! | format | bytes |
//! |---|---|
//! | Wide16 | `d f32 [2] (per 16) \| codes [32]` |
//! | Wide32 | `d f32 \| codes [32]` |
//! | Wide256 | `d f32 \| scales i8 [16] \| codes [256]` |

use super::{Block16, Block32, Block256, f32_at};

pub(crate) const BYTES_16: usize = 8 + 32;
pub(crate) const BYTES_32: usize = 4 + 32;
pub(crate) const BYTES_256: usize = 4 + 16 + 256;

#[inline(always)]
pub(crate) fn encode_16(block: &Block16, to: &mut [u8]) {
    to[..4].copy_from_slice(&block.d[0].to_le_bytes());
    to[4..8].copy_from_slice(&block.d[1].to_le_bytes());
    put(&mut to[8..], &block.code);
}

#[inline(always)]
pub(crate) fn decode_16(b: &[u8]) -> Block16 {
    Block16 { d: [f32_at(b, 0), f32_at(b, 4)], code: codes(&b[8..]) }
}

#[inline(always)]
pub(crate) fn encode_32(block: &Block32, to: &mut [u8]) {
    to[..4].copy_from_slice(&block.d.to_le_bytes());
    put(&mut to[4..], &block.code);
}

#[inline(always)]
pub(crate) fn decode_32(b: &[u8]) -> Block32 {
    Block32 { d: f32_at(b, 0), m: 0.0, code: codes(&b[4..]) }
}

#[inline(always)]
pub(crate) fn encode_256(block: &Block256, to: &mut [u8]) {
    to[..4].copy_from_slice(&block.d.to_le_bytes());
    put(&mut to[4..20], &block.scale);
    put(&mut to[20..], &block.code);
}

#[inline(always)]
pub(crate) fn decode_256(b: &[u8]) -> Block256 {
    Block256 { d: f32_at(b, 0), dmin: 0.0, code: codes(&b[20..]), scale: codes(&b[4..]), min: [0; 16] }
}

#[inline(always)]
fn put(to: &mut [u8], codes: &[i8]) {
    for (to, &code) in to.iter_mut().zip(codes) {
        *to = code as u8;
    }
}

#[inline(always)]
fn codes<const N: usize>(b: &[u8]) -> [i8; N] {
    let mut codes = [0; N];
    for (code, &b) in codes.iter_mut().zip(b) {
        *code = b as i8;
    }
    codes
}
