//! commit: after admission the only writer of what a request is. Walks each window's verdict token by token: end token,
//! stop string, the constraint's end, then limits; nothing after the end is kept or counted.
//!
//! A row whose time is over ends too, with what it has, whatever it was at.
//!
//! Leaves true: in decode `kv_len == token_len - 1`; the identities of the report; pages past the anchor are free.

use crate::accept::{self, Fate};
use crate::api::{Finish, Origin, TokenLogprob};
use crate::channels::Said;
use crate::ids::{Slot, TokenId};
use crate::limits::Limits;
use crate::pieces::{PieceFlags, Pieces};
use crate::rules;
use crate::step::{Fault, SlotOp, StepResult, TrunkWork};
use crate::tables::constraints::{Constraints, leaves_one};
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::requests::{Phase, Requests};
use crate::tables::survival::Survival;
use crate::tables::tokens::Tokens;
use crate::tables::windows::Windows;

/// Commits the pass. `trunk` holds the prompt segments first, then one segment a window.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn commit(
    requests: &mut Requests,
    tokens: &mut Tokens,
    pages: &mut Pages,
    survival: &mut Survival,
    outputs: &mut Outputs,
    constraints: &mut Constraints,
    counters: &mut Counters,
    outbox: &mut Outbox,
    ops: &mut Vec<SlotOp>,
    plans: &Plans,
    windows: &Windows,
    trunk: &TrunkWork,
    result: &StepResult,
    pieces: &Pieces,
    limits: &Limits,
    vocab: usize,
    now_ns: u64,
) {
    let prompts = trunk.state.len() - windows.len();
    let mut rule = 0;
    for segment in 0..prompts {
        let slot = Slot(trunk.state[segment].0);
        let s = slot.index();
        let rules = rule..trunk.rules.row.partition_point(|row| *row < trunk.row_start[segment + 1]);
        rule = rules.end;
        if let Some(fault) = result.fault[segment] {
            // A row that was preempted has text on its way.
            outputs.state[s].finish(&mut outbox.committed[s].said);
            requests.finish[s] = Some(Finish::Fault(fault));
            requests.phase[s] = Phase::Done;
            continue;
        }
        requests.kv_len[s] += trunk.committed[segment];
        for rule in rules {
            let token = trunk.rules.known[rule];
            outbox.scores[s].push(scored(token, rule, result));
            requests.scored_len[s] += 1;
        }
        // What is computed again after a preemption is no news.
        if requests.completion_len(slot) == 0 {
            tell_prompt(slot, requests.kv_len[s], requests, outbox, now_ns);
        }
        if requests.kv_len[s] + 1 == requests.token_len[s] {
            requests.phase[s] = Phase::Decode;
            if requests.max_tokens[s] == 0 {
                requests.finish[s] = Some(Finish::MaxTokens);
                requests.phase[s] = Phase::Done;
            }
        }
    }
    for row in 0..windows.len() {
        let segment = prompts + row;
        let slot = windows.slot[row];
        let walk = walk(
            slot,
            row,
            segment,
            rule,
            requests,
            tokens,
            outputs,
            constraints,
            outbox,
            windows,
            result,
            pieces,
            limits,
            now_ns,
        );
        let forced = trunk.rules.mask_of(rule + walk.agreed as usize, vocab).is_some_and(leaves_one);
        if forced && walk.bonus && plans.counted[slot.index()] {
            *outbox.committed[slot.index()].origins.last_mut().expect("it was said") = Origin::Forced;
        }
        rule += 1 + windows.draft_len(row);
        count(slot, row, walk, forced, plans, windows, counters);
        let s = slot.index();
        counters.report[s].completion_tokens = u64::from(requests.completion_len(slot));
        counters.report[s].reasoning += u64::from(walk.reasoning);
        // Of a row that ends, too: retire keeps what is computed. A row of a fault may be anything.
        if !matches!(walk.finish, Some(Finish::Fault(_))) {
            requests.kv_len[s] += 1 + walk.accepted;
        }
        if !plans.counted[s] && walk.bonus {
            tell_prompt(slot, requests.prompt_len[s], requests, outbox, now_ns);
        }
        if requests.reports[s] && !outbox.committed[s].tokens.is_empty() {
            let mut report = counters.report[s].clone();
            requests.put_times(slot, now_ns, &mut report);
            outbox.committed[s].report = Some(Box::new(report));
        }
        if let Some(finish) = walk.finish {
            outputs.state[s].finish(&mut outbox.committed[s].said);
            requests.finish[s] = Some(finish);
            requests.phase[s] = Phase::Done;
            continue;
        }
        let drafts = windows.draft_len(row) as u32;
        if walk.accepted < drafts {
            ops.push(SlotOp::Truncate { state: Requests::state(slot), kv_len: requests.kv_len[s] });
        }
        pages.truncate(slot, requests.kv_len[s] + 1);
        let mtp = windows.mtp_len[row];
        survival.observe_mtp(slot, walk.accepted.min(mtp), walk.accepted < mtp);
        if walk.accepted >= mtp && mtp < drafts {
            survival.observe_suffix(slot, windows.match_len[row], walk.accepted - mtp, walk.accepted < drafts);
        }
    }
    for i in 0..requests.live.len() {
        let s = requests.live[i].index();
        if requests.phase[s] != Phase::Done && requests.deadline_ns[s] <= now_ns {
            outputs.state[s].finish(&mut outbox.committed[s].said);
            requests.finish[s] = Some(Finish::TimedOut);
            requests.phase[s] = Phase::Done;
        }
    }
}

/// What a rule came to.
fn scored(token: TokenId, rule: usize, result: &StepResult) -> TokenLogprob {
    let top = &result.top[result.top_start[rule] as usize..result.top_start[rule + 1] as usize];
    TokenLogprob { token, logprob: result.logprob[rule], top: top.to_vec() }
}

/// So much of a prompt is computed, where somebody wants to know.
fn tell_prompt(slot: Slot, processed: u32, requests: &Requests, outbox: &mut Outbox, now_ns: u64) {
    let s = slot.index();
    if requests.progress[s] || !outbox.scores[s].is_empty() {
        outbox.prompt[s] = Some((processed, now_ns - requests.admitted_ns[s]));
    }
}

/// What a walk did.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// Leading drafts that the target agrees with.
    agreed: u32,
    /// Drafts committed.
    accepted: u32,
    /// The target's own token was committed behind them.
    bonus: bool,
    /// Tokens of thinking among all of these.
    reasoning: u32,
    /// Why the choice ended, if it did.
    finish: Option<Finish>,
}

#[expect(clippy::too_many_arguments, reason = "a part of commit, over its columns")]
fn walk(
    slot: Slot,
    row: usize,
    segment: usize,
    rule: usize,
    requests: &mut Requests,
    tokens: &mut Tokens,
    outputs: &mut Outputs,
    constraints: &mut Constraints,
    outbox: &mut Outbox,
    windows: &Windows,
    result: &StepResult,
    pieces: &Pieces,
    limits: &Limits,
    now_ns: u64,
) -> Walk {
    let s = slot.index();
    let drafts = windows.drafts(row);
    let agreed = result.accepted[segment];
    assert!(agreed as usize <= drafts.len(), "{slot}: {agreed} of {} drafts accepted", drafts.len());
    outbox.committed[s].drafted += drafts.len() as u32;
    let mut walk = Walk { agreed, accepted: 0, bonus: false, reasoning: 0, finish: None };
    let accepted = drafts[..agreed as usize].iter().copied();
    for (i, token) in accepted.chain([result.next[segment]]).enumerate() {
        let own = i == agreed as usize;
        if own && let Some(fault) = result.fault[segment] {
            walk.finish = Some(Finish::Fault(fault));
            break;
        }
        assert!(!token.is_none(), "{slot}: a verdict without a token");
        if !constraints.commit(slot, token) {
            // It was allowed by a mask, so the constraint has given up since.
            walk.finish = Some(Finish::Fault(Fault::Barred));
            break;
        }
        tokens.set(slot, requests.token_len[s], token);
        requests.token_len[s] += 1;
        if requests.first_ns[s] == 0 {
            requests.first_ns[s] = now_ns;
        }
        requests.last_ns[s] = now_ns;
        outbox.committed[s].tokens.push(token);
        outbox.committed[s].origins.push(match own {
            true => Origin::Target,
            false if (i as u32) < windows.mtp_len[row] => Origin::Mtp,
            false => Origin::Suffix,
        });
        if requests.logprobs[s].is_some() {
            outbox.committed[s].logprobs.push(scored(token, rule + i, result));
        }
        walk.accepted += u32::from(!own);
        walk.bonus |= own;
        let (thinks, ended) = (outputs.thinks(slot), constraints.ended(slot));
        walk.finish = judge(slot, token, ended, requests, outputs, &mut outbox.committed[s].said, pieces, limits);
        let committed = &mut outbox.committed[s];
        committed.cuts.push(committed.said.text.len() as u32);
        walk.reasoning += u32::from(thinks || outputs.thinks(slot));
        if walk.finish.is_some() {
            break;
        }
    }
    walk
}

/// Whether the token just committed ends the choice: end token, stop string, the end of its constraint (`ended`), then
/// limits. Releases its text.
#[expect(clippy::too_many_arguments, reason = "a part of commit, over its columns")]
fn judge(
    slot: Slot,
    token: TokenId,
    ended: bool,
    requests: &Requests,
    outputs: &mut Outputs,
    said: &mut Said,
    pieces: &Pieces,
    limits: &Limits,
) -> Option<Finish> {
    let s = slot.index();
    let stop = &requests.stop[s];
    let completed = requests.completion_len(slot);
    // A constraint lets a choice end where the request would have its end tokens ignored.
    let ends = rules::ends(stop, pieces, token) || (ended && pieces.is_end(token));
    let special = pieces.flags(token).intersects(PieceFlags::CONTROL | PieceFlags::END);
    let shown = !stop.tokens.contains(&token) && (!special || outputs.show_special[s]);
    // A marker acts whether it is shown or not.
    let bytes = if shown { pieces.bytes(token) } else { &[] };
    let obey = completed >= stop.min_tokens && !ends;
    if let Some(index) = outputs.token(slot, token, bytes, stop, obey, said) {
        return Some(Finish::StopString(index));
    }
    if ends || ended {
        Some(Finish::EndToken(token))
    } else if completed == requests.max_tokens[s] {
        Some(Finish::MaxTokens)
    } else if requests.token_len[s] as usize == limits.context {
        Some(Finish::ContextFull)
    } else {
        None
    }
}

/// Counts a step, draft by draft.
/// `forced`: the constraint left the token behind the accepted drafts alone.
fn count(slot: Slot, row: usize, walk: Walk, forced: bool, plans: &Plans, windows: &Windows, counters: &mut Counters) {
    let report = &mut counters.report[slot.index()];
    let (mtp, tail) = (windows.mtp_len[row], windows.suffix_len[row]);
    let drafts = mtp + tail;
    if !plans.counted[slot.index()] {
        assert_eq!(drafts, 0, "{slot}: the first step has no draft");
        report.first += u64::from(walk.bonus);
        return;
    }
    report.steps += 1;
    report.windows += u64::from(drafts > 0);
    report.plain += u64::from(drafts == 0);
    report.bonus += u64::from(walk.bonus && !forced);
    report.forced += u64::from(walk.bonus && forced);
    report.width_hist[drafts as usize] += 1;
    if drafts > 0 {
        report.accepted_hist[walk.accepted as usize] += 1;
    }
    for position in 0..drafts {
        let fate = accept::fate(position, walk.accepted, !walk.bonus);
        accept::count(if position < mtp { &mut report.mtp } else { &mut report.suffix }, fate);
        let at = &mut report.per_position[position as usize];
        at.0 += 1;
        at.1 += u64::from(fate == Fate::Accepted);
    }
    if mtp > 0 && tail > 0 {
        report.tail_windows += 1;
        if walk.agreed >= mtp {
            report.tail_tested += 1;
            report.tail_drafted_tested += u64::from(tail);
            report.tail_accepted += u64::from(walk.accepted.saturating_sub(mtp));
        }
    }
    report.total = report.mtp;
    report.total.add(&report.suffix);
}
