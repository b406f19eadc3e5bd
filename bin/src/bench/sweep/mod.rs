//! `engine-bench sweep`: which settings draft best, found by successive halving over recorded sessions.
//!
//! ```text
//! grid ─► cells ─► rung: every cell beside off, few sessions ─► one in N of every strategy goes on ─► rung, N times the
//! sessions ─► .. ─► at most a few of every strategy ─► all finalists side by side, all sessions ─► arms of the result
//! ```
//!
//! Cells run through the same replay as `engine-bench replay`. The result file is written whole after every cell, so a
//! sweep that was stopped goes on with `--resume`; only when it is done it has arms, and so feeds
//! `engine-pack package --from-bench`. Every strategy keeps cells of its own to the end: a package has settings for each.

pub mod facts;
pub mod grid;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use clap::Args;
use engine::api::{Speculation, Strategy};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::compare::kin::same_cost;
use super::options::within;
use super::replay::flags::ReplayFlags;
use super::replay::{Bench, ReplayError, cost};
use super::report::doc::{Doc, NoResult};
use super::result::{BenchResult, CostFacts, Settings};
use super::whole::{self, WriteError};
use crate::menu::BUILT_IN;
use crate::pack::output;
use crate::report;
use facts::{Cell, Rung, SweepFacts};
use grid::{Axis, Grid, label};

/// Cells of a strategy that are held against each other over all sessions.
const FINALISTS: usize = 3;
/// Name of the result in its folder.
const FILE: &str = "sweep.json";

/// `engine-bench sweep`. Flags of `replay` mean what they mean there; one that says how arms draft fixes its axis.
#[derive(Clone, Debug, Args)]
pub struct SweepFlags {
    /// What is replayed, and how.
    #[command(flatten)]
    pub replay: ReplayFlags,
    /// Values of an axis, in the place of mtp-tokens=1,3,5,7 suffix-min=3,5,8 suffix-max=16,32,64 suffix-tokens=8,16,32,48
    /// window=4,8,16,32 policy=fixed,adaptive; may be repeated
    #[arg(long, value_name = "NAME=VALUE,..", value_parser = Axis::parse)]
    pub axis: Vec<Axis>,
    /// Sessions of each source that the first rung replays.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1, 1 << 20))]
    pub first_sessions: usize,
    /// One of so many cells of a strategy goes on to the next rung, which has so many times the sessions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within(2, 100))]
    pub keep_one_in: usize,
    /// Go on with the sweep whose result is in --out.
    #[arg(long)]
    pub resume: bool,
}

/// Why a sweep has no result.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Flags that fit nothing.
    #[error("{0}")]
    Usage(String),
    /// A result that is not to be overwritten, or not of this sweep.
    #[error("{0}")]
    Refused(String),
    /// A result to go on with.
    #[error(transparent)]
    NoResult(#[from] NoResult),
    /// A replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The result could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl SweepError {
    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Refused(_) | Self::NoResult(_) => 3,
            Self::Replay(error) => error.code(),
            Self::Write(_) => 1,
        }
    }
}

/// Tries what the flags name, and leaves the result in its file.
///
/// # Errors
/// [`SweepError`]. Cells with another output than `off` are no error: they are void, and do not go on.
pub fn run(flags: &SweepFlags) -> Result<(BenchResult, PathBuf), SweepError> {
    let path = flags.path().map_err(SweepError::Usage)?;
    // A folder is made when there is something to sweep, and not before.
    let held = if whole::folder(&path).exists() { Some(alone(&path)?) } else { None };
    let earlier = earlier(flags, &path)?;
    let mut bench = Bench::open(&flags.replay, earlier.as_ref().and_then(|result| result.cost.clone()))?;
    let grid = flags.grid(&bench.arms()?).map_err(SweepError::Usage)?;
    let _held = match held {
        Some(held) => held,
        None => {
            let held = alone(&path)?;
            if path.exists() {
                return Err(exists(&path));
            }
            held
        }
    };
    let sweep = SweepFacts {
        recordings_sha256: Some(bench.recordings()?),
        grid,
        keep_one_in: flags.keep_one_in,
        first_sessions: flags.first_sessions,
        ..SweepFacts::default()
    };
    let fresh = BenchResult { sweep: Some(sweep), ..bench.blank() };
    let mut state = State { path, limit: flags.replay.limit, result: fresh };
    if let Some(earlier) = earlier {
        let told = flags.replay.cost.as_deref().map(cost::read).transpose().map_err(ReplayError::Cost)?;
        state.take_up(earlier, told)?;
    }
    if state.sweep().done {
        report::note("the sweep is done already");
    } else {
        state.halve(&mut bench)?;
    }
    Ok((state.result, state.path))
}

/// Whether every figure counts, those of cells that went out included.
pub fn stands(result: &BenchResult) -> bool {
    let mut cells = result.sweep.iter().flat_map(|sweep| &sweep.rungs).flat_map(|rung| &rung.cells);
    cells.all(|cell| !cell.void) && super::replay::stands(result)
}

/// Keeps other sweeps out of the folder that `path` is to lie in, which is made, as long as what is returned lives: of two
/// that write one file either would lose what the other found.
fn alone(path: &Path) -> Result<File, SweepError> {
    let failed = |source| WriteError { file: path.display().to_string(), source };
    let folder = whole::folder(path);
    fs::create_dir_all(folder).map_err(failed)?;
    let file = output::open(folder).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SweepError::Refused(format!(
            "{}: another sweep is writing it; wait until it is done, or give another --out",
            path.display()
        ))),
        Err(TryLockError::Error(source)) => Err(failed(source).into()),
    }
}

fn exists(path: &Path) -> SweepError {
    SweepError::Refused(format!("{} exists; --resume goes on with it, another --out begins anew", path.display()))
}

/// The result of the sweep to go on with.
fn earlier(flags: &SweepFlags, path: &Path) -> Result<Option<BenchResult>, SweepError> {
    match (path.exists(), flags.resume) {
        (false, false) => Ok(None),
        (false, true) => {
            report::note(format!("{} is not there: the sweep begins", path.display()));
            Ok(None)
        }
        (true, false) => Err(exists(path)),
        (true, true) => {
            let result = Doc::read(path)?.result;
            let checked = result.cost.as_ref().map_or(Ok(()), cost::check);
            checked.map_err(|what| SweepError::Refused(format!("{}: cost: {what}", path.display())))?;
            Ok(Some(result))
        }
    }
}

impl SweepFlags {
    fn path(&self) -> Result<PathBuf, String> {
        let folder = self.replay.out.as_ref().ok_or("--out DIR is missing: a sweep keeps its result there")?;
        Ok(folder.join(FILE))
    }

    /// The grid for the arms that the model can run.
    fn grid(&self, arms: &[Speculation]) -> Result<Grid, String> {
        let strategies = arms.iter().map(|arm| arm.strategy).filter(|strategy| *strategy != Strategy::Off);
        let mut grid = Grid { strategies: strategies.collect(), ..Grid::default() };
        self.axis.iter().for_each(|axis| grid.set(axis));
        grid.fix(&self.replay.draft.given(self.replay.window_max))?;
        match grid.cells().is_empty() {
            true => {
                Err("the grid has no cell: no arm drafts, or every shortest match is above every longest".to_owned())
            }
            false => Ok(grid),
        }
    }
}

/// A sweep on its way.
struct State {
    path: PathBuf,
    /// Most sessions of a source in the end.
    limit: Option<usize>,
    result: BenchResult,
}

impl State {
    fn sweep(&mut self) -> &mut SweepFacts {
        self.result.sweep.as_mut().expect("a sweep has its facts")
    }

    fn save(&self) -> Result<(), WriteError> {
        let bytes = serde_json::to_vec_pretty(&self.result).expect("a result is plain data with text keys");
        whole::write(&self.path, &bytes)
    }

    /// Goes on with an earlier result, if it is one of the same sweep. A cost table that is `told` has to be its own.
    fn take_up(&mut self, earlier: BenchResult, told: Option<CostFacts>) -> Result<(), SweepError> {
        let file = self.path.display().to_string();
        let Some(before) = &earlier.sweep else {
            return Err(SweepError::Refused(format!("{file} is no sweep; give another --out")));
        };
        let now = self.result.sweep.clone().unwrap_or_default();
        // Cells of simulated time mean nothing beside others without the table that they were timed by.
        let timed = earlier.cost.is_some() || !earlier.run.simulated || before.rungs.iter().all(|r| r.cells.is_empty());
        let same = [
            ("mode", earlier.mode == self.result.mode),
            ("model", earlier.model == self.result.model),
            ("flags of the replay", earlier.run == self.result.run),
            ("cost table", timed && told.zip(earlier.cost.as_ref()).is_none_or(|(told, cost)| same_cost(&told, cost))),
            ("recordings", before.recordings_sha256 == now.recordings_sha256),
            ("grid", before.grid == now.grid),
            ("--keep-one-in", before.keep_one_in == now.keep_one_in),
            ("--first-sessions", before.first_sessions == now.first_sessions),
        ];
        let other: Vec<&str> = same.into_iter().filter(|(_, same)| !same).map(|(what, _)| what).collect();
        if !other.is_empty() {
            let other = other.join(", ");
            return Err(SweepError::Refused(format!(
                "{file} is of another sweep ({other}); give the flags it was begun with, or another --out"
            )));
        }
        self.result = earlier;
        Ok(())
    }

    /// Rung after rung, then the finalists.
    fn halve(&mut self, bench: &mut Bench<'_>) -> Result<(), SweepError> {
        let off = Speculation { strategy: Strategy::Off, ..BUILT_IN };
        let (keep, most) = (self.sweep().keep_one_in, bench.sessions_most());
        let mut cells = self.sweep().grid.cells();
        let mut sessions = self.sweep().first_sessions.min(most);
        let mut number = 0;
        while many(&cells) {
            self.rung(bench, number, sessions, &cells, off)?;
            let rung = &mut self.sweep().rungs[number];
            let kept = keep_best(&mut rung.cells, keep);
            cells = kept.into_iter().map(|i| cells[i]).collect();
            let best = best(rung);
            report::note(format!("rung {}: {} go on{best}", number + 1, cells.len()));
            self.save()?;
            sessions = sessions.saturating_mul(keep).min(most);
            number += 1;
        }
        report::note(format!("the last {} side by side, all sessions", cells.len()));
        let arms: Vec<Speculation> = [off].into_iter().chain(cells).collect();
        let done = bench.stage(self.limit, &arms)?.replay(&arms)?;
        let sweep = SweepFacts { done: true, ..self.sweep().clone() };
        self.result = bench.with_roofline(BenchResult { sweep: Some(sweep), ..done });
        let result = &mut self.result;
        let lists = result.workloads.iter_mut().map(|workload| &mut workload.arms).chain([&mut result.arms]);
        lists.for_each(|list| list.iter_mut().zip(&arms).for_each(|(arm, cell)| arm.label = label(cell)));
        Ok(self.save()?)
    }

    /// Runs what is left of a rung.
    fn rung(
        &mut self,
        bench: &mut Bench<'_>,
        number: usize,
        sessions: usize,
        cells: &[Speculation],
        off: Speculation,
    ) -> Result<(), SweepError> {
        let file = self.path.display().to_string();
        let rungs = &mut self.sweep().rungs;
        if rungs.len() == number {
            rungs.push(Rung { sessions_n: sessions, cells_n: cells.len(), cells: Vec::new() });
        }
        let rung = &rungs[number];
        let done = rung.cells.len();
        let known = rung.cells.iter().zip(cells).all(|(cell, expected)| cell.label == label(expected));
        if !known || done > cells.len() || rung.cells_n != cells.len() || rung.sessions_n != sessions {
            return Err(SweepError::Refused(format!(
                "{file}: rung {} has other cells than this sweep gives it; give another --out",
                number + 1
            )));
        }
        report::note(format!(
            "rung {}: {} cells, at most {sessions} sessions of each source{}",
            number + 1,
            cells.len(),
            if done > 0 { format!(", {done} of them run before") } else { String::new() }
        ));
        if done == cells.len() {
            return Ok(());
        }
        let arms: Vec<Speculation> = [off].into_iter().chain(cells[done..].iter().copied()).collect();
        let mut stage = bench.stage(Some(sessions), &arms)?;
        self.result.cost = stage.cost().cloned();
        let progress = progress(done, cells.len());
        for cell in &cells[done..] {
            let result = stage.replay(&[off, *cell])?;
            self.sweep().rungs[number].cells.push(measured(cell, &result));
            self.save()?;
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(())
    }
}

/// A line on a terminal, nothing anywhere else.
fn progress(done: usize, cells: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} cells {eta}").expect("a template of known fields");
    let bar = ProgressBar::with_draw_target(Some(cells as u64), ProgressDrawTarget::stderr()).with_style(style);
    bar.set_position(done as u64);
    bar
}

/// Whether a strategy has more cells than go to the end.
fn many(cells: &[Speculation]) -> bool {
    Strategy::ALL.iter().any(|strategy| cells.iter().filter(|cell| cell.strategy == *strategy).count() > FINALISTS)
}

/// A cell and its figures, of a result with `off` and it.
fn measured(cell: &Speculation, result: &BenchResult) -> Cell {
    let [off, arm] = &result.arms[..] else { unreachable!("two arms were replayed") };
    Cell {
        label: label(cell),
        strategy: cell.strategy,
        settings: Settings::from(cell),
        decode_tok_s: arm.decode_tok_s.clone(),
        off_tok_s: off.decode_tok_s.median,
        speedup: arm.speedup.unwrap_or_default(),
        acceptance_rate: arm.shares.acceptance_rate,
        void: arm.void.is_some() || arm.failed.is_some(),
        kept: false,
    }
}

/// Marks the best of every strategy, one in `one_in` of its cells, and gives their indices in order.
fn keep_best(cells: &mut [Cell], one_in: usize) -> Vec<usize> {
    for strategy in Strategy::ALL {
        let all = || cells.iter().enumerate().filter(|(_, cell)| cell.strategy == strategy);
        let count = all().count().div_ceil(one_in);
        let mut fine: Vec<(usize, f64)> =
            all().filter(|(_, cell)| !cell.void).map(|(i, cell)| (i, cell.speedup)).collect();
        // Stable: of equals the one that was named first.
        fine.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (i, cell) in cells.iter_mut().enumerate().filter(|(_, cell)| cell.strategy == strategy) {
            cell.kept = fine.iter().take(count).any(|(kept, _)| *kept == i);
        }
    }
    cells.iter().enumerate().filter(|(_, cell)| cell.kept).map(|(i, _)| i).collect()
}

/// The best cell of a rung, for a line about it.
fn best(rung: &Rung) -> String {
    let best = rung.cells.iter().filter(|cell| cell.kept).max_by(|a, b| a.speedup.total_cmp(&b.speedup));
    best.map(|cell| format!("; best {} with {:.2} times off", cell.label, cell.speedup)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::result::{Arm, Void};

    #[test]
    fn every_strategy_keeps_its_best() {
        let cell = |strategy, speedup, void| Cell {
            label: String::new(),
            strategy,
            settings: Settings::default(),
            decode_tok_s: Default::default(),
            off_tok_s: 1.0,
            speedup,
            acceptance_rate: None,
            void,
            kept: true,
        };
        let mut cells = vec![
            cell(Strategy::Mtp, 0.5, false),
            cell(Strategy::NgramSuffix, 2.0, false),
            cell(Strategy::NgramSuffix, 9.0, true),
            cell(Strategy::NgramSuffix, 2.0, false),
            cell(Strategy::NgramSuffix, 3.0, false),
            cell(Strategy::Mtp, 0.9, false),
        ];
        assert_eq!(keep_best(&mut cells, 2), [1, 4, 5], "of equals the first; never a void one");
        assert_eq!(keep_best(&mut cells, 100), [4, 5]);
        cells.iter_mut().for_each(|cell| cell.void = true);
        assert!(keep_best(&mut cells, 2).is_empty());
    }

    #[test]
    fn a_cell_that_differs_from_off_is_void_and_the_sweep_does_not_stand() {
        let arms = vec![Arm { strategy: Some(Strategy::Off), ..Arm::default() }, Arm::default()];
        let mut result = BenchResult { arms, ..BenchResult::default() };
        let cell = |result: &BenchResult| measured(&Speculation { strategy: Strategy::Mtp, ..BUILT_IN }, result);
        assert!(!cell(&result).void);
        result.arms[1].void = Some(Void::default());
        let cells = vec![cell(&result)];
        assert!(cells[0].void);
        let sweep = |cells| SweepFacts { rungs: vec![Rung { cells, ..Rung::default() }], ..SweepFacts::default() };
        let swept = |cells| BenchResult { sweep: Some(sweep(cells)), ..BenchResult::default() };
        assert!(stands(&swept(Vec::new())) && !stands(&swept(cells)));
    }
}
