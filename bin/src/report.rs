//! How an error that ends a process is written.

use std::error::Error;

/// The error and what caused it, one line each; a cause that the line before quotes already is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(&format!("\n  because {cause}"));
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] std::io::Error);

    #[test]
    fn a_cause_is_written_once() {
        let cause = || std::io::Error::other("no such disk");
        assert_eq!(chain(&Caused("cannot open: no such disk", cause())), "cannot open: no such disk");
        assert_eq!(chain(&Caused("cannot open", cause())), "cannot open\n  because no such disk");
    }
}
