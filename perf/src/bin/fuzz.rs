//! Parsers fed with damaged inputs for as long as one likes, as CSV: `fuzz --help`.
//!
//! `cargo build --release -p engine-perf && nice target/release/fuzz --executions 10000000`

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use engine_tests::fuzz::{ALL, Inputs, Target, find};
use rustix::time::{ClockId, clock_gettime};

/// One input may not take longer. Times are the thread's own: a busy machine makes nothing slow.
const SLOWEST: Duration = Duration::from_secs(2);

/// Feeds parsers with damaged inputs and prints a row of CSV for each. What makes one panic, or takes it too long, is
/// written to a file, and ends that parser's run. Exit codes: 0 nothing was found, 1 something was, 2 usage.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// A parser, or several [default: all of them; --list names them]
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Names the parsers and ends.
    #[arg(long)]
    list: bool,
    /// Inputs of each.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    executions: u64,
    /// Processor time for each; less than all inputs are made when it is over.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Which inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where what was found is written.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.list {
        ALL.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    let mut chosen = Vec::new();
    for name in &flags.target {
        let Some(target) = find(name) else {
            eprintln!("error: no parser is called {name:?}; --list names them");
            return ExitCode::from(2);
        };
        chosen.push(target);
    }
    if chosen.is_empty() {
        chosen.extend(ALL);
    }
    println!("target,seed,executions,accepted,seconds,slowest_ms,found");
    let mut good = true;
    for target in chosen {
        good &= run(target, &flags);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether nothing was found.
fn run(target: &'static Target, flags: &Flags) -> bool {
    let mut read = (target.reader)();
    let mut inputs = Inputs::new(target, flags.seed);
    let start = worked();
    let (mut executions, mut accepted, mut slowest) = (0, 0_u64, Duration::ZERO);
    let mut found = None;
    while executions < flags.executions && flags.seconds.is_none_or(|most| (worked() - start).as_secs() < most) {
        let input = inputs.make();
        let begun = worked();
        let taken = catch_unwind(AssertUnwindSafe(|| read(input)));
        let took = worked() - begun;
        executions += 1;
        slowest = slowest.max(took);
        accepted += u64::from(taken.as_ref().is_ok_and(|taken| *taken));
        if taken.is_err() || took > SLOWEST {
            let path = flags.out.join(format!("{}-{}-{executions}.bin", target.name, flags.seed));
            match fs::write(&path, input) {
                Ok(()) => eprintln!("found: {} ({} ms)", path.display(), took.as_millis()),
                Err(error) => eprintln!("found, but {}: {error}", path.display()),
            }
            found = Some(path);
            break;
        }
    }
    println!(
        "{},{},{executions},{accepted},{:.1},{:.1},{}",
        target.name,
        flags.seed,
        (worked() - start).as_secs_f64(),
        slowest.as_secs_f64() * 1e3,
        u8::from(found.is_some())
    );
    found.is_none()
}

/// Processor time that this thread has had.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
