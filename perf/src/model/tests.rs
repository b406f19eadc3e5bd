use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use clap::ValueEnum as _;
use engine::model::load::{LoadOptions, Planned as Loading};
use engine_io::{ModelFile, OpenOptions};
use engine_kernels::{Matrix, Quant};
use engine_tests::fixtures::fixture;

use super::shapes::{Experts, Ffn, NemotronH, Qwen35};
use super::*;

const VOCAB: Vocab = Vocab { rows: 512, merges: 200, split: "qwen35" };

/// That of the fixture `qwen35-tiny-k`.
const DENSE: Qwen35 = Qwen35 {
    vocab: VOCAB,
    untied: false,
    width: 256,
    trunk: 2,
    interval: 2,
    heads: 4,
    kv_heads: 1,
    head: 64,
    turned: 16,
    sections: [3, 3, 2, 0],
    key_heads: 2,
    value_heads: 8,
    state: 32,
    taps: 4,
    ffn: Ffn::Dense { width: 256 },
};

fn untied() -> Qwen35 {
    Qwen35 {
        untied: true,
        width: 128,
        head: 32,
        turned: 8,
        sections: [2, 1, 1, 0],
        value_heads: 6,
        ffn: Ffn::Dense { width: 64 },
        ..DENSE
    }
}

fn sparse() -> Qwen35 {
    let experts = Experts { count: 8, used: 2, width: 32, shared: 32 };
    Qwen35 {
        untied: false,
        width: 96,
        trunk: 4,
        interval: 3,
        kv_heads: 2,
        value_heads: 4,
        ffn: Ffn::Experts(experts),
        ..untied()
    }
}

fn nemotron_h() -> NemotronH {
    NemotronH {
        vocab: Vocab { split: "pixtral", ..VOCAB },
        width: 128,
        pattern: "MEM*E",
        heads: 4,
        kv_heads: 2,
        head: 32,
        ssm_heads: 8,
        ssm_head: 16,
        groups: 2,
        state: 32,
        taps: 4,
        experts: Experts { count: 8, used: 2, width: 32, shared: 64 },
        latent: 64,
    }
}

/// Keys that say something of one model, not of its shape; or say again what others do.
const OTHER: [&str; 6] = [
    "context_length",
    "rope.freq_base",
    "rope.scaling.finetuned",
    "attention.recurrent_layers",
    "attention.layer_norm_rms_epsilon",
    "full_attention_interval",
];

/// What another program wrote of the same shape has the same tensors, of the same types, and the same keys.
#[test]
fn files_are_as_converters_write_them() {
    for (path, hybrid, mix, mtp) in [
        ("qwen35-tiny-k/qwen35-tiny-k-Q4_K_M.gguf", Hybrid::Qwen35(DENSE), Mix::Q4K, true),
        ("qwen35-tiny-untied/qwen35-tiny-untied-Q8_0.gguf", Hybrid::Qwen35(untied()), Mix::Q8_0, true),
        ("qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf", Hybrid::Qwen35(sparse()), Mix::Q8_0, true),
        ("nemotronh-tiny/nemotronh-tiny-nomtp-Q8_0.gguf", Hybrid::NemotronH(nemotron_h()), Mix::Q8_0, false),
        ("nemotronh-tiny/nemotronh-tiny-Q8_0.gguf", Hybrid::NemotronH(nemotron_h()), Mix::Q8_0, true),
    ] {
        let Some(found) = fixture(path) else { return };
        let file = ModelFile::open(&found, OpenOptions { mmap: true, strict: false }).unwrap();
        let outline = Outline::of(&hybrid, mtp);
        let types = outline.types(mix);
        let ours: BTreeMap<_, _> =
            outline.tensors.iter().zip(&types).map(|(t, ty)| (&*t.name, (&*t.dims, *ty))).collect();
        let theirs: BTreeMap<_, _> = file.tensors().iter().map(|t| (&*t.name, (t.dims(), t.ty))).collect();
        assert_eq!(ours, theirs, "{path}");

        let meta = outline.meta("ours", "tiny", mix).unwrap();
        let below = |meta: &Meta| {
            let prefix = format!("{}.", outline.arch);
            let keys =
                meta.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())));
            keys.filter(|(key, _)| !OTHER.contains(&&**key)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(below(&meta), below(file.meta()), "{path}");
        for key in ["general.architecture", "general.file_type", "tokenizer.ggml.pre"] {
            assert_eq!(meta.get(key), file.meta().get(key), "{path}, {key}");
        }
    }
}

/// Every named shape in every mix is a model to the engine, with nothing missing and nothing left over.
#[test]
fn the_engine_reads_every_shape() {
    let folder = tempfile::tempdir().unwrap();
    for shape in Shape::value_variants() {
        for (mix, mtp) in [(Mix::Q8_0, true), (Mix::Q4K, false), (Mix::Q4_0, true)] {
            let recipe = Recipe { shape: *shape, mix, mtp, seed: 1 };
            let outline = Outline::of(shape.table(), mtp);
            let layout = recipe.layout(&outline, &outline.types(mix), "header").unwrap();
            // A header, and a hole where the weights would be.
            let path = folder.path().join("header.gguf");
            let bytes = layout.file_bytes();
            let out = layout.start(File::create(&path).unwrap()).unwrap();
            drop(out);
            File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
            let file = ModelFile::open(&path, OpenOptions { mmap: true, strict: true }).unwrap();
            let options = LoadOptions { strict: true, ..LoadOptions::default() };
            let plan = Loading::new(&file, None, options).unwrap_or_else(|e| panic!("{}: {e}", shape.name())).plan;
            assert_eq!(plan.program.mtp.is_some(), mtp, "{}", shape.name());
            assert!(plan.unexpected.is_empty(), "{}: {:?}", shape.name(), plan.unexpected);
        }
    }
}

/// Matrices of every type have mean 0 and the variance that they should, block by block and row by row.
#[test]
fn weights_are_as_large_as_they_should_be() {
    const K: usize = 2048;
    const N: usize = 64;
    for (ty, quant) in [
        (TensorType::Q8_0, Quant::Q8_0),
        (TensorType::Q4_0, Quant::Q4_0),
        (TensorType::Q4K, Quant::Q4_K),
        (TensorType::Q6K, Quant::Q6_K),
    ] {
        let mut bytes = Vec::new();
        Data::new(Values::Matrix, ty, &[K as u64, N as u64], 7).read_to_end(&mut bytes).unwrap();
        let mut again = Vec::new();
        Data::new(Values::Matrix, ty, &[K as u64, N as u64], 7).read_to_end(&mut again).unwrap();
        assert_eq!(bytes, again, "a seed decides");
        let matrix = Matrix::new(quant, N, K, Arc::new(bytes)).unwrap();
        let mut bytes = vec![0; matrix.row_bytes()];
        let mut row = vec![0.0; K];
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..N {
            matrix.dequantize_row(i, &mut bytes, &mut row);
            let power: f32 = row.iter().map(|x| x * x).sum();
            assert!((0.8..1.2).contains(&power), "{}, row {i}: {power}", ty.name());
            (sum, squares) = (sum + row.iter().sum::<f32>(), squares + power);
        }
        let count = (N * K) as f32;
        let (mean, variance) = (sum / count, squares / count * K as f32);
        assert!((variance - 1.0).abs() < 0.02, "{}: {variance} / K", ty.name());
        assert!(mean.abs() < 5.0 / (count * K as f32).sqrt(), "{}: a mean of {mean}", ty.name());
    }
}
