//! `usage`, `timings` and `speculation` of an answer, from the engine's reports. Counters are sums over the choices;
//! what belongs to a prompt counts once per prompt; a ratio without a denominator is null.

use engine::api::{DraftCounts, Miss, Report};
use serde_json::{Map, Value, json};

use crate::serve::spec::Plan;

/// What the blocks are computed from.
pub(crate) struct Stats<'a> {
    /// One per choice, in order.
    pub reports: Vec<&'a Report>,
    /// Choices per prompt: report `i` belongs to prompt `i / per_prompt`.
    pub per_prompt: usize,
    pub seed: i64,
    /// Arrival of the request to now.
    pub total_ns: u64,
    pub plan: &'a Plan,
}

fn ms(ns: u64) -> f64 {
    // Microseconds are as fine as anyone reads; it keeps the figures short.
    (ns as f64 / 1e3).round() / 1e3
}

fn ratio(a: u64, b: u64) -> Value {
    if b == 0 { Value::Null } else { json!((a as f64 / b as f64 * 1e6).round() / 1e6) }
}

/// Events per second and milliseconds per event, 0 where nothing was measured.
fn rates(events: u64, ns: u64) -> (f64, f64) {
    if events == 0 || ns == 0 {
        return (0.0, 0.0);
    }
    let short = |x: f64| (x * 1e3).round() / 1e3;
    (short(ms(ns) / events as f64), short(events as f64 / (ns as f64 / 1e9)))
}

/// Tokens of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub prompt: u64,
    /// Prompt tokens taken from the prefix cache, and such as were added to it.
    pub cached: u64,
    pub written: u64,
    pub completion: u64,
    /// ... of which thinking.
    pub reasoning: u64,
}

impl Stats<'_> {
    /// What every dialect's `usage` is made of.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            prompt: self.prompts(|r| r.prompt_tokens),
            cached: self.cached(),
            written: self.prompts(|r| r.cache_written),
            completion: self.sum(|r| r.completion_tokens),
            reasoning: self.sum(|r| r.reasoning),
        }
    }

    fn sum(&self, of: impl Fn(&Report) -> u64) -> u64 {
        self.reports.iter().map(|r| of(r)).sum()
    }

    fn most(&self, of: impl Fn(&Report) -> u64) -> u64 {
        self.reports.iter().map(|r| of(r)).max().unwrap_or(0)
    }

    /// Sum over the first choice of every prompt.
    fn prompts(&self, of: impl Fn(&Report) -> u64) -> u64 {
        self.reports.iter().step_by(self.per_prompt).map(|r| of(r)).sum()
    }

    fn drafts(&self, of: impl Fn(&Report) -> DraftCounts) -> DraftCounts {
        let mut sum = DraftCounts::default();
        for report in &self.reports {
            sum.add(&of(report));
        }
        sum
    }

    /// The `usage` object of chats and completions.
    pub(crate) fn usage(&self) -> Value {
        let Counts { prompt, cached, written, completion, reasoning } = self.counts();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        })
    }

    /// Prompt tokens taken from the prefix cache.
    pub(crate) fn cached(&self) -> u64 {
        self.prompts(|r| r.cached_tokens)
    }

    /// The `timings` object.
    pub(crate) fn timings(&self) -> Value {
        let (prompt_n, cache_n) = (self.prompts(|r| r.prompt_tokens - r.cached_tokens), self.cached());
        let prompt_ns = self.most(|r| r.prompt_ns);
        let (prompt_each, prompt_rate) = rates(prompt_n, prompt_ns);
        let predicted_n = self.sum(|r| r.completion_tokens);
        let predicted_ns = self.most(|r| r.predicted_ns);
        // The first token of a choice comes with its prompt.
        let (each, rate) = rates(predicted_n.saturating_sub(self.reports.len() as u64), predicted_ns);
        let drafts = self.drafts(|r| r.total);
        let mut out = json!({
            "cache_n": cache_n,
            "prompt_n": prompt_n,
            "prompt_ms": ms(prompt_ns),
            "prompt_per_token_ms": prompt_each,
            "prompt_per_second": prompt_rate,
            "predicted_n": predicted_n,
            "predicted_ms": ms(predicted_ns),
            "predicted_per_token_ms": each,
            "predicted_per_second": rate,
            "queue_ms": ms(self.most(|r| r.queue_ns)),
            "ttft_ms": ms(self.reports.iter().map(|r| r.ttft_ns).min().unwrap_or(0)),
            "total_ms": ms(self.total_ns),
            "preempt_n": self.sum(|r| r.preempted),
            "stall_ms": ms(self.sum(|r| r.stall_ns)),
            "seed": self.seed,
        });
        let first = self.reports.iter().step_by(self.per_prompt).find(|r| r.cached_tokens + 1 < r.prompt_tokens);
        out["cache"] = json!({
            "hit_n": cache_n,
            "matched_n": self.prompts(|r| r.cache_matched),
            "computed_n": prompt_n,
            "written_n": self.prompts(|r| r.cache_written),
            "miss_reason": first.and_then(|r| r.cache_miss).map(Miss::name),
            "diverged_at": first.filter(|r| r.cache_miss == Some(Miss::Diverged)).map(|r| r.cache_matched),
            "checkpoint_at": first.filter(|r| r.cache_miss == Some(Miss::NoCheckpoint)).map(|r| r.cached_tokens),
        });
        if drafts.drafted > 0 {
            out["draft_n"] = drafts.drafted.into();
            out["draft_n_accepted"] = drafts.accepted.into();
        }
        out
    }

    /// The `speculation` object.
    pub(crate) fn speculation(&self) -> Value {
        let total = self.drafts(|r| r.total);
        let (steps, windows) = (self.sum(|r| r.steps), self.sum(|r| r.windows));
        let turned_down = self.reports.iter().find_map(|r| r.turned_down);
        let mut out = json!({
            "strategy": self.plan.effective.strategy.name(),
            "requested": self.plan.requested,
            "effective": self.plan.effective_json(),
            "clamps": self.plan.clamps_json(),
            "mtp_unavailable": self.plan.mtp_unavailable_json(),
            "turned_down": turned_down.map(|t| json!({"after_step": t.after_step, "reason": t.reason})),
            "steps_n": steps,
            "windows_n": windows,
            "plain_n": self.sum(|r| r.plain),
            "first_n": self.sum(|r| r.first),
            "bonus_n": self.sum(|r| r.bonus),
            "forced_n": self.sum(|r| r.forced),
        });
        let Value::Object(map) = &mut out else { unreachable!("built as an object") };
        put_counts(map, &total);
        map.insert("mean_accepted".to_owned(), ratio(total.accepted, windows));
        map.insert("accept_length".to_owned(), self.accept_length(windows, total.accepted));
        map.insert("acceptance_rate".to_owned(), ratio(total.accepted, total.drafted));
        map.insert("proposers".to_owned(), self.proposers());
        let (tail_drafted, tail_accepted) = (self.sum(|r| r.tail_drafted_tested), self.sum(|r| r.tail_accepted));
        map.insert(
            "tail".to_owned(),
            json!({
                "windows_n": self.sum(|r| r.tail_windows),
                "tested_n": self.sum(|r| r.tail_tested),
                "drafted_tested_n": tail_drafted,
                "accepted_n": tail_accepted,
                "rate": ratio(tail_accepted, tail_drafted),
            }),
        );
        map.insert("width_hist".to_owned(), self.histogram(|r| &r.width_hist));
        map.insert("accepted_hist".to_owned(), self.histogram(|r| &r.accepted_hist));
        let used = |r: &Report| r.per_position.iter().rposition(|p| p.0 > 0).map_or(0, |last| last + 1);
        let depth = self.reports.iter().map(|r| used(r)).max().unwrap_or(0);
        let position = |p: usize| {
            let at = |r: &Report| r.per_position.get(p).copied().unwrap_or_default();
            json!({"drafted": self.sum(|r| at(r).0), "accepted": self.sum(|r| at(r).1)})
        };
        map.insert("per_position".to_owned(), (0..depth).map(position).collect());
        out
    }

    /// (accepted + bonus over windows) / windows. Plain steps always commit a bonus, so the windows have the rest.
    fn accept_length(&self, windows: u64, accepted: u64) -> Value {
        let bonus = self.sum(|r| r.bonus).saturating_sub(self.sum(|r| r.plain));
        ratio(accepted + bonus, windows)
    }

    fn proposers(&self) -> Value {
        let mut out = Map::new();
        let strategy = self.plan.effective.strategy;
        if strategy.uses_mtp() {
            let mut mtp = Map::new();
            put_counts(&mut mtp, &self.drafts(|r| r.mtp));
            mtp.insert("draft_ms".to_owned(), ms(self.sum(|r| r.mtp_draft_ns)).into());
            out.insert("mtp".to_owned(), mtp.into());
        }
        if strategy.uses_suffix() {
            let mut suffix = Map::new();
            put_counts(&mut suffix, &self.drafts(|r| r.suffix));
            let us = |ns: u64| Value::from(ns / 1000);
            let hits = self.sum(|r| r.suffix_lookups.hits);
            for (name, value) in [
                ("lookups_n", self.sum(|r| r.suffix_lookups.lookups).into()),
                ("hits_n", hits.into()),
                ("misses_n", self.sum(|r| r.suffix_lookups.misses).into()),
                ("skipped_n", self.sum(|r| r.suffix_lookups.skipped).into()),
                ("lookup_us", us(self.sum(|r| r.suffix_lookups.lookup_ns))),
                ("lookup_us_max", us(self.most(|r| r.suffix_lookups.lookup_ns_max))),
                ("extend_us", us(self.sum(|r| r.suffix_lookups.extend_ns))),
                ("match_len_mean", ratio(self.sum(|r| r.suffix_lookups.match_len_sum), hits)),
            ] {
                suffix.insert(name.to_owned(), value);
            }
            out.insert("suffix".to_owned(), suffix.into());
        }
        out.into()
    }

    fn histogram(&self, of: impl Fn(&Report) -> &Vec<u64>) -> Value {
        let width = self.reports.iter().map(|r| of(r).len()).max().unwrap_or(0);
        let bucket = |k: usize| self.sum(|r| of(r).get(k).copied().unwrap_or(0));
        (0..width).filter(|k| bucket(*k) > 0).map(|k| (k.to_string(), bucket(k).into())).collect::<Map<_, _>>().into()
    }
}

fn put_counts(map: &mut Map<String, Value>, c: &DraftCounts) {
    for (name, value) in [
        ("proposed_n", c.proposed),
        ("trimmed_n", c.trimmed),
        ("drafted_n", c.drafted),
        ("accepted_n", c.accepted),
        ("rejected_n", c.rejected),
        ("unreached_n", c.unreached),
        ("discarded_n", c.discarded),
    ] {
        map.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked case of the contract: seven windows of widths 2,2,2,2,4,8,8 with 0,1,2,2,3,2,6 committed.
    #[test]
    fn worked_case() {
        let total = DraftCounts {
            proposed: 30,
            trimmed: 2,
            drafted: 28,
            accepted: 16,
            rejected: 4,
            unreached: 7,
            discarded: 1,
        };
        let report = Report {
            prompt_tokens: 10,
            completion_tokens: 25,
            steps: 9,
            windows: 7,
            plain: 2,
            first: 1,
            bonus: 8,
            total,
            tail_windows: 3,
            tail_tested: 3,
            tail_drafted_tested: 14,
            tail_accepted: 5,
            width_hist: vec![2, 0, 4, 0, 1, 0, 0, 0, 2],
            accepted_hist: vec![1, 1, 3, 1, 0, 0, 1],
            per_position: vec![(7, 6), (7, 4)],
            predicted_ns: 24_000_000,
            ..Report::default()
        };
        let body = serde_json::Map::new();
        let default = engine::api::Speculation {
            strategy: engine::api::Strategy::MtpSuffix,
            mtp_tokens: 2,
            suffix_min: 3,
            suffix_max: 64,
            suffix_tokens: 6,
            policy: engine::api::WindowPolicy::Adaptive,
            window_initial: 8,
            window_min: 1,
            window_max: 8,
        };
        let config = crate::serve::SpecConfig {
            default,
            menu: crate::menu::Menu::of(default),
            mtp: crate::serve::MtpOffer::Ready,
        };
        let plan = Plan::read(&crate::serve::fields::Fields::body(&body), &config).unwrap();
        let stats = Stats { reports: vec![&report, &report], per_prompt: 2, seed: 7, total_ns: 1_500_000, plan: &plan };
        let s = stats.speculation();
        assert_eq!(s["mean_accepted"], 2.285714);
        assert_eq!(s["accept_length"], 3.142857);
        assert_eq!(s["acceptance_rate"], 0.571429);
        assert_eq!(s["width_hist"], json!({"0": 4, "2": 8, "4": 2, "8": 4}));
        assert_eq!(s["per_position"][1], json!({"drafted": 14, "accepted": 8}));
        assert_eq!(s["tail"]["rate"], 0.357143);
        assert_eq!(s["proposers"]["suffix"]["match_len_mean"], Value::Null);
        assert_eq!(stats.usage()["prompt_tokens"], 10, "one prompt, two choices");
        assert_eq!(stats.usage()["total_tokens"], 60);
        let t = stats.timings();
        assert_eq!((&t["predicted_per_second"], &t["predicted_per_token_ms"]), (&json!(2000.0), &json!(0.5)));
        assert_eq!((&t["draft_n"], &t["seed"], &t["prompt_per_second"]), (&json!(56), &json!(7), &json!(0.0)));
    }
}
