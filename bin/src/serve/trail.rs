//! Who proposed what, chunk by chunk: `stream_options.include_speculation`.
//!
//! A chunk that says anything carries, under `speculation`, what was committed since the last such chunk of its choice:
//! `{"tokens": [{"text", "source"}...], "drafted": n, "accepted": n}`. The texts of all tokens of a choice, joined, are
//! what the model wrote: a token that ends within a character adds nothing, the one that completes it adds the
//! character; of one that never ends there is none. End tokens, control tokens and the markers of channels have no text. `drafted` and `accepted` are those of
//! the steps that committed these tokens, so that their sums are the totals at the end, where the last chunk has them
//! beside these keys.

use engine::api::Origin;
use engine::channels::Markers;
use engine::ids::TokenId;
use engine::tables::output::decode;
use serde_json::{Map, Value, json};

use crate::serve::model::TextModel;

/// What of a choice is still to be said.
#[derive(Default)]
pub(crate) struct Trail {
    /// First bytes of a character whose end has not come.
    cut: Vec<u8>,
    tokens: Vec<Value>,
    drafted: u64,
    accepted: u64,
    /// Tokens that mark channels.
    markers: Vec<TokenId>,
}

impl Trail {
    /// Of a choice whose channels `markers` tell apart.
    pub(crate) fn new(markers: Option<&Markers>) -> Self {
        Self { markers: markers.map(Markers::tokens).unwrap_or_default(), ..Self::default() }
    }

    /// Takes the tokens of one step.
    pub(crate) fn add(&mut self, tokens: &[TokenId], origins: &[Origin], drafted: u32, model: &dyn TextModel) {
        assert_eq!(tokens.len(), origins.len(), "every token is somebody's");
        for (token, origin) in tokens.iter().zip(origins) {
            let hidden = model.is_control(*token) || model.is_end(*token) || self.markers.contains(token);
            let mut text = String::new();
            if !hidden {
                self.cut.extend_from_slice(&model.piece(*token));
                let (used, _) = decode(&self.cut, false, &mut text);
                self.cut.drain(..used);
            }
            self.tokens.push(json!({"text": text, "source": origin.name()}));
            self.accepted += u64::from(matches!(origin, Origin::Mtp | Origin::Suffix));
        }
        self.drafted += u64::from(drafted);
    }

    /// What is to be said now; nothing where nothing was committed.
    pub(crate) fn take(&mut self) -> Option<Map<String, Value>> {
        if self.tokens.is_empty() {
            return None;
        }
        let (drafted, accepted) = (std::mem::take(&mut self.drafted), std::mem::take(&mut self.accepted));
        let mut out = Map::new();
        out.insert("tokens".to_owned(), std::mem::take(&mut self.tokens).into());
        out.insert("drafted".to_owned(), drafted.into());
        out.insert("accepted".to_owned(), accepted.into());
        Some(out)
    }
}
