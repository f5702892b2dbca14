//! UniPC: a predictor and a corrector of one order (Zhao et al. 2023, arXiv:2302.04867), on levels of a flow; in the form of diffusers
//! 0.42.1 (`schedulers/scheduling_unipc_multistep.py`) that predicts the clean sample.
//!
//! With `α = 1 - σ` and `λ = ln α - ln σ`, a step goes from `λ_s` to `λ_t`, `h = λ_t - λ_s`.

use burn::tensor::Tensor;
use flow_diffusers::UniPc;

/// What the solver remembers between steps.
#[derive(Debug)]
pub(super) struct Solver {
    settings: UniPc,
    sigmas: Vec<f64>,
    /// Predictions of the clean sample, the newest last, at most as many as the order; each with its step.
    clean: Vec<(usize, Tensor<2>)>,
    /// The sample before the last step, and that step's order.
    last: Option<(Tensor<2>, usize)>,
}

/// Coefficients of a step from `from` to `to`, in f64.
struct Step {
    /// Of the sample, and of the newest prediction.
    sample: f64,
    newest: f64,
    /// Before the sum of differences.
    differences: f64,
    /// `1 / r_k` of each older prediction.
    older: Vec<f64>,
    /// The linear system for the weights of the differences.
    matrix: Vec<Vec<f64>>,
    right: Vec<f64>,
}

impl Solver {
    pub fn new(settings: UniPc, sigmas: Vec<f64>) -> Self {
        Self {
            settings,
            sigmas,
            clean: Vec::new(),
            last: None,
        }
    }

    /// The sample after step `step`, of `x_bn` before it and the velocity there.
    pub fn step(&mut self, step: usize, x_bn: Tensor<2>, v_bn: Tensor<2>) -> Tensor<2> {
        let clean = x_bn.clone() - v_bn * (self.sigmas[step] as f32);
        let corrected = match self.last.take() {
            Some((before, order)) if !self.settings.disable_corrector.contains(&(step - 1)) => {
                self.corrected(step, before, &clean, order)
            }
            _ => x_bn,
        };
        self.clean.push((step, clean));
        if self.clean.len() > self.settings.solver_order {
            self.clean.remove(0);
        }
        let left = self.sigmas.len() - 1 - step;
        let wanted = match self.settings.lower_order_final {
            true => self.settings.solver_order.min(left),
            false => self.settings.solver_order,
        };
        let order = wanted.min(self.clean.len());
        let predicted = self.predicted(step, corrected.clone(), order);
        self.last = Some((corrected, order));
        predicted
    }

    fn lambda(&self, step: usize) -> f64 {
        let sigma = self.sigmas[step];
        (1.0 - sigma).ln() - sigma.ln()
    }

    /// Of a step of `order` from the newest prediction's level to that at `to`.
    fn coefficients(&self, to: usize, order: usize) -> Step {
        let (from, _) = self.clean[self.clean.len() - 1];
        let (sigma, sigma_from) = (self.sigmas[to], self.sigmas[from]);
        let h = self.lambda(to) - self.lambda(from);
        let older = self.clean.iter().rev().skip(1).take(order - 1);
        let mut ratios: Vec<f64> = older
            .map(|(at, _)| (self.lambda(*at) - self.lambda(from)) / h)
            .collect();
        let inverse = ratios.iter().map(|ratio| 1.0 / ratio).collect();
        ratios.push(1.0);
        let minus_h = -h;
        let first = minus_h.exp_m1();
        let b = if self.settings.second_bh { first } else { minus_h };
        let (mut phi, mut factorial) = (first / minus_h - 1.0, 1.0);
        let (mut matrix, mut right) = (Vec::new(), Vec::new());
        for power in 0..order {
            matrix.push(ratios.iter().map(|ratio| ratio.powi(power as i32)).collect());
            right.push(phi * factorial / b);
            factorial *= (power + 2) as f64;
            phi = phi / minus_h - 1.0 / factorial;
        }
        Step {
            sample: sigma / sigma_from,
            newest: -(1.0 - sigma) * first,
            differences: -(1.0 - sigma) * b,
            older: inverse,
            matrix,
            right,
        }
    }

    /// `Σ weight_k · (older_k - newest) / r_k`, if there are older predictions.
    fn differences(&self, step: &Step, weights: &[f64]) -> Option<Tensor<2>> {
        let (_, newest) = &self.clean[self.clean.len() - 1];
        let older = self.clean.iter().rev().skip(1).zip(&step.older).zip(weights);
        older
            .map(|(((_, older), inverse), weight)| {
                (older.clone() - newest.clone()) * ((inverse * weight) as f32)
            })
            .reduce(|sum, next| sum + next)
    }

    fn base(&self, step: &Step, x_bn: Tensor<2>) -> Tensor<2> {
        let (_, newest) = &self.clean[self.clean.len() - 1];
        x_bn * (step.sample as f32) + newest.clone() * (step.newest as f32)
    }

    fn predicted(&self, from: usize, x_bn: Tensor<2>, order: usize) -> Tensor<2> {
        let step = self.coefficients(from + 1, order);
        let weights = match order {
            1 => Vec::new(),
            2 => vec![0.5],
            _ => {
                let rows = step.matrix[..order - 1]
                    .iter()
                    .map(|row| row[..order - 1].to_vec());
                solved(rows.collect(), step.right[..order - 1].to_vec())
            }
        };
        let base = self.base(&step, x_bn);
        match self.differences(&step, &weights) {
            Some(sum) => base + sum * (step.differences as f32),
            None => base,
        }
    }

    /// The sample at `at` once more, with the prediction `clean` that was made there; `before` is that of the step before.
    fn corrected(&self, at: usize, before: Tensor<2>, clean: &Tensor<2>, order: usize) -> Tensor<2> {
        let step = self.coefficients(at, order);
        let weights = match order {
            1 => vec![0.5],
            _ => solved(step.matrix.clone(), step.right.clone()),
        };
        let (_, newest) = &self.clean[self.clean.len() - 1];
        let own = (clean.clone() - newest.clone()) * (weights[order - 1] as f32);
        let sum = match self.differences(&step, &weights) {
            Some(sum) => sum + own,
            None => own,
        };
        self.base(&step, before) + sum * (step.differences as f32)
    }
}

/// The solution of a small system, by elimination with the largest pivot of a column.
fn solved(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()));
        let pivot = pivot.expect("there is a row left for every column");
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let of_pivot = matrix[column].clone();
        for row in column + 1..size {
            let factor = matrix[row][column] / of_pivot[column];
            for (value, pivot) in matrix[row].iter_mut().zip(&of_pivot).skip(column) {
                *value -= factor * pivot;
            }
            right[row] -= factor * right[column];
        }
    }
    let mut solution = vec![0.0; size];
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|at| matrix[row][at] * solution[at]).sum();
        solution[row] = (right[row] - known) / matrix[row][row];
    }
    solution
}
