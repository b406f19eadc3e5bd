//! The eight edit prompts: target passes, accepted drafts by source and tok/s of every strategy beside `off`.
//!
//! `cargo bench -p engine-perf --bench edit_prompts -- [--model PATH] [--policy fixed|adaptive] [--rounds N] [--threads N]
//! [--max-tokens N]` prints CSV. Strategies are interleaved inside a round, rounds are repeated; passes and times are
//! medians, drafts those of the first round. A row whose ids differ from `off` ends the program: its figures would be
//! void.

use std::sync::Arc;
use std::time::Instant;

use engine::api::{Command, Sampling, Speculation, Stop, Strategy, Submission, WindowPolicy};
use engine::clock::Monotonic;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{Ticket, TokenId};
use engine::limits::{Limits, MTP_TOKENS_DEFAULT, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT, WINDOW_MAX_DEFAULT};
use engine::model::load::LoadOptions;
use engine::schedule::Schedule;
use engine_bin::embed::{Outcome, run_all};
use engine_bin::open::{ModelSource, Opened};
use engine_io::OpenOptions;
use engine_io::text::{ChatTemplate, RenderInput, TemplateLimits};
use serde_json::{Map, Value};

struct Args {
    source: ModelSource,
    policy: WindowPolicy,
    rounds: usize,
    threads: usize,
    max_tokens: u32,
}

fn args() -> Args {
    let mut out =
        Args { source: ModelSource::BuiltIn, policy: WindowPolicy::Adaptive, rounds: 5, threads: 1, max_tokens: 400 };
    let mut words = std::env::args().skip(1).filter(|w| w != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} wants a value"));
        match word.as_str() {
            "--model" => out.source = ModelSource::Path(value().into()),
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

fn speculation(strategy: Strategy, policy: WindowPolicy) -> Speculation {
    let window = WINDOW_MAX_DEFAULT as u8;
    Speculation {
        strategy,
        mtp_tokens: MTP_TOKENS_DEFAULT as u8,
        suffix_min: SUFFIX_MIN_DEFAULT as u8,
        suffix_max: SUFFIX_MAX_DEFAULT as u8,
        suffix_tokens: window,
        policy,
        window_initial: if policy == WindowPolicy::Fixed { window } else { 16 },
        window_min: 1,
        window_max: window,
    }
}

/// Arguments of calls travel as JSON text; the template iterates over them.
fn with_parsed_arguments(messages: &Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(text) = call["function"]["arguments"].as_str() {
                call["function"]["arguments"] = serde_json::from_str(text).expect("arguments are JSON");
            }
        }
    }
    messages
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args = args();
    let opened = Opened::new(&args.source, OpenOptions::default(), LoadOptions::default()).expect("the model loads");
    let prompts: Vec<Value> =
        serde_json::from_str(include_str!("../data/edit-prompts.json")).expect("the prompts are JSON");
    let template = ChatTemplate::new(
        opened.tokenizer.chat_template().expect("the model has a chat template"),
        &opened.tokenizer,
        TemplateLimits::default(),
    )
    .expect("the template compiles");

    let limits = Limits::new(1, opened.model.config.context_train.min(2048));
    let options = ExecOptions { threads: args.threads, ..ExecOptions::default() };
    let executor = CpuExecutor::new(Arc::clone(&opened.model), limits.clone(), options);
    let settings = Settings { schedule: Schedule::Inline, cost: None };
    let clock = Box::new(Monotonic::default());
    let handle = start(Box::new(executor), &limits, Arc::clone(&opened.pieces), settings, clock).expect("it starts");

    let mtp = opened.model.program.mtp.is_some();
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(|s| mtp || !s.uses_mtp()).collect();
    println!("prompt,strategy,tokens,passes,tok_s,wall_ms,mtp_drafted,mtp_accepted,suffix_drafted,suffix_accepted");
    let mut ticket = 0;
    for prompt in &prompts {
        let messages = with_parsed_arguments(&prompt["messages"]);
        let input = RenderInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            kwargs: &Map::new(),
            now: std::time::SystemTime::UNIX_EPOCH,
        };
        let rendered = template.render(&input).expect("the prompt renders");
        let ids: Vec<TokenId> = opened.tokenizer.encode_rendered(&rendered).ids.into_iter().map(TokenId).collect();
        let mut runs: Vec<Vec<(Outcome, f64)>> = strategies.iter().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for (i, &strategy) in strategies.iter().enumerate() {
                ticket += 1;
                let submission = Submission {
                    ticket: Ticket(ticket),
                    prompt: ids.clone(),
                    max_tokens: args.max_tokens,
                    sampling: Sampling::greedy(),
                    stop: Stop::default(),
                    speculation: speculation(strategy, args.policy),
                    logprobs: None,
                    show_special: false,
                };
                let started = Instant::now();
                let outcome = run_all(&handle, vec![submission]).expect("it runs").remove(0);
                runs[i].push((outcome, started.elapsed().as_secs_f64() * 1e3));
            }
        }
        for (strategy, runs) in strategies.iter().zip(&runs) {
            let report = &runs[0].0.report;
            for (outcome, _) in runs {
                assert_eq!(outcome.tokens, runs[0].0.tokens, "{strategy:?} repeats itself");
            }
            let passes = median(runs.iter().map(|(o, _)| (o.report.first + o.report.steps) as f64).collect());
            let tok_s = median(
                runs.iter()
                    .map(|(o, _)| (o.report.completion_tokens - 1) as f64 * 1e9 / o.report.predicted_ns.max(1) as f64)
                    .collect(),
            );
            let wall = median(runs.iter().map(|(_, ms)| *ms).collect());
            println!(
                "{},{},{},{passes},{tok_s:.1},{wall:.2},{},{},{},{}",
                prompt["id"].as_str().unwrap_or("?"),
                strategy.name(),
                report.completion_tokens,
                report.mtp.drafted,
                report.mtp.accepted,
                report.suffix.drafted,
                report.suffix.accepted,
            );
        }
        let off = &runs[0][0].0.tokens;
        for (strategy, runs) in strategies.iter().zip(&runs) {
            assert_eq!(&runs[0].0.tokens, off, "{} commits other ids than off", strategy.name());
        }
    }
    handle.commands.send(Command::Stop).expect("the engine takes it");
    handle.join().expect("a clean end");
}
