//! A small transformer written against `Exec`, with more weights per block than one node has parents.

use crate::support::{operand, weighted_sum};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;
use flow_core::{
    Activation, Backends, Block, CallContext, Exec, Handle, Init, ParamLayout, RawTensor, RegionKind, Stage,
    TrainingPass, Weights,
};
use flow_kernels::CpuKernels;
use std::sync::Arc;

pub const BATCH: usize = 3;
pub const TOKENS: usize = 7;
pub const WIDTH: usize = 24;
const HEADS: usize = 3;
const EPSILON: f32 = 1e-6;

/// Reference kernels, every block run, everything kept.
pub fn plan() -> Arc<Backends> {
    Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ))
}

/// One block: attention and feed-forward, each modulated by the conditioning, each a region.
#[derive(Debug)]
pub struct TransformerBlock {
    attention_modulation: Linear,
    query: Linear,
    key: Linear,
    value: Linear,
    query_norm: Handle<1>,
    output: Linear,
    mlp_modulation: Linear,
    widen: Linear,
    narrow: Linear,
}

impl Block for TransformerBlock {
    type Carried = Tensor<3>;
    type Shared = Tensor<2>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<3>, condition: Tensor<2>) -> Tensor<3> {
        let x = exec.region(RegionKind::Attention, self, (x, condition.clone()), attend);
        exec.region(RegionKind::Mlp, self, (x, condition), feed_forward)
    }
}

fn modulation(exec: &Exec<'_>, layer: &Linear, condition: Tensor<2>) -> Tensor<3> {
    let [batch, _] = condition.dims();
    exec.linear(layer, condition).reshape([batch, 3, WIDTH])
}

fn attend(
    block: &Arc<TransformerBlock>,
    exec: &Exec<'_>,
    (x, condition): (Tensor<3>, Tensor<2>),
) -> Tensor<3> {
    let [batch, tokens, _] = x.dims();
    let modulation = modulation(exec, &block.attention_modulation, condition);
    let normed = exec.modulated_layer_norm(x.clone(), modulation.clone(), 0, 1, EPSILON);
    let heads = |layer| {
        exec.linear(layer, normed.clone())
            .reshape([batch, tokens, HEADS, WIDTH / HEADS])
    };
    let query = exec.rms_norm(heads(&block.query), Some(block.query_norm), EPSILON);
    let attended = exec.attention(query, heads(&block.key), heads(&block.value));
    let branch = exec.linear(&block.output, attended.reshape([batch, tokens, WIDTH]));
    exec.gated_residual(x, branch, modulation, 2)
}

fn feed_forward(
    block: &Arc<TransformerBlock>,
    exec: &Exec<'_>,
    (x, condition): (Tensor<3>, Tensor<2>),
) -> Tensor<3> {
    let modulation = modulation(exec, &block.mlp_modulation, condition);
    let normed = exec.modulated_layer_norm(x.clone(), modulation.clone(), 0, 1, EPSILON);
    let hidden = exec.linear_activated(&block.widen, normed, Activation::GeluTanh);
    exec.gated_residual(x, exec.linear(&block.narrow, hidden), modulation, 2)
}

/// Two blocks between optional projections of the conditioning and of the result.
#[derive(Debug)]
pub struct Transformer {
    pub blocks: Vec<Arc<TransformerBlock>>,
    condition: Linear,
    pub weights: Weights,
}

/// Which weights of a [`Transformer`] are trained.
#[derive(Clone, Copy, Debug)]
pub enum Trained {
    All,
    Adapters,
    SecondBlock,
}

impl Transformer {
    pub fn new() -> Self {
        let mut layout = ParamLayout::default();
        let mut root = LayoutBuilder::new(&mut layout);
        let linear = |builder: &mut LayoutBuilder<'_>, name: &str, out: usize, input: usize| Linear {
            weight: builder.param(&format!("{name}.weight"), [out, input], Init::Normal(0.3)),
            bias: Some(builder.param(&format!("{name}.bias"), [out], Init::Normal(0.3))),
        };
        let condition = linear(&mut root, "condition", 5, 5);
        let blocks: Vec<_> = (0..2)
            .map(|index| {
                let mut b = root.under(format_args!("blocks.{index}"));
                Arc::new(TransformerBlock {
                    attention_modulation: linear(&mut b, "attention_modulation", 3 * WIDTH, 5),
                    query: linear(&mut b, "query", WIDTH, WIDTH),
                    key: linear(&mut b, "key", WIDTH, WIDTH),
                    value: linear(&mut b, "value", WIDTH, WIDTH),
                    query_norm: b.param("query_norm", [WIDTH / HEADS], Init::Ones),
                    output: linear(&mut b, "output", WIDTH, WIDTH),
                    mlp_modulation: linear(&mut b, "mlp_modulation", 3 * WIDTH, 5),
                    widen: linear(&mut b, "widen", 37, WIDTH),
                    narrow: linear(&mut b, "narrow", WIDTH, 37),
                })
            })
            .collect();
        for block in &blocks {
            for layer in [block.query, block.value, block.narrow] {
                layout
                    .add_adapter(layer.weight, 2, 2.0)
                    .expect("one adapter per weight");
            }
        }
        let mut weights = Weights::init(Arc::new(layout), 5, &ComputeDevice::cpu());
        for index in 0..weights.stored().len() {
            let spec = weights.layout().specs()[index].clone();
            if spec.name.ends_with("lora_B.weight") {
                weights
                    .set(index, operand(index as u64, &spec.shape))
                    .expect("its own shape");
            }
        }
        Self {
            blocks,
            condition,
            weights,
        }
    }

    /// Tokens and condition of a batch.
    pub fn inputs(seed: u64) -> (Tensor<3>, Tensor<2>) {
        let tokens = operand(seed, &[BATCH, TOKENS, WIDTH]);
        (
            Tensor::from_dispatch(tokens),
            Tensor::from_dispatch(operand(seed + 1, &[BATCH, 5])),
        )
    }

    /// The blocks alone: with inputs from data, nothing that enters the first block is tracked.
    pub fn blocks(&self, exec: &Exec<'_>, (x, condition): (Tensor<3>, Tensor<2>)) -> Tensor<3> {
        exec.stack("blocks", &self.blocks, x, condition)
    }

    /// The blocks under a computed conditioning, which every block reads in two places.
    pub fn conditioned(&self, exec: &Exec<'_>, (x, condition): (Tensor<3>, Tensor<2>)) -> Tensor<3> {
        let condition = exec.linear(&self.condition, condition);
        self.blocks(exec, (x, condition))
    }

    pub fn flags(&self, trained: Trained) -> Arc<[bool]> {
        let is_trained = |name: &str| match trained {
            Trained::All => !name.contains("lora"),
            Trained::Adapters => name.contains("lora"),
            Trained::SecondBlock => name.starts_with("blocks.1.") && !name.contains("lora"),
        };
        self.weights
            .layout()
            .specs()
            .iter()
            .map(|spec| is_trained(&spec.name))
            .collect()
    }

    /// Output and gradients of one pass, with the loss `sum of w · forward(..)`.
    pub fn pass(
        &self,
        plan: Arc<Backends>,
        trained: Trained,
        forward: impl Fn(&Self, &Exec<'_>) -> DispatchTensor,
    ) -> (RawTensor, Vec<Option<RawTensor>>) {
        let pass = TrainingPass::new(&self.weights, plan, self.flags(trained));
        let output = forward(self, &pass.exec(CallContext::single(Stage::Training)));
        let loss = weighted_sum(&output, &operand(99, &[BATCH, TOKENS, WIDTH]));
        let gradients = pass.gradients(&Tensor::from_dispatch(loss));
        (flow_core::tensors::plain(&output), gradients)
    }
}
