//! What a tick has committed of a choice, as one thing or token by token.

use engine::channels::Said;
use engine::delta::Committed;

/// One for each token. The last has what came with the end; the drafts are the first's.
pub(crate) fn by_token(all: &Committed) -> Vec<Committed> {
    let said = cut(&all.said, &all.cuts);
    let each = all.tokens.iter().zip(&all.origins).zip(said).enumerate();
    each.map(|(i, ((token, origin), said))| Committed {
        tokens: vec![*token],
        origins: vec![*origin],
        drafted: if i == 0 { all.drafted } else { 0 },
        said,
        logprobs: all.logprobs.get(i).cloned().into_iter().collect(),
        ..Committed::default()
    })
    .collect()
}

/// The text up to each of `ends`, the last of which stands for the end of all.
fn cut(said: &Said, ends: &[u32]) -> Vec<Said> {
    let mut parts = said.parts();
    let mut rest = parts.next();
    let mut at = 0;
    let one = |(i, end): (usize, &u32)| {
        let end = if i + 1 == ends.len() { said.text.len() } else { *end as usize };
        let mut piece = Said::default();
        while at < end
            && let Some((channel, text)) = rest
        {
            let (head, tail) = text.split_at(text.len().min(end - at));
            let from = piece.text.len();
            piece.text.push_str(head);
            // Without runs nobody asks whose it is.
            if !said.runs.is_empty() {
                piece.mark(channel, from);
            }
            at += head.len();
            rest = if tail.is_empty() { parts.next() } else { Some((channel, tail)) };
        }
        piece
    };
    ends.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use engine::api::Origin;
    use engine::channels::{Channel, Run};
    use engine::ids::TokenId;

    use super::*;

    #[test]
    fn pieces_join_to_the_whole_with_its_channels() {
        let run = |channel, bytes| Run { channel, bytes };
        let runs = vec![run(Channel::Reasoning, 3), run(Channel::Marker, 1), run(Channel::Content, 4)];
        for runs in [runs, Vec::new()] {
            let said = Said { text: "abc|\u{20ac}d".to_owned(), runs };
            for ends in [[0, 0, 0, 0], [1, 3, 4, 7], [2, 4, 4, 8], [0, 8, 8, 8]] {
                let mut delta = Committed {
                    tokens: (0..4).map(TokenId).collect(),
                    origins: vec![Origin::Target, Origin::Mtp, Origin::Suffix, Origin::Target],
                    drafted: 5,
                    said: said.clone(),
                    cuts: ends.to_vec(),
                    ..Committed::default()
                };
                let pieces = by_token(&delta);
                let mut whole = Committed::default();
                for (i, piece) in pieces.iter().enumerate() {
                    assert_eq!(piece.tokens, [TokenId(i as u32)]);
                    let end = if i == 3 { 8 } else { ends[i] as usize };
                    let start = if i == 0 { 0 } else { ends[i - 1] as usize };
                    assert_eq!(piece.said.text, said.text[start..end], "{ends:?}");
                    assert_eq!(
                        piece.said.runs.iter().map(|r| r.bytes).sum::<usize>() > 0,
                        !said.runs.is_empty() && end > start
                    );
                    whole.tokens.extend(&piece.tokens);
                    whole.origins.extend(&piece.origins);
                    whole.drafted += piece.drafted;
                    whole.said.append(&piece.said);
                }
                delta.cuts.clear();
                assert_eq!(whole, delta, "{ends:?}");
            }
        }
    }
}
