//! Names of models on a hub: `hf:ORG/NAME`, then in any order `:QUANT` and `@REVISION`.

use std::fmt;
use std::str::FromStr;

use super::error::HubError;

/// How such a name begins. A local file of that name is `./hf:...`.
pub const PREFIX: &str = "hf:";
/// The revision where none is given.
pub const REVISION_DEFAULT: &str = "main";

/// Longest organisation, name, or part of a revision.
const PART_MAX: usize = 96;

/// A model on a hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    /// User or organisation.
    pub org: String,
    /// Repository.
    pub repository: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which of the repository's models.
    pub quant: Option<String>,
}

impl Reference {
    /// `ORG/NAME`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.org, self.repository)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.org, self.repository)?;
        if self.revision != REVISION_DEFAULT {
            write!(f, "@{}", self.revision)?;
        }
        self.quant.as_ref().map_or(Ok(()), |quant| write!(f, ":{quant}"))
    }
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |what: &str| {
            HubError::Reference(format!(
                "\"{}\": {what}; expected hf:ORG/NAME, hf:ORG/NAME:QUANT or hf:ORG/NAME@REVISION:QUANT",
                text.escape_debug()
            ))
        };
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| wrong("does not begin with hf:"))?;
        let end = rest.find([':', '@']).unwrap_or(rest.len());
        let (org, repository) = rest[..end].split_once('/').ok_or_else(|| wrong("names no repository"))?;
        if !is_name(org) || !is_name(repository) {
            return Err(wrong("organisation and name have letters, digits, and between them single -, . and _"));
        }
        let (mut revision, mut quant) = (None, None);
        let mut tail = &rest[end..];
        while let Some(mark) = tail.chars().next() {
            let part = &tail[1..];
            let end = part.find([':', '@']).unwrap_or(part.len());
            let (slot, valid): (&mut Option<&str>, bool) = match mark {
                '@' => (&mut revision, is_revision(&part[..end])),
                _ => (&mut quant, is_quant(&part[..end])),
            };
            if slot.is_some() || !valid {
                return Err(wrong(if mark == '@' { "has no usable revision" } else { "has no usable quant" }));
            }
            *slot = Some(&part[..end]);
            tail = &part[end..];
        }
        Ok(Self {
            org: org.into(),
            repository: repository.into(),
            revision: revision.unwrap_or(REVISION_DEFAULT).into(),
            quant: quant.map(str::to_owned),
        })
    }
}

/// The hub's own rule. No `--`: it parts organisation and name in the cache.
fn is_name(part: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    (1..=PART_MAX).contains(&part.len())
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        && edge(part.chars().next())
        && edge(part.chars().last())
        && !part.contains("--")
        && !part.contains("..")
}

/// A git reference that is also a path below `refs`.
fn is_revision(text: &str) -> bool {
    text.len() <= 4 * PART_MAX
        && text.split('/').all(|part| {
            (1..=PART_MAX).contains(&part.len())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._+".contains(&b))
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
        })
}

fn is_quant(text: &str) -> bool {
    (1..=PART_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, revision, quant, canonical) in [
            ("hf:o/n", "main", None, "hf:o/n"),
            ("hf:Org_1/a.b-c:Q4_K_M", "main", Some("Q4_K_M"), "hf:Org_1/a.b-c:Q4_K_M"),
            ("hf:o/n@v1.0", "v1.0", None, "hf:o/n@v1.0"),
            ("hf:o/n@refs/pr/1:UD-Q4_K_XL", "refs/pr/1", Some("UD-Q4_K_XL"), "hf:o/n@refs/pr/1:UD-Q4_K_XL"),
            ("hf:o/n:q8_0@main", "main", Some("q8_0"), "hf:o/n:q8_0"),
        ] {
            let found: Reference = text.parse().unwrap();
            assert_eq!((found.revision.as_str(), found.quant.as_deref()), (revision, quant), "{text}");
            assert_eq!(found.to_string(), canonical);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "o/n",
            "hf:",
            "hf:n",
            "hf:/n",
            "hf:o/",
            "hf:o/n/m",
            "hf://o/n",
            "hf:../n",
            "hf:o/..",
            "hf:o/.n",
            "hf:o/n-",
            "hf:o--p/n",
            "hf:o/a..b",
            "hf:o/n:",
            "hf:o/n@",
            "hf:o/n:a:b",
            "hf:o/n@a@b",
            "hf:o/n@../x",
            "hf:o/n@a/../b",
            "hf:o/n@/a",
            "hf:o/n@a//b",
            "hf:o/n:a/b",
            "hf:o/n\0",
            "hf:o/n:\u{e9}",
            "hf:o/n@-x",
            "hf:o/n?x",
            "hf:o/n#x",
            "hf:o/%2e",
            "hf:o /n",
        ] {
            assert!(matches!(text.parse::<Reference>(), Err(HubError::Reference(_))), "{text}");
        }
        let long = "n".repeat(PART_MAX + 1);
        assert!(format!("hf:o/{long}").parse::<Reference>().is_err());
    }
}
