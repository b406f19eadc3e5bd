//! Finds special tokens in text: a byte trie, then longest token first.

use crate::heap;

/// Matches the texts of special tokens.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// Node 0 is the root.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Sorted by byte.
    edges: Vec<(u8, u32)>,
    token: Option<u32>,
}

/// A special token found in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// The token.
    pub token: u32,
}

impl Matcher {
    /// A matcher of these (text, token) pairs. Empty texts are left out; of equal texts the first counts.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a [u8], u32)>) -> Self {
        let mut nodes = vec![Node::default()];
        for (text, token) in tokens {
            if text.is_empty() {
                continue;
            }
            let mut at = 0;
            for &byte in text {
                at = match nodes[at].edges.binary_search_by_key(&byte, |e| e.0) {
                    Ok(i) => nodes[at].edges[i].1 as usize,
                    Err(i) => {
                        let new = nodes.len();
                        nodes[at].edges.insert(i, (byte, new as u32));
                        nodes.push(Node::default());
                        new
                    }
                };
            }
            nodes[at].token.get_or_insert(token);
        }
        Self { nodes }
    }

    /// Heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        heap::vec(&self.nodes) + self.nodes.iter().map(|node| heap::vec(&node.edges)).sum::<usize>()
    }

    /// Every occurrence of a token that starts at `pos`, shortest first.
    fn at<'a>(&'a self, text: &'a [u8], pos: usize) -> impl Iterator<Item = Hit> + 'a {
        let mut node = self.nodes.first();
        let mut end = pos;
        std::iter::from_fn(move || {
            loop {
                let byte = text.get(end)?;
                let edges = &node?.edges;
                let i = edges.binary_search_by_key(byte, |e| e.0).ok()?;
                let next = &self.nodes[edges[i].1 as usize];
                node = Some(next);
                end += 1;
                if let Some(token) = next.token {
                    return Some(Hit { start: pos, end, token });
                }
            }
        })
    }

    /// The special tokens of `text` in order, without overlap. Longer tokens are placed first, equally long ones from
    /// the left.
    ///
    /// Source: llama.cpp `src/llama-vocab.cpp`, `tokenizer_st_partition` (tokens by falling length, each over all
    /// text that is left).
    pub fn find(&self, text: &[u8]) -> Vec<Hit> {
        let mut hits: Vec<Hit> = (0..text.len()).flat_map(|pos| self.at(text, pos)).collect();
        if hits.windows(2).all(|w| w[0].end <= w[1].start) {
            return hits;
        }
        hits.sort_by_key(|h| (std::cmp::Reverse(h.end - h.start), h.start));
        let mut placed = std::collections::BTreeMap::new();
        for hit in hits {
            let before = placed.range(..hit.end).next_back().map(|(_, h): (_, &Hit)| h.end);
            if before.is_none_or(|end| end <= hit.start) {
                placed.insert(hit.start, hit);
            }
        }
        placed.into_values().collect()
    }

    /// Whether the text of some token starts at `pos`.
    pub fn starts_at(&self, text: &[u8], pos: usize) -> bool {
        self.at(text, pos).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[&str], text: &str, expected: &[(usize, usize, u32)]) {
        let m = Matcher::new(tokens.iter().enumerate().map(|(i, t)| (t.as_bytes(), i as u32)));
        let found: Vec<_> = m.find(text.as_bytes()).iter().map(|h| (h.start, h.end, h.token)).collect();
        assert_eq!(found, expected, "{tokens:?} in {text:?}");
    }

    #[test]
    fn longest_token_wins_wherever_it_is() {
        check(&["<a>", "<b>"], "x<a><b>y", &[(1, 4, 0), (4, 7, 1)]);
        check(&["<a", "<a>"], "<a><a", &[(0, 3, 1), (3, 5, 0)]);
        check(&["ab", "bcd"], "abcd", &[(1, 4, 1)]);
        check(&["aa"], "aaaaa", &[(0, 2, 0), (2, 4, 0)]);
        check(&["abc", "cde"], "abcde", &[(0, 3, 0)]);
        check(&[""], "abc", &[]);
        check(&[], "abc", &[]);
        check(&["x", "x"], "x", &[(0, 1, 0)]);
    }
}
