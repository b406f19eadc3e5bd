//! `qwen4exp`: hyper-connections, n-gram embeddings, block-sparse attention and the MTP block behind them.
//!
//! The torch reference is right at every depth; the peer's file holds depth 1 only, because that peer overwrites one
//! stream of the row it hands back from a draft step.

use std::sync::Arc;

use engine::model::load::LoadOptions;
use engine::model::{HiddenNorm, Model};
use engine_bin::bench::single::Want;
use engine_tests::fixtures::Reference;

use super::{LOGIT_LIMIT, MARGIN, MTP_LIMIT, distance, evaluate, exact, load, load_with, meets, sequences, single};

pub const MODEL: &str = "qwen4exp-tiny/qwen4exp-tiny-F32.gguf";
const PEER: &str = "qwen4exp-tiny/ref-llamacpp-newer-F32.safetensors";

#[test]
fn qwen4exp_meets_its_references() {
    meets(MODEL, "qwen4exp-tiny/ref-torch-f32.safetensors");
}

/// Every recorded row of the wide state and of the MTP prefill, and the hidden rows of the chains.
#[test]
fn wide_rows_and_drafts_meet_the_reference() {
    let (Some(model), Some(r)) = (load(MODEL), Reference::open("qwen4exp-tiny/ref-torch-f32.safetensors")) else {
        return;
    };
    for (i, tokens) in sequences(&r).into_iter().enumerate() {
        let at = |key: &str| format!("s{i}.{key}");
        let mut single = single(&model, tokens.len() + 8, exact());
        let wide = r.f32(&at("h_last"));
        assert_eq!(single.executor_width(), wide.shape[1], "all streams");
        let result = single.trunk(&tokens, tokens.len(), Want::ProbeAll);
        let hidden = &result.hidden[result.hidden.len() - wide.data.len()..];
        assert!(distance(hidden, &wide.data) < LOGIT_LIMIT, "sequence {i}: wide rows");
        let logits = r.f32(&at("logits_last"));
        let found = &result.logits[result.logits.len() - logits.data.len()..];
        assert!(distance(found, &logits.data) < LOGIT_LIMIT, "sequence {i}: logits");
    }
}

trait Width {
    fn executor_width(&self) -> usize;
}

impl<E: engine::step::Executor> Width for engine_bin::bench::single::Single<E> {
    fn executor_width(&self) -> usize {
        self.executor().shape().hidden_width
    }
}
