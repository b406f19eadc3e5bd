//! Perplexity of a token sequence in one context.

use std::path::PathBuf;

use clap::Args;
use engine::limits::Limits;
use engine::sample;
use engine::step::Executor;
use serde::Serialize;

use super::finite::{self, NonFinite};
use super::options::RunFlags;
use super::single::{Single, Want};

/// Rows whose logits are held at once.
const CHUNK: usize = 64;

/// `engine-bench ppl`.
#[derive(Clone, Debug, Args)]
pub struct PplFlags {
    /// How the model is run.
    #[command(flatten)]
    pub run: RunFlags,
    /// A text; tokenised as it stands, nothing is added.
    #[arg(long, value_name = "FILE", required_unless_present = "tokens", conflicts_with = "tokens")]
    pub text: Option<PathBuf>,
    /// A JSON array of token ids, or an object with `tokens`.
    #[arg(long, value_name = "JSON")]
    pub tokens: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How surprising a text is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Perplexity {
    /// Tokens, the first included, which is given and not judged.
    pub tokens: usize,
    /// Mean negative log-likelihood of tokens 1...
    pub mean_nll: f64,
    /// Its exponential.
    pub ppl: f64,
    /// Per token 1..: its negative log-likelihood.
    #[serde(skip)]
    pub nll: Vec<f64>,
}

/// Why a text was refused.
#[derive(Debug, thiserror::Error)]
pub enum PplError {
    /// Nothing to judge.
    #[error("{0} tokens; at least 2 are needed: one given, one judged")]
    TooShort(usize),
    /// A token id that the model has not.
    #[error("token {token} at {position} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Its place.
        position: usize,
        /// Ids of the model.
        vocab: usize,
    },
}

/// Compares the tokens with the model before anything runs.
///
/// # Errors
/// [`PplError`].
pub fn check(tokens: &[u32], vocab: usize) -> Result<(), PplError> {
    if tokens.len() < 2 {
        return Err(PplError::TooShort(tokens.len()));
    }
    match tokens.iter().position(|&t| t as usize >= vocab) {
        Some(position) => Err(PplError::Token { token: tokens[position], position, vocab }),
        None => Ok(()),
    }
}

/// Limits of an executor that can run `tokens`.
pub fn limits(tokens: &[u32]) -> Limits {
    Limits::new(1, tokens.len())
}

/// Judges every token but the first, given all before it.
///
/// # Errors
/// At the first logit that is not finite.
///
/// # Panics
/// If the tokens were not checked.
pub fn perplexity<E: Executor>(single: &mut Single<E>, tokens: &[u32]) -> Result<Perplexity, NonFinite> {
    let vocab = single.executor().shape().vocab;
    let mtp = single.executor().shape().mtp;
    single.reset();
    let mut nll = Vec::with_capacity(tokens.len() - 1);
    let known = &tokens[..tokens.len() - 1];
    for (i, chunk) in known.chunks(CHUNK).enumerate() {
        let result = single.trunk(chunk, chunk.len(), Want::ProbeAll);
        finite::check(&result.logits, vocab, finite::TRUNK, i * CHUNK)?;
        let judged = &tokens[i * CHUNK + 1..];
        for (row, &token) in result.logits.chunks_exact(vocab).zip(judged) {
            nll.push(sample::log_sum_exp(row) - f64::from(row[token as usize]));
        }
        if mtp {
            single.mtp(chunk, 0, false);
        }
    }
    let mean_nll = nll.iter().sum::<f64>() / nll.len() as f64;
    Ok(Perplexity { tokens: tokens.len(), mean_nll, ppl: mean_nll.exp(), nll })
}
