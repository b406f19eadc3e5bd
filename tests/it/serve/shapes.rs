//! Shapes of conversations that agents send, through the whole server, to a template that is strict: it writes arguments
//! out one by one, raises for a system message that is not the first, and opens thinking.

use std::net::SocketAddr;
use std::sync::OnceLock;

use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::ask;

const CONTEXT: usize = 1024;

fn shared() -> SocketAddr {
    static SERVER: OnceLock<ScriptedServer> = OnceLock::new();
    let rules = || vec![Rule::new("<think>\n\n</think>", "Plain."), Rule::new("", "A thought.\n</think>\n\nShown.")];
    let start = || ScriptedServer::start(Config::local(0, CONTEXT), &Limits::new(2, CONTEXT), rules());
    SERVER.get_or_init(start).address()
}

/// The prompt of a body, or code and parameter of its refusal, which the answer itself must agree with.
fn rendered(body: &Value) -> Result<String, (String, String)> {
    let answer = ask(shared(), "/apply-template", body);
    let whole = ask(shared(), "/v1/chat/completions", body);
    assert_eq!(answer.status, whole.status, "{body}: {} {}", answer.text(), whole.text());
    let json = answer.json();
    if answer.status == 200 {
        assert_eq!(json["tokens"], whole.json()["usage"]["prompt_tokens"], "{body}");
        return Ok(json["prompt"].as_str().unwrap().to_owned());
    }
    assert_eq!(answer.status, 400, "{body}: {json}");
    let text = |name: &str| json["error"][name].as_str().unwrap().to_owned();
    Err((text("code"), text("param")))
}

fn prompt(messages: &Value) -> String {
    rendered(&json!({"messages": messages})).unwrap_or_else(|error| panic!("{messages}: {error:?}"))
}

fn refused(messages: &Value, code: &str, param: &str) {
    assert_eq!(rendered(&json!({"messages": messages})), Err((code.to_owned(), param.to_owned())), "{messages}");
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn call(id: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "ls", "arguments": arguments}})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

#[test]
fn arguments_reach_the_template_as_a_mapping() {
    let turn = |arguments: &str| {
        json!([user("u"), {"role": "assistant", "content": "", "tool_calls": [call("c", json!(arguments))]},
            result("c", "r")])
    };
    let city = prompt(&turn("{\"city\": \"Paris\", \"n\": [1, 2]}"));
    assert!(city.contains("<parameter=city>\nParis\n</parameter>\n<parameter=n>\n[1, 2]\n</parameter>"), "{city}");
    assert!(prompt(&turn("")).contains("<function=ls>\n</function>"));
    for bad in ["Paris", "{\"city\": ", "[1]", "\"x\""] {
        refused(&turn(bad), "invalid_tool_arguments", "messages[1].tool_calls[0].function.arguments");
    }
}

#[test]
fn a_turn_of_calls_needs_no_content() {
    let turn = |content: Option<Value>| {
        let mut assistant = json!({"role": "assistant", "tool_calls": [call("c", json!("{}"))]});
        if let Some(content) = content {
            assistant["content"] = content;
        }
        prompt(&json!([user("u"), assistant, result("c", "r"), user("go on")]))
    };
    let expected = turn(Some(json!("")));
    assert!(expected.contains("<|im_start|>assistant\n<tool_call>\n<function=ls>"), "{expected}");
    for content in [None, Some(Value::Null), Some(json!([]))] {
        assert_eq!(turn(content.clone()), expected, "{content:?}");
    }
    refused(
        &json!([user("u"), {"role": "assistant", "content": null}]),
        "missing_required_parameter",
        "messages[1].content",
    );
}

#[test]
fn parts_are_joined_whoever_says_them() {
    let parts = |kind: &str| json!([{"type": kind, "text": "A"}, {"type": kind, "text": "B"}]);
    for (role, kind) in
        [("user", "text"), ("assistant", "output_text"), ("system", "input_text"), ("assistant", "text")]
    {
        let with = |content: Value| prompt(&json!([{"role": role, "content": content}, user("u")]));
        assert_eq!(with(parts(kind)), with(json!("AB")), "{role}");
    }
    let tool = |content: Value| {
        let assistant = json!({"role": "assistant", "tool_calls": [call("c", json!("{}"))]});
        prompt(&json!([user("u"), assistant, {"role": "tool", "tool_call_id": "c", "content": content}]))
    };
    assert_eq!(tool(parts("text")), tool(json!("AB")));
    // The last message, as history and as the beginning of the answer.
    let last = |more: Value| {
        let mut assistant = json!({"role": "assistant", "content": parts("text")});
        assistant.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([user("u"), assistant])
    };
    let history = prompt(&last(json!({})));
    assert!(history.ends_with("<|im_start|>assistant\nAB<|im_end|>\n<|im_start|>assistant\n<think>\n"), "{history}");
    let begun = prompt(&last(json!({"prefix": true})));
    assert!(begun.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nAB"), "not inside of thinking: {begun}");
    let body = json!({"messages": last(json!({})), "continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(rendered(&body), Ok(begun));
    let answer = ask(shared(), "/v1/chat/completions", &body).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["content"], message.get("reasoning_content")), (&json!("Plain."), None));
    for kind in ["hologram", "image_url"] {
        let odd = json!([user("u"), {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": kind}]}]);
        let (_, param) = rendered(&json!({"messages": odd})).unwrap_err();
        assert_eq!(param, "messages[1].content[1].type");
    }
}

#[test]
fn a_system_note_in_the_middle_stays_where_it_is() {
    let before = json!([user("u"), {"role": "assistant", "content": "a"}]);
    let mut body = json!({"messages": before, "add_generation_prompt": false});
    let known = rendered(&body).unwrap();
    let list = body["messages"].as_array_mut().unwrap();
    list.extend([json!({"role": "system", "content": "note"}), user("v")]);
    let noted = rendered(&body).unwrap();
    let rest = noted.strip_prefix(&known).unwrap_or_else(|| panic!("{noted:?} does not begin with {known:?}"));
    assert_eq!(rest, "<|im_start|>user\n<system-reminder>\nnote\n</system-reminder>\n\nv<|im_end|>\n");
}

#[test]
fn a_developer_is_a_system() {
    let told = |roles: &[(&str, &str)]| {
        let mut list: Vec<Value> = roles.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
        list.push(user("u"));
        prompt(&Value::Array(list))
    };
    let system = told(&[("system", "a")]);
    assert!(system.starts_with("<|im_start|>system\na<|im_end|>\n"), "{system}");
    assert_eq!(told(&[("developer", "a")]), system);
    let both = told(&[("system", "a\n\nb")]);
    assert_eq!(told(&[("developer", "a"), ("system", "b")]), both);
    assert_eq!(told(&[("system", "a"), ("developer", "b")]), both);
}

#[test]
fn no_result_is_lost() {
    let calls = |id: &str, content: &str| json!({"role": "assistant", "content": content, "tool_calls": [call(id, json!("{}"))]});
    // A text between a call and its result, a result of nothing, and one that comes twice.
    refused(
        &json!([user("u"), calls("c1", ""), user("wait"), result("c1", "r")]),
        "missing_tool_result",
        "messages[2]",
    );
    refused(&json!([user("u"), calls("c1", ""), user("end")]), "missing_tool_result", "messages[2]");
    refused(&json!([user("u"), result("c1", "r")]), "orphan_tool_result", "messages[1].tool_call_id");
    let twice = json!([user("u"), calls("c1", ""), result("c1", "r"), result("c1", "s")]);
    refused(&twice, "duplicate_tool_result", "messages[3].tool_call_id");
    // Two turns of one call each are one turn of both.
    let two =
        prompt(&json!([user("u"), calls("c1", "x"), calls("c2", ""), result("c2", "second"), result("c1", "first")]));
    assert_eq!(two.matches("<|im_start|>assistant").count(), 2, "one turn and the answer's start: {two}");
    assert_eq!(two.matches("<function=ls>").count(), 2);
    assert!(two.find("first").unwrap() < two.find("second").unwrap(), "{two}");
}

/// Whether an answer begins inside of thinking is read off the prompt, whoever switched it.
#[test]
fn thinking_begins_where_the_prompt_says() {
    let message = |more: Value| {
        let mut body = json!({"messages": [user("u")]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(shared(), "/v1/chat/completions", &body).json()["choices"][0]["message"].clone()
    };
    for on in [json!({}), json!({"chat_template_kwargs": {"enable_thinking": true}})] {
        let on = message(on);
        assert_eq!((&on["reasoning_content"], &on["content"]), (&json!("A thought.\n"), &json!("Shown.")));
    }
    let off = message(json!({"chat_template_kwargs": {"enable_thinking": false}}));
    assert_eq!((off.get("reasoning_content"), &off["content"]), (None, &json!("Plain.")));
}
