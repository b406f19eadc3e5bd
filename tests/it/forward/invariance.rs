//! The same tokens give the same bits however they are cut into passes, batched, threaded or vectorised.

use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{CheckpointId, PageId, StateSlot, TokenId};
use engine::limits::{Limits, PAGE_TOKENS};
use engine::model::Model;
use engine::step::{Executor, Filters, MtpWork, NO_LOGPROBS, RowRules, SlotOp, Source, Step, StepResult, TrunkWork};
use engine_bin::bench::single::{Single, Want};
use engine_kernels::Isa;

use super::{exact, generate, integer, load, single};

const MODELS: &[&str] = &[
    "llama-tiny/llama-tiny-Q4_1.gguf",
    "qwen35-tiny/qwen35-tiny-BF16.gguf",
    "qwen35-tiny/qwen35-tiny-Q4_0.gguf",
    "qwen35-tiny-untied/qwen35-tiny-untied-Q8_0.gguf",
    "qwen35-tiny-k/qwen35-tiny-k-Q4_K_M.gguf",
    "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf",
    "qwen35moe-tiny/qwen35moe-tiny-F32.gguf",
    "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf",
    "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf",
    "nemotronh-tiny/nemotronh-tiny-F32.gguf",
];

/// Every fixture at hand, and what is generated.
fn models() -> Vec<(&'static str, Arc<Model>)> {
    let mut models: Vec<_> = MODELS.iter().filter_map(|path| Some((*path, load(path)?))).collect();
    let (q8, _) = generate::quantised(&generate::qwen4exp(1));
    models.push((generate::QWEN4EXP, Arc::new(q8.load().unwrap_or_else(|error| panic!("{error}")))));
    models
}

/// Ids without a pattern.
pub fn ids(n: usize, seed: u32) -> Vec<u32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x % 500
    };
    (0..n).map(|_| next()).collect()
}

/// What a sequence leaves behind: logits of its last row, its checkpoint, and what its MTP block drafts next.
#[derive(PartialEq, Debug)]
struct Trace {
    logits: Vec<u32>,
    checkpoint: Vec<u8>,
    drafts: Vec<TokenId>,
    draft_prob: Vec<u32>,
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Catches the MTP cache up, saves, and drafts.
fn finish(single: &mut Single<CpuExecutor>, tokens: &[u32], logits: Vec<u32>) -> Trace {
    let mtp = single.executor().shape().mtp;
    if mtp {
        single.mtp(&tokens[single.mtp_len() as usize..], 0, false);
    }
    let checkpoint = CheckpointId(7);
    single.op(SlotOp::Save { state: StateSlot(0), checkpoint });
    single.flush();
    let saved = single.executor().checkpoint_bytes(checkpoint).unwrap();
    let mut trace = Trace { logits, checkpoint: saved, drafts: Vec::new(), draft_prob: Vec::new() };
    if mtp {
        let result = single.mtp(&[17], 5, false);
        trace.drafts = result.draft.clone();
        trace.draft_prob = bits(&result.draft_prob);
    }
    trace
}

/// Cuts `tokens` into passes of `chunk` committed rows.
fn in_chunks(model: &Arc<Model>, tokens: &[u32], chunk: usize, options: ExecOptions) -> Trace {
    let mut single = single(model, tokens.len() + 8, options);
    let mut logits = Vec::new();
    for part in tokens.chunks(chunk) {
        logits = bits(&single.trunk(part, part.len(), Want::Probe).logits);
    }
    finish(&mut single, tokens, logits)
}

/// Decodes with windows of `k` drafts of which `accept(tick)` are the true tokens, the rest wrong.
fn in_windows(model: &Arc<Model>, tokens: &[u32], k: usize, accept: impl Fn(usize) -> usize, fill: bool) -> Trace {
    let (executor, limits) = {
        let limits = Limits { window_max: 48, checkpoints: 8, ..Limits::new(1, tokens.len() + 64) };
        (CpuExecutor::new(Arc::clone(model), limits.clone(), integer()), limits)
    };
    let mut single = Single::new(executor, &limits);
    single.trunk(&tokens[..3], 3, Want::Nothing);
    let mut at = 3;
    let mut tick = 0;
    let mut logits = Vec::new();
    while at < tokens.len() {
        if fill && single.executor().shape().mtp {
            // Catch up and draft, as a tick does: the scratch rows of a chain must not be seen by anyone.
            let from = single.mtp_len() as usize;
            single.mtp(&tokens[from..=at], (tick % 4) as u32, false);
        }
        let right = accept(tick).min(k).min(tokens.len() - 1 - at);
        let mut window = tokens[at..=at + right].to_vec();
        window.extend((right..k).map(|i| (tokens.get(at + 1 + i).copied().unwrap_or(3) + 1) % 500));
        let result = single.trunk(&window, 1, Want::Probe);
        logits = bits(&result.logits[right * model.vocab..(right + 1) * model.vocab]);
        at += right + 1;
        single.truncate(at as u32);
        tick += 1;
    }
    finish(&mut single, tokens, logits)
}

/// Prompt cuts at every small size, so that a chunk border falls everywhere in the convolution, and window shapes up
/// to the widest, with every kind of rejection.
#[test]
fn cuts_and_windows_change_nothing() {
    for (path, model) in models() {
        let tokens = ids(90, 1);
        let expected = in_chunks(&model, &tokens, 90, integer());
        for chunk in [1, 2, 3, 4, 5, 7, 8, 33, 64] {
            assert_eq!(in_chunks(&model, &tokens, chunk, integer()), expected, "{path}: chunks of {chunk}");
        }
        for k in [0, 1, 2, 7, 15, 32, 47] {
            for (name, accept) in
                [("none", (|_| 0) as fn(usize) -> usize), ("all", |_| usize::MAX), ("some", |tick| tick * 7 % 5)]
            {
                if k > 7 && name == "none" {
                    continue; // as k = 7, at a higher price
                }
                for fill in [false, true] {
                    let found = in_windows(&model, &tokens, k, accept, fill);
                    assert_eq!(found, expected, "{path}: windows of {k} drafts, {name} accepted, fill {fill}");
                }
            }
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_nothing() {
    for (path, model) in models() {
        let tokens = ids(280, 2);
        // Float activations in plain Rust are slow: once.
        let modes: &[ExecOptions] = if path.contains("F32") { &[exact(), integer()] } else { &[integer()] };
        for &options in modes {
            let expected = in_chunks(&model, &tokens, 100, options);
            for isa in Isa::available() {
                for threads in [1, 2] {
                    let found = in_chunks(&model, &tokens, 64, ExecOptions { isa, threads, ..options });
                    assert_eq!(found, expected, "{path}: {isa:?}, {threads} threads");
                }
            }
        }
    }
}

/// Several sequences in one pass, with windows, prefill and MTP work side by side, equal each of them alone.
#[test]
fn a_batch_is_its_sequences() {
    for (path, model) in models() {
        let lens = [37, 20, 61];
        let prompts: Vec<Vec<u32>> = lens.iter().enumerate().map(|(i, &n)| ids(n, 10 + i as u32)).collect();
        let windows: Vec<Vec<u32>> = [1, 5, 9].iter().enumerate().map(|(i, &n)| ids(n, 20 + i as u32)).collect();

        let mut alone = Vec::new();
        for (prompt, window) in prompts.iter().zip(&windows) {
            let mut one = single(&model, 96, integer());
            one.trunk(prompt, prompt.len(), Want::Nothing);
            let mut drafts = Vec::new();
            if model.program.mtp.is_some() {
                let tokens = [prompt.as_slice(), &window[..1]].concat();
                drafts = one.mtp(&tokens, window.len() as u32 - 1, false).draft.clone();
            }
            alone.push((bits(&one.trunk(window, 1, Want::Probe).logits), drafts));
        }

        let limits = Limits::new(3, 96);
        let mut executor = CpuExecutor::new(Arc::clone(&model), limits.clone(), integer());
        let mut out = StepResult::default();
        let tables: Vec<Vec<PageId>> = interleaved(3, 96);
        let mut step = batch(&tables, &prompts, &[0, 0, 0], None);
        step.ops = (0..3).map(|s| SlotOp::Reset { state: StateSlot(s) }).collect();
        executor.run(&step, &mut out);
        assert_eq!(out.next, [TokenId::NONE; 3], "nothing was asked for");

        let positions: Vec<u32> = lens.iter().map(|&n| n as u32).collect();
        let mut step = batch(&tables, &windows, &positions, Some(1));
        if model.program.mtp.is_some() {
            for (s, table) in tables.iter().enumerate() {
                let tokens = [prompts[s].as_slice(), &windows[s][..1]].concat();
                let mtp = &mut step.mtp;
                mtp.state.push(StateSlot(s as u32));
                mtp.position.push(0);
                mtp.depth.push(windows[s].len() as u32 - 1);
                mtp.p_min.push(0.0);
                push(&mut mtp.token_start, &mut mtp.token, tokens.iter().map(|&t| TokenId(t)));
                push(&mut mtp.page_start, &mut mtp.page, table.iter().copied());
            }
        }
        executor.run(&step, &mut out);
        let mut row = 0;
        for (s, window) in windows.iter().enumerate() {
            let logits = bits(&out.logits[row * model.vocab..(row + window.len()) * model.vocab]);
            row += window.len();
            let drafts = match model.program.mtp.is_some() {
                true => out.draft[out.draft_start[s] as usize..out.draft_start[s + 1] as usize].to_vec(),
                false => Vec::new(),
            };
            assert_eq!((logits, drafts), alone[s], "{path}: sequence {s}");
        }
    }
}

/// Block tables that take turns in the pool, so that no sequence's pages are neighbours.
fn interleaved(slots: usize, context: usize) -> Vec<Vec<PageId>> {
    let pages = context.div_ceil(PAGE_TOKENS);
    (0..slots).map(|s| (0..pages).map(|p| PageId((p * slots + s) as u32)).collect()).collect()
}

fn push<T>(start: &mut Vec<u32>, column: &mut Vec<T>, items: impl Iterator<Item = T>) {
    if start.is_empty() {
        start.push(0);
    }
    column.extend(items);
    start.push(column.len() as u32);
}

/// A trunk step over one segment a sequence: prompts without `committed`, else windows that are probed.
fn batch(tables: &[Vec<PageId>], rows: &[Vec<u32>], position: &[u32], committed: Option<u32>) -> Step {
    let mut trunk = TrunkWork::default();
    for (s, tokens) in rows.iter().enumerate() {
        trunk.state.push(StateSlot(s as u32));
        trunk.position.push(position[s]);
        trunk.committed.push(committed.unwrap_or(tokens.len() as u32));
        push(&mut trunk.row_start, &mut trunk.token, tokens.iter().map(|&t| TokenId(t)));
        push(&mut trunk.page_start, &mut trunk.page, tables[s].iter().copied());
        trunk.source.extend(tokens.iter().map(|_| Source::Prompt));
    }
    if committed.is_some() {
        let n = trunk.token.len();
        trunk.rules = RowRules {
            row: (0..n as u32).collect(),
            filter: vec![0; n],
            draw: vec![0; n],
            mask: vec![u32::MAX; n],
            top_n: vec![NO_LOGPROBS; n],
            filters: vec![Filters::GREEDY],
            probe: true,
            ..RowRules::default()
        };
    }
    Step { ops: Vec::new(), mtp: MtpWork::default(), trunk }
}
