//! What is no config of Flow-Factory is refused by name of what it looks like, and nothing is made of it.

use flow_import::{ImportError, import, import_bytes};
use test_catalog::CATALOG;

/// What is said of a text.
fn looks(text: &str) -> String {
    match import(text, &CATALOG) {
        Err(ImportError::NotFlowFactory { looks }) => looks,
        Err(other) => panic!("{other}\n{text}"),
        Ok(imported) => panic!("it was converted:\n{}", imported.toml),
    }
}

#[test]
fn configs_of_other_tools_are_refused_by_name() {
    for (text, name) in [
        (
            "base_model: m\nsequence_len: 512\nmicro_batch_size: 2\ndatasets: [{path: a}]\nlearning_rate: 0.1\nseed: 4\n",
            "axolotl",
        ),
        (
            "job: extension\nconfig:\n  name: a\n  process:\n    - type: sd_trainer\n      train: {lr: 1.0e-4}\nmeta: {version: '1.0'}\n",
            "ai-toolkit",
        ),
        (
            "models:\n  student: {_target_: a.Wan}\nmethod: {_target_: b.Dmd}\ntraining:\n  distributed: {num_gpus: 8}\n",
            "FastVideo",
        ),
        (
            "generator: {model_path: Wan-AI/Wan2.1}\nrequest: {prompt: a}\n",
            "FastVideo",
        ),
        (
            "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\nmachine_rank: 0\n",
            "accelerate",
        ),
        (
            "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}}",
            "DeepSpeed",
        ),
        (
            "{\"model_family\": \"sd3\", \"model_type\": \"lora\", \"data_backend_config\": \"a.json\", \"seed\": 42}",
            "SimpleTuner",
        ),
        (
            "[{\"id\": \"a\", \"type\": \"local\", \"dataset_type\": \"image\"}]",
            "SimpleTuner",
        ),
        (
            "{\"_class_name\": \"SD3Transformer2DModel\", \"num_layers\": 24}",
            "diffusers",
        ),
        (
            "{\"_class_name\": \"StableDiffusion3Pipeline\", \"_diffusers_version\": \"0.30\", \"vae\": [], \"transformer\": []}",
            "model_index.json",
        ),
        (
            "{\"architectures\": [\"T5\"], \"model_type\": \"t5\"}",
            "transformers",
        ),
        ("{\"peft_type\": \"LORA\", \"r\": 4}", "peft"),
        (
            "stage: sft\nfinetuning_type: lora\ntemplate: qwen\nmodel_name_or_path: a/b\n",
            "LLaMA-Factory",
        ),
        ("config_version = 1\n\n[run]\nsteps = 3\n", "flow-train"),
        ("config_version: 1\nrun: {steps: 3}\n", "flow-train"),
        (
            "[general]\nenable_bucket = true\n[[datasets]]\nresolution = 512\n",
            "TOML of kohya",
        ),
        (
            "output_dir = 'x'\nmicro_batch_size_per_gpu = 1\n[model]\ntype = 'flux'\n",
            "TOML of diffusion-pipe",
        ),
        ("[a]\nb = 1\n", "TOML"),
        (
            "model_name_or_path: x\ndataset_name: y\nper_device_train_batch_size: 2\n",
            "TRL",
        ),
        (
            "{\"3\": {\"class_type\": \"KSampler\", \"inputs\": {\"seed\": 1}}}",
            "ComfyUI",
        ),
        (
            "import ml_collections\n\ndef get_config():\n    config = ml_collections.ConfigDict()\n    return config\n",
            "flow_grpo",
        ),
        ("import torch\nclass A(torch.nn.Module):\n    pass\n", "Python"),
        ("#!/bin/bash\nexport A=1\ntorchrun --nproc 8 train.py\n", "shell"),
        ("<!doctype html>\n<html></html>\n", "HTML"),
        ("nodes: []\nlinks: []\nlast_node_id: 3\n", "ComfyUI"),
    ] {
        let said = looks(text);
        assert!(said.contains(name), "{name}: {said}\n{text}");
    }
}

#[test]
fn what_nobody_knows_is_refused_with_its_keys() {
    for (text, said) in [
        ("hello: 1\n", "`hello`"),
        ("{}", "an empty map"),
        ("", "it is empty"),
        ("# nothing\n\n", "empty but for comments"),
        ("{\"a\": 1, \"b\": 2}", "JSON with `a`, `b`"),
        ("seed: 3\nnum_processes: 8\n", "`seed`"),
        // Sections that everybody has, with keys that everybody has.
        (
            "model: {name: unet, channels: 64}\ntrain: {learning_rate: 1.0e-4, batch_size: 4, epochs: 3}\ndata: {path: x}\n",
            "`model`",
        ),
        ("train: 3\nmodel: x\n", "`train`"),
        ("a\u{1b}[31mb: 1\n", "\\u001b"),
    ] {
        let found = looks(text);
        assert!(found.contains(said), "{found}\n{text}");
        assert!(!found.contains('\u{1b}'));
    }
    assert!(matches!(
        import_bytes(b"\xff\xfe\x00", &CATALOG),
        Err(ImportError::NotFlowFactory { .. })
    ));
}

#[test]
fn a_part_of_a_config_of_flow_factory_is_one_and_so_is_its_json() {
    for text in [
        "train: {trainer_type: nft, off_policy: true}\n",
        "model: {model_type: sd3-5, finetune_type: lora}\n",
        "scheduler: {dynamics_type: CPS, noise_level: 0.8}\n",
        "{\"train\": {\"trainer_type\": \"grpo\", \"group_size\": 8}}",
        "\u{feff}train: {trainer_type: grpo, group_size: 8}\n",
        "my_own_key: 3\ntrain: {trainer_type: grpo, group_size: 8, my_extra: 2}\n",
        "rewards: {name: a, reward_model: PickScore}\n",
    ] {
        assert!(import(text, &CATALOG).is_ok(), "{text}");
    }
}
