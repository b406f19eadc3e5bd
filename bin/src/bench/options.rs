//! How a model is opened and run by the measuring verbs.

use std::path::PathBuf;
use std::sync::Arc;

use crate::flags::physical_cores;
use crate::open::ModelSource;
use clap::{Args, ValueEnum};
use engine::exec::{Activation, CpuExecutor, ExecOptions, Isa, KvType};
use engine::limits::Limits;
use engine::memory::{Memory, MemoryError};
use engine::model::conventions::{Conventions, HiddenNorm, MtpNorm};
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::{Model, ModelError};
use engine_io::{ModelFile, OpenOptions};

/// Most workers that a flag may ask for.
pub(crate) const THREADS_MAX: usize = 1024;

/// A number of a flag, from `low` to `high`.
pub(crate) fn within(low: usize, high: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse::<usize>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from {low} to {high}")),
    }
}

/// Spellings of the KV types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KvFlag {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
}

/// Spellings of the repacking policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RepackFlag {
    /// Where it pays and fits.
    Auto,
    /// Every matrix.
    On,
    /// Weights stay in the file.
    Off,
}

/// Spellings of the norm behind an MTP block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MtpNormFlag {
    /// LayerNorm without a bias.
    Layer,
    /// RMSNorm.
    Rms,
}

/// Spellings of the norm of the row that an MTP block is fed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HiddenNormFlag {
    /// Over the whole row.
    Row,
    /// Every stream of it by itself.
    Stream,
}

/// Where engines differ in how a model is run and its file does not say.
#[derive(Clone, Copy, Debug, Args)]
pub struct ConventionFlags {
    /// Norm behind the MTP block of a nemotron_h_moe model: it changes what is drafted, not what is answered [default: layer]
    #[arg(long, value_enum)]
    pub mtp_norm: Option<MtpNormFlag>,
    /// Norm of the row that the MTP block of a qwen4exp model is fed: it changes what is drafted, not what is answered [default: stream]
    #[arg(long, value_enum)]
    pub mtp_hidden_norm: Option<HiddenNormFlag>,
}

impl ConventionFlags {
    /// As the loader takes them.
    pub fn resolve(self) -> Conventions {
        let mtp_norm = self.mtp_norm.map(|norm| match norm {
            MtpNormFlag::Layer => MtpNorm::Layer,
            MtpNormFlag::Rms => MtpNorm::Rms,
        });
        let mtp_hidden_norm = self.mtp_hidden_norm.map(|norm| match norm {
            HiddenNormFlag::Row => HiddenNorm::Row,
            HiddenNormFlag::Stream => HiddenNorm::Stream,
        });
        Conventions { mtp_norm, mtp_hidden_norm }
    }
}

/// Flags that every measuring verb has.
#[derive(Clone, Debug, Args)]
pub struct RunFlags {
    /// A GGUF file, any shard of a split one, a directory that holds one, a layer package, or hf:ORG/NAME[:QUANT] of a hub
    /// [default: the built-in model]
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// An MTP sidecar, or hf:ORG/NAME[:QUANT] of a hub.
    #[arg(long, visible_alias = "spec-draft-model", value_name = "SIDECAR.gguf")]
    pub draft_model: Option<PathBuf>,
    /// Workers, the main thread included.
    #[arg(long, short = 't', default_value_t = physical_cores(), value_parser = within(1, THREADS_MAX))]
    pub threads: usize,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv_type: KvFlag,
    /// Multiply float activations instead of quantised ones.
    #[arg(long)]
    pub exact_activations: bool,
    /// Read the file into memory instead of mapping it.
    #[arg(long)]
    pub no_mmap: bool,
    /// Copy weights into the kernels' own layout.
    #[arg(long, value_enum, default_value = "auto")]
    pub repack: RepackFlag,
    /// Refuse a file with tensors that nothing reads.
    #[arg(long)]
    pub strict: bool,
    /// What engines differ in.
    #[command(flatten)]
    pub conventions: ConventionFlags,
}

/// The files that a run reads.
pub struct Files {
    /// The model.
    pub model: ModelFile,
    /// The sidecar.
    pub draft: Option<ModelFile>,
}

impl RunFlags {
    /// Opens the files.
    ///
    /// # Errors
    /// What the reader refuses.
    pub fn open(&self) -> Result<Files, ModelError> {
        let open = OpenOptions { mmap: !self.no_mmap, strict: self.strict };
        let model = ModelSource::from(self.model.clone()).open(open)?;
        let draft = self.draft_model.as_ref().map(|path| ModelFile::open(path, open)).transpose()?;
        Ok(Files { model, draft })
    }

    fn load_options(&self) -> LoadOptions {
        let repack = match self.repack {
            RepackFlag::Auto => Repack::Auto,
            RepackFlag::On => Repack::On,
            RepackFlag::Off => Repack::Off,
        };
        LoadOptions { repack, strict: self.strict, conventions: self.conventions.resolve(), stage: None }
    }

    /// What loading will do, without a look at the weights.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn plan(&self, model: &ModelFile, draft: Option<&ModelFile>) -> Result<Planned, ModelError> {
        Planned::new(model, draft, self.load_options())
    }

    /// Loads the model.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn load(&self, files: Files) -> Result<Arc<Model>, ModelError> {
        Ok(Arc::new(Model::load(&files.model, files.draft.as_ref(), self.load_options())?))
    }

    /// How the model is run.
    pub fn exec_options(&self) -> ExecOptions {
        ExecOptions {
            kv_type: match self.kv_type {
                KvFlag::F32 => KvType::F32,
                KvFlag::F16 => KvType::F16,
            },
            activation: if self.exact_activations { Activation::Exact } else { Activation::Integer },
            threads: self.threads,
            isa: Isa::best(),
        }
    }

    /// An executor of `limits` for a loaded model.
    ///
    /// # Errors
    /// If the limits are out of range or larger than the memory.
    pub fn executor(&self, model: Arc<Model>, limits: &Limits) -> Result<CpuExecutor, MemoryError> {
        let options = self.exec_options();
        Memory::of_executor(&model, limits, &options)?.ask_system(limits)?;
        Ok(CpuExecutor::new(model, limits.clone(), options))
    }
}
