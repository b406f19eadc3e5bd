//! The tensor types of files: those of the recorded rows are computed, every other one is refused by name.
//!
//! A small llama gets matrices made of recorded rows of one type; its twin has the values that ggml expanded those rows
//! to, as floats. With float activations both are the same arithmetic on the same numbers: the logits must agree in
//! every bit, whoever decodes the blocks.

use std::sync::Arc;

use engine::exec::ExecOptions;
use engine::model::Model;
use engine::model::load::{LoadOptions, Repack};
use engine::model::tensors::quant_of;
use engine_bin::bench::single::Want;
use engine_io::TensorType;
use engine_kernels::{Isa, Quant};
use engine_tests::fixtures::Reference;

use super::edit::{Edit, Tensor, refused};
use super::{exact, integer, single};

/// One layer, 256 wide: whole blocks of every type.
const MODEL: &str = "llama-tiny-k/llama-tiny-k-Q4_K_M.gguf";
const WIDTH: usize = 256;
/// Recorded rows as small as weights: uniform, heavy tail, tiny.
const ROWS: [usize; 3] = [1, 2, 5];
const PROMPT: [u32; 6] = [5, 9, 80, 200, 3, 77];

/// The type's recorded rows, cut to the width of the model.
struct Recorded {
    kind: TensorType,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Recorded {
    fn of(fixture: &Reference, kind: TensorType) -> Self {
        let name = kind.name().to_lowercase().replace("_k", "_K");
        Self {
            kind,
            bytes: fixture.u8(&format!("{name}.bytes")).data,
            values: fixture.f32(&format!("{name}.deq")).data,
        }
    }

    /// A piece of a recorded row for row `row` of the tensor `salt`.
    fn piece(row: usize, salt: usize) -> usize {
        let mixed = (row * 31 + salt * 17 + row / 5) % (2 * ROWS.len());
        2 * ROWS[mixed / 2] + mixed % 2
    }

    fn bytes(&self, row: usize, salt: usize) -> &[u8] {
        let len = self.kind.row_bytes(WIDTH as u64).unwrap() as usize;
        &self.bytes[Self::piece(row, salt) * len..][..len]
    }

    fn values(&self, row: usize, salt: usize) -> &[f32] {
        &self.values[Self::piece(row, salt) * WIDTH..][..WIDTH]
    }
}

fn matrices(edit: &mut Edit) -> impl Iterator<Item = (usize, &mut Tensor)> {
    edit.tensors.iter_mut().filter(|t| t.dims.len() == 2).inspect(|t| assert_eq!(t.dims[0], 256)).enumerate()
}

fn logits(edit: &Edit, repack: Repack, options: ExecOptions) -> Vec<f32> {
    let load = LoadOptions { repack, strict: true, ..LoadOptions::default() };
    let model = Arc::new(Model::load(&edit.file(), None, load).unwrap_or_else(|error| panic!("{error}")));
    single(&model, 32, options).trunk(&PROMPT, PROMPT.len(), Want::Probe).logits.clone()
}

#[test]
fn every_recorded_type_is_computed_as_its_values() {
    let (Some(base), Some(fixture)) = (Edit::of(MODEL), Reference::open("quants/quants.safetensors")) else { return };
    let kinds = TensorType::ALL.iter().filter(|kind| quant_of(**kind).is_some());
    assert_eq!(kinds.clone().count(), Quant::ALL.len());
    for kind in kinds {
        let recorded = Recorded::of(&fixture, *kind);
        let (mut typed, mut twin) = (base.clone(), base.clone());
        for (salt, t) in matrices(&mut typed) {
            t.kind = *kind;
            t.data = (0..t.dims[1] as usize).flat_map(|row| recorded.bytes(row, salt).to_vec()).collect();
        }
        for (salt, t) in matrices(&mut twin) {
            t.kind = TensorType::F32;
            let rows = (0..t.dims[1] as usize).flat_map(|row| recorded.values(row, salt));
            t.data = rows.flat_map(|v| v.to_le_bytes()).collect();
        }
        let expected = logits(&twin, Repack::Auto, exact());
        assert!(expected.iter().all(|v| v.is_finite()), "{kind}");
        for repack in [Repack::Off, Repack::On] {
            assert!(logits(&typed, repack, exact()) == expected, "{kind}, {repack:?}");
        }
        // Quantised activations: the same bits from the specification, from file rows and from panels.
        let scalar = ExecOptions { isa: Isa::Scalar, ..integer() };
        let expected = logits(&typed, Repack::Off, scalar);
        assert!(expected.iter().all(|v| v.is_finite()), "{kind}");
        for repack in [Repack::Off, Repack::On] {
            assert!(logits(&typed, repack, integer()) == expected, "{kind}, {repack:?}");
        }
    }
}

#[test]
fn every_other_type_is_refused_by_name() {
    let Some(base) = Edit::of(MODEL) else { return };
    let others: Vec<TensorType> = TensorType::ALL.iter().copied().filter(|kind| quant_of(*kind).is_none()).collect();
    let names: Vec<&str> = others.iter().map(|kind| kind.name()).collect();
    assert_eq!(names, ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"]);
    for kind in others {
        for tensor in ["blk.0.ffn_up.weight", "blk.0.attn_norm.weight"] {
            let mut edit = base.clone();
            let t = edit.tensor(tensor);
            let rows = t.dims.get(1).copied().unwrap_or(1);
            (t.kind, t.data) = (kind, vec![0; (rows * kind.row_bytes(256).unwrap()) as usize]);
            refused(&edit, &[&format!("type {kind} of 1 tensors (such as {tensor}) cannot be computed")]);
        }
    }
}
