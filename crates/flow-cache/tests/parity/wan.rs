//! The Wan transformer of the fixture (diffusers 0.42.1 `WanTransformer3DModel`), written against the seam.

use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::exec::{AttentionKind, Block, Exec, Linear, RegionKind};
use flow_core::kernels::LinearWeights;
use flow_core::params::LayoutBuilder;
use flow_core::{
    Activation, FlowModel, Handle, Init, LatentShape, ModelInput, ModelSpec, ParamLayout, Weights,
};
use std::path::Path;
use std::sync::Arc;

const HEADS: usize = 2;
const HEAD_DIM: usize = 24;
const HIDDEN: usize = HEADS * HEAD_DIM;
const EPSILON: f32 = 1e-6;
pub const BLOCKS: usize = 4;
pub const LATENT: LatentShape = LatentShape {
    channels: 4,
    frames: 3,
    height: 8,
    width: 6,
};
const TOKENS: usize = 3 * 4 * 3;

fn linear(parts: &mut LayoutBuilder<'_>, name: &str, input: usize, output: usize) -> Linear {
    let mut parts = parts.under(name);
    let weight = parts.param("weight", [output, input], Init::Zeros);
    let bias = Some(parts.param("bias", [output], Init::Zeros));
    Linear { weight, bias }
}

#[derive(Debug)]
struct Attention {
    name: &'static str,
    projections: [Linear; 3],
    norms: [Handle<1>; 2],
    out: Linear,
}

impl Attention {
    fn new(parts: &mut LayoutBuilder<'_>, name: &'static str) -> Self {
        let mut parts = parts.under(name);
        let projections = ["to_q", "to_k", "to_v"].map(|name| linear(&mut parts, name, HIDDEN, HIDDEN));
        let norms = ["norm_q", "norm_k"].map(|name| parts.under(name).param("weight", [HIDDEN], Init::Ones));
        let out = linear(&mut parts, "to_out.0", HIDDEN, HIDDEN);
        Self {
            name,
            projections,
            norms,
            out,
        }
    }

    fn forward(
        &self,
        exec: &Exec<'_>,
        x: Tensor<3>,
        context: Tensor<3>,
        rotary: Option<&[Tensor<2>; 2]>,
    ) -> Tensor<3> {
        let heads = |x: Tensor<3>| {
            let [batch, tokens, _] = x.dims();
            x.reshape([batch, tokens, HEADS, HEAD_DIM])
        };
        let [to_q, to_k, to_v] = &self.projections;
        let norm = |x, handle| heads(exec.rms_norm(x, Some(handle), EPSILON));
        let mut q = norm(exec.linear(to_q, x), self.norms[0]);
        let mut k = norm(exec.linear(to_k, context.clone()), self.norms[1]);
        let v = heads(exec.linear(to_v, context));
        if let Some([cos, sin]) = rotary {
            (q, k) = (exec.rotary(q, cos, sin), exec.rotary(k, cos, sin));
        }
        let out = exec.attention(q, k, v);
        let [batch, tokens, _, _] = out.dims();
        exec.linear(&self.out, out.reshape([batch, tokens, HIDDEN]))
    }
}

#[derive(Debug)]
struct WanBlock {
    table: Handle<3>,
    attn1: Attention,
    attn2: Attention,
    norm2: [Handle<1>; 2],
    ffn: [Linear; 2],
    rotary: [Tensor<2>; 2],
}

impl WanBlock {
    fn new(mut parts: LayoutBuilder<'_>, rotary: [Tensor<2>; 2]) -> Self {
        let table = parts.param("scale_shift_table", [1, 6, HIDDEN], Init::Zeros);
        let attn1 = Attention::new(&mut parts, "attn1");
        let attn2 = Attention::new(&mut parts, "attn2");
        let norm2 = ["weight", "bias"].map(|name| parts.under("norm2").param(name, [HIDDEN], Init::Ones));
        let mut ffn = parts.under("ffn.net");
        let ffn = [
            linear(&mut ffn, "0.proj", HIDDEN, 3 * HIDDEN),
            linear(&mut ffn, "2", 3 * HIDDEN, HIDDEN),
        ];
        Self {
            table,
            attn1,
            attn2,
            norm2,
            ffn,
            rotary,
        }
    }

    fn modulation(&self, exec: &Exec<'_>, time: &Tensor<3>) -> Tensor<3> {
        time.clone() + exec.params().get(self.table)
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let normed = exec.modulated_layer_norm(x.clone(), modulation.clone(), 3, 4, EPSILON);
        let inner = exec.linear_activated(&self.ffn[0], normed, Activation::GeluTanh);
        exec.gated_residual(x, exec.linear(&self.ffn[1], inner), modulation, 5)
    }
}

impl Block for WanBlock {
    type Carried = Tensor<3>;
    /// The projected timestep `[B, 6, D]` and the text `[B, L, D]`.
    type Shared = (Tensor<3>, Tensor<3>);

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<3>, (time, text): Self::Shared) -> Tensor<3> {
        let modulation = self.modulation(exec, &time);
        let normed = exec.modulated_layer_norm(x.clone(), modulation.clone(), 0, 1, EPSILON);
        let attn1 = &self.attn1;
        let branch = exec.attention_layer(attn1.name, AttentionKind::Spatial, normed, |exec, normed| {
            attn1.forward(exec, normed.clone(), normed, Some(&self.rotary))
        });
        let x = exec.gated_residual(x, branch, modulation.clone(), 2);

        let [weight, bias] = self.norm2.map(|handle| exec.params().get(handle));
        let affine = Tensor::stack::<2>(vec![bias, weight - 1.0], 0)
            .unsqueeze_dim::<3>(0)
            .repeat_dim(0, x.dims()[0]);
        let normed = exec.modulated_layer_norm(x.clone(), affine, 0, 1, EPSILON);
        let attn2 = &self.attn2;
        let inputs = (normed, text);
        let branch = exec.attention_layer(
            attn2.name,
            AttentionKind::Cross,
            inputs,
            |exec, (normed, text)| attn2.forward(exec, normed, text, None),
        );
        exec.region(
            RegionKind::Mlp,
            self,
            (x + branch, modulation),
            Self::feed_forward,
        )
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x: &Tensor<3>,
        (time, _): &Self::Shared,
    ) -> Option<Tensor<3>> {
        let modulation = self.modulation(exec, time);
        Some(exec.modulated_layer_norm(x.clone(), modulation, 0, 1, EPSILON))
    }
}

/// The model, and its layout.
#[derive(Debug)]
pub struct Wan {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    patch: (Handle<5>, Handle<1>),
    text: [Linear; 2],
    time: [Linear; 3],
    table: Handle<3>,
    out: Linear,
    blocks: Vec<Arc<WanBlock>>,
}

impl Wan {
    pub fn new() -> Self {
        let mut layout = ParamLayout::default();
        let mut parts = LayoutBuilder::new(&mut layout);
        let mut patch = parts.under("patch_embedding");
        let patch = (
            patch.param("weight", [HIDDEN, 4, 1, 2, 2], Init::Zeros),
            patch.param("bias", [HIDDEN], Init::Zeros),
        );
        let mut embedder = parts.under("condition_embedder");
        let mut text = embedder.under("text_embedder");
        let text = [
            linear(&mut text, "linear_1", 16, HIDDEN),
            linear(&mut text, "linear_2", HIDDEN, HIDDEN),
        ];
        let time = [
            linear(&mut embedder, "time_embedder.linear_1", 32, HIDDEN),
            linear(&mut embedder, "time_embedder.linear_2", HIDDEN, HIDDEN),
            linear(&mut embedder, "time_proj", HIDDEN, 6 * HIDDEN),
        ];
        let rotary = rotary();
        let blocks = (0..BLOCKS)
            .map(|index| {
                Arc::new(WanBlock::new(
                    parts.under(format!("blocks.{index}")),
                    rotary.clone(),
                ))
            })
            .collect();
        let table = parts.param("scale_shift_table", [1, 2, HIDDEN], Init::Zeros);
        let out = linear(&mut parts, "proj_out", HIDDEN, 16);
        let spec = ModelSpec {
            architecture: "wan".into(),
            latent: LATENT,
            tokens: TOKENS,
            reads_text: true,
            stacks: vec![("blocks".into(), BLOCKS)],
            ..ModelSpec::default()
        };
        Self {
            spec,
            layout: Arc::new(layout),
            patch,
            text,
            time,
            table,
            out,
            blocks,
        }
    }

    /// The weights in a file of diffusers.
    pub fn weights(&self, file: &Path) -> Weights {
        let device = ComputeDevice::cpu();
        let mut weights = Weights::init(self.layout.clone(), 0, &device);
        let bytes = std::fs::read(file).expect("the fixture");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        assert_eq!(
            tensors.len(),
            self.layout.len(),
            "every weight of the file is used"
        );
        for (index, spec) in self.layout.specs().iter().enumerate() {
            let tensor = tensors.tensor(&spec.name).expect("a weight of the fixture");
            let value = device.plain(super::floats(tensor.data()), tensor.shape());
            weights.set(index, value).expect("the same shape");
        }
        weights
    }
}

/// Cosines and sines `[S, D/2]`: a third of the channel pairs each for frame, row and column.
fn rotary() -> [Tensor<2>; 2] {
    let pairs = HEAD_DIM / 6;
    let angle = |token: usize, pair: usize| {
        let place = [token / 12, token / 3 % 4, token % 3][pair / pairs];
        place as f64 / 10_000f64.powf((2 * (pair % pairs)) as f64 / 8.0)
    };
    let table = |of: fn(f64) -> f64| {
        let values = (0..TOKENS)
            .flat_map(|token| (0..HEAD_DIM / 2).map(move |pair| of(angle(token, pair)) as f32))
            .collect();
        ComputeDevice::cpu().tensor(values, [TOKENS, HEAD_DIM / 2])
    };
    [table(f64::cos), table(f64::sin)]
}

/// `[cos, sin]` of the timestep at 16 frequencies, in f32 as diffusers has it.
fn sinusoid(sigma: Tensor<1>) -> Tensor<2> {
    let [batch] = sigma.dims();
    let frequencies = (0..16)
        .map(|i| (-10_000f32.ln() * i as f32 / 16.0).exp())
        .collect();
    let frequencies: Tensor<2> = ComputeDevice::cpu().tensor(frequencies, [1, 16]);
    let angle = (sigma * 1000.0).reshape([batch, 1]) * frequencies;
    Tensor::cat(vec![angle.clone().cos(), angle.sin()], 1)
}

impl FlowModel for Wan {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let [batch, _] = input.x.dims();
        let patches = (input.x)
            .reshape([batch, 4, 3, 4, 2, 3, 2])
            .permute([0, 2, 3, 5, 1, 4, 6])
            .reshape([batch, TOKENS, 16]);
        let get = |handle| {
            exec.params()
                .get::<5>(handle)
                .reshape([HIDDEN, 16])
                .into_dispatch()
        };
        let weights = LinearWeights {
            weight: get(self.patch.0),
            bias: Some(exec.params().get(self.patch.1).into_dispatch()),
            adapter: None,
        };
        let kernels = &exec.plan().kernels;
        let x = kernels.linear(
            &**exec.stash(),
            &patches.into_dispatch(),
            &weights,
            Activation::None,
        );
        let [time_1, time_2, time_proj] = &self.time;
        let time = exec.linear_activated(time_1, sinusoid(input.sigma), Activation::Silu);
        let time = exec.linear(time_2, time);
        let projected = exec.linear(time_proj, exec.activation(time.clone(), Activation::Silu));
        let projected = projected.reshape([batch, 6, HIDDEN]);
        let text = input.condition.text.expect("a text");
        let text = exec.linear_activated(&self.text[0], text, Activation::GeluTanh);
        let text = exec.linear(&self.text[1], text);
        let x = exec.stack(
            "blocks",
            &self.blocks,
            Tensor::from_dispatch(x),
            (projected, text),
        );
        let modulation = time.unsqueeze_dim::<3>(1) + exec.params().get(self.table);
        let x = exec.modulated_layer_norm(x, modulation, 0, 1, EPSILON);
        exec.linear(&self.out, x)
            .reshape([batch, 3, 4, 3, 2, 2, 4])
            .permute([0, 6, 1, 2, 4, 3, 5])
            .reshape([batch, LATENT.values()])
    }
}
