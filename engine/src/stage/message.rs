//! Requests and replies as bodies of frames, and what must hold between their columns. What must hold between a request
//! and the sequences that it goes on with is asked in `last.rs`. Probes do not cross: what they return has no bound.

use crate::ids::{CheckpointId, TokenId};
use crate::limits::{Limits, PAGE_TOKENS, STEP_ROWS_MAX};
use crate::step::{
    Fault, Filters, LogitEdit, MtpWork, NO_LOGPROBS, RowRules, SlotOp, Source, Step, StepResult, TrunkWork,
};

use super::Agreed;
use super::foresight::Drafts;
use super::wire::{Put as _, Take, WireError, put_ids};

/// Work for the last stage.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Request {
    /// Operations, MTP work, trunk pass.
    pub step: Step,
    /// Every chain of the MTP work was answered from what was sent ahead; nobody waits for its drafts.
    pub answered: bool,
    /// The residual of the trunk's rows: `[rows][border width]`.
    pub rows: Vec<f32>,
}

/// What came of a [`Request`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reply {
    /// Of the MTP work and of the trunk pass.
    pub result: StepResult,
    /// Drafts of the MTP work that the next tick is likely to ask for.
    pub ahead: Drafts,
}

fn put_op(out: &mut Vec<u8>, op: &SlotOp) {
    let (tag, a, b) = match *op {
        SlotOp::Reset { state } => (0, state.0, 0),
        SlotOp::Truncate { state, kv_len } => (1, state.0, kv_len),
        SlotOp::Fold { state } => (2, state.0, 0),
        SlotOp::CopyPage { from, to } => (3, from.0, to.0),
        SlotOp::Fork { from, to } => (4, from.0, to.0),
        SlotOp::Save { state, checkpoint } => (5, state.0, checkpoint.0),
        SlotOp::Restore { checkpoint, state } => (6, checkpoint.0, state.0),
        SlotOp::Drop { checkpoint } => (7, checkpoint.0, 0),
        SlotOp::Adopt { state, kv_len } => (8, state.0, kv_len),
    };
    out.put_u8(tag);
    out.put_u32(a);
    out.put_u32(b);
}

fn take_op(take: &mut Take<'_>, agreed: &Agreed) -> Result<SlotOp, WireError> {
    const WHAT: &str = "an operation";
    let (tag, a, b) = (take.u8(WHAT)?, take.u32(WHAT)?, take.u32(WHAT)?);
    let limits = &agreed.limits;
    let state = |n: u32| {
        let known = (n as usize) < limits.slots;
        known.then_some(crate::ids::StateSlot(n)).ok_or_else(|| WireError::bad(WHAT, format!("names sequence {n}")))
    };
    let page = |n: u32| {
        let known = (n as usize) < limits.pages;
        known.then_some(crate::ids::PageId(n)).ok_or_else(|| WireError::bad(WHAT, format!("names page {n}")))
    };
    Ok(match tag {
        0 => SlotOp::Reset { state: state(a)? },
        1 => SlotOp::Truncate { state: state(a)?, kv_len: b },
        2 => SlotOp::Fold { state: state(a)? },
        3 => SlotOp::CopyPage { from: page(a)?, to: page(b)? },
        4 => SlotOp::Fork { from: state(a)?, to: state(b)? },
        5 => SlotOp::Save { state: state(a)?, checkpoint: CheckpointId(b) },
        6 => SlotOp::Restore { checkpoint: CheckpointId(a), state: state(b)? },
        7 => SlotOp::Drop { checkpoint: CheckpointId(a) },
        8 if b as usize <= limits.context => SlotOp::Adopt { state: state(a)?, kv_len: b },
        8 => return Err(WireError::bad(WHAT, format!("adopts {b} positions"))),
        _ => return Err(WireError::bad(WHAT, format!("has tag {tag}"))),
    })
}

/// Appends a request with `rows` of activations.
pub fn put_request(out: &mut Vec<u8>, step: &Step, answered: bool, rows: &[f32]) {
    out.put_u8(u8::from(answered));
    out.put_u32(step.ops.len() as u32);
    step.ops.iter().for_each(|op| put_op(out, op));
    let MtpWork { state, position, depth, p_min, token_start, token, page_start, page, .. } = &step.mtp;
    put_ids(out, state);
    out.put_words(position.iter().copied());
    out.put_words(depth.iter().copied());
    out.put_floats(p_min);
    out.put_words(token_start.iter().copied());
    put_ids(out, token);
    out.put_words(page_start.iter().copied());
    put_ids(out, page);
    let TrunkWork { state, position, committed, row_start, page_start, page, token, source, rules } = &step.trunk;
    put_ids(out, state);
    out.put_words(position.iter().copied());
    out.put_words(committed.iter().copied());
    out.put_words(row_start.iter().copied());
    out.put_words(page_start.iter().copied());
    put_ids(out, page);
    put_ids(out, token);
    out.put_u32(source.len() as u32);
    out.extend(source.iter().map(|s| *s as u8));
    let RowRules { row, filter, draw, edit_start, edit, mask, mask_word, top_n, known, filters, .. } = rules;
    for column in [row, filter, draw, edit_start] {
        out.put_words(column.iter().copied());
    }
    out.put_u32(edit.len() as u32);
    for &LogitEdit { token, repeat, add } in edit {
        out.put_u32(token.0);
        out.put_f32(repeat);
        out.put_f32(add);
    }
    for column in [mask, mask_word, top_n] {
        out.put_words(column.iter().copied());
    }
    put_ids(out, known);
    out.put_u32(filters.len() as u32);
    for &Filters { temperature, top_k, typical_p, top_p, min_p, seed, choice } in filters {
        out.put_f32(temperature);
        out.put_u32(top_k);
        out.put_f32(typical_p);
        out.put_f32(top_p);
        out.put_f32(min_p);
        out.put_u64(seed);
        out.put_u32(choice);
    }
    out.put_floats(rows);
}

/// Reads a request, and checks every number that something is looked up or sized with.
///
/// # Errors
/// [`WireError`]
pub fn take_request(body: &[u8], agreed: &Agreed) -> Result<Request, WireError> {
    let Limits { slots, pages, step_rows, context, .. } = agreed.limits;
    let tables = slots.saturating_mul(Limits::pages_for(context + 1));
    let mut take = Take::new(body);
    let take = &mut take;
    let answered = take.flag("the answered flag")?;
    // A page is copied at most once a step, and a sequence is reset, cut, forked and saved a few times.
    let ops = take.count("operations", pages + 16 * slots + agreed.limits.checkpoints, 9)?;
    let ops = (0..ops).map(|_| take_op(take, agreed)).collect::<Result<Vec<_>, _>>()?;
    let same = |x: u32| x;
    // A sequence catches up on as many tokens as hidden rows are kept.
    let mtp_tokens = slots.saturating_mul(STEP_ROWS_MAX + 128);
    let mtp = MtpWork {
        state: take.words("MTP sequences", slots, crate::ids::StateSlot)?,
        position: take.words("MTP positions", slots, same)?,
        depth: take.words("MTP depths", slots, same)?,
        p_min: take.words("MTP least probabilities", slots, f32::from_bits)?,
        token_start: take.words("MTP token starts", slots + 1, same)?,
        token: take.words("MTP tokens", mtp_tokens, TokenId)?,
        page_start: take.words("MTP page starts", slots + 1, same)?,
        page: take.words("MTP pages", tables, crate::ids::PageId)?,
        ..MtpWork::default()
    };
    let mut trunk = TrunkWork {
        state: take.words("sequences", slots, crate::ids::StateSlot)?,
        position: take.words("positions", slots, same)?,
        committed: take.words("committed rows", slots, same)?,
        row_start: take.words("row starts", slots + 1, same)?,
        page_start: take.words("page starts", slots + 1, same)?,
        page: take.words("pages", tables, crate::ids::PageId)?,
        token: take.words("tokens", step_rows, TokenId)?,
        ..TrunkWork::default()
    };
    trunk.source = take.bytes("sources", step_rows)?.iter().map(|&x| source(x)).collect::<Result<_, _>>()?;
    let mut rules = RowRules {
        row: take.words("rules", step_rows, same)?,
        filter: take.words("filters of rules", step_rows, same)?,
        draw: take.words("draws", step_rows, same)?,
        edit_start: take.words("edit starts", step_rows + 1, same)?,
        ..RowRules::default()
    };
    let edits = take.count("logit edits", step_rows.saturating_mul(agreed.vocab), 12)?;
    for _ in 0..edits {
        let token = TokenId(take.u32("a logit edit")?);
        rules.edit.push(LogitEdit { token, repeat: take.f32("a logit edit")?, add: take.f32("a logit edit")? });
    }
    rules.mask = take.words("masks", step_rows, same)?;
    rules.mask_word = take.words("mask words", step_rows.saturating_mul(agreed.vocab.div_ceil(32)), same)?;
    rules.top_n = take.words("alternatives", step_rows, same)?;
    rules.known = take.words("known tokens", step_rows, TokenId)?;
    for _ in 0..take.count("filters", step_rows, 32)? {
        const WHAT: &str = "a filter";
        rules.filters.push(Filters {
            temperature: take.f32(WHAT)?,
            top_k: take.u32(WHAT)?,
            typical_p: take.f32(WHAT)?,
            top_p: take.f32(WHAT)?,
            min_p: take.f32(WHAT)?,
            seed: take.u64(WHAT)?,
            choice: take.u32(WHAT)?,
        });
    }
    trunk.rules = rules;
    let rows = take.words("activations", step_rows.saturating_mul(agreed.border_width), f32::from_bits)?;
    std::mem::replace(take, Take::new(&[])).end()?;
    check_mtp(&mtp, agreed)?;
    check_trunk(&trunk, agreed)?;
    check_rules(&trunk, agreed)?;
    let floats = trunk.token.len() * agreed.border_width;
    ensure(rows.len() == floats, "activations", || format!("{} floats, expected {floats}", rows.len()))?;
    Ok(Request { step: Step { ops, mtp, trunk }, answered, rows })
}

fn source(x: u8) -> Result<Source, WireError> {
    const ALL: [Source; 5] = [Source::Prompt, Source::Anchor, Source::Mtp, Source::Suffix, Source::Grammar];
    ALL.into_iter().find(|s| *s as u8 == x).ok_or_else(|| WireError::bad("a source", format!("is {x}")))
}

fn ensure(holds: bool, what: &'static str, reason: impl FnOnce() -> String) -> Result<(), WireError> {
    if holds { Ok(()) } else { Err(WireError::bad(what, reason())) }
}

/// `start` cuts `items` into one part per segment, in order.
fn check_starts(start: &[u32], segments: usize, items: usize, what: &'static str) -> Result<(), WireError> {
    if segments == 0 && start.len() <= 1 {
        return ensure(items == 0, what, || format!("{items} items of no segment"));
    }
    ensure(start.len() == segments + 1, what, || format!("{} of {segments} segments", start.len()))?;
    let ascends = start[0] == 0 && start.is_sorted() && start[segments] as usize == items;
    ensure(ascends, what, || format!("do not cut {items} items in order"))
}

fn check_states(state: &[crate::ids::StateSlot], agreed: &Agreed) -> Result<(), WireError> {
    let mut seen = vec![false; agreed.limits.slots];
    for s in state {
        let fresh = seen.get_mut(s.0 as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        ensure(fresh, "sequences", || format!("{} is unknown or there twice", s.0))?;
    }
    Ok(())
}

fn check_pages(pages: &[crate::ids::PageId], agreed: &Agreed) -> Result<(), WireError> {
    let bad = pages.iter().find(|p| p.0 as usize >= agreed.limits.pages);
    ensure(bad.is_none(), "pages", || format!("{} is not in the pool", bad.map_or(0, |p| p.0)))
}

fn check_tokens(tokens: &[TokenId], agreed: &Agreed) -> Result<(), WireError> {
    let bad = tokens.iter().find(|t| t.0 as usize >= agreed.vocab_rows);
    ensure(bad.is_none(), "tokens", || format!("{} is outside the vocabulary", bad.map_or(0, |t| t.0)))
}

/// The rows have pages and fit the context, and there are no more pages than a sequence can need.
fn check_room(position: u32, rows: usize, pages: usize, agreed: &Agreed, what: &'static str) -> Result<(), WireError> {
    let needed = Limits::pages_for(agreed.limits.context + 1);
    ensure(pages <= needed, what, || format!("have {pages} pages, a sequence needs at most {needed}"))?;
    let end = position as usize + rows;
    let most = (pages * PAGE_TOKENS).min(Limits::pages_for(agreed.limits.context) * PAGE_TOKENS);
    ensure(end <= most, what, || format!("reach {end} with {pages} pages"))
}

fn check_mtp(work: &MtpWork, agreed: &Agreed) -> Result<(), WireError> {
    let n = work.state.len();
    check_states(&work.state, agreed)?;
    let columns = [work.position.len(), work.depth.len(), work.p_min.len()];
    ensure(columns == [n; 3], "MTP columns", || format!("{columns:?} of {n} segments"))?;
    check_starts(&work.token_start, n, work.token.len(), "MTP token starts")?;
    check_starts(&work.page_start, n, work.page.len(), "MTP page starts")?;
    check_pages(&work.page, agreed)?;
    check_tokens(&work.token, agreed)?;
    for s in 0..n {
        let tokens = (work.token_start[s + 1] - work.token_start[s]) as usize;
        let depth = work.depth[s] as usize;
        ensure(tokens > 0 || depth == 0, "MTP tokens", || format!("a chain of {depth} starts at no token"))?;
        ensure(depth <= STEP_ROWS_MAX, "MTP depths", || format!("a chain of {depth}"))?;
        let pages = (work.page_start[s + 1] - work.page_start[s]) as usize;
        check_room(work.position[s], tokens + depth.saturating_sub(1), pages, agreed, "MTP rows")?;
    }
    Ok(())
}

fn check_trunk(work: &TrunkWork, agreed: &Agreed) -> Result<(), WireError> {
    let n = work.state.len();
    check_states(&work.state, agreed)?;
    let columns = [work.position.len(), work.committed.len()];
    ensure(columns == [n; 2], "columns", || format!("{columns:?} of {n} segments"))?;
    let rows = work.token.len();
    check_starts(&work.row_start, n, rows, "row starts")?;
    check_starts(&work.page_start, n, work.page.len(), "page starts")?;
    ensure(work.source.len() == rows, "sources", || format!("{} of {rows} rows", work.source.len()))?;
    check_pages(&work.page, agreed)?;
    check_tokens(&work.token, agreed)?;
    for s in 0..n {
        let (rows, committed) = (work.row_start[s + 1] - work.row_start[s], work.committed[s]);
        let fits = (1..=rows).contains(&committed) && (rows - committed) as usize <= agreed.limits.window_max;
        ensure(fits, "committed rows", || format!("{committed} of {rows}"))?;
        let pages = (work.page_start[s + 1] - work.page_start[s]) as usize;
        check_room(work.position[s], rows as usize, pages, agreed, "rows")?;
    }
    Ok(())
}

fn check_rules(work: &TrunkWork, agreed: &Agreed) -> Result<(), WireError> {
    let RowRules { row, filter, draw, edit_start, edit, mask, mask_word, top_n, known, filters, .. } = &work.rules;
    let n = row.len();
    let columns = [filter.len(), draw.len(), mask.len(), top_n.len()];
    ensure(columns == [n; 4], "columns of rules", || format!("{columns:?} of {n} rules"))?;
    let ascend = row.windows(2).all(|w| w[0] < w[1]) && row.last().is_none_or(|r| (*r as usize) < work.token.len());
    ensure(ascend, "rules", || String::from("are not of rows in order"))?;
    let count = known.is_empty() || known.len() == n;
    ensure(count, "known tokens", || format!("{} of {n} rules", known.len()))?;
    let outside = known.iter().find(|token| !token.is_none() && token.0 as usize >= agreed.vocab);
    ensure(outside.is_none(), "known tokens", || String::from("are outside the vocabulary"))?;
    // A window is ruled from its last committed row on, without gaps; rows before that may be ruled one by one, and so may
    // that one where what follows it is known.
    let mut segment = 0;
    for (i, &r) in row.iter().enumerate() {
        while r >= work.row_start[segment + 1] {
            segment += 1;
        }
        let anchor = work.row_start[segment] + work.committed[segment] - 1;
        let follows = i > 0 && row[i - 1] + 1 == r;
        ensure(r <= anchor || follows, "rules", || format!("row {r} is a draft, and the row before it has no rule"))?;
        let chooses = |rule: usize| work.rules.known_at(rule).is_none();
        let judged = r <= anchor || (chooses(i) && chooses(i - 1));
        ensure(judged, "known tokens", || {
            format!("row {r} is a draft, and what follows it or the row before is known")
        })?;
    }
    check_starts(edit_start, n, edit.len(), "edit starts")?;
    let known = |t: &LogitEdit| (t.token.0 as usize) < agreed.vocab;
    ensure(edit.iter().all(known), "logit edits", || String::from("name a token outside the vocabulary"))?;
    ensure(filter.iter().all(|f| (*f as usize) < filters.len()), "filters of rules", || {
        String::from("name no filter")
    })?;
    let words = agreed.vocab.div_ceil(32);
    let inside = |&m: &u32| m == u32::MAX || m as usize + words <= mask_word.len();
    ensure(mask.iter().all(inside), "masks", || String::from("reach behind their words"))?;
    let tops = |&t: &u32| t == NO_LOGPROBS || t as usize <= agreed.vocab;
    ensure(top_n.iter().all(tops), "alternatives", || String::from("are more than the vocabulary"))
}

/// No exchange may take longer than an hour (`--stage-timeout`), and drafts may have been made in the one before. The sums
/// and shares that are made of times stay far below u64 with that.
const TIME_NS_MAX: u64 = 2 * 3600 * 1_000_000_000;

fn take_ns(take: &mut Take<'_>, what: &'static str) -> Result<u64, WireError> {
    match take.u64(what)? {
        ns if ns <= TIME_NS_MAX => Ok(ns),
        found => Err(WireError::TooMuch { what, found, most: TIME_NS_MAX }),
    }
}

fn put_drafts(out: &mut Vec<u8>, drafts: &Drafts) {
    out.put_words(drafts.start.iter().copied());
    put_ids(out, &drafts.token);
    out.put_floats(&drafts.prob);
    out.put_u64(drafts.ns);
}

fn take_drafts(take: &mut Take<'_>, agreed: &Agreed) -> Result<Drafts, WireError> {
    let slots = agreed.limits.slots;
    let drafts = slots.saturating_mul(STEP_ROWS_MAX);
    let out = Drafts {
        start: take.words("draft starts", slots + 1, |x| x)?,
        token: take.words("drafts", drafts, TokenId)?,
        prob: take.words("probabilities of drafts", drafts, f32::from_bits)?,
        ns: take_ns(take, "the time of drafts")?,
    };
    ensure(out.prob.len() == out.token.len(), "drafts", || format!("{} with {}", out.token.len(), out.prob.len()))?;
    check_tokens(&out.token, agreed)?;
    check_starts(&out.start, out.start.len().saturating_sub(1), out.token.len(), "draft starts")?;
    Ok(out)
}

/// Appends a reply.
pub fn put_reply(out: &mut Vec<u8>, result: &StepResult, ahead: &Drafts) {
    out.put_words(result.draft_start.iter().copied());
    put_ids(out, &result.draft);
    out.put_floats(&result.draft_prob);
    out.put_words(result.accepted.iter().copied());
    put_ids(out, &result.next);
    out.put_u32(result.fault.len() as u32);
    out.extend(result.fault.iter().map(|fault| match fault {
        None => 0,
        Some(Fault::NonFinite) => 1,
        Some(Fault::Lost) => 2,
        Some(Fault::Barred) => 3,
    }));
    out.put_floats(&result.logprob);
    out.put_words(result.top_start.iter().copied());
    out.put_u32(result.top.len() as u32);
    for (token, logprob) in &result.top {
        out.put_u32(token.0);
        out.put_f32(*logprob);
    }
    let times = result.times;
    for ns in [times.fill_ns, times.draft_ns, times.trunk_ns, times.choose_ns] {
        out.put_u64(ns);
    }
    put_drafts(out, ahead);
}

/// Reads the reply to `step`.
///
/// # Errors
/// [`WireError`]
pub fn take_reply(body: &[u8], step: &Step, agreed: &Agreed) -> Result<Reply, WireError> {
    let Limits { slots, step_rows, .. } = agreed.limits;
    let mut take = Take::new(body);
    let take = &mut take;
    let mut result = StepResult {
        draft_start: take.words("draft starts", slots + 1, |x| x)?,
        draft: take.words("drafts", slots.saturating_mul(STEP_ROWS_MAX), TokenId)?,
        draft_prob: take.words("probabilities of drafts", slots.saturating_mul(STEP_ROWS_MAX), f32::from_bits)?,
        accepted: take.words("accepted drafts", slots, |x| x)?,
        next: take.words("next tokens", slots, TokenId)?,
        ..StepResult::default()
    };
    result.fault = take.bytes("faults", slots)?.iter().map(|&x| fault(x)).collect::<Result<_, _>>()?;
    result.logprob = take.words("log-probabilities", step_rows, f32::from_bits)?;
    result.top_start = take.words("starts of alternatives", step_rows + 1, |x| x)?;
    for _ in 0..take.count("alternatives", step_rows.saturating_mul(agreed.vocab), 8)? {
        result.top.push((TokenId(take.u32("an alternative")?), take.f32("an alternative")?));
    }
    let times = &mut result.times;
    for ns in [&mut times.fill_ns, &mut times.draft_ns, &mut times.trunk_ns, &mut times.choose_ns] {
        *ns = take_ns(take, "a time")?;
    }
    let ahead = take_drafts(take, agreed)?;
    std::mem::replace(take, Take::new(&[])).end()?;
    check_result(&result, step, agreed)?;
    Ok(Reply { result, ahead })
}

fn fault(x: u8) -> Result<Option<Fault>, WireError> {
    match x {
        0 => Ok(None),
        1 => Ok(Some(Fault::NonFinite)),
        2 => Ok(Some(Fault::Lost)),
        3 => Ok(Some(Fault::Barred)),
        _ => Err(WireError::bad("a fault", format!("is {x}"))),
    }
}

/// The result has a verdict for every segment and nothing that the Ledger would stumble over.
fn check_result(result: &StepResult, step: &Step, agreed: &Agreed) -> Result<(), WireError> {
    let chains = step.mtp.state.len();
    check_starts(&result.draft_start, chains, result.draft.len(), "draft starts")?;
    ensure(result.draft_prob.len() == result.draft.len(), "drafts", || String::from("without probability"))?;
    // The MTP block may draft a padded row of the table; what the target chooses is in the vocabulary.
    check_tokens(&result.draft, agreed)?;
    let unknown = result.top.iter().find(|(token, _)| token.0 as usize >= agreed.vocab);
    ensure(unknown.is_none(), "alternatives", || String::from("name a token outside the vocabulary"))?;
    for (s, depth) in step.mtp.depth.iter().enumerate() {
        let n = result.draft_start[s + 1] - result.draft_start[s];
        ensure(n <= *depth, "drafts", || format!("{n} of a chain of {depth}"))?;
    }
    let trunk = &step.trunk;
    let n = trunk.state.len();
    let columns = [result.accepted.len(), result.next.len(), result.fault.len()];
    ensure(columns == [n; 3], "verdicts", || format!("{columns:?} of {n} segments"))?;
    for s in 0..n {
        let drafts = trunk.row_start[s + 1] - trunk.row_start[s] - trunk.committed[s];
        let known = result.next[s].is_none() || (result.next[s].0 as usize) < agreed.vocab;
        ensure(result.accepted[s] <= drafts && known, "verdicts", || format!("segment {s} has an impossible one"))?;
        let chooses = |&(rule, r): &(usize, &u32)| {
            let own = *r + 1 >= trunk.row_start[s] + trunk.committed[s] && *r < trunk.row_start[s + 1];
            own && trunk.rules.known_at(rule).is_none()
        };
        let ruled = trunk.rules.row.iter().enumerate().any(|rule| chooses(&rule));
        let decided = !result.next[s].is_none() || result.fault[s].is_some() || !ruled;
        ensure(decided, "verdicts", || format!("segment {s} has none"))?;
    }
    if n > 0 {
        let rules = trunk.rules.row.len();
        ensure(result.logprob.len() == rules, "log-probabilities", || {
            format!("{} of {rules} rules", result.logprob.len())
        })?;
        check_starts(&result.top_start, rules, result.top.len(), "starts of alternatives")?;
    }
    Ok(())
}
