//! Regions that models have not yet: routers, random numbers, effects; and blocks that break the rules.

use crate::segmented::Segmented;
use crate::support::{Place, State, bits, noise, plan_of};
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{Int, Tensor, TensorData};
use flow_attention::CpuAttention;
use flow_checkpoint::{Checkpointing, Policy, ROUTER};
use flow_core::autograd::{backward_from, take_gradient};
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{cast, leaf, plain};
use flow_core::{
    Activation, Backends, Block, CallContext, Effect, Exec, Init, ModelSpec, ParamLayout, RawTensor,
    RegionKind, Stage, TrainingPass, Weights,
};
use flow_kernels::CpuKernels;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const WIDTH: usize = 6;
const ROWS: usize = 5;

/// What the second region of a [`Toy`] block does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// Drops values by a counter-based generator.
    Dropout,
    /// Passes the choice of an expert, which changes with every call, through the store.
    Router,
    /// Overwrites, in place, a result that passed through the store.
    Overwriting,
    /// Multiplies by a number that changes with every call, as a region that may not run again.
    Random,
    /// Gives one row less with every call.
    Shrinking,
    /// Asks the store once more with every call.
    Asking,
    /// Reads a tensor of another graph.
    Capturing,
}

#[derive(Debug)]
struct Toy {
    part: Part,
    enter: Linear,
    leave: Linear,
    calls: AtomicUsize,
    captured: Tensor<2>,
}

impl Block for Toy {
    type Carried = Tensor<2>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = exec.region(RegionKind::Attention, self, x, |_, exec, x| {
            let heads = x.reshape([1, ROWS, 2, WIDTH / 2]);
            let attended = exec.attention(heads.clone(), heads.clone(), heads);
            attended.reshape([ROWS, WIDTH])
        });
        let x = exec.region(RegionKind::Mlp, self, x, |block, exec, x| {
            exec.linear_activated(&block.enter, x, Activation::Silu)
        });
        match self.part {
            Part::Random => {
                exec.region_with_effect(RegionKind::Moe, Effect::Random, self, x, Toy::second_part)
            }
            _ => exec.region(RegionKind::Moe, self, x, Toy::second_part),
        }
    }
}

impl Toy {
    fn call(&self) -> usize {
        self.calls.fetch_add(1, Ordering::SeqCst)
    }

    fn second_part(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<2>) -> Tensor<2> {
        let x = exec.linear(&self.leave, x);
        let device = x.device();
        match self.part {
            Part::Dropout => {
                let site = exec.site().expect("it is in a block");
                let mut draws = vec![0.0; ROWS * WIDTH];
                Stream::new(3, Purpose::Test)
                    .at(site.block as u64, exec.call().step)
                    .fill_normal(&mut draws);
                let mask: Vec<f32> = draws.iter().map(|draw| f32::from(*draw > 0.0) * 2.0).collect();
                let mask = Tensor::<2>::from_data(TensorData::new(mask, [ROWS, WIDTH]), &device);
                let dtype = x.dtype();
                x * mask.cast(dtype)
            }
            Part::Router => {
                let kept = exec.stash().through(ROUTER, &mut || {
                    let expert = (self.call() % WIDTH) as i64;
                    let choice: Vec<i64> = (0..ROWS as i64)
                        .map(|row| (row + expert) % WIDTH as i64)
                        .collect();
                    let choice = TensorData::new(choice, [ROWS]);
                    vec![
                        Tensor::<1, Int>::from_data(choice, &ComputeDevice::cpu().burn().clone())
                            .into_dispatch(),
                    ]
                });
                let choice = Tensor::<1, Int>::from_dispatch(kept[0].clone());
                x.select(0, choice.clone().remainder_scalar(ROWS as i64))
            }
            Part::Overwriting => {
                let draw = || ComputeDevice::cpu().plain(noise(ROWS * WIDTH, 3), &[ROWS, WIDTH]);
                let mut kept = exec.stash().through(ROUTER, &mut || vec![draw()]);
                let y = x * Tensor::from_dispatch(kept[0].clone());
                flow_core::cpu::update(&mut kept[0], |values| values.fill(0.0));
                y
            }
            Part::Random => x.mul_scalar(1.5 + self.call() as f32),
            Part::Shrinking => x.narrow(0, 0, ROWS - self.call()),
            Part::Asking => {
                for _ in 0..=self.call() {
                    exec.stash()
                        .through(ROUTER, &mut || vec![plain(&x.clone().into_dispatch())]);
                }
                x
            }
            Part::Capturing => x + self.captured.clone(),
        }
    }
}

struct Stack {
    device: ComputeDevice,
    blocks: Vec<Arc<Toy>>,
    weights: Weights,
}

impl Stack {
    fn new(part: Part) -> Self {
        Self::on(&ComputeDevice::cpu(), part)
    }

    fn on(device: &ComputeDevice, part: Part) -> Self {
        let mut layout = ParamLayout::default();
        let mut root = LayoutBuilder::new(&mut layout);
        let captured = leaf(&device.plain(noise(ROWS * WIDTH, 9), &[ROWS, WIDTH]));
        let blocks = (0..2)
            .map(|index| {
                let mut linear = |name: &str| Linear {
                    weight: root.param(&format!("{index}.{name}"), [WIDTH, WIDTH], Init::Normal(0.5)),
                    bias: None,
                };
                let (enter, leave) = (linear("enter"), linear("leave"));
                Arc::new(Toy {
                    part,
                    enter,
                    leave,
                    calls: AtomicUsize::new(0),
                    captured: Tensor::from_dispatch(captured.clone()),
                })
            })
            .collect();
        Self {
            device: device.clone(),
            blocks,
            weights: Weights::init(Arc::new(layout), 5, device),
        }
    }

    fn engine(policy: &Policy) -> Arc<Checkpointing> {
        let spec = ModelSpec {
            architecture: "toy".into(),
            stacks: vec![("toys".into(), 2)],
            regions: vec![RegionKind::Attention, RegionKind::Mlp, RegionKind::Moe],
            ..ModelSpec::default()
        };
        let assignment = policy.assign(&spec).unwrap().unwrap();
        Arc::new(Checkpointing::new(policy.name(), assignment))
    }

    /// Bits of the output, of the gradient of the input, and of those of the weights.
    fn pass(&self, policy: &Policy) -> Vec<Vec<u32>> {
        self.pass_backwards(policy, 1)
    }

    fn pass_backwards(&self, policy: &Policy, backwards: usize) -> Vec<Vec<u32>> {
        let plan = plan_of(CpuKernels::default());
        let (mut found, of_weights) = self.pass_at(policy, &plan, &self.weights, 0, backwards);
        found.extend(of_weights.iter().map(bits));
        found
    }

    /// Bits of the output of step `step` and of the gradients of its input, and the gradients of the weights.
    fn pass_at(
        &self,
        policy: &Policy,
        plan: &Backends,
        weights: &Weights,
        step: u32,
        backwards: usize,
    ) -> (Vec<Vec<u32>>, Vec<RawTensor>) {
        for block in &self.blocks {
            block.calls.store(0, Ordering::SeqCst);
        }
        let plan = Backends {
            regions: Self::engine(policy),
            ..plan.clone()
        };
        let trained: Arc<[bool]> = vec![true; weights.stored().len()].into();
        let pass = TrainingPass::new(weights, Arc::new(plan), trained);
        let exec = pass.exec(CallContext {
            step,
            ..CallContext::single(Stage::Training)
        });
        let device = &self.device;
        let x = leaf(&device.plain(noise(ROWS * WIDTH, 1), &[ROWS, WIDTH]));
        let output = exec.stack("toys", &self.blocks, Tensor::from_dispatch(x.clone()), ());
        let output: DispatchTensor = output.into_dispatch();
        let (mut found, mut all_of_weights) = (vec![bits(&plain(&output))], Vec::new());
        for _ in 0..backwards {
            let seed = device.plain(noise(ROWS * WIDTH, 2), &[ROWS, WIDTH]);
            // A gradient has the type of what it is the gradient of.
            let seed = cast(&seed, output.dtype().into());
            let mut gradients = backward_from(vec![output.clone()], vec![Some(seed)]).expect("it is tracked");
            found.push(bits(
                &take_gradient(&x, &mut gradients).expect("the output depends on it"),
            ));
            let of_weights = exec.params().take_gradients(&mut gradients);
            all_of_weights.extend(of_weights.into_iter().map(|gradient| gradient.expect("trained")));
        }
        (found, all_of_weights)
    }

    /// How often the second part of each block ran for itself.
    fn calls(&self) -> Vec<usize> {
        let calls = self.blocks.iter().map(|block| &block.calls);
        calls.map(|calls| calls.load(Ordering::SeqCst)).collect()
    }
}

const FULL: Policy = Policy::Full { split: false };

fn policies() -> [Policy; 7] {
    [
        FULL,
        Policy::AttnOnly { split: false },
        Policy::AttnOnly { split: true },
        Policy::Full { split: true },
        Policy::BlockSkip { every: 2 },
        Policy::EveryNthLinear { n: 2 },
        Policy::Regions {
            save: vec!["moe".into(), "mlp:linear".into()],
        },
    ]
}

#[test]
fn random_numbers_by_counter_are_drawn_again_the_same() {
    let stack = Stack::new(Part::Dropout);
    let expected = stack.pass(&Policy::None);
    for policy in policies() {
        assert_eq!(stack.pass(&policy), expected, "{policy}");
    }
}

/// Three steps, each with other values dropped.
#[test]
fn three_optimizer_steps_with_values_dropped_give_the_same_weights_and_moments() {
    for Place { name, device, plan } in Place::all() {
        let run = |policy: &Policy| {
            let stack = Stack::on(&device, Part::Dropout);
            let mut state = State::of(&stack.weights, &device);
            let mut outputs = Vec::new();
            for number in 1..=3 {
                let step = number as u32;
                let (found, gradients) = stack.pass_at(policy, &plan, &state.weights, step, 1);
                let gradients: Vec<Option<RawTensor>> = gradients.into_iter().map(Some).collect();
                state.step(&*plan.kernels, &gradients, number);
                outputs.extend(found);
            }
            assert_ne!(outputs[0], outputs[2], "other values are dropped");
            (outputs, state.bits())
        };
        let expected = run(&Policy::None);
        for policy in policies() {
            assert!(run(&policy) == expected, "{name}, {policy}");
        }
    }
}

#[test]
fn a_router_chooses_once_whatever_it_would_choose_the_second_time() {
    let stack = Stack::new(Part::Router);
    let expected = stack.pass(&Policy::None);
    for policy in policies() {
        assert_eq!(stack.pass(&policy), expected, "{policy}");
        assert_eq!(stack.calls(), [1, 1], "{policy}");
    }
}

#[test]
fn a_region_with_an_effect_runs_once_under_every_policy() {
    let stack = Stack::new(Part::Random);
    let expected = stack.pass(&Policy::None);
    for policy in policies() {
        assert_eq!(stack.pass(&policy), expected, "{policy}");
        assert_eq!(stack.calls(), [1, 1], "{policy}");
    }
}

/// The message of the panic that a pass under `policy` ends with.
fn panic_of(part: Part, policy: &Policy, backwards: usize) -> String {
    let stack = Stack::new(part);
    let panic = catch_unwind(AssertUnwindSafe(|| stack.pass_backwards(policy, backwards)));
    let panic = panic.expect_err("the block breaks a rule");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a text")).to_owned(),
    }
}

#[test]
fn a_replay_with_outputs_of_another_shape_names_its_region() {
    let message = panic_of(Part::Shrinking, &Policy::Full { split: true }, 1);
    assert!(message.contains("toys[1].Moe"), "{message}");
    assert!(
        message.contains("[[4, 6]]") && message.contains("[[5, 6]]"),
        "{message}"
    );
}

#[test]
fn a_replay_that_asks_for_another_number_of_results_names_region_and_operation() {
    let message = panic_of(Part::Asking, &FULL, 1);
    assert!(message.contains("toys[1].Block"), "{message}");
    assert!(
        message.contains("operation `router` asked for 1 results in the first run and for 2 now"),
        "{message}"
    );
}

#[test]
fn a_region_that_captured_a_tracked_tensor_is_told_so_before_backward() {
    let message = panic_of(Part::Capturing, &FULL, 0);
    assert!(message.contains("toys[0].Block read a tensor"), "{message}");
}

#[test]
fn a_result_that_is_kept_cannot_be_overwritten() {
    let stack = Stack::new(Part::Overwriting);
    let expected = stack.pass(&Policy::None);
    for policy in policies() {
        assert_eq!(stack.pass(&policy), expected, "{policy}");
    }
}

#[test]
fn the_bits_are_those_of_going_through_the_blocks_by_hand() {
    for part in [Part::Dropout, Part::Overwriting] {
        let stack = Stack::new(part);
        let device = ComputeDevice::cpu();
        let driver = Segmented::new(vec![Some(device.plain(noise(ROWS * WIDTH, 2), &[ROWS, WIDTH]))]);
        let plan = Backends {
            stacks: driver.clone(),
            ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
        };
        let trained: Arc<[bool]> = vec![true; stack.weights.stored().len()].into();
        let pass = TrainingPass::new(&stack.weights, Arc::new(plan), trained);
        let exec = pass.exec(CallContext::single(Stage::Training));
        let x: Tensor<2> = device.tensor(noise(ROWS * WIDTH, 1), [ROWS, WIDTH]);
        let output = exec.stack("toys", &stack.blocks, x, ()).into_dispatch();
        let found = driver.found();
        let gradients = found.of_carried.iter().chain(&found.of_weights);
        let gradients = gradients.map(|gradient| bits(gradient.as_ref().expect("all have one")));
        let expected: Vec<Vec<u32>> = std::iter::once(bits(&output)).chain(gradients).collect();
        for policy in policies() {
            assert_eq!(stack.pass(&policy), expected, "{part:?}, {policy}");
        }
    }
}

#[test]
fn a_second_backward_is_refused_since_the_first_used_up_what_was_kept() {
    let message = panic_of(Part::Dropout, &FULL, 2);
    assert!(message.contains("already been consumed"), "{message}");
}
