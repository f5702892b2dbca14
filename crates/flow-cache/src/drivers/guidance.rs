//! The unconditional branch answered from the conditional one of the same call: the features are the low and the high
//! frequencies of their difference.

use super::velocity::blocks;
use crate::engine::{Engine, OnCall};
use crate::round::{Feature, Place, Row, Snapshot, conditional};
use crate::{FasterGuidance, Policy, Rules};
use burn::tensor::Tensor;
use flow_core::ops::TensorRow;
use flow_core::tensors::{is_tracked, select_rows};
use flow_core::{Exec, FlowModel, ModelInput, TrajectoryId, VelocityDriver};

/// The driver of [`FasterGuidance`]. Lives as long as one rollout.
///
/// # Panics
/// When it runs, with [`StepOrder`](crate::StepOrder), if the steps of a sample do not come once and in order.
#[derive(Debug)]
pub struct GuidanceCache {
    engine: Engine<FasterGuidance>,
}

impl GuidanceCache {
    /// A driver with nothing kept. `on_call` is told what it did in each call.
    pub fn new(policy: FasterGuidance, rules: Rules, on_call: OnCall) -> Self {
        Self {
            engine: Engine::new(policy, rules, on_call),
        }
    }
}

impl VelocityDriver for GuidanceCache {
    fn name(&self) -> &str {
        self.engine.policy.name()
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let x = input.x.clone().into_dispatch();
        let tracked = exec.params().is_training() || is_tracked(&x);
        if tracked || self.engine.stands_aside(exec, &Place::Velocity) {
            return model.velocity(exec, input);
        }
        let mut round = self.engine.open(exec, Place::Velocity, None);
        let (computed, count) = (round.computed(), round.rows.len());
        let output = if computed.len() == count {
            model.velocity(exec, input)
        } else {
            let trajectories = computed.iter().map(|row| round.rows[*row].trajectory).collect();
            model.velocity(&exec.on_trajectories(trajectories), input.rows(&computed))
        };
        let output_tensor = output.clone().into_dispatch();
        // Conditional rows are always computed, so the other branch of a row is among the computed ones if in the call.
        let trajectories: Vec<TrajectoryId> =
            computed.iter().map(|row| round.rows[*row].trajectory).collect();
        let leader = |trajectory| trajectories.iter().position(|of| *of == conditional(trajectory));
        let moment = round.moment;
        let partners: Vec<Option<usize>> = (trajectories.iter())
            .map(|trajectory| leader(*trajectory).filter(|_| !trajectory.conditional))
            .collect();
        let pair = |(index, partner): (usize, &Option<usize>)| {
            Some(((&output_tensor, index), (&output_tensor, (*partner)?)))
        };
        let pairs: Vec<(TensorRow<'_>, TensorRow<'_>)> =
            partners.iter().enumerate().filter_map(pair).collect();
        let ops = exec.backends().kernels.ops().feature_cache;
        let mut parts = ops.frequencies(&pairs, &model.spec().latent).into_iter();
        let snapshot = |partner: &Option<usize>| -> Vec<Snapshot> {
            let parts = partner.and_then(|_| parts.next()).into_iter().flatten();
            let part = |feature| Snapshot {
                moment,
                features: vec![Feature::alone(feature)],
            };
            parts.map(part).collect()
        };
        let snapshots = partners.iter().map(snapshot).collect();
        self.engine.keep(ops, &mut round, snapshots, &output_tensor);
        let all = if computed.len() == count {
            output
        } else {
            // An answer is added to what the conditional branch of its sample came to.
            let of = |(index, row): (usize, &Row<_>)| match computed.binary_search(&index) {
                Ok(place) => place,
                Err(_) => leader(row.trajectory).expect("a branch is answered only beside the other one"),
            };
            let base: Vec<usize> = round.rows.iter().enumerate().map(of).collect();
            let base = select_rows(&output_tensor, &base);
            let shape = [count, model.spec().latent.values()];
            Tensor::from_dispatch(ops.assemble(&shape, Some(&output_tensor), Some(&base), &round.sources(0)))
        };
        self.engine.close(exec, round, blocks(model));
        all
    }
}
