//! Sessions -> scripts: for every output of a session the prompt that a client would have sent, and the tokens that the
//! model is taken to answer with.
//!
//! **Prompts** are what the chat template of the model makes of the turns before, by the way of the server. Results of
//! tools, and calls, are told as plain text: recordings of other models have call markup of their own. A model without a
//! template gets the texts of the turns, one after the other. A recording of this engine has prompts and answers as tokens,
//! which are taken as they are where they are of this vocabulary: by its digest, or where none was recorded because the
//! tokens of the answer write its text. An answer of no tokens is none.
//!
//! **Cuts.** An output is replayed up to half of the context, of a prompt the end that fits beside it; both are counted.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use engine::ids::TokenId;
use engine::pieces::{PieceFlags, Pieces};
use engine_io::digest::Sha256;
use engine_io::text::{EncodeOptions, Tokenizer};
use engine_io::trace::{Found, Session, Turn};
use serde_json::{Value, json};

use crate::bench::result::TraceFacts;
use crate::serve::gguf_text::GgufText;
use crate::serve::{TextModel as _, chat_prompt};

/// One request and its answer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// Index of the turn that is answered.
    pub turn: usize,
    /// Prompt ids, at least one.
    pub prompt: Vec<TokenId>,
    /// Answer ids, at least one; an end token closes it.
    pub target: Vec<TokenId>,
    /// An end token stands inside the answer: it was recorded under `ignore_eos`.
    pub ignores_end: bool,
    /// Its last token ends it, and no limit does.
    pub ends: bool,
    /// What the MTP block drafts after each token of the answer, `depth` drafts each; empty where it does not draft.
    pub drafts: Vec<TokenId>,
}

/// A session to replay.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Play {
    /// Its name, with its file's.
    pub name: String,
    /// Its scripts, which run one after the other.
    pub scripts: Range<usize>,
}

/// The sessions of one source.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Workload {
    /// Every request. Whoever plays them shares them.
    pub scripts: Arc<Vec<Script>>,
    /// Who they belong to, in order.
    pub plays: Vec<Play>,
    /// What was replayed and what was not.
    pub facts: TraceFacts,
}

/// What is kept of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cuts {
    /// Tokens a request may hold.
    pub context: usize,
    /// Most tokens of an output.
    pub max_tokens: Option<usize>,
    /// Most sessions of a source.
    pub limit: Option<usize>,
    /// Sessions whose outputs have fewer tokens are left out.
    pub min_output: usize,
}

/// The way between the texts of turns and tokens.
pub struct Words<'a> {
    /// Tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its template.
    pub text: &'a GgufText,
    /// What tokens write.
    pub pieces: &'a Pieces,
    /// The token that ends an answer.
    pub end: Option<u32>,
    /// Digest of the tokenizer's list of tokens.
    pub digest: Option<Sha256>,
}

/// The sessions that were found, by source in the order of their first session. Of each session that a template refuses
/// a line goes to `note`.
pub fn workloads(found: &Found, words: &Words<'_>, cuts: &Cuts, note: &mut dyn FnMut(String)) -> Vec<Workload> {
    let mut out: Vec<Workload> = Vec::new();
    for trace in &found.traces {
        let file = trace.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        for session in &trace.sessions {
            let at = out.iter().position(|w| w.facts.source == session.source).unwrap_or_else(|| {
                let facts = TraceFacts { source: session.source.clone(), ..TraceFacts::default() };
                out.push(Workload { facts, ..Workload::default() });
                out.len() - 1
            });
            let workload = &mut out[at];
            workload.facts.sessions_n += 1;
            let full = cuts.limit.is_some_and(|limit| workload.plays.len() >= limit);
            let name = if session.id == file { file.clone() } else { format!("{file} {}", session.id) };
            let taken = !full
                && match scripts(session, words, cuts) {
                    Ok(cut) if cut.scripts.iter().map(|s| s.target.len()).sum::<usize>() >= cuts.min_output.max(1) => {
                        workload.take(name, cut);
                        true
                    }
                    Ok(_) => false,
                    Err(reason) => {
                        note(format!("{name} is left out: {reason}"));
                        false
                    }
                };
            workload.facts.left_out_n += usize::from(!taken);
        }
    }
    out.retain(|workload| !workload.scripts.is_empty());
    out
}

impl Workload {
    fn take(&mut self, name: String, cut: CutScripts) {
        let (facts, first) = (&mut self.facts, self.scripts.len());
        facts.outputs_n += cut.scripts.len();
        facts.prompt_tokens += cut.scripts.iter().map(|s| s.prompt.len() as u64).sum::<u64>();
        facts.output_tokens += cut.scripts.iter().map(|s| s.target.len() as u64).sum::<u64>();
        facts.prompts_cut_n += cut.prompts_cut;
        facts.prompt_tokens_cut += cut.prompt_tokens_cut as u64;
        facts.outputs_cut_n += cut.outputs_cut;
        facts.output_tokens_cut += cut.output_tokens_cut as u64;
        Arc::make_mut(&mut self.scripts).extend(cut.scripts);
        self.plays.push(Play { name, scripts: first..self.scripts.len() });
    }
}

/// The scripts of a session and what was cut off them.
#[derive(Default)]
struct CutScripts {
    scripts: Vec<Script>,
    prompts_cut: usize,
    prompt_tokens_cut: usize,
    outputs_cut: usize,
    output_tokens_cut: usize,
}

fn scripts(session: &Session, words: &Words<'_>, cuts: &Cuts) -> Result<CutScripts, String> {
    let mut out = CutScripts::default();
    for turn in session.outputs() {
        let request = session.request(turn);
        let vocabulary = request.and_then(|request| request.tokenizer_sha256.as_deref());
        let Some((mut target, recorded)) = answer(&session.turns[turn], vocabulary, words) else { continue };
        let known = request.and_then(|request| request.prompt_tokens.as_deref());
        let known = known.filter(|ids| recorded && !ids.is_empty() && ids.iter().all(|id| words.knows(*id)));
        let mut prompt = match known {
            Some(ids) => ids.iter().copied().map(TokenId).collect(),
            None => prompt(&session.turns[..turn], words).map_err(|reason| format!("turn {turn}: {reason}"))?,
        };
        let most = (cuts.context / 2).max(1).min(cuts.max_tokens.unwrap_or(usize::MAX).max(1));
        if target.len() > most {
            out.outputs_cut += 1;
            out.output_tokens_cut += target.len() - most;
            target.truncate(most);
        }
        let room = cuts.context - target.len();
        if prompt.len() > room {
            out.prompts_cut += 1;
            out.prompt_tokens_cut += prompt.len() - room;
            prompt.drain(..prompt.len() - room);
        }
        let inside = &target[..target.len() - 1];
        let is_end = |id: &TokenId| words.pieces.flags(*id).contains(PieceFlags::END);
        let ignores_end = inside.iter().any(is_end);
        let ends = !ignores_end && target.last().is_some_and(is_end);
        out.scripts.push(Script { turn, prompt, target, ignores_end, ends, drafts: Vec::new() });
    }
    Ok(out)
}

impl Words<'_> {
    fn knows(&self, id: u32) -> bool {
        (id as usize) < self.pieces.len()
    }

    fn encode(&self, text: &str, add_special: bool) -> Vec<TokenId> {
        let options = EncodeOptions { parse_special: false, add_special };
        self.tokenizer.encode(text.as_bytes(), options).into_iter().map(TokenId).collect()
    }
}

/// Tokens of an output, and whether they are the recorded ones, which are of the vocabulary with that digest. `None`: it
/// says nothing.
fn answer(turn: &Turn, vocabulary: Option<&str>, words: &Words<'_>) -> Option<(Vec<TokenId>, bool)> {
    if turn.tokens.as_ref().is_some_and(Vec::is_empty) {
        return None;
    }
    let text = turn.whole_text();
    if let Some(ids) = turn.tokens.as_deref().filter(|ids| ids.iter().all(|id| words.knows(*id))) {
        let writes_it = || {
            let shown = words.tokenizer.decode_bytes(ids, false).ok();
            shown.is_some_and(|bytes| String::from_utf8_lossy(&bytes) == text)
        };
        let ours = vocabulary.map(|digest| words.digest.is_some_and(|own| own.to_string() == digest));
        if ours.unwrap_or_else(writes_it) {
            return Some((ids.iter().copied().map(TokenId).collect(), true));
        }
    }
    if text.is_empty() {
        return None;
    }
    let mut ids = words.encode(&text, false);
    ids.extend(words.end.map(TokenId));
    Some((ids, false))
}

/// The prompt that a client sends for an answer to `turns`.
fn prompt(turns: &[Turn], words: &Words<'_>) -> Result<Vec<TokenId>, String> {
    if !words.text.caps().chat {
        let texts = turns.iter().flat_map(|turn| [turn.reasoning.as_deref().map(Cow::from), Some(turn.whole_text())]);
        let texts: Vec<_> = texts.flatten().collect();
        let ids = words.encode(&texts.join("\n\n"), true);
        return if ids.is_empty() { Err("nothing was said before it".to_owned()) } else { Ok(ids) };
    }
    let mut messages: Vec<Value> = turns.iter().map(message).collect();
    if messages.is_empty() {
        messages.push(json!({"role": "user", "content": ""}));
    }
    chat_prompt(messages, words.text)
}

/// A turn as a client says it. A tool speaks as the user: templates want a call for every result.
fn message(turn: &Turn) -> Value {
    let role = match turn.role {
        engine_io::trace::Role::Tool => "user",
        role => role.name(),
    };
    let mut out = json!({"role": role, "content": turn.whole_text()});
    if let Some(thought) = &turn.reasoning {
        out["reasoning_content"] = thought.as_str().into();
    }
    out
}
