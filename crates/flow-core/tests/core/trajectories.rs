//! Stack drivers: a driver written in a test answers for some trajectories of the batch, as a feature cache does.

use crate::engines::Recorder;
use crate::model::{BATCH, TOKENS, Transformer, WIDTH, plan};
use crate::support::operand;
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use burn::tensor::Tensor;
use flow_core::cpu::to_host;
use flow_core::exec::Stack;
use flow_core::tensors::select_rows as rows;
use flow_core::{Backends, CallContext, Exec, InferencePass, RunAllBlocks, StackDriver, Stage, TrajectoryId};
use std::sync::{Arc, Mutex};

/// Leaves out one block for the unconditional trajectories and for every third sample.
#[derive(Debug)]
struct SkipForSome {
    block: usize,
}

fn is_skipped(trajectory: &TrajectoryId) -> bool {
    !trajectory.conditional || trajectory.sample.is_multiple_of(3)
}

impl StackDriver for SkipForSome {
    fn name(&self) -> &str {
        "skip-for-some"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        mut carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let trajectories = exec.call().trajectories.clone();
        let run: Vec<usize> = (0..trajectories.len())
            .filter(|row| !is_skipped(&trajectories[*row]))
            .collect();
        // Where each row lies in the old rows followed by the computed ones.
        let place = |row: usize| {
            run.iter()
                .position(|r| *r == row)
                .map_or(row, |index| trajectories.len() + index)
        };
        let merge: Vec<usize> = (0..trajectories.len()).map(place).collect();
        for index in 0..stack.len() {
            if index != self.block {
                carried = stack.run_block(exec, index, carried, shared.clone());
                continue;
            }
            let gather =
                |tensors: &[DispatchTensor]| tensors.iter().map(|t| rows(t, &run)).collect::<Vec<_>>();
            let some = exec.on_trajectories(run.iter().map(|row| trajectories[*row]).collect());
            let computed = stack.run_block(&some, index, gather(&carried), gather(&shared));
            let both = carried.into_iter().zip(computed);
            carried = both
                .map(|(old, new)| rows(&Dispatch::float_cat(vec![old, new], 0), &merge))
                .collect();
        }
        carried
    }
}

/// Leaves out one block for all trajectories.
#[derive(Debug)]
struct SkipForAll {
    block: usize,
}

impl StackDriver for SkipForAll {
    fn name(&self) -> &str {
        "skip-for-all"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        (0..stack.len())
            .filter(|index| *index != self.block)
            .fold(carried, |carried, index| {
                stack.run_block(exec, index, carried, shared.clone())
            })
    }
}

fn trajectories() -> Arc<[TrajectoryId]> {
    let trajectory = |sample, conditional| TrajectoryId { sample, conditional };
    Arc::from([
        trajectory(7, true),
        trajectory(9, true),
        trajectory(8, true),
        trajectory(7, false),
        trajectory(9, false),
        trajectory(8, false),
    ])
}

/// The result of the stack per trajectory.
fn per_lane(model: &Transformer, plan: Backends) -> Vec<Vec<u32>> {
    let call = CallContext {
        stochastic: false,
        trajectories: trajectories(),
        ..CallContext::single(Stage::Rollout)
    };
    let exec = InferencePass::new(&model.weights, Arc::new(plan)).exec(call);
    let x = Tensor::from_dispatch(operand(71, &[2 * BATCH, TOKENS, WIDTH]));
    let condition = Tensor::from_dispatch(operand(72, &[2 * BATCH, 5]));
    let result = to_host(&model.conditioned(&exec, (x, condition)).into_dispatch());
    result
        .chunks(TOKENS * WIDTH)
        .map(|row| row.iter().map(|value| value.to_bits()).collect())
        .collect()
}

#[test]
fn a_driver_can_leave_out_a_block_for_some_lanes_and_the_others_do_not_notice() {
    let model = Transformer::new();
    let with = |stacks: Arc<dyn StackDriver>| {
        per_lane(
            &model,
            Backends {
                stacks,
                ..(*plan()).clone()
            },
        )
    };
    for block in [0, 1] {
        let (all, none) = (with(Arc::new(RunAllBlocks)), with(Arc::new(SkipForAll { block })));
        let some = with(Arc::new(SkipForSome { block }));
        for (row, trajectory) in trajectories().iter().enumerate() {
            assert_ne!(
                all[row], none[row],
                "block {block} does something for {trajectory:?}"
            );
            let expected = if is_skipped(trajectory) {
                &none[row]
            } else {
                &all[row]
            };
            assert_eq!(&some[row], expected, "block {block}, {trajectory:?}");
        }
    }
}

#[test]
fn a_block_run_for_some_lanes_sees_those_lanes_only() {
    let model = Transformer::new();
    let recorder = Arc::new(Recorder::default());
    let stacks = Arc::new(SkipForSome { block: 1 });
    per_lane(
        &model,
        Backends {
            stacks,
            regions: recorder.clone(),
            ..(*plan()).clone()
        },
    );
    // Block, attention and mlp of the first block, then of the second.
    assert_eq!(*recorder.trajectories.lock().unwrap(), [6, 6, 6, 2, 2, 2]);
}

#[test]
fn a_driver_is_told_the_stack_it_runs_and_what_crosses_it() {
    #[derive(Debug, Default)]
    struct Inspect(Mutex<Vec<(String, usize, usize, usize)>>);
    impl StackDriver for Inspect {
        fn name(&self) -> &str {
            "inspect"
        }
        fn run(
            &self,
            exec: &Exec<'_>,
            stack: &dyn Stack,
            carried: Vec<DispatchTensor>,
            shared: Vec<DispatchTensor>,
        ) -> Vec<DispatchTensor> {
            assert!(exec.site().is_none() && !stack.is_empty());
            self.0
                .lock()
                .unwrap()
                .push((stack.name().into(), stack.len(), carried.len(), shared.len()));
            RunAllBlocks.run(exec, stack, carried, shared)
        }
    }
    let (model, driver) = (Transformer::new(), Arc::new(Inspect::default()));
    let inspected = per_lane(
        &model,
        Backends {
            stacks: driver.clone(),
            ..(*plan()).clone()
        },
    );
    assert_eq!(*driver.0.lock().unwrap(), [("blocks".to_owned(), 2, 1, 1)]);
    assert_eq!(inspected, per_lane(&model, (*plan()).clone()));
}
