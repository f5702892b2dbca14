//! Parameters of `feature_cache`, typed per policy, with the published defaults.

use flow_accel::StepScope;
use flow_cache::{Rules, TeaCache};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of `feature_cache`, chosen by `policy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
pub enum FeatureCacheParams {
    /// Velocities are extrapolated while the predicted error of the final latent stays below a target.
    Auto(AutoParams),
    /// The first block decides for the others (ParaAttention; diffusers `hooks/first_block_cache.py`).
    FirstBlock(FirstBlockParams),
    /// Some first blocks decide, some last blocks mend, those between are reused (cache-dit's DBCache).
    DbCache(DbCacheParams),
    /// A mask says which steps are computed (cache-dit's steps computation mask).
    StepMask(StepMaskParams),
    /// Features are computed every few steps and extrapolated in between (arXiv:2503.06923; diffusers
    /// `hooks/taylorseer_cache.py`).
    #[serde(rename = "taylorseer")]
    TaylorSeer(TaylorSeerParams),
    /// Ratios of magnitudes, measured once per model, say how far one may reuse (arXiv:2506.09045; diffusers
    /// `hooks/mag_cache.py`).
    #[serde(rename = "magcache")]
    MagCache(MagCacheParams),
    /// The modulated input of the first block says how much the output changes (arXiv:2411.19108).
    #[serde(rename = "teacache")]
    TeaCache(TeaCacheParams),
    /// How fast the velocity changes with the latent bounds what is reused (arXiv:2507.02860).
    #[serde(rename = "easycache")]
    EasyCache(EasyCacheParams),
    /// Attention outputs are repeated for some steps (Pyramid Attention Broadcast, arXiv:2408.12588).
    Pyramid(PyramidParams),
    /// Attention is extrapolated, and the unconditional branch predicted from the conditional one (FasterCache,
    /// arXiv:2410.19355).
    Faster(FasterParams),
}

/// How a feature is forecast from several computed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Differences per step for derivatives, as published.
    #[default]
    Taylor,
    /// Divided differences in the noise level: exact on polynomials, whatever the gaps.
    Newton,
}

/// What `taylorseer` forecasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForecastTarget {
    /// The output of every attention layer; feed-forwards still run. As published.
    #[default]
    Attention,
    /// The velocity: no block runs, and little memory is needed (diffusers' lite mode).
    Velocity,
}

/// What `teacache` compares from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TeaCacheSignal {
    /// What the first block's attention reads, as for FLUX.
    #[default]
    ModulatedInput,
    /// The conditioning, as for Wan: it depends on timestep and prompt only.
    Conditioning,
}

/// Declares the parameters of a policy: those of its own, and those that every policy has.
macro_rules! params {
    (
        $(#[$of:meta])* $name:ident {
            $($(#[$about:meta])* $field:ident: $type:ty = $default:expr,)*
        }
        rules { warmup_steps = $warmup:expr, max_consecutive = $consecutive:expr, compute_last = $last:expr }
    ) => {
        $(#[$of])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
            /// Steps at the start of a trajectory that are computed.
            #[schemars(range(max = 1000))]
            pub warmup_steps: u32,
            /// Most steps in a row that are answered; 0 for any number.
            #[schemars(range(max = 1000))]
            pub max_consecutive: u32,
            /// Whether the last step is computed.
            pub compute_last: bool,
            /// In which steps answers are allowed: `all_steps`, or `outside_sde_window`, which a coupled algorithm
            /// needs.
            pub scope: StepScope,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    warmup_steps: $warmup,
                    max_consecutive: $consecutive,
                    compute_last: $last,
                    scope: StepScope::AllSteps,
                }
            }
        }

        impl $name {
            pub(super) fn rules(&self) -> Rules {
                Rules {
                    warmup_steps: self.warmup_steps,
                    max_consecutive: self.max_consecutive,
                    compute_last: self.compute_last,
                    outside_sde_window: self.scope == StepScope::OutsideSdeWindow,
                    per_batch: false,
                }
            }
        }
    };
}

params! {
    /// Parameters of the policy `auto`. One sample in a hundred is taken once more without the cache, to hold what was
    /// predicted against what is.
    AutoParams {
        /// Relative L1 error of the final latent that a trajectory may have: 0.01 is about 40 dB on images.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
        target_error: f64 = 0.01,
        /// Highest power of the extrapolation in the noise level.
        #[schemars(range(max = 3))]
        order: usize = 1,
    }
    rules { warmup_steps = 3, max_consecutive = 4, compute_last = true }
}

params! {
    /// Parameters of the policy `first_block`. The warm-up is that of cache-dit (`max_warmup_steps` of its DBCache, which
    /// is a first-block cache with one block): the first steps decide what a picture shows. So a trajectory of 8 steps
    /// or less is the same bits with the defaults as without the cache. Diffusers has no warm-up.
    FirstBlockParams {
        /// Largest relative change of the first block's residual at which a step is answered. Above about 0.2 images
        /// suffer.
        #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0.0))]
        threshold: f64 = 0.08,
        /// Whether the rows of a call decide together, by the mean over them, as the original does. A sample then
        /// depends on its batch-mates; for comparison only.
        per_batch: bool = false,
    }
    rules { warmup_steps = 8, max_consecutive = 0, compute_last = false }
}

params! {
    /// Parameters of the policy `db_cache`.
    DbCacheParams {
        /// Largest relative change of the first blocks' residual at which a step is answered; 1 and above: always.
        #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0.0))]
        threshold: f64 = 0.08,
        /// Blocks at the start that always run (`Fn`).
        #[schemars(range(min = 1, max = 1024))]
        front_blocks: usize = 8,
        /// Blocks at the end that always run (`Bn`).
        #[schemars(range(max = 1024))]
        back_blocks: usize = 0,
        /// Most answered steps of a trajectory; 0 for any number.
        #[schemars(range(max = 1000))]
        max_answered: u32 = 0,
        /// Steps that are computed in any case: `slow`, `medium`, `fast`, `ultra`, or one digit per step, 1 where it is
        /// computed.
        #[schemars(regex(pattern = "^(slow|medium|fast|ultra|[01]+)$"))]
        mask: Option<String> = None,
        /// Whether the steps that the mask leaves are answered whatever the threshold says.
        mask_is_final: bool = true,
        /// Order of the forecast of the reused part; 0 reuses it as it was.
        #[schemars(range(max = 4))]
        order: usize = 0,
        /// How it is forecast.
        basis: Basis = Basis::Taylor,
        /// Whether the rows of a call decide together, by the mean over them, as the original does. A sample then
        /// depends on its batch-mates; for comparison only.
        per_batch: bool = false,
    }
    rules { warmup_steps = 8, max_consecutive = 0, compute_last = false }
}

params! {
    /// Parameters of the policy `step_mask`.
    StepMaskParams {
        /// `slow`, `medium`, `fast`, `ultra` (cache-dit; for 4, 6, 8 and more steps), or one digit per step, 1 where it
        /// is computed.
        #[schemars(regex(pattern = "^(slow|medium|fast|ultra|[01]+)$"))]
        mask: String = "medium".into(),
        /// Blocks at the start that always run.
        #[schemars(range(max = 1024))]
        front_blocks: usize = 1,
    }
    rules { warmup_steps = 0, max_consecutive = 0, compute_last = true }
}

params! {
    /// Parameters of the policy `taylorseer`. Its `warmup_steps` also start its schedule: with 3 and an interval of 5
    /// the computed steps are 0, 1, 2, 4, 9, 14, …
    TaylorSeerParams {
        /// Every how many steps one is computed.
        #[schemars(range(min = 1, max = 1000))]
        interval: u32 = 5,
        /// The step from which all are computed; absent for none.
        #[schemars(range(max = 1000))]
        compute_from: Option<u32> = None,
        /// Highest derivative, or power.
        #[schemars(range(max = 4))]
        order: usize = 1,
        /// How features are forecast.
        basis: Basis = Basis::Taylor,
        /// What is forecast.
        target: ForecastTarget = ForecastTarget::Attention,
    }
    rules { warmup_steps = 3, max_consecutive = 0, compute_last = false }
}

params! {
    /// Parameters of the policy `magcache`. Its `max_consecutive` is the published `K`.
    MagCacheParams {
        /// Accumulated error up to which a step is answered.
        #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0.0))]
        threshold: f64 = 0.06,
        /// Share of the steps at the start that are computed.
        #[schemars(range(min = 0.0, max = 1.0))]
        retention: f64 = 0.2,
        /// Required: the ratio of the magnitudes of successive residuals at every step, measured on the model.
        #[schemars(length(min = 1, max = 1000))]
        ratios: Vec<f64> = Vec::new(),
    }
    rules { warmup_steps = 0, max_consecutive = 3, compute_last = false }
}

params! {
    /// Parameters of the policy `teacache`.
    TeaCacheParams {
        /// Accumulated change at which a step is computed. FLUX: 0.25 computes most, 0.8 least.
        #[schemars(range(max = 100.0), extend("exclusiveMinimum" = 0.0))]
        threshold: f64 = 0.6,
        /// Polynomial that turns a relative change of the signal into one of the output, highest power first; fitted
        /// per model. The default is that of FLUX.1-dev; `[1.0, 0.0]` takes the change as it is.
        #[schemars(length(min = 1, max = 16))]
        coefficients: Vec<f64> = TeaCache::FLUX.to_vec(),
        /// What is compared.
        signal: TeaCacheSignal = TeaCacheSignal::ModulatedInput,
        /// Whether the rows of a call decide together, by the mean over them, as the original does. A sample then
        /// depends on its batch-mates; for comparison only.
        per_batch: bool = false,
    }
    rules { warmup_steps = 1, max_consecutive = 0, compute_last = true }
}

params! {
    /// Parameters of the policy `easycache`.
    EasyCacheParams {
        /// Accumulated relative change at which a step is computed.
        #[schemars(range(max = 10.0), extend("exclusiveMinimum" = 0.0))]
        threshold: f64 = 0.05,
        /// Whether the rows of a call decide together, by the mean over them, as the original does. A sample then
        /// depends on its batch-mates; for comparison only.
        per_batch: bool = false,
    }
    rules { warmup_steps = 10, max_consecutive = 0, compute_last = true }
}

params! {
    /// Parameters of the policy `pyramid`.
    PyramidParams {
        /// Every how many steps attention within an image or frame is computed; 1 for always.
        #[schemars(range(min = 1, max = 1000))]
        spatial_every: u32 = 2,
        /// Every how many steps attention between frames is computed; 1 for always.
        #[schemars(range(min = 1, max = 1000))]
        temporal_every: u32 = 1,
        /// Every how many steps attention to the condition is computed; 1 for always.
        #[schemars(range(min = 1, max = 1000))]
        cross_every: u32 = 1,
        /// Between which timesteps (noise level · 1000, both ends excluded) outputs are repeated.
        timesteps: [f64; 2] = [100.0, 800.0],
    }
    rules { warmup_steps = 0, max_consecutive = 0, compute_last = false }
}

params! {
    /// Parameters of the policy `faster`.
    FasterParams {
        /// Every how many steps attention is computed; 1 for always.
        #[schemars(range(min = 1, max = 1000))]
        attention_every: u32 = 2,
        /// Between which timesteps (noise level · 1000, both ends excluded) attention is extrapolated.
        attention_timesteps: [f64; 2] = [-1.0, 681.0],
        /// Factor of the difference of the two latest outputs.
        #[schemars(range(min = 0.0, max = 10.0))]
        attention_weight: f64 = 0.5,
        /// Every how many steps the unconditional branch is computed; 1 for always.
        #[schemars(range(min = 1, max = 1000))]
        unconditional_every: u32 = 5,
        /// Between which timesteps it is predicted.
        unconditional_timesteps: [f64; 2] = [-1.0, 641.0],
        /// Factor by which the low frequencies of the difference grow per predicted step (`α_1`).
        #[schemars(range(min = 0.0, max = 10.0))]
        low_frequency_factor: f64 = 1.1,
        /// Between which timesteps they grow.
        low_frequency_timesteps: [f64; 2] = [99.0, 901.0],
        /// Factor by which the high frequencies of the difference grow per predicted step (`α_2`).
        #[schemars(range(min = 0.0, max = 10.0))]
        high_frequency_factor: f64 = 1.1,
        /// Between which timesteps they grow.
        high_frequency_timesteps: [f64; 2] = [-1.0, 301.0],
    }
    rules { warmup_steps = 0, max_consecutive = 0, compute_last = false }
}
