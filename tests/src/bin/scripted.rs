//! Serves the scripted target until it is killed: `scripted RULES.json [STYLE]`, a list of `{"contains": [TEXT..], "say":
//! TEXT}`, and the style in which the model writes the calls that stand there in the XML style. Prints the address once it
//! listens.

use std::io::Write as _;
use std::process::ExitCode;

use engine::limits::Limits;
use engine_bin::serve::{Api, Config};
use engine_io::text::ToolStyle;
use engine_tests::scripted::{Rule, ScriptedServer};
use engine_tests::styles;

const CONTEXT: usize = 16_384;

fn main() -> ExitCode {
    let style = std::env::args().nth(2).map_or(Some(ToolStyle::Xml), |name| styles::named(&name));
    let (Some(path), Some(style)) = (std::env::args().nth(1), style) else {
        eprintln!("usage: scripted RULES.json [xml|hermes|llama3|nemotron2]");
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
    let limits = Limits { prefix_cache: true, ..Limits::new(4, CONTEXT) };
    let server = ScriptedServer::start_styled(Config::local(0, CONTEXT), &limits, rules, Api::default(), style);
    println!("http://{}", server.address());
    let _ = std::io::stdout().flush();
    server.wait();
    ExitCode::SUCCESS
}
