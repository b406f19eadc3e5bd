//! The forward pass against recorded numbers, and against itself.
//!
//! `ref-torch-f32` and `ref-dequant-Q` were computed with float activations: [`Activation::Exact`] must meet them
//! tightly. `ref-llamacpp-Q` quantised its activations as [`Activation::Integer`] does; only choices are compared.

mod dialects;
pub mod edit;
mod experts;
pub mod generate;
pub mod invariance;
pub mod nemotron;
pub mod qwen3next;
pub mod qwen4exp;
mod qwen4exp_refusals;
mod refusals;
mod slots;
mod types;

use std::path::Path;
use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::TokenId;
use engine::limits::Limits;
use engine::model::Model;
use engine::model::load::{LoadOptions, Repack};
use engine_bin::bench::eval::{self, Input, Output};
use engine_bin::bench::single::{Single, Want};
use engine_io::{ModelFile, OpenOptions};
use engine_kernels::ops::kv_cache::KvType;
use engine_kernels::{Activation, Isa};
use engine_tests::fixtures::{Reference, fixture};

/// Logits of an engine with float activations.
const LOGIT_LIMIT: f32 = 2e-3;
/// MTP and draft logits.
const MTP_LIMIT: f32 = 5e-3;
/// Choices must agree where the reference's best is this far ahead.
const MARGIN: f32 = 1e-2;

/// Float activations, exact caches: what references were computed with.
pub const EXACT: ExecOptions =
    ExecOptions { kv_type: KvType::F32, activation: Activation::Exact, threads: 1, isa: Isa::Scalar };

/// Options of the references' precision on the fastest kernels.
pub fn exact() -> ExecOptions {
    ExecOptions { isa: Isa::best(), ..EXACT }
}

/// The product's own arithmetic with an exact cache.
pub fn integer() -> ExecOptions {
    ExecOptions { activation: Activation::Integer, ..exact() }
}

/// A fixture model, or a skip that has been reported.
pub fn load(path: &str) -> Option<Arc<Model>> {
    load_with(path, None, LoadOptions::default())
}

/// A fixture model with a sidecar.
pub fn load_with(path: &str, draft: Option<&str>, options: LoadOptions) -> Option<Arc<Model>> {
    let path = fixture(path)?;
    let draft = match draft {
        Some(draft) => Some(open(&fixture(draft)?)),
        None => None,
    };
    let model = Model::load(&open(&path), draft.as_ref(), options);
    Some(Arc::new(model.unwrap_or_else(|error| panic!("{error}"))))
}

/// Opens a file that must open.
pub fn open(path: &Path) -> ModelFile {
    ModelFile::open(path, OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// An executor for a few sequences of `context` tokens.
pub fn executor(model: &Arc<Model>, slots: usize, context: usize, options: ExecOptions) -> (CpuExecutor, Limits) {
    let limits = Limits { checkpoints: 8, ..Limits::new(slots, context) };
    (CpuExecutor::new(Arc::clone(model), limits.clone(), options), limits)
}

/// One sequence in an executor of its own.
pub fn single(model: &Arc<Model>, context: usize, options: ExecOptions) -> Single<CpuExecutor> {
    let (executor, limits) = executor(model, 1, context, options);
    Single::new(executor, &limits)
}

/// Token sequences of a reference.
pub fn sequences(reference: &Reference) -> Vec<Vec<u32>> {
    (0..4).map(|i| reference.ids(&format!("s{i}.tokens"))).collect()
}

fn evaluate(model: &Arc<Model>, reference: &Reference, continuation: usize, options: ExecOptions) -> Output {
    let mtp_depth = if model.program.mtp.is_some() { 3 } else { 0 };
    let input = Input { sequences: sequences(reference), continuation, mtp_depth };
    eval::check(&input, model.vocab, None).unwrap();
    let limits = eval::limits(&input);
    let mut single = Single::new(CpuExecutor::new(Arc::clone(model), limits.clone(), options), &limits);
    eval::evaluate(&mut single, &input).unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of different length");
    // A NaN is as far as can be.
    a.iter().zip(b).map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

/// Float activations meet the reference in every recorded number.
fn meets(model: &str, reference: &str) {
    let (Some(loaded), Some(r)) = (load(model), Reference::open(reference)) else { return };
    let continuation = if model.contains("_K") { 24 } else { 64 };
    let output = evaluate(&loaded, &r, continuation, exact());
    for (i, found) in output.sequences.iter().enumerate() {
        let at = |key: &str| format!("s{i}.{key}");
        let what = format!("{model}, sequence {i}");
        let n = found.top10.len();
        let (ids, logits) = (r.i32(&at("top10_ids")), r.f32(&at("top10_logits")));
        let lse = r.f32(&at("logsumexp"));
        for p in 0..n {
            let best = logits.row(p);
            let ours: Vec<f32> = found.top10[p].iter().map(|t| t.1).collect();
            assert!(distance(&ours, best) < LOGIT_LIMIT, "{what}: best logits at {p}: {ours:?}, expected {best:?}");
            if best[0] - best[1] > MARGIN {
                assert_eq!(found.top10[p][0].0 as i32, ids.row(p)[0], "{what}: choice at {p}");
            }
            assert!((found.logsumexp[p] - f64::from(lse.data[p])).abs() < 2e-3, "{what}: log-sum-exp at {p}");
        }
        let last = r.f32(&at("logits_last"));
        assert!(distance(&found.logits_last, last.row(last.rows() - 1)) < LOGIT_LIMIT, "{what}: last logits");
        let (greedy, margin) = (r.ids(&at("greedy")), r.f32(&at("greedy_margin")).data);
        let sure = margin.iter().position(|&m| m < MARGIN).unwrap_or(greedy.len()).min(continuation);
        assert_eq!(found.greedy[..sure], greedy[..sure], "{what}: greedy text up to the first near-tie");
        if r.has(&at("h_last")) {
            let hidden = r.f32(&at("h_last"));
            assert!(distance(&found.h_last, hidden.row(hidden.rows() - 1)) < LOGIT_LIMIT, "{what}: hidden row");
        }
        if r.has(&at("mtp_top1")) {
            assert_eq!(found.mtp_top1, r.ids(&at("mtp_top1")), "{what}: MTP choices");
            let drafts: Vec<u32> = found.drafts.iter().map(|d| d.token).collect();
            let expected = r.ids(&at("draft_tokens"));
            assert_eq!((found.greedy[0], drafts.as_slice()), (expected[0], &expected[1..]), "{what}: drafts");
            for (d, draft) in found.drafts.iter().enumerate() {
                if r.has(&at("draft_logits")) {
                    let logits = r.f32(&at("draft_logits"));
                    assert!(distance(&draft.logits, logits.row(d)) < MTP_LIMIT, "{what}: logits of draft {d}");
                }
            }
            chains(&loaded, &r, i, &what);
        }
    }
}

/// MTP logits of the last positions, and the drafts made after every token of the greedy text.
fn chains(model: &Arc<Model>, r: &Reference, i: usize, what: &str) {
    let at = |key: &str| format!("s{i}.{key}");
    let tokens = r.ids(&at("tokens"));
    let greedy = r.ids(&at("greedy"));
    let mut single = single(model, tokens.len() + greedy.len() + 4, exact());
    single.trunk(&tokens, tokens.len(), Want::Choice);
    let result = single.mtp(&tokens, 0, true);
    let logits = r.f32(&at("mtp_logits_last"));
    let ours = &result.mtp_logits[result.mtp_logits.len() - logits.data.len()..];
    assert!(distance(ours, &logits.data) < MTP_LIMIT, "{what}: MTP logits of the prompt's last positions");
    if !r.has(&at("draft_chain")) {
        return;
    }
    let chain = r.i32(&at("draft_chain"));
    // One file of every model goes all the way; dequantising again for every step makes the others slow.
    let steps = if what.contains("F32") || what.contains("Q8_0") { chain.rows() } else { 12 };
    for g in 0..steps {
        let drafts: Vec<i32> = single.mtp(&greedy[g..=g], 3, false).draft.iter().map(|t| t.0 as i32).collect();
        assert_eq!(drafts, chain.row(g), "{what}: drafts after greedy token {g}");
        single.trunk(&greedy[g..=g], 1, Want::Nothing);
    }
}

/// Quantised activations choose as a reference that quantises them too, nearly always.
fn agrees(model: &str, reference: &str, least: f64) {
    let (Some(loaded), Some(r)) = (load(model), Reference::open(reference)) else { return };
    let output = evaluate(&loaded, &r, 0, integer());
    let (mut same, mut mtp_same, mut n, mut mtp_n) = (0, 0, 0, 0);
    for (i, found) in output.sequences.iter().enumerate() {
        let ids = r.i32(&format!("s{i}.top10_ids"));
        n += ids.rows();
        same += (0..ids.rows()).filter(|&p| ids.row(p)[0] == found.top10[p][0].0 as i32).count();
        if !found.mtp_top1.is_empty() {
            let ids = r.ids(&format!("s{i}.mtp_top1"));
            mtp_n += ids.len();
            mtp_same += ids.iter().zip(&found.mtp_top1).filter(|(a, b)| a == b).count();
        }
    }
    let share = same as f64 / n as f64;
    assert!(share >= least, "{model}: {same} of {n} choices as {reference}");
    if mtp_n > 0 {
        assert!(mtp_same as f64 / mtp_n as f64 >= 0.90, "{model}: {mtp_same} of {mtp_n} MTP choices as {reference}");
    }
}

fn meets_all(model: &str, quants: &[&str]) {
    for q in quants {
        let reference = match *q {
            // Weights were rounded to BF16 before any file was written: both files hold the same values.
            "F32" | "BF16" => format!("{model}/ref-torch-f32.safetensors"),
            _ => format!("{model}/ref-dequant-{q}.safetensors"),
        };
        meets(&format!("{model}/{model}-{q}.gguf"), &reference);
    }
}

fn agrees_all(model: &str, quants: &[&str], least: f64) {
    for q in quants {
        agrees(&format!("{model}/{model}-{q}.gguf"), &format!("{model}/ref-llamacpp-{q}.safetensors"), least);
    }
}

const LLAMA: &[&str] = &["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"];
const LLAMA_K: &[&str] = &["IQ4_XS", "Q2_K", "Q3_K_M", "Q4_K_M", "Q6_K"];
const QWEN35: &[&str] = &["Q4_0", "Q5_1", "Q8_0"];
const NEMOTRON: &[&str] = &["Q4_0", "Q8_0"];
const QWEN35_K: &[&str] = &["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"];

#[test]
fn llama_meets_its_references() {
    meets_all("llama-tiny", &["F32", "BF16"]);
    meets_all("llama-tiny", LLAMA);
    meets_all("llama-tiny-k", LLAMA_K);
}

#[test]
fn qwen35_meets_its_references() {
    meets_all("qwen35-tiny", &["F32", "BF16"]);
    meets_all("qwen35-tiny", QWEN35);
}

/// Three value heads a key head: no trick that undoes pairs only can pass.
#[test]
fn qwen35_with_an_odd_head_ratio_and_an_untied_head_meets_its_references() {
    meets_all("qwen35-tiny-untied", &["F32", "Q8_0"]);
}

#[test]
fn qwen35_in_k_quants_meets_its_references() {
    meets_all("qwen35-tiny-k", QWEN35_K);
}

#[test]
fn qwen35moe_meets_its_references() {
    meets_all("qwen35moe-tiny", &["F32"]);
    meets_all("qwen35moe-tiny", QWEN35);
}

#[test]
fn nemotron_h_meets_its_references() {
    meets_all("nemotronh-tiny", &["F32"]);
    meets_all("nemotronh-tiny", NEMOTRON);
}

#[test]
fn quantised_activations_choose_as_the_peer_does() {
    agrees_all("llama-tiny", LLAMA, 0.90);
    agrees_all("llama-tiny-k", LLAMA_K, 0.90);
    agrees_all("qwen35-tiny", QWEN35, 0.93);
    agrees_all("qwen35-tiny-untied", &["Q8_0"], 0.90);
    agrees_all("qwen35-tiny-k", QWEN35_K, 0.93);
    agrees_all("qwen35moe-tiny", QWEN35, 0.93);
    agrees_all("nemotronh-tiny", NEMOTRON, 0.93);
}

/// The probability that comes with a draft is the softmax of the block's own logits, and ends a chain below `p_min`.
#[test]
fn drafts_carry_their_probability() {
    let Some(model) = load("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let tokens: Vec<u32> = (40..60).collect();
    let mut single = single(&model, 64, integer());
    let next = single.trunk(&tokens, tokens.len(), Want::Choice).next[0].0;
    let mut anchored = tokens[..].to_vec();
    anchored.push(next);
    let result = single.mtp(&anchored, 15, true).clone();
    assert_eq!(result.draft.len(), 15);
    assert_eq!(result.mtp_logits.len(), (anchored.len() + 14) * model.vocab);
    for (j, (draft, &prob)) in result.draft.iter().zip(&result.draft_prob).enumerate() {
        let row = &result.mtp_logits[(anchored.len() - 1 + j) * model.vocab..][..model.vocab];
        let sum: f64 = row.iter().map(|&l| f64::from(l - row[draft.index()]).exp()).sum();
        assert!((f64::from(prob) - 1.0 / sum).abs() < 1e-5, "probability of draft {j}");
        assert_eq!(row.iter().position(|&l| l == row[draft.index()]), Some(draft.index()), "lowest of the greatest");
        assert!(row.iter().all(|&l| l <= row[draft.index()]), "draft {j} is the argmax");
    }
    let p_min = result.draft_prob.iter().copied().fold(f32::INFINITY, f32::min) + 1e-6;
    let expected: Vec<TokenId> =
        result.draft.iter().zip(&result.draft_prob).take_while(|(_, p)| **p >= p_min).map(|(t, _)| *t).collect();
    single.reset();
    single.trunk(&tokens, tokens.len(), Want::Nothing);
    assert_eq!(single.mtp_with(&anchored, 15, p_min, false).draft, expected);
}

/// Copying the weights into the kernels' layout, or not mapping the file, changes no bit.
#[test]
fn layouts_and_ways_to_read_agree() {
    for (model, quant) in [("qwen35-tiny", "Q4_0"), ("qwen35moe-tiny", "Q8_0"), ("nemotronh-tiny", "Q8_0")] {
        let path = &format!("{model}/{model}-{quant}.gguf");
        let Some(reference) = Reference::open(&format!("{model}/ref-dequant-{quant}.safetensors")) else { return };
        let with = |repack| load_with(path, None, LoadOptions { repack, strict: true, ..LoadOptions::default() });
        let (Some(on), Some(off)) = (with(Repack::On), with(Repack::Off)) else { return };
        let options = OpenOptions { mmap: false, ..OpenOptions::default() };
        let read = ModelFile::open(fixture(path).unwrap(), options).unwrap();
        let read = Arc::new(Model::load(&read, None, LoadOptions::default()).unwrap());
        let expected = evaluate(&on, &reference, 16, integer());
        assert_eq!(evaluate(&off, &reference, 16, integer()), expected, "{path}");
        assert_eq!(evaluate(&read, &reference, 16, integer()), expected, "{path}");
    }
}
