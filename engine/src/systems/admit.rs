//! admit: rows for those that wait, pages for those that lost theirs. Strictly in turn: preempted rows first, oldest
//! admission first, then submissions as they wait: by priority, equals in arrival order. Nobody overtakes but those whose
//! reader is slow.
//!
//! A row begins behind what the prefix cache has of it, a further choice of one prompt where the first has computed it.
//! Leaves true: a row that starts now finds pages for its whole known history beside what the rows in prefill still
//! need, unless nothing else can run; then plan makes room. So a lone request always starts, and always ends.

use crate::api::{Event, Finish, Miss, Report};
use crate::ids::{Slot, Ticket, TokenId};
use crate::limits::{Limits, PAGE_TOKENS};
use crate::step::SlotOp;
use crate::tables::constraints::Constraints;
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::prefix::{Hit, Prefix};
use crate::tables::requests::{Phase, Requests};
use crate::tables::suffix::Suffix;
use crate::tables::survival::Survival;
use crate::tables::tokens::Tokens;
use crate::tables::waiting::{Room, Waiting};

/// Starts what can start; whether anything did.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn admit(
    waiting: &mut Waiting,
    requests: &mut Requests,
    tokens: &mut Tokens,
    pages: &mut Pages,
    prefix: &mut Prefix,
    suffix: &mut Suffix,
    survival: &mut Survival,
    outputs: &mut Outputs,
    constraints: &mut Constraints,
    counters: &mut Counters,
    outbox: &mut Outbox,
    ops: &mut Vec<SlotOp>,
    now_ns: u64,
) -> bool {
    let mut any = false;
    // A row whose reader is slow waits for the reader first, and holds nobody up meanwhile.
    for i in 0..requests.live.len() {
        let slot = requests.live[i];
        let s = slot.index();
        if requests.phase[s] != Phase::Preempted || requests.stalled(slot) {
            continue;
        }
        let room = room(requests.ticket[s], requests, pages, prefix);
        if waiting.refused == Some(room) {
            return any;
        }
        let history = tokens.history(slot, requests.token_len[s]);
        let hit = look_up(prefix, requests.cache[s], requests.scores(slot), history);
        // One page of headroom for every running row: without it the row would lose its pages again at once.
        if !fits(requests, pages, requests.token_len[s], &hit, running(requests)) {
            waiting.refused = Some(room);
            return any;
        }
        begin(slot, &hit, requests, pages, ops);
        any = true;
    }
    while let Some(next) = waiting.front() {
        if !outbox.has_room() {
            break;
        }
        match next.sibling.and_then(|ticket| requests.find(ticket)) {
            Some(slot) if begins(requests, slot) => {
                // A page for it, and one for every row that runs.
                if requests.free_len() == 0 || pages.available() <= running(requests) {
                    break;
                }
                let Some((submission, _)) = waiting.pop() else { break };
                let (ticket, choice) = (submission.ticket, submission.sampling.choice);
                fork(
                    slot,
                    ticket,
                    choice,
                    requests,
                    tokens,
                    pages,
                    suffix,
                    survival,
                    outputs,
                    constraints,
                    counters,
                    outbox,
                    ops,
                )
                .expect("a free row was seen");
                any = true;
                continue;
            }
            Some(slot) if matches!(requests.phase[slot.index()], Phase::Prefill | Phase::Preempted) => break,
            _ => {}
        }
        let mut hit = Hit::default();
        // Without a token to come the prompt is computed all the same, but for its last token.
        if next.max_tokens > 0 || next.prompt.len() > 1 {
            if requests.free_len() == 0 {
                break;
            }
            let room = room(next.ticket, requests, pages, prefix);
            if waiting.refused == Some(room) {
                break;
            }
            hit = look_up(prefix, next.cache, next.prompt_logprobs, &next.prompt);
            if !fits(requests, pages, next.prompt.len() as u32, &hit, 0) {
                waiting.refused = Some(room);
                break;
            }
        }
        let Some((submission, arrived_ns)) = waiting.pop() else { break };
        any = true;
        let ticket = submission.ticket;
        if submission.max_tokens == 0 && hit.len as usize + 1 == submission.prompt.len() {
            let wait = now_ns - arrived_ns;
            let report = Report {
                prompt_tokens: submission.prompt.len() as u64,
                cached_tokens: u64::from(hit.len),
                cache_matched: u64::from(hit.matched),
                cache_miss: hit.miss,
                queue_ns: wait,
                total_ns: wait,
                ..Report::default()
            };
            outbox.push(Event::Finished { ticket, finish: Finish::MaxTokens, report: Box::new(report) });
            continue;
        }
        let slot = requests.take(&submission, arrived_ns, now_ns).expect("a free row was seen");
        assert_eq!(pages.blocks(slot), 0, "{slot} was given back with pages");
        tokens.start(slot, &submission.prompt);
        suffix.reset(slot, submission.speculation.suffix_min, submission.speculation.suffix_max);
        survival.reset(slot);
        outputs.start(slot, submission.show_special, submission.markers.clone());
        counters.reset(slot);
        let report = &mut counters.report[slot.index()];
        report.prompt_tokens = submission.prompt.len() as u64;
        report.cached_tokens = u64::from(hit.len);
        report.cache_matched = u64::from(hit.matched);
        report.cache_miss = hit.miss;
        begin(slot, &hit, requests, pages, ops);
        let (request, prompt) = (requests.id(slot), submission.prompt.len());
        constraints.start(slot, submission.constraint);
        tracing::info!(%request, prompt, cached = hit.len, miss = hit.miss.map(Miss::name), "admitted");
        outbox.push(Event::Admitted { ticket, request: requests.id(slot), cached: hit.len });
    }
    any
}

/// Whether a row has computed its prompt and nothing else.
fn begins(requests: &Requests, slot: Slot) -> bool {
    requests.phase[slot.index()] == Phase::Decode && requests.completion_len(slot) == 0
}

/// Makes a second row of a live one, as it is now: history, counters, index, output state and constraint are copied, pages are shared
/// and copied when first written. The new row is known as `ticket`, draws as `choice`, and is the youngest. `None` when no
/// row is free.
///
/// # Panics
/// If `from` is not live.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub(crate) fn fork(
    from: Slot,
    ticket: Ticket,
    choice: u32,
    requests: &mut Requests,
    tokens: &mut Tokens,
    pages: &mut Pages,
    suffix: &mut Suffix,
    survival: &mut Survival,
    outputs: &mut Outputs,
    constraints: &mut Constraints,
    counters: &mut Counters,
    outbox: &mut Outbox,
    ops: &mut Vec<SlotOp>,
) -> Option<Slot> {
    let phase = requests.phase[from.index()];
    assert!(!matches!(phase, Phase::Free | Phase::Done), "{from} is {phase:?} and cannot be forked");
    let to = requests.take_fork(from, ticket, choice)?;
    tokens.copy(from, to, requests.token_len[from.index()]);
    pages.share(from, to);
    suffix.copy(from, to);
    survival.copy(from, to);
    outputs.copy(from, to);
    constraints.copy(from, to);
    counters.copy(from, to);
    ops.push(SlotOp::Fork { from: Requests::state(from), to: Requests::state(to) });
    let cached = counters.report[to.index()].cached_tokens as u32;
    outbox.push(Event::Admitted { ticket, request: requests.id(to), cached });
    Some(to)
}

fn running(requests: &Requests) -> usize {
    requests.live.iter().filter(|s| requests.runs(**s)).count()
}

/// What the prefix cache has of a sequence; with `scores` every row of it is to be computed.
fn look_up(prefix: &mut Prefix, namespace: Option<u64>, scores: bool, tokens: &[TokenId]) -> Hit {
    match namespace.filter(|_| prefix.is_on()) {
        Some(_) if scores => Hit { miss: Some(Miss::PromptLogprobs), ..Hit::default() },
        Some(namespace) => prefix.look_up(namespace, tokens),
        None => Hit { miss: Some(Miss::Disabled), ..Hit::default() },
    }
}

/// Starts a row without pages behind `hit`.
fn begin(slot: Slot, hit: &Hit, requests: &mut Requests, pages: &mut Pages, ops: &mut Vec<SlotOp>) {
    let (s, state) = (slot.index(), Requests::state(slot));
    pages.adopt(slot, &hit.pages);
    requests.kv_len[s] = hit.len;
    requests.mtp_len[s] = hit.len;
    requests.kept_len[s] = hit.len;
    requests.phase[s] = if hit.len + 1 < requests.token_len[s] { Phase::Prefill } else { Phase::Decode };
    ops.push(match (hit.len, hit.checkpoint) {
        (_, Some(checkpoint)) => SlotOp::Restore { checkpoint, state },
        (0, None) => SlotOp::Reset { state },
        (kv_len, None) => SlotOp::Adopt { state, kv_len },
    });
}

/// What decides whether the next in turn fits.
fn room(ticket: Ticket, requests: &Requests, pages: &Pages, prefix: &Prefix) -> Room {
    let (running, promised) = (running(requests), promised(requests, pages));
    Room { ticket, pages: pages.changes(), prefix: prefix.changes(), running, promised }
}

/// Pages that the rows in prefill still need.
fn promised(requests: &Requests, pages: &Pages) -> usize {
    let prompts = requests.live.iter().filter(|s| requests.phase[s.index()] == Phase::Prefill);
    prompts.map(|s| Limits::pages_for(requests.token_len[s.index()] as usize).saturating_sub(pages.blocks(*s))).sum()
}

fn fits(requests: &Requests, pages: &Pages, tokens: u32, hit: &Hit, headroom: usize) -> bool {
    if running(requests) == 0 {
        return true;
    }
    // Pages that are known as a whole are shared; of one in part the row needs a copy.
    let wanted = Limits::pages_for(tokens as usize) - hit.len as usize / PAGE_TOKENS;
    wanted + headroom + promised(requests, pages) + pages.idle_of(&hit.pages) <= pages.available()
}
