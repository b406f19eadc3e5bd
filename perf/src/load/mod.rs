//! A server under clients of every kind at once: those that read to the end, leave, stall, or send what is no request.
//!
//! ```text
//! asks, each alone ──► expected answers
//! clients × seconds ──► each draws what it does next (seed, client) ──► every whole answer is what it was alone
//! at the end ──► nothing runs or waits, every page and row is free, the asks once more, the process ends with 0
//! ```

pub mod asks;
pub mod client;
pub mod server;
pub mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use self::asks::{Ask, Said};
use self::client::{Client, Tally};

/// How long an idle server may take to show that it is.
const AT_REST: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clients at once.
    pub clients: usize,
    /// How long they go on.
    pub time: Duration,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// What clients did, and what went wrong.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How often each thing was done.
    pub tally: Tally,
    /// What must not be; the first ones in words.
    pub faults: Vec<String>,
    /// Gauges that would have told more and are not there.
    pub missing: Vec<String>,
}

/// Every ask alone, twice: what does not repeat itself alone proves nothing beside others.
///
/// # Errors
/// An ask that is not answered, or not twice alike.
pub fn solo(address: SocketAddr, asks: &[Ask]) -> Result<Vec<Said>, String> {
    let each = |ask: &Ask| {
        let first = ask.put(address)?;
        let second = ask.put(address)?;
        if first == second { Ok(first) } else { Err(format!("{}: alone {first:?}, then {second:?}", ask.name)) }
    };
    asks.iter().map(each).collect()
}

/// Runs the clients, then looks at what they left behind.
pub fn run(address: SocketAddr, asks: &[Ask], expected: &[Said], plan: &Plan) -> Outcome {
    let all = Mutex::new(Outcome::default());
    let end = Instant::now() + plan.time;
    thread::scope(|scope| {
        for index in 0..plan.clients {
            let all = &all;
            scope.spawn(move || {
                let mut client = Client::new(address, asks, expected, plan.seed, index);
                client.go_on_until(end);
                let mut all = all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                all.tally.add(&client.tally);
                all.faults.append(&mut client.faults);
            });
        }
    });
    let mut outcome = all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    rest(address, &mut outcome);
    match solo(address, asks) {
        Ok(again) => {
            let differ = asks.iter().zip(expected.iter().zip(&again)).filter(|(_, (before, after))| before != after);
            outcome.faults.extend(differ.map(|(ask, _)| format!("{}: another answer after the load", ask.name)));
        }
        Err(error) => outcome.faults.push(format!("after the load: {error}")),
    }
    outcome
}

/// Waits until the server says that nothing is left of any client.
fn rest(address: SocketAddr, outcome: &mut Outcome) {
    let end = Instant::now() + AT_REST;
    loop {
        let held = match metrics(address) {
            Ok(gauges) => {
                outcome.missing = missing(&gauges);
                held(&gauges)
            }
            Err(error) => vec![error],
        };
        if held.is_empty() {
            break;
        }
        if Instant::now() > end {
            outcome
                .faults
                .extend(held.into_iter().map(|what| format!("{} s after the last client: {what}", AT_REST.as_secs())));
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    match wire::get(address, "/slots") {
        Ok((200, body)) => {
            let slots: Vec<serde_json::Value> = serde_json::from_slice(&body).unwrap_or_default();
            let busy = slots.iter().filter(|slot| slot["is_processing"] != false).count();
            if slots.is_empty() || busy > 0 {
                outcome.faults.push(format!("/slots shows {busy} of {} busy", slots.len()));
            }
        }
        Ok((501 | 404, _)) => outcome.missing.push("/slots".to_owned()),
        Ok((status, _)) => outcome.faults.push(format!("/slots answers {status}")),
        Err(error) => outcome.faults.push(format!("/slots: {error}")),
    }
}

/// Samples of `/metrics`, by name and labels.
type Gauges = BTreeMap<String, f64>;

fn metrics(address: SocketAddr) -> Result<Gauges, String> {
    let (status, body) = wire::get(address, "/metrics")?;
    if status != 200 {
        return Err(format!("/metrics answers {status}"));
    }
    let text = String::from_utf8_lossy(&body);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').ok_or_else(|| format!("/metrics: {line:?} is no sample"))?;
        let value = value.parse().map_err(|_| format!("/metrics: {line:?} has no number"))?;
        Ok((name.to_owned(), value))
    };
    lines.map(sample).collect()
}

/// Gauges that are 0 where nothing is left of anybody.
const NOTHING: [&str; 5] = [
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_requests_stalled",
    "engine_state_slots_used",
    "engine_kv_pages{state=\"used\"}",
];

fn missing(gauges: &Gauges) -> Vec<String> {
    NOTHING.iter().filter(|name| !gauges.contains_key(**name)).map(|name| (*name).to_owned()).collect()
}

fn held(gauges: &Gauges) -> Vec<String> {
    let above = NOTHING.iter().filter_map(|name| gauges.get(*name).filter(|value| **value != 0.0).map(|v| (name, v)));
    above.map(|(name, value)| format!("{name} is {value}")).collect()
}
