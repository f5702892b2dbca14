//! `low_precision`: frozen weights stored in 8 or 4 bits, or trained ones multiplied in FP8, in rollout and training alike.
//!
//! Whoever makes weights asks the accelerator for its rule and stores them by it; kernels widen them, or multiply their codes with those of
//! activations and of gradients. The accelerator itself refuses to stand where nothing is stored so, and counts the matrices that calls read.

use burn::tensor::Tensor;
use flow_accel::{Accelerator, AcceleratorStage, Engagement, Meter, Refusal, Safety, Target};
use flow_core::model::MIN_LOW_PRECISION_COLUMNS;
use flow_core::{
    Backends, Exec, FlowModel, LowPrecisionCompute, LowPrecisionFormat, LowPrecisionRule, ModelInput,
    VelocityDriver, Weights,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `low_precision`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LowPrecisionParams {
    /// In what precision products are computed.
    pub compute: LowPrecisionComputeParam,
    /// How frozen weights are stored, or trained ones rounded; `compute = "fp8"` takes `fp8` alone.
    pub format: LowPrecisionFormatParam,
    /// In what precision the gradients of the layers' inputs are computed; `fp8` is for `compute = "fp8"`. Frozen weights are stored a
    /// second time for it; of trained ones a second copy is made right before each product.
    #[serde(default)]
    pub data_gradient: DataGradientParam,
    /// Layers whose weights stay as they are, beside those outside of the model's blocks: whole names or their ends from a dot
    /// on, `*` standing for any characters, as in `lora.targets`.
    #[serde(default)]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 200)))]
    pub keep: Vec<String>,
}

/// In what precision products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LowPrecisionComputeParam {
    /// In that of the run: weights are widened right before a product.
    Storage,
    /// In FP8 e4m3, with sums in f32: activations are rounded to it row by row, with a scale for each row. Adapters are computed in the
    /// precision of the run, and so are gradients unless `data_gradient` says otherwise. With `model.finetune = "full"` trained weights
    /// are rounded so right before each product, and stored as without it.
    Fp8,
}

/// In what precision the gradients of the layers' inputs are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataGradientParam {
    /// In that of the run, from weights widened right before.
    #[default]
    Run,
    /// In FP8 e4m3, with sums in f32: gradients are rounded to it row by row, as activations are, and so are weights a second time,
    /// transposed, with a scale for each input channel. Frozen ones are stored so; with `model.finetune = "full"` trained ones are rounded
    /// so right before each product, and their own gradients stay in the precision of the run.
    Fp8,
}

/// How frozen weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LowPrecisionFormatParam {
    /// FP8 e4m3 with a scale for each row.
    Fp8,
    /// Integers of 8 bits with a scale for each row.
    Int8,
    /// 4-bit NormalFloat, as in QLoRA, with a scale for each block of 64 values of a row.
    Nf4,
}

impl From<LowPrecisionFormatParam> for LowPrecisionFormat {
    fn from(format: LowPrecisionFormatParam) -> Self {
        match format {
            LowPrecisionFormatParam::Fp8 => Self::Fp8,
            LowPrecisionFormatParam::Int8 => Self::Int8,
            LowPrecisionFormatParam::Nf4 => Self::Nf4,
        }
    }
}

/// Stores frozen matrices in 8 or 4 bits, or multiplies trained ones in FP8.
#[derive(Clone, Debug)]
pub struct LowPrecisionAccelerator {
    rule: LowPrecisionRule,
    data_gradient: DataGradientParam,
}

impl LowPrecisionAccelerator {
    /// The name in configs.
    pub const NAME: &'static str = "low_precision";

    /// With `params`.
    pub fn new(params: LowPrecisionParams) -> Self {
        let LowPrecisionParams {
            compute,
            format,
            data_gradient,
            keep,
        } = params;
        let compute = match (compute, data_gradient) {
            // Gradients in FP8 are refused then.
            (LowPrecisionComputeParam::Storage, _) => LowPrecisionCompute::Storage,
            (LowPrecisionComputeParam::Fp8, DataGradientParam::Run) => LowPrecisionCompute::Fp8,
            (LowPrecisionComputeParam::Fp8, DataGradientParam::Fp8) => {
                LowPrecisionCompute::Fp8WithDataGradient
            }
        };
        let rule = LowPrecisionRule {
            format: format.into(),
            compute,
            keep,
        };
        Self { rule, data_gradient }
    }

    /// The other formats have no codes that FP8 products multiply, and where forward multiplies none, backward does not either.
    fn expect_codes(&self) -> Result<(), Refusal> {
        let LowPrecisionRule { format, compute, .. } = &self.rule;
        if !compute.quantises_activations() && self.data_gradient == DataGradientParam::Fp8 {
            return Err(Refusal::new(
                "`data_gradient = \"fp8\"` multiplies FP8 codes of gradients with those of a second copy of the weights, and \
                 `compute = \"storage\"` computes no product in FP8",
                "Set `compute = \"fp8\"` and `format = \"fp8\"`, or remove `data_gradient`",
            ));
        }
        if !compute.quantises_activations() || *format == LowPrecisionFormat::Fp8 {
            return Ok(());
        }
        Err(Refusal::new(
            format!(
                "`compute = \"fp8\"` multiplies FP8 codes of weights with those of activations, and `format = \"{format}\"` stores other codes"
            ),
            format!(
                "Set `format = \"fp8\"`, or `compute = \"storage\"` to store weights in {format} and widen them"
            ),
        ))
    }
}

impl Accelerator for LowPrecisionAccelerator {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // Rollout and training read the same words by the same kernels, and round a row of activations by that row alone. What gradients are
    // rounded to is no part of a ratio.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    fn low_precision(&self) -> Option<&LowPrecisionRule> {
        Some(&self.rule)
    }

    fn set_up(&self, weights: &Weights) -> Result<(), Refusal> {
        let mut forms = weights.forms().iter().chain(weights.rounded().iter());
        if forms.any(Option::is_some) {
            return Ok(());
        }
        Err(Refusal::new(
            format!(
                "no weight of the run is stored in {}: it stores the frozen matrices of adapter runs (`model.finetune = \"lora\"`), and with \
                 `compute = \"fp8\"` multiplies the trained ones of others, in the model's blocks, of {MIN_LOW_PRECISION_COLUMNS} input \
                 channels and more, that `keep` does not name",
                self.rule.format
            ),
            "Set `model.finetune = \"lora\"`, name fewer layers in `keep`, or remove the entry",
        ))
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        self.expect_codes()?;
        if target.model.stacks.is_empty() {
            return Err(Refusal::new(
                format!(
                    "the model `{}` declares no repeated blocks, and layers outside of blocks stay as they are",
                    target.model.architecture
                ),
                "Remove the entry",
            ));
        }
        let velocities = Arc::new(Counting {
            inner: plan.velocities.clone(),
            meter: target.meter.clone(),
        });
        Ok(Backends { velocities, ..plan })
    }

    fn why_idle(&self) -> String {
        "the model was not called with weights in low precision; remove the entry".into()
    }
}

/// Counts the matrices in low precision that a call reads, and leaves all else to the inner driver, whose name it has: other accelerators ask for that.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn VelocityDriver>,
    meter: Meter,
}

impl VelocityDriver for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let read = exec.params().count_low_precision();
        self.meter.count(Engagement::KernelReplaced, read as u64);
        self.inner.run(exec, model, input)
    }

    fn computes_every_row(&self) -> bool {
        self.inner.computes_every_row()
    }
}
