use serde_json::json;

use super::*;

/// A small record that is right.
fn record() -> Provenance {
    let digest = Sha256::of(b"target");
    let file = |path: &str| FileEntry { path: path.into(), byte_size: 3, sha256: Some(Sha256::of(b"abc")) };
    let source = |id: &str, role| Source {
        id: id.into(),
        role,
        repo: "org/name".into(),
        revision: "0".repeat(40),
        license: None,
        container: Some(Container::Gguf),
        quant: None,
        declares: Some(Declares { block_count: Some(4), ..Declares::default() }),
        files: vec![file("a.gguf")],
        tensor_tree_sha256: (role == Role::Target).then_some(digest),
    };
    let origin = |pattern: &str, source: &str, count| TensorOrigin {
        pattern: pattern.into(),
        source: source.into(),
        transform: Transform::Verbatim,
        count,
        bytes: None,
        tensor_tree_sha256: Some(digest),
    };
    Provenance {
        schema: Schema::V1,
        sources: vec![source("target", Role::Target), source("head", Role::MtpHead)],
        tools: vec![Tool {
            id: "composer".into(),
            kind: ToolKind::Composer,
            name: "t".into(),
            repo: None,
            revision: "1".into(),
            version: None,
            abi: None,
        }],
        steps: vec![Step {
            id: "compose".into(),
            tool: "composer".into(),
            op: Op::Compose,
            inputs: vec!["target".into(), "head".into()],
            params: None,
            kv_changes: vec![KvChange { key: "a.block_count".into(), ty: None, from: Some(json!(4)), to: json!(5) }],
            tensor_rules: vec![TensorRule {
                pattern: "token_embd.weight".into(),
                action: RuleAction::Drop,
                to: None,
                from_type: None,
                to_type: None,
                reason: Some("the target's own is used".into()),
                count: 1,
            }],
            outputs: vec![file("b.gguf")],
        }],
        tensor_origins: vec![origin("blk.0.*", "target", 2), origin("blk.1.*", "head", 1)],
        runtime_components: Vec::new(),
        invariants: Invariants {
            target_tensors_byte_identical: true,
            target_tensor_tree_sha256: Some(digest),
            tokenizer_sha256: None,
            mtp_block_indices: vec![1],
        },
        generation_recipe: None,
    }
}

#[test]
fn a_record_survives_its_text() {
    let record = record();
    assert!(record.check().is_empty(), "{}", record.check());
    assert_eq!(Provenance::parse(record.to_json().as_bytes(), "p").unwrap(), record);
    assert!(record.to_json().contains("\"schema\": \"package-provenance/1\""));
    assert_eq!(record.unhashed(), Vec::<String>::new());
}

#[test]
fn fields_that_are_unknown_missing_or_of_another_schema_are_refused() {
    let text = record().to_json();
    let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    let refused = |value: &serde_json::Value, part: &str| {
        let error = Provenance::parse(value.to_string().as_bytes(), "p.json").unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("p.json"), "`{error}` does not say `{part}`");
    };
    for key in ["schema", "sources", "tools", "steps", "tensor_origins", "invariants"] {
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(key);
        refused(&without, key);
    }
    let mut more = whole.clone();
    more["steps"][0]["extra"] = json!(1);
    refused(&more, "extra");
    let mut other = whole.clone();
    other["schema"] = json!("package-provenance/2");
    refused(&other, "package-provenance/2");
    let mut digest = whole.clone();
    digest["sources"][0]["files"][0]["sha256"] = json!("ABC");
    refused(&digest, "no SHA-256 digest");
}

#[test]
fn contradictions_are_named() {
    let wrong = |change: fn(&mut Provenance), part: &str| {
        let mut record = record();
        change(&mut record);
        let error = Provenance::parse(record.to_json().as_bytes(), "p").unwrap_err().to_string();
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    };
    wrong(|r| r.sources[1].id = "target".into(), "the id target is there twice");
    wrong(|r| r.tools[0].id = "a b".into(), "\"a b\" is no id");
    wrong(|r| r.sources[1].role = Role::Target, "2 sources have the role target");
    wrong(|r| r.sources[0].revision = "main".into(), "revision \"main\"");
    wrong(|r| r.sources[0].files.clear(), "no files");
    wrong(|r| r.steps.clear(), "no steps");
    wrong(|r| r.steps[0].tool = "other".into(), "names tool other");
    wrong(|r| r.steps[0].inputs.push("later".into()), "takes later");
    wrong(|r| r.steps[0].tensor_rules[0].count = 0, "took no tensor");
    wrong(|r| r.tensor_origins.clear(), "tensor_origins is empty");
    wrong(|r| r.tensor_origins[0].source = "other".into(), "come from other");
    wrong(|r| r.tensor_origins[0].count = 0, "are none");
    wrong(|r| r.invariants.target_tensor_tree_sha256 = Some(Sha256::of(b"x")), "the target's own is");
}

#[test]
fn origins_take_every_tensor_once() {
    let names = ["blk.0.a", "blk.0.b", "blk.1.a"];
    assert!(record().check_tensors(names).is_empty());
    let says = |record: &Provenance, names: &[&str], part: &str| {
        let faults = record.check_tensors(names.iter().copied()).to_string();
        assert!(faults.contains(part), "`{faults}` does not say `{part}`");
    };
    says(&record(), &names[..2], "tensors blk.1.*: found 0, expected 1");
    says(&record(), &["blk.0.a", "blk.0.b", "blk.1.a", "output.weight"], "output.weight has no origin");
    let mut twice = record();
    twice.tensor_origins[1].pattern = "*.a".into();
    says(&twice, &names, "blk.0.a has two origins");
}

#[test]
fn a_record_without_digests_is_right_and_says_so() {
    let mut record = record();
    record.sources[0].files[0].sha256 = None;
    record.sources[0].tensor_tree_sha256 = None;
    record.invariants.target_tensor_tree_sha256 = None;
    record.tensor_origins[0].tensor_tree_sha256 = None;
    let read = Provenance::parse(record.to_json().as_bytes(), "p").unwrap();
    assert_eq!(read.unhashed(), ["a.gguf", "tensors blk.0.*", "all tensors of the target"]);
}

#[test]
fn patterns() {
    for (pattern, name, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("blk.1.*", "blk.10.x", false),
        ("*", "", true),
        ("*.weight", "a.weight", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c", false),
        ("ab*b", "ab", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn canonical_json_is_sorted_and_tight() {
    let value = json!({"b": [1, {"z": null, "a": "x\""}], "a": 1.5});
    assert_eq!(canonical(&value), r#"{"a":1.5,"b":[1,{"a":"x\"","z":null}]}"#);
}

/// A record that is longer than any is one short line, and costs no more than reading it.
#[test]
fn a_record_beyond_all_bounds_is_refused_in_a_line() {
    let mut many = record();
    many.tensor_origins = vec![many.tensor_origins[0].clone(); 10_001];
    assert_eq!(many.check().0, ["there are 10001 tensor_origins, expected at most 10000"]);
    let mut sources = record();
    sources.sources = vec![sources.sources[1].clone(); 10_001];
    assert_eq!(sources.check().0, ["there are 10001 sources, expected at most 10000"]);
    let mut long = record();
    long.tensor_origins[0].pattern = "*".repeat(1025);
    assert!(long.check().0[0].starts_with("a name or pattern has 1025 bytes"));
    // Within them, not all that is wrong is listed.
    let mut wrong = record();
    let empty = Source { files: Vec::new(), revision: "x".repeat(5000), ..wrong.sources[1].clone() };
    wrong.sources.extend((0..2000).map(|i| Source { id: format!("s{i}"), ..empty.clone() }));
    let text = wrong.check().to_string();
    assert!(text.ends_with("; and 3984 more") && text.len() < 10_000, "{text}");
}
