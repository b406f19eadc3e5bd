//! Who is asked, in what order, and what came of it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::api::Strategy;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::client::{Answer, ClientError, Peer};
use super::task::{Ask, Task};
use crate::bench::counters::Counters;
use crate::bench::result::Settings;

/// A server to be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// What its rows are called; of the engine in this process, nothing.
    pub name: String,
    /// Its address, with or without `/v1`.
    pub url: String,
    /// Its key.
    pub api_key: Option<String>,
}

/// How it is measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Arms of our servers; `off` is always run, since the others are held against it. `None`: all that the model has.
    pub arms: Option<Vec<Strategy>>,
    /// Settings of the arms that draft, as in a request's `speculative` object.
    pub speculative: Map<String, Value>,
    /// Sessions at a time.
    pub concurrency: usize,
    /// Passes over all sessions that are not counted, of every lane.
    pub warmup: usize,
    /// ... and that are.
    pub repeats: usize,
    /// 0 = argmax.
    pub temperature: f32,
    /// Of the sampling.
    pub seed: i64,
    /// Longest silence of a server.
    pub timeout: Duration,
}

/// One request: session and turn.
pub type Key = (usize, usize);

/// What a server said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Token ids, from servers that tell them.
    Ids(Vec<u32>),
    /// Text.
    Text(String),
}

/// One answer, measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// What was said.
    pub output: Output,
    /// Tokens of the prompt, where the server says.
    pub prompt_n: u64,
    /// Tokens of the answer.
    pub tokens_n: u64,
    /// The server counted them; otherwise they are the events that came.
    pub counted: bool,
    /// Seconds from the request to the first text.
    pub first_s: f64,
    /// ... to the end of the choice.
    pub finished_s: f64,
    /// Seconds to the end of the stream.
    pub total_s: f64,
    /// Seconds between two events with text.
    pub gaps_s: Vec<f64>,
    /// Tokens of events with text, where ids tell.
    pub emitted_n: Vec<usize>,
    /// What our server says.
    pub ours: Option<Ours>,
}

/// What an answer of our server says beyond the text.
#[derive(Clone, PartialEq, Debug)]
pub struct Ours {
    /// What was counted, identities checked.
    pub counters: Counters,
    /// Settings in effect.
    pub settings: Settings,
    /// Milliseconds in the queue.
    pub queue_ms: f64,
    /// Milliseconds of the prompt.
    pub prompt_ms: f64,
}

/// All answers of a lane in one repeat.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pass {
    /// By request.
    pub samples: BTreeMap<Key, Sample>,
    /// Seconds from the first request to the end of the last.
    pub wall_s: f64,
    /// Requests that were not asked: their prompts, or those before them, are longer than the server's context.
    pub too_long_n: usize,
}

/// One arm of one server.
#[derive(Clone, PartialEq, Debug)]
pub struct Lane {
    /// The server's name.
    pub server: String,
    /// The arm's.
    pub arm: String,
    /// Of our server.
    pub strategy: Option<Strategy>,
    /// One for every repeat, up to the one that failed.
    pub passes: Vec<Pass>,
    /// Why it failed.
    pub failed: Option<String>,
    target: usize,
    /// What the server calls its model.
    model: Option<String>,
}

impl Lane {
    /// Of the same server.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.target == other.target
    }
}

/// Arm of a server that is not ours.
pub const FOREIGN: &str = "server";

/// Measures all lanes. `note` hears of the progress.
///
/// # Errors
/// An arm that was asked for and that none of our servers has.
pub fn run(tasks: &[Task], targets: &[Target], options: &Options, note: &dyn Fn(&str)) -> Result<Vec<Lane>, String> {
    let peers: Vec<Peer> = targets.iter().map(|t| Peer::new(&t.url, t.api_key.clone(), options.timeout)).collect();
    let mut lanes = Vec::new();
    for (target, peer) in peers.iter().enumerate() {
        lanes.extend(lanes_of(target, &targets[target].name, peer.models(), options)?);
    }
    for round in 0..options.warmup + options.repeats {
        let counts = round >= options.warmup;
        for step in 0..lanes.len() {
            // Another order every time: who comes after whom must not matter.
            let index = (step + round) % lanes.len();
            let lane = &mut lanes[index];
            if lane.failed.is_some() {
                continue;
            }
            // Turns of a session find what the turns before them left, but nothing of another pass.
            let salt = format!("{round}/{index}");
            match pass(&peers[lane.target], lane, tasks, options, &salt) {
                Ok(pass) => {
                    let what = if counts { "" } else { ", warm-up" };
                    let (server, arm, n) = (&lane.server, &lane.arm, pass.samples.len());
                    note(&format!("round {}{what}: {server} {arm}: {n} answers in {:.1} s", round + 1, pass.wall_s));
                    lane.passes.extend(Some(pass).filter(|_| counts));
                }
                Err(error) => {
                    note(&format!("{} {} failed: {error}", lane.server, lane.arm));
                    lane.failed = Some(error);
                }
            }
        }
    }
    Ok(lanes)
}

/// The arms of a server, which its list of models decides.
fn lanes_of(
    target: usize,
    name: &str,
    models: Result<Value, ClientError>,
    options: &Options,
) -> Result<Vec<Lane>, String> {
    let lane = |arm: &str, strategy, model: Option<String>, failed| Lane {
        server: name.to_owned(),
        arm: arm.to_owned(),
        strategy,
        passes: Vec::new(),
        failed,
        target,
        model,
    };
    let models = match models {
        Ok(models) => models,
        Err(error) => return Ok(vec![lane(FOREIGN, None, None, Some(error.to_string()))]),
    };
    let first = models.get("data").and_then(|data| data.get(0));
    let id = first.and_then(|m| m.get("id")).and_then(Value::as_str).map(str::to_owned);
    let Some(has) = first.and_then(|m| m.get("meta")?.get("strategies")?.as_array()) else {
        return Ok(vec![lane(FOREIGN, None, id, None)]);
    };
    let has: Vec<Strategy> = has.iter().filter_map(Value::as_str).filter_map(Strategy::parse).collect();
    let mut arms = options.arms.clone().unwrap_or_else(|| has.clone());
    if let Some(missing) = arms.iter().find(|arm| !has.contains(arm)) {
        let names: Vec<&str> = has.iter().map(|s| s.name()).collect();
        return Err(format!("{name} has no strategy {}; it has {}", missing.name(), names.join(", ")));
    }
    if !arms.contains(&Strategy::Off) {
        arms.insert(0, Strategy::Off);
    }
    Ok(arms.iter().map(|arm| lane(arm.name(), Some(*arm), id.clone(), None)).collect())
}

/// One pass over all sessions.
fn pass(peer: &Peer, lane: &Lane, tasks: &[Task], options: &Options, salt: &str) -> Result<Pass, String> {
    let next = AtomicUsize::new(0);
    let (done, failed) = (Mutex::new(Pass::default()), Mutex::new(None));
    let work = || {
        while let Some((index, task)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, tasks.get(i)?)))
        {
            if locked(&failed).is_some() {
                return;
            }
            match session(peer, lane, task, options, salt) {
                Ok(samples) => {
                    let mut done = locked(&done);
                    done.too_long_n += task.asks.len() - samples.len();
                    done.samples.extend(samples.into_iter().map(|(turn, sample)| ((index, turn), sample)));
                }
                Err(error) => {
                    locked(&failed).get_or_insert(error);
                }
            }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..options.concurrency.min(tasks.len()).max(1) {
            scope.spawn(work);
        }
    });
    let wall_s = start.elapsed().as_secs_f64();
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.map_or(Ok(Pass { wall_s, ..done }), Err)
}

/// A lock whose holders do not leave anything half done.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The requests of a session one after the other, up to one that is too long for the server.
fn session(
    peer: &Peer,
    lane: &Lane,
    task: &Task,
    options: &Options,
    salt: &str,
) -> Result<Vec<(usize, Sample)>, String> {
    let mut out = Vec::with_capacity(task.asks.len());
    for ask in &task.asks {
        let at = |error: String| format!("session {}, turn {}: {error}", task.session, ask.turn);
        let (path, body) = body(lane, task, ask, options, salt);
        match peer.ask(path, &body, ask.budget) {
            Ok(answer) => out.push((ask.turn, sample(answer, lane.strategy).map_err(at)?)),
            Err(error) if error.is_too_long() => break,
            Err(error) => return Err(at(error.to_string())),
        }
    }
    Ok(out)
}

fn body(lane: &Lane, task: &Task, ask: &Ask, options: &Options, salt: &str) -> (&'static str, Map<String, Value>) {
    let (path, mut body) = task.body(ask);
    body.extend(lane.model.as_ref().map(|id| ("model".to_owned(), id.as_str().into())));
    body.insert("temperature".to_owned(), options.temperature.into());
    body.insert("seed".to_owned(), options.seed.into());
    if let Some(strategy) = lane.strategy {
        let mut settings = if strategy == Strategy::Off { Map::new() } else { options.speculative.clone() };
        settings.insert("strategy".to_owned(), json!(strategy.name()));
        body.insert("speculative".to_owned(), settings.into());
        body.insert("return_token_ids".to_owned(), true.into());
        body.insert("cache_salt".to_owned(), salt.into());
    }
    (path, body)
}

fn sample(answer: Answer, strategy: Option<Strategy>) -> Result<Sample, String> {
    let ours = strategy.map(|strategy| ours(&answer, strategy)).transpose()?;
    let Answer { text, ids, usage, emitted, finished_s, total_s, .. } = answer;
    Ok(Sample {
        prompt_n: usage.map_or(0, |u| u.prompt_tokens.into()),
        tokens_n: usage.map_or(emitted.len() as u64, |u| u.completion_tokens.into()),
        counted: usage.is_some(),
        first_s: emitted.first().map_or(finished_s, |(at, _)| *at),
        finished_s,
        total_s,
        gaps_s: emitted.windows(2).map(|pair| pair[1].0 - pair[0].0).collect(),
        emitted_n: emitted.iter().filter_map(|(_, n)| *n).collect(),
        output: ids.map_or(Output::Text(text), Output::Ids),
        ours,
    })
}

/// Reads and checks the blocks of our server.
fn ours(answer: &Answer, strategy: Strategy) -> Result<Ours, String> {
    let (Some(usage), Some(timings), Some(speculation)) = (answer.usage, &answer.timings, &answer.speculation) else {
        return Err("the answer lacks usage, timings or speculation".to_owned());
    };
    let block = |e: serde_json::Error| format!("speculation is no such block: {e}");
    if !within(speculation) {
        return Err("speculation is no such block: a count is larger than an answer can have".to_owned());
    }
    let (prompt, completion) = (u64::from(usage.prompt_tokens), u64::from(usage.completion_tokens));
    let counters = Counters::deserialize(speculation).map_err(block)?;
    let counters = Counters { completion_tokens: completion, ..counters };
    counters.check().map_err(|e| format!("the counters contradict each other: {e}"))?;
    let count =
        |name: &str| timings.get(name).and_then(Value::as_u64).ok_or_else(|| format!("timings.{name} is no count"));
    for (what, left, right) in [
        ("prompt_tokens and cache_n + prompt_n", prompt, count("cache_n")?.saturating_add(count("prompt_n")?)),
        ("completion_tokens and predicted_n", completion, count("predicted_n")?),
        ("completion_tokens and token ids", completion, answer.ids.as_ref().map_or(0, Vec::len) as u64),
    ] {
        if left != right {
            return Err(format!("the counters contradict each other: {what} are {left} and {right}"));
        }
    }
    let effective = speculation.get("effective").unwrap_or(&Value::Null);
    let drafts = effective.get("strategy").and_then(Value::as_str);
    if drafts != Some(strategy.name()) {
        return Err(format!("{} was asked for, and {} drafted", strategy.name(), drafts.unwrap_or("nobody")));
    }
    let ms = |name: &str| timings.get(name).and_then(Value::as_f64).unwrap_or_default();
    let settings = Settings::deserialize(effective).map_err(block)?;
    Ok(Ours { counters, settings, queue_ms: ms("queue_ms"), prompt_ms: ms("prompt_ms") })
}

/// Whether the counts are of a size that sums of them, also weighed by the lengths that name them, stay exact.
fn within(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_u64().is_none_or(|n| u32::try_from(n).is_ok()),
        Value::Array(list) => list.iter().all(within),
        Value::Object(map) => map.iter().all(|(name, value)| {
            name.parse::<u64>().map_or(true, |length| u16::try_from(length).is_ok()) && within(value)
        }),
        _ => true,
    }
}
