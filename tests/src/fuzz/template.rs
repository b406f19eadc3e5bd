//! Chat templates: compiled, and rendered with a conversation that has everything in it.

use std::time::UNIX_EPOCH;

use engine_bin::open::ModelSource;
use engine_io::OpenOptions;
use engine_io::text::{ChatTemplate, RenderInput, TemplateLimits, Tokenizer};
use serde_json::{Map, json};

use super::{Damage, Reader, Target};

/// Low, so that a template that never ends costs little.
const LIMITS: TemplateLimits = TemplateLimits { fuel: 20_000, output_bytes: 64 * 1024 };

pub(super) const TARGET: Target = Target {
    name: "template",
    seeds,
    words: &[
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "for m in messages",
        "endfor",
        "if ",
        "elif true",
        "else",
        "endif",
        "set x = ",
        "set ns = namespace(a=1)",
        "set ns.a = ns.a + 1",
        "macro f(a, b=2)",
        "endmacro",
        "f(1)",
        "m.role",
        "m['content']",
        "m.tool_calls",
        "messages[0]",
        "messages[1:]",
        "messages[::-1]",
        "loop.index0",
        "loop.last",
        "| trim",
        "| tojson",
        "| length",
        "| items",
        "| join(',')",
        "| default('')",
        ".split('</think>')[-1]",
        ".lstrip('\\n')",
        ".startswith('a')",
        " is defined",
        " is none",
        " is string",
        " is mapping",
        "not ",
        " and ",
        " ~ ",
        " * 1000000",
        " ** 9",
        " // 0",
        " % 0",
        "range(10000000)",
        "raise_exception('no')",
        "strftime_now('%Y')",
        "break",
        "continue",
        "'a' * 100000",
        "(((((((((",
        "[[[[[[[[[",
    ],
    damage: Damage::Bytes,
    reader,
};

const SMALL: &str = "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m.content is string %}{{ m.content | trim }}\
                     {% else %}{{ m | tojson }}{% endif %}<|im_end|>\n{%- endfor %}{% if add_generation_prompt %}A:{% endif %}";
const STATE: &str = "{%- set ns = namespace(last=0) %}{%- for m in messages[::-1] %}{%- set i = loop.index0 %}\
                     {%- if m.role == 'tool' and not ns.last %}{%- set ns.last = i %}{%- endif %}{%- endfor %}\
                     {%- macro show(x, n=2) %}{{ x ~ n }}{%- endmacro %}{{ show(ns.last) }}\
                     {%- if tools %}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}{% endif %}\
                     {{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}{% for k, v in tools[0] | items %}{{ k }}{% endfor %}";

fn seeds() -> Vec<Vec<u8>> {
    let own = tokenizer().chat_template().expect("the built-in model has a template").to_owned();
    [SMALL.to_owned(), STATE.to_owned(), own].into_iter().map(String::into_bytes).collect()
}

fn tokenizer() -> Tokenizer {
    let file = ModelSource::BuiltIn.open(OpenOptions::default()).expect("the built-in model opens");
    Tokenizer::from_meta(file.meta()).expect("it has a tokenizer")
}

fn reader() -> Reader {
    let tokenizer = tokenizer();
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1, null, "x"]}}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r\u{e9}sult"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    Box::new(move |bytes| {
        let Ok(source) = std::str::from_utf8(bytes) else { return false };
        let Ok(template) = ChatTemplate::new(source, &tokenizer, LIMITS) else { return false };
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            add_generation_prompt: true,
            kwargs: &Map::new(),
            now: UNIX_EPOCH,
        };
        let Ok(rendered) = template.render(&input) else { return false };
        assert!(rendered.text_len() <= LIMITS.output_bytes);
        let prompt = tokenizer.encode_rendered(&rendered);
        assert!(prompt.ids.len() <= prompt.text.len() + 1);
        assert!(prompt.special.iter().all(|span| span.start <= span.end && span.end <= prompt.text.len()));
        true
    })
}
