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
    let steps = evaluation.schedule.ode_steps();
    let rollout = InferencePass::new(&common.model.weights, common.acceleration.training().clone());
    let site = CallSite {
        stage: Stage::Evaluation,
        iteration: 0,
        step: 0,
        stochastic: false,
        sigma: None,
        steps: steps.len() as u32,
    };
    let ids: Vec<u64> = (0..wanted.len() as u64).collect();
    let mut images = Vec::with_capacity(wanted.len());
    for (ids, prompts) in ids.chunks(micro_batch).zip(wanted.chunks(micro_batch)) {
        let conditions = common.conditioner.conditions(prompts.iter());
        let request = SampleRequest {
            site,
            source: NoiseSource::Evaluation,
            samples: ids,
            starts: ids,
            conditions,
            steps,
        };
        let done = evaluation.sampler.run(&rollout, request, |_| {});
        images.extend(evaluation.decoder.decode_finite(&done.clean)?);
    }
    Ok(images)
}
