//! Which tensors a program needs, compared with what the files hold, before a byte of data is touched.

use std::collections::HashMap;

use engine_io::gguf::TensorType;
use engine_kernels::Quant;

use super::error::TensorReport;
use super::program::{MatrixId, VectorId};

/// Which file a tensor comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Source {
    /// The model.
    Model,
    /// The sidecar that holds an MTP block.
    Draft,
}

/// A tensor of a file, as far as planning needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Dimensions, contiguous first.
    pub dims: Vec<u64>,
    /// Storage type.
    pub kind: TensorType,
}

/// The tensors of one file (all shards) by name.
pub type Inventory = HashMap<String, Entry>;

/// A matrix that the program multiplies with or looks rows up in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedMatrix {
    /// Its file.
    pub from: Source,
    /// Its name.
    pub name: String,
    /// Rows (outputs).
    pub n: usize,
    /// Columns (inputs).
    pub k: usize,
    /// Storage.
    pub quant: Quant,
}

/// A small F32 tensor that is copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedVector {
    /// Its file.
    pub from: Source,
    /// Its name.
    pub name: String,
    /// Elements.
    pub len: usize,
    /// Every value must be finite and below 0.
    pub negative: bool,
}

/// Collects what is asked for, once per tensor, and what is wrong with it.
pub struct Wants<'a> {
    model: &'a Inventory,
    draft: Option<&'a Inventory>,
    /// Matrices in order of [`MatrixId`].
    pub matrices: Vec<WantedMatrix>,
    /// Vectors in order of [`VectorId`].
    pub vectors: Vec<WantedVector>,
    /// What is wrong so far.
    pub report: TensorReport,
}

/// A point of a [`Wants`] to go back to.
pub struct Mark {
    matrices: usize,
    vectors: usize,
}

const COMPUTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS";

impl<'a> Wants<'a> {
    /// Nothing asked for yet.
    pub fn new(model: &'a Inventory, draft: Option<&'a Inventory>) -> Self {
        Self { model, draft, matrices: Vec::new(), vectors: Vec::new(), report: TensorReport::default() }
    }

    fn entry(&self, from: Source, name: &str) -> Option<&'a Entry> {
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
        let rows = *self.entry(from, name)?.dims.get(1)?;
        usize::try_from(rows).ok()
    }

    /// A matrix that must be there: `[k, n]` in the file's order.
    pub fn matrix(&mut self, from: Source, name: &str, n: usize, k: usize) -> MatrixId {
        if let Some(i) = self.matrices.iter().position(|m| m.from == from && m.name == name) {
            return MatrixId(i as u32);
        }
        let quant = match self.entry(from, name) {
            None => {
                self.miss(name);
                Quant::F32
            }
            Some(entry) => {
                self.check_shape(name, entry, &[k as u64, n as u64]);
                quant_of(entry.kind).unwrap_or_else(|| {
                    self.report.kind.push((name.to_owned(), entry.kind.name().to_owned(), COMPUTED));
                    Quant::F32
                })
            }
        };
        self.matrices.push(WantedMatrix { from, name: name.to_owned(), n, k, quant });
        MatrixId((self.matrices.len() - 1) as u32)
    }

    /// A matrix that may be absent.
    pub fn optional_matrix(&mut self, from: Source, name: &str, n: usize, k: usize) -> Option<MatrixId> {
        self.has(from, name).then(|| self.matrix(from, name, n, k))
    }

    /// A vector that must be there.
    pub fn vector(&mut self, from: Source, name: &str, len: usize) -> VectorId {
        self.floats(from, name, &[len as u64])
    }

    /// A vector that may be absent.
    pub fn optional_vector(&mut self, from: Source, name: &str, len: usize) -> Option<VectorId> {
        self.has(from, name).then(|| self.vector(from, name, len))
    }

    /// Convolution taps `[taps, channels]`.
    pub fn taps(&mut self, from: Source, name: &str, taps: usize, channels: usize) -> VectorId {
        self.floats(from, name, &[taps as u64, channels as u64])
    }

    /// Demands finite values below 0 of a vector asked for before.
    pub fn expect_negative(&mut self, vector: VectorId) {
        self.vectors[vector.index()].negative = true;
    }

    fn floats(&mut self, from: Source, name: &str, dims: &[u64]) -> VectorId {
        if let Some(i) = self.vectors.iter().position(|v| v.from == from && v.name == name) {
            return VectorId(i as u32);
        }
        match self.entry(from, name) {
            None => self.miss(name),
            Some(entry) => {
                self.check_shape(name, entry, dims);
                if entry.kind != TensorType::F32 {
                    self.report.kind.push((name.to_owned(), entry.kind.name().to_owned(), "F32"));
                }
            }
        }
        let len = dims.iter().product::<u64>() as usize;
        self.vectors.push(WantedVector { from, name: name.to_owned(), len, negative: false });
        VectorId((self.vectors.len() - 1) as u32)
    }

    fn miss(&mut self, name: &str) {
        self.report.missing.push(name.to_owned());
    }

    fn check_shape(&mut self, name: &str, entry: &Entry, expected: &[u64]) {
        if entry.dims != expected {
            self.report.shape.push((name.to_owned(), entry.dims.clone(), expected.to_vec()));
        }
    }

    /// Where the lists stand now; the report is handed out empty and must be given back or dropped.
    pub fn mark(&mut self) -> (Mark, TensorReport) {
        let mark = Mark { matrices: self.matrices.len(), vectors: self.vectors.len() };
        (mark, std::mem::take(&mut self.report))
    }

    /// Forgets what was asked for since `mark`.
    pub fn rewind(&mut self, mark: &Mark) {
        self.matrices.truncate(mark.matrices);
        self.vectors.truncate(mark.vectors);
    }

    /// Lists the tensors of the model that nobody asked for, but those that `known` says belong to it.
    pub fn note_unexpected(&mut self, known: impl Fn(&str) -> bool) {
        let asked = |name: &str| {
            self.matrices.iter().any(|m| m.from == Source::Model && m.name == name)
                || self.vectors.iter().any(|v| v.from == Source::Model && v.name == name)
        };
        let mut rest: Vec<String> = self.model.keys().filter(|n| !asked(n) && !known(n)).cloned().collect();
        rest.sort_unstable();
        // A scale multiplies the product of the weight it belongs to: ignoring it would compute something else.
        let (scales, rest) = rest.into_iter().partition(|n| n.ends_with(".scale") || n.ends_with(".input_scale"));
        let scales: Vec<String> = scales;
        let scaled = |n: String| (n, "a scale of another tensor".to_owned(), "unscaled tensors");
        self.report.kind.extend(scales.into_iter().map(scaled));
        self.report.unexpected.extend::<Vec<String>>(rest);
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
        TensorType::Iq4Nl => Quant::IQ4_NL,
        TensorType::Iq4Xs => Quant::IQ4_XS,
        _ => return None,
    })
}
