//! The committed pretrained weights: made again from config and seed, and compared byte by byte.

use crate::process::{run as run_command, set_path};
use crate::terminal::say;
use crate::workspace::{Workspace, normal};
use anyhow::{Context, Result, bail};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where committed weights lie.
pub(super) const COMMITTED: &str = "assets";

/// Pretrains each weight file that a config in `configs/` starts from and that is committed, once; gives how many there are.
pub fn run(workspace: &Workspace, program: &Path, jobs: &[String]) -> Result<usize> {
    let mut made: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut configs: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(workspace.path("configs"))? {
        configs.push(entry?.path());
    }
    configs.sort();
    for path in configs
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
    {
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !jobs.is_empty() && !jobs.contains(&stem) {
            continue;
        }
        let config = match flow_config::load(&flow_config::Catalog::open(), &path, &[]) {
            Ok(resolved) => resolved.config,
            Err(report) => bail!("{report}"),
        };
        let base = flow_config::base_dir(&path);
        let output = normal(&base.join(&config.pretrain.output));
        let is_committed = output.starts_with(normal(&workspace.path(COMMITTED)));
        if is_committed && config.model.weights.as_ref() == Some(&config.pretrain.output) {
            made.entry(output).or_insert(path);
        }
    }
    let count = made.len();
    let mut differing = Vec::new();
    for (weights, config) in made {
        if !same(workspace, program, &config, &weights)? {
            differing.push(workspace.relative(&weights).display().to_string());
        }
    }
    if !differing.is_empty() {
        bail!(
            "other values than the committed ones: {}. The same processor and version give the same bytes; vectors of \
             another width add up in another order, and thousands of steps carry that on",
            differing.join(", ")
        );
    }
    Ok(count)
}

fn same(workspace: &Workspace, program: &Path, config: &Path, committed: &Path) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let again = folder.path().join("again.safetensors");
    let mut command = Command::new(program);
    command
        .current_dir(workspace.root())
        .arg("pretrain")
        .arg(workspace.relative(config));
    run_command(command.arg("--set").arg(set_path("pretrain.output", &again)))?;
    let name = workspace.relative(committed).display();
    let old = fs::read(committed).with_context(|| format!("cannot read {name}"))?;
    let new = fs::read(&again).context("`flow-train pretrain` wrote no weights")?;
    if old == new {
        say!("{name}: the same {} bytes", old.len());
        return Ok(true);
    }
    let far = distance(&old, &new).with_context(|| format!("cannot compare {name}"))?;
    if far == 0.0 {
        say!("{name}: the same values; what the file notes about its making differs");
        return Ok(true);
    }
    say!("{name}: relative L2 distance {far:.3e}");
    Ok(false)
}

/// Relative L2 distance over all tensors, which must have the same names and shapes.
fn distance(a: &[u8], b: &[u8]) -> Result<f64> {
    let (a, b) = (SafeTensors::deserialize(a)?, SafeTensors::deserialize(b)?);
    let mut names = (a.names(), b.names());
    names.0.sort_unstable();
    names.1.sort_unstable();
    if names.0 != names.1 {
        bail!("the names of the tensors differ");
    }
    let (mut difference, mut size) = (0.0, 0.0);
    for name in names.0 {
        let (a, b) = (a.tensor(name)?, b.tensor(name)?);
        if a.shape() != b.shape()
            || a.dtype() != safetensors::Dtype::F32
            || b.dtype() != safetensors::Dtype::F32
        {
            bail!("`{name}` differs in shape or precision");
        }
        for (a, b) in floats(a.data()).zip(floats(b.data())) {
            difference += (a - b) * (a - b);
            size += a * a;
        }
    }
    Ok((difference / size).sqrt())
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes
        .chunks_exact(4)
        .map(|four| f64::from(f32::from_le_bytes([four[0], four[1], four[2], four[3]])))
}
