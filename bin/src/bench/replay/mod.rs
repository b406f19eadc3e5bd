//! `engine-bench replay`: recorded sessions, decoded again under several strategies that take turns.
//!
//! ```text
//! files ─► io::trace ─► sessions ─► script: prompt and answer as tokens ─► drive: Ledger + tick ─► figures: result
//!                                                     drafts: what the MTP block drafts ─┘  └─ overlay: the answers
//! ```
//!
//! Every arm has to commit what `off` commits, or its figures are void; every counter has to meet its identities.

pub mod cost;
pub mod drafts;
pub mod drive;
mod figures;
pub mod flags;
pub mod live;
pub mod overlay;
pub mod script;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::api::{Speculation, Strategy};
use engine::clock::{Clock, Monotonic};
use engine::cost::Cost;
use engine::exec::Isa;
use engine::ids::TokenId;
use engine::limits::{Limits, LimitsError, WINDOW_MAX};
use engine::memory::{Memory, MemoryError};
use engine::model::{Model, ModelError, MtpStatus};
use engine::pieces::Pieces;
use engine::step::{Executor as _, Shape};
use engine_io::digest::{Sha256, TensorTree};
use engine_io::package::tokenizer_digest;
use engine_io::plain;
use engine_io::text::{TemplateError, Tokenizer, VocabSpec};
use engine_io::trace::{self, Found, TraceError};

use super::result::{self, BenchResult, CostFacts, Host, MemoryFacts, ModelFacts, RunFacts, SCHEMA};
use super::roofline::Reads;
use super::single::Single;
use super::whole::{self, WriteError};
use crate::flags::physical_cores;
use crate::menu;
use crate::open::pieces;
use crate::report;
use crate::serve::gguf_text::GgufText;
use crate::serve::local::LocalError;
use drive::{DriveError, Driver};
use figures::Gathered;
use flags::{Mode, ReplayFlags};
use overlay::{Dice, Overlay, SimClock, Under};
use script::{Cuts, Script, Words, Workload};

/// Most that is read of what the system says of itself.
const SYSTEM_BYTES_MAX: u64 = 4 << 20;

/// Why sessions were not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Flags that fit nothing.
    #[error("{0}")]
    Usage(String),
    /// A file of costs.
    #[error("{0}")]
    Cost(String),
    /// The recordings.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its file.
    #[error(transparent)]
    File(#[from] engine_io::Error),
    /// Its template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Numbers out of range, or too little memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Recordings that hold nothing to replay.
    #[error(
        "no session has an output that can be replayed ({sessions} were read); give recordings with turns of a model"
    )]
    Nothing {
        /// Sessions read.
        sessions: usize,
    },
    /// A round went wrong.
    #[error("{label}: {source}")]
    Round {
        /// Of which arm.
        label: String,
        /// How.
        source: DriveError,
    },
    /// Our own server.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// ... ended badly.
    #[error("the engine ended by itself while it was measured")]
    Died,
    /// The result could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<LimitsError> for ReplayError {
    fn from(error: LimitsError) -> Self {
        Self::Memory(MemoryError::Limits(error))
    }
}

impl ReplayError {
    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Local(error) => error.code(),
            Self::Died => 1,
            Self::Round { .. } | Self::Write(_) | Self::Memory(MemoryError::System { .. }) => 1,
            _ => 3,
        }
    }
}

/// The model, and what stands around it.
struct Subject {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    text: GgufText,
    pieces: Arc<Pieces>,
    /// The token that ends an answer.
    end: Option<u32>,
    /// Digest of the token list.
    vocabulary: Option<Sha256>,
    facts: ModelFacts,
    reads: Reads,
    package: Option<menu::Menu>,
}

/// Replays what the flags name.
///
/// # Errors
/// [`ReplayError`]. Arms with another output than `off` are no error: they are void.
pub fn run(flags: &ReplayFlags) -> Result<BenchResult, ReplayError> {
    if flags.mode == Mode::Live {
        flags.check().map_err(ReplayError::Usage)?;
        let found = trace::load(&flags.traces(), flags.format)?;
        say_of(&found);
        return live::command::replay(flags, &found);
    }
    let mut bench = Bench::open(flags, None)?;
    let arms = bench.arms()?;
    let result = bench.stage(flags.limit, &arms)?.replay(&arms)?;
    Ok(bench.with_roofline(result))
}

/// A model and recordings, opened to be replayed, as often as one likes.
pub struct Bench<'a> {
    flags: &'a ReplayFlags,
    found: Found,
    subject: Subject,
    /// What passes are taken to cost, once it is known.
    cost: Option<CostFacts>,
}

impl<'a> Bench<'a> {
    /// Opens what the flags name. With `cost` time is that of this table, where it is simulated.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn open(flags: &'a ReplayFlags, cost: Option<CostFacts>) -> Result<Self, ReplayError> {
        flags.check().map_err(ReplayError::Usage)?;
        if flags.mode == Mode::Live {
            return Err(ReplayError::Usage(
                "--mode live is measured by `replay` alone: every cell of a sweep would generate every answer anew; give \
                 --mode forced, and hold the winner against off with `replay --mode live`"
                    .to_owned(),
            ));
        }
        let found = trace::load(&flags.traces(), flags.format)?;
        say_of(&found);
        Ok(Self { flags, found, subject: open(flags)?, cost })
    }

    /// A result, with what the machine can read beside what it read. Last, since it takes memory that is no arm's.
    pub fn with_roofline(&self, result: BenchResult) -> BenchResult {
        let roofline = Some(self.subject.reads.facts(self.flags.run.threads, &result));
        BenchResult { roofline, ..result }
    }

    /// The arms that the flags ask for.
    ///
    /// # Errors
    /// [`ReplayError::Usage`].
    pub fn arms(&self) -> Result<Vec<Speculation>, ReplayError> {
        self.flags.arms(self.subject.package, self.subject.facts.mtp).map_err(ReplayError::Usage)
    }

    /// Sessions of the source that has most of them.
    pub fn sessions_most(&self) -> usize {
        let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
        let sessions = self.found.traces.iter().flat_map(|trace| &trace.sessions);
        sessions.for_each(|session| *sources.entry(&session.source).or_default() += 1);
        sources.into_values().max().unwrap_or(0).min(self.flags.limit.unwrap_or(usize::MAX))
    }

    /// Digest of the recordings, file after file.
    ///
    /// # Errors
    /// A file that cannot be read any more.
    pub fn recordings(&self) -> Result<Sha256, ReplayError> {
        let digests = self.found.traces.iter().map(|trace| Sha256::of_file(&trace.path, |_| {}));
        let digests: Vec<String> = digests.map(|one| Ok(one?.0.to_string())).collect::<Result<_, ReplayError>>()?;
        Ok(Sha256::of(digests.join("\n").as_bytes()))
    }

    /// A result without figures.
    pub fn blank(&self) -> BenchResult {
        BenchResult {
            schema: SCHEMA.to_owned(),
            mode: self.flags.mode.name().to_owned(),
            host: host(),
            model: self.subject.facts.clone(),
            run: run_facts(self.flags, self.context()),
            cost: self.cost.clone(),
            ..BenchResult::default()
        }
    }

    fn context(&self) -> usize {
        self.flags.context(self.subject.facts.context_train_tokens)
    }

    /// Reads at most `limit` sessions of each source, for `arms` to be replayed on.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn stage(&mut self, limit: Option<usize>, arms: &[Speculation]) -> Result<Stage<'_>, ReplayError> {
        let (flags, subject, context) = (self.flags, &self.subject, self.context());
        let cuts = Cuts { context, max_tokens: flags.max_tokens, limit, min_output: flags.min_output };
        let Subject { tokenizer, text, pieces, end, vocabulary, .. } = subject;
        let words = Words { tokenizer, text, pieces, end: *end, digest: *vocabulary };
        let workloads = script::workloads(&self.found, &words, &cuts, &mut |line| report::note(line));
        if workloads.is_empty() {
            let sessions = self.found.traces.iter().map(|trace| trace.sessions.len()).sum();
            return Err(ReplayError::Nothing { sessions });
        }
        workloads.iter().for_each(|workload| report::note(table::traces_line(&workload.facts)));
        if self.cost.is_none() {
            self.cost = costs(flags, subject)?;
        }
        let widest = arms.iter().map(|arm| arm.window_max).max().unwrap_or_default();
        let window_max = usize::from(widest).clamp(1, WINDOW_MAX);
        let depths = arms.iter().filter(|arm| arm.strategy.uses_mtp()).map(|arm| usize::from(arm.mtp_tokens));
        let mut stage = Stage {
            blank: self.blank(),
            flags,
            subject: &self.subject,
            limits: Limits { window_max, ..Limits::new(flags.concurrency, context) },
            depth: depths.max().unwrap_or(0),
            workloads: Vec::new(),
            memory: MemoryFacts::default(),
        };
        for mut workload in workloads {
            match flags.mode {
                Mode::Forced => stage.read_drafts(&mut workload)?,
                // Never opened here.
                Mode::Live => {}
                Mode::Synthetic => Arc::make_mut(&mut workload.scripts).iter_mut().for_each(copy_prompt),
            }
            stage.workloads.push(workload);
        }
        Ok(stage)
    }
}

/// What passes are taken to cost, if time is simulated.
fn costs(flags: &ReplayFlags, subject: &Subject) -> Result<Option<CostFacts>, ReplayError> {
    Ok(match (flags.mode, &flags.cost) {
        (Mode::Synthetic | Mode::Live, _) => None,
        (Mode::Forced, Some(path)) => Some(cost::read(path).map_err(ReplayError::Cost)?),
        (Mode::Forced, None) => {
            let limits = cost::limits();
            let executor = flags.run.executor(Arc::clone(&subject.model), &limits)?;
            Some(cost::measure(executor, &limits, &subject.pieces)?)
        }
    })
}

/// The result as a table for people.
pub fn text(result: &BenchResult) -> String {
    let times = if result.mode == Mode::Live.name() { live::command::times(result) } else { String::new() };
    table::table(result) + &times
}

/// Whether every figure counts.
pub fn stands(result: &BenchResult) -> bool {
    let arms = || result.workloads.iter().flat_map(|workload| &workload.arms).chain(&result.arms);
    arms().all(|arm| arm.void.is_none() && arm.failed.is_none())
}

/// Writes the result to `replay.json` of a folder, whole or not at all.
///
/// # Errors
/// What the system says.
pub fn write(result: &BenchResult, dir: &Path) -> Result<PathBuf, ReplayError> {
    let path = dir.join("replay.json");
    let bytes = serde_json::to_vec_pretty(result).expect("a result is plain data with text keys");
    whole::write(&path, &bytes)?;
    Ok(path)
}

/// A line for what was passed over.
fn say_of(found: &Found) {
    for trace in &found.traces {
        if let Some(line) = trace.torn {
            report::note(format!("{}:{line}: the last line is torn; it is passed over", trace.path.display()));
        }
    }
    if let [first, rest @ ..] = &found.passed_over[..] {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        report::note(format!("no recordings, passed over: {}{more}", first.display()));
    }
}

/// Opens and loads the model.
fn open(flags: &ReplayFlags) -> Result<Subject, ReplayError> {
    let files = flags.run.open()?;
    let meta = files.model.meta();
    let spec = VocabSpec::from_meta(meta)?;
    let end = spec.ids.eot.or(spec.ids.eos);
    let vocabulary = tokenizer_digest(meta);
    let tokenizer =
        Tokenizer::new(spec).map_err(|source| engine_io::Error::Tokenizer { file: meta.file().to_owned(), source })?;
    let package = files.model.package().and_then(|package| menu::of_package(&package.manifest));
    let (package, notes) = package.unzip();
    notes.into_iter().flatten().for_each(|note| report::note(format!("the package: {note}")));
    let name = files.model.name();
    let tree = TensorTree::of_model(&files.model, |_| {})?.digest();
    let reads = Reads::of(&flags.run.plan(&files.model, files.draft.as_ref())?.plan);
    let model = flags.run.load(files)?;
    let mtp = match &model.mtp {
        MtpStatus::Unavailable(reason) => {
            report::note(format!("no arm drafts with an MTP block: {reason}"));
            false
        }
        MtpStatus::Own | MtpStatus::Sidecar => true,
    };
    let facts = ModelFacts {
        name: Path::new(&name).file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned()),
        arch: model.config.arch.name().to_owned(),
        mtp,
        context_train_tokens: model.config.context_train,
        tensor_tree_sha256: Some(tree),
    };
    let pieces = Arc::new(pieces(&tokenizer));
    let tokenizer = Arc::new(tokenizer);
    let text = GgufText::new(Arc::clone(&tokenizer))?;
    Ok(Subject { model, tokenizer, text, pieces, end, vocabulary, facts, reads, package })
}

/// Sessions that were read, and where arms are run on them.
pub struct Stage<'a> {
    blank: BenchResult,
    flags: &'a ReplayFlags,
    subject: &'a Subject,
    limits: Limits,
    /// Depth of the chains that arms ask for, 0 without any.
    depth: usize,
    workloads: Vec<Workload>,
    memory: MemoryFacts,
}

impl Stage<'_> {
    /// What passes are taken to cost, where time is simulated.
    pub fn cost(&self) -> Option<&CostFacts> {
        self.blank.cost.as_ref()
    }

    /// Replays `arms`, which were among those that the stage was made for; `off` is one of them.
    ///
    /// # Errors
    /// [`ReplayError`]. Arms with another output than `off` are no error: they are void.
    pub fn replay(&mut self, arms: &[Speculation]) -> Result<BenchResult, ReplayError> {
        let mut all = vec![Gathered::default(); arms.len()];
        let mut by_source = Vec::new();
        for at in 0..self.workloads.len() {
            let gathered = self.replay_one(arms, at)?;
            let source = self.workloads[at].facts.source.clone();
            by_source.push(result::Workload { source, arms: figures::arms(arms, &gathered) });
            all.iter_mut().zip(gathered).for_each(|(all, one)| all.join(one));
        }
        // Figures of a file that was written meanwhile are nobody's.
        self.subject.model.files.check()?;
        Ok(BenchResult {
            traces: self.workloads.iter().map(|workload| workload.facts.clone()).collect(),
            arms: figures::arms(arms, &all),
            workloads: by_source,
            memory: MemoryFacts { peak_rss_bytes: peak_rss(), ..self.memory.clone() },
            ..self.blank.clone()
        })
    }

    /// Every arm on the sessions of one source, turn by turn.
    fn replay_one(&mut self, arms: &[Speculation], at: usize) -> Result<Vec<Gathered>, ReplayError> {
        let flags = self.flags;
        let mut driver = match self.cost() {
            Some(cost) => {
                let table = cost::table(cost);
                let simulated = Arc::new(AtomicU64::new(0));
                let clock = Box::new(SimClock::new(Arc::clone(&simulated)));
                let under = Under::Table { cost: table.clone(), clock: simulated, depth: self.depth };
                let overlay = self.overlay(self.table_shape(), &self.workloads[at], under);
                self.driver(overlay, Some(table), clock)?
            }
            None => {
                let executor = flags.run.executor(Arc::clone(&self.subject.model), &self.limits)?;
                self.plan(&self.limits.clone())?;
                let shape = executor.shape().clone();
                let dice = Dice { seed: flags.seed, rates: flags.rates() };
                let under = Under::Model { executor: Box::new(executor), dice };
                let overlay = self.overlay(shape, &self.workloads[at], under);
                self.driver(overlay, None, Box::new(Monotonic::default()))?
            }
        };
        self.memory.suffix_index_bytes = driver.suffix_bytes() as u64;
        let workload = &self.workloads[at];
        let mut gathered = vec![Gathered::default(); arms.len()];
        let off = arms.iter().position(|arm| arm.strategy == Strategy::Off).expect("off is among the arms");
        let mut plain: Option<Vec<Vec<TokenId>>> = None;
        for round in 0..flags.warmup + flags.repeats {
            // off first: the others are held against it. Behind it the arms take turns at the beginning.
            let others = (0..arms.len()).filter(|arm| *arm != off);
            let mut order: Vec<usize> = others.collect();
            let turns = order.len().max(1);
            order.rotate_left(round % turns);
            order.insert(0, off);
            for arm in order {
                let done = driver.round(&workload.scripts, &workload.plays, arms[arm]);
                let label = || arms[arm].strategy.name().to_owned();
                let done = done.map_err(|source| ReplayError::Round { label: label(), source })?;
                let plain = plain.get_or_insert_with(|| done.committed.clone());
                gathered[arm].hold_against(plain, &done.committed, workload);
                if round >= flags.warmup {
                    gathered[arm].round(done, workload);
                }
            }
        }
        Ok(gathered)
    }

    fn overlay(&self, shape: Shape, workload: &Workload, under: Under) -> Box<Overlay> {
        Box::new(Overlay::new(shape, self.limits.slots, Arc::clone(&workload.scripts), under))
    }

    fn driver(&self, overlay: Box<Overlay>, cost: Option<Cost>, clock: Box<dyn Clock>) -> Result<Driver, ReplayError> {
        Ok(Driver::new(overlay, &self.limits, Arc::clone(&self.subject.pieces), cost, clock)?)
    }

    /// Of a model whose passes nobody runs. With drafts to look up it has an MTP block, whose cache any ring will do for.
    fn table_shape(&self) -> Shape {
        Shape {
            vocab: self.subject.model.vocab,
            hidden_width: 0,
            context_train: self.subject.model.config.context_train,
            mtp: self.depth > 0,
            recurrent: false,
            hidden_rows: if self.depth > 0 { self.limits.context + WINDOW_MAX } else { 0 },
            checkpoint_bytes: 0,
        }
    }

    /// Lets the MTP block read the sessions, if an arm asks for its drafts.
    fn read_drafts(&mut self, workload: &mut Workload) -> Result<(), ReplayError> {
        if self.depth == 0 {
            return Ok(());
        }
        let limits = drafts::limits(self.limits.context, self.depth);
        let executor = self.flags.run.executor(Arc::clone(&self.subject.model), &limits)?;
        self.plan(&limits)?;
        let tokens = workload.facts.output_tokens;
        report::note(format!("{}: the MTP block drafts after each of {tokens} answer tokens", workload.facts.source));
        let scripts = Arc::make_mut(&mut workload.scripts);
        drafts::read(&mut Single::new(executor, &limits), scripts, self.depth);
        Ok(())
    }

    /// Notes what the executor was planned to take.
    fn plan(&mut self, limits: &Limits) -> Result<(), ReplayError> {
        let planned = Memory::of_executor(&self.subject.model, limits, &self.flags.run.exec_options())?;
        for part in planned.parts {
            self.memory.executor_bytes.insert(part.name.to_owned(), part.bytes as u64);
        }
        Ok(())
    }
}

/// The answer of mode `synthetic`: the prompt once more, as often as it takes, so that a suffix of it can be drafted.
fn copy_prompt(script: &mut Script) {
    let Script { prompt, target, ignores_end, ends, .. } = script;
    let length = target.len();
    *target = prompt.iter().copied().cycle().take(length).collect();
    // Prompts have end tokens inside.
    (*ignores_end, *ends) = (true, false);
}

fn run_facts(flags: &ReplayFlags, context_tokens: usize) -> RunFacts {
    RunFacts {
        concurrency: flags.concurrency,
        repeats: flags.repeats,
        warmup: flags.warmup,
        seed: flags.seed,
        context_tokens,
        max_tokens: flags.max_tokens,
        limit: flags.limit,
        threads: flags.run.threads,
        accept_rates: if flags.mode == Mode::Synthetic { flags.rates() } else { Vec::new() },
        simulated: flags.mode == Mode::Forced,
    }
}

fn host() -> Host {
    let info = plain::text(Path::new("/proc/cpuinfo"), SYSTEM_BYTES_MAX).unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    Host {
        cpu: model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default(),
        cores: physical_cores(),
        isa: Isa::best().name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Most that this process had resident; 0 where the system does not tell.
fn peak_rss() -> u64 {
    let status = plain::text(Path::new("/proc/self/status"), SYSTEM_BYTES_MAX).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
