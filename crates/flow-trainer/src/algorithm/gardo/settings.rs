//! The settings of GARDO and their rules.

use crate::algorithm::StepWeights;
use crate::algorithm::idle_keys::check_decided_keys;
use crate::algorithm::reference::check_clip_range;
use flow_config::Rules;
use flow_config::codes::{RULE_KL, RULE_REWARD_ROLE, RULE_UNUSED};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What `diversity` says where advantages are not weighed by any.
pub(super) const NO_DIVERSITY: &str = "none";

/// The settings of GARDO, `kind = "gardo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GardoSettings {
    /// Ratio is clipped to `[1 + lo, 1 + hi]`, with `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// The reward, by its name and with weight 0, that says how far an image is from the others of its group: better images count by it.
    /// `"none"`: all count alike.
    #[schemars(length(min = 1))]
    pub diversity: String,
    /// The rewards, by their names, whose ranks are compared with those of the weighted sum of rewards. They may have the weight 0.
    pub judges: Vec<String>,
    /// Factor of the pull of gated images towards the reference; 0: no gate and no reference.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// Which images are pulled back.
    pub gate: GateConfig,
    /// When the reference becomes the trained weights.
    pub renewal: RenewalConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
    /// How much each step of a trajectory counts in the policy term.
    pub step_weights: StepWeights,
}

impl Default for GardoSettings {
    fn default() -> Self {
        Self {
            clip_range: [-1e-5, 1e-5],
            advantage_clip: 5.0,
            diversity: "diversity-in-group".to_owned(),
            judges: Vec::new(),
            kl_beta: 0.04,
            gate: GateConfig::default(),
            renewal: RenewalConfig::default(),
            inner_epochs: 1,
            step_weights: StepWeights::None,
        }
    }
}

/// `[algorithm.gate]`: which images are pulled back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Which images are suspects.
    pub suspects: Suspects,
    /// Share of the suspects, the most suspicious ones, that are pulled back in the first iteration.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Least and most that the share becomes.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub share_range: [f64; 2],
    /// By how much of itself the share grows where suspicion is above that of all of `window`, and falls where it is below.
    #[schemars(range(min = 0.0, max = 0.999))]
    pub rate: f64,
    /// Iterations that suspicion is compared with.
    #[schemars(range(min = 1, max = 10_000))]
    pub window: usize,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            suspects: Suspects::Overrated,
            share: 0.1,
            share_range: [0.02, 0.2],
            rate: 0.1,
            window: 20,
        }
    }
}

/// Which images GARDO suspects, by the ranks of an iteration's images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Suspects {
    /// Those that the trained reward ranks above the judges: what reward hacking looks like.
    #[default]
    Overrated,
    /// Those that it ranks below them: what the official code comes to, which numbers ranks from the best.
    Underrated,
}

/// `[algorithm.renewal]`: when the reference, a copy of the trained weights, is made anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RenewalConfig {
    /// After an iteration whose mean divergence of gated images from the reference is above this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub divergence: f64,
    /// After so many iterations with the same reference, whatever the divergence is.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub iterations: usize,
}

impl Default for RenewalConfig {
    fn default() -> Self {
        Self {
            divergence: 3e-4,
            iterations: 15,
        }
    }
}

impl GardoSettings {
    /// The reward that has the diversity, if there is to be one.
    pub(super) fn diversity(&self) -> Option<&str> {
        (self.diversity != NO_DIVERSITY).then_some(&*self.diversity)
    }

    /// Whether some images are pulled back.
    pub(super) fn is_gated(&self) -> bool {
        self.kl_beta > 0.0
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &GardoSettings, rules: &mut Rules<'_>, path: &str) {
    check_clip_range(settings.clip_range, rules, path);
    check_rewards(settings, rules, path);
    let [least, most] = settings.gate.share_range;
    if least > most {
        let key = format!("{path}.gate.share_range");
        rules
            .error(
                RULE_KL,
                &[&key],
                format!("`{key}` is [{least}, {most}], but the first must not be above the second"),
            )
            .help(format!("write [{most}, {least}]"));
    }
    let gated = settings.is_gated();
    check_decided_keys(
        rules,
        path,
        &[
            ("gate", gated, "kl_beta", "above 0"),
            ("renewal", gated, "kl_beta", "above 0"),
            ("judges", gated, "kl_beta", "above 0"),
        ],
    );
    for key in ["advantage.aggregation", "advantage.global_std"] {
        if !rules.written_below(key).is_empty() {
            let kind = format!("{path}.kind");
            rules
                .warning(
                    RULE_UNUSED,
                    &[key, &kind],
                    format!("GARDO has advantages of its own, so `{key}` changes no advantage"),
                )
                .help("remove it");
        }
    }
}

/// That the rewards it names are there, and that what is no reward does not count as one.
fn check_rewards(settings: &GardoSettings, rules: &mut Rules<'_>, path: &str) {
    let rewards = &rules.config().rewards;
    let names: Vec<&str> = rewards.iter().map(|reward| reward.name()).collect();
    let listed = match names[..] {
        [] => "there is none".to_owned(),
        _ => format!("they are {}", names.join(", ")),
    };
    if let Some(name) = settings.diversity() {
        let key = format!("{path}.diversity");
        match rewards.iter().position(|reward| reward.name() == name) {
            None => {
                rules
                    .error(
                        RULE_REWARD_ROLE,
                        &[&key, &format!("{path}.kind"), "rewards"],
                        format!("`{key}` names a reward `{name}`, and no reward is called so; {listed}"),
                    )
                    .help(
                        "add a `[[rewards]]` table with `kind = \"diversity-in-group\"` and `weight = 0`, or set it to \"none\"",
                    );
            }
            Some(index) if rewards[index].weight != 0.0 => {
                let weight = format!("rewards.{index}.weight");
                let written = rewards[index].weight;
                rules
                    .error(
                        RULE_REWARD_ROLE,
                        &[&weight, &format!("rewards.{index}"), &key],
                        format!("advantages are weighed by `{name}`, which has the weight {written} among the rewards, too"),
                    )
                    .help(format!("set `{weight} = 0`"));
            }
            Some(_) => {}
        }
    }
    if !settings.is_gated() {
        return;
    }
    let key = format!("{path}.judges");
    if settings.judges.is_empty() {
        rules
            .error(
                RULE_REWARD_ROLE,
                &[&key, &format!("{path}.kind")],
                format!("`{key}` is empty, and nothing says which rewards are to be doubted"),
            )
            .help(format!(
                "name rewards in it, such as one with `weight = 0`, or set `{path}.kl_beta = 0`"
            ));
    }
    for (index, judge) in settings.judges.iter().enumerate() {
        if !names.contains(&&**judge) {
            rules
                .error(
                    RULE_REWARD_ROLE,
                    &[&format!("{key}.{index}"), "rewards"],
                    format!("`{key}` names a reward `{judge}`, and no reward is called so; {listed}"),
                )
                .help("add a `[[rewards]]` table of that name, with `weight = 0` if it is to judge only, or name another");
        }
    }
}
