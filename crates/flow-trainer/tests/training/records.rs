//! Runs that learn from records of the data set: their losses against host computations in f64, and what they leave.

use crate::loss_pass::{expect_gradients, loss_in};
use crate::losses::{SITE, host, in_context, mean, squared};
use crate::support::{Visit, config, environment, expect_same_when_resumed, registries, with_trainer};
use burn::tensor::Tensor;
use flow_config::Config;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec};
use flow_report::{Manifest, OnExists, RunDirectory, Tile};
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint};
use flow_trainer::observer::Silent;
use flow_trainer::policy::Policy;
use std::fmt::Write;
use std::path::Path;

const SEED: u64 = 9;
const DRAW: u32 = 3;
const POSITION: LossPoint = LossPoint::EachRow {
    seed: SEED,
    draw: DRAW,
};
const BETA: f64 = 3.0;

/// SFT on the digits; guided, which its loss must not be.
const SFT: [&str; 5] = [
    "algorithm={ kind = \"sft\" }",
    "sampling.prompts_per_step=12",
    "sampling.group_size=1",
    "sampling.guidance_scale=2.0",
    "evaluation.guidance_scale=1.5",
];

/// What a config says of a run on six pairs, whose pictures lie in `folder`: of two the one of the brightness that the prompt asks for is
/// liked better.
pub fn preference_overrides(folder: &Path) -> Vec<String> {
    let mut lines = String::new();
    for (index, (tone, number)) in [
        ("dark", "one"),
        ("dark", "two"),
        ("dark", "three"),
        ("bright", "one"),
        ("bright", "two"),
        ("bright", "three"),
    ]
    .into_iter()
    .enumerate()
    {
        let (dark, bright) = (-0.8 + 0.01 * index as f32, 0.6 + 0.01 * index as f32);
        let (chosen, rejected) = if tone == "dark" {
            (dark, bright)
        } else {
            (bright, dark)
        };
        for (name, grey) in [("chosen", chosen), ("rejected", rejected)] {
            let tile = Tile::new(3, 8, 8, vec![grey; 3 * 64]).expect("as many values");
            let picture = tile.picture(1).expect("it is small");
            std::fs::write(folder.join(format!("{name}-{index}.png")), picture.png).expect("written");
        }
        writeln!(
            lines,
            "{{\"prompt\": \"{tone} {number}\", \"chosen\": \"chosen-{index}.png\", \"rejected\": \"rejected-{index}.png\"}}"
        )
        .expect("a string takes all");
    }
    let list = folder.join("pairs.jsonl");
    std::fs::write(&list, lines).expect("written");
    vec![
        format!("algorithm={{ kind = \"offline-dpo\", beta = {BETA} }}"),
        format!(
            "data={{ kind = \"preferences\", path = '{}', width = 8, height = 8, grey = true, words = true }}",
            list.display()
        ),
        "model.dit.conditioning={ kind = \"tokens\", vocabulary = 7, max_tokens = 2 }".into(),
        "rewards=[{ kind = \"jpeg-compressibility\" }]".into(),
        "sampling.prompts_per_step=6".into(),
        "sampling.group_size=2".into(),
        "sampling.micro_batch=4".into(),
    ]
}

/// The config of a run on those pairs.
fn preferences(folder: &Path) -> Config {
    let overrides = preference_overrides(folder);
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    config(&overrides)
}

/// The noise level of a row, as the formulas have it: logit-normal, without a shift, in `[0, 0.99]`.
fn sigma(address: u64) -> f64 {
    let z = Stream::new(SEED, Purpose::Timesteps).at(address, DRAW).normal();
    1.0 - 0.99 * (1.0 / (1.0 + (-z).exp())).clamp(0.01, 1.0 - 1e-6)
}

/// What a loss and its gradient are by the formulas: the value, and the factor of each row's `mean((v - target)²)`.
type Formula = fn(errors: &[f64], of_reference: &[f64]) -> (f64, Vec<f64>);

/// Where a loss is taken: `[4, N]`, and the noise levels of the rows, `[4]`.
struct Point {
    x: Tensor<2>,
    target: Tensor<2>,
    sigma: Tensor<1>,
}

impl Point {
    /// With the times of the first of so many rows.
    fn of(context: &LossContext<'_, '_>, rows_of_record: u64) -> Self {
        let addresses = context.batch.samples.iter();
        let sigmas = addresses.map(|sample| sigma(sample - sample % rows_of_record) as f32);
        let sigma: Tensor<1> = context.device.tensor(sigmas.collect(), [4]);
        let sigma_b1: Tensor<2> = sigma.clone().unsqueeze_dim(1);
        let noise = Tensor::<2>::from_dispatch(context.noise.clone().expect("it was drawn"));
        let clean = Tensor::<2>::from_dispatch(context.batch.clean.clone());
        Self {
            x: clean.clone() + (noise.clone() - clean.clone()) * sigma_b1,
            target: noise - clean,
            sigma,
        }
    }

    /// Without guidance.
    fn velocity<'w>(
        &self,
        context: &LossContext<'_, '_>,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        let policy = Policy {
            guidance_scale: 1.0,
            ..context.policy.clone()
        };
        let exec = open(policy.call(SITE, &context.batch.samples));
        let (x, sigma) = (self.x.clone(), self.sigma.clone());
        policy.velocity(&exec, x, sigma, &context.batch.conditions)
    }

    /// `mean((v - target)²)` per row, in f64.
    fn errors(&self, v: &Tensor<2>) -> Vec<f64> {
        let values = |tensor: &Tensor<2>| host(&plain(&tensor.clone().into_dispatch()));
        squared(&values(v), &values(&self.target))
    }
}

/// Rows whose noise and time are those of the first of so many.
struct CheckLoss {
    rows_of_record: u64,
    formula: Formula,
}

impl Visit for CheckLoss {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) {
        let mut trainer = trainer.set_up().expect("no accelerator refuses");
        in_context(&mut trainer, POSITION, |algorithm, context, [pass, again]| {
            let point = Point::of(context, self.rows_of_record);
            let v = point.velocity(context, |call| again.exec(call));
            // Those that sampled stand for the reference.
            let of_reference = point.velocity(context, |call| context.sampling.exec(call));
            let (expected, factors) = (self.formula)(&point.errors(&v), &point.errors(&of_reference));

            let (loss, gradients) = loss_in(pass, context, |in_pass| algorithm.loss(in_pass, POSITION));
            assert!(
                (loss - expected).abs() < 5e-5 * expected.abs().max(1e-2),
                "{loss} and {expected}"
            );

            let difference = v - point.target.clone();
            let squares: Tensor<1> = (difference.clone() * difference).mean_dim(1).squeeze_dim(1);
            let factors = factors.iter().map(|factor| *factor as f32).collect();
            let factors: Tensor<1> = context.device.tensor(factors, [4]);
            let wanted = again.gradients(&(squares * factors).sum_dim(0));
            expect_gradients(&gradients, &wanted, (1e-6, 1e-3));
        });
    }
}

#[test]
fn sft_is_the_mean_squared_error_of_each_row_at_its_own_time_without_guidance() {
    let registries = registries();
    let check = CheckLoss {
        rows_of_record: 1,
        formula: |errors, _| (mean(errors.iter().copied()), vec![0.25; 4]),
    };
    with_trainer(&config(&SFT), &environment(&registries), check);
}

#[test]
fn offline_dpo_compares_the_rows_of_a_pair_at_one_time() {
    let registries = registries();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let check = CheckLoss {
        rows_of_record: 2,
        formula: |errors, of_reference| {
            let excess: Vec<f64> = errors.iter().zip(of_reference).map(|(e, r)| e - r).collect();
            let z = |pair: usize| -(BETA / 2.0) * (excess[2 * pair] - excess[2 * pair + 1]);
            let loss = mean((0..2).map(|pair| (-z(pair)).exp().ln_1p()));
            let slope = |row: usize| {
                let of_better = BETA / 2.0 / (1.0 + z(row / 2).exp()) / 2.0;
                if row.is_multiple_of(2) {
                    of_better
                } else {
                    -of_better
                }
            };
            (loss, (0..4).map(slope).collect())
        },
    };
    with_trainer(&preferences(folder.path()), &environment(&registries), check);
}

/// The values of a metric in the iterations of a run.
struct Logged<'a> {
    root: &'a Path,
    key: &'a str,
    iterations: u64,
}

impl Visit for Logged<'_> {
    type Output = Vec<f64>;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.settings.iterations = self.iterations;
        let directory = RunDirectory::open(self.root, "run", OnExists::Error).expect("a directory");
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
        let mut trainer = trainer.start(directory, &manifest).expect("it starts");
        trainer.train(&mut Silent).expect("it ends");
        let metrics = trainer.directory().read_metrics().expect("they are there");
        assert!(metrics.series("train", "reward").is_empty(), "nothing is scored");
        let summary = trainer.directory().read_summary().expect("it can be read");
        assert!(summary.expect("it is there").trained.is_none());
        let values = metrics.series("train", self.key).into_iter();
        values.map(|(_, value)| value).collect()
    }
}

fn logged(config: &Config, key: &str, iterations: u64) -> Vec<f64> {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    let logged = Logged {
        root: root.path(),
        key,
        iterations,
    };
    with_trainer(config, &environment(&registries), logged)
}

#[test]
fn sft_learns_the_digits() {
    let mut overrides = SFT.to_vec();
    overrides.extend([
        "evaluation.every=0",
        "checkpoints.every=0",
        "sampling.prompts_per_step=48",
        "sampling.micro_batch=24",
        "optimizer.learning_rate=3e-3",
    ]);
    let losses = logged(&config(&overrides), "loss", 40);
    let part = |values: &[f64]| mean(values.iter().copied());
    let (first, last) = (part(&losses[..5]), part(&losses[35..]));
    assert!(last < 0.8 * first, "{first} and {last}");
}

#[test]
fn offline_dpo_begins_at_log_two_and_learns_to_prefer() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut config = preferences(folder.path());
    config.evaluation.every = 0;
    config.optimizer.gradient_accumulation = 0;
    config.optimizer.learning_rate = 5e-3;
    let losses = logged(&config, "loss", 40);
    assert!((losses[0] - std::f64::consts::LN_2).abs() < 1e-6, "{losses:?}");
    let last = mean(losses[35..].iter().copied());
    assert!(last < 0.6, "{losses:?}");
}

#[test]
fn runs_on_records_resume_bit_for_bit() {
    let registries = registries();
    let environment = environment(&registries);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut sft = SFT.to_vec();
    sft.extend([
        "ema.enabled=true",
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_q\"]",
    ]);
    for config in [config(&sft), preferences(folder.path())] {
        expect_same_when_resumed(&config, &environment, &config.algorithm.kind);
    }
}

#[test]
fn sft_needs_no_reward_where_nothing_is_evaluated() {
    let mut overrides = SFT.to_vec();
    overrides.extend(["rewards=[]", "evaluation.every=0"]);
    let losses = logged(&config(&overrides), "loss", 2);
    assert!(
        losses.len() == 2 && losses.iter().all(|loss| loss.is_finite()),
        "{losses:?}"
    );
}

/// Why a config that names other data is refused.
fn refused(overrides: &[&str]) -> String {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(overrides);
    let algorithm = flow_trainer::setup::algorithm(&config, environment.plugins, 16).expect("known");
    match flow_trainer::setup::trainer(&config, &environment, algorithm) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{overrides:?} is not refused"),
    }
}

#[test]
fn data_without_the_records_are_refused_with_what_to_set() {
    let pairs = refused(&["algorithm={ kind = \"offline-dpo\" }", "sampling.group_size=2"]);
    assert!(
        pairs.contains("`digits` has none") && pairs.contains("data.kind = \"preferences\""),
        "{pairs}"
    );
}
