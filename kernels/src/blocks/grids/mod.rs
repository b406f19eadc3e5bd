//! The codebooks of the i-quants: points of 8 (or 4) small values, found by index. Each table is packed, a few bits a
//! value, in ascending order, and expanded when the program is compiled.

mod iq1;
mod iq2;
mod iq3;

/// 8 or 4 codes each, as the integer dot products multiply them.
pub(super) static IQ1: [[i8; 8]; 2048] = expand(&iq1::IQ1, &[-8, 0, 8]);
pub(super) static IQ2_XXS: [[i8; 8]; 256] = expand(&iq2::IQ2_XXS, &[8, 25, 43]);
pub(super) static IQ2_XS: [[i8; 8]; 512] = expand(&iq2::IQ2_XS, &[8, 25, 43]);
pub(super) static IQ2_S: [[i8; 8]; 1024] = expand(&iq2::IQ2_S, &[8, 25, 43]);
pub(super) static IQ3_XXS: [[i8; 4]; 256] = expand(&iq3::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[i8; 4]; 512] = expand(&iq3::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);

/// Every point in full: value i of a point is `values[..]` at its bits i, 2 wide for 3 values, 3 wide for 8.
const fn expand<const N: usize, const LEN: usize>(packed: &[u16; N], values: &[i8]) -> [[i8; LEN]; N] {
    let bits = if values.len() <= 4 { 2 } else { 3 };
    assert!(LEN * bits <= 16);
    let mut points = [[0; LEN]; N];
    let mut n = 0;
    while n < N {
        let mut i = 0;
        while i < LEN {
            points[n][i] = values[packed[n] as usize >> (bits * i) & ((1 << bits) - 1)];
            i += 1;
        }
        n += 1;
    }
    points
}

/// The eight signs of a 7-bit index: a set bit negates, and bit 7 makes the number of set bits even.
/// Source: ggml `ksigns_iq2xs`, of which this is the rule.
#[inline(always)]
pub(super) fn even_signs(index: u32) -> u8 {
    let index = index as u8 & 127;
    index | ((index.count_ones() & 1) << 7) as u8
}

/// `codes[i]` negated where bit i of `signs` is set.
#[inline(always)]
pub(super) fn put_signed(codes: &mut [i8], points: &[i8], signs: u8) {
    for (i, (code, &point)) in codes.iter_mut().zip(points).enumerate() {
        // 0 or -1: x ^ -1 is -x - 1.
        let mask = -((signs >> i & 1) as i8);
        *code = (point ^ mask) - mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a.
    fn checksum<const LEN: usize>(points: &[[i8; LEN]]) -> u64 {
        points
            .as_flattened()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |h, &v| (h ^ u64::from(v as u8)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// The recorded rows meet only some points; these are checksums of the expanded tables of ggml (IQ1 times 8).
    #[test]
    fn every_point_is_that_of_the_format() {
        assert_eq!(checksum(&IQ1), 0x9964_9f4b_16b0_d5dd);
        assert_eq!(checksum(&IQ2_XXS), 0xbb4e_e025_b5ac_6e8e);
        assert_eq!(checksum(&IQ2_XS), 0xc9b1_ee61_e799_09bd);
        assert_eq!(checksum(&IQ2_S), 0x123e_dd38_a3b6_2b90);
        assert_eq!(checksum(&IQ3_XXS), 0xdfa5_dc83_d6a1_55d5);
        assert_eq!(checksum(&IQ3_S), 0xfa37_020c_25b4_4829);
    }

    #[test]
    fn signs_are_even() {
        assert!((0..128).all(|i| even_signs(i).count_ones().is_multiple_of(2) && u32::from(even_signs(i) & 127) == i));
        let mut codes = [0; 4];
        put_signed(&mut codes, &[1, 2, 3, 4], 0b1010);
        assert_eq!(codes, [1, -2, 3, -4]);
    }
}
