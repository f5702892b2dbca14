//! Attention layers and whole velocities: drivers written in a test answer for some trajectories, as a feature cache does.

use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use burn::tensor::Tensor;
use flow_core::cpu::{read_ints, to_host};
use flow_core::device::ComputeDevice;
use flow_core::tensors::select_rows as rows;
use flow_core::{
    AttentionKind, AttentionLayer, Backends, Block, CallContext, Condition, Exec, FlowModel, InferencePass,
    LayerBody, LayerDriver, ModelInput, ModelSpec, ParamLayout, RegionKind, Stage, TrajectoryId,
    VelocityDriver, Weights,
};
use std::sync::{Arc, Mutex};

/// Adds to its input what an attention layer makes of it: its double. Then the same again within a region.
#[derive(Debug)]
struct Doubling;

impl Block for Doubling {
    type Carried = Tensor<2>;
    type Shared = Tensor<2>;

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<2>, scale: Tensor<2>) -> Tensor<2> {
        let inputs = (x.clone(), scale.clone());
        let x = x + exec.attention_layer("self", AttentionKind::Spatial, inputs, |_, (x, scale)| x * scale);
        exec.region(RegionKind::Attention, self, (x, scale), |_, exec, (x, scale)| {
            let inputs = (x.clone(), scale);
            x + exec.attention_layer("cross", AttentionKind::Cross, inputs, |_, (x, scale)| x * scale)
        })
    }
}

/// A model of two such blocks, scaled by the noise level and the token.
#[derive(Debug, Default)]
struct Model {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
}

impl FlowModel for Model {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let tokens = read_ints(&input.condition.tokens.expect("tokens").into_dispatch());
        let tokens = tokens.iter().map(|token| *token as f32).collect::<Vec<f32>>();
        let [batch, values] = input.x.dims();
        let tokens: Tensor<2> = ComputeDevice::cpu().tensor(tokens, [batch, 1]);
        let scale = (input.sigma.reshape([batch, 1]) * tokens).repeat_dim(1, values);
        exec.stack(
            "blocks",
            &[Arc::new(Doubling), Arc::new(Doubling)],
            input.x,
            scale,
        )
    }
}

/// Answers the first row with zeros and has the others computed, noting which layers it was asked for.
#[derive(Debug, Default)]
struct AllButTheFirst {
    asked: Mutex<Vec<String>>,
}

impl AllButTheFirst {
    fn run(&self, exec: &Exec<'_>, inputs: &[DispatchTensor], body: LayerBody<'_>) -> DispatchTensor {
        let trajectories = &exec.call().trajectories;
        let others: Vec<usize> = (1..trajectories.len()).collect();
        let some = exec.on_trajectories(others.iter().map(|row| trajectories[*row]).collect());
        let computed = body(&some, inputs.iter().map(|input| rows(input, &others)).collect()).remove(0);
        let first = Dispatch::float_mul_scalar(rows(&inputs[0], &[0]), 0.into());
        Dispatch::float_cat(vec![first, computed], 0)
    }
}

impl LayerDriver for AllButTheFirst {
    fn name(&self) -> &str {
        "all-but-the-first"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        layer: &AttentionLayer,
        inputs: Vec<DispatchTensor>,
        body: LayerBody<'_>,
    ) -> Vec<DispatchTensor> {
        let asked = format!("{} {} {:?}", layer.site, layer.name, layer.kind);
        self.asked.lock().expect("no panic").push(asked);
        vec![self.run(exec, &inputs, body)]
    }
}

/// Calls the model for every second row, and takes the latent for the velocity of the others.
#[derive(Debug)]
struct EverySecond;

impl VelocityDriver for EverySecond {
    fn name(&self) -> &str {
        "every-second"
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let trajectories = &exec.call().trajectories;
        let some: Vec<usize> = (0..trajectories.len()).rev().filter(|row| row % 2 == 1).collect();
        let computed = model.velocity(
            &exec.on_trajectories(some.iter().map(|row| trajectories[*row]).collect()),
            input.rows(&some),
        );
        let place = |row: usize| some.iter().position(|of| *of == row);
        let row = |row| match place(row) {
            Some(place) => computed.clone().narrow(0, place, 1),
            None => input.x.clone().narrow(0, row, 1),
        };
        Tensor::cat((0..trajectories.len()).map(row).collect(), 0)
    }
}

/// Velocities of four rows with latents 1 to 4, tokens 1 to 4, at noise level 1/2.
fn velocities(plan: Backends) -> Vec<f32> {
    let device = ComputeDevice::cpu();
    let model = Model::default();
    let weights = Weights::init(model.layout.clone(), 0, &device);
    let trajectory = |sample| TrajectoryId {
        sample,
        conditional: true,
    };
    let call = CallContext {
        trajectories: (0..4).map(trajectory).collect(),
        ..CallContext::single(Stage::Rollout)
    };
    let input = ModelInput {
        x: device.tensor(vec![1.0, 2.0, 3.0, 4.0], [4, 1]),
        sigma: device.tensor(vec![0.5; 4], [4]),
        condition: Condition {
            tokens: Some(device.int_tensor(vec![1, 2, 3, 4], [4, 1])),
            ..Condition::default()
        },
    };
    let rollout = InferencePass::new(&weights, Arc::new(plan));
    let v: Tensor<2> = rollout.exec(call).velocity(&model, input);
    to_host(&v.into_dispatch())
}

/// Four layers, each of which multiplies by `1 + token / 2`.
fn exact(latent: f32) -> f32 {
    latent * (1.0 + latent / 2.0).powi(4)
}

#[test]
fn a_driver_answers_attention_layers_for_some_lanes_and_knows_which_they_are() {
    let plain = (*crate::model::plan()).clone();
    let all = [1.0, 2.0, 3.0, 4.0].map(exact);
    assert_eq!(velocities(plain.clone()), all);
    let driver = Arc::new(AllButTheFirst::default());
    let layers = driver.clone();
    // The first row passes every block as it came.
    assert_eq!(
        velocities(Backends { layers, ..plain }),
        [1.0, all[1], all[2], all[3]]
    );
    let asked = driver.asked.lock().expect("no panic").clone();
    assert_eq!(
        asked,
        [
            "blocks[0].Block self Spatial",
            "blocks[0].Attention cross Cross",
            "blocks[1].Block self Spatial",
            "blocks[1].Attention cross Cross",
        ]
    );
}

#[test]
fn a_driver_calls_the_model_for_some_rows_and_they_keep_their_latents_levels_and_conditions() {
    let plan = Backends {
        velocities: Arc::new(EverySecond),
        ..(*crate::model::plan()).clone()
    };
    assert_eq!(velocities(plan), [1.0, exact(2.0), 3.0, exact(4.0)]);
}

#[test]
fn a_call_for_some_of_its_rows_has_the_lengths_of_their_texts() {
    let device = ComputeDevice::cpu();
    let weights = Weights::init(Model::default().layout.clone(), 0, &device);
    let trajectory = |sample| TrajectoryId {
        sample,
        conditional: true,
    };
    let call = CallContext {
        trajectories: (0..4).map(trajectory).collect(),
        ..CallContext::single(Stage::Rollout)
    };
    let rollout = InferencePass::new(&weights, crate::model::plan());
    let exec = rollout.exec(call);
    assert!(exec.on_rows(&[3]).text_lengths().is_none());
    let exec = exec.with_text_lengths(Some(vec![3, 1, 2, 5].into()));
    let lengths = |exec: &Exec<'_>| exec.text_lengths().map(|lengths| lengths.to_vec());
    assert_eq!(lengths(&exec.on_rows(&[2, 0])), Some(vec![2, 3]));
    let some = exec.on_trajectories([3, 1].map(trajectory).into());
    assert_eq!(lengths(&some), Some(vec![5, 1]));
    assert_eq!(lengths(&some.on_rows(&[1])), Some(vec![1]));
    assert_eq!(lengths(&exec.for_backward()), Some(vec![3, 1, 2, 5]));
}

#[test]
fn rows_of_an_input_are_those_asked_for_in_that_order_in_every_part() {
    let device = ComputeDevice::cpu();
    let input = ModelInput {
        x: device.tensor(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]),
        sigma: device.tensor(vec![0.1, 0.2, 0.3], [3]),
        condition: Condition {
            tokens: Some(device.int_tensor(vec![7, 8, 9], [3, 1])),
            text: Some(device.tensor(vec![1.0, 2.0, 3.0], [3, 1, 1])),
            text_lengths: Some(vec![1, 0, 0].into()),
            pooled: Some(device.tensor(vec![4.0, 5.0, 6.0], [3, 1])),
            guidance: Some(device.tensor(vec![1.0, 2.0, 3.5], [3])),
        },
    };
    let some = input.rows(&[2, 0]);
    assert_eq!(to_host(&some.x.into_dispatch()), [5.0, 6.0, 1.0, 2.0]);
    assert_eq!(to_host(&some.sigma.into_dispatch()), [0.3, 0.1]);
    let Condition {
        tokens,
        text,
        text_lengths,
        pooled,
        guidance,
    } = some.condition;
    assert_eq!(text_lengths.as_deref(), Some(&[0, 1][..]));
    assert_eq!(read_ints(&tokens.expect("given").into_dispatch()), [9, 7]);
    assert_eq!(to_host(&text.expect("given").into_dispatch()), [3.0, 1.0]);
    assert_eq!(to_host(&pooled.expect("given").into_dispatch()), [6.0, 4.0]);
    assert_eq!(to_host(&guidance.expect("given").into_dispatch()), [3.5, 1.0]);
}

#[test]
fn shorter_texts_below_longer_ones_are_padded_with_zeros_that_are_told_apart() {
    let device = ComputeDevice::cpu();
    let text = |values: Vec<f32>, shape| Condition {
        text: Some(device.tensor(values, shape)),
        ..Condition::default()
    };
    let long = || text(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 3, 2]);
    let short = || text(vec![7.0, 8.0], [1, 1, 2]);
    let read = |both: Condition| {
        let lengths = both.text_lengths.map(|lengths| lengths.to_vec());
        (to_host(&both.text.expect("given").into_dispatch()), lengths)
    };
    assert_eq!(
        read(long().stacked(short())),
        (
            vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0],
            Some(vec![3, 1])
        )
    );
    assert_eq!(read(short().stacked(long())).1, Some(vec![1, 3]));
    let with_length = Condition {
        text_lengths: Some(vec![2].into()),
        ..long()
    };
    assert_eq!(read(with_length.stacked(short())).1, Some(vec![2, 1]));
    // Equally long ones have nothing to hide.
    assert_eq!(read(short().stacked(short())), (vec![7.0, 8.0, 7.0, 8.0], None));
}
