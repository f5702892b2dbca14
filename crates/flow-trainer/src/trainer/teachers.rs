//! Which teacher a row has, and its weights at a loss.

use super::Trainer;
use crate::algorithm::{Algorithm, Taught, teacher_of};
use crate::error::TrainError;
use flow_accel::Acceleration;
use flow_core::InferencePass;
use std::collections::BTreeMap;

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// The teacher of each sample of this iteration, by its id; empty where there are not several.
    pub(super) fn teachers_of_samples(&self) -> Result<BTreeMap<u64, usize>, TrainError> {
        let teachers = self.algorithm.teachers();
        if teachers.len() < 2 {
            return Ok(BTreeMap::new());
        }
        let (drawn, geometry) = (self.drawn(), &self.settings.geometry);
        let first = self.prompt_sampler.history().first_sample(self.state.iteration);
        let of = |sample: usize| {
            let prompt = &drawn[geometry.slot(sample).0].prompt;
            let teacher = teacher_of(teachers, prompt)
                .map_err(|problem| TrainError::setting(format!("the prompt `{}`: {problem}", prompt.text)))?;
            Ok::<_, TrainError>((first + sample as u64, teacher))
        };
        (0..geometry.samples()).map(of).collect()
    }

    /// The teachers that have a row among `samples`, of which `teachers` says what several teach.
    pub(super) fn taught(&self, samples: &[u64], teachers: &BTreeMap<u64, usize>) -> Vec<Taught<'_>> {
        let weights = self.state.weights.teachers.iter().enumerate();
        let taught = weights.map(|(teacher, weights)| {
            let is_own = |sample: &u64| teachers.get(sample).is_none_or(|own| *own == teacher);
            Taught {
                teacher,
                pass: InferencePass::new(weights, self.training_plan().clone()),
                rows: samples.iter().map(is_own).collect(),
            }
        });
        taught.filter(|taught| taught.rows.contains(&true)).collect()
    }
}
