use super::{Kernel, LANES, ROUND_MAGIC, Simd, Vector, dispatch};
use crate::cpu::detect::Isa;
use crate::test_noise::Noise;

/// Every operation on the given operands, as bits.
struct Everything([[f32; LANES]; 3]);

impl Kernel for Everything {
    type Out = Vec<[u32; LANES]>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Out {
        let [a, b, c] = self.0.map(|x| s.load(&x));
        let integer = s.splat(-37.0 + ROUND_MAGIC);
        let mut out = vec![
            a.add(b),
            a.sub(b),
            a.mul(b),
            a.div(b),
            a.mul_add(b, c),
            a.max(b),
            a.min(b),
            a.scale(integer),
            s.splat(a.sum()),
            s.splat(a.greatest()),
            s.load_f16(&self.0[0].map(|x| (x.to_bits() >> 16) as u16)),
            s.load_partial(&self.0[1][..11]),
        ];
        for n in 0..=LANES {
            out.push(a.first(n, b));
        }
        out.into_iter().map(|v| v.to_array().map(canonical)).collect()
    }
}

/// Which NaN comes out of an operation is not specified.
fn canonical(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

#[test]
fn every_instruction_set_does_what_plain_rust_does() {
    let mut noise = Noise::new(1);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN_POSITIVE, 1e-40, f32::MAX, -1.0];
    for round in 0..200 {
        let operands = std::array::from_fn(|_| {
            std::array::from_fn(|_| {
                if round % 2 == 1 && noise.below(3) == 0 {
                    special[noise.below(special.len())]
                } else {
                    noise.signed() * 8.0
                }
            })
        });
        let plain = dispatch(Isa::Scalar, Everything(operands));
        for isa in Isa::available() {
            assert_eq!(dispatch(isa, Everything(operands)), plain, "{isa:?}, {operands:?}");
        }
    }
}

#[test]
fn the_sum_is_the_stated_tree() {
    struct Sum([f32; LANES]);
    impl Kernel for Sum {
        type Out = f32;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            s.load(&self.0).sum()
        }
    }
    let mut noise = Noise::new(2);
    let a: [f32; LANES] = std::array::from_fn(|_| noise.signed());
    let e = |i: usize| a[i] + a[i + 8];
    let f = |i: usize| e(i) + e(i + 4);
    let expected = (f(0) + f(2)) + (f(1) + f(3));
    for isa in Isa::available() {
        assert_eq!(dispatch(isa, Sum(a)).to_bits(), expected.to_bits());
    }
}
