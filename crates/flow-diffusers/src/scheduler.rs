//! Schedulers as data. Defaults are those of diffusers 0.42.1
//! (`schedulers/scheduling_flow_match_euler_discrete.py`, `schedulers/scheduling_unipc_multistep.py`); what is not computed here
//! is refused by its key.

use crate::{FolderError, read_json};
use serde_json::{Map, Value};
use std::path::Path;

/// How noise levels are spaced, and how a step is made.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheduler {
    /// `FlowMatchEulerDiscreteScheduler`: SD3, FLUX.1, Qwen-Image.
    FlowMatchEuler(FlowMatchEuler),
    /// `UniPCMultistepScheduler` with flow sigmas: Wan.
    UniPc(UniPc),
}

/// Euler steps along a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowMatchEuler {
    /// Steps that the model was trained with; a timestep is this times a noise level.
    pub num_train_timesteps: usize,
    /// The static shift s of σ' = sσ / (1 + (s − 1)σ); not used if the shift is dynamic.
    pub shift: f64,
    /// A shift by the number of tokens.
    pub dynamic: Option<DynamicShift>,
    /// The last noise level above zero, to which the schedule is stretched.
    pub shift_terminal: Option<f64>,
}

/// A shift that follows the number of image tokens n: μ = base + (max − base)(n − base tokens) / (max tokens − base tokens).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicShift {
    /// μ at the fewest tokens.
    pub base_shift: f64,
    /// μ at the most tokens.
    pub max_shift: f64,
    /// The fewest tokens.
    pub base_image_seq_len: usize,
    /// The most tokens; the line goes on beyond.
    pub max_image_seq_len: usize,
    /// How μ shifts.
    pub kind: ShiftKind,
}

/// How μ shifts a noise level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShiftKind {
    /// σ' = e^μ / (e^μ + 1/σ − 1).
    Exponential,
    /// σ' = μ / (μ + 1/σ − 1).
    Linear,
}

/// Predictor and corrector of several orders, on noise levels of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct UniPc {
    /// As for [`FlowMatchEuler`].
    pub num_train_timesteps: usize,
    /// The static shift.
    pub flow_shift: f64,
    /// The largest order, 1 to 3.
    pub solver_order: usize,
    /// Whether B(h) is e^h − 1 (`bh2`) and not h (`bh1`).
    pub second_bh: bool,
    /// Whether the last steps are of lower order.
    pub lower_order_final: bool,
    /// Steps without a corrector.
    pub disable_corrector: Vec<usize>,
}

impl DynamicShift {
    /// μ for so many tokens, in f64.
    pub fn mu(&self, tokens: usize) -> f64 {
        let (few, many) = (self.base_image_seq_len as f64, self.max_image_seq_len as f64);
        let slope = (self.max_shift - self.base_shift) / (many - few);
        slope * tokens as f64 + (self.base_shift - slope * few)
    }
}

/// A config with its place, for errors.
struct Keys<'a> {
    path: &'a Path,
    object: &'a Map<String, Value>,
}

impl Scheduler {
    /// Reads `scheduler_config.json` of `folder`. `class` is what `model_index.json` says, which counts before the config's own
    /// word, as in diffusers.
    ///
    /// # Errors
    /// [`FolderError::File`] if there is none, or it is damaged; [`FolderError::Scheduler`] for a key that is not computed here.
    pub fn read(folder: &Path, class: &str) -> Result<Self, FolderError> {
        let path = folder.join("scheduler_config.json");
        let object: Map<String, Value> = read_json(&path)?.ok_or_else(|| FolderError::File {
            path: path.clone(),
            problem: "there is no such file, and a pipeline needs it; download it again".into(),
        })?;
        let keys = Keys {
            path: &path,
            object: &object,
        };
        match class {
            "FlowMatchEulerDiscreteScheduler" => keys.flow_match_euler().map(Self::FlowMatchEuler),
            "UniPCMultistepScheduler" => keys.uni_pc().map(Self::UniPc),
            other => Err(keys.refused(
                "_class_name",
                &Value::from(other),
                "schedulers that are read are FlowMatchEulerDiscreteScheduler and UniPCMultistepScheduler",
            )),
        }
    }
}

impl Keys<'_> {
    fn flow_match_euler(&self) -> Result<FlowMatchEuler, FolderError> {
        for key in [
            "invert_sigmas",
            "use_karras_sigmas",
            "use_exponential_sigmas",
            "use_beta_sigmas",
            "stochastic_sampling",
        ] {
            self.must_be_off(key)?;
        }
        let dynamic = self.flag("use_dynamic_shifting", false)?;
        Ok(FlowMatchEuler {
            num_train_timesteps: self.count("num_train_timesteps", 1000)?,
            shift: self.positive("shift", 1.0)?,
            dynamic: if dynamic {
                Some(self.dynamic_shift()?)
            } else {
                None
            },
            shift_terminal: match self.object.get("shift_terminal") {
                None | Some(Value::Null) => None,
                Some(value) => match value.as_f64() {
                    // Diffusers takes zero for none.
                    Some(0.0) => None,
                    Some(number) if (0.0..1.0).contains(&number) => Some(number),
                    _ => {
                        return Err(self.refused(
                            "shift_terminal",
                            value,
                            "it is a noise level from 0 to 1, or null",
                        ));
                    }
                },
            },
        })
    }

    fn dynamic_shift(&self) -> Result<DynamicShift, FolderError> {
        let shift = DynamicShift {
            base_shift: self.number("base_shift", 0.5)?,
            max_shift: self.number("max_shift", 1.15)?,
            base_image_seq_len: self.count("base_image_seq_len", 256)?,
            max_image_seq_len: self.count("max_image_seq_len", 4096)?,
            kind: match self.word("time_shift_type", "exponential")? {
                "exponential" => ShiftKind::Exponential,
                "linear" => ShiftKind::Linear,
                other => {
                    return Err(self.refused(
                        "time_shift_type",
                        &Value::from(other),
                        "it is \"exponential\" or \"linear\"",
                    ));
                }
            },
        };
        if shift.max_image_seq_len == shift.base_image_seq_len {
            let value = Value::from(shift.max_image_seq_len);
            return Err(self.refused(
                "max_image_seq_len",
                &value,
                "it must differ from `base_image_seq_len`",
            ));
        }
        Ok(shift)
    }

    fn uni_pc(&self) -> Result<UniPc, FolderError> {
        for key in [
            "use_karras_sigmas",
            "use_exponential_sigmas",
            "use_beta_sigmas",
            "thresholding",
            "rescale_betas_zero_snr",
            "use_dynamic_shifting",
        ] {
            self.must_be_off(key)?;
        }
        self.must_be("prediction_type", "epsilon", "flow_prediction")?;
        self.must_be("final_sigmas_type", "zero", "zero")?;
        for (key, default) in [("use_flow_sigmas", false), ("predict_x0", true)] {
            if !self.flag(key, default)? {
                return Err(self.refused(key, &Value::Bool(false), "models of flows need true"));
            }
        }
        match self.object.get("solver_p") {
            None | Some(Value::Null) => {}
            Some(value) => return Err(self.refused("solver_p", value, "only null is computed")),
        }
        let order = self.count("solver_order", 2)?;
        if !(1..=3).contains(&order) {
            return Err(self.refused("solver_order", &Value::from(order), "it is 1, 2 or 3"));
        }
        let disabled = match self.object.get("disable_corrector") {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => {
                let list = value.as_array().map(|list| list.iter().map(Value::as_u64));
                let steps = list.and_then(Iterator::collect::<Option<Vec<u64>>>);
                steps
                    .ok_or_else(|| self.refused("disable_corrector", value, "it is a list of steps"))?
                    .into_iter()
                    .map(|step| step as usize)
                    .collect()
            }
        };
        Ok(UniPc {
            num_train_timesteps: self.count("num_train_timesteps", 1000)?,
            flow_shift: self.positive("flow_shift", 1.0)?,
            solver_order: order,
            second_bh: match self.word("solver_type", "bh2")? {
                "bh1" => false,
                "bh2" => true,
                other => {
                    return Err(self.refused("solver_type", &Value::from(other), "it is \"bh1\" or \"bh2\""));
                }
            },
            lower_order_final: self.flag("lower_order_final", true)?,
            disable_corrector: disabled,
        })
    }

    fn refused(&self, key: &str, value: &Value, problem: &str) -> FolderError {
        FolderError::Scheduler {
            path: self.path.to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            problem: problem.to_owned(),
        }
    }

    /// The value of a key that is there and not null.
    fn given(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, FolderError> {
        let Some(value) = self.given(key) else {
            return Ok(default);
        };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.refused(key, value, "it is a number"))
    }

    fn positive(&self, key: &str, default: f64) -> Result<f64, FolderError> {
        let number = self.number(key, default)?;
        if number > 0.0 {
            return Ok(number);
        }
        Err(self.refused(key, &Value::from(number), "it is above 0"))
    }

    fn count(&self, key: &str, default: usize) -> Result<usize, FolderError> {
        let Some(value) = self.given(key) else {
            return Ok(default);
        };
        let count = value.as_u64().filter(|count| (1..=1 << 32).contains(count));
        count
            .map(|count| count as usize)
            .ok_or_else(|| self.refused(key, value, "it is a whole number of at least 1"))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, FolderError> {
        let Some(value) = self.given(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.refused(key, value, "it is true or false"))
    }

    fn word(&self, key: &str, default: &'static str) -> Result<&str, FolderError> {
        let Some(value) = self.given(key) else {
            return Ok(default);
        };
        value
            .as_str()
            .ok_or_else(|| self.refused(key, value, "it is a text"))
    }

    fn must_be_off(&self, key: &str) -> Result<(), FolderError> {
        if self.flag(key, false)? {
            return Err(self.refused(
                key,
                &Value::Bool(true),
                "schedules of this kind are not computed; only false is",
            ));
        }
        Ok(())
    }

    fn must_be(&self, key: &str, default: &'static str, wanted: &str) -> Result<(), FolderError> {
        let word = self.word(key, default)?;
        if word == wanted {
            return Ok(());
        }
        let problem = format!("models of flows need \"{wanted}\"");
        Err(self.refused(key, &Value::from(word), &problem))
    }
}
