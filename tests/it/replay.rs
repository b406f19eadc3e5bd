//! Recorded sessions: what is read of other people's, and what `engine-bench replay` makes of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use engine::api::{Command as EngineCommand, Speculation, Strategy, Submission, WindowPolicy};
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::schedule::Schedule;
use engine_bin::bench::counters::Counters;
use engine_bin::bench::result::{Arm, BenchResult};
use engine_bin::embed::{Outcome, run_all};
use engine_bin::menu::{BUILT_IN, Given};
use engine_bin::open::ModelSource;
use engine_io::OpenOptions;
use engine_io::digest::TensorTree;
use engine_io::trace::{self, Format, Found, Request, Role, Session, Turn, jsonl};
use engine_tests::drive::Subject;
use engine_tests::fixtures::{smollm2_gguf, traces, workspace};

use crate::serve::process::program;

/// Sessions, sessions with an output, outputs, of what is found.
fn counts(found: &Found) -> (usize, usize, usize) {
    let sessions = || found.traces.iter().flat_map(|trace| &trace.sessions);
    let outputs = |session: &Session| session.outputs().count();
    (sessions().count(), sessions().filter(|s| outputs(s) > 0).count(), sessions().map(outputs).sum())
}

/// Public recordings, as their description counts them, where they are at hand. It counts of OpenHands the three runs of
/// one file; the two of the other hold their arguments beside the action. Of aider it counts text that aider itself
/// prints before anybody has asked anything as the model's; here it is not.
#[test]
fn public_recordings_are_read_whole() {
    let rows: [(&str, Format, (usize, usize, usize)); 6] = [
        ("swe-agent", Format::SweAgent, (13, 13, 126)),
        ("mini-swe-agent", Format::MiniSweAgent, (2, 2, 12)),
        ("openhands/evaluation", Format::Openhands, (3, 3, 105)),
        ("openhands/tests", Format::Openhands, (2, 2, 26)),
        ("tau-bench", Format::TauBench, (200, 200, 2454)),
        ("aider", Format::Aider, (998, 483, 1937)),
    ];
    for (name, format, expected) in rows {
        let Some(path) = traces(name) else { return };
        let found = trace::load(&[path], None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found.traces.iter().all(|trace| trace.format == format), "{name} is of one format");
        assert_eq!(counts(&found), expected, "{name}");
    }
}

/// The sessions of our own are of the model in this repository: whoever changes it records them again.
#[test]
fn our_own_recordings_are_of_the_built_in_model() {
    let found = trace::load(&[workspace().join("perf/traces")], None).unwrap();
    assert!(found.traces.iter().all(|trace| trace.format == Format::Slipstream && trace.torn.is_none()));
    assert_eq!(counts(&found), (4, 4, 9));
    let model = ModelSource::from(None).open(OpenOptions::default()).unwrap();
    let digest = TensorTree::of_model(&model, |_| ()).unwrap().digest().to_string();
    let requests = found.traces.iter().flat_map(|trace| &trace.sessions).flat_map(|session| &session.requests);
    assert!(requests.clone().count() == 9 && requests.clone().all(|r| r.model_sha256.as_deref() == Some(&*digest)));
}

/// Runs `engine-bench replay` to its end: exit code, stdout, stderr.
fn replay(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-bench")).arg("replay").args(flags).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The result of a replay that goes well.
fn result(flags: &[&str]) -> BenchResult {
    let (code, out, error) = replay(&[flags, &["--json", "--threads", "1"]].concat());
    assert_eq!(code, Some(0), "{flags:?}: {error}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{flags:?}: {e}: {out}"))
}

fn arm(result: &BenchResult, strategy: Strategy) -> &Arm {
    result.arms.iter().find(|arm| arm.strategy == Some(strategy)).expect("the arm was asked for")
}

fn write(folder: &Path, name: &str, sessions: &[Session]) -> PathBuf {
    let path = folder.join(name);
    let mut bytes = Vec::new();
    sessions.iter().for_each(|session| jsonl::write(&mut bytes, session).expect("memory takes it"));
    fs::write(&path, bytes).expect("the folder takes it");
    path
}

/// Two turns of an edit and its repetition, in words alone.
fn sessions() -> Vec<Session> {
    let code = "```python\ndef add(total, x):\n    total = total + x\n    return total\n```";
    let session = |id: &str, name: &str| Session {
        id: id.to_owned(),
        source: "edits".to_owned(),
        turns: vec![
            Turn::new(Role::User, format!("Rename `total` to `{name}` everywhere.\n{code}")),
            Turn::output(code.replace("total", name)),
            Turn::new(Role::Tool, format!("file written\n{}", code.replace("total", name))),
            Turn::output(format!("Done. It reads\n{}", code.replace("total", name))),
        ],
        ..Session::default()
    };
    vec![session("one", "amount"), session("two", "sum"), session("three", "count")]
}

/// Greedy answers of a real engine under fixed windows of `width`.
fn answers(subject: &Subject, strategy: Strategy, width: u8) -> Vec<Outcome> {
    let limits = Limits { window_max: usize::from(width), ..Limits::new(1, 640) };
    let options = ExecOptions { threads: 1, ..ExecOptions::default() };
    let executor = Box::new(CpuExecutor::new(Arc::clone(&subject.opened.model), limits.clone(), options));
    let cost = Cost::scripted(|rows| 1e6 + rows as f64, 1e5);
    let settings = Settings { schedule: Schedule::Inline, cost: Some(cost) };
    let clock = Box::new(Monotonic::default());
    let handle = start(executor, &limits, Arc::clone(&subject.opened.pieces), settings, clock).expect("it starts");
    let given = Given {
        policy: Some(WindowPolicy::Fixed),
        window_initial: Some(width),
        window_max: Some(width),
        ..Given::default()
    };
    let speculation = given.over(Speculation { strategy, ..BUILT_IN }).expect("they fit each other");
    let submission =
        |(i, prompt): (usize, &Vec<TokenId>)| Submission::greedy(Ticket(i as u64), prompt.clone(), 150, speculation);
    let submissions = subject.prompts.iter().enumerate().map(submission).collect();
    let outcomes = run_all(&handle, submissions).expect("they run");
    handle.commands.send(EngineCommand::Stop).expect("the engine takes it");
    handle.join().expect("a clean end");
    outcomes
}

/// What a forced replay of an engine's own answers counts is what that engine counted: drafts, fates, widths and
/// look-ups, whoever drafts. So a forced replay measures proposers as they are, those of the MTP block included.
#[test]
fn a_forced_replay_counts_what_the_engine_counted() {
    let subject = Subject::built_in();
    let plain = answers(&subject, Strategy::Off, 8);
    let ids = |tokens: &[TokenId]| tokens.iter().map(|id| id.0).collect::<Vec<u32>>();
    let session = |(prompt, outcome): (&Vec<TokenId>, &Outcome)| {
        let bytes = subject.opened.tokenizer.decode_bytes(&ids(&outcome.tokens), false).expect("they are tokens");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let turns = vec![Turn::new(Role::User, "?"), Turn { tokens: Some(ids(&outcome.tokens)), ..Turn::output(text) }];
        let requests = vec![Request { turn: 1, prompt_tokens: Some(ids(prompt)), ..Request::default() }];
        Session { id: "own".into(), source: "own".into(), turns, requests }
    };
    let sessions: Vec<Session> = subject.prompts.iter().zip(&plain).map(session).collect();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "own.jsonl", &sessions);
    let path = path.to_str().expect("a plain path");
    let windows = ["--window-policy", "fixed", "--window-initial", "8", "--window-max", "8"];
    let flags = [&[path, "--mode", "forced", "--ctx-size", "640", "--repeats", "1", "--warmup", "0"], &windows[..]];
    let result = result(&flags.concat());
    assert_eq!(result.traces[0].output_tokens, plain.iter().map(|o| o.tokens.len() as u64).sum::<u64>());
    assert_eq!((result.traces[0].prompts_cut_n, result.traces[0].outputs_cut_n), (0, 0));
    for strategy in Strategy::ALL {
        let outcomes = answers(&subject, strategy, 8);
        let mut counted = Counters::default();
        outcomes.iter().for_each(|outcome| counted.add(&Counters::of(&outcome.report, strategy)));
        let arm = arm(&result, strategy);
        assert_eq!(arm.speculation, counted, "{}", strategy.name());
        assert_eq!(arm.void, None);
        if strategy != Strategy::Off {
            assert!(counted.total.accepted_n > 0 && counted.total.rejected_n > 0, "{}: {counted:?}", strategy.name());
        }
    }
    let composite = arm(&result, Strategy::MtpSuffix);
    assert!(composite.speculation.tail.windows_n > 0);
    for (name, lengths) in &composite.lengths {
        let drafts = composite.speculation.proposers[name].drafts;
        let sum =
            |of: fn(&engine_bin::bench::counters::Position) -> u64| lengths.per_position.iter().map(of).sum::<u64>();
        assert_eq!((sum(|p| p.drafted), sum(|p| p.accepted)), (drafts.drafted_n, drafts.accepted_n), "{name}");
        assert_eq!(sum(|p| p.tested.unwrap_or_default()), drafts.accepted_n + drafts.rejected_n, "{name}");
    }
}

/// Words alone, through template and tokenizer; neighbours, rounds and the policy change nothing of what is committed.
#[test]
fn forced_arms_commit_the_recording_whoever_is_beside_them() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "edits.jsonl", &sessions());
    let path = path.to_str().expect("a plain path");
    let cost = folder.path().join("cost.json");
    fs::write(&cost, r#"{"rows_ms":{"1":2.0,"64":4.0},"draft_ms":0.1}"#).expect("the folder takes it");
    let common = [path, "--mode", "forced", "--cost", cost.to_str().expect("a plain path")];
    let alone = result(&common);
    let facts = &alone.traces[0];
    assert_eq!((facts.sessions_n, facts.left_out_n, facts.outputs_n), (3, 0, 6));
    assert_eq!(alone.arms.len(), 4, "the built-in model can all of them");
    let off = arm(&alone, Strategy::Off);
    assert_eq!(off.speculation.completion_tokens, facts.output_tokens);
    assert_eq!(off.decode_tok_s.rounds.len(), 3);
    // A pass takes 2 ms by the table and what is around it takes some more, so no token comes sooner. Every token is a pass
    // of one row, and every one behind a request's first a gap.
    assert!(off.decode_tok_s.max <= 500.0 && off.times.tpot_ms.p50 >= 2.0, "{:?}", off.decode_tok_s);
    let (tokens, rounds) = (off.speculation.completion_tokens, 3);
    assert_eq!((off.pass_ms.len(), off.pass_ms[&1].n), (1, rounds * tokens));
    assert_eq!(off.times.emission_gap_ms.n, rounds * (tokens - off.requests_n));
    for arm in &alone.arms {
        assert_eq!(arm.output_sha256, off.output_sha256, "{}", arm.label);
    }
    let suffix = arm(&alone, Strategy::NgramSuffix);
    assert!(suffix.shares.tokens_per_pass.is_some_and(|n| n > 1.2), "a copied file is drafted: {:?}", suffix.shares);
    assert!(suffix.times.lookup_us.n > 0 && suffix.shares.suffix_hit_rate.is_some_and(|rate| rate > 0.0));
    assert!(suffix.times.lookup_us.mean > 0.005, "no clock is read twice in 5 ns: {:?}", suffix.times.lookup_us);
    let mtp = arm(&alone, Strategy::Mtp);
    assert!(mtp.speculation.proposers["mtp"].drafts.accepted_n > 0);
    // Each step of a chain takes 0.1 ms by the table.
    assert!(mtp.times.mtp_draft_ms > 0.09, "{}", mtp.times.mtp_draft_ms);
    assert!(alone.arms.iter().all(|arm| arm.speedup == Some(arm.decode_tok_s.median / off.decode_tok_s.median)));

    let fixed = ["--window-policy", "fixed", "--window-initial", "6"];
    let single = result(&[&common[..], &fixed].concat());
    let together = result(&[&common[..], &fixed, &["--concurrency", "3"]].concat());
    for (one, three) in single.arms.iter().zip(&together.arms) {
        assert_eq!(one.speculation, three.speculation, "{}", one.label);
        assert_eq!(one.output_sha256, three.output_sha256, "{}", one.label);
    }

    // Everything at the end of a prompt that fits is kept, and an answer half as long as the context.
    let short = result(&[&common[..], &["--ctx-size", "32", "--limit", "2"]].concat());
    let facts = &short.traces[0];
    assert_eq!((facts.sessions_n, facts.left_out_n, facts.outputs_n), (3, 1, 4));
    assert_eq!((facts.prompts_cut_n, facts.outputs_cut_n), (4, 4));
    assert_eq!((facts.prompt_tokens, facts.output_tokens), (4 * 16, 4 * 16));
    let few = result(&[&common[..], &["--max-tokens", "5", "--arms", "ngram-suffix,off"]].concat());
    assert_eq!((few.traces[0].output_tokens, few.arms.len()), (30, 2));
    assert_eq!(arm(&few, Strategy::Off).speedup, Some(1.0), "off is what speeds are held against, wherever it stands");
}

/// Dice decide, and nothing else: at 1 every draft is accepted, at 0 none, between them as often as they say.
#[test]
fn synthetic_acceptance_is_that_of_the_dice() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "edits.jsonl", &sessions());
    let common = [path.to_str().expect("a plain path"), "--mode", "synthetic", "--window-policy", "fixed"];
    let more = ["--window-initial", "4", "--repeats", "1", "--warmup", "0", "--ctx-size", "512"];
    let at = |rate: &str| result(&[&common[..], &more, &["--accept-rate", rate]].concat());
    for (rate, all) in [("1", true), ("0", false)] {
        let result = at(rate);
        for arm in &result.arms[1..] {
            let total = &arm.speculation.total;
            assert!(total.drafted_n > 0 && arm.void.is_none(), "{} at {rate}", arm.label);
            assert_eq!(arm.output_sha256, result.arms[0].output_sha256);
            match all {
                // A match of the suffix index may be the wrong one before it is long.
                true if arm.strategy == Some(Strategy::Mtp) => assert_eq!(total.rejected_n, 0),
                true => assert!(total.accepted_n * 10 > total.drafted_n * 8, "{}: {total:?}", arm.label),
                false => assert_eq!((total.accepted_n, total.rejected_n), (0, arm.speculation.windows_n)),
            }
        }
        assert!(!result.run.simulated && result.cost.is_none());
    }
    let half = at("0.5,0");
    let mtp = arm(&half, Strategy::Mtp);
    let [first, second, ..] = mtp.speculation.per_position[..] else { panic!("chains of three") };
    let share = first.accepted as f64 / first.drafted as f64;
    assert!((0.3..0.7).contains(&share) && second.accepted == 0, "{first:?} {second:?}");
    let again = at("0.5,0");
    assert_eq!(arm(&again, Strategy::Mtp).speculation, mtp.speculation, "dice fall alike");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "edits.jsonl", &sessions());
    let silent = Session { turns: vec![Turn::new(Role::User, "?")], source: "s".into(), ..Session::default() };
    let silent = write(folder.path(), "silent.jsonl", &[silent]);
    let (path, silent) = (path.to_str().expect("a plain path"), silent.to_str().expect("a plain path"));
    let broken = folder.path().join("broken.jsonl");
    fs::write(&broken, "{\"messages\":[{\"role\":1}]}\n").expect("the folder takes it");
    let broken = broken.to_str().expect("a plain path");
    let rows: [(&[&str], i32, &str); 12] = [
        (&[], 2, "FILE"),
        (&[path], 2, "--mode"),
        (&["absent.jsonl", "--mode", "forced"], 3, "absent.jsonl: cannot open"),
        (&[broken, "--mode", "forced"], 3, "broken.jsonl:1: "),
        (&[silent, "--mode", "forced"], 3, "no session has an output that can be replayed (1 were read)"),
        (&[path, "--mode", "forced", "--arms", "mtp"], 2, "lacks off"),
        (&[path, "--mode", "forced", "--arms", "off,off"], 2, "twice"),
        (&[path, "--mode", "forced", "--arms", "off,auto"], 2, "auto"),
        (&[path, "--mode", "forced", "--accept-rate", "0.5"], 2, "--mode synthetic"),
        (&[path, "--mode", "synthetic", "--accept-rate", "1.5"], 2, "from 0 to 1"),
        (&[path, "--mode", "synthetic", "--cost", path], 2, "--mode forced"),
        (&[path, "--mode", "forced", "--cost", path], 3, "rows_ms"),
    ];
    for (flags, expected, word) in rows {
        let (code, out, error) = replay(flags);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{flags:?}: {error}");
        assert!(error.contains(word), "{flags:?}: {error} does not say {word}");
    }
    let Some(model) = smollm2_gguf() else { return };
    let model = model.to_str().expect("a plain path");
    let (code, _, error) = replay(&[path, "--mode", "forced", "--model", model, "--arms", "off,mtp"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--arms mtp drafts with an MTP block, and the model has none"), "{error}");
}

/// The table is for people, and what is written beside it is the same result.
#[test]
fn a_replay_prints_a_table_and_writes_a_result() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "edits.jsonl", &sessions());
    let out = folder.path().join("out");
    let (path, dir) = (path.to_str().expect("a plain path"), out.to_str().expect("a plain path"));
    let flags =
        ["--trace", path, "--mode", "forced", "--strategies", "off,ngram-suffix", "--out", dir, "--threads", "1"];
    let (code, table, error) = replay(&flags);
    assert_eq!(code, Some(0), "{error}");
    for part in ["mode forced", "time by the cost table", "edits, 3 sessions", "ngram-suffix", "as off"] {
        assert!(table.contains(part), "{table} does not say {part}");
    }
    assert!(error.contains("edits: 3 sessions, 0 left out, 6 answers"), "{error}");
    let text = fs::read_to_string(out.join("replay.json")).expect("it was written");
    let result: BenchResult = serde_json::from_str(&text).expect("it is a result");
    assert_eq!((result.schema.as_str(), result.mode.as_str()), ("slipstream-bench/1", "forced"));
    let cost = result.cost.expect("passes were timed");
    assert!(cost.rows_ms.len() == 12 && cost.origin == "measured");
    assert!(result.memory.peak_rss_bytes > 0 && result.memory.suffix_index_bytes > 0);
    let roofline = result.roofline.expect("it was measured");
    assert_eq!(roofline.rows_gb_s.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
    let cost = &cost.rows_ms;
    for (rows, gb_s) in &roofline.rows_gb_s {
        let read = gb_s * cost[rows] * 1e6;
        assert!((read / roofline.row_bytes as f64 - 1.0).abs() < 1e-9, "{rows} rows read {read} bytes");
    }
    // The matrices of its four blocks, and the token table, which is the head too; the MTP block is none of the trunk's.
    assert!((4_150_000..4_250_000).contains(&roofline.row_bytes), "{} bytes", roofline.row_bytes);
    assert!(roofline.memory_gb_s > 0.0 && roofline.weights_gb_s > 0.0);
    assert!(result.model.tensor_tree_sha256.is_some() && result.model.name == "slipstream-tiny-coder");
}
