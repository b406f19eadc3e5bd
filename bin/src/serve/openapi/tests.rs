use super::*;
use crate::serve::http::Method;
use crate::serve::routes::{self, Route};
use crate::serve::schema;

#[test]
fn every_honoured_field_is_described() {
    type Of = fn(&str) -> Option<Value>;
    for (tables, of) in [
        (schema::CHAT_TABLES, field as Of),
        (schema::COMPLETIONS_TABLES, field),
        (schema::MESSAGES_TABLES, messages::field),
        (schema::RESPONSES_TABLES, responses::field),
    ] {
        for (name, class) in tables.iter().copied().flatten() {
            assert!(!matches!(class, Class::Honoured) || of(name).is_some(), "{name}");
        }
    }
    let document = document();
    // Of the others nothing is said, what is needed may not be null, and ranges are those that hold.
    let fields = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        ["properties"];
    for name in ["user", "mirostat", "id_slot", "chat_template"] {
        assert!(fields.get(name).is_none(), "{name}");
    }
    assert_eq!(fields["messages"]["type"], "array");
    for (name, low, high) in [
        ("sse_ping_interval", -1, crate::serve::params::PING_SECONDS_MAX),
        ("priority", -100, 100),
        ("top_logprobs", 0, limits::TOP_LOGPROBS as i64),
    ] {
        let range = json!({"type": "integer", "minimum": low, "maximum": high});
        assert_eq!(fields[name]["anyOf"], json!([range, {"type": "null"}]), "{name}");
    }
    for (path, name) in [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/completions", "response_format"),
        ("/v1/messages", "thinking"),
        ("/v1/messages/count_tokens", "system"),
        ("/v1/responses", "reasoning"),
    ] {
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert!(body["properties"].get(name).is_some(), "{path} {name}");
    }
}

#[test]
fn every_reference_is_there() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(to)) = map.get("$ref") {
                    let pointer = to.strip_prefix('#').expect("a place in this document");
                    assert!(document.pointer(pointer).is_some(), "{to}");
                }
                map.values().for_each(|v| walk(v, document));
            }
            Value::Array(list) => list.iter().for_each(|v| walk(v, document)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

/// What is described is served, and what is served is described.
#[test]
fn the_paths_are_those_of_the_server() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let described = |path: &str| {
        paths.iter().find(|(own, item)| {
            let aliases = item["x-aliases"].as_array();
            *own == path || aliases.is_some_and(|list| list.iter().any(|alias| alias == path))
        })
    };
    for (path, route) in routes::served() {
        let (_, item) = described(path).unwrap_or_else(|| panic!("{path} is not described"));
        assert!(item.get(if route.is_get() { "get" } else { "post" }).is_some(), "{path}");
    }
    for path in routes::missing() {
        let below = path.replace('*', "/{below}");
        assert!(described(&below).is_some(), "{below} is not described");
    }
    let mut operations = 0;
    for (path, item) in paths {
        let names = item["x-aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for name in names.chain([path.as_str()]) {
            let name = name.replace("{id}", "some").replace("{below}", "some");
            for (method, is) in [("get", Method::Get), ("post", Method::Post)] {
                let Some(operation) = item.get(method) else { continue };
                operations += 1;
                let not_implemented = operation["responses"].get("200").is_none();
                let found = routes::find(&name).and_then(|route| route.check_method(is).map(|()| route));
                match found {
                    Ok(route) => assert!(!not_implemented && route.is_get() == (method == "get"), "{name}"),
                    Err(error) => assert!(not_implemented && error.status == 501, "{name}: {error:?}"),
                }
            }
        }
    }
    assert!(operations > 60, "{operations}");
    // Only who may say it says it.
    for (path, item) in paths {
        for operation in ["get", "post", "delete"].iter().filter_map(|method| item.get(*method)) {
            let has = |status: &str| operation["responses"].get(status).is_some();
            let served = has("200");
            assert_eq!(has("501"), !served || path == "/slots", "{path}");
            assert_eq!(has("503"), served, "{path}");
            assert_eq!(has("529"), path.starts_with("/v1/messages") && served, "{path}");
            assert!(!(has("429") && has("529")), "{path}");
        }
    }
    assert!(Route::Chat.needs_key() && paths["/v1/chat/completions"]["post"]["responses"].get("401").is_some());
}
