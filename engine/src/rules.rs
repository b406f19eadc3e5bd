//! rules: from a request's sampling settings and the history of one window row to the row's rule. Pure.
//!
//! Penalties and bias become sparse [`LogitEdit`]s on that row's own history, drafts of the window included, so that a
//! token is chosen under the same rule whether it was drafted or decoded alone.

use crate::api::{Sampling, Stop};
use crate::ids::TokenId;
use crate::pieces::Pieces;
use crate::step::{Filters, LogitEdit};

/// Filters of a request's rows.
pub fn filters(s: &Sampling) -> Filters {
    Filters {
        temperature: s.temperature,
        top_k: s.top_k,
        typical_p: s.typical_p,
        top_p: s.top_p,
        min_p: s.min_p,
        seed: s.seed,
        choice: s.choice,
    }
}

/// Counts of one row's history, slid forward along a window. Dense `[vocab]` columns, reused between rows.
#[derive(Debug)]
pub struct History {
    /// Occurrences in the completion.
    completion: Vec<u32>,
    /// Occurrences among the last `repeat_last_n` tokens.
    recent: Vec<u32>,
    bias: Vec<f32>,
    listed: Vec<bool>,
    /// Tokens with any of the above, in order of first appearance.
    touched: Vec<TokenId>,
    repeat_last_n: usize,
}

impl History {
    /// No history of a vocabulary.
    pub fn new(vocab: usize) -> Self {
        Self {
            completion: vec![0; vocab],
            recent: vec![0; vocab],
            bias: vec![0.0; vocab],
            listed: vec![false; vocab],
            touched: Vec::new(),
            repeat_last_n: 0,
        }
    }

    /// Bytes of [`Self::new`], every token touched.
    pub fn bytes_for(vocab: usize) -> usize {
        vocab * (2 * size_of::<u32>() + size_of::<f32>() + size_of::<bool>() + size_of::<TokenId>())
    }

    fn touch(&mut self, token: TokenId) {
        if !std::mem::replace(&mut self.listed[token.index()], true) {
            self.touched.push(token);
        }
    }

    /// Starts at the anchor: `history` is prompt and completion, the completion from `prompt_len` on.
    pub fn start(&mut self, sampling: &Sampling, history: &[TokenId], prompt_len: usize) {
        for t in self.touched.drain(..) {
            self.completion[t.index()] = 0;
            self.recent[t.index()] = 0;
            self.bias[t.index()] = 0.0;
            self.listed[t.index()] = false;
        }
        for e in &sampling.logit_bias {
            if e.token.index() < self.bias.len() {
                self.touch(e.token);
                self.bias[e.token.index()] += e.add;
            }
        }
        self.repeat_last_n = if sampling.repeat_penalty == 1.0 { 0 } else { sampling.repeat_last_n as usize };
        for &t in &history[history.len().saturating_sub(self.repeat_last_n)..] {
            self.touch(t);
            self.recent[t.index()] += 1;
        }
        if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
            for &t in &history[prompt_len..] {
                self.touch(t);
                self.completion[t.index()] += 1;
            }
        }
    }

    /// One token further: `leaves` is the token that is `repeat_last_n` back from the new one, if there is one.
    pub fn advance(&mut self, sampling: &Sampling, token: TokenId, leaves: Option<TokenId>) {
        if self.repeat_last_n > 0 {
            self.touch(token);
            self.recent[token.index()] += 1;
            if let Some(old) = leaves {
                self.recent[old.index()] -= 1;
            }
        }
        if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
            self.touch(token);
            self.completion[token.index()] += 1;
        }
    }

    /// Tokens that the repetition penalty looks back on.
    pub fn repeat_last_n(&self) -> usize {
        self.repeat_last_n
    }

    /// Appends the edits of the row, at most one per token. `banned` tokens get `-inf`.
    pub fn edits(&mut self, sampling: &Sampling, banned: impl Iterator<Item = TokenId>, edits: &mut Vec<LogitEdit>) {
        let start = edits.len();
        for &token in &self.touched {
            let t = token.index();
            let repeat = if self.recent[t] > 0 { sampling.repeat_penalty } else { 1.0 };
            let present = if self.completion[t] > 0 { sampling.presence_penalty } else { 0.0 };
            let add = self.bias[t] - present - sampling.frequency_penalty * self.completion[t] as f32;
            if repeat != 1.0 || add != 0.0 {
                edits.push(LogitEdit { token, repeat, add });
            }
        }
        for token in banned {
            match edits[start..].iter_mut().find(|e| e.token == token) {
                Some(e) => e.add = f32::NEG_INFINITY,
                None => edits.push(LogitEdit { token, repeat: 1.0, add: f32::NEG_INFINITY }),
            }
        }
    }
}

/// Tokens that may not be chosen at a completion position: the model's end tokens under `ignore_eos`, every end token
/// before `min_tokens`.
pub fn banned<'a>(stop: &'a Stop, pieces: &'a Pieces, position: u32) -> impl Iterator<Item = TokenId> + Clone + 'a {
    let early = position < stop.min_tokens;
    let model = if stop.ignore_eos || early { pieces.end_tokens() } else { &[] };
    let own = if early { stop.tokens.as_slice() } else { &[] };
    model.iter().chain(own).copied()
}

/// Whether a token ends the choice.
pub fn ends(stop: &Stop, pieces: &Pieces, token: TokenId) -> bool {
    (!stop.ignore_eos && pieces.is_end(token)) || stop.tokens.contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::PieceFlags;

    fn ids(v: &[u32]) -> Vec<TokenId> {
        v.iter().map(|&t| TokenId(t)).collect()
    }

    fn edits(h: &mut History, s: &Sampling) -> Vec<(u32, f32, f32)> {
        let mut out = Vec::new();
        h.edits(s, std::iter::empty(), &mut out);
        out.sort_by_key(|e| e.token.0);
        out.iter().map(|e| (e.token.0, e.repeat, e.add)).collect()
    }

    #[test]
    fn sliding_along_a_window_equals_starting_there() {
        let s = Sampling {
            repeat_penalty: 1.5,
            repeat_last_n: 3,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            logit_bias: vec![LogitEdit { token: TokenId(2), repeat: 1.0, add: 1.0 }],
            ..Sampling::greedy()
        };
        let whole = ids(&[5, 6, 5, 1, 2, 2, 7, 5, 1]);
        let prompt = 3;
        let mut slid = History::new(10);
        slid.start(&s, &whole[..4], prompt);
        for n in 4..=whole.len() {
            let mut fresh = History::new(10);
            fresh.start(&s, &whole[..n], prompt);
            assert_eq!(edits(&mut slid, &s), edits(&mut fresh, &s), "at {n}");
            if n < whole.len() {
                slid.advance(&s, whole[n], n.checked_sub(3).map(|i| whole[i]));
            }
        }
    }

    #[test]
    fn without_penalties_there_is_no_edit() {
        let s = Sampling::greedy();
        let mut h = History::new(10);
        h.start(&s, &ids(&[1, 2, 3]), 1);
        h.advance(&s, TokenId(4), None);
        assert_eq!(edits(&mut h, &s), []);
    }

    #[test]
    fn a_ban_and_a_penalty_share_one_edit() {
        let s = Sampling { frequency_penalty: 1.0, ..Sampling::greedy() };
        let mut h = History::new(10);
        h.start(&s, &ids(&[1, 2, 2]), 1);
        let mut out = Vec::new();
        h.edits(&s, [TokenId(2), TokenId(9)].into_iter(), &mut out);
        assert_eq!(out.len(), 2);
        assert!(out.iter().all(|e| e.add == f32::NEG_INFINITY));
        // A later start leaves nothing behind.
        h.start(&Sampling::greedy(), &ids(&[1]), 1);
        assert_eq!(edits(&mut h, &Sampling::greedy()), []);
    }

    #[test]
    fn end_tokens_are_banned_when_they_should_be() {
        let mut pieces = Pieces::new();
        pieces.push(b"a", PieceFlags::empty());
        pieces.push(b"</s>", PieceFlags::END | PieceFlags::CONTROL);
        let at = |stop: &Stop, p| banned(stop, &pieces, p).map(|t| t.0).collect::<Vec<_>>();
        let stop = Stop { tokens: ids(&[0]), min_tokens: 2, ..Stop::default() };
        assert_eq!(at(&stop, 1), [1, 0]);
        assert!(at(&stop, 2).is_empty());
        let ignore = Stop { ignore_eos: true, ..Stop::default() };
        assert_eq!(at(&ignore, 99), [1]);
        assert!(!ends(&ignore, &pieces, TokenId(1)) && ends(&stop, &pieces, TokenId(0)));
    }
}
