//! `engine-bench sweep`: halving, going on after a stop, and what a package makes of the winner.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use engine::api::Strategy;
use engine_bin::bench::result::{BenchResult, CostFacts, SCHEMA};
use engine_bin::bench::sweep::facts::SweepFacts;
use engine_io::trace::{Role, Session, Turn, jsonl};
use serde_json::Value;
use tempfile::TempDir;

use crate::pack::engine_pack;
use crate::serve::process::program;

/// Recordings of two sources, a cost table, and room for results.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let code = "```python\ndef add(total, x):\n    total = total + x\n    return total\n```";
        let session = |source: &str, id: &str, name: &str| Session {
            id: id.to_owned(),
            source: source.to_owned(),
            turns: vec![
                Turn::new(Role::User, format!("Rename `total` to `{name}` everywhere.\n{code}")),
                Turn::output(code.replace("total", name)),
                Turn::new(Role::Tool, format!("file written\n{}", code.replace("total", name))),
                Turn::output(format!("Done. It reads\n{}", code.replace("total", name))),
            ],
            ..Session::default()
        };
        let mut bytes = Vec::new();
        for (source, id, name) in
            [("edits", "a", "amount"), ("edits", "b", "sum"), ("edits", "c", "count"), ("tools", "d", "all")]
        {
            jsonl::write(&mut bytes, &session(source, id, name)).expect("memory takes it");
        }
        fs::write(folder.path().join("sessions.jsonl"), bytes).expect("the folder takes it");
        let cost = r#"{"rows_ms":{"1":2.0,"64":4.0},"draft_ms":0.1}"#;
        fs::write(folder.path().join("cost.json"), cost).expect("the folder takes it");
        Self { folder }
    }

    /// The verb in the folder, with a cost table that is measured.
    fn command(&self, flags: &[&str]) -> Command {
        let fixed = ["sweep", "sessions.jsonl", "--mode", "forced", "--threads", "1"];
        let rounds = ["--repeats", "2", "--warmup", "0", "--ctx-size", "512"];
        let mut command = Command::new(program("engine-bench"));
        command.current_dir(self.folder.path()).args(fixed).args(rounds).args(flags);
        command
    }

    /// Runs the verb with the cost table of the folder: exit code, stdout, stderr.
    fn sweep(&self, flags: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(flags).args(["--cost", "cost.json"]).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn result(&self, out: &str) -> BenchResult {
        let text = fs::read(self.folder.path().join(out).join("sweep.json")).expect("it was written");
        serde_json::from_slice(&text).expect("it is a result")
    }

    fn write(&self, out: &str, result: &BenchResult) {
        let text = serde_json::to_vec(result).expect("plain data");
        fs::create_dir_all(self.folder.path().join(out)).expect("a folder");
        fs::write(self.folder.path().join(out).join("sweep.json"), text).expect("the folder takes it");
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// A small grid: four cells of the MTP block, four of the index, eight of both.
const GRID: [&str; 12] = [
    "--axis",
    "mtp-tokens=1,3",
    "--axis",
    "suffix-min=3,5",
    "--axis",
    "suffix-max=32",
    "--axis",
    "suffix-tokens=16",
    "--axis",
    "window=16",
    "--axis",
    "policy=fixed,adaptive",
];

/// Over that grid: eighteen cells, all of the index.
const OF_THE_INDEX: [&str; 6] =
    ["--arms", "off,ngram-suffix", "--axis", "suffix-tokens=4,8,16", "--axis", "suffix-min=3,5,8"];

fn facts(result: &BenchResult) -> &SweepFacts {
    result.sweep.as_ref().expect("a sweep")
}

/// Cells fall out rung by rung over more and more sessions; the finalists run side by side over all of them; a package
/// takes the winner and says why.
#[test]
fn a_sweep_finds_what_a_package_then_says() {
    let bench = Bench::new();
    let (code, out, error) = bench.sweep(&[&GRID[..], &["--out", "out", "--json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let result = bench.result("out");
    assert_eq!(serde_json::from_str::<BenchResult>(&out).expect("one object"), result);
    assert_eq!(result.schema, SCHEMA);
    let sweep = facts(&result);
    assert!(sweep.done);
    let rungs: Vec<(usize, usize)> = sweep.rungs.iter().map(|rung| (rung.sessions_n, rung.cells.len())).collect();
    // Four, four and eight cells; then two, two and three, which are few enough.
    assert_eq!(rungs, [(1, 16)]);
    for strategy in [Strategy::Mtp, Strategy::NgramSuffix, Strategy::MtpSuffix] {
        let of = || sweep.rungs[0].cells.iter().filter(|cell| cell.strategy == strategy);
        let worst = of().filter(|cell| cell.kept).map(|cell| cell.speedup).fold(f64::MAX, f64::min);
        assert!(of().filter(|cell| !cell.kept).all(|cell| cell.speedup <= worst), "{}", strategy.name());
        assert!(of().all(|cell| !cell.void && (cell.speedup - cell.decode_tok_s.median / cell.off_tok_s).abs() < 1e-9));
    }
    let labels: Vec<&str> = result.arms.iter().map(|arm| arm.label.as_str()).collect();
    let kept = sweep.rungs[0].cells.iter().filter(|cell| cell.kept).map(|cell| cell.label.as_str());
    assert_eq!(labels, ["off"].into_iter().chain(kept).collect::<Vec<_>>());
    assert_eq!(labels.len(), 8);
    assert_eq!(result.traces.iter().map(|facts| facts.outputs_n).sum::<usize>(), 8, "all sessions in the end");
    for arm in &result.arms {
        assert_eq!(arm.output_sha256, result.arms[0].output_sha256, "{}", arm.label);
    }

    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../bin/model/slipstream-tiny-coder-Q8_0.gguf");
    assert!(Path::new(model).exists());
    let (package, json) = (bench.path("package"), bench.path("out/sweep.json"));
    let (code, _, error) =
        engine_pack(&["package", "--model", model, "--out", &package, "--model-id", "a/b:Q8_0", "--from-bench", &json]);
    assert_eq!(code, Some(0), "{error}");
    let manifest = fs::read_to_string(Path::new(&package).join("model-package.json")).expect("it was written");
    let best = result.arms[1..].iter().max_by(|a, b| a.decode_tok_s.median.total_cmp(&b.decode_tok_s.median));
    let best = best.expect("there are arms");
    let name = best.strategy.expect("ours").name();
    let json: Value = serde_json::from_str(&manifest).expect("JSON");
    let speculative = &json["generation"]["speculative_decoding"];
    assert_eq!(speculative["default"], name);
    let window = &speculative["strategies"][name]["window_policy"];
    assert_eq!(window["max_window"], best.settings.window.max.expect("all settings are told"));
    assert_eq!(window["initial_window"], best.settings.window.initial.expect("all settings are told"));
    let reason =
        format!("fastest of 7 measured arms with the output of off: {name} {:.2} tok/s", best.decode_tok_s.median);
    assert!(manifest.contains(&reason), "{manifest} does not say {reason}");
}

/// Each rung has the cells that the one before it kept, on more sessions, and no more of them than asked for.
#[test]
fn rungs_grow_until_few_cells_are_left() {
    let bench = Bench::new();
    let halving = ["--keep-one-in", "2", "--limit", "2", "--out", "out"];
    let (code, _, error) = bench.sweep(&[&GRID[..], &OF_THE_INDEX, &halving].concat());
    assert_eq!(code, Some(0), "{error}");
    let result = bench.result("out");
    let rungs = &facts(&result).rungs;
    let sizes: Vec<(usize, usize)> = rungs.iter().map(|rung| (rung.sessions_n, rung.cells.len())).collect();
    assert_eq!(sizes, [(1, 18), (2, 9), (2, 5)]);
    for two in rungs.windows(2) {
        let kept = two[0].cells.iter().filter(|cell| cell.kept).map(|cell| &cell.label);
        assert!(kept.eq(two[1].cells.iter().map(|cell| &cell.label)));
    }
    assert_eq!((result.arms.len(), result.traces[0].left_out_n), (1 + 3, 1));
}

/// A cost table that was measured is that of the whole sweep: what goes on is held against what was run.
#[test]
fn a_stopped_sweep_keeps_its_cost_table() {
    let bench = Bench::new();
    let flags = [&GRID[..], &OF_THE_INDEX, &["--out", "out"]].concat();
    let mut begun = bench.command(&flags).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it runs");
    let file = bench.folder.path().join("out/sweep.json");
    while !file.exists() {
        assert!(begun.try_wait().expect("it is ours").is_none(), "it ended without a result");
        std::thread::sleep(Duration::from_millis(2));
    }
    let first = bench.result("out");
    begun.kill().expect("it is ours");
    begun.wait().expect("it is ours");
    assert!(!facts(&first).done, "it was stopped too late");
    assert!(first.cost.as_ref().is_some_and(|cost| cost.is_measured()), "{:?}", first.cost);
    let output = bench.command(&flags).arg("--resume").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let result = bench.result("out");
    assert!(facts(&result).done);
    assert_eq!(result.cost, first.cost);
}

/// A sweep that was stopped goes on: what was run is not run again, and the end is the same.
#[test]
fn a_sweep_goes_on_where_it_stopped() {
    let bench = Bench::new();
    let flags = [&GRID[..], &["--arms", "off,ngram-suffix,mtp"]].concat();
    let run = |out: &str, more: &[&str]| bench.sweep(&[&flags[..], &["--out", out], more].concat());
    let (code, _, error) = run("whole", &["--keep-one-in", "2"]);
    assert_eq!(code, Some(0), "{error}");
    let whole = bench.result("whole");
    assert_eq!(facts(&whole).rungs[0].cells.len(), 8);
    assert!(whole.traces.iter().all(|facts| facts.left_out_n == 0), "no rung had so many, the finalists have all");

    // As if it had been stopped after five cells. A mark on one of them shows that nobody runs it again.
    let mut stopped = whole.clone();
    (stopped.arms, stopped.workloads) = (vec![], vec![]);
    let sweep = stopped.sweep.as_mut().expect("a sweep");
    sweep.done = false;
    sweep.rungs.truncate(1);
    sweep.rungs[0].cells.truncate(5);
    sweep.rungs[0].cells.iter_mut().for_each(|cell| cell.kept = false);
    sweep.rungs[0].cells[1].off_tok_s = 12345.0;
    bench.write("stopped", &stopped);
    let (code, _, error) = engine_pack(&[
        "package",
        "--out",
        &bench.path("p"),
        "--from-bench",
        &bench.path("stopped/sweep.json"),
        "--model",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../bin/model/slipstream-tiny-coder-Q8_0.gguf"),
        "--model-id",
        "a/b:Q8_0",
    ]);
    assert_eq!(code, Some(3), "a sweep on its way is no measurement: {error}");
    assert!(error.contains("has no arm off"), "{error}");

    let (code, _, error) = run("stopped", &["--keep-one-in", "2"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("exists; --resume goes on with it"), "{error}");
    let (code, _, error) = run("stopped", &["--keep-one-in", "2", "--resume"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("rung 1: 8 cells, at most 1 sessions of each source, 5 of them run before"), "{error}");
    let resumed = bench.result("stopped");
    let (was, now) = (facts(&whole), facts(&resumed));
    assert_eq!(now.rungs[0].cells[1].off_tok_s, 12345.0, "it was not run again");
    let cells = |sweep: &SweepFacts| -> Vec<(String, bool)> {
        sweep.rungs.iter().flat_map(|rung| &rung.cells).map(|cell| (cell.label.clone(), cell.kept)).collect()
    };
    assert_eq!(cells(now), cells(was));
    for (a, b) in whole.arms.iter().zip(&resumed.arms) {
        assert_eq!((&a.label, &a.speculation, a.output_sha256), (&b.label, &b.speculation, b.output_sha256));
    }
    let (code, _, error) = run("stopped", &["--keep-one-in", "2", "--resume"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("the sweep is done already"), "{error}");

    // Cells that the rung would not have were run by another program.
    let mut other = whole.clone();
    let sweep = other.sweep.as_mut().expect("a sweep");
    sweep.done = false;
    sweep.rungs[0].cells[2].label.push_str(", deeper");
    bench.write("other", &other);
    let (code, _, error) = run("other", &["--keep-one-in", "2", "--resume"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("rung 1 has other cells than this sweep gives it"), "{error}");

    // Another sweep is not gone on with.
    let another = concat!(env!("CARGO_MANIFEST_DIR"), "/data/qwen35-tiny/qwen35-tiny-Q8_0.gguf");
    for (more, word) in [
        (&["--keep-one-in", "3"][..], "--keep-one-in"),
        (&["--keep-one-in", "2", "--axis", "window=8"], "grid"),
        (&["--keep-one-in", "2", "--max-tokens", "9"], "flags of the replay"),
        (&["--keep-one-in", "2", "--first-sessions", "2"], "--first-sessions"),
        (&["--keep-one-in", "2", "--model", another], "model"),
    ] {
        let (code, _, error) = run("stopped", &[more, &["--resume"]].concat());
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains(&format!("is of another sweep ({word})")), "{error}");
    }
    let table = fs::read(bench.path("cost.json")).expect("it is there");
    fs::write(bench.path("cost.json"), r#"{"rows_ms":{"1":2.0,"64":5.0},"draft_ms":0.1}"#)
        .expect("the folder takes it");
    let (code, _, error) = run("stopped", &["--keep-one-in", "2", "--resume"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("(cost table)"), "{error}");
    fs::write(bench.path("cost.json"), table).expect("the folder takes it");
    let text = fs::read_to_string(bench.path("sessions.jsonl")).expect("it is there").replace("amount", "figure");
    fs::write(bench.path("sessions.jsonl"), text).expect("the folder takes it");
    let (code, _, error) = run("stopped", &["--keep-one-in", "2", "--resume"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("(recordings)"), "{error}");
}

/// Two sweeps that write one file would each lose what the other found.
#[test]
fn a_folder_is_one_sweeps_at_a_time() {
    let bench = Bench::new();
    let flags = [&GRID[..], &["--arms", "off,ngram-suffix", "--out", "o"]].concat();
    fs::create_dir(bench.folder.path().join("o")).expect("a folder");
    let other = fs::File::open(bench.folder.path().join("o")).expect("it is there");
    other.lock().expect("nobody has it");
    let (code, _, error) = bench.sweep(&flags);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("another sweep is writing it"), "{error}");
    assert_eq!(fs::read_dir(bench.path("o")).expect("a folder").count(), 0);
    drop(other);
    let (code, _, error) = bench.sweep(&flags);
    assert_eq!(code, Some(0), "{error}");
}

/// A result that somebody edited: what its cells were timed by is missing, or is no table.
#[test]
fn a_cost_table_that_is_none_is_not_gone_on_with() {
    let bench = Bench::new();
    let flags = [&GRID[..], &["--arms", "off,ngram-suffix", "--out", "o"]].concat();
    let (code, _, error) = bench.sweep(&flags);
    assert_eq!(code, Some(0), "{error}");
    let whole = bench.result("o");
    for (rows_ms, word) in
        [(None, "(cost table)"), (Some(vec![]), "rows_ms is empty"), (Some(vec![(1, -2.0)]), "is -2")]
    {
        let mut edited = whole.clone();
        edited.sweep.as_mut().expect("a sweep").done = false;
        edited.cost = rows_ms.map(|rows| CostFacts { rows_ms: rows.into_iter().collect(), ..CostFacts::default() });
        bench.write("o", &edited);
        let (code, _, error) = bench.sweep(&[&flags[..], &["--resume"]].concat());
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains(word), "{error} does not say {word}");
    }
}

#[test]
fn what_is_no_sweep_is_refused() {
    let bench = Bench::new();
    bench.write("replay", &BenchResult { schema: SCHEMA.into(), ..BenchResult::default() });
    for (flags, expected, word) in [
        (&[][..], 2, "--out DIR is missing"),
        (&["--out", "o", "--axis", "width=3"], 2, "width is no axis"),
        (&["--out", "o", "--window-initial", "4"], 2, "no axes of a sweep"),
        (&["--out", "o", "--arms", "off"], 2, "the grid has no cell"),
        (&["--out", "o", "--arms", "mtp"], 2, "lacks off"),
        (&["--out", "o", "--keep-one-in", "1"], 2, "from 2 to 100"),
        (&["--out", "replay", "--resume"], 3, "is no sweep"),
    ] {
        let (code, out, error) = bench.sweep(flags);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{flags:?}: {error}");
        assert!(error.contains(word), "{flags:?}: {error} does not say {word}");
    }
    assert!(!Path::new(&bench.path("o")).exists(), "nothing is written before there is a cell");
    let run = |args: &[&str]| {
        let output = Command::new(program("engine-bench")).current_dir(bench.folder.path()).args(args).output();
        let output = output.expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, error) = run(&["sweep", "sessions.jsonl", "--mode", "live", "--out", "o"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--mode live is measured by `replay` alone") && error.contains("--mode forced"), "{error}");
    assert!(run(&["sweep", "--help"]).1.contains("the mode is `forced`"), "help says why");
}
