//! Slot operations, as their documentation in `step.rs` says.

use std::sync::Arc;

use engine::exec::CpuExecutor;
use engine::ids::{CheckpointId, PageId, StateSlot, TokenId};
use engine::limits::Limits;
use engine::model::Model;
use engine::step::{Executor, SlotOp, Step, StepResult};
use engine_bin::bench::single::{Single, Want};

use super::invariance::ids;
use super::{generate, integer, load};

const MODELS: &[&str] = &[
    "llama-tiny/llama-tiny-Q4_1.gguf",
    "qwen35-tiny/qwen35-tiny-Q8_0.gguf",
    "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf",
    "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf",
    "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf",
];

/// Two slots with six pages each.
fn pair(model: &Arc<Model>) -> CpuExecutor {
    let limits = Limits { checkpoints: 2, ..Limits::new(2, 96) };
    CpuExecutor::new(Arc::clone(model), limits, integer())
}

fn pages(slot: u32) -> Vec<PageId> {
    (0..6).map(|p| PageId(slot * 6 + p)).collect()
}

fn in_slot(executor: CpuExecutor, slot: u32) -> Single<CpuExecutor> {
    Single::in_slot(executor, StateSlot(slot), pages(slot))
}

/// What follows: logits of the next tokens, and drafts after them.
fn future(single: &mut Single<CpuExecutor>, tokens: &[u32], history: &[u32]) -> (Vec<u32>, Vec<TokenId>) {
    let logits = single.trunk(tokens, tokens.len(), Want::Probe).logits.iter().map(|x| x.to_bits()).collect();
    if !single.executor().shape().mtp {
        return (logits, Vec::new());
    }
    let all = [history, tokens, &[9]].concat();
    let from = single.mtp_len() as usize;
    (logits, single.mtp(&all[from..], 4, false).draft.clone())
}

/// The future of `history` in a fresh executor.
fn expected(model: &Arc<Model>, history: &[u32], tokens: &[u32]) -> (Vec<u32>, Vec<TokenId>) {
    let mut single = in_slot(pair(model), 0);
    single.trunk(history, history.len(), Want::Nothing);
    if model.program.mtp.is_some() {
        single.mtp(history, 0, false);
    }
    future(&mut single, tokens, history)
}

fn grown(executor: CpuExecutor, slot: u32, history: &[u32]) -> Single<CpuExecutor> {
    let mut single = in_slot(executor, slot);
    single.trunk(history, history.len(), Want::Nothing);
    if single.executor().shape().mtp {
        single.mtp(history, 0, false);
    }
    single
}

fn check(name: &str, run: impl Fn(&Arc<Model>, &str)) {
    for path in MODELS {
        if let Some(model) = load(path) {
            run(&model, &format!("{name}, {path}"));
        }
    }
    let model = generate::qwen4exp(1).load().unwrap_or_else(|error| panic!("{error}"));
    run(&Arc::new(model), &format!("{name}, {}", generate::QWEN4EXP));
}

#[test]
fn reset_leaves_nothing_of_the_sequence_before() {
    check("reset", |model, what| {
        let (first, second, next) = (ids(50, 1), ids(33, 2), ids(4, 3));
        let mut single = grown(pair(model), 0, &first);
        single.trunk(&ids(6, 4), 1, Want::Nothing); // leaves rows in the log
        let mut single = grown(single.into_executor(), 0, &second);
        assert_eq!(future(&mut single, &next, &second), expected(model, &second, &next), "{what}");
    });
}

#[test]
fn truncate_forgets_rows_of_the_log() {
    check("truncate", |model, what| {
        let (history, next) = (ids(40, 5), ids(4, 6));
        let mut single = grown(pair(model), 0, &history[..30]);
        let window = [&history[30..34], &[1, 2, 3]].concat();
        single.trunk(&window, 1, Want::Nothing);
        single.truncate(36);
        single.truncate(34);
        if model.program.mtp.is_some() {
            single.mtp(&history[30..34], 0, false);
        }
        single.trunk(&history[34..], 6, Want::Nothing);
        assert_eq!(future(&mut single, &next, &history), expected(model, &history, &next), "{what}");
    });
}

/// A fold moves rows from the log to the state; nothing that follows changes.
#[test]
fn fold_changes_nothing_that_follows() {
    check("fold", |model, what| {
        let (history, next) = (ids(40, 5), ids(4, 6));
        let mut single = grown(pair(model), 0, &history[..30]);
        single.trunk(&history[30..38], 1, Want::Nothing);
        single.truncate(36);
        single.op(SlotOp::Fold { state: StateSlot(0) });
        single.op(SlotOp::Fold { state: StateSlot(0) });
        single.trunk(&history[36..], 4, Want::Nothing);
        assert_eq!(future(&mut single, &next, &history), expected(model, &history, &next), "{what}");
    });
}

#[test]
#[should_panic(expected = "folded into its state")]
fn truncate_below_the_fold_asserts() {
    let model = load("qwen35-tiny/qwen35-tiny-Q8_0.gguf").expect("the fixture is committed");
    let mut single = grown(pair(&model), 0, &ids(20, 1));
    single.truncate(19);
    single.flush();
}

/// Fork with copied pages: both sequences go on as the one did, and neither sees the other's rows.
#[test]
fn forks_part_ways() {
    check("fork", |model, what| {
        let (history, mine, yours) = (ids(40, 7), ids(5, 8), ids(5, 9));
        let mut single = grown(pair(model), 0, &history[..36]);
        single.trunk(&history[36..], 1, Want::Nothing); // the copy must bring the log along
        if model.program.mtp.is_some() {
            single.mtp(&history[36..], 0, false);
        }
        for (from, to) in pages(0).into_iter().zip(pages(1)) {
            single.op(SlotOp::CopyPage { from, to });
        }
        single.op(SlotOp::Fork { from: StateSlot(0), to: StateSlot(1) });
        let first = future(&mut single, &mine, &history);
        let mut other = Single::resume(single.into_executor(), StateSlot(1), pages(1), 40);
        let second = future(&mut other, &yours, &history);
        assert_eq!(first, expected(model, &history, &mine), "{what}: the original");
        assert_eq!(second, expected(model, &history, &yours), "{what}: the copy");
    });
}

/// A checkpoint restored into another slot over the same pages goes on as the original; it can be restored again; it
/// is the same bytes whether rows were folded before or not.
#[test]
fn checkpoints_bring_a_sequence_back() {
    check("checkpoint", |model, what| {
        let (history, detour, next) = (ids(40, 11), ids(20, 12), ids(4, 13));
        let checkpoint = CheckpointId(3);
        let mut single = grown(pair(model), 0, &history[..30]);
        single.trunk(&[&history[30..], &[1, 2]].concat(), 1, Want::Nothing);
        single.truncate(40);
        if model.program.mtp.is_some() {
            single.mtp(&history[30..], 0, false);
        }
        single.op(SlotOp::Save { state: StateSlot(0), checkpoint });
        single.flush();
        let bytes = single.executor().checkpoint_bytes(checkpoint);
        let expected = expected(model, &history, &next);
        let mut executor = single.into_executor();
        for round in 0..2 {
            // The detour writes behind the checkpoint in pages that the restored sequence will overwrite.
            let mut one = Single::resume(executor, StateSlot(0), pages(0), 40);
            one.op(SlotOp::Restore { checkpoint, state: StateSlot(0) });
            one.trunk(&detour, 20, Want::Nothing);
            let mut two = Single::resume(one.into_executor(), StateSlot(1), pages(0), 40);
            two.op(SlotOp::Restore { checkpoint, state: StateSlot(1) });
            assert_eq!(future(&mut two, &next, &history), expected, "{what}: round {round}");
            executor = two.into_executor();
            assert_eq!(executor.checkpoint_bytes(checkpoint), bytes, "{what}: a checkpoint does not change");
        }
        let whole = grown(pair(model), 0, &history);
        let mut whole = Single::resume(whole.into_executor(), StateSlot(0), pages(0), 40);
        whole.op(SlotOp::Save { state: StateSlot(0), checkpoint });
        whole.flush();
        assert_eq!(whole.executor().checkpoint_bytes(checkpoint), bytes, "{what}: state of one prefill");
        whole.op(SlotOp::Drop { checkpoint });
        whole.flush();
        assert_eq!(whole.executor().checkpoint_bytes(checkpoint), None, "{what}: dropped");
    });
}

/// A step that does not continue where its sequence stands is a bug of its writer.
#[test]
#[should_panic(expected = "and the sequence has 20 positions")]
fn a_gap_asserts() {
    let model = load("llama-tiny/llama-tiny-Q4_1.gguf").expect("the fixture is committed");
    let single = grown(pair(&model), 0, &ids(20, 1));
    let mut wrong = Single::resume(single.into_executor(), StateSlot(0), pages(0), 21);
    wrong.trunk(&[1], 1, Want::Nothing);
}

/// Operations alone are a step too.
#[test]
fn a_step_may_hold_operations_only() {
    let Some(model) = load("llama-tiny/llama-tiny-Q4_1.gguf") else { return };
    let mut executor = pair(&model);
    let mut out = StepResult { accepted: vec![3], ..StepResult::default() };
    executor.run(&Step { ops: vec![SlotOp::Reset { state: StateSlot(1) }], ..Step::default() }, &mut out);
    assert_eq!(out, StepResult::default(), "an old result is overwritten");
}
