//! Measurements of numbers that are none are no measurements: a verb ends at the first logit that is not finite.

use engine::step::StepResult;

/// A logit that is not finite. The weights hold such values, or are so large that sums run over.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error(
    "position {position}: the {part}'s logit of token {token} is {value}, expected a finite number; the weights of the file \
     are damaged or too large, convert or download it again"
)]
pub struct NonFinite {
    /// Whose head it came from.
    pub part: &'static str,
    /// Of the row in its sequence.
    pub position: usize,
    /// Id of the logit.
    pub token: usize,
    /// Its value.
    pub value: f32,
}

/// What the trunk's logits are called.
pub const TRUNK: &str = "trunk";
/// What the MTP block's logits are called.
pub const MTP: &str = "MTP block";

/// Looks through rows of `vocab` logits, the first of them at `position`.
///
/// # Errors
/// The first value that is not finite.
pub fn check(rows: &[f32], vocab: usize, part: &'static str, position: usize) -> Result<(), NonFinite> {
    match rows.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(NonFinite { part, position: position + i / vocab, token: i % vocab, value: rows[i] }),
        None => Ok(()),
    }
}

/// Whether the rows of a pass could be decided, where no logits were asked for. `position` is that of its last row.
///
/// # Errors
/// If the executor found no finite logit.
pub fn check_choice(result: &StepResult, position: usize) -> Result<(), NonFinite> {
    match result.fault.iter().any(Option::is_some) {
        true => Err(NonFinite { part: TRUNK, position, token: 0, value: f32::NAN }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_is_no_number_is_named() {
        let mut rows = [0.5; 12];
        assert_eq!(check(&rows, 4, TRUNK, 7), Ok(()));
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            rows[6] = value;
            let found = check(&rows, 4, MTP, 7).unwrap_err();
            assert_eq!((found.part, found.position, found.token), (MTP, 8, 2));
            assert_eq!(found.value.to_bits(), value.to_bits());
        }
    }
}
