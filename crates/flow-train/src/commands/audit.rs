//! `audit`: does the loss see the policy that sampled, whatever computes: is the importance ratio exactly 1, and are
//! log-probability and mean the rollout's to the bit?
//!
//! For combinations of precision, trained weights, attention backend, fused kernels, captured graphs, exact reuse, policy of
//! activation checkpointing, algorithm and guidance: one rollout, and every loss once, without an optimizer step. No
//! combination changes a file, and one that fails has a row that says why. [`pairs`] chooses some of them, unless all are asked for.

mod pairs;
mod table;

use super::nearest::did_you_mean;
use super::{CommandContext, config_report::ConfigUse, tokens};
use crate::arguments::AuditArguments;
use crate::failure::{Failure, OrFailure};
use crate::{progress, terminal};
use flow_accelerators::{
    AttentionBackendAccelerator, ExactReuseAccelerator, FusedKernelsAccelerator, GraphCaptureAccelerator,
};
use flow_config::{
    AcceleratorEntry, AlgorithmConfig, Catalog, CheckpointingConfig, Config, DType, DeviceKind, Dynamics,
    Finetune, InitialNoise,
};
use flow_core::device::ComputeDevice;
use flow_core::{Backends, autograd, stopped};
use flow_train::{EnvironmentError, Registries, base_plan};
use flow_trainer::audit::OnPolicyAudit;
use flow_trainer::observer::Silent;
use flow_trainer::setup::{self, ModelParts};
use flow_trainer::undone::{Undone, undone};
use flow_validate::checkpoint_policy;
use std::collections::BTreeSet;
use std::sync::Arc;
use table::Table;

/// Guidance scales: without an unconditional branch, and with it in the same batch.
const GUIDANCE: [f64; 2] = [1.0, 3.0];

/// Modes of `fused_kernels`: without it, and all that it has.
const FUSED_KERNELS: [Option<&str>; 3] = [None, Some("regional"), Some("full")];

/// Policies of activation checkpointing: without recomputation, with all of it, and with all but attention's.
fn policies() -> [CheckpointingConfig; 3] {
    [
        CheckpointingConfig::None(Default::default()),
        CheckpointingConfig::Full(Default::default()),
        CheckpointingConfig::AttnOnly(Default::default()),
    ]
}

/// What decides whether a call is computed anew. Under `exact_reuse` members of a group start from the same latent, so that it
/// has most to answer for. It and `graph_capture` exclude one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Anew,
    Captured,
    Reused,
}

const CALLS: [Calls; 3] = [Calls::Anew, Calls::Captured, Calls::Reused];

/// What it means that a combination is exact.
const EXACT: &str = "every ratio is 1, and log-probabilities and means are the rollout's to the bit";

/// What tells combinations apart: columns of the table, and of `--only`.
const COLUMNS: [&str; 10] = [
    "device",
    "dtype",
    "weights",
    "attention",
    "fused",
    "capture",
    "keeps",
    "reuse",
    "algorithm",
    "guidance",
];

/// One row of the table.
struct Combination {
    attention: String,
    fused: &'static str,
    calls: Calls,
    config: Config,
}

impl Combination {
    /// Its values of [`COLUMNS`].
    fn values(&self) -> [String; 10] {
        let config = &self.config;
        let weights = match config.model.finetune {
            Finetune::Full => "full",
            Finetune::Lora => "lora",
        };
        let is = |calls: Calls, named: &'static str| if self.calls == calls { named } else { "off" };
        [
            config.device.kind.name(),
            config.device.dtype.name(),
            weights,
            &self.attention,
            self.fused,
            is(Calls::Captured, "on"),
            checkpoint_policy(config).name(),
            is(Calls::Reused, "exact"),
            &config.algorithm.kind,
            &config.sampling.guidance_scale.to_string(),
        ]
        .map(str::to_owned)
    }
}

/// Keeps the combinations that `only` asks for, `COLUMN=VALUE` each.
fn narrow(combinations: Vec<Combination>, only: &[String]) -> Result<Vec<Combination>, Failure> {
    let mut kept = combinations;
    for (number, column) in COLUMNS.iter().enumerate() {
        let of_column = |entry: &String| {
            let (of, value) = entry.split_once('=')?;
            (of == *column).then(|| value.to_owned())
        };
        let wanted: Vec<String> = only.iter().filter_map(of_column).collect();
        let there: BTreeSet<String> = kept.iter().map(|one| one.values()[number].clone()).collect();
        if let Some(unknown) = wanted.iter().find(|value| !there.contains(*value)) {
            return Err(Failure::Input(format!(
                "`--only {column}={unknown}`: no combination has it{}. `{column}` is one of: {}",
                did_you_mean(unknown, there.iter().map(String::as_str)),
                there.iter().cloned().collect::<Vec<_>>().join(", ")
            )));
        }
        if !wanted.is_empty() {
            kept.retain(|one| wanted.contains(&one.values()[number]));
        }
    }
    let is_unknown = |entry: &&String| {
        let column = entry.split_once('=').map(|(column, _)| column);
        !column.is_some_and(|column| COLUMNS.contains(&column))
    };
    match only.iter().find(is_unknown) {
        Some(unknown) => {
            let column = unknown.split('=').next().unwrap_or_default();
            Err(Failure::Input(format!(
                "`--only {unknown}` is not COLUMN=VALUE with a column of: {}{}",
                COLUMNS.join(", "),
                did_you_mean(column, COLUMNS)
            )))
        }
        None => Ok(kept),
    }
}

/// Runs the combinations, prints the table, and fails unless every deviation is exactly 0.
pub fn run(arguments: &AuditArguments, quiet: bool) -> Result<(), Failure> {
    let context = CommandContext::read(&arguments.config, ConfigUse::Inspection)?;
    if context.config().scheduler.dynamics == Dynamics::Ode {
        return Err(Failure::Input(
            "`scheduler.dynamics = \"ode\"` has no stochastic step, so there is no ratio to audit. Add `--set \
             scheduler.dynamics=flow-sde`"
                .into(),
        ));
    }
    let all = narrow(combinations(&context).or_bad_input()?, &arguments.only)?;
    let in_all = all.len();
    let combinations = if arguments.all {
        all
    } else {
        pairs::covering(all, Combination::values)
    };
    if !quiet {
        let count = combinations.len();
        terminal::note(&if count == in_all {
            format!("audit: all {count} combinations")
        } else {
            format!(
                "audit: {count} of {in_all} combinations, in which every two values of different columns occur together; \
                 `--all` takes all of them"
            )
        });
    }
    let table = Table::new(&combinations)?;
    let mut progress = progress::Count::new("combinations", combinations.len() as u64, quiet);
    let found = context.compute_several(|| audited(&context, &combinations, &table, &mut progress))?;
    drop(progress);
    terminal::line("")?;
    let count = combinations.len();
    let Outcome {
        failed,
        inexact,
        undone,
    } = found;
    let mut wrong = Vec::new();
    if inexact > 0 {
        wrong.push(format!(
            "{inexact} of {count} combinations are not exact: rollout and training do not compute the same bits. This is a \
             defect; please report it with this table"
        ));
    }
    if failed > 0 {
        wrong.push(format!(
            "{failed} of {count} combinations failed, so nothing is known of them; their rows say why, and `--only` leaves out \
             what does not run here"
        ));
    }
    if !wrong.is_empty() {
        return Err(Failure::Run(wrong.join(". ")));
    }
    if undone > 0 && context.config().acceleration.strict {
        return Err(Failure::Run(format!(
            "in {undone} of {count} combinations an accelerator did not do what it is in force for; the lines below them in the \
             table say what to change. Or set `acceleration.strict = false` to make this a warning"
        )));
    }
    terminal::line(&match in_all - count {
        0 => format!("all {count} combinations are exact: {EXACT}"),
        left => format!(
            "all {count} combinations are exact: {EXACT}; {left} more were not run (`--all` runs them)"
        ),
    })
}

/// How many combinations came to what.
#[derive(Default)]
struct Outcome {
    /// Those of which nothing is known: they stopped with an error, or panicked.
    failed: usize,
    /// Those that are not exact.
    inexact: usize,
    /// Those in which an accelerator did nothing, or less than it is in force for.
    undone: usize,
}

/// What came of one combination.
struct Found {
    audit: OnPolicyAudit,
    undone: Vec<Undone>,
}

impl Found {
    fn is_exact(&self) -> bool {
        self.audit.worst().is_none() && self.audit.checked() > 0
    }
}

/// Runs the combinations one after the other.
fn audited(
    context: &CommandContext,
    combinations: &[Combination],
    table: &Table,
    progress: &mut progress::Count,
) -> Result<Outcome, Failure> {
    // Every combination would fail for want of the file.
    if let Some(config) = combinations.first().map(|one| &one.config)
        && let Some(path) = &config.model.weights
        && !context.base.join(path).exists()
    {
        setup::model(config, &context.environment(config)?).or_bad_input()?;
    }
    let mut outcome = Outcome::default();
    let mut between = Between::default();
    for combination in combinations {
        let found = between.compute(context, &combination.config);
        progress.print_above(|| match &found {
            Ok(found) => table.row(combination, found),
            Err(why) => table.failed(combination, why),
        })?;
        match found {
            Ok(found) => {
                outcome.inexact += usize::from(!found.is_exact());
                outcome.undone += usize::from(!found.undone.is_empty());
            }
            Err(_) => outcome.failed += 1,
        }
        progress.advance();
    }
    Ok(outcome)
}

/// What stays from one combination to the next: the model, if the next has the same weights in the same precision. All else
/// goes, and the device gets its memory back: a combination has what it would have alone.
#[derive(Default)]
struct Between {
    model: Option<((Finetune, DType), ModelParts)>,
    device: Option<ComputeDevice>,
}

impl Between {
    /// Runs one combination. A panic (memory that ran out) is its failure, and costs the others nothing.
    fn compute(&mut self, context: &CommandContext, config: &Config) -> Result<Found, Failure> {
        let of = (config.model.finetune, config.device.dtype);
        // Before the next is loaded: a device may have no room for both.
        if self.model.as_ref().is_some_and(|(before, _)| *before != of) {
            self.model = None;
            self.release();
        }
        let found =
            stopped::caught(|| self.run(context, config, of)).unwrap_or_else(|why| Err(Failure::from(why)));
        if found.is_err() {
            // A device that failed may have lost them.
            self.model = None;
        }
        self.release();
        found
    }

    fn run(
        &mut self,
        context: &CommandContext,
        config: &Config,
        of: (Finetune, DType),
    ) -> Result<Found, Failure> {
        let environment = context.environment(config)?;
        self.device = Some(environment.device.clone());
        let tokens = tokens(config, &environment).or_bad_input()?;
        let parts = match &self.model {
            Some((_, parts)) => parts.clone(),
            None => {
                let parts = setup::model(config, &environment).or_bad_input()?;
                self.model.insert((of, parts)).1.clone()
            }
        };
        let algorithm = setup::algorithm(config, environment.plugins, tokens).or_bad_input()?;
        let trainer = setup::trainer_with_model(config, &environment, parts, algorithm)
            .and_then(|trainer| trainer.set_up())
            .or_bad_input()?;
        let audit = trainer.audit(&mut Silent).or_failed()?;
        let activity = trainer.acceleration.take_activity();
        let undone = undone(&activity, "this combination");
        Ok(Found { audit, undone })
    }

    /// Gives back what no tensor uses. On a device that failed this may fail too, which the next combination then says.
    fn release(&self) {
        if let Some(device) = &self.device {
            // What a pass that was cut off held goes with the next backward pass only.
            let _ = stopped::caught(|| autograd::free_abandoned(&device.zeros(&[1])));
            let _ = stopped::caught(|| device.release_unused());
        }
    }
}

/// Everything lossless that the config's model and device can be computed by.
fn combinations(context: &CommandContext) -> Result<Vec<Combination>, EnvironmentError> {
    let config = context.config();
    // Its name is that of the backend which computes without an accelerator.
    let without = config.device.kind.name();
    let plans = plans(config, &context.registries)?;
    let entry = |name: &str, key: &str, value: &str| AcceleratorEntry {
        name: name.into(),
        params: [(key.to_owned(), value.into())].into(),
    };
    let mut found = Vec::new();
    for attention in context.registries.attention.names() {
        let backend = context.registries.attention.get(attention)?;
        // What cannot be in force on this device is no combination: `check` says why if a config asks for it.
        let served: Vec<&(DType, Backends)> = plans
            .iter()
            .filter(|(_, plan)| AttentionBackendAccelerator::serves(&*backend, plan).is_ok())
            .collect();
        let dtypes: Vec<DType> = served.iter().map(|(dtype, _)| *dtype).collect();
        let every = |holds: fn(&Backends) -> bool| served.iter().all(|(_, plan)| holds(plan));
        let fusible = every(|plan| plan.kernels.fused(Arc::new(|| ())).is_some());
        let recordable = every(|plan| plan.kernels.recorder().is_some());
        let reusable = backend.is_row_independent() && every(|plan| plan.kernels.is_row_independent());
        let combinations = FUSED_KERNELS
            .iter()
            .flat_map(|fused| CALLS.map(|calls| (fused, calls)))
            .filter(|(fused, calls)| {
                (fusible || fused.is_none())
                    && match calls {
                        Calls::Anew => true,
                        Calls::Captured => recordable,
                        Calls::Reused => reusable,
                    }
            });
        for (fused, calls) in combinations {
            let mut shared = Vec::new();
            if attention != without {
                shared.push(entry(AttentionBackendAccelerator::NAME, "backend", attention));
            }
            if let Some(mode) = fused {
                shared.push(entry(FusedKernelsAccelerator::NAME, "mode", mode));
            }
            let without_parameters = match calls {
                Calls::Anew => None,
                Calls::Captured => Some(GraphCaptureAccelerator::NAME),
                Calls::Reused => Some(ExactReuseAccelerator::NAME),
            };
            shared.extend(without_parameters.map(|name| AcceleratorEntry {
                name: name.into(),
                params: Default::default(),
            }));
            let accelerated = |config: &Config| {
                let mut config = config.clone();
                config.acceleration.shared = shared.clone();
                config.acceleration.rollout = Vec::new();
                if calls == Calls::Reused {
                    config.sampling.initial_noise = InitialNoise::PerGroup;
                }
                Combination {
                    attention: attention.to_owned(),
                    fused: fused.unwrap_or("off"),
                    calls,
                    config,
                }
            };
            found.extend(
                settings(config, &context.catalog, &dtypes)
                    .iter()
                    .map(accelerated),
            );
        }
    }
    // Those that share weights stand together; what else tells combinations apart keeps its order.
    found.sort_by_key(|one| {
        let config = &one.config;
        (
            config.model.finetune == Finetune::Lora,
            config.device.dtype.name(),
        )
    });
    Ok(found)
}

/// The plans of the config's device without accelerators, one per precision that it has.
fn plans(config: &Config, registries: &Registries) -> Result<Vec<(DType, Backends)>, EnvironmentError> {
    let bf16 = config.device.kind != DeviceKind::Cpu || flow_kernels::CpuKernels::bf16().is_ok();
    let dtypes = [DType::F32].into_iter().chain(bf16.then_some(DType::Bf16));
    dtypes
        .map(|dtype| {
            let mut config = config.clone();
            config.device.dtype = dtype;
            Ok((dtype, base_plan(&config, registries)?))
        })
        .collect()
}

/// The config with every coupled algorithm, guidance, set of trained weights, type and policy.
fn settings(config: &Config, catalog: &Catalog, dtypes: &[DType]) -> Vec<Config> {
    let mut found = Vec::new();
    for algorithm in algorithms(config, catalog) {
        for guidance in GUIDANCE {
            for finetune in [Finetune::Full, Finetune::Lora] {
                for (dtype, checkpointing) in
                    dtypes.iter().flat_map(|dtype| policies().map(|one| (dtype, one)))
                {
                    let mut config = config.clone();
                    config.checkpointing = checkpointing;
                    config.algorithm = algorithm.clone();
                    config.sampling.guidance_scale = guidance;
                    config.model.finetune = finetune;
                    if finetune == Finetune::Full {
                        config.model.adapter = None;
                    }
                    config.device.dtype = *dtype;
                    found.push(config);
                }
            }
        }
    }
    found
}

/// The coupled algorithms, the config's own with its constants. One that has no defaults is left out.
fn algorithms(config: &Config, catalog: &Catalog) -> Vec<AlgorithmConfig> {
    let coupled = |algorithm: AlgorithmConfig| {
        let facts = catalog
            .algorithms()
            .get(&algorithm.kind)?
            .facts(&algorithm.params);
        facts.ok()?.is_coupled.then_some(algorithm)
    };
    let of_kind = |kind: &str| match config.algorithm.kind == kind {
        true => Some(config.algorithm.clone()),
        false => catalog.algorithm(kind),
    };
    catalog
        .algorithms()
        .names()
        .filter_map(of_kind)
        .filter_map(coupled)
        .collect()
}
