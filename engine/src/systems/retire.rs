//! retire: finished and cancelled rows give everything back. Leaves true: a finished row holds nothing.

use crate::api::Event;
use crate::ids::Slot;
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::pages::Pages;
use crate::tables::requests::{Phase, Requests};

/// Frees rows that are done, and says so.
pub fn retire(requests: &mut Requests, pages: &mut Pages, counters: &mut Counters, outbox: &mut Outbox, now_ns: u64) {
    let done: Vec<Slot> = requests.live.iter().copied().filter(|s| requests.phase[s.index()] == Phase::Done).collect();
    for slot in done {
        let s = slot.index();
        let ticket = requests.ticket[s];
        pages.truncate(slot, 0);
        let held = pages.news(slot).map(|(held, free)| Event::Pages { ticket, held, free });
        let mut report = counters.take(slot);
        match requests.finish[s] {
            Some(finish) => {
                let (arrived, admitted) = (requests.arrived_ns[s], requests.admitted_ns[s]);
                let (first, last) = (requests.first_ns[s], requests.last_ns[s]);
                // Without any token (a fault at the first position) the prompt's end is now.
                let first = if first == 0 { now_ns } else { first };
                report.prompt_tokens = u64::from(requests.prompt_len[s]);
                report.queue_ns = admitted - arrived;
                report.prompt_ns = first - admitted;
                report.predicted_ns = last.saturating_sub(first);
                report.ttft_ns = first - arrived;
                report.total_ns = now_ns - arrived;
                tracing::info!(request = %requests.id(slot), ?finish, tokens = report.completion_tokens, "finished");
                outbox.close_delta(slot, ticket);
                held.into_iter().for_each(|held| outbox.push(held));
                outbox.push(Event::Finished { ticket, finish, report: Box::new(report) });
            }
            None => {
                report.prompt_tokens = u64::from(match requests.completion_len(slot) {
                    0 => requests.kv_len[s].min(requests.prompt_len[s]),
                    _ => requests.prompt_len[s],
                });
                report.total_ns = now_ns - requests.arrived_ns[s];
                tracing::info!(request = %requests.id(slot), tokens = report.completion_tokens, "cancelled");
                outbox.forget(slot, ticket);
                held.into_iter().for_each(|held| outbox.push(held));
                outbox.push(Event::Cancelled { ticket, report: Box::new(report) });
            }
        }
        requests.give_back(slot);
    }
}
