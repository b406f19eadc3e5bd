//! Flags of `engine-serve`, and those that it shares with `engine-pack`: raw flags as clap reads them, then the
//! configuration they resolve to.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, Args, CommandFactory as _, FromArgMatches as _, Id, Parser, ValueEnum};
use engine::api::{Speculation, Strategy, WindowPolicy};
use engine::exec::{Activation, ExecOptions, Isa, KvType};
use engine::limits::{
    Limits, MTP_TOKENS_MAX, PAGE_TOKENS, STEP_ROWS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, WAITING_MAX, WINDOW_MAX,
};
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::stage::StageChoice;
use engine::schedule::Schedule;
use engine_io::{OpenOptions, Package};

use crate::bench::options::{ConventionFlags, KvFlag, RepackFlag, THREADS_MAX, within};
use crate::memory::{SizeFlag, checkpoints};
use crate::menu::{self, BUILT_IN, Given, Menu};
use crate::serve::api_flags::ApiFlags;
use crate::serve::flags::HttpFlags;
use crate::serve::{Api, Bounds, limits, ping};
use crate::stage::flags::LinkFlags;

/// Context of a request where neither flag nor model asks for less.
const CONTEXT_DEFAULT: usize = 8192;
/// Saved states that can be asked for.
pub const CHECKPOINTS_MAX: usize = 1 << 16;
/// Choices that can be told to wait.
const QUEUE_MAX: usize = 65_536;
/// Time in the queue, and the longest that may be asked for: a day.
const QUEUE_SECONDS_DEFAULT: usize = limits::QUEUE_TIME.as_secs() as usize;
const QUEUE_SECONDS_MAX: usize = 86_400;
const SCHEMA_BYTES_DEFAULT: usize = crate::serve::limits::SCHEMA_BYTES;
const SCHEMA_BYTES_MAX: usize = 16 * SCHEMA_BYTES_DEFAULT;

/// Spellings of the strategy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum StrategyFlag {
    /// The best that the model allows.
    Auto,
    /// Plain decoding.
    Off,
    /// The model's own MTP block.
    Mtp,
    /// The request's own suffix index.
    NgramSuffix,
    /// MTP prefix with a suffix tail.
    MtpSuffix,
}

impl StrategyFlag {
    /// The strategy; `None`: the model decides.
    pub fn strategy(self) -> Option<Strategy> {
        match self {
            Self::Auto => None,
            Self::Off => Some(Strategy::Off),
            Self::Mtp => Some(Strategy::Mtp),
            Self::NgramSuffix => Some(Strategy::NgramSuffix),
            Self::MtpSuffix => Some(Strategy::MtpSuffix),
        }
    }
}

/// Spellings of the window policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PolicyFlag {
    /// `--window-initial` drafts every step, as far as proposers and room allow.
    Fixed,
    /// From measured cost and acceptance.
    Adaptive,
}

/// Something that is done or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SwitchFlag {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Spellings of the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ScheduleFlag {
    /// A thread per part of the tick.
    Full,
    /// Neighbours share a thread.
    Fused,
    /// One thread.
    Inline,
    /// Measured at start.
    Auto,
}

/// Whose MTP block drafts.
#[derive(Clone, Debug, Args)]
pub struct SidecarFlags {
    /// An MTP sidecar of the model, or hf:ORG/NAME[:QUANT] of a hub: its block drafts instead of the model's own [also:
    /// --draft-model, -md]
    #[arg(long, alias = "draft-model", value_name = "SIDECAR.gguf")]
    pub spec_draft_model: Option<PathBuf>,
}

/// Flags that decide how much memory a model takes, and what is computed with it.
#[derive(Clone, Debug, Args)]
pub struct SizeFlags {
    /// Tokens one request may hold; 0 = as many as the model was made for [default: the model's, at most 8192]
    #[arg(long, short = 'c', value_name = "N")]
    pub ctx_size: Option<usize>,
    /// Choices that run at once; a request has one, or n of them [also: -np]
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = within(1, STEP_ROWS_MAX - 1))]
    pub parallel: usize,
    /// Workers, the first included [default: physical cores]
    #[arg(long, short = 't', value_name = "N", value_parser = within(1, THREADS_MAX))]
    pub threads: Option<usize>,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv_type: KvFlag,
    /// Most drafts; no request gets more [default: the package's, else 32]
    #[arg(long, value_name = "N", value_parser = within(0, WINDOW_MAX))]
    pub window_max: Option<usize>,
    /// Most prompt tokens of one request in one pass [also: -ub, --ubatch-size]
    #[arg(long, alias = "ubatch-size", value_name = "N", default_value_t = STEP_ROWS_MAX, value_parser = within(1, STEP_ROWS_MAX))]
    pub prefill_chunk: usize,
    /// Choices that may wait for a slot; more are answered with 429.
    #[arg(long, value_name = "N", default_value_t = WAITING_MAX, value_parser = within(1, QUEUE_MAX))]
    pub queue_max: usize,
    /// Keep nothing of one request for the next that begins alike [also: --no-cache-prompt]
    #[arg(long, alias = "no-cache-prompt")]
    pub no_prefix_cache: bool,
    /// Saved states that the prefix cache of a model with a recurrent state or an MTP block may hold [default: as many as
    /// take a quarter of the KV cache's memory; twice --parallel for each stage of a split model]
    #[arg(long, value_name = "N", value_parser = within(0, CHECKPOINTS_MAX))]
    pub ctx_checkpoints: Option<usize>,
    /// Multiply float activations instead of quantised ones.
    #[arg(long)]
    pub exact_activations: bool,
    /// Read the file into memory instead of mapping it.
    #[arg(long)]
    pub no_mmap: bool,
    /// Refuse a file with anything unexpected in it.
    #[arg(long)]
    pub strict: bool,
    /// Copy weights into the kernels' own layout.
    #[arg(long, value_enum, default_value = "auto")]
    pub repack: RepackFlag,
    /// What engines differ in.
    #[command(flatten)]
    pub conventions: ConventionFlags,
}

/// Flags that say how proposers draft, and how much of it is verified at once.
#[derive(Clone, Copy, Debug, Args)]
pub struct DraftFlags {
    /// Drafts of the MTP block per step [default: the package's, else 3]
    #[arg(long, value_name = "N", value_parser = within(0, MTP_TOKENS_MAX))]
    pub mtp_tokens: Option<usize>,
    /// Shortest suffix match that drafts [default: the package's, else 3]
    #[arg(long, value_name = "N", value_parser = within(SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT))]
    pub suffix_min: Option<usize>,
    /// Longest suffix match that is looked for [default: the package's, else 64]
    #[arg(long, value_name = "N", value_parser = within(SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT))]
    pub suffix_max: Option<usize>,
    /// Longest suffix draft [default: the package's, else 48; at most the window]
    #[arg(long, value_name = "N", value_parser = within(0, WINDOW_MAX))]
    pub suffix_tokens: Option<usize>,
    /// Who decides how many drafts are verified at once [default: the package's, else adaptive]
    #[arg(long, value_enum)]
    pub window_policy: Option<PolicyFlag>,
    /// Drafts of a fixed window, first width of an adaptive one [default: the package's, else 16; within min and max]
    #[arg(long, value_name = "N", value_parser = within(0, WINDOW_MAX))]
    pub window_initial: Option<usize>,
    /// Least width of an adaptive window while speculation is on [default: the package's, else 1; at most max]
    #[arg(long, value_name = "N", value_parser = within(0, WINDOW_MAX))]
    pub window_min: Option<usize>,
}

impl DraftFlags {
    /// What they say, beside the largest window, which is a flag of its own.
    pub fn given(&self, window_max: Option<usize>) -> Given {
        let byte = |flag: Option<usize>| flag.map(|n| n as u8);
        Given {
            mtp_tokens: byte(self.mtp_tokens),
            suffix_min: byte(self.suffix_min),
            suffix_max: byte(self.suffix_max),
            suffix_tokens: byte(self.suffix_tokens),
            policy: self.window_policy.map(|policy| match policy {
                PolicyFlag::Fixed => WindowPolicy::Fixed,
                PolicyFlag::Adaptive => WindowPolicy::Adaptive,
            }),
            window_initial: byte(self.window_initial),
            window_min: byte(self.window_min),
            window_max: byte(window_max),
        }
    }
}

/// Which part of a model a program is for.
#[derive(Clone, Copy, Debug, Args)]
pub struct StageFlags {
    /// Run one stage of the model: 0/2 has the first blocks, the requests and HTTP, and needs --peer; 1/2 has the rest,
    /// and needs --listen. Each needs its own tensors only.
    #[arg(long, value_name = "I/N", value_parser = crate::stage::flags::parse_stage)]
    pub stage: Option<(u32, u32)>,
    /// First block of stage 1 [default: as the file says, else where both stages weigh the same]
    #[arg(long, value_name = "BLOCK", requires = "stage")]
    pub stage_split: Option<u32>,
}

impl StageFlags {
    /// Which stage is asked for.
    pub fn choice(&self) -> Option<StageChoice> {
        self.stage.map(|(index, count)| StageChoice { index, count, split: self.stage_split })
    }
}

impl SizeFlags {
    /// How files are opened.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions { mmap: !self.no_mmap, strict: self.strict }
    }

    /// How the model is loaded.
    pub fn load_options(&self) -> LoadOptions {
        let repack = match self.repack {
            RepackFlag::Auto => Repack::Auto,
            RepackFlag::On => Repack::On,
            RepackFlag::Off => Repack::Off,
        };
        LoadOptions { repack, strict: self.strict, conventions: self.conventions.resolve(), stage: None }
    }

    /// How it is run.
    pub fn exec_options(&self) -> ExecOptions {
        ExecOptions {
            kv_type: match self.kv_type {
                KvFlag::F32 => KvType::F32,
                KvFlag::F16 => KvType::F16,
            },
            activation: if self.exact_activations { Activation::Exact } else { Activation::Integer },
            threads: self.threads.unwrap_or_else(physical_cores),
            isa: Isa::best(),
        }
    }

    /// Tokens of a request for a model made for `train`.
    pub fn context(&self, train: usize) -> usize {
        match self.ctx_size {
            None => train.min(CONTEXT_DEFAULT),
            Some(0) => train,
            Some(n) => n,
        }
        .max(2)
    }

    /// Engine limits for a model that is planned, and for the windows of its package.
    pub fn limits(&self, planned: &Planned, package: Option<&Package>) -> Limits {
        let limits = self.basic_limits(self.context(planned.config.context_train), package);
        let fit = || checkpoints(planned, &limits, &self.exec_options());
        let checkpoints = self.ctx_checkpoints.filter(|_| limits.prefix_cache).unwrap_or_else(fit);
        Limits { checkpoints, ..limits }
    }

    /// What of them does not depend on the model.
    pub fn basic_limits(&self, context: usize, package: Option<&Package>) -> Limits {
        let menu = package.and_then(|package| menu::of_package(&package.manifest));
        let packaged = menu.map_or(BUILT_IN.window_max, |(menu, _)| menu.window_max());
        let window_max = self.window_max.unwrap_or(usize::from(packaged));
        let prefix_cache = !self.no_prefix_cache;
        let (prefill_chunk, waiting) = (self.prefill_chunk, self.queue_max);
        Limits { prefill_chunk, window_max, waiting, prefix_cache, ..Limits::new(self.parallel, context) }
    }

    /// Values that no model can meet.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.ctx_size == Some(1) {
            return Err("--ctx-size 1 holds no prompt and token; give at least 2".to_owned());
        }
        // Without the flag, or with 0, the model says how long; no model says as much as this.
        let (slots, context) = (self.parallel, self.ctx_size.unwrap_or(0));
        let (pages, most) = (Limits::new(slots, context).pages, u32::MAX as usize - 1);
        if pages > most || context > most {
            return Err(format!(
                "--ctx-size {context} with --parallel {slots} is {} tokens, more than can be numbered; at most {} in all",
                slots.saturating_mul(context),
                most * PAGE_TOKENS
            ));
        }
        Ok(())
    }
}

/// Flags as given.
#[derive(Clone, Debug, Parser)]
#[command(name = "engine-serve", version, about = "Serves a model over HTTP with speculative decoding.")]
#[command(after_help = "A flag that is not given is taken from the environment: --ctx-size from ENGINE_ARG_CTX_SIZE.")]
pub struct LowArgs {
    /// A GGUF file, any shard of a split one, a directory that holds one, a layer package, or hf:ORG/NAME[:QUANT] of a hub,
    /// fetched if the cache lacks it. Without it the built-in model is served.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Who drafts where a request does not say.
    #[arg(long, value_enum, default_value = "auto")]
    pub spec_strategy: StrategyFlag,
    /// Draft with the MTP block even if the check at start finds that it does not fit the model.
    #[arg(long)]
    pub mtp_force: bool,
    /// How proposers draft.
    #[command(flatten)]
    pub draft: DraftFlags,
    /// Which threads run the tick.
    #[arg(long, value_enum, default_value = "auto")]
    pub schedule: ScheduleFlag,
    /// Whose MTP block drafts.
    #[command(flatten)]
    pub sidecar: SidecarFlags,
    /// What decides how much memory is taken.
    #[command(flatten)]
    pub size: SizeFlags,
    /// Which part of the model.
    #[command(flatten)]
    pub stage: StageFlags,
    /// How the stages of a split model find each other.
    #[command(flatten)]
    pub link: LinkFlags,
    /// Refuse to start if more memory is needed with all slots full: bytes, or with a unit (8GiB, 8192MiB, 8G).
    /// Mapped files and what clients may send do not count; `engine-pack inspect` prints what does.
    #[arg(long, value_name = "SIZE", value_parser = SizeFlag::parse)]
    pub memory_limit: Option<SizeFlag>,
    /// Print the limits that connections and requests meet with these flags and this model, and end.
    #[arg(long)]
    pub limits: bool,
    /// Where to listen, who may ask, and how much clients may send.
    #[command(flatten)]
    pub http: HttpFlags,
    /// What requests mean.
    #[command(flatten)]
    pub api: ApiFlags,
    /// Seconds a request may wait for a slot before it is answered with 503.
    #[arg(long, value_name = "SECONDS", default_value_t = QUEUE_SECONDS_DEFAULT, value_parser = within(1, QUEUE_SECONDS_MAX))]
    pub queue_timeout: usize,
    /// Bytes that the schemas or the grammar of one request may have.
    #[arg(long, value_name = "BYTES", default_value_t = SCHEMA_BYTES_DEFAULT, value_parser = within(1, SCHEMA_BYTES_MAX))]
    pub max_schema_bytes: usize,
    /// Of /v1/messages: `on` takes a line of billing off the front of the system text, which is another in every request
    /// and would keep every prompt from being found in the prefix cache.
    #[arg(long, value_enum, default_value_t = SwitchFlag::On)]
    pub strip_billing_line: SwitchFlag,
    /// Write what is asked and answered to a new file in this folder, one JSON line a choice, readable by its owner alone.
    /// All tensors of the model are read at start to name it by digest. `engine-bench replay` reads such files.
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

/// Single-dash names of several letters, which llama-server has and clap does not know.
const ALIASES: [(&str, &str); 3] = [("-np", "--parallel"), ("-ub", "--prefill-chunk"), ("-md", "--spec-draft-model")];

/// How variables begin that stand for flags.
const ENVIRONMENT: &str = "ENGINE_ARG_";

/// The variable of a flag.
fn variable(long: &str) -> String {
    format!("{ENVIRONMENT}{}", long.replace('-', "_").to_ascii_uppercase())
}

/// Flags that the environment gave, and the variables that did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken(Vec<(String, String)>);

impl Taken {
    /// What is to be said beside an error's text: where the flags that it names came from.
    fn notes<'a>(&'a self, text: &'a str) -> impl Iterator<Item = String> + 'a {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let named = move |flag: &str| {
            text.match_indices(flag)
                .any(|(at, _)| !text[..at].ends_with(part) && !text[at + flag.len()..].starts_with(part))
        };
        let those = self.0.iter().filter(move |(flag, _)| named(flag));
        those.map(|(flag, variable)| format!("{flag} is taken from {variable} of the environment"))
    }

    /// An error's text with these notes.
    pub fn told(&self, mut text: String) -> String {
        for note in self.notes(&text.clone()) {
            text.push_str("; ");
            text.push_str(&note);
        }
        text
    }

    /// The same for an error of clap, which has a place for them.
    fn noted(&self, mut error: clap::Error) -> clap::Error {
        let mut text = if error.exit_code() == 0 { String::new() } else { error.render().to_string() };
        if error.kind() == ErrorKind::InvalidUtf8 {
            // It names no flag.
            let broken = |variable: &str| std::env::var_os(variable).is_some_and(|value| value.to_str().is_none());
            let those = self.0.iter().filter(|(_, variable)| broken(variable));
            text = those.map(|(flag, _)| flag.as_str()).collect::<Vec<_>>().join(" ");
        }
        let notes: Vec<StyledStr> = self.notes(&text).map(StyledStr::from).collect();
        if !notes.is_empty() {
            let mut all = match error.remove(ContextKind::Suggested) {
                Some(ContextValue::StyledStrs(before)) => before,
                _ => Vec::new(),
            };
            all.extend(notes);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(all));
        }
        error
    }
}

/// A command line with these names written out.
pub fn long_names(line: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    line.into_iter().map(|word| {
        let alias = ALIASES.iter().find(|(short, _)| word == *short);
        alias.map_or(word, |(_, long)| OsString::from(long))
    })
}

impl LowArgs {
    /// Parses a command line, program name first.
    ///
    /// # Errors
    /// Unknown flags, bad values, and `--help` or `--version`.
    pub fn parse_line(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(long_names(line))
    }

    /// The same for the program itself: what the line does not say is looked for in the environment, `--ctx-size` as
    /// `ENGINE_ARG_CTX_SIZE`; `set` are the names of its variables. A flag of the line goes before a variable that it
    /// excludes.
    ///
    /// # Errors
    /// As [`LowArgs::parse_line`], and a variable of that kind which names no flag.
    pub fn parse_program(
        line: impl IntoIterator<Item = OsString>,
        set: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Taken), clap::Error> {
        let line: Vec<OsString> = long_names(line).collect();
        let set: Vec<String> = set.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let command = Self::command();
        // Whatever else is wrong with it.
        let alone = Self::command().mut_args(|arg| arg.env(None::<&str>)).ignore_errors(true);
        let alone = alone.try_get_matches_from(&line).ok();
        let said =
            |id: &Id| alone.as_ref().is_some_and(|m| m.value_source(id.as_str()) == Some(ValueSource::CommandLine));
        let excludes = |arg: &Arg| {
            let others = command.get_arg_conflicts_with(arg).into_iter();
            others.map(|other| (arg.get_id().clone(), other.get_id().clone())).collect::<Vec<_>>()
        };
        let excluded: Vec<(Id, Id)> = command.get_arguments().flat_map(excludes).collect();
        let beaten = |id: &Id| excluded.iter().any(|(a, b)| a == id && said(b) || b == id && said(a));
        let (mut known, mut taken, mut twice) = (Vec::new(), Taken::default(), None);
        let mut command = command.clone().mut_args(|arg| {
            let Some(own) = arg.get_long().map(variable) else { return arg };
            known.push(own.clone());
            let other = arg.get_env().and_then(|name| name.to_str()).map(str::to_owned);
            let given: Vec<&String> =
                [Some(&own), other.as_ref()].into_iter().flatten().filter(|name| set.contains(name)).collect();
            let flag = format!("--{}", arg.get_long().expect("it has one"));
            match given.as_slice() {
                _ if said(arg.get_id()) || beaten(arg.get_id()) => arg.env(None::<&str>),
                [] => arg,
                [name] => {
                    taken.0.push((flag, (*name).clone()));
                    arg.env(*name).hide_env(true)
                }
                [a, b, ..] => {
                    twice = Some(format!("{a} and {b} are both set and give {flag}; unset one of them\n"));
                    arg
                }
            }
        });
        if let Some(name) = set.iter().find(|name| name.starts_with(ENVIRONMENT) && !known.contains(name)) {
            let flag = name[ENVIRONMENT.len()..].to_ascii_lowercase().replace('_', "-");
            let message = format!("{name} is set, and engine-serve has no flag --{flag}\n");
            return Err(command.error(ErrorKind::UnknownArgument, message));
        }
        if let Some(message) = twice {
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
        let matches = command.try_get_matches_from_mut(line).map_err(|error| taken.noted(error))?;
        let args = Self::from_arg_matches(&matches).map_err(|error| taken.noted(error.format(&mut command)))?;
        Ok((args, taken))
    }

    /// What does not depend on the model.
    ///
    /// # Errors
    /// Values that contradict each other.
    pub fn resolve(self) -> Result<ServeArgs, String> {
        let strategy = self.spec_strategy.strategy();
        let given = self.draft.given(self.size.window_max);
        // Against each other; a package is read later.
        given.over(BUILT_IN)?;
        let schedule = match self.schedule {
            ScheduleFlag::Full => Schedule::Full,
            ScheduleFlag::Fused => Schedule::Fused,
            ScheduleFlag::Inline => Schedule::Inline,
            ScheduleFlag::Auto => Schedule::Auto,
        };
        self.http.check()?;
        self.api.check()?;
        self.size.check()?;
        let kept = !self.http.api_key.is_empty() || self.http.api_key_file.is_some() || self.record.is_some();
        let of_http = kept || self.api != ApiFlags::default();
        self.link.check(&self.stage, &self.sidecar, of_http)?;
        Ok(ServeArgs { low: self, strategy, given, schedule })
    }
}

/// Flags, checked against each other.
#[derive(Clone, Debug)]
pub struct ServeArgs {
    /// As given.
    pub low: LowArgs,
    /// `None` = decided by the model.
    pub strategy: Option<Strategy>,
    /// What is said about drafting.
    pub given: Given,
    /// Threads of the tick.
    pub schedule: Schedule,
}

impl ServeArgs {
    /// Bounds of the front.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            queue_time: Duration::from_secs(self.low.queue_timeout as u64),
            waiting: self.low.size.queue_max,
            schema_bytes: self.low.max_schema_bytes,
            ..self.low.api.bounds(self.low.http.bounds())
        }
    }

    /// What these flags say of requests.
    pub fn api(&self) -> Api {
        Api {
            ping: ping(self.low.http.sse_ping_interval),
            strip_billing_line: self.low.strip_billing_line == SwitchFlag::On,
            ..self.low.api.api()
        }
    }

    /// The strategies that requests may name, under these flags: all of them, or those of a package.
    ///
    /// # Errors
    /// Flags that contradict what the package says.
    pub fn menu(&self, package: Option<Menu>) -> Result<Menu, String> {
        package.unwrap_or_else(|| Menu::of(BUILT_IN)).under(&self.given)
    }

    /// Defaults of requests for a model with or without an MTP block.
    ///
    /// # Errors
    /// If the strategy asked for is not on the menu, or needs a block that is not there.
    pub fn speculation_for(&self, menu: &Menu, mtp: bool) -> Result<Speculation, String> {
        let best = if mtp { Strategy::MtpSuffix } else { Strategy::NgramSuffix };
        let strategy = self.strategy.or(menu.default).unwrap_or(best);
        let who = if self.strategy.is_some() { "--spec-strategy" } else { "the package's default strategy" };
        let name = strategy.name();
        let Some(settings) = menu.get(strategy) else {
            let offered: Vec<&str> = menu.strategies().map(Strategy::name).collect();
            return Err(format!("{who} {name} is not a strategy of the package, which has {}", offered.join(", ")));
        };
        if strategy.uses_mtp() && !mtp {
            return Err(format!(
                "{who} {name} needs an MTP block and the model has none (--spec-strategy ngram-suffix and auto need none)"
            ));
        }
        Ok(settings)
    }

    /// Defaults of requests where the model's MTP block must not draft, whatever strategy was asked for.
    pub fn speculation_without_mtp(&self, menu: &Menu) -> Speculation {
        let strategy = self.strategy.or(menu.default).unwrap_or(Strategy::MtpSuffix).without_mtp();
        menu.get(strategy).or(menu.get(Strategy::Off)).unwrap_or(BUILT_IN)
    }
}

/// Physical cores this process may use: two hardware threads of a core share its arithmetic units.
pub fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let values = |name: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    };
    let mut cores: Vec<(String, String)> = values("physical id").into_iter().zip(values("core id")).collect();
    cores.sort();
    cores.dedup();
    if cores.is_empty() { available } else { cores.len().min(available) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(line: &str) -> Result<ServeArgs, String> {
        let words = std::iter::once("engine-serve").chain(line.split_whitespace()).map(OsString::from);
        LowArgs::parse_line(words).map_err(|e| e.to_string())?.resolve()
    }

    #[test]
    fn defaults() {
        let args = resolve("").unwrap();
        let menu = args.menu(None).unwrap();
        let s = args.speculation_for(&menu, true).unwrap();
        assert_eq!((s.strategy, s.mtp_tokens, s.suffix_min, s.suffix_max), (Strategy::MtpSuffix, 3, 3, 64));
        assert_eq!((s.suffix_tokens, s.window_initial, s.window_min, s.window_max), (32, 16, 1, 32));
        assert_eq!(args.speculation_for(&menu, false).unwrap().strategy, Strategy::NgramSuffix);
        let size = &args.low.size;
        assert_eq!((size.context(4096), size.context(1 << 20)), (4096, 8192));
        size.basic_limits(4096, None).check().unwrap();
        assert!(size.exec_options().threads >= 1);
        assert_eq!(args.low.memory_limit, None);
    }

    #[test]
    fn aliases_and_values() {
        let args = resolve("-m x.gguf -c 0 -np 2 -t 3 -ub 64 --window-max 63 --spec-strategy mtp").unwrap();
        let size = &args.low.size;
        assert_eq!((size.parallel, size.exec_options().threads, size.prefill_chunk), (2, 3, 64));
        assert_eq!(size.context(1 << 20), 1 << 20);
        assert_eq!(resolve("--memory-limit 3GiB").unwrap().low.memory_limit.map(|l| l.bytes), Some(3 << 30));
        let menu = args.menu(None).unwrap();
        assert_eq!(menu.get(Strategy::Mtp).unwrap().suffix_tokens, 48);
        let error = args.speculation_for(&menu, false).unwrap_err();
        assert!(error.contains("MTP block") && error.contains("ngram-suffix and auto need none"), "{error}");
        assert_eq!(args.speculation_without_mtp(&menu).strategy, Strategy::Off);
        let off = resolve("--window-max 0").unwrap().menu(None).unwrap().get(Strategy::Off).unwrap();
        assert_eq!((off.window_min, off.window_initial), (0, 0));
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "--suffix-min 9 --suffix-max 8",
            "--window-min 9 --window-max 8",
            "--window-initial 9 --window-max 8",
            "--window-max 64",
            "--mtp-tokens 16",
            "--parallel 0",
            "--queue-max 0",
            "--queue-timeout 0",
            "--queue-timeout 86401",
            "--max-schema-bytes 0",
            "--threads 0",
            "--ctx-size 1",
            "--memory-limit 0",
            "--memory-limit lots",
            "--api-key=",
            "--spec-strategy fast",
            "--port 70000",
            "--nonsense",
        ] {
            assert!(resolve(line).is_err(), "{line} was accepted");
        }
    }
}
