//! Figures as a table.

use std::fmt::Write as _;

use crate::bench::result::{Arm, BenchResult, TraceFacts, Void};

/// What is said of a source before it is replayed.
pub fn traces_line(facts: &TraceFacts) -> String {
    let mut line = format!(
        "{}: {} sessions, {} left out, {} answers; {} prompt tokens, {} answer tokens",
        facts.source, facts.sessions_n, facts.left_out_n, facts.outputs_n, facts.prompt_tokens, facts.output_tokens
    );
    if facts.prompts_cut_n > 0 {
        let (n, cut) = (facts.prompts_cut_n, facts.prompt_tokens_cut);
        _ = write!(line, "; {n} prompts cut to the context, {cut} tokens before it");
    }
    if facts.outputs_cut_n > 0 {
        let (n, cut) = (facts.outputs_cut_n, facts.output_tokens_cut);
        _ = write!(line, "; {n} answers cut, {cut} tokens behind it");
    }
    line
}

/// The result for people: a block for each source, and one for all where there are several.
pub fn table(result: &BenchResult) -> String {
    let mut out = String::new();
    let simulated = if result.run.simulated { ", time by the cost table" } else { "" };
    _ = writeln!(
        out,
        "mode {}, {} at once, {} rounds, context {}{simulated}",
        result.mode, result.run.concurrency, result.run.repeats, result.run.context_tokens
    );
    for workload in &result.workloads {
        let facts = result.traces.iter().find(|facts| facts.source == workload.source);
        let sessions = facts.map_or(0, |facts| facts.sessions_n - facts.left_out_n);
        block(&mut out, &format!("{}, {sessions} sessions", workload.source), &workload.arms);
    }
    if result.workloads.len() > 1 {
        block(&mut out, "all", &result.arms);
    }
    out
}

fn block(out: &mut String, title: &str, arms: &[Arm]) {
    let widest = arms.iter().map(|arm| arm.label.chars().count()).max().unwrap_or_default().max(12) + 1;
    _ = writeln!(out, "\n{title}");
    _ = writeln!(
        out,
        "  {:<widest$}{:>8}{:>9}{:>7}{:>9}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}{:>10}  output",
        "arm",
        "tokens",
        "tok/s",
        "x off",
        "tok/pass",
        "drafted",
        "accepted",
        "accept",
        "tail",
        "hits",
        "look us",
        "ttft ms"
    );
    for arm in arms {
        let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1}%", 100.0 * share));
        let (shares, total) = (&arm.shares, &arm.speculation.total);
        let output = match (&arm.failed, &arm.void) {
            (Some(reason), _) => format!("failed: {reason}"),
            (None, Some(void)) => void_text(void),
            (None, None) if arm.strategy.is_none() => "of another server".to_owned(),
            (None, None) => "as off".to_owned(),
        };
        let lookup =
            if arm.times.lookup_us.n == 0 { "-".to_owned() } else { format!("{:.2}", arm.times.lookup_us.mean) };
        _ = writeln!(
            out,
            "  {:<widest$}{:>8}{:>9.1}{:>7}{:>9}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}{:>10.1}  {output}",
            arm.label,
            arm.speculation.completion_tokens,
            arm.decode_tok_s.median,
            arm.speedup.map_or("-".to_owned(), |x| format!("{x:.2}")),
            shares.tokens_per_pass.map_or("-".to_owned(), |x| format!("{x:.2}")),
            total.drafted_n,
            total.accepted_n,
            share(shares.acceptance_rate),
            share(shares.tail_rate),
            share(shares.suffix_hit_rate),
            lookup,
            arm.times.ttft_ms.p50,
        );
    }
}

/// Why an arm's figures do not count, in words.
pub fn void_text(void: &Void) -> String {
    let Void { session, turn, position, expected, found } = void;
    format!("void: {session}, turn {turn}, position {position} is {found}, {expected} under off")
}
