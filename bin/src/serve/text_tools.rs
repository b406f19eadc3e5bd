//! `/tokenize`, `/detokenize`, `/apply-template`: the tokenizer and the template as clients can see them. No context
//! limits what they are given: counting a text that is too long is what they are for.

use serde_json::{Map, Value, json};

use crate::serve::chat::Chat;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::info::ModelInfo;
use crate::serve::model::{Caps, TextModel};
use crate::serve::params::token_ids;
use crate::serve::schema;

/// `/tokenize`: `content`, `prompt` or `messages` to ids.
pub(crate) fn tokenize(
    body: &Map<String, Value>,
    model: &dyn TextModel,
    caps: &Caps,
    info: &ModelInfo,
) -> Result<Value, ApiError> {
    let fields = Fields::body(body);
    let given: Vec<&str> =
        ["content", "prompt", "messages"].into_iter().filter(|name| fields.get(name).is_some()).collect();
    let either = |a: &str, b: &str| Ok::<_, ApiError>(fields.boolean(a)?.or(fields.boolean(b)?));
    let pieces = either("with_pieces", "return_token_strs")?.unwrap_or(false);
    let add_special = either("add_special", "add_special_tokens")?;
    let parse_special = fields.boolean("parse_special")?.unwrap_or(true);
    let tokens = match given.as_slice() {
        ["messages"] => Chat::read(&fields, caps)?.render(model, usize::MAX)?.tokens,
        [name] => {
            let text = fields.string(name)?.unwrap_or_default();
            model.encode(text, add_special.unwrap_or(*name == "prompt"), parse_special)
        }
        _ => return Err(ApiError::missing("one of content, prompt, messages")),
    };
    let ids: Vec<u32> = tokens.iter().map(|t| t.0).collect();
    let piece = |t: &engine::ids::TokenId| {
        let bytes = model.piece(*t);
        String::from_utf8(bytes).map_or_else(|e| Value::from(e.into_bytes()), Value::from)
    };
    let mut out = json!({"tokens": ids, "count": ids.len(), "max_model_len": info.n_ctx});
    if pieces && given == ["content"] {
        out["tokens"] = tokens.iter().map(|t| json!({"id": t.0, "piece": piece(t)})).collect();
    } else if pieces {
        let lossy = |t: &engine::ids::TokenId| Value::from(String::from_utf8_lossy(&model.piece(*t)).into_owned());
        out["token_strs"] = tokens.iter().map(lossy).collect();
    }
    Ok(out)
}

/// `/detokenize`: ids to text; bytes that are not UTF-8 become U+FFFD.
pub(crate) fn detokenize(body: &Map<String, Value>, model: &dyn TextModel) -> Result<Value, ApiError> {
    let list = Fields::body(body).list("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    let tokens = token_ids(list, "tokens", model.vocab())?;
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| model.piece(*t)).collect();
    let text = String::from_utf8_lossy(&bytes);
    Ok(json!({"content": text, "prompt": text}))
}

/// `/apply-template`: a chat body to its prompt.
pub(crate) fn apply_template(body: &Map<String, Value>, model: &dyn TextModel, caps: &Caps) -> Result<Value, ApiError> {
    schema::screen(body, schema::CHAT)?;
    let rendered = Chat::read(&Fields::body(body), caps)?.render(model, usize::MAX)?;
    Ok(json!({"prompt": rendered.text, "tokens": rendered.tokens.len(), "special_spans": rendered.special_spans}))
}
