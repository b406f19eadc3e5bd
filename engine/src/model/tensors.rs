//! Which tensors a program needs, compared with what the files hold, before a byte of data is touched.

use std::collections::{HashMap, HashSet};

use engine_io::TensorType;
use engine_io::gguf::TensorInfo;
use engine_kernels::Quant;

use super::preflight::{Preflight, Unsupported, WrongShape};
use super::program::{MatrixId, VectorId};

/// Which file a tensor comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Source {
    /// The model.
    Model,
    /// The sidecar that holds an MTP block.
    Draft,
}

/// The tensors of one file, all shards together, by name.
pub struct Inventory<'a> {
    list: &'a [TensorInfo],
    by_name: HashMap<&'a str, &'a TensorInfo>,
}

impl<'a> Inventory<'a> {
    /// Of a tensor directory.
    pub fn new(list: &'a [TensorInfo]) -> Self {
        Self { list, by_name: list.iter().map(|t| (t.name.as_str(), t)).collect() }
    }

    /// A tensor by name.
    pub fn get(&self, name: &str) -> Option<&'a TensorInfo> {
        self.by_name.get(name).copied()
    }

    /// Whether a tensor of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All names, in file order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.list.iter().map(|t| t.name.as_str())
    }
}

/// Which rows of a tensor of several slabs (`[k, rows, slabs]`) make up a stack of matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slabs {
    /// Slabs, one matrix of each.
    pub count: usize,
    /// Equal parts that the rows of a slab are cut into.
    pub parts: usize,
    /// The part that is wanted.
    pub part: usize,
}

impl Slabs {
    /// A plain matrix.
    pub const ONE: Self = Self { count: 1, parts: 1, part: 0 };
}

/// A matrix that the program multiplies with or looks rows up in, or a stack of matrices, one an expert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedMatrix {
    /// Its file.
    pub from: Source,
    /// Its name.
    pub name: String,
    /// Rows (outputs) of one matrix.
    pub n: usize,
    /// Columns (inputs).
    pub k: usize,
    /// Storage.
    pub quant: Quant,
    /// Where in the tensor.
    pub slabs: Slabs,
}

/// A small tensor that is copied, as floats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedVector {
    /// Its file.
    pub from: Source,
    /// Its name.
    pub name: String,
    /// Elements.
    pub len: usize,
    /// Storage in the file.
    pub quant: Quant,
    /// Every value must be finite and below 0.
    pub negative: bool,
}

/// A tensor that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its file.
    pub from: Source,
    /// Its name.
    pub name: String,
    /// Dimensions in the file's order.
    pub dims: Vec<u64>,
    /// What it is used for.
    pub role: Role,
    /// Whether something else does where it is absent.
    pub optional: bool,
}

/// What a tensor is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Products with rows, or a table of rows.
    Matrix,
    /// A matrix for each expert.
    Experts,
    /// Floats that are copied: norms, biases, small kernels.
    Vector,
}

/// Collects what is asked for, once per tensor, and what is wrong with it.
pub struct Wants<'a> {
    model: &'a Inventory<'a>,
    draft: Option<&'a Inventory<'a>>,
    /// Matrices in order of [`MatrixId`].
    pub matrices: Vec<WantedMatrix>,
    /// Vectors in order of [`VectorId`].
    pub vectors: Vec<WantedVector>,
    /// What is wrong so far.
    pub report: Preflight,
    /// Every tensor that was asked for, whether the file has it or not, once each.
    pub asked: Vec<Asked>,
    names: Names,
}

/// Where a name stands in the lists of a [`Wants`]: a file may count thousands of blocks.
#[derive(Default)]
struct Names {
    /// Matrices of the tensor: one, or one for each part of it that was asked for.
    matrices: HashMap<(Source, String), Vec<usize>>,
    vectors: HashMap<(Source, String), usize>,
    asked: HashSet<(Source, String)>,
}

/// A point of a [`Wants`] to go back to.
pub struct Mark {
    matrices: usize,
    vectors: usize,
}

impl<'a> Wants<'a> {
    /// Nothing asked for yet.
    pub fn new(model: &'a Inventory<'a>, draft: Option<&'a Inventory>) -> Self {
        Self {
            model,
            draft,
            matrices: Vec::new(),
            vectors: Vec::new(),
            report: Preflight::default(),
            asked: Vec::new(),
            names: Names::default(),
        }
    }

    fn entry(&self, from: Source, name: &str) -> Option<&'a TensorInfo> {
        match from {
            Source::Model => self.model.get(name),
            Source::Draft => self.draft?.get(name),
        }
    }

    /// Whether the file has the tensor.
    pub fn has(&self, from: Source, name: &str) -> bool {
        self.entry(from, name).is_some()
    }

    /// Rows of a two-dimensional tensor.
    pub fn rows_of(&self, from: Source, name: &str) -> Option<usize> {
        usize::try_from(self.entry(from, name)?.dim(1)).ok()
    }

    /// A matrix that must be there: `[k, n]` in the file's order.
    pub fn matrix(&mut self, from: Source, name: &str, n: usize, k: usize) -> MatrixId {
        self.stack(from, name, n, k, Slabs::ONE)
    }

    /// A stack of matrices that must be there: `[k, parts * n, count]` in the file's order.
    pub fn stack(&mut self, from: Source, name: &str, n: usize, k: usize, slabs: Slabs) -> MatrixId {
        let parts = self.names.matrices.get(&(from, name.to_owned())).map_or(&[][..], Vec::as_slice);
        if let Some(i) = parts.iter().find(|&&i| self.matrices[i].slabs.part == slabs.part) {
            return MatrixId(*i as u32);
        }
        let quant = match parts.first() {
            Some(&other_part) => self.matrices[other_part].quant,
            None => {
                let dims = [k as u64, (slabs.parts * n) as u64, slabs.count as u64];
                let (dims, role) =
                    if slabs.count == 1 { (&dims[..2], Role::Matrix) } else { (&dims[..], Role::Experts) };
                self.ask(from, name, dims, role, false);
                self.check(from, name, dims)
            }
        };
        self.names.matrices.entry((from, name.to_owned())).or_default().push(self.matrices.len());
        self.matrices.push(WantedMatrix { from, name: name.to_owned(), n, k, quant, slabs });
        MatrixId((self.matrices.len() - 1) as u32)
    }

    /// A matrix that may be absent.
    pub fn optional_matrix(&mut self, from: Source, name: &str, n: usize, k: usize) -> Option<MatrixId> {
        self.ask(from, name, &[k as u64, n as u64], Role::Matrix, true);
        self.has(from, name).then(|| self.matrix(from, name, n, k))
    }

    /// A vector that must be there.
    pub fn vector(&mut self, from: Source, name: &str, len: usize) -> VectorId {
        self.floats(from, name, &[len as u64])
    }

    /// A vector that may be absent.
    pub fn optional_vector(&mut self, from: Source, name: &str, len: usize) -> Option<VectorId> {
        self.ask(from, name, &[len as u64], Role::Vector, true);
        self.has(from, name).then(|| self.vector(from, name, len))
    }

    /// A vector per stream of the residual, that must be there: `[streams * width]`, or `[width, streams]`, which is the
    /// same bytes.
    pub fn streams(&mut self, from: Source, name: &str, width: usize, streams: usize) -> VectorId {
        let two = [width as u64, streams as u64];
        match self.entry(from, name) {
            Some(t) if t.has_dims(&two) => self.floats(from, name, &two),
            _ => self.floats(from, name, &[(width * streams) as u64]),
        }
    }

    /// A small tensor of two dimensions that must be there: `[width, rows]` in the file's order.
    pub fn grid(&mut self, from: Source, name: &str, width: usize, rows: usize) -> VectorId {
        self.floats(from, name, &[width as u64, rows as u64])
    }

    /// Demands finite values below 0 of a vector asked for before.
    pub fn expect_negative(&mut self, vector: VectorId) {
        self.vectors[vector.index()].negative = true;
    }

    fn floats(&mut self, from: Source, name: &str, dims: &[u64]) -> VectorId {
        if let Some(i) = self.names.vectors.get(&(from, name.to_owned())) {
            return VectorId(*i as u32);
        }
        self.ask(from, name, dims, Role::Vector, false);
        let quant = self.check(from, name, dims);
        let len = dims.iter().product::<u64>() as usize;
        self.names.vectors.insert((from, name.to_owned()), self.vectors.len());
        self.vectors.push(WantedVector { from, name: name.to_owned(), len, quant, negative: false });
        VectorId((self.vectors.len() - 1) as u32)
    }

    fn ask(&mut self, from: Source, name: &str, dims: &[u64], role: Role, optional: bool) {
        if self.names.asked.insert((from, name.to_owned())) {
            self.asked.push(Asked { from, name: name.to_owned(), dims: dims.to_vec(), role, optional });
        }
    }

    /// Compares a wish with the directory; what is wrong goes to the report, and the type then does not matter.
    fn check(&mut self, from: Source, name: &str, dims: &[u64]) -> Quant {
        let Some(t) = self.entry(from, name) else {
            self.report.missing.push(name.to_owned());
            return Quant::F32;
        };
        if !t.has_dims(dims) {
            let wrong = WrongShape { name: name.to_owned(), found: t.dims().to_vec(), expected: dims.to_vec() };
            self.report.wrong_shape.push(wrong);
        }
        if let Some(quant) = quant_of(t.ty) {
            return quant;
        }
        match self.report.unsupported.iter_mut().find(|u| u.ty == t.ty) {
            Some(known) => known.count += 1,
            None => self.report.unsupported.push(Unsupported { ty: t.ty, count: 1, example: name.to_owned() }),
        }
        Quant::F32
    }

    /// A table of at least `rows` rows, that must be there: `[k, rows]`.
    pub fn table(&mut self, from: Source, name: &str, rows: u64, k: usize) -> MatrixId {
        let found = self.rows_of(from, name).filter(|&found| found as u64 >= rows);
        let n = found.or_else(|| usize::try_from(rows).ok()).unwrap_or(usize::MAX);
        self.matrix(from, name, n, k)
    }

    /// Where the lists stand now; the report is handed out empty and must be given back or dropped.
    pub fn mark(&mut self) -> (Mark, Preflight) {
        let mark = Mark { matrices: self.matrices.len(), vectors: self.vectors.len() };
        (mark, std::mem::take(&mut self.report))
    }

    /// Forgets what was asked for since `mark`.
    pub fn rewind(&mut self, mark: &Mark) {
        self.matrices.truncate(mark.matrices);
        self.vectors.truncate(mark.vectors);
        self.names.vectors.retain(|_, i| *i < mark.vectors);
        self.names.matrices.retain(|_, parts| {
            parts.retain(|i| *i < mark.matrices);
            !parts.is_empty()
        });
    }

    /// Lists the tensors of a file that nobody asked for, but those that `known` says belong to it.
    pub fn note_unexpected(&mut self, from: Source, known: impl Fn(&str) -> bool) {
        let matrices = self.matrices.iter().filter(|m| m.from == from).map(|m| m.name.as_str());
        let vectors = self.vectors.iter().filter(|v| v.from == from).map(|v| v.name.as_str());
        let asked: HashSet<&str> = matrices.chain(vectors).collect();
        let file = match from {
            Source::Model => Some(self.model),
            Source::Draft => self.draft,
        };
        let names = file.into_iter().flat_map(Inventory::names);
        let rest = names.filter(|n| !asked.contains(n) && !known(n)).map(str::to_owned);
        self.report.unexpected.extend(rest);
    }
}

/// The one place where a file's tensor type becomes something that can be computed with.
pub fn quant_of(kind: TensorType) -> Option<Quant> {
    Some(match kind {
        TensorType::F32 => Quant::F32,
        TensorType::F16 => Quant::F16,
        TensorType::Bf16 => Quant::BF16,
        TensorType::Q4_0 => Quant::Q4_0,
        TensorType::Q4_1 => Quant::Q4_1,
        TensorType::Q5_0 => Quant::Q5_0,
        TensorType::Q5_1 => Quant::Q5_1,
        TensorType::Q8_0 => Quant::Q8_0,
        TensorType::Q2K => Quant::Q2_K,
        TensorType::Q3K => Quant::Q3_K,
        TensorType::Q4K => Quant::Q4_K,
        TensorType::Q5K => Quant::Q5_K,
        TensorType::Q6K => Quant::Q6_K,
        TensorType::Iq1S => Quant::IQ1_S,
        TensorType::Iq1M => Quant::IQ1_M,
        TensorType::Iq2Xxs => Quant::IQ2_XXS,
        TensorType::Iq2Xs => Quant::IQ2_XS,
        TensorType::Iq2S => Quant::IQ2_S,
        TensorType::Iq3Xxs => Quant::IQ3_XXS,
        TensorType::Iq3S => Quant::IQ3_S,
        TensorType::Iq4Nl => Quant::IQ4_NL,
        TensorType::Iq4Xs => Quant::IQ4_XS,
        TensorType::Tq1_0 => Quant::TQ1_0,
        TensorType::Tq2_0 => Quant::TQ2_0,
        TensorType::Mxfp4 => Quant::MXFP4,
        TensorType::Nvfp4 => Quant::NVFP4,
        TensorType::Q1_0 => Quant::Q1_0,
        TensorType::Q2_0 => Quant::Q2_0,
        // The forms of activations, and what holds no weights.
        TensorType::Q8_1
        | TensorType::Q8K
        | TensorType::I8
        | TensorType::I16
        | TensorType::I32
        | TensorType::I64
        | TensorType::F64 => return None,
    })
}
