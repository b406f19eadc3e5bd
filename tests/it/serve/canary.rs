//! The acceptance canary: a block that belongs to its model passes, a shuffled one is caught, and answers never change.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions, Pool};
use engine::model::load::LoadOptions;
use engine::model::{Model, MtpStatus};
use engine_bin::bench::single::{Single, Want};
use engine_bin::canary::{self, LEAD_TOKENS, PASSAGE_TOKENS, PASSAGES, Tally, Verdict};
use engine_bin::open::{ModelSource, Opened};
use engine_io::text::{EncodeOptions, Tokenizer};
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use super::client::{Answer, Client, ask, get};
use super::process::Running;
use crate::forward::edit::Edit;
use crate::forward::qwen3next::qwen3next;

const MODEL: &str = "qwen35-tiny/qwen35-tiny-Q8_0.gguf";
const EH_PROJ: &str = "blk.6.nextn.eh_proj.weight";

fn opened(file: ModelFile) -> Opened {
    Opened::of(file, None, LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn built_in() -> Opened {
    opened(ModelSource::BuiltIn.open(OpenOptions::default()).unwrap())
}

fn executor(model: &Arc<Model>) -> CpuExecutor {
    CpuExecutor::new(Arc::clone(model), canary::limits(), ExecOptions::default())
}

fn listen(opened: &Opened) -> Vec<Tally> {
    canary::listen(executor(&opened.model), &opened.tokenizer)
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text.as_bytes(), EncodeOptions { add_special: true, ..EncodeOptions::default() })
}

/// The model with the rows of a matrix of its block in another order.
fn shuffled() -> Option<Edit> {
    let mut edit = Edit::of(MODEL)?;
    let tensor = edit.tensor(EH_PROJ);
    let row = tensor.data.len() / tensor.dims[1] as usize;
    tensor.data = tensor.data.chunks_exact(row).rev().flatten().copied().collect();
    Some(edit)
}

/// The model with the columns of the embedding where those of the hidden row belong.
fn exchanged() -> Option<Edit> {
    let mut edit = Edit::of(MODEL)?;
    let tensor = edit.tensor(EH_PROJ);
    let row = tensor.data.len() / tensor.dims[1] as usize;
    for row in tensor.data.chunks_exact_mut(row) {
        row.rotate_left(row.len() / 2);
    }
    Some(edit)
}

#[test]
fn every_passage_is_long_enough() {
    let models = ["qwen35-tiny/qwen35-tiny-Q8_0.gguf", "llama-tiny/llama-tiny-Q8_0.gguf"].map(fixture);
    for path in models.into_iter().flatten().chain(engine_tests::fixtures::smollm2_gguf()) {
        let file = ModelFile::open(&path, OpenOptions::default()).unwrap();
        let tokenizer = Tokenizer::from_meta(file.meta()).unwrap();
        for passage in PASSAGES {
            let count = encode(&tokenizer, passage).len();
            assert!(count >= PASSAGE_TOKENS, "{count} tokens of {passage:?} in {}", path.display());
        }
    }
}

#[test]
fn a_block_that_belongs_to_its_model_passes() {
    let mut fitting = vec![built_in()];
    for name in [
        "qwen35-tiny/qwen35-tiny-Q8_0.gguf",
        "qwen35-tiny/qwen35-tiny-Q4_0.gguf",
        "qwen35-tiny-k/qwen35-tiny-k-Q4_K_M.gguf",
        "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf",
        "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf",
    ] {
        fitting.extend(fixture(name).map(|path| opened(ModelFile::open(&path, OpenOptions::default()).unwrap())));
    }
    fitting.extend(qwen3next().map(|edit| opened(edit.file_as("qwen3next.gguf"))));
    for model in &fitting {
        let tallies = listen(model);
        // With room to spare: a fifth, in the first passage.
        assert!(tallies.len() == 1 && tallies[0].agreed * 5 >= tallies[0].judged, "{}: {tallies:?}", model.file.name());
        assert_eq!(tallies[0].judged, canary::JUDGED_TOKENS);
    }
}

#[test]
fn what_is_counted_is_what_decoding_would_draft() {
    let model = built_in();
    let tokens = encode(&model.tokenizer, PASSAGES[0]);
    let mut single = Single::new(executor(&model.model), &canary::limits());
    let mut agreed = 0;
    for (p, token) in tokens[..PASSAGE_TOKENS].iter().enumerate() {
        let draft = single.mtp(&[*token], 1, false).draft[0];
        let choice = single.trunk(&[*token], 1, Want::Choice).next[0];
        agreed += usize::from(p >= LEAD_TOKENS && draft == choice);
    }
    assert_eq!(listen(&model)[0].agreed, agreed);
}

#[test]
fn a_block_that_does_not_fit_is_caught_and_dropped_unless_forced() {
    for edit in [shuffled(), exchanged()].into_iter().flatten() {
        let mut model = opened(edit.file());
        let tallies = listen(&model);
        assert!(tallies.len() == PASSAGES.len() && tallies.iter().all(|t| !t.fits()), "{tallies:?}");
        let (options, pool) = (ExecOptions::default(), Arc::new(Pool::new(1)));
        let mut judge = |force| canary::judge(&mut model.model, &model.tokenizer, options, &pool, "edited.gguf", force);
        assert_eq!([judge(true), judge(false), judge(false)], [Verdict::Kept, Verdict::Dropped, Verdict::Absent]);
        let MtpStatus::Unavailable(reason) = &model.model.mtp else { panic!("{:?}", model.model.mtp) };
        assert!(reason.contains("edited.gguf") && reason.contains(&tallies[2].to_string()), "{reason}");
        assert!(model.model.program.mtp.is_none());
    }
}

#[test]
fn a_tally_is_judged_at_ten_percent() {
    let fits = |agreed, judged| Tally { agreed, judged }.fits();
    // A passage of which nothing is judged is not held against the block.
    assert_eq!([fits(6, 64), fits(7, 64), fits(0, 64), fits(0, 0)], [false, true, false, true]);
    assert_eq!(Tally { agreed: 6, judged: 64 }.to_string(), "6 of 64 (9.4 %)");
}

/// A running program, and the file that its stderr goes to.
struct Daemon {
    running: Running,
    log: PathBuf,
}

impl Daemon {
    fn start(folder: &Path, model: &Path, flags: &[&str]) -> Self {
        let log = folder.join("log");
        let stderr = Stdio::from(File::create(&log).unwrap());
        let flags = [&["--model", model.to_str().unwrap()], flags].concat();
        Self { running: Running::start_with(&flags, stderr), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn get(&self, path: &str) -> Answer {
        let mut client = Client::connect(self.running.address);
        client.send(get(path));
        client.answer()
    }

    fn meta(&self) -> Value {
        self.get("/v1/models").json()["data"][0]["meta"].clone()
    }

    fn metrics(&self) -> String {
        self.get("/metrics").text()
    }

    /// A greedy answer.
    fn complete(&self, speculative: Value) -> (u16, Value) {
        let body = json!({"prompt": "static int f(int x) {\n    return", "max_tokens": 48, "temperature": 0,
            "return_tokens": true, "speculative": speculative});
        let answer = ask(self.running.address, "/v1/completions", &body);
        (answer.status, answer.json())
    }
}

#[test]
fn the_daemon_turns_drafting_off_and_says_why() {
    let (Some(right), Some(edit)) = (fixture(MODEL), shuffled()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shuffled.gguf");
    std::fs::write(&file, edit.bytes()).unwrap();
    let mtp = json!({"strategy": "mtp", "window": {"policy": "fixed", "initial": 3}});

    let good = Daemon::start(folder.path(), &right, &[]);
    let (status, expected) = good.complete(mtp.clone());
    assert_eq!((status, &expected["speculation"]["mtp_unavailable"]), (200, &Value::Null));
    assert!(expected["speculation"]["proposers"]["mtp"]["accepted_n"].as_u64() > Some(0), "{expected}");
    assert!(!good.log().contains("WARN"), "{}", good.log());
    assert_eq!(good.meta()["strategy_default"], "mtp-suffix");
    assert!(good.metrics().contains("engine_mtp_info{state=\"ready\"} 1"));
    let text = &expected["choices"][0]["text"];

    // Named strategies lose their MTP half; the file and what may be wrong with it are told.
    for (flags, strategy) in [
        (&[][..], "ngram-suffix"),
        (&["--spec-strategy", "mtp-suffix"], "ngram-suffix"),
        (&["--spec-strategy", "mtp"], "off"),
        (&["--spec-strategy", "off"], "off"),
    ] {
        let daemon = Daemon::start(folder.path(), &file, flags);
        let log = daemon.log();
        for part in
            ["shuffled.gguf", "of 64 (", "another model", "eh_proj", "--mtp-norm", "quantisation", "--mtp-force"]
        {
            assert!(log.contains(part), "`{part}` is not in {log}");
        }
        let meta = daemon.meta();
        assert_eq!(
            (&meta["strategy_default"], &meta["strategies"]),
            (&json!(strategy), &json!(["off", "ngram-suffix"]))
        );
        assert!(meta["mtp_unavailable"].as_str().unwrap().contains("does not fit the model"));
        assert!(daemon.metrics().contains("engine_mtp_info{state=\"unfit\"} 1"));
        let (status, answer) = daemon.complete(Value::Null);
        let spec = &answer["speculation"];
        assert_eq!((status, &answer["choices"][0]["text"], &spec["strategy"]), (200, text, &json!(strategy)));
        assert_eq!(spec["mtp_unavailable"], meta["mtp_unavailable"]);
        let (status, refused) = daemon.complete(mtp.clone());
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("strategy_unavailable")));
        assert!(refused["error"]["message"].as_str().unwrap().contains("does not fit the model"), "{refused}");
    }

    let forced = Daemon::start(folder.path(), &file, &["--mtp-force"]);
    assert!(forced.log().contains("does not fit the model"), "{}", forced.log());
    assert_eq!(forced.meta()["strategy_default"], "mtp-suffix");
    let (status, answer) = forced.complete(mtp);
    assert_eq!((status, &answer["choices"][0]["text"]), (200, text));
    assert!(answer["speculation"]["proposers"]["mtp"]["drafted_n"].as_u64() > Some(0), "{answer}");
}
