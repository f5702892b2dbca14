//! What is said of a GPU's kernels before a run, and whether it is what those kernels say themselves.

use flow_attention_cube::problem::Problem;
use flow_config::Diagnostic;
use flow_core::device::ComputeDevice;
use flow_cube::wgmma::OperandType;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan};
use flow_matmul_cube::problem::{Layout, Matmul};
use flow_models::ModelRegistry;
use flow_validate::kernels::{attends_on_tensor_cores, multiplies_on_tensor_cores};
use flow_validate::{Capabilities, Gpu, Machine, Question, TrainerKind, validate};
use std::collections::BTreeSet;
use test_catalog::parse_str;

const H100: (&str, (u32, u32)) = ("H100", (9, 0));
const A100: (&str, (u32, u32)) = ("A100", (8, 0));
const T4: (&str, (u32, u32)) = ("T4", (7, 5));

/// What is found about a run on `gpu` of a DiT with the given `[model.dit]`.
fn found(gpu: Option<(&str, (u32, u32))>, dit: &str, more: &str) -> Vec<Diagnostic> {
    let text = format!("config_version = 1\n{more}\n[model.dit]\n{dit}\n");
    let config = parse_str(&text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).expect("a new registry");
    let settings = config.model.dimensions();
    let settings = serde_json::json!({
        "latent": { "channels": 1, "height": 8, "width": 8 },
        "patch": 2,
        "hidden": settings["hidden"],
        "layers": 1,
        "heads": settings["heads"],
        "vocabulary": { "size": 4, "length": 1 },
    });
    let model = models
        .build("dit", &settings, &ComputeDevice::cpu())
        .expect("a model");
    let machine = Machine {
        devices: vec!["cpu", "cuda"],
        bf16: Ok(()),
        checkpointing: vec!["none"],
        gpu: gpu.map(|(name, compute_capability)| Gpu {
            name: name.into(),
            compute_capability,
        }),
        runtime_features: BTreeSet::new(),
        processors: Some(2),
        memory_bytes: None,
    };
    let found = validate(&Question {
        config: &config,
        catalog: &test_catalog::CATALOG,
        accelerators: &Default::default(),
        plan: None,
        model: Some(Capabilities {
            spec: model.spec(),
            layout: model.layout(),
            trained: 1,
        }),
        sigmas: &[],
        trainer: &TrainerKind::of(&config, &test_catalog::CATALOG),
        machine: &machine,
        companions: None,
        ranks: 1,
        training: false,
    });
    let of_kernels = |one: &Diagnostic| one.code.ends_with("-kernel") || one.code.ends_with("-kernels");
    found.into_iter().filter(of_kernels).collect()
}

fn codes_and_paths(found: &[Diagnostic]) -> Vec<(&str, &str)> {
    found.iter().map(|one| (one.code, one.path.as_str())).collect()
}

const CUDA: &str = "[device]\nkind = \"cuda\"\ndtype = \"bf16\"";
const WIDE: &str = "hidden = 128\nheads = 2";

#[test]
fn every_slow_path_of_a_gpu_is_named_and_the_fast_one_is_not() {
    let slow = |path| vec![("device::slow-kernels", path)];
    let f32 = CUDA.replace("bf16", "f32");
    assert_eq!(codes_and_paths(&found(None, WIDE, &f32)), slow("device.dtype"));
    assert_eq!(codes_and_paths(&found(Some(T4), WIDE, CUDA)), slow("device.kind"));
    let processor = "[device]\nkind = \"cpu\"";
    for (gpu, dit, more) in [
        (Some(H100), WIDE, processor),
        (None, "hidden = 36\nheads = 3", processor),
    ] {
        assert_eq!(found(gpu, dit, more), []);
    }
    let odd = found(Some(H100), "hidden = 96\nheads = 8", CUDA);
    let heads: Vec<_> = odd.iter().filter(|one| one.path == "model.dit.heads").collect();
    let [heads] = heads[..] else { panic!("{odd:#?}") };
    assert!(
        heads.message.contains("heads of 12 channels"),
        "{}",
        heads.message
    );
    let lora = format!("{CUDA}\n[lora]\nrank = 4\n[model]\nfinetune = \"lora\"");
    assert!(
        found(Some(A100), WIDE, &lora)
            .iter()
            .any(|one| one.path == "lora.rank")
    );
    assert!(
        !found(Some(A100), WIDE, CUDA)
            .iter()
            .any(|one| one.path == "lora.rank")
    );
}

#[test]
fn attention_that_no_kernel_computes_is_an_error_before_anything_starts() {
    let wide = found(None, "hidden = 1024\nheads = 2", CUDA);
    assert!(
        wide.iter()
            .any(|one| one.code == "device::no-kernel" && one.message.contains("512 channels")),
        "{wide:#?}"
    );
    let backend = |name: &str| {
        format!(
            "{CUDA}\n[[acceleration.shared]]\nname = \"Attention-Backend\"\nparams = {{ backend = \"{name}\" }}"
        )
    };
    let path = "acceleration.shared.0.params.backend";
    let declined = |gpu, name, dit| {
        let found = found(Some(gpu), dit, &backend(name));
        found
            .into_iter()
            .find(|one| one.path == path)
            .map(|one| one.message)
    };
    for (gpu, name, dit, why) in [
        (A100, "wgmma", WIDE, "compute capability 9.0"),
        (T4, "mma", WIDE, "compute capability 8.0"),
        (H100, "wgmma", "hidden = 96\nheads = 8", "have 12"),
    ] {
        let message = declined(gpu, name, dit).expect("it is declined");
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(declined(H100, "wgmma", WIDE), None);
    assert_eq!(declined(A100, "mma", WIDE), None);
    assert_eq!(declined(T4, "portable", WIDE), None);
}

#[test]
fn the_rules_are_those_of_the_kernels() {
    for head_dim in 0..=300 {
        let call = Problem {
            batch: 2,
            heads: 3,
            kv_heads: 3,
            queries: 65,
            keys: [65, 0],
            head_dim,
            operand_type: OperandType::Bf16,
        };
        assert_eq!(
            attends_on_tensor_cores(head_dim),
            call.check().is_ok(),
            "{head_dim}"
        );
    }
    for (hopper, ampere) in [(true, true), (false, true)] {
        let offer = DeviceCapabilities {
            multiprocessors: 108,
            hopper,
            ampere,
            shared_bytes: 163_840,
        };
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            for [n, k] in [[8, 8], [64, 256], [1152, 4608], [16, 1536]] {
                let call = Matmul::plain(layout, [300, n, k], Element::Bf16);
                let plan = Plan::new(&call, offer).expect("it is computed");
                assert!(
                    multiplies_on_tensor_cores([n, k]) && plan != Plan::Portable,
                    "{call:?}"
                );
            }
        }
    }
    assert!(!multiplies_on_tensor_cores([12, 64]) && !multiplies_on_tensor_cores([64, 12]));
}
