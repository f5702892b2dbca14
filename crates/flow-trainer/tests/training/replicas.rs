//! Replicas of the weights are compared, and one that is another ends the run.

use crate::support::{Visit, config, environment, registries, with_trainer};
use flow_core::ParamKind;
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::distributed::Exchange;
use flow_trainer::observer::Silent;
use flow_trainer::setup::Environment;
use flow_trainer::{TrainError, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One rank of a run. The third has one weight with another last bit, before the first iteration.
struct OneApart<'a> {
    root: &'a Path,
    rank: usize,
}

impl Visit for OneApart<'_> {
    type Output = Result<(), TrainError>;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.settings.iterations = 2;
        if self.rank == 2 {
            let weights = &mut trainer.state.weights.current;
            let specs = weights.layout().specs();
            let trained = specs.iter().position(|spec| spec.kind != ParamKind::Buffer);
            let trained = trained.expect("a model has weights");
            let mut values = weights.host(trained);
            values[0] = f32::from_bits(values[0].to_bits() ^ 1);
            weights.set_host(trained, values).expect("as many values");
        }
        if self.rank > 0 {
            let mut trainer = trainer.join(&self.root.join("run"), false)?;
            return trainer.train(&mut Silent).map(|_| ());
        }
        let directory = RunDirectory::open(self.root, "run", OnExists::Error)?;
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
        let mut trainer = trainer.start(directory, &manifest)?;
        trainer.train(&mut Silent).map(|_| ())
    }
}

#[test]
fn a_rank_with_one_other_bit_ends_the_run_on_all_ranks_and_is_named() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let registries = registries();
    let config = config(&[
        "sampling.prompts_per_step=4",
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "optimizer.gradient_accumulation=4",
        "distributed.check_replicas_every=1",
        "evaluation.every=0",
    ]);
    let run = |(rank, exchange): (usize, Arc<dyn Exchange>)| {
        let environment = Environment {
            exchange,
            ..environment(&registries)
        };
        let root = root.path();
        with_trainer(&config, &environment, OneApart { root, rank })
    };
    let run = &run;
    let exchanges = flow_exchange::in_process(4, Duration::from_secs(60));
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (exchanges.into_iter().enumerate())
            .map(|each| scope.spawn(move || run(each)))
            .collect();
        let ended = ranks.into_iter().map(|rank| rank.join().expect("no rank panics"));
        ended.collect()
    });
    for outcome in outcomes {
        // Of itself, or in the words of a rank that saw it first.
        let words = outcome.expect_err("one has other weights").to_string();
        assert!(
            words.contains("after iteration 1 the weights of rank 2 are not those of rank 0"),
            "{words}"
        );
    }
}
