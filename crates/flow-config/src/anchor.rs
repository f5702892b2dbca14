//! Where relative paths of a config start: a path in the file at the file's folder, a path on the command line at the
//! working directory, as every program has it. `run.dir` is `runs` in the working directory where nobody gives it.

use std::path::{Component, Path, PathBuf};

use crate::catalog::{Catalog, join_key};
use crate::resolved::{Resolved, Source};
use crate::sections::{Config, TextConfig};

/// Every path of a config with its key. A test counts the paths that the sections declare.
pub(crate) fn paths(catalog: &Catalog, config: &Config) -> Vec<(String, PathBuf)> {
    let mut config = config.clone();
    let mut paths = Vec::new();
    each_path(catalog, &mut config, &mut |key, path| {
        paths.push((key, path.to_owned()))
    });
    paths
}

/// Calls `visit` with every path and its key; what it leaves in the path's place is the config's.
fn each_path(catalog: &Catalog, config: &mut Config, visit: &mut dyn FnMut(String, &mut PathBuf)) {
    let own = [
        ("run.dir", Some(&mut config.run.dir)),
        ("pretrain.output", Some(&mut config.pretrain.output)),
        (
            "pretrain.classifier.output",
            Some(&mut config.pretrain.classifier.output),
        ),
        ("distributed.nccl", config.distributed.nccl.as_mut()),
        ("model.path", config.model.path.as_mut()),
        ("model.autoencoder", config.model.autoencoder.as_mut()),
        ("model.weights", config.model.weights.as_mut()),
        ("model.adapter", config.model.adapter.as_mut()),
        match &mut config.text {
            TextConfig::File(file) => ("text.path", Some(&mut file.path)),
            TextConfig::Encoders(encoders) => ("text.cache", encoders.cache.as_mut()),
            TextConfig::Bert(bert) => ("text.path", Some(&mut bert.path)),
            TextConfig::Words(_) => ("text.path", None),
        },
    ];
    for (key, path) in own {
        if let Some(path) = path {
            visit(key.to_owned(), path);
        }
    }
    let mut of_plugin = |section: &str, paths: Vec<(String, &mut String)>| {
        for (key, text) in paths {
            let mut path = PathBuf::from(&*text);
            visit(join_key(section, &key), &mut path);
            *text = path.to_string_lossy().into_owned();
        }
    };
    of_plugin("algorithm", catalog.algorithm_paths(&mut config.algorithm));
    of_plugin("data", catalog.data_paths(&mut config.data));
    for (list, rewards) in config.reward_lists_mut() {
        for (index, reward) in rewards.iter_mut().enumerate() {
            of_plugin(&format!("{list}.{index}"), catalog.reward_paths(reward));
        }
    }
}

/// A path of the working directory. Parameters of plug-ins are texts, which a folder whose name is no UTF-8 cannot stand in:
/// there the path goes up from `base`, the folder of the config file, if that is below.
fn from(here: &Path, base: &Path, path: &Path) -> PathBuf {
    let below = base.strip_prefix(here).unwrap_or(base);
    let up = |part| match part {
        Component::Normal(_) => Some(".."),
        Component::CurDir => Some("."),
        _ => None,
    };
    let up: Option<PathBuf> = below.components().map(up).collect();
    match (here.to_str(), up) {
        (None, Some(up)) => up.join(path),
        _ => here.join(path),
    }
}

/// Makes relative paths start where they should, for a config file in the folder `base`. Those of the file stay as they
/// are, since whoever opens them starts at its folder, but for `run.dir`, which is opened from the working directory.
pub(crate) fn anchor(catalog: &Catalog, resolved: &mut Resolved, base: &Path) {
    let here = std::env::current_dir();
    let Resolved { config, sources, .. } = resolved;
    each_path(catalog, config, &mut |key, path| {
        if path.is_absolute() {
            return;
        }
        match (sources.get(&key), &here) {
            (Some(Source::Override { .. }), Ok(here)) if key != "run.dir" => *path = from(here, base, path),
            (Some(Source::File { .. }), _) if key == "run.dir" && base != Path::new(".") => {
                *path = base.join(&*path);
            }
            _ => {}
        }
    });
}
