//! A real model of 135 million weights, against recorded numbers.
//!
//! Its references differ among themselves: integer activations in an F32 cache (`f32kv`), and float activations
//! (`dequant`). Any two differ by up to 2.6 logits; a choice may flip where the best two are close.

use std::sync::Arc;

use engine::exec::ExecOptions;
use engine::model::Model;
use engine::model::load::LoadOptions;
use engine_bin::bench::eval::{self, Input, SequenceOutput};
use engine_bin::bench::ppl::{self, perplexity};
use engine_bin::bench::single::{Single, Want};
use engine_tests::fixtures::{Reference, smollm2_gguf};

use crate::forward::{exact, executor, integer, open};

const PROMPTS: usize = 10;
/// Prompts whose greedy text is followed with float activations, which are slow.
const CONTINUED: usize = 2;
/// Tokens of that text.
const CONTINUATION: usize = 24;

fn model() -> Option<(Arc<Model>, Reference)> {
    let (path, reference) = (smollm2_gguf()?, Reference::open("smollm2/smollm2.safetensors")?);
    let model = Model::load(&open(&path), None, LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    Some((Arc::new(model), reference))
}

/// As fast as the machine allows: the bits are the same.
fn on_two(options: ExecOptions) -> ExecOptions {
    ExecOptions { threads: 2, ..options }
}

fn evaluate(
    model: &Arc<Model>,
    prompts: &[Vec<u32>],
    continuation: usize,
    options: ExecOptions,
) -> Vec<SequenceOutput> {
    let input = Input { sequences: prompts.to_vec(), continuation, mtp_depth: 0 };
    eval::check(&input, model.vocab, None).unwrap();
    let limits = eval::limits(&input);
    let mut single = Single::new(executor(model, 1, limits.context, options).0, &limits);
    eval::evaluate(&mut single, &input).unwrap().sequences
}

fn prompts(r: &Reference) -> Vec<Vec<u32>> {
    (0..PROMPTS).map(|i| r.ids(&format!("p{i}.tokens"))).collect()
}

/// The product's own arithmetic: as likely a text, nearly the same choices.
#[test]
fn integer_activations_are_as_good_as_the_peers() {
    let Some((model, r)) = model() else { return };
    let tokens = r.ids("ppl.tokens");
    ppl::check(&tokens, model.vocab).unwrap();
    let limits = ppl::limits(&tokens);
    let mut single = Single::new(executor(&model, 1, limits.context, on_two(integer())).0, &limits);
    let found = perplexity(&mut single, &tokens).unwrap();
    let nll = r.f32("ppl.f32kv.nll").data;
    let expected = (nll.iter().map(|&x| f64::from(x)).sum::<f64>() / nll.len() as f64).exp();
    assert!((found.ppl / expected - 1.0).abs() < 0.005, "perplexity {}, expected {expected}", found.ppl);

    // Every recorded position: three of each prompt, and the peer's own greedy text after it, which we are made to
    // read instead of ours so that one near-tie does not end the comparison.
    let texts: Vec<(Vec<u32>, Vec<u32>, usize)> = (0..PROMPTS)
        .map(|i| {
            let (mut tokens, greedy) = (r.ids(&format!("p{i}.tokens")), r.ids(&format!("p{i}.f32kv.greedy")));
            let prompt = tokens.len();
            tokens.extend(&greedy[..greedy.len() - 1]);
            (tokens, greedy, prompt)
        })
        .collect();
    let read: Vec<Vec<u32>> = texts.iter().map(|t| t.0.clone()).collect();
    let (mut same, mut n) = (0, 0);
    let mut distance = Vec::new();
    for (i, found) in evaluate(&model, &read, 0, on_two(integer())).iter().enumerate() {
        let (_, greedy, prompt) = &texts[i];
        let ids = r.i32(&format!("p{i}.f32kv.top20_ids"));
        let logits = r.f32(&format!("p{i}.f32kv.top20_logits"));
        for (row, &p) in r.i32(&format!("p{i}.positions")).data.iter().enumerate() {
            let ours = &found.top10[p as usize];
            for (&id, theirs) in ids.row(row).iter().zip(logits.row(row)) {
                distance.extend(ours.iter().filter(|t| t.0 as i32 == id).map(|t| (t.1 - theirs).abs()));
            }
            if p as usize + 1 == *prompt {
                continue; // the first of the greedy text, below
            }
            n += 1;
            let choice = ours[0].0 as i32;
            if choice == ids.row(row)[0] {
                same += 1;
                continue;
            }
            // Both choices must have been close in the reference's eyes.
            let at = ids.row(row).iter().position(|&id| id == choice);
            let margin = at.map(|at| logits.row(row)[0] - logits.row(row)[at]);
            assert!(margin.is_some_and(|m| m < 0.5), "prompt {i}, position {p}: {choice} is {margin:?} behind");
        }
        let margins = r.f32(&format!("p{i}.f32kv.greedy_margin")).data;
        for (j, (&theirs, &margin)) in greedy.iter().zip(&margins).enumerate() {
            n += 1;
            let ours = found.top10[prompt - 1 + j][0].0;
            if ours == theirs {
                same += 1;
            } else {
                assert!(margin < 0.5, "prompt {i}, token {j}: {ours} for {theirs}, which leads by {margin}");
            }
        }
    }
    eprintln!("SmolLM2: {same} of {n} choices as the peer, perplexity {:.4} for {expected:.4}", found.ppl);
    assert!(n > 600 && f64::from(same) / f64::from(n) >= 0.95, "{same} of {n} choices as the peer");
    // The reference's own modes are 0.12 to 0.36 apart.
    let mean = distance.iter().sum::<f32>() / distance.len() as f32;
    assert!(mean < 0.2, "mean distance of the best logits: {mean}");
}

/// Float activations meet the reference that has them too.
#[test]
fn float_activations_meet_the_reference() {
    let Some((model, r)) = model() else { return };
    let prompts = prompts(&r);
    let mut outputs = evaluate(&model, &prompts[..CONTINUED], CONTINUATION, on_two(exact()));
    outputs.extend(evaluate(&model, &prompts[CONTINUED..], 0, on_two(exact())));
    for (i, found) in outputs.iter().enumerate() {
        let at = |key: &str| format!("p{i}.dequant.{key}");
        let (ids, logits, lse) = (r.i32(&at("top20_ids")), r.f32(&at("top20_logits")), r.f32(&at("logsumexp")));
        for (row, &p) in r.i32(&format!("p{i}.positions")).data.iter().enumerate() {
            let p = p as usize;
            for (ours, theirs) in found.top10[p].iter().zip(logits.row(row)) {
                assert!((ours.1 - theirs).abs() < 2e-3, "prompt {i}, position {p}: {} for {theirs}", ours.1);
            }
            assert!((found.logsumexp[p] - f64::from(lse.data[row])).abs() < 2e-3, "prompt {i}, position {p}");
            let last = p + 1 == found.top10.len();
            for (&id, &theirs) in ids.row(row).iter().zip(logits.row(row)).filter(|_| last) {
                let ours = found.logits_last[id as usize];
                assert!((ours - theirs).abs() < 2e-3, "prompt {i}, token {id}: {ours} for {theirs}");
            }
        }
        let (greedy, margin) = (r.ids(&at("greedy")), r.f32(&at("greedy_margin")).data);
        let sure = margin.iter().position(|&m| m < 1e-2).unwrap_or(greedy.len()).min(found.greedy.len());
        assert_eq!(found.greedy[..sure], greedy[..sure], "prompt {i}: greedy text up to the first near-tie");
    }
}

/// A window of any width over real weights chooses what plain decoding chooses, bit for bit.
#[test]
fn windows_over_real_weights_change_nothing() {
    let Some((model, r)) = model() else { return };
    let prompt = r.ids("p3.tokens");
    let (executor, limits) = executor(&model, 1, prompt.len() + 64, on_two(integer()));
    let mut single = Single::new(executor, &limits);
    let mut next = single.trunk(&prompt, prompt.len(), Want::Choice).next[0].0;
    let mut plain = Vec::new();
    let mut logits = Vec::new();
    for _ in 0..24 {
        plain.push(next);
        let result = single.trunk(&[next], 1, Want::Probe);
        logits.extend(result.logits.iter().map(|x| x.to_bits()));
        next = result.next[0].0;
    }
    for width in [5, 12, 24] {
        single.reset();
        single.trunk(&prompt, prompt.len(), Want::Nothing);
        let mut seen = Vec::new();
        for window in plain.chunks(width) {
            let result = single.trunk(window, 1, Want::Probe);
            assert_eq!(result.accepted[0] as usize, window.len() - 1, "windows of {width}: all drafts accepted");
            seen.extend(result.logits.iter().map(|x| x.to_bits()));
        }
        assert!(seen == logits, "windows of {width} rows: other logits than plain decoding");
    }
}
