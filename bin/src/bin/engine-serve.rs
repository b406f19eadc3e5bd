//! `engine-serve`: serves a model over HTTP. Exit codes: 0 done, 1 failed, 2 usage, 3 refused input, 70 internal,
//! 130 and 143 after a second signal.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{self, RecvTimeoutError};
use engine::engine::EngineHandle;
use engine_bin::flags::{LowArgs, ServeArgs};
use engine_bin::report::{self, chain};
use engine_bin::serve::start::{self, Files, LoadError};
use engine_bin::serve::{self, Config, Digests, Exit, Handle, ListenError, Parts, RecordFile, Server, limits_table};
use engine_bin::stage::{self, serve::StopHandle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How often the loading of a model is asked whether it is still wanted.
const LOOK_AFTER_SERVER: Duration = Duration::from_millis(10);

/// With the digests of the model, where requests are recorded.
type Loaded = Result<(Parts, EngineHandle, Option<Digests>), LoadError>;

fn main() -> ExitCode {
    if let Err(error) = report::outlive_size_limits() {
        report::error(format!("cannot watch for signals: {error}"));
        return ExitCode::FAILURE;
    }
    // First of all: from here on a signal is an order, not the end.
    let signals = match Signals::new([SIGTERM, SIGINT, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            report::error(format!("cannot watch for signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let (args, taken) = match LowArgs::parse_program(std::env::args_os(), std::env::vars_os().map(|(name, _)| name)) {
        Ok(parsed) => parsed,
        Err(error) => return report::usage(&error),
    };
    let args = match args.resolve() {
        Ok(args) => args,
        Err(message) => {
            report::error(taken.told(message));
            return ExitCode::from(2);
        }
    };
    report::log();
    match run(args, signals) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            report::error(taken.told(chain(error.as_ref())));
            let load = error.downcast_ref().map(LoadError::code);
            let listen = error.downcast_ref().map(ListenError::code);
            ExitCode::from(load.or(listen).unwrap_or(1))
        }
    }
}

fn run(args: ServeArgs, signals: Signals) -> Result<u8, Box<dyn std::error::Error>> {
    let handle = watch_signals(signals)?;
    engine_io::mmap::install_fault_handler()?;
    let files = start::open(&args)?;
    if args.low.link.listen.is_some() && !args.low.limits {
        return serve_stage(args, files, &handle);
    }
    let context = args.low.size.context(start::context_train(&files)?);
    let bounds = args.bounds();
    let config = Config::of(&args.low.http, bounds, context).map_err(LoadError::Unmet)?;
    if args.low.limits {
        report::print(&limits_table(&args.low.size.basic_limits(context, files.package()), &bounds))?;
        return Ok(0);
    }
    let record = args.low.record.as_deref().map(RecordFile::create).transpose();
    let record = record.map_err(|error| LoadError::Unmet(error.to_string()))?;
    serve::raise_descriptors(&bounds);
    let mut server = Server::start(config)?;
    handle.set(Ending::Server(server.handle())).unwrap_or_else(|_| unreachable!("set here only"));
    let (parallel, threads) = (args.low.size.parallel, args.low.size.exec_options().threads);
    let Some(loaded) = load(args, files, &server)? else {
        // A signal ended it before there was a model; the process takes along what is half loaded.
        return Ok(server.join().code());
    };
    let (parts, engine, digests) = loaded?;
    if let (Some(file), Some(digests)) = (record, digests) {
        server.record(file, digests);
    }
    let model = parts.info.id.clone();
    let strategy = parts.spec.default.strategy.name();
    server.serve(parts)?;
    tracing::info!(model, strategy, context, parallel, threads, "serving");
    let lines = server.addresses().iter().map(|address| format!("listening on {address}\n"));
    report::print(&lines.collect::<String>())?;
    let exit = server.join();
    if let Exit::Signal(_) = exit {
        return Ok(exit.code());
    }
    if let Err(dead) = serve::stop(engine) {
        tracing::error!(%dead, "the engine failed");
        return Ok(Exit::Internal.code());
    }
    Ok(exit.code())
}

/// From a second signal to the end at the latest.
const KILL_TIME: Duration = Duration::from_secs(2);

/// What signals are passed on to.
enum Ending {
    /// The HTTP server.
    Server(Handle),
    /// The last stage of a split model.
    Stage(StopHandle),
}

impl Ending {
    fn shutdown(&self) {
        match self {
            Self::Server(server) => server.shutdown(),
            Self::Stage(stage) => stage.shutdown(),
        }
    }

    fn kill(&self, signal: i32) {
        match self {
            Self::Server(server) => server.kill(signal),
            // It may be in the middle of a pass, and nobody is served by its end.
            Self::Stage(_) => std::process::exit(i32::from(Exit::Signal(signal).code())),
        }
    }

    fn reload_keys(&self) {
        if let Self::Server(server) = self {
            server.reload_keys();
        }
    }
}

/// The last stage of a split model, on a thread of its own: a fault in it ends the process with a code that says so.
fn serve_stage(
    args: ServeArgs,
    files: Files,
    handle: &Arc<OnceLock<Ending>>,
) -> Result<u8, Box<dyn std::error::Error>> {
    let handle = Arc::clone(handle);
    let ready = move |stop| {
        handle.set(Ending::Stage(stop)).unwrap_or_else(|_| unreachable!("set here only"));
    };
    let (done, result) = channel::bounded(1);
    let run = move || {
        // The receiver waits for it.
        let _ = done.send(stage::serve::run(&args, files, ready));
    };
    let thread = thread::Builder::new().name("stage".to_owned()).spawn(run)?;
    match result.recv() {
        Ok(Ok(())) => Ok(0),
        Ok(Err(error)) => Err(error as Box<dyn std::error::Error>),
        Err(_) => {
            let _ = thread.join();
            tracing::error!("the stage failed");
            Ok(Exit::Internal.code())
        }
    }
}

/// Loads the model on a thread of its own. `None` when the server ends before that is done.
fn load(args: ServeArgs, files: Files, server: &Server) -> std::io::Result<Option<Loaded>> {
    let (done, result) = channel::bounded(1);
    let progress = server.progress();
    let loader = thread::Builder::new().name("load".to_owned()).spawn(move || {
        let load = || {
            let digests = args.low.record.as_ref().map(|_| start::digests(&files)).transpose()?;
            let (parts, engine) = start::load(&args, files, &progress)?;
            Ok((parts, engine, digests))
        };
        // Where the server has ended, nobody takes it.
        let _ = done.send(load());
    })?;
    loop {
        match result.recv_timeout(LOOK_AFTER_SERVER) {
            Ok(loaded) => return Ok(Some(loaded)),
            Err(RecvTimeoutError::Timeout) if server.has_ended() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match loader.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("a loader that returns has sent what it has"),
            },
        }
    }
}

/// The first signal asks for an end, the second ends. Before there is a server to ask, the first ends: nobody is served.
fn watch_signals(mut signals: Signals) -> std::io::Result<Arc<OnceLock<Ending>>> {
    let server: Arc<OnceLock<Ending>> = Arc::default();
    let watched = Arc::clone(&server);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            match (watched.get(), signal) {
                (Some(server), SIGHUP) => server.reload_keys(),
                // The keys are still to be read for the first time.
                (None, SIGHUP) => {}
                (None, _) => std::process::exit(0),
                (Some(server), _) if asked => {
                    server.kill(signal);
                    // A thread that is stuck in one request is not waited for.
                    thread::sleep(KILL_TIME);
                    std::process::exit(i32::from(Exit::Signal(signal).code()));
                }
                (Some(server), _) => {
                    asked = true;
                    server.shutdown();
                }
            }
        }
    })?;
    Ok(server)
}
