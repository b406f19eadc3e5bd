//! `engine-serve`: serves a model over HTTP. Exit codes: 0 done, 1 failed, 2 usage, 3 refused input, 70 internal,
//! 130 and 143 after a second signal.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use engine::api::Command;
use engine_bin::flags::{LowArgs, ServeArgs};
use engine_bin::report::chain;
use engine_bin::serve::start::{self, LoadError};
use engine_bin::serve::{Config, Exit, Handle, Server, limits_table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = match LowArgs::parse_line(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no errors: clap knows where each goes and what it is worth.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let args = match args.resolve() {
        Ok(args) => args,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr).init();
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            let load = error.downcast_ref::<LoadError>();
            ExitCode::from(load.map_or(1, LoadError::code))
        }
    }
}

fn run(args: &ServeArgs) -> Result<u8, Box<dyn std::error::Error>> {
    engine_io::mmap::install_fault_handler()?;
    let files = start::open(args)?;
    let context = args.context(start::context_train(&files)?);
    if args.low.limits {
        print!("{}", limits_table(&args.limits(context), &args.bounds()));
        return Ok(0);
    }
    let config = Config {
        host: args.low.host.clone(),
        api_keys: args.low.api_key.clone(),
        api_key_file: args.low.api_key_file.clone(),
        bounds: args.bounds(),
        ..Config::local(args.low.port, context)
    };
    let mut server = Server::start(config)?;
    let (parts, engine) = start::load(args, files)?;
    let model = parts.info.id.clone();
    let strategy = parts.spec.default.strategy.name();
    server.serve(parts)?;
    watch_signals(server.handle())?;
    tracing::info!(model, strategy, context, parallel = args.low.parallel, threads = args.threads, "serving");
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{}", server.address())?;
    out.flush()?;
    let exit = server.join();
    if let Exit::Signal(_) = exit {
        return Ok(exit.code());
    }
    // Nobody listens any more: the engine is told to stop, and what it still says is taken so that it can hear it.
    while !engine.is_finished() {
        let _ = engine.commands.try_send(Command::Stop);
        let _ = engine.events.recv_timeout(Duration::from_millis(5));
    }
    if let Err(dead) = engine.join() {
        tracing::error!(%dead, "the engine failed");
        return Ok(Exit::Internal.code());
    }
    Ok(exit.code())
}

/// The first signal asks for an end, the second ends.
fn watch_signals(handle: Handle) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => handle.reload_keys(),
                _ if asked => handle.kill(signal),
                _ => {
                    asked = true;
                    handle.shutdown();
                }
            }
        }
    })?;
    Ok(())
}
