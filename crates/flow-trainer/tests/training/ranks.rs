//! Losses that look at whole groups on several ranks, which are threads here: the same bytes as on one.

use crate::support::{Left, Visit, config, environment, left, registries, with_parts};
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::distributed::Exchange;
use flow_trainer::observer::Silent;
use flow_trainer::session::{Parts, Session};
use flow_trainer::setup::Environment;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Two iterations on one rank; what it leaves, of the first.
struct OnRank<'a>(&'a Path, bool);

impl Visit for OnRank<'_> {
    type Output = Result<Option<Left>, TrainError>;

    fn visit<A: Algorithm + 'static>(self, mut parts: Parts<A>) -> Self::Output {
        let Self(root, is_first) = self;
        parts.settings.iterations = 2;
        if !is_first {
            Session::join(parts, &root.join("run"), false)?.run(&mut Silent)?;
            return Ok(None);
        }
        let directory = RunDirectory::open(root, "run", OnExists::Error)?;
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, root);
        let mut session = Session::start(parts, directory, &manifest)?;
        session.run(&mut Silent)?;
        Ok(Some(left(&session)))
    }
}

/// What a run leaves on so many ranks.
fn on_ranks(ranks: usize, overrides: &[&str]) -> Left {
    let root = tempfile::tempdir().expect("a temporary directory");
    let registries = registries();
    let run = |exchange: Arc<dyn Exchange>| {
        let is_first = exchange.world().is_first();
        let environment = Environment {
            exchange,
            ..environment(&registries)
        };
        with_parts(&config(overrides), &environment, OnRank(root.path(), is_first))
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
