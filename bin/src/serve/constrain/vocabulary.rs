//! The vocabulary as grammars see it: a trie of the bytes that tokens write, made once for a model.

use std::sync::Arc;

use engine::ids::TokenId;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use crate::serve::model::TextModel;

/// Newlines that may stand between the end of reasoning and what follows, and between calls.
pub(super) const NEWLINES_MAX: u8 = 2;

/// Longest token that a form can be made of: the library's trie has no deeper place.
const TOKEN_BYTES_MAX: usize = 1000;
/// Bytes of all tokens, and so nodes of the trie at most, that the library can count.
const TRIE_BYTES_MAX: usize = (1 << 22) - 1;

/// States of the lexer of one grammar, of [`STATE_BYTES`] each at most.
const LEXER_STATES: usize = 32_768;
const STATE_BYTES: usize = 2048;

/// Work that a grammar may take. Counts, not times: whether a request is served does not depend on the machine.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 2_000_000,
        max_grammar_size: 200_000,
        max_lexer_states: LEXER_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// What the vocabulary takes for grammars: a trie of `piece_bytes` bytes, whole and by kinds of text.
pub(crate) fn vocabulary_bytes(tokens: usize, piece_bytes: usize) -> usize {
    const COPIES: usize = 3;
    const TOKEN_BYTES: usize = 16;
    // A node and a byte of a text.
    COPIES * (tokens * TOKEN_BYTES + piece_bytes * 9)
}

/// What the grammars of `choices` running choices may take.
pub(crate) fn grammar_bytes(choices: usize) -> usize {
    choices * LEXER_STATES * STATE_BYTES
}

/// What grammars are compiled for.
pub(crate) struct Vocabulary {
    factory: ParserFactory,
    /// Tokens that end an answer, ascending; at least one.
    pub(super) ends: Vec<TokenId>,
    /// Tokens that are newlines and nothing else, with how many they are.
    pub(super) newlines: Vec<(TokenId, u8)>,
}

impl Vocabulary {
    /// Of a model; `None` where no token ends an answer, so that no constraint could either, or where there are more tokens
    /// than the library can count. A token that is too long for it has no place in any form.
    pub(crate) fn new(model: &dyn TextModel) -> Option<Self> {
        let ids = || (0..model.vocab() as u32).map(TokenId);
        let ends: Vec<TokenId> = ids().filter(|t| model.is_end(*t)).collect();
        let end = ends.first()?;
        let mut newlines = Vec::new();
        let word = |token: TokenId| {
            let mut bytes = model.piece(token);
            if model.is_structure(token) {
                // Structure is never text: the trie keeps it apart by a byte that no text has.
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            } else if !bytes.is_empty() && bytes.len() <= usize::from(NEWLINES_MAX) && bytes.iter().all(|b| *b == b'\n')
            {
                newlines.push((token, bytes.len() as u8));
            }
            if bytes.len() > TOKEN_BYTES_MAX {
                bytes.clear();
            }
            bytes
        };
        let words: Vec<Vec<u8>> = ids().map(word).collect();
        if words.iter().map(Vec::len).sum::<usize>() > TRIE_BYTES_MAX {
            return None;
        }
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end.0), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .expect("the slices are regular expressions of the library's own");
        *factory.limits_mut() = parser_limits();
        factory.quiet();
        Some(Self { factory, ends, newlines })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// What is wrong with it, in the words of the library.
    pub(super) fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        // The first line says what is wrong; the rest shows the grammar, which the client knows.
        let line = |error: String| error.lines().next().unwrap_or_default().trim().to_owned();
        let mut parser = self.factory.create_parser(grammar).map_err(|error| line(error.to_string()))?;
        parser.start_without_prompt();
        Ok(parser)
    }

    /// The end token that the library knows.
    pub(super) fn end(&self) -> TokenId {
        self.ends[0]
    }
}
