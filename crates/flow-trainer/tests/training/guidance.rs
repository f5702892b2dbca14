//! Guidance of Qwen-Image: rollouts and losses rescale alike, as its pipeline does.

use crate::support::{BASE, DIT, RunTo, Visit, environment, registries, with_parts};
use burn::tensor::Tensor;
use flow_config::Config;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_core::{CallContext, Condition, InferencePass, ParamKind, Stage, TrainingPass, cpu};
use flow_pipeline::GuidanceRule;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::policy::{Conditions, Policy};
use flow_trainer::trainer::Parts;

/// Its latents are those of the digits: 16 tokens of 4 values.
const QWEN_IMAGE: &str = r#"[model]
architecture = "qwen-image"
[model.qwen-image]
latent_height = 8
latent_width = 8
in_channels = 4
num_layers = 2
attention_head_dim = 12
num_attention_heads = 2
joint_attention_dim = 10
axes_dims_rope = [4, 4, 4]
"#;

const SCALE: f32 = 2.5;

fn config() -> Config {
    assert!(BASE.contains(DIT), "the base config has changed");
    let scale = [format!("sampling.guidance_scale={SCALE}")];
    test_catalog::parse_named("test.toml", &BASE.replace(DIT, QWEN_IMAGE), &scale)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

fn numbers(count: usize, at: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(5, Purpose::Test).at(at, 0).fill_normal(&mut values);
    values
}

/// Where the four values of a token lie, of each token of an 8 by 8 latent.
fn tokens() -> impl Iterator<Item = [usize; 4]> {
    let corners = (0..8)
        .step_by(2)
        .flat_map(|row| (0..8).step_by(2).map(move |column| row * 8 + column));
    corners.map(|corner| [corner, corner + 1, corner + 8, corner + 9])
}

fn norm(values: [f64; 4]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// The guided velocity of texts of 5 and 3 tokens, in a rollout and in training, and those of both branches alone.
struct Velocities;

impl Visit for Velocities {
    type Output = [Vec<f32>; 4];

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Self::Output {
        let policy = &parts.sampler.policy;
        assert!(matches!(
            policy.guidance,
            GuidanceRule::NormPreserving { patch: 2, .. }
        ));
        let device = ComputeDevice::cpu();
        let text = |tokens: usize, at: u64| Condition {
            text: Some(device.tensor(numbers(2 * tokens * 10, at), [2, tokens, 10])),
            ..Condition::default()
        };
        let weights = &parts.state.weights.current;
        let inputs = || -> (Tensor<2>, Tensor<1>) {
            (
                device.tensor(numbers(2 * 64, 3), [2, 64]),
                device.tensor(vec![0.8, 0.3], [2]),
            )
        };
        let of = |exec: &flow_core::Exec<'_>, scale, conditional, unconditional| {
            let (x, sigma) = inputs();
            let conditions = Conditions {
                conditional,
                unconditional,
                keys: None,
            };
            let policy = Policy::new(policy.model.clone(), scale);
            let velocity = policy.velocity(exec, x, sigma, &conditions);
            cpu::to_host(&plain(&velocity.into_dispatch()))
        };
        let plan = crate::support::environment(&registries()).plan;
        let rollout = InferencePass::new(weights, plan.clone());
        let exec = rollout.exec(CallContext::single(Stage::Rollout));
        let trained = weights.layout().specs().iter();
        let trained: Vec<bool> = trained.map(|spec| spec.kind == ParamKind::Base).collect();
        let training = TrainingPass::new(weights, plan, trained.into());
        [
            of(&exec, SCALE, text(5, 1), Some(text(3, 2))),
            of(
                &training.exec(CallContext::single(Stage::Training)),
                SCALE,
                text(5, 1),
                Some(text(3, 2)),
            ),
            of(&exec, 1.0, text(5, 1), None),
            of(&exec, 1.0, text(3, 2), None),
        ]
    }
}

#[test]
fn a_guided_token_of_qwen_image_is_as_long_as_the_conditional_one_in_rollout_and_loss() {
    let registries = registries();
    let [rollout, training, conditional, unconditional] =
        with_parts(&config(), &environment(&registries), Velocities);
    assert_eq!(rollout, training, "to the bit");
    let mut rescaled = 0;
    for (sample, token) in (0..2).flat_map(|sample| tokens().map(move |token| (sample, token))) {
        let of = |values: &[f32]| token.map(|at| f64::from(values[sample * 64 + at]));
        let (c, u, found) = (of(&conditional), of(&unconditional), of(&rollout));
        let combined: [f64; 4] = std::array::from_fn(|at| u[at] + f64::from(SCALE) * (c[at] - u[at]));
        let ratio = norm(c) / norm(combined);
        rescaled += usize::from((ratio - 1.0).abs() > 0.01);
        for (found, combined) in found.iter().zip(combined) {
            assert!(
                (found - combined * ratio).abs() < 1e-4 * norm(c),
                "{found} {}",
                combined * ratio
            );
        }
    }
    assert!(rescaled > 16, "the rescale is seen in {rescaled} of 32 tokens");
}

#[test]
fn a_guided_run_of_qwen_image_has_ratios_of_one_and_the_same_bits_twice() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = |name: &str| {
        let root = root.path().join(name);
        let run = RunTo {
            root: &root,
            resume: false,
            until: 2,
        };
        with_parts(&config(), &environment(&registries), run).unwrap_or_else(|error| panic!("{error}"))
    };
    let (one, two) = (run("one"), run("two"));
    assert_eq!(one, two);
    let deviation = "\"on_policy/max_ratio_deviation\":0.0";
    assert_eq!(one.metrics.matches(deviation).count(), 2, "{}", one.metrics);
}
