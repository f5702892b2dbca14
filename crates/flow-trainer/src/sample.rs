//! Images for prompts, with the sampler of evaluation.

use crate::decoder::Decoded;
use crate::error::TrainError;
use crate::policy::CallSite;
use crate::rollout::{NoiseSource, SampleRequest};
use crate::setup::Common;
use flow_accel::Acceleration;
use flow_core::{InferencePass, Stage};
use flow_data::Prompt;

/// One image per entry of `wanted`, `micro_batch` of them in a call of the model. Image `i` starts from the noise of
/// `evaluation.seed` at address `i`, whatever `micro_batch` is. Values are in [-1, 1].
///
/// # Errors
/// If the model makes a value that is not finite.
pub fn sample(
    common: &Common<Acceleration>,
    wanted: &[Prompt],
    micro_batch: usize,
) -> Result<Vec<Decoded>, TrainError> {
    let evaluation = &common.evaluation;
    common.conditioner.prepare(wanted.iter())?;
    let steps = evaluation.schedule.ode_steps().len();
    let rollout = InferencePass::new(&common.model.weights, common.acceleration.training().clone());
    let site = CallSite {
        stage: Stage::Evaluation,
        iteration: 0,
        step: 0,
        stochastic: false,
        sigma: None,
        steps: steps as u32,
    };
    let mut images: Vec<(usize, Decoded)> = Vec::with_capacity(wanted.len());
    for (size, places) in evaluation.sizes.batches(wanted.iter(), micro_batch) {
        let (sampler, schedule) = evaluation.at_size(size);
        let ids: Vec<u64> = places.iter().map(|place| *place as u64).collect();
        let conditions = common
            .conditioner
            .conditions(places.iter().map(|place| &wanted[*place]));
        let request = SampleRequest {
            site,
            source: NoiseSource::Evaluation,
            samples: &ids,
            starts: &ids,
            conditions,
            steps: schedule.ode_steps(),
        };
        let done = sampler.run(&rollout, request, |_| {});
        let decoded = evaluation.decoder_at(size).decode_finite(&done.clean)?;
        images.extend(places.into_iter().zip(decoded));
    }
    // Sizes were made one after the other.
    images.sort_by_key(|(place, _)| *place);
    Ok(images.into_iter().map(|(_, image)| image).collect())
}
