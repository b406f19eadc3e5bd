//! The section of the page about a sweep: its rungs and their cells.

use super::doc::Doc;
use super::markup::{Table, inline};
use super::page::{legend, picture, plots, section};
use super::plot::{Axes, Label, Series, lines};

/// Every cell of every rung.
pub fn sweep(doc: &Doc) -> String {
    let Some(sweep) = &doc.result.sweep else { return String::new() };
    let mut table = Table::new(&[
        "cell",
        "rung",
        "sessions of each source",
        "tokens a second",
        "those of off",
        "times off",
        "% of drafts accepted",
        "what became of it",
    ]);
    let strategies = &sweep.grid.strategies;
    let mut series: Vec<Series> =
        (0..strategies.len()).map(|style| Series { style: style + 1, points: Vec::new(), joined: false }).collect();
    for (r, rung) in sweep.rungs.iter().enumerate() {
        for (c, cell) in rung.cells.iter().enumerate() {
            let at = |name: &str| format!("/sweep/rungs/{r}/cells/{c}/{name}");
            let fate = match (cell.void, cell.kept) {
                (true, _) => "void",
                (false, true) => "went on",
                (false, false) => "stayed behind",
            };
            table.row().named(doc.words(at("label")).as_ref()).head(&(r + 1).to_string());
            table.figure(doc.figure(format!("/sweep/rungs/{r}/sessions_n")));
            for name in ["decode_tok_s/median", "off_tok_s", "speedup"] {
                table.figure(doc.figure(at(name)));
            }
            table.figure(doc.figure(at("acceptance_rate")).map(|figure| figure.percent())).head(fate);
            let Some(s) = strategies.iter().position(|strategy| *strategy == cell.strategy) else { continue };
            // Side by side, so that strategies do not cover each other.
            let x = (r + 1) as f64 + 0.2 * s as f64;
            series[s].points.extend(doc.figure(at("speedup")).map(|figure| (x, figure)));
        }
    }
    let entries: Vec<(usize, Label)> =
        (0..strategies.len()).map(|s| (s + 1, Label::of(doc.words(format!("/sweep/grid/strategies/{s}"))))).collect();
    let axes = Axes { title: "Cells by rung", x: "rung", y: "times the speed of off" };
    let plot = lines(&axes, &series, false);
    let number = |name: &str| doc.figure(format!("/sweep/{name}")).map(|figure| inline(&figure)).unwrap_or_default();
    let state = if sweep.done {
        "The arms above are its finalists, side by side over all sessions."
    } else {
        "It is not done: there are no arms yet, and no package takes this result."
    };
    let how = format!(
        "<p>The first rung replayed at most {} sessions of each source; one in {} cells of every strategy went on to the \
         next, which had as many times the sessions. {state}</p>",
        number("first_sessions"),
        number("keep_one_in"),
    );
    let pictures = plots(&[picture("Cells by rung", &legend(&entries), &plot, table)]);
    section(
        "The sweep",
        "Every dot is a cell, a strategy with its settings, run beside plain decoding: the higher, the faster.",
        &(how + &pictures),
    )
}
