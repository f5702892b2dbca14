//! Losses that look at whole groups on several ranks, which are threads here: the same bytes as on one.

use crate::distillation::{self, taught_by};
use crate::records::preference_overrides;
use crate::support::{Left, Visit, config, environment, left, registries, with_trainer};
use flow_config::{Config, Shard};
use flow_exchange_cube::BlockExchange;
use flow_report::{CheckpointReader, Manifest, OnExists, RunDirectory};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::distributed::Exchange;
use flow_trainer::observer::Silent;
use flow_trainer::setup::{self, Environment};
use flow_trainer::{TrainError, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Iterations on one rank, from the first or from the newest checkpoint; what it leaves, of the first.
struct OnRank<'a> {
    root: &'a Path,
    is_first: bool,
    resume: bool,
    until: u64,
}

impl Visit for OnRank<'_> {
    type Output = Result<Option<Left>, TrainError>;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        let root = self.root;
        trainer.settings.iterations = self.until;
        if !self.is_first {
            trainer.join(&root.join("run"), self.resume)?.train(&mut Silent)?;
            return Ok(None);
        }
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, root);
        let mut trainer = match self.resume {
            true => {
                let directory = RunDirectory::resume(root, "run")?;
                trainer.resume(directory, None, manifest, &mut Silent)?
            }
            false => {
                let directory = RunDirectory::open(root, "run", OnExists::Error)?;
                trainer.start(directory, &manifest)?
            }
        };
        trainer.train(&mut Silent)?;
        if trainer.state.weights.current.blocks().is_none() {
            return Ok(Some(left(&trainer)));
        }
        // No rank has the weights: the checkpoint does.
        let metrics = root.join("run/metrics.jsonl");
        Ok(Some(Left {
            metrics: std::fs::read_to_string(metrics).expect("metrics exist"),
            weights: Vec::new(),
        }))
    }
}

/// The trainer of a run of random weights, or of those of the file that its config names.
fn visited<V: Visit>(config: &Config, environment: &Environment<'_>, visit: V) -> V::Output {
    if config.model.weights.is_none() {
        return with_trainer(config, environment, visit);
    }
    let algorithm = setup::algorithm(config, environment.plugins, 16);
    let algorithm = algorithm.unwrap_or_else(|error| panic!("{error}"));
    let trainer = setup::trainer(config, environment, algorithm).unwrap_or_else(|error| panic!("{error}"));
    visit.visit(trainer)
}

/// Whether ranks have parts of weights.
fn is_in_parts(config: &Config) -> bool {
    config.distributed.shard == Shard::Weights
}

/// What a run of two iterations leaves on so many ranks.
fn on_ranks(ranks: usize, overrides: &[&str]) -> Left {
    let root = tempfile::tempdir().expect("a temporary directory");
    in_folder(root.path(), ranks, overrides, (false, 2))
}

/// What a run in a folder leaves on so many ranks, from the first iteration or from the newest checkpoint.
fn in_folder(root: &Path, ranks: usize, overrides: &[&str], (resume, until): (bool, u64)) -> Left {
    let registries = registries();
    let config = config(overrides);
    let run = |exchange: Arc<dyn Exchange>| {
        let exchange = match exchange.world().is_several() && is_in_parts(&config) {
            true => Arc::new(BlockExchange::new(exchange)) as Arc<dyn Exchange>,
            false => exchange,
        };
        let is_first = exchange.world().is_first();
        let environment = Environment {
            exchange,
            ..environment(&registries)
        };
        let on_rank = OnRank {
            root,
            is_first,
            resume,
            until,
        };
        visited(&config, &environment, on_rank)
    };
    let mut exchanges = match ranks {
        1 => vec![Arc::new(flow_trainer::distributed::Alone) as Arc<dyn Exchange>],
        _ => flow_exchange::in_process(ranks, Duration::from_secs(60)),
    };
    let first = exchanges.remove(0);
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = (exchanges.into_iter())
            .map(|exchange| scope.spawn(move || run(exchange)))
            .collect();
        let left = run(first).unwrap_or_else(|error| panic!("{error}"));
        for other in others {
            let other = other.join().expect("no rank panics");
            other.unwrap_or_else(|error| panic!("{error}"));
        }
        left.expect("the first rank writes the run")
    })
}

#[test]
fn a_loss_over_whole_groups_leaves_the_same_bytes_on_one_two_and_four_ranks() {
    // Twelve images of an update in four micro-batches: groups of six lie across ranks.
    let geometry = [
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
    ];
    for algorithm in [
        "algorithm={ kind = \"dgpo\", beta = 3000.0, inner_epochs = 2, train_timesteps = { count = 2 } }",
        "algorithm={ kind = \"crd\", centre = \"group\", inner_epochs = 2, train_timesteps = { count = 2 } }",
    ] {
        let overrides = [&geometry[..], &[algorithm]].concat();
        let one = on_ranks(1, &overrides);
        for ranks in [2, 4] {
            let other = on_ranks(ranks, &overrides);
            assert_eq!(other.metrics, one.metrics, "{algorithm} on {ranks}");
            assert!(other.weights == one.weights, "{algorithm} on {ranks}");
        }
    }
}

#[test]
fn a_loss_of_single_rows_and_networks_beside_the_student_leave_the_same_bytes_on_one_two_and_four_ranks() {
    let geometry = [
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "evaluation.every=0",
    ];
    let (sde, ode) = ("scheduler.dynamics=\"flow-sde\"", "scheduler.dynamics=\"ode\"");
    let files = tempfile::tempdir().expect("a temporary directory");
    let registries = registries();
    let teacher = distillation::weights_file(&environment(&registries), files.path(), &[], 5);
    let taught = taught_by("weights", &teacher, ", inner_epochs = 2");
    for (algorithm, dynamics) in [
        ("algorithm={ kind = \"grpo-guard\", inner_epochs = 2 }", sde),
        ("algorithm={ kind = \"dppo\", inner_epochs = 2 }", sde),
        (
            "algorithm={ kind = \"awm\", off_policy = true, old_policy_beta = 0.1, kl_beta = 0.01, train_timesteps = { count = 2 } }",
            ode,
        ),
        ("algorithm={ kind = \"dmd2\", fake_score = { updates = 2 } }", ode),
        ("algorithm={ kind = \"tdm\", fake_score = { updates = 2 } }", ode),
        (
            "algorithm={ kind = \"tdm-r1\", fake_score = { updates = 2 } }",
            ode,
        ),
        (taught.as_str(), ode),
    ] {
        let overrides = [&geometry[..], &[algorithm, dynamics]].concat();
        let one = on_ranks(1, &overrides);
        for ranks in [2, 4] {
            let other = on_ranks(ranks, &overrides);
            assert_eq!(other.metrics, one.metrics, "{algorithm} on {ranks}");
            assert!(other.weights == one.weights, "{algorithm} on {ranks}");
        }
    }
}

#[test]
fn gates_and_another_solver_behind_the_window_leave_the_same_bytes_on_one_two_and_four_ranks() {
    let overrides = [
        "sampling.prompts_per_step=4",
        "sampling.group_size=4",
        "sampling.micro_batch=4",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "algorithm={ kind = \"gardo\", judges = [\"jpeg-compressibility\"], kl_beta = 1.0, inner_epochs = 2 }",
        crate::losses::OF_GARDO,
        "scheduler.steps=8",
        "scheduler.window={ kind = \"contiguous\", size = 2 }",
        "scheduler.after_window={ kind = \"dpm-solver\", share = 0.75 }",
    ];
    let one = on_ranks(1, &overrides);
    for key in ["gate_share", "uncertainty", "gated_fraction", "diversity"] {
        assert_eq!(one.metrics.matches(&format!("\"{key}\"")).count(), 2, "{key}");
    }
    for ranks in [2, 4] {
        let other = on_ranks(ranks, &overrides);
        assert_eq!(other.metrics, one.metrics, "on {ranks}");
        assert!(other.weights == one.weights, "on {ranks}");
    }
}

#[test]
fn the_pull_of_gated_images_does_not_depend_on_how_they_fall_into_micro_batches() {
    let pulls = ["2", "4", "8"].map(|micro_batch| {
        let micro_batch = format!("sampling.micro_batch={micro_batch}");
        let left = on_ranks(
            1,
            &[
                "sampling.prompts_per_step=4",
                "sampling.group_size=4",
                &micro_batch,
                "optimizer.gradient_accumulation=0",
                "evaluation.every=0",
                "algorithm={ kind = \"gardo\", judges = [\"jpeg-compressibility\"], kl_beta = 1.0, inner_epochs = 2, \
                 gate = { share = 0.5, share_range = [0.3, 0.8] } }",
                crate::losses::OF_GARDO,
            ],
        );
        let first = left.metrics.lines().next().expect("a record");
        let record: serde_json::Value = serde_json::from_str(first).expect("a record");
        // Few enough that some micro-batches of two have none.
        let fraction = record["gated_fraction"].as_f64().expect("it is logged");
        assert!(fraction > 0.0 && fraction < 0.5, "{fraction}");
        record["kl"].as_f64().expect("it is logged")
    });
    // The second pass is one optimizer step behind the reference; only the order of sums differs.
    for pull in pulls {
        assert!(pull > 0.0 && (pull / pulls[0] - 1.0).abs() < 1e-2, "{pulls:?}");
    }
}

/// Gives `same` what runs of two iterations leave whose ranks have `parts`: of one, two and four ranks, and of ranks that go on from another
/// number of them, with parts or `whole`.
fn on_other_ranks(whole: &[&str], parts: &[&str], same: impl Fn(&Path, Left, &str)) {
    let folder = || tempfile::tempdir().expect("a temporary directory");
    for ranks in [1, 2, 4] {
        let root = folder();
        let left = in_folder(root.path(), ranks, parts, (false, 2));
        same(root.path(), left, &format!("on {ranks}"));
    }
    for (first, before, second, after) in [
        (4, parts, 2, parts),
        (2, parts, 4, whole),
        (4, whole, 2, parts),
        (2, parts, 1, parts),
    ] {
        let root = folder();
        in_folder(root.path(), first, before, (false, 1));
        let left = in_folder(root.path(), second, after, (true, 2));
        same(root.path(), left, &format!("from {first} to {second}"));
    }
}

/// The tensors of a checkpoint, by name, in the order of the file.
fn tensors(root: &Path, iteration: u64) -> Vec<(String, Vec<u8>)> {
    let path = root.join(format!("run/checkpoints/step-{iteration:06}.ckpt"));
    let reader = CheckpointReader::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let names = reader.sections().iter().map(|section| section.name.clone());
    names
        .map(|name| {
            let bytes = reader.section(&name).unwrap_or_else(|error| panic!("{error}"));
            (name, bytes)
        })
        .collect()
}

#[test]
fn a_shared_optimizer_leaves_the_bytes_of_a_whole_one_and_goes_on_shared_or_whole_on_any_number_of_ranks() {
    let geometry = [
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "ema.enabled=true",
        "evaluation.every=0",
    ];
    let shared = [&geometry[..], &["distributed.shard=\"optimizer\""]].concat();
    let alone = tempfile::tempdir().expect("a temporary directory");
    let wanted = in_folder(alone.path(), 1, &geometry, (false, 2));
    let of_alone = tensors(alone.path(), 2);
    assert!(of_alone.iter().any(|(name, _)| name.starts_with("second/")));
    let same = |root: &Path, left: Left, words: &str| {
        assert_eq!(left.metrics, wanted.metrics, "{words}");
        assert!(left.weights == wanted.weights, "{words}");
        assert!(tensors(root, 2) == of_alone, "{words}: another checkpoint");
    };
    on_other_ranks(&geometry, &shared, same);
}

#[test]
fn ranks_choose_the_same_candidates_and_leave_the_same_bytes_on_one_two_and_four() {
    // Six micro-batches of candidates: ranks have other numbers of them, and groups of nine lie across ranks.
    let geometry = [
        "sampling.prompts_per_step=2",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "exploration.candidates=9",
        "exploration.steps=2",
    ];
    for algorithm in [
        "algorithm.kind=\"grpo\"",
        "algorithm={ kind = \"dgpo\", beta = 3000.0, train_timesteps = { count = 2 } }",
    ] {
        let overrides = [&geometry[..], &[algorithm]].concat();
        let one = on_ranks(1, &overrides);
        assert_eq!(one.metrics.matches("exploration/rank_correlation").count(), 2);
        for ranks in [2, 4] {
            let other = on_ranks(ranks, &overrides);
            assert_eq!(other.metrics, one.metrics, "{algorithm} on {ranks}");
            assert!(other.weights == one.weights, "{algorithm} on {ranks}");
        }
    }
}

#[test]
fn members_that_part_at_steps_leave_the_same_bytes_on_one_two_and_four_ranks() {
    // Four micro-batches in an update: a group lies across ranks.
    let geometry = [
        "sampling.initial_noise=\"per_group\"",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
    ];
    let one_step: &[&str] = &[
        "sampling.prompts_per_step=2",
        "sampling.group_size=8",
        "sampling.micro_batch=2",
        "scheduler.window={ kind = \"list\", steps = [0, 2] }",
        "sampling.branching={ kind = \"one-step\" }",
        "algorithm.step_weights=\"noise\"",
    ];
    let tree: &[&str] = &[
        "sampling.group_size=8",
        "sampling.micro_batch=4",
        "sampling.prompts_per_step=4",
        "sampling.branching={ kind = \"tree\", splits = [0, 1, 2], fusion = \"path-probability\" }",
    ];
    let one_step_per_group: &[&str] = &[
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "sampling.branching={ kind = \"one-step-per-group\" }",
        "algorithm.step_weights=\"inverse-gradient\"",
    ];
    for branching in [one_step, one_step_per_group, tree] {
        let overrides = [&geometry[..], branching].concat();
        let one = on_ranks(1, &overrides);
        for ranks in [2, 4] {
            let other = on_ranks(ranks, &overrides);
            assert_eq!(other.metrics, one.metrics, "{branching:?} on {ranks}");
            assert!(other.weights == one.weights, "{branching:?} on {ranks}");
        }
    }
}

#[test]
fn records_leave_the_same_bytes_on_one_two_and_four_ranks() {
    let images = [
        "algorithm={ kind = \"sft\" }",
        "sampling.prompts_per_step=24",
        "sampling.group_size=1",
        "sampling.micro_batch=3",
    ];
    let folder = tempfile::tempdir().expect("a temporary directory");
    let pairs = preference_overrides(folder.path());
    // Two updates of four micro-batches of two pairs each: more than there are, so that some come again.
    let more = "sampling.prompts_per_step=16";
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).chain([more]).collect();
    let geometry = [
        "algorithm.train_timesteps={ count = 2 }",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
    ];
    for records in [&images[..], &pairs[..]] {
        let overrides = [records, &geometry[..]].concat();
        let one = on_ranks(1, &overrides);
        for ranks in [2, 4] {
            let other = on_ranks(ranks, &overrides);
            assert_eq!(other.metrics, one.metrics, "{records:?} on {ranks}");
            assert!(other.weights == one.weights, "{records:?} on {ranks}");
        }
    }
}

#[test]
fn pairs_of_images_from_different_ranks_leave_the_same_bytes_on_one_two_and_four_ranks() {
    // Two updates; a group of six lies in two micro-batches of three, and two groups on two of four ranks. An update has at most two
    // micro-batches of one pair each, fewer than lanes.
    let overrides = [
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "algorithm={ kind = \"dpo\", inner_epochs = 2, train_timesteps = { count = 2 } }",
    ];
    let one = on_ranks(1, &overrides);
    assert!(one.metrics.contains("implicit_margin"), "{}", one.metrics);
    for ranks in [2, 4] {
        let other = on_ranks(ranks, &overrides);
        assert_eq!(other.metrics, one.metrics, "on {ranks}");
        assert!(other.weights == one.weights, "on {ranks}");
    }
}

#[test]
fn pairs_in_as_many_micro_batches_as_lanes_or_more_leave_the_same_bytes_on_ranks() {
    // One update of up to six pairs in micro-batches of one, in two and in three lanes.
    for (lanes, ranks) in [("distributed.lanes=2", 2), ("distributed.lanes=3", 3)] {
        let overrides = [
            "sampling.prompts_per_step=6",
            "sampling.group_size=4",
            "sampling.micro_batch=2",
            "optimizer.gradient_accumulation=0",
            "distributed.check_replicas_every=1",
            lanes,
            "algorithm={ kind = \"dpo\" }",
        ];
        let one = on_ranks(1, &overrides);
        assert!(one.metrics.contains("implicit_margin"), "{}", one.metrics);
        let other = on_ranks(ranks, &overrides);
        assert_eq!(other.metrics, one.metrics, "on {ranks}");
        assert!(other.weights == one.weights, "on {ranks}");
    }
}

#[test]
fn rollouts_that_are_an_update_behind_leave_the_same_bytes_on_one_two_and_four_ranks_resumed_or_not() {
    let overrides = [
        "sampling.staleness=1",
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.lanes=4",
        "distributed.check_replicas_every=1",
        "evaluation.every=0",
    ];
    let folder = || tempfile::tempdir().expect("a temporary directory");
    let alone = folder();
    let one = in_folder(alone.path(), 1, &overrides, (false, 3));
    assert_eq!(one.metrics.matches("off_policy/ratio_deviation").count(), 3);
    let same = |root: &Path, left: Left, words: &str| {
        assert_eq!(left.metrics, one.metrics, "{words}");
        assert!(left.weights == one.weights, "{words}");
        assert!(
            tensors(root, 3) == tensors(alone.path(), 3),
            "{words}: another checkpoint"
        );
    };
    for ranks in [2, 4] {
        let root = folder();
        let left = in_folder(root.path(), ranks, &overrides, (false, 3));
        same(root.path(), left, &format!("on {ranks}"));
    }
    for (first, second) in [(1, 2), (4, 1)] {
        let root = folder();
        in_folder(root.path(), first, &overrides, (false, 2));
        let left = in_folder(root.path(), second, &overrides, (true, 3));
        same(root.path(), left, &format!("from {first} to {second}"));
    }
}

/// A file of random weights for the model of a config, named as an override.
fn weights_file(folder: &Path, overrides: &[&str]) -> String {
    let registries = registries();
    let path = distillation::weights_file(&environment(&registries), folder, overrides, 11);
    format!("model.weights=\"{}\"", path.display())
}

/// Three blocks whose weights are no multiples of what portions are aligned to, all trained and computed again in backward.
const FULL: [&str; 12] = [
    "model.dit.layers=3",
    "model.dit.hidden=24",
    "model.dit.heads=3",
    "checkpointing.policy=\"full\"",
    "sampling.prompts_per_step=4",
    "sampling.group_size=6",
    "sampling.micro_batch=3",
    "optimizer.gradient_accumulation=4",
    "optimizer.max_grad_norm=0.1",
    "distributed.lanes=4",
    "distributed.check_replicas_every=1",
    "evaluation.prompts=3",
];

#[test]
fn trained_weights_in_parts_leave_the_bytes_of_whole_ones_and_go_on_in_parts_or_whole_on_any_number_of_ranks()
{
    let files = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(files.path(), &FULL);
    // An average that evaluations read, and a reference that losses read beside the trained weights.
    let more = [
        file.as_str(),
        "algorithm={ kind = \"grpo\", kl = { kind = \"velocity\", beta = 0.04 } }",
        "ema.enabled=true",
        "evaluation.weights=\"ema\"",
        "evaluation.every=1",
    ];
    let whole = [&FULL[..], &more].concat();
    let parts = [&whole[..], &["distributed.shard=\"weights\""]].concat();
    let alone = tempfile::tempdir().expect("a temporary directory");
    let wanted = in_folder(alone.path(), 1, &whole, (false, 2));
    let of_alone = tensors(alone.path(), 2);
    for set in ["current/", "average/", "reference/", "first/", "second/"] {
        assert!(of_alone.iter().any(|(name, _)| name.starts_with(set)), "{set}");
    }
    let same = |root: &Path, left: Left, words: &str| {
        assert_eq!(left.metrics, wanted.metrics, "{words}");
        let found = tensors(root, 2);
        for ((name, bytes), (other, others)) in of_alone.iter().zip(&found) {
            assert_eq!(name, other, "{words}");
            assert!(bytes == others, "{words}: `{name}` has other bits");
        }
        assert_eq!(found.len(), of_alone.len(), "{words}");
    };
    on_other_ranks(&whole, &parts, same);
}

#[test]
fn an_old_policy_rollouts_that_are_behind_and_one_unit_a_rank_leave_the_bytes_of_whole_weights_in_parts() {
    let files = tempfile::tempdir().expect("a temporary directory");
    let file = weights_file(files.path(), &FULL);
    let of_nft = "algorithm={ kind = \"nft\", beta = 0.8, kl_beta = 0.02 }";
    // Of four micro-batches in four lanes: a rank of four exchanges a block in the backward pass that gives its gradients.
    let one_step = "scheduler.window={ kind = \"list\", steps = [1] }";
    for (key, ranks) in [
        (of_nft, 2),
        ("sampling.staleness=1", 2),
        (one_step, 4),
        (one_step, 2),
    ] {
        let whole = [&FULL[..], &[file.as_str(), key, "evaluation.every=0"]].concat();
        let parts = [&whole[..], &["distributed.shard=\"weights\""]].concat();
        let (alone, root) = (tempfile::tempdir(), tempfile::tempdir());
        let [alone, root] = [alone, root].map(|folder| folder.expect("a temporary directory"));
        let wanted = in_folder(alone.path(), 1, &whole, (false, 2));
        let found = in_folder(root.path(), ranks, &parts, (false, 2));
        assert_eq!(found.metrics, wanted.metrics, "{key} on {ranks}");
        assert!(
            tensors(root.path(), 2) == tensors(alone.path(), 2),
            "{key} on {ranks}"
        );
    }
}
