//! Every step of every dynamics against the outputs of Flow-Factory's own scheduler (PyTorch, f32, CPU).
//!
//! The fixture holds, for nine steps of ten, three samples of 4 x 5 x 6 values. The original computes in f32, so our
//! f64 results differ from it by its rounding only. `UNIT` is half a unit in the last place of f32 around 1, the most
//! that one of its operations is off, relative to its result.

use flow_trainer::scheduler::{
    DynamicShift, Dynamics, NoiseLevel, Schedule, ScheduleOptions, SdeWindow, SigmaEnds, SigmaGrid,
    SigmaShift, StepCoefficients, reference_log_prob, reference_log_prob_gradient, reference_step,
};
use safetensors::{Dtype, SafeTensors};

static BYTES: &[u8] = include_bytes!("../fixtures/sde_steps.safetensors");
static INDEX: &str = include_str!("../fixtures/sde_steps.json");

const SAMPLES: usize = 3;
const ELEMENTS: usize = 4 * 5 * 6;
const TRAINED_STEPS: usize = 9;
const UNIT: f64 = 1.0 / 16_777_216.0;

struct Case<'a> {
    name: String,
    dynamics: Dynamics,
    is_static: bool,
    is_bf16: bool,
    noise_level: f64,
    file: &'a SafeTensors<'a>,
}

impl Case<'_> {
    fn get(&self, tensor: &str) -> Vec<f64> {
        let view = self.file.tensor(&format!("{}.{tensor}", self.name)).unwrap();
        match view.dtype() {
            Dtype::F32 => view
                .data()
                .chunks_exact(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            Dtype::BF16 => view
                .data()
                .chunks_exact(2)
                .map(|b| half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64())
                .collect(),
            other => panic!("{tensor} is stored as {other:?}"),
        }
    }

    /// The step's tensors, cut into samples.
    fn samples(&self, step: usize, tensor: &str) -> Vec<Vec<f64>> {
        let values = self.get(&format!("{step}.{tensor}"));
        assert_eq!(values.len(), SAMPLES * ELEMENTS);
        values.chunks_exact(ELEMENTS).map(<[f64]>::to_vec).collect()
    }

    /// The grid as the original holds it, rounded to f32, so that only its arithmetic differs from ours.
    fn coefficients(&self) -> Vec<StepCoefficients> {
        let grid = SigmaGrid::from_sigmas(self.get("sigmas")).unwrap();
        let step = |step| self.dynamics.coefficients(&grid, step, self.noise_level).unwrap();
        (0..TRAINED_STEPS).map(step).collect()
    }

    fn round(&self, value: f64) -> f64 {
        if self.is_bf16 {
            half::bf16::from_f64(value).to_f64()
        } else {
            f64::from(value as f32)
        }
    }
}

fn for_every_case(check: impl Fn(&Case<'_>)) {
    let file = SafeTensors::deserialize(BYTES).unwrap();
    let index: serde_json::Value = serde_json::from_str(INDEX).unwrap();
    let cases = index["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 16);
    for name in cases {
        let name = name.as_str().unwrap();
        let parts: Vec<&str> = name.split('.').collect();
        let levels = &index["noise_level"];
        let noise_level = levels
            .get(parts[0])
            .unwrap_or(&levels["default"])
            .as_f64()
            .unwrap();
        check(&Case {
            name: name.to_owned(),
            dynamics: parts[0].parse().unwrap(),
            is_static: parts[1] == "shift3",
            is_bf16: parts[2] == "bfloat16",
            noise_level,
            file: &file,
        });
    }
}

fn assert_near(actual: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (actual - expected).abs();
    assert!(
        error <= tolerance,
        "{what}: {actual} instead of {expected}, off by {error:e}, allowed {tolerance:e}"
    );
}

#[test]
fn the_sigma_grid_is_the_originals_to_f32_rounding() {
    for_every_case(|case| {
        let shift = if case.is_static {
            SigmaShift::Static(3.0)
        } else {
            SigmaShift::Dynamic {
                line: DynamicShift::default(),
                tokens: 1024,
            }
        };
        let grid = SigmaGrid::new(10, shift).unwrap();
        let expected = case.get("sigmas");
        assert_eq!(grid.sigmas().len(), expected.len());
        for (actual, expected) in grid.sigmas().iter().zip(&expected) {
            // One multiplication, one addition and one division of numbers up to 3, and the rounding of the result.
            assert_near(*actual, *expected, 4.0 * UNIT, &case.name);
        }
        for (actual, expected) in grid.timesteps().iter().zip(case.get("timesteps")) {
            assert_near(actual / 1000.0, expected / 1000.0, 5.0 * UNIT, &case.name);
        }
    });
}

#[test]
fn dt_and_std_dev_are_the_originals() {
    for_every_case(|case| {
        for (step, coefficients) in case.coefficients().iter().enumerate() {
            let what = format!("{} step {step}", case.name);
            // Both sigmas are f32 values of similar size: the difference is rounded once.
            let dt = case.get(&format!("{step}.dt"));
            assert_near(coefficients.dt, dt[0], UNIT * dt[0].abs(), &what);
            for std_dev in case.get(&format!("{step}.std_dev_t")) {
                // A subtraction, a division, a root and a product, or a sine and a product.
                assert_near(coefficients.std_dev, std_dev, 3.0 * UNIT * std_dev, &what);
            }
        }
    });
}

#[test]
fn the_mean_is_the_originals_to_f32_rounding() {
    for_every_case(|case| {
        for (step, coefficients) in case.coefficients().iter().enumerate() {
            let (x, v, mean) = (
                case.samples(step, "x"),
                case.samples(step, "v"),
                case.samples(step, "mean"),
            );
            for sample in 0..SAMPLES {
                let zero = vec![0.0; ELEMENTS];
                let ours =
                    reference_step(coefficients, &x[sample], &v[sample], &zero, |value| value).unwrap();
                for element in 0..ELEMENTS {
                    // Up to six roundings of terms no larger than |x| + |v|.
                    let size = x[sample][element].abs() + v[sample][element].abs();
                    let what = format!("{} step {step} element {element}", case.name);
                    assert_near(
                        ours.mean[element],
                        mean[sample][element],
                        3.0 * UNIT * size,
                        &what,
                    );
                }
            }
        }
    });
}

#[test]
fn the_next_latent_is_the_originals_after_rounding_to_its_storage_dtype() {
    for_every_case(|case| {
        for (step, coefficients) in case.coefficients().iter().enumerate() {
            let (x, v) = (case.samples(step, "x"), case.samples(step, "v"));
            let (noise, next) = (case.samples(step, "noise"), case.samples(step, "x_next"));
            for sample in 0..SAMPLES {
                let exact = reference_step(coefficients, &x[sample], &v[sample], &noise[sample], |value| {
                    value
                })
                .unwrap();
                for element in 0..ELEMENTS {
                    let (exact, stored) = (exact.next[element], next[sample][element]);
                    let eps = coefficients.noise * noise[sample][element];
                    let tolerance =
                        3.0 * UNIT * (x[sample][element].abs() + v[sample][element].abs() + eps.abs());
                    let what = format!("{} step {step} element {element}", case.name);
                    if case.is_bf16 && case.dynamics != Dynamics::Ode {
                        // The stored value is a bf16, and the one that our value rounds to, unless ours lies within
                        // f32 rounding of the border between two.
                        assert_eq!(stored, case.round(stored), "{what}");
                        let (low, high) = (case.round(exact - tolerance), case.round(exact + tolerance));
                        assert!(
                            (low..=high).contains(&stored),
                            "{what}: {stored} is not the rounded {exact}"
                        );
                    } else {
                        // The original does not round the latents of its ODE step.
                        assert_near(exact, stored, tolerance, &what);
                    }
                }
            }
        }
    });
}

#[test]
fn the_replayed_log_probability_is_the_originals() {
    for_every_case(|case| {
        for (step, coefficients) in case.coefficients().iter().enumerate() {
            let (x, v, next) = (
                case.samples(step, "x"),
                case.samples(step, "v"),
                case.samples(step, "x_next"),
            );
            for (sample, expected) in case.get(&format!("{step}.log_prob")).into_iter().enumerate() {
                let ours = reference_log_prob(coefficients, &x[sample], &v[sample], &next[sample]).unwrap();
                if case.dynamics == Dynamics::Ode {
                    // The zero in the fixture is a placeholder: there is no log-probability.
                    assert_eq!((ours, expected), (None, 0.0));
                    continue;
                }
                // Each term rounds a few times at a size of about 1; the rounding of the mean, magnified by up to
                // |x| / noise = 50, averages out over 120 elements of either sign.
                let what = format!("{} step {step} sample {sample}", case.name);
                assert_near(ours.unwrap(), expected, 8.0 * UNIT, &what);
            }
        }
    });
}

#[test]
fn the_gradient_of_the_replayed_log_probability_is_the_originals() {
    for_every_case(|case| {
        if case.dynamics == Dynamics::Ode {
            return;
        }
        for (step, coefficients) in case.coefficients().iter().enumerate() {
            let (x, v, next) = (
                case.samples(step, "x"),
                case.samples(step, "v"),
                case.samples(step, "x_next"),
            );
            let expected = case.samples(step, "dlogp_dv");
            let largest = expected
                .iter()
                .flatten()
                .fold(0.0_f64, |most, value| most.max(value.abs()));
            for sample in 0..SAMPLES {
                let ours = reference_log_prob_gradient(coefficients, &x[sample], &v[sample], &next[sample]);
                let ours = ours.unwrap().unwrap();
                for element in 0..ELEMENTS {
                    // The difference x_next - mean carries the rounding of values up to 50 times its size, against
                    // the largest gradient of the step, which belongs to a difference of about three times that.
                    let what = format!("{} step {step} element {element}", case.name);
                    assert_near(
                        ours[element],
                        expected[sample][element],
                        16.0 * UNIT * largest,
                        &what,
                    );
                }
            }
        }
    });
}

#[test]
fn a_schedule_from_options_gives_the_originals_steps() {
    for_every_case(|case| {
        let options = ScheduleOptions {
            steps: 10,
            ends: SigmaEnds::default(),
            shift: SigmaShift::Static(3.0),
            dynamics: case.dynamics,
            noise_level: NoiseLevel::Constant(case.noise_level),
            window: SdeWindow::All,
            seed: 0,
        };
        let grid = SigmaGrid::from_sigmas(case.get("sigmas")).unwrap();
        let steps = Schedule::on_grid(grid, &options).unwrap().steps_for(0);
        assert_eq!(steps.len(), 10);
        assert_eq!(steps[..TRAINED_STEPS], case.coefficients());
        assert!(!steps[9].is_stochastic());
    });
}
