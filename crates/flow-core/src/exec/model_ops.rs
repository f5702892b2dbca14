//! The operations a model may ask for, typed by rank and checked for shape.
//!
//! Legend: `B` batch, `S` tokens, `D` channels, `H` heads, `K` modulation chunks, `L` condition tokens, `V` vocabulary.

use super::Exec;
use crate::ops::attention::composed;
use crate::ops::{
    Activation, AttentionCall, AttentionSpec, FeedForwardWeights, FusedOps, GatedResidual, KeyValue,
    LinearWeights, ModelOps, ModulatedNorm, NormChunks, Refusal, RotaryTables,
};
use crate::params::Handle;
use crate::stopped::Stopped;
use crate::tensors::plain;
use burn::backend::DispatchTensor;
use burn::tensor::{Int, Tensor};

/// A linear layer's handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Handle<2>,
    /// `[out]`.
    pub bias: Option<Handle<1>>,
}

/// The handles of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForward {
    /// From `[.., D]` to `[.., inner]`.
    pub up: Linear,
    /// After `up`.
    pub activation: Activation,
    /// From `[.., inner]` to `[.., D]`.
    pub down: Linear,
}

/// Checks a modulation `[B, K, D]` for what is `[B, _, D]`, and that it has all of `used`.
fn check_modulation(modulation: [usize; 3], [batch, _, width]: [usize; 3], used: &[usize]) {
    let [rows, chunks, channels] = modulation;
    assert!(
        batch == rows && width == channels,
        "modulation of [{rows}, _, {channels}] for [{batch}, _, {width}]"
    );
    assert!(
        used.iter().all(|chunk| *chunk < chunks),
        "modulation has {chunks} chunks"
    );
}

impl Exec<'_> {
    fn model_ops(&self) -> &dyn ModelOps {
        self.kernels().ops().model
    }

    fn fused_ops<T>(&self, ask: impl FnOnce(&dyn FusedOps) -> T) -> T {
        self.kernels().ops().fused_or_composed(ask)
    }

    fn weights(&self, layer: &Linear) -> LinearWeights {
        let get = |handle: Handle<2>| self.params.get(handle).into_dispatch();
        let adapter = self.params.adapter(layer.weight);
        let (weight, low_precision) = self.params.matrix(layer.weight);
        LinearWeights {
            weight,
            low_precision,
            bias: layer.bias.map(|bias| self.params.get(bias).into_dispatch()),
            adapter: adapter.map(|a| (get(a.down), get(a.up), a.scale)),
        }
    }

    /// `x Wᵀ + b` over the last axis, plus the adapter if `layer` has one.
    pub fn linear<const D: usize>(&self, layer: &Linear, x: Tensor<D>) -> Tensor<D> {
        self.linear_activated(layer, x, Activation::None)
    }

    /// As [`linear`](Self::linear), followed by `activation`.
    pub fn linear_activated<const D: usize>(
        &self,
        layer: &Linear,
        x: Tensor<D>,
        activation: Activation,
    ) -> Tensor<D> {
        let (x, weights) = (x.into_dispatch(), self.weights(layer));
        Tensor::from_dispatch(self.model_ops().linear(&*self.stash, &x, &weights, activation))
    }

    /// Elementwise activation.
    pub fn activation<const D: usize>(&self, x: Tensor<D>, activation: Activation) -> Tensor<D> {
        Tensor::from_dispatch(self.model_ops().activation(&x.into_dispatch(), activation))
    }

    /// Layer norm of `x_BSD` without weights, then `· (1 + modulation_BKD[:, scale]) + modulation_BKD[:, shift]`.
    pub fn modulated_layer_norm(
        &self,
        x_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> Tensor<3> {
        check_modulation(modulation_bkd.dims(), x_bsd.dims(), &[shift, scale]);
        let chunks = NormChunks {
            shift,
            scale,
            epsilon,
        };
        let norm = ModulatedNorm {
            x: &x_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            chunks,
        };
        Tensor::from_dispatch(self.model_ops().modulated_layer_norm(norm))
    }

    /// Layer norm of `x_BSD` with `weight` and `bias` of `[D]`.
    pub fn layer_norm(
        &self,
        x_bsd: Tensor<3>,
        weight: Handle<1>,
        bias: Handle<1>,
        epsilon: f32,
    ) -> Tensor<3> {
        let width = x_bsd.dims()[2];
        let [weight, bias] = [weight, bias].map(|handle| self.params.get(handle));
        assert_eq!(
            [weight.dims(), bias.dims()],
            [[width]; 2],
            "weight and bias of a layer norm"
        );
        let (weight, bias) = (weight.into_dispatch(), bias.into_dispatch());
        let x = x_bsd.into_dispatch();
        Tensor::from_dispatch(self.model_ops().layer_norm(&x, &weight, &bias, epsilon))
    }

    /// `residual + modulation_BKD[:, gate] · branch`.
    pub fn gated_residual(
        &self,
        residual_bsd: Tensor<3>,
        branch_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        gate: usize,
    ) -> Tensor<3> {
        assert_eq!(residual_bsd.dims(), branch_bsd.dims(), "residual and branch");
        check_modulation(modulation_bkd.dims(), residual_bsd.dims(), &[gate]);
        let gated = GatedResidual {
            residual: &residual_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            gate,
        };
        let branch = branch_bsd.into_dispatch();
        Tensor::from_dispatch(self.model_ops().gated_residual(gated, &branch))
    }

    /// [`gated_residual`](Self::gated_residual) of `residual_BSD` and of `layer` at `x`.
    pub fn linear_gated_residual(
        &self,
        residual_bsd: Tensor<3>,
        layer: &Linear,
        x: Tensor<3>,
        modulation_bkd: Tensor<3>,
        gate: usize,
    ) -> Tensor<3> {
        self.linear_gated_residual_of_parts(residual_bsd, layer, [x], modulation_bkd, gate)
    }

    /// [`linear_gated_residual`](Self::linear_gated_residual) of `parts` of `[B, S, _]` side by side, which fused kernels join only where
    /// something reads them.
    pub fn linear_gated_residual_of_parts<const PARTS: usize>(
        &self,
        residual_bsd: Tensor<3>,
        layer: &Linear,
        parts: [Tensor<3>; PARTS],
        modulation_bkd: Tensor<3>,
        gate: usize,
    ) -> Tensor<3> {
        let [batch, tokens, _] = residual_bsd.dims();
        for part in &parts {
            let [rows, positions, _] = part.dims();
            assert_eq!([batch, tokens], [rows, positions], "residual and branch");
        }
        check_modulation(modulation_bkd.dims(), residual_bsd.dims(), &[gate]);
        let gated = GatedResidual {
            residual: &residual_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            gate,
        };
        let (parts, weights) = (parts.map(Tensor::into_dispatch), self.weights(layer));
        let parts: Vec<&DispatchTensor> = parts.iter().collect();
        let sum = self.fused_ops(|ops| ops.linear_gated_residual(&*self.stash, gated, &parts, &weights));
        Tensor::from_dispatch(sum)
    }

    /// `layer` at [`modulated_layer_norm`](Self::modulated_layer_norm) of `x_BSD`.
    pub fn modulated_linear(
        &self,
        x_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        chunks: NormChunks,
        layer: &Linear,
    ) -> Tensor<3> {
        self.modulated_linear_activated(x_bsd, modulation_bkd, chunks, layer, Activation::None)
    }

    /// As [`modulated_linear`](Self::modulated_linear), followed by `activation`.
    pub fn modulated_linear_activated(
        &self,
        x_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        chunks: NormChunks,
        layer: &Linear,
        activation: Activation,
    ) -> Tensor<3> {
        check_modulation(modulation_bkd.dims(), x_bsd.dims(), &[chunks.shift, chunks.scale]);
        let norm = ModulatedNorm {
            x: &x_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            chunks,
        };
        let weights = self.weights(layer);
        Tensor::from_dispatch(
            self.fused_ops(|ops| ops.modulated_linear(&*self.stash, norm, &weights, activation)),
        )
    }

    /// Each of `layers` at [`modulated_layer_norm`](Self::modulated_layer_norm) of `x_BSD`, for instance queries, keys and
    /// values.
    pub fn modulated_linears(
        &self,
        x_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        chunks: NormChunks,
        layers: [&Linear; 3],
    ) -> [Tensor<3>; 3] {
        check_modulation(modulation_bkd.dims(), x_bsd.dims(), &[chunks.shift, chunks.scale]);
        let norm = ModulatedNorm {
            x: &x_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            chunks,
        };
        let weights = layers.map(|layer| self.weights(layer));
        let outputs = self.fused_ops(|ops| ops.modulated_linears(&*self.stash, norm, &weights));
        let outputs: [DispatchTensor; 3] = outputs.try_into().expect("one output for each layer");
        outputs.map(Tensor::from_dispatch)
    }

    /// [`gated_residual`](Self::gated_residual) of `x_BSD` and of `layers` at its
    /// [`modulated_layer_norm`](Self::modulated_layer_norm).
    pub fn modulated_feed_forward(
        &self,
        x_bsd: Tensor<3>,
        modulation_bkd: Tensor<3>,
        chunks: NormChunks,
        layers: &FeedForward,
        gate: usize,
    ) -> Tensor<3> {
        check_modulation(
            modulation_bkd.dims(),
            x_bsd.dims(),
            &[chunks.shift, chunks.scale, gate],
        );
        let norm = ModulatedNorm {
            x: &x_bsd.into_dispatch(),
            modulation: &modulation_bkd.into_dispatch(),
            chunks,
        };
        let weights = FeedForwardWeights {
            up: self.weights(&layers.up),
            activation: layers.activation,
            down: self.weights(&layers.down),
        };
        let sum = self.fused_ops(|ops| ops.modulated_feed_forward(&*self.stash, norm, &weights, gate));
        Tensor::from_dispatch(sum)
    }

    /// RMS norm over the last axis, with `weight` if given.
    pub fn rms_norm<const D: usize>(
        &self,
        x: Tensor<D>,
        weight: Option<Handle<1>>,
        epsilon: f32,
    ) -> Tensor<D> {
        let weight = weight.map(|weight| self.params.get(weight).into_dispatch());
        let x = x.into_dispatch();
        Tensor::from_dispatch(self.model_ops().rms_norm(&x, weight.as_ref(), epsilon))
    }

    /// Rotary position embedding of `x_BSHD` by tables of `[S, D/2]`.
    pub fn rotary(&self, x_bshd: Tensor<4>, cos: &Tensor<2>, sin: &Tensor<2>) -> Tensor<4> {
        let [_, tokens, _, head_dim] = x_bshd.dims();
        assert_eq!(cos.dims(), [tokens, head_dim / 2], "rotary table");
        assert_eq!(sin.dims(), cos.dims(), "rotary tables");
        let [cos, sin] = [cos, sin].map(|table| plain(&table.clone().into_dispatch()));
        let tables = RotaryTables { cos: &cos, sin: &sin };
        Tensor::from_dispatch(self.model_ops().rotary(&x_bshd.into_dispatch(), tables))
    }

    /// [`rotary`](Self::rotary) of [`rms_norm`](Self::rms_norm) by tables `cos`, `sin` of `[S, D/2]`: of `x_BSHD` head by head, or of
    /// `x` `[B, S, H · D]` over all heads of a token at once; `[B, S, H, D]`.
    pub fn rms_norm_rotary<const N: usize>(
        &self,
        x: Tensor<N>,
        weight: Option<Handle<1>>,
        epsilon: f32,
        [cos, sin]: [&Tensor<2>; 2],
    ) -> Tensor<4> {
        let dims = x.dims();
        let [tokens, half] = cos.dims();
        assert!(
            matches!(N, 3 | 4),
            "rotary of {dims:?}, three or four axes expected"
        );
        assert!(
            dims[1] == tokens && dims[N - 1].is_multiple_of(2 * half),
            "rotary table of {:?} for {dims:?}",
            cos.dims()
        );
        assert_eq!(sin.dims(), cos.dims(), "rotary tables");
        let weight = weight.map(|weight| self.params.get(weight).into_dispatch());
        let [cos, sin] = [cos, sin].map(|table| plain(&table.clone().into_dispatch()));
        let x = x.into_dispatch();
        let tables = RotaryTables { cos: &cos, sin: &sin };
        Tensor::from_dispatch(self.fused_ops(|ops| ops.rms_norm_rotary(&x, weight.as_ref(), epsilon, tables)))
    }

    /// Rows of `table` (`[V, D]`) at `index_BL`.
    pub fn embedding(&self, table: Handle<2>, index_bl: Tensor<2, Int>) -> Tensor<3> {
        let table = self.params.get(table).into_dispatch();
        let index = plain(&index_bl.into_dispatch());
        Tensor::from_dispatch(self.model_ops().embedding(&table, &index))
    }

    /// `softmax(q kᵀ / sqrt(D)) v` per head; `[B, S, H, D]` in and out.
    pub fn attention(&self, q_bshd: Tensor<4>, k_bshd: Tensor<4>, v_bshd: Tensor<4>) -> Tensor<4> {
        self.attention_with(q_bshd, [(k_bshd, v_bshd)], &AttentionSpec::default())
    }

    /// Attention of `q_BSHD` over one part of keys and values `[B, T, H_kv, D]`, or over two, as if the second followed on
    /// the first, with the scale, the mask and the bias of `spec`; see [`attention`](crate::ops::attention). Where there is a bias
    /// and the plan's backend adds none, it is computed of Burn's tensor operations instead, and the log of kernels says so.
    ///
    /// # Panics
    /// With [`Stopped::AttentionDeclined`] if the operands do not fit each other, or the plan's backend does not serve them.
    /// `flow-train check` and every command ask the backend for the model's shapes before they begin.
    pub fn attention_with<const PARTS: usize>(
        &self,
        q_bshd: Tensor<4>,
        parts: [(Tensor<4>, Tensor<4>); PARTS],
        spec: &AttentionSpec,
    ) -> Tensor<4> {
        let q = q_bshd.into_dispatch();
        let parts = parts.map(|(k, v)| (k.into_dispatch(), v.into_dispatch()));
        let parts: Vec<KeyValue<'_>> = parts.iter().map(|(k, v)| KeyValue { k, v }).collect();
        let output = AttentionCall::new(&q, &parts, spec).and_then(|call| self.attend(&q, &parts, &call));
        match output {
            Ok(output) => Tensor::from_dispatch(output),
            Err(refusal) => Stopped::AttentionDeclined {
                backend: self.backends.attention.name().to_owned(),
                why: refusal.to_string(),
            }
            .stop(),
        }
    }

    fn attend(
        &self,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<DispatchTensor, Refusal> {
        let (backend, log) = (&*self.backends.attention, &self.backends.attention_log);
        let allowed = backend.capability().check_bias(call);
        match allowed.and_then(|()| backend.attend(&*self.stash, q, parts, call)) {
            Ok(attended) => {
                log.note(call, || backend.kernel(call).ok());
                Ok(attended.output)
            }
            Err(_) if call.bias.is_some() => {
                log.note(call, || Some(composed::NAME.into()));
                Ok(composed::attend(q, parts, call))
            }
            Err(declined) => Err(declined),
        }
    }
}
