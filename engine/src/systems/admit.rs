//! admit: rows for those that wait, pages for those that lost theirs. Strictly in turn: preempted rows first, oldest
//! admission first, then submissions in arrival order; nobody overtakes but those whose reader is slow.
//!
//! Leaves true: a row that starts now finds pages for its whole known history beside what the rows in prefill still
//! need, unless nothing else can run; then plan makes room. So a lone request always starts, and always ends.

use crate::api::{Event, Finish, Report};
use crate::ids::Slot;
use crate::limits::Limits;
use crate::step::SlotOp;
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::requests::{Phase, Requests};
use crate::tables::suffix::Suffix;
use crate::tables::survival::Survival;
use crate::tables::tokens::Tokens;
use crate::tables::waiting::Waiting;

/// Starts what can start; whether anything did.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn admit(
    waiting: &mut Waiting,
    requests: &mut Requests,
    tokens: &mut Tokens,
    pages: &Pages,
    suffix: &mut Suffix,
    survival: &mut Survival,
    outputs: &mut Outputs,
    counters: &mut Counters,
    outbox: &mut Outbox,
    ops: &mut Vec<SlotOp>,
    now_ns: u64,
) -> bool {
    let mut any = false;
    // A row whose reader is slow waits for the reader first, and holds nobody up meanwhile.
    let comes_back = |s: &Slot| requests.phase[s.index()] == Phase::Preempted && !requests.stalled(*s);
    let preempted: Vec<Slot> = requests.live.iter().copied().filter(comes_back).collect();
    for slot in preempted {
        let s = slot.index();
        // One page of headroom for every running row: without it the row would lose its pages again at once.
        if !fits(requests, pages, requests.token_len[s], running(requests)) {
            return any;
        }
        requests.phase[s] = if requests.token_len[s] > 1 { Phase::Prefill } else { Phase::Decode };
        ops.push(SlotOp::Reset { state: Requests::state(slot) });
        any = true;
    }
    while let Some(next) = waiting.front() {
        if !outbox.has_room() {
            break;
        }
        if next.max_tokens > 0 && (requests.free_len() == 0 || !fits(requests, pages, next.prompt.len() as u32, 0)) {
            break;
        }
        let Some((submission, arrived_ns)) = waiting.pop() else { break };
        any = true;
        let ticket = submission.ticket;
        if submission.max_tokens == 0 {
            let prompt_tokens = submission.prompt.len() as u64;
            let wait = now_ns - arrived_ns;
            let report = Report { prompt_tokens, queue_ns: wait, total_ns: wait, ..Report::default() };
            outbox.push(Event::Finished { ticket, finish: Finish::MaxTokens, report: Box::new(report) });
            continue;
        }
        let slot = requests.take(&submission, arrived_ns, now_ns).expect("a free row was seen");
        assert_eq!(pages.blocks(slot), 0, "{slot} was given back with pages");
        tokens.start(slot, &submission.prompt);
        suffix.reset(slot, submission.speculation.suffix_min, submission.speculation.suffix_max);
        survival.reset(slot);
        outputs.start(slot, submission.show_special);
        counters.reset(slot);
        ops.push(SlotOp::Reset { state: Requests::state(slot) });
        tracing::info!(request = %requests.id(slot), prompt = submission.prompt.len(), "admitted");
        outbox.push(Event::Admitted { ticket, request: requests.id(slot) });
    }
    any
}

fn running(requests: &Requests) -> usize {
    requests.live.iter().filter(|s| requests.runs(**s)).count()
}

fn fits(requests: &Requests, pages: &Pages, tokens: u32, headroom: usize) -> bool {
    if running(requests) == 0 {
        return true;
    }
    let promised: usize = requests
        .live
        .iter()
        .filter(|s| requests.phase[s.index()] == Phase::Prefill)
        .map(|s| Limits::pages_for(requests.token_len[s.index()] as usize).saturating_sub(pages.blocks(*s)))
        .sum();
    Limits::pages_for(tokens as usize) + headroom + promised <= pages.free_len()
}
