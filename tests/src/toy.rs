//! The toy model: an [`Executor`] whose next token is a pure function of the last few tokens, with fake KV pages, a fake
//! recurrent state and a fake MTP cache that record what was written where. It asserts every precondition of a
//! [`Step`], and its logits are read through the pages, so a wrong page, cursor or rollback changes what it says.
//!
//! [`reference`] decodes plainly without any engine: what every strategy, schedule and batch must reproduce.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::{Receiver, Sender, bounded};
use engine::accept;
use engine::api::{
    Command, Event, Finish, Origin, Report, Speculation, Strategy, Submission, TokenLogprob, WindowPolicy,
};
use engine::clock::Clock;
use engine::constraint::Allowed;
use engine::delta::Committed;
use engine::ids::{CheckpointId, PageId, RequestId, Slot, StateSlot, Ticket, TokenId};
use engine::limits::{Limits, PAGE_TOKENS};
use engine::pieces::{PieceFlags, Pieces};
use engine::rules;
use engine::sample::{self, Scratch};
use engine::step::{Executor, LogitEdit, MtpWork, NO_LOGPROBS, Shape, SlotOp, Step, StepResult, TrunkWork};
use engine::tick;
use engine::world::{Ledger, World};
use engine_bin::menu::BUILT_IN;

/// Tokens of the toy vocabulary.
pub const VOCAB: usize = 40;
/// The toy model's end token.
pub const END: TokenId = TokenId(38);
/// After this token no logit is finite.
pub const POISON: TokenId = TokenId(39);

/// What a toy is.
#[derive(Clone, Debug)]
pub struct ToyConfig {
    /// Another seed is another model.
    pub seed: u64,
    /// Tokens that the next one depends on.
    pub order: usize,
    /// Per mille of MTP drafts that are what the target says.
    pub mtp_accuracy: u64,
    /// Capacity of the hidden ring; 0 = no MTP block.
    pub hidden_rows: usize,
    /// Per mille of contexts after which the end token is likely.
    pub end_rate: u64,
    /// Nanoseconds of a pass: first row, each further row, each step of the chain.
    pub cost: (u64, u64, u64),
    /// Nanoseconds of each MTP row that is only caught up.
    pub fill_cost: u64,
    /// The pass at which the toy panics; 0 = never.
    pub panic_at: u64,
    /// Right drafts of each MTP chain in turn, wrong ones behind them; then and if empty `mtp_accuracy` holds.
    pub mtp_script: Vec<usize>,
    /// The sequence whose MTP chains are wrong, every one of them, as if drafted from another's hidden rows.
    pub mtp_lost: Option<u32>,
    /// History length after which the end token is certain; 0 = none.
    pub end_at: usize,
    /// History length after which no logit is finite; 0 = none.
    pub fault_at: usize,
    /// A sequence is nothing but its pages; without an MTP block only.
    pub plain: bool,
    /// The pass from which on the target says something else of the same history; 0 = never.
    pub moody_at: u64,
}

impl Default for ToyConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            order: 2,
            mtp_accuracy: 800,
            hidden_rows: 64,
            end_rate: 0,
            cost: (1000, 50, 100),
            fill_cost: 10,
            panic_at: 0,
            mtp_script: Vec::new(),
            mtp_lost: None,
            end_at: 0,
            fault_at: 0,
            plain: false,
            moody_at: 0,
        }
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// Running digest of a history.
fn digest(before: u64, token: TokenId) -> u64 {
    mix(before, u64::from(token.0))
}

/// The target: logits after a history.
pub fn logits(config: &ToyConfig, history: &[TokenId], out: &mut Vec<f32>) {
    out.clear();
    if history.last() == Some(&POISON) || (config.fault_at > 0 && history.len() == config.fault_at) {
        out.resize(VOCAB, f32::NAN);
        return;
    }
    let key = history[history.len().saturating_sub(config.order)..].iter().fold(config.seed, |d, t| digest(d, *t));
    out.extend((0..VOCAB as u64).map(|v| (mix(key, v) % 4096) as f32 / 512.0));
    let end = mix(key, 777) % 1000 < config.end_rate || (config.end_at > 0 && history.len() == config.end_at);
    out[END.index()] = if end { 20.0 } else { -20.0 };
    out[POISON.index()] = f32::NEG_INFINITY;
}

/// Pieces of the toy vocabulary: `a`..`z`, digits, a cut euro sign, a piece of two bytes; the end token is control.
pub fn pieces() -> Pieces {
    let mut p = Pieces::new();
    for i in 0..VOCAB as u8 {
        match i {
            0..26 => p.push(&[b'a' + i], PieceFlags::empty()),
            26..35 => p.push(&[b'0' + i - 26, b' '], PieceFlags::empty()),
            35 => p.push(b"\xe2\x82", PieceFlags::empty()),
            36 => p.push(b"\xac", PieceFlags::empty()),
            37 => p.push(b"<tool>", PieceFlags::CONTROL),
            38 => p.push(b"</s>", PieceFlags::END | PieceFlags::CONTROL),
            _ => p.push(b"!", PieceFlags::empty()),
        }
    }
    p
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    position: u32,
    token: TokenId,
    digest: u64,
}

const EMPTY: Cell = Cell { position: u32::MAX, token: TokenId::NONE, digest: 0 };

#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    kv_len: u32,
    folded_len: u32,
    folded: u64,
    log: Vec<TokenId>,
    mtp_len: u32,
    /// Pending hidden rows: positions `mtp_len - 1 ..= kv_len - 1`, -1 standing for the zero row.
    hidden: VecDeque<(i64, u64)>,
    /// The last one that was consumed.
    carry: (i64, u64),
}

impl State {
    fn reset(&mut self, seed: u64) {
        *self = Self { folded: seed, ..Self::default() };
        self.hidden.push_back((-1, 0));
    }

    fn check(&self) {
        assert_eq!(self.folded_len + self.log.len() as u32, self.kv_len, "folded and logged rows make the length");
        assert_eq!(self.mtp_len as usize + self.hidden.len(), self.kv_len as usize + 1, "MTP cache and pending rows");
    }
}

/// The toy executor.
pub struct Toy {
    config: ToyConfig,
    shape: Shape,
    window_max: usize,
    step_rows: usize,
    kv: Vec<[Cell; PAGE_TOKENS]>,
    mtp: Vec<[Cell; PAGE_TOKENS]>,
    state: Vec<State>,
    checkpoint: BTreeMap<CheckpointId, State>,
    scratch: Scratch,
    row: Vec<f32>,
    passes: u64,
    chains: usize,
}

impl Toy {
    /// A toy with the capacities of `limits`.
    pub fn new(config: ToyConfig, limits: &Limits) -> Self {
        let shape = Shape {
            vocab: VOCAB,
            hidden_width: 1,
            context_train: limits.context,
            mtp: config.hidden_rows > 0,
            recurrent: !config.plain,
            hidden_rows: config.hidden_rows,
            checkpoint_bytes: size_of::<State>(),
        };
        Self {
            shape,
            window_max: limits.window_max,
            step_rows: limits.step_rows,
            kv: vec![[EMPTY; PAGE_TOKENS]; limits.pages],
            mtp: vec![[EMPTY; PAGE_TOKENS]; limits.pages],
            state: vec![State::default(); limits.slots],
            checkpoint: BTreeMap::new(),
            scratch: Scratch::default(),
            row: Vec::new(),
            passes: 0,
            chains: 0,
            config,
        }
    }

    fn op(&mut self, op: SlotOp) {
        match op {
            SlotOp::Reset { state } => self.state[state.index()].reset(self.config.seed),
            SlotOp::Truncate { state, kv_len } => {
                let s = &mut self.state[state.index()];
                assert!(kv_len <= s.kv_len, "{state}: truncation to {kv_len} of {}", s.kv_len);
                assert!(kv_len >= s.folded_len, "{state}: rollback below the log's base");
                if !self.shape.mtp {
                    s.mtp_len = kv_len;
                }
                assert!(kv_len + 1 >= s.mtp_len, "{state}: rollback below the MTP cache");
                s.log.truncate((kv_len - s.folded_len) as usize);
                s.kv_len = kv_len;
                s.hidden.truncate((kv_len + 1 - s.mtp_len) as usize);
                s.check();
            }
            SlotOp::Fold { state } => fold(&mut self.state[state.index()]),
            SlotOp::CopyPage { from, to } => {
                assert_ne!(from, to);
                self.kv[to.index()] = self.kv[from.index()];
                self.mtp[to.index()] = self.mtp[from.index()];
            }
            SlotOp::Fork { from, to } => self.state[to.index()] = self.state[from.index()].clone(),
            SlotOp::Save { state, checkpoint } => {
                let s = &mut self.state[state.index()];
                fold(s);
                assert!(!self.shape.mtp || s.mtp_len >= s.kv_len, "{state}: saved with hidden rows pending");
                let mut saved = s.clone();
                if self.shape.mtp && saved.mtp_len > saved.kv_len {
                    // The row behind the cursor is not kept: its hidden row is pending again.
                    saved.mtp_len = saved.kv_len;
                    saved.hidden.push_front(saved.carry);
                }
                saved.check();
                assert!(self.checkpoint.insert(checkpoint, saved).is_none(), "{checkpoint} is in use");
            }
            SlotOp::Restore { checkpoint, state } => {
                self.state[state.index()] = self.checkpoint[&checkpoint].clone();
            }
            SlotOp::Adopt { state, kv_len } => {
                assert!(self.config.plain, "{state} is more than its pages");
                let s = &mut self.state[state.index()];
                s.reset(0);
                (s.kv_len, s.folded_len, s.mtp_len) = (kv_len, kv_len, kv_len);
                s.check();
            }
            SlotOp::Drop { checkpoint } => {
                assert!(self.checkpoint.remove(&checkpoint).is_some(), "{checkpoint} is not there");
            }
        }
    }

    /// Reads the history of `0..len` through a block table and asserts that every cell is what it should be.
    fn read(&self, state: StateSlot, pages: &[PageId], len: u32) -> (Vec<TokenId>, Vec<u64>) {
        let (mut tokens, mut digests) = (Vec::new(), Vec::new());
        let mut d = self.config.seed;
        for p in 0..len {
            let cell = self.kv[pages[p as usize / PAGE_TOKENS].index()][p as usize % PAGE_TOKENS];
            d = digest(d, cell.token);
            assert_eq!((cell.position, cell.digest), (p, d), "{state}: KV of position {p} of {len}");
            tokens.push(cell.token);
            digests.push(d);
        }
        (tokens, digests)
    }

    fn run_mtp(&mut self, work: &MtpWork, out: &mut StepResult) {
        if work.state.is_empty() {
            return;
        }
        assert!(self.shape.mtp, "MTP work without an MTP block");
        exclusive_pages(work.state.len(), &work.page_start, &work.page, |i| work.position[i]);
        out.draft_start.push(0);
        for i in 0..work.state.len() {
            let state = work.state[i];
            let pages = &work.page[range(&work.page_start, i)];
            let tokens = &work.token[range(&work.token_start, i)];
            let (history, digests) = self.read(state, pages, self.state[state.index()].kv_len);
            let s = &mut self.state[state.index()];
            assert_eq!(work.position[i], s.mtp_len, "{state}: MTP position against its cursor");
            assert!(!tokens.is_empty() && tokens.len() <= s.hidden.len(), "{state}: a hidden row for every token");
            for (j, &token) in tokens.iter().enumerate() {
                let p = work.position[i] as usize + j;
                let (at, hidden) = s.hidden.pop_front().expect("counted above");
                s.carry = (at, hidden);
                assert_eq!(at, p as i64 - 1, "{state}: MTP row {p} pairs with the hidden row before it");
                assert_eq!(hidden, if p == 0 { 0 } else { digests[p - 1] }, "{state}: hidden row of position {at}");
                assert!(p >= history.len() || history[p] == token, "{state}: MTP token at {p}");
                self.mtp[pages[p / PAGE_TOKENS].index()][p % PAGE_TOKENS] =
                    Cell { position: p as u32, token, digest: mix(hidden, u64::from(token.0)) };
            }
            s.mtp_len += tokens.len() as u32;
            s.check();
            // Everything the cache covers must be what this history says, whoever wrote it.
            for p in 0..s.mtp_len as usize {
                let cell = self.mtp[pages[p / PAGE_TOKENS].index()][p % PAGE_TOKENS];
                let hidden = if p == 0 { 0 } else { digests[p - 1] };
                let want = mix(hidden, u64::from(cell.token.0));
                assert_eq!((cell.position, cell.digest), (p as u32, want), "{state}: MTP cell {p}");
            }
            let depth = work.depth[i];
            if depth > 0 {
                assert_eq!(s.mtp_len, s.kv_len + 1, "{state}: a chain starts at the anchor");
                let last = s.kv_len as usize + depth as usize;
                assert!(pages.len() * PAGE_TOKENS >= last, "{state}: a chain of {depth} without pages");
                let script = self.config.mtp_script.get(self.chains).copied();
                self.chains += 1;
                let mut known = history;
                known.push(*tokens.last().expect("not empty"));
                for j in 0..depth as usize {
                    let p = s.kv_len as usize + j;
                    if j > 0 {
                        // Scratch: overwritten before it counts.
                        self.mtp[pages[p / PAGE_TOKENS].index()][p % PAGE_TOKENS] = EMPTY;
                    }
                    logits(&self.config, &known, &mut self.row);
                    let right = sample::pick(&self.row, None).unwrap_or(TokenId(0));
                    let h = mix(digest(self.config.seed ^ 99, right), known.len() as u64);
                    let wrong = TokenId((right.0 + 1) % 26);
                    let token = match h % 1000 {
                        _ if self.config.mtp_lost == Some(state.0) => wrong,
                        _ if script.is_some_and(|n| j < n) => right,
                        _ if script.is_some() => wrong,
                        r if r < self.config.mtp_accuracy => right,
                        // Anything may be drafted, ids past the vocabulary included.
                        r if r > 990 => TokenId(VOCAB as u32 + 5),
                        _ => TokenId((h >> 32) as u32 % VOCAB as u32),
                    };
                    out.draft.push(token);
                    out.draft_prob.push(0.5);
                    if token.index() >= VOCAB {
                        break;
                    }
                    known.push(token);
                }
            }
            out.draft_start.push(out.draft.len() as u32);
        }
        let anchors = work.depth.iter().filter(|d| **d > 0).count();
        out.times.fill_ns = self.config.fill_cost * (work.token.len() - anchors) as u64;
        out.times.draft_ns = self.config.cost.2 * u64::from(work.depth.iter().copied().max().unwrap_or(0));
    }

    fn run_trunk(&mut self, work: &TrunkWork, out: &mut StepResult) {
        if work.state.is_empty() {
            return;
        }
        self.passes += 1;
        assert!(self.passes != self.config.panic_at, "the toy was told to panic");
        let moody = self.config.moody_at > 0 && self.passes >= self.config.moody_at;
        let target = ToyConfig { seed: self.config.seed + u64::from(moody), ..self.config.clone() };
        let rows = work.token.len();
        assert!(rows <= self.step_rows, "{rows} rows of at most {}", self.step_rows);
        assert_eq!(work.source.len(), rows);
        exclusive_pages(work.state.len(), &work.page_start, &work.page, |i| work.position[i]);
        let mut seen = vec![false; self.state.len()];
        out.top_start.push(0);
        let mut rule = 0;
        for i in 0..work.state.len() {
            let state = work.state[i];
            assert!(!std::mem::replace(&mut seen[state.index()], true), "{state} has two segments");
            let pages = &work.page[range(&work.page_start, i)];
            let row_range = range(&work.row_start, i);
            let tokens = &work.token[row_range.clone()];
            let committed = work.committed[i] as usize;
            let (mut history, digests) = self.read(state, pages, work.position[i]);
            let s = &mut self.state[state.index()];
            assert_eq!(work.position[i], s.kv_len, "{state}: trunk position against its cursor");
            assert!(committed >= 1 && committed <= tokens.len());
            assert!(pages.len() * PAGE_TOKENS >= s.kv_len as usize + tokens.len(), "{state}: rows without pages");
            if self.shape.mtp {
                assert!(s.hidden.len() + tokens.len() <= self.shape.hidden_rows, "{state}: the hidden ring overflows");
            }
            fold(s);
            let paged = digests.last().copied().unwrap_or(self.config.seed);
            let mut d = if self.config.plain { paged } else { s.folded };
            for (j, &token) in tokens.iter().enumerate() {
                assert!(token.index() < VOCAB, "{state}: token {token}");
                d = digest(d, token);
                let p = s.kv_len as usize;
                self.kv[pages[p / PAGE_TOKENS].index()][p % PAGE_TOKENS] =
                    Cell { position: p as u32, token, digest: d };
                if j < committed {
                    s.folded = d;
                    s.folded_len += 1;
                } else {
                    s.log.push(token);
                }
                s.kv_len += 1;
                if self.shape.mtp {
                    s.hidden.push_back((p as i64, d));
                } else {
                    s.mtp_len = s.kv_len;
                }
            }
            assert!(s.log.len() <= self.window_max, "{state}: the log overflows");
            s.check();

            // A window has one rule a row, a prompt none but where its own log-probabilities are wanted.
            let rules = &work.rules;
            let first_rule = rule;
            while rule < rules.row.len() && row_range.contains(&(rules.row[rule] as usize)) {
                rule += 1;
            }
            if first_rule == rule {
                out.accepted.push(0);
                out.next.push(TokenId::NONE);
                out.fault.push(None);
                continue;
            }
            assert_eq!(rules.known.len(), rules.row.len(), "one known token a rule, or none");
            if rules.known_at(first_rule).is_some() {
                let before = history.len();
                for r in first_rule..rule {
                    let known = rules.known_at(r).expect("of a prompt all are known");
                    let row = rules.row[r] as usize - row_range.start;
                    assert!(
                        row + 1 >= tokens.len() || tokens[row + 1] == known,
                        "{state}: row {row} is followed by {known}"
                    );
                    history.truncate(before);
                    history.extend_from_slice(&tokens[..=row]);
                    logits(&self.config, &history, &mut self.row);
                    let (n, scratch) = (rules.top_n[r] as usize, &mut self.scratch);
                    out.logprob.push(sample::log_probs(&self.row, scratch, known, n, &mut out.top));
                    out.top_start.push(out.top.len() as u32);
                }
                out.accepted.push(0);
                out.next.push(TokenId::NONE);
                out.fault.push(None);
                continue;
            }
            assert_eq!(rule - first_rule, tokens.len(), "{state}: one rule a window row");
            assert_eq!(rules.mask.len(), rules.row.len(), "one mask a rule, or none");
            assert_eq!(committed, 1);
            let base = out.logprob.len();
            out.logprob.resize(base + tokens.len(), f32::NAN);
            let mut tops: Vec<Vec<(TokenId, f32)>> = vec![Vec::new(); tokens.len()];
            let verdict = accept::walk(&tokens[1..], |j| {
                let r = first_rule + j;
                history.push(tokens[j]);
                logits(&target, &history, &mut self.row);
                let edits = &rules.edit[range(&rules.edit_start, r)];
                for (n, e) in edits.iter().enumerate() {
                    assert!(edits[..n].iter().all(|o| o.token != e.token), "two edits of one token");
                }
                let filters = &rules.filters[rules.filter[r] as usize];
                let mask = rules.mask_of(r, VOCAB);
                let token = sample::choose(&mut self.row, &mut self.scratch, filters, rules.draw[r], edits, mask)?;
                if rules.top_n[r] != NO_LOGPROBS {
                    let n = rules.top_n[r] as usize;
                    out.logprob[base + j] = sample::log_probs(&self.row, &mut self.scratch, token, n, &mut tops[j]);
                }
                Ok(token)
            });
            for top in tops {
                out.top.extend(top);
                out.top_start.push(out.top.len() as u32);
            }
            out.accepted.push(verdict.accepted);
            out.next.push(verdict.next.unwrap_or(TokenId::NONE));
            out.fault.push(verdict.next.err());
        }
        assert_eq!(rule, work.rules.row.len(), "every rule belongs to a segment");
        out.times.trunk_ns = self.config.cost.0 + self.config.cost.1 * (rows as u64 - 1);
    }
}

fn fold(s: &mut State) {
    s.folded = s.log.drain(..).fold(s.folded, digest);
    s.folded_len = s.kv_len;
}

fn range(start: &[u32], i: usize) -> std::ops::Range<usize> {
    start[i] as usize..start[i + 1] as usize
}

/// No page that a segment may write belongs to another segment of the step.
fn exclusive_pages(segments: usize, start: &[u32], page: &[PageId], from: impl Fn(usize) -> u32) {
    let mut users: BTreeMap<PageId, (usize, bool)> = BTreeMap::new();
    for i in 0..segments {
        for (b, &p) in page[range(start, i)].iter().enumerate() {
            let written = (b + 1) * PAGE_TOKENS > from(i) as usize;
            let entry = users.entry(p).or_insert((0, false));
            entry.0 += 1;
            entry.1 |= written;
            assert!(entry.0 == 1 || !entry.1, "page {p} is written and shared");
        }
    }
}

impl Executor for Toy {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        out.clear();
        for &op in &step.ops {
            self.op(op);
        }
        self.run_mtp(&step.mtp, out);
        self.run_trunk(&step.trunk, out);
    }

    fn epoch(&mut self) -> u64 {
        0
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        self.checkpoint.get(&checkpoint).map(|s| format!("{s:?}").into_bytes())
    }
}

/// What a choice came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Committed tokens.
    pub tokens: Vec<TokenId>,
    /// Released text.
    pub text: String,
    /// Log-probabilities, when wanted.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

/// Plain decoding without an engine: the naive rules, one token at a time.
pub fn reference(config: &ToyConfig, context: usize, s: &Submission) -> Outcome {
    reference_after(config, context, s, &[])
}

/// [`reference`] of a choice whose first tokens are `given`, whoever chose them.
pub fn reference_after(config: &ToyConfig, context: usize, s: &Submission, given: &[TokenId]) -> Outcome {
    let pieces = pieces();
    let mut scratch = Scratch::default();
    let mut row = Vec::new();
    let mut history = s.prompt.clone();
    let mut out = Outcome::default();
    let mut bytes: Vec<u8> = Vec::new();
    let mut constraint = s.constraint.clone();
    loop {
        logits(config, &history, &mut row);
        let position = out.tokens.len() as u32;
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        let mask = match constraint.as_mut().map_or(Allowed::All, |c| c.mask(&mut mask)) {
            Allowed::All => None,
            Allowed::Masked | Allowed::Nothing => Some(mask),
        };
        let edits = naive_edits(s, mask.as_deref(), &pieces, &history, position);
        let filters = rules::filters(&s.sampling);
        let chosen = sample::choose(&mut row, &mut scratch, &filters, position, &edits, mask.as_deref());
        let token = match given.get(position as usize).map_or(chosen, |t| Ok(*t)) {
            Ok(token) => token,
            Err(fault) => {
                out.finish = Some(Finish::Fault(fault));
                break;
            }
        };
        if let Some(n) = s.logprobs {
            let mut top = Vec::new();
            let logprob = sample::log_probs(&row, &mut scratch, token, n as usize, &mut top);
            out.logprobs.push(TokenLogprob { token, logprob, top });
        }
        if let Some(constraint) = &mut constraint {
            assert!(constraint.advance(token), "{token} is in the mask");
        }
        history.push(token);
        out.tokens.push(token);
        let over = constraint.as_ref().is_some_and(|c| c.ended());
        let ends = (pieces.is_end(token) && !s.stop.ignore_eos) || s.stop.tokens.contains(&token) || over;
        let special = pieces.flags(token).contains(PieceFlags::CONTROL);
        let before = bytes.len();
        if !s.stop.tokens.contains(&token) && (!special || s.show_special) {
            bytes.extend_from_slice(pieces.bytes(token));
        }
        // The first byte at which a stop string is complete, the longest such string.
        let obeyed = out.tokens.len() as u32 >= s.stop.min_tokens && !ends;
        let hit = (before..bytes.len()).filter(|_| obeyed).find_map(|at| {
            let complete = s.stop.strings.iter().enumerate().filter(|(_, x)| bytes[..=at].ends_with(x));
            complete.max_by_key(|(i, x)| (x.len(), std::cmp::Reverse(*i))).map(|(i, x)| (i, at + 1, x.len()))
        });
        if let Some((index, end, len)) = hit {
            bytes.truncate(if s.stop.include { end } else { end - len });
            out.finish = Some(Finish::StopString(index as u32));
        } else if ends {
            out.finish = Some(Finish::EndToken(token));
        } else if out.tokens.len() == s.max_tokens as usize {
            out.finish = Some(Finish::MaxTokens);
        } else if history.len() == context {
            out.finish = Some(Finish::ContextFull);
        }
        if out.finish.is_some() {
            break;
        }
    }
    out.text = String::from_utf8_lossy(&bytes).into_owned();
    out
}

fn naive_edits(
    submission: &Submission,
    mask: Option<&[u32]>,
    pieces: &Pieces,
    history: &[TokenId],
    position: u32,
) -> Vec<LogitEdit> {
    let (s, stop, prompt_len) = (&submission.sampling, &submission.stop, submission.prompt.len());
    let early = position < stop.min_tokens;
    let banned = |t: TokenId| (pieces.is_end(t) && (early || stop.ignore_eos)) || (early && stop.tokens.contains(&t));
    let masked = |t: TokenId| mask.is_some_and(|m| m[t.index() / 32] >> (t.index() % 32) & 1 == 0);
    // Where the mask leaves nothing but what is banned, it wins.
    let left = (0..VOCAB as u32).map(TokenId).any(|t| !masked(t) && !banned(t));
    let mut edits = Vec::new();
    for t in (0..VOCAB as u32).map(TokenId) {
        let n = history[prompt_len..].iter().filter(|x| **x == t).count() as f32;
        let last = &history[history.len().saturating_sub(s.repeat_last_n as usize)..];
        let repeat = if s.repeat_penalty != 1.0 && last.contains(&t) { s.repeat_penalty } else { 1.0 };
        let bias: f32 = s.logit_bias.iter().filter(|e| e.token == t).map(|e| e.add).sum();
        let mut add = bias - if n > 0.0 { s.presence_penalty } else { 0.0 } - s.frequency_penalty * n;
        if left && banned(t) {
            add = f32::NEG_INFINITY;
        }
        if repeat != 1.0 || add != 0.0 {
            edits.push(LogitEdit { token: t, repeat, add });
        }
    }
    edits
}

/// A clock that goes a microsecond further each time it is read. Copies show the same time.
#[derive(Clone, Debug, Default)]
pub struct FakeClock(Arc<AtomicU64>);

impl FakeClock {
    /// Lets time pass.
    pub fn pass(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed) + 1000
    }
}

/// Speculation settings of a test: fixed width unless changed.
pub fn speculation(strategy: Strategy, width: u8) -> Speculation {
    let (suffix_min, suffix_max, policy) = (2, 32, WindowPolicy::Fixed);
    Speculation { strategy, suffix_min, suffix_max, policy, window_initial: width, window_max: width, ..BUILT_IN }
}

/// A greedy submission.
pub fn submission(ticket: u64, prompt: &[u32], max_tokens: u32, speculation: Speculation) -> Submission {
    Submission::greedy(Ticket(ticket), prompt.iter().map(|t| TokenId(*t)).collect(), max_tokens, speculation)
}

/// What a ticket has heard so far.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Its name in the engine.
    pub request: Option<RequestId>,
    /// Joined deltas and the finish.
    pub outcome: Outcome,
    /// The report, at the end.
    pub report: Option<Report>,
    /// What a cancelled choice had used.
    pub cancelled: Option<Report>,
    /// The refusal, if it was one.
    pub refused: Option<engine::api::AdmitError>,
    /// Who proposed each token of the deltas.
    pub origins: Vec<Origin>,
    /// Drafts of the steps of the deltas.
    pub drafted: u64,
    /// Tick of every delta.
    pub ticks: Vec<u64>,
    /// KV pages held and free, as they were said.
    pub pages: Vec<(u32, u32)>,
    /// Prompt tokens computed, as they were said, and the times.
    pub prompt: Vec<(u32, u64)>,
    /// Log-probabilities of the prompt.
    pub scores: Vec<TokenLogprob>,
    /// What was counted at each delta, where that is wanted.
    pub reports: Vec<Report>,
    /// Text released by each token.
    pub cut: Vec<String>,
}

/// Adds an event to what was heard, and asserts that nothing follows the last one.
pub fn hear(heard: &mut BTreeMap<Ticket, Heard>, event: Event, tick: u64) {
    let h = heard.entry(event.ticket()).or_default();
    let ended = h.report.is_some() || h.refused.is_some() || h.cancelled.is_some();
    assert!(!ended, "an event after the last: {event:?}");
    match event {
        Event::Admitted { request, .. } => assert!(h.request.replace(request).is_none()),
        Event::Prompt { processed, time_ns, logprobs, .. } => {
            assert!(h.outcome.tokens.is_empty(), "the prompt comes before the answer");
            h.prompt.push((processed, time_ns));
            h.scores.extend(logprobs);
        }
        Event::Delta { delta, .. } => {
            let Committed { tokens, origins, drafted, said, cuts, logprobs, report } = delta.into_committed();
            assert_eq!(origins.len(), tokens.len(), "every token is somebody's");
            assert_eq!(cuts.len(), tokens.len(), "the text is cut behind every token");
            assert!(cuts.is_sorted() && cuts.last().is_none_or(|end| *end as usize <= said.text.len()));
            let mut from = 0;
            for cut in &cuts {
                h.cut.push(said.text[from..*cut as usize].to_owned());
                from = *cut as usize;
            }
            h.reports.extend(report.map(|report| *report));
            h.origins.extend(origins);
            h.drafted += u64::from(drafted);
            h.outcome.tokens.extend(tokens);
            h.outcome.text.push_str(&said.text);
            h.outcome.logprobs.extend(logprobs);
            h.ticks.push(tick);
        }
        Event::Pages { held, free, .. } => h.pages.push((held, free)),
        Event::Finished { finish, report, .. } => {
            h.outcome.finish = Some(finish);
            let of = |origin: Origin| h.origins.iter().filter(|o| **o == origin).count() as u64;
            let counted = (report.mtp.accepted, report.suffix.accepted, report.forced, report.first + report.bonus);
            let said = (of(Origin::Mtp), of(Origin::Suffix), of(Origin::Forced), of(Origin::Target));
            // A row that was copied in the middle of its answer has not said the first part, one of a fault not the last.
            if h.origins.len() as u64 == report.completion_tokens && !matches!(finish, Finish::Fault(_)) {
                assert_eq!(said, counted, "who proposed what, in the deltas and in the report");
                assert_eq!(h.drafted, report.total.drafted, "drafts of the deltas and of the report");
            }
            h.report = Some(*report);
        }
        Event::Cancelled { tokens, said, report, .. } => {
            engine::tables::counters::check(&report);
            h.outcome.tokens.extend(tokens);
            h.outcome.text.push_str(&said.text);
            h.cancelled = Some(*report);
        }
        Event::Refused { error, .. } => h.refused = Some(error),
    }
}

/// A world of the toy model with its channels in hand, ticked by the test.
pub struct Rig {
    /// The world.
    pub world: World,
    /// The toy's configuration.
    pub config: ToyConfig,
    /// Commands to it.
    pub commands: Sender<Command>,
    /// Events from it.
    pub events: Receiver<Event>,
    /// What was heard, by ticket.
    pub heard: BTreeMap<Ticket, Heard>,
    /// Ticks run.
    pub ticks: u64,
    /// The world's time.
    pub clock: FakeClock,
}

impl Rig {
    /// A world of the toy model at rest.
    pub fn new(limits: &Limits, config: ToyConfig) -> Self {
        let toy = Box::new(Toy::new(config.clone(), limits));
        Self { config, ..Self::of_executor(limits, toy, Arc::new(pieces())) }
    }

    /// A world of any executor at rest.
    ///
    /// # Panics
    /// If the limits contradict each other.
    pub fn of_executor(limits: &Limits, executor: Box<dyn Executor>, pieces: Arc<Pieces>) -> Self {
        let ledger = Ledger::new(limits.clone(), executor.shape().clone(), pieces).expect("good limits");
        let (commands, inbox) = bounded(1024);
        let (sender, events) = bounded(limits.events);
        let clock = FakeClock::default();
        let world = World::new(ledger, executor, Box::new(clock.clone()), inbox, sender);
        Self { world, config: ToyConfig::default(), commands, events, heard: BTreeMap::new(), ticks: 0, clock }
    }

    /// Sends a command.
    pub fn send(&self, command: Command) {
        self.commands.try_send(command).expect("a test fits the inbox");
    }

    /// Queues a choice.
    pub fn submit(&self, submission: &Submission) {
        self.send(Command::Submit(Box::new(submission.clone())));
    }

    /// One tick, the checks of every invariant, and the events.
    pub fn tick(&mut self) {
        self.tick_deaf();
        self.listen();
    }

    /// One tick and the checks; events stay in the channel.
    ///
    /// # Panics
    /// If an invariant does not hold, or after a hundred thousand ticks.
    pub fn tick_deaf(&mut self) {
        tick::tick(&mut self.world);
        self.world.check();
        self.ticks += 1;
        assert!(self.ticks < 100_000, "a test that waits in vain");
    }

    /// Takes the events that wait.
    pub fn listen(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            hear(&mut self.heard, event, self.ticks);
        }
    }

    /// Ticks until nothing moves.
    ///
    /// # Panics
    /// If that takes more than a million ticks.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            self.tick();
            if !self.world.moved() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// What a ticket has heard.
    pub fn of(&self, ticket: u64) -> &Heard {
        &self.heard[&Ticket(ticket)]
    }

    /// Tokens that a ticket has heard so far.
    pub fn of_len(&self, ticket: u64) -> usize {
        self.heard.get(&Ticket(ticket)).map_or(0, |h| h.outcome.tokens.len())
    }

    /// Asserts that nobody holds anything.
    pub fn assert_empty(&self) {
        let l = &self.world.ledger;
        assert!(l.requests.live.is_empty() && l.waiting.is_empty() && l.outbox.is_empty());
        assert_eq!(l.pages.available(), l.pages.len(), "pages are held by nobody but the prefix cache");
        assert_eq!(l.requests.free_len(), l.limits.slots);
        self.world.check();
    }

    /// The live row of a ticket.
    pub fn slot(&self, ticket: u64) -> Option<Slot> {
        self.world.ledger.requests.find(Ticket(ticket))
    }

    /// Asserts that a finished choice is what plain decoding without an engine gives.
    pub fn assert_reference(&self, submission: &Submission) {
        self.assert_reference_after(submission, &[]);
    }

    /// [`Self::assert_reference`] of a choice whose first tokens were `given`.
    pub fn assert_reference_after(&self, submission: &Submission, given: &[TokenId]) {
        let heard = &self.heard[&submission.ticket];
        let want = reference_after(&self.config, self.world.ledger.limits.context, submission, given);
        assert_eq!(heard.outcome, want, "{submission:?}\n{:?}", heard.report);
        let report = heard.report.as_ref().expect("finished");
        engine::tables::counters::check(report);
        assert_eq!(report.completion_tokens as usize, want.tokens.len());
    }
}
