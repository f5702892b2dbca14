//! `list`: what a config can ask for by name.

use crate::arguments::Listed;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_data::{Dataset, Digits, Prompt, Shapes, ShapesSettings};
use flow_rewards::RewardKind;
use flow_train::Registries;

const ALL: [Listed; 11] = [
    Listed::Models,
    Listed::Rewards,
    Listed::Kernels,
    Listed::Attention,
    Listed::Accelerators,
    Listed::Policies,
    Listed::Algorithms,
    Listed::Schedulers,
    Listed::Data,
    Listed::Presets,
    Listed::Codes,
];

/// Prints one list, or all of them.
pub fn run(what: Option<Listed>) -> Result<(), Failure> {
    let registries = Registries::built_in().or_failed()?;
    let mut text = String::new();
    for listed in what.map_or(ALL.to_vec(), |one| vec![one]) {
        let (title, rows) = entries(listed, &registries)?;
        if what.is_none() {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{title}\n"));
        }
        let indent = if what.is_none() { "  " } else { "" };
        for row in terminal::table(&rows, 2).lines() {
            text.push_str(&format!("{indent}{row}\n"));
        }
    }
    terminal::print(&text)
}

/// A list's title and rows.
fn entries(listed: Listed, registries: &Registries) -> Result<(&'static str, Vec<Vec<String>>), Failure> {
    Ok(match listed {
        Listed::Models => {
            let known = choices("model.architecture");
            let meaning = |name: &str| {
                known
                    .iter()
                    .find(|(known, _)| known == name)
                    .map_or(String::new(), |(_, text)| text.clone())
            };
            let rows = registries
                .models
                .names()
                .into_iter()
                .map(|name| vec![name.to_owned(), meaning(name)]);
            ("models (model.architecture)", rows.collect())
        }
        Listed::Rewards => {
            let known = choices("rewards.kind");
            let rows = registries.rewards.iter().map(|reward| {
                let kind = match reward.kind {
                    RewardKind::Pointwise => "per image",
                    RewardKind::Groupwise => "per group",
                };
                let library = known.iter().all(|(known, _)| known != reward.name);
                let reach = if library { ", from code only" } else { "" };
                vec![
                    reward.name.to_owned(),
                    format!("{} ({kind}{reach})", reward.summary),
                ]
            });
            ("rewards (rewards.kind)", rows.collect())
        }
        Listed::Kernels => {
            let names = registries.kernels.names();
            (
                "kernels (chosen by device.kind)",
                names.map(|name| vec![name.to_owned()]).collect(),
            )
        }
        Listed::Attention => {
            let names = registries.attention.names();
            (
                "attention (chosen by device.kind)",
                names.map(|name| vec![name.to_owned()]).collect(),
            )
        }
        Listed::Accelerators => {
            let kinds = registries.accelerators.kinds();
            (
                "accelerators (acceleration.shared, acceleration.rollout)",
                kinds
                    .map(|kind| {
                        let floor = kind.floor().map(|floor| format!("; floor: {floor}"));
                        let summary = format!("{}{}", kind.summary(), floor.unwrap_or_default());
                        vec![
                            kind.name().to_owned(),
                            kind.stage().slot().name().to_owned(),
                            summary,
                        ]
                    })
                    .collect(),
            )
        }
        Listed::Policies => {
            let policies = flow_train::checkpoint::Policy::all();
            let rows = policies.map(|(name, meaning)| vec![name.to_owned(), meaning.to_owned()]);
            (
                "policies of activation checkpointing (checkpointing.policy)",
                rows.collect(),
            )
        }
        Listed::Algorithms => ("algorithms (algorithm.kind)", rows("algorithm.kind")),
        Listed::Schedulers => ("schedulers (scheduler.dynamics)", rows("scheduler.dynamics")),
        Listed::Data => ("data (data.kind)", rows("data.kind")),
        Listed::Prompts => ("prompts", prompts()?),
        Listed::Presets => {
            let presets = flow_config::presets().iter();
            let rows = presets.map(|preset| vec![preset.name.to_owned(), preset.description()]);
            ("presets (preset)", rows.collect())
        }
        Listed::Codes => {
            let rows =
                flow_validate::all_codes().map(|known| vec![known.code.to_owned(), known.rule.to_owned()]);
            (
                "codes of errors and warnings (flow-train explain CODE)",
                rows.collect(),
            )
        }
    })
}

/// Data set, id and text of every prompt.
fn prompts() -> Result<Vec<Vec<String>>, Failure> {
    let digits = Digits::new().or_failed()?;
    let shapes = Shapes::new(ShapesSettings::default()).or_failed()?;
    let sets: [&dyn Dataset; 2] = [&digits, &shapes];
    let of = |set: &dyn Dataset| {
        let row = |prompt: &Prompt| {
            vec![
                set.name().to_owned(),
                format!("{:>3}  {}", prompt.id, prompt.text),
            ]
        };
        set.prompts().iter().map(row).collect::<Vec<_>>()
    };
    Ok(sets.into_iter().flat_map(of).collect())
}

/// The values that the schema allows for a key, with their meanings.
fn choices(key: &str) -> Vec<(String, String)> {
    flow_config::explain(key)
        .map(|docs| docs.allowed)
        .unwrap_or_default()
}

fn rows(key: &str) -> Vec<Vec<String>> {
    choices(key)
        .into_iter()
        .map(|(name, text)| vec![name, text])
        .collect()
}
