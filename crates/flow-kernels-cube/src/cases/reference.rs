//! The operations and their gradients in f64, by definition and in closed form. Rows are contiguous.

use crate::Activation;

/// `activation(x)`.
pub fn activate(x: f64, activation: Option<Activation>) -> f64 {
    match activation {
        None => x,
        Some(Activation::Silu) => x / (1.0 + (-x).exp()),
        Some(Activation::GeluTanh) => 0.5 * x * (1.0 + gelu_inner(x).tanh()),
    }
}

fn gelu_inner(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)
}

/// Its derivative.
pub fn activation_slope(x: f64, activation: Option<Activation>) -> f64 {
    match activation {
        None => 1.0,
        Some(Activation::Silu) => {
            let s = 1.0 / (1.0 + (-x).exp());
            s + x * s * (1.0 - s)
        }
        Some(Activation::GeluTanh) => {
            let t = gelu_inner(x).tanh();
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        }
    }
}

fn mean(values: impl Iterator<Item = f64>, count: usize) -> f64 {
    values.sum::<f64>() / count as f64
}

/// The row less its mean and divided by its deviation, and the reciprocal deviation.
fn normalise(x: &[f64], epsilon: f64) -> (Vec<f64>, f64) {
    let average = mean(x.iter().copied(), x.len());
    let variance = mean(x.iter().map(|x| (x - average).powi(2)), x.len());
    let reciprocal = 1.0 / (variance + epsilon).sqrt();
    (x.iter().map(|x| (x - average) * reciprocal).collect(), reciprocal)
}

/// Layer norm of a row, times `1 + scale`, plus `shift`.
pub fn norm_row(x: &[f64], shift: &[f64], scale: &[f64], epsilon: f64) -> Vec<f64> {
    let (normed, _) = normalise(x, epsilon);
    let modulated = normed.iter().zip(shift.iter().zip(scale));
    modulated
        .map(|(x, (shift, scale))| x * (1.0 + scale) + shift)
        .collect()
}

/// Gradients of the row, and what the row adds to those of the scale; that of the shift is `gradient`.
pub fn norm_row_backward(x: &[f64], scale: &[f64], gradient: &[f64], epsilon: f64) -> (Vec<f64>, Vec<f64>) {
    let (normed, reciprocal) = normalise(x, epsilon);
    let slopes: Vec<f64> = gradient.iter().zip(scale).map(|(g, s)| g * (1.0 + s)).collect();
    let average = mean(slopes.iter().copied(), x.len());
    let along = mean(slopes.iter().zip(&normed).map(|(d, x)| d * x), x.len());
    let dx = slopes
        .iter()
        .zip(&normed)
        .map(|(d, x)| reciprocal * (d - average - x * along));
    (
        dx.collect(),
        gradient.iter().zip(&normed).map(|(g, x)| g * x).collect(),
    )
}

/// RMS norm of a row.
pub fn rms_row(x: &[f64], weight: Option<&[f64]>, epsilon: f64) -> Vec<f64> {
    let reciprocal = 1.0 / (mean(x.iter().map(|x| x * x), x.len()) + epsilon).sqrt();
    let factor = |at: usize| weight.map_or(1.0, |weight| weight[at]);
    x.iter()
        .enumerate()
        .map(|(at, x)| x * reciprocal * factor(at))
        .collect()
}

/// Gradients of the row, and what the row adds to that of the weight.
pub fn rms_row_backward(
    x: &[f64],
    weight: Option<&[f64]>,
    gradient: &[f64],
    epsilon: f64,
) -> (Vec<f64>, Vec<f64>) {
    let reciprocal = 1.0 / (mean(x.iter().map(|x| x * x), x.len()) + epsilon).sqrt();
    let factor = |at: usize| weight.map_or(1.0, |weight| weight[at]);
    let slopes: Vec<f64> = gradient
        .iter()
        .enumerate()
        .map(|(at, g)| g * factor(at))
        .collect();
    let along = mean(slopes.iter().zip(x).map(|(d, x)| d * x * reciprocal), x.len());
    let dx = slopes
        .iter()
        .zip(x)
        .map(|(d, x)| reciprocal * (d - x * reciprocal * along));
    (
        dx.collect(),
        gradient.iter().zip(x).map(|(g, x)| g * x * reciprocal).collect(),
    )
}

/// The pairs of a row turned by `cos` and `sin`; `direction` -1 turns back.
pub fn rotate_row(x: &[f64], cos: &[f64], sin: &[f64], direction: f64) -> Vec<f64> {
    let pairs = x.chunks_exact(2).zip(cos.iter().zip(sin));
    pairs
        .flat_map(|(x, (cos, sin))| {
            let sin = direction * sin;
            [x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos]
        })
        .collect()
}

/// The frequencies of a plane of `height` rows within `radius` of 0, as values, by the definition of the transform.
pub fn low_frequencies(plane: &[f64], [height, width]: [usize; 2], radius: usize) -> Vec<f64> {
    let turn = |k: i64, at: usize, size: usize| std::f64::consts::TAU * k as f64 * at as f64 / size as f64;
    let radius = radius as i64;
    let mut low = vec![0.0; plane.len()];
    let all = (-radius..=radius).flat_map(|ky| (-radius..=radius).map(move |kx| (ky, kx)));
    for (ky, kx) in all.filter(|(ky, kx)| ky * ky + kx * kx <= radius * radius) {
        let angle = |at: usize| turn(ky, at / width, height) + turn(kx, at % width, width);
        let (mut re, mut im) = (0.0, 0.0);
        for (at, value) in plane.iter().enumerate() {
            re += value * angle(at).cos();
            im -= value * angle(at).sin();
        }
        for (at, out) in low.iter_mut().enumerate() {
            *out += (re * angle(at).cos() - im * angle(at).sin()) / plane.len() as f64;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum of gradient · f(x)` differentiated by central differences.
    fn differences(x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
        let step = 1e-5;
        let value = |at: usize, by: f64| {
            let mut moved = x.to_vec();
            moved[at] += by;
            f(&moved).iter().zip(gradient).map(|(y, g)| y * g).sum::<f64>()
        };
        (0..x.len())
            .map(|at| (value(at, step) - value(at, -step)) / (2.0 * step))
            .collect()
    }

    fn assert_close(a: &[f64], b: &[f64]) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 1e-7 * (1.0 + a.abs()), "{a} and {b}");
        }
    }

    fn row(seed: f64) -> Vec<f64> {
        (0..6).map(|i| (seed + 1.7 * f64::from(i)).sin() * 1.3).collect()
    }

    #[test]
    fn gradients_in_closed_form_are_those_of_central_differences() {
        let (x, g, scale, shift) = (row(0.1), row(2.0), row(4.0), row(5.0));
        let (dx, dscale) = norm_row_backward(&x, &scale, &g, 1e-6);
        assert_close(&dx, &differences(&x, &g, |x| norm_row(x, &shift, &scale, 1e-6)));
        assert_close(
            &dscale,
            &differences(&scale, &g, |scale| norm_row(&x, &shift, scale, 1e-6)),
        );
        for weight in [None, Some(&scale[..])] {
            let (dx, dweight) = rms_row_backward(&x, weight, &g, 1e-6);
            assert_close(&dx, &differences(&x, &g, |x| rms_row(x, weight, 1e-6)));
            if let Some(weight) = weight {
                assert_close(
                    &dweight,
                    &differences(weight, &g, |weight| rms_row(&x, Some(weight), 1e-6)),
                );
            }
        }
        for activation in [None, Some(Activation::Silu), Some(Activation::GeluTanh)] {
            let slopes: Vec<f64> = x
                .iter()
                .zip(&g)
                .map(|(x, g)| g * activation_slope(*x, activation))
                .collect();
            let f = |x: &[f64]| x.iter().map(|x| activate(*x, activation)).collect();
            assert_close(&slopes, &differences(&x, &g, f));
        }
        let (cos, sin) = ([0.6, 0.8, 1.0], [0.8, -0.6, 0.0]);
        let back = rotate_row(&g, &cos, &sin, -1.0);
        assert_close(&back, &differences(&x, &g, |x| rotate_row(x, &cos, &sin, 1.0)));
    }
}
