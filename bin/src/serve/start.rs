//! From flags to a running engine: opens the model, sizes the tables, starts the threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::clock::Monotonic;
use engine::engine::{EngineHandle, Settings, StartError};
use engine::exec::{CpuExecutor, ExecOptions, Pool};
use engine::limits::Limits;
use engine::memory::MemoryError;
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::{Model, ModelError, MtpStatus};
use engine::stage::{Agreed, Split};
use engine::step::Executor;
use engine_io::digest::TensorTree;
use engine_io::gguf::meta::Meta;
use engine_io::package::tokenizer_digest;
use engine_io::text::{ChatTemplate, TemplateError, TemplateLimits, Tokenizer};
use engine_io::{ModelFile, Package};

use crate::canary::{self, Verdict};
use crate::flags::ServeArgs;
use crate::hub::{self, HubError, Wanted};
use crate::memory::{self, Setting, SizeFlag, Subject};
use crate::menu::{self, Menu};
use crate::open::{BUILT_IN, ModelSource, Opened};
use crate::serve::gguf_text::GgufText;
use crate::serve::info::{ModelInfo, SamplingDefaults};
use crate::serve::{Bounds, Digests, MtpOffer, Outage, Parts, Progress, SpecConfig, TextModel as _};
use crate::stage::facts::Facts;
use crate::stage::flags::address;
use crate::stage::handshake::Key;
use crate::stage::link::{self, LinkError, LinkHandle};
use crate::watch::{self, Ends, Watched};

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error(transparent)]
    File(#[from] engine_io::Error),
    /// The hub that it comes from.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model in it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its chat template.
    #[error("{file}: {source}")]
    Template {
        /// The model file, or where else it stands.
        file: String,
        /// What is wrong with it.
        source: TemplateError,
    },
    /// Flags that this model cannot meet.
    #[error("{0}")]
    Unmet(String),
    /// Flags that contradict each other, or ask for more than there is.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The engine.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The other stage of the model.
    #[error(transparent)]
    Stage(#[from] LinkError),
    /// The address of this stage.
    #[error("{0}")]
    Listen(std::io::Error),
    /// The operating system gave no thread.
    #[error("the worker threads could not be started: {0}")]
    Workers(std::io::Error),
    /// The operating system gave no thread.
    #[error("the thread that watches the model file could not be started: {0}")]
    Watch(std::io::Error),
}

impl LoadError {
    /// Exit code of the process: 3 for an input that is refused, 2 for flags, 1 for the machine.
    pub fn code(&self) -> u8 {
        match self {
            Self::Template { source: TemplateError::Thread { .. }, .. } => 1,
            Self::File(_) | Self::Model(_) | Self::Template { .. } | Self::Unmet(_) => 3,
            Self::Stage(LinkError::Refused { .. }) => 3,
            Self::Hub(error) => error.code(),
            Self::Memory(MemoryError::Limits(_)) => 2,
            Self::Memory(MemoryError::System { .. }) | Self::Start(_) | Self::Workers(_) | Self::Watch(_) => 1,
            Self::Stage(LinkError::Thread(_)) | Self::Listen(_) => 1,
        }
    }
}

/// The files that the flags name.
pub struct Files {
    /// The model.
    pub model: ModelFile,
    /// Its sidecar.
    pub draft: Option<ModelFile>,
}

impl Files {
    /// The package that the model is, if it is one.
    pub fn package(&self) -> Option<&Package> {
        self.model.package()
    }
}

/// Opens the model that the flags name, or the built-in one, and the MTP sidecar. What is on a hub is fetched first.
///
/// # Errors
/// If a file cannot be opened or fetched.
pub fn open(args: &ServeArgs) -> Result<Files, LoadError> {
    let options = args.low.size.open_options();
    let local = |path: &Option<PathBuf>, wanted| {
        path.as_deref().map(|path| hub::local(path, wanted, &|line| tracing::info!("{line}"))).transpose()
    };
    let model = local(&args.low.model, Wanted::Model)?;
    let draft = local(&args.low.sidecar.spec_draft_model, Wanted::Sidecar)?;
    let model = ModelSource::from(model).open(options)?;
    let draft = draft.map(|path| ModelFile::open(path, options)).transpose()?;
    Ok(Files { model, draft })
}

/// How many tokens the model was made for.
///
/// # Errors
/// If its hyperparameters cannot be read.
pub fn context_train(files: &Files) -> Result<usize, LoadError> {
    Ok(engine::model::Config::read(files.model.meta())?.context_train)
}

/// The digests by which records name the model: of all its tensors, which are read for it, and of its vocabulary.
///
/// # Errors
/// If a file cannot be read.
pub fn digests(files: &Files) -> Result<Digests, LoadError> {
    tracing::info!(bytes = files.model.file_bytes(), "reading the model once to name it in records");
    let tensors = TensorTree::of_model(&files.model, |_| ())?.digest();
    Ok(Digests { tensors, tokenizer: tokenizer_digest(files.model.meta()) })
}

/// Whose process an engine runs in.
#[derive(Clone)]
pub struct Home {
    /// Workers of all passes.
    pub pool: Arc<Pool>,
    /// Bounds of the front, for the memory plan.
    pub bounds: Bounds,
    /// What ends when a model file changes.
    pub ends: Ends,
    /// Where it is shown how far the loading is.
    pub progress: Progress,
}

/// A model that may be loaded: read as far as its metadata say, sized, and within the memory limit.
pub(crate) struct Prepared {
    pub planned: Planned,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// Tokens of a request.
    pub context: usize,
    pub limits: Limits,
    pub options: ExecOptions,
    repack: Repack,
}

/// Everything that can be refused before weights are read, for `threads` workers.
///
/// # Errors
/// [`LoadError`].
pub(crate) fn prepare(args: &ServeArgs, files: &Files, threads: usize, bounds: Bounds) -> Result<Prepared, LoadError> {
    let size = &args.low.size;
    let load = LoadOptions { stage: args.low.stage.choice(), ..size.load_options() };
    let (file, draft) = (&files.model, files.draft.as_ref());
    let planned = Planned::new(file, draft, load)?;
    let tokenizer = Tokenizer::from_meta(file.meta()).map_err(ModelError::from)?;
    let template = template(args, file, &tokenizer, bounds)?;
    let context = size.context(planned.config.context_train);
    let limits = size.limits(&planned, file.package());
    let options = ExecOptions { threads, ..size.exec_options() };
    let built_in = args.low.model.is_none();
    let subject = Subject { file, built_in, draft, planned: &planned, tokenizer: Some(&tokenizer) };
    let record = args.low.record.is_some();
    let checkpoints = size.ctx_checkpoints;
    let setting = Setting { repack: load.repack, limits: limits.clone(), options, bounds, record, checkpoints };
    admit(args.low.memory_limit.as_ref(), &subject, &setting)?;
    Ok(Prepared { planned, tokenizer, template, context, limits, options, repack: load.repack })
}

/// The chat template of the flags, else that of the file.
fn template(
    args: &ServeArgs,
    file: &ModelFile,
    tokenizer: &Tokenizer,
    bounds: Bounds,
) -> Result<Option<ChatTemplate>, LoadError> {
    let own = || tokenizer.chat_template().map(|text| (file.name(), text.to_owned()));
    let Some((file, text)) = args.low.api.template()?.or_else(own) else { return Ok(None) };
    let limits = TemplateLimits { fuel: bounds.template_fuel, ..TemplateLimits::default() };
    match ChatTemplate::new(&text, tokenizer, limits) {
        Ok(template) => Ok(Some(template)),
        Err(source) => Err(LoadError::Template { file, source }),
    }
}

/// Loads the model and starts its engine in a process of its own; `progress` shows how far that is.
///
/// # Errors
/// [`LoadError`].
pub fn load(args: &ServeArgs, files: Files, progress: &Progress) -> Result<(Parts, EngineHandle), LoadError> {
    let pool = Pool::start(args.low.size.exec_options().threads).map_err(LoadError::Workers)?;
    let (bounds, progress) = (args.bounds(), progress.clone());
    load_at(args, files, &Home { pool: Arc::new(pool), bounds, ends: Ends::Process, progress })
}

/// The same, at home in somebody's process.
///
/// # Errors
/// [`LoadError`]; nothing of what was begun is left then.
pub fn load_at(args: &ServeArgs, files: Files, home: &Home) -> Result<(Parts, EngineHandle), LoadError> {
    let Prepared { planned, tokenizer, template, context, limits, options, repack } =
        prepare(args, &files, home.pool.threads(), home.bounds)?;
    home.progress.reach(10);
    let Files { model: file, draft } = files;
    let draft = draft.as_ref();
    let executor =
        |model: &Arc<Model>, limits| CpuExecutor::with_pool(Arc::clone(model), limits, options, Arc::clone(&home.pool));
    let Opened { file, mut model, tokenizer, pieces } = Opened::load(file, draft, planned, tokenizer, repack)?;
    tell(&file, &model);
    home.progress.reach(70);
    let text = GgufText::of(Arc::clone(&tokenizer), template);
    let text = match args.low.api.style() {
        Some(style) => text.with_style(style).map_err(LoadError::Unmet)?,
        None => text,
    };
    let train = model.config.context_train;
    if context > train {
        tracing::warn!(context, train, "the context is longer than the model was made for");
    }
    let outage = Outage::default();
    let (executor, verdict, status): (Box<dyn Executor>, _, _) = match &args.low.link.peer {
        None => {
            let head = draft.map_or_else(|| file.name(), ModelFile::name);
            if canary::is_mute(executor(&model, canary::limits()), &tokenizer) {
                let name = file.name();
                return Err(LoadError::Unmet(format!(
                    "{name}: the model has no finite logits after any of the built-in texts, so it could never answer: \
                     weights that are NaN or infinite; download or convert it again"
                )));
            }
            let verdict = canary::judge(&mut model, &tokenizer, options, &home.pool, &head, args.low.mtp_force);
            let executor = executor(&model, limits.clone());
            let status = executor.mtp_status().clone();
            (Box::new(Watched::new(executor, model.files.clone(), home.ends)), verdict, status)
        }
        Some(peer) => {
            let executor = executor(&model, limits.clone());
            let (split, status) = connect(args, peer, &file, executor, (&limits, &options), &outage)?;
            let verdict = if split.shape().mtp { Verdict::Kept } else { Verdict::Absent };
            (Box::new(Watched::new(split, model.files.clone(), home.ends)), verdict, status)
        }
    };
    home.progress.reach(95);
    // Before anything is logged: where it fails, the error says why there is no block, and that once.
    let (spec, notes) = offer(args, file.package(), verdict, &status, model.config.nextn > 0)?;
    for note in notes {
        tracing::warn!("the package: {note}");
    }
    match &status {
        // Told already, with the likely causes.
        MtpStatus::Unavailable(_) if verdict == Verdict::Dropped => {}
        // The file says that there is a block: something is wrong with it.
        MtpStatus::Unavailable(reason) if model.config.nextn > 0 => tracing::warn!(reason, "no MTP drafting"),
        MtpStatus::Unavailable(reason) => tracing::info!(reason, "no MTP drafting"),
        MtpStatus::Sidecar if model.config.nextn > 0 => {
            tracing::info!("the MTP block of the draft model is used, not the model's own");
        }
        MtpStatus::Own | MtpStatus::Sidecar => {}
    }
    let mtp_checked = args.low.link.peer.is_none() && verdict != Verdict::Absent;
    let described = describe(args, &file, &model, context, text.vocab());
    let sampling = args.low.api.sampling(described.sampling).map_err(LoadError::Unmet)?;
    let info = ModelInfo { mtp_checked, sampling, ..described };
    let settings = Settings { schedule: args.schedule, cost: None };
    if home.ends == Ends::Process {
        watch::start(model.files.clone()).map_err(LoadError::Watch)?;
    }
    let clock = Monotonic::default();
    let handle = engine::engine::start(executor, &limits, pieces, settings, Box::new(clock))?;
    home.progress.reach(100);
    let parts = Parts {
        model: Box::new(text),
        info,
        spec,
        slots: limits.slots,
        commands: handle.commands.clone(),
        events: handle.events.clone(),
        gauges: handle.gauges.clone(),
        clock,
        outage,
        api: args.api(),
    };
    Ok((parts, handle))
}

/// What people should know of a model that was loaded.
pub(crate) fn tell(file: &ModelFile, model: &Model) {
    for note in file.notes() {
        tracing::info!("{note}");
    }
    for warning in &model.config.warnings {
        tracing::warn!("{warning}");
    }
    for name in &model.unexpected {
        tracing::warn!(tensor = name, "nothing reads this tensor");
    }
    for line in &model.renamed {
        tracing::warn!("MTP head: {line}");
    }
    for line in &model.dropped {
        tracing::info!("MTP head: left out {line}");
    }
}

/// The executor of a first stage, connected to the last at `peer`; waits until that is there.
fn connect(
    args: &ServeArgs,
    peer: &str,
    file: &ModelFile,
    local: CpuExecutor,
    (limits, options): (&Limits, &ExecOptions),
    outage: &Outage,
) -> Result<(Split<LinkHandle>, MtpStatus), LoadError> {
    let flags = &args.low.link;
    let key = Key::load(flags.stage_key_file.as_deref()).map_err(|e| LoadError::Unmet(e.to_string()))?;
    let address = address("--peer", peer).map_err(LoadError::Unmet)?;
    let agreed = Agreed::new(local.model(), limits, local.border_width());
    let sizes = (agreed.vocab_rows, agreed.border_width);
    let facts = Facts::new(file, local.model().stage, sizes, limits, options).map_err(ModelError::from)?;
    let shape = local.shape().clone();
    let settings = link::Settings { address, key, facts, shape, agreed: agreed.clone(), timeout: flags.timeout() };
    tracing::info!(stage = %local.model().stage, %address, "waiting for the other stage");
    let (handle, accepted) = link::start(settings, outage.clone())?;
    let status = match accepted.shape.mtp {
        true => {
            tracing::warn!(
                "the model is split, so whether its MTP block fits it was not checked: one that does not costs time, no answer; \
                 the same model in one process is checked at its start"
            );
            MtpStatus::Own
        }
        false => MtpStatus::Unavailable(accepted.mtp.clone()),
    };
    Ok((Split::new(local, handle, agreed, &accepted.shape), status))
}

/// What requests may draft with under the flags and the package, and what is to be said of the package.
///
/// # Errors
/// Flags that the model or the package cannot meet.
pub(crate) fn offer(
    args: &ServeArgs,
    package: Option<&Package>,
    verdict: Verdict,
    status: &MtpStatus,
    announced: bool,
) -> Result<(SpecConfig, Vec<String>), LoadError> {
    let (packaged, notes) = package.and_then(|p| menu::of_package(&p.manifest)).unzip();
    let menu = args.menu(packaged).map_err(LoadError::Unmet)?;
    Ok((speculation(args, menu, verdict, status, announced)?, notes.unwrap_or_default()))
}

/// What requests may draft with, and do by default. `announced`: the model's metadata speak of a block.
fn speculation(
    args: &ServeArgs,
    menu: Menu,
    verdict: Verdict,
    status: &MtpStatus,
    announced: bool,
) -> Result<SpecConfig, LoadError> {
    let offer = |mtp: MtpOffer| {
        let default = args.speculation_for(&menu, mtp == MtpOffer::Ready).map_err(|message| {
            LoadError::Unmet(match status {
                MtpStatus::Unavailable(reason) => format!("{message}: {reason}"),
                MtpStatus::Own | MtpStatus::Sidecar => message,
            })
        })?;
        Ok(SpecConfig { default, menu, mtp })
    };
    match verdict {
        Verdict::Kept => offer(MtpOffer::Ready),
        Verdict::Absent if announced => offer(MtpOffer::Broken),
        Verdict::Absent => offer(MtpOffer::Absent),
        // A block that does not fit only costs time, so a strategy that names it is no reason not to serve.
        Verdict::Dropped => {
            let default = args.speculation_without_mtp(&menu);
            if let Some(asked) = args.strategy.filter(|asked| *asked != default.strategy) {
                tracing::warn!("--spec-strategy {}: {} instead", asked.name(), default.strategy.name());
            }
            Ok(SpecConfig { default, menu, mtp: MtpOffer::Unfit })
        }
    }
}

/// Whether the memory that is needed is within the limit, and can be had.
pub(crate) fn admit(limit: Option<&SizeFlag>, subject: &Subject<'_>, setting: &Setting) -> Result<(), LoadError> {
    let planned = memory::plan(subject, setting).map_err(MemoryError::from)?;
    let bytes = planned.peak();
    if let Some(SizeFlag { typed, bytes: most }) = limit.filter(|most| bytes > most.bytes) {
        let advice: Vec<String> =
            memory::advice(subject, setting, &planned, *most).iter().map(|line| format!("  {line}\n")).collect();
        let (needed, allowed) = (memory::human(bytes), memory::human(*most));
        return Err(LoadError::Unmet(format!(
            "--memory-limit {typed} allows {allowed} and {needed} are needed:\n{}what would help:\n{}",
            memory::table(&planned),
            advice.concat().trim_end_matches('\n')
        )));
    }
    tracing::debug!(bytes, "memory planned");
    Ok(planned.ask_system(&setting.limits)?)
}

fn describe(args: &ServeArgs, file: &ModelFile, model: &Model, n_ctx: usize, tokens: usize) -> ModelInfo {
    let path = args.low.model.as_deref();
    let modified = match path {
        Some(_) => file.shards().first().and_then(|s| s.modified),
        // The built-in model is as old as the program it is part of.
        None => std::env::current_exe().and_then(std::fs::metadata).and_then(|m| m.modified()).ok(),
    };
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let mut bytes_by_type: Vec<(&'static str, u64)> = Vec::new();
    for tensor in file.tensors() {
        let name = tensor.ty.name();
        match bytes_by_type.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum += tensor.bytes,
            None => bytes_by_type.push((name, tensor.bytes)),
        }
    }
    let main_type = bytes_by_type.iter().max_by_key(|(_, bytes)| *bytes).map_or("none", |(name, _)| *name);
    ModelInfo {
        id: match (path, file.package()) {
            (None, _) => BUILT_IN.to_owned(),
            (_, Some(package)) => package.manifest.model_id.clone(),
            _ => name_of(file),
        },
        path: match path.filter(|_| args.low.http.expose_paths) {
            Some(path) => path.display().to_string(),
            // Its name alone; a model of several files has the first one's.
            None => {
                let name = file.name();
                Path::new(&name).file_name().map_or_else(|| name.clone(), |last| last.to_string_lossy().into_owned())
            }
        },
        created: modified.map_or(0, seconds),
        n_ctx,
        n_ctx_train: model.config.context_train,
        n_vocab: model.vocab.min(tokens),
        n_embd: model.config.d_model,
        n_params: file.tensors().iter().map(|t| t.dims().iter().product::<u64>()).sum(),
        size: file.tensors().iter().map(|t| t.bytes).sum(),
        ftype: main_type.to_owned(),
        arch: model.config.arch.name().to_owned(),
        trunk_layers: model.config.trunk,
        nextn: model.config.nextn,
        mtp_checked: false,
        sampling: sampling(file.meta()),
    }
}

/// File name without its ending and shard number.
pub(crate) fn name_of(file: &ModelFile) -> String {
    let name = file.name();
    let stem = Path::new(&name).file_stem().map_or_else(|| name.clone(), |s| s.to_string_lossy().into_owned());
    match stem.rfind("-of-").and_then(|at| stem[..at].rfind('-')) {
        Some(at) if file.shards().len() > 1 => stem[..at].to_owned(),
        _ => stem,
    }
}

/// Defaults that the file recommends; a value of another type or range counts as none.
fn sampling(meta: &Meta) -> SamplingDefaults {
    let base = SamplingDefaults::default();
    let real = |key: &str, range: std::ops::RangeInclusive<f32>, default: f32| {
        let value = meta.get_f32(&format!("general.sampling.{key}")).ok().flatten();
        value.filter(|v| range.contains(v)).unwrap_or(default)
    };
    let count = |key: &str| meta.get_i32(&format!("general.sampling.{key}")).ok().flatten();
    SamplingDefaults {
        temperature: real("temp", 0.0..=2.0, base.temperature),
        top_k: count("top_k").map_or(base.top_k, |k| k.max(0) as u32),
        top_p: real("top_p", f32::MIN_POSITIVE..=1.0, base.top_p),
        min_p: real("min_p", 0.0..=1.0, base.min_p),
        repeat_penalty: real("penalty_repeat", f32::MIN_POSITIVE..=2.0, base.repeat_penalty),
        repeat_last_n: count("penalty_last_n").map_or(base.repeat_last_n, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        ..base
    }
}
