//! The numerics probe: logits, hidden rows, greedy text and drafts of given token sequences.

use std::path::PathBuf;

use clap::Args;
use engine::limits::Limits;
use engine::sample;
use engine::step::Executor;
use serde::{Deserialize, Serialize};

use super::finite::{self, NonFinite};
use super::options::RunFlags;
use super::single::{Single, Want};

/// Rows whose logits are held at once.
const CHUNK: usize = 64;

/// `engine-bench eval`.
#[derive(Clone, Debug, Args)]
pub struct EvalFlags {
    /// How the model is run.
    #[command(flatten)]
    pub run: RunFlags,
    /// `{"sequences":[[ids]...],"continue":64,"mtp_depth":3}`.
    #[arg(long, value_name = "IN.json")]
    pub tokens: PathBuf,
    /// Where the numbers go.
    #[arg(long, value_name = "OUT.json")]
    pub out: PathBuf,
    /// Print a summary as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What is asked.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Input {
    /// Token ids; nothing is added to them.
    pub sequences: Vec<Vec<u32>>,
    /// Tokens of greedy continuation; end tokens are not obeyed.
    #[serde(default, rename = "continue")]
    pub continuation: usize,
    /// Drafts of the chain after the greedy next token.
    #[serde(default)]
    pub mtp_depth: u32,
}

/// What came out, per sequence.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Output {
    /// In order of the input.
    pub sequences: Vec<SequenceOutput>,
}

/// One draft of the chain.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Draft {
    /// Its id.
    pub token: u32,
    /// Logits it was the greatest of.
    pub logits: Vec<f32>,
}

/// The numbers of one sequence of n tokens.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SequenceOutput {
    /// Per position: the ten greatest logits, best first.
    pub top10: Vec<Vec<(u32, f32)>>,
    /// Per position.
    pub logsumexp: Vec<f64>,
    /// Logits of the last position.
    pub logits_last: Vec<f32>,
    /// Hidden row of the last position, as the MTP block is fed it.
    pub h_last: Vec<f32>,
    /// Greedy continuation.
    pub greedy: Vec<u32>,
    /// Per token of it: distance to the second best.
    pub greedy_margin: Vec<f32>,
    /// Per position: argmax of the MTP block, fed the true token and the true hidden row. Empty without a block.
    pub mtp_top1: Vec<u32>,
    /// Chain after the first greedy token. Empty without a block.
    pub drafts: Vec<Draft>,
}

/// Why an input was refused, or has no answer.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A sequence without tokens.
    #[error("sequence {0} is empty")]
    Empty(usize),
    /// A token id that the model has not.
    #[error("sequence {sequence}: token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// Which sequence.
        sequence: usize,
        /// The id.
        token: u32,
        /// Ids of the model.
        vocab: usize,
    },
    /// Drafts of a model that has none.
    #[error("mtp_depth is {depth}, but there is no MTP block: {reason}; set mtp_depth to 0")]
    NoMtp {
        /// Drafts asked for.
        depth: u32,
        /// Why there are none.
        reason: String,
    },
    /// What the model computes is no number.
    #[error("sequence {sequence}, {source}")]
    NonFinite {
        /// Which sequence.
        sequence: usize,
        /// Where in it.
        source: NonFinite,
    },
}

/// Limits of an executor that can run `input`.
pub fn limits(input: &Input) -> Limits {
    let longest = input.sequences.iter().map(Vec::len).max().unwrap_or(0);
    let context = longest.saturating_add(input.continuation).saturating_add(input.mtp_depth as usize + 1);
    Limits { checkpoints: 4, ..Limits::new(1, context.max(2)) }
}

/// Compares an input with the model before anything runs.
///
/// # Errors
/// [`EvalError`].
pub fn check(input: &Input, vocab: usize, mtp: Option<&str>) -> Result<(), EvalError> {
    for (sequence, tokens) in input.sequences.iter().enumerate() {
        if tokens.is_empty() {
            return Err(EvalError::Empty(sequence));
        }
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(EvalError::Token { sequence, token, vocab });
        }
    }
    match mtp {
        Some(reason) if input.mtp_depth > 0 => {
            Err(EvalError::NoMtp { depth: input.mtp_depth, reason: reason.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Runs every sequence from an empty slot.
///
/// # Errors
/// [`EvalError::NonFinite`] at the first logit that is not finite.
///
/// # Panics
/// If the input was not checked.
pub fn evaluate<E: Executor>(single: &mut Single<E>, input: &Input) -> Result<Output, EvalError> {
    let mut sequences = Vec::with_capacity(input.sequences.len());
    for (i, tokens) in input.sequences.iter().enumerate() {
        let found = sequence(single, tokens, input.continuation, input.mtp_depth);
        sequences.push(found.map_err(|source| EvalError::NonFinite { sequence: i, source })?);
    }
    Ok(Output { sequences })
}

fn sequence<E: Executor>(
    single: &mut Single<E>,
    tokens: &[u32],
    continuation: usize,
    depth: u32,
) -> Result<SequenceOutput, NonFinite> {
    let shape = single.executor().shape().clone();
    let vocab = shape.vocab;
    let mut out = SequenceOutput::default();
    let mut scratch = sample::Scratch::default();
    single.reset();
    for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
        let result = single.trunk(chunk, chunk.len(), Want::ProbeAll);
        finite::check(&result.logits, vocab, finite::TRUNK, i * CHUNK)?;
        for row in result.logits.chunks_exact(vocab) {
            out.top10.push(top(row, 10, &mut scratch));
            out.logsumexp.push(sample::log_sum_exp(row));
        }
        out.logits_last = result.logits[result.logits.len() - vocab..].to_vec();
        out.h_last = result.hidden[result.hidden.len() - shape.hidden_width..].to_vec();
        if shape.mtp {
            let result = single.mtp(chunk, 0, true);
            finite::check(&result.mtp_logits, vocab, finite::MTP, i * CHUNK)?;
            out.mtp_top1.extend(result.mtp_logits.chunks_exact(vocab).map(best));
        }
    }
    let mut next = best(&out.logits_last);
    let mut margin = margin_of(&out.logits_last, &mut scratch);
    if depth > 0 {
        let result = single.mtp(&[next], depth, true);
        finite::check(&result.mtp_logits, vocab, finite::MTP, tokens.len())?;
        let logits = result.mtp_logits.chunks_exact(vocab);
        let drafts = result.draft.iter().zip(logits);
        out.drafts = drafts.map(|(t, logits)| Draft { token: t.0, logits: logits.to_vec() }).collect();
    }
    for i in 0..continuation {
        out.greedy.push(next);
        out.greedy_margin.push(margin);
        if i + 1 == continuation {
            break;
        }
        if shape.mtp && single.mtp_len() == single.kv_len() {
            single.mtp(&[next], 0, false);
        }
        let result = single.trunk(&[next], 1, Want::Probe);
        finite::check(&result.logits, vocab, finite::TRUNK, tokens.len() + i)?;
        next = result.next[0].0;
        margin = margin_of(&result.logits, &mut scratch);
    }
    Ok(out)
}

/// Id of the greatest logit, the lowest of equals. The row is finite.
fn best(row: &[f32]) -> u32 {
    sample::pick(row, None).map_or(0, |t| t.0)
}

fn top(row: &[f32], n: usize, scratch: &mut sample::Scratch) -> Vec<(u32, f32)> {
    let mut list = Vec::with_capacity(n);
    if let Some(best) = sample::pick(row, None) {
        sample::log_probs(row, scratch, best, n, &mut list);
    }
    list.into_iter().map(|(t, _)| (t.0, row[t.index()])).collect()
}

fn margin_of(row: &[f32], scratch: &mut sample::Scratch) -> f32 {
    match top(row, 2, scratch).as_slice() {
        [first, second] => first.1 - second.1,
        _ => f32::INFINITY,
    }
}
