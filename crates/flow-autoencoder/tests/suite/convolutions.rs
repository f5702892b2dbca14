//! Convolutions and group norm against plain f64 loops, on the processor and through Burn.

use crate::common::{difference, normal, plain_of};
use burn::backend::DispatchTensor;
use flow_autoencoder::convolutions::{
    BurnConvolutions, Convolutions, Geometry, GroupNormSpec, HostConvolutions,
};
use flow_core::tensors::{RawTensor, leaf, plain};
use flow_core::{autograd, cpu};

/// Of f64 loops, rounding of f32 leaves so much.
const NEAR: f32 = 3e-6;

/// A convolution of `input [B, T, H, W, C]` to `outputs` channels.
#[derive(Clone, Copy, Debug)]
struct Case {
    input: [usize; 5],
    outputs: usize,
    kernel: [usize; 3],
    geometry: Geometry,
}

fn cases() -> Vec<Case> {
    let case = |input, outputs, kernel, geometry| Case {
        input,
        outputs,
        kernel,
        geometry,
    };
    let in_time = |zeros, stride| Geometry {
        stride: [stride, 1, 1],
        padding: [[zeros, 0], [0, 0], [0, 0]],
        upsample: false,
    };
    vec![
        case([2, 1, 7, 5, 3], 4, [1, 3, 3], Geometry::same([1, 3, 3])),
        case([1, 1, 6, 4, 5], 6, [1, 3, 3], Geometry::upsampled([1, 3, 3])),
        case([2, 1, 8, 6, 3], 5, [1, 3, 3], Geometry::halved()),
        // Three frames of which the first two have zeros under some taps.
        case([1, 3, 4, 5, 2], 3, [3, 3, 3], Geometry::same([3, 3, 3])),
        // A single frame: two thirds of the taps lie on zeros.
        case([1, 1, 4, 5, 2], 3, [3, 3, 3], Geometry::same([3, 3, 3])),
        case([2, 5, 3, 2, 4], 3, [3, 1, 1], in_time(0, 2)),
        case([1, 4, 3, 2, 4], 8, [3, 1, 1], in_time(1, 1)),
        // Several strips, the last of them shorter, and rows of more than one frame in a strip.
        case([2, 2, 19, 31, 3], 2, [3, 3, 3], Geometry::same([3, 3, 3])),
        case([1, 1, 1, 1, 1], 1, [1, 1, 1], Geometry::same([1, 1, 1])),
    ]
}

/// Output and, under `cotangent`, gradients of input, weight and bias, in f64.
struct Reference {
    output: Vec<f64>,
    dx: Vec<f64>,
    dweight: Vec<f64>,
    dbias: Vec<f64>,
}

fn reference(case: &Case, x: &[f32], weight: &[f32], bias: &[f32], cotangent: &[f32]) -> Reference {
    let [batch, frames, height, width, channels] = case.input;
    let Geometry {
        stride,
        padding,
        upsample,
    } = case.geometry;
    let [out_frames, out_height, out_width] = case.geometry.output([frames, height, width], case.kernel);
    let rows = batch * out_frames * out_height * out_width;
    let taps: usize = case.kernel.iter().product();
    let mut found = Reference {
        output: vec![0.0; rows * case.outputs],
        dx: vec![0.0; x.len()],
        dweight: vec![0.0; weight.len()],
        dbias: vec![0.0; case.outputs],
    };
    for row in 0..rows {
        let sample = row / (out_frames * out_height * out_width);
        let at = [
            row / (out_height * out_width) % out_frames,
            row / out_width % out_height,
            row % out_width,
        ];
        for (output, bias) in bias.iter().enumerate() {
            let place = row * case.outputs + output;
            let gradient = f64::from(cotangent[place]);
            found.output[place] += f64::from(*bias);
            found.dbias[output] += gradient;
            for tap in 0..taps {
                let [_, kernel_rows, kernel_columns] = case.kernel;
                let offsets = [
                    tap / (kernel_rows * kernel_columns),
                    tap / kernel_columns % kernel_rows,
                    tap % kernel_columns,
                ];
                let source: Vec<usize> = (0..3)
                    .filter_map(|axis| {
                        let seen = (at[axis] * stride[axis] + offsets[axis]).checked_sub(padding[axis][0])?;
                        let source = if upsample && axis > 0 { seen / 2 } else { seen };
                        (source < [frames, height, width][axis]).then_some(source)
                    })
                    .collect();
                let [frame, line, column] = source[..] else {
                    continue;
                };
                for channel in 0..channels {
                    let from =
                        (((sample * frames + frame) * height + line) * width + column) * channels + channel;
                    let by = (output * channels + channel) * taps + tap;
                    found.output[place] += f64::from(x[from]) * f64::from(weight[by]);
                    found.dx[from] += gradient * f64::from(weight[by]);
                    found.dweight[by] += gradient * f64::from(x[from]);
                }
            }
        }
    }
    found
}

fn assert_near(what: &str, found: &RawTensor, expected: &[f64]) {
    let expected: Vec<f32> = expected.iter().map(|it| *it as f32).collect();
    let difference = difference(&cpu::to_host(found), &expected);
    assert!(difference <= NEAR, "{what}: {difference:e}");
}

/// Output and gradients of the three operands under `cotangent`.
fn differentiated(
    operands: [&RawTensor; 3],
    cotangent: &RawTensor,
    run: impl Fn(&[DispatchTensor; 3]) -> DispatchTensor,
) -> (RawTensor, [RawTensor; 3]) {
    let leaves = operands.map(leaf);
    let output = run(&leaves);
    let values = plain(&output);
    let mut gradients = autograd::backward_from(vec![output], vec![Some(cotangent.clone())]).unwrap();
    (
        values,
        leaves.map(|leaf| autograd::take_gradient(&leaf, &mut gradients).unwrap()),
    )
}

fn check(convolutions: &dyn Convolutions) {
    for case in cases() {
        let [_, frames, height, width, channels] = case.input;
        let [out_frames, out_height, out_width] = case.geometry.output([frames, height, width], case.kernel);
        let [deep, high, wide] = case.kernel;
        let x = plain_of(normal(case.input, 1));
        let weight = plain_of(normal([case.outputs, channels, deep, high, wide], 2));
        let bias = plain_of(normal([case.outputs], 3));
        let shape = [case.input[0], out_frames, out_height, out_width, case.outputs];
        let cotangent = plain_of(normal(shape, 4));
        let [x_values, weight_values, bias_values, cotangent_values] =
            [&x, &weight, &bias, &cotangent].map(cpu::to_host);
        let expected = reference(&case, &x_values, &weight_values, &bias_values, &cotangent_values);
        let (output, [dx, dweight, dbias]) =
            differentiated([&x, &weight, &bias], &cotangent, |[x, weight, bias]| {
                convolutions.convolution(x, weight, Some(bias), &case.geometry)
            });
        let what = |of: &str| format!("{}: {of} of {case:?}", convolutions.name());
        assert_near(&what("output"), &output, &expected.output);
        assert_near(&what("dx"), &dx, &expected.dx);
        assert_near(&what("dweight"), &dweight, &expected.dweight);
        assert_near(&what("dbias"), &dbias, &expected.dbias);
        let untracked = convolutions.convolution(&x, &weight, Some(&bias), &case.geometry);
        assert_eq!(
            cpu::to_host(&untracked),
            cpu::to_host(&output),
            "{}",
            what("untracked output")
        );
    }
}

#[test]
fn convolutions_on_the_processor_are_those_of_f64_loops() {
    check(&HostConvolutions);
}

#[test]
fn convolutions_of_burn_are_those_of_f64_loops() {
    check(&BurnConvolutions);
}

#[test]
fn without_bias_there_is_none() {
    let case = cases()[0];
    let x = plain_of(normal(case.input, 1));
    let weight = plain_of(normal([4, 3, 3, 3], 2));
    let zeros = plain_of(normal([4], 3) * 0.0);
    for convolutions in [&HostConvolutions as &dyn Convolutions, &BurnConvolutions] {
        let without = convolutions.convolution(&x, &weight, None, &case.geometry);
        let with = convolutions.convolution(&x, &weight, Some(&zeros), &case.geometry);
        assert!(difference(&cpu::to_host(&without), &cpu::to_host(&with)) < 1e-6);
    }
}

/// Mean and reciprocal deviation of each group, then the norm and its gradients, in f64.
fn group_norm_reference(
    x: &[f32],
    [batch, pixels, channels]: [usize; 3],
    weight: &[f32],
    bias: &[f32],
    spec: &GroupNormSpec,
    cotangent: &[f32],
) -> Reference {
    let group = channels / spec.groups;
    let count = (pixels * group) as f64;
    let mut found = Reference {
        output: vec![0.0; x.len()],
        dx: vec![0.0; x.len()],
        dweight: vec![0.0; channels],
        dbias: vec![0.0; channels],
    };
    for sample in 0..batch {
        for number in 0..spec.groups {
            let places = || {
                (0..pixels).flat_map(move |pixel| {
                    (number * group..(number + 1) * group)
                        .map(move |channel| ((sample * pixels + pixel) * channels + channel, channel))
                })
            };
            let mean = places().map(|(at, _)| f64::from(x[at])).sum::<f64>() / count;
            let variance = places()
                .map(|(at, _)| (f64::from(x[at]) - mean).powi(2))
                .sum::<f64>()
                / count;
            let reciprocal = 1.0 / (variance + f64::from(spec.epsilon)).sqrt();
            let (mut sum, mut sum_normed, mut upstreams) = (0.0, 0.0, Vec::new());
            for (at, channel) in places() {
                let normed = (f64::from(x[at]) - mean) * reciprocal;
                let value = normed * f64::from(weight[channel]) + f64::from(bias[channel]);
                let sigmoid = 1.0 / (1.0 + (-value).exp());
                let (output, slope) = match spec.silu {
                    true => (value * sigmoid, sigmoid + value * sigmoid * (1.0 - sigmoid)),
                    false => (value, 1.0),
                };
                found.output[at] = output;
                let before = f64::from(cotangent[at]) * slope;
                found.dweight[channel] += before * normed;
                found.dbias[channel] += before;
                let upstream = before * f64::from(weight[channel]);
                (sum, sum_normed) = (sum + upstream, sum_normed + upstream * normed);
                upstreams.push((at, upstream, normed));
            }
            for (at, upstream, normed) in upstreams {
                found.dx[at] = reciprocal * (upstream - sum / count - normed * sum_normed / count);
            }
        }
    }
    found
}

#[test]
fn group_norm_is_that_of_f64_loops_even_far_from_zero() {
    for (silu, offset) in [(false, 0.0), (true, 0.0), (true, 30.0)] {
        let shape = [2, 1, 37, 29, 12];
        let spec = GroupNormSpec {
            groups: 4,
            epsilon: 1e-6,
            silu,
        };
        let x = plain_of(normal(shape, 1) + offset);
        let (weight, bias) = (plain_of(normal([12], 2)), plain_of(normal([12], 3)));
        let cotangent = plain_of(normal(shape, 4));
        let [x_values, weight_values, bias_values, cotangent_values] =
            [&x, &weight, &bias, &cotangent].map(cpu::to_host);
        let sizes = [2, 37 * 29, 12];
        let expected = group_norm_reference(
            &x_values,
            sizes,
            &weight_values,
            &bias_values,
            &spec,
            &cotangent_values,
        );
        for convolutions in [&HostConvolutions as &dyn Convolutions, &BurnConvolutions] {
            let (output, [dx, dweight, dbias]) =
                differentiated([&x, &weight, &bias], &cotangent, |[x, weight, bias]| {
                    convolutions.group_norm(x, weight, bias, &spec)
                });
            // Means of 30 are known to f32's precision, and Burn's sums lose a little more.
            let near = if offset > 0.0 { 3e-5 } else { 5e-6 };
            let values = [
                (output, &expected.output),
                (dx, &expected.dx),
                (dweight, &expected.dweight),
                (dbias, &expected.dbias),
            ];
            for (which, (found, expected)) in values.into_iter().enumerate() {
                let expected: Vec<f32> = expected.iter().map(|it| *it as f32).collect();
                let difference = difference(&cpu::to_host(&found), &expected);
                let name = convolutions.name();
                assert!(
                    difference <= near,
                    "{name}, silu {silu}, offset {offset}, value {which}: {difference:e}"
                );
            }
        }
    }
}

/// What `task` gives on so many threads.
fn on_threads<T: Send>(threads: usize, task: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(task)
}

#[test]
fn no_bit_depends_on_the_number_of_threads() {
    // Large enough for several strips and pieces, with the taps of a deep layer.
    let (input, outputs) = ([1, 2, 33, 40, 64], 48);
    let spec = GroupNormSpec {
        groups: 8,
        epsilon: 1e-6,
        silu: true,
    };
    let run = || {
        let x = plain_of(normal(input, 1));
        let weight = plain_of(normal([outputs, 64, 3, 3, 3], 2));
        let bias = plain_of(normal([outputs], 3));
        let [batch, frames, height, width, _] = input;
        let cotangent = plain_of(normal([batch, frames, height, width, outputs], 4));
        let geometry = Geometry::same([3, 3, 3]);
        let convolution = differentiated([&x, &weight, &bias], &cotangent, |[x, weight, bias]| {
            HostConvolutions.convolution(x, weight, Some(bias), &geometry)
        });
        let (weight, bias) = (plain_of(normal([64], 5)), plain_of(normal([64], 6)));
        let cotangent = plain_of(normal(input, 7));
        let norm = differentiated([&x, &weight, &bias], &cotangent, |[x, weight, bias]| {
            HostConvolutions.group_norm(x, weight, bias, &spec)
        });
        let values = [convolution, norm]
            .map(|(output, gradients)| (cpu::to_host(&output), gradients.map(|it| cpu::to_host(&it))));
        values.to_vec()
    };
    let one = on_threads(1, run);
    assert_eq!(on_threads(3, run), one);
    assert_eq!(on_threads(8, run), one);
}
