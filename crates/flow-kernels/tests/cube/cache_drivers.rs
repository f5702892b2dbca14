//! Decisions and results of whole rollouts under each kind of cache on a CubeCL device: those of the processor.

use crate::feature_cache::{cube, noise};
use flow_attention::CpuAttention;
use flow_attention::cube::PortableAttention;
use flow_cache::{
    Auto, CallCounters, DbCache, EasyCache, ExactReuse, FasterAttention, FasterGuidance, FirstBlock,
    Forecast, GuidanceCache, LayerCache, MagnitudeRatios, OnCall, Pyramid, Reused, Rules, SignalChanges,
    StackCache, TaylorSeer, TeaCache, Timesteps, VelocityCache,
};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::model::{Condition, LatentShape, ModelInput, Vocabulary};
use flow_core::{
    AttentionBackend, Backends, CallContext, FlowModel, InferencePass, Kernels, RowKey, Stage, TrajectoryId,
    Weights,
};
use flow_kernels::CpuKernels;
use flow_models::{Dit, DitConfig, Position};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A model, and the plan that computes everything.
struct Side {
    device: ComputeDevice,
    model: Dit,
    weights: Weights,
    plan: Backends,
}

impl Side {
    fn new(device: ComputeDevice, attention: Arc<dyn AttentionBackend>, kernels: Arc<dyn Kernels>) -> Self {
        let config = DitConfig {
            latent: LatentShape {
                channels: 3,
                frames: 1,
                height: 6,
                width: 10,
            },
            patch: 2,
            hidden: 24,
            layers: 3,
            heads: 3,
            mlp_ratio: 2.5,
            moe: None,
            vocabulary: Some(Vocabulary { size: 5, length: 1 }),
            qk_norm: true,
            position: Position::Rope,
        };
        let model = Dit::new(&config, &device).expect("a valid model");
        let mut weights = Weights::init(model.layout().clone(), 0, &device);
        for (index, spec) in model.layout().specs().iter().enumerate() {
            let offset = if spec.name.contains(".norm_") { 1.0 } else { 0.0 };
            let values = noise(spec.shape.iter().product(), 1000 + index as u64);
            let values = values.iter().map(|value| offset + 0.1 * value).collect();
            let set = weights.set(index, device.plain(values, &spec.shape));
            set.expect("a weight of its shape");
        }
        Self {
            device,
            model,
            weights,
            plan: Backends::new(attention, kernels),
        }
    }

    /// The final latents of some samples with guidance, in one batch of both branches.
    fn sample(&self, plan: Backends) -> Vec<f32> {
        const SAMPLES: usize = 3;
        let each = self.model.spec().latent.values();
        let trajectories: Vec<TrajectoryId> = [true, false]
            .into_iter()
            .flat_map(|conditional| {
                (0..SAMPLES as u64).map(move |sample| TrajectoryId { sample, conditional })
            })
            .collect();
        let tokens: Vec<i64> = (trajectories.iter())
            .map(|trajectory| {
                if trajectory.conditional {
                    1 + trajectory.sample as i64
                } else {
                    0
                }
            })
            .collect();
        let rollout = InferencePass::new(&self.weights, Arc::new(plan));
        let mut x = noise(SAMPLES * each, 5);
        for step in 0..STEPS {
            let sigma = 1.0 - f64::from(step) / f64::from(STEPS);
            let call = CallContext {
                step,
                steps: STEPS,
                sigma: Some(sigma),
                trajectories: trajectories.clone().into(),
                ..CallContext::single(Stage::Rollout)
            };
            let rows = trajectories.len();
            let input = ModelInput {
                x: self.device.tensor([x.clone(), x.clone()].concat(), [rows, each]),
                sigma: self.device.tensor(vec![sigma as f32; rows], [rows]),
                condition: Condition {
                    tokens: Some(self.device.int_tensor(tokens.clone(), [rows, 1])),
                    ..Condition::default()
                },
            };
            let key = |token: &i64| RowKey {
                condition: Some([*token as u8].into()),
                sigma: Some((sigma as f32).to_bits()),
                latent: None,
            };
            let exec = rollout.exec(call).with_rows(tokens.iter().map(key).collect());
            let velocity = exec.velocity(&self.model, input);
            let v = to_host(&velocity.into_dispatch());
            let (conditional, unconditional) = v.split_at(x.len());
            for ((x, c), u) in x.iter_mut().zip(conditional).zip(unconditional) {
                *x -= (u + 1.5 * (c - u)) / STEPS as f32;
            }
        }
        x
    }
}

const STEPS: u32 = 12;

fn sides() -> [Side; 2] {
    let (device, kernels) = cube();
    [
        Side::new(
            ComputeDevice::cpu(),
            Arc::new(CpuAttention),
            Arc::new(CpuKernels::default()),
        ),
        Side::new(device, Arc::new(PortableAttention::default()), Arc::new(kernels)),
    ]
}

type Place = Box<dyn Fn(Backends, &dyn Fn() -> OnCall) -> Backends>;

/// A cache of every kind, and what it puts into a plan.
fn caches() -> [(&'static str, Place); 8] {
    const EVERYWHERE: Timesteps = Timesteps {
        above: -1.0,
        below: 1001.0,
    };
    let rules = Rules {
        warmup_steps: 2,
        ..Rules::default()
    };
    let newton = Forecast::Newton { order: 2 };
    [
        (
            "first_block",
            Box::new(move |plan, count| Backends {
                stacks: Arc::new(StackCache::new(FirstBlock { threshold: 0.5 }, rules, count())),
                ..plan
            }),
        ),
        (
            "db_cache",
            Box::new(move |plan, count| {
                let policy = DbCache {
                    threshold: 0.5,
                    front_blocks: 1,
                    back_blocks: 1,
                    max_answered: 0,
                    mask: None,
                    forecast: newton,
                };
                Backends {
                    stacks: Arc::new(StackCache::new(policy, rules, count())),
                    ..plan
                }
            }),
        ),
        (
            "teacache",
            Box::new(move |plan, count| {
                let policy = TeaCache {
                    threshold: 0.5,
                    coefficients: vec![1.0, 0.0],
                    compare_conditioning: false,
                };
                Backends {
                    stacks: Arc::new(StackCache::new(policy, rules, count())),
                    ..plan
                }
            }),
        ),
        (
            "easycache",
            Box::new(move |plan, count| Backends {
                velocities: Arc::new(VelocityCache::new(EasyCache { threshold: 0.4 }, rules, count())),
                ..plan
            }),
        ),
        (
            "auto",
            Box::new(move |plan, count| {
                let policy = Auto {
                    target_error: 0.3,
                    factor: 1.0,
                    order: 1,
                };
                let rules = Rules {
                    warmup_steps: 3,
                    ..rules
                };
                Backends {
                    velocities: Arc::new(VelocityCache::new(policy, rules, count())),
                    ..plan
                }
            }),
        ),
        (
            "taylorseer",
            Box::new(move |plan, count| {
                let policy = TaylorSeer {
                    interval: 3,
                    first: 2,
                    last: None,
                    forecast: Forecast::Taylor { order: 1 },
                };
                Backends {
                    layers: Arc::new(LayerCache::new(policy, rules, count())),
                    ..plan
                }
            }),
        ),
        (
            "pyramid",
            Box::new(move |plan, count| {
                let policy = Pyramid {
                    spatial: 2,
                    temporal: 2,
                    cross: 2,
                    timesteps: EVERYWHERE,
                };
                Backends {
                    layers: Arc::new(LayerCache::new(policy, rules, count())),
                    ..plan
                }
            }),
        ),
        (
            "faster",
            Box::new(move |plan, count| {
                let attention = FasterAttention {
                    every: 2,
                    timesteps: EVERYWHERE,
                    weight: 0.5,
                };
                let guidance = FasterGuidance {
                    every: 3,
                    timesteps: EVERYWHERE,
                    low: (EVERYWHERE, 1.1),
                    high: (EVERYWHERE, 1.2),
                };
                Backends {
                    layers: Arc::new(LayerCache::new(attention, rules, count())),
                    velocities: Arc::new(GuidanceCache::new(guidance, rules, count())),
                    ..plan
                }
            }),
        ),
    ]
}

#[test]
fn every_kind_of_cache_decides_and_answers_on_the_device_as_on_the_processor() {
    let sides = sides();
    let exact = sides[0].sample(sides[0].plan.clone());
    for (name, place) in caches() {
        let [(expected, decided), (found, decided_there)] = sides.each_ref().map(|side| {
            let of_calls = Arc::new(Mutex::new(Vec::<CallCounters>::new()));
            let count = || -> OnCall {
                let of_calls = of_calls.clone();
                Box::new(move |counters: &CallCounters| {
                    of_calls.lock().expect("no panic").push(CallCounters {
                        predicted: Vec::new(),
                        ..counters.clone()
                    });
                })
            };
            let latents = side.sample(place(side.plan.clone(), &count));
            let of_calls = std::mem::take(&mut *of_calls.lock().expect("no panic"));
            (latents, of_calls)
        });
        assert_eq!(decided, decided_there, "{name}: decisions");
        let (answered, rows) = decided.iter().fold((0, 0), |(answered, rows), counters| {
            (answered + counters.answered, rows + counters.rows)
        });
        let length = |values: &[f32]| values.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let apart = |a: &[f32], b: &[f32]| {
            let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            length(&differences) / length(b)
        };
        let error = apart(&found, &expected);
        assert!(error < 1e-5, "{name}: latents {error:e} apart");
        assert!(
            0 < answered && answered < rows,
            "{name}: {answered} of {rows} rows answered"
        );
        assert!(
            apart(&expected, &exact) > 1e-3,
            "{name}: the cache changes something"
        );
    }
}

#[test]
fn exact_reuse_has_the_bits_of_computing_everything_on_the_device() {
    let [_, side] = sides();
    assert!(side.plan.is_row_independent());
    let expected = side.sample(side.plan.clone());
    let saved = Arc::new(AtomicU64::new(0));
    let counted = saved.clone();
    let reuse = Arc::new(ExactReuse::new(
        1 << 24,
        Box::new(move |reused| {
            if let Reused::Part { rows, computed, .. } = reused {
                counted.fetch_add(rows - computed, Ordering::Relaxed);
            }
        }),
    ));
    for _ in 0..2 {
        let found = side.sample(Backends {
            reuse: reuse.clone(),
            ..side.plan.clone()
        });
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&found), bits(&expected));
        assert!(saved.swap(0, Ordering::Relaxed) > 0);
    }
}

#[test]
fn what_calibration_measures_it_measures_on_the_device() {
    let [expected, found] = sides().map(|side| {
        let (ratios, signals) = (
            Arc::new(MagnitudeRatios::new()),
            Arc::new(SignalChanges::new(false)),
        );
        side.sample(Backends {
            stacks: ratios.clone(),
            ..side.plan.clone()
        });
        side.sample(Backends {
            stacks: signals.clone(),
            ..side.plan.clone()
        });
        let points = signals
            .points()
            .into_iter()
            .flat_map(|(signal, output)| [signal, output]);
        ratios.ratios().into_iter().chain(points).collect::<Vec<f64>>()
    });
    // A ratio per step; for every pair of steps two numbers for each of six trajectories.
    let steps = STEPS as usize;
    assert_eq!(
        (found.len(), expected.len()),
        (steps + (steps - 1) * 12, found.len())
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (found - expected).abs() < 1e-4,
            "{found}, on the processor {expected}"
        );
    }
}
