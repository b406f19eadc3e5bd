//! Memory of a server with all slots full, planned beside measured, as CSV: `memory --help`.
//!
//! `cargo build --release -p engine-bin -p engine-perf && target/release/memory`. Without a model, one of the shape of
//! Qwen3.5-0.8B is made of random weights in a temporary folder (`engine_perf::model`). Runs `engine-serve` and
//! `engine-pack` that lie beside it; a debug build measures the same memory, slowly.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use engine_perf::model::{Mix, Recipe, Shape};
use engine_tests::memory::{COMPLETION, Load, measure};

/// What is measured where no model is given.
const RECIPE: Recipe = Recipe { shape: Shape::Qwen35Small, mix: Mix::Q8_0, mtp: true, seed: 1 };

/// Memory of a server with all slots full, planned beside measured, as CSV: a row for each way to hold the weights. An
/// MTP block drafts even if it does not fit the model (`--mtp-force`), as one of random weights.
/// Exit codes: 0 plan and measurement agree within 2 % or 16 MiB, 1 they do not or something failed, 2 usage.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// A GGUF file [default: one of the shape of Qwen3.5-0.8B in Q8_0, made of random weights]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Tokens of a request.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    ctx_size: usize,
    /// Requests at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    parallel: usize,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// What `--repack` of the server is.
    #[arg(long, value_enum, default_value = "both")]
    repack: Rows,
}

/// Which rows are measured.
#[derive(Clone, Copy, ValueEnum)]
enum Rows {
    /// Every matrix is copied.
    On,
    /// Weights stay in the file.
    Off,
    /// One row each.
    Both,
}

impl Rows {
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::On => &["on"],
            Self::Off => &["off"],
            Self::Both => &["on", "off"],
        }
    }
}

fn main() -> ExitCode {
    match run(Flags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "error: plan and measurement differ by more than 2 % and 16 MiB, or the MTP block that is planned for never \
                 drafted"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every row agrees.
fn run(flags: Flags) -> Result<bool, Box<dyn Error>> {
    let Flags { model, ctx_size: context, parallel, threads, repack } = flags;
    // A slot is filled by a prompt and a completion.
    if context <= COMPLETION || parallel == 0 || threads == 0 {
        return Err(format!("--ctx-size is at least {}, --parallel and --threads at least 1", COMPLETION + 1).into());
    }
    let folder = tempfile::tempdir()?;
    let model = match model {
        Some(model) => model,
        None => {
            let path = folder.path().join("random-qwen35-0.8B-Q8_0.gguf");
            eprintln!("writing {}", path.display());
            RECIPE.write(&path)?;
            path
        }
    };
    let programs = std::env::current_exe()?.parent().ok_or("a program lies in a folder")?.to_owned();
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    println!(
        "model,ctx_size,parallel,threads,repack,planned_bytes,anonymous_peak_bytes,difference_pct,resident_peak_bytes,mtp_drafts"
    );
    let mut good = true;
    for repack in repack.settings() {
        let flags = ["--repack", repack];
        let load =
            Load { programs: &programs, model: Some(&model), context, parallel, threads, flags: &flags, force: true };
        let found = measure(&load);
        good &= found.agrees();
        let difference = 100.0 * (found.planned as f64 / found.anonymous as f64 - 1.0);
        println!(
            "{name},{context},{parallel},{threads},{repack},{},{},{difference:.2},{},{}",
            found.planned, found.anonymous, found.resident, found.drafted_mtp
        );
    }
    Ok(good)
}
