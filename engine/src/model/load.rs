//! Opens a model: metadata to configuration, tensor directory to plan, tensor bytes to matrices.
//!
//! Matrices are views of the file; nothing is copied but the small vectors, and what [`Repack`] asks for.

use std::sync::Arc;

use engine_io::gguf::TensorInfo;
use engine_io::{FileWatch, ModelFile};
use engine_kernels::Matrix;

use super::config::Config;
use super::conventions::Conventions;
use super::dialect::{self, Directory};
use super::error::ModelError;
use super::plan::{FileView, MtpStatus, Plan};
use super::program::{MatrixId, Program, VectorId};
use super::sidecar;
use super::stage::{self, Stage, StageChoice};
use super::tensors::{Inventory, Slabs, Source, WantedMatrix};

/// Whether matrices are copied into the kernels' own layout. Results are the same bits either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Repack {
    /// Where the kernels measurably gain and the copy stays below [`AUTO_BYTES`] in all.
    #[default]
    Auto,
    /// Every matrix.
    On,
    /// None: weights stay in the mapped file.
    Off,
}

/// Copies of [`Repack::Auto`] in all.
pub const AUTO_BYTES: u64 = 2 << 30;

/// Settings of [`Model::load`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadOptions {
    /// Layout of the matrices.
    pub repack: Repack,
    /// Refuse a file with tensors that nothing reads.
    pub strict: bool,
    /// What engines differ in.
    pub conventions: Conventions,
    /// Load one stage of the model alone.
    pub stage: Option<StageChoice>,
}

/// Weights in order of their ids.
pub struct Weights {
    matrices: Vec<Matrix>,
    /// Per id, and one more: where its matrices begin.
    start: Vec<usize>,
    vectors: Vec<Vec<f32>>,
}

impl Weights {
    /// A matrix that stands alone.
    pub fn matrix(&self, id: MatrixId) -> &Matrix {
        debug_assert_eq!(self.stack(id).len(), 1, "a stack is not one matrix");
        &self.matrices[self.start[id.index()]]
    }

    /// The matrices of a stack.
    pub fn stack(&self, id: MatrixId) -> &[Matrix] {
        &self.matrices[self.start[id.index()]..self.start[id.index() + 1]]
    }

    /// A vector.
    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.index()]
    }

    /// All vectors, in order of their ids.
    pub fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        self.vectors.iter().map(Vec::as_slice)
    }

    /// All stacks, in order of their ids.
    pub fn stacks(&self) -> impl Iterator<Item = &[Matrix]> {
        self.start.windows(2).map(|w| &self.matrices[w[0]..w[1]])
    }

    /// Gives back the matrices of all ids but the first `len`.
    fn truncate(&mut self, len: usize) {
        self.start.truncate(len + 1);
        self.matrices.truncate(self.start[len]);
        self.matrices.shrink_to_fit();
    }

    /// Bytes that one pass over all matrices reads.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|m| m.bytes() as u64).sum()
    }
}

/// A model that can be run.
pub struct Model {
    /// Hyperparameters.
    pub config: Config,
    /// Operations.
    pub program: Program,
    /// Weights.
    pub weights: Weights,
    /// The blocks that are run.
    pub stage: Stage,
    /// Rows of the token table: ids that may be embedded.
    pub vocab_rows: usize,
    /// Ids that may be chosen: `0..vocab`.
    pub vocab: usize,
    /// Where the MTP block comes from, or why there is none.
    pub mtp: MtpStatus,
    /// Tensors that no operation reads.
    pub unexpected: Vec<String>,
    /// Tensors of its MTP head that are read under another name than the file's, a line for each.
    pub renamed: Vec<String>,
    /// Tensors of its MTP head that are left out, a line for each, with the reason.
    pub dropped: Vec<String>,
    /// The mapped files that weights are read from, of the model and of the draft file. What a pass computes is the
    /// model's own only if these are unchanged after it.
    pub files: FileWatch,
}

/// A model as far as its metadata and tensor directory tell; no data of its tensors has been read.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Hyperparameters.
    pub config: Config,
    /// Operations, and the tensors they want.
    pub plan: Plan,
    own: Directory,
    beside: Option<Directory>,
}

impl Planned {
    /// Plans `model`, or the stage of it that the options name, with the MTP block of `draft` if given.
    ///
    /// # Errors
    /// [`ModelError`]: the first contradiction of the metadata, or everything that is wrong with the tensor directory.
    pub fn new(model: &ModelFile, draft: Option<&ModelFile>, options: LoadOptions) -> Result<Self, ModelError> {
        let config = Config::read(model.meta())?;
        let stage = stage::resolve(model, &config, options.stage)?;
        let draft_config = draft.map(sidecar::config).transpose()?;
        let own = dialect::of_model(model, &config);
        let beside =
            draft.zip(draft_config.as_ref()).map(|(file, config)| dialect::of_sidecar(file, config, Some(model)));
        let tensors = Inventory::new(&own.tensors);
        let draft_tensors = beside.as_ref().map(|d| Inventory::new(&d.tensors));
        let path = model.name();
        let draft_path = draft.map(ModelFile::name);
        let draft_view = match (&draft_path, &draft_config, &draft_tensors) {
            (Some(path), Some(config), Some(tensors)) => {
                let refused = beside.as_ref().and_then(|d| d.refused.as_deref());
                Some(FileView { path, config, tensors, refused })
            }
            _ => None,
        };
        let view = FileView { path: &path, config: &config, tensors: &tensors, refused: own.refused.as_deref() };
        // A stage may be one block, too.
        if stage.is_whole() && config.nextn > 0 && sidecar::has_one_block(model) {
            // A head's block may have any number, and its tensors any dialect's names.
            let head = dialect::of_sidecar(model, &config, None);
            let refused = head.refused.as_deref();
            sidecar::refuse(FileView { tensors: &Inventory::new(&head.tensors), refused, ..view })?;
        }
        let plan = Plan::new(view, stage, draft_view, options.strict, options.conventions)?;
        Ok(Self { config, plan, own, beside })
    }

    /// Plans a sidecar without the model that it drafts for, to be sized and described.
    ///
    /// # Errors
    /// As [`Self::new`]; a file that is no sidecar.
    pub fn sidecar(file: &ModelFile, options: LoadOptions) -> Result<Self, ModelError> {
        let config = sidecar::config(file)?;
        let own = dialect::of_sidecar(file, &config, None);
        let tensors = Inventory::new(&own.tensors);
        let refused = own.refused.as_deref();
        let view = FileView { path: &file.name(), config: &config, tensors: &tensors, refused };
        let plan = Plan::sidecar(view, options.conventions)?;
        Ok(Self { config, plan, own, beside: None })
    }

    /// Tensors of the MTP head that are read under another name than the file's, a line for each.
    pub fn renamed(&self) -> &[String] {
        &self.head().renamed
    }

    /// Tensors of the MTP head that are left out, a line for each, with the reason.
    pub fn dropped(&self) -> &[String] {
        &self.head().dropped
    }

    /// The head that drafts is the one whose names matter.
    fn head(&self) -> &Directory {
        self.beside.as_ref().unwrap_or(&self.own)
    }

    /// Reads the weights from the files that were planned.
    ///
    /// # Errors
    /// [`ModelError`]: what is wrong with the data, or a file that was written meanwhile.
    pub fn load(self, model: &ModelFile, draft: Option<&ModelFile>, repack: Repack) -> Result<Model, ModelError> {
        let Self { config, plan, own, beside } = self;
        let tensors = Inventory::new(&own.tensors);
        let draft_tensors = beside.as_ref().map(|d| Inventory::new(&d.tensors));
        let file = |from: Source, name: &str| {
            let (file, tensors) = match (from, draft, &draft_tensors) {
                (Source::Draft, Some(draft), Some(tensors)) => (draft, tensors),
                _ => (model, &tensors),
            };
            (file, tensors.get(name).expect("what is planned is in the directory"))
        };
        let (matrices, start) = matrices(&plan, file, repack)?;
        let weights = Weights { matrices, start, vectors: vectors(&plan, file)? };
        let files = FileWatch::of(std::iter::once(model).chain(draft));
        files.check()?;
        let Plan { program, stage, vocab_rows, vocab, mtp, unexpected, .. } = plan;
        let Directory { renamed, dropped, .. } = beside.unwrap_or(own);
        Ok(Model { config, program, weights, stage, vocab_rows, vocab, mtp, unexpected, renamed, dropped, files })
    }
}

impl Model {
    /// Loads `model`, with the MTP block of `draft` if given.
    ///
    /// # Errors
    /// As [`Planned::new`] and [`Planned::load`].
    pub fn load(model: &ModelFile, draft: Option<&ModelFile>, options: LoadOptions) -> Result<Self, ModelError> {
        Planned::new(model, draft, options)?.load(model, draft, options.repack)
    }

    /// Runs without an MTP block from now on; `reason` is what is told. What was copied of its matrices is given back, and
    /// an executor built from here on has neither its cache nor its hidden rows; its few vectors stay.
    pub fn drop_mtp(&mut self, reason: String) {
        self.program.drop_mtp();
        self.weights.truncate(self.program.trunk_matrices());
        self.mtp = MtpStatus::Unavailable(reason);
    }
}

/// The matrices of every want, and where each want's begin.
fn matrices<'a>(
    plan: &Plan,
    file: impl Fn(Source, &str) -> (&'a ModelFile, &'a TensorInfo),
    repack: Repack,
) -> Result<(Vec<Matrix>, Vec<usize>), ModelError> {
    let mut out = Vec::with_capacity(plan.matrices.iter().map(|want| want.slabs.count).sum());
    let mut start = vec![0];
    for want in &plan.matrices {
        let (file, tensor) = file(want.from, &want.name);
        let bytes = file.data(tensor);
        let Slabs { count, parts, part } = want.slabs;
        let len = bytes.as_ref().len() / (count * parts);
        for slab in 0..count {
            let first = (slab * parts + part) * len;
            let matrix = Matrix::new(want.quant, want.n, want.k, Arc::new(bytes.slice(first..first + len)));
            out.push(matrix.map_err(|reason| ModelError::Matrix {
                file: file.name(),
                tensor: want.name.clone(),
                reason,
            })?);
        }
        start.push(out.len());
    }
    let counts = repacked(plan, repack);
    let mut slabs =
        plan.matrices.iter().zip(counts).flat_map(|(want, n)| (0..want.slabs.count).map(move |slab| slab < n));
    // Copies for an MTP block lie apart: they can be given back without the others.
    let (trunk, block) = out.split_at_mut(start[plan.program.trunk_matrices()]);
    for part in [trunk, block] {
        let mut chosen: Vec<&mut Matrix> =
            part.iter_mut().zip(&mut slabs).filter(|(_, chosen)| *chosen).map(|(m, _)| m).collect();
        Matrix::repack_all(&mut chosen);
    }
    Ok((out, start))
}

/// How many slabs of each matrix of a plan are repacked, the first ones.
pub fn repacked(plan: &Plan, repack: Repack) -> Vec<usize> {
    let mut room = match repack {
        Repack::On => u64::MAX,
        Repack::Auto => AUTO_BYTES,
        Repack::Off => 0,
    };
    let multiplied = plan.program.multiplied();
    let mut count = |(i, want): (usize, &WantedMatrix)| {
        // Rows of a table that is only looked up are read one at a time, straight from the file.
        if !multiplied.contains(&MatrixId(i as u32)) {
            return 0;
        }
        // All slabs cost the same: where one has no room, none behind it has.
        let cost = Matrix::panel_bytes_of(want.quant, want.n, want.k) as u64;
        let fit = (room / cost.max(1)).min(want.slabs.count as u64);
        room -= fit * cost;
        fit as usize
    };
    plan.matrices.iter().enumerate().map(&mut count).collect()
}

fn vectors<'a>(
    plan: &Plan,
    file: impl Fn(Source, &str) -> (&'a ModelFile, &'a TensorInfo),
) -> Result<Vec<Vec<f32>>, ModelError> {
    let mut out = Vec::with_capacity(plan.vectors.len());
    for want in &plan.vectors {
        let (file, tensor) = file(want.from, &want.name);
        let bytes = file.data(tensor);
        let mut values = vec![0.0; want.len];
        want.quant.dequantize(bytes.as_ref(), &mut values);
        let bad = |v: &f32| !v.is_finite() || (want.negative && *v >= 0.0);
        if let Some(i) = values.iter().position(bad) {
            let expected = if want.negative { "finite values below 0" } else { "finite values" };
            let reason = format!("holds {} at {i}, expected {expected}", values[i]);
            return Err(ModelError::Values { file: file.name(), tensor: want.name.clone(), reason });
        }
        out.push(values);
    }
    Ok(out)
}
