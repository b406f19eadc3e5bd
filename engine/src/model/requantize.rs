//! Which tensors of an MTP head are stored in another type, and as which; and the step itself, rows at a time.
//!
//! What few values decide much with stays as it is; what mixes residual streams keeps 8 bits: below that the drafts of a
//! head with hyper-connections no longer follow the text.
//!
//! Source of names and fall-backs: llama.cpp `src/llama-quant.cpp`.

use engine_io::TensorType;
use engine_io::gguf::TensorInfo;

use super::tensors::quant_of;

/// What becomes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is stored in this type; the reason, where it is not the one asked for.
    To(TensorType, Option<&'static str>),
    /// It stays, for this reason.
    Keep(&'static str),
    /// It is quantised already.
    Lower,
}

/// Types that [`fate`] may be asked for.
pub fn types() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|ty| can_write(*ty))
}

fn can_write(ty: TensorType) -> bool {
    quant_of(ty).is_some_and(|quant| quant.can_quantize())
}

/// Bits of 32 weights.
fn bits(ty: TensorType) -> u64 {
    ty.block_bytes() * 8 * 32 / ty.block_len()
}

/// What becomes of a head's tensor when the type `to` is asked for. `again`: tensors that are quantised may be quantised
/// once more.
pub fn fate(t: &TensorInfo, to: TensorType, again: bool) -> Fate {
    let name = t.name.as_str();
    let exact = ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ple_conv1d.weight"];
    if t.dims().len() < 2 || !name.ends_with(".weight") || name.ends_with("norm.weight") {
        return Fate::Keep("a norm or a bias");
    }
    if exact.iter().any(|part| name.ends_with(part)) {
        return Fate::Keep("a router, a gate or a small convolution");
    }
    let mut chosen = (to, None);
    if name.contains(".hc_") && bits(to) < bits(TensorType::Q8_0) {
        chosen = (TensorType::Q8_0, Some("it mixes residual streams, which takes 8 bits"));
    }
    while !t.row_len().is_multiple_of(chosen.0.block_len()) {
        let Some(next) = fallback(chosen.0) else { return Fate::Keep("its rows are no multiple of 32") };
        chosen = (next, Some("its rows are no multiple of 256"));
    }
    let (ty, reason) = chosen;
    if t.ty == ty {
        return Fate::Keep("it is of that type already");
    }
    let quantised = t.ty.block_len() > 1;
    match (quantised, again) {
        (true, false) => Fate::Lower,
        (true, true) if bits(t.ty) <= bits(ty) => Fate::Keep("it is as small already"),
        (false, _) if bits(t.ty) < bits(ty) => Fate::Keep("it is smaller already"),
        _ => Fate::To(ty, reason),
    }
}

/// For rows that are no multiple of 256.
fn fallback(ty: TensorType) -> Option<TensorType> {
    Some(match ty {
        TensorType::Q2K | TensorType::Q3K => TensorType::Q4_0,
        TensorType::Q4K => TensorType::Q5_0,
        TensorType::Q5K => TensorType::Q5_1,
        TensorType::Q6K => TensorType::Q8_0,
        _ => return None,
    })
}

/// What was lost.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Loss {
    /// Sum of squared differences.
    pub error: f64,
    /// Sum of squared values.
    pub power: f64,
}

impl Loss {
    /// Of several parts.
    pub fn add(&mut self, other: Self) {
        self.error += other.error;
        self.power += other.power;
    }

    /// Error by power.
    pub fn nmse(&self) -> f64 {
        if self.power > 0.0 { self.error / self.power } else { 0.0 }
    }
}

/// Values of a tensor that are no numbers, or too large for the type.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("holds {0}, expected finite values within the range of {1}; use another type, or the head as it was published")]
pub struct NotFinite(f32, TensorType);

/// Stores whole rows of one type in another.
///
/// # Errors
/// [`NotFinite`].
///
/// # Panics
/// If a type cannot be read or written, or a length is not that of `weights`.
pub fn rows(
    (from, bytes): (TensorType, &[u8]),
    (to, out): (TensorType, &mut [u8]),
    weights: usize,
) -> Result<Loss, NotFinite> {
    let (source, target) = (quant_of(from).expect("a type to read"), quant_of(to).expect("a type to write"));
    let (mut values, mut stored) = (vec![0.0; weights], vec![0.0; weights]);
    source.dequantize(bytes, &mut values);
    if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
        return Err(NotFinite(*bad, to));
    }
    target.quantize(&values, out);
    target.dequantize(out, &mut stored);
    let mut loss = Loss::default();
    for (&value, &stored) in values.iter().zip(&stored) {
        if !stored.is_finite() {
            return Err(NotFinite(value, to));
        }
        loss.error += (f64::from(stored) - f64::from(value)).powi(2);
        loss.power += f64::from(value).powi(2);
    }
    Ok(loss)
}

/// Whether a type can be read here at all.
pub fn can_read(ty: TensorType) -> bool {
    quant_of(ty).is_some()
}
