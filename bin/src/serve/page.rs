//! The page at `/`: a chat and a dashboard in one file, which asks for nothing but this server.

use crate::serve::http::Reply;

const PAGE: &str = include_str!("page/index.html");

/// Nothing but what stands in the page itself, and requests to where it came from.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) fn reply() -> Reply {
    Reply::text(200, "text/html; charset=utf-8", PAGE)
        .with("Content-Security-Policy", POLICY)
        .with("X-Content-Type-Options", "nosniff")
        .with("Referrer-Policy", "no-referrer")
        .with("Cache-Control", "no-cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a model or a client writes is text to the page, and nothing is fetched from elsewhere.
    #[test]
    fn the_page_makes_no_markup_and_names_no_other_place() {
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        let outside = PAGE.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains("http:") && !outside.contains("https:") && !outside.contains("src="));
        assert!(!outside.contains("@import") && !outside.contains("url("));
    }
}
