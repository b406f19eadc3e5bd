//! Serves the scripted target until it is killed: `scripted RULES.json`, a list of `{"contains": [TEXT..], "say": TEXT}`.
//! Prints the address once it listens.

use std::io::Write as _;
use std::process::ExitCode;

use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};

const CONTEXT: usize = 16_384;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: scripted RULES.json");
        return ExitCode::from(2);
    };
    let rules = std::fs::read(&path).map_err(|e| e.to_string());
    let rules = rules.and_then(|json| serde_json::from_slice::<Vec<Rule>>(&json).map_err(|e| e.to_string()));
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::from(2);
        }
    };
    let server = ScriptedServer::start(
        Config::local(0, CONTEXT),
        &Limits { prefix_cache: true, ..Limits::new(4, CONTEXT) },
        rules,
    );
    println!("http://{}", server.address());
    let _ = std::io::stdout().flush();
    server.wait();
    ExitCode::SUCCESS
}
