//! retire: finished and cancelled rows give everything back. Leaves true: a finished row holds nothing.

use crate::api::{Event, Finish};
use crate::delta::Committed;
use crate::step::SlotOp;
use crate::systems::keep::keep_row;
use crate::tables::constraints::Constraints;
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::prefix::Prefix;
use crate::tables::requests::{Phase, Requests};
use crate::tables::tokens::Tokens;

/// Frees rows that are done, and says so. The prefix cache keeps what rows without a state have computed; of others it
/// has what was kept on the way.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn retire(
    requests: &mut Requests,
    tokens: &Tokens,
    pages: &mut Pages,
    prefix: &mut Prefix,
    counters: &mut Counters,
    outbox: &mut Outbox,
    outputs: &mut Outputs,
    constraints: &mut Constraints,
    ops: &mut Vec<SlotOp>,
    now_ns: u64,
) {
    let done = |requests: &Requests| requests.live.iter().copied().find(|s| requests.phase[s.index()] == Phase::Done);
    while let Some(slot) = done(requests) {
        let s = slot.index();
        let ticket = requests.ticket[s];
        if matches!(requests.finish[s], Some(finish) if !matches!(finish, Finish::Fault(_))) && !prefix.is_stateful() {
            keep_row(slot, true, requests, tokens, pages, prefix, counters, ops);
        }
        pages.truncate(slot, 0);
        let held = pages.news(slot).map(|(held, free)| Event::Pages { ticket, held, free });
        let mut report = counters.take(slot);
        report.invalid_utf8 = outputs.state[s].invalid();
        match requests.finish[s] {
            Some(finish) => {
                requests.put_times(slot, now_ns, &mut report);
                tracing::info!(request = %requests.id(slot), ?finish, tokens = report.completion_tokens, "finished");
                outbox.close_prompt(slot, ticket);
                outbox.close_delta(slot, ticket);
                held.into_iter().for_each(|held| outbox.push(held));
                outbox.push(Event::Finished { ticket, finish, report: Box::new(report) });
            }
            None => {
                report.prompt_tokens = u64::from(match requests.completion_len(slot) {
                    0 => requests.kv_len[s].min(requests.prompt_len[s]),
                    _ => requests.prompt_len[s],
                });
                // A row that was preempted has nothing now.
                report.prompt_tokens = report.prompt_tokens.max(report.cached_tokens);
                report.total_ns = now_ns - requests.arrived_ns[s];
                tracing::info!(request = %requests.id(slot), tokens = report.completion_tokens, "cancelled");
                outbox.take_back(slot, ticket);
                let Committed { tokens, mut said, .. } = outbox.take(slot);
                outputs.state[s].finish(&mut said);
                report.invalid_utf8 = outputs.state[s].invalid();
                held.into_iter().for_each(|held| outbox.push(held));
                outbox.push(Event::Cancelled { ticket, tokens, said, report: Box::new(report) });
            }
        }
        constraints.give_back(slot);
        requests.give_back(slot);
    }
}
