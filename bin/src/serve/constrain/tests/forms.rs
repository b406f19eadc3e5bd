//! Forms of content.

use super::*;

#[test]
fn forms_hold() {
    check(
        Form::Schema(json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 300},
            "b": {"enum": ["x", "y\"", null]}}, "required": ["a"], "additionalProperties": false})),
        &["{\"a\":1}", "{\"a\": -5, \"b\": \"y\\\"\"}", "{\n  \"a\": 300,\n  \"b\": null\n}"],
        &[
            "",
            "{}",
            "{\"a\": 301}",
            "{\"a\": 1.5}",
            "{\"a\": 1, \"c\": 2}",
            "{\"b\": null, \"a\": 1}",
            " {\"a\": 1}",
            "{\"a\": 1}\n\n",
            "{\"a\":   1}",
            "{\n\n\"a\":1}",
            "[]",
        ],
    );
    check(Form::Object, &["{}", "{\"a\": [1, {\"b\": null}]}"], &["[]", "1", "\"a\"", "{", "{\"a\"}"]);
    check(Form::Schema(json!(true)), &["1", "[]", "\"a\""], &["", "a"]);
    check(
        Form::Schema(json!({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "boolean"},
            "next": {"$ref": "#/$defs/n"}}, "required": ["v"], "additionalProperties": false}}, "$ref": "#/$defs/n"})),
        &["{\"v\": true}", "{\"v\": true, \"next\": {\"v\": false, \"next\": {\"v\": true}}}"],
        &["{\"next\": {}}", "{\"v\": 1}"],
    );
    check(
        Form::Schema(json!({"type": "array", "items": {"type": "string", "pattern": "^[a-c]+$", "maxLength": 3},
            "minItems": 1, "maxItems": 2})),
        &["[\"a\"]", "[\"abc\", \"b\"]"],
        &["[]", "[\"abca\"]", "[\"d\"]", "[\"a\",\"b\",\"c\"]"],
    );
    check(Form::Schema(json!({"type": "number", "multipleOf": 5})), &["15", "-20", "0"], &["3"]);
    check(
        Form::Schema(json!({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]})),
        &["7", "\"ab\""],
        &["\"abc\"", "null"],
    );
    check(
        Form::Schema(json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]})),
        &["3", "5"],
        &["2", "6"],
    );
    check(Form::Regex("a+|b/c".to_owned()), &["a", "aaa", "b/c"], &["", "ab", "b"]);
    check(Form::Choice(vec!["a".into(), "ab".into(), "x\"\n".into()]), &["a", "ab", "x\"\n"], &["", "abb", "b"]);
    check(
        Form::Lark("start: \"<\" word (\" \" word)* \">\"\nword: /[a-z]{1,3}/\n".to_owned()),
        &["<ab>", "<a bcd e>"],
        &["<>", "<abcd>", "<a b"],
    );
    check(
        Form::Gbnf(
            "root ::= \"ab\" (item | [0-9])* \"ab\"? # c\nitem ::= \"a\" | \"b\"{2}\n  | \"\\u00e9\"\n".to_owned(),
        ),
        &["ab", "abab", "abaab", "abbbab", "ab7\u{e9}"],
        &["", "a", "abc", "abx", "ababab"],
    );
}

#[test]
fn structure_is_never_text() {
    let mut constraint = of_form(Form::Schema(json!({"type": "string"})));
    walk(constraint.as_mut(), tokens("\"a <")).unwrap();
    let next = allowed(constraint.as_mut());
    assert!([END, THINK, CALL, CALL_END].iter().all(|t| !next.contains(t)), "{next:?}");
    // What only spells it is.
    assert!(next.contains(&TokenId(256 + 9)) || LONG[9] != "<tool_call>");
    walk(constraint.as_mut(), tokens("tool_call>\"")).unwrap();
    assert_eq!(allowed(constraint.as_mut()), [END, END_2], "every end token, and nothing else");
    assert!(constraint.advance(END_2) && constraint.ended());
    assert_eq!(allowed(constraint.as_mut()), []);
}

/// What clients ask for, small enough for a walk that chooses at random to end.
fn schemas() -> Vec<Value> {
    let name = json!({"type": "string", "maxLength": 8});
    vec![
        json!({"type": "object", "properties": {"name": name, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}, "ok": {"type": "boolean"}},
            "required": ["name", "age", "tags", "ok"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": name, "b": name, "c": {"type": ["integer", "null"],
            "minimum": 1, "maximum": 9}}, "additionalProperties": false}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, name], "items": {"type": "null"}, "maxItems": 4}),
        json!({"anyOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"],
            "additionalProperties": false}, {"type": "integer", "minimum": -20, "maximum": 20}]}),
        json!({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer", "minimum": 0,
            "maximum": 9}}, "required": ["t", "x"], "additionalProperties": false},
            {"type": "object", "properties": {"t": {"const": "b"}, "y": name}, "required": ["t", "y"],
            "additionalProperties": false}]}),
        json!({"type": "object", "patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": false,
            "maxProperties": 1}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}),
        json!({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}),
        json!({"$defs": {"p": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9},
            "y": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x", "y"], "additionalProperties": false}},
            "type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 2}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "date"}),
        json!({"enum": [1, 2.5, "three", null, true, {"a": [1]}]}),
        json!({"type": "string", "minLength": 2, "maxLength": 4}),
    ]
}

/// Every walk ends, whatever it chooses, and what it says is of the schema. On the way it steps aside and back.
#[test]
fn whatever_a_mask_allows_ends_in_a_value_of_the_schema() {
    for (s, schema) in schemas().into_iter().enumerate() {
        let validator = jsonschema::validator_for(&schema).unwrap();
        let start = of_form(Form::Schema(schema.clone()));
        for seed in 0..25 {
            let draw = |at: usize, salt: u32| random_bits(seed, s as u32 * 16 + salt, at as u32) as usize;
            let mut constraint = start.fork();
            let mut text = Vec::new();
            for at in 0.. {
                assert!(at < 600, "{schema}: {:?} does not end", String::from_utf8_lossy(&text));
                let next = allowed(constraint.as_mut());
                assert!(!next.is_empty(), "{schema}: nothing follows {:?}", String::from_utf8_lossy(&text));
                // Drafts, right or wrong, leave no trace.
                let mut aside = 0;
                while aside < draw(at, 1) % 6 && !constraint.ended() {
                    let next = allowed(constraint.as_mut());
                    let Some(token) = next.get(draw(at + aside, 2) % next.len().max(1)) else { break };
                    assert!(constraint.advance(*token));
                    aside += 1;
                }
                constraint.rollback(aside);
                let token = next[draw(at, 3) % next.len()];
                assert!(constraint.advance(token), "{schema}: {token} behind {:?}", String::from_utf8_lossy(&text));
                if constraint.ended() {
                    break;
                }
                text.extend(Bytes.piece(token));
            }
            let text = String::from_utf8(text).unwrap_or_else(|e| panic!("{schema}: {e}"));
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {text:?}: {e}"));
            assert!(validator.is_valid(&value), "{schema}: {text}");
        }
    }
}

#[test]
fn a_window_can_be_taken_back_as_a_whole() {
    let mut constraint = of_form(Form::Schema(json!({"type": "array", "items": {"type": "integer"}})));
    let text = tokens(&format!("[{}1]", "1, ".repeat(60)));
    walk(constraint.as_mut(), text[..20].iter().copied()).unwrap();
    let before = allowed(constraint.as_mut());
    walk(constraint.as_mut(), text[20..20 + WINDOW_MAX].iter().copied()).unwrap();
    constraint.rollback(WINDOW_MAX);
    assert_eq!(allowed(constraint.as_mut()), before);
    walk(constraint.as_mut(), text[20..].iter().copied().chain([END])).unwrap();
    constraint.rollback(1);
    assert!(!constraint.ended() && allowed(constraint.as_mut()).contains(&END_2));
}

fn refused(form: Form) -> ApiError {
    let format = format(form);
    compile(&Wanted { format: Some(&format), ..Wanted::default() }, &VOCABULARY, &long()).expect_err("it is refused")
}

#[test]
fn what_cannot_be_compiled_is_refused_with_its_place() {
    for (schema, place) in [
        (json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}), "/properties/a/pattern"),
        (json!({"type": "object", "properties": {"a": {"not": {}}}}), "/properties/a/not"),
        (json!({"$ref": "#/$defs/missing"}), ""),
        (json!(false), ""),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "/minLength"),
        (json!({"type": "integer", "minimum": 3, "exclusiveMaximum": 3}), ""),
        (json!({"type": "integer", "minimum": 1.2, "maximum": 1.8}), ""),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), ""),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"],
            "additionalProperties": false}),
            "",
        ),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), ""),
        (json!({"type": "string", "pattern": "^a$", "minLength": 2}), ""),
        (json!({"type": "object", "properties": {"a": {"enum": []}}}), "/properties/a/enum"),
    ] {
        let error = refused(Form::Schema(schema.clone()));
        assert_eq!((error.status, error.code), (400, "invalid_schema"), "{schema}: {error:?}");
        assert_eq!(error.param.as_deref(), Some("response_format"));
        assert!(error.message.contains(&format!("at {place}")) || place.is_empty(), "{schema}: {}", error.message);
    }
    for form in [
        Form::Regex("([".to_owned()),
        Form::Lark("start: other".to_owned()),
        Form::Lark(String::new()),
        Form::Gbnf("root ::= x".to_owned()),
    ] {
        let error = refused(form.clone());
        assert_eq!((error.status, error.code), (400, "invalid_schema"), "{form:?}: {error:?}");
        assert!(error.message.len() < 500 && !error.message.contains('\n'), "{}", error.message);
    }
}

/// Forms that are small and hold much.
#[test]
fn what_would_take_too_much_is_refused() {
    let product: Vec<Value> = (0..12)
        .map(|i| {
            let of = |j: usize| json!({"properties": {format!("p{i}"): {"const": j}}});
            json!({"anyOf": (0..6).map(of).collect::<Vec<_>>()})
        })
        .collect();
    let properties: Map<String, Value> = (0..3000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    for form in [Form::Schema(json!({"allOf": product})), Form::Schema(json!({"properties": properties}))] {
        let error = refused(form);
        assert_eq!((error.status, error.code), (400, "schema_too_complex"), "{error:?}");
    }
    let nested = (0..60).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    for form in [
        Form::Regex("(a|b)*a(a|b){30}".to_owned()),
        Form::Regex("(((a{1,100}){1,100}){1,100}){1,100}".to_owned()),
        Form::Schema(json!({"type": "string", "maxLength": 10_000_000})),
        Form::Schema(json!({"type": "array", "items": {"type": "string"}, "minItems": 100_000, "maxItems": 1_000_000})),
        Form::Schema(nested),
        Form::Gbnf("root ::= (\"a\"{0,1000}){0,1000}".to_owned()),
    ] {
        assert!(!allowed(of_form(form).as_mut()).is_empty());
    }
}
