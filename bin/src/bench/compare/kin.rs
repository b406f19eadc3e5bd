//! Whether two results are of the same question: the same model, the same prompts, the same way of replaying them.

use engine::api::Strategy;

use super::harmless;
use crate::bench::result::{Arm, BenchResult, CostFacts, ModelFacts, TraceFacts};

/// What two results differ in beside their figures.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differences {
    /// Of these each makes a comparison meaningless.
    pub against: Vec<String>,
    /// These may be what is compared.
    pub beside: Vec<String>,
}

/// Holds two results against each other.
pub fn differences(a: &BenchResult, b: &BenchResult) -> Differences {
    let mut out = Differences::default();
    let mut against = |what: &str, a: String, b: String| {
        if a != b {
            out.against.push(harmless(&format!("{what}: {a} against {b}")));
        }
    };
    against("mode", a.mode.clone(), b.mode.clone());
    let (one, other) = models(&a.model, &b.model);
    against("model", one, other);
    let sources = |result: &BenchResult| result.traces.iter().map(|t| t.source.clone()).collect::<Vec<_>>().join(", ");
    against("workloads", sources(a), sources(b));
    for facts in &a.traces {
        let Some(other) = b.traces.iter().find(|other| other.source == facts.source) else { continue };
        let told = |t: &TraceFacts| {
            format!("{} answers of {} tokens, prompts of {}", t.outputs_n, t.output_tokens, t.prompt_tokens)
        };
        against(&format!("prompts of {}", facts.source), told(facts), told(other));
    }
    against("tokens that off commits", committed(a, b), committed(b, a));
    let rates = |result: &BenchResult| format!("{:?}", result.run.accept_rates);
    against("chances of acceptance", rates(a), rates(b));
    if !a.run.accept_rates.is_empty() {
        against("seed of the dice", a.run.seed.to_string(), b.run.seed.to_string());
    }
    let alike = a.cost.as_ref().zip(b.cost.as_ref()).is_some_and(|(a, b)| same_cost(a, b));
    if a.run.simulated && b.run.simulated && !alike {
        out.against.push("cost tables that times are simulated with: give both runs the same --cost FILE".to_owned());
    }

    let mut beside = |what: &str, a: String, b: String| {
        if a != b {
            out.beside.push(harmless(&format!("{what}: {a} against {b}")));
        }
    };
    beside("version", a.host.version.clone(), b.host.version.clone());
    beside("processor", a.host.cpu.clone(), b.host.cpu.clone());
    beside("instructions", a.host.isa.clone(), b.host.isa.clone());
    let numbers = |result: &BenchResult| {
        let run = &result.run;
        [run.threads, run.concurrency, run.context_tokens, run.repeats, run.warmup].map(|n| n.to_string())
    };
    let names = ["threads", "sessions at once", "context", "rounds", "rounds before them"];
    for ((name, a), b) in names.into_iter().zip(numbers(a)).zip(numbers(b)) {
        beside(name, a, b);
    }
    for arm in &a.arms {
        if let Some(other) = b.arms.iter().find(|other| other.label == arm.label)
            && other.settings != arm.settings
        {
            let told = |arm: &Arm| serde_json::to_string(&arm.settings).unwrap_or_default();
            beside(&format!("settings of {}", arm.label), told(arm), told(other));
        }
    }
    out
}

/// The models in words: by their tensors where both tell, else by their names.
fn models(a: &ModelFacts, b: &ModelFacts) -> (String, String) {
    let short = |model: &ModelFacts, digest: String| format!("{} (tensors {:.12})", model.name, digest);
    match (&a.tensor_tree_sha256, &b.tensor_tree_sha256) {
        (Some(one), Some(other)) if one == other => (String::new(), String::new()),
        (Some(one), Some(other)) => (short(a, one.to_string()), short(b, other.to_string())),
        _ => (a.name.clone(), b.name.clone()),
    }
}

/// Digest of what `off` committed, if both tell one.
fn committed(result: &BenchResult, other: &BenchResult) -> String {
    let digest = |result: &BenchResult| {
        let off = result.arms.iter().find(|arm| arm.strategy == Some(Strategy::Off));
        off.and_then(|arm| arm.output_sha256).map(|digest| format!("{:.12}", digest.to_string()))
    };
    digest(result).filter(|_| digest(other).is_some()).unwrap_or_default()
}

/// Whether two tables cost the same, wherever they are from.
pub fn same_cost(a: &CostFacts, b: &CostFacts) -> bool {
    (&a.rows_ms, a.draft_ms) == (&b.rows_ms, b.draft_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_the_same_wherever_they_are_from() {
        let table =
            |first: f64| CostFacts { rows_ms: [(1, first), (8, 3.0)].into(), draft_ms: 0.1, ..CostFacts::default() };
        let other = |of: fn(&mut CostFacts)| {
            let mut other = table(0.3);
            of(&mut other);
            other
        };
        assert!(same_cost(&table(0.3), &CostFacts { origin: "file".into(), ..table(0.3) }));
        assert!(!same_cost(&table(0.3), &table(0.1 + 0.2)));
        assert!(!same_cost(&table(0.3), &table(0.300001)));
        assert!(!same_cost(&table(0.3), &other(|cost| cost.draft_ms = 0.2)));
        assert!(!same_cost(&table(0.3), &other(|cost| _ = cost.rows_ms.remove(&8))));
        assert!(!same_cost(&table(0.3), &other(|cost| _ = cost.rows_ms.insert(16, 4.0))));
        let moved = CostFacts { rows_ms: [(1, 0.3), (4, 3.0)].into(), ..table(0.3) };
        assert!(!same_cost(&table(0.3), &moved));
    }
}
