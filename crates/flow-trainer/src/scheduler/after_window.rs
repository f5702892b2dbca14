//! The steps behind the last stochastic one, fewer and of a solver of second order: MixGRPO-Flash.
//!
//! DPM-Solver++ (Lu et al. 2022, arXiv:2211.01095, algorithm 2, "2M"; diffusers' midpoint form) for `x = (1 - sigma) x0 + sigma e`: with
//! `lambda = ln((1 - sigma) / sigma)` and `D = x - sigma v`, the image that a velocity points at,
//!
//! ```text
//! x' = x + dt v + c (D - D_before)        c = (-dt / sigma) (lambda' - lambda) / (2 (lambda - lambda_before))
//! ```
//!
//! The first step has no `D_before`, and behind the last `lambda` is infinite: both are Euler's. The points are those of MixGRPO
//! (`fastvideo/utils/sampling_utils.py`, e5cdd6a, lines 29 to 60): evenly spaced before the shift, from where the window ends to 0.

use super::grid::shifted;
use super::{Schedule, SchedulerError, SigmaShift, StepCoefficients};

/// The steps behind the window of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AfterWindow {
    /// Points in the place of each of the grid's from the last stochastic step on, in `(0, 1]`.
    share: f64,
    /// The factor of the shift.
    factor: f64,
}

impl AfterWindow {
    /// How many steps take the place of those behind step `last`, of a grid of `steps`; at least one, unless there is none.
    fn count(self, last: usize, steps: usize) -> usize {
        let left = steps - last - 1;
        let points = ((steps - last) as f64 * self.share) as usize;
        points.saturating_sub(1).max(1).min(left)
    }

    /// The sigmas behind step `last` of a grid, with the one that it arrives at and the final 0.
    fn sigmas(self, last: usize, grid: &[f64]) -> Vec<f64> {
        let (first, count) = (grid[last + 1], self.count(last, grid.len() - 1));
        let even = first / (self.factor * (1.0 - first) + first);
        let point = |index: usize| shifted(even * (count - index) as f64 / count as f64, self.factor);
        let between = (1..count).map(point);
        let mut sigmas: Vec<f64> = std::iter::once(first).chain(between).collect();
        if count > 0 {
            sigmas.push(0.0);
        }
        sigmas
    }

    /// Coefficients of the steps behind step `last` of a grid with a final 0.
    pub(super) fn steps(self, last: usize, grid: &[f64]) -> Vec<StepCoefficients> {
        let sigmas = self.sigmas(last, grid);
        let step = |index: usize| {
            let (sigma, sigma_next) = (sigmas[index], sigmas[index + 1]);
            let dt = sigma_next - sigma;
            let correction = match index.checked_sub(1) {
                Some(before) if sigma_next > 0.0 => {
                    let before = log_ratio(sigmas[before]);
                    let (here, next) = (log_ratio(sigma), log_ratio(sigma_next));
                    -dt / sigma * (next - here) / (2.0 * (here - before))
                }
                _ => 0.0,
            };
            StepCoefficients {
                step: last + 1 + index,
                sigma,
                sigma_next,
                dt,
                std_dev: 0.0,
                mean_x: 1.0 + correction,
                mean_v: dt - correction * sigma,
                noise: 0.0,
                history: -correction,
                log_prob: None,
            }
        };
        (0..sigmas.len() - 1).map(step).collect()
    }
}

/// `ln((1 - sigma) / sigma)`, half the logarithm of the ratio of signal and noise.
fn log_ratio(sigma: f64) -> f64 {
    libm::log((1.0 - sigma) / sigma)
}

impl Schedule {
    /// With fewer steps of a solver of second order behind the last stochastic one: a `share` (in `(0, 1]`) of the points from that step on.
    /// `shift` is that of the grid. A schedule without stochastic steps stays as it is.
    ///
    /// # Errors
    /// If the share or the shift is impossible.
    pub fn with_solver_after_window(mut self, share: f64, shift: SigmaShift) -> Result<Self, SchedulerError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(SchedulerError::ShareAfterWindow { share });
        }
        let factor = shift.factor()?;
        self.after_window = Some(AfterWindow { share, factor });
        Ok(self)
    }

    /// How many calls of the model the solver behind the window saves each trajectory of an iteration; none if there is no such solver.
    pub fn steps_saved(&self, iteration: u64) -> Option<usize> {
        self.after_window?;
        Some(self.grid().steps() - self.steps_for(iteration).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::SigmaGrid;

    fn after(share: f64, factor: f64) -> AfterWindow {
        AfterWindow { share, factor }
    }

    #[test]
    fn the_number_of_steps_is_that_of_mixgrpo() {
        // 25 steps: a window of steps 0 to 3 leaves 8 points, and 4 where it ends at step 13 or with half the share.
        assert_eq!(after(0.4, 3.0).count(3, 25), 7);
        assert_eq!(after(0.4, 3.0).count(13, 25), 3);
        assert_eq!(after(0.2, 3.0).count(3, 25), 3);
        // Never none where something is left, and never more than there were.
        assert_eq!(after(0.01, 3.0).count(3, 25), 1);
        assert_eq!(after(1.0, 3.0).count(3, 25), 21);
        assert_eq!(after(1.0, 3.0).count(23, 25), 1);
        assert_eq!(after(0.4, 3.0).count(24, 25), 0);
        assert!(
            after(0.4, 1.0)
                .steps(24, SigmaGrid::new(25, SigmaShift::NONE).unwrap().sigmas())
                .is_empty()
        );
    }

    #[test]
    fn points_are_even_before_the_shift_from_where_the_window_ends_to_the_image() {
        let grid = SigmaGrid::new(25, SigmaShift::Static(3.0)).unwrap();
        let sigmas = after(0.4, 3.0).sigmas(3, grid.sigmas());
        assert_eq!((sigmas.len(), sigmas[0], sigmas[7]), (8, grid.sigmas()[4], 0.0));
        // Step 4 of 25 begins at 21 / 25 before the shift.
        for (index, sigma) in sigmas[..7].iter().enumerate() {
            let even = 21.0 / 25.0 * (7 - index) as f64 / 7.0;
            let expected = 3.0 * even / (1.0 + 2.0 * even);
            assert!(
                (sigma - expected).abs() < 1e-12,
                "{index}: {sigma} and {expected}"
            );
        }
        // With all points they are the grid's.
        let all = after(1.0, 3.0).sigmas(3, grid.sigmas());
        for (found, expected) in all.iter().zip(&grid.sigmas()[4..]) {
            assert!((found - expected).abs() < 1e-12, "{found} and {expected}");
        }
    }

    /// The state of one value from `x` through steps whose velocity is `velocity(x, sigma)`.
    fn solved(steps: &[StepCoefficients], mut x: f64, velocity: impl Fn(f64, f64) -> f64) -> f64 {
        let mut image = 0.0;
        for step in steps {
            let v = velocity(x, step.sigma);
            let next = step.mean_x * x + step.mean_v * v + step.history * image;
            image = x - step.sigma * v;
            x = next;
        }
        x
    }

    #[test]
    fn each_step_is_that_of_dpm_solver_in_its_own_terms() {
        let grid = SigmaGrid::new(12, SigmaShift::Static(2.0)).unwrap();
        let steps = after(0.7, 2.0).steps(2, grid.sigmas());
        assert!(steps.len() > 3, "{}", steps.len());
        let velocity = |x: f64, sigma: f64| 0.7 * x - sigma * sigma + 0.3;
        let (mut x, mut images): (f64, Vec<f64>) = (0.4, Vec::new());
        for (index, step) in steps.iter().enumerate() {
            let (sigma, next) = (step.sigma, step.sigma_next);
            let image = x - sigma * velocity(x, sigma);
            images.push(image);
            // `x' = (s' / s) x - alpha' (e^-h - 1) D`, with D from the last two where it is of second order.
            let lambda = |sigma: f64| ((1.0 - sigma) / sigma).ln();
            let is_second = index > 0 && next > 0.0;
            let target = if is_second {
                let before = steps[index - 1].sigma;
                let ratio = (lambda(sigma) - lambda(before)) / (lambda(next) - lambda(sigma));
                image + (image - images[index - 1]) / (2.0 * ratio)
            } else {
                image
            };
            let decay = if next > 0.0 {
                (lambda(sigma) - lambda(next)).exp()
            } else {
                0.0
            };
            x = next / sigma * x - (1.0 - next) * (decay - 1.0) * target;
            let found = solved(&steps[..=index], 0.4, velocity);
            assert!((found - x).abs() < 1e-12, "step {index}: {found} and {x}");
            assert_eq!((step.step, step.history != 0.0), (3 + index, is_second));
        }
    }

    #[test]
    fn it_is_nearer_to_the_exact_solution_than_as_many_steps_of_eulers() {
        // One value that is normal with mean m and deviation d: x at sigma keeps its place among all, so that x0 is known.
        let (m, d) = (0.5, 0.3);
        let deviation = |sigma: f64| ((1.0 - sigma).powi(2) * d * d + sigma * sigma).sqrt();
        let velocity = |x: f64, sigma: f64| {
            let off = x - (1.0 - sigma) * m;
            let variance = deviation(sigma).powi(2);
            (sigma - (1.0 - sigma) * d * d) / variance * off - m
        };
        let grid = SigmaGrid::new(40, SigmaShift::NONE).unwrap();
        let error = |steps: &[StepCoefficients]| {
            let first = steps[0].sigma;
            let x = (1.0 - first) * m + 1.3 * deviation(first);
            (solved(steps, x, velocity) - (m + 1.3 * d)).abs()
        };
        let solver = after(0.3, 1.0).steps(3, grid.sigmas());
        let euler: Vec<StepCoefficients> = (solver.iter())
            .map(|step| StepCoefficients {
                mean_x: 1.0,
                mean_v: step.dt,
                history: 0.0,
                ..*step
            })
            .collect();
        assert_eq!(solver.len(), 10);
        assert!(
            error(&solver) < 0.5 * error(&euler),
            "{} and {}",
            error(&solver),
            error(&euler)
        );
        let finer = after(0.6, 1.0).steps(3, grid.sigmas());
        assert!(error(&finer) < error(&solver));
    }
}
