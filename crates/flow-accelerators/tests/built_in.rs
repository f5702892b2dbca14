//! What each built-in accelerator does, and what it refuses.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};
use flow_accel::{Acceleration, AcceleratorRegistry, Arrangement, Engagement, Params, Safety};
use flow_accelerators::AttentionBackendAccelerator;
use flow_attention::{AttentionRegistry, CpuAttention, ReferenceAttention};
use flow_core::device::ComputeDevice;
use flow_core::ops::Stash;
use flow_core::params::LayoutBuilder;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, CallContext, Init, Kernels,
    KeyValue, ModelSpec, ParamLayout, Refusal, RegionKind, Stage, Weights,
};
use flow_kernels::CpuKernels;
use serde_json::json;
use std::sync::Arc;

fn registry() -> AcceleratorRegistry {
    let mut backends = AttentionRegistry::default();
    flow_attention::register(&mut backends).expect("different names");
    let mut registry = AcceleratorRegistry::default();
    flow_accelerators::register(&mut registry, &backends).expect("different names");
    registry
}

/// Set up; no accelerator of ours looks at the weights.
fn at_work(arrangement: Arrangement) -> Acceleration {
    let weights = Weights::init(Arc::default(), 0, &ComputeDevice::cpu());
    arrangement.set_up(&weights).expect("nothing refuses it")
}

fn model(regions: &[RegionKind]) -> ModelSpec {
    ModelSpec {
        architecture: "little".into(),
        stacks: vec![("blocks".into(), 2)],
        regions: regions.to_vec(),
        ..ModelSpec::default()
    }
}

fn backend(name: &str) -> Params {
    Params::from([("backend".into(), json!(name))])
}

/// `shared` entries in force for a model with an attention region, or the errors.
fn shared(entries: &[(&str, &Params)], model: &ModelSpec) -> Result<Acceleration, String> {
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    registry()
        .arrangement(base, entries.iter().copied(), [], model)
        .map(at_work)
        .map_err(|errors| errors.iter().map(|error| format!("{error}\n")).collect())
}

#[test]
fn an_attention_backend_answers_in_rollout_and_training_and_counts_its_calls() {
    let with_attention = model(&[RegionKind::Attention]);
    let params = backend("REFERENCE");
    let acceleration = shared(&[("attention_backend", &params)], &with_attention).expect("it fits");
    assert_eq!(
        acceleration.to_string(),
        "shared: attention_backend (lossless); rollout: none"
    );
    assert!(acceleration.applied().all(|each| each.safety == Safety::Lossless));
    assert_eq!(acceleration.training().attention.name(), "reference");

    let device = ComputeDevice::cpu();
    let mut layout = ParamLayout::default();
    LayoutBuilder::new(&mut layout).param("weight", [1, 1], Init::Zeros);
    let weights = Weights::init(Arc::new(layout), 1, &device);
    let scope = acceleration.rollout(&weights).expect("it opens");
    let exec = scope.rollout().exec(CallContext::single(Stage::Rollout));
    let x: Tensor<4> = device.tensor(vec![1.0, -2.0, 0.5, 3.0], [1, 2, 1, 2]);
    for _ in 0..3 {
        exec.attention(x.clone(), x.clone(), x.clone());
    }
    let activity = acceleration.take_activity();
    assert_eq!(activity[0].engagements.of(Engagement::KernelReplaced), 3);
    assert_eq!(activity[0].why_idle, None);
    assert!(
        acceleration.take_activity()[0].why_idle.is_some(),
        "nothing since then"
    );
}

#[test]
fn an_attention_backend_without_effect_is_refused() {
    let params = backend("cpu");
    let same = shared(
        &[("attention_backend", &params)],
        &model(&[RegionKind::Attention]),
    );
    let text = same.expect_err("it is the plan's own");
    assert!(text.contains("`cpu` is the backend without it"), "{text}");

    let params = backend("reference");
    let without = shared(
        &[("attention_backend", &params)],
        &model(&[RegionKind::Mlp, RegionKind::AdaLn]),
    );
    let text = without.expect_err("there is no attention");
    assert!(
        text.contains("`little` announces no attention region (its regions: mlp, adaln)"),
        "{text}"
    );
}

/// A backend and kernels of a device that is not here.
#[derive(Debug)]
struct Elsewhere;

impl AttentionBackend for Elsewhere {
    fn name(&self) -> &str {
        "elsewhere"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability {
            devices: &["cuda"],
            dtypes: &[DType::BF16],
            bias: false,
        }
    }

    fn is_row_independent(&self) -> bool {
        false
    }

    fn kernel(&self, _: &AttentionCall) -> Result<String, Refusal> {
        Err(Refusal::because("the operands are in the host's memory"))
    }

    fn attend(
        &self,
        _: &dyn Stash,
        _: &DispatchTensor,
        _: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        Err(self.kernel(call).expect_err("always"))
    }
}

#[test]
fn an_attention_backend_of_another_device_or_type_is_refused_before_the_run() {
    let kernels = || Arc::new(CpuKernels::default());
    let here = Backends::new(Arc::new(CpuAttention), kernels());
    let refusal = AttentionBackendAccelerator::serves(&Elsewhere, &here).expect_err("it is elsewhere");
    assert_eq!(
        refusal.why,
        "`elsewhere` computes on cuda; the run computes on cpu"
    );
    let there = Backends::new(Arc::new(Elsewhere), kernels());
    let refusal = AttentionBackendAccelerator::serves(&Elsewhere, &there).expect_err("the run is in f32");
    assert_eq!(refusal.why, "`elsewhere` takes bf16; the run computes in f32");
    let help = refusal.help.expect("it says how to mend it");
    assert!(help.contains("device.dtype"), "{help}");
    assert!(AttentionBackendAccelerator::serves(&ReferenceAttention, &here).is_ok());
}

#[test]
fn parameters_are_typed_and_an_unknown_backend_lists_those_there_are() {
    let error = |name: &str, params: &Params| registry().build(name, params).expect_err("wrong").to_string();
    let text = error("attention_backend", &backend("flash_3"));
    // With features of `flow-attention` there are more.
    for part in ["available: cpu, ", "reference"] {
        assert!(text.contains(part), "{text}");
    }
    let text = error("attention_backend", &Params::from([("backend".into(), json!(3))]));
    assert!(
        text.contains("`params.backend` must be a text, but is `3`"),
        "{text}"
    );
    let mut extra = backend("cpu");
    extra.insert("causal".into(), json!(true));
    assert!(error("attention_backend", &extra).contains("no key `causal` (allowed: backend)"));
}

fn fused(mode: &str) -> Params {
    Params::from([("mode".into(), json!(mode))])
}

#[test]
fn fused_kernels_compute_the_blocks_or_everything() {
    let blocks = model(&[RegionKind::Mlp]);
    let params = fused("regional");
    let regional = shared(&[("fused_kernels", &params)], &blocks).expect("it fits");
    assert_eq!(
        regional.to_string(),
        "shared: fused_kernels (lossless); rollout: none"
    );
    let plan = regional.training();
    assert!(plan.describe().contains("kernels cpu (in blocks cpu-fused)"));
    let params = fused("full");
    let full = shared(&[("Fused_Kernels", &params)], &blocks).expect("it fits");
    assert!(full.training().describe().contains("kernels cpu-fused,"));
}

#[test]
fn fused_kernels_without_a_place_or_without_effect_are_refused() {
    let without_blocks = ModelSpec {
        stacks: vec![],
        ..model(&[])
    };
    let params = fused("regional");
    let text = shared(&[("fused_kernels", &params)], &without_blocks).expect_err("no blocks");
    assert!(text.contains("`little` declares no repeated blocks"), "{text}");
    let params = fused("full");
    assert!(shared(&[("fused_kernels", &params)], &without_blocks).is_ok());

    let kernels = CpuKernels::default()
        .fused(Arc::new(|| {}))
        .expect("not fused yet");
    let base = Backends::new(Arc::new(CpuAttention), kernels);
    let entries = [("fused_kernels", &params)];
    let again = registry().arrangement(base, entries, [], &model(&[]));
    let text = again.expect_err("they are fused")[0].to_string();
    assert!(text.contains("`cpu-fused` have no fused form"), "{text}");

    let error = |params: Params| {
        registry()
            .build("fused_kernels", &params)
            .expect_err("wrong")
            .to_string()
    };
    assert!(error(Params::new()).contains("`params` lacks `mode`"));
    assert!(
        error(fused("most")).contains("`params.mode` cannot be `most` (allowed: \"regional\", \"full\")")
    );
}

#[test]
fn fusion_says_that_only_other_builds_have_it() {
    let none = Params::new();
    let text = shared(&[("fusion", &none)], &model(&[])).expect_err("no backend has it");
    assert!(text.contains("CubeCL backends only"), "{text}");
    let registry = registry();
    let floors: Vec<&str> = registry
        .kinds()
        .filter(|kind| kind.floor().is_some())
        .map(|kind| kind.name())
        .collect();
    assert_eq!(floors, ["fused_kernels", "fusion", "graph_capture"]);
}

#[test]
fn graph_capture_says_that_the_processor_cannot_and_must_come_last() {
    let (params, none) = (backend("reference"), Params::new());
    let text = shared(
        &[("graph_capture", &none), ("attention_backend", &params)],
        &model(&[RegionKind::Attention]),
    )
    .expect_err("neither fits");
    assert!(text.contains("must stand after `attention_backend`"), "{text}");
    assert!(text.contains("has no graphs to record"), "{text}");
}

#[test]
fn a_feature_cache_is_new_in_every_rollout_and_says_by_its_scope_what_is_exact() {
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let of = |params: serde_json::Value, model: &ModelSpec| {
        let params: Params = serde_json::from_value(params).expect("an object");
        registry()
            .arrangement(base.clone(), [], [("feature_cache", &params)], model)
            .map(at_work)
            .map_err(|errors| errors[0].to_string())
    };
    let deep = model(&[RegionKind::Attention]);
    let plain = of(json!({ "policy": "first_block" }), &deep).expect("it fits");
    assert!(!plain.is_exact_on_policy());
    assert_eq!(plain.to_string(), "shared: none; rollout: feature_cache (lossy)");
    assert_eq!(
        plain.training().stacks.name(),
        "run-all",
        "training computes every block"
    );
    let windowed = of(
        json!({ "policy": "first_block", "scope": "outside_sde_window" }),
        &deep,
    )
    .expect("it fits");
    assert!(windowed.is_exact_on_policy());

    let shallow = ModelSpec {
        stacks: vec![("blocks".into(), 1)],
        ..deep.clone()
    };
    let text = of(json!({ "policy": "first_block" }), &shallow).expect_err("nothing to leave out");
    assert!(text.contains("at least two blocks"), "{text}");
    for (params, said) in [
        (json!({}), "`params` must say which `policy` it is"),
        (
            json!({ "policy": "fora" }),
            "`params.policy` cannot be `fora` (allowed: \"auto\", \"first_block\", ",
        ),
        (
            json!({ "policy": "first_block", "treshold": 0.1 }),
            "no key `treshold` (did you mean `threshold`?)",
        ),
        (
            json!({ "policy": "first_block", "threshold": 0.0 }),
            "must be above 0",
        ),
    ] {
        let text = of(params, &deep).expect_err("it does not fit");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn names_known_from_elsewhere_say_what_to_write() {
    for name in ["cache_dit", "Diffusers_Cache", "torch_compile"] {
        let text = registry()
            .build(name, &Params::new())
            .expect_err("it is not ours")
            .to_string();
        assert!(text.contains("there is no accelerator"), "{text}");
        assert!(
            text.contains("fused_kernels") || text.contains("feature_cache"),
            "{text}"
        );
    }
}

#[test]
fn every_accelerator_has_a_summary_and_a_closed_schema() {
    let registry = registry();
    let names: Vec<&str> = registry.kinds().map(|kind| kind.name()).collect();
    assert_eq!(
        names,
        [
            "attention_backend",
            "exact_reuse",
            "feature_cache",
            "fused_kernels",
            "fusion",
            "graph_capture",
            "low_precision"
        ]
    );
    for kind in registry.kinds() {
        assert!(!kind.summary().is_empty());
        let schema = kind.schema().as_value();
        let closed = |schema: &serde_json::Value| {
            ["additionalProperties", "unevaluatedProperties"]
                .iter()
                .any(|key| schema[key] == json!(false))
        };
        let variants = schema["oneOf"].as_array();
        let all = variants.map_or(closed(schema), |variants| variants.iter().all(closed));
        assert!(all, "{}: {schema:#}", kind.name());
    }
}

#[test]
fn products_in_fp8_take_weights_in_fp8_alone_and_gradients_in_fp8_such_products() {
    let with = |compute: &str, format: &str, data_gradient: Option<&str>| {
        let mut params = Params::from([
            ("compute".into(), json!(compute)),
            ("format".into(), json!(format)),
        ]);
        if let Some(precision) = data_gradient {
            params.insert("data_gradient".into(), json!(precision));
        }
        let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
        let arranged = registry().arrangement(base, [("low_precision", &params)], [], &model(&[]));
        arranged.map(|_| ()).map_err(|errors| {
            errors
                .iter()
                .map(|error| format!("{error}\n"))
                .collect::<String>()
        })
    };
    let of = |compute: &str, format: &str| with(compute, format, None);
    for data_gradient in ["run", "fp8"] {
        assert!(with("fp8", "fp8", Some(data_gradient)).is_ok(), "{data_gradient}");
    }
    assert!(with("storage", "nf4", Some("run")).is_ok());
    let text = with("storage", "fp8", Some("fp8")).expect_err("no product of codes");
    assert!(
        text.contains("computes no product in FP8") && text.contains("remove `data_gradient`"),
        "{text}"
    );
    let text = with("fp8", "int8", Some("fp8")).expect_err("other codes");
    assert!(text.contains("stores other codes"), "{text}");
    let text = with("fp8", "fp8", Some("bf16")).expect_err("no such value");
    assert!(text.contains("run") && text.contains("fp8"), "{text}");
    assert!(of("fp8", "fp8").is_ok());
    for format in ["int8", "nf4"] {
        assert!(of("storage", format).is_ok(), "{format}");
        let text = of("fp8", format).expect_err("other codes");
        assert!(
            text.contains("stores other codes") && text.contains("format = \"fp8\""),
            "{text}"
        );
    }
}

#[test]
fn low_precision_says_where_nothing_is_stored_so() {
    let params = Params::from([
        ("compute".into(), json!("storage")),
        ("format".into(), json!("fp8")),
    ]);
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let arrangement = registry()
        .arrangement(base, [("low_precision", &params)], [], &model(&[]))
        .unwrap_or_else(|errors| panic!("{errors:?}"));
    let weights = Weights::init(Arc::default(), 0, &ComputeDevice::cpu());
    let refused = arrangement.set_up(&weights).map(|_| ());
    let text = refused.expect_err("there is no weight").to_string();
    assert!(text.contains("no weight of the run is stored in fp8"), "{text}");

    let without_blocks = ModelSpec {
        stacks: Vec::new(),
        ..model(&[])
    };
    let text = shared(&[("low_precision", &params)], &without_blocks).expect_err("there is no block");
    assert!(text.contains("declares no repeated blocks"), "{text}");
}
