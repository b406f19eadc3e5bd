//! One grammar on its way along an answer: a parser that can be walked back, whatever happened to it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::ids::TokenId;
use llguidance::TokenParser;
use llguidance::api::StopReason;

/// A parser beside its lexer, and what every terminal and its rules take: estimates, and high ones.
const PARSER_BYTES: usize = 64 * 1024;
const REGEX_BYTES: usize = 4096;

/// A parser and what it has taken.
pub(super) struct Grammar {
    parser: TokenParser,
    /// The parser as it was before the first token: a parser that gave up is made anew from it.
    fresh: Box<TokenParser>,
    taken: Vec<TokenId>,
    /// It has given up on what it was asked last: too much work, or a fault of its own.
    broken: bool,
    /// Its end token, which is never given to it.
    end: TokenId,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("taken", &self.taken).field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Clone for Grammar {
    /// With caches of its own, so that none waits for the other.
    fn clone(&self) -> Self {
        Self {
            parser: self.parser.deep_clone(),
            fresh: Box::new(self.fresh.deep_clone()),
            taken: self.taken.clone(),
            broken: self.broken,
            end: self.end,
        }
    }
}

impl Grammar {
    /// Of a parser that has taken nothing.
    pub(super) fn new(parser: TokenParser, end: TokenId) -> Self {
        Self { fresh: Box::new(parser.deep_clone()), parser, taken: Vec::new(), broken: false, end }
    }

    /// What it takes, roughly: the two parsers with the states of their lexers.
    pub(super) fn bytes(&self) -> usize {
        let one = |parser: &TokenParser| {
            let lexer = parser.parser.lexer_stats();
            lexer.num_bytes + lexer.num_regexps * REGEX_BYTES + PARSER_BYTES
        };
        one(&self.parser) + one(&self.fresh)
    }

    /// Asks the parser; `None` where it cannot answer. One that gave up is made anew first: on what is drafted and taken
    /// back, an answer must not depend.
    fn ask<T>(&mut self, ask: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Option<T> {
        if self.broken {
            self.parser = self.fresh.deep_clone();
            self.broken = false;
            for i in 0..self.taken.len() {
                let token = self.taken[i];
                self.ask_once(|parser| take(parser, token))?;
            }
        }
        self.ask_once(ask)
    }

    fn ask_once<T>(&mut self, ask: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Option<T> {
        let parser = &mut self.parser;
        match catch_unwind(AssertUnwindSafe(|| ask(parser))) {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::warn!(tokens = self.taken.len(), %error, "a grammar cannot go on"),
            Err(_) => tracing::error!(tokens = self.taken.len(), "a grammar failed"),
        }
        self.broken = true;
        None
    }

    /// Sets the bits of the tokens that may come next, and says whether it may end here.
    pub(super) fn mask(&mut self, words: &mut [u32]) -> bool {
        if self.parser.stopped() && !self.broken {
            return self.parser.stop_reason() == StopReason::NoExtension;
        }
        let asked = self.ask(|parser| match parser.compute_mask() {
            Ok(mask) => Ok(Some(mask)),
            // A dead end: nothing may come, and a step back leads out of it.
            Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => Ok(None),
            Err(error) => Err(error.to_string()),
        });
        let Some(mut mask) = asked.flatten() else { return false };
        let ends = mask.is_allowed(self.end.0);
        mask.disallow_token(self.end.0);
        words.iter_mut().zip(mask.as_slice()).for_each(|(word, from)| *word |= from);
        ends
    }

    /// Takes a token that may come; else takes nothing and says so.
    pub(super) fn advance(&mut self, token: TokenId) -> bool {
        let trie = self.parser.token_env.tok_trie();
        // A token that writes nothing is in no mask.
        let writes = token.index() < trie.vocab_size() && trie.token_len(token.0) > 0;
        if !writes || token == self.end || (self.parser.stopped() && !self.broken) {
            return false;
        }
        let may = self.ask(|parser| match parser.validate_token(token.0) {
            Ok(true) => take(parser, token).map(|()| true),
            Ok(false) => Ok(false),
            Err(error) => Err(error.to_string()),
        });
        if may == Some(true) {
            self.taken.push(token);
        }
        may == Some(true)
    }

    /// Gives the last token back.
    pub(super) fn step_back(&mut self) {
        self.taken.pop().expect("what is given back was taken");
        if !self.broken {
            self.ask_once(|parser| parser.rollback(1).map_err(|error| error.to_string()));
        }
    }

    /// Whether it may end here.
    pub(super) fn may_end(&mut self) -> bool {
        match self.parser.stopped() && !self.broken {
            true => self.parser.stop_reason() == StopReason::NoExtension,
            false => self.ask(|parser| Ok(parser.is_accepting())) == Some(true),
        }
    }
}

/// Gives a parser a token that it allows.
fn take(parser: &mut TokenParser, token: TokenId) -> Result<(), String> {
    if parser.consume_token(token.0).map_err(|error| error.to_string())? > 0 {
        return Err(String::from("it would take back what was said"));
    }
    parser.check_stop().map_err(|error| error.to_string())?;
    Ok(())
}
