//! `/v1/completions`: a body becomes prompts.

use engine::ids::TokenId;
use serde_json::Value;

use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::model::TextModel;
use crate::serve::params::token_ids;

/// One prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prompt {
    /// What `echo` shows.
    pub text: String,
    pub tokens: Vec<TokenId>,
}

/// The limit when none is given.
pub(crate) const MAX_TOKENS_DEFAULT: u32 = 16;

/// Reads the prompts: a string, strings, ids, or lists of ids. A string that is sure to have `n_ctx` tokens or more is
/// refused without being tokenized.
///
/// # Errors
/// 400 naming the prompt.
pub(crate) fn read_prompts(
    body: &Fields<'_, '_>,
    model: &dyn TextModel,
    n_ctx: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let add_special = body.boolean("add_special_tokens")?.unwrap_or(true);
    let parse_special = body.boolean("parse_special")?.unwrap_or(true);
    let from_text = |text: &str, path: &str| {
        if text.is_empty() {
            return Err(ApiError::invalid_value(path, "the prompt is empty"));
        }
        let least = model.ids_min(text.len());
        if least >= n_ctx {
            return Err(ApiError::context_length_at_least(least, n_ctx, "prompt"));
        }
        let tokens = model.encode(text, add_special, parse_special);
        Ok(Prompt { text: text.to_owned(), tokens })
    };
    let from_ids = |list: &[Value], path: &str| {
        let tokens = token_ids(list, path, model.vocab())?;
        if tokens.is_empty() {
            return Err(ApiError::invalid_value(path, "the prompt is empty"));
        }
        if tokens.len() >= n_ctx {
            // Before its text is made, which may be much longer.
            return Err(ApiError::context_length(tokens.len(), n_ctx, "prompt"));
        }
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| model.piece(*t)).collect();
        Ok(Prompt { text: String::from_utf8_lossy(&bytes).into_owned(), tokens })
    };
    let list = match body.get("prompt") {
        None => return Err(ApiError::missing("prompt")),
        Some(Value::String(text)) => return Ok(vec![from_text(text, "prompt")?]),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(ApiError::invalid_type("prompt", "string or list", type_name(other))),
    };
    if list.first().is_none_or(Value::is_number) {
        return Ok(vec![from_ids(list, "prompt")?]);
    }
    if list.len() > limits::PROMPTS {
        return Err(ApiError::invalid_value("prompt", format!("more than {} prompts", limits::PROMPTS)));
    }
    let one = |(i, value): (usize, &Value)| {
        let path = format!("prompt[{i}]");
        match value {
            Value::String(text) => from_text(text, &path),
            Value::Array(ids) => from_ids(ids, &path),
            other => Err(ApiError::invalid_type(&path, "string or list of ids", type_name(other))),
        }
    };
    list.iter().enumerate().map(one).collect()
}
