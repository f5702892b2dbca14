//! Frozen weights in low precision: what they take, that none is frozen or stored so, and that the policy is another one.

use crate::Capabilities;
use crate::check::path;
use crate::codes::{OTHER_POLICY, REFUSED};
use flow_accel::{AcceleratorRegistry, Slot};
use flow_config::{AcceleratorEntry, Config, Diagnostic, Finetune};
use flow_core::model::MIN_LOW_PRECISION_COLUMNS;
use flow_core::{LowPrecision, LowPrecisionCompute, LowPrecisionRule, ModelSpec, ParamLayout, ParamSpec};

/// Frozen weights in low precision; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowPrecisionLoad {
    /// Number of their values.
    pub values: usize,
    /// Bytes that they are stored in.
    pub bytes: usize,
    /// Of these, bytes of the transposed copies that gradients are computed with; 0 where there are none.
    pub transposed: usize,
    /// Values of the largest matrix among them, which products widen one at a time.
    pub largest: usize,
    /// Bytes beside its operands and its result of the product in FP8 that takes most, by row of a call; 0 where products are not in FP8.
    pub product: usize,
}

/// Bytes of an f32.
const F32: usize = 4;
/// Rows of codes begin at multiples of so many bytes.
const CODE_ALIGNMENT: usize = 16;

impl LowPrecisionLoad {
    /// Of the weights of `layout` that `rule` is about. A value of an activation takes so many `bytes`, and text has so many `tokens`.
    pub(crate) fn of(
        rule: &LowPrecisionRule,
        layout: &ParamLayout,
        spec: &ModelSpec,
        (bytes, tokens): (usize, usize),
    ) -> Self {
        let forms = rule.select(layout, spec);
        let matrices = || forms.iter().flatten();
        // The codes of activations, or of gradients, with the scales of their rows, and on a device that multiplies no FP8 these codes
        // widened.
        let product = |(index, weight): (usize, &ParamSpec)| {
            let of = forms.get(index).copied().flatten()?;
            let columns = match of.compute.quantises_gradients() {
                true => of.columns.max(of.rows),
                false => of.columns,
            };
            let row = columns.next_multiple_of(CODE_ALIGNMENT) + F32 + bytes * columns;
            let rows = spec.count_rows(weight.rows, tokens);
            of.compute.quantises_activations().then_some(rows * row)
        };
        let transposed = |of: &LowPrecision| of.transposed().map_or(0, |(_, copy)| copy.bytes());
        Self {
            values: matrices().map(|of| of.values()).sum(),
            bytes: matrices().map(|of| of.bytes()).sum(),
            transposed: matrices().map(transposed).sum(),
            largest: matrices().map(|of| of.values()).max().unwrap_or(0),
            product: (layout.specs().iter().enumerate())
                .filter_map(product)
                .max()
                .unwrap_or(0),
        }
    }
}

/// What is said of an accelerator called `name`, the entry at `position` of `acceleration.shared`, that stores frozen weights as
/// `rule` says.
pub(crate) fn of_entry(config: &Config, rule: &LowPrecisionRule, name: &str, position: usize) -> Diagnostic {
    let format = rule.format;
    let found = match config.model.finetune {
        Finetune::Full => {
            let message = format!(
                "the accelerator `{name}` stores frozen weights in {format}, and `model.finetune = \"full\"` trains all of them"
            );
            Diagnostic::error(REFUSED, message).help("set `model.finetune = \"lora\"`, or remove the entry")
        }
        Finetune::Lora => {
            let (how, same) = match rule.compute {
                LowPrecisionCompute::Storage => (String::new(), "with the same weights"),
                LowPrecisionCompute::Fp8 => (
                    format!(" and multiplies them with activations that are rounded to {format}"),
                    "the same products",
                ),
                LowPrecisionCompute::Fp8WithDataGradient => (
                    format!(
                        ", a second time transposed, and multiplies them with activations, and in backward with gradients, that are rounded \
                         to {format}"
                    ),
                    "the same products",
                ),
            };
            let message = format!(
                "the accelerator `{name}` stores frozen weights in {format}{how}: rollout and training compute {same}, so ratios stay \
                 exactly 1, but the policy is another one than with the weights of the file"
            );
            Diagnostic::warning(OTHER_POLICY, message).help(
                "compare the reward at the first evaluation with that of a run without it (`flow-train drift --low-precision` tells what it \
                 changes), and sample and evaluate the adapters with the same entry, then on the weights of the file (`flow-train eval \
                 --without-low-precision`)",
            )
        }
    };
    found
        .path(path(Slot::Shared.name(), position, "name"))
        .related(["model.finetune"])
}

/// What of an adapter run's low precision does not fit its model: no weight is stored so, or a pattern keeps nothing.
pub(crate) fn of_model(
    config: &Config,
    accelerators: &AcceleratorRegistry,
    model: &Capabilities<'_>,
) -> Vec<Diagnostic> {
    let rule_of = |entry: &AcceleratorEntry| accelerators.low_precision(std::slice::from_ref(entry));
    let mut entries = config.acceleration.shared.iter().enumerate();
    let first = entries.find_map(|(position, entry)| Some((position, rule_of(entry)?)));
    let Some((position, rule)) = first.filter(|_| config.model.finetune == Finetune::Lora) else {
        return Vec::new();
    };
    let at = |key| path(Slot::Shared.name(), position, key);
    let idle = rule.idle_patterns(model.layout, model.spec).into_iter();
    let mut found: Vec<Diagnostic> = idle
        .map(|pattern| {
            let message = format!(
                "`{pattern}` names no layer that would be stored in {}; layers outside of the model's blocks stay as they are anyway",
                rule.format
            );
            Diagnostic::error(REFUSED, message)
                .path(at("params.keep"))
                .help("remove it, or write a layer's name as `lora.targets` has it")
        })
        .collect();
    if rule.select(model.layout, model.spec).iter().all(Option::is_none) {
        let message = format!(
            "no layer of the model is stored in {}: those are the layers of its blocks of {MIN_LOW_PRECISION_COLUMNS} input channels \
             and more that `keep` does not name",
            rule.format
        );
        found.push(
            Diagnostic::error(REFUSED, message)
                .path(at("name"))
                .help("name fewer layers in `keep`, choose a larger model, or remove the entry"),
        );
    }
    found
}
