//! Reasoning, calls and the form behind them.

use super::*;

fn calls_of(style: ToolStyle, choice: ToolChoice, single: bool) -> (Vec<String>, Box<dyn Constraint>) {
    let tools = Tools {
        list: vec![
            Tool {
                name: "ls".into(),
                parameters: json!({"type": "object", "properties": {"dir": {"type": "string"},
                    "n": {"type": "integer"}, "how": {"enum": ["long", "short"]}}, "required": ["dir"]})
                .as_object()
                .cloned(),
                strict: false,
                custom: false,
                form: None,
            },
            Tool { name: "now".into(), parameters: None, strict: false, custom: false, form: None },
            Tool {
                name: "odd".into(),
                parameters: json!({"type": "object", "properties": {"a": {"type": "integer"}}, "not": {}})
                    .as_object()
                    .cloned(),
                strict: false,
                custom: false,
                form: None,
            },
        ],
        choice,
        allowed: (choice == ToolChoice::Required).then(|| vec![0, 1]),
        single,
        ..Tools::default()
    };
    let end = (style != ToolStyle::Llama3).then_some(CALL_END);
    let wanted = Wanted {
        tools: Some(&tools),
        style,
        call: Some((CALL, end)),
        reasoning: Some((THINK, THINK_END)),
        begins_in_reasoning: true,
        ..Wanted::default()
    };
    let compiled = compile(&wanted, &VOCABULARY, &long()).unwrap().unwrap();
    (compiled.warnings.clone(), compiled.start())
}

/// Structure in a text is written as it is spelled.
fn marked(text: &str) -> Vec<TokenId> {
    let marks = [
        ("<think>", THINK),
        ("</think>", THINK_END),
        ("<tool_call>", CALL),
        ("</tool_call>", CALL_END),
        ("<end>", END),
    ];
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match marks.iter().find(|(mark, _)| rest.starts_with(mark)) {
            Some((mark, token)) => {
                out.push(*token);
                rest = &rest[mark.len()..];
            }
            None => {
                let (head, tail) = rest.split_at(c.len_utf8());
                out.extend(tokens(head));
                rest = tail;
            }
        }
    }
    out
}

fn check_calls(style: ToolStyle, choice: ToolChoice, single: bool, good: &[impl AsRef<str>], bad: &[impl AsRef<str>]) {
    let (_, start) = calls_of(style, choice, single);
    for text in good.iter().map(AsRef::as_ref) {
        let mut constraint = start.fork();
        let taken = walk(constraint.as_mut(), marked(text));
        assert!(taken.is_ok() && constraint.ended(), "{style:?} {choice:?} stops {text:?} at {taken:?}");
        // The same in drafts that are taken back.
        let mut constraint = start.fork();
        for chunk in marked(text).chunks(WINDOW_MAX) {
            assert!(chunk.iter().all(|t| constraint.advance(*t)));
            constraint.rollback(chunk.len());
            assert!(chunk.iter().all(|t| constraint.advance(*t)), "{text:?}");
        }
        assert!(constraint.ended());
    }
    for text in bad.iter().map(AsRef::as_ref) {
        let mut constraint = start.fork();
        assert!(walk(constraint.as_mut(), marked(text)).is_err(), "{style:?} {choice:?} lets {text:?} pass");
    }
}

const XML_LS: &str = "<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b\nc\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
const XML_NOW: &str = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
const HERMES_LS: &str = "<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"dir\": \"/a\", \"n\": 3}}\n</tool_call>";

#[test]
fn calls_are_made_as_the_choice_says() {
    use ToolChoice::{Auto, None, Required};
    let of = |text: &str| text.replace("LS", XML_LS).replace("NOW", XML_NOW);
    let all = |texts: &[&str]| texts.iter().map(|t| of(t)).collect::<Vec<_>>();
    let check = |choice, single, good: &[&str], bad: &[&str]| {
        let (good, bad) = (all(good), all(bad));
        check_calls(ToolStyle::Xml, choice, single, &good, &bad);
    };
    check(
        Auto,
        false,
        &["hm</think>\n\nOk.\nLS<end>", "hm</think>LS\nNOW and more<end>", "hmLS<end>", "hm<end>", "</think>text<end>"],
        &[
            "</think><tool_call>\n<function=rm>",
            "</think><tool_call>x",
            "</think><tool_call>\n<function=ls>\n</function>",
        ],
    );
    check(None, false, &["hm</think>text<end>", "<end>"], &["hm<tool_call>", "hm</think>text<tool_call>"]);
    check(
        Required,
        false,
        &["hm</think>LS<end>", "</think>\n\nLS\nNOW<end>", "hmNOW<end>"],
        &[
            "hm<end>",
            "</think>Ok",
            "</think>\n\n\n",
            "</think><end>",
            "</think>LSx",
            "</think><tool_call>\n<function=odd>",
        ],
    );
    check(Required, true, &["</think>LS<end>"], &["</think>LS\n", "</think>LS<tool_call>"]);
    check(Auto, true, &["</think>text LS<end>", "</think>text<end>"], &["</think>LS and", "</think>LSNOW"]);
}

#[test]
fn bodies_are_those_of_the_style() {
    let auto = ToolChoice::Auto;
    check_calls(
        ToolStyle::Xml,
        auto,
        false,
        &[
            "</think><tool_call>\n<function=ls>\n<parameter=dir>\n\n</parameter>\n<parameter=how>\nlong\n</parameter>\n</function>\n</tool_call><end>",
            // Of a schema that was widened everything else still holds.
            "</think><tool_call>\n<function=odd>\n<parameter=b c>\nx\n</parameter>\n</function>\n</tool_call><end>",
        ],
        &[
            "</think><tool_call>\n<function=ls>\n<parameter=n>",
            "</think><tool_call>\n<function=ls>\n<parameter=dir>\na\n</parameter>\n<parameter=n>\nx",
            "</think><tool_call>\n<function=ls>\n<parameter=dir>\na\n</parameter>\n<parameter=how>\nloud",
            "</think><tool_call>\n<function=ls>\n<parameter=dir>\na</tool_call>",
        ],
    );
    check_calls(
        ToolStyle::Hermes,
        auto,
        false,
        &[
            &format!("</think>{HERMES_LS}<end>"),
            "</think><tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call><end>",
            "</think><tool_call>\n{\"name\": \"odd\", \"arguments\": {\"x\": [1]}}\n</tool_call><end>",
        ],
        &[
            "</think><tool_call>\n{\"name\": \"rm",
            "</think><tool_call>\n{\"name\": \"ls\", \"arguments\": {}",
            "</think><tool_call>\n{\"name\": \"ls\", \"arguments\": {\"dir\": 1",
            "</think><tool_call>\n{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ],
    );
    check_calls(
        ToolStyle::Llama3,
        auto,
        false,
        &[
            "</think><tool_call>{\"name\": \"now\", \"parameters\": {}}<end>",
            "</think><tool_call>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}<end>",
        ],
        &[
            "</think><tool_call>{\"name\": \"now\", \"parameters\": {}}x",
            "</think><tool_call>{\"name\": \"now\", \"arguments\"",
        ],
    );
    check_calls(
        ToolStyle::Nemotron2,
        auto,
        false,
        &[
            "</think><tool_call>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]</tool_call><end>",
        ],
        &["</think><tool_call>[]"],
    );
    check_calls(
        ToolStyle::Nemotron2,
        ToolChoice::Required,
        true,
        &["</think><tool_call>[{\"name\": \"now\", \"arguments\": {}}]</tool_call><end>"],
        &["</think><tool_call>[{\"name\": \"now\", \"arguments\": {}},"],
    );
}

#[test]
fn a_schema_is_widened_where_nobody_insists() {
    for style in [ToolStyle::Xml, ToolStyle::Hermes, ToolStyle::Llama3, ToolStyle::Nemotron2] {
        assert_eq!(calls_of(style, ToolChoice::Auto, false).0, ["schema_relaxed:tools.2"]);
        assert!(calls_of(style, ToolChoice::Required, false).0.is_empty(), "the tool at fault may not be called");
    }
    let tool = |parameters: Value| Tool {
        name: "f".into(),
        parameters: parameters.as_object().cloned(),
        strict: true,
        custom: false,
        form: None,
    };
    for (parameters, place) in [
        (json!({"type": "object", "properties": {"a": {"not": {}}}}), "at /properties/a/not"),
        (json!({"type": "object", "properties": {"a": {"type": "array", "items": {"pattern": "(["}}}}), "pattern"),
    ] {
        let tools = Tools {
            list: vec![tool(parameters)],
            choice: ToolChoice::Auto,
            allowed: None,
            single: false,
            ..Tools::default()
        };
        let call = Some((CALL, Some(CALL_END)));
        let wanted = Wanted { tools: Some(&tools), style: ToolStyle::Hermes, call, ..Wanted::default() };
        let error = compile(&wanted, &VOCABULARY, &long()).unwrap_err();
        assert_eq!((error.status, error.code), (400, "invalid_schema"));
        assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"));
        assert!(error.message.contains(place), "{}", error.message);
    }
}

#[test]
fn calls_without_a_token_of_their_own_cannot_be_forced() {
    let tools = |choice| Tools { list: Vec::new(), choice, allowed: None, single: false, ..Tools::default() };
    let free = tools(ToolChoice::Auto);
    assert!(compile(&Wanted { tools: Some(&free), ..Wanted::default() }, &VOCABULARY, &long()).unwrap().is_none());
    let forced = tools(ToolChoice::Required);
    let error = compile(&Wanted { tools: Some(&forced), ..Wanted::default() }, &VOCABULARY, &long()).unwrap_err();
    assert_eq!((error.code, error.param.as_deref()), ("unsupported_value", Some("tool_choice")));
}

#[test]
fn a_form_begins_behind_reasoning() {
    let form = format(Form::Schema(json!({"type": "boolean"})));
    let wanted = Wanted {
        format: Some(&form),
        reasoning: Some((THINK, THINK_END)),
        begins_in_reasoning: true,
        budget: Some(5),
        ..Wanted::default()
    };
    let start = compile(&wanted, &VOCABULARY, &long()).unwrap().unwrap().start();
    for text in ["hm</think>true<end>", "</think>\n\nfalse<end>", "hello</think>\ntrue<end>"] {
        walk(start.fork().as_mut(), marked(text)).unwrap_or_else(|at| panic!("{text}: {at}"));
    }
    for text in ["<end>", "hm<end>", "</think>\n\n\n", "</think> true", "</think>hm", "</think>\ntrue\n"] {
        assert!(walk(start.fork().as_mut(), marked(text)).is_err(), "{text} passes");
    }
    // At the limit nothing but the end of reasoning may come.
    let mut constraint = start.fork();
    walk(constraint.as_mut(), tokens("hello")).unwrap();
    assert_eq!(allowed(constraint.as_mut()), [THINK_END]);
    // Reasoning that the model begins itself.
    let own = Wanted { begins_in_reasoning: false, budget: None, ..wanted };
    let start = compile(&own, &VOCABULARY, &long()).unwrap().unwrap().start();
    for text in ["true<end>", "<think>hm</think>\ntrue<end>"] {
        walk(start.fork().as_mut(), marked(text)).unwrap_or_else(|at| panic!("{text}: {at}"));
    }
    for text in ["\ntrue", "true<think>", "<think>hm<end>"] {
        assert!(walk(start.fork().as_mut(), marked(text)).is_err(), "{text} passes");
    }
    // A budget by itself.
    let only = Wanted { format: None, budget: Some(0), ..wanted };
    let mut constraint = compile(&only, &VOCABULARY, &long()).unwrap().unwrap().start();
    assert_eq!(allowed(constraint.as_mut()), [THINK_END]);
    walk(constraint.as_mut(), marked("</think>anything <think> at all<end>")).unwrap();
}

#[test]
fn a_form_and_calls_exclude_each_other() {
    let form = format(Form::Schema(json!({"type": "boolean"})));
    let tools = Tools {
        list: vec![Tool { name: "now".into(), parameters: None, strict: true, custom: false, form: None }],
        choice: ToolChoice::Auto,
        allowed: None,
        single: false,
        ..Tools::default()
    };
    let wanted = Wanted {
        format: Some(&form),
        tools: Some(&tools),
        style: ToolStyle::Xml,
        call: Some((CALL, Some(CALL_END))),
        reasoning: Some((THINK, THINK_END)),
        begins_in_reasoning: true,
        budget: None,
    };
    let start = compile(&wanted, &VOCABULARY, &long()).unwrap().unwrap().start();
    for text in ["hm</think>true<end>", &format!("</think>\n{XML_NOW}\n{XML_NOW}<end>"), &format!("hm{XML_NOW}<end>")] {
        walk(start.fork().as_mut(), marked(text)).unwrap_or_else(|at| panic!("{text}: {at}"));
    }
    for text in [&format!("</think>true{XML_NOW}"), &format!("</think>{XML_NOW}true"), "hm<end>"] {
        assert!(walk(start.fork().as_mut(), marked(text)).is_err(), "{text} passes");
    }
}

/// A custom tool whose text has this form, and one function.
fn custom_of(form: Form) -> Result<Box<dyn Constraint>, ApiError> {
    let parameters = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]});
    let custom = Tool {
        name: "note".into(),
        parameters: parameters.as_object().cloned(),
        strict: false,
        custom: true,
        form: Some(Box::new(Format::new(form, "tools[1].custom.format.grammar.definition"))),
    };
    let now = Tool { name: "now".into(), parameters: None, strict: false, custom: false, form: None };
    let tools = Tools { list: vec![now, custom], ..Tools::default() };
    let call = Some((CALL, Some(CALL_END)));
    let wanted = Wanted { tools: Some(&tools), style: ToolStyle::Xml, call, ..Wanted::default() };
    Ok(compile(&wanted, &VOCABULARY, &long())?.unwrap().start())
}

#[test]
fn the_text_of_a_custom_tool_is_held_to_its_grammar() {
    // As agents write the format of their patches.
    let patch = "start: begin line+ end\nbegin: \"*** Begin\" LF\nend: \"*** End\" LF?\n\
                 line: (\"+\" | \"-\") /(.*)/ LF\nLF: \"\\n\"\n";
    let gbnf = "root ::= word (\" \" word)*\nword ::= [a-z]+\n";
    let call = |text: &str| {
        format!("<tool_call>\n<function=note>\n<parameter=input>\n{text}\n</parameter>\n</function>\n</tool_call><end>")
    };
    for (form, good, bad) in [
        (
            Form::Lark(patch.to_owned()),
            &["*** Begin\n+a b\n-</parameter>\n*** End", "*** Begin\n+\n*** End\n"][..],
            &["*** Begin\n*** End", "hello", "*** Begin\n+a\n*** End\nmore", "*** Begin\n a\n*** End", ""][..],
        ),
        (Form::Gbnf(gbnf.to_owned()), &["hello", "a bc d"], &["Hello", "a  b", "a ", "a\n"]),
        (Form::Regex("[a-c]+(\\n[0-9/]*)?".to_owned()), &["abc", "a\n12/3", "b\n"], &["", "d", "a\nx", "a\n\n"]),
        // What an expression would take of the end tag stays the end tag.
        (Form::Regex("[\\s\\S]*".to_owned()), &["", "any\n<text>"], &[]),
    ] {
        let start = custom_of(form.clone()).unwrap();
        for text in good {
            let mut constraint = start.fork();
            walk(constraint.as_mut(), marked(&call(text)))
                .unwrap_or_else(|at| panic!("{form:?} stops {text:?} at {at:?}"));
            assert!(constraint.ended());
        }
        for text in bad {
            assert!(walk(start.fork().as_mut(), marked(&call(text))).is_err(), "{form:?} lets {text:?} pass");
        }
        // The other tool is what it was.
        walk(start.fork().as_mut(), marked(&format!("{XML_NOW}<end>"))).unwrap();
    }
    for form in [
        Form::Lark("start: nobody".to_owned()),
        Form::Lark("start: \"a\" }\nother: \"b\"".to_owned()),
        Form::Gbnf("word ::= [a-z]".to_owned()),
        Form::Regex("(".to_owned()),
    ] {
        let error = custom_of(form.clone()).unwrap_err();
        let place = Some("tools[1].custom.format.grammar.definition");
        assert_eq!((error.status, error.code, error.param.as_deref()), (400, "invalid_schema", place), "{form:?}");
    }
    // No text has these, so that a call could begin and never end.
    for form in [
        Form::Lark("start: X\nX: /[a]/ & /[b]/".to_owned()),
        Form::Lark("start: start".to_owned()),
        Form::Gbnf("root ::= root".to_owned()),
        Form::Regex("[^\\s\\S]".to_owned()),
        Form::Regex("a[^\\s\\S]".to_owned()),
    ] {
        let error = custom_of(form.clone()).unwrap_err();
        let place = Some("tools[1].custom.format.grammar.definition");
        assert_eq!((error.status, error.code, error.param.as_deref()), (400, "invalid_schema", place), "{form:?}");
        assert!(error.message.contains("no text has this form"), "{error:?}");
    }
    // The empty text is one.
    walk(custom_of(Form::Regex(String::new())).unwrap().as_mut(), marked(&call(""))).unwrap();
}

/// A text of a parameter that its length and its pattern leave no room for is refused where its schema is enforced, and
/// widened where it is not, so that no call runs into it.
#[test]
fn a_parameter_that_no_text_has_is_no_dead_end() {
    let tool = |strict: bool| {
        let text = json!({"type": "string", "pattern": "^ab?$", "minLength": 3});
        let parameters = json!({"type": "object", "properties": {"t": text}, "required": ["t"]});
        Tool { name: "now".into(), parameters: parameters.as_object().cloned(), strict, custom: false, form: None }
    };
    let compiled = |strict: bool| {
        let tools = Tools { list: vec![tool(strict)], ..Tools::default() };
        let call = Some((CALL, Some(CALL_END)));
        compile(&Wanted { tools: Some(&tools), style: ToolStyle::Xml, call, ..Wanted::default() }, &VOCABULARY, &long())
    };
    let error = compiled(true).unwrap_err();
    let place = Some("tools[0].function.parameters");
    assert_eq!((error.status, error.code, error.param.as_deref()), (400, "invalid_schema", place), "{error:?}");
    let free = compiled(false).unwrap().unwrap();
    assert_eq!(free.warnings, ["schema_relaxed:tools.0"]);
    let text = "<tool_call>\n<function=now>\n<parameter=t>\na\n</parameter>\n</function>\n</tool_call><end>";
    walk(free.start().as_mut(), marked(text)).unwrap();
}
