//! The scripted target: a whole engine behind a whole server, whose model says what a script tells it to. What a test
//! sees of a client is then everything but the model's mind: template, tokens, windows, channels, HTTP.
//!
//! The script picks a reply by what the prompt holds. The target chooses the reply's next token, whatever was committed
//! so far; a rule of the request (a mask, a ban) that forbids it gets the next best, and the reply goes on behind that.

use std::collections::HashMap;
use std::sync::Arc;

use engine::accept;
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{EngineHandle, Settings, start as start_engine};
use engine::ids::{CheckpointId, PageId, TokenId};
use engine::limits::{Limits, PAGE_TOKENS};
use engine::sample::{self, Scratch};
use engine::step::{Executor, NO_LOGPROBS, Shape, SlotOp, Step, StepResult, TrunkWork};
use engine_bin::menu::{BUILT_IN, Menu};
use engine_bin::open;
use engine_bin::serve::gguf_text::GgufText;
use engine_bin::serve::{Api, Config, ModelInfo, MtpOffer, Outage, Parts, SamplingDefaults, Server, SpecConfig};
use engine_io::OpenOptions;
use engine_io::text::{EncodeOptions, Tokenizer, ToolStyle, VocabSpec};
use serde::Deserialize;

use crate::styles;

/// ChatML that thinks unless told not to, with calls in the style `tool_style`; thinking of the turns behind the last user message
/// is kept.
pub const TEMPLATE: &str = include_str!("scripted.jinja");

/// What [`TEMPLATE`] writes in front of an answer, and what ends its thinking.
const ANSWER: &str = "<|im_start|>assistant\n";
const THOUGHT: &str = "</think>\n\n";

/// What stands behind the last `mark`.
fn behind<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.rsplit_once(mark).map(|(_, behind)| behind)
}

/// A reply, and when it is given.
#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    /// Texts that the prompt holds, all of them.
    #[serde(default)]
    pub contains: Vec<String>,
    /// What the model writes, in the template's own markup, up to its end token.
    pub say: String,
    /// Behind that text comes no end token: nothing that can be chosen does.
    #[serde(default)]
    pub fails: bool,
}

impl Rule {
    /// A rule of one text.
    pub fn new(contains: &str, say: &str) -> Self {
        Self { contains: vec![contains.to_owned()], say: say.to_owned(), fails: false }
    }
}

/// The target.
struct Scripted {
    tokenizer: Arc<Tokenizer>,
    end: TokenId,
    rules: Vec<Rule>,
    shape: Shape,
    pages: HashMap<PageId, [TokenId; PAGE_TOKENS]>,
    scratch: Scratch,
}

impl Scripted {
    fn text(&self, tokens: &[TokenId]) -> String {
        let ids: Vec<u32> = tokens.iter().map(|t| t.0).collect();
        let bytes = self.tokenizer.decode_bytes(&ids, true).expect("ids of the vocabulary");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The token that the script wants behind a history whose last `completion` tokens are the model's. `None`: there is
    /// none that could be chosen.
    fn next(&self, history: &[TokenId], completion: usize) -> Option<TokenId> {
        let (prompt, said) = history.split_at(history.len() - completion);
        let prompt = self.text(prompt);
        let rule = self.rules.iter().find(|rule| rule.contains.iter().all(|text| prompt.contains(text)));
        let mut say = rule.map_or("", |rule| rule.say.as_str());
        // An answer that the prompt has begun goes on.
        let answer = behind(say, THOUGHT).unwrap_or(say);
        let begun = behind(&prompt, ANSWER).map_or("", |begun| behind(begun, THOUGHT).unwrap_or(begun));
        if let Some(rest) = answer.strip_prefix(begun).filter(|_| !begun.is_empty()) {
            say = rest;
        }
        let ids = self.tokenizer.encode(say.as_bytes(), EncodeOptions { parse_special: true, add_special: false });
        if said.iter().map(|t| t.0).eq(ids.iter().copied().take(completion)) && completion < ids.len() {
            return Some(TokenId(ids[completion]));
        }
        // Something else was committed: the reply goes on behind the same text.
        let rest = say.strip_prefix(self.text(said).as_str()).unwrap_or_default();
        let ids = self.tokenizer.encode(rest.as_bytes(), EncodeOptions { parse_special: true, add_special: false });
        let last = (!rule.is_some_and(|rule| rule.fails)).then_some(self.end);
        ids.first().map(|id| TokenId(*id)).or(last)
    }

    fn run_trunk(&mut self, work: &TrunkWork, out: &mut StepResult) {
        if work.state.is_empty() {
            return;
        }
        out.top_start.push(0);
        let range = |start: &[u32], i: usize| start[i] as usize..start[i + 1] as usize;
        let mut rule = 0;
        for i in 0..work.state.len() {
            let pages = &work.page[range(&work.page_start, i)];
            let rows = range(&work.row_start, i);
            let tokens = &work.token[rows.clone()];
            let position = work.position[i] as usize;
            for (p, token) in (position..).zip(tokens) {
                let page = self.pages.entry(pages[p / PAGE_TOKENS]).or_insert([TokenId::NONE; PAGE_TOKENS]);
                page[p % PAGE_TOKENS] = *token;
            }
            let first = rule;
            while rule < work.rules.row.len() && rows.contains(&(work.rules.row[rule] as usize)) {
                rule += 1;
            }
            if first == rule {
                out.accepted.push(0);
                out.next.push(TokenId::NONE);
                out.fault.push(None);
                continue;
            }
            let mut history: Vec<TokenId> =
                (0..position).map(|p| self.pages[&pages[p / PAGE_TOKENS]][p % PAGE_TOKENS]).collect();
            if work.rules.known_at(first).is_some() {
                for r in first..rule {
                    let known = work.rules.known_at(r).expect("of a prompt all are known");
                    history.truncate(position);
                    history.extend_from_slice(&tokens[..=work.rules.row[r] as usize - rows.start]);
                    let wanted = self.next(&history, 0);
                    let row = raw_logits(self.shape.vocab, wanted);
                    let (n, scratch) = (work.rules.top_n[r] as usize, &mut self.scratch);
                    out.logprob.push(sample::log_probs(&row, scratch, known, n, &mut out.top));
                    out.top_start.push(out.top.len() as u32);
                }
                out.accepted.push(0);
                out.next.push(TokenId::NONE);
                out.fault.push(None);
                continue;
            }
            let base = out.logprob.len();
            out.logprob.resize(base + tokens.len(), f32::NAN);
            let mut tops: Vec<Vec<(TokenId, f32)>> = vec![Vec::new(); tokens.len()];
            let rules = &work.rules;
            let verdict = accept::walk(&tokens[1..], |j| {
                let r = first + j;
                history.push(tokens[j]);
                let wanted = self.next(&history, rules.draw[r] as usize);
                let mut row = raw_logits(self.shape.vocab, wanted);
                let edits = &rules.edit[range(&rules.edit_start, r)];
                let filters = &rules.filters[rules.filter[r] as usize];
                let words = self.shape.vocab.div_ceil(32);
                let mask = (rules.mask[r] != u32::MAX).then(|| &rules.mask_word[rules.mask[r] as usize..][..words]);
                let raw = row.clone();
                let token = sample::choose(&mut row, &mut self.scratch, filters, rules.draw[r], edits, mask);
                if let (Ok(token), true) = (token, rules.top_n[r] != NO_LOGPROBS) {
                    let n = rules.top_n[r] as usize;
                    out.logprob[base + j] = sample::log_probs(&raw, &mut self.scratch, token, n, &mut tops[j]);
                }
                token
            });
            for top in tops {
                out.top.extend(top);
                out.top_start.push(out.top.len() as u32);
            }
            out.accepted.push(verdict.accepted);
            out.next.push(verdict.next.unwrap_or(TokenId::NONE));
            out.fault.push(verdict.next.err());
        }
        out.times.trunk_ns = 1000;
    }
}

/// Logits that leave little doubt; none that could be chosen where nothing is wanted.
fn raw_logits(vocab: usize, wanted: Option<TokenId>) -> Vec<f32> {
    let Some(wanted) = wanted else { return vec![f32::NAN; vocab] };
    let mut row: Vec<f32> = (0..vocab).map(|v| -10.0 - v as f32 * 1e-3).collect();
    row[wanted.index()] = 10.0;
    row
}

impl Executor for Scripted {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        out.clear();
        for op in &step.ops {
            // A sequence is nothing but its pages.
            if let SlotOp::CopyPage { from, to } = op
                && let Some(page) = self.pages.get(from).copied()
            {
                self.pages.insert(*to, page);
            }
        }
        self.run_trunk(&step.trunk, out);
    }

    fn epoch(&mut self) -> u64 {
        0
    }

    fn checkpoint_bytes(&self, _: CheckpointId) -> Option<Vec<u8>> {
        None
    }
}

/// A running server with the scripted target behind it.
pub struct ScriptedServer {
    server: Option<Server>,
    engine: Option<EngineHandle>,
}

impl ScriptedServer {
    /// Serves `rules` with the tokens of the built-in model and [`TEMPLATE`].
    ///
    /// # Panics
    /// If anything of it cannot be had.
    pub fn start(config: Config, limits: &Limits, rules: Vec<Rule>) -> Self {
        Self::start_as(config, limits, rules, Api::default())
    }

    /// The same, with settings of the API.
    ///
    /// # Panics
    /// If anything of it cannot be had.
    pub fn start_as(config: Config, limits: &Limits, rules: Vec<Rule>, api: Api) -> Self {
        Self::start_styled(config, limits, rules, api, ToolStyle::Xml)
    }

    /// The same, of a model that writes calls in this style, has the tokens for it, and whose template shows calls so. Rules
    /// have theirs in the XML style whatever it is.
    ///
    /// # Panics
    /// If anything of it cannot be had.
    pub fn start_styled(config: Config, limits: &Limits, rules: Vec<Rule>, mut api: Api, style: ToolStyle) -> Self {
        let file = open::ModelSource::BuiltIn.open(OpenOptions::default()).expect("the built-in model opens");
        let mut spec = VocabSpec::from_meta(file.meta()).expect("it has a tokenizer");
        styles::rename(&mut spec, style);
        let tokenizer = Arc::new(Tokenizer::new(spec).expect("it fits together"));
        let rules = rules.into_iter().map(|rule| Rule { say: styles::written(&rule.say, style), ..rule }).collect();
        if style != ToolStyle::Xml {
            api.kwargs.insert("tool_style".to_owned(), styles::name(style).into());
        }
        let pieces = open::pieces(&tokenizer);
        let end = *pieces.end_tokens().first().expect("the model has an end token");
        let shape = Shape {
            vocab: tokenizer.len(),
            hidden_width: 1,
            context_train: limits.context,
            mtp: false,
            recurrent: false,
            hidden_rows: 0,
            checkpoint_bytes: 0,
        };
        let pages = HashMap::new();
        let scratch = Scratch::default();
        let target = Scripted { tokenizer: Arc::clone(&tokenizer), end, rules, shape: shape.clone(), pages, scratch };
        let settings = Settings { cost: Some(Cost::default()), ..Settings::default() };
        let clock = Monotonic::default();
        let engine =
            start_engine(Box::new(target), limits, Arc::new(pieces), settings, Box::new(clock)).expect("it starts");
        let info = ModelInfo {
            mtp_checked: false,
            id: "org/scripted".to_owned(),
            path: "scripted".to_owned(),
            created: 1_790_000_000,
            n_ctx: limits.context,
            n_ctx_train: limits.context,
            n_vocab: shape.vocab,
            n_embd: 1,
            n_params: 1,
            size: 1,
            ftype: "F32".to_owned(),
            arch: "scripted".to_owned(),
            trunk_layers: 1,
            nextn: 0,
            sampling: SamplingDefaults::default(),
        };
        let default = engine::api::Speculation {
            strategy: engine::api::Strategy::NgramSuffix,
            policy: engine::api::WindowPolicy::Fixed,
            ..BUILT_IN
        };
        let mut server = Server::start(config).expect("it listens");
        let parts = Parts {
            model: Box::new(
                GgufText::with_template(tokenizer, TEMPLATE)
                    .expect("it compiles")
                    .with_style(style)
                    .expect("it has the tokens"),
            ),
            info,
            spec: SpecConfig { default, menu: Menu::of(default), mtp: MtpOffer::Absent },
            slots: limits.slots,
            commands: engine.commands.clone(),
            events: engine.events.clone(),
            gauges: engine.gauges.clone(),
            clock,
            outage: Outage::default(),
            api,
        };
        server.serve(parts).expect("it serves");
        Self { server: Some(server), engine: Some(engine) }
    }

    /// Where it listens.
    ///
    /// # Panics
    /// After its end.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.as_ref().expect("it runs").address()
    }

    /// Runs until somebody ends the process.
    ///
    /// # Panics
    /// After its end.
    pub fn wait(mut self) {
        self.server.take().expect("it runs").join();
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().shutdown();
            server.join();
        }
        if let Some(engine) = self.engine.take() {
            let _ = engine_bin::serve::stop(engine);
        }
    }
}
