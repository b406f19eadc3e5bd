use super::*;

/// The worked case of the HTTP interface's description: four windows of three drafts, of which 0, 1, 3 and, ended by an
/// end token, 2 are committed.
fn worked() -> Counters {
    let counts =
        DraftCounts { proposed: 13, trimmed: 1, drafted: 12, accepted: 6, rejected: 2, unreached: 3, discarded: 1 };
    let report = Report {
        completion_tokens: 10,
        steps: 4,
        windows: 4,
        first: 1,
        bonus: 3,
        total: counts,
        suffix: counts,
        suffix_lookups: engine::api::SuffixCounts { lookups: 4, hits: 4, ..Default::default() },
        width_hist: vec![0, 0, 0, 4],
        accepted_hist: vec![1, 1, 1, 1],
        per_position: vec![(4, 3), (4, 2), (4, 1), (0, 0)],
        tail_windows: 4,
        tail_tested: 3,
        tail_drafted_tested: 8,
        tail_accepted: 2,
        ..Report::default()
    };
    Counters::of(&report, Strategy::NgramSuffix)
}

#[test]
fn counters_hold_their_identities_alone_and_added() {
    let one = worked();
    one.check().unwrap();
    let mut two = one.clone();
    two.add(&one);
    two.check().unwrap();
    assert_eq!((two.total.drafted_n, two.width_hist[&3], two.per_position[1].accepted), (24, 8, 4));
    assert_eq!(two.tail, TailCounters { windows_n: 8, tested_n: 6, drafted_tested_n: 16, accepted_n: 4 });
    assert_eq!(two.shares(), one.shares());
    let shares = one.shares();
    assert_eq!(shares.mean_accepted, Some(1.5));
    assert_eq!(shares.accept_length, Some(2.25));
    assert_eq!((shares.suffix_hit_rate, shares.mtp_tested_rate), (Some(1.0), None));
    assert_eq!((shares.tokens_per_pass, shares.tail_rate), (Some(2.0), Some(0.25)));
}

/// The object that a server answers with, which is read as it stands.
#[test]
fn a_servers_answer_is_read_as_counters() {
    let mut json = serde_json::to_value(worked()).unwrap();
    json["strategy"] = "ngram-suffix".into();
    json["proposers"]["suffix"]["lookup_us"] = 7.into();
    json["clamps"] = serde_json::json!([]);
    assert_eq!(serde_json::from_value::<Counters>(json.clone()).unwrap(), worked());
    assert_eq!(serde_json::from_str::<Counters>(&json.to_string()).unwrap(), worked());
}

#[test]
fn every_identity_can_fail() {
    type Change = fn(&mut Counters);
    let changes: [(&str, Change); 14] = [
        ("1, ", |c| c.completion_tokens += 1),
        ("2, drafted of suffix", |c| c.proposers.get_mut("suffix").unwrap().drafts.unreached_n += 1),
        ("2, drafted of all", |c| c.total.rejected_n -= 1),
        ("2, proposed", |c| c.proposers.get_mut("suffix").unwrap().drafts.trimmed_n += 1),
        ("2, the proposers together", |c| _ = c.proposers.remove("suffix")),
        ("3, steps by width", |c| _ = c.width_hist.insert(0, 1)),
        ("3, steps", |c| c.plain_n += 1),
        ("3, drafts by width", |c| c.width_hist = BTreeMap::from([(2, 4)])),
        ("4, windows", |c| _ = c.accepted_hist.insert(0, 2)),
        ("4, accepted", |c| c.accepted_hist = BTreeMap::from([(2, 4)])),
        ("5, drafted", |c| c.per_position[0].drafted += 1),
        ("5, accepted by", |c| c.per_position[0].accepted += 1),
        ("5, position 1", |c| {
            c.per_position[0].accepted -= 2;
            c.per_position[1].accepted += 2;
        }),
        ("look-ups", |c| c.proposers.get_mut("suffix").unwrap().misses_n += 1),
    ];
    for (name, change) in changes {
        let mut counters = worked();
        change(&mut counters);
        let error = counters.check().unwrap_err();
        assert!(error.starts_with(name), "{name}: {error}");
    }
    // More rejections than windows, with everything else in step.
    let mut counters = Counters { windows_n: 1, steps_n: 1, bonus_n: 1, completion_tokens: 1, ..Counters::default() };
    counters.total = DraftCounters { proposed_n: 2, drafted_n: 2, rejected_n: 2, ..Default::default() };
    counters.proposers.insert("mtp".into(), ProposerCounters { drafts: counters.total, ..Default::default() });
    counters.width_hist = BTreeMap::from([(2, 1)]);
    counters.accepted_hist = BTreeMap::from([(0, 1)]);
    counters.per_position = vec![Position { drafted: 2, ..Default::default() }];
    assert!(counters.check().unwrap_err().starts_with("6, "));
}
