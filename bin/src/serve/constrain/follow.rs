//! What one answer may still say, as it goes from reasoning to content and calls. Structure is told by token ids alone.
//!
//! ```text
//!  Reasoning ──end marker──► Lead ──text──► Content ──end──► Ended
//!      │                      │ ▲             │ (without a form)
//!      └──────call start──────┴─┼── Call ◄────┘
//!                               └─── call end ──► Between ──call start──► Call, or end ──► Ended
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use engine::constraint::{Allowed, Constraint};
use engine::ids::TokenId;
use engine::limits::WINDOW_MAX;

use super::grammar::Grammar;
use super::vocabulary::NEWLINES_MAX;

/// Calls, where tools are offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Calls {
    /// Begins a call.
    pub start: TokenId,
    /// Ends it; without one the answer ends with its calls.
    pub end: Option<TokenId>,
    /// No call may come.
    pub banned: bool,
    /// A call has to come, and no content may.
    pub required: bool,
    /// One is enough.
    pub single: bool,
}

/// What does not change along an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    pub ends: Vec<TokenId>,
    pub newlines: Vec<(TokenId, u8)>,
    /// Start and end marker of reasoning.
    pub reasoning: Option<(TokenId, TokenId)>,
    /// Tokens of reasoning before its end marker.
    pub budget: Option<u32>,
    pub calls: Option<Calls>,
    /// Content has a form.
    pub formed: bool,
}

/// Where an answer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Thinking, for so many tokens.
    Reasoning(u32),
    /// At the very beginning, outside of reasoning.
    Start,
    /// Behind reasoning, and so many newlines.
    Lead(u8),
    /// In content.
    Content,
    /// In a call.
    Call,
    /// Behind a call, and so many newlines.
    Between(u8),
    /// Behind an end token.
    Ended,
}

/// Which grammar has taken a token, to be asked for it back.
#[derive(Debug)]
enum Took {
    Nothing,
    Form,
    Body,
    /// A call began: the body of the one before it, if that can still be come back to.
    Opened(Option<Box<Grammar>>),
}

/// The constraint of one choice.
#[derive(Debug)]
pub(super) struct Follow {
    rules: Arc<Rules>,
    phase: Phase,
    form: Option<Box<Grammar>>,
    /// Of every call, at its beginning.
    call: Option<Arc<Grammar>>,
    /// Of the last call.
    body: Option<Box<Grammar>>,
    /// What the last tokens did, oldest first; no more of them than can be taken back.
    undo: VecDeque<(Phase, Took)>,
}

impl Follow {
    pub(super) fn new(rules: Rules, phase: Phase, form: Option<Grammar>, call: Option<Grammar>) -> Self {
        let (form, call) = (form.map(Box::new), call.map(Arc::new));
        Self { rules: Arc::new(rules), phase, form, call, body: None, undo: VecDeque::new() }
    }

    /// Calls that may come.
    fn callable(&self) -> Option<Calls> {
        self.rules.calls.filter(|calls| !calls.banned)
    }

    fn required(&self) -> bool {
        self.rules.calls.is_some_and(|calls| calls.required)
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.rules.ends.contains(&token)
    }

    /// The newlines that there are after `token`, if so many may stand here.
    fn newlines(&self, before: u8, token: TokenId) -> Option<u8> {
        let (_, more) = self.rules.newlines.iter().find(|(t, _)| *t == token)?;
        before.checked_add(*more).filter(|all| *all <= NEWLINES_MAX)
    }

    fn set_newlines(&self, before: u8, words: &mut [u32]) {
        let fit = self.rules.newlines.iter().filter(|(_, n)| before + n <= NEWLINES_MAX);
        fit.for_each(|(token, _)| set(words, *token));
    }

    /// Every token but those of `but`.
    fn all_but(words: &mut [u32], but: impl Iterator<Item = TokenId>) -> Allowed {
        let mut any = false;
        for token in but {
            if !std::mem::replace(&mut any, true) {
                words.fill(u32::MAX);
            }
            if let Some(word) = words.get_mut(token.index() / 32) {
                *word &= !(1 << (token.index() % 32));
            }
        }
        if any { Allowed::Masked } else { Allowed::All }
    }

    /// Tokens that may not come where everything else may.
    fn barred(&self, answered: bool) -> impl Iterator<Item = TokenId> + '_ {
        let calls = self.rules.calls.filter(|calls| calls.banned).map(|calls| calls.start);
        let ends: &[TokenId] = if answered { &[] } else { &self.rules.ends };
        calls.into_iter().chain(ends.iter().copied())
    }

    /// Whether an answer may end while it is free to say anything.
    fn may_end_freely(&self) -> bool {
        !self.rules.formed && !self.required()
    }

    /// Where an answer stands after reasoning, or at its start.
    fn behind_reasoning(&self) -> Phase {
        if self.may_end_freely() { Phase::Content } else { Phase::Lead(0) }
    }

    /// Where `token` leads to and which grammar takes it; `None` where it may not come.
    fn step(&mut self, token: TokenId) -> Option<(Phase, Took)> {
        let opens = self.callable().is_some_and(|calls| calls.start == token);
        let thinks = self.rules.reasoning.is_some_and(|(start, _)| start == token);
        let end = self.is_end(token);
        match self.phase {
            Phase::Ended => None,
            Phase::Reasoning(count) => {
                if self.rules.reasoning.is_some_and(|(_, end)| end == token) {
                    return Some((self.behind_reasoning(), Took::Nothing));
                }
                if self.rules.budget.is_some_and(|budget| count >= budget) {
                    return None;
                }
                if opens {
                    return Some((Phase::Call, self.open()));
                }
                if self.barred(self.may_end_freely()).any(|t| t == token) {
                    return None;
                }
                let next = if end { Phase::Ended } else { Phase::Reasoning(count.saturating_add(1)) };
                Some((next, Took::Nothing))
            }
            Phase::Start if thinks => Some((Phase::Reasoning(0), Took::Nothing)),
            Phase::Start | Phase::Lead(_) if opens => Some((Phase::Call, self.open())),
            Phase::Start | Phase::Lead(_) => {
                if !self.required()
                    && let Some(form) = &mut self.form
                {
                    if end {
                        return form.may_end().then_some((Phase::Ended, Took::Nothing));
                    }
                    if form.advance(token) {
                        return Some((Phase::Content, Took::Form));
                    }
                }
                match self.phase {
                    Phase::Lead(n) => self.newlines(n, token).map(|n| (Phase::Lead(n), Took::Nothing)),
                    _ if self.may_end_freely() => self.content(token, opens, end),
                    _ => None,
                }
            }
            Phase::Content => self.content(token, opens, end),
            Phase::Call => {
                let calls = self.rules.calls?;
                let body = self.body.as_mut()?;
                if calls.end.map_or(end, |end| end == token) {
                    let next = if calls.end.is_none() { Phase::Ended } else { self.behind_call(calls) };
                    return self.body.as_mut()?.may_end().then_some((next, Took::Nothing));
                }
                body.advance(token).then_some((Phase::Call, Took::Body))
            }
            Phase::Between(n) => {
                let single = self.rules.calls.is_some_and(|calls| calls.single);
                if end {
                    Some((Phase::Ended, Took::Nothing))
                } else if single {
                    None
                } else if opens {
                    Some((Phase::Call, self.open()))
                } else {
                    self.newlines(n, token).map(|n| (Phase::Between(n), Took::Nothing))
                }
            }
        }
    }

    fn content(&mut self, token: TokenId, opens: bool, end: bool) -> Option<(Phase, Took)> {
        if let Some(form) = &mut self.form {
            if end {
                return form.may_end().then_some((Phase::Ended, Took::Nothing));
            }
            return form.advance(token).then_some((Phase::Content, Took::Form));
        }
        if opens {
            return Some((Phase::Call, self.open()));
        }
        if self.barred(true).any(|t| t == token) {
            return None;
        }
        Some((if end { Phase::Ended } else { Phase::Content }, Took::Nothing))
    }

    /// Where an answer stands behind a call.
    fn behind_call(&self, calls: Calls) -> Phase {
        if calls.single || !self.may_end_freely() { Phase::Between(0) } else { Phase::Content }
    }

    fn open(&mut self) -> Took {
        let fresh = self.call.as_ref().map(|call| Box::new(Grammar::clone(call)));
        Took::Opened(std::mem::replace(&mut self.body, fresh))
    }

    fn mask_lead(&mut self, words: &mut [u32]) {
        if let Some(calls) = self.callable() {
            set(words, calls.start);
        }
        match self.phase {
            Phase::Lead(n) => self.set_newlines(n, words),
            _ => {
                if let Some((start, _)) = self.rules.reasoning {
                    set(words, start);
                }
            }
        }
        if !self.required()
            && let Some(form) = &mut self.form
            && form.mask(words)
        {
            self.rules.ends.iter().for_each(|end| set(words, *end));
        }
    }
}

impl Constraint for Follow {
    fn mask(&mut self, words: &mut [u32]) -> Allowed {
        match self.phase {
            Phase::Ended => return Allowed::Nothing,
            Phase::Reasoning(count) => match (self.rules.reasoning, self.rules.budget) {
                (Some((_, end)), Some(budget)) if count >= budget => set(words, end),
                _ => return Self::all_but(words, self.barred(self.may_end_freely())),
            },
            Phase::Start if self.may_end_freely() => return Self::all_but(words, self.barred(true)),
            Phase::Start | Phase::Lead(_) => self.mask_lead(words),
            Phase::Content => match &mut self.form {
                None => return Self::all_but(words, self.barred(true)),
                Some(form) => {
                    if form.mask(words) {
                        self.rules.ends.iter().for_each(|end| set(words, *end));
                    }
                }
            },
            Phase::Call => {
                let end = self.rules.calls.and_then(|calls| calls.end);
                if let Some(body) = &mut self.body
                    && body.mask(words)
                {
                    let ends = end.as_ref().map_or(self.rules.ends.as_slice(), std::slice::from_ref);
                    ends.iter().for_each(|end| set(words, *end));
                }
            }
            Phase::Between(n) => {
                self.rules.ends.iter().for_each(|end| set(words, *end));
                if let Some(calls) = self.callable().filter(|calls| !calls.single) {
                    set(words, calls.start);
                    self.set_newlines(n, words);
                }
            }
        }
        if words.iter().all(|word| *word == 0) { Allowed::Nothing } else { Allowed::Masked }
    }

    fn advance(&mut self, token: TokenId) -> bool {
        let Some((phase, took)) = self.step(token) else { return false };
        if self.undo.len() == WINDOW_MAX {
            self.undo.pop_front();
        }
        self.undo.push_back((std::mem::replace(&mut self.phase, phase), took));
        true
    }

    fn rollback(&mut self, n: usize) {
        for _ in 0..n {
            let (phase, took) = self.undo.pop_back().expect("no more is taken back than a window");
            self.phase = phase;
            match took {
                Took::Nothing => {}
                Took::Form => self.form.as_mut().expect("it took the token").step_back(),
                Took::Body => self.body.as_mut().expect("it took the token").step_back(),
                Took::Opened(before) => self.body = before,
            }
        }
    }

    fn ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            rules: Arc::clone(&self.rules),
            phase: self.phase,
            form: self.form.clone(),
            call: self.call.clone(),
            body: self.body.clone(),
            // What is committed when a choice is copied is never taken back.
            undo: VecDeque::new(),
        })
    }
}

fn set(words: &mut [u32], token: TokenId) {
    if let Some(word) = words.get_mut(token.index() / 32) {
        *word |= 1 << (token.index() % 32);
    }
}
