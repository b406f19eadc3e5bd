//! Documents and streams: manifests of packages, traces of every program, server-sent events.

use std::io::BufReader;
use std::path::Path;

use engine_bin::bench::replay::live::sse::Events;
use engine_io::Package;
use engine_io::package::check;
use engine_io::trace::{Format, import, jsonl};
use serde_json::{Value, json};

use super::{Damage, Reader, Target};

pub(super) const MANIFEST: Target = Target {
    name: "manifest",
    seeds: || vec![manifest().to_string().into_bytes()],
    words: &[
        "schema_version",
        "model_id",
        "layer-package",
        "layers",
        "layer_index",
        "layer_count",
        "shared",
        "path",
        "sha256",
        "tensor_bytes",
        "artifact_bytes",
        "generation",
        "speculative_decoding",
        "strategies",
        "default",
        "native-mtp",
        "mtp",
        "ngram-suffix",
        "mtp-suffix",
        "proposers",
        "window_policy",
        "max_draft_tokens",
        "layer_indices",
        "../x",
        "/x",
        "a\\b",
    ],
    damage: Damage::Json,
    reader: || {
        Box::new(|bytes| {
            let Ok(manifest) = Package::parse(bytes) else { return false };
            // All that is wrong, whatever that is.
            let _ = check::manifest(&manifest);
            let _ = engine_bin::menu::of_package(&manifest);
            // What was read is written, and is read the same again.
            let text = serde_json::to_vec(&manifest).expect("a manifest serialises");
            assert_eq!(Package::parse(&text).expect("what was written is read"), manifest);
            true
        })
    },
};

fn manifest() -> Value {
    let artifact = |path: &str| json!({"path": path, "tensor_count": 1, "tensor_bytes": 64, "artifact_bytes": 256, "sha256": "0".repeat(64)});
    let layer = |index: u32| {
        let mut layer = artifact(&format!("layers/layer-{index:05}.gguf"));
        layer["layer_index"] = index.into();
        layer
    };
    json!({
        "schema_version": 1,
        "model_id": "someone/some-model:Q4_K_M",
        "source_model": {"path": "m.gguf", "sha256": "f".repeat(64), "repo": "someone/some-model", "revision": "main",
            "files": [{"path": "m.gguf", "size_bytes": 9, "sha256": "f".repeat(64)}]},
        "format": "layer-package",
        "layer_count": 2,
        "activation_width": 64,
        "shared": {"metadata": artifact("shared/metadata.gguf"), "embeddings": artifact("shared/embeddings.gguf"),
            "output": artifact("shared/output.gguf")},
        "layers": [layer(0), layer(1)],
        "generation": {"speculative_decoding": {
            "default": "mtp-suffix",
            "proposers": {
                "s": {"type": "ngram-suffix", "ngram_min": 3, "ngram_max": 64, "max_proposal_tokens": 48,
                    "history_scope": "request"},
                "m": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [1], "max_draft_tokens": 3}},
            "strategies": {
                "ngram-suffix": {"type": "ngram-suffix", "proposer": "s", "window_policy":
                    {"default": "fixed", "initial_window": 4, "min_window": 1, "max_window": 8, "pipeline_depth": 1}},
                "mtp": {"type": "native-mtp", "proposer": "m"},
                "mtp-suffix": {"type": "mtp-suffix", "proposers": ["m", "s"]}}}},
        "skippy_abi_version": "12",
        "created_at_unix_secs": 1_780_000_000_u64,
        "provenance": {"schema": "package-provenance/1", "sources": []}
    })
}

/// The importer of one program's traces.
const fn traces(name: &'static str, seeds: fn() -> Vec<Vec<u8>>, damage: Damage, reader: fn() -> Reader) -> Target {
    Target { name, seeds, words: WORDS, damage, reader }
}

/// Names and values that traces are made of.
const WORDS: &[&str] = &[
    "\n",
    "\n{",
    "messages",
    "history",
    "traj",
    "role",
    "content",
    "assistant",
    "user",
    "system",
    "developer",
    "tool",
    "text",
    "type",
    "tool_calls",
    "tool_call_id",
    "tool_call_ids",
    "function",
    "name",
    "arguments",
    "id",
    "weight",
    "info",
    "trajectory_format",
    "source",
    "agent",
    "action",
    "observation",
    "args",
    "tool_call_metadata",
    "model_response",
    "choices",
    "message",
    "task_id",
    "trial",
    "is_demo",
    "schema",
    "slipstream-trace/1",
    "turns",
    "requests",
    "tokens",
    "output",
    "# aider chat started at 2024-01-01 10:00:00\n",
    "#### ",
    "> ",
    "<div class=\"chat-transcript\" markdown=\"1\">\n",
    "</div>",
    "---\n",
];

pub(super) const SLIPSTREAM: Target =
    traces("trace-slipstream", || lines(&OWN), Damage::Json, || importer(Format::Slipstream));
pub(super) const OPENAI: Target = traces("trace-openai", || lines(&CHATS), Damage::Json, || importer(Format::Openai));
pub(super) const OPENHANDS: Target =
    traces("trace-openhands", || lines(&HANDS), Damage::Json, || importer(Format::Openhands));
pub(super) const SWE_AGENT: Target =
    traces("trace-swe-agent", || lines(&[SWE]), Damage::Json, || importer(Format::SweAgent));
pub(super) const MINI_SWE_AGENT: Target =
    traces("trace-mini-swe-agent", || lines(&MINI), Damage::Json, || importer(Format::MiniSweAgent));
pub(super) const TAU_BENCH: Target =
    traces("trace-tau-bench", || lines(&[TAU]), Damage::Json, || importer(Format::TauBench));
pub(super) const AIDER: Target = traces("trace-aider", || lines(&LOGS), Damage::Bytes, || importer(Format::Aider));

fn lines(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

const OWN: [&str; 2] = [
    r#"{"schema":"slipstream-trace/1","id":"a","source":"s","turns":[{"role":"user","text":"hi"},{"role":"assistant","text":"yes","output":true,"tokens":[5,6]}],"requests":[{"turn":1,"model":"m","seed":18446744073709551615,"prompt_tokens":[1,2],"finish_reason":"stop","settings":{"temperature":0.5}}]}"#,
    r#"{"schema":"slipstream-trace/1","id":"a","source":"s","turns":[{"role":"tool","text":"r","tool":{"call_id":"c","name":"n"}}]}"#,
];
const CHATS: [&str; 2] = [
    r#"{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Ro"},{"type":"text","text":"me?"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"find","arguments":"{\"q\":\"Rome\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"41.9 N"},{"role":"assistant","content":"There.","refusal":null}]}"#,
    r#"{"id":"second","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"said","weight":1}]}"#,
];
const HANDS: [&str; 2] = [
    r#"{"instance_id":"a-1","history":[{"source":"agent","action":"system","args":{"content":"You are.","tools":[]}},{"source":"user","action":"message","args":{"content":"Fix it."}},{"source":"agent","action":"run","args":{"command":"ls"},"tool_call_metadata":{"tool_call_id":"t","model_response":{"id":"r1","choices":[{"message":{"role":"assistant","content":"I look.","tool_calls":[{"id":"t","function":{"name":"execute_bash","arguments":"{\"command\":\"ls\"}"}}]}}]}}},{"source":"agent","observation":"run","content":"a.py"},{"source":"agent","action":"finish","args":{"final_thought":"Done.","outputs":{}}}]}"#,
    r#"{"history":[{"action":"message","content":"Fix it."},[{"action":"run","thought":"So.","command":"ls"},{"observation":"run","content":"a.py","exit_code":0}],{"action":"message","content":"Done."}]}"#,
];
const SWE: &str = r#"{"environment":"swe","info":{},"history":[{"role":"system","content":"You edit."},{"role":"assistant","content":"shown","is_demo":true},{"role":"assistant","content":"I look.","thought":"I look.","action":"ls","tool_calls":[{"function":{"name":"bash","arguments":{"command":"ls"}},"id":"c","type":"function"}]},{"role":"tool","content":"a.py","tool_call_ids":["c"]}]}"#;
const MINI: [&str; 2] = [
    r#"[{"role":"user","content":"do"},{"role":"assistant","content":"done"}]"#,
    r#"{"info":{},"messages":[{"role":"user","content":"do"},{"role":"assistant","content":"done"}],"trajectory_format":"mini-swe-agent-1"}"#,
];
const TAU: &str = r#"[{"task_id":1,"trial":0,"reward":1.0,"traj":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yes?"},{"role":"tool","name":"f","tool_call_id":"c","content":"1"}]}]"#;
const LOGS: [&str; 2] = [
    "\n# aider chat started at 2024-01-01 10:00:00\n\n> Git repo: .git  \n>   \n\n#### add a line  \n#### to it  \n\nHere:\n\n```\n#### not\n```\n\n> Applied edit to a.py  \n\nAnd more.\n",
    "---\ntitle: x\n---\n\nA foreword.\n\n<div class=\"chat-transcript\" markdown=\"1\">\n\n> $ aider\n\n#### hi\n\nHello.\n</div>\n",
];

fn importer(format: Format) -> Reader {
    Box::new(move |bytes| {
        let Ok(trace) = import(BufReader::with_capacity(7, bytes), format, Path::new("input")) else { return false };
        // What was imported is written as a recording of ours, which is read.
        let mut out = Vec::new();
        for session in &trace.sessions {
            jsonl::write(&mut out, session).expect("memory takes it");
        }
        let back = import(&out[..], Format::Slipstream, Path::new("input")).expect("what was written is read");
        let turns = |sessions: &[engine_io::trace::Session]| sessions.iter().map(|s| s.turns.len()).sum::<usize>();
        // Sessions of one name are joined.
        assert!(turns(&back.sessions) <= turns(&trace.sessions) && back.torn.is_none());
        !trace.sessions.is_empty()
    })
}

pub(super) const EVENTS: Target = Target {
    name: "events",
    seeds: || {
        lines(&[
            ": hello\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:b\r\ndata: c\r\n\r\n\n\n: ping\nretry: 5\ndata: \u{e9}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"index\":0}]}\n\ndata: [DONE]\n\n",
        ])
    },
    words: &["\n", "\r\n", "\r", "\n\n", "data", "data:", "data: ", ":", "event: ", "id", "\u{feff}", "\0", "[DONE]"],
    damage: Damage::Bytes,
    reader: || {
        Box::new(|bytes| {
            let whole = events(bytes, bytes.len().max(1));
            // How the bytes come cut must not matter.
            for piece in [1, 2, 7] {
                assert_eq!(events(bytes, piece), whole, "in pieces of {piece}");
            }
            whole.is_ok_and(|events| !events.is_empty())
        })
    },
};

fn events(bytes: &[u8], piece: usize) -> Result<Vec<String>, String> {
    let mut events = Events::new(BufReader::with_capacity(piece, bytes));
    let mut out = Vec::new();
    while let Some(data) = events.read().map_err(|error| error.to_string())? {
        out.push(data);
    }
    Ok(out)
}
