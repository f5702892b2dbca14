//! Options of `workload_speed`, beside the command.

use burn::tensor::FloatDType;
use flow_core::{LowPrecisionCompute, LowPrecisionFormat, LowPrecisionRule};
use flow_models::StoredDtype;
use flow_trainer::optimizer::MomentStorage;
use std::error::Error;

/// What was asked for beside the command.
pub struct Options {
    pub tiny: bool,
    pub store: StoredDtype,
    pub device: String,
    /// None for the device's own.
    pub attention: Option<String>,
    pub checkpoint: String,
    pub fused: bool,
    pub captured: bool,
    pub traced: bool,
    pub moments: MomentStorage,
    pub gradients: FloatDType,
    pub weights: FloatDType,
    /// How frozen matrices of the blocks are stored and multiplied, if not in the precision of the run.
    pub low_precision: Option<LowPrecisionRule>,
    /// None for the one that steps are timed at.
    pub learning_rate: Option<f64>,
    pub layers: Option<usize>,
    pub batch: Option<usize>,
    pub made: bool,
    pub repeats: usize,
    pub threads: String,
}

impl Options {
    /// What the arguments say.
    ///
    /// # Errors
    /// An option that there is not, or a value that it cannot have.
    pub fn parse(mut arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            tiny: false,
            store: StoredDtype::F32,
            device: "cpu".into(),
            attention: None,
            checkpoint: "none".into(),
            fused: true,
            captured: false,
            traced: false,
            moments: MomentStorage::F32,
            gradients: FloatDType::F32,
            weights: FloatDType::F32,
            low_precision: None,
            learning_rate: None,
            layers: None,
            batch: None,
            made: false,
            repeats: 5,
            threads: "2".into(),
        };
        while let [name, rest @ ..] = arguments {
            if let "--tiny" | "--made" | "--plain" | "--capture" | "--trace" = &**name {
                options.tiny |= name == "--tiny";
                options.made |= name == "--made";
                options.fused &= name != "--plain";
                options.captured |= name == "--capture";
                options.traced |= name == "--trace";
                arguments = rest;
                continue;
            }
            let [value, rest @ ..] = rest else {
                return Err(format!("`{name}` needs a value").into());
            };
            match (&**name, &**value) {
                ("--store", "f32") => options.store = StoredDtype::F32,
                ("--store", "bf16") => options.store = StoredDtype::Bf16,
                ("--moments", "f32") => options.moments = MomentStorage::F32,
                ("--moments", "bf16") => options.moments = MomentStorage::Bf16,
                ("--gradients", _) => options.gradients = stored(value)?,
                ("--weights", _) => options.weights = stored(value)?,
                ("--low-precision", _) => options.low_precision = Some(rule(value)?),
                ("--learning-rate", _) => options.learning_rate = Some(value.parse()?),
                ("--device", _) => options.device.clone_from(value),
                ("--attention", _) => options.attention = Some(value.clone()),
                ("--checkpoint", _) => options.checkpoint.clone_from(value),
                ("--repeats", _) => options.repeats = value.parse::<usize>()?.max(1),
                ("--layers", _) => options.layers = Some(value.parse()?),
                ("--batch", _) => options.batch = Some(value.parse::<usize>()?.max(1)),
                ("--threads", _) => options.threads.clone_from(value),
                _ => return Err(format!("there is no option `{name} {value}`").into()),
            }
            arguments = rest;
        }
        let narrow = options.weights == FloatDType::BF16 || options.gradients == FloatDType::BF16;
        if narrow && options.device != "cuda" {
            return Err("`--weights bf16` and `--gradients bf16` are for `--device cuda`".into());
        }
        if options.traced && options.device != "cuda" {
            return Err("`--trace` lists the kernels of `--device cuda`".into());
        }
        Ok(options)
    }
}

fn stored(value: &str) -> Result<FloatDType, Box<dyn Error>> {
    match value {
        "f32" => Ok(FloatDType::F32),
        "bf16" => Ok(FloatDType::BF16),
        _ => Err(format!("`{value}` is neither f32 nor bf16").into()),
    }
}

/// `fp8`: products in FP8; `fp8-data-gradient`: and gradients; `storage-` and a format: weights stored in it and widened.
fn rule(value: &str) -> Result<LowPrecisionRule, Box<dyn Error>> {
    let (compute, name) = match value.strip_prefix("storage-") {
        Some(name) => (LowPrecisionCompute::Storage, name),
        None => match value.strip_suffix("-data-gradient") {
            Some(name) => (LowPrecisionCompute::Fp8WithDataGradient, name),
            None => (LowPrecisionCompute::Fp8, value),
        },
    };
    let mut formats = LowPrecisionFormat::ALL.into_iter();
    match formats.find(|format| format.name() == name) {
        Some(format) if compute == LowPrecisionCompute::Storage || format == LowPrecisionFormat::Fp8 => {
            Ok(LowPrecisionRule {
                format,
                compute,
                keep: Vec::new(),
            })
        }
        _ => Err(format!(
            "`{value}` is none of fp8, fp8-data-gradient, storage-fp8, storage-int8, storage-nf4"
        )
        .into()),
    }
}
