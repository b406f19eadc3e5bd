//! The smoke test: a model is loaded and runs a few tokens. It finds what no comparison of bytes tells: numbers that were
//! damaged before anybody looked.

use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::TokenId;
use engine::limits::Limits;
use engine::memory::{Memory, MemoryError};
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::{ModelError, MtpStatus};
use engine::step::Executor;
use engine_io::ModelFile;
use serde::Serialize;

use super::error::PackError;
use crate::bench::finite::{self, NonFinite};
use crate::bench::single::{Single, Want};
use crate::flags::physical_cores;

/// Tokens of the text.
pub const TOKENS: usize = 8;
/// Tokens of the prompt.
const PROMPT: usize = 8;
/// Drafts of a window.
const DRAFTS: usize = 3;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Smoke {
    /// Norms that were looked at.
    pub norms: usize,
    /// The greedy text.
    pub text: Vec<u32>,
    /// Drafts on the way to the same text; null without an MTP block.
    pub drafts: Option<Drafts>,
    /// Everything that is wrong.
    pub faults: Vec<String>,
}

/// What became of drafts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Drafts {
    /// Drafts that were verified.
    pub drafted: usize,
    /// Those of them that the model would have written.
    pub accepted: usize,
}

impl Smoke {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = vec![format!("ran {} tokens; {} norms are well", self.text.len(), self.norms)];
        out.push(match self.drafts {
            // What is accepted of them behind a prompt of random ids says nothing of a head.
            Some(Drafts { drafted, .. }) => format!("{drafted} drafts of its block changed nothing"),
            None => "it has no MTP block, so nothing drafted".to_owned(),
        });
        if !self.faults.is_empty() {
            out = self.faults.iter().map(|fault| format!("wrong: {fault}")).collect();
        }
        out.join("\n") + "\n"
    }
}

/// Runs a model.
///
/// # Errors
/// A model that cannot be loaded, or is too large for the memory. What is wrong with its numbers is in the report.
pub fn smoke(file: &ModelFile) -> Result<Smoke, PackError> {
    let planned = Planned::new(file, None, LoadOptions::default())?;
    let wanted = planned.plan.vectors.clone();
    let mut out = Smoke { norms: 0, text: Vec::new(), drafts: None, faults: Vec::new() };
    let model = match planned.load(file, None, Repack::Off) {
        Ok(model) => Arc::new(model),
        // The loader looks at small tensors itself.
        Err(error @ ModelError::Values { .. }) => {
            out.faults.push(error.to_string());
            return Ok(out);
        }
        Err(error) => return Err(error.into()),
    };
    let vectors = wanted.iter().zip(model.weights.vectors());
    let norms: Vec<_> = vectors.filter(|(t, _)| t.name.contains("norm") && t.name.ends_with(".weight")).collect();
    out.norms = norms.len();
    let zeros = norms.iter().filter(|(_, values)| values.iter().all(|v| *v == 0.0));
    let fault =
        |name: &str| format!("{}: tensor {name} holds zeros alone, expected the weights of a norm", file.name());
    out.faults.extend(zeros.map(|(t, _)| fault(&t.name)));

    let limits = Limits { window_max: DRAFTS, ..Limits::new(1, PROMPT + TOKENS + DRAFTS + 1) };
    let options = ExecOptions { threads: physical_cores(), ..ExecOptions::default() };
    let too_large = |error: MemoryError| PackError::Refused(format!("the smoke test cannot run: {error}"));
    Memory::of_executor(&model, &limits, &options)?.ask_system(&limits).map_err(too_large)?;
    let mut single = Single::new(CpuExecutor::new(Arc::clone(&model), limits.clone(), options), &limits);
    // No tokenizer is asked: whatever the ids mean, both ways must go on alike.
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (1 + i * 7919) % model.vocab as u32).collect();
    let mut failed = |error: NonFinite| out.faults.push(format!("{}: {error}", file.name()));
    match plain(&mut single, &prompt) {
        Ok(text) => out.text = text,
        Err(error) => failed(error),
    }
    if model.mtp == MtpStatus::Own {
        match drafting(&mut single, &prompt) {
            Ok((text, drafts)) => {
                out.drafts = Some(drafts);
                out.faults.extend(differs(&out.text, &text).map(|what| format!("{}: {what}", file.name())));
            }
            Err(error) => failed(error),
        }
    }
    Ok(out)
}

/// A token a pass.
fn plain<E: Executor>(single: &mut Single<E>, prompt: &[u32]) -> Result<Vec<u32>, NonFinite> {
    single.reset();
    let mut text = vec![window(single, prompt, prompt.len())?.1];
    while text.len() < TOKENS {
        let anchor = text[text.len() - 1];
        text.push(window(single, &[anchor], 1)?.1);
    }
    Ok(text)
}

/// As many as the block drafts and the model agrees to.
fn drafting<E: Executor>(single: &mut Single<E>, prompt: &[u32]) -> Result<(Vec<u32>, Drafts), NonFinite> {
    single.reset();
    let vocab = single.executor().shape().vocab;
    let mut tokens = prompt.to_vec();
    tokens.push(window(single, prompt, prompt.len())?.1);
    let mut drafts = Drafts::default();
    while tokens.len() < prompt.len() + TOKENS {
        let (from, anchor) = (single.mtp_len() as usize, single.kv_len() as usize);
        let result = single.mtp(&tokens[from..], DRAFTS as u32, true);
        finite::check(&result.mtp_logits, vocab, finite::MTP, from)?;
        let mut rows = vec![tokens[anchor]];
        rows.extend(result.draft.iter().map(|draft| draft.0));
        let (accepted, next) = window(single, &rows, 1)?;
        tokens.extend(&rows[1..=accepted]);
        tokens.push(next);
        single.truncate((anchor + 1 + accepted) as u32);
        drafts.drafted += rows.len() - 1;
        drafts.accepted += accepted;
    }
    Ok((tokens[prompt.len()..][..TOKENS].to_vec(), drafts))
}

/// One pass: drafts that were accepted, and the model's own token after them.
fn window<E: Executor>(single: &mut Single<E>, rows: &[u32], committed: usize) -> Result<(usize, u32), NonFinite> {
    let (vocab, first) = (single.executor().shape().vocab, single.kv_len() as usize + committed - 1);
    let result = single.trunk(rows, committed, Want::Probe);
    finite::check(&result.logits, vocab, finite::TRUNK, first)?;
    let TokenId(next) = result.next[0];
    Ok((result.accepted[0] as usize, next))
}

/// In words, if two texts are not one.
fn differs(plain: &[u32], drafted: &[u32]) -> Option<String> {
    let at = plain.iter().zip(drafted).position(|(a, b)| a != b)?;
    Some(format!(
        "token {at} of the greedy text is {} with drafts and {} without; the block changes what the model writes, which is \
         a fault of this program: report it, and serve with --spec-strategy off",
        drafted[at], plain[at]
    ))
}

#[cfg(test)]
mod tests {
    use super::differs;

    #[test]
    fn texts_that_part_are_told_where() {
        assert_eq!(differs(&[1, 2, 3], &[1, 2, 3]), None);
        let told = differs(&[1, 2, 3], &[1, 7, 3]).unwrap();
        assert!(told.contains("token 1") && told.contains("is 7 with drafts and 2 without"), "{told}");
    }
}
