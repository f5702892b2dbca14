//! Sizes of prompts of a config, and what a run needs for each.

use super::examples::models_of_sizes;
use super::folder::{folder_size, pipeline};
use super::{Environment, schedule};
use crate::decoder::ImageDecoder;
use crate::error::TrainError;
use crate::policy::Policy;
use crate::scheduler::Schedule;
use crate::sizes::{AtSize, PromptSizes};
use flow_checkpoint::Policy as CheckpointPolicy;
use flow_config::Config;
use flow_core::FlowModel;
use flow_data::Dataset;
use flow_pipeline::Size;
use flow_validate::checkpoint_policy;
use std::sync::Arc;

/// The sizes of a run's prompts.
///
/// # Errors
/// [`TrainError::Setting`] for a size that the folder's model does not make, and for what knows one size only.
pub(super) fn prompt_sizes(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
    model: &dyn FlowModel,
) -> Result<PromptSizes, TrainError> {
    let sampling = &config.sampling;
    let latent = model.spec().latent;
    if sampling.sizes.is_empty() && !sampling.sizes_of_prompts {
        return Ok(PromptSizes::single(Size::picture(latent.width, latent.height)));
    }
    let key = match sampling.sizes.is_empty() {
        true => "sampling.sizes_of_prompts",
        false => "sampling.sizes",
    };
    let refused = |problem: &str| TrainError::setting(format!("`{key}`: {problem}")).about(key);
    if config.model.path.is_none() {
        let problem = "without `model.path`, a diffusers folder, a model makes images of one size";
        return Err(refused(problem).with_help("remove it"));
    }
    let pipeline = pipeline(config, environment.base, &environment.folders)?;
    let own = folder_size(config, &pipeline);
    let prompts = dataset.prompts();
    let sizes = PromptSizes::new(own, &sampling.sizes, sampling.sizes_of_prompts, prompts.iter())?;
    for size in sizes.sizes() {
        if let Err(error) = pipeline.latent(*size) {
            return Err(refused(&error.to_string()));
        }
    }
    if sizes.sizes().len() == 1 {
        return Ok(sizes);
    }
    if !sampling.group_size.is_multiple_of(sampling.micro_batch) {
        return Err(refused(&format!(
            "pictures of a micro-batch are of one size, so `sampling.micro_batch` ({}) must divide `sampling.group_size` ({})",
            sampling.micro_batch, sampling.group_size
        )));
    }
    if !config.exploration.candidates.is_multiple_of(sampling.micro_batch) {
        return Err(refused(&format!(
            "pictures of a micro-batch are of one size, so `sampling.micro_batch` ({}) must divide `exploration.candidates` ({})",
            sampling.micro_batch, config.exploration.candidates
        )));
    }
    if !config.exploration.accelerators.is_empty() {
        let problem = "accelerators of `exploration.accelerators` know one size";
        return Err(refused(problem).with_help("remove them"));
    }
    if !config.acceleration.rollout.is_empty() {
        let problem = "accelerators of `acceleration.rollout` know one size";
        return Err(refused(problem).with_help("remove them"));
    }
    if matches!(checkpoint_policy(config), CheckpointPolicy::Budget { .. }) {
        let problem = "`checkpointing.policy = \"budget\"` plans for one size";
        return Err(refused(problem).with_help("take another policy, such as \"attn-only\""));
    }
    Ok(sizes)
}

/// What sampling needs at each size but the run's own, with `model`, which is of that, under a guidance scale.
///
/// # Errors
/// As [`models_of_sizes`], and if a schedule does not fit.
pub(super) fn others(
    config: &Config,
    environment: &Environment<'_>,
    (model, decoder): (&Arc<dyn FlowModel>, &ImageDecoder),
    sizes: &PromptSizes,
    scale: f64,
    of_tokens: fn(&Config, usize) -> Result<Schedule, TrainError>,
) -> Result<Vec<AtSize>, TrainError> {
    let others = &sizes.sizes()[1..];
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let models = models_of_sizes(config, environment, model, others)?;
    let at = |model: Arc<dyn FlowModel>| -> Result<AtSize, TrainError> {
        let spec = model.spec();
        Ok(AtSize {
            schedule: of_tokens(config, spec.tokens)?,
            decoder: decoder.of_latent(spec.latent),
            policy: Policy::new(model.clone(), scale as f32),
        })
    };
    models.into_iter().map(at).collect()
}

/// As [`others`], for rollouts.
pub(super) fn others_of_rollouts(
    config: &Config,
    environment: &Environment<'_>,
    model: (&Arc<dyn FlowModel>, &ImageDecoder),
    sizes: &PromptSizes,
) -> Result<Vec<AtSize>, TrainError> {
    others(
        config,
        environment,
        model,
        sizes,
        config.sampling.guidance_scale,
        schedule,
    )
}
