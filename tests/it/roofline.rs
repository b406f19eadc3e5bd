//! `engine-bench roofline`: what it reports, and what it refuses.

use std::process::Command;

use engine_tests::fixtures::fixture;
use serde_json::Value;

use crate::serve::process::program;

fn roofline(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-bench")).arg("roofline").args(flags).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn report(flags: &[&str]) -> Value {
    let (code, out, error) = roofline(&[flags, &["--json"]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""), "{flags:?}: {out}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{flags:?}: {error}: {out}"))
}

/// A figure, which is more than nothing.
fn figure(of: &Value, name: &str) -> f64 {
    let value = of[name].as_f64().unwrap_or_else(|| panic!("{name} of {of}"));
    assert!(value > 0.0 && value.is_finite(), "{name} of {of}");
    value
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

#[test]
fn a_machine_has_reads_peaks_and_ridges() {
    let found = report(&["--threads", "2", "--formats", "q4_K,Q8_0"]);
    assert_eq!((&found["schema"], &found["model"]), (&"slipstream-roofline/1".into(), &Value::Null));
    let machine = &found["machine"];
    let reads: Vec<_> = machine["reads"].as_array().unwrap().iter().collect();
    let kinds = reads.iter().map(|read| (read["threads"].as_u64().unwrap(), read["huge_pages"].as_bool().unwrap()));
    assert_eq!(kinds.collect::<Vec<_>>(), [(1, true), (2, true), (1, false), (2, false)]);
    let read = reads.iter().filter(|read| read["threads"] == 2).map(|read| figure(read, "gb_s")).fold(0.0, f64::max);
    let peaks = machine["peaks"].as_array().unwrap();
    assert_eq!(peaks.iter().map(|peak| peak["threads"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);

    let formats = found["formats"].as_array().unwrap();
    assert_eq!(formats.iter().map(|f| f["format"].as_str().unwrap()).collect::<Vec<_>>(), ["Q4_K", "Q8_0"]);
    for (format, bytes) in formats.iter().zip([144.0 / 256.0, 34.0 / 32.0]) {
        assert!(near(figure(format, "weight_bytes"), bytes), "{format}");
        assert!(near(figure(format, "ridge_rows"), figure(format, "kernel_g") / (read / bytes)), "{format}");
        // No kernel is faster than the instructions that it is made of. A clock that others share is no exact one.
        assert!(figure(format, "kernel_g") < 1.5 * figure(&peaks[1], "int8_g"), "{format}, {}", peaks[1]);
    }
    peaks.iter().for_each(|peak| assert!(figure(peak, "fma_g") < figure(peak, "int8_g"), "{peak}"));
}

#[test]
fn a_model_is_held_against_the_machine() {
    let Some(path) = fixture("qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf") else { return };
    let path = path.to_str().unwrap();
    let flags = ["--model", path, "--threads", "1", "--formats", "Q8_0", "--prefill", "32", "--decode", "8"];
    let found = report(&flags);
    let model = &found["model"];
    assert_eq!(model["name"], path);
    assert!(near(figure(model, "bound_tok_s"), figure(model, "read_gb_s") * 1e9 / figure(model, "row_bytes")));
    assert!(near(figure(model, "decode_share"), figure(model, "decode_tok_s") / figure(model, "bound_tok_s")));
    for name in ["rows_ms", "cost"] {
        let rows: Vec<_> = model[name].as_object().unwrap().keys().map(|rows| rows.parse::<u32>().unwrap()).collect();
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 4, 8, 16, 32], "{name}");
    }
    assert!(near(figure(&model["cost"], "8"), figure(&model["rows_ms"], "8") / figure(&model["rows_ms"], "1")));
    assert!(figure(model, "prefill_tok_s") > 0.0 && figure(model, "prefill_share") < 1.0);

    let (code, text, error) = roofline(&flags);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    for part in
        [path, "GB/s", "G/s of int8", "ridge rows", "Q8_0", "tok/s at most", "% of the peak", "32 rows", "c = 1.000"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn flags_that_ask_for_nothing_are_refused() {
    for (flags, code, parts) in [
        (&["--formats", "Q9_9"][..], 2, &["Q9_9", "expected one of F32, F16", "Q4_K"][..]),
        (&["--threads", "0"], 2, &["--threads", "from 1 to 1024"]),
        (&["--prefill", "0"], 2, &["--prefill", "from 1 to"]),
        (&["--decode", "0"], 2, &["--decode", "from 1 to"]),
        (&["--rows", "4"], 2, &["--rows"]),
        (&["--model", "no/such.gguf"], 3, &["no/such.gguf", "No such file"]),
    ] {
        let (found, out, error) = roofline(flags);
        assert_eq!((found, out.as_str()), (Some(code), ""), "{flags:?}: {error}");
        parts.iter().for_each(|part| assert!(error.contains(part), "{flags:?}: no {part} in {error}"));
    }
}
