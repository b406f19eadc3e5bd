//! Answers of a form: the built-in model behind the server, under every strategy. Whatever is drafted, an answer has its
//! form, ends by itself, and is the one of plain decoding.

use serde_json::{Value, json};

use super::client::{Client, ask, get};
use super::real::{STRATEGIES, chat, check_identities, content, n, shared};

/// Schemas of the kinds that clients send, every one of them bounded. `i` makes them differ.
fn schema(i: usize) -> Value {
    let text = json!({"type": "string", "maxLength": 4 + i % 9});
    let count = json!({"type": "integer", "minimum": i, "maximum": 10 * i + 9});
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    match i % 10 {
        0 => object(json!({"name": text, "count": count}), json!(["name", "count"])),
        1 => object(json!({"path": text, "line": count, "why": text}), json!(["path"])),
        2 => object(
            json!({"tags": {"type": "array", "items": {"enum": ["fix", "test", "doc"]}, "minItems": 1, "maxItems": 3}}),
            json!(["tags"]),
        ),
        3 => {
            json!({"type": "array", "items": object(json!({"x": count, "ok": {"type": "boolean"}}), json!(["x", "ok"])),
            "minItems": 1, "maxItems": 2})
        }
        4 => object(
            json!({"call": {"anyOf": [object(json!({"read": text}), json!(["read"])),
                object(json!({"lines": count}), json!(["lines"]))]}}),
            json!(["call"]),
        ),
        5 => object(
            json!({"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}, "n": count}),
            json!(["id", "n"]),
        ),
        6 => object(json!({"when": {"type": "string", "format": "date"}, "what": text}), json!(["when", "what"])),
        7 => json!({"$defs": {"point": object(json!({"x": count, "y": count}), json!(["x", "y"]))},
            "type": "object", "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
            "required": ["from", "to"], "additionalProperties": false}),
        8 => json!({"oneOf": [object(json!({"kind": {"const": "a"}, "v": count}), json!(["kind", "v"])),
            object(json!({"kind": {"const": "b"}, "v": text}), json!(["kind", "v"]))]}),
        _ => object(
            json!({"diff": object(json!({"old": text, "new": {"type": ["string", "null"], "maxLength": 6}}), json!(["old", "new"])),
                "sure": {"enum": [true, false, null, i]}}),
            json!(["diff", "sure"]),
        ),
    }
}

fn prompt(i: usize) -> String {
    let tasks = [
        "Rename `total` to `amount`",
        "List the imports",
        "What does this do",
        "Change the port",
        "Fix the loop",
        "Name the type",
        "Add a test",
    ];
    format!("{} in step {i}.\n```python\ndef step_{i}(x):\n    return x + {i}\n```", tasks[i % tasks.len()])
}

#[test]
fn a_hundred_schemas_hold_under_every_strategy() {
    let address = shared();
    let (mut forced, mut trimmed, mut accepted) = (0, 0, 0);
    for i in 0..100 {
        let schema = schema(i);
        let validator = jsonschema::validator_for(&schema).expect("a schema of a test");
        for temperature in [0.0, 1.0] {
            let mut texts = Vec::new();
            for strategy in STRATEGIES {
                let answer = chat(
                    address,
                    json!({"messages": [{"role": "user", "content": prompt(i)}], "max_tokens": 1500, "seed": i,
                        "temperature": temperature, "speculative": {"strategy": strategy},
                        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}}),
                );
                let text = content(&answer, 0).to_owned();
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {text:?}: {e}"));
                assert!(validator.is_valid(&value), "{schema}: {text}");
                assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{text}");
                check_identities(&answer);
                forced += n(&answer["speculation"], "forced_n");
                trimmed += n(&answer["speculation"], "trimmed_n");
                accepted += n(&answer["speculation"], "accepted_n");
                texts.push(text);
            }
            assert!(texts.iter().all(|text| *text == texts[0]), "{schema} at {temperature}: {texts:#?}");
        }
    }
    assert!(forced > 1000 && trimmed > 1000 && accepted > 1000, "{forced} {trimmed} {accepted}");
}

#[test]
fn every_form_holds_at_temperature_1() {
    let address = shared();
    let number = |text: &str| text.len() <= 3 && text.parse::<u16>().is_ok();
    let word = |text: &str| text == "yes" || text == "no, never";
    let sum = |text: &str| text.split('+').all(|part| matches!(part, "1" | "22" | "(1)")) && text.len() < 30;
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let forms: [(Value, Check<'_>); 8] = [
        (json!({"response_format": {"type": "regex", "regex": "[1-9][0-9]{0,2}"}}), &number),
        (json!({"guided_regex": "[1-9][0-9]{0,2}"}), &number),
        (json!({"response_format": {"type": "choice", "choice": ["yes", "no, never"]}}), &word),
        (json!({"structured_outputs": {"choice": ["yes", "no, never"]}}), &word),
        (
            json!({"response_format": {"type": "grammar", "syntax": "lark",
                "grammar": "start: part (\"+\" part){0,5}\npart: \"1\" | \"22\" | \"(1)\"\n"}}),
            &sum,
        ),
        (
            json!({"response_format": {"type": "grammar", "syntax": "gbnf",
                "grammar": "root ::= part (\"+\" part){0,5}\npart ::= \"1\" | \"2\"{2} | \"(\" [1] \")\"\n"}}),
            &sum,
        ),
        (json!({"grammar": "root ::= part (\"+\" part){0,5}\npart ::= \"1\" | \"22\" | \"(1)\"\n"}), &sum),
        (json!({"guided_grammar": "root ::= \"1\""}), &|text| text == "1"),
    ];
    for (form, holds) in forms {
        for seed in 0..50 {
            let mut body = form.clone();
            body["temperature"] = json!(1);
            body["seed"] = json!(seed);
            let text = {
                let answer = chat(address, body.clone());
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                content(&answer, 0).to_owned()
            };
            assert!(holds(&text), "{form}: {text:?}");
            if seed % 5 == 0 {
                body["speculative"] = json!({"strategy": "off"});
                assert_eq!(content(&chat(address, body), 0), text);
            }
        }
    }
}

#[test]
fn choices_streams_and_completions_have_the_form_too() {
    let address = shared();
    let form = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"],
        "additionalProperties": false});
    let asked = json!({"response_format": {"type": "json_object", "schema": form}, "n": 3, "temperature": 1, "seed": 5,
        "logprobs": true, "top_logprobs": 2});
    let answer = chat(address, asked.clone());
    for choice in 0..3 {
        let value: Value = serde_json::from_str(content(&answer, choice)).unwrap();
        assert!(value["a"].is_string(), "{value}");
        let entries = answer["choices"][choice]["logprobs"]["content"].as_array().unwrap();
        let text: String = entries.iter().map(|e| e["token"].as_str().unwrap()).collect();
        assert_eq!(text, content(&answer, choice), "log-probabilities cover the text");
    }
    check_identities(&answer);
    let alone = chat(address, json!({"response_format": asked["response_format"], "temperature": 1, "seed": 5}));
    assert_eq!(content(&alone, 0), content(&answer, 0), "the first of three is the only of one");

    let mut streamed = json!({"prompt": "x = ", "stream": true, "temperature": 0, "guided_regex": "[0-9]{3}",
        "max_tokens": 40});
    let stream = ask(address, "/v1/completions", &streamed);
    let text: String =
        stream.chunks().iter().filter_map(|c| c["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    streamed["stream"] = json!(false);
    let whole = ask(address, "/v1/completions", &streamed).json();
    assert_eq!(whole["choices"][0]["text"].as_str(), Some(text.as_str()));
    assert!(text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()), "{text:?}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
}

#[test]
fn an_answer_of_a_form_ends_with_the_form() {
    let address = shared();
    let answer = chat(address, json!({"regex": "[ab]{4}", "ignore_eos": true, "min_tokens": 50, "max_tokens": 60}));
    assert_eq!((content(&answer, 0).len(), answer["choices"][0]["finish_reason"].as_str()), (4, Some("stop")));
    // A limit comes first where it comes first.
    let cut = chat(address, json!({"regex": "[ab]{400}", "max_tokens": 5}));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    // Nothing is left where everything that the form allows is banned.
    let of = |text: &str| -> u64 {
        let answer = ask(address, "/tokenize", &json!({"content": text})).json();
        answer["tokens"][0].as_u64().unwrap()
    };
    let bias = json!({of("a").to_string(): -100, of("b").to_string(): -100});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "regex": "[ab]", "logit_bias": bias});
    let answer = ask(address, "/v1/chat/completions", &body);
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (400, Some("invalid_value")),
        "{}",
        answer.text()
    );
    assert!(answer.text().contains("leave no token"), "{}", answer.text());
    // Nor where a grammar leads to what no text has, and then it is the grammar's fault alone.
    let grammar = json!({"type": "grammar", "syntax": "lark", "grammar": "start: \"a\" X\nX: /[a]/ & /[b]/"});
    for stream in [false, true] {
        let body =
            json!({"messages": [{"role": "user", "content": "x"}], "response_format": grammar, "stream": stream});
        let answer = ask(address, "/v1/chat/completions", &body);
        assert!(
            answer.text().contains("invalid_schema") && answer.text().contains("no text has it"),
            "{}",
            answer.text()
        );
    }
}

#[test]
fn what_cannot_be_held_to_is_refused_and_harms_nobody() {
    let address = shared();
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let path = "response_format.json_schema.schema";
    let custom = |grammar: &str| {
        let grammar = json!({"syntax": "lark", "definition": grammar});
        let custom = json!({"name": "note", "format": {"type": "grammar", "grammar": grammar}});
        json!({"tools": [{"type": "custom", "custom": custom}]})
    };
    for (more, code, param, message) in [
        (schema(json!({"properties": {"a": {"pattern": "(["}}})), "invalid_schema", path, "/properties/a/pattern"),
        (schema(json!({"not": {}})), "invalid_schema", path, "/not"),
        (
            schema(json!({"properties": {"a": {"pattern": "^(?=x)y$"}}})),
            "invalid_schema",
            path,
            "/properties/a/pattern",
        ),
        (schema(json!({"type": "integer", "minimum": 9, "maximum": 3})), "invalid_schema", path, ""),
        (schema(json!({"minLength": 3, "maxLength": 1})), "invalid_schema", path, "/minLength"),
        (json!({"grammar": "root ::= x"}), "invalid_schema", "grammar", "the rule x"),
        (json!({"regex": "("}), "invalid_schema", "regex", "regex: "),
        (
            custom("start: X\nX: /[a]/ & /[b]/"),
            "invalid_schema",
            "tools[0].custom.format.grammar.definition",
            "no text",
        ),
        (custom("start: nobody"), "invalid_schema", "tools[0].custom.format.grammar.definition", "nobody"),
        (json!({"regex": "a".repeat(1 << 21)}), "schema_too_complex", "regex", "1048576"),
        (json!({"regex": "a", "guided_choice": ["b"]}), "invalid_value", "regex", "guided_choice"),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "missing_required_parameter",
            "response_format.json_schema",
            "",
        ),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = ask(address, "/v1/chat/completions", &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str(), error["param"].as_str()), (400, Some(code), Some(param)));
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
    let answer = chat(address, json!({"max_tokens": 3}));
    assert_eq!(n(&answer["usage"], "completion_tokens"), 3);
}

/// A sign that needs no backslash and has one: enforced or refused, and never served without its form.
#[test]
fn a_needless_backslash_is_no_way_around_a_pattern() {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string", "pattern": "^hello there indeed\\!$"}},
        "required": ["text"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "t", "strict": true, "schema": schema}});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "temperature": 1, "response_format": format});
    let answer = ask(shared(), "/v1/chat/completions", &body);
    if answer.status == 200 {
        let value: Value = serde_json::from_str(content(&answer.json(), 0)).unwrap();
        assert_eq!(value, json!({"text": "hello there indeed!"}));
    } else {
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (400, Some("invalid_schema")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("/properties/text/pattern"), "{error}");
    }
}

/// Schemas as deep as a body may be are answered or refused in their time, and others are served meanwhile.
#[test]
fn a_deep_schema_disturbs_nobody() {
    let address = shared();
    let [schema, json] = [Some("invalid_schema"), Some("invalid_json")];
    for (depth, refused) in [(40, None), (64, None), (65, schema), (120, schema), (130, json)] {
        let form = (0..depth).fold(json!({"type": "string"}), |inner, _| json!({"items": inner}));
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"schema": form}}});
        let start = std::time::Instant::now();
        let answer = ask(address, "/v1/chat/completions", &body);
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{depth}");
        assert_eq!(answer.status, if refused.is_some() { 400 } else { 200 }, "{depth}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"].as_str(), refused, "{depth}");
        assert_eq!(n(&chat(address, json!({"max_tokens": 3}))["usage"], "completion_tokens"), 3);
    }
}

#[test]
fn what_a_form_cuts_and_costs_is_counted() {
    let address = shared();
    chat(address, json!({"regex": "(def|return){3}", "speculative": {"strategy": "mtp-suffix"}}));
    let mut client = Client::connect(address);
    client.send(get("/metrics"));
    let page = client.answer().text();
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or_else(|| panic!("{name} is not in {page}"))
    };
    assert!(value("engine_spec_trimmed_total{reason=\"grammar\"}") > 0.0);
    assert!(value("engine_constraint_mask_seconds_total") > 0.0);
    assert!(value("engine_constraint_compile_seconds_count") > 0.0);
    assert!(value("engine_constraint_compile_seconds_bucket{le=\"+Inf\"}") > 0.0);
}
