//! What a split costs: the edit prompts in one process' engine, and in two stages over a loopback socket, in one run.
//!
//! `cargo bench -p engine-perf --bench stages [-- --model PATH] [--rounds N] [--threads N] [--max-tokens N]` prints CSV.
//! The two are interleaved inside a round, rounds are repeated, figures are medians; `ratio` is two stages to one. Both
//! stages run on this machine one after the other, so the ratio is the price of the split and no gain is in it. Other ids
//! than those of one process end the program.

use std::time::Instant;

use engine::api::{Command, Strategy, WindowPolicy};
use engine::engine::EngineHandle;
use engine_bin::embed::run_all;
use engine_bin::flags::{LowArgs, ServeArgs};
use engine_bin::open::{ModelSource, Opened};
use engine_bin::serve::{Progress, start};
use engine_bin::stage::serve::StageServer;
use engine_io::OpenOptions;
use engine_tests::edits::{prompts, submission};

fn args(words: &[&str]) -> ServeArgs {
    let line = ["engine-serve", "--parallel", "1", "--schedule", "inline"].iter().chain(words).map(Into::into);
    LowArgs::parse_line(line).expect("flags").resolve().expect("flags that fit")
}

fn engine(words: &[&str]) -> EngineHandle {
    let args = args(words);
    let files = start::open(&args).expect("the model opens");
    start::load(&args, files, &Progress::default()).expect("the model loads").1
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let (mut rounds, mut max_tokens, mut threads, mut model) = (5, 200, String::from("1"), None);
    let mut words = std::env::args().skip(1).filter(|w| w != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} wants a value"));
        match word.as_str() {
            "--model" => model = Some(value),
            "--rounds" => rounds = value.parse().expect("--rounds is a number"),
            "--threads" => threads = value,
            "--max-tokens" => max_tokens = value.parse().expect("--max-tokens is a number"),
            other => panic!("unknown argument {other}"),
        }
    }
    let mut common = vec!["--threads", threads.as_str()];
    common.extend(model.iter().flat_map(|path| ["--model", path.as_str()]));
    let source = ModelSource::from(model.clone().map(Into::into));
    let opened = Opened::new(&source, OpenOptions::default(), Default::default()).expect("the model loads");
    let mtp = opened.model.program.mtp.is_some();

    let whole = engine(&common);
    let last = args(&[&["--stage", "1/2", "--listen", "127.0.0.1:0"], common.as_slice()].concat());
    let server =
        StageServer::start(&last, start::open(&last).expect("the model opens")).expect("the last stage listens");
    let (address, stop) = (server.address().to_string(), server.handle());
    let last = std::thread::spawn(move || server.run());
    let split = engine(&[&["--stage", "0/2", "--peer", &address], common.as_slice()].concat());

    println!("strategy,tokens,one_tok_s,two_tok_s,ratio");
    let mut ticket = 0;
    for strategy in Strategy::ALL.into_iter().filter(|s| mtp || !s.uses_mtp()) {
        let (mut rates, mut tokens) = ([Vec::new(), Vec::new()], 0);
        for _ in 0..rounds {
            let mut ids = Vec::new();
            for (handle, rates) in [&whole, &split].into_iter().zip(&mut rates) {
                let started = Instant::now();
                let mut all = Vec::new();
                for prompt in prompts(&opened) {
                    ticket += 1;
                    let asked = submission(ticket, &prompt.tokens, max_tokens, strategy, WindowPolicy::Fixed);
                    all.push(run_all(handle, vec![asked]).expect("it runs").remove(0).tokens);
                }
                tokens = all.iter().map(Vec::len).sum::<usize>();
                rates.push(tokens as f64 / started.elapsed().as_secs_f64());
                ids.push(all);
            }
            assert_eq!(ids[0], ids[1], "{}: two stages commit other ids than one process", strategy.name());
        }
        let [one, two] = rates.map(median);
        println!("{},{tokens},{one:.1},{two:.1},{:.3}", strategy.name(), two / one);
    }
    for handle in [whole, split] {
        handle.commands.send(Command::Stop).expect("the engine takes it");
        handle.join().expect("a clean end");
    }
    stop.shutdown();
    last.join().expect("no panic").expect("a clean end");
}
