//! Writes a model of random weights: `model --help`.
//!
//! `cargo build --release -p engine-perf && target/release/model --shape qwen35-2b --mix q4_k --out MODEL.gguf`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use engine_perf::model::{Mix, Recipe, Shape};

/// Writes a GGUF file of random weights, with a tokenizer. It takes the time and the memory of a published model of its
/// shape, here and in llama.cpp, and knows nothing. The same flags give the same bytes.
/// Exit codes: 0 written, 1 failed, 2 usage.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Dimensions.
    #[arg(long, value_enum)]
    shape: Shape,
    /// Storage of the matrices.
    #[arg(long, value_enum)]
    mix: Mix,
    /// The file to write, in the place of what is there.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Decides every weight.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With an MTP block, whose drafts will be wrong.
    #[arg(long)]
    mtp: bool,
}

fn main() -> ExitCode {
    let Flags { shape, mix, out, seed, mtp } = Flags::parse();
    match (Recipe { shape, mix, mtp, seed }).write(&out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
