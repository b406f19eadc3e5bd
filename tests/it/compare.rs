//! `engine-bench compare`: what is more than noise, what is refused, and how it ends.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use engine::api::Strategy;
use engine_bin::bench::compare::{self, CompareError, CompareFlags, Comparison, Line, Verdict};
use engine_bin::bench::result::{Arm, BenchResult, CostFacts, SCHEMA, Spread, TraceFacts, Void, Workload};
use engine_io::digest::Sha256;
use serde_json::Value;
use tempfile::TempDir;

use crate::serve::process::program;

/// Rounds around a speed, 1 % to either side.
fn rounds(speed: f64) -> Spread {
    Spread::of([0.99, 1.0, 1.01, 0.995, 1.005].map(|factor| factor * speed).to_vec())
}

fn arm(strategy: Strategy, speed: f64) -> Arm {
    Arm {
        label: strategy.name().into(),
        strategy: Some(strategy),
        decode_tok_s: rounds(speed),
        output_sha256: Some(Sha256::of(b"ids")),
        speedup: Some(speed / 100.0),
        ..Arm::default()
    }
}

/// Arms of these speeds, over all and of one workload.
fn result(off: f64, suffix: f64, mtp: f64) -> BenchResult {
    let arms = vec![arm(Strategy::Off, off), arm(Strategy::NgramSuffix, suffix), arm(Strategy::Mtp, mtp)];
    let mut result = BenchResult {
        schema: SCHEMA.into(),
        mode: "synthetic".into(),
        traces: vec![TraceFacts { source: "aider".into(), outputs_n: 4, output_tokens: 60, ..TraceFacts::default() }],
        workloads: vec![Workload { source: "aider".into(), arms: arms.clone() }],
        arms,
        ..BenchResult::default()
    };
    (result.model.name, result.model.tensor_tree_sha256) = ("m.gguf".into(), Some(Sha256::of(b"tensors")));
    (result.run.repeats, result.run.threads, result.run.accept_rates) = (5, 2, vec![0.8]);
    result
}

struct Files {
    folder: TempDir,
}

impl Files {
    fn new(a: &BenchResult, b: &BenchResult) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, result) in [("a.json", a), ("b.json", b)] {
            fs::write(folder.path().join(name), serde_json::to_vec(result).unwrap()).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn flags(&self) -> CompareFlags {
        CompareFlags { a: self.path("a.json"), b: self.path("b.json"), force: false, fail_slower: None, json: false }
    }

    fn compare(&self) -> Result<Comparison, CompareError> {
        compare::run(&self.flags())
    }
}

fn line<'a>(comparison: &'a Comparison, workload: Option<&str>, arm: &str) -> &'a Line {
    let found = comparison.lines.iter().find(|line| line.workload.as_deref() == workload && line.arm == arm);
    found.unwrap_or_else(|| panic!("no line of {workload:?} {arm}"))
}

/// Two in a hundred between rounds hide a difference of one in a hundred, and not one of ten.
#[test]
fn differences_are_told_from_noise() {
    let (a, b) = (result(100.0, 150.0, 120.0), result(100.5, 165.0, 108.0));
    let files = Files::new(&a, &b);
    let comparison = files.compare().unwrap();
    assert_eq!(comparison.lines.len(), 6);
    for workload in [None, Some("aider")] {
        let of = |arm: &str| line(&comparison, workload, arm);
        assert_eq!(of("off").verdict, Verdict::WithinNoise);
        assert_eq!((of("ngram-suffix").verdict, of("mtp").verdict), (Verdict::Faster, Verdict::Slower));
        let suffix = of("ngram-suffix");
        assert!((suffix.ratio.unwrap() - 1.1).abs() < 1e-9, "{suffix:?}");
        let (low, high) = suffix.ratio_interval.unwrap();
        assert!(low > 1.07 && low < 1.1 && high > 1.1 && high < 1.13, "{low} {high}");
        assert_eq!((suffix.speedup.a, suffix.speedup.b), (Some(1.5), Some(1.65)));
    }
    // The same file twice, and with its sides changed.
    let same = Files::new(&a, &a).compare().unwrap();
    assert!(same.lines.iter().all(|line| line.verdict == Verdict::WithinNoise && line.ratio == Some(1.0)));
    let back = Files::new(&b, &a).compare().unwrap();
    assert_eq!(line(&back, None, "mtp").verdict, Verdict::Faster);
    // One round tells nothing of noise.
    let mut once = b;
    once.arms[1].decode_tok_s = Spread::of(vec![300.0]);
    let comparison = Files::new(&a, &once).compare().unwrap();
    let suffix = line(&comparison, None, "ngram-suffix");
    assert_eq!((suffix.verdict, suffix.ratio, suffix.ratio_interval), (Verdict::NoRepeats, Some(2.0), None));
}

/// What does not count is not compared, and what is on one side is said to be.
#[test]
fn void_and_missing_arms_are_named() {
    let a = result(100.0, 150.0, 120.0);
    let mut b = a.clone();
    b.arms[0].failed = Some("gone".into());
    b.arms[1].void = Some(Void::default());
    b.arms[2].label = "mtp, deeper".into();
    b.workloads[0].source = "tau".into();
    b.traces[0].source = "tau".into();
    let files = Files::new(&a, &b);
    assert!(
        matches!(files.compare(), Err(CompareError::Strangers { against, .. }) if against == ["workloads: aider against tau"])
    );
    let comparison = compare::run(&CompareFlags { force: true, ..files.flags() }).unwrap();
    for arm in ["off", "ngram-suffix"] {
        assert_eq!(line(&comparison, None, arm).verdict, Verdict::DoesNotCount, "{arm}");
    }
    assert_eq!(line(&comparison, None, "mtp").verdict, Verdict::Missing);
    assert_eq!(line(&comparison, None, "mtp, deeper").decode_tok_s.b, Some(120.0));
    assert_eq!(line(&comparison, Some("tau"), "off").verdict, Verdict::Missing);
    assert_eq!(comparison.against.len(), 1, "what was forced is still told");
    let text = compare::text(&comparison);
    assert!(text.contains("not of the same question: workloads: aider against tau") && text.contains("void or failed"));
}

#[test]
fn results_of_different_questions_are_refused() {
    let a = BenchResult { cost: Some(CostFacts::default()), ..result(100.0, 150.0, 120.0) };
    type Change = fn(&mut BenchResult);
    let rows: [(&str, Change); 7] = [
        ("mode: synthetic against live", |b| b.mode = "live".into()),
        ("model: m.gguf (tensors", |b| b.model.tensor_tree_sha256 = Some(Sha256::of(b"others"))),
        ("model: m.gguf against n.gguf", |b| (b.model.name, b.model.tensor_tree_sha256) = ("n.gguf".into(), None)),
        ("prompts of aider: 4 answers of 60 tokens", |b| b.traces[0].output_tokens += 1),
        ("tokens that off commits", |b| b.arms[0].output_sha256 = Some(Sha256::of(b"others"))),
        ("chances of acceptance: [0.8] against [0.7]", |b| b.run.accept_rates = vec![0.7]),
        ("seed of the dice: 0 against 1", |b| b.run.seed = 1),
    ];
    for (word, change) in rows {
        let mut b = a.clone();
        change(&mut b);
        let files = Files::new(&a, &b);
        let error = files.compare().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("--force"), "{error} does not say {word}");
        assert!(compare::run(&CompareFlags { force: true, ..files.flags() }).is_ok(), "{word}");
    }
    // Simulated times come from a table, and two tables are two questions.
    let mut simulated = a.clone();
    simulated.run.simulated = true;
    let mut b = simulated.clone();
    assert!(Files::new(&simulated, &b).compare().is_ok());
    b.cost = Some(CostFacts { draft_ms: 1.0, ..CostFacts::default() });
    let error = Files::new(&simulated, &b).compare().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("--cost FILE"), "{error}");
    // What may be the very thing that is compared is told, and not refused.
    let mut b = a.clone();
    (b.run.threads, b.host.version) = (4, "9.9.9".into());
    b.arms[1].settings.mtp_tokens = Some(7);
    let comparison = Files::new(&a, &b).compare().unwrap();
    let beside = comparison.beside.join("\n");
    for word in ["threads: 2 against 4", "9.9.9", "settings of ngram-suffix: {\"window\":{}} against {\"mtp_tokens\":7"]
    {
        assert!(beside.contains(word), "{beside} does not say {word}");
    }
}

/// Exit codes, and what is printed.
#[test]
fn the_verb_ends_as_it_says() {
    let (a, b) = (result(100.0, 150.0, 120.0), result(100.5, 165.0, 108.0));
    let mut stranger = b.clone();
    stranger.model.tensor_tree_sha256 = None;
    stranger.model.name = "evil\u{1b}[2Jname".into();
    let mut nothing = b.clone();
    nothing.arms.clear();
    nothing.workloads.clear();
    let mut void = a.clone();
    void.arms[2].void = Some(Void::default());
    let mut fewer = a.clone();
    fewer.arms.truncate(2);
    let files = Files::new(&a, &b);
    for (name, result) in
        [("stranger.json", &stranger), ("nothing.json", &nothing), ("void.json", &void), ("fewer.json", &fewer)]
    {
        fs::write(files.path(name), serde_json::to_vec(result).unwrap()).unwrap();
    }
    fs::write(files.path("none.json"), "{}").unwrap();
    let run = |flags: &[&str]| {
        let mut command = Command::new(program("engine-bench"));
        let output = command.current_dir(files.folder.path()).arg("compare").args(flags).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, error) = run(&["a.json", "b.json"]);
    assert_eq!(code, Some(0), "{error}");
    for word in ["+10.0%", "-10.0%", "within noise", "faster", "slower", "aider"] {
        assert!(out.contains(word), "{out} does not say {word}");
    }
    let (code, out, _) = run(&["a.json", "b.json", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!((code, json["schema"].as_str()), (Some(0), Some("slipstream-compare/1")));
    assert_eq!(json["lines"][1]["verdict"], "faster");
    for (flags, expected, word) in [
        (&["a.json", "b.json", "--fail-slower", "5"][..], 1, "slower"),
        (&["a.json", "b.json", "--fail-slower", "20"], 0, ""),
        (&["b.json", "void.json", "--fail-slower", "20"], 1, "slower"),
        (&["void.json", "b.json", "--fail-slower", "20"], 0, ""),
        (&["a.json", "fewer.json", "--fail-slower", "20"], 1, "has no figures that count where A has some"),
        (&["fewer.json", "a.json", "--fail-slower", "20"], 0, ""),
        (&["a.json", "b.json", "--fail-slower", "-5"], 2, "from 0 to 100"),
        (&["a.json"], 2, "B.json"),
        (&["a.json", "stranger.json"], 3, "model: m.gguf against evil"),
        (&["a.json", "stranger.json", "--force"], 0, ""),
        (&["a.json", "nothing.json"], 3, "no arm of the same name"),
        (&["a.json", "none.json"], 3, "none.json: is no slipstream-bench/1 result"),
        (&["absent.json", "b.json"], 3, "absent.json: cannot open"),
    ] {
        let (code, out, error) = run(flags);
        assert_eq!(code, Some(expected), "{flags:?}: {error}");
        assert!(error.contains(word), "{flags:?}: {error} does not say {word}");
        assert!(!(out + &error).contains('\u{1b}'), "{flags:?}: a name reaches the terminal");
    }
}
