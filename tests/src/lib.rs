//! Fixtures, the toy model, GGUF writer presets.
