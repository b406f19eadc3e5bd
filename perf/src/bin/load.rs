//! A server under load from clients of every kind, as CSV: `load --help`.
//!
//! `cargo build --release -p engine-bin -p engine-perf && target/release/load`. Runs the `engine-serve` that lies beside it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use engine_perf::load::server::{Server, slope, watch};
use engine_perf::load::{self, Plan, asks, wire};

/// Clients that read, leave, stall and send damaged requests, all at once, against an engine-serve of its own: every whole
/// answer must be what it is alone, and nothing may be left when they have gone. Prints one row of CSV. Exit codes: 0 all
/// is well, 1 something is not, 2 usage.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// A model [default: the built-in one]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Clients at once.
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: usize,
    /// How long they go on.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    seconds: u64,
    /// Of everything that clients draw.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Further flags of engine-serve, behind --.
    #[arg(last = true, value_name = "FLAG")]
    serve: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<bool, String> {
    if flags.clients == 0 || flags.seconds == 0 {
        return Err("--clients and --seconds are at least 1".to_owned());
    }
    let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("engine-serve");
    // Clients that stall and connections that idle are given up while it runs, not after it.
    let mut line: Vec<String> = ["--ctx-size", "512", "--http-header-timeout", "2", "--http-body-timeout", "2/10"]
        .iter()
        .chain(&["--stream-stall-timeout", "2", "--http-keepalive", "5", "--stream-buffer", "4KiB"])
        .map(|word| (*word).to_owned())
        .collect();
    if let Some(model) = &flags.model {
        line.extend(["--model".to_owned(), model.display().to_string()]);
    }
    line.extend(flags.serve.iter().cloned());
    let server = Server::start(&program, &line)?;
    let (status, models) = wire::get(server.address, "/v1/models")?;
    let models: serde_json::Value =
        serde_json::from_slice(&models).map_err(|e| format!("/v1/models: {e}, {status}"))?;
    let names = models["data"][0]["meta"]["strategies"].as_array().ok_or("/v1/models lists no strategies")?;
    let strategies: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    let asks = asks::all(&strategies);
    let expected = load::solo(server.address, &asks)?;
    let plan = Plan { clients: flags.clients, time: Duration::from_secs(flags.seconds), seed: flags.seed };
    let stop = AtomicBool::new(false);
    let (outcome, seen) = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(server.id(), &stop));
        let outcome = load::run(server.address, &asks, &expected, &plan);
        stop.store(true, Ordering::Relaxed);
        (outcome, watching.join().unwrap_or_default())
    });
    let mut faults = outcome.faults;
    let (code, log) = server.end()?;
    if code != Some(0) {
        faults.push(format!("the server ends with {code:?}"));
    }
    if log.contains("panicked") {
        faults.push(format!("the server panicked: {log}"));
    }
    let t = &outcome.tally;
    let mib = |bytes: f64| bytes / (1 << 20) as f64;
    let most = seen.iter().map(|sample| sample.1).fold(0.0, f64::max);
    println!(
        "clients,seconds,seed,same,stalled,full,cancelled,left,unread,half_closed,damaged,faults,rss_anon_max_mib,\
         rss_anon_slope_mib_per_hour,missing"
    );
    println!(
        "{},{},{},{},{},{},{},{},{},{},{},{},{:.1},{:.2},{}",
        flags.clients,
        flags.seconds,
        flags.seed,
        t.same,
        t.stalled,
        t.full,
        t.cancelled,
        t.left,
        t.unread,
        t.half_closed,
        t.damaged,
        faults.len(),
        mib(most),
        mib(slope(&seen)) * 3600.0,
        outcome.missing.join(" ")
    );
    for fault in faults.iter().take(20) {
        eprintln!("fault: {fault}");
    }
    // Who compares nothing finds nothing.
    Ok(faults.is_empty() && t.same > 0)
}
