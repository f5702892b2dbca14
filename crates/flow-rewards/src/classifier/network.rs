//! The network itself: parameters, forward and hand-written backward.
//!
//! Shape legend: H = W = 8 rows and columns, I input channels, O output channels, K = 3×3 kernel places.
//! Activations are [row, column, channel] and kernels [K, I, O], so that the innermost loops run over channels, which
//! the compiler turns into vector instructions without changing the order of any sum.

/// Digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Rows and columns of the input.
pub(crate) const SIDE: usize = 8;
/// Rows and columns after the stride of two.
const HALF: usize = SIDE / 2;
const KERNEL: usize = 3;
const TENSORS: usize = 6;
/// Names in the order of [`Parameters::tensors`].
pub(crate) const NAMES: [&str; TENSORS] = [
    "conv1.weight",
    "conv1.bias",
    "conv2.weight",
    "conv2.bias",
    "linear.weight",
    "linear.bias",
];

/// Weights and biases, or their gradients, or their optimizer state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameters {
    channels: [usize; 2],
    pub tensors: [Vec<f32>; TENSORS],
}

/// Shapes in the order of [`NAMES`].
pub(crate) fn shapes([c1, c2]: [usize; 2]) -> [Vec<usize>; TENSORS] {
    [
        vec![KERNEL, KERNEL, 1, c1],
        vec![c1],
        vec![KERNEL, KERNEL, c1, c2],
        vec![c2],
        vec![HALF * HALF * c2, CLASSES],
        vec![CLASSES],
    ]
}

impl Parameters {
    pub(crate) fn zeros(channels: [usize; 2]) -> Self {
        Self {
            channels,
            tensors: shapes(channels).map(|shape| vec![0.0; shape.iter().product()]),
        }
    }

    pub(crate) fn channels(&self) -> [usize; 2] {
        self.channels
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, Vec<usize>, &[f32])> {
        let shapes = shapes(self.channels);
        NAMES
            .iter()
            .zip(shapes)
            .zip(&self.tensors)
            .map(|((&name, shape), t)| (name, shape, t.as_slice()))
            .collect()
    }
}

/// The values of one forward pass, kept for the backward pass.
pub(crate) struct Activations {
    hidden1: Vec<f32>,
    hidden2: Vec<f32>,
    pub logits: [f32; CLASSES],
}

impl Activations {
    pub(crate) fn new([c1, c2]: [usize; 2]) -> Self {
        Self {
            hidden1: vec![0.0; SIDE * SIDE * c1],
            hidden2: vec![0.0; HALF * HALF * c2],
            logits: [0.0; CLASSES],
        }
    }

    pub(crate) fn forward(&mut self, parameters: &Parameters, input: &[f32; SIDE * SIDE]) {
        let [
            conv1_weight,
            conv1_bias,
            conv2_weight,
            conv2_bias,
            linear_weight,
            linear_bias,
        ] = &parameters.tensors;
        let [c1, _] = parameters.channels;
        convolve(input, 1, conv1_weight, conv1_bias, 1, &mut self.hidden1);
        relu(&mut self.hidden1);
        convolve(&self.hidden1, c1, conv2_weight, conv2_bias, 2, &mut self.hidden2);
        relu(&mut self.hidden2);
        self.logits.copy_from_slice(linear_bias);
        for (&x, weights) in self.hidden2.iter().zip(linear_weight.chunks_exact(CLASSES)) {
            add_scaled(&mut self.logits, x, weights);
        }
    }
}

/// Mean smoothed cross-entropy over `inputs`; its gradient is added to `gradients`.
pub(crate) fn loss_and_gradients(
    parameters: &Parameters,
    inputs: &[([f32; SIDE * SIDE], u8)],
    label_smoothing: f32,
    gradients: &mut Parameters,
) -> f32 {
    let [c1, c2] = parameters.channels;
    let conv2_weight_koi = transpose_in_and_out(&parameters.tensors[2], c1, c2);
    let mut activations = Activations::new([c1, c2]);
    let mut d_hidden1 = vec![0.0; activations.hidden1.len()];
    let mut d_hidden2 = vec![0.0; activations.hidden2.len()];
    let share = 1.0 / inputs.len().max(1) as f32;
    let mut loss = 0.0;
    for (input, label) in inputs {
        activations.forward(parameters, input);
        let log_probabilities = log_softmax(&activations.logits);
        let mut d_logits = [0.0; CLASSES];
        for (class, d_logit) in d_logits.iter_mut().enumerate() {
            let on_label = if class == usize::from(*label) {
                1.0 - label_smoothing
            } else {
                0.0
            };
            let target = on_label + label_smoothing / CLASSES as f32;
            loss -= share * target * log_probabilities[class];
            *d_logit = share * (libm::expf(log_probabilities[class]) - target);
        }
        let [
            d_conv1_weight,
            d_conv1_bias,
            d_conv2_weight,
            d_conv2_bias,
            d_linear_weight,
            d_linear_bias,
        ] = &mut gradients.tensors;
        add_scaled(d_linear_bias, 1.0, &d_logits);
        let weights = parameters.tensors[4].chunks_exact(CLASSES);
        let d_weights = d_linear_weight.chunks_exact_mut(CLASSES);
        let rows = weights
            .zip(d_weights)
            .zip(activations.hidden2.iter().zip(&mut d_hidden2));
        for ((weights, d_weights), (&x, d_x)) in rows {
            add_scaled(d_weights, x, &d_logits);
            // The derivative of ReLU at 0 is taken as 0.
            *d_x = if x > 0.0 {
                weights.iter().zip(&d_logits).map(|(w, d)| w * d).sum()
            } else {
                0.0
            };
        }
        convolve_backward_parameters(
            &activations.hidden1,
            c1,
            &d_hidden2,
            2,
            d_conv2_weight,
            d_conv2_bias,
        );
        convolve_backward_input(&d_hidden2, c2, &conv2_weight_koi, c1, 2, &mut d_hidden1);
        for (d_x, &x) in d_hidden1.iter_mut().zip(&activations.hidden1) {
            *d_x = if x > 0.0 { *d_x } else { 0.0 };
        }
        convolve_backward_parameters(input, 1, &d_hidden1, 1, d_conv1_weight, d_conv1_bias);
    }
    loss
}

/// `logits - log Σ exp(logits)`, shifted by the largest logit against overflow.
pub(crate) fn log_softmax(logits: &[f32; CLASSES]) -> [f32; CLASSES] {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| libm::expf(logit - largest)).sum();
    let log_sum = libm::logf(sum);
    logits.map(|logit| logit - largest - log_sum)
}

fn add_scaled(sums: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

fn relu(values: &mut [f32]) {
    for value in values {
        *value = value.max(0.0);
    }
}

/// Calls `visit(output pixel, input pixel, kernel place)` for every pair inside the image, in a fixed order.
fn for_each_tap(stride: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let side_out = SIDE / stride;
    for row_out in 0..side_out {
        for column_out in 0..side_out {
            for place in 0..KERNEL * KERNEL {
                // Padding by one: kernel place (1, 1) lies on input pixel (stride · row, stride · column).
                let row = (row_out * stride + place / KERNEL).wrapping_sub(1);
                let column = (column_out * stride + place % KERNEL).wrapping_sub(1);
                if row < SIDE && column < SIDE {
                    visit(row_out * side_out + column_out, row * SIDE + column, place);
                }
            }
        }
    }
}

fn convolve(
    input: &[f32],
    channels_in: usize,
    weight: &[f32],
    bias: &[f32],
    stride: usize,
    output: &mut [f32],
) {
    let channels_out = bias.len();
    for pixel in output.chunks_exact_mut(channels_out) {
        pixel.copy_from_slice(bias);
    }
    for_each_tap(stride, |pixel_out, pixel_in, place| {
        let sums = &mut output[pixel_out * channels_out..][..channels_out];
        let weights = &weight[place * channels_in * channels_out..][..channels_in * channels_out];
        let inputs = &input[pixel_in * channels_in..][..channels_in];
        for (&x, weights) in inputs.iter().zip(weights.chunks_exact(channels_out)) {
            add_scaled(sums, x, weights);
        }
    });
}

fn convolve_backward_parameters(
    input: &[f32],
    channels_in: usize,
    d_output: &[f32],
    stride: usize,
    d_weight: &mut [f32],
    d_bias: &mut [f32],
) {
    let channels_out = d_bias.len();
    for d_pixel in d_output.chunks_exact(channels_out) {
        add_scaled(d_bias, 1.0, d_pixel);
    }
    for_each_tap(stride, |pixel_out, pixel_in, place| {
        let d_pixel = &d_output[pixel_out * channels_out..][..channels_out];
        let d_weights = &mut d_weight[place * channels_in * channels_out..][..channels_in * channels_out];
        let inputs = &input[pixel_in * channels_in..][..channels_in];
        for (&x, d_weights) in inputs.iter().zip(d_weights.chunks_exact_mut(channels_out)) {
            add_scaled(d_weights, x, d_pixel);
        }
    });
}

fn convolve_backward_input(
    d_output: &[f32],
    channels_out: usize,
    weight_koi: &[f32],
    channels_in: usize,
    stride: usize,
    d_input: &mut [f32],
) {
    d_input.fill(0.0);
    for_each_tap(stride, |pixel_out, pixel_in, place| {
        let d_pixel = &d_output[pixel_out * channels_out..][..channels_out];
        let weights = &weight_koi[place * channels_in * channels_out..][..channels_in * channels_out];
        let sums = &mut d_input[pixel_in * channels_in..][..channels_in];
        for (&d, weights) in d_pixel.iter().zip(weights.chunks_exact(channels_in)) {
            add_scaled(sums, d, weights);
        }
    });
}

/// [K, I, O] to [K, O, I].
fn transpose_in_and_out(weight_kio: &[f32], channels_in: usize, channels_out: usize) -> Vec<f32> {
    let mut weight_koi = Vec::with_capacity(weight_kio.len());
    for plane in weight_kio.chunks_exact(channels_in * channels_out) {
        for o in 0..channels_out {
            weight_koi.extend((0..channels_in).map(|i| plane[i * channels_out + o]));
        }
    }
    weight_koi
}
