//! The eight edit prompts: target passes, accepted drafts by source and tok/s of every strategy beside `off`.
//!
//! `cargo bench -p engine-perf --bench edit_prompts [-- --model PATH] [--draft-model SIDECAR] [--policy fixed|adaptive]
//! [--rounds N] [--threads N] [--max-tokens N]` prints CSV. Strategies are interleaved inside a round, rounds are
//! repeated, times are medians. A row whose ids differ from `off` ends the program: its figures would be void; `ids` is
//! the beginning of their digest, by which runs of other heads are compared.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use engine::api::{Command, Strategy, WindowPolicy};
use engine::clock::Monotonic;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::limits::Limits;
use engine::model::load::LoadOptions;
use engine::schedule::Schedule;
use engine_bin::embed::{Outcome, run_all};
use engine_bin::open::{ModelSource, Opened};
use engine_io::digest::Sha256;
use engine_io::{ModelFile, OpenOptions};
use engine_tests::edits::{prompts, submission};

struct Args {
    source: ModelSource,
    draft: Option<PathBuf>,
    policy: WindowPolicy,
    rounds: usize,
    threads: usize,
    max_tokens: u32,
}

fn args() -> Args {
    let mut out = Args {
        source: ModelSource::BuiltIn,
        draft: None,
        policy: WindowPolicy::Adaptive,
        rounds: 5,
        threads: 1,
        max_tokens: 400,
    };
    let mut words = std::env::args().skip(1).filter(|w| w != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} wants a value"));
        match word.as_str() {
            "--model" => out.source = ModelSource::Path(value().into()),
            "--draft-model" => out.draft = Some(value().into()),
            "--policy" => {
                out.policy = match value().as_str() {
                    "fixed" => WindowPolicy::Fixed,
                    "adaptive" => WindowPolicy::Adaptive,
                    other => panic!("--policy {other}: fixed or adaptive"),
                }
            }
            "--rounds" => out.rounds = value().parse().expect("--rounds is a number"),
            "--threads" => out.threads = value().parse().expect("--threads is a number"),
            "--max-tokens" => out.max_tokens = value().parse().expect("--max-tokens is a number"),
            other => panic!("unknown argument {other}"),
        }
    }
    out
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args = args();
    let (open, load) = (OpenOptions::default(), LoadOptions::default());
    let file = args.source.open(open).expect("the model opens");
    let draft = args.draft.map(|path| ModelFile::open(path, open).expect("the sidecar opens"));
    let opened = Opened::of(file, draft.as_ref(), load).expect("the model loads");
    let limits = Limits::new(1, opened.model.config.context_train.min(2048));
    let options = ExecOptions { threads: args.threads, ..ExecOptions::default() };
    let executor = CpuExecutor::new(Arc::clone(&opened.model), limits.clone(), options);
    let settings = Settings { schedule: Schedule::Inline, cost: None };
    let clock = Box::new(Monotonic::default());
    let handle = start(Box::new(executor), &limits, Arc::clone(&opened.pieces), settings, clock).expect("it starts");

    let mtp = opened.model.program.mtp.is_some();
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(|s| mtp || !s.uses_mtp()).collect();
    println!("prompt,strategy,tokens,passes,tok_s,wall_ms,mtp_drafted,mtp_accepted,suffix_drafted,suffix_accepted,ids");
    let mut ticket = 0;
    for prompt in prompts(&opened) {
        let mut runs: Vec<Vec<(Outcome, f64)>> = strategies.iter().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for (i, &strategy) in strategies.iter().enumerate() {
                ticket += 1;
                let submission = submission(ticket, &prompt.tokens, args.max_tokens, strategy, args.policy);
                let started = Instant::now();
                let outcome = run_all(&handle, vec![submission]).expect("it runs").remove(0);
                runs[i].push((outcome, started.elapsed().as_secs_f64() * 1e3));
            }
        }
        let off = runs[0][0].0.tokens.clone();
        let ids: Vec<u8> = off.iter().flat_map(|token| token.0.to_le_bytes()).collect();
        let ids = Sha256::of(&ids).to_string();
        for (strategy, runs) in strategies.iter().zip(&runs) {
            for (outcome, _) in runs {
                assert_eq!(outcome.tokens, off, "{} commits other ids than off", strategy.name());
            }
            let of = |figure: &dyn Fn(&(Outcome, f64)) -> f64| median(runs.iter().map(figure).collect());
            let rate =
                |o: &Outcome| (o.report.completion_tokens - 1) as f64 * 1e9 / o.report.predicted_ns.max(1) as f64;
            println!(
                "{},{},{},{},{:.1},{:.2},{},{},{},{},{}",
                prompt.id,
                strategy.name(),
                off.len(),
                of(&|(o, _)| (o.report.first + o.report.steps) as f64),
                of(&|(o, _)| rate(o)),
                of(&|(_, ms)| *ms),
                of(&|(o, _)| o.report.mtp.drafted as f64),
                of(&|(o, _)| o.report.mtp.accepted as f64),
                of(&|(o, _)| o.report.suffix.drafted as f64),
                of(&|(o, _)| o.report.suffix.accepted as f64),
                &ids[..8],
            );
        }
    }
    handle.commands.send(Command::Stop).expect("the engine takes it");
    handle.join().expect("a clean end");
}
