//! Where relative paths of a config start: a path in the file at the file's folder, a path on the command line at the
//! working directory, as every program has it. `run.dir` is `runs` in the working directory where nobody gives it.

use std::path::{Path, PathBuf};

use crate::load::{Resolved, Source};
use crate::sections::{Config, RewardConfig, TextConfig};

/// Words that stand for weights of flow-train's own, in the place of a path.
const OWN_WEIGHTS: [&str; 2] = ["built-in", "judge"];

/// Every path of a config with its key. A test counts the paths that the sections declare.
pub(crate) fn paths(config: &Config) -> Vec<(String, PathBuf)> {
    let mut config = config.clone();
    paths_mut(&mut config)
        .into_iter()
        .map(|(key, path)| (key, path.clone()))
        .collect()
}

fn paths_mut(config: &mut Config) -> Vec<(String, &mut PathBuf)> {
    let Config {
        run,
        model,
        pretrain,
        text,
        rewards,
        eval_rewards,
        ..
    } = config;
    let mut paths = vec![
        ("run.dir".to_owned(), &mut run.dir),
        ("pretrain.output".to_owned(), &mut pretrain.output),
        (
            "pretrain.classifier.output".to_owned(),
            &mut pretrain.classifier.output,
        ),
    ];
    paths.extend(
        model
            .weights
            .iter_mut()
            .map(|path| ("model.weights".to_owned(), path)),
    );
    paths.extend(
        model
            .adapter
            .iter_mut()
            .map(|path| ("model.adapter".to_owned(), path)),
    );
    if let TextConfig::File(file) = text {
        paths.push(("text.path".to_owned(), &mut file.path));
    }
    let lists = [
        ("rewards", Some(rewards)),
        ("eval_rewards", eval_rewards.as_mut()),
    ];
    for (list, rewards) in lists
        .into_iter()
        .filter_map(|(list, rewards)| Some((list, rewards?)))
    {
        for (index, reward) in rewards.iter_mut().enumerate() {
            if let RewardConfig::DigitClassifier(reward) = reward
                && !OWN_WEIGHTS.iter().any(|own| reward.weights.as_os_str() == *own)
            {
                paths.push((format!("{list}.{index}.weights"), &mut reward.weights));
            }
        }
    }
    paths
}

/// Makes relative paths start where they should, for a config file in the folder `base`. Those of the file stay as they
/// are, since whoever opens them starts at its folder, but for `run.dir`, which is opened from the working directory.
pub(crate) fn anchor(resolved: &mut Resolved, base: &Path) {
    let here = std::env::current_dir();
    let Resolved { config, sources, .. } = resolved;
    for (key, path) in paths_mut(config) {
        if path.is_absolute() {
            continue;
        }
        match (sources.get(&key), &here) {
            (Some(Source::Override { .. }), Ok(here)) if key != "run.dir" => *path = here.join(&*path),
            (Some(Source::File { .. }), _) if key == "run.dir" && base != Path::new(".") => {
                *path = base.join(&*path);
            }
            _ => {}
        }
    }
}
