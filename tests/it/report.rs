//! `engine-bench report`: pages are read back and every figure is held against the result it is from.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use engine::api::{Strategy, WindowPolicy};
use engine_bin::bench::counters::{Counters, DraftCounters, Position, ProposerCounters, TailCounters};
use engine_bin::bench::report::doc::Doc;
use engine_bin::bench::report::{csv, page};
use engine_bin::bench::result::{
    Arm, BenchResult, Bins, CostFacts, Lengths, MemoryFacts, Quantiles, RooflineFacts, SCHEMA, Settings, Spread, Times,
    TraceFacts, Void, WindowSettings, Workload,
};
use engine_bin::bench::sweep::facts::{Cell, Rung, SweepFacts};
use engine_io::digest::Sha256;
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use crate::serve::process::program;

/// A name that means harm to HTML, to SVG, to scripts, to JSON pointers and to tables.
const HOSTILE: &str = "</script><script>alert(1)</script><svg onload=alert(2)>\"'&amp;&#60;{{x}}/~1~0]]>,\u{202e}=1+1";

/// Elements of a page. None of them fetches, and none runs.
const ELEMENTS: [&str; 34] = [
    "html", "head", "meta", "title", "style", "body", "header", "section", "h1", "h2", "h3", "p", "b", "bdi", "div",
    "figure", "svg", "path", "rect", "circle", "text", "tspan", "ul", "li", "details", "summary", "table", "thead",
    "tbody", "tr", "th", "td", "script", "g",
];

fn bins(counts: [u64; 4]) -> Bins {
    let mut bins = Bins::default();
    for (length, n) in [0, 2, 5, 40].into_iter().zip(counts) {
        (0..n).for_each(|_| bins.add(length));
    }
    bins
}

fn quantiles(around: f64) -> Quantiles {
    Quantiles::of(&mut (0..100).map(|i| around * (1.0 + f64::from(i) / 37.0)).collect::<Vec<_>>())
}

/// An arm with a figure in every field.
fn arm(label: &str, strategy: Strategy, speed: f64) -> Arm {
    let drafts = DraftCounters {
        proposed_n: 41,
        trimmed_n: 1,
        drafted_n: 40,
        accepted_n: 23,
        rejected_n: 9,
        unreached_n: 7,
        discarded_n: 1,
    };
    let per_position = |len: u64| {
        (0..len).map(|i| Position { drafted: 20 - i, tested: Some(18 - 2 * i), accepted: 15 - 3 * i }).collect()
    };
    let lengths = Lengths {
        candidate_hist: bins([0, 11, 7, 3]),
        tested_hist: bins([1, 12, 6, 2]),
        accepted_hist: bins([4, 12, 4, 1]),
        per_position: per_position(5),
    };
    let off = strategy == Strategy::Off;
    let both =
        |value: &Lengths| BTreeMap::from([("mtp".to_owned(), value.clone()), (HOSTILE.to_owned(), value.clone())]);
    Arm {
        label: label.into(),
        strategy: Some(strategy),
        settings: Settings {
            mtp_tokens: Some(3),
            suffix_min: Some(5),
            suffix_max: Some(32),
            suffix_tokens: Some(16),
            window: WindowSettings {
                policy: Some(WindowPolicy::Fixed),
                initial: Some(16),
                min: Some(1),
                max: Some(32),
            },
        },
        decode_tok_s: Spread::of(vec![speed * 0.97, speed, speed * 1.05]),
        output_sha256: Some(Sha256::of(b"ids")),
        speedup: Some(speed / 100.0),
        total_tok_s: Spread::of(vec![speed * 0.8]),
        requests_n: 12,
        prompt_tokens: 123_456,
        speculation: Counters {
            completion_tokens: 60,
            steps_n: 37,
            windows_n: if off { 0 } else { 30 },
            total: if off { DraftCounters::default() } else { drafts },
            proposers: BTreeMap::from([
                ("mtp".to_owned(), ProposerCounters { drafts, ..ProposerCounters::default() }),
                (HOSTILE.to_owned(), ProposerCounters { drafts, lookups_n: 30, hits_n: 21, misses_n: 9, skipped_n: 2 }),
            ]),
            tail: TailCounters { windows_n: 5, tested_n: 4, drafted_tested_n: 30, accepted_n: 12 },
            per_position: if off { vec![] } else { per_position(4) },
            ..Counters::default()
        },
        shares: Counters { windows_n: 30, total: drafts, ..Counters::default() }.shares(),
        lengths: if off { BTreeMap::new() } else { both(&lengths) },
        emission_tokens_hist: bins([0, 20, 9, 2]),
        times: Times {
            ttft_ms: quantiles(31.0),
            queue_ms: quantiles(1.0),
            prompt_ms: quantiles(30.0),
            tpot_ms: quantiles(1000.0 / speed),
            emission_gap_ms: quantiles(0.0123),
            total_ms: quantiles(98_765.4),
            lookup_us: quantiles(0.31),
            index_ns_per_token: 9.5,
            mtp_draft_ms: 3.25,
        },
        pass_ms: BTreeMap::from([(1, quantiles(2.0)), (4, quantiles(2.5)), (17, quantiles(6.5))]),
        ..Arm::default()
    }
}

/// A result with every section, and hostile names wherever a file may have names.
fn result() -> BenchResult {
    let arms = |scale: f64| {
        let mut arms = vec![
            arm("off", Strategy::Off, 100.0 * scale),
            arm("ngram-suffix", Strategy::NgramSuffix, 142.5 * scale),
            arm(HOSTILE, Strategy::MtpSuffix, 171.25 * scale),
            arm("mtp", Strategy::Mtp, 250.0 * scale),
        ];
        arms[3].void = Some(Void {
            session: HOSTILE.into(),
            turn: 3,
            position: 17,
            expected: "token 5".into(),
            found: HOSTILE.into(),
        });
        arms.push(Arm { label: "server".into(), failed: Some(HOSTILE.into()), ..Arm::default() });
        arms
    };
    let facts = |source: &str| TraceFacts {
        source: source.into(),
        sessions_n: 13,
        left_out_n: 2,
        outputs_n: 40,
        prompt_tokens: 1_234_567,
        output_tokens: 60,
        ..TraceFacts::default()
    };
    let mut result = BenchResult {
        schema: SCHEMA.into(),
        mode: "forced".into(),
        cost: Some(CostFacts {
            origin: HOSTILE.into(),
            rows_ms: BTreeMap::from([(1, 2.0), (8, 3.1), (64, 17.77)]),
            draft_ms: 0.21,
        }),
        traces: vec![facts(HOSTILE), facts("aider")],
        arms: arms(1.0),
        workloads: vec![
            Workload { source: HOSTILE.into(), arms: arms(0.7) },
            Workload { source: "aider".into(), arms: arms(1.3) },
        ],
        memory: MemoryFacts {
            peak_rss_bytes: 123_456_789,
            executor_bytes: BTreeMap::from([("weights".to_owned(), 5 << 20), (HOSTILE.to_owned(), 7 << 20)]),
            suffix_index_bytes: 3 << 19,
        },
        roofline: Some(RooflineFacts {
            row_bytes: 5_123_456,
            memory_gb_s: 17.25,
            weights_gb_s: 41.5,
            rows_gb_s: BTreeMap::from([(1, 9.87), (8, 3.3), (64, 0.72)]),
        }),
        ..BenchResult::default()
    };
    (result.host.cpu, result.host.isa, result.host.cores) = (HOSTILE.into(), "avx2".into(), 2);
    (result.model.name, result.model.arch) = (HOSTILE.into(), "qwen35".into());
    result.model.tensor_tree_sha256 = Some(Sha256::of(b"tensors"));
    (result.run.repeats, result.run.concurrency, result.run.simulated) = (3, 1, true);
    let cell = |label: &str, strategy, speedup: f64| Cell {
        label: label.into(),
        strategy,
        settings: Settings::default(),
        decode_tok_s: Spread::of(vec![speedup * 100.0]),
        off_tok_s: 100.0,
        speedup,
        acceptance_rate: Some(0.4567),
        void: speedup < 1.0,
        kept: speedup > 1.2,
    };
    let cells = vec![
        cell(HOSTILE, Strategy::Mtp, 0.93),
        cell("ngram-suffix n3-16 t8 w8 fixed", Strategy::NgramSuffix, 1.41),
        cell("b", Strategy::MtpSuffix, 1.1),
    ];
    let rung = |sessions_n, cells: Vec<Cell>| Rung { sessions_n, cells_n: cells.len(), cells };
    result.sweep = Some(SweepFacts {
        done: true,
        rungs: vec![rung(1, cells.clone()), rung(3, cells[1..].to_vec())],
        keep_one_in: 3,
        first_sessions: 1,
        ..SweepFacts::default()
    });
    result
}

/// The page of a result, and the result as JSON.
fn page_of(result: &BenchResult) -> (String, Value) {
    let text = serde_json::to_string_pretty(result).unwrap();
    let doc = Doc::parse(text.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}"));
    (page::page(&doc), serde_json::from_str(&text).unwrap())
}

/// Reads a page as strictly as XML is read.
fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("the result has no number at {path}"))
}

/// What an element of a page says to be, by the result.
fn expected(node: Node<'_, '_>, result: &Value) -> f64 {
    let path = node.attribute("data-path").expect("it has a path");
    let over = node.attribute("data-over").map_or(1.0, |over| number(result, over));
    let scale: f64 = node.attribute("data-scale").map_or(1.0, |scale| scale.parse().expect("a number"));
    number(result, path) / over * scale
}

/// Holds what a page shows against the result inside of it, which is `result`. Gives the paths of its figures.
fn check(page: &str, result: &Value) -> Vec<String> {
    let document = parse(page);
    let scripts: Vec<_> = document.descendants().filter(|node| node.has_tag_name_any("script")).collect();
    assert_eq!(scripts.len(), 1);
    assert_eq!(scripts[0].attribute("type"), Some("application/json"));
    let inside: Value = serde_json::from_str(scripts[0].text().expect("it has text")).expect("it is JSON");
    assert_eq!(&inside, result);

    let mut paths = Vec::new();
    for node in document.descendants().filter(Node::is_element) {
        let tag = node.tag_name().name();
        assert!(ELEMENTS.contains(&tag), "an element {tag}");
        for attribute in node.attributes() {
            let name = attribute.name();
            assert!(
                !name.starts_with("on") && !["href", "src", "style", "srcset", "action"].contains(&name),
                "{tag} {name}"
            );
        }
        let Some(path) = node.attribute("data-path") else { continue };
        paths.push(path.to_owned());
        let value = result.pointer(path).unwrap_or_else(|| panic!("the result has nothing at {path}"));
        let text: String =
            node.descendants().filter_map(|node| node.is_text().then(|| node.text()).flatten()).collect();
        match value {
            Value::String(words) => match text.strip_suffix('…') {
                Some(start) if tag == "text" => assert!(words.starts_with(start), "{path}: {text}"),
                _ => assert_eq!(&text, words, "{path}"),
            },
            Value::Number(_) if matches!(tag, "rect" | "circle") => check_place(node, result),
            Value::Number(_) => check_text(&text, expected(node, result), path),
            other => panic!("{path} is {other}"),
        }
    }
    for node in document.descendants().filter(|node| node.is_text()) {
        let parent = node.parent_element().expect("text is in something");
        let told = parent.has_attribute("data-path") || parent.attribute("class").is_some_and(|c| c.contains("tick"));
        let figures = ["td", "b", "bdi", "text", "tspan"].contains(&parent.tag_name().name());
        let text = node.text().unwrap_or_default();
        assert!(told || !figures || !text.contains(|c: char| c.is_ascii_digit()), "{text} is from nowhere");
    }
    paths
}

/// A number as text is the value, as far as its digits go.
fn check_text(text: &str, value: f64, path: &str) {
    let plain: String = text.chars().filter(|c| *c != '\u{202f}').collect();
    let shown: f64 = plain.parse().unwrap_or_else(|_| panic!("{path}: {text} is no number"));
    let (digits, power) = plain.split_once('e').map_or((&*plain, 0), |(d, p)| (d, p.parse().expect("a power")));
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len()) as i32;
    let half = 0.5 * 10f64.powi(power - decimals) * (1.0 + 1e-9);
    assert!((shown - value).abs() <= half, "{path}: {text} is not {value}");
    assert!(shown != 0.0 || value == 0.0, "{path}: {value} is shown as nothing");
}

/// A mark lies where the axis of its picture puts its figure.
fn check_place(node: Node<'_, '_>, result: &Value) {
    let of = |node: Node<'_, '_>, name: &str| -> f64 { node.attribute(name).expect(name).parse().expect("a number") };
    let picture = node.ancestors().find(|node| node.has_attribute("data-axis")).expect("marks are in a picture");
    let (zero, unit) = (of(picture, "data-zero"), of(picture, "data-unit"));
    let size: Vec<f64> =
        picture.attribute("viewBox").expect("a size").split(' ').filter_map(|n| n.parse().ok()).collect();
    let (x, y, width, height) = match node.tag_name().name() {
        "circle" => (of(node, "cx"), of(node, "cy"), 0.0, 0.0),
        _ => (of(node, "x"), of(node, "y"), of(node, "width"), of(node, "height")),
    };
    let inside = x >= 0.0 && y >= 0.0 && x + width <= size[2] && y + height <= size[3];
    assert!(inside, "{:?} leaves its picture", node.attribute("data-path"));
    let place = zero + expected(node, result) * unit;
    let found = match (node.tag_name().name(), picture.attribute("data-axis")) {
        ("circle", Some("x")) => of(node, "cx"),
        ("circle", _) => of(node, "cy"),
        (_, Some("x")) => of(node, "x") + of(node, "width"),
        _ => zero - of(node, "height"),
    };
    assert!((place - found).abs() < 0.02, "{:?} lies at {found}, not at {place}", node.attribute("data-path"));
}

/// Lines go through the marks of their figures, and the line over a bar goes from the least round to the greatest.
fn check_lines(document: &Document<'_>, result: &Value, scopes: &[&str]) {
    let class =
        |node: &Node<'_, '_>, name: &str| node.attribute("class").is_some_and(|c| c.split(' ').any(|c| c == name));
    let drawn = |name: &'static str| document.descendants().filter(move |node| class(node, name));
    let picture =
        |node: Node<'_, '_>| node.ancestors().find(|node| node.has_attribute("data-axis")).map(|node| node.id().get());
    let of = |node: Node<'_, '_>, name: &str| node.attribute(name).expect(name).to_owned();
    let marks: Vec<_> = drawn("mark").filter(|node| node.attribute("r") == Some("2.6")).collect();
    let points = drawn("line").filter(|line| picture(*line).is_some()).flat_map(|line| {
        let path = of(line, "d").trim_start_matches('M').to_owned();
        path.split('L').map(|point| (picture(line), point.to_owned())).collect::<Vec<_>>()
    });
    let places = marks.iter().map(|mark| (picture(*mark), format!("{} {}", of(*mark, "cx"), of(*mark, "cy"))));
    let (mut points, mut places): (Vec<_>, Vec<_>) = (points.collect(), places.collect());
    points.sort();
    places.sort();
    assert!(!points.is_empty() && points == places, "lines go elsewhere than through their marks");

    let whiskers: Vec<_> = drawn("whisker").collect();
    assert_eq!(whiskers.len(), 4 * scopes.len(), "one for every arm with figures");
    for (n, whisker) in whiskers.into_iter().enumerate() {
        let picture = whisker.ancestors().find(|node| node.has_attribute("data-axis")).expect("it is in a picture");
        let path = of(whisker, "d");
        let (from, to) = (path[1..].split(' ').next(), path.split('H').nth(1).and_then(|rest| rest.split('M').next()));
        for (place, name) in [(from, "min"), (to, "max")] {
            let place: f64 = place.and_then(|place| place.parse().ok()).expect("a place");
            let figure = number(result, &format!("{}/{}/decode_tok_s/{name}", scopes[n / 4], n % 4));
            let (zero, unit): (f64, f64) =
                (of(picture, "data-zero").parse().unwrap(), of(picture, "data-unit").parse().unwrap());
            assert!(
                (zero + figure * unit - place).abs() < 0.02,
                "{name} of {path} is not that of {}/{}",
                scopes[n / 4],
                n % 4
            );
        }
    }
}

trait AnyNamespace {
    fn has_tag_name_any(&self, name: &str) -> bool;
}

impl AnyNamespace for Node<'_, '_> {
    fn has_tag_name_any(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

/// Numbers and names of a page are those of the result, marks lie where they should, and names do no harm.
#[test]
fn a_page_shows_what_the_result_says() {
    let result = result();
    let (page, value) = page_of(&result);
    let paths = check(&page, &value);
    let shown = |path: &str| paths.iter().any(|shown| shown == path);
    for scope in ["/arms", "/workloads/0/arms", "/workloads/1/arms"] {
        for arm in 0..4 {
            for rest in [
                "label",
                "decode_tok_s/median",
                "decode_tok_s/min",
                "decode_tok_s/max",
                "speedup",
                "times/ttft_ms/p50",
                "times/tpot_ms/p99",
                "speculation/drafted_n",
            ] {
                assert!(shown(&format!("{scope}/{arm}/{rest}")), "{scope}/{arm}/{rest} is not shown");
            }
        }
        assert!(shown(&format!("{scope}/4/failed")) && shown(&format!("{scope}/3/void/found")));
    }
    let hostile = HOSTILE.replace('~', "~0").replace('/', "~1");
    for path in [
        "/model/name".to_owned(),
        "/host/cpu".to_owned(),
        "/cost/rows_ms/64".to_owned(),
        "/cost/origin".to_owned(),
        "/traces/0/source".to_owned(),
        "/memory/peak_rss_bytes".to_owned(),
        "/roofline/row_bytes".to_owned(),
        "/roofline/memory_gb_s".to_owned(),
        "/roofline/weights_gb_s".to_owned(),
        "/roofline/rows_gb_s/8".to_owned(),
        format!("/memory/executor_bytes/{hostile}"),
        format!("/arms/2/lengths/{hostile}/per_position/4/accepted"),
        format!("/arms/2/lengths/{hostile}/tested_hist/4-7"),
        "/arms/1/pass_ms/17/p95".to_owned(),
        "/arms/2/settings/window/policy".to_owned(),
        "/sweep/rungs/0/cells/0/speedup".to_owned(),
        "/sweep/rungs/1/cells/1/acceptance_rate".to_owned(),
    ] {
        assert!(shown(&path), "{path} is not shown");
    }
    assert!(paths.len() > 1000, "{} figures", paths.len());
    let document = parse(&page);
    check_lines(&document, &value, &["/arms", "/workloads/0/arms", "/workloads/1/arms"]);
    // The greatest speed is that of an arm that is void.
    let fastest = document.descendants().find(|node| node.text().is_some_and(|text| text.starts_with("Fastest")));
    let named = fastest.and_then(|node| node.descendants().find_map(|node| node.attribute("data-path")));
    assert_eq!(named, Some("/arms/2/label"));
    assert_eq!(document.descendants().filter(|node| node.attribute("class") == Some("mark pale s3")).count(), 3);
    assert!(page.contains("simulated: the recorded"));
    for (cell, fate) in ["void", "went on", "stayed behind"].into_iter().enumerate() {
        let path = format!("/sweep/rungs/0/cells/{cell}/label");
        let label =
            document.descendants().find(|node| node.attribute("data-path") == Some(&path)).expect("it is shown");
        let row = label.ancestors().find(|node| node.has_tag_name_any("tr")).expect("in a table");
        assert_eq!(row.last_element_child().and_then(|last| last.text()), Some(fate), "{path}");
    }
    let policy = "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\"";
    assert!(page.contains(policy));
    for fetched in ["http:", "https:", "url(", "@import", "//"] {
        let page = page.replace("http://www.w3.org/1999/xhtml", "").replace("http://www.w3.org/2000/svg", "");
        let (before, _) = page.split_once("<script").expect("the result is at the end");
        assert!(!before.contains(fetched), "{fetched} in the page");
    }
}

/// A page that says something else than its result is caught, whatever it lies about.
#[test]
fn a_page_that_lies_is_caught() {
    let (page, value) = page_of(&result());
    check(&page, &value);
    for (truth, lie) in [
        (
            "data-path=\"/arms/1/decode_tok_s/median\">142.5</td>",
            "data-path=\"/arms/1/decode_tok_s/median\">142.6</td>",
        ),
        (
            "data-path=\"/arms/1/decode_tok_s/median\">142.5</td>",
            "data-path=\"/arms/2/decode_tok_s/median\">142.5</td>",
        ),
        ("data-axis=\"x\" data-zero=\"", "data-axis=\"x\" data-zero=\"1"),
        ("data-axis=\"y\" data-zero=\"", "data-axis=\"y\" data-zero=\"1"),
        ("data-scale=\"100\"", "data-scale=\"10\""),
        ("data-over=\"", "data-over=\"/run/repeats\" title=\""),
        ("</header>", "<img src=\"x\"/></header>"),
        ("<h1>", "<h1 onclick=\"x\">"),
        ("<td>–</td>", "<td>7</td>"),
        ("<bdi data-path=\"/model/name\">&lt;", "<bdi data-path=\"/model/name\">"),
        ("<bdi data-path=\"/model/name\">&lt;", "<bdi data-path=\"/model/name\"><"),
        ("\"mode\": \"forced\"", "\"mode\": \"other\""),
    ] {
        assert!(page.contains(truth), "the page has no {truth}");
        let page = page.replacen(truth, lie, 1);
        let caught = std::panic::catch_unwind(|| check(&page, &value));
        assert!(caught.is_err(), "{lie} passes for {truth}");
    }
}

/// A page says nothing of what was not measured, whatever that is.
#[test]
fn results_that_lack_most_have_a_page() {
    let bare = BenchResult { schema: SCHEMA.into(), ..BenchResult::default() };
    let (page, value) = page_of(&bare);
    check(&page, &value);
    assert!(!page.contains("<figure"), "there is nothing to draw");
    assert!(!page.contains("simulated: the recorded"), "times are those of passes that ran");
    let mut one = BenchResult { arms: vec![Arm { label: "server".into(), ..Arm::default() }], ..bare.clone() };
    one.arms[0].decode_tok_s.median = 12.5;
    let (page, value) = page_of(&one);
    let paths = check(&page, &value);
    assert!(paths.contains(&"/arms/0/decode_tok_s/median".to_owned()));
    // A sweep on its way has cells and no arms.
    let unfinished = BenchResult {
        arms: vec![],
        workloads: vec![],
        sweep: Some(SweepFacts { done: false, ..result().sweep.unwrap() }),
        ..result()
    };
    let (page, value) = page_of(&unfinished);
    let paths = check(&page, &value);
    assert!(page.contains("It is not done") && paths.contains(&"/sweep/rungs/1/cells/0/speedup".to_owned()));
}

/// Numbers of any size are drawn inside of their picture.
#[test]
fn numbers_without_measure_are_drawn() {
    for speed in [0.0, 1e-300, 1e18, 1e305] {
        let mut result = result();
        result.arms.truncate(1);
        (result.workloads, result.sweep) = (vec![], None);
        result.arms[0].decode_tok_s = Spread { median: speed, min: speed, max: speed, rounds: vec![speed, speed] };
        result.arms[0].speedup = Some(speed);
        let (page, value) = page_of(&result);
        check(&page, &value);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{speed}");
    }
}

/// Rows of CSV text, by a reader of its own.
fn rows(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (vec![], vec![], String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(!quoted && row.is_empty() && field.is_empty(), "the last row ends");
    rows
}

#[test]
fn tables_have_the_result_s_figures() {
    let (text, result) = (serde_json::to_vec(&result()).unwrap(), result());
    let files: BTreeMap<&str, String> = csv::files(&Doc::parse(text).unwrap()).into_iter().collect();
    let names = ["arms", "cells", "cost", "lengths", "memory", "passes", "positions", "roofline", "traces"];
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), names.map(|name| format!("{name}.csv")));
    let table = |name: &str| {
        let rows = rows(&files[name]);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{name}: rows of one length");
        rows
    };
    let arms = table("arms.csv");
    assert_eq!(arms.len(), 1 + 3 * 5);
    let column = |name: &str| arms[0].iter().position(|column| column == name).unwrap_or_else(|| panic!("{name}"));
    let row = &arms[1 + 5 + 2];
    assert_eq!((row[0].as_str(), row[1].as_str()), (HOSTILE, HOSTILE));
    let arm = &result.workloads[0].arms[2];
    let same = |name: &str, value: f64| assert_eq!(row[column(name)].parse(), Ok(value), "{name}");
    same("decode_tok_s.median", arm.decode_tok_s.median);
    assert_eq!(row[column("speculation.accepted_n")], "23");
    assert_eq!(row[column("settings.window.policy")], "fixed");
    same("times.ttft_ms.p99", arm.times.ttft_ms.p99);
    assert_eq!(arms[5][column("speedup")], "", "what was not measured is empty");
    assert_eq!(table("cost.csv")[3], ["64", "17.77"]);
    assert_eq!(
        table("roofline.csv")[2..],
        [["pass", "8", "3.3"], ["pass", "64", "0.72"], ["memory", "", "17.25"], ["weights", "", "41.5"]]
    );
    let rooms = table("memory.csv");
    for (what, bytes) in [("peak_rss_bytes", "123456789"), ("weights", "5242880"), (HOSTILE, "7340032")] {
        assert!(rooms.contains(&vec![what.to_owned(), bytes.to_owned()]), "{what}: {rooms:?}");
    }
    let positions = table("positions.csv");
    assert!(positions.contains(&["all", "ngram-suffix", "mtp", "2", "19", "16", "12"].map(str::to_owned).to_vec()));
    assert!(table("lengths.csv").iter().any(|row| row[3] == "committed at once"));
    assert_eq!(table("cells.csv").len(), 1 + 3 + 2);
    // Of one workload too there are rows over all, so that who reads the tables finds them.
    let one = BenchResult { workloads: result.workloads[..1].to_vec(), ..result };
    let files: BTreeMap<&str, String> =
        csv::files(&Doc::parse(serde_json::to_vec(&one).unwrap()).unwrap()).into_iter().collect();
    let named: Vec<String> = rows(&files["arms.csv"]).into_iter().map(|mut row| row.remove(0)).collect();
    assert_eq!(named.iter().filter(|name| *name == "all").count(), 5);
    assert_eq!(named.iter().filter(|name| *name == HOSTILE).count(), 5);
}

/// Runs the verb: exit code, stdout, stderr.
fn report(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-bench")).arg("report").args(flags).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_verb_writes_and_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, html, csv) = (path("replay.json"), path("out/page.html"), path("tables"));
    fs::write(&json, serde_json::to_vec_pretty(&result()).unwrap()).unwrap();
    let (code, out, error) = report(&[&json, "--html", &html, "--csv", &csv, "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let written: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(written["html"], html.as_str());
    assert_eq!(written["csv"].as_array().unwrap().len(), 9);
    check(&fs::read_to_string(&html).unwrap(), &serde_json::from_slice(&fs::read(&json).unwrap()).unwrap());

    fs::write(path("other.json"), r#"{"schema":"other/2"}"#).unwrap();
    fs::write(path("torn.json"), r#"{"schema":"slipstream-bench/1","#).unwrap();
    let taken = folder.path().display().to_string();
    for (flags, expected, word) in [
        (vec![json.as_str()], 2, "--html"),
        (vec![&path("absent.json"), "--html", &html], 3, "absent.json: cannot open"),
        (vec![&path("other.json"), "--html", &html], 3, "schema is \"other/2\""),
        (vec![&path("torn.json"), "--html", &html], 3, "is no slipstream-bench/1 result"),
        (vec![&json, "--html", &taken], 1, "cannot be written"),
    ] {
        let (code, out, error) = report(&flags);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{flags:?}: {error}");
        assert!(error.contains(word), "{flags:?}: {error} does not say {word}");
    }
}
