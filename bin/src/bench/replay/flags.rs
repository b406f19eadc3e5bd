//! Flags of `engine-bench replay`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use engine::api::{Speculation, Strategy};
use engine::limits::{STEP_ROWS_MAX, WINDOW_MAX};
use engine_io::trace::Format;

use super::live::flags::LiveFlags;
use crate::bench::options::{RunFlags, within};
use crate::flags::{DraftFlags, StrategyFlag};
use crate::menu::{BUILT_IN, Menu};

/// Context where neither flag nor model asks for less.
const CONTEXT_DEFAULT: usize = 8192;

/// How sessions are replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Mode {
    /// The recorded answer is the model's choice; what is measured is what proposers draft. No pass is run for it: time
    /// is that of a cost table, `--cost` or measured at start. Arms that draft with the MTP block cost a forward pass
    /// over the sessions and a chain for every answered token, once, before they start.
    Forced,
    /// The model runs every pass, every draft is right, and whether it is accepted is decided by seeded dice
    /// (`--accept-rate`): what is measured is what verifying costs. Of the recording only the lengths of prompts and
    /// answers matter; each answer is a copy of its prompt.
    Synthetic,
    /// The model generates every answer, and then the recorded one is what the session goes on with. Asked over HTTP and
    /// timed at the client: our engine, which this program then serves to itself, and every server of --url.
    Live,
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::Synthetic => "synthetic",
            Self::Live => "live",
        }
    }
}

/// The formats by their names.
fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).map(|name| {
        let named = |format: &Format| format.name() == name;
        Format::ALL.into_iter().find(named).expect("the parser takes no other name")
    })
}

/// `engine-bench replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayFlags {
    /// Recordings, or folders of them.
    #[arg(value_name = "FILE", required_unless_present = "trace")]
    pub files: Vec<PathBuf>,
    /// The same by a flag; may be repeated.
    #[arg(long, value_name = "FILE_OR_DIR")]
    pub trace: Vec<PathBuf>,
    /// What wrote them [default: as their content says]
    #[arg(long, value_parser = formats())]
    pub format: Option<Format>,
    /// How sessions are replayed.
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// Strategies that take turns; off has to be among them [default: all that the model can]
    #[arg(long, visible_alias = "strategies", value_enum, value_delimiter = ',')]
    pub arms: Vec<StrategyFlag>,
    /// How the model is run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Tokens a request may hold; 0 = as many as the model was made for [default: the model's, at most 8192]
    #[arg(long, short = 'c', value_name = "N")]
    pub ctx_size: Option<usize>,
    /// How arms draft.
    #[command(flatten)]
    pub draft: DraftFlags,
    /// Most drafts of a window [default: the package's, else 32]
    #[arg(long, value_name = "N", value_parser = within(0, WINDOW_MAX))]
    pub window_max: Option<usize>,
    /// Sessions at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1, STEP_ROWS_MAX - 1))]
    pub concurrency: usize,
    /// Measured rounds of every arm.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within(1, 1000))]
    pub repeats: usize,
    /// Rounds before them that do not count.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(0, 1000))]
    pub warmup: usize,
    /// Most sessions of each source.
    #[arg(long, value_name = "N", value_parser = within(1, usize::MAX))]
    pub limit: Option<usize>,
    /// Most tokens of an answer that are replayed.
    #[arg(long, value_name = "N", value_parser = within(1, usize::MAX))]
    pub max_tokens: Option<usize>,
    /// Leave out sessions whose answers have fewer tokens in all.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min_output: usize,
    /// Seed of the dice.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Mode forced: what passes cost, as `engine-bench speed --json` prints it [default: measured at start]
    #[arg(long, value_name = "FILE")]
    pub cost: Option<PathBuf>,
    /// Mode synthetic: chance of acceptance by position in the window; the last one goes on [default: 0.8]
    #[arg(long, value_name = "P,..", value_delimiter = ',', value_parser = share)]
    pub accept_rate: Vec<f64>,
    /// Who else is asked.
    #[command(flatten)]
    pub live: LiveFlags,
    /// Write the result to `replay.json` of this folder too.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the result as one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

impl ReplayFlags {
    /// Flags that contradict each other.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.ctx_size == Some(1) {
            return Err("--ctx-size 1 holds no prompt and token; give at least 2".to_owned());
        }
        let given = [
            (self.cost.is_some().then_some("--cost"), Mode::Forced),
            ((!self.accept_rate.is_empty()).then_some("--accept-rate"), Mode::Synthetic),
            (self.live.given(), Mode::Live),
        ];
        for (flag, mode) in given {
            if let Some(flag) = flag.filter(|_| mode != self.mode) {
                return Err(format!("{flag} is for --mode {}", mode.name()));
            }
        }
        Ok(())
    }

    /// All paths of recordings.
    pub fn traces(&self) -> Vec<PathBuf> {
        self.files.iter().chain(&self.trace).cloned().collect()
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

    /// Chances of acceptance.
    pub fn rates(&self) -> Vec<f64> {
        if self.accept_rate.is_empty() { vec![0.8] } else { self.accept_rate.clone() }
    }

    /// The arms, in the order asked for, for a model with or without an MTP block and what its package says.
    ///
    /// # Errors
    /// An arm that the model cannot run, one twice, or none to hold the others against.
    pub fn arms(&self, package: Option<Menu>, mtp: bool) -> Result<Vec<Speculation>, String> {
        let menu = package.unwrap_or_else(|| Menu::of(BUILT_IN)).under(&self.draft.given(self.window_max))?;
        let asked: Vec<Strategy> = match self.arms.is_empty() {
            true => menu.strategies().filter(|strategy| mtp || !strategy.uses_mtp()).collect(),
            false => self
                .arms
                .iter()
                .map(|flag| flag.strategy().ok_or("--arms auto is no arm; name strategies"))
                .collect::<Result<_, _>>()?,
        };
        if !asked.contains(&Strategy::Off) {
            return Err("--arms lacks off, which every other arm is held against".to_owned());
        }
        let mut arms: Vec<Speculation> = Vec::new();
        for strategy in asked {
            let name = strategy.name();
            if strategy.uses_mtp() && !mtp {
                return Err(format!("--arms {name} drafts with an MTP block, and the model has none"));
            }
            if arms.iter().any(|arm| arm.strategy == strategy) {
                return Err(format!("--arms names {name} twice"));
            }
            let settings =
                menu.get(strategy).ok_or_else(|| format!("--arms {name} is not a strategy of the package"))?;
            arms.push(settings);
        }
        Ok(arms)
    }
}
