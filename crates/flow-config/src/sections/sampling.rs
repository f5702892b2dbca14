//! `[sampling]`: how many images a rollout makes, and in which batches.

use super::Branching;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[sampling]`: geometry of a rollout. `prompts_per_step * group_size` images are made per iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Images per prompt, K: the group within which advantages are taken. At least 2 for a group-relative
    /// advantage.
    #[schemars(range(min = 1, max = 65_536))]
    pub group_size: usize,
    /// Prompts per iteration, M.
    #[schemars(range(min = 1, max = 65_536))]
    pub prompts_per_step: usize,
    /// Images per call of the model, in rollout and update alike, before classifier-free guidance doubles them.
    /// Divides `prompts_per_step * group_size`.
    #[schemars(range(min = 1, max = 65_536))]
    pub micro_batch: usize,
    /// Classifier-free guidance: `v = v_none + scale * (v_prompt - v_none)`. 1 turns it off, and halves the work.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub guidance_scale: f64,
    /// The guidance scale that a model with `guidance_embeds` is told (FLUX.1-dev), in rollout, update and evaluation. It costs no
    /// second branch; other models do not read it.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub embedded_guidance_scale: f64,
    /// Which latents the members of a group start from.
    pub initial_noise: InitialNoise,
    /// Sizes of pictures of a diffusers folder, each as width and height in pixels, that prompts take in turn, instead of `model.width`
    /// by `model.height`. `micro_batch` must divide `group_size` then, since a group and a micro-batch are of one size.
    #[schemars(length(max = 64), inner(inner(range(min = 8, max = 16_384))))]
    pub sizes: Vec<[usize; 2]>,
    /// Whether prompts bring their own size, as `width` and `height` beside the text in a `.jsonl` or a table.
    pub sizes_of_prompts: bool,
    /// Where the members of a group part.
    pub branching: Branching,
    /// Updates that a rollout may be behind. 0 samples every rollout from the weights that learn from it. 1 samples the rollout of the next
    /// iteration before the update of this one, so that its rewards are computed beside the whole update; the ratio is then that to the
    /// log-probabilities which the rollout recorded. For coupled algorithms, and not with `exploration`.
    #[schemars(range(max = 1))]
    pub staleness: usize,
}

/// Which latents the members of a group start from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InitialNoise {
    /// Each from its own.
    #[default]
    PerSample,
    /// All from the same, so that they have their trajectory in common up to and including the velocity of the first
    /// random step, which the accelerator `exact_reuse` computes once. Members then differ by the noise of random steps
    /// alone; not with `scheduler.dynamics = "ode"`, which has none.
    PerGroup,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            group_size: 16,
            prompts_per_step: 8,
            micro_batch: 32,
            guidance_scale: 1.0,
            embedded_guidance_scale: 3.5,
            initial_noise: InitialNoise::PerSample,
            sizes: Vec::new(),
            sizes_of_prompts: false,
            branching: Branching::default(),
            staleness: 0,
        }
    }
}

impl SamplingConfig {
    /// Images per iteration, `prompts_per_step * group_size`.
    pub fn images_per_step(&self) -> usize {
        self.prompts_per_step * self.group_size
    }

    /// Calls per denoising step, `images_per_step / micro_batch`; exact in a config that passed the checks.
    pub fn micro_batches(&self) -> usize {
        self.images_per_step() / self.micro_batch
    }
}
