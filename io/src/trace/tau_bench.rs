//! Runs of tau-bench: a JSON list of `{"task_id","trial","traj":[messages]}`.
//!
//! Outputs are the messages of the assistant; the user is a program, and its messages are input. Source:
//! github.com/sierra-research/tau-bench, `historical_trajectories`.

use serde::Deserialize;
use serde_json::Value;

use super::message::Message;
use super::read::parse;
use super::{Session, TraceError};

#[derive(Deserialize)]
struct Run {
    task_id: Value,
    #[serde(default)]
    trial: Option<u64>,
    traj: Vec<Message>,
}

/// A file of runs.
pub(super) fn sessions(bytes: &[u8], place: &str) -> Result<Vec<Session>, TraceError> {
    let runs: Vec<Run> = parse(bytes, place)?;
    let session = |Run { task_id, trial, traj }| {
        let trial = trial.map(|trial| format!(".{trial}")).unwrap_or_default();
        let turns = traj.into_iter().map(Message::turn).collect();
        Session { id: format!("task {task_id}{trial}"), source: "tau-bench".into(), turns, ..Session::default() }
    };
    Ok(runs.into_iter().map(session).collect())
}
