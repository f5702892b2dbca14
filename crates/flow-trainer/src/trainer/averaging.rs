//! The moving average and the slower copies of the weights, which follow the trained ones.

use super::Trainer;
use super::mean::Mean;
use super::state::Decays;
use super::update::UpdateOutcome;
use crate::algorithm::{Algorithm, Moment, SlowCopy};
use flow_accel::Acceleration;

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Lets the moving average and slower copies follow the trained weights after an iteration, which came to `outcome`.
    pub(super) fn follow(&mut self, outcome: &UpdateOutcome) {
        let iteration = self.state.iteration;
        let logged = |name: &str| outcome.terms.get(name).map(Mean::value);
        for copy in [SlowCopy::Old, SlowCopy::Sampling] {
            if self.algorithm.renews(copy, &logged, &mut self.state.memory) {
                self.follow_with(Decays::renewing(copy));
            }
        }
        let average = self.settings.average.as_ref();
        let average = average.and_then(|plan| plan.decay_after(iteration));
        let moment = Moment::Iteration {
            iteration: iteration + 1,
            steps: self.state.optimizer.steps(),
        };
        self.follow_at(average, moment);
    }

    /// Lets the average and slower copies follow at a moment.
    pub(super) fn follow_at(&mut self, average: Option<f64>, moment: Moment) {
        let survives = |copy| self.algorithm.survives(copy, moment);
        let decays = Decays {
            average,
            old: survives(SlowCopy::Old),
            sampling: survives(SlowCopy::Sampling),
        };
        self.follow_with(decays);
    }

    fn follow_with(&mut self, decays: Decays) {
        let kernels = self.acceleration.training().kernels.clone();
        let (kernels, device) = (&*kernels, &self.sampler.device);
        let trained = self.state.optimizer.trained();
        self.state.weights.follow(kernels, device, trained, decays);
    }
}
