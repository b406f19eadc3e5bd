//! From samples to the figures of each lane: over the requests that all lanes have answered, so that arms compare.

use std::collections::BTreeSet;

use engine::api::Strategy;
use engine_io::digest::Sha256;

use super::run::{FOREIGN, Key, Lane, Output, Pass, Sample};
use super::task::Task;
use crate::bench::counters::Counters;
use crate::bench::result::{Arm, Bins, Quantiles, Spread, Times, Void, Workload};

/// Requests that every lane without a failure has answered in every repeat.
pub fn common(lanes: &[Lane]) -> BTreeSet<Key> {
    let mut passes = lanes.iter().filter(|l| l.failed.is_none()).flat_map(|lane| &lane.passes);
    let Some(first) = passes.next() else { return BTreeSet::new() };
    let mut keys: BTreeSet<Key> = first.samples.keys().copied().collect();
    for pass in passes {
        keys.retain(|key| pass.samples.contains_key(key));
    }
    keys
}

/// The arms over all requests.
pub fn arms(lanes: &[Lane], tasks: &[Task]) -> Vec<Arm> {
    over(lanes, tasks, &common(lanes), true)
}

/// The arms by kind of workload.
pub fn workloads(lanes: &[Lane], tasks: &[Task]) -> Vec<Workload> {
    let keys = common(lanes);
    let mut sources: Vec<&str> = Vec::new();
    for task in tasks {
        if !sources.contains(&task.source.as_str()) {
            sources.push(&task.source);
        }
    }
    let workload = |source: &&str| {
        let keys = keys.iter().copied().filter(|(task, _)| tasks[*task].source == **source).collect();
        Workload { source: (*source).to_owned(), arms: over(lanes, tasks, &keys, sources.len() == 1) }
    };
    sources.iter().map(workload).collect()
}

/// `whole`: the requests are all that passes were made of, so that the time of a pass is theirs.
fn over(lanes: &[Lane], tasks: &[Task], keys: &BTreeSet<Key>, whole: bool) -> Vec<Arm> {
    let mut arms: Vec<Arm> = lanes.iter().map(|lane| arm(lane, lanes, tasks, keys, whole)).collect();
    let off = lanes.iter().zip(&arms).find(|(lane, _)| lane.strategy == Some(Strategy::Off));
    let base = off.map(|(_, arm)| arm.decode_tok_s.median).filter(|rate| *rate > 0.0);
    for arm in &mut arms {
        arm.speedup = base.map(|base| arm.decode_tok_s.median / base).filter(|_| arm.failed.is_none());
    }
    arms
}

fn label(lane: &Lane) -> String {
    match (lane.server.as_str(), lane.arm.as_str()) {
        ("", arm) => arm.to_owned(),
        (server, FOREIGN) => server.to_owned(),
        (server, arm) => format!("{server} {arm}"),
    }
}

fn arm(lane: &Lane, lanes: &[Lane], tasks: &[Task], keys: &BTreeSet<Key>, whole: bool) -> Arm {
    let mut out = Arm { label: label(lane), strategy: lane.strategy, failed: lane.failed.clone(), ..Arm::default() };
    let Some(last) = lane.passes.last().filter(|_| lane.failed.is_none()) else { return out };
    out.void = void(lane, lanes, tasks, keys);
    let rounds: Vec<Vec<&Sample>> =
        lane.passes.iter().map(|pass| keys.iter().map(|key| &pass.samples[key]).collect()).collect();
    let all = || rounds.iter().flatten().copied();
    let one = || keys.iter().map(|key| &last.samples[key]);

    out.requests_n = keys.len() as u64;
    out.prompt_tokens = one().map(|s| s.prompt_n).sum();
    out.speculation.completion_tokens = one().map(|s| s.tokens_n).sum();
    if let Some(counters) = one().map(|s| s.ours.as_ref().map(|ours| &ours.counters)).collect::<Option<Vec<_>>>() {
        let mut sum = Counters::default();
        counters.into_iter().for_each(|more| sum.add(more));
        out.shares = sum.shares();
        out.speculation = sum;
    }
    if let Some(ours) = one().find_map(|s| s.ours.as_ref()) {
        out.settings = ours.settings.clone();
    }
    let decode = |round: &Vec<&Sample>| {
        let timed = round.iter().filter(|s| s.tokens_n > 1);
        let (n, s) = timed.fold((0, 0.0), |sum, s| (sum.0 + s.tokens_n - 1, sum.1 + s.finished_s - s.first_s));
        (s > 0.0).then(|| n as f64 / s)
    };
    out.decode_tok_s = Spread::of(rounds.iter().filter_map(decode).collect());
    if whole {
        let rate = |pass: &Pass| pass.samples.values().map(|s| s.tokens_n).sum::<u64>() as f64 / pass.wall_s;
        out.total_tok_s = Spread::of(lane.passes.iter().filter(|pass| pass.wall_s > 0.0).map(rate).collect());
    }
    out.output_sha256 = Some(digest(one().map(|s| &s.output)));
    for n in one().flat_map(|s| &s.emitted_n) {
        Bins::add(&mut out.emission_tokens_hist, *n);
    }
    let quantiles = |mut values: Vec<f64>| Quantiles::of(&mut values);
    let tpot = |s: &Sample| (s.tokens_n > 1).then(|| (s.finished_s - s.first_s) * 1e3 / (s.tokens_n - 1) as f64);
    let ours = || all().filter_map(|s| s.ours.as_ref());
    out.times = Times {
        ttft_ms: quantiles(all().map(|s| s.first_s * 1e3).collect()),
        queue_ms: quantiles(ours().map(|ours| ours.queue_ms).collect()),
        prompt_ms: quantiles(ours().map(|ours| ours.prompt_ms).collect()),
        tpot_ms: quantiles(all().filter_map(tpot).collect()),
        emission_gap_ms: quantiles(all().flat_map(|s| s.gaps_s.iter().map(|gap| gap * 1e3)).collect()),
        total_ms: quantiles(all().map(|s| s.total_s * 1e3).collect()),
        ..Times::default()
    };
    out
}

/// Over all outputs in order, each with its length in front.
fn digest<'a>(outputs: impl Iterator<Item = &'a Output>) -> Sha256 {
    let mut bytes = Vec::new();
    for output in outputs {
        let (length, content): (usize, Vec<u8>) = match output {
            Output::Ids(ids) => (ids.len(), ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
            Output::Text(text) => (text.len(), text.clone().into_bytes()),
        };
        bytes.extend((length as u64).to_le_bytes());
        bytes.extend(content);
    }
    Sha256::of(&bytes)
}

/// Where a pass of the lane first says something else than the first of `off` on the same server. Servers that have no
/// arms are held against nothing.
fn void(lane: &Lane, lanes: &[Lane], tasks: &[Task], keys: &BTreeSet<Key>) -> Option<Void> {
    lane.strategy?;
    let off = lanes.iter().find(|other| other.is_beside(lane) && other.strategy == Some(Strategy::Off))?;
    let reference = off.passes.first().filter(|_| off.failed.is_none());
    let Some(reference) = reference else {
        let expected = "the output of off, which failed".to_owned();
        return Some(Void { expected, found: "nothing to hold the output against".to_owned(), ..Void::default() });
    };
    let differs = |pass: &Pass| {
        keys.iter().find_map(|key| {
            let (position, expected, found) = differ(&reference.samples[key].output, &pass.samples[key].output)?;
            Some(Void { session: tasks[key.0].session.clone(), turn: key.1, position, expected, found })
        })
    };
    lane.passes.iter().find_map(differs)
}

/// Position of the first difference, and what either has there.
fn differ(off: &Output, other: &Output) -> Option<(usize, String, String)> {
    fn at<T: PartialEq>(a: &[T], b: &[T]) -> usize {
        a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()))
    }
    let id = |id: Option<&u32>| id.map_or("the end".to_owned(), u32::to_string);
    match (off, other) {
        (a, b) if a == b => None,
        (Output::Ids(a), Output::Ids(b)) => {
            let at = at(a, b);
            Some((at, id(a.get(at)), id(b.get(at))))
        }
        (Output::Text(a), Output::Text(b)) => {
            let at = at(a.as_bytes(), b.as_bytes());
            let from = |text: &str| {
                let bytes = &text.as_bytes()[at..];
                format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(24)]))
            };
            Some((at, from(a), from(b)))
        }
        (Output::Ids(_), Output::Text(_)) => Some((0, "token ids".to_owned(), "text".to_owned())),
        (Output::Text(_), Output::Ids(_)) => Some((0, "text".to_owned(), "token ids".to_owned())),
    }
}
