//! Opening what `--model` names: a file, or the built-in model, with its tokenizer.

use std::path::PathBuf;
use std::sync::Arc;

use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::{Model, ModelError};
use engine::pieces::{PieceFlags, Pieces};
use engine_io::text::Tokenizer;
use engine_io::{ModelFile, OpenOptions};

/// Name of the built-in model.
pub const BUILT_IN: &str = "slipstream-tiny-coder";

/// A GGUF's tensors are read in place, so its bytes must start where a file's would.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static BUILT_IN_BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!("../model/slipstream-tiny-coder-Q8_0.gguf"));

/// Where a model comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelSource {
    /// The small trained coder inside the program.
    BuiltIn,
    /// A GGUF file, any shard of a split one, or a directory.
    Path(PathBuf),
}

impl From<Option<PathBuf>> for ModelSource {
    fn from(path: Option<PathBuf>) -> Self {
        path.map_or(Self::BuiltIn, Self::Path)
    }
}

impl ModelSource {
    /// Opens the file.
    ///
    /// # Errors
    /// What the reader refuses.
    pub fn open(&self, options: OpenOptions) -> engine_io::Result<ModelFile> {
        match self {
            Self::BuiltIn => ModelFile::from_static(&BUILT_IN_BYTES.0, BUILT_IN),
            Self::Path(path) => ModelFile::open(path, options),
        }
    }
}

/// A model ready to be run, and the way between its tokens and text.
pub struct Opened {
    /// The file.
    pub file: ModelFile,
    /// Weights and program.
    pub model: Arc<Model>,
    /// Text to tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens to bytes, as the engine wants them.
    pub pieces: Arc<Pieces>,
}

impl Opened {
    /// Opens `source` and loads it.
    ///
    /// # Errors
    /// What the reader or the loader refuses.
    pub fn new(source: &ModelSource, open: OpenOptions, load: LoadOptions) -> Result<Self, ModelError> {
        Self::of(source.open(open)?, None, load)
    }

    /// Loads an open file, with the MTP block of `draft` if given.
    ///
    /// # Errors
    /// What the loader refuses.
    pub fn of(file: ModelFile, draft: Option<&ModelFile>, load: LoadOptions) -> Result<Self, ModelError> {
        let planned = Planned::new(&file, draft, load)?;
        let tokenizer = Tokenizer::from_meta(file.meta())?;
        Self::load(file, draft, planned, tokenizer, load.repack)
    }

    /// Loads what was planned.
    ///
    /// # Errors
    /// What the loader refuses.
    pub fn load(
        file: ModelFile,
        draft: Option<&ModelFile>,
        planned: Planned,
        tokenizer: Tokenizer,
        repack: Repack,
    ) -> Result<Self, ModelError> {
        let model = Arc::new(planned.load(&file, draft, repack)?);
        let pieces = Arc::new(pieces(&tokenizer));
        Ok(Self { file, model, tokenizer: Arc::new(tokenizer), pieces })
    }
}

/// The engine's table of what each token writes.
pub fn pieces(tokenizer: &Tokenizer) -> Pieces {
    let from = tokenizer.pieces();
    let mut out = Pieces::new();
    for id in 0..from.len() as u32 {
        let mut flags = PieceFlags::empty();
        flags.set(PieceFlags::CONTROL, from.is_control(id));
        flags.set(PieceFlags::END, from.is_end(id));
        out.push(from.bytes(id), flags);
    }
    out
}
