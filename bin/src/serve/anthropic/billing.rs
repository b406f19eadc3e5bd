//! A line that some clients put in front of their system text. It is another in every request, so that no prefix would
//! ever be found again behind it.

const BEGINS: &str = "x-anthropic-billing-header:";

/// The text behind a billing line; `None` where there is none.
///
/// The line ends with the first newline. Without one it is a run of `key=value;` with spaces between.
pub(super) fn strip(text: &str) -> Option<&str> {
    let line = text.strip_prefix(BEGINS)?;
    if let Some((_, rest)) = line.split_once('\n') {
        return Some(rest);
    }
    let mut rest = line;
    while let Some((pair, behind)) = rest.split_once(';')
        && is_pair(pair.trim_start_matches(' '))
    {
        rest = behind;
    }
    Some(rest)
}

/// `key=value`, of which neither holds a space.
fn is_pair(text: &str) -> bool {
    text.split_once('=').is_some_and(|(key, value)| !key.is_empty() && ![key, value].iter().any(|s| s.contains(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_line_is_left() {
        let cases = [
            ("You are", None),
            (" x-anthropic-billing-header: a=b;", None),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a5145;\nYou are\nhere", Some("You are\nhere")),
            ("x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are; it=1; here", Some("You are; it=1; here")),
            ("x-anthropic-billing-header: cch=0;", Some("")),
            ("x-anthropic-billing-header: cch=0;\n", Some("")),
            ("x-anthropic-billing-header:", Some("")),
            ("x-anthropic-billing-header: You are", Some(" You are")),
        ];
        for (text, rest) in cases {
            assert_eq!(strip(text), rest, "{text}");
        }
    }
}
