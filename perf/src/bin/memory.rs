//! Memory of a server with all slots full, planned beside measured, as CSV.
//!
//! `cargo build --release -p engine-bin -p engine-perf && target/release/memory [--model PATH] [--ctx-size N]
//! [--parallel N] [--threads N]`. Without a model, one of the shape of Qwen3.5-0.8B is made of random weights in a
//! temporary folder (`engine_perf::qwen35`). Runs `engine-serve` and `engine-pack` that lie beside it.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use engine_perf::qwen35;
use engine_tests::memory::{Load, measure};

/// Seed of the weights.
const SEED: u64 = 1;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: plan and measurement differ by more than 2 % and 16 MiB");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every row agrees.
fn run() -> Result<bool, Box<dyn Error>> {
    let (mut model, mut context, mut parallel, mut threads) = (None, 1024, 4, 2);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--model" => model = Some(PathBuf::from(value)),
            "--ctx-size" => context = value.parse()?,
            "--parallel" => parallel = value.parse()?,
            "--threads" => threads = value.parse()?,
            _ => return Err(format!("unknown argument {word}").into()),
        }
    }
    let folder = tempfile::tempdir()?;
    let model = match model {
        Some(model) => model,
        None => {
            let path = folder.path().join("random-qwen35-0.8B-Q8_0.gguf");
            eprintln!("writing {}", path.display());
            qwen35::write(&path, SEED)?;
            path
        }
    };
    let programs = std::env::current_exe()?.parent().ok_or("a program lies in a folder")?.to_owned();
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    println!(
        "model,ctx_size,parallel,threads,repack,planned_bytes,anonymous_peak_bytes,difference_pct,resident_peak_bytes"
    );
    let mut good = true;
    for repack in ["on", "off"] {
        let flags = ["--repack", repack];
        let load = Load { programs: &programs, model: Some(&model), context, parallel, threads, flags: &flags };
        let found = measure(&load);
        good &= found.agrees();
        let difference = 100.0 * (found.planned as f64 / found.anonymous as f64 - 1.0);
        println!(
            "{name},{context},{parallel},{threads},{repack},{},{},{difference:.2},{}",
            found.planned, found.anonymous, found.resident
        );
    }
    Ok(good)
}
