//! The built-in model: a small trained Qwen3.5-architecture coder with an MTP block, part of the program.

/// Its name in answers.
pub const NAME: &str = "slipstream-tiny-coder";

/// Tensor data is read in place, so the bytes start where a mapped file would.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../model/slipstream-tiny-coder-Q8_0.gguf"));

/// The GGUF file.
pub fn bytes() -> &'static [u8] {
    &MODEL.0
}
