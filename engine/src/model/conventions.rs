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

/// Norm of the hidden row that the MTP block of `qwen4exp` is fed, which is as wide as all residual streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HiddenNorm {
    /// Every stream by itself, as llama.cpp has it.
    #[default]
    Stream,
    /// One mean square over the whole row, as vLLM has it.
    Row,
}

/// The parameters; `None` is the default of the architecture that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conventions {
    /// See [`MtpNorm`]; of `nemotron_h_moe` alone.
    pub mtp_norm: Option<MtpNorm>,
    /// See [`HiddenNorm`]; of `qwen4exp` alone.
    pub mtp_hidden_norm: Option<HiddenNorm>,
}

impl Conventions {
    /// # Errors
    /// If a parameter is given that the architecture does not have.
    pub fn check(&self, file: &str, config: &Config) -> Result<(), ModelError> {
        let given = [
            ("mtp-norm", self.mtp_norm.is_some(), Arch::NemotronHMoe),
            ("mtp-hidden-norm", self.mtp_hidden_norm.is_some(), Arch::Qwen4Exp),
        ];
        match given.into_iter().find(|(_, given, of)| *given && config.arch != *of) {
            None => Ok(()),
            Some((parameter, _, of)) => Err(ModelError::Convention {
                file: file.to_owned(),
                parameter,
                supported: of.name(),
                arch: config.arch.name(),
            }),
        }
    }
}
