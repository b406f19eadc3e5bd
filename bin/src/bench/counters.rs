//! What is counted of requests, under the names of the `speculation` object of an answer, and the identities that tie the
//! counts together. Counters of the engine and of a server's answers are added and checked alike.

use std::collections::BTreeMap;

use engine::api::{DraftCounts, Report, Strategy};
use serde::{Deserialize, Serialize};

/// What became of the drafts at one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Position {
    /// Rows of passes.
    pub drafted: u64,
    /// Compared with the target's choice. Absent in the figures of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tested: Option<u64>,
    /// Committed.
    pub accepted: u64,
}

/// Shares of counters. `None`: nothing to divide by.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// accepted / windows.
    pub mean_accepted: Option<f64>,
    /// (accepted + the target's own tokens of windows) / windows.
    pub accept_length: Option<f64>,
    /// accepted / drafted.
    pub acceptance_rate: Option<f64>,
    /// accepted / (accepted + rejected) of the MTP block.
    pub mtp_tested_rate: Option<f64>,
    /// accepted / drafted of suffix tails whose whole MTP prefix agreed.
    pub tail_rate: Option<f64>,
    /// hits / look-ups of the suffix index.
    pub suffix_hit_rate: Option<f64>,
    /// completion tokens / (steps + first tokens): passes that `off` would need for each that was run.
    pub tokens_per_pass: Option<f64>,
}

/// What is counted of requests, as the `speculation` object of an answer has it, and tokens of prompts and answers. Other
/// fields of that object are passed over.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct Counters {
    /// Committed tokens, end tokens included: `usage.completion_tokens` of an answer.
    pub completion_tokens: u64,
    pub steps_n: u64,
    pub windows_n: u64,
    pub plain_n: u64,
    pub first_n: u64,
    pub bonus_n: u64,
    pub forced_n: u64,
    #[serde(flatten)]
    pub total: DraftCounters,
    pub proposers: BTreeMap<String, ProposerCounters>,
    pub tail: TailCounters,
    pub width_hist: BTreeMap<usize, u64>,
    pub accepted_hist: BTreeMap<usize, u64>,
    pub per_position: Vec<Position>,
}

/// What became of drafts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct DraftCounters {
    pub proposed_n: u64,
    pub trimmed_n: u64,
    pub drafted_n: u64,
    pub accepted_n: u64,
    pub rejected_n: u64,
    pub unreached_n: u64,
    pub discarded_n: u64,
}

/// One proposer.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct ProposerCounters {
    #[serde(flatten)]
    pub drafts: DraftCounters,
    #[serde(skip_serializing_if = "is_zero")]
    pub lookups_n: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub hits_n: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub misses_n: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped_n: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Composite windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct TailCounters {
    pub windows_n: u64,
    pub tested_n: u64,
    pub drafted_tested_n: u64,
    pub accepted_n: u64,
}

impl From<&DraftCounts> for DraftCounters {
    fn from(c: &DraftCounts) -> Self {
        Self {
            proposed_n: c.proposed,
            trimmed_n: c.trimmed,
            drafted_n: c.drafted,
            accepted_n: c.accepted,
            rejected_n: c.rejected,
            unreached_n: c.unreached,
            discarded_n: c.discarded,
        }
    }
}

impl DraftCounters {
    fn add(&mut self, other: &Self) {
        self.proposed_n += other.proposed_n;
        self.trimmed_n += other.trimmed_n;
        self.drafted_n += other.drafted_n;
        self.accepted_n += other.accepted_n;
        self.rejected_n += other.rejected_n;
        self.unreached_n += other.unreached_n;
        self.discarded_n += other.discarded_n;
    }
}

impl Counters {
    /// Of one request, which `strategy` drafted for.
    pub fn of(report: &Report, strategy: Strategy) -> Self {
        let mut proposers = BTreeMap::new();
        if strategy.uses_mtp() {
            proposers.insert("mtp".to_owned(), ProposerCounters { drafts: (&report.mtp).into(), ..Default::default() });
        }
        if strategy.uses_suffix() {
            let looked = &report.suffix_lookups;
            let suffix = ProposerCounters {
                drafts: (&report.suffix).into(),
                lookups_n: looked.lookups,
                hits_n: looked.hits,
                misses_n: looked.misses,
                skipped_n: looked.skipped,
            };
            proposers.insert("suffix".to_owned(), suffix);
        }
        let histogram = |counts: &[u64]| counts.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let used = report.per_position.iter().rposition(|p| p.0 > 0).map_or(0, |last| last + 1);
        let position = |&(drafted, accepted): &(u64, u64)| Position { drafted, tested: None, accepted };
        Self {
            completion_tokens: report.completion_tokens,
            steps_n: report.steps,
            windows_n: report.windows,
            plain_n: report.plain,
            first_n: report.first,
            bonus_n: report.bonus,
            forced_n: report.forced,
            total: (&report.total).into(),
            proposers,
            tail: TailCounters {
                windows_n: report.tail_windows,
                tested_n: report.tail_tested,
                drafted_tested_n: report.tail_drafted_tested,
                accepted_n: report.tail_accepted,
            },
            width_hist: histogram(&report.width_hist),
            accepted_hist: histogram(&report.accepted_hist),
            per_position: report.per_position[..used].iter().map(position).collect(),
        }
    }

    /// Adds another request, or several.
    pub fn add(&mut self, other: &Self) {
        self.completion_tokens += other.completion_tokens;
        self.steps_n += other.steps_n;
        self.windows_n += other.windows_n;
        self.plain_n += other.plain_n;
        self.first_n += other.first_n;
        self.bonus_n += other.bonus_n;
        self.forced_n += other.forced_n;
        self.total.add(&other.total);
        for (name, theirs) in &other.proposers {
            let ours = self.proposers.entry(name.clone()).or_default();
            ours.drafts.add(&theirs.drafts);
            ours.lookups_n += theirs.lookups_n;
            ours.hits_n += theirs.hits_n;
            ours.misses_n += theirs.misses_n;
            ours.skipped_n += theirs.skipped_n;
        }
        self.tail.windows_n += other.tail.windows_n;
        self.tail.tested_n += other.tail.tested_n;
        self.tail.drafted_tested_n += other.tail.drafted_tested_n;
        self.tail.accepted_n += other.tail.accepted_n;
        for (ours, theirs) in
            [(&mut self.width_hist, &other.width_hist), (&mut self.accepted_hist, &other.accepted_hist)]
        {
            for (length, n) in theirs {
                *ours.entry(*length).or_default() += n;
            }
        }
        if self.per_position.len() < other.per_position.len() {
            self.per_position.resize(other.per_position.len(), Position::default());
        }
        for (ours, theirs) in self.per_position.iter_mut().zip(&other.per_position) {
            ours.drafted += theirs.drafted;
            ours.accepted += theirs.accepted;
        }
    }

    /// Holds the counters to their identities (numbers as in the HTTP interface's description of them).
    ///
    /// # Errors
    /// The first that does not hold, with its figures.
    pub fn check(&self) -> Result<(), String> {
        let same = |what: &str, left: u64, right: u64| match left == right {
            true => Ok(()),
            false => Err(format!("{what}: {left} is not {right}")),
        };
        let t = &self.total;
        let from = self.first_n + t.accepted_n + self.bonus_n + self.forced_n;
        same("1, completion_tokens against first + accepted + bonus + forced", self.completion_tokens, from)?;
        let mut sum = DraftCounters::default();
        let parts = self.proposers.iter().map(|(name, p)| (name.as_str(), &p.drafts));
        for (name, c) in parts.chain([("all proposers", t)]) {
            let fates = c.accepted_n + c.rejected_n + c.unreached_n + c.discarded_n;
            same(&format!("2, drafted of {name} against what became of them"), c.drafted_n, fates)?;
            same(&format!("2, proposed of {name}"), c.proposed_n, c.trimmed_n + c.drafted_n)?;
        }
        self.proposers.values().for_each(|p| sum.add(&p.drafts));
        if sum != *t {
            return Err(format!("2, the proposers together are {sum:?}, and the total is {t:?}"));
        }
        let weighed = |hist: &BTreeMap<usize, u64>| hist.iter().map(|(length, n)| *length as u64 * n).sum::<u64>();
        same("3, steps by width", self.width_hist.values().sum(), self.steps_n)?;
        same("3, steps", self.steps_n, self.windows_n + self.plain_n)?;
        same("3, drafts by width", weighed(&self.width_hist), t.drafted_n)?;
        same("4, windows by what was accepted", self.accepted_hist.values().sum(), self.windows_n)?;
        same("4, accepted by window", weighed(&self.accepted_hist), t.accepted_n)?;
        same("5, drafted by position", self.per_position.iter().map(|p| p.drafted).sum(), t.drafted_n)?;
        same("5, accepted by position", self.per_position.iter().map(|p| p.accepted).sum(), t.accepted_n)?;
        if let Some(p) = self.per_position.windows(2).position(|two| two[1].accepted > two[0].accepted) {
            return Err(format!("5, position {} was accepted more often than the one before it", p + 1));
        }
        if t.rejected_n > self.windows_n {
            return Err(format!("6, {} rejected in {} windows", t.rejected_n, self.windows_n));
        }
        for (name, p) in &self.proposers {
            same(&format!("look-ups of {name}"), p.lookups_n, p.hits_n + p.misses_n)?;
        }
        Ok(())
    }

    /// Shares of the counters.
    pub fn shares(&self) -> Shares {
        let share = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        let proposer = |name: &str| self.proposers.get(name).copied().unwrap_or_default();
        let (mtp, suffix) = (proposer("mtp").drafts, proposer("suffix"));
        // A plain step always commits the target's own token, so the windows have the rest.
        let own = self.bonus_n.saturating_sub(self.plain_n);
        Shares {
            mean_accepted: share(self.total.accepted_n, self.windows_n),
            accept_length: share(self.total.accepted_n + own, self.windows_n),
            acceptance_rate: share(self.total.accepted_n, self.total.drafted_n),
            mtp_tested_rate: share(mtp.accepted_n, mtp.accepted_n + mtp.rejected_n),
            tail_rate: share(self.tail.accepted_n, self.tail.drafted_tested_n),
            suffix_hit_rate: share(suffix.hits_n, suffix.lookups_n),
            tokens_per_pass: share(self.completion_tokens, self.steps_n + self.first_n),
        }
    }
}

#[cfg(test)]
mod tests;
