use super::{NgramHash, NgramHead, gate_values, signed_root};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::exp::sigmoid;
use crate::test_noise::{Noise, bits};

/// Constants of the released model, shortened to two heads an n-gram.
fn hash() -> NgramHash {
    NgramHash {
        end_token: 248_044,
        multipliers: vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071],
        heads: [(20_000_003, 0), (20_000_023, 20_000_003), (20_000_033, 40_000_026), (20_000_047, 60_000_059)]
            .map(|(size, offset)| NgramHead { size, offset })
            .to_vec(),
        heads_per_ngram: 2,
    }
}

fn rows(hash: &NgramHash, text: &[u32]) -> Vec<u64> {
    let mut rows = vec![u64::MAX; hash.heads.len()];
    let (&token, before) = text.split_last().unwrap();
    hash.rows(token, |j| before.len().checked_sub(j).map(|i| before[i]), &mut rows);
    rows
}

/// The formula with the context written out, in 128 bits.
fn expected(hash: &NgramHash, context: [u32; 3]) -> Vec<u64> {
    let term = |j: usize| {
        let product = u128::from(context[j]) * u128::from(hash.multipliers[j]);
        assert!(product < 1 << 63, "by construction");
        product as u64
    };
    let (two, three) = (term(0) ^ term(1), term(0) ^ term(1) ^ term(2));
    let row = |mixed: u64, head: &NgramHead| mixed % head.size + head.offset;
    vec![row(two, &hash.heads[0]), row(two, &hash.heads[1]), row(three, &hash.heads[2]), row(three, &hash.heads[3])]
}

#[test]
fn a_text_names_its_rows_and_ends_cut_the_context() {
    let hash = hash();
    let end = hash.end_token;
    assert_eq!(rows(&hash, &[7, 100, 248_319]), expected(&hash, [248_319, 100, 7]));
    assert_eq!(rows(&hash, &[1, 2, 3, 4, 5]), expected(&hash, [5, 4, 3]), "older tokens do not matter");
    // Missing predecessors are end tokens, and so is everything before an end token.
    assert_eq!(rows(&hash, &[9]), expected(&hash, [9, end, end]));
    assert_eq!(rows(&hash, &[8, 9]), expected(&hash, [9, 8, end]));
    assert_eq!(rows(&hash, &[7, end, 9]), expected(&hash, [9, end, end]));
    assert_eq!(rows(&hash, &[end, 8, 9]), expected(&hash, [9, 8, end]));
    // The token itself does not cut.
    assert_eq!(rows(&hash, &[7, 8, end]), expected(&hash, [end, 8, 7]));
    assert_ne!(rows(&hash, &[7, 8, end]), expected(&hash, [end, end, end]));
}

/// Rows and predecessors beyond what the last n-gram needs are never asked for.
#[test]
fn every_row_is_inside_its_head_and_no_more_than_the_history_is_read() {
    let hash = hash();
    let mut noise = Noise::new(70);
    assert_eq!((hash.ngram_size(), hash.history()), (3, 2));
    for _ in 0..2000 {
        let token = noise.below(248_320) as u32;
        let mut rows = [0; 4];
        hash.rows(token, |j| [Some(5), Some(token / 2)].get(j - 1).copied().expect("within the history"), &mut rows);
        for (row, head) in rows.iter().zip(&hash.heads) {
            assert!((head.offset..head.offset + head.size).contains(row));
        }
    }
}

#[test]
fn values_are_gated_per_stream() {
    let mut noise = Noise::new(71);
    for (streams, width) in [(4, 64), (2, 33), (3, 7), (4, 2560)] {
        let row = streams * width;
        let (mut key, query, value) = (noise.vec(4 * row), noise.vec(4 * row), noise.vec(4 * width));
        key[..width].fill(0.0); // a score of exactly 0: the gate is a half
        key[row..row + width].iter_mut().zip(&query[row..]).for_each(|(k, q)| *k = 1e-7 * q); // and one in the floor
        let mut expected = Vec::new();
        for (i, (key, query)) in key.chunks(width).zip(query.chunks(width)).enumerate() {
            let exact: f64 = key.iter().zip(query).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
            let exact = exact / (width as f64).sqrt();
            let signed = if exact == 0.0 { 0.0 } else { exact.signum() * exact.abs().max(1e-6).sqrt() };
            for &v in &value[i / streams * width..][..width] {
                expected.push(f64::from(v) / (1.0 + (-signed).exp()));
            }
        }
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            for threads in 1..=3 {
                let mut dst = vec![f32::NAN; 4 * row];
                gate_values(&Pool::new(threads), isa, &key, &query, &value, width, &mut dst);
                assert!(dst.iter().zip(&expected).all(|(&x, y)| (f64::from(x) - y).abs() < 2e-6), "{streams}, {width}");
                assert_eq!(&bits(&dst), first.get_or_insert_with(|| bits(&dst)), "{isa:?}, {threads} threads");
            }
        }
        for r in 0..4 {
            let at = r * row..(r + 1) * row;
            let mut dst = vec![f32::NAN; row];
            let value = &value[r * width..][..width];
            gate_values(&Pool::new(1), Isa::best(), &key[at.clone()], &query[at.clone()], value, width, &mut dst);
            assert_eq!(bits(&dst), first.as_ref().unwrap()[at], "row {r} alone");
        }
    }
}

#[test]
fn a_fault_of_a_score_is_not_hidden() {
    assert!(signed_root(f32::NAN).is_nan());
    assert_eq!((signed_root(0.0), signed_root(-4.0), signed_root(9.0)), (0.0, -2.0, 3.0));
    assert_eq!(signed_root(-1e-9), -1e-3);
    assert_eq!(sigmoid(signed_root(-0.0)), 0.5);
}
