//! cost: what a trunk pass of so many rows and a step of the MTP chain take, measured on this machine.
//!
//! Filled by a calibration at start (or seeded by hand: tests, `forced` replay), then kept up by the passes that run.
//! Only the window policy reads it, so it can change the time a token takes and never the token.

/// Row counts at which the time is kept; between them it is interpolated, past them extrapolated.
pub const COST_ROWS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// A further row against the first, until something was measured.
const ROW_SHARE: f64 = 0.15;
/// A step of the MTP chain against a trunk row, until something was measured.
const DRAFT_SHARE: f64 = 0.1;
/// Weight of a new observation.
const BLEND: f64 = 0.1;

/// The table. Times in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    trunk: [f64; COST_ROWS.len()],
    trunk_measured: bool,
    draft: f64,
    draft_measured: bool,
    frozen: bool,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            trunk: COST_ROWS.map(|r| 1e6 * (1.0 + ROW_SHARE * (r - 1) as f64)),
            trunk_measured: false,
            draft: 1e6 * DRAFT_SHARE,
            draft_measured: false,
            frozen: false,
        }
    }
}

impl Cost {
    /// A table that never changes: `trunk(rows)` nanoseconds a pass, `draft` a step of the chain.
    pub fn scripted(trunk: impl Fn(usize) -> f64, draft: f64) -> Self {
        Self { trunk: COST_ROWS.map(trunk), trunk_measured: true, draft, draft_measured: true, frozen: true }
    }

    /// Time of a trunk pass of `rows` rows.
    pub fn trunk(&self, rows: usize) -> f64 {
        let i = COST_ROWS.partition_point(|r| *r < rows).clamp(1, COST_ROWS.len() - 1);
        let (r0, r1) = (COST_ROWS[i - 1] as f64, COST_ROWS[i] as f64);
        let slope = (self.trunk[i] - self.trunk[i - 1]) / (r1 - r0);
        self.trunk[i - 1] + slope * (rows as f64 - r0)
    }

    /// Time of `steps` steps of the MTP chain.
    pub fn draft(&self, steps: usize) -> f64 {
        self.draft * steps as f64
    }

    /// A pass of `rows` rows took `ns`.
    pub fn observe_trunk(&mut self, rows: usize, ns: u64) {
        if self.frozen || ns == 0 || rows == 0 || rows > COST_ROWS[COST_ROWS.len() - 1] {
            return;
        }
        let factor = ns as f64 / self.trunk(rows);
        if !self.trunk_measured {
            self.trunk_measured = true;
            self.trunk.iter_mut().for_each(|t| *t *= factor);
            if !self.draft_measured {
                self.draft *= factor;
            }
            return;
        }
        let i = COST_ROWS.partition_point(|r| *r < rows);
        self.trunk[i] *= 1.0 + BLEND * (factor - 1.0);
        if COST_ROWS[i] != rows {
            self.trunk[i - 1] *= 1.0 + BLEND * (factor - 1.0);
        }
    }

    /// A calibrated pass: `rows` of [`COST_ROWS`] take `ns`, and wider ones at least that.
    pub fn set_trunk(&mut self, rows: usize, ns: u64) {
        let i = COST_ROWS.partition_point(|r| *r < rows);
        assert_eq!(COST_ROWS[i], rows, "calibration runs the table's own row counts");
        let before = self.trunk[i];
        self.trunk[i] = (ns as f64).max(1.0);
        let factor = self.trunk[i] / before;
        self.trunk[i + 1..].iter_mut().for_each(|t| *t *= factor);
        self.trunk_measured = true;
        if rows == 1 && !self.draft_measured {
            self.draft = self.trunk[0] * DRAFT_SHARE;
        }
    }

    /// A chain of `steps` steps took `ns`.
    pub fn observe_draft(&mut self, steps: usize, ns: u64) {
        if self.frozen || ns == 0 || steps == 0 {
            return;
        }
        let step = ns as f64 / steps as f64;
        self.draft = if self.draft_measured { self.draft + BLEND * (step - self.draft) } else { step };
        self.draft_measured = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_and_past_the_points_the_time_is_linear() {
        let c = Cost::scripted(|r| 100.0 + r as f64, 7.0);
        for rows in [1, 2, 5, 7, 20, 40, 64, 100, 512] {
            assert!((c.trunk(rows) - (100.0 + rows as f64)).abs() < 1e-9, "{rows}");
        }
        assert_eq!(c.draft(3), 21.0);
    }

    #[test]
    fn observations_scale_first_and_blend_later() {
        let mut c = Cost::default();
        let shape = c.trunk(8) / c.trunk(1);
        c.observe_trunk(4, 8_000_000);
        assert!((c.trunk(4) - 8e6).abs() < 1.0 && (c.trunk(8) / c.trunk(1) - shape).abs() < 1e-9);
        for _ in 0..200 {
            c.observe_trunk(32, 9_000_000);
        }
        assert!((c.trunk(32) - 9e6).abs() < 1e3);
        assert!((c.trunk(4) - 8e6).abs() < 1.0, "other row counts keep theirs");
        c.observe_draft(2, 4_000_000);
        assert_eq!(c.draft(1), 2e6);
    }

    #[test]
    fn a_scripted_table_stays() {
        let mut c = Cost::scripted(|_| 5.0, 1.0);
        c.observe_trunk(1, 99);
        c.observe_draft(1, 99);
        assert_eq!(c, Cost::scripted(|_| 5.0, 1.0));
    }
}
