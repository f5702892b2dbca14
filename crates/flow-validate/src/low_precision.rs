//! Weights in low precision: what they take, that none is frozen, stored or multiplied so, and that the policy is another one.

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
    /// Bytes that the trained matrix takes as codes of which these are most, of its rows or for gradients of its columns, whatever the rows
    /// of a call; 0 where products round none.
    pub rounded: usize,
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
        let (forms, trained) = (rule.select(layout, spec), rule.select_trained(layout, spec));
        let matrices = || forms.iter().flatten();
        let of_weight = |index: usize| {
            let form = forms.get(index).or(trained.get(index));
            form.copied().flatten()
        };
        let row_of_codes = |columns: usize| columns.next_multiple_of(CODE_ALIGNMENT) + F32 + bytes * columns;
        // The codes of activations, or of gradients, with the scales of their rows, and on a device that multiplies no FP8 these codes
        // widened.
        let product = |(index, weight): (usize, &ParamSpec)| {
            let of = of_weight(index)?;
            let columns = match of.compute.quantises_gradients() {
                true => of.columns.max(of.rows),
                false => of.columns,
            };
            let rows = spec.count_rows(weight.rows, tokens);
            of.compute
                .quantises_activations()
                .then_some(rows * row_of_codes(columns))
        };
        // The codes of a trained matrix's rows, or for gradients of its columns, with their scales, and these widened. The two are not there
        // at one time.
        let rounded = |of: &LowPrecision| {
            let columns = match of.compute.quantises_gradients() {
                true => of.columns * row_of_codes(of.rows),
                false => 0,
            };
            columns.max(of.rows * row_of_codes(of.columns))
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
            rounded: trained.iter().flatten().map(rounded).max().unwrap_or(0),
        }
    }
}

/// What is said of an accelerator called `name`, the entry at `position` of `acceleration.shared`, that stores frozen weights, or
/// multiplies trained ones, as `rule` says.
pub(crate) fn of_entry(config: &Config, rule: &LowPrecisionRule, name: &str, position: usize) -> Diagnostic {
    let format = rule.format;
    let found = match config.model.finetune {
        Finetune::Full if rule.compute.quantises_activations() => {
            let rounded = match rule.compute.quantises_gradients() {
                true => "activations, and in backward gradients and the weights' columns",
                false => "activations",
            };
            let message = format!(
                "the accelerator `{name}` multiplies in {format}: trained weights are rounded to it right before each product, and so are \
                 {rounded}. Rollout and training compute the same products, so ratios stay exactly 1, but the policy is another one than \
                 the same weights are in the precision of the run"
            );
            Diagnostic::warning(OTHER_POLICY, message).help(
                "compare the reward at the first evaluation with that of a run without it (`flow-train drift --low-precision` tells what it \
                 changes), and sample and evaluate the weights with the same entry, then without it (`flow-train eval \
                 --without-low-precision`)",
            )
        }
        Finetune::Full => {
            let message = format!(
                "the accelerator `{name}` stores frozen weights in {format}, and `model.finetune = \"full\"` trains all of them"
            );
            Diagnostic::error(REFUSED, message).help(
                "set `model.finetune = \"lora\"`, or `compute = \"fp8\"` to multiply trained weights in FP8, or remove the entry",
            )
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

/// What of a run's low precision does not fit its model: no weight is stored or multiplied so, or a pattern keeps nothing.
pub(crate) fn of_model(
    config: &Config,
    accelerators: &AcceleratorRegistry,
    model: &Capabilities<'_>,
) -> Vec<Diagnostic> {
    let rule_of = |entry: &AcceleratorEntry| accelerators.low_precision(std::slice::from_ref(entry));
    let mut entries = config.acceleration.shared.iter().enumerate();
    let first = entries.find_map(|(position, entry)| Some((position, rule_of(entry)?)));
    let is_for = |rule: &LowPrecisionRule| match config.model.finetune {
        Finetune::Lora => true,
        Finetune::Full => rule.compute.quantises_activations(),
    };
    let Some((position, rule)) = first.filter(|(_, rule)| is_for(rule)) else {
        return Vec::new();
    };
    let at = |key| path(Slot::Shared.name(), position, key);
    let idle = rule.idle_patterns(model.layout, model.spec).into_iter();
    let mut found: Vec<Diagnostic> = idle
        .map(|pattern| {
            let message = format!(
                "`{pattern}` names no layer that would be stored in {}, or multiplied in it; layers outside of the model's blocks stay as they \
                 are anyway",
                rule.format
            );
            Diagnostic::error(REFUSED, message)
                .path(at("params.keep"))
                .help("remove it, or write a layer's name as `lora.targets` has it")
        })
        .collect();
    let chosen = match config.model.finetune {
        Finetune::Lora => rule.select(model.layout, model.spec),
        Finetune::Full => rule.select_trained(model.layout, model.spec),
    };
    if chosen.iter().all(Option::is_none) {
        let message = format!(
            "no layer of the model is stored in {}, or multiplied in it: those are the layers of its blocks of \
             {MIN_LOW_PRECISION_COLUMNS} input channels and more that `keep` does not name",
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
