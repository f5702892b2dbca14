//! `list`: what a config can ask for by name.

use crate::arguments::Listed;
use crate::failure::{Failure, OrFailure};
use crate::named_devices::NamedDevice;
use crate::terminal;
use clap::ValueEnum;
use flow_data::{Dataset, Prompt};
use flow_rewards::RewardKind;
use flow_train::Registries;
use std::path::Path;

/// Names with their meanings.
type Named = Vec<(String, String)>;

/// Prints one list with meanings, or the names of all.
pub fn run(what: Option<Listed>) -> Result<(), Failure> {
    let registries = Registries::built_in().or_failed()?;
    match what {
        Some(Listed::Prompts) => terminal::print(&terminal::table(&prompts(&registries)?, 3)),
        Some(listed) => terminal::print(&terminal::pairs(&entries(listed, &registries).1)),
        None => terminal::print(&overview(&registries)),
    }
}

/// Names only, list by list; of long lists how many there are.
fn overview(registries: &Registries) -> String {
    let lists = Listed::value_variants().iter().map(|listed| {
        let value = listed.to_possible_value();
        let name = value.map_or(String::new(), |value| value.get_name().to_owned());
        let said = match listed {
            Listed::Prompts => "every prompt of every data set".to_owned(),
            Listed::Codes => {
                let count = entries(*listed, registries).1.len();
                format!("{count} codes of errors and warnings; `flow-train explain CODE`")
            }
            listed => {
                let (key, named) = entries(*listed, registries);
                let names: Vec<String> = named.into_iter().map(|(name, _)| name).collect();
                format!("{} ({key})", names.join(", "))
            }
        };
        (name, said)
    });
    let lists: Named = lists.collect();
    format!(
        "{}\n`flow-train list NAME` says what each of a list is\n",
        terminal::pairs(&lists)
    )
}

/// Where a list's names are asked for, and the names.
fn entries(listed: Listed, registries: &Registries) -> (&'static str, Named) {
    match listed {
        Listed::Models => {
            let models = registries.plugins.models.iter();
            let named = models.map(|model| (model.name().to_owned(), model.summary().to_owned()));
            ("model.architecture", named.collect())
        }
        Listed::Rewards => {
            let named = registries.plugins.rewards.iter().map(|reward| {
                let kind = match reward.kind() {
                    RewardKind::Pointwise => "per image",
                    RewardKind::Groupwise => "per group",
                };
                let said = format!("{} ({kind})", reward.summary());
                (reward.name().to_owned(), said)
            });
            ("rewards.kind", named.collect())
        }
        Listed::Kernels => {
            let named = registries.kernels.names();
            let named = named.map(|name| (name.to_owned(), kernels(name).to_owned()));
            ("chosen by [device]", named.collect())
        }
        Listed::Attention => {
            let named = registries.attention.names();
            let named = named.map(|name| (name.to_owned(), attention(name).to_owned()));
            ("parameter `backend` of attention_backend", named.collect())
        }
        Listed::Accelerators => {
            let named = registries.accelerators.kinds().map(|kind| {
                let floor = kind.floor().map(|floor| format!("; floor: {floor}"));
                let said = format!(
                    "in `{}`: {}{}",
                    kind.stage().slot().name(),
                    kind.summary(),
                    floor.unwrap_or_default()
                );
                (kind.name().to_owned(), said)
            });
            ("acceleration.shared, acceleration.rollout", named.collect())
        }
        Listed::CachePolicies => ("parameter `policy` of feature_cache", cache_policies(registries)),
        Listed::Policies => {
            let policies = flow_train::checkpoint::Policy::all();
            let named = policies.map(|(name, meaning)| (name.to_owned(), meaning.to_owned()));
            ("checkpointing.policy", named.collect())
        }
        Listed::Algorithms => {
            let algorithms = registries.plugins.algorithms.iter();
            let named = algorithms.map(|one| (one.name().to_owned(), one.summary().to_owned()));
            ("algorithm.kind", named.collect())
        }
        Listed::Schedulers => ("scheduler.dynamics", choices(registries, "scheduler.dynamics")),
        Listed::Data => {
            let sets = registries.plugins.data.iter();
            let named = sets.map(|set| (set.name().to_owned(), set.summary().to_owned()));
            ("data.kind", named.collect())
        }
        Listed::Text => ("text.kind", choices(registries, "text.kind")),
        Listed::Presets => {
            let presets = flow_config::presets().iter();
            let named = presets.map(|preset| (preset.name.to_owned(), preset.description()));
            ("preset", named.collect())
        }
        Listed::Devices => {
            let named = NamedDevice::value_variants().iter().map(|device| {
                let value = device.to_possible_value();
                let name = value.map_or(String::new(), |value| value.get_name().to_owned());
                let said = device
                    .gpu()
                    .map_or("this machine's".into(), |gpu| gpu.to_string());
                (name, said)
            });
            ("--device of check and plan", named.collect())
        }
        Listed::Codes => {
            let named = flow_validate::all_codes();
            let named = named.map(|known| (known.code.to_owned(), known.rule.to_owned()));
            ("flow-train explain CODE", named.collect())
        }
        Listed::Prompts => ("", Vec::new()),
    }
}

/// Policies of the feature cache, as its schema has them.
fn cache_policies(registries: &Registries) -> Named {
    let Some(kind) = registries.accelerators.kind("feature_cache") else {
        return Vec::new();
    };
    let docs = flow_config::explain_params("feature_cache", kind.schema().as_value(), "feature_cache.policy");
    docs.map(|docs| docs.allowed).unwrap_or_default()
}

fn kernels(name: &str) -> &'static str {
    match name {
        "cpu" => "Fused operations on all threads of a processor",
        "reference" => "The definitions, on one thread; what the others are compared with",
        "cuda" => "CubeCL on NVIDIA GPUs, f32",
        "cuda-bf16" => "CubeCL on NVIDIA GPUs, bf16 operands",
        _ => "kernels of a plug-in",
    }
}

fn attention(name: &str) -> &'static str {
    match name {
        "cpu" => "Tiles on all threads of a processor",
        "reference" => "The definition; what the others are compared with",
        "cuda" => "The best of the next three that takes the model's shapes",
        "wgmma" => "Tensor cores of Hopper, bf16",
        "mma" => "Tensor cores since Ampere, bf16",
        "portable" => "Any CubeCL device, f32",
        _ => "a backend of a plug-in",
    }
}

/// Data set, id and text of every prompt.
fn prompts(registries: &Registries) -> Result<Vec<Vec<String>>, Failure> {
    let catalog = registries.catalog();
    let mut rows = Vec::new();
    let of = |set: &dyn Dataset| {
        let row = |prompt: &Prompt| {
            vec![
                set.name().to_owned(),
                format!("{:>3}", prompt.id),
                prompt.text.clone(),
            ]
        };
        set.prompts().iter().map(row).collect::<Vec<_>>()
    };
    let sets = &registries.plugins.data;
    for name in sets.iter().map(|set| set.name()) {
        let Some(kind) = catalog.data().get(name) else {
            continue;
        };
        // One that must be told where its prompts are has none of its own.
        let Ok(params) = kind.plugin.complete(&Default::default()) else {
            continue;
        };
        rows.extend(of(&*sets.build(name, &params, Path::new(".")).or_failed()?));
    }
    Ok(rows)
}

/// The values that the schema allows for a key, with their meanings.
fn choices(registries: &Registries, key: &str) -> Named {
    flow_config::explain(&registries.catalog(), key)
        .map(|docs| docs.allowed)
        .unwrap_or_default()
}
