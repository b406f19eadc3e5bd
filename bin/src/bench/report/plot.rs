//! Plots as SVG: bars, ranges, lines and columns over an axis that begins at zero.
//!
//! Every mark carries the path of its figure. The picture says in `data-axis`, `data-zero` and `data-unit` how a figure
//! became a place: place = zero + figure · unit, so that a reader can measure it back.

use std::fmt::Write as _;

use super::doc::{Figure, Words, number};
use super::markup::{escape, source};

/// Width of every picture, in its own units: about what a narrow screen has.
const WIDTH: f64 = 400.0;
/// Characters of a label that fit beside its figure.
const LABEL_CHARS: usize = 36;
/// Colours and dashes that the style sheet has.
const STYLES: usize = 8;

/// A name beside a mark.
#[derive(Clone, Debug)]
pub enum Label {
    /// One of the page's own.
    Ours(String),
    /// One of the result's.
    Theirs(Words),
}

impl Label {
    /// Of a text that may be absent.
    pub fn of(words: Option<Words>) -> Self {
        words.map_or_else(|| Self::Ours("?".to_owned()), Self::Theirs)
    }

    /// As an element of a picture. Long texts are cut, with a mark of it.
    fn text(&self, x: f64, y: f64) -> String {
        let (source, text) = match self {
            Self::Ours(text) => (" class=\"tick\"".to_owned(), text),
            Self::Theirs(words) => (format!(" data-path=\"{}\"", escape(&words.path)), &words.text),
        };
        let mut short: String = text.chars().take(LABEL_CHARS).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{source}>{}</text>", escape(&short))
    }
}

/// A row of bars or ranges.
pub struct Row {
    /// Whose figure.
    pub label: Label,
    /// What is drawn: one figure as a bar, several as points on a line.
    pub figures: Vec<Figure>,
    /// Least and greatest of what the bar is the middle of.
    pub spread: Option<(Figure, Figure)>,
    /// A factor written beside the figure.
    pub factor: Option<Figure>,
    /// Colour.
    pub style: usize,
    /// Drawn pale, since it does not count.
    pub pale: bool,
}

/// Points that belong together.
pub struct Series {
    /// Colour.
    pub style: usize,
    /// Where on the horizontal axis, and the figure.
    pub points: Vec<(f64, Figure)>,
    /// Joined by lines, or alone.
    pub joined: bool,
}

/// What stands on the axes.
pub struct Axes<'a> {
    /// What the picture is of, for those who do not see it.
    pub title: &'a str,
    /// Along the bottom, with its unit.
    pub x: &'a str,
    /// Up the side, with its unit.
    pub y: &'a str,
}

/// Horizontal bars, one above the other; the axis has `unit`. Empty without a row.
pub fn bars(title: &str, unit: &str, rows: &[Row]) -> String {
    horizontal(title, unit, rows, |out, row, y, place| {
        let Some(figure) = row.figures.first() else { return };
        let (from, to) = (place(0.0), place(figure.value));
        let class = if row.pale { "mark pale" } else { "mark" };
        _ = write!(
            out,
            "<rect class=\"{class} s{}\"{} x=\"{from:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"11\"/>",
            row.style % STYLES,
            source(figure),
            (to - from).max(0.0),
        );
        if let Some((low, high)) = &row.spread {
            let (low, high, middle) = (place(low.value), place(high.value), y + 5.5);
            _ = write!(
                out,
                "<path class=\"whisker\" d=\"M{low:.2} {:.1}v7M{low:.2} {middle:.1}H{high:.2}M{high:.2} {:.1}v7\"/>",
                middle - 3.5,
                middle - 3.5
            );
        }
    })
}

/// Figures of a row as points on one line, the first the largest. Empty without a row.
pub fn ranges(title: &str, unit: &str, rows: &[Row]) -> String {
    horizontal(title, unit, rows, |out, row, y, place| {
        let style = row.style % STYLES;
        let places = || row.figures.iter().map(|figure| place(figure.value));
        let (least, most) = (places().fold(f64::MAX, f64::min), places().fold(f64::MIN, f64::max));
        let middle = y + 5.5;
        if least < most {
            _ = write!(out, "<path class=\"range l{style}\" d=\"M{least:.2} {middle:.1}H{most:.2}\"/>");
        }
        for (i, figure) in row.figures.iter().enumerate() {
            let (x, radius) = (place(figure.value), if i == 0 { 5.5 } else { 5.0 - i as f64 });
            let class = if i == 0 { "mark" } else { "mark hollow" };
            _ = write!(
                out,
                "<circle class=\"{class} s{style}\"{} cx=\"{x:.2}\" cy=\"{middle:.1}\" r=\"{radius:.1}\"/>",
                source(figure)
            );
        }
    })
}

/// A label and its first figure above each row that `draw` draws.
fn horizontal(
    title: &str,
    unit: &str,
    rows: &[Row],
    draw: impl Fn(&mut String, &Row, f64, &dyn Fn(f64) -> f64),
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let (left, right) = (16.0, WIDTH - 24.0);
    let values = rows.iter().flat_map(|row| &row.figures);
    let values = values.chain(rows.iter().filter_map(|row| row.spread.as_ref().map(|spread| &spread.1)));
    let (top, ticks) = scale(values.map(|figure| figure.value).fold(0.0, f64::max));
    let place = |value: f64| left + value / top * (right - left);
    let height = rows.len() as f64 * 36.0 + 34.0;
    let mut out = open(title, height, 'x', left, (right - left) / top);
    let bottom = height - 32.0;
    for tick in &ticks {
        let x = place(*tick);
        _ = write!(out, "<path class=\"grid\" d=\"M{x:.1} 0V{bottom:.1}\"/>");
        _ = write!(out, "<text class=\"tick mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>", bottom + 13.0, round(*tick));
    }
    for (i, row) in rows.iter().enumerate() {
        let y = i as f64 * 36.0;
        out.push_str(&row.label.text(left, y + 13.0));
        let mut beside = String::new();
        if let Some(figure) = row.figures.first() {
            _ = write!(beside, "<tspan{}>{}</tspan>", source(figure), figure.text());
        }
        if let Some(factor) = &row.factor {
            _ = write!(beside, " · ×<tspan{}>{}</tspan>", source(factor), factor.text());
        }
        _ = write!(out, "<text class=\"end\" x=\"{right:.1}\" y=\"{:.1}\">{beside}</text>", y + 13.0);
        draw(&mut out, row, y + 18.0, &place);
    }
    let (middle, y) = (WIDTH / 2.0, bottom + 28.0);
    _ = write!(out, "<text class=\"axis mid\" x=\"{middle}\" y=\"{y:.1}\">{}</text></svg>", escape(unit));
    out
}

/// Lines or points over a horizontal axis, which doubles from mark to mark where `doubling`. Empty without a point.
pub fn lines(axes: &Axes<'_>, series: &[Series], doubling: bool) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    if points().next().is_none() {
        return String::new();
    }
    let frame = Frame::new(points().map(|(_, figure)| figure.value).fold(0.0, f64::max));
    let along = |x: f64| if doubling { x.max(1.0).log2() } else { x };
    let least = points().map(|(x, _)| along(*x)).fold(f64::MAX, f64::min);
    let most = points().map(|(x, _)| along(*x)).fold(f64::MIN, f64::max).max(least + 1.0);
    let place = |x: f64| frame.left + 10.0 + (along(x) - least) / (most - least) * (frame.right - frame.left - 20.0);
    let mut out = frame.open(axes);
    let marks: Vec<f64> = if doubling {
        (least.floor() as i32..=most.ceil() as i32).map(|power| 2f64.powi(power)).collect()
    } else {
        let step = ((most - least) / 8.0).ceil().max(1.0);
        (0..=8).map(|i| least + f64::from(i) * step).collect()
    };
    for mark in marks.into_iter().filter(|mark| (least..=most).contains(&along(*mark))) {
        frame.mark(&mut out, place(mark), &round(mark));
    }
    for Series { style, points, joined } in series {
        let style = style % STYLES;
        if *joined && points.len() > 1 {
            let path: Vec<String> =
                points.iter().map(|(x, figure)| format!("{:.2} {:.2}", place(*x), frame.place(figure.value))).collect();
            _ = write!(out, "<path class=\"line l{style}\" d=\"M{}\"/>", path.join("L"));
        }
        for (x, figure) in points {
            _ = write!(
                out,
                "<circle class=\"mark s{style}\"{} cx=\"{:.2}\" cy=\"{:.2}\" r=\"{}\"/>",
                source(figure),
                place(*x),
                frame.place(figure.value),
                if *joined { 2.6 } else { 3.4 },
            );
        }
    }
    out + "</svg>"
}

/// Columns side by side for each of `groups`, a figure of every series that has one there. Empty without a figure.
pub fn columns(axes: &Axes<'_>, groups: &[&str], series: &[Vec<Option<Figure>>]) -> String {
    let figures = || series.iter().flatten().flatten();
    if figures().next().is_none() {
        return String::new();
    }
    let frame = Frame::new(figures().map(|figure| figure.value).fold(0.0, f64::max));
    let mut out = frame.open(axes);
    let group = (frame.right - frame.left) / groups.len() as f64;
    let column = group * 0.8 / series.len() as f64;
    for (i, name) in groups.iter().enumerate() {
        let left = frame.left + i as f64 * group;
        frame.mark(&mut out, left + group / 2.0, name);
        for (style, figures) in series.iter().enumerate() {
            let Some(figure) = &figures[i] else { continue };
            let top = frame.place(figure.value);
            _ = write!(
                out,
                "<rect class=\"mark s{}\"{} x=\"{:.2}\" y=\"{top:.2}\" width=\"{:.2}\" height=\"{:.2}\"/>",
                style % STYLES,
                source(figure),
                left + group * 0.1 + style as f64 * column,
                (column - 1.0).max(1.0),
                frame.bottom - top,
            );
        }
    }
    out + "</svg>"
}

/// A field with a vertical axis.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    most: f64,
    ticks: Vec<f64>,
}

impl Frame {
    fn new(most: f64) -> Self {
        let (most, ticks) = scale(most);
        Self { left: 46.0, right: WIDTH - 8.0, top: 22.0, bottom: 202.0, most, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        self.bottom - value / self.most * (self.bottom - self.top)
    }

    fn open(&self, axes: &Axes<'_>) -> String {
        let mut out = open(axes.title, 240.0, 'y', self.bottom, -(self.bottom - self.top) / self.most);
        for tick in &self.ticks {
            let y = self.place(*tick);
            _ = write!(out, "<path class=\"grid\" d=\"M{:.1} {y:.1}H{:.1}\"/>", self.left, self.right);
            let (x, y) = (self.left - 6.0, y + 4.0);
            _ = write!(out, "<text class=\"tick end\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", round(*tick));
        }
        _ = write!(out, "<text class=\"axis\" x=\"2\" y=\"11\">{}</text>", escape(axes.y));
        let middle = (self.left + self.right) / 2.0;
        _ = write!(out, "<text class=\"axis mid\" x=\"{middle:.1}\" y=\"234\">{}</text>", escape(axes.x));
        out
    }

    fn mark(&self, out: &mut String, x: f64, text: &str) {
        let y = self.bottom + 15.0;
        _ = write!(out, "<text class=\"tick mid\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
    }
}

fn open(title: &str, height: f64, axis: char, zero: f64, unit: f64) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
         data-axis=\"{axis}\" data-zero=\"{zero}\" data-unit=\"{unit}\">"
    )
}

/// A number on an axis: without zeroes behind its last digit.
fn round(tick: f64) -> String {
    let text = number(tick);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The end of an axis that holds `most`, and marks on it: at most six, at round numbers.
fn scale(most: f64) -> (f64, Vec<f64>) {
    // Below this the axis would need more pixels a unit than there are numbers.
    let most = if most.is_finite() && most > 1e-12 { most } else { 1.0 };
    let power = 10f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| most / step <= 5.0).unwrap_or(most);
    let count = (most / step).ceil().clamp(1.0, 6.0);
    let end = step * count;
    if !end.is_finite() {
        return (f64::MAX, vec![0.0]);
    }
    (end, (0..=count as usize).map(|i| step * i as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_figures_and_end_at_round_numbers() {
        for (most, end) in [(0.0, 1.0), (1.0, 1.0), (4.1, 5.0), (99.0, 100.0), (101.0, 125.0), (0.03, 0.03), (7.3, 8.0)]
        {
            let (found, ticks) = scale(most);
            assert!((found - end).abs() < 1e-9, "{most}: {found}");
            assert!(ticks.len() <= 7 && ticks[0] == 0.0 && *ticks.last().unwrap() >= most - 1e-12);
        }
        for most in [f64::NAN, f64::INFINITY, -3.0, f64::MAX, f64::MIN_POSITIVE, 1e-310] {
            let (end, ticks) = scale(most);
            assert!(end > 0.0 && end.is_finite() && ticks.iter().all(|tick| tick.is_finite()), "{most}: {end}");
        }
    }

    #[test]
    fn marks_have_no_idle_zeroes() {
        for (tick, text) in
            [(0.0, "0"), (0.5, "0.5"), (1.25, "1.25"), (100.0, "100"), (0.0025, "0.0025"), (1e-7, "1.000e-7")]
        {
            assert_eq!(round(tick), text);
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let axes = Axes { title: "t", x: "x", y: "y" };
        assert_eq!(bars("t", "x", &[]), "");
        assert_eq!(lines(&axes, &[Series { style: 0, points: vec![], joined: true }], false), "");
        assert_eq!(columns(&axes, &["0"], &[vec![None]]), "");
    }
}
