//! Rounds of arms -> figures of arms.

use std::collections::BTreeMap;

use engine::api::Speculation;
use engine::ids::TokenId;
use engine_io::digest::Sha256;

use super::drive::{Round, Seen};
use super::script::Workload;
use crate::bench::counters::Counters;
use crate::bench::result::{Arm, Bins, Lengths, Quantiles, Settings, Spread, Times, Void};

/// What an arm came to, over one source or over all.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gathered {
    /// Per round: tokens after the first of each request, and the nanoseconds that they took.
    decode: Vec<(u64, u64)>,
    /// Per round: tokens, and the nanoseconds of the round.
    total: Vec<(u64, u64)>,
    /// Committed ids of every request, as bytes.
    output: Vec<u8>,
    /// Where the output is not that of `off`.
    void: Option<Void>,
    requests: u64,
    prompt_tokens: u64,
    counters: Counters,
    lengths: BTreeMap<&'static str, Lengths>,
    emissions: Bins,
    /// Over all rounds: milliseconds, but for look-ups, which are in microseconds.
    ttft: Vec<f64>,
    queue: Vec<f64>,
    prompt: Vec<f64>,
    tpot: Vec<f64>,
    gaps: Vec<f64>,
    requests_ms: Vec<f64>,
    lookups: Vec<f64>,
    passes: BTreeMap<usize, Vec<f64>>,
    /// Of the last round.
    index_ns: u64,
    draft_ns: u64,
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}

impl Gathered {
    /// Adds a measured round of a workload.
    pub fn round(&mut self, round: Round, workload: &Workload) {
        let Round { committed, counters, reports, seen, elapsed_ns } = round;
        let tokens: u64 = reports.iter().map(|report| report.completion_tokens).sum();
        let predicted: u64 = reports.iter().map(|report| report.predicted_ns).sum();
        self.decode.push((tokens - reports.len() as u64, predicted));
        self.total.push((tokens, elapsed_ns));
        self.output = bytes(&committed);
        self.requests = workload.scripts.len() as u64;
        self.prompt_tokens = reports.iter().map(|report| report.prompt_tokens).sum();
        self.counters = counters;
        self.index_ns = reports.iter().map(|report| report.suffix_lookups.extend_ns).sum();
        self.draft_ns = reports.iter().map(|report| report.mtp_draft_ns).sum();
        for report in &reports {
            self.ttft.push(ms(report.ttft_ns as f64));
            self.queue.push(ms(report.queue_ns as f64));
            self.prompt.push(ms(report.prompt_ns as f64));
            self.requests_ms.push(ms(report.total_ns as f64));
            if report.completion_tokens > 1 {
                self.tpot.push(ms(report.predicted_ns as f64) / (report.completion_tokens - 1) as f64);
            }
        }
        let Seen { lengths, emissions, gaps_ns, lookups_ns, passes_ns } = seen;
        (self.lengths, self.emissions) = (lengths, emissions);
        self.gaps.extend(gaps_ns.into_iter().map(ms));
        self.lookups.extend(lookups_ns.into_iter().map(|ns| ns / 1e3));
        for (rows, times) in passes_ns {
            self.passes.entry(rows).or_default().extend(times.into_iter().map(ms));
        }
    }

    /// Notes the first difference from what `off` committed.
    pub fn hold_against(&mut self, off: &[Vec<TokenId>], committed: &[Vec<TokenId>], workload: &Workload) {
        if self.void.is_none() {
            self.void = difference(off, committed, workload);
        }
    }

    /// Adds another source.
    pub fn join(&mut self, other: Self) {
        let add = |ours: &mut Vec<(u64, u64)>, theirs: Vec<(u64, u64)>| {
            ours.resize(ours.len().max(theirs.len()), (0, 0));
            ours.iter_mut().zip(theirs).for_each(|(a, b)| *a = (a.0 + b.0, a.1 + b.1));
        };
        add(&mut self.decode, other.decode);
        add(&mut self.total, other.total);
        self.output.extend(other.output);
        self.void = self.void.take().or(other.void);
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.counters.add(&other.counters);
        for (name, lengths) in other.lengths {
            self.lengths.entry(name).or_default().merge(&lengths);
        }
        self.emissions.merge(&other.emissions);
        for (ours, theirs) in [
            (&mut self.ttft, other.ttft),
            (&mut self.queue, other.queue),
            (&mut self.prompt, other.prompt),
            (&mut self.tpot, other.tpot),
            (&mut self.gaps, other.gaps),
            (&mut self.requests_ms, other.requests_ms),
            (&mut self.lookups, other.lookups),
        ] {
            ours.extend(theirs);
        }
        for (rows, times) in other.passes {
            self.passes.entry(rows).or_default().extend(times);
        }
        self.index_ns += other.index_ns;
        self.draft_ns += other.draft_ns;
    }

    fn arm(&self, speculation: &Speculation) -> Arm {
        let rate = |rounds: &[(u64, u64)]| {
            let rate = |&(tokens, ns): &(u64, u64)| if ns == 0 { 0.0 } else { tokens as f64 * 1e9 / ns as f64 };
            Spread::of(rounds.iter().map(rate).collect())
        };
        let of = |values: &[f64]| Quantiles::of(&mut values.to_vec());
        let indexed = self.prompt_tokens + self.counters.completion_tokens;
        Arm {
            label: speculation.strategy.name().to_owned(),
            strategy: Some(speculation.strategy),
            settings: Settings::from(speculation),
            decode_tok_s: rate(&self.decode),
            output_sha256: Some(Sha256::of(&self.output)),
            total_tok_s: rate(&self.total),
            void: self.void.clone(),
            requests_n: self.requests,
            prompt_tokens: self.prompt_tokens,
            speculation: self.counters.clone(),
            shares: self.counters.shares(),
            lengths: self.lengths.iter().map(|(name, lengths)| ((*name).to_owned(), lengths.clone())).collect(),
            emission_tokens_hist: self.emissions.clone(),
            times: Times {
                ttft_ms: of(&self.ttft),
                queue_ms: of(&self.queue),
                prompt_ms: of(&self.prompt),
                tpot_ms: of(&self.tpot),
                emission_gap_ms: of(&self.gaps),
                total_ms: of(&self.requests_ms),
                lookup_us: of(&self.lookups),
                index_ns_per_token: self.index_ns as f64 / indexed.max(1) as f64,
                mtp_draft_ms: ms(self.draft_ns as f64),
            },
            pass_ms: self.passes.iter().map(|(rows, times)| (*rows, of(times))).collect(),
            ..Arm::default()
        }
    }
}

/// The figures of all arms, `speedup` against the arm `off` among them.
pub fn arms(speculations: &[Speculation], gathered: &[Gathered]) -> Vec<Arm> {
    let mut arms: Vec<Arm> = speculations.iter().zip(gathered).map(|(spec, one)| one.arm(spec)).collect();
    let off = arms.iter().find(|arm| arm.strategy == Some(engine::api::Strategy::Off));
    let plain = off.map_or(0.0, |arm| arm.decode_tok_s.median);
    for arm in &mut arms {
        arm.speedup = (plain > 0.0).then(|| arm.decode_tok_s.median / plain);
    }
    arms
}

/// Ids of every request with their number before them, so that no two lists have the same bytes.
fn bytes(committed: &[Vec<TokenId>]) -> Vec<u8> {
    let mut out = Vec::new();
    for ids in committed {
        out.extend((ids.len() as u32).to_le_bytes());
        ids.iter().for_each(|id| out.extend(id.0.to_le_bytes()));
    }
    out
}

fn difference(off: &[Vec<TokenId>], found: &[Vec<TokenId>], workload: &Workload) -> Option<Void> {
    for play in &workload.plays {
        for index in play.scripts.clone() {
            let (a, b) = (&off[index], &found[index]);
            if a == b {
                continue;
            }
            let position = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let name = |ids: &[TokenId]| ids.get(position).map_or("the end".to_owned(), |id| format!("token {}", id.0));
            let (session, turn) = (play.name.clone(), workload.scripts[index].turn);
            return Some(Void { session, turn, position, expected: name(a), found: name(b) });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::replay::script::{Play, Script};
    use crate::menu::BUILT_IN;

    #[test]
    fn the_first_difference_is_named() {
        let ids = |list: &[u32]| list.iter().copied().map(TokenId).collect::<Vec<_>>();
        let scripts = (0..3).map(|turn| Script { turn: 2 * turn + 1, ..Script::default() });
        let plays = vec![Play { name: "a".into(), scripts: 0..2 }, Play { name: "b".into(), scripts: 2..3 }];
        let workload = Workload { scripts: std::sync::Arc::new(scripts.collect()), plays, ..Workload::default() };
        let off = [ids(&[1, 2]), ids(&[3, 4, 5]), ids(&[6])];
        assert_eq!(difference(&off, &off, &workload), None);
        let mut other = off.clone();
        other[1][2] = TokenId(9);
        other[2].clear();
        let expected = |session: &str, turn, position, expected: &str, found: &str| {
            Some(Void { session: session.into(), turn, position, expected: expected.into(), found: found.into() })
        };
        assert_eq!(difference(&off, &other, &workload), expected("a", 3, 2, "token 5", "token 9"));
        other[1][2] = TokenId(5);
        assert_eq!(difference(&off, &other, &workload), expected("b", 5, 0, "token 6", "the end"));
        // It is kept, and an arm is void over all sources where it is over one.
        let mut one = Gathered::default();
        one.hold_against(&off, &other, &workload);
        one.hold_against(&off, &off, &workload);
        let mut all = Gathered::default();
        all.join(one);
        all.join(Gathered::default());
        assert_eq!(all.arm(&BUILT_IN).void, expected("b", 5, 0, "token 6", "the end"));
        // Neither order nor borders of requests are lost in the digest.
        assert_ne!(bytes(&[ids(&[1, 2]), ids(&[3])]), bytes(&[ids(&[1]), ids(&[2, 3])]));
    }
}
