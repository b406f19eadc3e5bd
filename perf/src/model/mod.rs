//! Models of random weights: files of real shapes and types, which take the memory and the time of published ones and
//! can be made anywhere. They know nothing.

mod mix;
mod nemotron_h;
mod qwen35;
mod shapes;
mod values;
mod vocabulary;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use engine_io::TensorType;
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, Value};

pub use mix::Mix;
pub use shapes::Shape;
use shapes::{Hybrid, Vocab};
use values::{Data, Values};

/// What a file is made of.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Dimensions.
    pub shape: Shape,
    /// Storage of the matrices.
    pub mix: Mix,
    /// An MTP block behind the others.
    pub mtp: bool,
    /// Decides every weight.
    pub seed: u64,
}

/// A tensor of a shape: what is known before its storage is.
struct Planned {
    name: String,
    dims: Vec<u64>,
    values: Values,
}

/// Metadata and tensors of a shape, without a tokenizer.
struct Outline {
    arch: &'static str,
    /// All blocks, an MTP block included.
    blocks: u64,
    vocab: Vocab,
    /// Keys below the architecture's name.
    keys: Vec<(&'static str, Value)>,
    tensors: Vec<Planned>,
}

impl Outline {
    fn of(hybrid: &Hybrid, mtp: bool) -> Self {
        match hybrid {
            Hybrid::Qwen35(shape) => qwen35::outline(shape, mtp),
            Hybrid::NemotronH(shape) => nemotron_h::outline(shape, mtp),
        }
    }

    /// The storage of every tensor.
    fn types(&self, mix: Mix) -> Vec<TensorType> {
        let matrices = |t: &&Planned| matches!(t.values, Values::Matrix);
        let named = mix::Names::of(self.tensors.iter().filter(matrices).map(|t| t.name.as_str()), self.blocks);
        self.tensors
            .iter()
            .map(|t| match t.values {
                Values::Matrix => mix.of(&t.name, &named),
                _ => TensorType::F32,
            })
            .collect()
    }

    fn meta(&self, path: &str, name: &str, mix: Mix) -> engine_io::Result<Meta> {
        let mut meta = Meta::new(path);
        meta.push("general.architecture", Value::str(self.arch))?;
        meta.push("general.name", Value::str(&format!("random weights, shape {name}")))?;
        for (key, value) in &self.keys {
            meta.push(&format!("{}.{key}", self.arch), value.clone())?;
        }
        vocabulary::describe(&self.vocab, &mut meta)?;
        meta.push("general.quantization_version", Value::U32(2))?;
        meta.push("general.file_type", Value::U32(mix.file_type()))?;
        Ok(meta)
    }
}

impl Recipe {
    /// Writes the model to `path`, a piece at a time.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let outline = Outline::of(self.shape.table(), self.mtp);
        let types = outline.types(self.mix);
        let layout = self.layout(&outline, &types, &path.display().to_string())?;
        let file = File::create(path).map_err(|error| format!("{}: cannot create: {error}", path.display()))?;
        let mut out = layout.start(BufWriter::with_capacity(1 << 20, file))?;
        for (i, (tensor, ty)) in outline.tensors.iter().zip(types).enumerate() {
            let seed = self.seed.wrapping_add((i as u64) << 40);
            out.tensor(Data::new(tensor.values, ty, &tensor.dims, seed))?;
        }
        out.finish()?.flush()?;
        Ok(())
    }

    fn layout(&self, outline: &Outline, types: &[TensorType], path: &str) -> engine_io::Result<Layout> {
        let mut layout = Layout::new(outline.meta(path, &self.shape.name(), self.mix)?)?;
        for (tensor, ty) in outline.tensors.iter().zip(types) {
            layout.tensor(&tensor.name, &tensor.dims, *ty)?;
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests;
