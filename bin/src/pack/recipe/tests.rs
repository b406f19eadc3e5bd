use super::*;

const OUTPUT: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn arm(strategy: &str, speed: f64, settings: serde_json::Value) -> serde_json::Value {
    serde_json::json!({"strategy": strategy, "settings": settings, "decode_tok_s": {"median": speed, "low": 1.0},
        "output_sha256": OUTPUT, "runs": 5})
}

fn read(arms: Vec<serde_json::Value>, head: bool) -> Result<Recipe, PackError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let json = serde_json::json!({"schema": SCHEMA, "arms": arms, "host": "h"});
    std::fs::write(&path, json.to_string()).unwrap();
    Recipe::of_bench(&path, head)
}

fn plain(strategy: &str, speed: f64) -> serde_json::Value {
    arm(strategy, speed, serde_json::json!({}))
}

#[test]
fn the_fastest_arm_with_the_output_of_off_is_the_default() {
    let wide = serde_json::json!({"suffix_min": 5, "window": {"policy": "fixed", "initial": 8, "max": 8}});
    let mut void = plain("mtp-suffix", 99.0);
    void["output_sha256"] = "0".repeat(64).into();
    let arms = vec![
        plain("off", 10.0),
        plain("off", 9.0),
        plain("mtp", 12.0),
        arm("mtp-suffix", 15.0, wide),
        plain("mtp-suffix", 14.0),
        void,
    ];
    let recipe = read(arms, true).unwrap();
    assert_eq!(recipe.default, Strategy::MtpSuffix);
    assert_eq!(recipe.evidence.as_ref().unwrap().path, "result.json");
    for part in ["mtp-suffix 15.00 tok/s", "off 10.00 tok/s", "1.50 times", "of 3 measured", "1 arms with another"] {
        assert!(recipe.reason.contains(part), "{} does not say {part}", recipe.reason);
    }
    let names: Vec<_> = recipe.strategies.iter().map(|s| s.strategy.name()).collect();
    assert_eq!(names, ["mtp", "ngram-suffix", "mtp-suffix"]);
    let both = recipe.strategies[2];
    assert_eq!((both.suffix_min, both.policy, both.window_max, both.suffix_tokens), (5, WindowPolicy::Fixed, 8, 8));

    // Proposers that differ are two.
    let speculative = recipe.generation(Some(4)).speculative_decoding.unwrap();
    let names: Vec<_> = speculative.proposers.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["mtp", "suffix", "suffix-2"]);
    assert_eq!(speculative.strategies.get("mtp-suffix").unwrap().extender.as_deref(), Some("suffix-2"));
    assert_eq!(speculative.strategies.get("mtp").unwrap().proposer.as_deref(), Some("mtp"));
}

/// What `engine-bench replay` says of an arm is heard: the last round's output may be that of `off`, and another was not.
#[test]
fn arms_that_do_not_count_win_nothing() {
    let with = |field: &str, value: serde_json::Value| {
        let mut arm = plain("mtp", 99.0);
        arm[field] = value;
        arm
    };
    let void = || serde_json::json!({"session": "s", "turn": 1, "position": 2, "expected": "a", "found": "b"});
    let recipe = read(vec![plain("off", 10.0), plain("ngram-suffix", 12.0), with("void", void())], true).unwrap();
    assert_eq!(recipe.default, Strategy::NgramSuffix);
    assert!(recipe.reason.contains("1 arms with another output were left out"), "{}", recipe.reason);
    let mut failed = with("failed", "the server went away".into());
    failed["decode_tok_s"]["median"] = 0.0.into();
    let recipe = read(vec![plain("off", 10.0), plain("ngram-suffix", 12.0), failed], true).unwrap();
    assert_eq!(recipe.default, Strategy::NgramSuffix);
    assert!(recipe.reason.contains("of 1 measured"), "{}", recipe.reason);
    let recipe = read(vec![plain("off", 10.0), with("void", serde_json::Value::Null)], true).unwrap();
    assert_eq!(recipe.default, Strategy::Mtp, "null is not void");
    for field in ["void", "failed"] {
        let mut off = plain("off", 10.0);
        off[field] = void();
        let error = read(vec![off, plain("mtp", 12.0)], true).unwrap_err();
        assert!(error.to_string().contains("no arm off that counts"), "{error}");
    }
}

#[test]
fn off_may_be_the_fastest_and_a_strategy_is_the_default_all_the_same() {
    // The least loss, with both numbers.
    let recipe = read(vec![plain("off", 10.0), plain("mtp", 7.0), plain("ngram-suffix", 8.0)], true).unwrap();
    assert_eq!((recipe.default, recipe.off_is_fastest), (Strategy::NgramSuffix, true));
    for part in
        ["off was fastest", "off 10.00 tok/s", "ngram-suffix 8.00 tok/s loses least (0.80 times)", "of 2 measured"]
    {
        assert!(recipe.reason.contains(part), "{} does not say {part}", recipe.reason);
    }
    // As fast as off is not faster, and a hair above it is.
    let even = read(vec![plain("off", 10.0), plain("mtp", 10.0)], true).unwrap();
    assert!(even.off_is_fastest && even.reason.contains("1.00 times"), "{}", even.reason);
    let above = read(vec![plain("off", 10.0), plain("mtp", 10.001)], true).unwrap();
    assert!(!above.off_is_fastest && !above.reason.contains("off was fastest"), "{}", above.reason);
}

#[test]
fn results_that_decide_nothing_are_refused() {
    let mut other = plain("mtp", 12.0);
    other["output_sha256"] = "1".repeat(64).into();
    let with = |settings: serde_json::Value| vec![plain("off", 10.0), arm("mtp-suffix", 12.0, settings)];
    for (arms, head, word) in [
        (vec![plain("mtp", 12.0)], true, "no arm off"),
        (vec![plain("off", 10.0), other], true, "no arm that drafts has the output of off"),
        (vec![plain("off", 10.0), plain("mtp", 12.0)], false, "no MTP block"),
        (vec![plain("off", 10.0), plain("mtp", 0.0)], true, "median of 0"),
        (vec![plain("off", 10.0), plain("mtp", 1e308)], true, "median of 1e308"),
        (vec![plain("off", 1e-300), plain("mtp", 1.0)], true, "median of 1e-300"),
        (vec![plain("off", 10.0), plain("fast", 12.0)], true, "is no result of schema slipstream-bench/1"),
        (with(serde_json::json!({"mtp_tokens": 16})), true, "mtp_tokens at most 15"),
        (with(serde_json::json!({"window": {"max": 64}})), true, "window.max at most 63"),
        (with(serde_json::json!({"window": {"max": 0}})), true, "drafts nothing"),
        (with(serde_json::json!({"suffix_min": 9, "suffix_max": 8})), true, "--suffix-max 8"),
    ] {
        let error = read(arms, head).unwrap_err();
        assert!(error.to_string().contains(word) && error.code() == 3, "{error} does not say {word}");
    }
}

#[test]
fn the_built_in_recipe_knows_heads() {
    assert_eq!(Recipe::built_in(true).default, Strategy::MtpSuffix);
    let recipe = Recipe::built_in(false);
    assert_eq!(recipe.default, Strategy::NgramSuffix);
    let speculative = recipe.generation(None).speculative_decoding.unwrap();
    assert_eq!(speculative.strategies.iter().map(|(id, _)| id).collect::<Vec<_>>(), ["ngram-suffix"]);
}
