//! What engines differ in where no key of a file says how a model was trained: named parameters with a default.
//!
//! They change what is drafted, never what is committed.

use super::config::{Arch, Config};
use super::error::ModelError;

/// Norm behind the MTP block of `nemotron_h_moe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MtpNorm {
    /// LayerNorm without a bias, as llama.cpp has it.
    #[default]
    Layer,
    /// RMSNorm, as vLLM and SGLang have it.
    Rms,
}

/// The parameters; `None` is the default of the architecture that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conventions {
    /// See [`MtpNorm`]; of `nemotron_h_moe` alone.
    pub mtp_norm: Option<MtpNorm>,
}

impl Conventions {
    /// # Errors
    /// If a parameter is given that the architecture does not have.
    pub fn check(&self, file: &str, config: &Config) -> Result<(), ModelError> {
        match (self.mtp_norm, config.arch) {
            (None, _) | (Some(_), Arch::NemotronHMoe) => Ok(()),
            (Some(_), arch) => Err(ModelError::Convention {
                file: file.to_owned(),
                parameter: "mtp-norm",
                supported: Arch::NemotronHMoe.name(),
                arch: arch.name(),
            }),
        }
    }
}
