//! Constraints over a vocabulary of bytes, a few longer tokens and structure. What a mask allows and what can be taken is
//! compared at every step of every walk.

mod calls;
mod formats;
mod forms;

use std::sync::LazyLock;

use engine::constraint::{Allowed, Constraint};
use engine::ids::TokenId;
use engine::limits::WINDOW_MAX;
use engine::sample::random_bits;
use serde_json::{Map, Value, json};

use super::format::{Form, Format};
use super::*;
use crate::serve::model::{Caps, Conversation, RenderError, Rendered, TemplateFacts};
use crate::serve::tools::Tool;

/// Tokens of more than a byte.
const LONG: [&str; 14] = [
    "\n\n",
    "{\"",
    "\": ",
    "\", \"",
    "true",
    "123",
    "hello",
    "  ",
    "\"}",
    "<tool_call>",
    "name",
    "</parameter>",
    "\u{e9}\u{e8}",
    "]}",
];
const END: TokenId = TokenId(300);
const END_2: TokenId = TokenId(301);
const THINK: TokenId = TokenId(302);
const THINK_END: TokenId = TokenId(303);
const CALL: TokenId = TokenId(304);
const CALL_END: TokenId = TokenId(305);
const VOCAB: usize = 306;
const WORDS: usize = VOCAB.div_ceil(32);

struct Bytes;

impl TextModel for Bytes {
    fn template(&self) -> Option<(&str, &TemplateFacts)> {
        None
    }

    fn vocab(&self) -> usize {
        VOCAB
    }

    fn encode(&self, text: &str, _: bool, _: bool) -> Vec<TokenId> {
        match text {
            "<think>" => vec![THINK],
            "</think>" => vec![THINK_END],
            text => text.bytes().map(|b| TokenId(b.into())).collect(),
        }
    }

    fn ids_min(&self, bytes: usize) -> usize {
        bytes
    }

    fn piece(&self, token: TokenId) -> Vec<u8> {
        match token.0 {
            byte @ 0..256 => vec![byte as u8],
            // Rows without a token.
            at @ 256..300 => LONG.get(at as usize - 256).map_or(Vec::new(), |text| text.as_bytes().to_vec()),
            300 => b"<end>".to_vec(),
            301 => b"<end2>".to_vec(),
            302 => b"<think>".to_vec(),
            303 => b"</think>".to_vec(),
            304 => b"<tool_call>".to_vec(),
            _ => b"</tool_call>".to_vec(),
        }
    }

    fn is_control(&self, token: TokenId) -> bool {
        token == END || token == END_2
    }

    fn is_structure(&self, token: TokenId) -> bool {
        token.0 >= 300
    }

    fn is_end(&self, token: TokenId) -> bool {
        token == END || token == END_2
    }

    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn render(&self, _: &Conversation<'_>, _: usize) -> Result<Rendered, RenderError> {
        Err(RenderError::Template(String::new()))
    }
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary::new(&Bytes).unwrap());

fn format(form: Form) -> Format {
    Format { form, param: "response_format".to_owned() }
}

fn long() -> Deadline {
    Deadline::new(Duration::MAX)
}

fn of_form(form: Form) -> Box<dyn Constraint> {
    let format = format(form);
    compile(&Wanted { format: Some(&format), ..Wanted::default() }, &VOCABULARY, &long()).unwrap().unwrap().start()
}

/// The tokens that may come next.
fn allowed(constraint: &mut dyn Constraint) -> Vec<TokenId> {
    let mut words = vec![0; WORDS];
    let ids = || (0..VOCAB as u32).map(TokenId);
    match constraint.mask(&mut words) {
        Allowed::All => ids().collect(),
        Allowed::Nothing => {
            assert!(words.iter().all(|w| *w == 0));
            Vec::new()
        }
        Allowed::Masked => ids().filter(|t| words[t.index() / 32] >> (t.index() % 32) & 1 == 1).collect(),
    }
}

/// Takes tokens one by one; `Err` with the text before the first that may not come.
fn walk(constraint: &mut dyn Constraint, tokens: impl IntoIterator<Item = TokenId>) -> Result<(), String> {
    let mut text = Vec::new();
    for token in tokens {
        let may = allowed(constraint).contains(&token);
        assert_eq!(may, constraint.advance(token), "{token} behind {:?}", String::from_utf8_lossy(&text));
        if !may {
            return Err(String::from_utf8_lossy(&text).into_owned());
        }
        text.extend(Bytes.piece(token));
    }
    Ok(())
}

fn tokens(text: &str) -> Vec<TokenId> {
    Bytes.encode(text, false, false)
}

/// Whether a form is that of a whole text.
fn holds(form: &Form, text: &str) -> bool {
    let mut constraint = of_form(form.clone());
    let taken = walk(constraint.as_mut(), tokens(text).into_iter().chain([END]));
    assert_eq!(taken.is_ok(), constraint.ended());
    taken.is_ok()
}

fn check(form: Form, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(holds(&form, text), "{form:?} refuses {text:?}");
    }
    for text in bad {
        assert!(!holds(&form, text), "{form:?} lets {text:?} pass");
    }
}

#[test]
fn bodies_that_may_ask_for_a_form_are_told_apart() {
    for body in [r#"{"response_format": {}}"#, r#"{"a":1,"tools":[]}"#, r#"{"regex":"a"}"#] {
        assert!(may_ask(body.as_bytes()), "{body}");
    }
    for body in [r#"{"messages": [{"content": "a regex"}]}"#, "", "\"", r#"{"toolsy": 1}"#] {
        assert!(!may_ask(body.as_bytes()), "{body}");
    }
}

#[test]
fn compiling_has_a_time() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}}).as_object().cloned();
    let tool = Tool { name: "f".to_owned(), parameters: schema, strict: false, custom: false, form: None };
    let tools = Tools { list: vec![tool], ..Tools::default() };
    let call = Some((CALL, Some(CALL_END)));
    let of_tools = Wanted { tools: Some(&tools), style: ToolStyle::Hermes, call, ..Wanted::default() };
    let regex = format(Form::Regex("a+".to_owned()));
    let of_form = Wanted { format: Some(&regex), ..Wanted::default() };
    for (wanted, param) in [(&of_form, regex.param.as_str()), (&of_tools, "tools")] {
        // Whatever it takes, it is more than no time.
        let error = Compiler::new(Arc::new(Bytes), 100, Duration::ZERO).compile(wanted).unwrap_err();
        assert_eq!((error.status, error.code, error.param.as_deref()), (400, "schema_too_complex", Some(param)));
        assert!(error.message.contains("0 ms"), "{}", error.message);
        assert!(Compiler::new(Arc::new(Bytes), 100, Duration::MAX).compile(wanted).unwrap().is_some());
    }
}

#[test]
fn a_form_has_a_size() {
    let compiler = Compiler::new(Arc::new(Bytes), 100, Duration::MAX);
    let form = format(Form::Regex("a".repeat(101)));
    let error = compiler.compile(&Wanted { format: Some(&form), ..Wanted::default() }).unwrap_err();
    assert_eq!((error.status, error.code), (400, "schema_too_complex"));
    let form = format(Form::Regex("a".repeat(100)));
    assert!(compiler.compile(&Wanted { format: Some(&form), ..Wanted::default() }).unwrap().is_some());
}

#[test]
fn what_is_asked_for_again_is_compiled_once() {
    let compiler = Compiler::new(Arc::new(Bytes), 1 << 20, Duration::MAX);
    let compiles = || {
        let mut page = String::new();
        compiler.times.write(&mut page);
        page.lines().last().unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let compile = |text: &str| {
        let form = format(Form::Regex(text.to_owned()));
        compiler.compile(&Wanted { format: Some(&form), ..Wanted::default() }).unwrap().unwrap()
    };
    let (first, again) = (compile("a+"), compile("a+"));
    assert!(Arc::ptr_eq(&first, &again) && compiles() == 1);
    // Whoever uses it leaves nothing behind.
    walk(first.start().as_mut(), tokens("aa")).unwrap();
    walk(again.start().as_mut(), tokens("aaa").into_iter().chain([END])).unwrap();
    // Whatever it is compiled from makes another of it.
    let form = format(Form::Regex("a+".to_owned()));
    for (budget, begins) in [(Some(1), true), (Some(2), true), (None, true)] {
        let reasoning = Some((THINK, THINK_END));
        let wanted =
            Wanted { format: Some(&form), reasoning, budget, begins_in_reasoning: begins, ..Wanted::default() };
        assert!(!Arc::ptr_eq(&compiler.compile(&wanted).unwrap().unwrap(), &first));
    }
    assert_eq!(compiles(), 4);
    // The oldest goes, and what is used stays.
    let sizes: Vec<(usize, usize)> = (0..100)
        .map(|i| {
            compile(&"b".repeat(i + 1));
            compile("a+");
            compiler.kept.lock().size()
        })
        .collect();
    assert_eq!(compiles(), 104);
    assert!(sizes.iter().all(|(rows, bytes)| *rows <= 64 && *bytes <= kept::BYTES && *bytes >= rows * first.bytes / 2));
    compile("b");
    assert_eq!(compiles(), 105, "it was the oldest");
    // One that is larger than all that is kept takes nobody's place.
    let form = format(Form::Regex("c".to_owned()));
    let wanted = Wanted { format: Some(&form), ..Wanted::default() };
    let large = Compiled { bytes: kept::BYTES + 1, ..super::compile(&wanted, &VOCABULARY, &long()).unwrap().unwrap() };
    compiler.kept.lock().keep(Key::of(&wanted), &Arc::new(large));
    compile("b");
    assert_eq!((compiles(), compiler.kept.lock().size().0), (105, 64));
    // What fails is not kept.
    let wrong = format(Form::Regex("(".to_owned()));
    for n in [106, 107] {
        assert!(compiler.compile(&Wanted { format: Some(&wrong), ..Wanted::default() }).is_err());
        assert_eq!(compiles(), n);
    }
}
