//! A roofline to read.

use std::fmt::Write as _;

use super::{ModelRoof, Roofline};

/// As lines.
pub fn text(roofline: &Roofline) -> String {
    let mut out = String::new();
    lines(roofline, &mut out).expect("a string takes every text");
    out
}

fn lines(roofline: &Roofline, out: &mut String) -> std::fmt::Result {
    let Roofline { machine, formats, model, .. } = roofline;
    writeln!(out, "{}, all threads are {}", machine.isa, machine.threads)?;
    for read in &machine.reads {
        let pages = match (read.huge_pages, machine.huge_share) {
            (true, Some(share)) => format!("huge pages ({:.0} % given)", 100.0 * share),
            (true, None) => "huge pages".to_owned(),
            (false, _) => "small pages".to_owned(),
        };
        writeln!(out, "read     {:>3} thread(s) {:>9.2} GB/s  {pages}", read.threads, read.gb_s)?;
    }
    for peak in &machine.peaks {
        let (threads, int8, fma) = (peak.threads, peak.int8_g, peak.fma_g);
        writeln!(out, "peak     {threads:>3} thread(s) {int8:>9.1} G/s of int8, {fma:.1} G/s of f32")?;
    }
    writeln!(out, "\nformat   bytes a weight     G/s  ridge rows")?;
    for f in formats {
        writeln!(out, "{:<8} {:>14.4} {:>7.1} {:>11.1}", f.format, f.weight_bytes, f.kernel_g, f.ridge_rows)?;
    }
    model.as_ref().map_or(Ok(()), |model| model_lines(model, out))
}

fn model_lines(model: &ModelRoof, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n{}", model.name)?;
    let megabytes = model.row_bytes as f64 / 1e6;
    let ModelRoof { read_gb_s, bound_tok_s, decode_tok_s, prefill_tok_s, .. } = model;
    writeln!(out, "a step of one row reads {megabytes:.1} MB: at {read_gb_s:.2} GB/s, {bound_tok_s:.2} tok/s at most")?;
    writeln!(out, "decode   {decode_tok_s:>9.2} tok/s, {:.1} % of that", 100.0 * model.decode_share)?;
    writeln!(out, "prefill  {prefill_tok_s:>9.2} tok/s, {:.1} % of the peak", 100.0 * model.prefill_share)?;
    for (rows, ms) in &model.rows_ms {
        let cost = model.cost.get(rows).copied().unwrap_or(f64::NAN);
        writeln!(out, "{rows:>4} rows {ms:>11.3} ms, c = {cost:.3}")?;
    }
    Ok(())
}
