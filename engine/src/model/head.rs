//! The MTP head that a model would have: its tensors, and the metadata of a file with that head alone.

use engine_io::compat::source::{Geometry, Wanted};
use engine_io::gguf::{Meta, Value, keys};
use engine_io::{ModelFile, TensorType};

use super::config::{Config, Mixer};
use super::error::ModelError;
use super::graft::keys::edits;
use super::schema::schema;

/// What a head of some model is.
#[derive(Clone, Debug)]
pub struct HeadSpec {
    /// Metadata of a file of the head: the model's, with one NextN block behind its trunk.
    pub meta: Meta,
    /// The same as hyperparameters.
    pub config: Config,
    /// Its tensors, in the order in which the program asks for them.
    pub wanted: Vec<Wanted>,
    /// What the step from a checkpoint needs to know.
    pub geometry: Geometry,
}

impl HeadSpec {
    /// Of a model, whether it has a head already or not.
    ///
    /// # Errors
    /// Metadata that cannot be read or made longer by a block; an architecture without MTP block; a model of several.
    pub fn of(model: &ModelFile) -> Result<Self, ModelError> {
        let target = Config::read(model.meta())?;
        let arch = target.arch.name();
        if !target.arch.has_mtp() {
            return Err(ModelError::NoHead { file: model.name(), arch });
        }
        if target.nextn > 1 {
            return Err(ModelError::Unsupported {
                file: model.name(),
                key: keys::arch(arch, keys::NEXTN_PREDICT_LAYERS),
                found: target.nextn.to_string(),
                supported: String::from("models of at most 1"),
            });
        }
        let meta = with_head(model.meta(), &target)?;
        let config = Config::read(&meta)?;
        let mut asked = config.clone();
        if let Some(own) = &mut asked.qwen4exp {
            // The head has an indexer whether its attention uses it or not.
            own.ratio[target.trunk] = own.ratio.iter().copied().max().unwrap_or(0).max(1);
        }
        let rows = model.tensor("token_embd.weight").map_or(0, |t| t.dim(1));
        let own = format!("blk.{}.", target.trunk);
        let mut wanted = Vec::new();
        for t in schema(&asked).into_iter().filter(|t| t.name.starts_with(&own)) {
            let mut dims = t.dims;
            // Tables are as long as the target's, which may be padded beyond the tokens.
            if t.name.ends_with("nextn.embed_tokens.weight") || t.name.ends_with("nextn.shared_head_head.weight") {
                dims[1] = rows;
            }
            // One row is a vector.
            if dims.len() == 2 && dims[1] == 1 {
                dims.truncate(1);
            }
            // Of one RMS norm or another: the checkpoint always has it.
            let optional = t.optional && !t.name.ends_with("nextn.shared_head_norm.weight");
            wanted.push(Wanted { name: t.name, dims, optional });
        }
        let block = config.blocks[target.trunk];
        debug_assert_eq!(block.mixer, Mixer::Attention, "a NextN block is one");
        let geometry = Geometry { heads: [block.heads as u64, block.kv_heads as u64] };
        Ok(Self { meta, config, wanted, geometry })
    }

    /// Number of the head's block.
    pub fn block(&self) -> usize {
        self.config.trunk
    }

    /// Says in the metadata which type most of the file is of.
    pub fn set_type(&mut self, ty: TensorType) {
        set_type(&mut self.meta, ty);
    }
}

/// Says in `general.*` which type most of a file is of.
pub fn set_type(meta: &mut Meta, ty: TensorType) {
    meta.set("general.file_type", Value::U32(file_type(ty)));
    match ty.block_len() {
        1 => drop(meta.remove("general.quantization_version")),
        _ => meta.set("general.quantization_version", Value::U32(2)),
    }
}

/// Values of `general.file_type`. Source: ggml `llama_ftype`; types of which a file is never mostly made are "guessed".
fn file_type(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Q5_0 => 8,
        TensorType::Q5_1 => 9,
        TensorType::Q2K => 10,
        TensorType::Q3K => 11,
        TensorType::Q4K => 14,
        TensorType::Q5K => 16,
        TensorType::Q6K => 18,
        TensorType::Iq4Nl => 25,
        TensorType::Bf16 => 32,
        _ => 1024,
    }
}

/// Metadata of a model with one NextN block behind its trunk, told apart from the model by its name.
fn with_head(model: &Meta, config: &Config) -> Result<Meta, ModelError> {
    let gone = |key: &str| {
        key.starts_with("split.")
            || key.starts_with("quantize.")
            || ["general.size_label", "general.file_type", "general.quantization_version"].contains(&key)
    };
    let mut meta = Meta::new(model.file());
    model.iter().filter(|(key, _)| !gone(key)).for_each(|(key, value)| meta.set(key, value.clone()));
    let edits = edits(model, None, config).map_err(|mut wrong| wrong.swap_remove(0))?;
    edits.into_iter().for_each(|edit| meta.set(&edit.key, edit.to));
    if let Ok(Some(name)) = model.get_str(keys::NAME)
        && !name.ends_with(" MTP head")
    {
        meta.set(keys::NAME, Value::str(&format!("{name} MTP head")));
    }
    Ok(meta)
}
