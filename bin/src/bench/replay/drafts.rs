//! What the model's MTP block drafts after every token of a recorded answer.
//!
//! A draft is a pure function of the tokens before it, whoever chose them, and of nothing an arm sets: a chain of depth d
//! is the beginning of a deeper one. So trunk and block read each session once, with the recorded tokens, and every arm
//! and round looks its drafts up. It costs a forward pass of the sessions, and a chain for every answered token.

use engine::ids::TokenId;
use engine::limits::{Limits, STEP_ROWS_MAX};
use engine::step::Executor;

use super::script::Script;
use crate::bench::single::{Single, Want};

/// Answered tokens that a trunk pass reads before their chains are run.
const ANSWER_ROWS: usize = 64;

/// Limits of an executor that can read answers in `context`: chains reach past its end.
pub fn limits(context: usize, depth: usize) -> Limits {
    Limits::new(1, context + depth + 1)
}

/// Fills [`Script::drafts`] of scripts that follow each other, `depth` drafts after each token.
pub fn read<E: Executor>(single: &mut Single<E>, scripts: &mut [Script], depth: usize) {
    let mut known: Vec<TokenId> = Vec::new();
    let mut fresh = true;
    for script in scripts {
        let Script { prompt, target, drafts, .. } = script;
        // A session that goes on has most of its prompt behind it.
        if fresh || !prompt.starts_with(&known) || known.len() >= prompt.len() {
            single.reset();
            known.clear();
            fresh = false;
        }
        for chunk in prompt[known.len()..].chunks(STEP_ROWS_MAX) {
            commit(single, chunk);
        }
        known.clone_from(prompt);
        *drafts = vec![TokenId::NONE; target.len() * depth];
        // Nothing is drafted after the last token.
        let anchors = &target[..target.len() - 1];
        for (chunk, filled) in anchors.chunks(ANSWER_ROWS).zip(drafts.chunks_mut(ANSWER_ROWS * depth)) {
            let ids: Vec<u32> = chunk.iter().map(|id| id.0).collect();
            single.trunk(&ids, ids.len(), Want::Nothing);
            for (id, filled) in ids.iter().zip(filled.chunks_mut(depth)) {
                let chain = &single.mtp(&[*id], depth as u32, false).draft;
                filled[..chain.len()].copy_from_slice(chain);
            }
        }
        known.extend(anchors);
    }
}

/// A pass over tokens of a prompt, and the MTP cache filled behind it.
fn commit<E: Executor>(single: &mut Single<E>, tokens: &[TokenId]) {
    let ids: Vec<u32> = tokens.iter().map(|id| id.0).collect();
    single.trunk(&ids, ids.len(), Want::Nothing);
    single.mtp(&ids, 0, false);
}
