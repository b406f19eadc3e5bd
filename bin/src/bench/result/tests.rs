use super::*;

#[test]
fn rounds_and_values_are_summed_up() {
    assert_eq!(Spread::of(vec![]), Spread::default());
    let spread = Spread::of(vec![3.0, 1.0, 2.0]);
    assert_eq!((spread.median, spread.min, spread.max, spread.rounds), (2.0, 1.0, 3.0, vec![3.0, 1.0, 2.0]));
    assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);

    assert_eq!(Quantiles::of(&mut []), Quantiles::default());
    let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
    let q = Quantiles::of(&mut values);
    assert_eq!((q.n, q.mean, q.p50, q.p95, q.p99, q.max), (200, 100.5, 100.0, 190.0, 198.0, 200.0));
    assert_eq!(Quantiles::of(&mut [7.0]).p99, 7.0);
}

#[test]
fn lengths_fall_into_their_bins() {
    let mut bins = Bins::default();
    for (length, name) in
        [(0, "0"), (1, "1"), (2, "2"), (3, "3"), (4, "4-7"), (7, "4-7"), (8, "8-15"), (15, "8-15"), (16, "16-31")]
    {
        let before = bins.0.get(name).copied().unwrap_or_default();
        bins.add(length);
        assert_eq!(bins.0[name], before + 1, "{length}");
    }
    for (length, name) in [(31, "16-31"), (32, "32-63"), (63, "32-63"), (64, "64-")] {
        let before = bins.0.get(name).copied().unwrap_or_default();
        bins.add(length);
        assert_eq!(bins.0[name], before + 1, "{length}");
    }
    let mut twice = bins.clone();
    twice.merge(&bins);
    assert_eq!(twice.0["4-7"], 4);
    assert_eq!(twice.in_order().map(|(_, n)| n).sum::<u64>(), 26);
    assert_eq!(twice.in_order().next(), Some(("0", 2)));
}

/// Two sources, of which either may have the longer windows.
#[test]
fn lengths_of_sources_are_added_position_by_position() {
    let one = |positions: &[(u64, u64, u64)], length: usize| {
        let position =
            |&(drafted, tested, accepted): &(u64, u64, u64)| Position { drafted, tested: Some(tested), accepted };
        let mut lengths = Lengths { per_position: positions.iter().map(position).collect(), ..Lengths::default() };
        [&mut lengths.candidate_hist, &mut lengths.tested_hist, &mut lengths.accepted_hist]
            .into_iter()
            .for_each(|hist| hist.add(length));
        lengths
    };
    let (short, long) = (one(&[(5, 4, 3)], 1), one(&[(9, 8, 7), (6, 5, 2)], 2));
    for (first, second) in [(&short, &long), (&long, &short)] {
        let mut both = first.clone();
        both.merge(second);
        assert_eq!(both.per_position, one(&[(14, 12, 10), (6, 5, 2)], 1).per_position);
        for hist in [&both.candidate_hist, &both.tested_hist, &both.accepted_hist] {
            assert_eq!(hist.0, BTreeMap::from([("1".to_owned(), 1), ("2".to_owned(), 1)]));
        }
    }
}

#[test]
fn a_result_is_read_as_it_was_written() {
    let arm = Arm {
        label: "mtp-suffix".into(),
        strategy: Some(Strategy::MtpSuffix),
        settings: Settings { mtp_tokens: Some(3), ..Settings::default() },
        decode_tok_s: Spread::of(vec![2.0, 4.0, 3.0]),
        output_sha256: Some(Sha256::of(b"ids")),
        pass_ms: BTreeMap::from([(4, Quantiles::of(&mut [1.5]))]),
        void: Some(Void { session: "s".into(), position: 3, ..Void::default() }),
        ..Arm::default()
    };
    let result = BenchResult {
        schema: SCHEMA.into(),
        arms: vec![arm.clone()],
        workloads: vec![Workload { source: "aider".into(), arms: vec![arm] }],
        cost: Some(CostFacts { rows_ms: BTreeMap::from([(1, 2.0)]), ..CostFacts::default() }),
        ..BenchResult::default()
    };
    let text = serde_json::to_string(&result).unwrap();
    assert_eq!(serde_json::from_str::<BenchResult>(&text).unwrap(), result);
}

/// Figures are compared with `==` after they went through a file: no last digit is lost on the way, whatever the figure.
#[test]
fn figures_keep_their_last_digit() {
    let mut state = 7u64;
    let mut any = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // As times and rates are: from nanoseconds to billions.
        (state >> 11) as f64 / (1u64 << 53) as f64 * 10f64.powi((state % 19) as i32 - 9)
    };
    let rounds: Vec<f64> = (0..20_000).map(|_| any()).collect();
    let arms = vec![Arm { decode_tok_s: Spread::of(rounds), ..Arm::default() }];
    let result = BenchResult { schema: SCHEMA.into(), arms, ..BenchResult::default() };
    let text = serde_json::to_string(&result).unwrap();
    let read: BenchResult = serde_json::from_str(&text).unwrap();
    let figures = |result: &BenchResult| result.arms[0].decode_tok_s.rounds.clone();
    let lost = figures(&result).iter().zip(figures(&read)).filter(|(a, b)| **a != *b).count();
    assert_eq!(lost, 0, "of 20000 figures");
    // By values, too, as pages and tables read them.
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::from_value::<BenchResult>(value.clone()).unwrap(), result);
    assert_eq!(value.to_string(), text);
}
