//! The surrogate's loss: which of its rows learn, and how much each counts.
//!
//! Legend: `B` rows, `N` values of one latent.

use super::SurrogateConfig;
use crate::algorithm::dmd2::recorded;
use crate::algorithm::fake::{noisy, velocity_at_rows};
use crate::algorithm::forward::{distance, held};
use crate::algorithm::{LossContext, LossPoint, PointLoss, StepRows, Tdm, mean_over_rows};
use burn::tensor::Tensor;
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec, RawTensor};

/// The surrogate has no guidance where it learns.
const UNGUIDED: f32 = 1.0;

/// What a step arrived at, made noisy: the same for all models whose errors are compared.
struct Boundary {
    /// The points, `[B, N]`.
    x_bn: Tensor<2>,
    sigmas: Vec<f64>,
    /// Their velocity, from what the step arrived at to the noise, `[B, N]`.
    target_bn: Tensor<2>,
}

impl Boundary {
    fn of(tdm: &Tdm, context: &LossContext<'_, '_>, position: LossPoint) -> Self {
        let (record, draw) = recorded(context, position);
        let made_bn = Tensor::<2>::from_dispatch(record.x_next.clone());
        let sigmas = tdm.levels(context, (&record.step, draw));
        let (x_bn, noise_bn) = noisy(context, &made_bn, &sigmas);
        Self {
            x_bn,
            sigmas,
            target_bn: noise_bn - made_bn,
        }
    }

    /// `mean((v - target)²)` per row, `[B]`, of the velocities under the context that `open` makes of the call.
    fn error<'w>(
        &self,
        context: &LossContext<'_, '_>,
        guidance_scale: f32,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<1> {
        let velocity_bn = velocity_at_rows(context, self.x_bn.clone(), &self.sigmas, guidance_scale, open);
        distance(context, velocity_bn, self.target_bn.clone())
    }
}

/// The errors of the surrogate, of the teacher under `guidance_scale`, and of the surrogate's slower copy if it is kept, each `[B]`.
pub(super) fn errors(
    tdm: &Tdm,
    context: &LossContext<'_, '_>,
    position: LossPoint,
    guidance_scale: f32,
) -> Vec<RawTensor> {
    let boundary = Boundary::of(tdm, context, position);
    let reference = context.reference;
    let reference = reference.expect("the loop provides the reference an algorithm asks for");
    let surrogate = context.surrogate;
    let surrogate = surrogate.expect("the loop provides the networks an algorithm asks for");
    let mut errors = vec![
        boundary.error(context, UNGUIDED, |call| surrogate.exec(call)),
        boundary.error(context, guidance_scale, |call| reference.exec(call)),
    ];
    if let Some(slow) = context.surrogate_slow {
        errors.push(boundary.error(context, UNGUIDED, |call| slow.exec(call)));
    }
    let values = |error: Tensor<1>| plain(&error.into_dispatch());
    errors.into_iter().map(values).collect()
}

/// For each row the weight of its group, whether it learns, 1 or 0, and the teacher's error, from what [`errors`] gave.
pub(super) fn compare(config: &SurrogateConfig, rows: &StepRows<'_>) -> Vec<Vec<f32>> {
    let [errors, others, ..] = rows.numbers else {
        unreachable!("`errors` gives two or three");
    };
    let mut learns = match rows.numbers.get(2) {
        Some(slow) => rows.learns([-config.clip_range, config.clip_range], errors, slow),
        None => vec![1.0; rows.count()],
    };
    let pairs = errors.iter().zip(others).zip(rows.advantages);
    for (((error, other), advantage), learns) in pairs.zip(&mut learns) {
        let ran_ahead = match *advantage > 0.0 {
            true => error < other,
            false => error > other,
        };
        let excess = f64::from(*error) - f64::from(*other);
        if ran_ahead && excess * excess > config.reference_threshold {
            *learns = 0.0;
        }
    }
    let weights = rows.group_weights(config.preference_beta, errors, others);
    vec![weights, learns, others.clone()]
}

/// The loss at one position, whose [`LossContext::compared`] is what [`compare`] gave.
pub(super) fn loss(
    config: &SurrogateConfig,
    tdm: &Tdm,
    context: &LossContext<'_, '_>,
    position: LossPoint,
) -> PointLoss {
    let mut compared = context.compared.iter().cloned().map(Tensor::<1>::from_dispatch);
    let mut next = || {
        let values = compared.next();
        values.expect("the loop compares the rows of an algorithm that asks for it")
    };
    let (weight_b, learns_b, other_b) = (next(), next(), next());
    let boundary = Boundary::of(tdm, context, position);
    let error_b = boundary.error(context, UNGUIDED, |call| context.pass.exec(call));
    let excess_b = error_b.clone() - other_b;
    let penalty = mean_over_rows(excess_b.clone() * excess_b);
    let counts_b = weight_b.clone() * context.advantages.clone();
    let preference = mean_over_rows(held(error_b, &learns_b) * counts_b);
    let terms = vec![
        ("group_weight", weight_b.into_dispatch()),
        ("clip_fraction", (learns_b.neg() + 1.0).into_dispatch()),
        ("reference_penalty", plain(&penalty.clone().into_dispatch())),
    ];
    let loss = preference + penalty * config.reference_beta as f32;
    PointLoss {
        loss: loss * time_weight(config, context, position),
        replayed: None,
        terms,
    }
}

/// How much a step counts: all steps of a rollout are recorded.
fn time_weight(config: &SurrogateConfig, context: &LossContext<'_, '_>, position: LossPoint) -> f32 {
    match position {
        LossPoint::Step { index, .. } if config.time_weighting => {
            (index + 1) as f32 / context.batch.records.len() as f32
        }
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(config: &SurrogateConfig, advantages: &[f32], numbers: &[Vec<f32>]) -> Vec<Vec<f32>> {
        compare(
            config,
            &StepRows {
                advantages,
                groups: &vec![7; advantages.len()],
                numbers,
            },
        )
    }

    #[test]
    fn the_weight_of_a_group_follows_its_formula() {
        let config = SurrogateConfig {
            preference_beta: 100.0,
            ..SurrogateConfig::default()
        };
        let found = compared(&config, &[1.0, -1.0], &[vec![0.30, 0.50], vec![0.32, 0.46]]);
        // z = 100 (-0.02 - 0.04) / 2 = -3.
        for weight in &found[0] {
            assert!((weight - 0.047_425_87).abs() < 2e-6, "{weight}");
        }
        assert_eq!(found[1], [1.0, 1.0]);
        assert_eq!(found[2], [0.32, 0.46]);
    }

    #[test]
    fn a_row_far_from_the_slower_copy_where_its_advantage_asks_for_it_is_held() {
        let config = SurrogateConfig::default();
        let errors = vec![0.30, 0.30, 0.34, 0.34, 0.32];
        let numbers = [errors.clone(), errors, vec![0.32; 5]];
        let found = compared(&config, &[1.0, -1.0, 1.0, -1.0, 1.0], &numbers);
        assert_eq!(found[1], [0.0, 1.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn a_row_that_ran_ahead_of_the_teacher_is_held_on_the_side_of_its_advantage() {
        let config = SurrogateConfig::default();
        // Squares of 0.09, 0.09, 0.01 and 0.09, against 0.05.
        let numbers = [vec![0.1, 0.1, 0.3, 0.7], vec![0.4; 4]];
        let found = compared(&config, &[1.0, -1.0, 1.0, 0.0], &numbers);
        assert_eq!(found[1], [0.0, 1.0, 1.0, 0.0]);
    }
}
