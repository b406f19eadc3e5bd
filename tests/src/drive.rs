//! Runs prompts through a whole engine in one named configuration, and remembers what came out.

use std::path::PathBuf;
use std::sync::Arc;

use engine::api::{Command, Sampling, Speculation, Strategy, Submission, WindowPolicy};
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{Ticket, TokenId};
use engine::limits::{Limits, WINDOW_MAX};
use engine::model::Model;
use engine::model::load::LoadOptions;
use engine::model::stage::StageChoice;
use engine::schedule::Schedule;
use engine::step::Executor;
use engine_bin::embed::{Outcome, run_all};
use engine_bin::menu::BUILT_IN;
use engine_bin::open::{ModelSource, Opened};
use engine_io::text::EncodeOptions;
use engine_io::{ModelFile, OpenOptions};

/// A model and what it is asked.
pub struct Subject {
    /// For messages.
    pub name: &'static str,
    /// The model.
    pub opened: Opened,
    /// Prompts, submitted together.
    pub prompts: Vec<Vec<TokenId>>,
    /// Completion tokens of each.
    pub max_tokens: u32,
}

/// Tokens of a request: context of every run here.
const CONTEXT: usize = 640;

/// Code with much repetition, 270 to 560 tokens in the vocabularies at hand.
fn long_text() -> String {
    let function = |i: usize| format!("def step_{i}(x, y):\n    return x * {i} + y\n\n");
    (0..16).map(function).collect()
}

impl Subject {
    /// The built-in model on two edits, as its chat template writes them, and two plain texts.
    pub fn built_in() -> Self {
        let texts = [
            "<|im_start|>user\nRename `total` to `amount` everywhere.\n```python\ndef add(total, x):\n    total = total + x\n    return total\n```<|im_end|>\n<|im_start|>assistant\n",
            "<|im_start|>user\nChange `8080` on line 2 to `9090`.\n```toml\nhost = \"local\"\nport = 8080\nmode = \"fast\"\n```<|im_end|>\n<|im_start|>assistant\n",
            &long_text(),
            "x",
        ];
        let file = ModelSource::BuiltIn.open(OpenOptions::default()).expect("the built-in model opens");
        Self::new("built-in", file, None, &texts, 40)
    }

    /// A model file on short pieces of code.
    pub fn file(name: &'static str, path: PathBuf, max_tokens: u32) -> Self {
        let file = ModelFile::open(path, OpenOptions::default()).expect("the model of a test opens");
        Self::code(name, file, None, max_tokens)
    }

    /// The same of open files, with the MTP block of `draft` if given.
    pub fn code(name: &'static str, file: ModelFile, draft: Option<&ModelFile>, max_tokens: u32) -> Self {
        let texts = [
            "static void f(int i) {\n    for (int i = 0; i < n; i++) {\n        x[i] = y[i];\n    }\n}\n\nstatic void g(int i) {\n    for (int i = 0;",
            "int main(int argc",
            "a = 1\nb = 2\na = 1\nb = 2\na = 1\nb =",
            "#",
        ];
        Self::new(name, file, draft, &texts, max_tokens)
    }

    /// The same with a prompt of several prefill chunks and two attention splits as its second.
    pub fn with_long_prompt(mut self) -> Self {
        let long = self.encode(&long_text());
        self.prompts[1] = long;
        self
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn new(name: &'static str, file: ModelFile, draft: Option<&ModelFile>, texts: &[&str], max_tokens: u32) -> Self {
        let opened = Opened::of(file, draft, LoadOptions::default());
        let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = Self { name, opened, prompts: Vec::new(), max_tokens };
        out.prompts = texts.iter().map(|text| out.encode(text)).collect();
        out
    }

    fn encode(&self, text: &str) -> Vec<TokenId> {
        let options = EncodeOptions { parse_special: true, add_special: false };
        self.opened.tokenizer.encode(text.as_bytes(), options).into_iter().map(TokenId).collect()
    }

    /// One stage of the model, loaded by itself and without a sidecar; the last begins at block `split`.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn stage(&self, index: u32, split: u32) -> Model {
        let stage = Some(StageChoice { index, count: 2, split: Some(split) });
        Model::load(&self.opened.file, None, LoadOptions { stage, ..LoadOptions::default() }).expect("a stage loads")
    }

    /// Blocks of the trunk.
    pub fn trunk(&self) -> u32 {
        self.opened.model.config.trunk as u32
    }

    /// The strategies the model can serve.
    pub fn strategies(&self) -> Vec<Strategy> {
        let mtp = self.opened.model.program.mtp.is_some();
        Strategy::ALL.into_iter().filter(|s| mtp || !s.uses_mtp()).collect()
    }
}

/// One configuration. Only `sampling` may change a token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cell {
    /// Who drafts.
    pub strategy: Strategy,
    /// Who decides the width.
    pub policy: WindowPolicy,
    /// Drafts of a window.
    pub window: u8,
    /// Requests at once.
    pub parallel: usize,
    /// Workers.
    pub threads: usize,
    /// Prompt rows of a request in a pass.
    pub chunk: usize,
    /// Who runs what.
    pub schedule: Schedule,
    /// 0 = greedy.
    pub temperature: f32,
}

impl Cell {
    /// Plain decoding of one request at a time on one thread.
    pub fn reference(temperature: f32) -> Self {
        Self {
            strategy: Strategy::Off,
            policy: WindowPolicy::Fixed,
            window: 0,
            parallel: 1,
            threads: 1,
            chunk: 512,
            schedule: Schedule::Inline,
            temperature,
        }
    }

    /// Capacities of the cell.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::new(self.parallel, CONTEXT);
        limits.prefill_chunk = self.chunk;
        limits.window_max = usize::from(self.window).clamp(1, WINDOW_MAX);
        limits.prefix_cache = true;
        limits.checkpoints = 4;
        limits
    }

    /// Speculation settings of the cell. Drafts as long as the window: the MTP chain takes a third at most so that
    /// tails happen too.
    pub fn speculation(&self) -> Speculation {
        Speculation {
            strategy: self.strategy,
            mtp_tokens: if self.strategy == Strategy::Mtp { self.window.min(15) } else { BUILT_IN.mtp_tokens },
            suffix_tokens: self.window,
            policy: self.policy,
            window_initial: self.window,
            window_min: self.window.min(1),
            window_max: self.window,
            ..BUILT_IN
        }
    }
}

/// The executor of a cell; `spare` state rows beyond the cell's own.
pub fn executor(subject: &Subject, cell: &Cell, spare: usize) -> CpuExecutor {
    let mut limits = cell.limits();
    limits.slots += spare;
    let options = ExecOptions { threads: cell.threads, ..ExecOptions::default() };
    CpuExecutor::new(Arc::clone(&subject.opened.model), limits, options)
}

/// Runs the subject's prompts in `cell`.
pub fn run(subject: &Subject, cell: &Cell) -> Vec<Outcome> {
    run_on(subject, cell, Box::new(executor(subject, cell, 0)))
}

/// Runs the subject's prompts in `cell` on an executor of one's own.
///
/// # Panics
/// If the engine refuses, or dies.
pub fn run_on(subject: &Subject, cell: &Cell, executor: Box<dyn Executor>) -> Vec<Outcome> {
    let submission = |(i, prompt): (usize, &Vec<TokenId>)| Submission {
        sampling: Sampling {
            temperature: cell.temperature,
            top_k: if cell.temperature > 0.9 { 0 } else { 40 },
            top_p: 0.95,
            seed: 7 + i as u64,
            ..Sampling::greedy()
        },
        ..Submission::greedy(Ticket(i as u64), prompt.clone(), subject.max_tokens, cell.speculation())
    };
    submit_on(subject, cell, executor, subject.prompts.iter().enumerate().map(submission).collect())
}

/// Runs submissions of one's own, whose tickets differ.
///
/// # Panics
/// As [`run_on`].
pub fn submit_on(
    subject: &Subject,
    cell: &Cell,
    executor: Box<dyn Executor>,
    submissions: Vec<Submission>,
) -> Vec<Outcome> {
    // A scripted cost: verifying is cheap, so adaptive windows really vary with what is accepted.
    let cost = Cost::scripted(|rows| 1e6 * (1.0 + 0.05 * rows as f64), 1e5);
    let settings = Settings { schedule: cell.schedule, cost: Some(cost) };
    let pieces = Arc::clone(&subject.opened.pieces);
    let handle = start(executor, &cell.limits(), pieces, settings, Box::new(Monotonic::default())).expect("it starts");
    let outcomes = run_all(&handle, submissions).unwrap_or_else(|e| panic!("{}: {e}", subject.name));
    handle.commands.send(Command::Stop).expect("the engine takes it");
    handle.join().expect("a clean end");
    outcomes
}
