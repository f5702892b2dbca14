//! Keys of the trainers: what becomes of the KL term, and of what each has for itself.

use super::{config, note};
use flow_import::Outcome;
use serde_json::json;

#[test]
fn the_kl_term_takes_kind_factor_and_reference() {
    let kl = |yaml: &str| config(yaml).algorithm.params["kl"].clone();
    let full = kl("train: {kl_type: v-based, kl_beta: 0.1}");
    assert_eq!(
        full,
        json!({ "kind": "velocity", "beta": 0.1, "reference": "snapshot" })
    );
    let lora = kl("model: {finetune_type: lora}\ntrain: {kl_beta: 0.1}");
    assert_eq!(
        (&lora["kind"], &lora["reference"]),
        (&json!("mean"), &json!("lora-off"))
    );
    assert_eq!(kl("train: {kl_type: v-based, kl_beta: 0}")["kind"], "none");
    // Of Flow-Factory's trainers DPPO has a guidance of the reference, which is none at 1 and below, but what FLUX.1-dev is told.
    let guided = |model: &str, scale: &str| {
        let yaml = format!(
            "model: {model}\ntrain: {{trainer_type: dppo, kl_beta: 0.1, kl_guidance_scale: {scale}}}"
        );
        kl(&yaml)["guidance_scale"].clone()
    };
    assert_eq!(guided("{model_type: sd3-5}", "4.5"), json!(4.5));
    assert_eq!(guided("{model_type: sd3-5}", "0.5"), json!(1.0));
    assert_eq!(guided("{model_type: flux1}", "0.5"), json!(0.5));
    assert_eq!(guided("{model_type: sd3-5}", "null"), json!(null));
    let others = "train: {trainer_type: grpo, kl_beta: 0.1, kl_guidance_scale: 4.5}";
    assert_eq!(note(others, "train.kl_guidance_scale").outcome, Outcome::Kept);
}

#[test]
fn gdpo_without_a_global_std_is_not_normalised_over_all_images() {
    let of = |keys: &str| config(&format!("train: {{trainer_type: grpo, {keys}}}")).advantage;
    for (keys, is_gdpo, global_std) in [
        ("global_std: false", true, false),
        ("advantage_aggregation: gdpo, global_std: false", true, false),
        ("advantage_aggregation: gdpo, global_std: true", true, true),
        ("advantage_aggregation: gdpo", true, true),
        ("advantage_aggregation: sum, global_std: false", false, false),
    ] {
        let found = of(keys);
        let aggregation = found.aggregation == flow_config::Aggregation::Gdpo;
        assert_eq!((aggregation, found.global_std), (is_gdpo, global_std), "{keys}");
    }
    let note = note("train: {global_std: false}", "train.global_std");
    assert_eq!(note.outcome, Outcome::Converted);
    assert!(note.to_string().contains("a0b2bc5"), "{note}");
}

#[test]
fn keys_of_dppo_awm_and_dpo_become_those_of_flow_train() {
    let params = |yaml: &str| config(yaml).algorithm.params;
    let dppo = params(
        "train: {trainer_type: dppo, kl_mask_type: v-based, kl_mask_threshold: 1.0e-5, kl_beta: 0.1, clip_range: 1.0e-4}",
    );
    assert_eq!(
        (&dppo["mask"], &dppo["mask_threshold"], &dppo["kl"]["kind"]),
        (&json!("velocity"), &json!(1e-5), &json!("mean"))
    );
    let awm = params(
        "model: {finetune_type: lora}\ntrain: {trainer_type: awm, awm_weighting: ghuber, ghuber_power: 0.5, clip_range: 1.0e-5, \
         kl_beta: 0.01, ema_kl_beta: 0.1, ema_decay: 0.9, ema_decay_schedule: constant, ema_update_interval: 1}",
    );
    assert_eq!(
        (&awm["weighting"], &awm["huber_power"], &awm["clip_range"]),
        (&json!("generalised-huber"), &json!(0.5), &json!([-1e-5, 1e-5]))
    );
    assert_eq!(
        (&awm["kl_beta"], &awm["reference"], &awm["old_policy_beta"]),
        (&json!(0.01), &json!("lora-off"), &json!(0.1))
    );
    assert_eq!(awm["off_policy"], json!(false));
    assert_eq!(awm["old_policy"]["hold"], json!(0.9));
    let dpo = params(
        "model: {finetune_type: lora}\ntrain: {trainer_type: dpo, beta: 500, weighting_scheme: uniform, num_train_timesteps: 2}",
    );
    assert_eq!(
        (&dpo["beta"], &dpo["reference"]),
        (&json!(500.0), &json!("lora-off"))
    );
    assert_eq!(
        dpo["train_timesteps"],
        json!({ "count": 2, "strategy": "uniform", "shift": 1.0, "range": [0.0, 0.99] })
    );
}

#[test]
fn keys_of_dgpo_become_those_of_flow_train() {
    let yaml = "model: {finetune_type: lora}\ntrain: {trainer_type: dgpo, dpo_beta: 2000, clip_range: 1.0e-5, kl_beta: 1.0e-3, \
                kl_cfg: 4.5, use_ema_ref: true, clip_kl: true, switch_ema_ref: 50, ema_ref_max_decay: 0.9, \
                use_shared_noise: false, off_policy: true, num_train_timesteps: 2}";
    let dgpo = config(yaml).algorithm.params;
    assert_eq!(
        (&dgpo["beta"], &dgpo["clip_range"], &dgpo["kl_beta"]),
        (&json!(2000.0), &json!([-1e-5, 1e-5]), &json!(1e-3))
    );
    assert_eq!(
        (
            &dgpo["reference"],
            &dgpo["reference_guidance"],
            &dgpo["against_old"]
        ),
        (&json!("lora-off"), &json!(4.5), &json!(true))
    );
    assert_eq!(
        (&dgpo["clip_error"], &dgpo["clip_kl"], &dgpo["shared_noise"]),
        (&json!(true), &json!(true), &json!(false))
    );
    assert_eq!(dgpo["old_samples_after"], json!(50));
    assert_eq!(
        dgpo["old_copy"],
        json!({ "flat": 0, "start": 0.0, "rate": 0.001, "hold": 0.9 })
    );
    assert_eq!(
        dgpo["train_timesteps"],
        json!({ "count": 2, "strategy": "discrete", "shift": 3.0, "range": [0.0, 0.6] })
    );
    // Its average samples at first, which nothing does here.
    assert!(note(yaml, "train.off_policy").needs_attention());
    assert!(
        !note(
            "train: {trainer_type: dgpo, off_policy: false}",
            "train.off_policy"
        )
        .needs_attention()
    );
}

#[test]
fn keys_of_crd_become_those_of_flow_train() {
    let crd = |train: &str| {
        config(&format!("train: {{trainer_type: crd, {train}}}"))
            .algorithm
            .params
    };
    let written = crd(
        "crd_beta: 2, crd_loss_type: bce, use_old_for_loss: false, adaptive_logp: false, weight_temp: 0.5, \
                       kl_beta: 0.2, kl_cfg: 3, reward_adaptive_kl: false, timestep_range: 0.9",
    );
    assert_eq!(
        (&written["beta"], &written["loss"], &written["baseline"]),
        (&json!(2.0), &json!("bce"), &json!("reference"))
    );
    assert_eq!(
        (&written["normalise_errors"], &written["adaptive_kl"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        (&written["centre_weights"], &written["centre_temperature"]),
        (&json!("softmax"), &json!(0.5))
    );
    assert_eq!(
        (&written["kl_beta"], &written["reference_guidance"]),
        (&json!(0.2), &json!(3.0))
    );
    assert_eq!(written["train_timesteps"]["range"], json!([0.0, 0.9]));
    let kl = |train| crd(train)["kl_beta"].clone();
    assert_eq!((kl("seed: 1"), kl("kl_beta: 0")), (json!(0.1), json!(0.0)));
    let lora = config("model: {finetune_type: lora}\ntrain: {trainer_type: crd}")
        .algorithm
        .params;
    assert_eq!(lora["reference"], json!("lora-off"));
    assert!(note("train: {trainer_type: crd, weight_temp: 0}", "train.weight_temp").needs_attention());
}

#[test]
fn decays_of_crd_are_four_numbers_or_a_preset() {
    let copies = |decays: &str| {
        let params = config(&format!("train: {{trainer_type: crd, {decays}}}"))
            .algorithm
            .params;
        (params["old_copy"].clone(), params["sampling_copy"].clone())
    };
    let copy = |flat: u64, start: f64, rate: f64, hold: f64| json!({ "flat": flat, "start": start, "rate": rate, "hold": hold });
    let default = (copy(0, 0.25, 0.005, 0.999), copy(75, 0.0, 0.0075, 0.999));
    assert_eq!(copies("seed: 1"), default);
    assert_eq!(
        copies("old_model_decay: 10-0.5-0.01-0.9, sampling_model_decay: 5"),
        (copy(10, 0.5, 0.01, 0.9), copy(0, 0.0, 0.01, 0.5))
    );
    assert_eq!(
        copies("old_model_decay: offline, sampling_model_decay: none"),
        (copy(0, 1.0, 0.0, 1.0), copy(0, 0.0, 0.0, 0.0))
    );
    for wrong in ["0-0.25-0.005", "0-2-0-1", "quick", "7", "0.5-0-0-0"] {
        assert_eq!(copies(&format!("old_model_decay: {wrong}")), default, "{wrong}");
        let yaml = format!("train: {{trainer_type: crd, old_model_decay: {wrong}}}");
        assert!(note(&yaml, "train.old_model_decay").needs_attention(), "{wrong}");
    }
}

#[test]
fn keys_of_offline_dpo_become_those_of_flow_train() {
    let yaml = "model: {finetune_type: lora}\ndata: {dataset_dir: set}\ntrain: {trainer_type: offline-dpo, beta: 500, kl_beta: 0.1}";
    let params = config(yaml).algorithm.params;
    assert_eq!(
        (&params["beta"], &params["reference"]),
        (&json!(500.0), &json!("lora-off"))
    );
    assert_eq!(note(yaml, "train.kl_beta").outcome, Outcome::Kept);
}

#[test]
fn teachers_of_diffusion_opd_are_adapters() {
    let yaml = "scheduler: {dynamics_type: ODE}\ntrain: {trainer_type: diffusion-opd, loss_target: x0, self_normalize: true, \
                timestep_range: 0.75, teacher_param_device: cuda, teachers: [{name: sketch, path: loras/sketch, guidance_scale: 4.5}, \
                {name: photo, path: loras/photo, applicable_datasets: [a]}]}";
    let opd = config(yaml).algorithm.params;
    assert_eq!(
        (&opd["loss_target"], &opd["self_normalise"], &opd["step_range"]),
        (&json!("image"), &json!(true), &json!([0.0, 0.75]))
    );
    assert_eq!(
        opd["teachers"],
        json!([
            { "name": "sketch", "adapter": "loras/sketch", "guidance_scale": 4.5 },
            { "name": "photo", "adapter": "loras/photo" }
        ])
    );
    assert!(note(yaml, "train.teachers").needs_attention());
    // Without any the config is refused where they should stand.
    let verdict = super::imported("train: {trainer_type: diffusion-opd}").verdict;
    assert!(verdict.to_string().contains("no teachers"), "{verdict}");
}

#[test]
fn keys_of_dmd2_and_tdm_become_those_of_flow_train() {
    let of = |trainer: &str, train: &str, rest: &str| {
        config(&format!(
            "model: {{finetune_type: lora}}\ntrain: {{trainer_type: {trainer}, group_size: 4, ttur_fake_updates: 3, \
             real_guidance_scale: 4.5, {train}}}\n{rest}"
        ))
    };
    let optimizers = "optimizers: [{name: fake, learning_rate: 3.0e-4, betas: [0.0, 0.9]}, {name: generator, learning_rate: 2.0e-5}]";
    let dmd2 = of(
        "dmd2",
        "perturbation_timestep_range: [0.05, 0.9], replay_rtol: 1.0e-3",
        optimizers,
    );
    let params = &dmd2.algorithm.params;
    assert_eq!(
        params["fake_score"],
        json!({ "updates": 3, "learning_rate": 3e-4, "betas": [0.0, 0.9] })
    );
    assert_eq!(
        (
            &params["real_guidance_scale"],
            &params["perturbation_range"],
            &params["reference"]
        ),
        (&json!(4.5), &json!([0.05, 0.9]), &json!("lora-off"))
    );
    assert_eq!(dmd2.optimizer.learning_rate, 2e-5);
    // One step of the student for each rollout, whose steps are deterministic, unless something else is said.
    assert_eq!(dmd2.optimizer.gradient_accumulation, 0);
    assert_eq!(dmd2.scheduler.dynamics, flow_config::Dynamics::Ode);

    let tdm = of(
        "tdm",
        "use_huber: false, tdm_snr_gamma: 3, tdm_importance_clip: 10, tdm_query_interval: reverse, tdm_query_max_sigma: 0.98, \
         tdm_query_distribution: source_uniform",
        "scheduler: {dynamics_type: CPS}",
    );
    let params = &tdm.algorithm.params;
    assert_eq!(
        (
            &params["distance"],
            &params["signal_to_noise_clip"],
            &params["importance_clip"]
        ),
        (&json!("square"), &json!(3.0), &json!(10.0))
    );
    assert_eq!(
        (
            &params["query_interval"],
            &params["query_max_sigma"],
            &params["query_distribution"]
        ),
        (&json!("reverse"), &json!(0.98), &json!("source-uniform"))
    );
    assert_eq!(tdm.scheduler.dynamics, flow_config::Dynamics::Ode);
    let logit = of(
        "tdm",
        "tdm_query_distribution: conditional_logit_normal, tdm_query_logit_mean: 0.5, tdm_query_logit_std: 1.5",
        "scheduler: {dynamics_type: ODE}",
    );
    let params = &logit.algorithm.params;
    assert_eq!(
        ["query_distribution", "query_logit_mean", "query_logit_std"].map(|key| &params[key]),
        [&json!("logit-normal"), &json!(0.5), &json!(1.5)]
    );
}

#[test]
fn keys_of_tdm_r1_become_those_of_its_student_and_of_its_surrogate() {
    let found = config(
        "model: {finetune_type: lora}\ntrain: {trainer_type: tdm-r1, group_size: 4, ttur_fake_updates: 1, real_guidance_scale: 4.5, \
         tdm_weight: 0.4, cfg_reward_scale: 4.5, advantage_clip_range: 3.0, surrogate_preference_beta: 10, \
         surrogate_reference_beta: 0.01, surrogate_reference_threshold: 0.1, surrogate_clip_range: 0.002, \
         surrogate_slow_decay_min: 0.01, surrogate_slow_decay_max: 0.4, use_time_weighting: false}\n\
         optimizers: [{name: fake, learning_rate: 2.0e-4, betas: [0.0, 0.9]}, {name: surrogate, learning_rate: 1.0e-4, betas: [0.8, 0.9]}, \
         {name: generator, learning_rate: 7.5e-5}]",
    );
    let params = &found.algorithm.params;
    assert_eq!(
        params["fake_score"],
        json!({ "updates": 1, "learning_rate": 2e-4, "betas": [0.0, 0.9] })
    );
    assert_eq!(
        params["surrogate"],
        json!({
            "learning_rate": 1e-4,
            "betas": [0.8, 0.9],
            "preference_beta": 10.0,
            "reference_beta": 0.01,
            "reference_threshold": 0.1,
            "clip_range": 0.002,
            "slow_decay_min": 0.01,
            "slow_decay_max": 0.4,
            "time_weighting": false
        })
    );
    assert_eq!(
        (
            &params["tdm_weight"],
            &params["cfg_reward_scale"],
            &params["advantage_clip"],
            &params["reference"]
        ),
        (&json!(0.4), &json!(4.5), &json!(3.0), &json!("lora-off"))
    );
    assert_eq!(found.optimizer.learning_rate, 7.5e-5);
    assert_eq!(found.scheduler.dynamics, flow_config::Dynamics::Ode);
}
