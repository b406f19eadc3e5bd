//! Looks through a template's text for names that do not exist here, so that they are found at load and not in the
//! one conversation that reaches them.

use std::collections::{BTreeSet, HashSet};

use minijinja::{Environment, ErrorKind};

/// Methods of strings, mappings, lists and the loop that the environment knows.
const METHODS: &[&str] = &[
    "upper",
    "lower",
    "islower",
    "isupper",
    "isspace",
    "isdigit",
    "isnumeric",
    "isalnum",
    "isalpha",
    "isascii",
    "strip",
    "lstrip",
    "rstrip",
    "replace",
    "title",
    "split",
    "splitlines",
    "capitalize",
    "count",
    "find",
    "format",
    "rfind",
    "startswith",
    "endswith",
    "join",
    "keys",
    "values",
    "items",
    "get",
    "cycle",
    "changed",
    "next",
];

/// Words of the language that may stand before a parenthesis.
const WORDS: &[&str] = &[
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "elif",
    "else",
    "for",
    "set",
    "call",
    "do",
    "with",
    "filter",
    "include",
    "import",
    "from",
    "loop",
    "caller",
    "super",
    "recursive",
    "macro",
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Token<'a> {
    Name(&'a str),
    Mark(char),
    /// String or number.
    Literal,
}

/// The tokens inside `{{ }}` and `{% %}`.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    let mut rest = source;
    while let Some(open) = rest.find('{') {
        rest = &rest[open..];
        if let Some(comment) = rest.strip_prefix("{#") {
            rest = comment.find("#}").map_or("", |end| &comment[end + 2..]);
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let close = if rest.starts_with("{{") { '}' } else { '%' };
            let start = out.len();
            rest = block(&rest[2..], close, &mut out);
            if out[start..] == [Token::Name("raw"), Token::Mark(';')] {
                out.truncate(start);
                rest = rest.find("endraw").map_or("", |end| &rest[end..]);
            }
        } else {
            rest = &rest[1..];
        }
    }
    out
}

/// Reads one block up to its end; `;` is put where it ends.
fn block<'a>(mut rest: &'a str, close: char, out: &mut Vec<Token<'a>>) -> &'a str {
    let mut braces = 0;
    while let Some(c) = rest.chars().next() {
        if braces == 0 && c == close && rest[1..].starts_with('}') {
            out.push(Token::Mark(';'));
            return &rest[2..];
        }
        let len = match c {
            '"' | '\'' => {
                let mut escaped = false;
                let end = rest[1..].find(|d| {
                    let ends = d == c && !escaped;
                    escaped = d == '\\' && !escaped;
                    ends
                });
                out.push(Token::Literal);
                end.map_or(rest.len(), |e| e + 2)
            }
            c if c.is_alphabetic() || c == '_' => {
                let len = rest.find(|d: char| !d.is_alphanumeric() && d != '_').unwrap_or(rest.len());
                out.push(Token::Name(&rest[..len]));
                len
            }
            c if c.is_ascii_digit() => {
                out.push(Token::Literal);
                rest.find(|d: char| !d.is_alphanumeric() && d != '_').unwrap_or(rest.len())
            }
            c => {
                match c {
                    '{' => braces += 1,
                    '}' => braces -= 1,
                    _ => {}
                }
                // Signs of white-space control are no marks of the language.
                let control = matches!(c, '-' | '+') && (rest[1..].starts_with(close) && rest[2..].starts_with('}'));
                if !c.is_whitespace() && !control {
                    out.push(Token::Mark(c));
                }
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    rest
}

/// Most tokens of one `{{ }}` or `{% %}`, and most `elif` of a template.
const CHAIN_MAX: usize = 4096;

/// What a template has too much of for a compiler that recurses over it; `None` when it may be compiled.
pub(super) fn too_deep(source: &str) -> Option<String> {
    let tokens = tokens(source);
    let longest = tokens.split(|t| *t == Token::Mark(';')).map(<[_]>::len).max().unwrap_or(0);
    if longest > CHAIN_MAX {
        return Some(format!("a block of {longest} tokens; {CHAIN_MAX} are the most"));
    }
    let branches = tokens.iter().filter(|t| **t == Token::Name("elif")).count();
    (branches > CHAIN_MAX).then(|| format!("{branches} elif branches; {CHAIN_MAX} are the most"))
}

/// The names a template uses and this environment lacks, each with its kind.
pub(super) fn unsupported(source: &str, env: &Environment<'_>) -> Vec<String> {
    use Token::{Mark, Name};
    let tokens = tokens(source);
    let at = |i: usize| tokens.get(i).copied().unwrap_or(Mark(';'));
    let before = |i: usize| i.checked_sub(1).map_or(Mark(';'), at);
    let globals: HashSet<&str> = env.globals().map(|g| g.0).chain(["strftime_now"]).collect();
    // Names the template defines itself, or asks for before it uses them.
    let mut own = HashSet::new();
    for i in 0..tokens.len() {
        match (at(i), at(i + 1), at(i + 2)) {
            (Name("macro" | "set"), Name(name), _) | (Name(name), Name("is"), Name("defined")) => {
                own.insert(name);
            }
            _ => {}
        }
    }
    let no_filter =
        |name| env.empty_state().apply_filter(name, &[]).is_err_and(|e| e.kind() == ErrorKind::UnknownFilter);
    let no_test = |name| env.empty_state().perform_test(name, &[]).is_err_and(|e| e.kind() == ErrorKind::UnknownTest);
    let mut missing = BTreeSet::new();
    for (i, token) in tokens.iter().enumerate() {
        let Name(name) = *token else { continue };
        let called = at(i + 1) == Mark('(');
        let negated = before(i) == Name("not") && before(i.saturating_sub(1)) == Name("is");
        let kind = match before(i) {
            Mark('|') if no_filter(name) => "filter",
            Name("is") if name != "not" && no_test(name) => "test",
            Name("not") if negated && no_test(name) => "test",
            Mark('.') if called && !METHODS.contains(&name) => "method",
            Mark('|' | '.') | Name("is" | "macro") => continue,
            Name("not") if negated => continue,
            _ if called && !WORDS.contains(&name) && !globals.contains(name) && !own.contains(name) => "function",
            _ => continue,
        };
        missing.insert(format!("{kind} {name}"));
    }
    missing.into_iter().collect()
}

/// The template with `{% generation %}` blocks, which mark spans for training and print their content, as plain ones.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        out.push_str(&rest[..open + 2]);
        rest = &rest[open + 2..];
        let word = rest.trim_start_matches(['-', '+']).trim_start();
        let signs = &rest[..rest.len() - word.len()];
        for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
            if let Some(after) = word.strip_prefix(tag)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                out.push_str(signs);
                out.push_str(plain);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[&str]) {
        assert_eq!(unsupported(source, &super::super::environment::new(1000)), expected, "{source}");
    }

    #[test]
    fn unknown_names_are_found() {
        check(
            "{{ x | nofilter }}{% if a is not notest %}{% endif %}{{ nofn(1) }}{{ a.append(2) }}",
            &["filter nofilter", "function nofn", "method append", "test notest"],
        );
        check("{%- if false %}{{ hidden() }}{% endif %}", &["function hidden"]);
        check("{{ a|trim|b64 }}", &["filter b64"]);
    }

    #[test]
    fn known_names_pass() {
        check(
            "{% macro m(a) %}{{ a.strip() }}{% endmacro %}{{ m('x') }}{{ raise_exception('no') }}\
             {% if not (a and (b)) %}{{ strftime_now('%d') }}{% endif %}{{ {'a': {'b': 1}} | tojson(indent=2) }}\
             {% set ns = namespace(x=1) %}{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}\
             {{ 'a | nofilter' }}{# {{ nofn() }} #}{% raw %}{{ nofn() }}{% endraw %}{{ 'it\\'s | nofilter' }}\
             {% if extra is defined %}{{ extra() }}{% endif %}{{ a is string }}{{ x if y is none else z }}{{ -(1) - (2) }}",
            &[],
        );
    }

    #[test]
    fn generation_blocks_become_plain() {
        assert_eq!(
            without_generation_tags("a{%- generation -%}{{ x }}{% endgeneration %}{% generations %}"),
            "a{%- if true -%}{{ x }}{% endif %}{% generations %}"
        );
    }
}
