//! Stacks and regions as an engine sees them, and recomputation through the context.

use crate::engines::{CountingAttention, Recompute, Recorder};
use crate::model::{BATCH, TOKENS, Trained, Transformer, WIDTH, plan};
use crate::support::{add, bits, operand, weighted_sum};
use burn::backend::DispatchTensor;
use burn::tensor::{Int, Tensor};
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;
use flow_core::tensors::is_tracked;
use flow_core::{
    Backends, Block, CallContext, Exec, Handle, InferencePass, Init, ParamLayout, RawTensor, RegionEngine,
    RegionKind, Stage, TrainingPass, Weights,
};
use flow_kernels::CpuKernels;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: &[RegionKind] = &[RegionKind::Block];
const PARTS: &[RegionKind] = &[RegionKind::Attention, RegionKind::Mlp];
const NESTED: &[RegionKind] = &[RegionKind::Block, RegionKind::Attention];
const FULL: &[&str] = &[];
const ATTENTION: &[&str] = &["attention"];

fn with_engine(engine: impl RegionEngine + 'static) -> Arc<Backends> {
    Arc::new(Backends {
        regions: Arc::new(engine),
        ..(*plan()).clone()
    })
}

fn blocks(model: &Transformer, exec: &Exec<'_>) -> DispatchTensor {
    model.blocks(exec, Transformer::inputs(31)).into_dispatch()
}

fn conditioned(model: &Transformer, exec: &Exec<'_>) -> DispatchTensor {
    model.conditioned(exec, Transformer::inputs(31)).into_dispatch()
}

#[track_caller]
fn assert_same_bits(
    found: &(RawTensor, Vec<Option<RawTensor>>),
    expected: &(RawTensor, Vec<Option<RawTensor>>),
    model: &Transformer,
) {
    assert_eq!(bits(&found.0), bits(&expected.0), "outputs");
    for (spec, (found, expected)) in model
        .weights
        .layout()
        .specs()
        .iter()
        .zip(found.1.iter().zip(&expected.1))
    {
        assert_eq!(
            found.as_ref().map(bits),
            expected.as_ref().map(bits),
            "gradient of {}",
            spec.name
        );
    }
}

#[test]
fn an_engine_sees_blocks_and_regions_in_order_with_their_sites() {
    let model = Transformer::new();
    let recorder = Arc::new(Recorder::default());
    let plan = Arc::new(Backends {
        regions: recorder.clone(),
        ..(*plan()).clone()
    });
    let exec = InferencePass::new(&model.weights, plan).exec(CallContext::single(Stage::Rollout));
    assert!(exec.site().is_none());
    blocks(&model, &exec);
    let expected = [
        "blocks[0].Block",
        "blocks[0].Attention",
        "blocks[0].Mlp",
        "blocks[1].Block",
        "blocks[1].Attention",
        "blocks[1].Mlp",
    ];
    assert_eq!(*recorder.sites.lock().unwrap(), expected);
}

#[test]
#[should_panic(expected = "a region lies within a block of a stack")]
fn a_region_outside_of_a_stack_is_a_bug() {
    let model = Transformer::new();
    let exec = InferencePass::new(&model.weights, plan()).exec(CallContext::single(Stage::Rollout));
    exec.region(RegionKind::Mlp, &model.blocks[0], (), |_, _, ()| ());
}

#[test]
fn recomputed_blocks_give_the_bits_of_kept_ones_although_nothing_tracked_enters_the_first() {
    let model = Transformer::new();
    for trained in [Trained::All, Trained::Adapters, Trained::SecondBlock] {
        let expected = model.pass(plan(), trained, blocks);
        let count = expected.1.iter().flatten().count();
        assert!(count >= 12, "{trained:?} trains {count} weights");
        for (at, save) in [
            (BLOCK, FULL),
            (BLOCK, ATTENTION),
            (PARTS, FULL),
            (PARTS, ATTENTION),
            (NESTED, ATTENTION),
        ] {
            let found = model.pass(with_engine(Recompute { at, save }), trained, blocks);
            assert_same_bits(&found, &expected, &model);
        }
    }
}

#[test]
fn a_conditioning_read_by_all_blocks_gets_the_same_bits_from_every_engine() {
    let model = Transformer::new();
    let expected = model.pass(plan(), Trained::All, conditioned);
    for at in [BLOCK, PARTS, NESTED] {
        for save in [FULL, ATTENTION] {
            let found = model.pass(with_engine(Recompute { at, save }), Trained::All, conditioned);
            assert_same_bits(&found, &expected, &model);
        }
    }
}

#[test]
fn two_calls_of_one_pass_add_up_to_the_same_bits() {
    let model = Transformer::new();
    let twice = |model: &Transformer, exec: &Exec<'_>| {
        let other = model.blocks(exec, Transformer::inputs(41)).into_dispatch();
        add(&blocks(model, exec), &other)
    };
    let expected = model.pass(plan(), Trained::All, twice);
    let found = model.pass(
        with_engine(Recompute {
            at: BLOCK,
            save: ATTENTION,
        }),
        Trained::All,
        twice,
    );
    assert_same_bits(&found, &expected, &model);
}

#[test]
fn attention_runs_once_per_block_when_kept_or_saved_and_twice_when_recomputed() {
    let model = Transformer::new();
    let count = |engine: Option<Recompute>| {
        let attention = CountingAttention::default();
        let computed = attention.computed.clone();
        let mut plan = Backends::new(Arc::new(attention), Arc::new(CpuKernels::default()));
        if let Some(engine) = engine {
            plan.regions = Arc::new(engine);
        }
        model.pass(Arc::new(plan), Trained::All, blocks);
        computed.load(Ordering::SeqCst) as f64 / model.blocks.len() as f64
    };
    assert_eq!(count(None), 1.0);
    assert_eq!(
        count(Some(Recompute {
            at: BLOCK,
            save: FULL
        })),
        2.0
    );
    assert_eq!(
        count(Some(Recompute {
            at: BLOCK,
            save: ATTENTION
        })),
        1.0
    );
    assert_eq!(
        count(Some(Recompute {
            at: PARTS,
            save: FULL
        })),
        2.0
    );
    assert_eq!(
        count(Some(Recompute {
            at: NESTED,
            save: FULL
        })),
        3.0
    );
    assert_eq!(
        count(Some(Recompute {
            at: NESTED,
            save: ATTENTION
        })),
        1.0
    );
}

#[test]
fn a_rollout_under_a_recompute_engine_stays_plain_and_has_the_bits_of_training() {
    let model = Transformer::new();
    let plan = with_engine(Recompute {
        at: BLOCK,
        save: ATTENTION,
    });
    let exec = InferencePass::new(&model.weights, plan.clone()).exec(CallContext::single(Stage::Rollout));
    let rolled = conditioned(&model, &exec);
    assert!(!is_tracked(&rolled));
    let trained = model.pass(plan, Trained::All, conditioned);
    assert_eq!(bits(&rolled), bits(&trained.0));
}

#[test]
fn a_wholly_frozen_region_is_not_tracked() {
    let model = Transformer::new();
    let plan = with_engine(Recompute {
        at: BLOCK,
        save: FULL,
    });
    let frozen: Arc<[bool]> = model.weights.layout().specs().iter().map(|_| false).collect();
    let pass = TrainingPass::new(&model.weights, plan, frozen);
    let output = blocks(&model, &pass.exec(CallContext::single(Stage::Training)));
    assert!(!is_tracked(&output));
}

#[test]
fn an_input_of_the_stack_gets_its_gradient_through_recomputed_blocks_of_frozen_weights() {
    let model = Transformer::new();
    let gradient = |plan: Arc<Backends>| {
        let exec = InferencePass::new(&model.weights, plan).exec(CallContext::single(Stage::Rollout));
        let x = flow_core::tensors::leaf(&operand(61, &[BATCH, TOKENS, WIDTH]));
        let (_, condition) = Transformer::inputs(31);
        let output = model
            .blocks(&exec, (Tensor::from_dispatch(x.clone()), condition))
            .into_dispatch();
        let seed = operand(62, &[BATCH, TOKENS, WIDTH]);
        let mut gradients = flow_core::autograd::backward_from(vec![output], vec![Some(seed)]).unwrap();
        bits(&flow_core::autograd::take_gradient(&x, &mut gradients).unwrap())
    };
    assert_eq!(
        gradient(with_engine(Recompute {
            at: BLOCK,
            save: FULL
        })),
        gradient(plan())
    );
}

/// A router region that passes an integer choice to an expert region.
#[derive(Debug)]
struct RoutedBlock {
    router: Linear,
    experts: Handle<2>,
}

impl Block for RoutedBlock {
    type Carried = Tensor<2>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<2>, (): ()) -> Tensor<2> {
        type Choice = (Tensor<2>, Tensor<2, Int>);
        let choice: Choice = exec.region(RegionKind::Router, self, x, |block, exec, x| {
            let scores = exec.linear(&block.router, x.clone());
            (x * scores.clone().sum_dim(1), scores.argmax(1))
        });
        exec.region(RegionKind::Moe, self, choice, |block, exec, (x, choice)| {
            let expert = exec.embedding(block.experts, choice);
            let dims = x.dims();
            x * expert.reshape(dims)
        })
    }
}

#[test]
fn an_integer_choice_passes_between_recomputed_regions() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    let mut router = |index: usize| {
        let weight = builder.param(&format!("router.{index}"), [4, 6], Init::Normal(1.0));
        let experts = builder.param(&format!("experts.{index}"), [4, 6], Init::Normal(1.0));
        Arc::new(RoutedBlock {
            router: Linear { weight, bias: None },
            experts,
        })
    };
    let blocks = [router(0), router(1)];
    let weights = Weights::init(Arc::new(layout), 3, &ComputeDevice::cpu());
    let pass = |plan: Arc<Backends>| {
        let pass = TrainingPass::new(&weights, plan, Arc::from([true; 4]));
        let exec = pass.exec(CallContext::single(Stage::Training));
        let x = Tensor::from_dispatch(operand(81, &[5, 6]));
        let output = exec.stack("routed", &blocks, x, ());
        let gradients = pass.gradients(&Tensor::from_dispatch(weighted_sum(
            &output.into_dispatch(),
            &operand(82, &[5, 6]),
        )));
        gradients
            .iter()
            .map(|gradient| bits(gradient.as_ref().unwrap()))
            .collect::<Vec<_>>()
    };
    let kept = pass(plan());
    for at in [
        &[RegionKind::Router, RegionKind::Moe][..],
        &[RegionKind::Router],
        BLOCK,
    ] {
        assert_eq!(pass(with_engine(Recompute { at, save: FULL })), kept, "{at:?}");
    }
}
