//! From flags to a result: starts our own server where one is wanted, measures, puts figures together.

use std::collections::BTreeMap;
use std::path::Path;

use engine::model::Config;
use engine_io::ModelFile;
use engine_io::digest::TensorTree;
use engine_io::text::{EncodeOptions, Tokenizer};
use engine_io::trace::{Found, Session};
use serde_json::{Map, Value, json};

use super::run::{self, Lane, Options, Target};
use super::task::Task;
use super::{figures, table};
use crate::bench::replay::flags::ReplayFlags;
use crate::bench::replay::{ReplayError, host, peak_rss, run_facts};
use crate::bench::result::{BenchResult, MemoryFacts, ModelFacts, SCHEMA, TraceFacts};
use crate::bench::roofline::Reads;
use crate::flags::{LowArgs, PolicyFlag, ServeArgs};
use crate::report;
use crate::serve::local::Local;
use crate::serve::start::{self, Files};

/// Replays `found` against our engine, the servers of `--url`, or both.
///
/// # Errors
/// [`ReplayError`]; what is wrong with a server is said of its arm.
pub fn replay(flags: &ReplayFlags, found: &Found) -> Result<BenchResult, ReplayError> {
    let servers = flags.live.servers().map_err(ReplayError::Usage)?;
    let arms: Option<Vec<_>> = flags.arms.iter().map(|flag| flag.strategy()).collect();
    let arms = arms.ok_or_else(|| ReplayError::Usage("--arms auto is no arm; name strategies".to_owned()))?;
    let mut targets = Vec::new();
    let args = serve_args(flags)?;
    let files = start::open(&args).map_err(|error| ReplayError::Local(error.into()))?;
    let tokenizer = Tokenizer::from_meta(files.model.meta()).map_err(engine::model::ModelError::from)?;
    let count = |text: &str| tokenizer.encode(text.as_bytes(), EncodeOptions::default()).len();
    let context = flags.context(Config::read(files.model.meta())?.context_train);
    let (tasks, mut traces) = tasks(flags, found, &count);
    if tasks.is_empty() {
        let sessions = found.traces.iter().map(|trace| trace.sessions.len()).sum();
        return Err(ReplayError::Nothing { sessions });
    }
    // Nobody here knows what model another server has.
    let mut facts = if flags.live.url_only { ModelFacts::default() } else { model_facts(&files.model)? };
    let reads = if flags.live.url_only {
        None
    } else {
        Some(Reads::of(&flags.run.plan(&files.model, files.draft.as_ref())?.plan))
    };
    let local = if flags.live.url_only { None } else { Some(ours(&args, files, &mut targets)?) };
    let key = &flags.live.url_key;
    targets.extend(servers.into_iter().map(|(name, url)| Target { name, url, api_key: key.clone() }));
    let options = Options {
        arms: Some(arms).filter(|arms| !arms.is_empty()),
        speculative: speculative(flags),
        concurrency: flags.concurrency,
        warmup: flags.warmup,
        repeats: flags.repeats,
        temperature: flags.live.temperature.unwrap_or(0.0),
        seed: flags.seed as i64,
        timeout: flags.live.silence(),
    };
    let lanes = run::run(&tasks, &targets, &options, &|line| report::note(line)).map_err(ReplayError::Usage)?;
    if local.is_some_and(|local| !local.end()) {
        return Err(ReplayError::Died);
    }
    facts.mtp = lanes.iter().any(|lane| lane.server.is_empty() && lane.strategy.is_some_and(|s| s.uses_mtp()));
    let workloads = figures::workloads(&lanes, &tasks);
    for facts in &mut traces {
        let of = workloads.iter().find(|workload| workload.source == facts.source);
        let arm = of.and_then(|workload| workload.arms.iter().find(|arm| arm.failed.is_none()));
        facts.prompt_tokens = arm.map_or(0, |arm| arm.prompt_tokens);
        facts.output_tokens = arm.map_or(0, |arm| arm.speculation.completion_tokens);
    }
    say_left_out(&lanes, &tasks);
    let result = BenchResult {
        schema: SCHEMA.to_owned(),
        mode: flags.mode.name().to_owned(),
        host: host(),
        model: facts,
        run: run_facts(flags, context),
        traces,
        arms: figures::arms(&lanes, &tasks),
        workloads,
        memory: MemoryFacts { peak_rss_bytes: peak_rss(), ..MemoryFacts::default() },
        ..BenchResult::default()
    };
    let roofline = reads.map(|reads| reads.facts(flags.run.threads, &result));
    Ok(BenchResult { roofline, ..result })
}

/// The times of all arms, which the common table has no room for.
pub fn times(result: &BenchResult) -> String {
    table::times(&result.arms)
}

/// Flags of our own server.
fn serve_args(flags: &ReplayFlags) -> Result<ServeArgs, ReplayError> {
    let line = ["engine-serve".into()];
    let mut low = LowArgs::parse_line(line).map_err(|error| ReplayError::Usage(error.to_string()))?;
    let run = &flags.run;
    low.model = run.model.clone();
    low.draft = flags.draft;
    // Those of the environment are for servers that others reach.
    low.http.api_key = Vec::new();
    low.sidecar.spec_draft_model = run.draft_model.clone();
    low.size.ctx_size = flags.ctx_size;
    low.size.parallel = flags.concurrency;
    low.size.threads = Some(run.threads);
    low.size.kv_type = run.kv_type;
    low.size.exact_activations = run.exact_activations;
    low.size.no_mmap = run.no_mmap;
    low.size.repack = run.repack;
    low.size.strict = run.strict;
    low.size.conventions = run.conventions;
    low.size.window_max = flags.window_max;
    low.resolve().map_err(ReplayError::Usage)
}

fn ours(args: &ServeArgs, files: Files, targets: &mut Vec<Target>) -> Result<Local, ReplayError> {
    let local = Local::start(args, files)?;
    targets.push(Target { name: String::new(), url: format!("http://{}", local.address()), api_key: None });
    Ok(local)
}

/// The flags that say how to draft, as a request says it: a server of ours that another started gets them too.
fn speculative(flags: &ReplayFlags) -> Map<String, Value> {
    let draft = &flags.draft;
    let policy = draft.window_policy.map(|policy| match policy {
        PolicyFlag::Fixed => "fixed",
        PolicyFlag::Adaptive => "adaptive",
    });
    let set = |pairs: &[(&str, Option<Value>)]| -> Map<String, Value> {
        pairs.iter().filter_map(|(name, value)| Some(((*name).to_owned(), value.clone()?))).collect()
    };
    let number = |value: Option<usize>| value.map(Value::from);
    let window = set(&[
        ("policy", policy.map(Value::from)),
        ("initial", number(draft.window_initial)),
        ("min", number(draft.window_min)),
        ("max", number(flags.window_max)),
    ]);
    set(&[
        ("mtp_tokens", number(draft.mtp_tokens)),
        ("suffix_min", number(draft.suffix_min)),
        ("suffix_max", number(draft.suffix_max)),
        ("suffix_tokens", number(draft.suffix_tokens)),
        ("window", (!window.is_empty()).then(|| json!(window))),
    ])
}

/// Sessions as tasks, by source, and what was left out of each.
fn tasks(flags: &ReplayFlags, found: &Found, count: &dyn Fn(&str) -> usize) -> (Vec<Task>, Vec<TraceFacts>) {
    let most = flags.max_tokens.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let mut by_source: BTreeMap<&str, Vec<&Session>> = BTreeMap::new();
    for session in found.traces.iter().flat_map(|trace| &trace.sessions) {
        by_source.entry(&session.source).or_default().push(session);
    }
    let (mut tasks, mut facts) = (Vec::new(), Vec::new());
    for (source, sessions) in by_source {
        let limit = flags.limit.unwrap_or(usize::MAX);
        let long = |task: &Task| {
            let tokens: u64 = task.asks.iter().map(|ask| u64::from(ask.budget)).sum();
            !task.asks.is_empty() && tokens >= flags.min_output as u64
        };
        let new = |session: &&Session| Task::new(session, most, count);
        let before = tasks.len();
        tasks.extend(sessions.iter().map(new).filter(long).take(limit));
        let taken = &tasks[before..];
        facts.push(TraceFacts {
            source: source.to_owned(),
            sessions_n: sessions.len(),
            left_out_n: sessions.len() - taken.len(),
            outputs_n: taken.iter().map(|task: &Task| task.asks.len()).sum(),
            ..TraceFacts::default()
        });
    }
    (tasks, facts)
}

fn model_facts(file: &ModelFile) -> Result<ModelFacts, ReplayError> {
    let config = Config::read(file.meta())?;
    let name = file.name();
    Ok(ModelFacts {
        name: Path::new(&name).file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned()),
        arch: config.arch.name().to_owned(),
        mtp: false,
        context_train_tokens: config.context_train,
        tensor_tree_sha256: Some(TensorTree::of_model(file, |_| {})?.digest()),
    })
}

/// What no figure is about.
fn say_left_out(lanes: &[Lane], tasks: &[Task]) {
    let all: usize = tasks.iter().map(|task| task.asks.len()).sum();
    let left_out = all - figures::common(lanes).len();
    if left_out > 0 && lanes.iter().any(|lane| lane.failed.is_none()) {
        report::note(format!(
            "{left_out} of {all} requests do not count: a server has no room for prompts as long; give a longer context"
        ));
    }
}
