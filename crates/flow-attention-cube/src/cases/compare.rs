//! Compares results with the reference, against allowed errors.

use super::case::Case;
use super::reference::{Expected, Results};

/// How far results are from the reference, against what is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// For each tensor: its name, its error, and the largest allowed error.
    pub errors: Vec<(&'static str, f64, f64)>,
}

impl Comparison {
    /// Whether every error is allowed.
    pub fn holds(&self) -> bool {
        // A NaN is not below anything.
        self.errors.iter().all(|(_, error, allowed)| error <= allowed)
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, error, allowed)) in self.errors.iter().enumerate() {
            let (comma, sign) = (
                if i == 0 { "" } else { ", " },
                if error <= allowed { "<=" } else { "ABOVE" },
            );
            write!(f, "{comma}{name} {error:.1e} {sign} {allowed:.1e}")?;
        }
        Ok(())
    }
}

/// The largest distance of a row from its reference, in units of the row's length, of the mean length of rows, or of the
/// row's entry in `least`, whichever is largest. NaN where a result is.
fn distance(got: &[f64], want: &[f64], dim: usize, least: &[f64]) -> f64 {
    if got.len() != want.len() {
        return f64::NAN;
    }
    let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let mean = square(want) / (want.len() / dim).max(1) as f64;
    let rows = got.chunks(dim).zip(want.chunks(dim)).enumerate();
    let errors = rows.map(|(row, (got, want))| {
        let apart: f64 = got.iter().zip(want).map(|(a, b)| (a - b) * (a - b)).sum();
        let least = least.get(row).map_or(0.0, |least| least * least);
        if apart == 0.0 {
            0.0
        } else {
            (apart / square(want).max(mean).max(least)).sqrt()
        }
    });
    errors.fold(0.0, |worst, error| {
        if error.is_nan() || error > worst {
            error
        } else {
            worst
        }
    })
}

impl Expected {
    /// Judges results. Kernels may round probabilities and score gradients to the element type (as tensor cores need),
    /// and `o` is rounded before it goes into the gradients: each allowed error is a small multiple of that rounding,
    /// and of the rounding of scores in f32.
    pub fn compare(&self, case: &Case, got: &Results) -> Comparison {
        let rounding = case.element.unit_roundoff();
        // Scores of normal operands have this size; they are rounded in f32, and so are the many sums.
        let scores = 2f64.powi(-24) * (8.0 + 8.0 * case.scale.abs() * (case.head_dim as f64).sqrt());
        let forward = 2.0 * rounding + 4.0 * scores;
        let backward = 8.0 * rounding + 16.0 * scores;
        let want = &self.results;
        let lse = want
            .lse
            .iter()
            .zip(&got.lse)
            .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
        let lse = lse.fold(0.0, |worst: f64, error| {
            if error.is_nan() || error > worst {
                error
            } else {
                worst
            }
        });
        let dim = case.head_dim;
        let mut errors = vec![
            ("o", distance(&got.o, &want.o, dim, &[]), forward),
            (
                "lse",
                if got.lse.len() == want.lse.len() {
                    lse
                } else {
                    f64::NAN
                },
                4.0 * scores,
            ),
            ("dq", distance(&got.dq, &want.dq, dim, &self.dq_terms), backward),
        ];
        for (i, [dk, dv]) in [["dk", "dv"], ["dk of segment 1", "dv of segment 1"]]
            .into_iter()
            .enumerate()
        {
            errors.push((
                dk,
                distance(&got.dk[i], &want.dk[i], dim, &self.dk_terms[i]),
                backward,
            ));
            errors.push((dv, distance(&got.dv[i], &want.dv[i], dim, &[]), backward));
        }
        Comparison { errors }
    }
}
