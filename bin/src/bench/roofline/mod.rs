//! The roof over a pass: what this machine can do at best, and how near to it a model runs.
//!
//! A pass over few rows does little with every weight that it reads, so it cannot be faster than reading them; a pass over
//! many rows cannot be faster than multiplying with them. Between the two is the ridge: as many rows are nearly free.
//!
//! Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
//! architectures", Communications of the ACM 52 (2009).

pub mod formats;
pub mod machine;
pub mod model;
mod passes;
mod text;

use std::path::PathBuf;

use clap::Args;
use engine::exec::{Isa, Pool};
use engine::probe::Quant;
use serde::Serialize;

use self::formats::FormatRoof;
use self::machine::Machine;
use self::model::ModelRoof;
use super::options::{ConventionFlags, KvFlag, RepackFlag, RunFlags, THREADS_MAX, within};
use super::speed::SpeedFlags;
use crate::flags::physical_cores;

pub use passes::Reads;
pub use text::text;

/// Name of the schema.
pub const SCHEMA: &str = "slipstream-roofline/1";

/// Rows of the windows that a model is timed with.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// `engine-bench roofline`.
#[derive(Clone, Debug, Args)]
pub struct RooflineFlags {
    /// Hold this model against the machine: a GGUF file, any shard of a split one, a directory that holds one, a layer
    /// package, or hf:ORG/NAME[:QUANT] of a hub
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Workers, the main thread included.
    #[arg(long, short = 't', default_value_t = physical_cores(), value_parser = within(1, THREADS_MAX))]
    pub threads: usize,
    /// Weight formats whose kernels are timed [default: all]
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', value_parser = format)]
    pub formats: Vec<Quant>,
    /// Tokens of the timed prompt.
    #[arg(long, default_value_t = 512, value_parser = within(1, 1 << 20))]
    pub prefill: usize,
    /// Tokens of the timed decoding.
    #[arg(long, default_value_t = 64, value_parser = within(1, 1 << 20))]
    pub decode: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn format(name: &str) -> Result<Quant, String> {
    let names = || Quant::ALL.map(Quant::name).join(", ");
    let found = Quant::ALL.into_iter().find(|quant| quant.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("expected one of {}", names()))
}

impl RooflineFlags {
    /// How the model is timed, if one is given: as `engine-bench speed` does.
    pub fn speed(&self) -> Option<SpeedFlags> {
        let run = RunFlags {
            model: Some(self.model.clone()?),
            draft_model: None,
            threads: self.threads,
            kv_type: KvFlag::F16,
            exact_activations: false,
            no_mmap: false,
            repack: RepackFlag::Auto,
            strict: false,
            conventions: ConventionFlags { mtp_norm: None, mtp_hidden_norm: None },
        };
        Some(SpeedFlags { run, prefill: self.prefill, decode: self.decode, rows: ROWS.to_vec(), json: self.json })
    }
}

/// What a machine can do, and what a model makes of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Roofline {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Kernels of the weight formats, by all threads.
    pub formats: Vec<FormatRoof>,
    /// The model.
    pub model: Option<ModelRoof>,
}

/// Measures the machine, and holds a model that was timed against it.
pub fn measure(flags: &RooflineFlags, timed: Option<&model::Timed>) -> Roofline {
    let isa = Isa::best();
    let machine = Machine::measure(flags.threads, isa);
    let pool = Pool::new(flags.threads);
    let wanted = if flags.formats.is_empty() { Quant::ALL.to_vec() } else { flags.formats.clone() };
    let formats = wanted.into_iter().map(|quant| FormatRoof::measure(&pool, isa, quant, machine.read_gb_s())).collect();
    let model = timed.map(|timed| ModelRoof::of(timed, timed.read_gb_s(&pool), machine.peak()));
    Roofline { schema: SCHEMA, machine, formats, model }
}
