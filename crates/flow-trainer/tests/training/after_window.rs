//! Steps of a solver of second order behind the window, against the host in f64 from the velocities of a real rollout.

use crate::losses::{SITE, host};
use crate::support::{Visit, config, environment, registries, with_parts};
use flow_core::InferencePass;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::rollout::{NoiseSource, SampleRequest};
use flow_trainer::trainer::Parts;

struct CheckTrajectory;

impl Visit for CheckTrajectory {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) {
        let parts = parts.set_up().expect("no accelerator refuses");
        let weights = parts.state.weights.current.clone();
        let rollout = InferencePass::new(&weights, parts.training_plan().clone());
        let steps = parts.schedule.steps_for(0);
        // Steps 0 and 1 are random; of the 9 points from step 1 on 6 are left.
        assert_eq!((steps.len(), parts.schedule.steps_saved(0)), (7, Some(3)));
        let samples = [10, 11, 12];
        let request = SampleRequest {
            site: SITE,
            source: NoiseSource::Rollout,
            samples: &samples,
            starts: &samples,
            conditions: parts.conditioner.conditions(parts.prompts.iter().take(3)),
            steps: &steps,
        };
        let mut velocities = Vec::new();
        let found = parts.sampler.run(&rollout, request, |stepped| {
            velocities.push(host(stepped.velocity))
        });
        assert_eq!(found.records.len(), 2);

        // `x' = (s' / s) x - alpha' (e^-h - 1) D` in the terms of DPM-Solver++, from where the window ends.
        let lambda = |sigma: f64| ((1.0 - sigma) / sigma).ln();
        let mut x = host(&found.records[1].x_next);
        let mut before: Option<(f64, Vec<f64>)> = None;
        for (step, velocity) in steps[2..].iter().zip(&velocities[2..]) {
            let (sigma, next) = (step.sigma, step.sigma_next);
            let image: Vec<f64> = (x.iter().zip(velocity)).map(|(x, v)| x - sigma * v).collect();
            let target: Vec<f64> = match &before {
                Some((sigma_before, image_before)) if next > 0.0 => {
                    let ratio = (lambda(sigma) - lambda(*sigma_before)) / (lambda(next) - lambda(sigma));
                    let pairs = image.iter().zip(image_before);
                    pairs
                        .map(|(now, before)| now + (now - before) / (2.0 * ratio))
                        .collect()
                }
                _ => image.clone(),
            };
            let decay = if next > 0.0 {
                (lambda(sigma) - lambda(next)).exp()
            } else {
                0.0
            };
            let moved = x.iter().zip(&target);
            x = moved
                .map(|(x, target)| next / sigma * x - (1.0 - next) * (decay - 1.0) * target)
                .collect();
            before = Some((sigma, image));
        }
        let clean = host(&found.clean);
        for (index, (found, expected)) in clean.iter().zip(&x).enumerate() {
            assert!(
                (found - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "value {index}: {found} and {expected}"
            );
        }
    }
}

#[test]
fn a_rollout_ends_where_dpm_solver_leads() {
    let registries = registries();
    let config = config(&[
        "scheduler.steps=10",
        "scheduler.shift={ kind = \"static\", value = 2.0 }",
        "scheduler.window={ kind = \"list\", steps = [0, 1] }",
        "scheduler.after_window={ kind = \"dpm-solver\", share = 0.7 }",
    ]);
    with_parts(&config, &environment(&registries), CheckTrajectory);
}
