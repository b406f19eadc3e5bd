//! Formats of strings, against a validator that reads them by itself.

use super::*;

/// What a random walk through the grammar of a schema says; what ends a string comes as often as it may.
fn said(start: &dyn Constraint, salt: u32, seed: u32) -> Option<String> {
    let mut constraint = start.fork();
    let mut text = Vec::new();
    for at in 0..400 {
        let next = allowed(constraint.as_mut());
        let draw = random_bits(seed.into(), salt, at) as usize;
        let quote = next.iter().copied().find(|token| Bytes.piece(*token) == b"\"");
        let token = quote.filter(|_| draw.is_multiple_of(4)).unwrap_or(next[draw / 4 % next.len()]);
        assert!(constraint.advance(token));
        if constraint.ended() {
            return Some(String::from_utf8(text).expect("text"));
        }
        text.extend(Bytes.piece(token));
    }
    None
}

#[test]
fn whatever_a_format_allows_a_validator_takes() {
    for (salt, format) in screen::FORMATS.into_iter().enumerate() {
        let schema = json!({"type": "string", "format": format});
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        let start = of_form(Form::Schema(schema));
        let mut ended = 0;
        for seed in 0..400 {
            let Some(text) = said(start.as_ref(), salt as u32, seed) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(validator.is_valid(&value), "{format}: {text}");
            ended += 1;
        }
        assert!(ended > 200, "{format}: {ended} of 400 ended");
    }
}

#[test]
fn days_and_seconds_that_no_calendar_has_are_not_said() {
    let string = |format: &str| Form::Schema(json!({"type": "string", "format": format}));
    check(
        string("date"),
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"2023-12-31\""],
        &[
            "\"2023-02-29\"",
            "\"1900-02-29\"",
            "\"2024-02-30\"",
            "\"2024-04-31\"",
            "\"2024-13-01\"",
            "\"24-01-01\"",
            "\"x\"",
        ],
    );
    check(
        string("time"),
        &["\"23:59:59Z\"", "\"00:00:00.5-23:59\""],
        &["\"23:59:60Z\"", "\"24:00:00Z\"", "\"12:00:00\""],
    );
    check(
        string("date-time"),
        &["\"2024-02-29T23:59:59Z\"", "\"2023-01-01t00:00:00.25+01:30\""],
        &["\"2023-02-29T00:00:00Z\"", "\"2024-02-29T23:59:60Z\"", "\"2024-02-29\"", "\"2024-02-29 00:00:00Z\""],
    );
    // Beside a pattern of one's own both hold.
    check(
        Form::Schema(json!({"type": "string", "format": "date", "pattern": "^20", "allOf": [{"pattern": "-01$"}]})),
        &["\"2024-02-01\""],
        &["\"1999-02-01\"", "\"2024-02-02\"", "\"2023-02-29\"", "\"20-01\""],
    );
    // And what is no string has no format.
    check(Form::Schema(json!({"type": ["string", "null"], "format": "time"})), &["null", "\"01:02:03z\""], &["\"a\""]);
}
