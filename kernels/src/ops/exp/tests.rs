use super::{exp, exp_lanes, sigmoid, softplus};
use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::test_noise::{Noise, bits};

struct Exp([f32; LANES]);

impl Kernel for Exp {
    type Out = [f32; LANES];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Out {
        exp_lanes(s, s.load(&self.0)).to_array()
    }
}

#[test]
fn exp_is_close_everywhere_and_equal_on_every_instruction_set() {
    let mut noise = Noise::new(3);
    let mut worst = 0.0f64;
    for _ in 0..20_000 {
        let x: [f32; LANES] = std::array::from_fn(|_| 0.5 + noise.signed() * 87.5);
        let plain = dispatch(Isa::Scalar, Exp(x));
        for isa in Isa::available() {
            assert_eq!(bits(&dispatch(isa, Exp(x))), bits(&plain));
        }
        for (&x, &y) in x.iter().zip(&plain) {
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(y) - exact).abs() / exact / f64::from(f32::EPSILON));
        }
    }
    assert!(worst < 1.1, "{worst} units of 2^-23");
}

#[test]
fn exp_at_its_ends() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp(-200.0).to_bits(), 0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(88.8), f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
    assert!((exp(88.7) / f64::from(88.7f32).exp() as f32 - 1.0).abs() < 1e-6);
    // Subnormal results are reached by gradual underflow.
    let tiny = exp(-95.0);
    assert!(tiny > 0.0 && tiny < f32::MIN_POSITIVE);
    assert!((f64::from(tiny) - (-95f64).exp()).abs() <= 2f64.powi(-149));
}

#[test]
fn sigmoid_and_softplus() {
    assert_eq!(sigmoid(0.0), 0.5);
    assert_eq!(sigmoid(200.0), 1.0);
    assert_eq!(sigmoid(-200.0), 0.0);
    assert!((sigmoid(1.25) - (1.0 / (1.0 + (-1.25f64).exp())) as f32).abs() < 1e-7);
    assert_eq!(softplus(21.5), 21.5);
    assert_eq!(softplus(0.0), std::f32::consts::LN_2);
    assert!(softplus(-30.0) > 0.0);
    assert!((softplus(19.9) - 19.9).abs() < 1e-5);
}
