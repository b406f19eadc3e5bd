//! `/tokenize`, `/detokenize`, `/apply-template`: the tokenizer and the template as clients can see them. No context
//! limits what they are given, since they are what tells that a text is too long; what one answer lists is bounded.
//! Answers are written as they are made: a tree of JSON values would be many times their size.

use engine::ids::TokenId;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::serve::api::Api;
use crate::serve::chat::Chat;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::http::Reply;
use crate::serve::limits;
use crate::serve::model::{Caps, TextModel};
use crate::serve::params::token_ids;
use crate::serve::schema;

/// Answer of `/tokenize`.
#[derive(Serialize)]
struct Tokenized<'a> {
    tokens: Listed<'a>,
    count: usize,
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Listed<'a>>,
}

/// A list with an element per token.
struct Listed<'a> {
    tokens: &'a [TokenId],
    model: &'a dyn TextModel,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    Ids,
    Pieces,
    Strings,
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let (tokens, model) = (self.tokens.iter(), self.model);
        match self.form {
            Form::Ids => out.collect_seq(tokens.map(|t| t.0)),
            Form::Pieces => out.collect_seq(tokens.map(|t| Token { id: t.0, piece: Piece::of(model.piece(*t)) })),
            Form::Strings => out.collect_seq(tokens.map(|t| String::from_utf8_lossy(&model.piece(*t)).into_owned())),
        }
    }
}

#[derive(Serialize)]
struct Token {
    id: u32,
    piece: Piece,
}

/// A string, or bytes that are none.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl Piece {
    fn of(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|e| Self::Bytes(e.into_bytes()), Self::Text)
    }
}

/// Answer of `/detokenize`.
#[derive(Serialize)]
struct Detokenized<'a> {
    content: &'a str,
    prompt: &'a str,
}

/// Answer of `/apply-template`.
#[derive(Serialize)]
struct Applied {
    prompt: String,
    tokens: usize,
    special_spans: Vec<(usize, usize)>,
}

/// `/tokenize`: `content`, `prompt` or `messages` to ids.
pub(crate) fn tokenize(
    body: &Map<String, Value>,
    model: &dyn TextModel,
    caps: &Caps,
    api: &Api,
    n_ctx: usize,
) -> Result<Reply, ApiError> {
    let fields = Fields::body(body);
    if api.strict_params {
        schema::screen(body, schema::TOKENIZE_TABLES, true)?;
    }
    let given: Vec<&str> =
        ["content", "prompt", "messages"].into_iter().filter(|name| fields.get(name).is_some()).collect();
    let [name] = given[..] else { return Err(ApiError::missing("one of content, prompt, messages")) };
    let either = |a: &str, b: &str| Ok::<_, ApiError>(fields.boolean(a)?.or(fields.boolean(b)?));
    let pieces = either("with_pieces", "return_token_strs")?.unwrap_or(false);
    let add_special = either("add_special", "add_special_tokens")?;
    let parse_special = fields.boolean("parse_special")?.unwrap_or(true);
    let tokens = if name == "messages" {
        Chat::read(&fields, caps, api)?.render(model, usize::MAX)?.tokens
    } else {
        let text = fields.string(name)?.unwrap_or_default();
        model.encode(text, add_special.unwrap_or(name == "prompt"), parse_special)
    };
    let most = limits::tokens_listed(n_ctx);
    if tokens.len() > most {
        let message = format!("it has {} tokens and one answer lists at most {most}; send it in parts", tokens.len());
        return Err(ApiError::invalid_value(name, message));
    }
    let list = |form| Listed { tokens: &tokens, model, form };
    let as_pieces = pieces && name == "content";
    Ok(Reply::json(
        200,
        &Tokenized {
            tokens: list(if as_pieces { Form::Pieces } else { Form::Ids }),
            count: tokens.len(),
            max_model_len: n_ctx,
            token_strs: (pieces && !as_pieces).then(|| list(Form::Strings)),
        },
    ))
}

/// `/detokenize`: ids to text; bytes that are not UTF-8 become U+FFFD. The text may be as long as a body.
pub(crate) fn detokenize(
    body: &Map<String, Value>,
    model: &dyn TextModel,
    api: &Api,
    n_ctx: usize,
) -> Result<Reply, ApiError> {
    if api.strict_params {
        schema::screen(body, schema::DETOKENIZE_TABLES, true)?;
    }
    let list = Fields::body(body).list("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    let tokens = token_ids(list, "tokens", model.vocab())?;
    let most = limits::body_bytes(n_ctx);
    let mut bytes = Vec::new();
    for token in tokens {
        bytes.extend(model.piece(token));
        if bytes.len() > most {
            let message = format!("their text is longer than {most} bytes; send them in parts");
            return Err(ApiError::invalid_value("tokens", message));
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(Reply::json(200, &Detokenized { content: &text, prompt: &text }))
}

/// `/apply-template`: a chat body to its prompt.
pub(crate) fn apply_template(
    body: &Map<String, Value>,
    model: &dyn TextModel,
    caps: &Caps,
    api: &Api,
) -> Result<Reply, ApiError> {
    schema::screen(body, schema::CHAT_TABLES, api.strict_params)?;
    let rendered = Chat::read(&Fields::body(body), caps, api)?.render(model, usize::MAX)?;
    let tokens = rendered.tokens.len();
    Ok(Reply::json(200, &Applied { prompt: rendered.text, tokens, special_spans: rendered.special_spans }))
}
