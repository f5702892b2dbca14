//! Accelerators: the two slots, and the key that came before them.

use toml_edit::{InlineTable, Value};

use super::{table, take_given};
use crate::convert;
use crate::draft::{Draft, Origin, quoted};
use crate::yaml::{Node, Pair};

const SHARED: &str = "acceleration.shared";
const ROLLOUT: &str = "acceleration.rollout";
const NAMES: [&str; 4] = [
    "attention_backend",
    "torch_compile",
    "diffusers_cache",
    "cache_dit",
];
const POLICIES: [&str; 5] = ["first_block", "faster", "pyramid", "taylorseer", "magcache"];

/// Parameters of diffusers' policies (its config of each, `src/diffusers/hooks`) with their names in `feature_cache`.
const PARAMETERS: [(&str, &str, &str); 21] = [
    ("first_block", "threshold", "threshold"),
    ("magcache", "threshold", "threshold"),
    ("magcache", "max_skip_steps", "max_consecutive"),
    ("magcache", "retention_ratio", "retention"),
    ("magcache", "mag_ratios", "ratios"),
    ("taylorseer", "cache_interval", "interval"),
    ("taylorseer", "disable_cache_before_step", "warmup_steps"),
    ("taylorseer", "disable_cache_after_step", "compute_from"),
    ("taylorseer", "max_order", "order"),
    ("pyramid", "spatial_attention_block_skip_range", "spatial_every"),
    ("pyramid", "temporal_attention_block_skip_range", "temporal_every"),
    ("pyramid", "cross_attention_block_skip_range", "cross_every"),
    ("pyramid", "spatial_attention_timestep_skip_range", "timesteps"),
    ("faster", "spatial_attention_block_skip_range", "attention_every"),
    (
        "faster",
        "spatial_attention_timestep_skip_range",
        "attention_timesteps",
    ),
    ("faster", "unconditional_batch_skip_range", "unconditional_every"),
    (
        "faster",
        "unconditional_batch_timestep_skip_range",
        "unconditional_timesteps",
    ),
    (
        "faster",
        "low_frequency_weight_update_timestep_range",
        "low_frequency_timesteps",
    ),
    (
        "faster",
        "high_frequency_weight_update_timestep_range",
        "high_frequency_timesteps",
    ),
    ("faster", "alpha_low_frequency", "low_frequency_factor"),
    ("faster", "alpha_high_frequency", "high_frequency_factor"),
];

/// An entry of the YAML.
struct Entry<'y> {
    slot: &'static str,
    origin: Origin,
    params: &'y [Pair],
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    if let Some(item) = take_given(draft, "model.attn_backend") {
        attention(draft, &item.origin, item.node);
    }
    for slot in [SHARED, ROLLOUT] {
        let Some(item) = take_given(draft, slot) else {
            continue;
        };
        match item.node.list() {
            None => one(draft, slot, item.origin, item.node),
            Some([]) => draft.same(&item.origin, slot, "an empty list"),
            Some(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    one(
                        draft,
                        slot,
                        Origin::new(format!("{slot}.{index}"), node.place, node),
                        node,
                    );
                }
            }
        }
    }
}

fn one(draft: &mut Draft<'_>, slot: &'static str, origin: Origin, node: &Node) {
    let Some(name) = node.get("name").and_then(Node::text) else {
        draft.keep(
            "acceleration",
            &origin,
            "an entry is a map with a `name` and `params`",
        );
        return;
    };
    let none = Vec::new();
    let params: &[Pair] = match node.get("params") {
        None => &none,
        Some(params) if params.is_null() => &none,
        Some(params) => match params.map() {
            Some(pairs) => pairs,
            None => {
                draft.keep("acceleration", &origin, "`params` is a map");
                return;
            }
        },
    };
    for pair in node.map().unwrap_or_default() {
        if !matches!(pair.key.as_str(), "name" | "params") {
            let from = format!("{}.{}", origin.from, quoted(&pair.key));
            let reason = "an entry has a `name` and `params`, and nothing else";
            draft.keep("acceleration", &Origin::new(from, pair.place, &pair.node), reason);
        }
    }
    let entry = Entry { slot, origin, params };
    match name.to_lowercase().as_str() {
        "attention_backend" => attention_entry(draft, &entry),
        "torch_compile" => compile(draft, &entry),
        "diffusers_cache" => cache(draft, &entry),
        "cache_dit" => cache_dit(draft, &entry),
        lower => {
            let nearest = flow_registry::nearest(lower, NAMES)
                .map(|known| format!("; the nearest is `{known}`"))
                .unwrap_or_default();
            let reason = format!(
                "none of Flow-Factory's own accelerators{nearest}; an accelerator of your own is a crate here"
            );
            draft.keep("acceleration", &entry.origin, reason);
        }
    }
}

impl Entry<'_> {
    fn param(&self, name: &str) -> Option<&Node> {
        self.params
            .iter()
            .find(|pair| pair.key == name)
            .map(|pair| &pair.node)
    }

    /// Keeps the parameters that were not converted.
    fn keep_params_but(&self, draft: &mut Draft<'_>, converted: &[&str], reason: &str) {
        for pair in self
            .params
            .iter()
            .filter(|pair| !converted.contains(&pair.key.as_str()))
        {
            let from = format!("{}.params.{}", self.origin.from, quoted(&pair.key));
            draft.keep("acceleration", &Origin::new(from, pair.place, &pair.node), reason);
        }
    }
}

fn attention_entry(draft: &mut Draft<'_>, entry: &Entry<'_>) {
    entry.keep_params_but(
        draft,
        &["backend"],
        "`attention_backend` has one parameter, `backend`",
    );
    match entry.param("backend") {
        Some(backend) => attention(draft, &entry.origin, backend),
        None => draft.keep(
            "acceleration",
            &entry.origin,
            "`attention_backend` needs a `backend`",
        ),
    }
}

fn attention(draft: &mut Draft<'_>, origin: &Origin, backend: &Node) {
    if convert::is_one_of(backend, &["native"]) {
        draft.same(
            origin,
            SHARED,
            "flow-train takes the device's own attention unless told otherwise",
        );
        return;
    }
    let reason = format!(
        "{} is one of PyTorch's; choose from the backends of your build of flow-train: [[acceleration.shared]], name = \
         \"attention_backend\", params = {{ backend = \"…\" }}. Without the entry the device's own is taken",
        backend.flow()
    );
    draft.keep("acceleration", origin, reason);
}

fn accelerator(name: &'static str, params: InlineTable) -> InlineTable {
    table([("name", name.into()), ("params", Value::InlineTable(params))])
}

/// Puts an entry into the slot where it belongs, with a word if that is not where it was.
fn push(
    draft: &mut Draft<'_>,
    slot: &'static str,
    entry: &Entry<'_>,
    what: InlineTable,
    text: String,
    attention: bool,
) {
    let (text, attention) = if slot == entry.slot {
        (text, attention)
    } else {
        (
            format!(
                "{text}; it stood in {}, where Flow-Factory refuses it",
                entry.slot
            ),
            true,
        )
    };
    draft.push(slot, what, &entry.origin, text, attention);
}

fn compile(draft: &mut Draft<'_>, entry: &Entry<'_>) {
    let reason = "an option of torch.compile; settings of Burn and CubeCL stand in [runtime.options]";
    entry.keep_params_but(draft, &["mode"], reason);
    let reason = "on the processor `fused_kernels` saves memory rather than time; add it to acceleration.shared if memory \
                  is short";
    draft.keep("acceleration", &entry.origin, reason);
}

/// What a lossy cache means for the algorithm in use.
fn lossy(draft: &Draft<'_>) -> (String, bool) {
    match draft.kind {
        "nft" => (
            "watch the reward: a lossy cache changes what is sampled".into(),
            false,
        ),
        kind => (
            format!(
                "a lossy cache in the rollouts of {kind} biases the importance ratio, and both programs refuse it; in \
                 flow-train `scope = \"outside_sde_window\"` spares the trained steps"
            ),
            true,
        ),
    }
}

fn cache(draft: &mut Draft<'_>, entry: &Entry<'_>) {
    let (lossy, mut attention) = lossy(draft);
    let policy = match entry.param("policy") {
        None => Some("first_block"),
        Some(node) => POLICIES
            .into_iter()
            .find(|policy| convert::is_one_of(node, &[policy])),
    };
    let Some(policy) = policy else {
        let reason = format!(
            "there is no such policy; Flow-Factory's are {}",
            POLICIES.join(", ")
        );
        draft.keep("acceleration", &entry.origin, reason);
        return;
    };
    let mut params = vec![("policy", Value::from(policy))];
    let mut converted = vec!["policy"];
    for (_, theirs, ours) in PARAMETERS.iter().filter(|(of, _, _)| *of == policy) {
        if let Some(Ok(value)) = entry.param(theirs).map(numbers) {
            params.push((ours, value));
            converted.push(*theirs);
        }
    }
    if policy == "magcache"
        && !params
            .iter()
            .any(|(key, value)| *key == "ratios" && measured(value))
    {
        let reason = "feature_cache's `magcache` does not start without `ratios` (diffusers' `mag_ratios`), a list of numbers \
                      above 0 that are measured on the model: `flow-train calibrate CONFIG --policy magcache` measures them \
                      and writes the entry";
        draft.keep("acceleration", &entry.origin, reason);
        return;
    }
    if policy == "first_block" && entry.param("threshold").is_none() {
        params.push(("threshold", Value::from(0.05)));
    }
    if policy == "first_block" {
        // Diffusers has no warm-up, flow-train has by default.
        params.push(("warmup_steps", Value::from(0)));
    }
    let reason = format!(
        "a parameter of diffusers' policy; those of feature_cache's `{policy}` are typed: see its guide"
    );
    entry.keep_params_but(draft, &converted, &reason);
    attention |= converted.len() < entry.params.len();
    let what = accelerator("feature_cache", table(params));
    push(draft, ROLLOUT, entry, what, lossy, attention);
}

/// Whether these are ratios that the policy takes. flow-config does not look into the parameters of accelerators, so
/// that what the policy refuses would be found when the run starts.
fn measured(ratios: &Value) -> bool {
    let above_zero = |ratio: &Value| {
        let ratio = convert::float(ratio);
        ratio.is_finite() && ratio > 0.0
    };
    (ratios.as_array()).is_some_and(|ratios| !ratios.is_empty() && ratios.iter().all(above_zero))
}

/// A number, or a list of numbers.
fn numbers(node: &Node) -> Result<Value, String> {
    match node.list() {
        None => convert::number(node),
        Some(nodes) => {
            let values: Result<Vec<Value>, String> = nodes.iter().map(convert::number).collect();
            Ok(convert::list(values?))
        }
    }
}

fn cache_dit(draft: &mut Draft<'_>, entry: &Entry<'_>) {
    let (lossy, _) = lossy(draft);
    entry.keep_params_but(draft, &[], "cache_dit is gone, and its parameters with it");
    let params = table([("policy", "first_block".into()), ("threshold", Value::from(0.08))]);
    let text = format!(
        "cache_dit is removed from Flow-Factory too, since it did nothing; this is what replaces it; {lossy}"
    );
    push(
        draft,
        ROLLOUT,
        entry,
        accelerator("feature_cache", params),
        text,
        true,
    );
}
