//! `engine-pack`: looks into model files. Exit codes: 0 done, 1 failed, 2 usage, 3 refused input.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use engine_bin::flags::long_names;
use engine_bin::pack::inspect::{self, InspectError, InspectFlags};
use engine_bin::report::chain;

#[derive(Parser)]
#[command(name = "engine-pack", version, about = "Looks into model files.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What a model file holds and what memory it needs; no weight is read.
    Inspect(InspectFlags),
}

fn main() -> ExitCode {
    let Verb::Inspect(flags) = match Cli::try_parse_from(long_names(std::env::args_os())) {
        Ok(cli) => cli.verb,
        Err(error) => {
            // Help and version are no errors: clap knows where each goes and what it is worth.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    if let Err(error) = engine_io::mmap::install_fault_handler() {
        eprintln!("engine-pack: {}", chain(&error));
        return ExitCode::from(1);
    }
    if let Err(message) = flags.size.check() {
        eprintln!("engine-pack: {message}");
        return ExitCode::from(2);
    }
    let report = match inspect::inspect(&flags) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("engine-pack: {}", chain(&error));
            return ExitCode::from(if matches!(error, InspectError::Limits(_)) { 2 } else { 3 });
        }
    };
    match print(&report, flags.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine-pack: cannot write to standard output: {error}");
            ExitCode::from(1)
        }
    }
}

fn print(report: &inspect::Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match json {
        true => {
            serde_json::to_writer(&mut out, report)?;
            out.write_all(b"\n")
        }
        false => out.write_all(inspect::text(report).as_bytes()),
    }
}
