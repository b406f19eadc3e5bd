//! Formats of strings that the grammar library reads more widely than a checker of answers does: it lets pass the 29th of
//! February of every year, a leap second in every minute, and names longer than a mail server or a resolver takes.

use serde_json::{Map, Value, json};

const DAYS: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
                    |02-(?:0[1-9]|1[0-9]|2[0-8]))";
/// Years that 4 divides, and of those that 100 divides only those that 400 does.
const LEAP_DAYS: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Of at most 64 characters (RFC 5321, 4.5.3.1.1); with dots, of at most 32 besides them.
const MAILBOX: &str = "(?:[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,64}\
                       |[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-](?:\\.?[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]){0,31})";

/// A host's name of at most 253 characters (RFC 1123, 2.1): four parts of at most 61, or eight of at most 29. Hyphens stand
/// alone, because two of them mean an encoded name.
fn host() -> String {
    let names = |parts: usize, letters: usize| {
        let part = format!("[a-zA-Z0-9](?:-?[a-zA-Z0-9]){{0,{}}}", letters - 1);
        format!("{part}(?:\\.{part}){{0,{}}}", parts - 1)
    };
    format!("(?:{}|{})", names(4, 31), names(8, 15))
}

/// Says such a format by a pattern; the other formats stay.
pub(super) fn spell_out(schema: &mut Map<String, Value>) {
    let pattern = match schema.get("format").and_then(Value::as_str) {
        Some("date") => format!("^(?:{DAYS}|{LEAP_DAYS})$"),
        Some("time") => format!("^{TIME}$"),
        // RFC 3339, 5.6.
        Some("date-time") => format!("^(?:{DAYS}|{LEAP_DAYS})[tT]{TIME}$"),
        Some("email") => format!("^{MAILBOX}@{}$", host()),
        Some("hostname") => format!("^{}$", host()),
        _ => return,
    };
    schema.remove("format");
    if !schema.contains_key("pattern") {
        schema.insert("pattern".to_owned(), pattern.into());
        return;
    }
    // A schema has one pattern; where it has one already, both must hold.
    match schema.entry("allOf").or_insert_with(|| json!([])) {
        Value::Array(list) => list.push(json!({"pattern": pattern})),
        other => unreachable!("allOf was checked to be a list: {other}"),
    }
}
