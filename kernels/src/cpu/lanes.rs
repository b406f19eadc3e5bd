//! Sixteen lanes of f32: the vector that every op is written in, once, for all instruction sets.
//!
//! [`Plain`] is an array of 16 floats and plain Rust: it is the specification. The other implementations do the same
//! operation in every lane, and IEEE arithmetic leaves no freedom in any of them (fused multiply-add is one rounding
//! everywhere), so results agree bit for bit by construction; tests hold them to it.
//!
//! A [`Simd`] value is a proof that its instructions exist: [`dispatch`] alone makes one, after detection. Kernels are
//! `#[inline(always)]` all the way down, so that they are compiled with the instruction set of the caller.

use super::detect::Isa;

/// Lanes of a vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// `1.5 * 2^23`: adding it to a small float rounds that to an integer, kept in the low bits of the sum.
pub(crate) const ROUND_MAGIC: f32 = 12_582_912.0;

/// An instruction set, present on this machine.
pub(crate) trait Simd: Copy {
    /// Its vector of 16 floats.
    type V: Vector;
    /// Vectors that fit the register file beside a few temporaries; tiles are chosen by it, results are not.
    const REGISTERS: usize;
    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Exact widening of IEEE half precision.
    fn load_f16(self, x: &[u16; LANES]) -> Self::V;

    /// Up to 16 floats, missing lanes zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        if let Ok(full) = x.try_into() {
            return self.load(full);
        }
        let mut full = [0.0; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load(&full)
    }
}

/// Sixteen floats. Every operation acts in each lane alone unless it says otherwise.
pub(crate) trait Vector: Copy {
    fn store(self, dst: &mut [f32; LANES]);
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`: b where either is NaN.
    fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`: b where either is NaN.
    fn min(self, b: Self) -> Self;
    /// `self * 2^n`, n the integer that [`ROUND_MAGIC`] left in `rounded`, `-252 <= n <= 254`; two steps, so that
    /// subnormal results are reached by gradual underflow.
    fn scale(self, rounded: Self) -> Self;
    /// The first `n` lanes of self, the rest of `rest`.
    fn first(self, n: usize, rest: Self) -> Self;

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out);
        out
    }

    /// The first lanes, as many as `dst` is long.
    #[inline(always)]
    fn store_partial(self, dst: &mut [f32]) {
        if let Ok(full) = dst.try_into() {
            return self.store(full);
        }
        dst.copy_from_slice(&self.to_array()[..dst.len()]);
    }

    /// Sum of the lanes in a fixed tree: lane i + lane i+8, then + 4, + 2, + 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut a = self.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }

    /// Greatest lane; NaN lanes are passed over, -inf if there is nothing else.
    #[inline(always)]
    fn greatest(self) -> f32 {
        self.to_array().into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
}

/// Something to do on any instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Out;
    /// Must be `#[inline(always)]`, and everything hot that it calls too. Closures cannot be: an operation of
    /// [`Vector`] inside one (`array::from_fn` included) becomes a call.
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// Runs the kernel on `isa`.
///
/// # Panics
/// If the machine does not have it.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    assert!(isa <= Isa::best(), "{isa:?} is not available on this machine");
    match isa {
        Isa::Scalar => kernel.run(Plain),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::avx2::lanes::run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::avx512::lanes::run(kernel),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("detection finds no other instruction set here"),
    }
}

/// The specification.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Simd for Plain {
    type V = [f32; LANES];
    const REGISTERS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::V {
        x.map(|bits| half::f16::from_bits(bits).to_f32())
    }
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Vector for [f32; LANES] {
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES]) {
        *dst = self;
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        zip(self, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        zip(self, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        zip(self, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        zip(self, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        zip(self, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        zip(self, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn scale(self, rounded: Self) -> Self {
        zip(self, rounded, scale)
    }
    #[inline(always)]
    fn first(self, n: usize, rest: Self) -> Self {
        std::array::from_fn(|i| if i < n { self[i] } else { rest[i] })
    }
}

/// [`Vector::scale`] of one lane.
#[inline(always)]
fn scale(x: f32, rounded: f32) -> f32 {
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    x * power(half) * power(n.wrapping_sub(half))
}

#[cfg(test)]
mod tests;
