//! The real [`TextModel`]: tokenizer and chat template of a model file.

use std::sync::Arc;
use std::time::SystemTime;

use engine::ids::TokenId;
use engine_io::text::{ChatTemplate, EncodeOptions, RenderInput, TemplateError, TemplateLimits, Tokenizer};

use crate::serve::model::{Caps, Conversation, RenderError, Rendered, TemplateFacts, TextModel, ToolStyle};

/// Tokenizer and, where the file has one, chat template.
pub struct GgufText {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    /// How calls are written, where that is said and not found.
    style: Option<ToolStyle>,
}

impl GgufText {
    /// Compiles the template of a tokenizer's file.
    ///
    /// # Errors
    /// A template that this program cannot follow exactly.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, TemplateError> {
        match tokenizer.chat_template().map(str::to_owned) {
            Some(source) => Self::with_template(tokenizer, &source),
            None => Ok(Self::of(tokenizer, None)),
        }
    }

    /// With another template than the file's own.
    ///
    /// # Errors
    /// A template that this program cannot follow exactly.
    pub fn with_template(tokenizer: Arc<Tokenizer>, source: &str) -> Result<Self, TemplateError> {
        let template = ChatTemplate::new(source, &tokenizer, TemplateLimits::default())?;
        Ok(Self::of(tokenizer, Some(template)))
    }

    /// With a template that was compiled for this tokenizer.
    pub fn of(tokenizer: Arc<Tokenizer>, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer, template, style: None }
    }

    /// The same, whose model writes calls as `style` says, whatever the template shows.
    ///
    /// # Errors
    /// Where the model could not.
    pub fn with_style(self, style: ToolStyle) -> Result<Self, String> {
        let style_name = style_name(style).unwrap_or("none");
        if self.template.is_none() {
            return Err(format!("--tool-style {style_name}: the model has no chat template that could show tools"));
        }
        let text = Self { style: Some(style), ..self };
        match marker(style).filter(|_| text.caps().tool_style == ToolStyle::None) {
            Some((start, end)) => {
                let end = end.map_or(String::new(), |end| format!(" and {end}"));
                Err(format!("--tool-style {style_name}: the model has no tokens {start}{end} of their own"))
            }
            None => Ok(text),
        }
    }

    /// Whether a token is more than its text.
    fn is_structural(&self, token: TokenId) -> bool {
        self.is_control(token) || self.tokenizer.pieces().is_user_defined(token.0)
    }

    fn knows(&self, token: TokenId) -> bool {
        (token.0 as usize) < self.tokenizer.len()
    }
}

/// Markers that a call stands between; the last may be missing.
fn marker(style: ToolStyle) -> Option<(&'static str, Option<&'static str>)> {
    match style {
        ToolStyle::Xml | ToolStyle::Hermes => Some(("<tool_call>", Some("</tool_call>"))),
        ToolStyle::Nemotron2 => Some(("<TOOLCALL>", Some("</TOOLCALL>"))),
        ToolStyle::Llama3 => Some(("<|python_tag|>", None)),
        ToolStyle::None => None,
    }
}

/// How flags and `/props` call a style.
pub(crate) fn style_name(style: ToolStyle) -> Option<&'static str> {
    match style {
        ToolStyle::Xml => Some("xml"),
        ToolStyle::Hermes => Some("hermes"),
        ToolStyle::Llama3 => Some("llama3"),
        ToolStyle::Nemotron2 => Some("nemotron2"),
        ToolStyle::None => None,
    }
}

fn ids(ids: Vec<u32>) -> Vec<TokenId> {
    ids.into_iter().map(TokenId).collect()
}

impl TextModel for GgufText {
    fn vocab(&self) -> usize {
        self.tokenizer.len()
    }

    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<TokenId> {
        ids(self.tokenizer.encode(text.as_bytes(), EncodeOptions { parse_special, add_special }))
    }

    fn ids_min(&self, bytes: usize) -> usize {
        self.tokenizer.ids_min(bytes)
    }

    fn piece(&self, token: TokenId) -> Vec<u8> {
        // A model may have more rows than its tokenizer has tokens; such an id writes nothing.
        if self.knows(token) { self.tokenizer.pieces().bytes(token.0).to_vec() } else { Vec::new() }
    }

    fn is_control(&self, token: TokenId) -> bool {
        self.knows(token) && self.tokenizer.pieces().is_control(token.0)
    }

    fn is_structure(&self, token: TokenId) -> bool {
        self.knows(token) && {
            let pieces = self.tokenizer.pieces();
            pieces.is_control(token.0) || pieces.is_user_defined(token.0)
        }
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.knows(token) && self.tokenizer.pieces().is_end(token.0)
    }

    fn caps(&self) -> Caps {
        let Some(template) = &self.template else { return Caps::default() };
        let facts = template.facts();
        let one = |text: &str| match self.encode(text, false, true)[..] {
            [id] if self.is_structural(id) => Some(id),
            _ => None,
        };
        let style = self.style.unwrap_or(facts.tool_style);
        let call_tokens = marker(style).and_then(|(start, end)| match end {
            Some(end) => one(start).zip(one(end).map(Some)),
            None => one(start).map(|start| (start, None)),
        });
        // Calls of Llama 3 need no marker.
        let marked = call_tokens.is_some() || style == ToolStyle::Llama3;
        Caps {
            chat: true,
            developer: facts.developer,
            system_anywhere: facts.system_anywhere,
            alternation: facts.alternation,
            tools: facts.tools,
            // A mapping keeps its key order, and templates that take both print it as they print their own examples.
            string_arguments: facts.string_arguments && !facts.object_arguments,
            reasoning_effort: facts.reasoning_effort,
            tool_style: if marked { style } else { ToolStyle::None },
            think: facts.think,
            think_tokens: facts.think.and_then(|(start, end)| one(start).zip(one(end))),
            call_tokens,
        }
    }

    fn template(&self) -> Option<(&str, &TemplateFacts)> {
        self.template.as_ref().map(|template| (template.source(), template.facts()))
    }

    fn render(&self, conversation: &Conversation<'_>, n_ctx: usize) -> Result<Rendered, RenderError> {
        let Some(template) = &self.template else {
            return Err(RenderError::Template("the model file has no chat template".to_owned()));
        };
        let input = RenderInput {
            messages: conversation.messages,
            tools: conversation.tools,
            add_generation_prompt: conversation.add_generation_prompt,
            kwargs: conversation.kwargs,
            now: SystemTime::now(),
        };
        let rendered = match conversation.keep_thoughts {
            true => template.render_keeping(&input),
            false => template.render(&input),
        };
        let rendered = rendered.map_err(|error| match error {
            TemplateError::Raised { message } => RenderError::Template(message),
            other => RenderError::Template(other.to_string().trim_start_matches("chat template: ").to_owned()),
        })?;
        let least = self.tokenizer.ids_min(rendered.text_len());
        if least >= n_ctx {
            return Err(RenderError::TooLong(least));
        }
        let open_tag =
            template.facts().think.map(|(start, _)| start).filter(|tag| rendered.ends_in(tag)).map(str::to_owned);
        let prompt = self.tokenizer.encode_rendered(&rendered);
        let special_spans = prompt.special.iter().map(|s| (s.start, s.end)).collect();
        Ok(Rendered { text: prompt.text, tokens: ids(prompt.ids), special_spans, open_tag })
    }
}
