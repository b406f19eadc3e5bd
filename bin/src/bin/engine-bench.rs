//! `engine-bench`: measures models. Exit codes: 0 done, 1 failed, 2 usage, 3 refused input.

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use clap::{Parser, Subcommand};
use engine::memory::MemoryError;
use engine::model::MtpStatus;
use engine_bin::bench::compare::{self, CompareFlags};
use engine_bin::bench::eval::{self, EvalFlags};
use engine_bin::bench::options::{Files, RunFlags};
use engine_bin::bench::ppl::{self, PplFlags};
use engine_bin::bench::replay::flags::ReplayFlags;
use engine_bin::bench::replay::{self, ReplayError};
use engine_bin::bench::report::{self as pages, ReportFlags};
use engine_bin::bench::roofline::model::Timed;
use engine_bin::bench::roofline::{self, RooflineFlags};
use engine_bin::bench::single::Single;
use engine_bin::bench::speed::{self, Speed, SpeedFlags};
use engine_bin::bench::sweep::{self, SweepFlags};
use engine_bin::hub::{self, Wanted};
use engine_bin::report::{self, chain};
use engine_io::text::{EncodeOptions, Tokenizer};
use engine_io::{json, plain};

/// Longest text or list of tokens.
const INPUT_BYTES_MAX: u64 = 1 << 30;

#[derive(Parser)]
#[command(
    name = "engine-bench",
    version,
    about = "Measures models: numerics, perplexity, speed, recorded sessions. Shows and compares what was measured."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Logits, hidden rows, greedy text and drafts of given token sequences.
    Eval(EvalFlags),
    /// Perplexity of a text in one context.
    Ppl(PplFlags),
    /// Tokens a second, and milliseconds of windows by their width.
    Speed(SpeedFlags),
    /// What the machine reads and computes at best, from how many rows on a step costs more than reading its weights, and
    /// with `--model` how near to both it is.
    Roofline(RooflineFlags),
    /// Recorded sessions, decoded again under several strategies: what is drafted, accepted and gained.
    Replay(Box<ReplayFlags>),
    /// Which settings draft best: a grid of them, halved over more and more recorded sessions.
    ///
    /// Hundreds of cells are tried, so the mode is `forced`: what settings draft on an answer does not depend on who
    /// computed it, and no pass is run for a cell. `live` would generate every answer anew for every cell, for hours; it is
    /// refused. Hold the winner against `off` with `replay --mode live` and its settings as flags.
    Sweep(Box<SweepFlags>),
    /// Two results, arm by arm: what is more than noise.
    Compare(CompareFlags),
    /// A result as a page with plots, and as CSV.
    Report(ReportFlags),
}

/// Why a verb ended without its result.
enum Failure {
    /// The command line asks for nothing sensible: exit code 2.
    Usage(String),
    /// The input is not acceptable: exit code 3.
    Refused(String),
    /// Something else went wrong: exit code 1.
    Failed(String),
}

fn refused(error: impl std::error::Error) -> Failure {
    Failure::Refused(chain(&error))
}

fn failed(error: impl std::error::Error) -> Failure {
    Failure::Failed(chain(&error))
}

/// Numbers out of range are the input's fault, a lack of memory is the machine's.
fn too_large(error: MemoryError) -> Failure {
    match error {
        MemoryError::Limits(error) => refused(error),
        MemoryError::System { .. } => failed(error),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    plain::read(path, INPUT_BYTES_MAX).map_err(refused)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let bytes = read(path)?;
    let refused = |error| format!("{}: not the JSON that --help describes: {error}", path.display());
    json::parse(&bytes).map_err(|error| Failure::Refused(refused(error)))
}

fn print(value: &impl serde::Serialize) -> Result<(), Failure> {
    report::print_json(value).map_err(failed)
}

fn say(text: &str) -> Result<(), Failure> {
    report::print(text).map_err(failed)
}

fn main() -> ExitCode {
    let verb = match Cli::try_parse() {
        Ok(cli) => cli.verb,
        Err(error) => return report::usage(&error),
    };
    let guarded = engine_io::mmap::install_fault_handler().map_err(failed);
    let guarded = guarded.and_then(|()| report::outlive_size_limits().map_err(failed));
    let done = guarded.and_then(|()| match verb {
        Verb::Eval(mut flags) => find(&mut flags.run).and_then(|()| run_eval(&flags)),
        Verb::Ppl(mut flags) => find(&mut flags.run).and_then(|()| run_ppl(&flags)),
        Verb::Speed(mut flags) => find(&mut flags.run).and_then(|()| run_speed(&flags)),
        Verb::Roofline(flags) => run_roofline(&flags),
        Verb::Replay(mut flags) => find(&mut flags.run).and_then(|()| run_replay(&flags)),
        Verb::Sweep(mut flags) => find(&mut flags.replay.run).and_then(|()| run_sweep(&flags)),
        Verb::Compare(flags) => run_compare(&flags),
        Verb::Report(flags) => run_report(&flags),
    });
    let (code, text) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => (2, text),
        Err(Failure::Refused(text)) => (3, text),
        Err(Failure::Failed(text)) => (1, text),
    };
    report::error(text);
    ExitCode::from(code)
}

/// Puts paths of what is on a hub in the place of its names.
fn find(run: &mut RunFlags) -> Result<(), Failure> {
    let names = [(run.model.as_mut(), Wanted::Model), (run.draft_model.as_mut(), Wanted::Sidecar)];
    for (path, wanted) in names.into_iter().filter_map(|(path, wanted)| Some((path?, wanted))) {
        let found = hub::local(path, wanted, &|line| report::note(line));
        *path = found.map_err(|error| coded(error.code(), chain(&error)))?;
    }
    Ok(())
}

/// The failure of an exit code.
fn coded(code: u8, text: String) -> Failure {
    match code {
        2 => Failure::Usage(text),
        3 => Failure::Refused(text),
        _ => Failure::Failed(text),
    }
}

fn run_eval(flags: &EvalFlags) -> Result<(), Failure> {
    let input: eval::Input = parse(&flags.tokens)?;
    let model = flags.run.open().and_then(|files| flags.run.load(files)).map_err(refused)?;
    let reason = match &model.mtp {
        MtpStatus::Unavailable(reason) => Some(reason.as_str()),
        MtpStatus::Own | MtpStatus::Sidecar => None,
    };
    eval::check(&input, model.vocab, reason).map_err(refused)?;
    let limits = eval::limits(&input);
    let files = model.files.clone();
    let mut single = Single::new(flags.run.executor(model, &limits).map_err(too_large)?, &limits);
    let output = eval::evaluate(&mut single, &input);
    // Numbers of a file that was written meanwhile are nobody's, and neither is what is wrong with them.
    files.check().map_err(failed)?;
    let output = output.map_err(failed)?;
    let failed = |error: io::Error| Failure::Failed(format!("{}: cannot write: {error}", flags.out.display()));
    let file = fs::File::create(&flags.out).map_err(failed)?;
    let mut file = io::BufWriter::new(file);
    serde_json::to_writer(&mut file, &output).map_err(|error| failed(error.into()))?;
    io::Write::flush(&mut file).map_err(failed)?;
    let tokens: usize = input.sequences.iter().map(Vec::len).sum();
    let summary = serde_json::json!({
        "sequences": output.sequences.len(), "tokens": tokens, "out": flags.out.display().to_string(),
    });
    match flags.json {
        true => print(&summary),
        false => {
            report::note(format!("{} sequences, {tokens} tokens -> {}", output.sequences.len(), flags.out.display()));
            Ok(())
        }
    }
}

/// Token ids as a bare array, or under `tokens`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TokenFile {
    Bare(Vec<u32>),
    Named { tokens: Vec<u32> },
}

fn run_ppl(flags: &PplFlags) -> Result<(), Failure> {
    let files = flags.run.open().map_err(refused)?;
    let tokens = match (&flags.text, &flags.tokens) {
        (Some(text), _) => {
            let text = read(text)?;
            let tokenizer = Tokenizer::from_meta(files.model.meta()).map_err(refused)?;
            tokenizer.encode(&text, EncodeOptions::default())
        }
        (None, Some(tokens)) => match parse(tokens)? {
            TokenFile::Bare(tokens) | TokenFile::Named { tokens } => tokens,
        },
        (None, None) => unreachable!("clap requires one of them"),
    };
    let model = flags.run.load(files).map_err(refused)?;
    ppl::check(&tokens, model.vocab).map_err(refused)?;
    let limits = ppl::limits(&tokens);
    let files = model.files.clone();
    let mut single = Single::new(flags.run.executor(model, &limits).map_err(too_large)?, &limits);
    let found = ppl::perplexity(&mut single, &tokens);
    files.check().map_err(failed)?;
    let found = found.map_err(failed)?;
    if flags.json {
        return print(&found);
    }
    say(&format!("perplexity {:.4} over {} tokens (mean {:.5} nats)\n", found.ppl, found.tokens, found.mean_nll))
}

fn run_speed(flags: &SpeedFlags) -> Result<(), Failure> {
    let files = flags.run.open().map_err(refused)?;
    let found = time(flags, files)?;
    if flags.json {
        return print(&found);
    }
    let mut text = format!(
        "prefill {:.1} tok/s, decode {:.2} tok/s, {} threads\n",
        found.prefill_tok_s, found.decode_tok_s, found.threads
    );
    for (rows, ms) in &found.rows_ms {
        text.push_str(&format!("{rows:>4} rows {ms:>9.3} ms\n"));
    }
    say(&text)
}

fn time(flags: &SpeedFlags, files: Files) -> Result<Speed, Failure> {
    let model = flags.run.load(files).map_err(refused)?;
    let limits = speed::limits(flags);
    let files = model.files.clone();
    let mut single = Single::new(flags.run.executor(model, &limits).map_err(too_large)?, &limits);
    let found = speed::measure(&mut single, flags);
    files.check().map_err(failed)?;
    found.map_err(failed)
}

fn run_roofline(flags: &RooflineFlags) -> Result<(), Failure> {
    let timed = match flags.speed() {
        None => None,
        Some(mut speed) => {
            find(&mut speed.run)?;
            let files = speed.run.open().map_err(refused)?;
            let plan = speed.run.plan(&files.model, None).map_err(refused)?.plan;
            let name = files.model.name();
            let found = time(&speed, files)?;
            Some(Timed::new(name, &plan, speed.prefill, found))
        }
    };
    let found = roofline::measure(flags, timed.as_ref());
    match flags.json {
        true => print(&found),
        false => say(&roofline::text(&found)),
    }
}

fn run_replay(flags: &ReplayFlags) -> Result<(), Failure> {
    let stopped = |error: ReplayError| coded(error.code(), chain(&error));
    let result = replay::run(flags).map_err(stopped)?;
    if let Some(dir) = &flags.out {
        let path = replay::write(&result, dir).map_err(stopped)?;
        report::note(format!("the result is in {}", path.display()));
    }
    match flags.json {
        true => print(&result)?,
        false => say(&replay::text(&result))?,
    }
    match replay::stands(&result) {
        true => Ok(()),
        false => Err(Failure::Failed("an arm failed, or is void since its output is not that of off".to_owned())),
    }
}

fn run_sweep(flags: &SweepFlags) -> Result<(), Failure> {
    let (result, path) = sweep::run(flags).map_err(|error| coded(error.code(), chain(&error)))?;
    report::note(format!("the result is in {}", path.display()));
    match flags.replay.json {
        true => print(&result)?,
        false => say(&replay::text(&result))?,
    }
    match sweep::stands(&result) {
        true => Ok(()),
        false => Err(Failure::Failed("a cell has another output than off: its figures are void".to_owned())),
    }
}

fn run_compare(flags: &CompareFlags) -> Result<(), Failure> {
    let comparison = compare::run(flags).map_err(refused)?;
    match flags.json {
        true => print(&comparison)?,
        false => say(&compare::text(&comparison))?,
    }
    match compare::stands(&comparison, flags) {
        true => Ok(()),
        false => Err(Failure::Failed(
            "an arm of B is slower than --fail-slower allows, or has no figures that count where A has some".to_owned(),
        )),
    }
}

fn run_report(flags: &ReportFlags) -> Result<(), Failure> {
    let written = pages::run(flags).map_err(|error| coded(error.code(), chain(&error)))?;
    match flags.json {
        true => print(&written),
        false => {
            written.html.iter().chain(&written.csv).for_each(|path| report::note(path.display()));
            Ok(())
        }
    }
}
